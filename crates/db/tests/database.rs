//! The database on the store in memory: its guarantees when nothing is broken, and when it is full or failing.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Oracle, declare, open, scan, sim_clock, small_options};
use base::clock::{Clock, SystemClock};
use base::error::Code;
use db::{
    CommitDriver, Database, DbOptions, Durability, Error, FreshCount, Health, LogFailure,
    MemoryStore, ObjectId, ObjectSpec, PowerCut,
};

const MINUTE: Duration = Duration::from_secs(60);

fn threaded() -> DbOptions {
    DbOptions {
        commit_driver: CommitDriver::Thread,
        ..small_options()
    }
}

#[test]
fn a_reading_is_read_back_with_age_and_freshness() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 2);
    assert_eq!(db.lookup("room 1/temperature"), Some(ids[1]));
    assert_eq!(db.lookup("room 2/temperature"), None);
    let mut buffer = [0; 40];
    assert_eq!(db.get(ids[0], &mut buffer), Err(Error::NoValue));
    assert_eq!(db.get(ObjectId(9), &mut buffer), Err(Error::UnknownObject));
    let ticket = db
        .put(
            ids[0],
            b"21.5",
            db::Time::from_ms(1_700_000_000_000),
            Durability::Batched,
        )
        .unwrap();
    assert!(!ticket.is_durable());
    let got = db
        .get_at(ids[0], db::Time::from_ms(1_700_000_001_000), &mut buffer)
        .unwrap();
    assert_eq!(
        (&buffer[..got.value_bytes], got.age_ms, got.fresh),
        (b"21.5".as_slice(), 1000, true)
    );
    assert!(got.this_boot && got.wall_trusted);
    assert!(
        !db.get_at(ids[0], db::Time::from_ms(1_700_000_001_001), &mut buffer)
            .unwrap()
            .fresh
    );
    assert_eq!(
        db.fresh_count(db::Time::from_ms(1_700_000_001_000)),
        FreshCount {
            fresh: 1,
            temporal: 1
        }
    );
    db.pump().unwrap();
    assert!(ticket.is_durable());
    assert_eq!(db.stats().outstanding, 0);
    assert_eq!(db.health(), Health::Ok);
}

#[test]
fn readings_are_there_after_a_close_and_after_a_crash() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    for round in 0..6i64 {
        let db = open(store, &clock, small_options());
        let ids = declare(&db, 5);
        for n in 0..40 {
            clock.advance_ns(1_000_000);
            db.put(
                ids[n as usize % 5],
                &[round as u8; 17],
                db::Time::from_ms(round * 1000 + n),
                Durability::Now,
            )
            .unwrap();
            db.pump().unwrap();
        }
        store = if round % 2 == 0 {
            db.close().unwrap()
        } else {
            db.abandon().unwrap()
        };
        let (readings, report) = scan(&mut store);
        assert_eq!(readings.len() as i64, (round + 1) * 40);
        assert_eq!(
            report.readings_unnamed + report.damage.records_damaged + report.damage.tails_torn,
            0
        );
        assert!(!report.damage.any());
        assert!(readings.is_sorted_by_key(|(_, timestamp_ms, _)| *timestamp_ms));
    }
    clock.reboot();
    let db = open(store, &clock, small_options());
    assert_eq!(db.objects(), 5);
    let mut buffer = [0; 40];
    let got = db
        .get_at(
            db.lookup("room 4/temperature").unwrap(),
            db::Time::from_ms(5039),
            &mut buffer,
        )
        .unwrap();
    assert_eq!(
        (got.time.ms(), got.age_ms, got.value_bytes, buffer[0]),
        (5039, 0, 17, 5)
    );
    assert!(!got.this_boot);
    assert_eq!(
        db.validity(db.lookup("room 4/temperature").unwrap()),
        (1004, true)
    );
    // A restart reads the checkpoint and a bounded tail, not the history.
    assert!(db.recovery().checkpoint.is_some());
    assert!(
        db.recovery().log_bytes_read < 3 * small_options().checkpoint_bytes,
        "{:?}",
        db.recovery()
    );
    assert!(
        db.with_store(|store| store
            .names()
            .filter(|name| name.starts_with("ckpt"))
            .count())
            .unwrap()
            <= 2
    );
}

