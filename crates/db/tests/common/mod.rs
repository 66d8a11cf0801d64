//! What the integration tests share: a small database on a store, and the record of what was acknowledged.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::sim::{SimClock, SimDevice};
use db::{
    CommitDriver, Database, DbOptions, Durability, ObjectId, ObjectSpec, Retention, ScanReport,
    SegmentStore, Ticket, scan_log,
};
use flash::{FormatOptions, Store};

/// Small sizes, so that a short test rotates segments and writes checkpoints.
pub fn small_options() -> DbOptions {
    DbOptions {
        objects_max: 16,
        value_bytes_max: 40,
        key_bytes_mean: db::KEY_BYTES_MEAN,
        queue_bytes_max: 4096,
        commit_interval_ms: 5,
        append_bytes_max: 1024,
        segment_bytes_max: 3000,
        checkpoint_bytes: 2000,
        checkpoint_piece_bytes_max: 512,
        commit_driver: CommitDriver::Manual,
        retention: Retention::default(),
        admission_percent_min: 50,
        admission_quality: Default::default(),
    }
}

/// One long segment that no checkpoint ends.
pub fn long_log_options() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 20,
        append_bytes_max: 8 << 10,
        segment_bytes_max: 2 << 20,
        checkpoint_bytes: 1 << 30,
        ..small_options()
    }
}

/// An empty store on a simulated device.
pub fn formatted(blocks: u64, seed: u64) -> Store<SimDevice> {
    let format = FormatOptions {
        files_max: 64,
        name_bytes_max: 255,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    Store::format(SimDevice::new(blocks, seed), &format).expect("formatted")
}

pub fn sim_clock() -> SimClock {
    let clock = SimClock::new(7);
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    clock.advance_ns(1_000_000_000);
    clock
}

pub fn open<S: SegmentStore>(store: S, clock: &SimClock, options: DbOptions) -> Database<S> {
    Database::open(store, Arc::new(clock.clone()), options).expect("the database opens")
}

pub fn declare<S: SegmentStore>(db: &Database<S>, count: u32) -> Vec<ObjectId> {
    (0..count)
        .map(|n| {
            let key = format!("room {n}/temperature");
            db.declare(&ObjectSpec {
                key: &key,
                avi_ms: 1000 + n,
                temporal: n % 2 == 0,
            })
            .expect("declared")
        })
        .collect()
}

/// A reading as the test knows it.
pub type Known = (String, i64, Vec<u8>);

/// Every reading of the log, in order. Unnamed ones have the key "".
pub fn scan<S: SegmentStore>(store: &mut S) -> (Vec<Known>, ScanReport) {
    let mut readings = Vec::new();
    let report = scan_log(store, &mut |entry| {
        readings.push((
            entry.key.unwrap_or("").to_owned(),
            entry.time.ms(),
            entry.value.to_vec(),
        ));
        ControlFlow::Continue(())
    })
    .expect("the log can be scanned");
    (readings, report)
}

/// What was put, in order, each with its ticket.
#[derive(Default)]
pub struct Oracle {
    pub puts: Vec<(Known, Ticket)>,
}

impl Oracle {
    pub fn put<S: SegmentStore>(
        &mut self,
        db: &Database<S>,
        id: ObjectId,
        timestamp_ms: i64,
        value: &[u8],
    ) {
        let key = db.key(id).as_str().to_owned();
        // In each unit that a record has. What equal ms have beyond them is equal, so the order of times is that of ms.
        let below_ms_ns = [0, 123_000, 123_456][timestamp_ms.rem_euclid(3) as usize];
        let time = db::Time::from_ns(timestamp_ms * 1_000_000 + below_ms_ns);
        if let Ok(ticket) = db.put(id, value, time, Durability::Now) {
            self.puts
                .push(((key, timestamp_ms, value.to_vec()), ticket));
        }
    }

    pub fn acknowledged(&self) -> Vec<&Known> {
        self.puts
            .iter()
            .filter(|(_, ticket)| ticket.is_durable())
            .map(|(known, _)| known)
            .collect()
    }

    /// Checks that every acknowledged reading is in the log, exactly and in order, and that each logged reading was
    /// put. Checks also that the table holds each object's newest logged reading or a newer one.
    pub fn check<S: SegmentStore>(&self, store: S, clock: &SimClock, options: DbOptions) -> S {
        let mut store = store;
        let (logged, report) = scan(&mut store);
        assert_eq!(report.damage.readings_missing, 0);
        assert_eq!(
            report.damage.records_damaged, 0,
            "a torn append is no damage"
        );
        let mut at = 0;
        for known in self.acknowledged() {
            let found = logged[at..].iter().position(|logged| logged == known);
            let Some(found) = found else {
                panic!("acknowledged and lost: {known:?}")
            };
            at += found + 1;
        }
        let mut known = self.puts.iter();
        for logged in &logged {
            assert!(
                known.any(|(known, _)| known == logged),
                "never put: {logged:?}"
            );
        }
        let db = open(store, clock, options);
        let mut newest: BTreeMap<&str, (i64, &[u8])> = BTreeMap::new();
        for (key, timestamp_ms, value) in &logged {
            let entry = newest.entry(key).or_insert((*timestamp_ms, value));
            if *timestamp_ms >= entry.0 {
                *entry = (*timestamp_ms, value);
            }
        }
        let mut buffer = [0; 512];
        for (key, (timestamp_ms, value)) in newest {
            let id = db.lookup(key).expect("a logged object is known");
            let got = db
                .get_at(id, db::Time::from_ms(0), &mut buffer)
                .expect("a logged object has a value");
            let same = got.time.ms() == timestamp_ms && &buffer[..got.value_bytes] == value;
            // A checkpoint may have kept a reading that was put but not yet logged when the power failed.
            let newer = got.time.ms() >= timestamp_ms
                && self.puts.iter().any(|((k, t, v), ticket)| {
                    !ticket.is_durable()
                        && k == key
                        && *t == got.time.ms()
                        && v == &buffer[..got.value_bytes]
                });
            assert!(
                same || newer,
                "{key}: {} instead of {timestamp_ms}",
                got.time.ms()
            );
        }
        db.abandon().expect("the store comes back")
    }
}
