//! The fixed run behind the golden files: what is written, and on which clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::clock::Clock;
use db::{CommitDriver, Database, DbOptions, Durability, MemoryStore, ObjectSpec, Owner, Time};

/// The secret of the store that the golden files were written with.
pub const SECRET: u64 = 0x0123_4567_89ab_cdef;

/// A clock that this file alone determines.
#[derive(Debug, Default)]
pub struct FixedClock {
    ns: AtomicU64,
    boot: AtomicU64,
}

impl Clock for FixedClock {
    fn monotonic_ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }
    fn wall_ms(&self) -> i64 {
        self.wall_ns() / 1_000_000
    }
    fn wall_ns(&self) -> i64 {
        1_700_000_000_000_000_000 + self.monotonic_ns() as i64
    }
    fn wall_is_trusted(&self) -> bool {
        self.boot.load(Ordering::Relaxed) > 0
    }
    fn boot_id(&self) -> [u8; 16] {
        [0xb0 + self.boot.load(Ordering::Relaxed) as u8; 16]
    }
}

/// Readings whose time the node's clock gives, since format 1.
pub fn node_gives_time(n: usize) -> bool {
    n % 7 == 3
}

/// Readings that were kept for an unknown time before they arrived, since format 2. Some have a time of the sensor, and
/// some have none. The last reading of each object is one of them.
pub fn is_retained(n: usize) -> bool {
    n % 5 == 2 || n >= 87
}

/// The readings of the run as a format holds them: object, time, value. Since format 3 the times of the node's clock
/// are in µs. Since then some times of sensors are in µs and some in ns.
pub fn readings(format: u32) -> impl Iterator<Item = (usize, Time, Vec<u8>)> {
    (0..90usize).map(move |n| {
        // Mostly close in time; every eleventh reading has a clock of its own and is written in the wide form.
        let by_node = format > 0 && node_gives_time(n);
        let arrival_ns = 5_000_000_000 + (n % 45 + 1) as i64 * STEP_NS as i64;
        let time_ms = if by_node {
            1_700_000_000_000 + arrival_ns / 1_000_000
        } else if n % 11 == 10 {
            n as i64
        } else {
            1_700_000_000_000 + n as i64 * 250
        };
        let below_ms_ns = match n % 4 {
            _ if format < 3 => 0,
            _ if by_node => arrival_ns % 1_000_000 / 1_000 * 1_000,
            1 => 123_000,
            2 => 123_456,
            _ => 0,
        };
        (
            n % 3,
            Time::from_ns(time_ms * 1_000_000 + below_ms_ns),
            (n as u64 * 0x0101).to_le_bytes()[..1 + n % 8].to_vec(),
        )
    })
}

/// Time between two readings.
const STEP_NS: u64 = 250_000_321;

/// Keys of the run, in the order of their ids.
pub const KEYS: [&str; 3] = ["hall/temperature", "hall/smoke", "küche/door"];

/// Writes the run in two boots and returns the store.
pub fn write() -> MemoryStore {
    let options = DbOptions {
        objects_max: 8,
        value_bytes_max: 16,
        queue_bytes_max: 4096,
        append_bytes_max: 1024,
        segment_bytes_max: 1500,
        checkpoint_bytes: 1100,
        checkpoint_piece_bytes_max: 512,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let clock = Arc::new(FixedClock::default());
    let mut store = MemoryStore::with_secret(SECRET);
    let mut readings = readings(3).enumerate();
    for boot in 0..2 {
        clock.boot.store(boot, Ordering::Relaxed);
        clock.ns.store(5_000_000_000, Ordering::Relaxed);
        let db =
            Database::open(store, Arc::clone(&clock) as Arc<dyn Clock>, options).expect("opened");
        let ids = KEYS.map(|key| {
            let spec = ObjectSpec {
                key,
                avi_ms: 1100 * key.len() as u32,
                temporal: key.starts_with("hall"),
            };
            db.declare(&spec).expect("declared")
        });
        for (n, (object, time, value)) in readings.by_ref().take(45) {
            clock.ns.fetch_add(STEP_NS, Ordering::Relaxed);
            let put = if is_retained(n) {
                let sensor = (!node_gives_time(n)).then_some(time);
                db.put_retained(ids[object], &value, sensor, Durability::Batched)
            } else if node_gives_time(n) {
                db.put_now(ids[object], &value, Durability::Batched)
            } else {
                db.put(ids[object], &value, time, Durability::Batched)
            };
            put.expect("taken");
            if n % 45 % 4 == 3 {
                db.pump().expect("committed");
            }
        }
        while db.maintain().expect("indexed") {}
        store = db.close().expect("closed");
    }
    store
}

/// Text of a template, and a series by it.
pub const OWNERS: [(&str, &str); 2] = [
    ("{measurement}/{values}/{field}", "disk,path=sda1 used"),
    ("{2}/{measurement}/{values}/{field}", "\nx\n\na b/c"),
];

/// Returns a store with a key that has no owner, one that has one, and one that has two.
pub fn write_owners() -> MemoryStore {
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let clock = Arc::new(FixedClock::default());
    clock.ns.store(5_000_000_000, Ordering::Relaxed);
    let store = MemoryStore::with_secret(SECRET);
    let db = Database::open(store, clock, options).expect("opened");
    for (owners, key) in KEYS.iter().enumerate() {
        let spec = ObjectSpec {
            key,
            avi_ms: 1000,
            temporal: true,
        };
        let id = db.declare(&spec).expect("declared");
        for (template, series) in OWNERS.into_iter().take(owners) {
            let owner = Owner {
                id: id.0,
                template: Owner::template_of(template),
                series,
            };
            db.claim(&owner).expect("free");
        }
        db.put_now(id, b"1", Durability::Batched).expect("taken");
    }
    db.close().expect("closed")
}

/// Keys of the slot table: one that fills its unit, one that is padded, and one of three units, which has no value.
pub const TABLE_KEYS: [&str; 3] = [KEYS[0], KEYS[1], "hall/temperature/of the north wall"];

/// A slot table as its memory holds it on a little-endian machine.
pub fn table() -> Vec<u8> {
    use db::table::{Line, SlotValue, Table, TableMemory};
    let size = db::TableSize {
        objects_max: 3,
        value_bytes_max: 20,
        key_bytes_mean: 40,
    };
    let memory = TableMemory::own(Table::lines_needed(size).expect("a size"));
    let lines: &[Line] = memory.as_ref();
    let table = Table::create_in(lines, size, 0x0123_4567_89ab_cdef).expect("a table");
    for (n, key) in TABLE_KEYS.iter().enumerate() {
        let avi_ms = if n == 2 { 60_000 } else { 1_500 + n as u32 };
        let (id, _) = table.insert(key, avi_ms, n == 0).expect("an object");
        if n == 2 {
            continue;
        }
        let value = SlotValue {
            time: Time::from_ms(1_700_000_000_000 - n as i64),
            arrival_ns: 5_000_000_321,
            boot_tag: 0xb0b1_b2b3_b4b5_b6b7,
            wall_trusted: n == 0,
            node_time: n == 1,
            retained: n == 1,
            value: &b"a value of 20 bytes."[..20 - n * 7],
        };
        assert_eq!(table.write(id, &value), Ok(true));
    }
    table.serve([0x1111_2222_3333_4444, 0x5555_6666_7777_8888]);
    let words = lines.iter().flat_map(|line| &line.0);
    words
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .collect()
}