#[test]
fn a_retained_reading_without_a_time_is_never_fresh_also_after_a_restart() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 3);
    let time_ms = clock.wall_ms();
    db.put_now(ids[1], b"live", Durability::Now).unwrap();
    let put = |id, value, time_ms: Option<i64>| {
        db.put_retained(id, value, time_ms.map(db::Time::from_ms), Durability::Now)
    };
    put(ids[0], b"kept", None).unwrap();
    put(ids[2], b"dated", Some(time_ms)).unwrap();
    db.pump().unwrap();
    // Value, whether it is fresh, and whether it is marked.
    let expected = [
        (b"kept".to_vec(), false, true),
        (b"live".to_vec(), true, false),
        (b"dated".to_vec(), true, true),
    ];
    let check = |db: &Database<MemoryStore>| {
        for (id, expected) in ids.iter().zip(&expected) {
            let mut buffer = [0; 40];
            let got = db
                .get_at(*id, db::Time::from_ms(time_ms), &mut buffer)
                .unwrap();
            let value = buffer[..got.value_bytes].to_vec();
            assert_eq!(&(value, got.fresh, got.retained), expected);
        }
        // The second object is not temporal.
        assert_eq!(db.fresh_count(db::Time::from_ms(time_ms)).fresh, 1);
    };
    check(&db);
    // A start reads the log after a crash, and the checkpoint after a close.
    let db = open(db.abandon().unwrap(), &clock, small_options());
    assert!(db.recovery().readings_replayed > 0);
    check(&db);
    let db = open(db.close().unwrap(), &clock, small_options());
    assert_eq!(db.recovery().readings_replayed, 0);
    check(&db);
    // The next live reading is fresh, and has no mark.
    db.put_now(ids[0], b"new", Durability::Now).unwrap();
    let got = db
        .get_at(ids[0], db::Time::from_ms(time_ms), &mut [0; 40])
        .unwrap();
    assert_eq!((got.fresh, got.retained), (true, false));
}

#[test]
fn objects_without_readings_survive_a_close() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    declare(&db, 3);
    db.declare(&ObjectSpec {
        key: "room 1/temperature",
        avi_ms: 77,
        temporal: false,
    })
    .unwrap();
    let db = open(db.close().unwrap(), &clock, small_options());
    assert_eq!(
        db.validity(db.lookup("room 1/temperature").unwrap()),
        (77, false)
    );
    assert_eq!(db.key(ObjectId(2)).as_str(), "room 2/temperature");
}

#[test]
fn an_older_reading_is_logged_but_not_shown() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    for (timestamp_ms, value) in [(10, b"new"), (5, b"old"), (10, b"tie")] {
        db.put(id, value, db::Time::from_ms(timestamp_ms), Durability::Now)
            .unwrap();
    }
    db.pump().unwrap();
    assert_eq!(db.stats().outdated, 1);
    let mut store = db.abandon().unwrap();
    assert_eq!(scan(&mut store).0.len(), 3);
    let db = open(store, &clock, small_options());
    let mut buffer = [0; 40];
    let got = db.get_at(id, db::Time::from_ms(10), &mut buffer).unwrap();
    assert_eq!(got.time, db::Time::from_ms(10));
    assert_eq!(&buffer[..3], b"tie");
}

#[test]
fn a_full_queue_answers_busy_and_takes_again_after_a_commit() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    let mut taken = 0;
    let refused = loop {
        match db.put(id, &[1; 8], db::Time::from_ms(taken), Durability::Batched) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused.clone(), refused.code()), (Error::Busy, Code::Busy));
    // The refused reading has not touched the table either.
    assert_eq!(
        db.put(id, &[2; 8], db::Time::from_ms(1 << 40), Durability::Now)
            .err(),
        Some(Error::Busy)
    );
    let mut buffer = [0; 40];
    assert_eq!(
        db.get_at(id, db::Time::from_ms(0), &mut buffer)
            .unwrap()
            .time,
        db::Time::from_ms(taken - 1)
    );
    let stats = db.stats();
    assert_eq!(
        (stats.puts, stats.busy, stats.outstanding, stats.health),
        (taken as u64, 2, taken as u64, Health::Dropping)
    );
    // The health shows it for a minute; the count stays.
    clock.advance_ns(59_000_000_000);
    assert_eq!(db.health(), Health::Dropping);
    clock.advance_ns(1_000_000_000);
    assert_eq!((db.health(), db.stats().busy), (Health::Ok, 2));
    db.pump().unwrap();
    db.put(id, &[2; 8], db::Time::from_ms(1 << 40), Durability::Now)
        .unwrap();
    assert_eq!(scan(&mut db.close().unwrap()).0.len() as i64, taken + 1);
}

