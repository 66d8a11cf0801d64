//! Messages and lines into a destination that records them: every reason, every payload, waiting, limits.

use std::collections::BTreeMap;

use crate::intake_support::{Fake, NOW_MS, intake, json, offer, options, refused, topic_rule};
use ingest::intake::{
    IntakeOptions, JSON_BYTES_MAX, Outcome, PayloadKind, Reason, Retained, SubscriptionRule,
    TOPIC_CACHED_BYTES_MAX, Template, TemplateKind,
};
use ingest::line::{FIELDS_MAX, Precision, TAGS_MAX};
use proptest::prelude::*;

fn only(reason: Reason) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([(reason.name(), 1)])
}

#[test]
fn numbers_are_taken_as_they_are_written() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    for payload in ["21.5", " 21.5\r\n", "-0", "1e3", "+5", ".5", "7."] {
        let outcome = intake.mqtt(b"n/room/1", payload.as_bytes());
        assert!(matches!(outcome, Outcome::Accepted { .. }), "{payload}");
    }
    let values: Vec<String> = fake.texts();
    let expected = ["21.5", "21.5", "-0", "1000", "5", "0.5", "7"];
    let expected: Vec<String> = expected
        .iter()
        .map(|value| format!("n/room/1={value}"))
        .collect();
    assert_eq!(values, expected);
    assert!(fake.puts().iter().all(|(_, _, time)| time.is_none()));
    // One look-up for the first message; the others found the object in the cache.
    assert_eq!(fake.with(|inner| inner.resolved), 1);
    assert_eq!(intake.counters().messages(), 7);
    assert_eq!(intake.counters().readings(), 7);
}

