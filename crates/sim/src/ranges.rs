//! Range reads on what is left of a device, compared with its log: all readings, single keys and intervals of time.
//!
//! The log itself is read from its beginning, by code that knows no index. A range read skips segments, and parts of
//! them, by their index.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use base::sim::{Random, SimClock};
use db::{
    Database, DbOptions, HistoryCursor, HistoryEntry, HistoryQuery, HistoryReport, LogEntry,
    ObjectId, Time,
};
use flash::Store;

use crate::device::Device;
use crate::invariant::{Broken, Invariant};

/// Keeps what is drawn here apart from what `draw.rs` draws.
pub(crate) const RANGES_SEED: u64 = 0x7261_6e67_6573;
/// Keys whose whole history is read on one image.
const KEYS_READ: usize = 3;
/// Slices of one range read: more have no end.
const SLICES_MAX: u32 = 100_000;
/// No run has this seed, so the boot that reads is none of its boots.
const CLOCK_SEED: u64 = u64::MAX;
/// A start writes no checkpoint for less log than this: what is read stays as it was left.
const CHECKPOINT_BYTES: u64 = 1 << 40;
/// Nothing is put.
const QUEUE_BYTES: usize = 4 << 10;
const FIRST: Time = Time::from_ns(i64::MIN);
const LAST: Time = Time::from_ns(i64::MAX);

/// A reading of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    lsn: u64,
    id: ObjectId,
    time: Time,
    /// The node gave the time, not the sensor.
    node_time: bool,
    /// Hash of value, arrival, boot and trust.
    rest: u64,
}

fn hash_of(value: &[u8], arrival_us: u64, boot_id: [u8; 16], wall_trusted: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (value, arrival_us, boot_id, wall_trusted).hash(&mut hasher);
    hasher.finish()
}

impl Reading {
    fn logged(entry: &LogEntry<'_>, node_time: bool) -> Self {
        Self {
            lsn: entry.lsn,
            id: entry.id,
            time: entry.time,
            node_time,
            rest: hash_of(
                entry.value,
                entry.arrival_us,
                entry.boot_id,
                entry.wall_trusted,
            ),
        }
    }

    fn read(entry: &HistoryEntry<'_>) -> Self {
        Self {
            lsn: entry.lsn,
            id: entry.id,
            // A time that the node gave may be corrected, and no other.
            time: match entry.node_time {
                true => entry.recorded,
                false => entry.time,
            },
            node_time: entry.node_time,
            rest: hash_of(
                entry.value,
                entry.arrival_us,
                entry.boot_id,
                entry.wall_trusted,
            ),
        }
    }
}

/// The readings of a log, in its order.
#[derive(Debug, Default)]
pub(crate) struct LogReadings {
    readings: Vec<Reading>,
}

impl LogReadings {
    /// Adds the next reading. `node_time`: the node gave its time.
    pub(crate) fn add(&mut self, entry: &LogEntry<'_>, node_time: bool) {
        self.readings.push(Reading::logged(entry, node_time));
    }

    /// Returns a drawn reading, if there is one.
    fn draw(&self, random: &mut Random) -> Option<Reading> {
        match self.readings.len() {
            0 => None,
            count => Some(self.readings[random.index(count)]),
        }
    }
}

/// Checks range reads on the store of a device that has kept its contract: each returns just what the log has. Returns
/// how many there were.
///
/// # Errors
/// I16.
pub(crate) fn check(
    store: Store<Device>,
    options: DbOptions,
    log: &LogReadings,
    random: &mut Random,
) -> Result<u64, Broken> {
    let database = open(store, options).map_err(|error| broken(&error))?;
    let mut queries = vec![whole(None)];
    for _ in 0..KEYS_READ {
        let Some(Reading { id, .. }) = log.draw(random) else {
            break;
        };
        let key = database.key(id);
        let key = key.as_str();
        if database.lookup(key) != Some(id) {
            return Err(broken(&format!("{id:?} is not found by its key {key}")));
        }
        queries.push(whole(Some(id)));
    }
    if let (Some(one), Some(other)) = (log.draw(random), log.draw(random)) {
        let (from, to) = (one.time.min(other.time), one.time.max(other.time));
        queries.extend([None, Some(one.id)].map(|id| HistoryQuery { id, from, to }));
    }
    for query in &queries {
        match read(&database, query) {
            Ok((found, _)) => compare(query, log, &found)?,
            Err(error) => return Err(broken(&format!("{query:?}: {error}"))),
        }
    }
    Ok(queries.len() as u64)
}

