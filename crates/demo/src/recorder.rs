//! The parent's own record of every reading: whether it was offered, acknowledged, and at the end found in the store.
//! It contains only what came through the pipe.

use super::protocol::{Offered, TableRow, VALUE_BYTES};
use std::collections::HashMap;

/// The most readings of one run; each takes 24 bytes.
pub(crate) const READINGS_MAX: usize = 4_000_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    time_ms: u64,
    value: [u8; VALUE_BYTES],
    sensor: u16,
    /// The life of the writer that last offered it.
    life: u16,
    acknowledged: bool,
}

/// Why a message does not fit the record: the writer is wrong, and the run has failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("reading {number} was offered where {expected} was due")]
    Order { number: u64, expected: u64 },
    #[error("reading {0} was offered again with another sensor, time or value")]
    Changed(u64),
    #[error("reading {0} was acknowledged but never offered")]
    NeverOffered(u64),
    #[error("more than {READINGS_MAX} readings")]
    TooMany,
}

/// All that passed through the pipe.
#[derive(Debug, Default)]
pub(crate) struct Record {
    entries: Vec<Entry>,
    acknowledged: u64,
    again: u64,
    /// The current life of the writer, and the number of open readings that it has offered.
    life: u16,
    open_in_life: u64,
}

/// The result of the comparison with the reopened store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Acknowledged, but not in the store.
    pub(crate) missing: u64,
    /// In the store with a value that was not offered for that sensor and time.
    pub(crate) altered: u64,
    /// In the store, but never offered with any value.
    pub(crate) unexpected: u64,
    /// Records found in the store, repetitions included.
    pub(crate) found: u64,
    /// Offered, never acknowledged, but in the store: allowed.
    pub(crate) unacknowledged_found: u64,
    /// The result of the comparison with recovered tables.
    pub(crate) tables: TablesFound,
}

/// The result of the comparison with tables rebuilt from the store, summed over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TablesFound {
    /// Tables compared.
    pub(crate) compared: u64,
    /// Sensors without a value, or with one older than the newest that was acknowledged.
    pub(crate) stale: u64,
    /// Sensors with a value that was not offered for their time.
    pub(crate) altered: u64,
    /// Sensors with a time at which none of their readings was offered.
    pub(crate) unexpected: u64,
}

impl TablesFound {
    /// Adds the result of another table.
    pub(crate) fn add(&mut self, other: &Self) {
        self.compared += other.compared;
        self.stale += other.stale;
        self.altered += other.altered;
        self.unexpected += other.unexpected;
    }
}

impl Record {
    /// Records the start of a writer: it has no tickets of readings that are open from before.
    pub(crate) fn begin_life(&mut self) {
        self.life = self.life.saturating_add(1);
        self.open_in_life = 0;
    }

    /// Records that the writer announced a reading: the next one, or a repeated one.
    pub(crate) fn offered(&mut self, reading: &Offered) -> Result<(), RecordError> {
        let expected = self.entries.len() as u64;
        if reading.number > expected {
            return Err(RecordError::Order {
                number: reading.number,
                expected,
            });
        }
        let life = self.life;
        if let Some(entry) = self.entry_mut(reading.number) {
            if (entry.time_ms, entry.sensor, entry.value)
                != (reading.time_ms, reading.sensor, reading.value)
            {
                return Err(RecordError::Changed(reading.number));
            }
            let opened = !entry.acknowledged && entry.life != life;
            entry.life = life;
            self.open_in_life += u64::from(opened);
            self.again += 1;
            return Ok(());
        }
        if self.entries.len() == READINGS_MAX {
            return Err(RecordError::TooMany);
        }
        self.entries.push(Entry {
            time_ms: reading.time_ms,
            value: reading.value,
            sensor: reading.sensor,
            life,
            acknowledged: false,
        });
        self.open_in_life += 1;
        Ok(())
    }

