//! Edge cases of store-and-forward: units that are too large for an upstream, and times that are still unknown. Also
//! cursors of another log, and the age of a backlog of several parts.

use crate::common::{
    Db, Received, batched, clock, declare, format, forwarder, open, put, reopen, single,
};
use base::sim::{SimClock, SimDevice};
use db::value::Value;
use db::{Durability, ObjectId, Time};
use egress::forward::{Begin, Forwarder, KeyRule, Order, TimeUnit, UpstreamOptions};
use std::sync::Arc;

/// A node with this many blocks: its clock, its database and its keys.
fn node(blocks: u64) -> (SimClock, Arc<Db>, Vec<ObjectId>) {
    let clock = clock();
    let db = open(format(blocks, 1), &clock, crate::common::options());
    let ids = declare(&db);
    (clock, db, ids)
}

/// An upstream that takes batches, from the oldest reading on.
fn from_oldest(window_readings_max: u32) -> UpstreamOptions {
    UpstreamOptions {
        begin: Begin::Oldest,
        window_readings_max,
        ..batched()
    }
}

fn record(db: &Arc<Db>, ids: &[ObjectId], numbers: std::ops::Range<u64>) {
    for n in numbers {
        put(db, ids, (n % 4) as usize, n, 1_700_000_000_000);
        if n % 50 == 49 {
            db.pump().expect("committed");
        }
    }
    db.pump().expect("committed");
}

/// Forwards everything to an upstream that accepts units of limited size. Returns how many it accepted and refused.
fn flow(
    forwarder: &mut Forwarder<SimDevice>,
    bytes_max: usize,
    received: &mut Received,
) -> (u64, u64) {
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..1_000_000 {
        let more = forwarder.pull().expect("read");
        if !more {
            forwarder.engine.close_now();
        }
        forwarder.write_cursor_if_due(false).expect("written");
        let sent = forwarder.engine.send().map(|unit| {
            let fits = unit.payload.len() <= bytes_max;
            if fits {
                received.take(unit.payload);
            }
            (unit.token, unit.readings, fits)
        });
        match sent {
            Some((token, _, true)) => {
                taken += 1;
                assert!(forwarder.engine.acknowledge(token));
            }
            Some((token, readings, false)) => {
                refused += 1;
                assert!(readings > 1, "each alone would fit");
                forwarder.engine.shrink(token);
                forwarder.engine.split(token);
            }
            None if !more && !forwarder.engine.is_waiting() => return (taken, refused),
            None => {}
        }
    }
    panic!("it does not end");
}

#[test]
fn a_size_that_is_refused_is_learnt() {
    let (clock, db, ids) = node(8 << 10);
    let options = UpstreamOptions {
        batch_bytes_max: 32 << 10,
        ..from_oldest(4_000)
    };
    let mut forwarder = forwarder(&db, &clock, options);
    record(&db, &ids, 0..30_000);
    let mut received = Received::default();
    let (taken, refused) = flow(&mut forwarder, 2_000, &mut received);
    assert_eq!(received.times.len(), 30_000);
    assert_eq!(received.all.len(), 30_000, "nothing came twice");
    // A few refusals to find the size, and one for each hundred accepted units.
    assert!(
        refused <= 6 + 2 * taken / 100,
        "{refused} refused, {taken} taken"
    );
    // An upstream that announces its limit is never sent more.
    record(&db, &ids, 30_000..40_000);
    forwarder.engine.limit(1_000);
    let (_, refused) = flow(&mut forwarder, 1_000, &mut received);
    assert_eq!((received.times.len(), refused), (40_000, 0));
}

#[test]
fn readings_wait_until_the_clock_is_right_or_the_wait_is_over() {
    for comes in [true, false] {
        let clock = SimClock::new(7);
        let db = open(format(2048, 1), &clock, crate::common::options());
        let ids = declare(&db);
        let options = UpstreamOptions {
            begin: Begin::Oldest,
            clock_wait_ms_max: 60_000,
            ..batched()
        };
        let mut forwarder = forwarder(&db, &clock, options);
        record(&db, &ids, 0..10);
        clock.advance_ns(59_000_000_000);
        assert!(!forwarder.pull().expect("read"));
        assert!(forwarder.waits_for_clock());
        forwarder.engine.close_now();
        assert!(forwarder.engine.send().is_none());
        match comes {
            true => clock.set_wall_trusted(true),
            false => clock.advance_ns(1_000_000_000),
        }
        let mut received = Received::default();
        flow(&mut forwarder, usize::MAX, &mut received);
        assert_eq!(received.all.len(), 10);
        assert!(!forwarder.waits_for_clock());
    }
}

