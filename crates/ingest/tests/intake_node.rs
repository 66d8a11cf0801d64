//! The database as destination: rules about keys, waiting, the full store, types after a restart.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::sim::SimClock;
use db::value::Value;
use db::{
    CommitDriver, Database, DbOptions, HistoryCursor, HistoryEntry, HistoryQuery, MemoryStore,
    ObjectId, Time,
};
use ingest::intake::{
    Destination, Intake, IntakeOptions, JsonRule, KeyRule, KeyRules, NodeDestination, Outcome,
    PayloadKind, PutError, Reason, Retained, SubscriptionRule, Template,
};
use ingest::line::Precision;

const NOW_MS: i64 = 1_780_272_000_000;

type Node = Arc<NodeDestination<MemoryStore>>;

fn rule(pattern: &str, validity_ms: u32) -> KeyRule {
    KeyRule {
        pattern: pattern.to_owned(),
        validity_ms,
        temporal: !pattern.starts_with("door"),
        weight: 1.0,
        shed: db::ShedPolicy::Log,
    }
}

fn rules() -> KeyRules {
    KeyRules {
        rules: vec![
            rule("room/1/temperature", 100),
            rule("door/1", 200),
            rule("room/+/temperature", 300),
            rule("room/#", 400),
        ],
        auto_create: false,
        keys_max: 5,
        default_validity_ms: 500,
    }
}

fn node(rules: KeyRules, options: DbOptions) -> (Node, SimClock) {
    let clock = SimClock::new(3);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(true);
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..options
    };
    let database = Database::open(MemoryStore::new(), Arc::new(clock.clone()), options).unwrap();
    let node = NodeDestination::new(Arc::new(database), Arc::new(clock.clone()), rules);
    (Arc::new(node), clock)
}

fn validity(node: &Node, key: &str) -> Option<(u32, bool)> {
    let database = node.database();
    database.lookup(key).map(|id| database.validity(id))
}

fn get(node: &Node, key: &str) -> String {
    let mut buffer = [0; 64];
    let id = node.database().lookup(key).unwrap();
    let got = node.database().get(id, &mut buffer).unwrap();
    let value = Value::decode(&buffer[..got.value_bytes]).unwrap();
    format!("{value:?} at {}", got.time.ms() - NOW_MS)
}

#[test]
fn the_first_rule_that_fits_a_key_decides() {
    let (node, _) = node(rules(), DbOptions::default());
    assert_eq!(node.declare_exact(), Ok(2));
    assert_eq!(validity(&node, "room/1/temperature"), Some((100, true)));
    assert_eq!(validity(&node, "door/1"), Some((200, false)));
    assert!(node.resolve("room/1/temperature").is_ok());
    assert!(node.resolve("room/2/temperature").is_ok());
    assert!(node.resolve("room/2/co2").is_ok());
    assert_eq!(validity(&node, "room/2/temperature"), Some((300, true)));
    assert_eq!(validity(&node, "room/2/co2"), Some((400, true)));
    assert_eq!(node.resolve("kitchen"), Err(Reason::KeyUnknown));
    let long = "room/".repeat(52);
    let wild = [
        "room/+",
        "room/#",
        "+",
        "#",
        "room/+/temperature",
        "#/temperature",
    ];
    let unseen = [
        "room/\u{200b}",
        "\u{feff}room/1/temperature",
        "room/1\u{fe0f}/co2",
    ];
    let wrong = ["", "room/\u{7}", &long];
    for key in wrong.into_iter().chain(wild).chain(unseen) {
        assert_eq!(node.resolve(key), Err(Reason::KeyInvalid), "{key:?}");
    }
    assert!(node.resolve("room").is_ok());
    assert_eq!(node.resolve("room/6"), Err(Reason::KeysMax));
    // Existing keys stay accessible at the limit.
    assert!(node.resolve("room/2/co2").is_ok());
    assert_eq!(node.database().objects(), 5);
}

