//! The maintenance thread of a life, step by step, and what retention has deleted. Also a store that is full.

use db::{Health, Stats};

use super::{Life, Run, SECOND_NS, STEPS_MAX};
use crate::event::Event;
use crate::fault::Profile;
use crate::invariant::{Broken, Invariant};
use crate::report::Step;

/// Time until the thread tries again what has failed, as in a node.
const FAILED_PAUSE_NS: u64 = 60 * SECOND_NS;
/// Time until the commit side, or a sender, tries again in a full store.
pub(super) const FULL_RETRY_NS: u64 = 200_000_000;
/// Fewest bytes of log that a reading takes.
const READING_LOG_BYTES_MIN: u64 = 12;

/// What is deleted of the log, by the numbers of its readings.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The log began with this number when the life did.
    begin: u64,
    /// What is below is deleted, and counted by the node.
    end: u64,
    /// The power has failed, or the node: one more segment may be deleted, and is not counted.
    is_cut: bool,
    /// Most readings of a segment, in runs in which anything is deleted.
    segment_readings_max: u64,
    /// Readings deleted in lives that are over.
    before: u64,
}

impl Gone {
    pub(super) fn new(profile: Profile, segment_bytes_max: u64) -> Self {
        let segment_readings_max = match profile.deletes() {
            true => segment_bytes_max / READING_LOG_BYTES_MIN,
            false => 0,
        };
        Self {
            segment_readings_max,
            ..Self::default()
        }
    }

    /// A life begins with a log that begins with this number.
    pub(super) fn begin(&mut self, first: u64) {
        self.before += self.end - self.begin;
        (self.begin, self.end, self.is_cut) = (first, first, false);
    }

    /// The node has counted this since the life began.
    fn count(&mut self, stats: &Stats) {
        self.end = self.begin + stats.readings_expired + stats.readings_dropped;
    }

    /// The life ends without a stop.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Readings numbered from this on must be there.
    pub(super) fn end(&self) -> u64 {
        let uncounted = match self.is_cut {
            true => self.segment_readings_max,
            false => 0,
        };
        self.end + uncounted
    }

    /// Returns how many readings were deleted and counted.
    pub(super) fn total(&self) -> u64 {
        self.before + self.end - self.begin
    }
}

impl Run<'_> {
    /// Whether anything may be deleted.
    pub(super) fn is_deleting(&self) -> bool {
        self.faults.profile.deletes()
    }

    /// One step of the maintenance thread: index and retention.
    pub(super) fn maintain(&mut self, life: &mut Life) -> Result<(), Broken> {
        if self.now_ns < life.free_ns {
            // The commit side or an upstream has the store.
            life.queue.push(life.free_ns, Event::Maintain);
            return Ok(());
        }
        let maintained = life.node.database.maintain();
        life.free_ns = self.now_ns + life.device.take_spent_ns();
        self.check_moments(life)?;
        let pause_ns = match maintained {
            Ok(true) if life.upkeep_steps < STEPS_MAX => {
                life.upkeep_steps += 1;
                0
            }
            Ok(true) => return Err(Broken::new(Invariant::Taken, "upkeep has no end")),
            Ok(false) => {
                life.upkeep_steps = 0;
                self.check_deleted(life)?;
                SECOND_NS
            }
            Err(_) if life.device.is_gone() => return Ok(()),
            Err(_) if self.may_fail(&life.device) => FAILED_PAUSE_NS,
            Err(error) => return Err(Broken::new(Invariant::Taken, error.to_string())),
        };
        // It may want a checkpoint.
        self.hear_wake_up(life);
        life.queue.push(life.free_ns + pause_ns, Event::Maintain);
        Ok(())
    }

    /// Notes what the node has counted as deleted.
    pub(super) fn count_deleted(&mut self, life: &Life) {
        if self.is_deleting() {
            self.gone.count(&life.node.database.stats());
            if life.device.is_gone() || self.may_fail(&life.device) {
                self.gone.cut();
            }
        }
    }

    /// Checks that just what is counted as deleted is not there any more.
    fn check_deleted(&self, life: &Life) -> Result<(), Broken> {
        if !self.is_deleting() {
            return Ok(());
        }
        let oldest = match life.node.database.oldest_lsn() {
            Ok(oldest) => oldest,
            Err(_) if life.device.is_gone() || self.may_fail(&life.device) => return Ok(()),
            Err(error) => return Err(Broken::new(Invariant::Taken, error.to_string())),
        };
        // More only if a deletion was cut.
        let (counted, most) = (self.gone.end, self.gone.end());
        if (counted..=most).contains(&oldest) {
            return Ok(());
        }
        let found = format!(
            "the log begins with {oldest}, and what is below {counted} is counted as deleted"
        );
        Err(Broken::new(Invariant::NothingLost, found))
    }

    /// The store is full: the node says so. The operator allows less to be kept when it takes too long.
    pub(super) fn fill(&mut self, life: &mut Life) -> Result<(), Broken> {
        let health = life.node.database.health();
        if health != Health::Full {
            let found = format!("the store is full, and the node says {health:?}");
            return Err(Broken::new(Invariant::Taken, found));
        }
        let since_ns = *life.full_since_ns.get_or_insert(self.now_ns);
        self.trail.note(self.now_ns, Step::Full { since_ns });
        if self.now_ns - since_ns >= self.faults.relief.patience_ns {
            let retention = self.faults.relief.retention;
            self.faults.relief.patience_ns = u64::MAX;
            self.draw.options.retention = retention;
            life.node.database.set_retention(retention);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_that_was_cut_may_be_uncounted_and_no_other() {
        let mut gone = Gone::new(Profile::Full, 1_200);
        gone.begin(10);
        assert_eq!((gone.end(), gone.total()), (10, 0));
        gone.end = 25;
        assert_eq!((gone.end(), gone.total()), (25, 15));
        gone.cut();
        assert_eq!(gone.end(), 125);
        gone.begin(40);
        assert_eq!((gone.end(), gone.total()), (40, 15));
        let mut none = Gone::new(Profile::Cuts, 1_200);
        none.cut();
        assert_eq!(none.end(), 0);
    }
}
