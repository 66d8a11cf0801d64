//! Index files that are old, incomplete, unreadable or made from a damaged segment. Each test stands for an earlier
//! bug.
use crate::common::{declare, long_log_options, open, sim_clock, small_options};
use db::*;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const ALL: HistoryQuery = HistoryQuery {
    id: None,
    from: db::Time::from_ms(i64::MIN),
    to: db::Time::from_ms(i64::MAX),
};

fn history<S: SegmentStore>(db: &Database<S>, query: HistoryQuery) -> Vec<(u64, Vec<u8>)> {
    let (mut cursor, mut seen) = (HistoryCursor::default(), Vec::new());
    while db
        .history(&query, &mut cursor, &mut |e| {
            seen.push((e.lsn, e.value.to_vec()));
            ControlFlow::Continue(())
        })
        .expect("a slice")
    {}
    seen
}

#[derive(Default)]
struct Faults {
    opens: u64,
    bytes_read: u64,
    delete_damaged: Option<String>,
    read_failed: Option<String>,
}
struct Probe {
    inner: MemoryStore,
    names: Vec<String>,
    faults: Arc<Mutex<Faults>>,
}
impl SegmentStore for Probe {
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }
    type File = usize;
    fn create(&mut self, name: &str) -> Result<usize, StoreError> {
        let f = self.inner.create(name)?;
        self.names.resize(f + 1, String::new());
        self.names[f] = name.into();
        Ok(f)
    }
    fn open(&mut self, name: &str) -> Result<usize, StoreError> {
        self.faults.lock().unwrap().opens += 1;
        let f = self.inner.open(name)?;
        self.names.resize(f + 1, String::new());
        self.names[f] = name.into();
        Ok(f)
    }
    fn close(&mut self, f: usize) {
        self.inner.close(f)
    }
    fn append(&mut self, f: usize, d: &[u8]) -> Result<(), StoreError> {
        self.inner.append(f, d)
    }
    fn read(&mut self, f: usize, o: u64, b: &mut [u8]) -> Result<usize, StoreError> {
        if self.faults.lock().unwrap().read_failed.as_ref() == Some(&self.names[f]) {
            return Err(StoreError::Failed {
                code: base::error::Code::Io,
                message: "bad sector".into(),
            });
        }
        let bytes = self.inner.read(f, o, b)?;
        self.faults.lock().unwrap().bytes_read += bytes as u64;
        Ok(bytes)
    }
    fn length(&mut self, f: usize) -> Result<u64, StoreError> {
        self.inner.length(f)
    }
    fn delete(&mut self, n: &str) -> Result<(), StoreError> {
        if self.faults.lock().unwrap().delete_damaged.as_deref() == Some(n) {
            return Err(StoreError::Damaged { offset: 0 });
        }
        self.inner.delete(n)
    }
    fn list(&mut self, v: &mut dyn FnMut(&str)) -> Result<(), StoreError> {
        self.inner.list(v)
    }
    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }
    fn payload_bytes(&self) -> u64 {
        self.inner.payload_bytes()
    }
    fn secret(&self) -> u64 {
        self.inner.secret()
    }
}
fn probe(inner: MemoryStore) -> (Probe, Arc<Mutex<Faults>>) {
    let faults = Arc::new(Mutex::new(Faults::default()));
    (
        Probe {
            inner,
            names: Vec::new(),
            faults: Arc::clone(&faults),
        },
        faults,
    )
}

/// Without any change of options: the segment was left because of a long reading, but a short one still fits.
#[test]
fn the_index_of_a_segment_that_grows_again_stays_right() {
    let clock = sim_clock();
    let options = DbOptions {
        checkpoint_bytes: 1 << 20,
        value_bytes_max: 400,
        segment_bytes_max: 4000,
        append_bytes_max: 2048,
        checkpoint_piece_bytes_max: 1024,
        queue_bytes_max: 8192,
        ..small_options()
    };
    for fill in 60..220u64 {
        let db = open(MemoryStore::new(), &clock, options);
        let ids = declare(&db, 2);
        for n in 0..fill {
            db.put(
                ids[0],
                &n.to_le_bytes(),
                db::Time::from_ms(n as i64),
                Durability::Now,
            )
            .unwrap();
            db.pump().unwrap();
        }
        // Now the store is full for a long reading.
        db.with_store(|s| {
            let used: u64 = (1u64 << 40) - {
                s.set_capacity_bytes(1 << 40);
                s.free_bytes()
            };
            s.set_capacity_bytes(used + 4096 + 2 * 512 + 300);
        });
        db.put(ids[1], &[7; 400], db::Time::from_ms(5000), Durability::Now)
            .unwrap();
        if db.pump().is_ok() {
            continue;
        }
        db.with_store(|s| s.set_capacity_bytes(1 << 30));
        while db.maintain().unwrap() {}
        let store = db.abandon().unwrap();
        if store.file("index-00000000").is_none() || store.file("log-00000001").is_some() {
            continue;
        }
        println!(
            "fill {fill}: log-0 has {} bytes and an index",
            store.file("log-00000000").unwrap().len()
        );
        // Power was cut. Short readings are put again; no indexing runs before the next crash.
        let db = open(store, &clock, options);
        for n in 0..200u64 {
            db.put(
                ids[0],
                &n.to_le_bytes(),
                db::Time::from_ms(10_000 + n as i64),
                Durability::Now,
            )
            .unwrap();
            db.pump().unwrap();
        }
        let seen = history(
            &db,
            HistoryQuery {
                id: None,
                from: db::Time::from_ms(10_000),
                to: db::Time::from_ms(10_200),
            },
        );
        if seen.len() != 200 {
            panic!("fill {fill}: {} of 200 seen", seen.len());
        }
    }
}

