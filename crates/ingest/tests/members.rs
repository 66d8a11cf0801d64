//! Messages of several values, and kinds of values: what devices send, exact, under a key of its own, at its own time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::intake_support::{Fake, NOW_MS, offer, refused, topic_rule};
use ingest::intake::{
    ArrayRule, Decision, Destination, Intake, IntakeOptions, JSON_VALUES_MAX, JsonRule, JsonTake,
    KeyOwner, LogGone, MemberRule, MemberRules, Note, Outcome, PathPattern, PayloadKind, PutError,
    Reason, Retained, SubscriptionRule, Template, TemplateKind, ValueKind, ValueRule,
};
use ingest::line::Precision;
use proptest::prelude::*;

fn pattern(text: &str) -> PathPattern {
    PathPattern::parse(text).unwrap()
}

fn kind(kind: ValueKind) -> ValueRule {
    ValueRule {
        kind,
        ..ValueRule::default()
    }
}

/// Rules that take and leave these paths.
pub(crate) fn fields(take: &[&str], leave: &[&str]) -> MemberRules {
    MemberRules {
        take: take.iter().map(|text| pattern(text)).collect(),
        leave: leave.iter().map(|text| pattern(text)).collect(),
        ..MemberRules::default()
    }
}

pub(crate) fn own(path: &str, name: Option<&str>, value: ValueRule) -> MemberRule {
    MemberRule {
        pattern: pattern(path),
        name: name.map(str::to_owned),
        value,
    }
}

pub(crate) fn several(rules: MemberRules) -> JsonRule {
    JsonRule {
        take: JsonTake::Several(Box::new(rules)),
        time_field: None,
        time_unit: Precision::Milliseconds,
    }
}

pub(crate) fn json_rule(filter: &str, key: &str, json: JsonRule) -> SubscriptionRule {
    SubscriptionRule {
        filter: filter.to_owned(),
        key: Template::parse(key, TemplateKind::TopicAndPath).unwrap(),
        payload: PayloadKind::Json(json),
        retained: Retained::default(),
    }
}

pub(crate) fn options(subscriptions: Vec<SubscriptionRule>) -> IntakeOptions {
    IntakeOptions {
        subscriptions,
        past_days_max: 30,
        future_seconds_max: 60,
        ..IntakeOptions::default()
    }
}

/// An intake whose only rule takes values of `s/+` to keys of their topic and path.
fn taking(fake: &Arc<Fake>, rules: MemberRules) -> Intake<Fake> {
    let rule = json_rule("s/+", "{topic}/{path}", several(rules));
    Intake::new(options(vec![rule]), Arc::clone(fake))
}

/// What `rules` make of a payload at the topic `s/a`, and the refusals by reason.
fn made(rules: MemberRules, payload: &str) -> (Vec<String>, BTreeMap<&'static str, u64>) {
    let fake = Fake::new();
    let mut intake = taking(&fake, rules);
    intake.mqtt(b"s/a", payload.as_bytes());
    (fake.texts(), refused(&intake))
}

/// The message of the issue: several fields, some of them nested.
const DEVICE: &str = r#"{"temperature": 21.5, "humidity": 40, "battery": {"percent": 97},
    "update": {"state": "idle"}}"#;

#[test]
fn all_fields_of_a_message_are_had_under_keys_of_their_own() {
    let fake = Fake::new();
    let mut intake = taking(&fake, fields(&["*"], &[]));
    let outcome = intake.mqtt(b"s/a", DEVICE.as_bytes());
    // One message, acknowledged once, after its last reading.
    assert_eq!(outcome, Outcome::Accepted { lsn_end: 4 });
    assert_eq!(
        fake.texts(),
        [
            "s/a/battery/percent=97",
            "s/a/humidity=40",
            "s/a/temperature=21.5",
            "s/a/update/state=\"idle\""
        ]
    );
    let counters = intake.counters();
    assert_eq!((counters.messages(), counters.readings()), (1, 4));
    assert_eq!(counters.refused_total(), 0);
    // The keys are looked up once.
    let resolved = fake.with(|inner| inner.resolved);
    intake.mqtt(b"s/a", DEVICE.as_bytes());
    assert_eq!(fake.with(|inner| inner.resolved), resolved);
}

