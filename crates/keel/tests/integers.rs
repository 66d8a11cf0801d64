//! Integers: each of their digits comes through every way into a node, and out of it. C and Python have tests of their
//! own, as has what an upstream and a broker get.

use crate::common::http::{Events, HTTP, address, get, json};
use crate::common::node::{Node, PUT, STORED};
use libkeel::{Owned, Value};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Around 2^53, and the ends of both types.
const NUMBERS: [i128; 13] = [
    i64::MIN as i128,
    i64::MIN as i128 + 1,
    -EXACT - 1,
    -EXACT,
    -EXACT + 1,
    EXACT - 1,
    EXACT,
    EXACT + 1,
    EXACT + 2,
    i64::MAX as i128,
    i64::MAX as i128 + 1,
    u64::MAX as i128 - 1,
    u64::MAX as i128,
];
/// Up to this magnitude a double holds every whole number.
const EXACT: i128 = 1 << 53;
const LONG: Duration = Duration::from_secs(60);

/// The number and the type that each key must have.
type Expected = BTreeMap<String, (i128, &'static str)>;

/// Returns the integer type that holds a number.
fn kind_of(number: i128) -> &'static str {
    match i64::try_from(number) {
        Ok(_) => "integer",
        Err(_) => "unsigned",
    }
}

fn value_of(number: i128) -> Value<'static> {
    match i64::try_from(number) {
        Ok(number) => Value::Integer(number),
        Err(_) => Value::Unsigned(number.try_into().unwrap()),
    }
}

/// Puts every number by every way.
fn put_all(node: &Node) -> Expected {
    let mut expected = Expected::new();
    let mut lines = String::new();
    let mut raw = node.connect();
    let client = libkeel::Node::attach(node.socket()).unwrap();
    for (at, number) in NUMBERS.into_iter().enumerate() {
        let integer = kind_of(number);
        // What clients put as an integer becomes a double where every double is exact.
        let of_client = match number.unsigned_abs() <= EXACT.unsigned_abs() {
            true => "float",
            false => integer,
        };
        // What is written without a type becomes a double where this one is exact.
        let of_text = match number as f64 as i128 == number {
            true => "float",
            false => integer,
        };
        let mut expect = |way: &str, kind| {
            let key = format!("{way}/n{at}");
            expected.insert(key.clone(), (number, kind));
            key
        };
        let (measurement, letter) = match integer {
            "integer" => ("signed", 'i'),
            _ => ("unsigned", 'u'),
        };
        expect(measurement, integer);
        lines += &format!("{measurement} n{at}={number}{letter}\n");
        node.ok(&["put", &expect("put", of_client), &number.to_string()]);
        let typed = expect("put-integer", integer);
        node.ok(&["put", &typed, &number.to_string(), "--integer"]);
        let client_key = client.key(&expect("client", of_client)).unwrap();
        let ticket = client.put(&client_key, value_of(number), None).unwrap();
        ticket.wait(LONG).unwrap();
        for (key, value) in [
            (expect("plain", of_text), format!("{number}")),
            (
                expect("typed", integer),
                format!("{number},\"type\":\"{integer}\""),
            ),
            (
                expect("text", integer),
                format!("\"{number}\",\"type\":\"{integer}\""),
            ),
        ] {
            let message: Json =
                serde_json::from_str(&format!("{{\"key\":\"{key}\",\"value\":{value}}}")).unwrap();
            assert_eq!(raw.ask(PUT, &message).0, STORED, "{message}");
        }
    }
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(format!("{lines}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, format!("ok {} 0\n", NUMBERS.len()));
    expected
}

/// Checks the number of a text.
fn check_text(at: &str, text: &str, (number, kind): (i128, &str)) {
    match kind {
        "float" => assert_eq!(text.parse::<f64>().unwrap() as i128, number, "{at}: {text}"),
        _ => assert_eq!(text, number.to_string(), "{at}"),
    }
}

/// Checks `value` and `value_text` of an object.
fn check_json(at: &str, found: &Json, expected: (i128, &str)) {
    let (number, kind) = expected;
    assert_eq!(found["type"], kind, "{at}: {found}");
    check_text(at, &found["value"].to_string(), expected);
    let is_beyond = number.unsigned_abs() > EXACT.unsigned_abs();
    let digits = is_beyond.then(|| Json::from(number.to_string()));
    assert_eq!(found.get("value_text"), digits.as_ref(), "{at}: {found}");
}

/// Checks that a list has the latest value of each key.
fn check_latest(way: &str, list: &[Json], expected: &Expected) {
    let found: BTreeMap<&str, &Json> = list
        .iter()
        .map(|one| (one["key"].as_str().unwrap(), one))
        .collect();
    assert!(found.keys().eq(expected.keys()), "{way}: {found:?}");
    for (key, wanted) in expected {
        check_json(&format!("{way}: {key}"), found[key.as_str()], *wanted);
    }
}

/// Returns what `keel watch` shows of the current values.
fn watched(node: &Node, expected: &Expected) -> Vec<Json> {
    let count = expected.len().to_string();
    let text = node.ok(&["watch", "#", "--current", "--count", &count, "--json"]);
    let values = serde_json::Deserializer::from_str(&text).into_iter();
    values.map(Result::unwrap).collect()
}

/// Checks rows of `keel export` in both forms.
fn check_exports(node: &Node, more: &[&str], expected: &Expected) {
    let csv = node.ok(&[&["export", "--format", "csv"][..], more].concat());
    assert_eq!(csv.lines().count(), expected.len() + 1, "{csv}");
    for row in csv.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let wanted = expected[fields[0]];
        assert_eq!(fields[4], wanted.1, "{row}");
        check_text(row, fields[3], wanted);
    }
    let lines = node.ok(&[&["export", "--format", "line"][..], more].concat());
    assert_eq!(lines.lines().count(), expected.len(), "{lines}");
    for line in lines.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        let key = parts[0].strip_prefix("keel,key=").unwrap();
        let (number, kind) = expected[key];
        let value = parts[1].strip_prefix("value=").unwrap();
        let digits = match kind {
            "integer" => value.strip_suffix('i').unwrap(),
            "unsigned" => value.strip_suffix('u').unwrap(),
            _ => value,
        };
        check_text(line, digits, (number, kind));
    }
}

