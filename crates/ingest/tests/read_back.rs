//! Keys from which their series can be read back: no other series can have them, and nothing is kept of them. Those of
//! topics and paths are none: with other rules, other series can have them.

use std::collections::BTreeMap;

use crate::intake_support::{Fake, refused};
use crate::members::{fields, json_rule, options, own, several};
use crate::sparkplug::{KEY, birth_of, intake};
use ingest::intake::{Intake, MemberRules, Outcome, ValueRule};
use proptest::prelude::*;

/// Names of groups, edge nodes and devices, and of metrics: those that look like something else.
fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["g", "node", "device", "state", "a b", "%2B"][..])
}

fn name() -> impl Strategy<Value = String> {
    let level = prop::sample::select(&["m", "node", "device", "+", "#", "%2B", "%"][..]);
    prop::collection::vec(level, 1..4).prop_map(|levels| levels.join("/"))
}

type Identity = (&'static str, &'static str, Option<&'static str>, String);

fn identity() -> impl Strategy<Value = Identity> {
    (part(), part(), prop::option::of(part()), name())
}

/// Returns the key of a metric, which comes in a birth.
fn key_of((group, edge, device, name): &Identity) -> String {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let topic = match device {
        None => format!("spBv1.0/{group}/NBIRTH/{edge}"),
        Some(device) => format!("spBv1.0/{group}/DBIRTH/{edge}/{device}"),
    };
    intake.mqtt(topic.as_bytes(), &birth_of(name));
    assert_eq!(fake.puts().len(), 2, "{:?}", refused(&intake));
    // No owner is kept: the series can be read back.
    for id in 0..2 {
        let owner = db::Owner {
            id,
            template: db::Owner::template_of(KEY),
            series: "another",
        };
        assert_eq!(fake.with(|inner| inner.owners.claim(&owner)), Ok(()));
    }
    fake.puts().remove(1).0
}

/// Returns group, edge node, device and name of a key.
fn read_back(key: &str) -> (String, String, Option<String>, String) {
    let levels: Vec<&str> = key.split('/').collect();
    let (device, name) = match &levels[2..] {
        ["node", name @ ..] => (None, name),
        ["device", device, name @ ..] => (Some((*device).to_owned()), name),
        _ => panic!("{key}"),
    };
    let plain = |level: &&str| {
        let text = level.replace("%2B", "+").replace("%23", "#");
        text.replace("%25", "%")
    };
    let name: Vec<String> = name.iter().map(plain).collect();
    let (group, edge) = (levels[0].to_owned(), levels[1].to_owned());
    (group, edge, device, name.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn keys_of_metrics_can_be_read_back(one in identity()) {
        let (group, edge, device, name) = one.clone();
        let expected = (group.to_owned(), edge.to_owned(), device.map(str::to_owned), name);
        prop_assert_eq!(read_back(&key_of(&one)), expected);
    }

    #[test]
    fn no_two_metrics_have_the_same_key(one in identity(), other in identity()) {
        let (key, other_key) = (key_of(&one), key_of(&other));
        prop_assert_eq!(key == other_key, one == other, "{} {}", key, other_key);
    }
}

/// What a filter says of the number of levels must not decide whether a series is kept: another filter may come.
#[test]
fn a_change_of_filters_gives_no_key_to_another_series() {
    let plan = |filter: &str| {
        let rule = json_rule(filter, "{topic}/{path}", several(fields(&["*"], &[])));
        options(vec![rule])
    };
    let messages: [(&str, &[u8], &[u8]); 2] = [
        ("s/+", b"s/a", b"{\"b\": {\"c\": 1}}"),
        ("s/+/+", b"s/a/b", b"{\"c\": 1}"),
    ];
    for [before, after] in [[0, 1], [1, 0]] {
        for later in [messages[after].0, "s/#"] {
            let fake = Fake::new();
            let (filter, topic, payload) = messages[before];
            let mut intake = Intake::new(plan(filter), fake.clone());
            intake.mqtt(topic, payload);
            let (_, topic, payload) = messages[after];
            // Over a reload, and over a restart.
            intake.reload(plan(later));
            let restarted = Intake::new(plan(later), fake.clone());
            for mut intake in [intake, restarted] {
                let outcome = intake.mqtt(topic, payload);
                assert_eq!(outcome, Outcome::Refused, "{filter} {later}");
                assert_eq!(refused(&intake), BTreeMap::from([("key_shared", 1)]));
            }
            assert_eq!(fake.texts(), ["s/a/b/c=1"]);
        }
    }
}

/// The name that one rule gives can be the path of another rule's value. Their owners on flash are apart.
#[test]
fn rules_with_other_names_mix_nothing_over_a_restart() {
    let plan = || {
        let named = MemberRules {
            own: vec![own("temp", Some("t"), ValueRule::default())],
            ..MemberRules::default()
        };
        options(vec![
            json_rule("v1/+", "{2}/{path}", several(named)),
            json_rule("v2/+", "{2}/{path}", several(fields(&["*"], &[]))),
        ])
    };
    let messages: [(&[u8], &[u8]); 2] = [(b"v1/x", b"{\"temp\": 1}"), (b"v2/x", b"{\"t\": 1}")];
    for [first, second] in [[0, 1], [1, 0]] {
        let fake = Fake::new();
        for start in 0..2 {
            let mut intake = Intake::new(plan(), fake.clone());
            // After the restart the other one comes first.
            let order = if start == 0 {
                [first, second]
            } else {
                [second, first]
            };
            for place in order {
                let (topic, payload) = messages[place];
                let is_refused = intake.mqtt(topic, payload) == Outcome::Refused;
                assert_eq!(is_refused, place == second, "{first} {start}");
            }
            assert_eq!(refused(&intake), BTreeMap::from([("key_shared", 1)]));
        }
        assert_eq!(fake.texts(), ["x/t=1", "x/t=1"]);
    }
}
