//! A copy that is made while readings arrive holds everything that was acknowledged before it was begun.

use std::collections::BTreeMap;

use crate::common::{declare, open, scan, sim_clock, small_options};
use db::{
    Database, DbOptions, Durability, MemoryStore, ObjectId, Retention, SegmentStore, SnapshotFile,
    SnapshotRead,
};

/// Bytes that a copy takes at a time: not a multiple of any size in use.
const PIECE_BYTES: usize = 777;

/// What is put, and how often.
struct Load {
    ids: Vec<ObjectId>,
    count: u64,
}

impl Load {
    /// Puts this many readings, each acknowledged when this returns.
    fn put<S: SegmentStore>(&mut self, db: &Database<S>, readings: u64) {
        for _ in 0..readings {
            let id = self.ids[(self.count % self.ids.len() as u64) as usize];
            let value = self.count.to_le_bytes();
            db.put(
                id,
                &value,
                db::Time::from_ms(1_700_000_000_000 + self.count as i64),
                Durability::Now,
            )
            .expect("put");
            self.count += 1;
            if self.count.is_multiple_of(50) {
                db.pump().expect("committed");
            }
        }
        while db.pump().expect("committed") {}
        while db.maintain().expect("kept in order") {}
    }
}

/// Copies one file, piece by piece, with readings between two pieces; `None` if the file has gone.
fn copy_file(
    db: &Database<MemoryStore>,
    file: &SnapshotFile,
    load: &mut Load,
    between: u64,
) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = [0; PIECE_BYTES];
    loop {
        let read = db.read_snapshot(file, bytes.len() as u64, &mut piece);
        match read.expect("read") {
            SnapshotRead::Gone => return None,
            SnapshotRead::Bytes { bytes: 0, .. } => return Some(bytes),
            SnapshotRead::Bytes { bytes: read, .. } => bytes.extend_from_slice(&piece[..read]),
        }
        load.put(db, between);
    }
}

/// The contents of a copy, how often it was begun, and older files that had gone.
struct Copied {
    store: MemoryStore,
    durable_end: u64,
    begun: u32,
    gone: u32,
}

fn copy(db: &Database<MemoryStore>, load: &mut Load, between: u64) -> Copied {
    for begun in 1..=20 {
        let snapshot = db.snapshot().expect("taken");
        let mut store = MemoryStore::new();
        let (mut gone, mut again) = (0, false);
        let mut bytes_all = 0;
        for file in &snapshot.files {
            match copy_file(db, file, load, between) {
                Some(bytes) => {
                    let made = SegmentStore::create(&mut store, &file.name).expect("made");
                    SegmentStore::append(&mut store, made, &bytes).expect("appended");
                    bytes_all += bytes.len() as u64;
                }
                None if file.is_needed => again = true,
                None => gone += 1,
            }
        }
        if !again {
            assert!(
                bytes_all <= snapshot.bytes_max,
                "{bytes_all} of {}",
                snapshot.bytes_max
            );
            return Copied {
                store,
                durable_end: snapshot.durable_end,
                begun,
                gone,
            };
        }
    }
    panic!("never whole")
}

fn numbers(store: &mut MemoryStore) -> Vec<u64> {
    let (readings, report) = scan(store);
    assert!(!report.damage.any(), "{:?}", report.damage);
    let number = |value: &[u8]| u64::from_le_bytes(value.try_into().expect("8 bytes"));
    readings.iter().map(|(_, _, value)| number(value)).collect()
}

fn options(history_bytes_max: u64) -> DbOptions {
    DbOptions {
        retention: Retention {
            history_bytes_max,
            ..Retention::default()
        },
        ..small_options()
    }
}

