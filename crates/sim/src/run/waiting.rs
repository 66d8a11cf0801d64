//! The readings of a life that wait for their commit, in the order of the log.
//!
//! A round of the commit side says nothing about them: a reading stops waiting when the durable end has passed it.

use std::collections::VecDeque;

use super::MS_NS;
use crate::invariant::{Broken, Invariant};

/// A reading that was taken, or all that waited when a source hurried.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// It is over once the log is durable to this number.
    lsn_end: u64,
    since_ns: u64,
}

/// Readings that are taken and not durable.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    readings: VecDeque<Wait>,
    /// When a source wanted on flash at once what waited then, up to its last reading.
    hurried: VecDeque<Wait>,
}

impl Waiting {
    /// A reading was taken as the last one below `lsn_end`.
    pub(super) fn take(&mut self, lsn_end: u64, now_ns: u64) {
        self.readings.push_back(Wait {
            lsn_end,
            since_ns: now_ns,
        });
    }

    /// A source wants what waits on flash at once.
    pub(super) fn hurry(&mut self, now_ns: u64) {
        if let Some(last) = self.readings.back() {
            self.hurried.push_back(Wait {
                lsn_end: last.lsn_end,
                since_ns: now_ns,
            });
        }
    }

    /// The log is durable to `durable_end`. Returns how many readings do not wait any more.
    pub(super) fn end_below(&mut self, durable_end: u64) -> u64 {
        let is_over = |wait: Option<&Wait>| wait.is_some_and(|wait| wait.lsn_end <= durable_end);
        while is_over(self.hurried.front()) {
            self.hurried.pop_front();
        }
        let mut ended = 0;
        while is_over(self.readings.front()) {
            self.readings.pop_front();
            ended += 1;
        }
        ended
    }

    /// Returns how many readings wait.
    pub(super) fn count(&self) -> u64 {
        self.readings.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    /// Checks that the first of them waits no longer than the interval and the device, which is busy until `free_ns`. A
    /// hurried one waits no longer than the device.
    ///
    /// # Errors
    /// I6.
    pub(super) fn check(&self, now_ns: u64, interval_ns: u64, free_ns: u64) -> Result<(), Broken> {
        let Some(first) = self.readings.front() else {
            return Ok(());
        };
        // All that waited when a source hurried first: the first reading is among them.
        let hurried = self.hurried.front();
        let hurried_ns = hurried.map_or(u64::MAX, |hurried| hurried.since_ns);
        let due_ns = hurried_ns.min(first.since_ns + interval_ns);
        // What else comes at that time may come first.
        if now_ns <= due_ns.max(free_ns) + MS_NS {
            return Ok(());
        }
        let waited_ns = now_ns - first.since_ns;
        let end = first.lsn_end;
        let found =
            format!("the reading below {end} of the log waits for its commit since {waited_ns} ns");
        Err(Broken::new(Invariant::Taken, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_NS: u64 = 20 * MS_NS;

    fn check(waiting: &Waiting, now_ms: u64) -> Option<Invariant> {
        let checked = waiting.check(now_ms * MS_NS, INTERVAL_NS, 0);
        checked.err().map(|broken| broken.invariant)
    }

    #[test]
    fn a_round_that_commits_a_part_leaves_the_rest_waiting() {
        let mut waiting = Waiting::default();
        waiting.take(1, 0);
        waiting.take(2, 10 * MS_NS);
        assert_eq!(check(&waiting, 21), None);
        assert_eq!(check(&waiting, 22), Some(Invariant::Taken));
        assert_eq!((waiting.end_below(1), waiting.count()), (1, 1));
        assert_eq!(check(&waiting, 31), None, "the second one has its own time");
        assert_eq!(check(&waiting, 32), Some(Invariant::Taken));
        assert_eq!((waiting.end_below(1), waiting.is_empty()), (0, false));
        assert_eq!((waiting.end_below(2), waiting.is_empty()), (1, true));
        assert_eq!(check(&waiting, 9_000), None);
    }

    #[test]
    fn a_hurried_reading_that_a_round_leaves_stays_hurried() {
        let mut waiting = Waiting::default();
        waiting.hurry(0);
        for lsn_end in [1, 2] {
            waiting.take(lsn_end, 5 * MS_NS);
        }
        waiting.hurry(5 * MS_NS);
        waiting.take(3, 6 * MS_NS);
        assert_eq!(waiting.end_below(1), 1);
        assert_eq!(check(&waiting, 6), None);
        assert_eq!(check(&waiting, 7), Some(Invariant::Taken));
        let busy = waiting.check(7 * MS_NS, INTERVAL_NS, 7 * MS_NS);
        assert_eq!(busy, Ok(()), "the device is busy");
        assert_eq!(waiting.end_below(2), 1);
        assert_eq!(check(&waiting, 27), None, "nothing has hurried the third");
        assert_eq!(check(&waiting, 28), Some(Invariant::Taken));
    }
}