#[test]
fn every_reason_of_a_message_counts_once_and_makes_no_object() {
    let deep = format!("{}1{}", "{\"v\":".repeat(200), "}".repeat(200));
    let large = format!("{{\"v\":1,\"x\":\"{}\"}}", "x".repeat(JSON_BYTES_MAX));
    let long_text = format!("{{\"v\":\"{}\",\"t\":{NOW_MS}}}", "x".repeat(64));
    let long_topic = format!("n/{}", "x".repeat(254));
    let future = format!("{{\"v\":1,\"t\":{}}}", NOW_MS + 60_001);
    let past = format!("{{\"v\":1,\"t\":{}}}", NOW_MS - 31 * 86_400_000);
    let cases: Vec<(&[u8], &[u8], Reason)> = vec![
        (b"n/\xff", b"1", Reason::InvalidUtf8),
        (b"n/1", b"\xff", Reason::InvalidUtf8),
        (b"j/1", b"{\"v\":\"\xff\"}", Reason::InvalidUtf8),
        (b"n/1", b"", Reason::PayloadInvalid),
        (b"n/1", b"  ", Reason::PayloadInvalid),
        (b"n/1", b"on", Reason::PayloadInvalid),
        (b"n/1", b"21,5", Reason::PayloadInvalid),
        (b"n/1", b"21.5 C", Reason::PayloadInvalid),
        (b"n/1", b"0x10", Reason::PayloadInvalid),
        (b"n/1", b"1_000", Reason::PayloadInvalid),
        (b"n/1", b"1\0", Reason::PayloadInvalid),
        (b"n/1", b"NaN", Reason::NotFinite),
        (b"n/1", b"-inf", Reason::NotFinite),
        (b"n/1", b"Infinity", Reason::NotFinite),
        (b"n/1", b"1e999", Reason::NotFinite),
        (b"x/1", b"1", Reason::TopicUnmatched),
        (b"", b"1", Reason::TopicUnmatched),
        (b"n/unknown", b"1", Reason::KeyUnknown),
        (long_topic.as_bytes(), b"1", Reason::KeyInvalid),
        (b"n/a\x01", b"1", Reason::KeyInvalid),
        // No broker has such a topic, but a key made of one would be a pattern.
        (b"n/+", b"1", Reason::KeyInvalid),
        (b"n/#", b"1", Reason::KeyInvalid),
        (b"l/a", b"m,t=+ v=1", Reason::KeyInvalid),
        (b"l/a", b"m,t=# v=1", Reason::KeyInvalid),
        (b"l/a", b"m,t=b/#/c v=1", Reason::KeyInvalid),
        (b"l/a", b"m +=1", Reason::KeyInvalid),
        ("n/\u{200b}a".as_bytes(), b"1", Reason::KeyInvalid),
        (b"l/a", "m,t=\u{202e}1 v=1".as_bytes(), Reason::KeyInvalid),
        (b"l/a", "m\u{feff},t=1 v=1".as_bytes(), Reason::KeyInvalid),
        (b"j/1", b"", Reason::JsonInvalid),
        (b"j/1", b"{\"v\":", Reason::JsonInvalid),
        (b"j/1", b"{\"v\":NaN,\"t\":1}", Reason::JsonInvalid),
        (b"j/1", deep.as_bytes(), Reason::JsonInvalid),
        (b"j/1", b"{\"t\":1}", Reason::JsonFieldMissing),
        (b"j/1", b"{\"v\":null,\"t\":1}", Reason::JsonFieldMissing),
        (b"j/1", b"{\"v\":{},\"t\":1}", Reason::JsonFieldMissing),
        (b"j/1", b"{\"v\":1}", Reason::JsonFieldMissing),
        (b"j/1", b"{\"v\":1,\"t\":true}", Reason::JsonFieldMissing),
        (b"k/1", b"{\"a\":1}", Reason::JsonFieldMissing),
        (b"k/1", b"[1]", Reason::JsonFieldMissing),
        (b"j/1", large.as_bytes(), Reason::Oversized),
        (b"j/1", long_text.as_bytes(), Reason::ValueTooLong),
        (b"j/1", b"{\"v\":1,\"t\":0}", Reason::TimeAbsurd),
        (b"j/1", b"{\"v\":1,\"t\":1e300}", Reason::TimeAbsurd),
        (b"j/1", b"{\"v\":1,\"t\":-1}", Reason::TimeAbsurd),
        (b"j/1", b"{\"v\":1,\"t\":\"yesterday\"}", Reason::TimeAbsurd),
        (b"j/1", future.as_bytes(), Reason::TimeAbsurd),
        (b"j/1", past.as_bytes(), Reason::TimeAbsurd),
        (b"l/1", b"", Reason::PayloadInvalid),
        (b"l/1", b"m", Reason::LineInvalid),
        (b"l/1", b"m v=\xff", Reason::InvalidUtf8),
    ];
    for (topic, payload, reason) in cases {
        let fake = Fake::new();
        fake.with(|inner| inner.unknown.push("n/unknown".to_owned()));
        let mut intake = intake(&fake);
        let what = format!(
            "{} {}",
            topic.escape_ascii(),
            payload[..payload.len().min(40)].escape_ascii()
        );
        assert_eq!(intake.mqtt(topic, payload), Outcome::Refused, "{what}");
        assert_eq!(refused(&intake), only(reason), "{what}");
        assert!(!intake.counters().excerpt(reason).is_empty(), "{what}");
        assert_eq!(intake.counters().messages(), 1);
        fake.with(|inner| assert!(inner.keys.is_empty() && inner.puts.is_empty(), "{what}"));
    }
}

#[test]
fn a_number_of_json_that_is_too_great_is_not_finite() {
    for (topic, payload) in [("j/a", "{\"v\":1e400}"), ("k/a", "{\"a\":{\"b\":-1e999}}")] {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        let outcome = intake.mqtt(topic.as_bytes(), payload.as_bytes());
        assert_eq!(outcome, Outcome::Refused);
        assert_eq!(refused(&intake), only(Reason::NotFinite), "{payload}");
    }
}

#[test]
fn a_mark_of_the_encoding_before_a_payload_is_left_out() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    for (topic, payload) in [
        ("k/a", "\u{feff}{\"a\":{\"b\":1}}"),
        ("n/a", "\u{feff}2.5\n"),
    ] {
        let outcome = intake.mqtt(topic.as_bytes(), payload.as_bytes());
        assert!(matches!(outcome, Outcome::Accepted { .. }), "{payload:?}");
    }
    // One mark, and no other invisible character.
    for payload in ["\u{feff}\u{feff}2.5", "2.5\u{feff}", "\u{a0}2.5"] {
        assert_eq!(intake.mqtt(b"n/a", payload.as_bytes()), Outcome::Refused);
    }
    assert_eq!(fake.texts().len(), 2);
}

