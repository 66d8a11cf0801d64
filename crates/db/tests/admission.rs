//! Which readings reach the table while not all are admitted, and what happens to the others.

use std::ops::ControlFlow;

use crate::common::{declare, open, scan, sim_clock, small_options};
use base::sim::Random;
use db::{
    Database, DbOptions, Durability, HistoryCursor, HistoryQuery, MemoryStore, ObjectId,
    ObjectSpec, SegmentStore, ShedPolicy, qos::admission::Quality,
};

fn options() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 20,
        segment_bytes_max: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..small_options()
    }
}

/// Time and number of the value that `get` shows.
fn shown<S: SegmentStore>(db: &Database<S>, id: ObjectId) -> Option<(i64, i64)> {
    let mut buffer = [0; 64];
    let got = db.get_at(id, db::Time::from_ms(0), &mut buffer).ok()?;
    let value = buffer[..got.value_bytes].try_into().ok()?;
    Some((got.time.ms(), i64::from_le_bytes(value)))
}

#[test]
fn a_shed_reading_is_logged_and_leaves_the_older_value() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = declare(&db, 4);
    let put = |id, n: i64| {
        let ticket = db.put(
            id,
            &n.to_le_bytes(),
            db::Time::from_ms(n),
            Durability::Batched,
        );
        ticket.expect("taken")
    };
    assert!((db.set_admission(0.5) - 0.5).abs() < 1e-9);
    // The first reading of an object, and all of one that is not temporal, are never shed.
    for n in 0..40 {
        put(ids[1], n);
        assert_eq!(shown(&db, ids[1]), Some((n, n)));
    }
    assert!(ids.iter().all(|id| db.shed(*id) == 0));
    let (mut admitted, mut last) = (Vec::new(), None);
    for n in 0..100 {
        let ticket = put(ids[0], n);
        assert!(!ticket.is_durable() && !ticket.is_dropped());
        let now = shown(&db, ids[0]);
        if now == last {
            assert_eq!(db.shed(ids[0]), n as u64 + 1 - admitted.len() as u64);
        } else {
            assert_eq!(now, Some((n, n)));
            admitted.push(n);
        }
        last = now;
    }
    assert_eq!(admitted.first(), Some(&0));
    // Every second one, apart from the first reading, which did not count as a turn.
    assert!((50..=51).contains(&admitted.len()), "{admitted:?}");
    assert!(admitted[1..].windows(2).all(|pair| pair[1] == pair[0] + 2));
    db.pump().expect("committed");
    let figures = db.admission();
    assert!((figures.wanted, figures.expected) == (0.5, 0.5));
    assert_eq!((figures.offered, figures.dropped), (100, 0));
    assert_eq!(figures.admitted, admitted.len() as u64);
    assert_eq!(figures.shed, 100 - figures.admitted);
    let stats = db.stats();
    assert_eq!((stats.puts, stats.shed), (140, figures.shed));
    assert_eq!((stats.outdated, stats.dropped_by_admission), (0, 0));
    // The history has them all.
    let (mut found, mut cursor) = (Vec::new(), HistoryCursor::default());
    let query = HistoryQuery {
        id: Some(ids[0]),
        from: db::Time::from_ms(-1),
        to: db::Time::from_ms(1000),
    };
    while db
        .history(&query, &mut cursor, &mut |entry| {
            found.push(entry.time.ms());
            ControlFlow::Continue(())
        })
        .expect("read")
    {}
    assert_eq!(found, (0..100).collect::<Vec<_>>());
    // An object that is no longer temporal is not shed any more, regardless of the fraction set before.
    let key = db.key(ids[0]);
    let changed = ObjectSpec {
        key: key.as_str(),
        avi_ms: 1000,
        temporal: false,
    };
    db.declare(&changed).expect("declared");
    for n in 100..120 {
        put(ids[0], n);
        assert_eq!(shown(&db, ids[0]), Some((n, n)));
    }
    // All are admitted again, at once.
    let changed = ObjectSpec {
        temporal: true,
        ..changed
    };
    db.declare(&changed).expect("declared");
    assert!((db.set_admission(1.0) - 1.0).abs() < 1e-12);
    for n in 120..140 {
        put(ids[0], n);
        assert_eq!(shown(&db, ids[0]), Some((n, n)));
    }
}

