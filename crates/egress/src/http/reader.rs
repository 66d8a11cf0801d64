//! One reader of the live stream: what it asked for, and the bounded queue between the hub and its connection.
//!
//! **Method.** While a reader keeps up, each message of the hub is put into its queue without a copy. When its queue is
//! full, the keys of a message are only marked. Once there is room, the reader is told how many updates it has missed,
//! and gets the latest values of the marked keys. So a slow reader costs one queue and one bit per key. It misses the
//! replaced values, and never shows an old value as the latest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::query::EventId;

/// A set of objects, one bit each.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    words: Vec<u64>,
    count: u32,
    /// Where the next search begins, so that every mark has its turn.
    at: u32,
}

impl Marks {
    pub(crate) fn add(&mut self, object: u32) {
        let word = object as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (object % 64);
        if let Some(word) = self.words.get_mut(word).filter(|word| **word & bit == 0) {
            *word |= bit;
            self.count += 1;
        }
    }

    pub(crate) fn has(&self, object: u32) -> bool {
        let word = self.words.get(object as usize / 64);
        word.is_some_and(|word| word & (1 << (object % 64)) != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes a mark. Returns whether it was there.
    pub(crate) fn remove(&mut self, object: u32) -> bool {
        let is_there = self.has(object);
        if let (true, Some(word)) = (is_there, self.words.get_mut(object as usize / 64)) {
            *word &= !(1 << (object % 64));
            self.count -= 1;
        }
        is_there
    }

    /// Removes and returns the next mark, in circular order.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let words = self.words.len() as u32;
        let begin = (self.at / 64) % words.max(1);
        for step in 0..=words {
            let at = (begin + step) % words;
            let word = self.words.get_mut(at as usize)?;
            // In the first word, skip the bits before the current position; the last step visits them.
            let rest = match step {
                0 => *word & (u64::MAX << (self.at % 64)),
                _ => *word,
            };
            if rest != 0 {
                let bit = rest.trailing_zeros();
                *word &= !(1 << bit);
                self.count -= 1;
                self.at = at * 64 + bit;
                return Some(self.at);
            }
        }
        None
    }
}

/// What a reader has asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamRequest {
    /// Pattern of keys; `None`: every key.
    pub(crate) pattern: Option<String>,
    /// Whether to send also the current values at the beginning.
    pub(crate) current: bool,
    /// Whether to send also the node's status, once a second.
    pub(crate) status: bool,
    /// The last message that it has seen, if it was connected before.
    pub(crate) seen: Option<EventId>,
}

/// A reader.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) wanted: StreamRequest,
    queue_bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    messages: VecDeque<Bytes>,
    pub(crate) bytes: usize,
    waker: Option<Waker>,
    is_closed: bool,
    /// Keys that match, if not every key does; the keys below `met` have been checked.
    pub(crate) fits: Marks,
    pub(crate) met: u32,
    /// Number of objects when the reader joined.
    pub(crate) objects_first: Option<u32>,
    /// Marked keys whose value at the beginning is still to be sent.
    pub(crate) first: Marks,
    /// Keys whose latest value is still to be sent.
    pub(crate) marked: Marks,
    /// Updates that it has missed and has not been told of.
    pub(crate) missed: u64,
    /// Whether it has been told where the stream begins.
    pub(crate) is_greeted: bool,
    /// Number of periods without a message for it.
    pub(crate) quiet_ticks: u32,
}

impl Reader {
    pub(crate) fn new(wanted: StreamRequest, queue_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            wanted,
            queue_bytes_max,
            inner: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `bytes` more fit. An empty queue takes any message.
    pub(crate) fn has_room(&self, inner: &Inner, bytes: usize) -> bool {
        inner.messages.is_empty() || inner.bytes + bytes <= self.queue_bytes_max
    }

    /// Returns whether the queue is at least half empty, so that the reader can catch up.
    pub(crate) fn is_taking(&self, inner: &Inner) -> bool {
        inner.messages.is_empty() || inner.bytes <= self.queue_bytes_max / 2
    }

    /// Returns the size of a catch-up message, in bytes: a quarter of its queue.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.queue_bytes_max / 4 + 1
    }

    /// Closes the stream: the reader ends once its queue is empty.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.wake();
    }

    /// Returns the next message; `Err` if there is none yet, and the waker will be woken; `Ok(None)` at the end.
    pub(crate) fn next(&self, waker: &Waker) -> Result<Option<Bytes>, ()> {
        let mut inner = self.lock();
        if let Some(message) = inner.messages.pop_front() {
            inner.bytes -= message.len();
            return Ok(Some(message));
        }
        if inner.is_closed {
            return Ok(None);
        }
        inner.waker = Some(waker.clone());
        Err(())
    }
}

impl Inner {
    pub(crate) fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.quiet_ticks = 0;
        self.messages.push_back(message);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_out_once_each_and_all_have_their_turn() {
        let mut marks = Marks::default();
        for object in [700, 3, 64, 3, 63, 0] {
            marks.add(object);
        }
        assert!(marks.has(700) && !marks.has(701) && !marks.has(5_000));
        assert_eq!(marks.take(), Some(0));
        assert_eq!(marks.take(), Some(3));
        // A mark behind the current position is found in the next round.
        marks.add(1);
        let rest: Vec<u32> = std::iter::from_fn(|| marks.take()).collect();
        assert_eq!(rest, [63, 64, 700, 1]);
        assert!(marks.is_empty());
        assert_eq!(marks.take(), None);
        marks.add(9);
        assert!(marks.remove(9) && !marks.remove(9) && !marks.remove(900));
        assert_eq!(marks.take(), None);
    }

    #[test]
    fn a_queue_holds_its_maximum_and_one_message_in_any_case() {
        let reader = Reader::new(StreamRequest::default(), 10);
        let mut inner = reader.lock();
        assert!(reader.has_room(&inner, 1_000));
        inner.push(Bytes::from_static(b"12345678"));
        assert!(reader.has_room(&inner, 2) && !reader.has_room(&inner, 3));
        assert!(!reader.is_taking(&inner));
        drop(inner);
        let waker = Waker::noop();
        assert_eq!(
            reader.next(waker),
            Ok(Some(Bytes::from_static(b"12345678")))
        );
        assert_eq!(reader.next(waker), Err(()));
        reader.close();
        assert_eq!(reader.next(waker), Ok(None));
    }
}