#[test]
fn a_mark_of_the_encoding_before_a_line_is_left_out() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    for line in [
        "\u{feff}hall,room=1 v=1",
        "hall,room=1 v=2",
        "\u{feff}# a comment",
        "\u{feff}",
    ] {
        let outcome = intake.line(line.as_bytes());
        assert!(
            matches!(outcome, Outcome::Accepted { .. }),
            "{line:?}: {outcome:?}"
        );
    }
    assert_eq!(fake.texts(), ["hall/1/v=1", "hall/1/v=2"]);
    // Nor does it hide a comment from the search for the end of a line.
    let text = "\u{feff}# m=\"1\nhall v=3\n";
    assert_eq!(
        ingest::line::first_line_bytes(text.as_bytes()),
        text.find('\n')
    );
}

#[test]
fn json_fields_are_found_by_their_path() {
    let fake = Fake::new();
    let mut options = options();
    options.subscriptions = vec![
        topic_rule("whole", "{topic}", json("", None)),
        topic_rule("element", "{topic}", json("list.1.v", None)),
        topic_rule("+/at", "{1}", json("v", Some("at.ms"))),
        topic_rule("dots", "{topic}", json("\"temp.in\".\"v.1\"", None)),
        topic_rule("quote", "{topic}", json("\"a.b", None)),
    ];
    let mut intake = ingest::intake::Intake::new(options, fake.clone());
    for (topic, payload) in [
        (
            "dots",
            "{\"temp.in\":{\"v.1\":7},\"temp\":{\"in\":8}}".to_owned(),
        ),
        ("quote", "{\"\\\"a\":{\"b\":9}}".to_owned()),
        ("whole", "21.5".to_owned()),
        ("whole", " true ".to_owned()),
        ("whole", "\"o\\u00fcn\"".to_owned()),
        ("element", "{\"list\":[0,{\"v\":-3}]}".to_owned()),
        (
            "x/at",
            format!("{{\"v\":18446744073709551615,\"at\":{{\"ms\":{NOW_MS}}}}}"),
        ),
        ("x/at", format!("{{\"v\":1,\"at\":{{\"ms\":{NOW_MS}.75}}}}")),
        (
            "x/at",
            "{\"v\":1,\"at\":{\"ms\":\"2026-06-01T02:00:00.250+02:00\"}}".to_owned(),
        ),
    ] {
        let outcome = intake.mqtt(topic.as_bytes(), payload.as_bytes());
        assert!(matches!(outcome, Outcome::Accepted { .. }), "{payload}");
    }
    let texts = fake.texts();
    assert_eq!(
        texts[..7],
        [
            "dots=7",
            "quote=9",
            "whole=21.5",
            "whole=true",
            "whole=\"oün\"",
            "element=-3",
            "x=18446744073709551615u"
        ]
    );
    let times: Vec<Option<i64>> = fake.puts().iter().map(|put| put.2).collect();
    assert_eq!(times[..6], [None; 6]);
    assert_eq!(times[6..], [Some(NOW_MS), Some(NOW_MS), Some(NOW_MS + 250)]);
}

#[test]
fn an_untrusted_clock_refuses_only_impossible_times() {
    let fake = Fake::new();
    fake.with(|inner| inner.trusted = false);
    let mut intake = intake(&fake);
    let year = 365 * 86_400_000;
    for (time_ms, taken) in [
        (NOW_MS + year, true),
        (NOW_MS - year, true),
        (946_684_800_000, true),
        (946_684_799_999, false),
        (7_258_118_400_000, false),
    ] {
        let payload = format!("{{\"v\":1,\"t\":{time_ms}}}");
        let outcome = intake.mqtt(b"j/1", payload.as_bytes());
        assert_eq!(
            matches!(outcome, Outcome::Accepted { .. }),
            taken,
            "{time_ms}"
        );
    }
}

