//! What has become of the lines of a sender.

use crate::intake::LineOutcome;

/// Counts of finished lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Readings that were taken.
    pub(super) accepted: u64,
    /// Lines that were refused as a whole, and single refused readings.
    pub(super) refused: u64,
    /// Readings that were dropped to shed load.
    pub(super) shed: u64,
    /// Everything so far is durable once the log has reached this number.
    pub(super) lsn_end: u64,
}

impl Tally {
    /// Adds a line, if it is finished.
    pub(super) fn add(&mut self, outcome: LineOutcome) {
        if let LineOutcome::Done {
            accepted,
            refused,
            shed,
            lsn_end,
        } = outcome
        {
            self.accepted += u64::from(accepted);
            self.refused += u64::from(refused);
            self.shed += u64::from(shed);
            self.lsn_end = self.lsn_end.max(lsn_end);
        }
    }
}
