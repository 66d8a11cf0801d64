//! Keys of the greatest length into a database: none is cut, and none is refused.

use std::sync::Arc;

use crate::intake_support::{NOW_MS, json, topic_rule};
use base::sim::SimClock;
use db::value::Value;
use db::{CommitDriver, Database, DbOptions, MemoryStore};
use ingest::intake::{
    Intake, IntakeOptions, KeyRules, NodeDestination, Outcome, PayloadKind, Reason, Template,
    TemplateKind,
};

/// From lines, topics, lines in messages and documents. Keys that differ in their last byte alone are two, also after
/// a restart; one byte more is refused. `KEEL_SEEDED_BUG=key-cut-at-64` turns this red.
#[test]
fn keys_of_255_bytes_are_taken_over_every_way() {
    let clock = SimClock::new(3);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(true);
    let db_options = DbOptions {
        commit_driver: CommitDriver::Manual,
        key_bytes_mean: 255,
        ..DbOptions::default()
    };
    let open =
        |store: MemoryStore| Database::open(store, Arc::new(clock.clone()), db_options).unwrap();
    let database = Arc::new(open(MemoryStore::new()));
    let rules = KeyRules {
        auto_create: true,
        ..KeyRules::default()
    };
    let node = NodeDestination::new(Arc::clone(&database), Arc::new(clock.clone()), rules);
    let options = IntakeOptions {
        line_key: Template::parse("{measurement}/{pairs}/{field}", TemplateKind::Line).unwrap(),
        subscriptions: vec![
            topic_rule("n/#", "{topic}", PayloadKind::Number),
            topic_rule("j/#", "{topic}", json("v", None)),
            topic_rule("l/#", "{topic}/{field}", PayloadKind::Line),
        ],
        ..IntakeOptions::default()
    };
    let mut intake = Intake::new(options, Arc::new(node));
    // A key of `bytes` bytes that begins with `begin` and ends with `end`.
    let filled = |begin: &str, bytes: usize, end: &str| {
        format!(
            "{begin}{}{end}",
            "k".repeat(bytes - begin.len() - end.len())
        )
    };
    let mut offer = |begin: &str, bytes: usize, end: &str, value: u32| {
        let key = filled(begin, bytes, end);
        let outcome = match begin {
            "n/" => intake.mqtt(key.as_bytes(), value.to_string().as_bytes()),
            "j/" => intake.mqtt(key.as_bytes(), format!("{{\"v\": {value}}}").as_bytes()),
            "l/t/" => {
                let line = format!("m,a=b {}={value}", &key["l/t/".len()..]);
                intake.mqtt(b"l/t", line.as_bytes())
            }
            _ => intake.line(format!("m,t=1 {}={value}", &key["m/t=1/".len()..]).as_bytes()),
        };
        (key, outcome)
    };
    let mut expected = Vec::new();
    for (n, begin) in (0..).zip(["n/", "j/", "l/t/", "m/t=1/"]) {
        for (value, end) in [(2 * n, "a"), (2 * n + 1, "b")] {
            let (key, outcome) = offer(begin, 255, end, value);
            let lsn_end = u64::from(value) + 1;
            assert_eq!(outcome, Outcome::Accepted { lsn_end }, "{key}");
            expected.push((key, f64::from(value)));
        }
    }
    for begin in ["n/", "j/", "l/t/", "m/t=1/"] {
        let (key, outcome) = offer(begin, 256, "a", 1);
        assert_eq!(outcome, Outcome::Refused, "{key}");
    }
    assert_eq!(intake.counters().refused(Reason::KeyInvalid), 4);
    database.pump().unwrap();
    let again = open(database.close().unwrap());
    for database in [&*database, &again] {
        assert_eq!(database.objects(), 8);
        for (key, value) in &expected {
            let id = database.lookup(key).unwrap();
            assert_eq!(database.key(id).as_str(), key);
            let mut bytes = [0; 64];
            let got = database.get(id, &mut bytes).unwrap();
            assert_eq!(
                Value::decode(&bytes[..got.value_bytes]),
                Some(Value::Float(*value))
            );
        }
    }
}