#[test]
fn templates_leave_out_empty_parts() {
    let cases: [(&str, &str, &str, Option<&str>); 10] = [
        ("{topic}", "l/a", "m v=1", Some("l/a")),
        ("{2}", "l/a/b", "m v=1", Some("a")),
        ("x/{3}/{2}", "l/a/b", "m v=1", Some("x/b/a")),
        ("x/{9}/{2}", "l/a/b", "m v=1", Some("x/a")),
        ("{9}", "l/a", "m v=1", None),
        ("{9}/{2}/{9}", "l/a", "m v=1", Some("a")),
        (
            "{measurement}/{tags}/{field}",
            "l",
            "m,z=1,b=2,a\\ b=3 v=1",
            Some("m/3/2/1/v"),
        ),
        ("{measurement}/{tags}/{field}", "l", "m v=1", Some("m/v")),
        (
            "{tag:room}.{tag:no}.{field}",
            "l",
            "m,room=b\\ 1 v=1",
            Some("b 1..v"),
        ),
        ("/{topic}", "l", "m v=1", Some("/l")),
    ];
    for (template, topic, line, key) in cases {
        let fake = Fake::new();
        let mut options = options();
        options.subscriptions = vec![topic_rule("#", template, PayloadKind::Line)];
        let mut intake = ingest::intake::Intake::new(options, fake.clone());
        intake.mqtt(topic.as_bytes(), line.as_bytes());
        let found = fake.puts().first().map(|put| put.0.clone());
        assert_eq!(found.as_deref(), key, "{template}");
    }
}

#[test]
fn templates_that_cannot_be_are_refused() {
    use TemplateKind::{Line, Topic, TopicAndLine};
    for (text, kind, reason) in [
        ("", Topic, "1 to 256"),
        ("{topic", Topic, "lacks its `}`"),
        ("topic}", Topic, "lacks its `{`"),
        ("{0}", Topic, "may hold"),
        ("{10}", Topic, "may hold"),
        ("{tag:}", Line, "may hold"),
        ("{field}", Topic, "make sense"),
        ("{1}", Line, "make sense"),
        ("a\nb", TopicAndLine, "control"),
        ("a/+/{field}", TopicAndLine, "`+` or `#` alone"),
        ("{topic}/#", Topic, "`+` or `#` alone"),
    ] {
        let error = Template::parse(text, kind).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let (topic, line) = ("{topic}", "{measurement}/{tags}/{field}");
    assert_eq!(Template::parse(topic, Topic).unwrap(), Template::topic());
    assert_eq!(Template::parse(line, Line).unwrap(), Template::line());
}

#[test]
fn each_line_of_a_message_counts_alone() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let payload =
        b"m v=1\n\n# note\r\nbroken\nm v=NaN\r\nm v=\xff\nm,a=b w=2i,x=t\r\n  \nm y=\"a b\" 5";
    let outcome = intake.mqtt(b"l/7", payload);
    assert_eq!(outcome, Outcome::Accepted { lsn_end: 3 });
    assert_eq!(fake.texts(), ["7/m/v=1", "7/m/b/w=2i", "7/m/b/x=true"]);
    let counters = intake.counters();
    assert_eq!(
        (counters.lines(), counters.readings(), counters.messages()),
        (6, 3, 1)
    );
    for reason in [
        Reason::LineInvalid,
        Reason::NotFinite,
        Reason::InvalidUtf8,
        Reason::TimeAbsurd,
    ] {
        assert_eq!(counters.refused(reason), 1, "{}", reason.name());
    }
    assert_eq!(
        intake.mqtt(b"l/7", b"# only this\n"),
        Outcome::Accepted { lsn_end: 0 }
    );
    assert_eq!(intake.mqtt(b"l/7", b"broken\n"), Outcome::Refused);
}

#[test]
fn a_reading_of_a_line_is_refused_alone() {
    let fake = Fake::new();
    fake.with(|inner| inner.unknown.push("m/b".to_owned()));
    let mut intake = intake(&fake);
    let line = format!("m a=1,b=2,c=\"{}\",d=4", "x".repeat(64));
    assert_eq!(
        intake.line(line.as_bytes()),
        Outcome::Accepted { lsn_end: 2 }
    );
    assert_eq!(fake.texts(), ["m/a=1", "m/d=4"]);
    assert_eq!(
        refused(&intake),
        BTreeMap::from([("key_unknown", 1), ("value_too_long", 1)])
    );
    assert_eq!(intake.line(b"m b=1"), Outcome::Refused);
    assert_eq!(intake.line(b""), Outcome::Accepted { lsn_end: 0 });
    assert_eq!(intake.line(b"#"), Outcome::Accepted { lsn_end: 0 });
}