    /// Records that the writer acknowledged a reading. A repetition does not count.
    pub(crate) fn acknowledged(&mut self, number: u64) -> Result<(), RecordError> {
        let life = self.life;
        let entry = self
            .entry_mut(number)
            .ok_or(RecordError::NeverOffered(number))?;
        let first = !std::mem::replace(&mut entry.acknowledged, true);
        let here = first && entry.life == life;
        self.acknowledged += u64::from(first);
        self.open_in_life -= u64::from(here);
        Ok(())
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(number).ok()?)
    }

    /// Returns the number of offered readings, each counted once.
    pub(crate) fn offered_count(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns the number of acknowledged readings, each counted once.
    pub(crate) fn acknowledged_count(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the number of readings offered and not acknowledged.
    pub(crate) fn open_count(&self) -> u64 {
        self.offered_count() - self.acknowledged
    }

    /// Returns the number of readings that the current writer has offered and not acknowledged: its open tickets.
    pub(crate) fn open_in_life_count(&self) -> u64 {
        self.open_in_life
    }

    /// Returns how often a reading was offered again after a restart.
    pub(crate) fn again_count(&self) -> u64 {
        self.again
    }

    /// Returns the time of the latest offered reading; 0 before the first.
    pub(crate) fn time_ms_last(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.time_ms)
    }

    /// Returns the numbers of the open readings, in order.
    pub(crate) fn open(&self) -> Vec<u64> {
        let open = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.acknowledged);
        open.map(|(number, _)| number as u64).collect()
    }

    /// Compares a table rebuilt from the store: every sensor must show its newest acknowledged reading, or a newer one
    /// that was offered.
    pub(crate) fn compare_table(&self, rows: &[TableRow]) -> TablesFound {
        /// The known readings of one sensor.
        #[derive(Clone, Copy, Default)]
        struct Known<'r> {
            row: Option<&'r TableRow>,
            acknowledged_ms: Option<u64>,
            offered: Option<[u8; VALUE_BYTES]>,
        }
        let sensors = rows.iter().map(|row| row.sensor);
        let sensors = sensors.chain(self.entries.iter().map(|entry| entry.sensor));
        let mut known =
            vec![Known::default(); sensors.max().map_or(0, |most| usize::from(most) + 1)];
        for row in rows {
            known[usize::from(row.sensor)].row = Some(row);
        }
        for entry in &self.entries {
            let here = &mut known[usize::from(entry.sensor)];
            if entry.acknowledged {
                here.acknowledged_ms = here.acknowledged_ms.max(Some(entry.time_ms));
            }
            if here
                .row
                .is_some_and(|row| u64::try_from(row.time_ms) == Ok(entry.time_ms))
            {
                here.offered = Some(entry.value);
            }
        }
        let mut found = TablesFound {
            compared: 1,
            ..TablesFound::default()
        };
        for here in known {
            let Some(row) = here.row else {
                found.stale += u64::from(here.acknowledged_ms.is_some());
                continue;
            };
            match here.offered {
                None => found.unexpected += 1,
                Some(value) if value != row.value => found.altered += 1,
                Some(_) => {
                    found.stale += u64::from(u64::try_from(row.time_ms).ok() < here.acknowledged_ms)
                }
            }
        }
        found
    }

    /// Starts the comparison with a store.
    pub(crate) fn compare(&self) -> Comparing<'_> {
        let by_time = self.entries.iter().enumerate();
        let index = by_time
            .map(|(number, entry)| ((entry.sensor, entry.time_ms), number))
            .collect();
        Comparing {
            record: self,
            index,
            seen: vec![false; self.entries.len()],
            comparison: Comparison::default(),
        }
    }
}

/// A comparison in progress: pass it every record of the store, in any order.
pub(crate) struct Comparing<'r> {
    record: &'r Record,
    index: HashMap<(u16, u64), usize>,
    seen: Vec<bool>,
    comparison: Comparison,
}

