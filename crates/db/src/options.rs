//! What a caller chooses at start: sizes, limits and intervals, each with its range.

use crate::error::Error;
use crate::limits::{
    KEY_BYTES_MEAN, KEY_BYTES_MEAN_MAX, KEY_BYTES_MEAN_MIN, OBJECTS_LIMIT, VALUE_BYTES_LIMIT,
};
use crate::qos::admission::Quality;

/// An object's number: its slot in the table and its name in the log. Stable across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// What is declared about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSpec<'a> {
    /// UTF-8 name, 1 to [`crate::KEY_BYTES_MAX`] bytes.
    pub key: &'a str,
    /// Absolute validity interval: the value is fresh while `now - timestamp <= avi_ms`.
    pub avi_ms: u32,
    /// Whether sensor readings update the object, so that freshness is counted for it.
    pub temporal: bool,
}

/// When a reading must reach flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Flush at once when the log is idle; while a flush runs, join the next one.
    Now,
    /// Flush at most `commit_interval_ms` after the first waiting reading.
    Batched,
}

/// What runs group commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitDriver {
    /// A thread of the database.
    Thread,
    /// The caller of [`crate::Database::pump`]: simulations and tests that must be repeatable.
    Manual,
    /// The caller of [`crate::Database::commit_step`], which runs the thread's loop step by step, with its rests: the
    /// simulation of a whole device.
    Stepped,
}

/// What happens to new readings when the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullPolicy {
    /// They are refused and counted until room returns.
    #[default]
    RejectNew,
    /// The oldest segment of the log is deleted, and its readings counted.
    DropOldest,
}

/// How long readings are kept. Deleting needs no free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of log that are kept; 0: as many as the store holds.
    pub history_bytes_max: u64,
    /// Age in ms above which readings are deleted; 0: no limit.
    pub history_age_ms_max: u64,
    /// Bytes of log above which even held readings ([`crate::Database::hold_from`]) are deleted; 0: no limit.
    pub backlog_bytes_max: u64,
    /// What happens if the store is full nevertheless.
    pub full_policy: FullPolicy,
}

/// What the memory of a slot table depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Slots.
    pub objects_max: u32,
    /// Bytes of the longest value.
    pub value_bytes_max: usize,
    /// Bytes that there are for the key of each slot on average; see [`DbOptions::key_bytes_mean`].
    pub key_bytes_mean: u32,
}

/// Sizes and intervals of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DbOptions {
    /// Slots in the table.
    pub objects_max: u32,
    /// Bytes of the longest value.
    pub value_bytes_max: usize,
    /// Bytes that there are for the key of each slot on average, [`KEY_BYTES_MEAN_MIN`] to [`KEY_BYTES_MEAN_MAX`]. All
    /// keys share them. A key takes its bytes rounded up to 16.
    pub key_bytes_mean: u32,
    /// Bytes that may wait in memory for the commit thread; twice as much is allocated (two buffers).
    /// A waiting reading takes 24 bytes plus its value rounded up to 8.
    pub queue_bytes_max: usize,
    /// Longest time from the first waiting reading to its flush, for [`Durability::Batched`].
    pub commit_interval_ms: u32,
    /// Bytes handed to the store in one append.
    pub append_bytes_max: usize,
    /// Bytes of one log segment file.
    pub segment_bytes_max: u64,
    /// Bytes of log after which a checkpoint begins, and within which it is written. A restart reads less than twice as
    /// much, plus two commits and a piece. If a checkpoint itself is larger than this, its size counts instead. This
    /// holds after any number of crashes: a start that has read this much writes a checkpoint before it takes readings.
    pub checkpoint_bytes: u64,
    /// Bytes of one checkpoint piece: the most by which a checkpoint can delay a lone commit.
    pub checkpoint_piece_bytes_max: usize,
    /// What runs group commits.
    pub commit_driver: CommitDriver,
    /// How long readings are kept.
    pub retention: Retention,
    /// Least part of each object's readings, or of its freshness, that is admitted to the table, in percent; see
    /// [`crate::Database::set_admission`].
    pub admission_percent_min: u32,
    /// What `admission_percent_min` is a part of.
    pub admission_quality: Quality,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self {
            objects_max: 4096,
            value_bytes_max: 64,
            key_bytes_mean: KEY_BYTES_MEAN,
            queue_bytes_max: 1 << 20,
            commit_interval_ms: 250,
            append_bytes_max: 64 << 10,
            segment_bytes_max: 4 << 20,
            checkpoint_bytes: 2 << 20,
            checkpoint_piece_bytes_max: 16 << 10,
            commit_driver: CommitDriver::Thread,
            retention: Retention::default(),
            admission_percent_min: 50,
            admission_quality: Quality::Admitted,
        }
    }
}