#[test]
fn lines_have_limits_and_units() {
    let fake = Fake::new();
    let mut options = options();
    let mut intake = intake(&fake);
    let tags = |count| {
        (0..count)
            .map(|tag| format!(",t{tag}=1"))
            .collect::<String>()
    };
    let fields = |count| {
        let fields: Vec<String> = (0..count).map(|field| format!("f{field}=1")).collect();
        fields.join(",")
    };
    options.line_key = Template::parse("{measurement}", TemplateKind::Line).unwrap();
    intake.reload(options.clone());
    assert!(matches!(
        intake.line(format!("m{} f=1", tags(TAGS_MAX)).as_bytes()),
        Outcome::Accepted { .. }
    ));
    assert!(matches!(
        intake.line(format!("m {}", fields(FIELDS_MAX)).as_bytes()),
        Outcome::Accepted { .. }
    ));
    assert_eq!(
        intake.line(format!("m{} f=1", tags(TAGS_MAX + 1)).as_bytes()),
        Outcome::Refused
    );
    assert_eq!(
        intake.line(format!("m {}", fields(FIELDS_MAX + 1)).as_bytes()),
        Outcome::Refused
    );
    assert_eq!(refused(&intake), BTreeMap::from([("oversized", 2)]));
    for (precision, time) in [
        (Precision::Nanoseconds, NOW_MS * 1_000_000 + 999_999),
        (Precision::Microseconds, NOW_MS * 1000 + 999),
        (Precision::Milliseconds, NOW_MS),
        (Precision::Seconds, NOW_MS / 1000),
    ] {
        options.line_precision = precision;
        intake.reload(options.clone());
        intake.line(format!("m f=1 {time}").as_bytes());
        let exact = match precision {
            Precision::Nanoseconds => time,
            Precision::Microseconds => time * 1000,
            _ => NOW_MS * 1_000_000,
        };
        assert_eq!(fake.times_ns().last(), Some(&Some(exact)));
    }
    intake.line(format!("m f=1 {}", i64::MAX).as_bytes());
    assert_eq!(intake.counters().refused(Reason::TimeAbsurd), 1);
}

#[test]
fn no_reading_is_taken_twice_however_often_a_message_waits() {
    let payload = b"m a=1,b=2,c=3\nm d=4\nbroken\nm e=5,f=6";
    let expected = [
        "7/m/a=1", "7/m/b=2", "7/m/c=3", "7/m/d=4", "7/m/e=5", "7/m/f=6",
    ];
    for room in 0..6 {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        fake.with(|inner| inner.room = room);
        assert_eq!(
            offer(&mut intake, b"l/7", payload),
            Outcome::Accepted { lsn_end: 6 }
        );
        assert_eq!(fake.texts(), expected, "room for {room}");
        assert_eq!(intake.counters().refused_total(), 1);
        assert_eq!(intake.counters().lines(), 4);
        assert_eq!(intake.counters().messages(), 1);
    }
}

#[test]
fn readings_taken_before_a_wait_must_be_durable_too() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    fake.with(|inner| inner.room = 2);
    let outcome = intake.mqtt(b"l/7", b"m a=1\nm b=2,c=3\nbroken");
    assert_eq!(
        outcome,
        Outcome::Wait {
            consumed: 6,
            full: false
        }
    );
    // Nothing of the rest is accepted: the key of `c` has become unknown.
    fake.with(|inner| inner.unknown.push("7/m/c".to_owned()));
    intake.reload(options());
    let outcome = intake.mqtt(b"l/7", b"m b=2,c=3\nbroken");
    assert_eq!(outcome, Outcome::Accepted { lsn_end: 2 });
    assert_eq!(fake.texts(), ["7/m/a=1", "7/m/b=2"]);
}

