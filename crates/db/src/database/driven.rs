//! The commit side without a thread: rounds and steps that a caller runs.

use std::sync::atomic::Ordering;

use super::Database;
use crate::commit::CommitStep;
use crate::error::Error;
use crate::mutex::lock;
use crate::store::SegmentStore;

impl<S: SegmentStore> Database<S> {
    /// Commits the waiting entries and advances the checkpoint if one is due; for [`crate::CommitDriver::Manual`].
    /// `true` while a checkpoint is unfinished.
    ///
    /// # Errors
    /// [`Error::LogFailed`], [`Error::Full`].
    pub fn pump(&self) -> Result<bool, Error> {
        self.shared.round().map_err(Error::from)
    }

    /// Runs one step of the commit thread's loop, rests included; for [`crate::CommitDriver::Stepped`]. The clock that
    /// the database was given says how long a reading has waited. The caller ends a rest by the next step: when its
    /// time has passed on that clock, or when [`take_wake_up`](Self::take_wake_up) returns true.
    pub fn commit_step(&self) -> CommitStep {
        self.shared.step(&mut lock(&self.pace))
    }

    /// Returns whether the commit side was woken since the last call; for [`crate::CommitDriver::Stepped`].
    pub fn take_wake_up(&self) -> bool {
        self.shared.woken.swap(false, Ordering::Relaxed)
    }
}
