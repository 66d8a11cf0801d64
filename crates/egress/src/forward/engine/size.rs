//! How large units of several readings may be, as far as is known of the upstream.

use super::{Engine, Unit};

/// They are not made shorter than this, bytes.
const SHARED_BYTES_MIN: usize = 256;
/// So many must have been taken before longer ones are tried again.
const TAKEN_AGAIN: u32 = 100;

impl Engine {
    /// The upstream will not have a unit of several readings: they are sent again in smaller ones, so that the one that
    /// is not wanted costs itself alone. As after a lost connection, everything unanswered is read again.
    pub fn split(&mut self, token: u64) {
        if let Some(unit) = self.unit(token) {
            let smaller = (unit.readings / 2).max(1);
            self.cautious = Some((unit.part, unit.end_lsn, smaller));
        }
        self.go_back();
    }

    /// The upstream says how long a payload may be, `usize::MAX` if it does not.
    pub fn limit(&mut self, bytes: usize) {
        self.shared_bytes_said = bytes.max(1);
        self.shared_bytes_max = self.shared_bytes_max.min(self.shared_bytes_said);
    }

    /// The upstream does not take units as long as this one. Those of several readings are half as long from now on,
    /// until it has taken a hundred of them: then longer ones are tried, since it may have been for another reason.
    pub fn shrink(&mut self, token: u64) {
        let Some(unit) = self.unit(token).filter(|unit| unit.readings > 1) else {
            return;
        };
        let half = (unit.sent_bytes / 2).max(SHARED_BYTES_MIN);
        self.shared_bytes_max = self.shared_bytes_max.min(half);
        self.shared_taken = 0;
    }

    pub(super) fn grow(&mut self) {
        let bytes_max = self.batch_bytes_max.min(self.shared_bytes_said);
        if self.shared_bytes_max < bytes_max && self.shared_taken >= TAKEN_AGAIN {
            self.shared_bytes_max = (2 * self.shared_bytes_max).min(bytes_max);
            self.shared_taken = 0;
        }
    }

    fn unit(&self, token: u64) -> Option<&Unit> {
        let index = usize::try_from(token.checked_sub(self.first_token)?).ok()?;
        self.units.get(index)
    }

    /// Readings of a unit that was sent.
    #[must_use]
    pub fn readings_of(&self, token: u64) -> u32 {
        self.unit(token).map_or(0, |unit| unit.readings)
    }
}
