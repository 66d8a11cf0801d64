//! Shared by the tests of forwarding: a node's database on the simulated device, and an upstream in memory.
#![allow(dead_code, reason = "each test binary uses a part")]

use base::sim::{SimClock, SimDevice};
use db::value::Value;
use db::{CommitDriver, Database, DbOptions, Durability, ObjectId, ObjectSpec, Ticket};
use egress::forward::{Format, Forwarder, MqttVersion, Target, TimeUnit, UpstreamOptions};
use flash::{FormatOptions, OpenOptions, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub type Db = Database<Store<SimDevice>>;

pub fn clock() -> SimClock {
    let clock = SimClock::new(7);
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    clock.advance_ns(1_000_000_000);
    clock
}

pub fn options() -> DbOptions {
    DbOptions {
        objects_max: 16,
        value_bytes_max: 40,
        queue_bytes_max: 64 << 10,
        append_bytes_max: 20 << 10,
        segment_bytes_max: 12 << 10,
        checkpoint_bytes: 12 << 10,
        checkpoint_piece_bytes_max: 2048,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    }
}

pub fn format(blocks: u64, seed: u64) -> Store<SimDevice> {
    let options = FormatOptions {
        files_max: 128,
        name_bytes_max: 255,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    Store::format(SimDevice::new(blocks, seed), &options).expect("formatted")
}

pub fn reopen(device: SimDevice) -> Store<SimDevice> {
    Store::open(device, &OpenOptions::default()).expect("the store recovers")
}

pub fn open(store: Store<SimDevice>, clock: &SimClock, options: DbOptions) -> Arc<Db> {
    Arc::new(Database::open(store, Arc::new(clock.clone()), options).expect("recovered"))
}

pub const KEYS: [&str; 4] = ["a", "hall/1/t", "hall/2/t", "d"];

pub fn declare(db: &Db) -> Vec<ObjectId> {
    let declare = |key| {
        let spec = ObjectSpec {
            key,
            avi_ms: 1000,
            temporal: true,
        };
        db.declare(&spec).expect("declared")
    };
    KEYS.into_iter().map(declare).collect()
}

/// An upstream that takes one reading per message.
pub fn single() -> UpstreamOptions {
    let target = Target::Mqtt {
        address: "upstream:1883".into(),
        version: MqttVersion::V5,
        client_id: "test".into(),
        login: None,
        topic: "t/{key}".into(),
        keep_alive_seconds: 30,
        inflight_max: 100,
    };
    UpstreamOptions {
        format: Format::Line,
        linger_ms: 0,
        // Waiting for the clock has its own test.
        clock_wait_ms_max: 0,
        ..UpstreamOptions::new("test", target)
    }
}

/// An upstream that takes batches.
pub fn batched() -> UpstreamOptions {
    let target = Target::Http {
        address: "upstream:8086".into(),
        host: "upstream".into(),
        path: "/write?precision=ms".into(),
        authorization: None,
    };
    UpstreamOptions {
        time_unit: TimeUnit::Milliseconds,
        batch_bytes_max: 1024,
        linger_ms: 0,
        // Waiting for the clock has its own test.
        clock_wait_ms_max: 0,
        ..UpstreamOptions::new("test", target)
    }
}

/// Puts number `n` as a value.
pub fn put(db: &Db, ids: &[ObjectId], key: usize, n: u64, time_ms: i64) -> Option<Ticket> {
    let mut value = [0; 16];
    let length = Value::Unsigned(n).encode(&mut value).expect("it fits");
    let time = db::Time::from_ms(time_ms);
    db.put(ids[key], &value[..length], time, Durability::Now)
        .ok()
}

/// Keys and numbers that an upstream has received, in order of arrival.
#[derive(Default)]
pub struct Received {
    pub all: Vec<(String, u64)>,
    pub times: BTreeMap<u64, u32>,
}

impl Received {
    pub fn take(&mut self, payload: &[u8]) {
        for (key, n) in parse(payload) {
            *self.times.entry(n).or_default() += 1;
            self.all.push((key, n));
        }
    }

    pub fn numbers(&self) -> BTreeSet<u64> {
        self.times.keys().copied().collect()
    }

    /// Asserts that the first arrivals of each key are in the order of recording.
    pub fn assert_in_order(&self) {
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (key, n) in &self.all {
            if !seen.insert(*n) {
                continue;
            }
            if let Some(before) = last.insert(key, *n) {
                assert!(before < *n, "{key}: {n} came after {before}");
            }
        }
    }
}

/// Returns keys and numbers of a body of lines.
pub fn parse(payload: &[u8]) -> Vec<(String, u64)> {
    let text = std::str::from_utf8(payload).expect("UTF-8");
    text.lines()
        .map(|line| {
            let rest = line.strip_prefix("keel,key=").expect("a measurement");
            let (key, rest) = rest.split_once(" integer=").expect("a whole number");
            let (n, time) = rest.split_once("i ").expect("a whole number");
            time.parse::<i64>().expect("a time");
            (key.to_owned(), n.parse().expect("a number"))
        })
        .collect()
}

pub fn forwarder(db: &Arc<Db>, clock: &SimClock, options: UpstreamOptions) -> Forwarder<SimDevice> {
    Forwarder::open(Arc::clone(db), Arc::new(clock.clone()), options).expect("the cursor opens")
}
