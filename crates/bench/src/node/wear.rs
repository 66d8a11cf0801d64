//! Bytes written at the device: the storage of both systems alone, each on its own disk, with the same readings in the
//! same batches. At 260 readings per second a commit every 250 ms holds 65 readings. So a commit is made every 65
//! readings, as fast as the disk allows; a simulated clock gives the times that the readings would have.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::block::FileDevice;
use base::sim::SimClock;
use db::{CommitDriver, Database, DbOptions, Durability, ObjectId, ObjectSpec, Stats, Time};

use super::cases::{STEADY_RATE, record_device, turns};
use super::disk::LoopDisk;
use super::publisher::TOPICS;
use super::sqlite::{Row, SqliteLog};
use super::system::{COMMIT_INTERVAL_MS, System};
use crate::figures::{Figures, Metric, OURS};
use crate::scratch::check_interrupted;

pub(crate) const WEAR: &str = "bytes-per-reading-260";

const CHECKPOINTS: Metric = Metric::shown("checkpoints", "1");

/// Readings per commit: those of one commit interval.
pub(super) const BATCH: u64 = STEADY_RATE as u64 * COMMIT_INTERVAL_MS as u64 / 1000;

/// 2023-11-14 in ms: the start of the simulated time.
pub(super) const BEGIN_MS: i64 = 1_700_000_000_000;

/// Nanoseconds between two readings.
pub(super) const STEP_NS: u64 = 1_000_000_000 / STEADY_RATE as u64;

/// A storage that the bench calls directly.
trait Storage {
    fn name(&self) -> &'static str;

    /// Makes [`BATCH`] readings durable; `first` is the number of the first one.
    fn batch(&mut self, first: u64) -> Result<(), String>;

    /// The number of checkpoints so far, if they are counted.
    fn checkpoints(&self) -> Option<u64>;
}

/// Returns the sensor, time and value of a reading.
fn reading(number: u64) -> (u32, i64, f64) {
    let sensor = number.wrapping_mul(7919) % u64::from(TOPICS);
    let time_ms = BEGIN_MS + (number * STEP_NS / 1_000_000) as i64;
    (
        sensor as u32,
        time_ms,
        18.0 + (number.wrapping_mul(31) % 700) as f64 / 100.0,
    )
}

/// Our storage, with commits by the thread that puts.
pub(super) struct Ours {
    clock: SimClock,
    database: Database<flash::Store<FileDevice>>,
    objects: Vec<ObjectId>,
}

impl Ours {
    pub(super) fn create(folder: &Path, image_mebibytes: u64) -> Result<Self, String> {
        let path = super::system::image_path(folder);
        crate::store::write_through(&path, image_mebibytes << 20, |_, chunk| chunk.fill(0))?;
        let format = flash::FormatOptions {
            files_max: 512,
            name_bytes_max: 64,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let store = flash::Store::format(crate::store::open_direct(&path)?, &format);
        let clock = SimClock::new(1);
        clock.set_wall_ms(BEGIN_MS);
        let options = DbOptions {
            commit_driver: CommitDriver::Manual,
            ..DbOptions::default()
        };
        let store = store.map_err(|error| error.to_string())?;
        let database = Database::open(store, Arc::new(clock.clone()), options).map_err(describe)?;
        let declare = |sensor| {
            database.declare(&ObjectSpec {
                key: &System::Keel.key(sensor),
                avi_ms: 60_000,
                temporal: true,
            })
        };
        let objects = (0..TOPICS)
            .map(declare)
            .collect::<Result<_, _>>()
            .map_err(describe)?;
        database.flush(Duration::from_secs(10)).map_err(describe)?;
        Ok(Self {
            clock,
            database,
            objects,
        })
    }

    /// Makes [`BATCH`] readings durable; `first` is the number of the first one. `time` gives the sensor's time of a
    /// reading by its number; without one the node's clock gives it.
    pub(super) fn batch_at(
        &mut self,
        first: u64,
        time: impl Fn(u64) -> Option<Time>,
    ) -> Result<(), String> {
        for number in first..first + BATCH {
            self.clock.advance_ns(STEP_NS);
            let (sensor, _, value) = reading(number);
            let (object, value) = (self.objects[sensor as usize], value.to_le_bytes());
            let put = match time(number) {
                Some(time) => self.database.put(object, &value, time, Durability::Batched),
                None => self.database.put_now(object, &value, Durability::Batched),
            };
            put.map_err(describe)?;
        }
        self.database.pump().map_err(describe)?;
        // The node's maintenance runs every second.
        if (first / BATCH).is_multiple_of(u64::from(1000 / COMMIT_INTERVAL_MS)) {
            while self.database.maintain().map_err(describe)? {}
        }
        Ok(())
    }

    pub(super) fn stats(&self) -> Stats {
        self.database.stats()
    }
}

impl Storage for Ours {
    fn name(&self) -> &'static str {
        OURS
    }