impl Comparing<'_> {
    /// Notes that the store contains `value` for this sensor and time; `sensor` is `None` for a key of no sensor.
    pub(crate) fn found(&mut self, sensor: Option<u16>, time_ms: i64, value: &[u8]) {
        self.comparison.found += 1;
        let key = sensor.zip(u64::try_from(time_ms).ok());
        match key.and_then(|key| self.index.get(&key)) {
            None => self.comparison.unexpected += 1,
            Some(&number) if self.record.entries[number].value != value => {
                self.comparison.altered += 1
            }
            Some(&number) => self.seen[number] = true,
        }
    }

    /// Finishes the comparison after the last record.
    pub(crate) fn finish(mut self) -> Comparison {
        for (entry, seen) in self.record.entries.iter().zip(&self.seen) {
            self.comparison.missing += u64::from(entry.acknowledged && !seen);
            self.comparison.unacknowledged_found += u64::from(!entry.acknowledged && *seen);
        }
        self.comparison
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(number: u64) -> Offered {
        Offered {
            number,
            time_ms: 10 * number,
            sensor: number as u16,
            value: (number as f64).to_le_bytes(),
        }
    }

    fn record(offered: u64, acknowledged: &[u64]) -> Record {
        let mut record = Record::default();
        (0..offered).for_each(|number| record.offered(&reading(number)).unwrap());
        acknowledged
            .iter()
            .for_each(|number| record.acknowledged(*number).unwrap());
        record
    }

    fn compare(record: &Record, found: &[Offered]) -> Comparison {
        let mut comparing = record.compare();
        for reading in found {
            comparing.found(Some(reading.sensor), reading.time_ms as i64, &reading.value);
        }
        comparing.finish()
    }

    #[test]
    fn a_whole_store_has_nothing_missing() {
        let record = record(3, &[0, 1]);
        let found = compare(&record, &[reading(0), reading(1), reading(1), reading(2)]);
        assert_eq!(
            found,
            Comparison {
                found: 4,
                unacknowledged_found: 1,
                ..Comparison::default()
            }
        );
        assert_eq!(record.open(), [2]);
    }

    #[test]
    fn lost_changed_and_invented_readings_are_told_apart() {
        let record = record(3, &[0, 1]);
        let mut changed = reading(1);
        changed.value[0] ^= 1;
        let found = compare(&record, &[changed, reading(9)]);
        assert_eq!((found.missing, found.altered, found.unexpected), (2, 1, 1));
        let mut comparing = record.compare();
        comparing.found(None, 0, &[0; 8]);
        comparing.found(Some(0), -1, &[0; 8]);
        comparing.found(Some(0), 0, &[]);
        let found = comparing.finish();
        assert_eq!((found.unexpected, found.altered, found.missing), (2, 1, 2));
    }

    #[test]
    fn a_table_shows_the_newest_acknowledged_reading_or_a_newer_one() {
        let mut record = Record::default();
        for number in 0..4 {
            let mut reading = reading(number);
            reading.sensor = (number % 2) as u16;
            record.offered(&reading).unwrap();
        }
        // Sensor 0 has readings 0 and 2, sensor 1 has readings 1 and 3; reading 3 is open.
        (0..3).for_each(|number| record.acknowledged(number).unwrap());
        let row = |sensor: u16, number: u64| TableRow {
            sensor,
            time_ms: 10 * number as i64,
            value: (number as f64).to_le_bytes(),
        };
        let counts = |rows: &[TableRow]| {
            let found = record.compare_table(rows);
            assert_eq!(found.compared, 1);
            (found.stale, found.altered, found.unexpected)
        };
        assert_eq!(counts(&[row(0, 2), row(1, 1)]), (0, 0, 0));
        assert_eq!(counts(&[row(0, 2), row(1, 3)]), (0, 0, 0));
        assert_eq!(counts(&[row(0, 0), row(1, 3)]), (1, 0, 0));
        assert_eq!(counts(&[row(1, 3)]), (1, 0, 0));
        assert_eq!(counts(&[]), (2, 0, 0));
        let mut changed = row(0, 2);
        changed.value[7] ^= 1;
        assert_eq!(counts(&[changed, row(1, 1)]), (0, 1, 0));
        // A reading of another sensor, and times without a reading.
        assert_eq!(counts(&[row(0, 2), row(1, 2)]), (0, 0, 1));
        assert_eq!(counts(&[row(0, 2), row(1, 1), row(9, 1)]), (0, 0, 1));
        let mut early = row(0, 2);
        early.time_ms = -1;
        assert_eq!(counts(&[early, row(1, 1)]), (0, 0, 1));
    }

    #[test]
    fn open_tickets_belong_to_the_present_writer() {
        let mut record = record(3, &[0]);
        assert_eq!(record.open_in_life_count(), 2);
        record.begin_life();
        assert_eq!((record.open_count(), record.open_in_life_count()), (2, 0));
        record.offered(&reading(1)).unwrap();
        record.offered(&reading(1)).unwrap();
        assert_eq!(record.open_in_life_count(), 1);
        record.acknowledged(2).unwrap();
        assert_eq!((record.open_count(), record.open_in_life_count()), (1, 1));
        record.acknowledged(1).unwrap();
        record.acknowledged(1).unwrap();
        record.offered(&reading(1)).unwrap();
        assert_eq!((record.open_count(), record.open_in_life_count()), (0, 0));
    }

    #[test]
    fn a_second_offer_counts_once_and_must_be_the_same() {
        let mut record = record(2, &[0, 0]);
        record.offered(&reading(1)).unwrap();
        assert_eq!(
            (
                record.offered_count(),
                record.acknowledged_count(),
                record.open_count()
            ),
            (2, 1, 1)
        );
        assert_eq!(record.again_count(), 1);
        let changed = Offered {
            sensor: 7,
            ..reading(1)
        };
        assert_eq!(record.offered(&changed), Err(RecordError::Changed(1)));
        assert_eq!(
            record.offered(&reading(5)),
            Err(RecordError::Order {
                number: 5,
                expected: 2
            })
        );
        assert_eq!(record.acknowledged(2), Err(RecordError::NeverOffered(2)));
    }
}