#[test]
fn a_change_of_rules_changes_the_keys_and_the_readings_taken() {
    let (node, _) = node(rules(), DbOptions::default());
    node.declare_exact().unwrap();
    node.resolve("room/2/co2").unwrap();
    let changed = KeyRules {
        rules: vec![rule("room/+/co2", 7), rule("new", 8)],
        keys_max: 5,
        ..rules()
    };
    assert_eq!(node.set_rules(changed.clone()), Ok(4));
    assert_eq!(validity(&node, "room/2/co2"), Some((7, true)));
    assert_eq!(validity(&node, "new"), Some((8, true)));
    assert_eq!(validity(&node, "room/1/temperature"), Some((500, true)));
    // The key has lost its rule, so its readings are those of an unknown sensor.
    assert_eq!(node.resolve("room/1/temperature"), Err(Reason::KeyUnknown));
    node.set_rules(KeyRules {
        auto_create: true,
        ..changed
    })
    .unwrap();
    assert!(node.resolve("room/1/temperature").is_ok());
    assert!(node.resolve("anything").is_ok());
    assert_eq!(validity(&node, "anything"), Some((500, true)));
    assert_eq!(node.resolve("one/more"), Err(Reason::KeysMax));
}

#[test]
fn a_table_that_is_smaller_than_keys_max_is_the_limit() {
    let options = DbOptions {
        objects_max: 2,
        ..DbOptions::default()
    };
    let rules = KeyRules {
        auto_create: true,
        keys_max: 100,
        ..KeyRules::default()
    };
    let (node, _) = node(rules, options);
    assert!(node.resolve("a").is_ok() && node.resolve("b").is_ok());
    assert_eq!(node.resolve("c"), Err(Reason::KeysMax));
}

#[test]
fn a_key_whose_name_finds_no_room_is_refused_as_one_beyond_keys_max() {
    let options = DbOptions {
        objects_max: 4,
        key_bytes_mean: 16,
        ..DbOptions::default()
    };
    let rules = KeyRules {
        auto_create: true,
        keys_max: 4,
        ..KeyRules::default()
    };
    let (node, _) = node(rules.clone(), options);
    // The names have 64 bytes in all, in units of 16: three of four.
    assert!(node.resolve(&"x".repeat(33)).is_ok());
    assert_eq!(node.resolve(&"y".repeat(17)), Err(Reason::KeysMax));
    assert!(node.resolve("z").is_ok());
    let more = KeyRules {
        rules: vec![rule("w", 1)],
        ..rules
    };
    node.set_rules(more).unwrap();
    let failures = node.declare_failures().unwrap();
    assert!(
        failures.contains("`w`") && failures.contains("key_bytes_mean = 16"),
        "{failures}"
    );
    assert_eq!(node.database().objects(), 2);
}

#[test]
fn a_declared_key_that_cannot_be_made_is_left_out_alone() {
    let options = DbOptions {
        objects_max: 2,
        ..DbOptions::default()
    };
    let declared = |patterns: &[(&str, u32)]| KeyRules {
        rules: patterns.iter().map(|(key, ms)| rule(key, *ms)).collect(),
        ..KeyRules::default()
    };
    let (node, _) = node(declared(&[("a", 1), ("b", 2)]), options);
    assert_eq!(node.declare_exact(), Ok(2));
    assert_eq!(node.declare_failures(), None);
    let long = "x".repeat(256);
    let changed = declared(&[("c", 3), (&long, 4), ("a", 5), ("d", 6), ("+", 7)]);
    assert_eq!(node.set_rules(changed.clone()), Ok(2));
    assert_eq!(validity(&node, "a"), Some((5, true)));
    assert_eq!(validity(&node, "b"), Some((7, true)));
    let failures = node.declare_failures().unwrap();
    assert!(
        failures.starts_with("3 of 4 declared keys cannot be made; the first is `c`: "),
        "{failures}"
    );
    // The same rules again do not help, and others that fit do.
    assert_eq!(node.set_rules(changed), Ok(2));
    assert_eq!(node.declare_failures(), Some(failures));
    assert_eq!(node.set_rules(declared(&[("b", 8)])), Ok(2));
    assert_eq!(node.declare_failures(), None);
    assert_eq!(validity(&node, "b"), Some((8, true)));
}

