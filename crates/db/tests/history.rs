//! Range reads: every reading in its range, from its segments alone, with its time corrected where that is possible.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::common::{declare, open, small_options};
use base::clock::Clock;
use base::sim::{Random, SimClock};
use db::{
    Database, DbOptions, Durability, HistoryCursor, HistoryQuery, HistoryReport, MemoryStore,
    ObjectId, SegmentStore,
};

/// One reading of a range read: number in the log, object, time, time as recorded, corrected, value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    lsn: u64,
    id: ObjectId,
    time_ms: i64,
    time_ns: i64,
    recorded_ms: i64,
    corrected: bool,
    value: Vec<u8>,
}

const ALL: HistoryQuery = HistoryQuery {
    id: None,
    from: db::Time::from_ms(i64::MIN),
    to: db::Time::from_ms(i64::MAX),
};

fn history<S: SegmentStore>(db: &Database<S>, query: HistoryQuery) -> (Vec<Seen>, HistoryReport) {
    let (mut cursor, mut seen) = (HistoryCursor::default(), Vec::new());
    while db
        .history(&query, &mut cursor, &mut |entry| {
            seen.push(Seen {
                lsn: entry.lsn,
                id: entry.id,
                time_ms: entry.time.ms(),
                time_ns: entry.time.ns(),
                recorded_ms: entry.recorded.ms(),
                corrected: entry.time_corrected,
                value: entry.value.to_vec(),
            });
            ControlFlow::Continue(())
        })
        .expect("a slice")
    {}
    (seen, *cursor.report())
}

fn indexed<S: SegmentStore>(db: &Database<S>) {
    while db.maintain().expect("maintained") {}
}

fn clock() -> SimClock {
    let clock = SimClock::new(3);
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    clock
}

/// Large enough for pieces inside a segment.
fn wide() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 16,
        append_bytes_max: 8 << 10,
        segment_bytes_max: 300 << 10,
        checkpoint_bytes: 100 << 10,
        ..small_options()
    }
}

#[test]
fn every_range_shows_exactly_its_readings() {
    for seed in 0..12u64 {
        let mut random = Random::new(seed);
        let clock = clock();
        let options = if seed % 2 == 0 {
            small_options()
        } else {
            wide()
        };
        let mut store = Some(MemoryStore::new());
        let mut put = Vec::new();
        for life in 0..4 {
            let db = open(store.take().unwrap(), &clock, options);
            let ids = declare(&db, 8);
            for _ in 0..random.below(if seed % 2 == 0 { 400 } else { 6000 }) {
                clock.advance_ns(random.below(50_000_000));
                let id = ids[random.index(ids.len())];
                let value = [random.below(256) as u8; 9];
                if db.stats().queue_bytes > 3000 {
                    db.pump().unwrap();
                }
                // Some are late by up to ten minutes, some have no time of their own. Times are in ms, µs or ns; those
                // of the node's clock are in µs.
                let (time_ns, ticket) = if random.below(3) == 0 {
                    let now_us = clock.wall_ns() / 1_000;
                    (now_us * 1_000, db.put_now(id, &value, Durability::Batched))
                } else {
                    let late_ms = if random.below(10) == 0 {
                        random.below(600_000) as i64
                    } else {
                        0
                    };
                    let below_ms = random.below(1_000_000) as i64;
                    let unit = [1_000_000, 1_000, 1][random.index(3)];
                    let ms = clock.wall_ms() - late_ms;
                    let time_ns = ms * 1_000_000 + below_ms / unit * unit;
                    let time = db::Time::from_ns(time_ns);
                    (time_ns, db.put(id, &value, time, Durability::Batched))
                };
                put.push((ticket.unwrap(), id, time_ns, value.to_vec()));
                if random.below(20) == 0 {
                    db.pump().unwrap();
                }
                if random.below(300) == 0 {
                    db.maintain().unwrap();
                }
                if random.below(2000) == 0 {
                    compare(&db, &put, &mut random, &ids);
                }
            }
            if life % 2 == 0 {
                store = Some(db.close().unwrap());
            } else {
                db.pump().unwrap();
                store = db.abandon();
            }
            clock.advance_ns(1_000_000_000);
        }
        let db = open(store.take().unwrap(), &clock, options);
        let ids = declare(&db, 8);
        compare(&db, &put, &mut random, &ids);
        indexed(&db);
        compare(&db, &put, &mut random, &ids);
    }
}

