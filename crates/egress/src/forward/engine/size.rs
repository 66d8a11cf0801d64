//! How large units of several readings may be, as far as the upstream's limits are known; and the memory of units.

use super::{Engine, Unit};

/// Smallest limit, in bytes.
const SHARED_BYTES_MIN: usize = 256;
/// Number of units that must have been accepted before longer ones are tried again.
const TAKEN_AGAIN: u32 = 100;

impl Engine {
    /// Records that the upstream rejects a unit of several readings. They are sent again in smaller units, so that
    /// only the rejected reading is lost. As after a lost connection, everything unanswered is read again.
    pub fn split(&mut self, token: u64) {
        if let Some(unit) = self.unit(token) {
            let smaller = (unit.readings / 2).max(1);
            self.cautious = Some((unit.part, unit.end_lsn, smaller));
        }
        self.go_back();
    }

    /// Sets the longest payload that the upstream announces; `usize::MAX` if it announces none.
    pub fn limit(&mut self, bytes: usize) {
        self.shared_bytes_said = bytes.max(1);
        self.shared_bytes_max = self.shared_bytes_max.min(self.shared_bytes_said);
    }

    /// Records that the upstream does not accept units as long as this one. Units of several readings are half as
    /// long from now on, until the upstream has accepted a hundred of them. Then longer ones are tried, since there may
    /// have been another reason.
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

    /// Takes the content of the unit that was sent last: its topic, then its payload.
    pub fn take_content(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sending)
    }

    /// Gives back the memory of a unit that was sent, for the next one.
    pub fn reuse(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare = buffer;
    }

    fn unit(&self, token: u64) -> Option<&Unit> {
        let index = usize::try_from(token.checked_sub(self.first_token)?).ok()?;
        self.units.get(index)
    }

    /// Returns the number of readings of a unit that was sent.
    #[must_use]
    pub fn readings_of(&self, token: u64) -> u32 {
        self.unit(token).map_or(0, |unit| unit.readings)
    }

    /// Returns when the oldest reading arrived, if it was sent or waits to be sent, in ms on the monotonic clock.
    #[must_use]
    pub fn front_born_ms(&self) -> Option<i64> {
        let oldest = self.parts.first()?.id;
        let unit = self.units.front().filter(|unit| unit.part == oldest)?;
        unit.born_ms
    }
}