#[test]
fn fields_that_are_named_or_left_out() {
    let none = BTreeMap::new();
    let cases: [(&[&str], &[&str], &[&str]); 6] = [
        (&["temperature"], &[], &["s/a/temperature=21.5"]),
        (&["battery"], &[], &["s/a/battery/percent=97"]),
        (&["battery.percent"], &[], &["s/a/battery/percent=97"]),
        (&["*.percent"], &[], &["s/a/battery/percent=97"]),
        (
            &["*"],
            &["update", "h*"],
            &["s/a/battery/percent=97", "s/a/temperature=21.5"],
        ),
        // What is left out is left out, even if it is named.
        (
            &["humidity", "update.state"],
            &["update"],
            &["s/a/humidity=40"],
        ),
    ];
    for (take, leave, expected) in cases {
        let (texts, refusals) = made(fields(take, leave), DEVICE);
        assert_eq!(texts, expected, "{take:?} {leave:?}");
        assert_eq!(refusals, none);
    }
    // None of them is there.
    for payload in ["{}", "{\"a\": 1}", "21.5", "[]", "{\"temperature\": null}"] {
        let (texts, refusals) = made(fields(&["temperature"], &[]), payload);
        assert!(texts.is_empty());
        assert_eq!(
            refusals,
            BTreeMap::from([("json_field_missing", 1)]),
            "{payload}"
        );
    }
}

#[test]
fn a_field_can_have_a_name_and_a_kind_of_its_own() {
    let words = |word: &str| vec![word.to_owned()];
    let on = ValueRule {
        kind: ValueKind::Boolean,
        words_true: words("ON"),
        words_false: words("OFF"),
        ..ValueRule::default()
    };
    let rules = MemberRules {
        own: vec![
            own("state", Some("on"), on),
            own("up.rx.0.rssi", Some("radio/rssi"), ValueRule::default()),
            own("up.decoded", Some(""), kind(ValueKind::Number)),
        ],
        ..fields(&["counter"], &[])
    };
    let payload = r#"{"state": "ON", "counter": 9007199254740993, "other": 1,
        "up": {"decoded": {"t": "21.5", "in": {"t": 20}}, "rx": [{"rssi": -35}, {"rssi": -90}]}}"#;
    let (texts, refusals) = made(rules, payload);
    assert_eq!(
        texts,
        [
            "s/a/counter=9007199254740993i",
            "s/a/on=true",
            "s/a/in/t=20",
            "s/a/t=21.5",
            "s/a/radio/rssi=-35"
        ]
    );
    assert!(refusals.is_empty(), "{refusals:?}");
}

#[test]
fn a_bad_member_is_left_out_alone_and_counted() {
    let fake = Fake::new();
    fake.with(|inner| inner.unknown.push("s/a/unknown".to_owned()));
    let rules = MemberRules {
        own: vec![own("n", None, kind(ValueKind::Number))],
        ..fields(&["*"], &[])
    };
    let mut intake = taking(&fake, rules);
    let long = "x".repeat(64);
    let payload = format!(
        r#"{{"a": 1, "great": 1e400, "exact": 18446744073709551617, "n": "warm", "long": "{long}",
            "unknown": 1, "": {{"a": 2}}, "z\u0007": 3, "none": null, "z": true}}"#
    );
    let outcome = intake.mqtt(b"s/a", payload.as_bytes());
    assert_eq!(outcome, Outcome::Accepted { lsn_end: 2 });
    assert_eq!(fake.texts(), ["s/a/a=1", "s/a/z=true"]);
    assert_eq!(
        refused(&intake),
        BTreeMap::from([
            ("key_invalid", 2),
            ("key_unknown", 1),
            ("not_finite", 1),
            ("number_inexact", 1),
            ("payload_invalid", 1),
            ("value_too_long", 1),
        ])
    );
    let excerpt = |reason| intake.counters().excerpt(reason);
    assert_eq!(excerpt(Reason::PayloadInvalid), "s/a n: warm");
    assert_eq!(
        excerpt(Reason::NumberInexact),
        "s/a exact: 18446744073709551617"
    );
    // A message of which nothing is taken is refused, and acknowledged.
    assert_eq!(intake.mqtt(b"s/a", b"{\"n\": \"cold\"}"), Outcome::Refused);
}