/// Ticket, object, time in ns, value.
type Put = (db::Ticket, ObjectId, i64, Vec<u8>);

/// Compares random ranges with what was put and is durable.
fn compare(db: &Database<MemoryStore>, put: &[Put], random: &mut Random, ids: &[ObjectId]) {
    let times = || put.iter().map(|(_, _, time_ns, _)| *time_ns);
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        return;
    };
    for n in 0..12 {
        let width = (last - first + 2).unsigned_abs();
        let from_ns = first - 1 + random.below(width) as i64;
        let query = HistoryQuery {
            id: (n % 2 == 0).then(|| ids[random.index(ids.len())]),
            from: match n {
                0 => db::Time::from_ms(i64::MIN),
                _ => db::Time::from_ns(from_ns),
            },
            to: match n {
                0 => db::Time::from_ms(i64::MAX),
                _ => db::Time::from_ns(from_ns + random.below(1 + width / 3) as i64),
            },
        };
        let expected: Vec<_> = put
            .iter()
            .filter(|(ticket, id, time_ns, _)| {
                ticket.is_durable()
                    && query.id.is_none_or(|wanted| wanted == *id)
                    && (query.from..query.to).contains(&db::Time::from_ns(*time_ns))
            })
            .map(|(ticket, id, time_ns, value)| {
                (ticket.lsn().unwrap(), *id, *time_ns, value.clone())
            })
            .collect();
        let (seen, report) = history(db, query);
        let seen: Vec<_> = seen
            .into_iter()
            .map(|seen| (seen.lsn, seen.id, seen.time_ns, seen.value))
            .collect();
        assert_eq!(seen, expected, "{query:?} {report:?}");
        assert_eq!(report.readings_matched, expected.len() as u64);
        assert!(!report.damage.any());
    }
}