#[test]
fn another_message_does_not_inherit_the_place_of_one_that_waits() {
    let rest = b"m a=1,b=2";
    for other in [
        (&b"l/8"[..], &rest[..]),
        (b"l/7", b"m a=1,b=3"),
        (b"l/7", b"m a=1,b=2\n"),
        (b"n/1", b"1"),
        (b"x", b""),
    ] {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        fake.with(|inner| inner.room = 1);
        let waits = Outcome::Wait {
            consumed: 0,
            full: false,
        };
        assert_eq!(intake.mqtt(b"l/7", rest), waits);
        intake.mqtt(other.0, other.1);
        let before = fake.puts().len();
        // The position is forgotten, so the whole of it is taken.
        assert_eq!(
            intake.mqtt(b"l/7", rest),
            Outcome::Accepted {
                lsn_end: before as u64 + 2
            }
        );
        assert_eq!(fake.texts()[before..], ["7/m/a=1", "7/m/b=2"]);
    }
    let fake = Fake::new();
    let mut intake = intake(&fake);
    fake.with(|inner| (inner.room, inner.full) = (1, true));
    assert_eq!(
        intake.line(rest),
        Outcome::Wait {
            consumed: 0,
            full: true
        }
    );
    intake.line(b"m z=1");
    intake.line(rest);
    assert_eq!(fake.texts(), ["m/a=1", "m/z=1", "m/a=1", "m/b=2"]);
}

#[test]
fn waiting_and_failure_of_single_readings_are_passed_on() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    for (topic, payload) in [
        (&b"n/1"[..], &b"1"[..]),
        (b"k/1", b"{\"a\":{\"b\":1}}"),
        (b"l/1", b"m v=1"),
    ] {
        fake.with(|inner| (inner.room, inner.full) = (0, true));
        let waits = Outcome::Wait {
            consumed: 0,
            full: true,
        };
        assert_eq!(intake.mqtt(topic, payload), waits);
        assert!(matches!(
            intake.mqtt(topic, payload),
            Outcome::Accepted { .. }
        ));
        fake.with(|inner| inner.failed = true);
        assert_eq!(intake.mqtt(topic, payload), Outcome::Failed);
        fake.with(|inner| inner.failed = false);
    }
    assert_eq!(fake.puts().len(), 3);
    assert_eq!(intake.counters().refused_total(), 0);
}

#[test]
fn two_hundred_thousand_refused_topics_leave_other_topics_alone() {
    let fake = Fake::new();
    fake.with(|inner| (inner.keys_max, inner.forget) = (10, true));
    let mut intake = intake(&fake);
    for number in 0..200_000 {
        let topic = format!("n/{number}");
        intake.mqtt(topic.as_bytes(), b"1");
    }
    assert_eq!(intake.counters().readings(), 10);
    assert_eq!(intake.counters().refused(Reason::KeysMax), 199_990);
    assert_eq!(intake.counters().excerpt(Reason::KeysMax), "n/199999: 1");
    // The first ones are still cached.
    let resolved = fake.with(|inner| inner.resolved);
    for number in 0..10 {
        intake.mqtt(format!("n/{number}").as_bytes(), b"2");
    }
    assert_eq!(fake.with(|inner| inner.resolved), resolved);
    assert_eq!(intake.counters().readings(), 20);
}

#[test]
fn topics_at_hand_are_limited_in_number_and_length() {
    let fake = Fake::new();
    let mut options = IntakeOptions {
        subscriptions: vec![topic_rule("n/+/#", "{2}", PayloadKind::Number)],
        topics_cached_max: 4,
        ..IntakeOptions::default()
    };
    let mut intake = ingest::intake::Intake::new(options.clone(), fake.clone());
    let resolved = || fake.with(|inner| inner.resolved);
    for number in 0..100 {
        // All have the same key.
        intake.mqtt(format!("n/a/{number}").as_bytes(), b"1");
    }
    assert_eq!(resolved(), 100);
    intake.mqtt(b"n/a/99", b"1");
    assert_eq!(resolved(), 100);
    let long = format!("n/a/{}", "x".repeat(TOPIC_CACHED_BYTES_MAX));
    intake.mqtt(long.as_bytes(), b"1");
    intake.mqtt(long.as_bytes(), b"1");
    assert_eq!(resolved(), 102);
    assert_eq!(fake.with(|inner| inner.keys.len()), 1);
    // A reload clears the cache, and the new rules apply.
    options.subscriptions = vec![topic_rule("n/#", "{1}", PayloadKind::Number)];
    options.topics_cached_max = 0;
    intake.reload(options);
    intake.mqtt(b"n/a/99", b"1");
    assert_eq!(fake.with(|inner| inner.keys.clone()), ["a", "n"]);
    assert_eq!(intake.counters().readings(), 104);
}

