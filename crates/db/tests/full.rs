//! A full store and retention in difficult cases. These are checkpoints that deletion waits for, segments without
//! readings, clocks that become right late, and small stores with large segments. Each test stands for an earlier bug.
use crate::common::{declare, open, scan, sim_clock, small_options};
use base::sim::{Random, SimClock};
use db::*;
use std::time::Duration;

fn keep(retention: Retention) -> DbOptions {
    DbOptions {
        retention,
        ..small_options()
    }
}
fn small_store(bytes: u64) -> MemoryStore {
    let mut s = MemoryStore::new();
    s.set_capacity_bytes(bytes);
    s
}
fn numbers<S: SegmentStore>(store: &mut S) -> Vec<u64> {
    scan(store)
        .0
        .iter()
        .map(|(_, _, v)| u64::from_le_bytes(v.as_slice()[..8].try_into().unwrap()))
        .collect()
}
const DROP: Retention = Retention {
    history_bytes_max: 0,
    history_age_ms_max: 0,
    backlog_bytes_max: 0,
    full_policy: FullPolicy::DropOldest,
};

/// RejectNew, full, retention wants to delete but a restart would still read the oldest.
#[test]
fn a_full_store_that_rejects_recovers_by_retention() {
    let clock = sim_clock();
    let options = DbOptions {
        checkpoint_bytes: 1 << 20,
        ..keep(Retention::default())
    };
    let db = open(small_store(40_000), &clock, options);
    let ids = declare(&db, 4);
    let mut n = 0u64;
    while db
        .put_now(ids[0], &n.to_le_bytes(), Durability::Now)
        .is_ok()
    {
        n += 1;
        let _ = db.pump();
    }
    assert!(db.stats().full);
    db.set_retention(Retention {
        history_bytes_max: 9_000,
        ..Retention::default()
    });
    for _ in 0..200 {
        let _ = db.maintain().unwrap();
        let _ = db.pump();
    }
    assert!(
        !db.stats().full,
        "segments {} expired {} ckpts {}",
        db.stats().segments,
        db.stats().segments_expired,
        db.stats().checkpoints
    );
}

/// The same with usual pace of checkpoints, after a restart that found the checkpoint rotten.
#[test]
fn a_full_store_with_a_rotten_checkpoint_recovers_by_retention() {
    let clock = sim_clock();
    let db = open(small_store(40_000), &clock, keep(Retention::default()));
    let ids = declare(&db, 4);
    let mut n = 0u64;
    while db
        .put_now(ids[0], &n.to_le_bytes(), Durability::Now)
        .is_ok()
    {
        n += 1;
        let _ = db.pump();
    }
    let mut store = db.abandon().unwrap();
    let ckpts: Vec<_> = store
        .names()
        .filter(|n| n.starts_with("ckpt-"))
        .map(str::to_owned)
        .collect();
    for c in &ckpts {
        store.file_mut(c)[20] ^= 1;
    }
    let options = keep(Retention {
        history_bytes_max: 9_000,
        ..Retention::default()
    });
    // log_bytes of the whole history > checkpoint_bytes: a checkpoint is due at once, if a round runs.
    let db = open(store, &clock, options);
    let _ = db.put_now(ids[0], &n.to_le_bytes(), Durability::Now);
    for _ in 0..200 {
        let _ = db.maintain().unwrap();
        let _ = db.pump();
    }
    assert!(
        !db.stats().full,
        "segments {} expired {} ckpts {}",
        db.stats().segments,
        db.stats().segments_expired,
        db.stats().checkpoints
    );
}