/// The bug `integer-through-double`, `as f64` in `encode_put`, or an answer without `value_text` makes it red.
#[test]
fn each_digit_of_an_integer_comes_through_every_way() {
    let mut node = Node::start(HTTP);
    let expected = put_all(&node);
    let address = address(&node);

    // The latest values.
    check_latest("watch", &watched(&node, &expected), &expected);
    let values = json(&address, "/api/v1/values");
    check_latest("http", values["values"].as_array().unwrap(), &expected);
    for (key, wanted) in &expected {
        if key.starts_with("typed/") {
            let one = json(&address, &format!("/api/v1/values/{key}"));
            check_json(key, &one, *wanted);
            assert_eq!(node.ok(&["get", key]), format!("{}\n", wanted.0));
            check_json(key, &node.json(&["get", key, "--json"]), *wanted);
        }
    }
    let mut missing = expected.clone();
    let mut events = Events::begin(&address, "/api/v1/stream", "");
    events.until("every value", |event, data| {
        let shown = data["values"].as_object().filter(|_| event == "values");
        for (key, one) in shown.into_iter().flatten() {
            let Some((number, kind)) = missing.remove(key) else {
                continue;
            };
            check_text(key, &one[0].to_string(), (number, kind));
            let is_beyond = number.unsigned_abs() > EXACT.unsigned_abs();
            let digits = is_beyond.then(|| Json::from(number.to_string()));
            assert_eq!(one.get(2), digits.as_ref(), "{key}: {one}");
        }
        missing.is_empty()
    });
    let client = libkeel::Node::attach(node.socket()).unwrap();
    for (key, (number, kind)) in &expected {
        let found = match client.key(key).unwrap().read().unwrap().0 {
            Owned::Float(found) => (found as i128, "float"),
            Owned::Integer(found) => (found.into(), "integer"),
            Owned::Unsigned(found) => (found.into(), "unsigned"),
            other => panic!("{key}: {other:?}"),
        };
        assert_eq!(found, (*number, *kind), "{key}");
    }

    // The history.
    check_exports(&node, &[], &expected);
    for (key, wanted) in expected.iter().filter(|(key, _)| key.starts_with("text/")) {
        let history = node.json(&["history", key, "--json"]);
        check_json(key, &history[0], *wanted);
        let csv = node.ok(&["history", key, "--csv"]);
        let row: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
        check_text(&csv, row[2], *wanted);
        let path = format!("/api/v1/readings?key={key}");
        let lines = get(&address, &path);
        let line = serde_json::from_str(lines.text().lines().next().unwrap()).unwrap();
        check_json(key, &line, *wanted);
        let csv = get(&address, &format!("{path}&format=csv"));
        let row: Vec<&str> = csv.text().lines().nth(1).unwrap().split(',').collect();
        check_text(csv.text(), row[1], *wanted);
    }

    // What the store has.
    drop((events, client));
    assert!(node.stop().success());
    check_exports(&node, &["--image", "keel-data/store.img"], &expected);
    node.restart();
    check_latest("restarted", &watched(&node, &expected), &expected);
}

/// Storing the nearest number instead makes it red.
#[test]
fn integers_beyond_every_type_are_refused_with_the_reason() {
    let node = Node::start(HTTP);
    let mut raw = node.connect();
    for (value, wrong) in [
        ("18446744073709551617", "no type holds each digit"),
        ("-9223372036854775809", "no type holds each digit"),
        (
            "9223372036854775808,\"type\":\"integer\"",
            "no type holds each digit",
        ),
        ("-1,\"type\":\"unsigned\"", "no type holds each digit"),
        ("21.5,\"type\":\"integer\"", "another type"),
        ("\"open\",\"type\":\"integer\"", "another type"),
        ("true,\"type\":\"float\"", "another type"),
    ] {
        let message = format!("{{\"key\":\"a\",\"value\":{value}}}");
        raw.stream
            .write_all(&crate::common::node::frame(PUT, 1, message.as_bytes()))
            .unwrap();
        let (_, failure) = raw.answer().unwrap();
        assert_eq!(failure["code"], "invalid", "{failure}");
        let told = failure["wrong"].as_str().unwrap();
        assert!(told.contains(wrong), "{value}: {told}");
    }
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["intake"]["refused"]["number_inexact"], 4);
    assert_eq!(status["intake"]["refused"]["payload_invalid"], 3);
    // A refused value makes no key.
    node.fails(&["get", "a"], 1);
    for value in ["18446744073709551617", "-9223372036854775809"] {
        let line = node.fails(&["put", "a", value], 2);
        assert!(
            line.contains("has digits that no type of number holds"),
            "{line}"
        );
    }
    let line = node.fails(&["put", "a", "21.5", "--integer"], 2);
    assert!(line.contains("is no integer of 64 bits"), "{line}");
    node.fails(&["put", "a", "5", "--integer", "--text"], 2);
}