#[test]
fn a_dropped_reading_goes_nowhere_and_its_ticket_is_complete() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = declare(&db, 1);
    db.set_quality(ids[0], 1.0, ShedPolicy::Drop);
    db.set_quality(ObjectId(9999), 1.0, ShedPolicy::Drop);
    db.set_admission(0.0);
    let figures = db.admission();
    assert!((figures.wanted - 0.5).abs() < 1e-9, "the least is 50 %");
    let (mut kept, mut dropped) = (Vec::new(), 0);
    for n in 0..100_i64 {
        let ticket = db
            .put(
                ids[0],
                &n.to_le_bytes(),
                db::Time::from_ms(n),
                Durability::Now,
            )
            .expect("taken");
        if ticket.is_dropped() {
            dropped += 1;
            assert_eq!(ticket.poll(), Ok(true));
            assert_eq!(ticket.lsn(), None, "a number would be that of another");
        } else {
            assert_eq!(ticket.lsn(), Some(kept.len() as u64));
            kept.push(n);
        }
        assert_eq!(shown(&db, ids[0]), kept.last().map(|n| (*n, *n)));
    }
    assert_eq!(
        (db.shed(ids[0]), db.admission().dropped),
        (dropped, dropped)
    );
    let stats = db.stats();
    assert_eq!(
        (stats.puts, stats.dropped_by_admission),
        (100 - dropped, dropped)
    );
    assert!((49..=50).contains(&dropped), "{dropped}");
    let mut store = db.close().expect("closed");
    let logged: Vec<_> = scan(&mut store).0.iter().map(|known| known.1).collect();
    assert_eq!(logged, kept);
}

#[test]
fn after_a_restart_the_log_may_bring_a_shed_reading_into_its_slot() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = declare(&db, 1);
    db.set_admission(0.5);
    let mut n = 0_i64;
    while db.shed(ids[0]) == 0 {
        n += 1;
        db.put(
            ids[0],
            &n.to_le_bytes(),
            db::Time::from_ms(n),
            Durability::Batched,
        )
        .expect("taken");
    }
    assert_eq!(shown(&db, ids[0]), Some((n - 1, n - 1)));
    db.pump().expect("committed");
    let store = db.abandon().expect("the store");
    let db = open(store, &clock, options());
    assert_eq!(shown(&db, ids[0]), Some((n, n)));
    // What the start has put into the table counts for no rate, and all are admitted.
    let figures = db.admission();
    assert_eq!((figures.offered, figures.shed), (0, 0));
    assert!(figures.wanted >= 1.0);
}

#[test]
fn frequent_and_unimportant_readings_are_shed_first() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = declare(&db, 7);
    // Object 0 often; 2 as often, and important; 4 seldom. 6 is declared and gets no readings.
    db.set_quality(ids[2], 5.0, ShedPolicy::Log);
    let second = |counts: [u32; 3]| {
        let before = [0, 2, 4].map(|at| db.shed(ids[at]));
        for (at, count) in [0, 2, 4].into_iter().zip(counts) {
            for _ in 0..count {
                clock.advance_ns(1000);
                db.put_now(ids[at], &[1], Durability::Batched)
                    .expect("taken");
            }
        }
        clock.advance_ns(1_000_000_000);
        db.pump().expect("committed");
        let shed = [0, 2, 4].map(|at| db.shed(ids[at]));
        [0, 1, 2].map(|at| shed[at] - before[at])
    };
    second([200, 200, 20]);
    let expected = db.set_admission(0.9);
    assert!((expected - 0.9).abs() < 1e-9, "{expected}");
    let shed = second([200, 200, 20]);
    assert!(shed[0] >= 4 * shed[1] && shed[1] >= 5 * shed[2], "{shed:?}");
    let all: u64 = shed.iter().sum();
    assert!((40..=44).contains(&all), "a tenth of 420: {shed:?}");
    // When the loads change, the parts follow the measured rates.
    for _ in 0..180 {
        second([5, 5, 100]);
        db.set_admission(0.9);
    }
    let shed = second([5, 5, 100]);
    assert!(shed[2] >= 8 && shed[0] <= 1, "{shed:?}");
}