/// Counting when a segment begins with more than 1,024 bytes of names.
#[test]
fn dropped_readings_are_counted_when_names_come_first() {
    let clock = sim_clock();
    let db = open(small_store(24_000), &clock, keep(DROP));
    let ids: Vec<_> = (0..16)
        .map(|n| {
            let key = format!("{n:02}{}", "x".repeat(62));
            db.declare(&ObjectSpec {
                key: &key,
                avi_ms: 1,
                temporal: true,
            })
            .unwrap()
        })
        .collect();
    for n in 0..3000u64 {
        db.put_now(ids[(n % 4) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
    }
    let counted = db.stats().readings_dropped;
    let mut store = db.close().unwrap();
    let first = numbers(&mut store)[0];
    assert_eq!(counted, first);
}

/// With maintain at its usual pace; 16 objects get a new validity (a changed configuration) just when a segment begins.
#[test]
fn expiry_counts_when_names_come_first() {
    let clock = sim_clock();
    let options = keep(Retention {
        history_bytes_max: 4_500,
        ..Retention::default()
    });
    let db = open(MemoryStore::new(), &clock, options);
    let names: Vec<_> = (0..16)
        .map(|n| format!("{n:02}{}", "x".repeat(62)))
        .collect();
    let declare_all = |avi_ms| -> Vec<ObjectId> {
        names
            .iter()
            .map(|key| {
                db.declare(&ObjectSpec {
                    key,
                    avi_ms,
                    temporal: true,
                })
                .unwrap()
            })
            .collect()
    };
    let ids = declare_all(1);
    let mut segments = 0;
    for n in 0..3000u64 {
        db.put_now(ids[(n % 4) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 40 == 0 {
            declare_all(2 + n as u32);
        }
        db.pump().unwrap();
        db.maintain().unwrap();
        segments = segments.max(db.stats().segments);
    }
    while db.maintain().unwrap() {
        let _ = db.pump();
    }
    let counted = db.stats().readings_expired;
    let mut store = db.close().unwrap();
    let first = numbers(&mut store)[0];
    assert_eq!(counted, first);
}

/// Counting when a segment holds no reading: its first append was cut.
#[test]
fn dropped_readings_are_counted_past_an_empty_segment() {
    let clock = sim_clock();
    let mut bad = 0;
    let mut tried = 0;
    for after_calls in 0..60 {
        let mut store = MemoryStore::new();
        store.set_power_cut(PowerCut {
            after_calls,
            bytes_kept: 7,
        });
        let db = open(store, &clock, keep(Retention::default()));
        let ids = declare(&db, 2);
        let mut n = 0u64;
        loop {
            if db
                .put_now(ids[0], &n.to_le_bytes(), Durability::Now)
                .is_err()
            {
                break;
            }
            if n % 8 == 7 && db.pump().is_err() {
                break;
            }
            n += 1;
        }
        let mut store = db.abandon().unwrap();
        store.restart();
        let mut next = numbers(&mut store).last().map_or(0, |n| n + 1);
        let torn_empty = store
            .names()
            .filter(|n| n.starts_with("log-"))
            .last()
            .is_some_and(|name| store.file(name).unwrap().len() < 10);
        let db = open(
            store,
            &clock,
            keep(Retention {
                history_bytes_max: 6_000,
                ..Retention::default()
            }),
        );
        declare(&db, 2);
        for _ in 0..1500 {
            db.put_now(ids[0], &next.to_le_bytes(), Durability::Batched)
                .unwrap();
            next += 1;
            if next % 8 == 7 {
                db.pump().unwrap();
                db.maintain().unwrap();
            }
        }
        while db.maintain().unwrap() {
            let _ = db.pump();
        }
        let counted = db.stats().readings_expired;
        let mut store = db.close().unwrap();
        let first = numbers(&mut store)[0];
        tried += u32::from(torn_empty);
        if counted != first {
            bad += 1;
            println!(
                "cut {after_calls}: counted {counted}, gone {first}, torn and empty segment: {torn_empty}"
            );
        }
    }
    assert_eq!(bad, 0, "of {tried} with a torn first append");
}

/// An idle node with a commit thread and retention that waits for a checkpoint.
#[test]
fn an_idle_node_deletes_by_retention() {
    let clock = sim_clock();
    let options = DbOptions {
        commit_driver: CommitDriver::Thread,
        commit_interval_ms: 2,
        checkpoint_bytes: 1 << 20,
        ..keep(Retention {
            history_bytes_max: 6_000,
            ..Retention::default()
        })
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 2);
    for n in 0..1000u64 {
        while db
            .put_now(ids[0], &n.to_le_bytes(), Durability::Batched)
            .is_err()
        {
            std::thread::yield_now();
        }
    }
    db.flush(Duration::from_secs(60)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    // Poll until it is done, for at most a minute.
    for _ in 0..6000 {
        db.maintain().unwrap();
        if db.stats().history_bytes <= 6_000 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let s = db.stats();
    assert!(
        s.history_bytes <= 6_000,
        "{} bytes, {} expired, {} checkpoints",
        s.history_bytes,
        s.segments_expired,
        s.checkpoints
    );
}

/// Age retention, and a segment whose times are unknown before one of late sensor times.
#[test]
fn retention_by_age_keeps_young_readings_of_doubtful_times() {
    let day = 86_400_000i64;
    let clock = SimClock::new(3);
    // Boot 1: the clock is not trusted.
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    for n in 0..300u64 {
        clock.advance_ns(1_000_000);
        db.put_now(id, &n.to_le_bytes(), Durability::Now).unwrap();
        if n % 16 == 0 {
            db.pump().unwrap();
        }
    }
    let store = db.close().unwrap();
    // Boot 2, a minute later: the clock is right; a sensor delivers what it stored two months ago.
    clock.reboot();
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    let db = open(store, &clock, small_options());
    for n in 300..600u64 {
        clock.advance_ns(1_000_000);
        db.put(
            id,
            &n.to_le_bytes(),
            db::Time::from_ms(1_700_000_000_000 - 60 * day),
            Durability::Now,
        )
        .unwrap();
        if n % 16 == 0 {
            db.pump().unwrap();
        }
    }
    for n in 600..900u64 {
        clock.advance_ns(1_000_000);
        db.put_now(id, &n.to_le_bytes(), Durability::Now).unwrap();
        if n % 16 == 0 {
            db.pump().unwrap();
        }
    }
    let store = db.close().unwrap();
    // Boot 3.
    clock.reboot();
    clock.set_wall_ms(1_700_000_060_000);
    clock.set_wall_trusted(true);
    let options = keep(Retention {
        history_age_ms_max: 30 * day as u64,
        ..Retention::default()
    });
    let db = open(store, &clock, options);
    while db.maintain().unwrap() {
        let _ = db.pump();
    }
    let mut store = db.close().unwrap();
    let left = numbers(&mut store);
    assert_eq!(
        left[0], 0,
        "readings of two minutes ago were deleted by a limit of 30 days"
    );
}

/// One reading far in the future in each segment keeps all history for ever.
#[test]
fn readings_from_the_future_do_not_stop_retention_by_age() {
    let clock = sim_clock();
    let options = keep(Retention {
        history_age_ms_max: 60_000,
        ..Retention::default()
    });
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 2);
    db.put(
        ids[1],
        &[0; 8],
        db::Time::from_ns(db::Time::NS_MAX - 1),
        Durability::Now,
    )
    .unwrap();
    for n in 0..3000u64 {
        clock.advance_ns(100_000_000);
        db.put_now(ids[0], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
            db.maintain().unwrap();
        }
    }
    while db.maintain().unwrap() {
        let _ = db.pump();
    }
    assert!(
        db.stats().readings_expired > 0,
        "one reading in 3,000 from the future stops age retention"
    );
}

/// A declaration that was refused because of `Full` is repeated.
#[test]
fn a_declaration_refused_while_full_is_repeated() {
    let clock = sim_clock();
    let options = DbOptions {
        checkpoint_bytes: 1 << 20,
        ..keep(Retention::default())
    };
    let db = open(small_store(40_000), &clock, options);
    let ids = declare(&db, 4);
    let mut n = 0u64;
    while db
        .put_now(ids[0], &n.to_le_bytes(), Durability::Now)
        .is_ok()
    {
        n += 1;
        let _ = db.pump();
    }
    let spec = ObjectSpec {
        key: "room 1/temperature",
        avi_ms: 77_777,
        temporal: true,
    };
    assert_eq!(db.declare(&spec), Err(Error::Full));
    // Room returns.
    db.with_store(|s| s.set_capacity_bytes(80_000));
    db.pump().unwrap();
    assert_eq!(db.declare(&spec), Ok(ids[1]));
    db.flush(Duration::from_secs(1)).unwrap();
    let store = db.abandon().unwrap();
    let db = open(store, &clock, options);
    assert_eq!(db.validity(ids[1]), (77_777, true));
}

/// A small store of any shape that drops the oldest continues.
#[test]
fn dropping_goes_on_with_any_sizes() {
    let mut stuck = Vec::new();
    for seed in 0..400u64 {
        let mut r = Random::new(seed);
        let clock = sim_clock();
        let objects = 1 + r.below(16) as u32;
        let key_bytes = 3 + r.below(62) as usize;
        let value_bytes = 8 + r.below(33) as usize;
        let options = DbOptions {
            checkpoint_bytes: [1024, 2000, 5000, 1 << 30][r.index(4)],
            checkpoint_piece_bytes_max: [400, 512, 2000][r.index(3)],
            segment_bytes_max: [2000, 3000, 8000, 1 << 20][r.index(4)],
            ..keep(DROP)
        };
        // Twice the reserve of a checkpoint, and room for two appends.
        let reserve = objects as u64 * 152 + 4096;
        let capacity = 2 * reserve + 4_000 + r.below(8000);
        let db = open(small_store(capacity), &clock, options);
        let ids: Vec<_> = (0..objects)
            .map(|n| {
                let key = format!("{n:03}{}", "x".repeat(key_bytes - 3));
                db.declare(&ObjectSpec {
                    key: &key,
                    avi_ms: u32::MAX,
                    temporal: true,
                })
                .unwrap()
            })
            .collect();
        let mut value = vec![0; value_bytes];
        let (mut ok, mut refused) = (0, 0);
        let mut last_ok = 0;
        for n in 0..3000u64 {
            clock.advance_ns(1_000_000);
            value[..8].copy_from_slice(&n.to_le_bytes());
            match db.put_now(ids[r.index(ids.len())], &value, Durability::Batched) {
                Ok(_) => {
                    ok += 1;
                    last_ok = n
                }
                Err(Error::Full) => refused += 1,
                Err(e) => assert_eq!(e, Error::Busy),
            }
            if r.below(8) == 0 {
                let _ = db.pump();
            }
            if r.below(40) == 0 {
                let _ = db.maintain();
            }
        }
        if refused > 0 {
            stuck.push((
                seed,
                ok,
                refused,
                last_ok,
                capacity,
                reserve,
                options.segment_bytes_max,
                options.checkpoint_bytes,
                objects,
                db.stats().health,
            ));
        }
    }
    for s in &stuck {
        println!("{s:?}");
    }
    assert!(stuck.is_empty(), "{} of 400", stuck.len());
}

/// Rebuilt index files use the room that is reserved for the checkpoint.
#[test]
fn index_files_respect_the_reserve() {
    let clock = sim_clock();
    let options = DbOptions {
        checkpoint_bytes: 1 << 30,
        value_bytes_max: 8,
        segment_bytes_max: 1400,
        append_bytes_max: 720,
        ..keep(DROP)
    };
    let db = open(small_store(60_000), &clock, options);
    let ids: Vec<_> = (0..16)
        .map(|n| {
            let key = format!("{n:02}{}", "x".repeat(62));
            db.declare(&ObjectSpec {
                key: &key,
                avi_ms: u32::MAX,
                temporal: true,
            })
            .unwrap()
        })
        .collect();
    let mut n = 0u64;
    while db.stats().readings_dropped == 0 && n < 20_000 {
        db.put_now(
            ids[(n % 16) as usize],
            &n.to_le_bytes(),
            Durability::Batched,
        )
        .unwrap();
        n += 1;
        if db.with_store(|s| s.free_bytes()).unwrap() < 7_000 {
            break;
        }
        let _ = db.pump();
    }
    // A crash: neither index files (none were adopted) nor a checkpoint.
    let store = db.abandon().unwrap();
    println!("{:?}", store.names().collect::<Vec<_>>());
    let db = open(store, &clock, options);
    while db.maintain().unwrap() {}
    println!("free {}", db.with_store(|s| s.free_bytes()).unwrap());
    let mut refused = 0;
    for n in n..n + 2000 {
        refused += u32::from(
            db.put_now(
                ids[(n % 16) as usize],
                &n.to_le_bytes(),
                Durability::Batched,
            )
            .is_err(),
        );
        let _ = db.pump();
        let _ = db.maintain();
    }
    assert_eq!(
        refused,
        0,
        "{:?} failed checkpoints {}",
        db.health(),
        db.stats().checkpoints_failed
    );
}

/// Callers of a full database with a commit thread.
#[test]
fn callers_of_a_full_database_with_a_thread_do_not_hang() {
    let clock = sim_clock();
    let options = DbOptions {
        commit_driver: CommitDriver::Thread,
        commit_interval_ms: 2,
        ..keep(Retention::default())
    };
    let db = open(small_store(40_000), &clock, options);
    let ids = declare(&db, 2);
    let mut n = 0u64;
    let mut tickets = Vec::new();
    loop {
        match db.put_now(ids[0], &n.to_le_bytes(), Durability::Now) {
            Ok(t) => {
                tickets.push(t);
                n += 1
            }
            Err(Error::Busy) => std::thread::yield_now(),
            Err(e) => {
                assert_eq!(e, Error::Full);
                break;
            }
        }
    }
    assert_eq!(db.flush(Duration::from_secs(60)), Err(Error::Full));
    assert_eq!(
        db.declare(&ObjectSpec {
            key: "new",
            avi_ms: 1,
            temporal: true
        }),
        Err(Error::Full)
    );
    db.set_retention(Retention {
        history_bytes_max: 20_000,
        ..Retention::default()
    });
    while db.maintain().unwrap() {}
    tickets
        .last()
        .unwrap()
        .wait(Duration::from_secs(60))
        .unwrap();
    db.set_retention(Retention::default());
    loop {
        match db.put_now(ids[0], &n.to_le_bytes(), Durability::Now) {
            Ok(_) => n += 1,
            Err(Error::Busy) => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    // No caller was told that waiting readings are on flash.
    assert!(matches!(db.close().err(), None | Some(Error::Full)));
    let _ = db.abandon();
}

/// The clock becomes right after the last reading of its boot.
#[test]
fn times_corrected_after_the_last_reading_survive_a_clean_restart() {
    let clock = SimClock::new(5);
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    clock.advance_ns(1_000_000_000);
    db.put_now(id, &[1; 8], Durability::Now).unwrap();
    db.pump().unwrap();
    clock.advance_ns(1_000_000_000);
    clock.set_wall_ms(1_700_000_000_000);
    clock.set_wall_trusted(true);
    db.pump().unwrap();
    db.maintain().unwrap();
    let show = |db: &Database<MemoryStore>| {
        let (mut c, mut out) = (HistoryCursor::default(), Vec::new());
        while db
            .history(
                &HistoryQuery {
                    id: None,
                    from: db::Time::from_ms(i64::MIN),
                    to: db::Time::from_ms(i64::MAX),
                },
                &mut c,
                &mut |e| {
                    out.push((e.time.ms(), e.time_corrected));
                    std::ops::ControlFlow::Continue(())
                },
            )
            .unwrap()
        {}
        out
    };
    let before = show(&db);
    let store = db.close().unwrap();
    clock.reboot();
    let db = open(store, &clock, small_options());
    assert_eq!(
        show(&db),
        before,
        "even a clean stop does not keep what was known"
    );
}

/// A table that may hold long values but holds short ones keeps room only for the short ones.
#[test]
fn possible_long_values_take_no_room_in_the_table() {
    let clock = sim_clock();
    let options = DbOptions {
        objects_max: 2000,
        value_bytes_max: 8192,
        queue_bytes_max: 64 << 10,
        append_bytes_max: 32 << 10,
        checkpoint_piece_bytes_max: 16 << 10,
        segment_bytes_max: 256 << 10,
        ..keep(Retention::default())
    };
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(4 << 20);
    let db = open(store, &clock, options);
    for (n, id) in declare(&db, 2000).into_iter().enumerate() {
        while db.put_now(id, &n.to_le_bytes(), Durability::Now).is_err() {
            db.pump().expect("there is room");
        }
    }
    db.pump().expect("there is room");
    assert!(!db.stats().full);
}

/// A segment that vanished without being deleted is noticed by the numbers around it.
#[test]
fn a_segment_that_vanished_is_missed() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, keep(Retention::default()));
    let ids = declare(&db, 2);
    for n in 0..2000u64 {
        clock.advance_ns(1_000_000);
        db.put_now(ids[(n % 2) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
    }
    let mut store = db.close().unwrap();
    let before = numbers(&mut store).len() as u64;
    store.delete("log-00000005").unwrap();
    let mut counted = None;
    for _restart in 0..2 {
        let db = open(store, &clock, keep(Retention::default()));
        while db.maintain().unwrap() {}
        let missing = db.stats().damage.readings_missing;
        assert!(missing > 10 && counted.is_none_or(|counted| counted == missing));
        counted = Some(missing);
        store = db.close().unwrap();
    }
    let mut readings = 0;
    db::scan_log(&mut store, &mut |_| {
        readings += 1;
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(before - readings, counted.unwrap());
}