#[test]
fn integers_of_json_are_exact() {
    for (digits, auto, integer) in [
        ("21", "21", "21i"),
        ("9007199254740993", "9007199254740993i", "9007199254740993i"),
        (
            "-9007199254740993",
            "-9007199254740993i",
            "-9007199254740993i",
        ),
        // Whole numbers that a double holds exactly stay doubles.
        ("9007199254740992", "9007199254740992", "9007199254740992i"),
        (
            "18446744073709551615",
            "18446744073709551615u",
            "18446744073709551615u",
        ),
    ] {
        let payload = format!("{{\"v\": {digits}}}");
        for (kind, expected) in [(ValueKind::Auto, auto), (ValueKind::Integer, integer)] {
            let rule = self::kind(kind);
            let one = PayloadKind::Json(JsonRule {
                take: JsonTake::One("v".to_owned(), rule.clone()),
                ..JsonRule::one("v", None)
            });
            let fake = Fake::new();
            let rule_of_one = topic_rule("s/a", "{topic}", one);
            let mut intake = Intake::new(options(vec![rule_of_one]), fake.clone());
            intake.mqtt(b"s/a", payload.as_bytes());
            assert_eq!(fake.texts(), [format!("s/a={expected}")], "{kind:?}");
            let rules = MemberRules {
                value: rule,
                ..fields(&["v"], &[])
            };
            assert_eq!(made(rules, &payload).0, [format!("s/a/v={expected}")]);
        }
    }
    // What no kind holds exactly is refused by its reason, in a payload that is a number, too.
    let rules = vec![
        topic_rule("j", "{topic}", PayloadKind::Json(JsonRule::one("v", None))),
        topic_rule("n", "{topic}", PayloadKind::Number),
    ];
    let fake = Fake::new();
    let mut intake = Intake::new(options(rules), fake.clone());
    assert_eq!(
        intake.mqtt(b"j", b"{\"v\": 18446744073709551617}"),
        Outcome::Refused
    );
    assert_eq!(intake.mqtt(b"n", b"-9223372036854775809"), Outcome::Refused);
    assert_eq!(refused(&intake), BTreeMap::from([("number_inexact", 2)]));
    intake.mqtt(b"n", b"9007199254740993\n");
    assert_eq!(fake.texts(), ["n=9007199254740993i"]);
}