/// Random loads and fractions, compared with the counts.
#[test]
fn the_table_shows_the_newest_admitted_reading_of_each_object() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let db = open(MemoryStore::new(), &clock, options());
        let ids = declare(&db, 6);
        for id in &ids {
            let policy = [ShedPolicy::Log, ShedPolicy::Drop][random.index(2)];
            db.set_quality(*id, random.below(5) as f64, policy);
        }
        let (mut newest, mut offered, mut taken) = ([None; 6], 0, 0);
        for n in 0..1500_i64 {
            clock.advance_ns(random.below(50_000_000));
            if random.below(40) == 0 {
                let fraction = random.below(120) as f64 / 100.0;
                let expected = db.set_admission(fraction);
                // A rare object cannot make up for a frequent one: never less than the minimum.
                assert!((0.5 - 1e-9..=1.0).contains(&expected), "{seed} {expected}");
                let wanted = fraction.clamp(0.5, 1.0);
                assert!(
                    (expected - wanted).abs() < 1e-6,
                    "{seed} {expected} {wanted}"
                );
            }
            let at = random.index(6).min(random.index(6));
            let before = db.shed(ids[at]);
            let ticket = db
                .put(
                    ids[at],
                    &n.to_le_bytes(),
                    db::Time::from_ms(n),
                    Durability::Batched,
                )
                .expect("taken");
            let is_shed = db.shed(ids[at]) > before;
            assert!(!(is_shed && (at % 2 == 1 || newest[at].is_none())));
            assert!(is_shed || !ticket.is_dropped());
            taken += u64::from(!ticket.is_dropped());
            offered += u64::from(at.is_multiple_of(2));
            if !is_shed {
                newest[at] = Some((n, n));
            }
            assert_eq!(shown(&db, ids[at]), newest[at], "{seed} {n}");
        }
        let figures = db.admission();
        let shed: u64 = ids.iter().map(|id| db.shed(*id)).sum();
        assert_eq!((figures.offered, figures.shed), (offered, shed), "{seed}");
        assert_eq!(figures.admitted + figures.shed, offered);
        assert_eq!(db.stats().puts, taken);
    }
}

/// Ten readings arrive while one is valid: a twentieth of them keeps half of the freshness, a half keeps all of it.
#[test]
fn a_part_of_the_freshness_is_kept_where_that_was_asked_for() {
    let clock = sim_clock();
    let options = DbOptions {
        admission_quality: Quality::Fresh,
        ..options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let spec = ObjectSpec {
        key: "often",
        avi_ms: 1000,
        temporal: true,
    };
    let id = db.declare(&spec).expect("declared");
    let (mut buffer, mut now_ms) = ([0; 64], 0);
    for (wanted, fresh, admitted) in [(0.5, 1.0, 0.5), (0.0, 0.5, 0.05)] {
        // What is admitted settles in the first minute.
        let mut ages = (0, 0);
        let before = db.admission();
        for n in 0..1200_i64 {
            clock.advance_ns(100_000_000);
            now_ms += 100;
            db.put(
                id,
                &n.to_le_bytes(),
                db::Time::from_ms(now_ms),
                Durability::Batched,
            )
            .expect("taken");
            if n % 10 == 9 {
                db.pump().expect("committed");
                db.set_admission(wanted);
            }
            if n >= 600 {
                let got = db
                    .get_at(id, db::Time::from_ms(now_ms + 50), &mut buffer)
                    .expect("there");
                ages = (ages.0 + u32::from(got.fresh), ages.1 + 1);
            }
        }
        let part = f64::from(ages.0) / f64::from(ages.1);
        assert!((part - fresh).abs() < 0.05, "{wanted}: {part}");
        let after = db.admission();
        let offered = (after.offered - before.offered) as f64;
        let part = (after.admitted - before.admitted) as f64 / offered;
        assert!((part - admitted).abs() < 0.05, "{wanted}: {part}");
        assert!((after.least - 0.05).abs() < 0.01, "{after:?}");
    }
}