#[test]
fn rules_that_differ_in_their_default_alone_are_applied_too() {
    let (node, _) = node(rules(), DbOptions::default());
    node.set_rules(KeyRules {
        auto_create: true,
        ..rules()
    })
    .unwrap();
    node.resolve("kitchen").unwrap();
    assert_eq!(validity(&node, "kitchen"), Some((500, true)));
    node.set_rules(KeyRules {
        default_validity_ms: 501,
        ..rules()
    })
    .unwrap();
    assert_eq!(validity(&node, "kitchen"), Some((501, true)));
    assert_eq!(validity(&node, "door/1"), Some((200, false)));
}

#[test]
fn a_new_key_does_not_wait_for_a_full_queue() {
    let options = DbOptions {
        queue_bytes_max: 1024,
        ..DbOptions::default()
    };
    let (node, _) = node(rules(), options);
    let object = node.resolve("room/9").unwrap();
    while node.put(object, &[0; 8], None).is_ok() {}
    // A declaration that waited for room would commit here: nothing else does.
    let new = node.resolve("room/8").unwrap();
    assert_eq!(node.set_rules(rules()), Ok(4));
    assert_eq!(node.durable_end(), 0);
    assert_eq!(
        node.put(object, &[0; 8], None),
        Err(PutError::Wait { full: false })
    );
    node.database().pump().unwrap();
    assert!(node.put(new, &[0; 8], None).is_ok());
    assert_eq!(validity(&node, "door/1"), Some((200, false)));
}

#[test]
fn values_of_every_kind_come_back_with_their_time() {
    let rules = KeyRules {
        auto_create: true,
        ..KeyRules::default()
    };
    let (node, clock) = node(rules, DbOptions::default());
    let options = IntakeOptions {
        subscriptions: vec![SubscriptionRule {
            filter: "#".to_owned(),
            key: Template::topic(),
            payload: PayloadKind::Number,
            retained: Retained::default(),
        }],
        ..IntakeOptions::default()
    };
    let mut intake = Intake::new(options, node.clone());
    clock.advance_ns(5_000_000);
    assert_eq!(
        intake.mqtt(b"room/1", b"21.5"),
        Outcome::Accepted { lsn_end: 1 }
    );
    let time = (NOW_MS - 7) * 1_000_000;
    let line = format!("m,no=1 i=-3i,u=4u,b=t,s=\"open\",seven=\"seven77\" {time}");
    assert_eq!(
        intake.line(line.as_bytes()),
        Outcome::Accepted { lsn_end: 6 }
    );
    assert_eq!(get(&node, "room/1"), "Float(21.5) at 5");
    assert_eq!(get(&node, "m/1/i"), "Integer(-3) at -7");
    assert_eq!(get(&node, "m/1/u"), "Unsigned(4) at -7");
    assert_eq!(get(&node, "m/1/b"), "Boolean(true) at -7");
    assert_eq!(get(&node, "m/1/s"), "Text(\"open\") at -7");
    assert_eq!(get(&node, "m/1/seven"), "Text(\"seven77\") at -7");
    assert_eq!(node.durable_end(), 0);
    node.database().pump().unwrap();
    assert_eq!(node.wait_durable_past(0, Duration::from_secs(60)), Ok(6));
}