#[test]
fn words_units_commas_and_hexadecimal_numbers_can_be_taken() {
    let unit = ValueRule {
        kind: ValueKind::Number,
        units: vec!["°C".to_owned()],
        ..ValueRule::default()
    };
    let comma = ValueRule {
        kind: ValueKind::Number,
        decimal_comma: true,
        ..ValueRule::default()
    };
    let door = ValueRule {
        kind: ValueKind::Boolean,
        words_true: vec!["open".to_owned()],
        words_false: vec!["closed".to_owned()],
        ..ValueRule::default()
    };
    let (number, integer) = (kind(ValueKind::Number), kind(ValueKind::Integer));
    let (boolean, text, auto) = (
        kind(ValueKind::Boolean),
        kind(ValueKind::Text),
        kind(ValueKind::Auto),
    );
    for (payload, rule, expected) in [
        ("21.5", &number, Some("21.5")),
        ("ON", &boolean, Some("true")),
        ("off", &boolean, Some("false")),
        ("open", &door, Some("true")),
        ("closed", &door, Some("false")),
        ("21.5 °C", &unit, Some("21.5")),
        ("21,5", &comma, Some("21.5")),
        ("0x1F", &integer, Some("31i")),
        ("0x1F", &number, Some("31")),
        ("0x1F", &text, Some("\"0x1F\"")),
        ("21.5", &auto, Some("21.5")),
        ("true", &auto, Some("true")),
        ("open", &auto, Some("\"open\"")),
        ("open", &boolean, None),
        ("ON", &number, None),
        ("21.5 K", &unit, None),
        ("21,5", &number, None),
        ("21.5", &integer, None),
    ] {
        let fake = Fake::new();
        let value = topic_rule("p", "{topic}", PayloadKind::Value(rule.clone()));
        let mut intake = Intake::new(options(vec![value]), fake.clone());
        let outcome = intake.mqtt(b"p", payload.as_bytes());
        let expected: Vec<String> = expected.iter().map(|value| format!("p={value}")).collect();
        assert_eq!(fake.texts(), expected, "{payload}");
        if expected.is_empty() {
            assert_eq!(outcome, Outcome::Refused);
            assert_eq!(refused(&intake), BTreeMap::from([("payload_invalid", 1)]));
        }
        // The same as a text of JSON. There a text without a kind stays one.
        if rule.kind != ValueKind::Auto {
            let rules = MemberRules {
                value: rule.clone(),
                ..fields(&["v"], &[])
            };
            let (texts, _) = made(rules, &format!("{{\"v\": \"{payload}\"}}"));
            let expected: Vec<String> = expected
                .iter()
                .map(|text| text.replacen("p=", "s/a/v=", 1))
                .collect();
            assert_eq!(texts, expected, "{payload}");
        }
    }
}

#[test]
fn a_member_with_a_dot_or_a_slash_in_its_name_can_be_reached_and_read_back() {
    let payload = r#"{"temp.in": {"v.1": 7}, "temp": {"in": 8}, "a/b": 1, "a": {"b": 2}, "a%2Fb": 3,
        "+": 4, "c++": 5}"#;
    let (texts, _) = made(fields(&["\"temp.in\".\"v.1\""], &[]), payload);
    assert_eq!(texts, ["s/a/temp.in/v.1=7"]);
    let (texts, refusals) = made(fields(&["*"], &["temp"]), payload);
    assert_eq!(
        texts,
        [
            "s/a/%2B=4",
            "s/a/a/b=2",
            "s/a/a%252Fb=3",
            "s/a/a%2Fb=1",
            "s/a/c++=5",
            "s/a/temp.in/v.1=7"
        ]
    );
    assert!(refusals.is_empty(), "{refusals:?}");
}

#[test]
fn two_values_never_share_a_key() {
    // Two topics and paths that meet in one key, and two values below the only path that the key does not name.
    let slash = json_rule("s/#", "{topic}/{path}", several(fields(&["*"], &[])));
    let below = json_rule("t", "{topic}", several(fields(&["v"], &[])));
    let fake = Fake::new();
    let mut intake = Intake::new(options(vec![slash, below]), fake.clone());
    intake.mqtt(b"s/a", b"{\"b\": {\"c\": 1}}");
    assert_eq!(intake.mqtt(b"s/a/b", b"{\"c\": 2}"), Outcome::Refused);
    assert_eq!(
        intake.counters().excerpt(Reason::KeyShared),
        "s/a/b c has the key of s/a b/c: s/a/b/c"
    );
    let outcome = intake.mqtt(b"t", b"{\"v\": {\"x\": 3, \"y\": 4}}");
    assert!(matches!(outcome, Outcome::Accepted { .. }));
    assert_eq!(fake.texts(), ["s/a/b/c=1", "t=3"]);
    assert_eq!(intake.counters().refused(Reason::KeyShared), 2);
}