/// Checks a range read on the store of a device that has broken its contract. If it returns fewer readings than the log
/// has, it must count damage, unless damage is known. Returns how many there were; a store that does not open has none.
///
/// # Errors
/// I16.
pub(crate) fn check_harmed(
    store: Store<Device>,
    options: DbOptions,
    log: &LogReadings,
    is_known: bool,
) -> Result<u64, Broken> {
    let Ok(database) = open(store, options) else {
        return Ok(0);
    };
    let Ok((found, report)) = read(&database, &whole(None)) else {
        return Ok(0);
    };
    let (found, logged) = (found.len(), log.readings.len());
    match found >= logged || is_known || report.damage.any() {
        true => Ok(1),
        false => Err(broken(&format!(
            "the log has {logged} readings, a range read returns {found} of them, and nothing counts the others"
        ))),
    }
}

fn broken(found: &str) -> Broken {
    Broken::new(Invariant::RangeReads, found)
}

fn open(store: Store<Device>, options: DbOptions) -> Result<Database<Store<Device>>, String> {
    let options = DbOptions {
        checkpoint_bytes: CHECKPOINT_BYTES,
        queue_bytes_max: QUEUE_BYTES,
        ..options
    };
    Database::open(store, Arc::new(SimClock::new(CLOCK_SEED)), options)
        .map_err(|error| format!("the database does not open: {error}"))
}

/// The whole history of an object, or of all of them.
fn whole(id: Option<ObjectId>) -> HistoryQuery {
    HistoryQuery {
        id,
        from: FIRST,
        to: LAST,
    }
}

fn is_whole(query: &HistoryQuery) -> bool {
    query.from == FIRST && query.to == LAST
}

/// Whether a reading is among those asked for. Intervals are compared by the times of sensors alone: a time that the
/// node gave may be corrected.
fn is_wanted(query: &HistoryQuery, reading: &Reading) -> bool {
    let is_within = !reading.node_time && (query.from..query.to).contains(&reading.time);
    query.id.is_none_or(|id| id == reading.id) && (is_whole(query) || is_within)
}