#[test]
fn readings_sent_again_because_a_cursor_is_lost_are_counted() {
    let (clock, db, ids) = node(2048);
    let options = from_oldest(20);
    let mut one = forwarder(&db, &clock, options.clone());
    record(&db, &ids, 0..100);
    let mut received = Received::default();
    flow(&mut one, usize::MAX, &mut received);
    one.write_cursor(true).expect("written");
    drop(one);
    let name = "upstream-test";
    let spoiled = db.with_store(|store| store.replace(name, b"no cursor"));
    assert!(matches!(spoiled, Some(Ok(()))));
    let db = Arc::into_inner(db).expect("this is the only owner");
    let store = db.close().expect("closed");
    let db = open(
        reopen(store.device().clone()),
        &clock,
        crate::common::options(),
    );
    let mut one = forwarder(&db, &clock, options);
    assert!(one.was_lost());
    flow(&mut one, usize::MAX, &mut received);
    assert_eq!((received.times.len(), received.all.len()), (100, 200));
    assert_eq!(one.engine.counters().sent_twice, 100);
}

#[test]
fn the_age_is_that_of_the_oldest_part() {
    let (clock, db, ids) = node(2048);
    let options = UpstreamOptions {
        order: Order::RecentFirst,
        ..from_oldest(10)
    };
    let mut one = forwarder(&db, &clock, options);
    let at = |n: u64| 1_700_000_000_000 + 1000 * n as i64;
    for n in 0..100 {
        put(&db, &ids, 0, n, at(n));
    }
    db.pump().expect("committed");
    clock.advance_ns(1_000_000_000_000);
    one.engine.connected(db.durable_end());
    put(&db, &ids, 0, 100, at(1000));
    db.pump().expect("committed");
    one.pull().expect("read");
    one.engine.close_now();
    // The new reading waits to be sent; the oldest arrived a thousand seconds ago.
    assert!(one.engine.is_waiting());
    one.look().expect("looked");
    assert_eq!(one.backlog_age_ms(), Some(1_001_000));
}

/// However large the window is: a slow link holds no more of them.
#[test]
fn ten_thousand_readings_at_most_go_without_an_answer() {
    const UNANSWERED_MAX: u64 = 10_000;
    let (clock, db, ids) = node(8 << 10);
    let options = UpstreamOptions {
        order: Order::RecentFirst,
        ..from_oldest(30_000)
    };
    let mut one = forwarder(&db, &clock, options);
    record(&db, &ids, 0..25_000);
    let mut received = Received::default();
    let fill = |one: &mut Forwarder<SimDevice>, received: &mut Received| {
        let mut tokens = Vec::new();
        for _ in 0..1_000 {
            one.pull().expect("read");
            one.write_cursor_if_due(false).expect("written");
            while let Some(unit) = one.engine.send() {
                received.take(unit.payload);
                tokens.push(unit.token);
            }
        }
        tokens
    };
    let tokens = fill(&mut one, &mut received);
    let sent = received.times.len() as u64;
    assert!((9_900..=UNANSWERED_MAX).contains(&sent), "{sent}");
    // Unanswered readings of a lost connection make no backlog of their own, together with the new readings.
    one.engine.go_back();
    one.engine.connected(db.durable_end() - 25_000 + sent);
    assert_eq!(one.engine.record(false).spans.len(), 1);
    // All are answered except the first: then the units in memory are the limit.
    drop(tokens);
    let mut tokens = fill(&mut one, &mut received);
    let first = tokens.remove(0);
    let mut acknowledged = 0;
    while !tokens.is_empty() {
        for token in std::mem::take(&mut tokens) {
            assert!(one.engine.acknowledge(token));
            acknowledged += 1;
        }
        tokens = fill(&mut one, &mut received);
    }
    assert!(acknowledged < UNANSWERED_MAX, "{acknowledged}");
    assert!(one.engine.acknowledge(first));
    flow(&mut one, usize::MAX, &mut received);
    assert_eq!(received.times.len(), 25_000);
}

/// What was sent before a crash may have arrived. An orderly stop, before it is sent again, does not change that.
#[test]
fn readings_that_a_crash_leaves_in_doubt_are_counted_after_an_orderly_stop_too() {
    let (clock, db, ids) = node(8 << 10);
    let options = from_oldest(4_000);
    record(&db, &ids, 0..12_000);
    let mut sent = 0;
    let mut killed = forwarder(&db, &clock, options.clone());
    while killed.pull().expect("read") {}
    killed.engine.close_now();
    killed.write_cursor_if_due(false).expect("written");
    while let Some(unit) = killed.engine.send() {
        sent += u64::from(unit.readings);
    }
    drop(killed);
    assert!(sent > 0);
    let mut offline = forwarder(&db, &clock, options.clone());
    offline.write_cursor(true).expect("written");
    drop(offline);
    let mut last = forwarder(&db, &clock, options);
    flow(&mut last, usize::MAX, &mut Received::default());
    let counted = last.engine.counters().sent_twice;
    assert!(counted >= sent, "{counted} of {sent}");
    // The stop has sent nothing: no window of its own is in doubt.
    assert!(counted <= 4_000, "{counted} of {sent}");
    // Behind an orderly stop with nothing in doubt, nothing is counted.
    last.write_cursor(true).expect("written");
    assert!(last.engine.record(true).clean);
}