#[test]
fn a_declaration_that_does_not_wait_is_there_with_its_first_reading() {
    let clock = sim_clock();
    let options = DbOptions {
        queue_bytes_max: 200,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let id = declare(&db, 1)[0];
    while db
        .put(id, &[1; 8], db::Time::from_ms(1), Durability::Batched)
        .is_ok()
    {}
    // The queue is full: no caller is kept waiting, and the object can be looked up.
    let spec = ObjectSpec {
        key: "late",
        avi_ms: 7,
        temporal: true,
    };
    let late = db.try_declare(&spec).unwrap();
    assert_eq!(db.lookup("late"), Some(late));
    db.pump().unwrap();
    db.put(late, b"x", db::Time::from_ms(1), Durability::Now)
        .unwrap();
    db.pump().unwrap();
    let mut store = db.abandon().unwrap();
    assert_eq!(scan(&mut store).1.readings_unnamed, 0);
    let db = open(store, &clock, options);
    assert_eq!(db.validity(db.lookup("late").unwrap()), (7, true));
}

#[test]
fn a_failed_log_fails_its_tickets_and_refuses_puts() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    store.set_power_cut(PowerCut {
        after_calls: 4,
        bytes_kept: 0,
    });
    let db = open(store, &clock, threaded());
    let id = declare(&db, 1)[0];
    let mut tickets = Vec::new();
    let error = loop {
        match db.put(id, &[1; 8], db::Time::from_ms(1), Durability::Now) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        if tickets.last().unwrap().wait(MINUTE).is_err() {
            continue;
        }
    };
    assert_eq!(error, Error::LogFailed(LogFailure::Device));
    assert_eq!(
        tickets.last().unwrap().wait(MINUTE),
        Err(Error::LogFailed(LogFailure::Device))
    );
    assert_eq!(db.health(), Health::LogFailed(LogFailure::Device));
    assert!(db.stats().outstanding > 0 && db.stats().refused > 0);
    assert_eq!(db.flush(MINUTE), Err(Error::LogFailed(LogFailure::Device)));
    assert_eq!(db.close().err(), Some(Error::LogFailed(LogFailure::Device)));
    let mut store = db.abandon().unwrap();
    store.restart();
    let durable = tickets.iter().filter(|ticket| ticket.is_durable()).count();
    assert_eq!(scan(&mut store).0.len(), durable);
}

#[test]
fn a_full_store_is_told_apart_and_stays_readable() {
    let clock = sim_clock();
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(6000);
    let db = open(store, &clock, small_options());
    let ids = declare(&db, 4);
    let (mut acknowledged, mut waiting) = (0, 0);
    let last = loop {
        let ticket = match db.put(
            ids[acknowledged % 4],
            &[3; 20],
            db::Time::from_ms(1),
            Durability::Now,
        ) {
            Ok(ticket) => ticket,
            Err(error) => break error,
        };
        let _ = db.pump();
        // No put fails: the readings wait for room.
        waiting += usize::from(!ticket.poll().unwrap());
        acknowledged += usize::from(ticket.is_durable());
    };
    assert_eq!((last.clone(), last.code()), (Error::Full, Code::Full));
    assert_eq!((waiting, db.health()), (1, Health::Full));
    assert!(db.stats().full && db.stats().refused_full == 1);
    let mut buffer = [0; 40];
    assert!(db.get_at(ids[0], db::Time::from_ms(1), &mut buffer).is_ok());
    let mut store = db.abandon().unwrap();
    assert_eq!(scan(&mut store).0.len(), acknowledged);
    store.set_capacity_bytes(u64::MAX);
    let db = open(store, &clock, small_options());
    db.put(ids[0], &[4; 20], db::Time::from_ms(2), Durability::Now)
        .unwrap();
    assert_eq!(scan(&mut db.close().unwrap()).0.len(), acknowledged + 1);
}

#[test]
fn closed_and_dropped_databases_fail_open_tickets() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    let kept = db
        .put(id, b"a", db::Time::from_ms(1), Durability::Batched)
        .unwrap();
    let store = db.close().unwrap();
    assert!(kept.is_durable());
    assert_eq!(
        db.put(id, b"b", db::Time::from_ms(2), Durability::Now)
            .err(),
        Some(Error::Closed)
    );
    assert_eq!(db.close().err(), Some(Error::Closed));
    assert!(db.with_store(|_| ()).is_none());
    let db = open(store, &clock, small_options());
    let lost = db
        .put(id, b"c", db::Time::from_ms(3), Durability::Batched)
        .unwrap();
    drop(db);
    assert_eq!(lost.wait(MINUTE), Err(Error::Closed));
}