#[test]
fn subscriptions_with_one_template_keep_their_own_names() {
    let named = || MemberRules {
        own: vec![own("temp", Some("t"), ValueRule::default())],
        ..MemberRules::default()
    };
    let rules = vec![
        json_rule("v1/+", "{2}/{path}", several(named())),
        json_rule("v2/+", "{2}/{path}", several(fields(&["*"], &[]))),
    ];
    let messages: [(&[u8], &[u8]); 2] = [
        (b"v1/x", br#"{"temp": 1}"#),
        (b"v2/x", br#"{"temp": 2, "temp\n\nt": 3}"#),
    ];
    for order in [[0, 1], [1, 0]] {
        let fake = Fake::new();
        let mut intake = Intake::new(options(rules.clone()), fake.clone());
        for place in [order, order].concat() {
            let (topic, payload) = messages[place];
            intake.mqtt(topic, payload);
        }
        let mut texts = fake.texts();
        texts.sort_unstable();
        assert_eq!(
            texts,
            ["x/t=1", "x/t=1", "x/temp=2", "x/temp=2"],
            "{order:?}"
        );
        assert_eq!(refused(&intake), BTreeMap::from([("key_invalid", 2)]));
    }
    // Another path that would get the key of the named one is another series.
    let fake = Fake::new();
    let mut intake = Intake::new(options(rules), fake.clone());
    intake.mqtt(b"v1/x", b"{\"temp\": 1}");
    assert_eq!(intake.mqtt(b"v2/x", b"{\"t\": 2}"), Outcome::Refused);
    assert_eq!(refused(&intake), BTreeMap::from([("key_shared", 1)]));
}

#[test]
fn a_name_that_moves_to_another_path_takes_its_key_along() {
    let rule = |path: &str| {
        let rules = MemberRules {
            own: vec![own(path, Some("t"), ValueRule::default())],
            ..fields(&["t"], &[])
        };
        json_rule("s/+", "{topic}/{path}", several(rules))
    };
    let fake = Fake::new();
    let mut intake = Intake::new(options(vec![rule("a")]), fake.clone());
    intake.mqtt(b"s/a", b"{\"a\": 1}");
    // The same names: the first series keeps the key over a reload.
    intake.reload(options(vec![rule("a")]));
    assert_eq!(intake.mqtt(b"s/a", b"{\"t\": 2}"), Outcome::Refused);
    assert_eq!(refused(&intake), BTreeMap::from([("key_shared", 1)]));
    // Neither does a subscription before it that names nothing, only gives a type.
    let typed = MemberRules {
        own: vec![own("x", None, ValueRule::default())],
        ..fields(&[], &[])
    };
    let before = json_rule("u/+", "{topic}/{path}", several(typed));
    intake.reload(options(vec![before, rule("a")]));
    assert_eq!(intake.mqtt(b"s/a", b"{\"t\": 2}"), Outcome::Refused);
    intake.reload(options(vec![rule("b")]));
    intake.mqtt(b"s/a", b"{\"b\": 3}");
    assert_eq!(fake.texts(), ["s/a/t=1", "s/a/t=3"]);
}

/// Keys with their values, and times.
type Timed = Vec<(String, i64)>;
/// Refusals by reason.
type Counted = Vec<(&'static str, u64)>;

/// What becomes of an array at `s/a`.
fn times(
    array: ArrayRule,
    time_field: Option<&str>,
    unit: Precision,
    payload: &str,
) -> (Timed, Counted) {
    let fake = Fake::new();
    let rules = MemberRules {
        array: Some(array),
        ..fields(&["*"], &[])
    };
    let json = JsonRule {
        time_field: time_field.map(str::to_owned),
        time_unit: unit,
        ..several(rules)
    };
    let rule = json_rule("s/+", "{topic}/{path}", json);
    let mut intake = Intake::new(options(vec![rule]), fake.clone());
    intake.mqtt(b"s/a", payload.as_bytes());
    let puts = fake.puts().into_iter();
    let puts = puts.map(|(key, value, time)| (format!("{key}={value}"), time.unwrap()));
    (puts.collect(), refused(&intake).into_iter().collect())
}

fn array(path: &str, time_field: &str) -> ArrayRule {
    ArrayRule {
        path: path.to_owned(),
        time_field: time_field.to_owned(),
    }
}

#[test]
fn readings_that_a_sender_has_buffered_have_their_own_times() {
    let at = |value: &str, offset_ms: i64| (format!("s/a/{value}"), NOW_MS + offset_ms);
    let begin = NOW_MS / 1000;
    // A base time in seconds, and offsets to it.
    let payload = format!(
        r#"{{"begin": {begin}.25, "log": [{{"dt": -60, "v": 1, "w": 2}}, {{"dt": 0.5, "v": 3}}, {{"v": 4}},
            {{"dt": "x", "v": 5}}, {{"dt": 1}}, {{"dt": 86400, "v": 6}}, 7]}}"#
    );
    let (puts, refusals) = times(
        array("log", "dt"),
        Some("begin"),
        Precision::Seconds,
        &payload,
    );
    assert_eq!(
        puts,
        [at("v=1", -59_750), at("w=2", -59_750), at("v=3", 750)]
    );
    // No time; no value; an element that is none. No number; a day ahead.
    assert_eq!(refusals, [("json_field_missing", 3), ("time_absurd", 2)]);
    // Times of their own, in a document that is the array, and pairs.
    let payload =
        format!(r#"[{{"t": {NOW_MS}, "v": 1}}, {{"t": "2026-06-01T00:00:01Z", "v": 2}}]"#);
    let (puts, refusals) = times(array("", "t"), None, Precision::Milliseconds, &payload);
    assert_eq!(puts, [at("v=1", 0), at("v=2", 1000)]);
    assert!(refusals.is_empty(), "{refusals:?}");
    let payload = format!("[[{begin}, 1], [{begin}, 2]]");
    let (puts, _) = times(array("", "0"), None, Precision::Seconds, &payload);
    assert_eq!(puts, [at("1=1", 0), at("1=2", 0)]);
    // No array, and one without elements.
    let (puts, refusals) = times(array("log", "t"), None, Precision::Seconds, "{\"log\": 1}");
    assert_eq!((puts, refusals), (vec![], vec![("json_field_missing", 1)]));
    let (puts, refusals) = times(array("log", "t"), None, Precision::Seconds, "{\"log\": []}");
    assert_eq!((puts, refusals), (vec![], vec![]));
}

#[test]
fn the_time_of_a_message_is_that_of_all_its_values_and_none_of_them() {
    let with_time = |unit| JsonRule {
        time_field: Some("p.ts".to_owned()),
        time_unit: unit,
        ..several(fields(&["*"], &[]))
    };
    let rules = vec![
        json_rule("s/+", "{topic}/{path}", with_time(Precision::Seconds)),
        json_rule("r/+", "{topic}/{path}", several(fields(&["*"], &[]))),
    ];
    let fake = Fake::new();
    let mut intake = Intake::new(options(rules), fake.clone());
    let seconds = NOW_MS / 1000;
    let payload = format!(r#"{{"p": {{"ts": {seconds}.53, "t": 24.8}}, "v": 1}}"#);
    assert!(matches!(
        intake.mqtt_retained(b"s/a", payload.as_bytes()),
        Outcome::Accepted { .. }
    ));
    let time = Some(NOW_MS + 530);
    assert_eq!(
        fake.puts(),
        [
            ("s/a/p/t".to_owned(), "24.8".to_owned(), time),
            ("s/a/v".to_owned(), "1".to_owned(), time)
        ]
    );
    // Without a time the message is refused once, and a retained one without a time of its own, too.
    assert_eq!(intake.mqtt(b"s/a", b"{\"v\": 1}"), Outcome::Refused);
    assert_eq!(
        intake.mqtt(b"s/a", b"{\"p\": {\"ts\": 1}, \"v\": 1}"),
        Outcome::Refused
    );
    assert_eq!(
        intake.mqtt_retained(b"r/a", b"{\"v\": 1, \"w\": 2}"),
        Outcome::Refused
    );
    assert_eq!(
        refused(&intake),
        BTreeMap::from([
            ("json_field_missing", 1),
            ("retained_untimed", 1),
            ("time_absurd", 1)
        ])
    );
}

#[test]
fn a_document_with_too_many_values_is_refused_as_a_whole() {
    let of = |count: usize| {
        let values: Vec<String> = (0..count).map(|value| value.to_string()).collect();
        format!("[{}]", values.join(","))
    };
    let (texts, refusals) = made(fields(&["5"], &[]), &of(JSON_VALUES_MAX));
    assert_eq!((texts, refusals.len()), (vec!["s/a/5=5".to_owned()], 0));
    let (texts, refusals) = made(fields(&["5"], &[]), &of(JSON_VALUES_MAX + 1));
    assert!(texts.is_empty());
    assert_eq!(refusals, BTreeMap::from([("oversized", 1)]));
    // A path that is too long costs its own value alone.
    let payload = format!("{{\"a\": 1, \"{}\": {}}}", "%".repeat(50_000), of(3));
    let (texts, refusals) = made(fields(&["*"], &[]), &payload);
    assert_eq!(texts, ["s/a/a=1"]);
    assert_eq!(refusals, BTreeMap::from([("key_invalid", 3)]));
}

#[test]
fn no_value_is_taken_twice_however_often_a_message_waits() {
    let payload = r#"{"a": 1, "b": "x", "c": {"d": 2, "e": 3}, "n": "warm", "z": 4}"#;
    let rules = MemberRules {
        own: vec![own("n", None, kind(ValueKind::Number))],
        ..fields(&["*"], &[])
    };
    let expected = [
        "s/a/a=1",
        "s/a/b=\"x\"",
        "s/a/c/d=2",
        "s/a/c/e=3",
        "s/a/z=4",
    ];
    for room in 0..6 {
        let fake = Fake::new();
        let mut intake = taking(&fake, rules.clone());
        fake.with(|inner| inner.room = room);
        let outcome = offer(&mut intake, b"s/a", payload.as_bytes());
        assert_eq!(outcome, Outcome::Accepted { lsn_end: 5 });
        assert_eq!(fake.texts(), expected, "room for {room}");
        assert_eq!(intake.counters().refused_total(), 1);
        assert_eq!(intake.counters().messages(), 1);
    }
}

#[test]
fn a_message_that_waits_over_a_reload_loses_no_value() {
    let fake = Fake::new();
    let mut intake = taking(&fake, fields(&["b", "c"], &[]));
    let payload = b"{\"a\": 1, \"b\": 2, \"c\": 3}";
    fake.with(|inner| inner.room = 1);
    let wait = Outcome::Wait {
        consumed: 0,
        full: false,
    };
    assert_eq!(intake.mqtt(b"s/a", payload), wait);
    let rule = |rules| json_rule("s/+", "{topic}/{path}", several(rules));
    intake.reload(options(vec![rule(fields(&["a", "b"], &[]))]));
    assert_eq!(
        intake.mqtt(b"s/a", payload),
        Outcome::Accepted { lsn_end: 3 }
    );
    // What was taken before is taken again: at least once, as when a message comes again.
    assert_eq!(fake.texts(), ["s/a/b=2", "s/a/a=1", "s/a/b=2"]);
    // New rules may refuse all of it; what was taken before must be durable all the same.
    fake.with(|inner| inner.room = 1);
    assert_eq!(intake.mqtt(b"s/a", payload), wait);
    intake.reload(options(vec![rule(fields(&["x"], &[]))]));
    assert_eq!(
        intake.mqtt(b"s/a", payload),
        Outcome::Accepted { lsn_end: 4 }
    );
}

/// Keeps what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Destination for Told {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        self.0.lock().unwrap().push(format!("key {key}"));
        Ok(0)
    }
    fn resolve_for(&self, key: &str, _: KeyOwner<'_>, _: &mut String) -> Result<u32, Reason> {
        self.resolve(key)
    }
    fn put(&self, _: u32, _: &[u8], _: Option<db::Time>) -> Result<u64, PutError> {
        Ok(0)
    }
    fn put_retained(
        &self,
        object: u32,
        value: &[u8],
        time: Option<db::Time>,
    ) -> Result<u64, PutError> {
        self.put(object, value, time)
    }
    fn durable_end(&self) -> u64 {
        0
    }
    fn wait_durable_past(&self, seen: u64, _timeout: Duration) -> Result<u64, LogGone> {
        Ok(seen)
    }
    fn wall_ms(&self) -> i64 {
        NOW_MS
    }
    fn wall_trusted(&self) -> bool {
        true
    }
    fn note(&self, note: Note<'_>) {
        let text = match note {
            Note::Rule(rule) => format!("rule {rule}"),
            Note::Member { path, decision } => format!("{path} {decision:?}"),
            Note::Refused { reason, what } => {
                format!("{}: {}", reason.name(), what.concat().escape_ascii())
            }
        };
        self.0.lock().unwrap().push(text);
    }
}