/// Runs a range read to its end. An error is returned as text.
fn read(
    database: &Database<Store<Device>>,
    query: &HistoryQuery,
) -> Result<(Vec<Reading>, HistoryReport), String> {
    let (mut cursor, mut found) = (HistoryCursor::default(), Vec::new());
    for _ in 0..SLICES_MAX {
        let more = database.history(query, &mut cursor, &mut |entry| {
            found.push(Reading::read(entry));
            ControlFlow::Continue(())
        });
        match more {
            Ok(true) => {}
            Ok(false) => return Ok((found, *cursor.report())),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("it has no end".to_owned())
}

/// Compares what a range read has returned with what the log has.
///
/// # Errors
/// I16.
fn compare(query: &HistoryQuery, log: &LogReadings, found: &[Reading]) -> Result<(), Broken> {
    let mut wanted = log.readings.iter().filter(|one| is_wanted(query, one));
    let mut found = found.iter().filter(|one| is_whole(query) || !one.node_time);
    loop {
        let (wanted, found) = (wanted.next(), found.next());
        if wanted != found {
            return Err(broken(&format!(
                "{query:?} returns {found:?}, where the log has {wanted:?}"
            )));
        }
        if wanted.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use base::sim::SimDevice;
    use db::{CommitDriver, Durability, ObjectSpec, scan_log};
    use flash::FormatOptions;

    const READINGS: u16 = 400;

    /// A store whose log has some segments, and its readings.
    fn written() -> (Store<Device>, DbOptions, LogReadings) {
        let layout = FormatOptions {
            files_max: 64,
            name_bytes_max: 64,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let device = Device::image(SimDevice::new(4_096, 1));
        let store = Store::format(device, &layout).expect("it is formatted");
        let options = DbOptions {
            segment_bytes_max: 2 << 10,
            queue_bytes_max: 1 << 20,
            commit_driver: CommitDriver::Manual,
            ..Draw::new(&mut Random::new(1), 1_000).options
        };
        let clock = Arc::new(SimClock::new(1));
        let database = Database::open(store, clock, options).expect("it opens");
        let ids = ["a", "b", "c"].map(|key| {
            let spec = ObjectSpec {
                key,
                avi_ms: 1_000,
                temporal: true,
            };
            database.declare(&spec).expect("there is room")
        });
        for number in 0..READINGS {
            let value = f64::from(number).to_le_bytes();
            let time = Time::from_ms(i64::from(number));
            let id = ids[usize::from(number) % ids.len()];
            database
                .put(id, &value, time, Durability::Batched)
                .expect("there is room");
            if number % 50 == 0 {
                database.pump().expect("it commits");
            }
        }
        let mut store = database.close().expect("it stops");
        let mut log = LogReadings::default();
        let scanned = scan_log(&mut store, &mut |entry| {
            log.add(entry, false);
            ControlFlow::Continue(())
        });
        assert!(scanned.expect("it is read").segments > 2);
        assert_eq!(log.readings.len(), usize::from(READINGS));
        (store, options, log)
    }

    /// Checks a store against its log, in which something is changed.
    fn checked(change: &dyn Fn(&mut Vec<Reading>)) -> Result<u64, Invariant> {
        let (store, options, mut log) = written();
        change(&mut log.readings);
        let checked = check(store, options, &log, &mut Random::new(1));
        checked.map_err(|broken| broken.invariant)
    }

    #[test]
    fn a_range_read_that_returns_another_log_breaks_i16() {
        assert_eq!(checked(&|_| {}), Ok(6));
        let red = Err(Invariant::RangeReads);
        let adds = |log: &mut Vec<Reading>| {
            log.remove(7);
        };
        assert_eq!(checked(&adds), red);
        let misses = |log: &mut Vec<Reading>| log.insert(7, log[8]);
        assert_eq!(checked(&misses), red);
        let misses_the_last = |log: &mut Vec<Reading>| log.push(log[8]);
        assert_eq!(checked(&misses_the_last), red);
        assert_eq!(checked(&|log| log.swap(7, 8)), red);
        assert_eq!(checked(&|log| log[7].rest ^= 1), red);
        assert_eq!(checked(&|log| log[7].time = Time::from_ns(1)), red);
    }

    #[test]
    fn a_range_read_that_misses_readings_must_count_damage() {
        let (store, options, log) = written();
        assert_eq!(check_harmed(store, options, &log, false), Ok(1));
        let missed = |is_known| {
            let (store, options, mut log) = written();
            log.readings.push(log.readings[8]);
            let checked = check_harmed(store, options, &log, is_known);
            checked.map_err(|broken| broken.invariant)
        };
        assert_eq!(missed(false), Err(Invariant::RangeReads));
        assert_eq!(missed(true), Ok(1));
    }

    #[test]
    fn a_read_of_an_interval_must_return_the_readings_of_its_key_and_times() {
        let reading = |lsn, id, ms, node_time| Reading {
            lsn,
            id: ObjectId(id),
            time: Time::from_ms(ms),
            node_time,
            rest: 0,
        };
        let log = LogReadings {
            readings: vec![
                reading(0, 1, 10, false),
                reading(1, 2, 11, false),
                reading(2, 1, 12, true),
                reading(3, 1, 13, false),
            ],
        };
        let query = HistoryQuery {
            id: Some(ObjectId(1)),
            from: Time::from_ms(10),
            to: Time::from_ms(13),
        };
        let compared = |places: &[usize]| {
            let found: Vec<Reading> = places.iter().map(|at| log.readings[*at]).collect();
            compare(&query, &log, &found).map_err(|broken| broken.invariant)
        };
        assert_eq!(compared(&[0]), Ok(()));
        assert_eq!(compared(&[0, 2]), Ok(()), "its time may be corrected");
        for wrong in [&[][..], &[0, 1], &[0, 3], &[3]] {
            assert_eq!(compared(wrong), Err(Invariant::RangeReads), "{wrong:?}");
        }
    }
}
