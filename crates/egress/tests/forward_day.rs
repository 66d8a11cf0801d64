//! A day without the upstream, in virtual time: it costs disk space and nothing else. Also tests the effect of filters,
//! down-sampling, deadlines and retention meanwhile.

use crate::common::{KEYS, Received, batched, clock, declare, forwarder, open, parse, put, single};
use base::sim::SimDevice;
use db::{DbOptions, Retention};
use egress::forward::{Begin, Forwarder, KeyRule, Late, Order, UpstreamOptions};
use std::sync::Arc;

/// Sends and answers until nothing is left, as with an upstream without faults.
fn flow(forwarder: &mut Forwarder<SimDevice>, mut take: impl FnMut(&[u8], &[u8])) {
    for _ in 0..10_000_000 {
        let more = forwarder.pull().expect("read");
        if !more {
            forwarder.engine.close_now();
        }
        forwarder.write_cursor_if_due(false).expect("written");
        let mut sent = false;
        while let Some(unit) = forwarder.engine.send() {
            take(unit.topic, unit.payload);
            let token = unit.token;
            assert!(forwarder.engine.acknowledge(token));
            sent = true;
        }
        if !more && !sent && !forwarder.engine.is_waiting() {
            assert_eq!(forwarder.engine.backlog(forwarder.durable_end()), 0);
            return;
        }
    }
    panic!("it does not end");
}

fn large() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 20,
        append_bytes_max: 56 << 10,
        segment_bytes_max: 1 << 20,
        checkpoint_bytes: 1 << 20,
        checkpoint_piece_bytes_max: 16 << 10,
        ..crate::common::options()
    }
}

#[test]
fn a_day_offline_costs_disk_and_nothing_else() {
    const PER_SECOND: u64 = 5;
    const SECONDS: u64 = 86_400;
    for order in [Order::OldestFirst, Order::RecentFirst] {
        let clock = clock();
        let db = open(crate::common::format(16 << 10, 1), &clock, large());
        let ids = declare(&db);
        let options = UpstreamOptions {
            begin: Begin::Oldest,
            order,
            window_readings_max: 2_000,
            batch_bytes_max: 64 << 10,
            ..batched()
        };
        let mut forwarder = forwarder(&db, &clock, options);
        let mut received = Received::default();
        forwarder.engine.connected(0);
        let (mut n, mut second) = (0, 0);
        let mut record = |seconds: u64| {
            for _ in 0..seconds {
                second += 1;
                for _ in 0..PER_SECOND {
                    put(
                        &db,
                        &ids,
                        (n % 4) as usize,
                        n,
                        1_700_000_000_000 + second * 1000,
                    );
                    n += 1;
                }
                clock.advance_ns(1_000_000_000);
                if second % 20 == 0 {
                    db.pump().expect("committed");
                }
            }
            db.pump().expect("committed");
            n
        };
        record(100);
        flow(&mut forwarder, |_, payload| received.take(payload));
        forwarder.engine.go_back();
        let writes = forwarder.cursor_writes();
        let total = record(SECONDS);
        // Meanwhile the log is not read, and the cursor does not move.
        assert_eq!(forwarder.cursor_writes(), writes);
        assert_eq!(
            forwarder.engine.backlog(db.durable_end()),
            PER_SECOND * SECONDS
        );
        forwarder.engine.connected(db.durable_end());
        let live = record(60);
        flow(&mut forwarder, |_, payload| received.take(payload));
        let counters = *forwarder.engine.counters();
        assert_eq!(received.all.len() as u64, live);
        assert_eq!(received.times.len() as u64, live, "nothing came twice");
        assert_eq!((counters.acknowledged, counters.sent_twice), (live, 0));
        assert_eq!((counters.lost, counters.missing), (0, 0));
        let first_of_backlog = received
            .all
            .iter()
            .position(|(_, n)| *n == PER_SECOND * 100);
        let first_live = received.all.iter().position(|(_, n)| *n == total);
        assert_eq!(first_live < first_of_backlog, order == Order::RecentFirst);
        // One cursor write per half window.
        let cursor_writes = forwarder.cursor_writes();
        assert!(cursor_writes <= live / 500 + 10, "{cursor_writes}");
    }
}

#[test]
fn rules_by_key_filter_thin_and_limit_the_age() {
    let rule = |pattern: &str| KeyRule {
        pattern: pattern.to_owned(),
        ..KeyRule::default()
    };
    let rules = vec![
        KeyRule {
            forward: false,
            ..rule("a")
        },
        KeyRule {
            downsample_ms: 1000,
            ..rule("hall/1/#")
        },
        KeyRule {
            deadline_ms: 5_000,
            late: Late::Skip,
            ..rule("hall/2/t")
        },
        KeyRule {
            deadline_ms: 5_000,
            ..rule("d")
        },
    ];
    let clock = clock();
    let db = open(
        crate::common::format(2048, 1),
        &clock,
        crate::common::options(),
    );
    let ids = declare(&db);
    let options = UpstreamOptions {
        begin: Begin::Oldest,
        rules,
        window_readings_max: 50,
        ..single()
    };
    let mut forwarder = forwarder(&db, &clock, options);
    let start = 1_700_000_001_000;
    for n in 0..400u64 {
        put(&db, &ids, (n % 4) as usize, n, start + n as i64 * 25);
        clock.advance_ns(25_000_000);
        db.pump().expect("committed");
    }
    forwarder.engine.connected(db.durable_end());
    let (mut topics, mut received) = (Vec::new(), Received::default());
    // A connection lost in the middle changes none of the decisions.
    for _ in 0..3 {
        forwarder.pull().expect("read");
        for _ in 0..7 {
            assert!(forwarder.engine.send().is_some());
        }
        forwarder.engine.go_back();
    }
    flow(&mut forwarder, |topic, payload| {
        topics.push(String::from_utf8_lossy(topic).into_owned());
        received.take(payload);
    });
    let count = |key: &str| {
        received
            .all
            .iter()
            .filter(|(found, _)| found == key)
            .count()
    };
    assert_eq!(count(KEYS[0]), 0);
    assert_eq!(count(KEYS[1]), 10, "one in each of ten seconds");
    assert!((45..=55).contains(&count(KEYS[2])), "{}", count(KEYS[2]));
    assert_eq!(count(KEYS[3]), 100);
    assert!(topics.contains(&"t/hall/1/t".to_owned()));
    let counters = forwarder.engine.counters();
    assert_eq!(counters.thinned, 90);
    assert_eq!(counters.late_skipped + count(KEYS[2]) as u64, 100);
    assert!((45..=55).contains(&counters.late_sent));
    assert_eq!(counters.sent_twice, 21, "seven were sent four times");
}