#[test]
fn a_retained_reading_is_marked_and_fresh_only_by_its_own_time() {
    let rules = KeyRules {
        auto_create: true,
        default_validity_ms: 1000,
        ..KeyRules::default()
    };
    let (node, _) = node(rules, DbOptions::default());
    let subscription = |filter: &str, payload| SubscriptionRule {
        filter: filter.to_owned(),
        key: Template::topic(),
        payload,
        retained: Retained::Take,
    };
    let timed = PayloadKind::Json(JsonRule::one("v", Some("t")));
    let options = IntakeOptions {
        subscriptions: vec![
            subscription("timed/+", timed),
            subscription("#", PayloadKind::Number),
        ],
        ..IntakeOptions::default()
    };
    let mut intake = Intake::new(options, node.clone());
    let message = |age_ms| format!("{{\"v\": 1, \"t\": {}}}", NOW_MS - age_ms);
    intake.mqtt_retained(b"timed/new", message(1000).as_bytes());
    intake.mqtt_retained(b"timed/old", message(1001).as_bytes());
    intake.mqtt_retained(b"untimed", b"1");
    intake.mqtt(b"sent", b"1");
    let seen = |key| {
        let id = node.database().lookup(key).unwrap();
        let got = node.database().get(id, &mut [0; 64]).unwrap();
        (got.fresh, got.retained)
    };
    assert_eq!(seen("timed/new"), (true, true));
    assert_eq!(seen("timed/old"), (false, true));
    assert_eq!(seen("untimed"), (false, true));
    assert_eq!(seen("sent"), (true, false));
    let counters = intake.counters();
    assert_eq!((counters.readings(), counters.retained_taken()), (4, 3));
    // The next message of its sensor is fresh.
    intake.mqtt(b"untimed", b"2");
    assert_eq!(seen("untimed"), (true, false));
}

/// The times of all readings from `from` up to `to`, in ns.
fn times_ns(database: &Database<MemoryStore>, from: Time, to: Time) -> Vec<i64> {
    let query = HistoryQuery { id: None, from, to };
    let (mut cursor, mut times) = (HistoryCursor::default(), Vec::new());
    let mut visit = |entry: &HistoryEntry<'_>| {
        times.push(entry.time.ns());
        ControlFlow::Continue(())
    };
    while database.history(&query, &mut cursor, &mut visit) == Ok(true) {}
    times
}

const ALWAYS: [Time; 2] = [Time::from_ms(i64::MIN), Time::from_ms(i64::MAX)];

fn any_key() -> KeyRules {
    KeyRules {
        auto_create: true,
        ..rules()
    }
}

#[test]
fn a_vibration_sensor_at_10_khz_shares_no_times() {
    let (node, clock) = node(any_key(), DbOptions::default());
    let mut intake = Intake::new(IntakeOptions::default(), node.clone());
    let begin_ns = NOW_MS * 1_000_000 + 123_456;
    let sent: Vec<i64> = (0..2_000).map(|n| begin_ns + n * 100_000).collect();
    for time_ns in &sent {
        let line = format!("vibration g=1 {time_ns}");
        let outcome = intake.line(line.as_bytes());
        assert!(matches!(outcome, Outcome::Accepted { .. }), "{outcome:?}");
    }
    let check = |database: &Database<MemoryStore>| {
        let [first, last] = ALWAYS;
        assert_eq!(times_ns(database, first, last), sent);
        // A range begins and ends to the nanosecond.
        let [from, to] = [sent[10], sent[20]].map(Time::from_ns);
        assert_eq!(times_ns(database, from, to), sent[10..20]);
        let [from, to] = [sent[10] + 1, sent[20] + 1].map(Time::from_ns);
        assert_eq!(times_ns(database, from, to), sent[11..=20]);
        let got = database.get(ObjectId(0), &mut [0; 64]).unwrap();
        assert_eq!(Some(got.time.ns()), sent.last().copied());
    };
    node.database().pump().unwrap();
    check(node.database());
    // The table comes from the log after a crash, and from the checkpoint after a close.
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let open = |store| Database::open(store, Arc::new(clock.clone()), options).unwrap();
    let crashed = open(node.database().abandon().unwrap());
    assert_eq!(crashed.recovery().readings_replayed, 2_000);
    check(&crashed);
    let closed = open(crashed.close().unwrap());
    assert_eq!(closed.recovery().readings_replayed, 0);
    check(&closed);
}