#[test]
fn a_unit_in_a_used_buffer_has_nothing_of_the_one_before_it() {
    const CAPACITY: usize = 64 << 10;
    let (clock, db, ids) = node(2048);
    let options = UpstreamOptions {
        batch_bytes_max: 8 << 10,
        ..from_oldest(1_000)
    };
    let mut one = forwarder(&db, &clock, options);
    let mut received = Received::default();
    for first in (0..500).step_by(50) {
        record(&db, &ids, first..first + 50);
        while one.pull().expect("read") {}
        one.engine.close_now();
        one.write_cursor_if_due(false).expect("written");
        let unit = one.engine.send().expect("a unit");
        received.take(unit.payload);
        let token = unit.token;
        let mut content = one.engine.take_content();
        assert!(first == 0 || content.capacity() >= CAPACITY, "not used");
        content.reserve(CAPACITY);
        one.engine.reuse(content);
        assert!(one.engine.acknowledge(token));
    }
    assert_eq!((received.times.len(), received.all.len()), (500, 500));
}

/// A reading that is passed over belongs to the unit before it, and is counted with that unit alone.
#[test]
fn a_reading_passed_over_behind_a_unit_is_counted_once_although_the_link_breaks_there() {
    const AT: i64 = 1_700_000_000_000;
    let (clock, db, ids) = node(2048);
    let all_keys = KeyRule {
        pattern: "#".to_owned(),
        downsample_ms: 1_000,
        ..KeyRule::default()
    };
    let options = UpstreamOptions {
        rules: vec![all_keys],
        ..from_oldest(100)
    };
    let mut one = forwarder(&db, &clock, options);
    // Less than two lines: each unit has one reading.
    one.engine.limit(60);
    put(&db, &ids, 0, 0, AT);
    put(&db, &ids, 0, 9, AT + 1);
    let mut value = [0; 16];
    let length = Value::Float(f64::NAN).encode(&mut value).expect("it fits");
    db.put(ids[1], &value[..length], Time::from_ms(AT), Durability::Now)
        .expect("put");
    put(&db, &ids, 0, 1, AT + 2_000);
    db.pump().expect("committed");
    while one.pull().expect("read") {}
    one.engine.close_now();
    one.write_cursor_if_due(false).expect("written");
    let mut received = Received::default();
    let unit = one.engine.send().expect("the first unit");
    received.take(unit.payload);
    let token = unit.token;
    assert!(one.engine.acknowledge(token));
    // The second unit has no answer when the link breaks.
    assert!(one.engine.send().is_some());
    one.engine.go_back();
    flow(&mut one, usize::MAX, &mut received);
    let numbers: Vec<u64> = received.all.iter().map(|(_, n)| *n).collect();
    assert_eq!(numbers, [0, 1]);
    let counters = one.engine.counters();
    assert_eq!((counters.thinned, counters.refused_total()), (1, 1));
    assert_eq!((counters.acknowledged, counters.sent_twice), (2, 1));
}

/// The log has ns, and so has an upstream, unless it is set to ms, which are not rounded up. `entry.time.ms()` in the
/// forwarder makes it red.
#[test]
fn times_go_upstream_in_ns_or_in_whole_ms_rounded_down() {
    let mqtt = UpstreamOptions {
        begin: Begin::Oldest,
        ..single()
    };
    let in_unit = |options: &UpstreamOptions, time_unit| UpstreamOptions {
        time_unit,
        ..options.clone()
    };
    let http = from_oldest(10);
    let (ns, ms) = (TimeUnit::Nanoseconds, TimeUnit::Milliseconds);
    for (options, time) in [
        (in_unit(&mqtt, ns), "1700000000123999999"),
        (in_unit(&http, ns), "1700000000123999999"),
        (in_unit(&mqtt, ms), "1700000000123"),
        (in_unit(&http, ms), "1700000000123"),
    ] {
        let (clock, db, ids) = node(2048);
        let mut one = forwarder(&db, &clock, options);
        let mut value = [0; 16];
        let length = Value::Unsigned(5).encode(&mut value).expect("it fits");
        let at = Time::from_ns(1_700_000_000_123_999_999);
        db.put(ids[0], &value[..length], at, Durability::Now)
            .expect("put");
        db.pump().expect("committed");
        while one.pull().expect("read") {}
        one.engine.close_now();
        one.write_cursor_if_due(false).expect("written");
        let unit = one.engine.send().expect("a unit");
        let line = format!("keel,key=a integer=5i {time}\n");
        assert_eq!(std::str::from_utf8(unit.payload), Ok(line.as_str()));
    }
}