#[test]
fn readings_taken_of_a_message_count_after_a_reload_that_refuses_its_rest() {
    let lines = topic_rule("t", "{measurement}/{field}", PayloadKind::Line);
    let with = |subscriptions: &[SubscriptionRule]| IntakeOptions {
        subscriptions: subscriptions.to_vec(),
        ..IntakeOptions::default()
    };
    let begun = |room: usize, payload: &[u8], consumed: usize| {
        let fake = Fake::new();
        fake.with(|inner| inner.room = room);
        let mut intake =
            ingest::intake::Intake::new(with(std::slice::from_ref(&lines)), fake.clone());
        let wait = Outcome::Wait {
            consumed,
            full: false,
        };
        assert_eq!(intake.mqtt(b"t", payload), wait);
        (fake, intake)
    };
    // The subscription is removed.
    let (_, mut intake) = begun(1, b"m a=1\nm b=2\n", 6);
    intake.reload(with(&[]));
    let accepted = Outcome::Accepted { lsn_end: 1 };
    assert_eq!(intake.mqtt(b"t", b"m b=2\n"), accepted);
    assert_eq!(intake.counters().refused(Reason::TopicUnmatched), 1);
    // This affects that message alone.
    assert_eq!(intake.mqtt(b"t", b"m b=2\n"), Outcome::Refused);
    // The same within a line.
    let (_, mut intake) = begun(1, b"m a=1,b=2", 0);
    intake.reload(with(&[topic_rule("t", "{topic}", PayloadKind::Number)]));
    assert_eq!(intake.mqtt(b"t", b"m a=1,b=2"), accepted);
    // The rest must wait once more before other rules refuse it.
    let (fake, mut intake) = begun(1, b"m a=1\nm b=2", 6);
    fake.with(|inner| inner.room = 0);
    let wait = Outcome::Wait {
        consumed: 0,
        full: false,
    };
    assert_eq!(intake.mqtt(b"t", b"m b=2"), wait);
    intake.reload(with(&[]));
    assert_eq!(intake.mqtt(b"t", b"m b=2"), accepted);
    assert_eq!(fake.texts(), ["m/a=1"]);
}

#[test]
fn the_first_subscription_that_fits_decides() {
    let fake = Fake::new();
    let options = IntakeOptions {
        subscriptions: vec![
            topic_rule("a/+", "first", PayloadKind::Number),
            topic_rule("#", "second", PayloadKind::Number),
        ],
        ..IntakeOptions::default()
    };
    let mut intake = ingest::intake::Intake::new(options, fake.clone());
    intake.mqtt(b"a/b", b"1");
    intake.mqtt(b"a/b/c", b"2");
    assert_eq!(fake.texts(), ["first=1", "second=2"]);
}

#[test]
fn messages_of_a_shared_subscription_find_their_rule() {
    let fake = Fake::new();
    let options = IntakeOptions {
        subscriptions: vec![topic_rule("$share/nodes/a/+", "{2}", PayloadKind::Number)],
        ..IntakeOptions::default()
    };
    let mut intake = ingest::intake::Intake::new(options, fake.clone());
    assert_eq!(intake.mqtt(b"a/b", b"1"), Outcome::Accepted { lsn_end: 1 });
    assert_eq!(intake.mqtt(b"b/b", b"1"), Outcome::Refused);
    assert_eq!(fake.texts(), ["b=1"]);
}