#[test]
fn a_table_that_is_too_small_for_the_log_is_named() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 4);
    db.put(ids[3], &[1; 40], db::Time::from_ms(1), Durability::Now)
        .unwrap();
    db.pump().unwrap();
    let store = db.abandon().unwrap();
    let reopen = |options| Database::open(store.clone(), Arc::new(clock.clone()), options).err();
    let few = Error::TableTooSmall {
        what: "objects_max",
        needed: 4,
        configured: 3,
    };
    assert_eq!(
        reopen(DbOptions {
            objects_max: 3,
            ..small_options()
        }),
        Some(few)
    );
    // Each key takes two units of 16 bytes, and the third one does not fit.
    let long = Error::TableTooSmall {
        what: "key_bytes_mean",
        needed: 24,
        configured: 16,
    };
    assert_eq!(
        reopen(DbOptions {
            objects_max: 4,
            key_bytes_mean: 16,
            ..small_options()
        }),
        Some(long)
    );
    assert_eq!(
        reopen(DbOptions {
            objects_max: 4,
            key_bytes_mean: 32,
            ..small_options()
        }),
        None
    );
    let short = Error::TableTooSmall {
        what: "value_bytes_max",
        needed: 40,
        configured: 39,
    };
    assert_eq!(
        reopen(DbOptions {
            value_bytes_max: 39,
            ..small_options()
        }),
        Some(short)
    );
}

/// Writers on several threads, readers beside them, every durability: all tickets complete, all is logged, and table
/// and log agree.
#[test]
fn many_writers_lose_nothing() {
    let clock = Arc::new(SystemClock::new());
    let options = DbOptions {
        queue_bytes_max: 64 << 10,
        ..threaded()
    };
    let db = Database::open(MemoryStore::new(), clock, options).unwrap();
    let ids = declare(&db, 4);
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let (db, ids) = (&db, &ids);
            scope.spawn(move || {
                let mut last = None;
                for n in 0..3000u32 {
                    let durability = if n % 64 == 0 {
                        Durability::Now
                    } else {
                        Durability::Batched
                    };
                    let value = [writer, n as u8, (n >> 8) as u8];
                    last = loop {
                        match db.put(
                            ids[(n % 4) as usize],
                            &value,
                            db::Time::from_ms(i64::from(n / 8)),
                            durability,
                        ) {
                            Ok(ticket) => break Some(ticket),
                            Err(Error::Busy) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    assert_eq!(db.with_store(|_| ()), Some(()));
                }
                last.unwrap().wait(MINUTE).unwrap();
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buffer = [0; 40];
                let mut newest = i64::MIN;
                for _ in 0..20_000 {
                    if let Ok(got) = db.get_at(ids[1], db::Time::from_ms(0), &mut buffer) {
                        assert!(got.time.ms() >= newest, "a slot went back in time");
                        newest = got.time.ms();
                    }
                }
            });
        }
    });
    db.flush(MINUTE).unwrap();
    let stats = db.stats();
    assert_eq!(
        (stats.puts, stats.readings, stats.outstanding),
        (12_000, 12_000, 0)
    );
    assert_eq!(stats.put_durable_ns.count(), 12_000);
    assert_eq!(stats.append_ns.count(), stats.appends);
    let mut values = Vec::new();
    for id in &ids {
        let mut buffer = [0; 40];
        let got = db.get_at(*id, db::Time::from_ms(0), &mut buffer).unwrap();
        values.push((got.time.ms(), buffer[..got.value_bytes].to_vec()));
    }
    let mut store = db.abandon().unwrap();
    let (readings, report) = scan(&mut store);
    assert_eq!(readings.len(), 12_000);
    assert!(!report.damage.any() && report.damage.tails_torn == 0);
    for writer in 0..4u8 {
        let own = readings.iter().filter(|(_, _, value)| value[0] == writer);
        assert!(
            own.map(|(_, _, v)| u16::from_le_bytes([v[1], v[2]]))
                .is_sorted(),
            "a writer's order is kept"
        );
    }
    let db = Database::open(store, Arc::new(SystemClock::new()), options).unwrap();
    for (id, expected) in ids.iter().zip(values) {
        let mut buffer = [0; 40];
        let got = db.get_at(*id, db::Time::from_ms(0), &mut buffer).unwrap();
        assert_eq!(
            (got.time.ms(), buffer[..got.value_bytes].to_vec()),
            expected
        );
    }
}