#[test]
fn a_destination_is_told_the_deciding_rules() {
    let told = Arc::new(Told::default());
    let rules = MemberRules {
        own: vec![own("n", Some("m"), kind(ValueKind::Number))],
        ..fields(&["a", "b"], &["c"])
    };
    let json = several(rules.clone());
    let rule = json_rule("s/+", "{topic}/{path}", json.clone());
    let number = topic_rule("n", "{topic}", PayloadKind::Number);
    let mut intake = Intake::new(options(vec![number, rule]), told.clone());
    let payload = b"{\"b\": 1, \"c\": 2, \"n\": \"x\", \"o\": {\"p\": 3}}";
    intake.mqtt(b"s/a", payload);
    intake.mqtt(b"x", b"1");
    assert_eq!(
        *told.0.lock().unwrap(),
        [
            "rule 1",
            "b Taken(1)",
            "key s/a/b",
            "n Own(0)",
            "payload_invalid: s/a n: x",
            "topic_unmatched: x: 1"
        ]
    );
    assert_eq!(
        rules.left_out(payload, &json),
        Ok(vec![
            ("c".to_owned(), Decision::Left(0)),
            ("o/p".to_owned(), Decision::Unnamed)
        ])
    );
}

/// Letters that resemble documents enough to reach every branch.
fn document() -> impl Strategy<Value = String> {
    const PIECES: [&str; 16] = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"a\"",
        "\"t\"",
        "\"b/c\"",
        "1",
        "-2.5e3",
        "true",
        "null",
        "18446744073709551617",
        "1e400",
        "\"ON\"",
    ];
    let scalar =
        prop::sample::select(&["1", "9007199254740993", "1e400", "\"x\"", "true", "null"][..]);
    let valid = prop::collection::vec(
        (prop::sample::select(&["a", "b", "t", "c"][..]), scalar),
        0..5,
    )
    .prop_map(|members| {
        let members: Vec<String> = members
            .into_iter()
            .map(|(name, value)| format!("\"{name}\": {{\"t\": 1780272000000, \"v\": {value}}}"))
            .collect();
        format!("{{{}}}", members.join(","))
    });
    let pieces = prop::collection::vec(prop::sample::select(&PIECES[..]), 0..20);
    prop_oneof![valid, pieces.prop_map(|pieces| pieces.concat())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_document_is_accounted_for_and_waits_change_nothing(
        payload in document(),
        rooms in prop::collection::vec(0..3_usize, 0..5),
    ) {
        let rules = || MemberRules {
            own: vec![own("a", Some("n"), kind(ValueKind::Integer))],
            ..fields(&["*"], &["c"])
        };
        let (plain, halting) = (Fake::new(), Fake::new());
        let (mut one, mut other) = (taking(&plain, rules()), taking(&halting, rules()));
        let first = one.mqtt(b"s/a", payload.as_bytes());
        let mut rooms = rooms.into_iter();
        let second = loop {
            halting.with(|inner| inner.room = rooms.next().unwrap_or(usize::MAX));
            match other.mqtt(b"s/a", payload.as_bytes()) {
                Outcome::Wait { consumed: 0, .. } => {}
                outcome => break outcome,
            }
        };
        prop_assert_eq!(first, second);
        prop_assert_eq!(plain.texts(), halting.texts());
        prop_assert_eq!(refused(&one), refused(&other));
        let taken = plain.puts().len() as u64;
        match first {
            Outcome::Accepted { lsn_end } => prop_assert_eq!(lsn_end, taken),
            _ => prop_assert!(taken == 0 && one.counters().refused_total() > 0),
        }
    }
}
