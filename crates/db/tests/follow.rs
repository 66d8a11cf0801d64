//! The log in its own order: everything once, with any times; what is gone or damaged is counted; readings that are
//! held are kept.

use crate::common::{declare, long_log_options, open, sim_clock, small_options};
use base::sim::{Random, SimClock};
use db::{
    Database, DbOptions, Durability, FullPolicy, LogCursor, LogStep, MemoryStore, ObjectId,
    Retention,
};

type Db = Database<MemoryStore>;

fn put(db: &Db, clock: &SimClock, ids: &[ObjectId], n: u64, random: &mut Random) {
    clock.advance_ns(1_000_000);
    // Times go up and down: they are not the order.
    let time_ms = 1_700_000_000_000 + random.below(100_000) as i64;
    let id = ids[random.index(ids.len())];
    db.put(
        id,
        &n.to_le_bytes(),
        db::Time::from_ms(time_ms),
        Durability::Now,
    )
    .expect("taken");
    db.pump().expect("committed");
}

/// Follows to the end in small steps. Returns what was passed, and the sums of the steps.
fn follow_all(db: &Db, cursor: &mut LogCursor, readings_max: usize) -> (Vec<(u64, u64)>, LogStep) {
    let (mut passed, mut sum) = (Vec::new(), LogStep::default());
    for _ in 0..100_000 {
        let (from, begin) = (cursor.next_lsn(), passed.len());
        let step = db
            .follow(
                cursor,
                u64::MAX,
                readings_max,
                &mut |_| true,
                &mut |entry| {
                    let n = entry.value.try_into().map_or(0, u64::from_le_bytes);
                    passed.push((entry.lsn, n));
                },
            )
            .expect("followed");
        // What is gone or missing is right before the last reading of the step, or behind it.
        let found = &passed[begin..];
        let earlier = &found[..found.len().saturating_sub(1)];
        let mut numbered = (from..).zip(earlier);
        assert!(numbered.all(|(lsn, found)| lsn == found.0), "{step:?}");
        sum.readings += step.readings;
        sum.readings_gone += step.readings_gone;
        sum.readings_missing += step.readings_missing;
        if !step.more {
            return (passed, sum);
        }
    }
    panic!("it never ends");
}

#[test]
fn readings_come_once_and_in_order_while_the_log_grows_and_rotates() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let db = open(MemoryStore::new(), &clock, small_options());
        let ids = declare(&db, 5);
        let mut cursor = LogCursor::new(0);
        let mut passed = Vec::new();
        for n in 0..700 {
            put(&db, &clock, &ids, n, &mut random);
            if random.below(9) == 0 {
                let (more, step) = follow_all(&db, &mut cursor, 1 + random.index(40));
                assert_eq!((step.readings_gone, step.readings_missing), (0, 0));
                passed.extend(more);
            }
        }
        passed.extend(follow_all(&db, &mut cursor, 1000).0);
        let all: Vec<(u64, u64)> = (0..700).map(|n| (n, n)).collect();
        assert_eq!(passed, all);
        // From any number on, and back again.
        for from in [699, 0, 350, 13] {
            cursor.seek(from);
            assert_eq!(follow_all(&db, &mut cursor, 50).0, all[from as usize..]);
        }
        // A part of it, for one object alone.
        let mut part = LogCursor::new(100);
        let mut found = Vec::new();
        while part.next_lsn() < 200 {
            let wanted = &mut |id| id == ids[2];
            let step = db.follow(&mut part, 200, 7, wanted, &mut |entry| {
                assert_eq!(entry.id, ids[2]);
                found.push(entry.lsn);
            });
            step.expect("followed");
        }
        assert_eq!(part.next_lsn(), 200);
        assert!(!found.is_empty() && found.iter().all(|lsn| (100..200).contains(lsn)));
    }
}

#[test]
fn a_cursor_goes_on_after_a_restart() {
    let clock = sim_clock();
    let mut random = Random::new(3);
    let mut store = MemoryStore::new();
    let mut passed = Vec::new();
    for life in 0..5u64 {
        let db = open(store, &clock, small_options());
        let ids = declare(&db, 5);
        let mut cursor = LogCursor::new(passed.len() as u64);
        for n in 0..100 {
            put(&db, &clock, &ids, life * 100 + n, &mut random);
        }
        passed.extend(follow_all(&db, &mut cursor, 33).0);
        store = match life % 2 {
            0 => db.close().expect("closed"),
            _ => db.abandon().expect("the store"),
        };
        store.restart();
        clock.reboot();
    }
    let all: Vec<(u64, u64)> = (0..500).map(|n| (n, n)).collect();
    assert_eq!(passed, all);
}

#[test]
fn deleted_and_damaged_readings_are_counted() {
    let mut damaged = 0;
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let db = open(MemoryStore::new(), &clock, small_options());
        let ids = declare(&db, 5);
        for n in 0..600 {
            put(&db, &clock, &ids, n, &mut random);
        }
        let mut store = db.close().expect("closed");
        let names: Vec<String> = store.names().map(str::to_owned).collect();
        let segments: Vec<&String> = names
            .iter()
            .filter(|name| name.starts_with("log-"))
            .collect();
        let hit = segments[1 + random.index(segments.len() - 2)];
        let length = store.file(hit).map_or(0, Vec::len);
        store.file_mut(hit)[random.index(length)] ^= 1 << random.below(8);
        let keep = DbOptions {
            retention: Retention {
                history_bytes_max: 9000,
                ..Retention::default()
            },
            ..small_options()
        };
        for (options, is_less) in [(small_options(), false), (keep, true)] {
            let db = open(store, &clock, options);
            let mut cursor = LogCursor::new(0);
            while db.maintain().expect("maintained") {}
            let (passed, sum) = follow_all(&db, &mut cursor, 100);
            assert_eq!(sum.readings_gone > 0, is_less);
            assert_eq!(
                sum.readings + sum.readings_gone + sum.readings_missing,
                600,
                "seed {seed}: {sum:?}"
            );
            assert!(passed.windows(2).all(|pair| pair[0].0 < pair[1].0));
            assert!(passed.windows(2).all(|pair| pair[0].1 < pair[1].1));
            assert_eq!(cursor.next_lsn(), 600);
            damaged += u64::from(sum.readings_missing > 0);
            assert!(db.oldest_lsn().expect("open") >= sum.readings_gone);
            store = db.close().expect("closed");
        }
    }
    assert!(damaged > 10, "{damaged}");
}