/// Copies under load; returns how often the copy was begun, and how many older files had gone.
fn check(history_bytes_max: u64, before: u64, between: u64) -> (u32, u32) {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options(history_bytes_max));
    let mut load = Load {
        ids: declare(&db, 7),
        count: 0,
    };
    load.put(&db, before);
    while load.count < before + 40 {
        load.put(&db, 5);
    }
    let mut copied = copy(&db, &mut load, between);
    let found = numbers(&mut copied.store);
    // Complete to the end, without a gap, from the oldest reading that is kept.
    let first = found.first().copied().expect("something is in it");
    assert!(found.iter().copied().eq(first..first + found.len() as u64));
    assert_eq!(first + found.len() as u64, copied.durable_end);
    if history_bytes_max == 0 {
        assert_eq!(first, 0);
    }
    // The latest values are the same here, also for a key whose readings have all been deleted.
    let restored = open(copied.store, &clock, options(history_bytes_max));
    let mut expected = BTreeMap::new();
    for number in 0..copied.durable_end {
        expected.insert(number % 7, number);
    }
    for (key, number) in expected {
        let id = restored
            .lookup(&format!("room {key}/temperature"))
            .expect("the key is there");
        let mut value = [0; 8];
        restored.get(id, &mut value).expect("it has a value");
        assert_eq!(u64::from_le_bytes(value), number);
    }
    (copied.begun, copied.gone)
}

#[test]
fn a_quiet_database_is_copied_whole() {
    assert_eq!(check(0, 900, 0), (1, 0));
}

#[test]
fn readings_that_arrive_meanwhile_leave_the_copy_whole() {
    check(0, 900, 3);
}

#[test]
fn segments_deleted_by_retention_meanwhile_are_left_out() {
    let (_, gone) = check(9_000, 900, 2);
    assert!(
        gone > 0,
        "nothing was deleted meanwhile: the test shows nothing"
    );
}

#[test]
fn files_that_a_start_needs_are_never_missing_in_a_copy() {
    // More and more readings arrive, until the checkpoint has gone before its log is copied.
    let begun = (12..60).map(|between| check(9_000, 300, between).0);
    let replaced = begun.into_iter().find(|begun| *begun > 1);
    assert!(
        replaced.is_some(),
        "nothing was replaced meanwhile: the test shows nothing"
    );
}

#[test]
fn an_empty_database_has_a_copy() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let mut load = Load {
        ids: declare(&db, 1),
        count: 0,
    };
    let mut copied = copy(&db, &mut load, 0);
    assert_eq!(copied.durable_end, 0);
    assert_eq!(numbers(&mut copied.store), []);
}

#[test]
fn damage_is_copied_around_and_other_files_come_along() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    let other = SegmentStore::create(&mut store, "node-totals").expect("made");
    SegmentStore::append(&mut store, other, b"sums").expect("appended");
    let long = SegmentStore::create(&mut store, "long").expect("made");
    SegmentStore::append(&mut store, long, &vec![1; 100_000]).expect("appended");
    let db = open(
        store,
        &clock,
        DbOptions {
            segment_bytes_max: 1 << 20,
            ..small_options()
        },
    );
    let mut load = Load {
        ids: declare(&db, 3),
        count: 0,
    };
    load.put(&db, 100);
    while load.count < 1200 {
        load.put(&db, 100);
    }
    let snapshot = db.snapshot().expect("taken");
    assert_eq!(
        snapshot.others,
        [("node-totals".to_owned(), b"sums".to_vec())]
    );
    assert_eq!(snapshot.others_left_out, 1);
    let name = snapshot.files.last().expect("a segment").name.clone();
    db.with_store(|store| store.damage(&name, 9_000))
        .expect("open");
    let file = SnapshotFile {
        name,
        end: None,
        is_needed: true,
    };
    let mut buffer = vec![9; 12_000];
    let read = db.read_snapshot(&file, 2_000, &mut buffer).expect("read");
    // The pieces of this store have 4,000 bytes.
    assert_eq!(
        read,
        SnapshotRead::Bytes {
            bytes: 12_000,
            unreadable: 4_000
        }
    );
    assert!(buffer[6_000..10_000].iter().all(|byte| *byte == 0));
    assert!(buffer[5_000..6_000].iter().any(|byte| *byte != 0));
    assert!(buffer[10_000..11_000].iter().any(|byte| *byte != 0));
}
