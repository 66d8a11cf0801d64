//! A reading as the log or an upstream has it, and its number by the judge's own record.

use db::Time;

use crate::invariant::{Broken, Invariant};
use crate::ledger::Ledger;
use crate::sensors::Feed;

/// A reading as the log has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged<'a> {
    pub(crate) sensor: Option<u16>,
    pub(crate) time: Time,
    pub(crate) value: &'a [u8],
}

impl Logged<'_> {
    /// Returns the number of a reading that is as it was offered, and that was taken.
    ///
    /// # Errors
    /// I2 or I3.
    pub(crate) fn number(&self, feed: &Feed<'_>, ledger: &Ledger) -> Result<u64, Broken> {
        let invented = |why: String| Err(Broken::new(Invariant::NothingInvented, why));
        let Some(sensor) = self.sensor else {
            return invented(format!("a key of no sensor, at {} ns", self.time.ns()));
        };
        let Some(number) = feed.number_of(sensor, self.time) else {
            let ns = self.time.ns();
            return invented(format!("sensor {sensor} has no reading at {ns} ns"));
        };
        if self.time != feed.time(number) || self.value != feed.value(number) {
            let found = format!(
                "reading {number} has {} ns and {:?} instead of {} ns and {:?}",
                self.time.ns(),
                self.value,
                feed.time(number).ns(),
                feed.value(number)
            );
            return Err(Broken::new(Invariant::NothingAltered, found));
        }
        if ledger.is_refused(number) {
            return invented(format!("reading {number} was refused"));
        }
        if ledger.times_taken(number) == 0 {
            return invented(format!("reading {number} was never taken"));
        }
        Ok(number)
    }
}