#[test]
fn times_in_documents_keep_their_nanoseconds() {
    let (node, _) = node(any_key(), DbOptions::default());
    let subscription = |filter: &str, unit| {
        let mut json = JsonRule::one("v", Some("t"));
        json.time_unit = unit;
        SubscriptionRule {
            filter: filter.to_owned(),
            key: Template::topic(),
            payload: PayloadKind::Json(json),
            retained: Retained::Take,
        }
    };
    let options = IntakeOptions {
        subscriptions: vec![
            subscription("s", Precision::Seconds),
            subscription("ms", Precision::Milliseconds),
            subscription("us", Precision::Microseconds),
            subscription("ns", Precision::Nanoseconds),
        ],
        ..IntakeOptions::default()
    };
    let mut intake = Intake::new(options, node.clone());
    let now_ns = NOW_MS * 1_000_000;
    let mut sent = Vec::new();
    for (topic, time, after_ns) in [
        ("s", "1780272000.123456789", 123_456_789),
        ("s", "\"2026-06-01T02:00:00.123456789+02:00\"", 123_456_789),
        ("ms", "1780272000123.456789", 123_456_789),
        ("us", "1780272000123456.789", 123_456_789),
        ("us", "1780272000123456", 123_456_000),
        ("ns", "1780272000123456789", 123_456_789),
        // What has no nanoseconds has none here either.
        ("ns", "\"2026-06-01T00:00:00.5Z\"", 500_000_000),
    ] {
        let payload = format!("{{\"v\": 1, \"t\": {time}}}");
        let outcome = intake.mqtt(topic.as_bytes(), payload.as_bytes());
        assert!(
            matches!(outcome, Outcome::Accepted { .. }),
            "{payload}: {outcome:?}"
        );
        sent.push(now_ns + after_ns);
    }
    node.database().pump().unwrap();
    let [first, last] = ALWAYS;
    assert_eq!(times_ns(node.database(), first, last), sent);
}

#[test]
fn a_queue_that_is_full_makes_wait_and_a_closed_database_fails() {
    let options = DbOptions {
        queue_bytes_max: 1024,
        ..DbOptions::default()
    };
    let (node, _) = node(rules(), options);
    let object = node.resolve("room/9").unwrap();
    let mut taken = 0;
    let refusal = loop {
        match node.put(object, &[0; 8], None) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(taken > 10);
    assert_eq!(refusal, PutError::Wait { full: false });
    node.database().pump().unwrap();
    let now = Time::from_ms(NOW_MS);
    assert!(node.put(object, &[0; 8], Some(now)).is_ok());
    assert_eq!(
        node.put(object, &[0; 65], None),
        Err(PutError::Refused(Reason::ValueTooLong))
    );
    assert_eq!(
        node.put(object, &[0; 8], Some(Time::from_ms(i64::MIN))),
        Err(PutError::Refused(Reason::TimeAbsurd))
    );
    assert_eq!(
        node.put(99, &[0; 8], None),
        Err(PutError::Refused(Reason::KeyUnknown))
    );
    node.database().abandon();
    assert_eq!(node.put(object, &[0; 8], None), Err(PutError::Failed));
    let end = node.durable_end();
    assert!(
        node.wait_durable_past(end, Duration::from_secs(60))
            .is_err()
    );
    // A new key is not refused: the put of its reading reports the failure.
    let object = node.resolve("room/8").unwrap();
    assert_eq!(node.put(object, &[0; 8], None), Err(PutError::Failed));
}

#[test]
fn a_clock_that_becomes_trusted_is_noticed() {
    let (node, clock) = node(rules(), DbOptions::default());
    assert!(node.wall_trusted());
    clock.reboot();
    clock.advance_ns(2_000_000_000);
    assert!(!node.wall_trusted());
    clock.set_wall_trusted(true);
    clock.advance_ns(2_000_000_000);
    assert!(node.wall_trusted());
    assert_eq!(node.wall_ms(), NOW_MS + 4000);
}