/// The work of one slice when an object is in few segments.
#[test]
fn the_work_of_a_slice_of_history_is_bounded() {
    let clock = sim_clock();
    let (store, faults) = probe(MemoryStore::new());
    let options = DbOptions {
        segment_bytes_max: 1500,
        ..small_options()
    };
    let db = open(store, &clock, options);
    let ids = declare(&db, 2);
    db.put(ids[1], &[1; 8], db::Time::from_ms(1), Durability::Now)
        .unwrap();
    for n in 0..30_000u64 {
        db.put(
            ids[0],
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
        if n % 64 == 63 {
            db.maintain().unwrap();
        }
    }
    while db.maintain().unwrap() {}
    let query = HistoryQuery {
        id: Some(ids[1]),
        ..ALL
    };
    let mut cursor = HistoryCursor::default();
    let mut worst = 0;
    loop {
        faults.lock().unwrap().opens = 0;
        let more = db
            .history(&query, &mut cursor, &mut |_| ControlFlow::Continue(()))
            .unwrap();
        worst = worst.max(faults.lock().unwrap().opens);
        if !more {
            break;
        }
    }
    println!(
        "{} segments, most files opened under the store's lock in one slice: {worst}",
        db.stats().segments
    );
    assert!(worst <= 32, "{worst}");
}

/// A cursor between its plan and the growing segment, while the store becomes full and indexing begins again.
#[test]
fn a_partial_summary_is_not_used() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, long_log_options());
    let id = declare(&db, 1)[0];
    for n in 0..40_000u64 {
        db.put(
            id,
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .unwrap();
        if n % 100 == 99 {
            db.pump().unwrap();
        }
    }
    let query = HistoryQuery {
        id: None,
        from: db::Time::from_ms(30_000),
        to: db::Time::from_ms(31_000),
    };
    let (mut cursor, mut seen) = (HistoryCursor::default(), 0);
    // The plan.
    assert!(
        db.history(&query, &mut cursor, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap()
    );
    // The store becomes full for a moment.
    db.with_store(|s| s.set_capacity_bytes(10_000));
    db.put(id, &[0; 8], db::Time::from_ms(99_999), Durability::Now)
        .unwrap();
    assert!(db.pump().is_err());
    db.with_store(|s| s.set_capacity_bytes(1 << 30));
    db.pump().unwrap();
    db.maintain().unwrap();
    while db
        .history(&query, &mut cursor, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap()
    {}
    assert_eq!(seen, 1000, "{:?}", cursor.report());
}

/// The oldest segment's directory entry cannot be read when it must be deleted.
#[test]
fn a_damaged_directory_entry_of_the_oldest_segment_stops_no_put() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(24_000);
    let (store, faults) = probe(store);
    faults.lock().unwrap().delete_damaged = Some("log-00000000".into());
    let options = DbOptions {
        retention: Retention {
            full_policy: FullPolicy::DropOldest,
            ..Retention::default()
        },
        ..small_options()
    };
    let db = open(store, &clock, options);
    let ids = declare(&db, 2);
    for n in 0..3000u64 {
        if let Err(error) = db.put_now(ids[0], &n.to_le_bytes(), Durability::Batched) {
            panic!("{n}: {error:?} {:?}", db.health());
        }
        if n % 8 == 7 {
            let _ = db.pump();
            let _ = db.maintain();
        }
    }
}

/// The same, retention by size.
#[test]
fn a_damaged_directory_entry_does_not_stop_retention_by_size() {
    let clock = sim_clock();
    let (store, faults) = probe(MemoryStore::new());
    faults.lock().unwrap().delete_damaged = Some("index-00000000".into());
    let options = DbOptions {
        retention: Retention {
            history_bytes_max: 6_000,
            ..Retention::default()
        },
        ..small_options()
    };
    let db = open(store, &clock, options);
    let ids = declare(&db, 2);
    for n in 0..3000u64 {
        db.put_now(ids[0], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 8 == 7 {
            let _ = db.pump();
            let _ = db.maintain();
        }
    }
    assert!(
        db.stats().history_bytes < 10_000,
        "{}",
        db.stats().history_bytes
    );
}

/// One bad sector under an index file.
#[test]
fn an_index_file_on_a_bad_sector_hides_no_reading() {
    let clock = sim_clock();
    let (store, faults) = probe(MemoryStore::new());
    let db = open(store, &clock, small_options());
    let ids = declare(&db, 2);
    for n in 0..500u64 {
        db.put(
            ids[0],
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .unwrap();
        if n % 8 == 7 {
            let _ = db.pump();
            let _ = db.maintain();
        }
    }
    db.pump().unwrap();
    while db.maintain().unwrap() {}
    faults.lock().unwrap().read_failed = Some("index-00000001".into());
    let mut cursor = HistoryCursor::default();
    let mut seen = 0;
    let mut errors = 0;
    loop {
        match db.history(&ALL, &mut cursor, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        }) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                errors += 1;
                if errors > 20 {
                    break;
                }
            }
        }
    }
    let running = (seen, errors);
    let store = db.close().unwrap();
    let db = open(store, &clock, small_options());
    let mut cursor = HistoryCursor::default();
    let (mut seen, mut errors) = (0, 0);
    loop {
        match db.history(&ALL, &mut cursor, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        }) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                errors += 1;
                if errors > 20 {
                    break;
                }
            }
        }
    }
    assert_eq!((running, (seen, errors)), ((500, 0), (500, 0)));
}