#[test]
fn a_range_reads_only_its_segments_and_pieces() {
    let clock = clock();
    let db = open(MemoryStore::new(), &clock, wide());
    let ids = declare(&db, 9);
    let begin_ms = clock.wall_ms();
    for n in 0..100_000u64 {
        clock.advance_ns(10_000_000);
        // The last object stays silent after the first tenth.
        let id = ids[(n % if n < 10_000 { 9 } else { 8 }) as usize];
        db.put_now(id, &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 100 == 99 {
            db.pump().unwrap();
        }
    }
    indexed(&db);
    let all = history(&db, ALL).1;
    assert_eq!((all.readings, all.segments_skipped), (100_000, 0));
    assert!(all.segments_total >= 7, "{all:?}");
    // Ten seconds: a thousand readings, in at most three pieces of 64 KiB (one in front, a boundary, one more).
    let from_ms = begin_ms + 500_000;
    let query = HistoryQuery {
        id: None,
        from: db::Time::from_ms(from_ms),
        to: db::Time::from_ms(from_ms + 10_000),
    };
    let (seen, report) = history(&db, query);
    assert_eq!(seen.len(), 1000);
    assert!(
        report.segments_read <= 2 && report.bytes_read <= 4 * 66_000,
        "{report:?}"
    );
    // The silent object's segments are the first ones.
    let (seen, report) = history(
        &db,
        HistoryQuery {
            id: Some(ids[8]),
            ..ALL
        },
    );
    assert_eq!(seen.len(), 1111);
    assert!(report.segments_read <= 2, "{report:?}");
    // A visitor that has enough ends the read.
    let (mut cursor, mut count) = (HistoryCursor::default(), 0);
    while db
        .history(&ALL, &mut cursor, &mut |_| {
            count += 1;
            ControlFlow::Break(())
        })
        .unwrap()
    {}
    assert_eq!(count, 1);
}

#[test]
fn times_from_before_the_clock_was_right_are_corrected() {
    let clock = SimClock::new(5);
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 2);
    // The board boots in 1970, in the middle of a second, and takes readings.
    clock.advance_ns(7_654_321_000);
    for n in 0..5u8 {
        clock.advance_ns(100_000_000);
        db.put_now(ids[0], &[n], Durability::Now).unwrap();
        db.put(
            ids[1],
            &[n],
            db::Time::from_ms(1_650_000_000_000),
            Durability::Now,
        )
        .unwrap();
        db.pump().unwrap();
    }
    assert!(history(&db, ALL).0.iter().all(|seen| !seen.corrected));
    let stopped = db.abandon().unwrap();
    let first_boot = {
        let db = open(stopped, &clock, small_options());
        // Now the clock is set from outside: the next readings are right, the earlier ones are corrected.
        clock.set_wall_ms(1_700_000_000_000);
        clock.set_wall_trusted(true);
        let (seen, _) = history(&db, ALL);
        let corrected: Vec<_> = seen
            .iter()
            .filter(|seen| seen.id == ids[0])
            .map(|seen| (seen.time_ms, seen.corrected, seen.recorded_ms < 10_000))
            .collect();
        let expected: Vec<_> = (0..5)
            .map(|n| (1_700_000_000_000 - 400 + n * 100, true, true))
            .collect();
        assert_eq!(corrected, expected);
        // The sensor's own times stay as they are.
        assert!(
            seen.iter()
                .filter(|seen| seen.id == ids[1])
                .all(|seen| seen.time_ms == 1_650_000_000_000 && !seen.corrected)
        );
        clock.advance_ns(1_000_000_000);
        db.put_now(ids[0], b"right", Durability::Now).unwrap();
        db.pump().unwrap();
        assert_eq!(db.stats().clock_steps, 1);
        db.abandon().unwrap()
    };
    // Another boot reads this from the log, and finds the corrected times by their range.
    clock.reboot();
    clock.set_wall_trusted(false);
    let db = open(first_boot, &clock, small_options());
    indexed(&db);
    let query = HistoryQuery {
        id: Some(ids[0]),
        from: db::Time::from_ms(1_699_999_999_700),
        to: db::Time::from_ms(1_700_000_000_000),
    };
    let (seen, _) = history(&db, query);
    assert_eq!(
        seen.iter().map(|seen| seen.value[0]).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    // A boot whose clock never became right keeps the recorded times, and says so.
    let recorded_ms = clock.wall_ms();
    db.put_now(ids[0], b"?", Durability::Now).unwrap();
    db.pump().unwrap();
    let last = history(&db, ALL).0.pop().unwrap();
    assert_eq!(
        (last.value.as_slice(), last.time_ms, last.corrected),
        (b"?".as_slice(), recorded_ms, false)
    );
}

/// A wall clock whose reads come up to 40 µs early or late, as those of a thread that loses the processor.
struct Trembling {
    exact: SimClock,
    reads: AtomicI64,
}

impl Clock for Trembling {
    fn monotonic_ns(&self) -> u64 {
        self.exact.monotonic_ns()
    }
    fn wall_ms(&self) -> i64 {
        self.wall_ns().div_euclid(1_000_000)
    }
    fn wall_ns(&self) -> i64 {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        // Each read differs from the one before by at least 40 µs.
        self.exact.wall_ns() + (read * 2 % 5 - 2) * 20_000
    }
    fn wall_is_trusted(&self) -> bool {
        self.exact.wall_is_trusted()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.exact.boot_id()
    }
}

/// Readings 10 µs apart, while each sample of the wall clock says another offset and its trust comes and goes. The
/// times of the node's clock follow each other as the arrivals do. This holds for times as logged, for times corrected
/// by any trusted sample, and where the two meet.
#[test]
fn corrected_times_are_ordered_as_arrivals() {
    let exact = SimClock::new(5);
    exact.advance_ns(7_654_321_987);
    let reads = AtomicI64::new(0);
    let clock = Arc::new(Trembling {
        exact: exact.clone(),
        reads,
    });
    let opened = |store: MemoryStore| {
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        Database::open(store, clock, small_options()).expect("opened")
    };
    let db = opened(MemoryStore::new());
    let id = declare(&db, 1)[0];
    for n in 0..240_u64 {
        exact.advance_ns(10_000);
        if n == 30 {
            exact.set_wall_ms(1_700_000_000_000);
        }
        exact.set_wall_trusted(n / 30 % 2 == 1);
        db.put_now(id, &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 3 == 0 {
            db.pump().unwrap();
        }
    }
    db.pump().unwrap();
    indexed(&db);
    let check = |db: &Database<MemoryStore>| {
        let (seen, report) = history(db, ALL);
        assert!(report.segments_total > 1, "{report:?}");
        let apart_ns: Vec<_> = seen
            .windows(2)
            .map(|pair| pair[1].time_ns - pair[0].time_ns)
            .collect();
        assert_eq!(apart_ns, [10_000; 239]);
        let corrected = seen.iter().filter(|seen| seen.corrected).count();
        assert!((110..130).contains(&corrected), "{corrected}");
        seen
    };
    let before = check(&db);
    assert!((before[0].time_ns - 1_700_000_000_000_000_000).abs() < 1_000_000);
    // A later run has samples of its own, and none of them moves what is logged.
    exact.set_wall_trusted(false);
    assert_eq!(check(&opened(db.abandon().unwrap())), before);
}

#[test]
fn corrected_times_are_found_in_the_pieces_that_hold_them() {
    let clock = SimClock::new(5);
    let db = open(MemoryStore::new(), &clock, wide());
    let id = declare(&db, 1)[0];
    clock.advance_ns(1_000_000_000);
    for n in 0..20_000u64 {
        clock.advance_ns(10_000_000);
        db.put_now(id, &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 100 == 99 {
            db.pump().unwrap();
        }
    }
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    db.put_now(id, &[0; 8], Durability::Now).unwrap();
    db.pump().unwrap();
    for _ in 0..2 {
        // The 1,000 readings that arrived 100 s before the clock was right.
        let query = HistoryQuery {
            id: Some(id),
            from: db::Time::from_ms(1_700_000_000_000 - 100_000),
            to: db::Time::from_ms(1_700_000_000_000 - 90_000),
        };
        let (seen, _) = history(&db, query);
        assert_eq!(seen.len(), 1000);
        assert!(seen.iter().all(|seen| seen.corrected));
        indexed(&db);
    }
}

#[test]
fn a_clock_that_is_set_back_neither_hides_nor_reorders() {
    let clock = clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    for n in 0..60u8 {
        clock.advance_ns(1_000_000_000);
        if n % 20 == 10 {
            let now_ms = clock.wall_ms();
            clock.set_wall_ms(now_ms - 3_600_000);
        }
        db.put_now(id, &[n], Durability::Now).unwrap();
        db.pump().unwrap();
        let mut buffer = [0; 8];
        let got = db.get(id, &mut buffer).unwrap();
        assert_eq!((buffer[0], got.age_ms, got.fresh), (n, 0, true));
    }
    assert_eq!(db.stats().clock_steps, 3);
    let (seen, _) = history(&db, ALL);
    assert_eq!(
        seen.iter().map(|seen| seen.value[0]).collect::<Vec<_>>(),
        (0..60).collect::<Vec<_>>()
    );
    let store = db.abandon().unwrap();
    let db = open(store, &clock, small_options());
    let mut buffer = [0; 8];
    db.get(id, &mut buffer).unwrap();
    assert_eq!(buffer[0], 59, "the latest by arrival after a restart, too");
}

/// A range read of everything, repeated, beside a stream of readings: commits run between its slices, and it sees each
/// reading once, in order.
#[test]
fn range_reads_and_commits_go_on_beside_each_other() {
    let clock = clock();
    let options = DbOptions {
        commit_driver: db::CommitDriver::Thread,
        commit_interval_ms: 1,
        ..wide()
    };
    let db = std::sync::Arc::new(open(MemoryStore::new(), &clock, options));
    let id = declare(&db, 1)[0];
    for n in 0..60_000u64 {
        while db
            .put(
                id,
                &n.to_le_bytes(),
                db::Time::from_ms(n as i64),
                Durability::Batched,
            )
            .is_err()
        {
            std::thread::yield_now();
        }
    }
    db.flush(std::time::Duration::from_secs(60)).unwrap();
    let reader = std::sync::Arc::clone(&db);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = std::sync::Arc::clone(&stop);
    let reading = std::thread::spawn(move || {
        let mut reads = 0u64;
        // At least once.
        while reads == 0 || !told.load(std::sync::atomic::Ordering::Relaxed) {
            let (mut cursor, mut next) = (HistoryCursor::default(), 0);
            while reader
                .history(&ALL, &mut cursor, &mut |entry| {
                    assert_eq!((entry.lsn, entry.time.ms()), (next, next as i64));
                    next += 1;
                    ControlFlow::Continue(())
                })
                .unwrap()
            {}
            assert!(next >= 60_000);
            reads += 1;
        }
        reads
    });
    for n in 60_000..60_200u64 {
        let ticket = db
            .put(
                id,
                &n.to_le_bytes(),
                db::Time::from_ms(n as i64),
                Durability::Now,
            )
            .unwrap();
        ticket.wait(std::time::Duration::from_secs(60)).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reading.join().unwrap() > 0);
}

#[test]
fn damaged_and_missing_index_files_cost_nothing_but_time() {
    let clock = clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 4);
    for n in 0..800u64 {
        clock.advance_ns(50_000_000);
        db.put_now(ids[(n % 4) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
    }
    indexed(&db);
    let expected = history(&db, ALL).0;
    assert_eq!(expected.len(), 800);
    let mut store = db.close().unwrap();
    let files: Vec<_> = store
        .names()
        .filter(|name| name.starts_with("index-"))
        .map(str::to_owned)
        .collect();
    assert!(files.len() >= 5);
    for (n, file) in files.iter().enumerate() {
        match n % 4 {
            0 => store.file_mut(file).truncate(n * 7),
            1 => {
                let at = store.file(file).unwrap().len() * n / files.len();
                store.file_mut(file)[at] ^= 0x10;
            }
            2 => {
                // A complete index, of another segment.
                let other = store.file(&files[(n + 1) % files.len()]).unwrap().clone();
                *store.file_mut(file) = other;
            }
            _ => store.damage(file, 0),
        }
    }
    *store.file_mut("index-00009999") = vec![1, 2, 3];
    let db = open(store, &clock, small_options());
    assert_eq!(history(&db, ALL).0, expected);
    indexed(&db);
    let store = db.abandon().unwrap();
    assert!(
        store.file("index-00009999").is_none(),
        "an index without a segment goes"
    );
}

#[test]
fn an_index_file_of_any_bytes_is_harmless() {
    let clock = clock();
    let mut random = Random::new(9);
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    for n in 0..400u64 {
        db.put_now(id, &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
    }
    indexed(&db);
    let mut store = db.close().unwrap();
    for _ in 0..300 {
        let length = store.file("index-00000000").unwrap().len();
        let file = store.file_mut("index-00000000");
        match random.below(3) {
            0 => file[random.index(length)] = random.below(256) as u8,
            1 => file.truncate(random.index(length)),
            _ => file.extend([random.below(256) as u8; 3]),
        }
        let db = open(store, &clock, small_options());
        assert_eq!(history(&db, ALL).0.len(), 400);
        store = db.abandon().unwrap();
        if store
            .file("index-00000000")
            .is_none_or(|file| file.len() < 50)
        {
            let db = open(store, &clock, small_options());
            indexed(&db);
            store = db.abandon().unwrap();
        }
    }
}
