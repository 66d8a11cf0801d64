//! Transitions on their way from producers to delivery: a ring of atomic words, written under the queue's lock, read
//! under none.

use std::sync::atomic::{AtomicU64, Ordering};

use super::rule::AlarmValue;
use crate::options::ObjectId;
use crate::time::Time;

const WORDS: usize = 5;

/// An alarm that was raised or is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlarmTransition {
    /// The rule, by its index.
    pub rule: u32,
    /// The object.
    pub object: ObjectId,
    /// `true`: raised; `false`: over.
    pub raised: bool,
    /// The last comparable value of the object, if it has had one.
    pub value: Option<AlarmValue>,
    /// The time of the reading that caused it, or the node's time if elapsed time did.
    pub time: Time,
    /// When it happened on the monotonic clock: deadlines run from here.
    pub at_ns: u64,
}

/// A bounded ring: one producer at a time (ensured by the queue's lock), any number of readers.
#[derive(Debug)]
pub(crate) struct Ring {
    slots: Box<[[AtomicU64; WORDS]]>,
    /// Number of transitions taken, and put.
    head: AtomicU64,
    tail: AtomicU64,
}

impl Ring {
    pub(crate) fn new(transitions_max: u32) -> Self {
        // Write to it now, so that no producer meets a page fault.
        let word = |_| AtomicU64::new(1);
        let slot = |_| std::array::from_fn(word);
        Self {
            slots: (0..transitions_max.max(1)).map(slot).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }

    fn slot(&self, number: u64) -> &[AtomicU64; WORDS] {
        let count = self.slots.len() as u64;
        &self.slots[(number % count) as usize]
    }

    /// Number of transitions that wait.
    pub(crate) fn waiting(&self) -> u64 {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).saturating_sub(head)
    }

    /// Puts one transition; `false` if there is no room.
    pub(crate) fn push(&self, transition: &AlarmTransition) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        // A reader that has taken a transition has read it: its words may be overwritten.
        if tail - self.head.load(Ordering::Acquire) >= self.slots.len() as u64 {
            return false;
        }
        let (value, kind) = AlarmValue::pack(transition.value);
        let words = [
            u64::from(transition.rule) | u64::from(transition.object.0) << 32,
            u64::from(transition.raised) | kind << 1,
            value,
            transition.time.ns() as u64,
            transition.at_ns,
        ];
        for (word, new) in self.slot(tail).iter().zip(words) {
            word.store(new, Ordering::Relaxed);
        }
        self.tail.store(tail + 1, Ordering::Release);
        true
    }

    /// Takes the oldest transition.
    pub(crate) fn pop(&self) -> Option<AlarmTransition> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head >= self.tail.load(Ordering::Acquire) {
                return None;
            }
            let mut words = [0; WORDS];
            for (word, found) in words.iter_mut().zip(self.slot(head)) {
                *word = found.load(Ordering::Relaxed);
            }
            // No producer writes to a slot before the head has passed it, so the reader that moves the head has read
            // what was put.
            match self
                .head
                .compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(unpack(words)),
                Err(other) => head = other,
            }
        }
    }
}

fn unpack([names, flags, value, time, at_ns]: [u64; WORDS]) -> AlarmTransition {
    AlarmTransition {
        rule: names as u32,
        object: ObjectId((names >> 32) as u32),
        raised: flags & 1 != 0,
        value: AlarmValue::unpack(value, flags >> 1),
        time: Time::from_ns(time as i64),
        at_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn numbered(number: u64) -> AlarmTransition {
        AlarmTransition {
            rule: number as u32,
            object: ObjectId(u32::MAX - number as u32),
            raised: number.is_multiple_of(2),
            value: Some(AlarmValue::Unsigned(number)),
            time: Time::from_ns(-(number as i64)),
            at_ns: number,
        }
    }

    #[test]
    fn a_ring_keeps_the_order_and_refuses_entries_beyond_its_capacity() {
        let ring = Ring::new(3);
        assert_eq!(ring.pop(), None);
        for round in 0..5_u64 {
            for n in 0..3 {
                assert!(ring.push(&numbered(round * 3 + n)));
            }
            assert!(!ring.push(&numbered(99)));
            assert_eq!(ring.waiting(), 3);
            for n in 0..3 {
                assert_eq!(ring.pop(), Some(numbered(round * 3 + n)));
            }
            assert_eq!((ring.pop(), ring.waiting()), (None, 0));
        }
    }

    #[test]
    fn two_readers_share_the_items_of_one_producer() {
        const COUNT: u64 = 50_000;
        let ring = Ring::new(16);
        let is_over = AtomicBool::new(false);
        let read = || {
            let mut found = Vec::new();
            loop {
                // Load this first: what was put before is then visible.
                let last = is_over.load(Ordering::Acquire);
                match ring.pop() {
                    Some(one) => {
                        assert_eq!(one, numbered(one.at_ns));
                        found.push(one.at_ns);
                    }
                    None if last => return found,
                    None => std::thread::yield_now(),
                }
            }
        };
        let mut found: Vec<u64> = std::thread::scope(|scope| {
            let readers = [scope.spawn(read), scope.spawn(read)];
            for number in 0..COUNT {
                while !ring.push(&numbered(number)) {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Release);
            readers
                .into_iter()
                .flat_map(|reader| reader.join().unwrap())
                .collect()
        });
        found.sort_unstable();
        assert_eq!(found, (0..COUNT).collect::<Vec<_>>());
    }
}