#[test]
fn batched_readings_become_durable_by_themselves() {
    let db = Database::open(MemoryStore::new(), Arc::new(SystemClock::new()), threaded()).unwrap();
    let id = declare(&db, 1)[0];
    for n in 0..20 {
        let ticket = db
            .put(id, b"x", db::Time::from_ms(n), Durability::Batched)
            .unwrap();
        ticket.wait(MINUTE).unwrap();
    }
    assert!(db.stats().batches >= 1);
    assert_eq!(scan(&mut db.close().unwrap()).0.len(), 20);
}

/// Power fails in every changing call of a run, and leaves any of several prefixes of the append that it cuts.
#[test]
fn no_power_cut_loses_an_acknowledged_reading() {
    let mut cuts = 0;
    for after_calls in 0.. {
        let mut survived = false;
        for bytes_kept in [0, 1, 30, 100, 300, 4095] {
            let clock = sim_clock();
            let mut store = MemoryStore::new();
            store.set_power_cut(PowerCut {
                after_calls,
                bytes_kept,
            });
            let db = open(store, &clock, small_options());
            let ids = declare(&db, 5);
            let mut oracle = Oracle::default();
            for n in 0..260u32 {
                clock.advance_ns(3_000_000);
                let timestamp_ms = i64::from(n) * 10 - i64::from(n % 7) * 25;
                oracle.put(
                    &db,
                    ids[(n * 7 % 5) as usize],
                    timestamp_ms,
                    &n.to_le_bytes().repeat(1 + n as usize % 9),
                );
                if n % 5 == 4 && db.pump().is_err() {
                    break;
                }
            }
            survived = db.health() == Health::Ok;
            let mut store = db.abandon().unwrap();
            store.restart();
            let store = oracle.check(store, &clock, small_options());
            // The database continues from there, and a second end shows the same.
            let db = open(store, &clock, small_options());
            oracle
                .puts
                .retain(|(_, ticket)| ticket.is_durable() || !survived);
            let id = declare(&db, 5)[0];
            oracle.put(&db, id, 1 << 40, b"after");
            db.pump().unwrap();
            assert!(oracle.puts.last().unwrap().1.is_durable());
            oracle.check(db.abandon().unwrap(), &clock, small_options());
            cuts += 1;
        }
        if survived {
            break;
        }
    }
    println!("power cuts: {cuts}");
    assert!(cuts > 300);
}

#[test]
fn the_lag_counts_readings_not_declarations() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = declare(&db, 1)[0];
    clock.advance_ns(3_000_000_000);
    assert!(db.stats().durable_lag_ms.abs() < 1e-9);
    db.put(id, b"v", db::Time::from_ms(1), Durability::Batched)
        .expect("taken");
    clock.advance_ns(5_000_000);
    assert!((db.stats().durable_lag_ms - 5.0).abs() < 1e-9);
    db.pump().expect("committed");
    assert!(db.stats().durable_lag_ms.abs() < 1e-9);
}

/// The first put after an idle time, during which the clock's trust changed, carries the current flag.
#[test]
fn a_put_after_an_idle_time_knows_whether_the_clock_is_trusted() {
    let clock = sim_clock();
    let options = DbOptions {
        commit_driver: CommitDriver::Thread,
        commit_interval_ms: 1,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let id = declare(&db, 1)[0];
    // Each try lets the commit thread fall asleep; the number of tries depends on the machine.
    let current = (0..100).any(|n| {
        db.flush(Duration::from_secs(60)).expect("flushed");
        std::thread::sleep(Duration::from_millis(20));
        let trusted = n % 2 == 0;
        clock.set_wall_trusted(!trusted);
        db.put(id, b"v", db::Time::from_ms(n), Durability::Now)
            .and_then(|ticket| ticket.wait(Duration::from_secs(60)))
            .expect("durable");
        std::thread::sleep(Duration::from_millis(20));
        clock.set_wall_trusted(trusted);
        db.put(id, b"v", db::Time::from_ms(n), Durability::Now)
            .expect("taken");
        let got = db
            .get_at(id, db::Time::from_ms(0), &mut [0; 40])
            .expect("a value");
        got.wall_trusted == trusted
    });
    assert!(current);
}
