//! What sensors really send: each test has the name of what the program once did with the input that it sends.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, run_with_input};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// Sends lines and returns the answer to them.
fn send(node: &Node, lines: &str) -> String {
    let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    (&stream)
        .write_all(format!("{lines}\n\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// Returns what a node would make of a message at the topic `s/a`: readings with key, value and type, and reasons.
fn made(subscribe: &str, payload: &str) -> (Vec<Value>, Vec<String>) {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let config = format!(
        "[mqtt]\naddress = \"h:1\"\nclient_id = \"k\"\n[[mqtt.subscribe]]\nfilter = \"s/+\"\n{subscribe}\n"
    );
    std::fs::write(&file, config).unwrap();
    let path = file.to_str().unwrap();
    let arguments = ["config", "try", "-c", path, "s/a", "-", "--json"];
    let output = run_with_input(&arguments, payload.as_bytes());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let readings = found["readings"].as_array().unwrap().iter();
    let refusals = found["refusals"].as_array().unwrap().iter();
    (
        readings
            .map(|one| json!([one["key"], one["value"], one["type"]]))
            .collect(),
        refusals
            .map(|one| one["reason"].as_str().unwrap().to_owned())
            .collect(),
    )
}

/// `{values}` as the default makes it red.
#[test]
fn two_tag_sets_are_two_series() {
    let lines = "disk,device=sda1 used=1\ndisk,path=sda1 used=2";
    let node = Node::start(SMALL);
    assert_eq!(send(&node, lines), "ok 2 0\n");
    assert_eq!(node.ok(&["get", "disk/device=sda1/used"]), "1\n");
    assert_eq!(node.ok(&["get", "disk/path=sda1/used"]), "2\n");
    // A template of the operator that gives both one key: the second is refused, and both are named.
    let template = "key = \"{measurement}/{values}/{field}\"\n";
    let node = Node::start(&format!("{SMALL}{template}"));
    assert_eq!(send(&node, lines), "ok 1 1\n");
    assert_eq!(node.ok(&["history", "disk/sda1/used"]).lines().count(), 1);
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["intake"]["refused"]["key_shared"], 1);
    let told = status["intake"]["refused_last"]["key_shared"].to_string();
    for line in ["disk,device=sda1 used", "disk,path=sda1 used"] {
        assert!(told.contains(line), "{told}");
    }
}

/// 64 as `KEY_BYTES_MAX` makes it red.
#[test]
fn a_line_with_four_tags_was_refused() {
    let line = "cpu,host=gw-14.site-7.example.net,cpu=cpu-total,region=north,rack=rack-00012 usage_guest_nice=0.5";
    let node = Node::start(SMALL);
    assert_eq!(send(&node, line), "ok 1 0\n");
    let key = "cpu/cpu=cpu-total/host=gw-14.site-7.example.net/rack=rack-00012/region=north/usage_guest_nice";
    assert_eq!(node.ok(&["get", key]), "0.5\n");
    // A key of the greatest length, and one above it.
    let field = "f".repeat(255 - "m/".len());
    assert_eq!(
        send(&node, &format!("m {field}=1\nm {field}f=1")),
        "ok 1 1\n"
    );
    assert_eq!(node.ok(&["get", &format!("m/{field}")]), "1\n");
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["intake"]["refused"]["key_invalid"], 1);
}

/// A line that ends at each line feed makes it red.
#[test]
fn a_line_break_in_a_text_made_two_refused_lines() {
    let node = Node::start(SMALL);
    let lines = "log,app=x msg=\"first\nsecond\"\nm v=1";
    assert_eq!(send(&node, lines), "ok 2 0\n");
    let found = node.json_degraded(&["get", "log/app=x/msg", "--json"]);
    assert_eq!(found["value"], "first\nsecond");
    // A quote where none belongs costs its line alone.
    assert_eq!(send(&node, "m v=1\"\nm v=2\nm,t=\"a v=3"), "ok 2 1\n");
    // The sender of a text also chooses its length. So no line is read out of a text that is too long.
    let node = Node::start(&format!("{SMALL}line_bytes_max = 1024\n"));
    let long = "x".repeat(2000);
    let lines = format!("log msg=\"first\nboiler,unit=1 temperature=999\n{long}\"");
    assert_eq!(send(&node, &lines), "error text_open\n");
    node.fails(&["get", "boiler/unit=1/temperature"], 1);
}

/// The bug `integer-through-double` makes it red.
#[test]
fn an_integer_of_json_was_rounded() {
    let one = "payload = \"json\"\njson_field = \"v\"";
    let of =
        |more: &str, value: &str| made(&format!("{one}\n{more}"), &format!("{{\"v\": {value}}}"));
    let none = Vec::<String>::new();
    let is = |value: Value, kind: &str| (vec![json!(["s/a", value, kind])], none.clone());
    assert_eq!(
        of("", "9007199254740993"),
        is(json!(9_007_199_254_740_993_u64), "integer")
    );
    assert_eq!(
        of("", "18446744073709551615"),
        is(json!(u64::MAX), "unsigned")
    );
    // What a double holds exactly stays one, so that these are one type.
    assert_eq!(of("", "21"), is(json!(21.0), "float"));
    assert_eq!(of("", "21.5"), is(json!(21.5), "float"));
    assert_eq!(of("type = \"integer\"", "21"), is(json!(21), "integer"));
    for (more, value) in [("", "18446744073709551617"), ("type = \"integer\"", "1e20")] {
        let refused = (Vec::new(), vec!["number_inexact".to_owned()]);
        assert_eq!(of(more, value), refused);
    }
}

/// A message that is one reading makes it red.
#[test]
fn several_fields_of_a_message_are_readings() {
    let payload = r#"{"temperature": 21.5, "humidity": 40, "battery": {"percent": 97}, "update": {"state": "idle"}}"#;
    let of = |fields: &str| {
        made(
            &format!("payload = \"json\"\njson_fields = {fields}"),
            payload,
        )
        .0
    };
    let temperature = json!(["s/a/temperature", 21.5, "float"]);
    let battery = json!(["s/a/battery/percent", 97.0, "float"]);
    let humidity = json!(["s/a/humidity", 40.0, "float"]);
    let update = json!(["s/a/update/state", "idle", "text"]);
    assert_eq!(
        of("[\"*\"]"),
        [&battery, &humidity, &temperature, &update].map(Clone::clone)
    );
    assert_eq!(
        of("[\"*\", \"!update\"]"),
        [&battery, &humidity, &temperature].map(Clone::clone)
    );
    assert_eq!(of("[\"temperature\"]"), [temperature]);
}

/// Any of the kinds read as `auto` makes it red.
#[test]
fn values_in_texts_are_taken() {
    let one = |subscribe: &str, payload: &str| {
        let (readings, refused) = made(subscribe, payload);
        assert_eq!(refused, Vec::<String>::new(), "{payload}");
        assert_eq!(readings.len(), 1, "{payload}");
        (readings[0][1].clone(), readings[0][2].clone())
    };
    let json = "payload = \"json\"\njson_field = \"v\"\n";
    let value = "payload = \"value\"\n";
    let number = "type = \"number\"";
    let door =
        "type = \"bool\"\nwords_true = [\"ON\", \"open\"]\nwords_false = [\"OFF\", \"closed\"]";
    for (subscribe, payload, expected) in [
        (format!("{json}{number}"), "{\"v\": \"21.5\"}", json!(21.5)),
        (format!("{json}{door}"), "{\"v\": \"ON\"}", json!(true)),
        (format!("{value}{door}"), "ON", json!(true)),
        (format!("{value}{door}"), "open", json!(true)),
        (
            format!("{value}{number}\nunit_ignored = [\"°C\"]"),
            "21.5 °C",
            json!(21.5),
        ),
        (
            format!("{value}{number}\ndecimal_comma = true"),
            "21,5",
            json!(21.5),
        ),
        (format!("{value}{number}"), "0x1F", json!(31.0)),
        (format!("{value}type = \"text\""), "0x1F", json!("0x1F")),
    ] {
        assert_eq!(
            one(&subscribe, payload).0,
            expected,
            "{subscribe}: {payload}"
        );
    }
    // What does not fit is refused, and never guessed.
    for payload in ["70 °F", "ON", "1.234,5"] {
        let (readings, refused) = made(&format!("{value}{number}"), payload);
        assert_eq!(
            (readings.len(), refused),
            (0, vec!["payload_invalid".to_owned()]),
            "{payload}"
        );
    }
}

/// `Time::from_ms` in the intake of lines makes it red.
#[test]
fn nanoseconds_of_lines_are_kept() {
    let node = Node::start(SMALL);
    // Two readings of a sensor at 10 kHz.
    let lines = "m v=1 1700000000123456789\nm v=2 1700000000123556789";
    assert_eq!(send(&node, lines), "ok 2 0\n");
    let history = node.json(&["history", "m/v", "--json"]);
    let times: Vec<&Value> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["time_ns"])
        .collect();
    assert_eq!(times, ["1700000000123456789", "1700000000123556789"]);
    let lines = node.ok(&["export", "--format", "line", "m/v"]);
    assert_eq!(
        lines,
        "keel,key=m/v value=1 1700000000123456789\nkeel,key=m/v value=2 1700000000123556789\n"
    );
}