#[test]
fn an_old_retained_message_does_not_look_fresh() {
    let rules = |retained| {
        let kinds = [
            ("n/+", PayloadKind::Number),
            ("j/+", json("v", Some("t"))),
            ("k/+", json("v", None)),
            ("l/+", PayloadKind::Line),
        ];
        let rule = |(filter, payload)| SubscriptionRule {
            retained,
            ..topic_rule(filter, "{topic}", payload)
        };
        IntakeOptions {
            subscriptions: kinds.map(rule).to_vec(),
            ..IntakeOptions::default()
        }
    };
    let messages: [(&[u8], &[u8]); 5] = [
        (b"n/1", b"1"),
        (b"k/1", b"{\"v\": 2}"),
        (b"j/2", b"{\"v\": 3, \"t\": 1780272000000}"),
        (b"l/1", b"m v=4"),
        (b"l/2", b"m v=5 1780272000000000000"),
    ];
    let timed = ["j/2=3", "l/2=5"];
    for (retained, taken, untimed, skipped) in [
        (Retained::Timed, &timed[..], 3, 0),
        (
            Retained::Take,
            &["n/1=1", "k/1=2", "j/2=3", "l/1=4", "l/2=5"][..],
            0,
            0,
        ),
        (Retained::Skip, &[][..], 0, 5),
    ] {
        let fake = Fake::new();
        let mut intake = ingest::intake::Intake::new(rules(retained), fake.clone());
        for (topic, payload) in messages {
            intake.mqtt_retained(topic, payload);
        }
        assert_eq!(fake.texts(), taken, "{retained:?}");
        let counters = intake.counters();
        let counted = (
            counters.refused(Reason::RetainedUntimed),
            counters.retained_skipped(),
        );
        assert_eq!(counted, (untimed, skipped), "{retained:?}");
        assert_eq!(counters.refused_total(), untimed);
        let marked = fake.with(|inner| inner.retained);
        assert_eq!(
            (marked, counters.retained_taken()),
            (taken.len() as u64, taken.len() as u64)
        );
        // Each rule takes messages that arrive when they are published.
        intake.mqtt(b"n/1", b"6");
        assert_eq!(fake.texts().last().map(String::as_str), Some("n/1=6"));
        assert_eq!(fake.with(|inner| inner.retained), marked);
    }
}

/// Bytes that resemble payloads enough to reach every branch.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 15] = [
        b"m,a=b ",
        b"v=1",
        b"{\"v\":",
        b"}",
        b"\"t\":",
        b"1780272000000",
        b",",
        b"\n",
        b"\r\n",
        b"\"",
        b"\\",
        b"\xff",
        b"#",
        b" ",
        b"NaN",
    ];
    let piece = prop::sample::select(&PIECES[..]);
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![payload(), prop::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_messages_are_accounted_for(
        messages in prop::collection::vec((0..6_usize, message()), 1..10),
        room in 0..5_usize,
    ) {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        for (topic, payload) in &messages {
            fake.with(|inner| inner.room = room);
            let topic = [&b"n/1"[..], b"j/1", b"k/1", b"l/1", b"zz", b"\xff"][*topic];
            let before = (fake.puts().len(), intake.counters().refused_total());
            let outcome = offer(&mut intake, topic, payload);
            let grown = fake.puts().len() - before.0;
            match outcome {
                Outcome::Accepted { lsn_end } if grown > 0 => {
                    prop_assert_eq!(lsn_end, fake.with(|inner| inner.next_lsn));
                }
                Outcome::Accepted { lsn_end } => prop_assert_eq!(lsn_end, 0),
                Outcome::Refused => {
                    prop_assert_eq!(grown, 0);
                    prop_assert!(intake.counters().refused_total() > before.1);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(intake.counters().messages(), messages.len() as u64);
        prop_assert_eq!(intake.counters().readings(), fake.puts().len() as u64);
    }

    #[test]
    fn a_wait_at_any_reading_changes_nothing(payload in payload(), rooms in prop::collection::vec(0..4_usize, 0..6)) {
        let (plain, halting) = (Fake::new(), Fake::new());
        let mut one = intake(&plain);
        let mut other = intake(&halting);
        let first = offer(&mut one, b"l/1", &payload);
        let mut rest = &payload[..];
        let mut rooms = rooms.into_iter();
        let second = loop {
            halting.with(|inner| inner.room = rooms.next().unwrap_or(usize::MAX));
            match other.mqtt(b"l/1", rest) {
                Outcome::Wait { consumed, .. } => {
                    let at = payload.len() - rest.len() + consumed;
                    prop_assert!(at == 0 || payload[at - 1] == b'\n');
                    rest = &rest[consumed..];
                }
                outcome => break outcome,
            }
        };
        prop_assert_eq!(first, second);
        prop_assert_eq!(plain.texts(), halting.texts());
        prop_assert_eq!(refused(&one), refused(&other));
        prop_assert_eq!(one.counters().lines(), other.counters().lines());
    }
}