/// The log shrinks under a follower that is in the middle of it.
#[test]
fn a_segment_that_goes_while_it_is_read_is_counted() {
    let clock = sim_clock();
    let mut random = Random::new(1);
    let options = DbOptions {
        retention: Retention {
            history_bytes_max: 9000,
            ..Retention::default()
        },
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 5);
    let mut cursor = LogCursor::new(0);
    let (mut seen, mut gone) = (0, 0);
    for n in 0..3000 {
        put(&db, &clock, &ids, n, &mut random);
        while db.maintain().expect("maintained") {}
        if n % 400 == 399 {
            let mut step = LogStep::default();
            for _ in 0..3 {
                step = db
                    .follow(&mut cursor, u64::MAX, 20, &mut |_| true, &mut |_| {})
                    .expect("followed");
                seen += step.readings;
                gone += step.readings_gone;
                assert_eq!(step.readings_missing, 0);
            }
            assert!(step.more);
        }
    }
    assert!(gone > 1000, "{gone}");
    assert_eq!(seen + gone, cursor.next_lsn());
}

#[test]
fn a_limit_of_the_backlog_takes_nothing_from_the_history() {
    let clock = sim_clock();
    let mut random = Random::new(1);
    let retention = Retention {
        history_bytes_max: 30_000,
        history_age_ms_max: 0,
        backlog_bytes_max: 9_000,
        full_policy: FullPolicy::RejectNew,
    };
    let options = DbOptions {
        retention,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 5);
    for held in [None, Some(0)] {
        db.hold_from(held);
        for n in 0..4000 {
            put(&db, &clock, &ids, n, &mut random);
            while db.maintain().expect("maintained") {}
            db.pump().expect("committed");
        }
        let bytes = db.stats().history_bytes;
        assert!((20_000..=34_000).contains(&bytes), "{held:?}: {bytes}");
    }
}

#[test]
fn held_readings_stay_beyond_the_limits_up_to_their_own() {
    let clock = sim_clock();
    let mut random = Random::new(1);
    let retention = Retention {
        history_bytes_max: 9_000,
        history_age_ms_max: 1,
        backlog_bytes_max: 30_000,
        full_policy: FullPolicy::RejectNew,
    };
    let options = DbOptions {
        retention,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 5);
    let tidy = || {
        while db.maintain().expect("maintained") {}
        db.pump().expect("committed");
        while db.maintain().expect("maintained") {}
    };
    db.hold_from(Some(100));
    for n in 0..500 {
        put(&db, &clock, &ids, n, &mut random);
        tidy();
    }
    let oldest = db.oldest_lsn().expect("open");
    assert!(oldest <= 100, "{oldest}");
    assert!(db.stats().history_bytes > 9_000);
    // Above its own limit the backlog is still deleted.
    for n in 500..4000 {
        put(&db, &clock, &ids, n, &mut random);
        tidy();
    }
    let bytes = db.stats().history_bytes;
    assert!((20_000..=33_000).contains(&bytes), "{bytes}");
    assert!(db.oldest_lsn().expect("open") > 100);
    // Once no readings are held, the limits of the history count again.
    db.hold_from(None);
    clock.advance_ns(1_000_000_000);
    for n in 4000..4010 {
        put(&db, &clock, &ids, n, &mut random);
        tidy();
    }
    assert!(db.stats().history_bytes <= 12_000);
}

#[test]
fn a_step_ends_early_where_a_commit_waits_and_nothing_is_skipped() {
    const READINGS: u64 = 2_000;
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, long_log_options());
    let ids = declare(&db, 1);
    let mut random = Random::new(1);
    for n in 0..READINGS {
        put(&db, &clock, &ids, n, &mut random);
    }
    let mut cursor = LogCursor::new(0);
    let mut passed = Vec::new();
    let step = std::thread::scope(|scope| {
        let mut writer = None;
        let mut is_wanted = |_| {
            // From the first reading on another thread commits, which cannot go on before this step is over. It may
            // take some time to begin.
            writer.get_or_insert_with(|| {
                scope.spawn(|| put(&db, &clock, &ids, READINGS, &mut Random::new(2)))
            });
            std::thread::sleep(std::time::Duration::from_millis(1));
            true
        };
        let visit = &mut |entry: &db::HistoryEntry<'_>| passed.push(entry.lsn);
        db.follow(&mut cursor, u64::MAX, usize::MAX, &mut is_wanted, visit)
            .expect("followed")
    });
    assert!(step.more);
    assert!(step.readings < READINGS / 2, "{step:?}");
    passed.extend(
        follow_all(&db, &mut cursor, 1000)
            .0
            .iter()
            .map(|(lsn, _)| lsn),
    );
    assert_eq!(passed, (0..=READINGS).collect::<Vec<u64>>());
}