/// A backslash that escapes another one in a tag makes it red.
#[test]
fn two_backslashes_in_a_tag_stay_two() {
    let node = Node::start(SMALL);
    let lines = "share,path=\\\\nas\\vol v=1\ncpu,regions=\\\\ east v=2\nlog msg=\"a\\\\b\\c\\\"\"";
    assert_eq!(send(&node, lines), "ok 3 0\n");
    assert_eq!(node.ok(&["get", "share/path=\\\\nas\\vol/v"]), "1\n");
    assert_eq!(node.ok(&["get", "cpu/regions=\\ east/v"]), "2\n");
    // In a text a backslash escapes a quote and itself alone.
    let found = node.json_degraded(&["get", "log/msg", "--json"]);
    assert_eq!(found["value"], "a\\b\\c\"");
}

/// `check_key` without its check of levels makes it red.
#[test]
fn a_wildcard_was_taken_as_a_key() {
    let template = "key = \"{measurement}/{values}/{field}\"\n";
    let node = Node::start(&format!("{SMALL}{template}"));
    for key in ["#", "a/+", "a/#/b", "+"] {
        let line = node.fails(&["put", key, "1"], 1);
        assert!(line.contains("is no key"), "{line}");
    }
    assert_eq!(
        send(&node, "m,t=+ v=1\nm,t=# v=1\nm,t=c++ v=1\nm,t=#1 v=1"),
        "ok 2 2\n"
    );
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["intake"]["refused"]["key_invalid"], 6);
    for key in ["c++", "#1"] {
        node.ok(&["put", key, "5"]);
        assert_eq!(node.ok(&["get", key]), "5\n");
        assert_eq!(node.ok(&["get", &format!("m/{key}/v")]), "1\n");
    }
}

/// A key with the mark in it, or one that looks like another, makes it red.
#[test]
fn a_byte_order_mark_became_part_of_a_key() {
    let node = Node::start(SMALL);
    assert_eq!(send(&node, "\u{feff}m v=1"), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "m/v"]), "1\n");
    // Zero-width space, word joiner, mark that turns the direction of writing, soft hyphen, the mark elsewhere.
    for letter in ["\u{200b}", "\u{2060}", "\u{202e}", "\u{ad}", "\u{feff}"] {
        let line = node.fails(&["put", &format!("a{letter}"), "1"], 1);
        assert!(line.contains("is no key"), "{line}");
        assert_eq!(send(&node, &format!("a{letter} v=1")), "ok 0 1\n");
    }
    let (readings, _) = made("payload = \"number\"", "\u{feff}21.5");
    assert_eq!(readings, [json!(["s/a", 21.5, "float"])]);
}