    fn batch(&mut self, first: u64) -> Result<(), String> {
        // As for readings from the broker, the node's clock gives the time.
        self.batch_at(first, |_| None)
    }

    fn checkpoints(&self) -> Option<u64> {
        Some(self.stats().checkpoints)
    }
}

fn describe(error: db::Error) -> String {
    error.to_string()
}

struct Peer {
    name: &'static str,
    log: SqliteLog,
    rows: Vec<Row>,
}

impl Peer {
    fn create(disk: &LoopDisk, system: System) -> Result<Self, String> {
        let mut log = SqliteLog::open(disk.folder(), system == System::SqliteIndexed)?;
        let names: Vec<_> = (0..TOPICS)
            .map(|sensor| (sensor, system.key(sensor)))
            .collect();
        log.commit(&names, &[])?;
        Ok(Self {
            name: system.name(),
            log,
            rows: Vec::with_capacity(BATCH as usize),
        })
    }
}

impl Storage for Peer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn batch(&mut self, first: u64) -> Result<(), String> {
        let row = |number| {
            let (key, time_ms, value) = reading(number);
            Row {
                key,
                time_ms,
                value,
            }
        };
        self.rows.clear();
        self.rows.extend((first..first + BATCH).map(row));
        self.log.commit(&[], &self.rows)
    }

    fn checkpoints(&self) -> Option<u64> {
        None
    }
}

/// Stores `readings` readings in each of `rounds` rounds, into each storage in turn, after an equal number as warm-up.
pub(crate) fn measure(
    figures: &mut Figures,
    scratch: &std::path::Path,
    rounds: u32,
    readings: u64,
    image_mebibytes: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let systems = [System::Keel, System::Sqlite, System::SqliteIndexed];
    let mut disks = Vec::new();
    for system in systems {
        progress(&format!("{WEAR}, disk of {}", system.name()));
        match LoopDisk::create(
            scratch,
            &format!("wear-{}", system.name()),
            (2 * image_mebibytes) << 20,
        ) {
            Ok(disk) => disks.push(disk),
            Err(error) => {
                figures.missing(format!(
                    "{WEAR}: needs a loop device of its own for each system: {error}"
                ));
                return Ok(());
            }
        }
    }
    let mut storages: Vec<Box<dyn Storage>> = vec![
        Box::new(Ours::create(disks[0].folder(), image_mebibytes)?),
        Box::new(Peer::create(&disks[1], systems[1])?),
        Box::new(Peer::create(&disks[2], systems[2])?),
    ];
    let batches = readings.div_ceil(BATCH);
    for round in 0..=rounds {
        for at in turns(&mut storages, round) {
            let storage = &mut storages[at];
            progress(&format!("{WEAR}, round {round}, {}", storage.name()));
            let (before, checkpoints) = (disks[at].counts()?, storage.checkpoints());
            for batch in 0..batches {
                check_interrupted()?;
                storage.batch((u64::from(round) * batches + batch) * BATCH)?;
            }
            // The first round fills the peer's log to its checkpoint and takes ours through one.
            if round > 0 {
                record_device(
                    figures,
                    WEAR,
                    storage.name(),
                    (before, disks[at].counts()?),
                    batches * BATCH,
                );
                if let (Some(before), Some(after)) = (checkpoints, storage.checkpoints()) {
                    figures.record(WEAR, storage.name(), CHECKPOINTS, (after - before) as f64);
                }
            }
        }
    }
    drop(storages);
    drop(disks);
    Ok(())
}
