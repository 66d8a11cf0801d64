//! What was offered to the node, and what it said: the judge's own record, one byte for each reading. Where readings
//! are deleted, their numbers in the log besides.

/// How often a reading was taken; no more than this is counted.
const TAKEN: u8 = 0x0f;
const ACKNOWLEDGED: u8 = 0x10;
const REFUSED: u8 = 0x20;
/// Lost to damage, which is counted.
const DAMAGED: u8 = 0x40;

/// The record of one run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    readings: Vec<u8>,
    /// Of each reading, its number in the log when it was taken last; empty where nothing is deleted.
    places: Vec<u64>,
    acknowledged: u64,
    refused: u64,
}

impl Ledger {
    fn entry(&mut self, number: u64) -> &mut u8 {
        let place = number as usize;
        if self.readings.len() <= place {
            self.readings.resize(place + 1, 0);
        }
        &mut self.readings[place]
    }

    fn get(&self, number: u64) -> u8 {
        self.readings.get(number as usize).copied().unwrap_or(0)
    }

    /// The node has taken a reading; it is not durable yet.
    pub(crate) fn take(&mut self, number: u64) {
        let entry = self.entry(number);
        if *entry & TAKEN < TAKEN {
            *entry += 1;
        }
    }

    /// The node has refused a reading for good.
    pub(crate) fn refuse(&mut self, number: u64) {
        let entry = self.entry(number);
        let is_new = *entry & REFUSED == 0;
        *entry |= REFUSED;
        self.refused += u64::from(is_new);
    }

    /// The node has acknowledged a reading.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        let entry = self.entry(number);
        let is_new = *entry & ACKNOWLEDGED == 0;
        *entry |= ACKNOWLEDGED;
        self.acknowledged += u64::from(is_new);
    }

    /// The node has given a reading this number in the log.
    pub(crate) fn place(&mut self, number: u64, lsn: u64) {
        let at = number as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, u64::MAX);
        }
        self.places[at] = lsn;
    }

    /// Damage has taken a reading from the log, and is counted. Returns whether this is new.
    pub(crate) fn damage(&mut self, number: u64) -> bool {
        let entry = self.entry(number);
        let is_new = *entry & DAMAGED == 0;
        *entry |= DAMAGED;
        is_new
    }

    /// Whether a reading must be in a log that begins with the number `begin`: it is acknowledged, and neither deleted
    /// nor lost to damage.
    pub(crate) fn is_owed(&self, number: u64, begin: u64) -> bool {
        let place = self.places.get(number as usize);
        let entry = self.get(number);
        entry & ACKNOWLEDGED != 0 && entry & DAMAGED == 0 && place.is_none_or(|at| *at >= begin)
    }

    /// Whether the last place of a reading in the log is below `gone_end`: what is below is deleted. Without deletions
    /// it never is.
    pub(crate) fn is_deleted(&self, number: u64, gone_end: u64) -> bool {
        let place = self.places.get(number as usize);
        place.is_some_and(|at| *at < gone_end)
    }

    /// Returns how often a reading was taken, at most 15.
    pub(crate) fn times_taken(&self, number: u64) -> u8 {
        self.get(number) & TAKEN
    }

    pub(crate) fn is_acknowledged(&self, number: u64) -> bool {
        self.get(number) & ACKNOWLEDGED != 0
    }

    pub(crate) fn is_refused(&self, number: u64) -> bool {
        self.get(number) & REFUSED != 0
    }

    /// Returns the number after the last one that was offered.
    pub(crate) fn end(&self) -> u64 {
        self.readings.len() as u64
    }

    /// Returns how many readings were acknowledged, and how many refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.acknowledged, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reading_has_its_record() {
        let mut ledger = Ledger::default();
        for _ in 0..20 {
            ledger.take(3);
        }
        ledger.acknowledge(3);
        ledger.acknowledge(3);
        ledger.refuse(5);
        assert_eq!((ledger.times_taken(3), ledger.times_taken(4)), (15, 0));
        assert!(ledger.is_acknowledged(3) && !ledger.is_acknowledged(5));
        assert!(ledger.is_refused(5) && !ledger.is_refused(3));
        assert_eq!((ledger.end(), ledger.counts()), (6, (1, 1)));
        assert!(!ledger.is_acknowledged(u64::MAX));
    }

    #[test]
    fn a_reading_is_owed_until_it_is_deleted_or_damaged() {
        let mut ledger = Ledger::default();
        ledger.take(3);
        assert!(!ledger.is_owed(3, 0));
        ledger.acknowledge(3);
        assert!(ledger.is_owed(3, 0) && ledger.is_owed(3, 900));
        ledger.place(3, 7);
        assert_eq!([7, 8].map(|begin| ledger.is_owed(3, begin)), [true, false]);
        assert_eq!([7, 8].map(|end| ledger.is_deleted(3, end)), [false, true]);
        assert!(!ledger.is_deleted(2, 900) && !ledger.is_deleted(4, 900));
        assert_eq!([ledger.damage(3), ledger.damage(3)], [true, false]);
        assert!(!ledger.is_owed(3, 0));
        assert_eq!(
            (ledger.times_taken(3), ledger.is_acknowledged(3)),
            (1, true)
        );
    }
}