/// An index made while part of the segment could not be read must not rule out what can be read later.
#[test]
fn an_index_of_a_damaged_segment_rules_out_no_reading() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 2);
    for n in 0..500u64 {
        db.put(
            ids[(n / 30 % 2) as usize],
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .unwrap();
        if n % 8 == 7 {
            let _ = db.pump();
        }
    }
    let mut store = db.close().unwrap();
    for name in store
        .names()
        .filter(|n| n.starts_with("index-"))
        .map(str::to_owned)
        .collect::<Vec<_>>()
    {
        store.delete(&name).unwrap();
    }
    // For some time the segment is not readable (a loose card, a cold contact).
    let good = store.file("log-00000001").unwrap().clone();
    store.file_mut("log-00000001")[100..2000].fill(0xff);
    let db = open(store, &clock, small_options());
    while db.maintain().unwrap() {}
    let mut store = db.abandon().unwrap();
    *store.file_mut("log-00000001") = good;
    let db = open(store, &clock, small_options());
    let all = history(&db, ALL).len();
    let narrow: usize = (0..500)
        .map(|n| {
            history(
                &db,
                HistoryQuery {
                    id: None,
                    from: db::Time::from_ms(n),
                    to: db::Time::from_ms(n + 1),
                },
            )
            .len()
        })
        .sum();
    assert_eq!((all, narrow), (500, 500));
}

/// A step is shorter than the buffer: buffered bytes are not read again.
#[test]
fn a_follower_reads_the_log_once() {
    let clock = sim_clock();
    let options = DbOptions {
        checkpoint_bytes: 1 << 30,
        segment_bytes_max: 1 << 20,
        queue_bytes_max: 1 << 20,
        ..small_options()
    };
    let (store, faults) = probe(MemoryStore::new());
    let db = open(store, &clock, options);
    let ids = declare(&db, 2);
    for n in 0..20_000_u64 {
        db.put(
            ids[0],
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .unwrap();
        if n % 100 == 99 {
            db.pump().unwrap();
        }
    }
    let log_bytes = db
        .with_store(|store| {
            let file = store.open("log-00000000").unwrap();
            let bytes = store.length(file).unwrap();
            store.close(file);
            bytes
        })
        .unwrap();
    assert!(log_bytes > 6 * 65_536, "{log_bytes}");
    let mut cursor = LogCursor::new(0);
    // The first step finds the segment.
    let (mut passed, mut steps) = (0, 0);
    let mut follow = |cursor: &mut LogCursor| {
        steps += 1;
        let step = db.follow(cursor, u64::MAX, 4096, &mut |_| true, &mut |_| passed += 1);
        step.unwrap().more
    };
    follow(&mut cursor);
    faults.lock().unwrap().bytes_read = 0;
    while follow(&mut cursor) {}
    assert_eq!(passed, 20_000);
    let read = faults.lock().unwrap().bytes_read;
    assert!(read <= log_bytes, "{read} of {log_bytes}");
    // A step also ends where nothing is wanted and no commit waits.
    let (mut cursor, mut steps) = (LogCursor::new(0), 1);
    let mut go_on = || {
        let step = db.follow(&mut cursor, u64::MAX, 4096, &mut |_| false, &mut |_| ());
        step.unwrap().more
    };
    while go_on() {
        steps += 1;
    }
    assert!(steps >= log_bytes / 80_000, "{steps} for {log_bytes}");
}