#[test]
fn readings_that_retention_takes_from_a_backlog_are_counted_and_a_hold_prevents_it() {
    for hold in [false, true] {
        let clock = clock();
        let retention = Retention {
            history_bytes_max: 40_000,
            ..Retention::default()
        };
        let db_options = DbOptions {
            retention,
            ..crate::common::options()
        };
        let db = open(crate::common::format(2048, 1), &clock, db_options);
        let ids = declare(&db);
        let options = UpstreamOptions {
            begin: Begin::Oldest,
            ..single()
        };
        let mut forwarder = forwarder(&db, &clock, options);
        let held = |forwarder: &Forwarder<SimDevice>| {
            db.hold_from(hold.then(|| forwarder.engine.oldest_wanted()));
        };
        held(&forwarder);
        for n in 0..6000u64 {
            put(&db, &ids, (n % 4) as usize, n, n as i64);
            db.pump().expect("committed");
            while db.maintain().expect("maintained") {}
        }
        forwarder.look().expect("looked");
        let lost = forwarder.engine.counters().lost;
        assert_eq!(lost > 1000, !hold, "{lost}");
        let mut received = Received::default();
        forwarder.engine.connected(db.durable_end());
        flow(&mut forwarder, |_, payload| received.take(payload));
        assert_eq!(received.all.len() as u64 + lost, 6000);
        held(&forwarder);
        for n in 6000..6200u64 {
            put(&db, &ids, (n % 4) as usize, n, n as i64);
            db.pump().expect("committed");
            while db.maintain().expect("maintained") {}
        }
        assert!(db.stats().history_bytes < 60_000);
    }
}

/// The first units behind a deletion are answered, and the connection is lost before the others are.
#[test]
fn deleted_readings_are_counted_when_the_connection_is_lost_right_behind_them() {
    for options in [single(), batched()] {
        let clock = clock();
        let retention = Retention {
            history_bytes_max: 40_000,
            ..Retention::default()
        };
        let db_options = DbOptions {
            retention,
            ..crate::common::options()
        };
        let db = open(crate::common::format(2048, 1), &clock, db_options);
        let ids = declare(&db);
        let options = UpstreamOptions {
            begin: Begin::Oldest,
            ..options
        };
        let mut forwarder = forwarder(&db, &clock, options);
        for n in 0..6000u64 {
            put(&db, &ids, (n % 4) as usize, n, n as i64);
            db.pump().expect("committed");
            while db.maintain().expect("maintained") {}
        }
        let mut received = Received::default();
        forwarder.engine.connected(db.durable_end());
        let mut answers_left = 3;
        while answers_left > 0 {
            forwarder.pull().expect("read");
            forwarder.write_cursor_if_due(false).expect("written");
            while answers_left > 0
                && let Some(unit) = forwarder.engine.send()
            {
                received.take(unit.payload);
                let token = unit.token;
                assert!(forwarder.engine.acknowledge(token));
                answers_left -= 1;
            }
        }
        forwarder.engine.go_back();
        forwarder.engine.connected(db.durable_end());
        flow(&mut forwarder, |_, payload| received.take(payload));
        let lost = forwarder.engine.counters().lost;
        assert!(lost > 1000, "{lost}");
        assert_eq!(received.times.len() as u64 + lost, 6000);
    }
}

#[test]
fn a_new_upstream_begins_where_the_log_ends_even_after_a_restart() {
    let clock = clock();
    let db = open(
        crate::common::format(2048, 1),
        &clock,
        crate::common::options(),
    );
    let ids = declare(&db);
    for n in 0..100u64 {
        put(&db, &ids, (n % 4) as usize, n, n as i64);
    }
    db.pump().expect("committed");
    drop(forwarder(&db, &clock, single()));
    for n in 100..150u64 {
        put(&db, &ids, (n % 4) as usize, n, n as i64);
    }
    db.pump().expect("committed");
    let store = Arc::into_inner(db).expect("alone").close().expect("closed");
    let db = open(store, &clock, crate::common::options());
    let mut forwarder = forwarder(&db, &clock, single());
    let mut found = Vec::new();
    forwarder.engine.connected(db.durable_end());
    flow(&mut forwarder, |_, payload| found.extend(parse(payload)));
    let numbers: Vec<u64> = found.iter().map(|(_, n)| *n).collect();
    assert_eq!(numbers, (100..150).collect::<Vec<_>>());
}
