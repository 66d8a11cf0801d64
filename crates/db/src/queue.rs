//! Shared by producers and the commit thread: one bounded buffer of waiting readings behind one short lock.
//!
//! **Invariants:** the buffer never grows. Under the lock a producer copies one entry and stores one slot, and the
//! commit thread swaps two buffers. No thread allocates, waits or calls the system under it. Entries are in the order
//! in which slots were stored, so log and table agree on the latest value of an object.

use std::time::Instant;

use base::seeded_bug::SeededBug;

use crate::alarm::watches::Watches;
use crate::error::LogFailure;
use crate::log::entry::{Entry, EntryKind, encode};

/// The shared state. Everything in it is cheap to read under the lock.
#[derive(Debug)]
pub(crate) struct Queue {
    buffer: Vec<u8>,
    bytes_max: usize,
    /// Number of the next reading.
    pub(crate) next_lsn: u64,
    /// When the first waiting entry arrived, on the thread's timer.
    pub(crate) first: Option<Instant>,
    /// The same on the node's clock, if there is one.
    pub(crate) first_ns: u64,
    /// Arrival of the first waiting reading.
    pub(crate) first_reading_ns: Option<u64>,
    /// A caller wants the next flush at once.
    pub(crate) urgent: bool,
    /// The commit thread sleeps without a timer and must be woken.
    pub(crate) sleeping: bool,
    /// The commit thread must end.
    pub(crate) stop: bool,
    /// No more entries are taken.
    pub(crate) closed: bool,
    /// The log has failed.
    pub(crate) failure: Option<LogFailure>,
    /// A checkpoint is wanted although no entry waits.
    pub(crate) checkpoint_due: bool,
    /// The store is full: nothing more is taken until room returns.
    pub(crate) full: bool,
    /// Readings refused because the store was full.
    pub(crate) refused_full: u64,
    /// Arrival of the last reading refused because the store was full.
    pub(crate) refused_full_last_ns: Option<u64>,
    /// Readings taken.
    pub(crate) puts: u64,
    /// Readings refused because the queue was full.
    pub(crate) busy: u64,
    /// Arrival of the last reading refused because the queue was full.
    pub(crate) busy_last_ns: Option<u64>,
    /// Readings refused because the log had failed.
    pub(crate) refused: u64,
    /// Readings taken for the log whose slot held a newer one.
    pub(crate) outdated: u64,
    /// Some readings are shed: each one must be judged.
    pub(crate) is_shedding: bool,
    /// Readings of temporal objects taken or dropped.
    pub(crate) offered: u64,
    /// Offered readings that did not go to the table.
    pub(crate) shed: u64,
    /// Shed readings that did not go to the log either.
    pub(crate) dropped: u64,
    /// The alarm watches, if alarms are set.
    pub(crate) alarms: Option<Box<Watches>>,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize, next_lsn: u64) -> Self {
        Self {
            buffer: touched_buffer(bytes_max),
            bytes_max,
            next_lsn,
            first: None,
            first_ns: 0,
            first_reading_ns: None,
            urgent: false,
            sleeping: false,
            stop: false,
            closed: false,
            failure: None,
            checkpoint_due: false,
            full: false,
            refused_full: 0,
            refused_full_last_ns: None,
            puts: 0,
            busy: 0,
            busy_last_ns: None,
            refused: 0,
            outdated: 0,
            is_shedding: false,
            offered: 0,
            shed: 0,
            dropped: 0,
            alarms: None,
        }
    }

    pub(crate) fn has_room(&self, entry: &Entry<'_>) -> bool {
        self.has_bytes(entry.bytes())
    }

    /// Whether there is room for entries of this many bytes.
    pub(crate) fn has_bytes(&self, bytes: usize) -> bool {
        self.buffer.len() + bytes <= self.bytes_max
    }

    /// Whether the buffer is half full: waiting for the timer would then risk `Busy`.
    pub(crate) fn is_pressed(&self) -> bool {
        self.buffer.len() * 2 >= self.bytes_max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Appends an entry for which there is room.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        debug_assert!(self.has_room(entry));
        encode(&mut self.buffer, entry);
        if self.first.is_none() {
            self.first = Some(Instant::now());
            self.first_ns = entry.arrival_ns;
        }
        if entry.kind == EntryKind::Reading {
            self.first_reading_ns.get_or_insert(entry.arrival_ns);
        }
    }

    /// Judges a reading against the alarms; `newer` says whether it is newer than its object's value.
    #[inline]
    pub(crate) fn judge_alarms(&mut self, reading: &Entry<'_>, newer: bool) {
        if let Some(alarms) = &mut self.alarms {
            alarms.reading(reading, newer);
        }
    }

    /// Appends a reading for which there is room, and returns its number.
    pub(crate) fn take(&mut self, reading: &Entry<'_>) -> u64 {
        self.push(reading);
        let lsn = self.next_lsn;
        self.next_lsn += 1;
        self.puts += 1;
        lsn
    }

    /// Notes that an entry was appended, urgent or not. Returns whether the commit thread must be woken.
    pub(crate) fn hurry(&mut self, is_urgent: bool) -> bool {
        let is_asleep = self.sleeping && !SeededBug::WakeUpLost.is_on();
        let wake = is_asleep || (is_urgent && !self.urgent);
        self.sleeping = false;
        self.urgent |= is_urgent;
        wake
    }

    /// Returns the address and the bytes of the buffer.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.buffer.as_ptr().addr(), self.buffer.capacity())
    }

    /// Takes all waiting entries; `empty` becomes the new buffer.
    pub(crate) fn swap(&mut self, empty: &mut Vec<u8>) {
        debug_assert!(empty.is_empty() && empty.capacity() >= self.bytes_max);
        std::mem::swap(&mut self.buffer, empty);
        self.first = None;
        self.first_reading_ns = None;
        self.urgent = false;
    }
}

/// An empty buffer whose pages are mapped already: a producer must not meet a page fault.
pub(crate) fn touched_buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = vec![1; bytes];
    buffer.clear();
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry::Entries;
    use crate::time::Time;

    #[test]
    fn entries_come_out_as_they_went_in_and_the_buffer_never_grows() {
        let mut queue = Queue::new(100, 0);
        let entry = |id, value| Entry {
            kind: EntryKind::Reading,
            id,
            time: Time::from_ns(-5),
            arrival_ns: 7,
            wall_trusted: id % 2 == 0,
            node_time: id % 3 == 0,
            retained: id % 3 == 1,
            value,
        };
        let first = entry(1, b"12345678".as_slice());
        let second = Entry {
            kind: EntryKind::Declared,
            ..entry(2, b"123456789".as_slice())
        };
        let third = entry(3, b"".as_slice());
        assert_eq!((first.bytes(), second.bytes(), third.bytes()), (32, 40, 24));
        for entry in [&first, &second, &third] {
            assert!(queue.has_room(entry));
            queue.push(entry);
        }
        assert!(!queue.has_room(&third));
        assert!(queue.is_pressed());
        assert_eq!(queue.first_reading_ns, Some(7));
        let mut taken = Vec::with_capacity(100);
        queue.swap(&mut taken);
        assert_eq!(Entries(&taken).collect::<Vec<_>>(), [first, second, third]);
        assert!(queue.is_empty() && queue.first.is_none() && queue.first_reading_ns.is_none());
        assert!(queue.buffer.capacity() >= 100);
    }
}