impl DbOptions {
    /// Returns the size of the slot table.
    #[must_use]
    pub fn table_size(&self) -> TableSize {
        TableSize {
            objects_max: self.objects_max,
            value_bytes_max: self.value_bytes_max,
            key_bytes_mean: self.key_bytes_mean,
        }
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`] names the first option that does not fit.
    pub fn check(&self) -> Result<(), Error> {
        // An object of a checkpoint with the longest key, and the trailer. Twice as much holds a reading with its
        // object's name, two anchors and a segment head.
        let record = self.value_bytes_max as u64 + 320;
        let ranges = [
            (
                "objects_max",
                u64::from(self.objects_max),
                1,
                u64::from(OBJECTS_LIMIT),
            ),
            (
                "value_bytes_max",
                self.value_bytes_max as u64,
                1,
                VALUE_BYTES_LIMIT as u64,
            ),
            (
                "key_bytes_mean",
                u64::from(self.key_bytes_mean),
                u64::from(KEY_BYTES_MEAN_MIN),
                u64::from(KEY_BYTES_MEAN_MAX),
            ),
            (
                "queue_bytes_max",
                self.queue_bytes_max as u64,
                2 * self.value_bytes_max as u64 + 64,
                1 << 30,
            ),
            (
                "commit_interval_ms",
                u64::from(self.commit_interval_ms),
                1,
                60_000,
            ),
            (
                "append_bytes_max",
                self.append_bytes_max as u64,
                2 * record,
                16 << 20,
            ),
            (
                "segment_bytes_max",
                self.segment_bytes_max,
                4 * record,
                1 << 40,
            ),
            ("checkpoint_bytes", self.checkpoint_bytes, 1024, 1 << 40),
            (
                "checkpoint_piece_bytes_max",
                self.checkpoint_piece_bytes_max as u64,
                record,
                16 << 20,
            ),
            (
                "admission_percent_min",
                u64::from(self.admission_percent_min),
                1,
                100,
            ),
        ];
        for (name, value, low, high) in ranges {
            if value < low || value > high {
                return Err(Error::OptionInvalid {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_lie_in_their_ranges() {
        assert_eq!(DbOptions::default().check(), Ok(()));
    }

    /// The least append and the least piece hold what they must, with the longest key and the greatest numbers.
    #[test]
    fn the_longest_key_fits_the_least_sizes() {
        use crate::limits::KEY_BYTES_MAX;
        use crate::log::codec::{self, ANCHOR_BYTES, Dictionary, Latest, Object};
        use crate::log::seal::Seal;
        use crate::time::Time;
        let key = "k".repeat(KEY_BYTES_MAX);
        for value_bytes_max in [1, 400, VALUE_BYTES_LIMIT] {
            let record = value_bytes_max + 320;
            let least = DbOptions {
                value_bytes_max,
                append_bytes_max: 2 * record,
                segment_bytes_max: 4 * record as u64,
                checkpoint_piece_bytes_max: record,
                ..DbOptions::default()
            };
            assert_eq!(least.check(), Ok(()));
            let (seal, value) = (Seal::of(7), vec![7; value_bytes_max]);
            let entry = Dictionary {
                id: OBJECTS_LIMIT,
                key: &key,
                avi_ms: u32::MAX,
                temporal: true,
            };
            let mut bytes = Vec::new();
            codec::put_segment(&mut bytes, seal, 0);
            codec::put_dictionary(&mut bytes, seal, &entry);
            // Kind, length, id, whole time, arrival and checksum of a reading.
            let reading = 1 + 2 + 5 + 8 + 4 + 4 + value.len();
            assert!(bytes.len() + 2 * ANCHOR_BYTES + reading <= least.append_bytes_max);
            let latest = Some(Latest {
                time: Time::from_ns(1),
                arrival_ns: u64::MAX,
                boot_tag: u64::MAX,
                wall_trusted: true,
                node_time: true,
                retained: true,
                value: &value,
            });
            bytes.clear();
            codec::put_object(&mut bytes, seal, &Object { entry, latest });
            codec::put_trailer(&mut bytes, seal, u32::MAX, true);
            assert!(bytes.len() <= least.checkpoint_piece_bytes_max);
        }
    }

    #[test]
    fn the_option_out_of_range_is_named() {
        let options = DbOptions {
            commit_interval_ms: 0,
            ..DbOptions::default()
        };
        assert!(matches!(
            options.check(),
            Err(Error::OptionInvalid {
                name: "commit_interval_ms",
                ..
            })
        ));
        let options = DbOptions {
            value_bytes_max: VALUE_BYTES_LIMIT + 1,
            ..DbOptions::default()
        };
        assert!(matches!(
            options.check(),
            Err(Error::OptionInvalid {
                name: "value_bytes_max",
                ..
            })
        ));
    }
}
