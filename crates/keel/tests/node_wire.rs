//! The node's socket as NODE.md specifies it, tested byte by byte: malformed input harms only its own connection.

use crate::common;
use crate::common::node::{
    BACKUP_BEGUN, END, ERROR, GET, HISTORY, KEY_LIST, KEYS_RELEASE, Node, PUT, QOS_STATE, READINGS,
    Raw, SMALL, STATE, STATUS, STORED, TASK, TASK_DECLARED, TOGETHER, UPDATES, VALUE, WATCH, frame,
};
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// Checks that the node still answers other clients.
fn is_well(node: &Node) {
    let (kind, _) = node.connect().ask(PUT, &json!({"key": "well", "value": 1}));
    assert_eq!(kind, STORED);
}

/// Sends bytes on a separate connection. Returns the error, and whether the connection then ends.
fn refused(node: &Node, bytes: &[u8]) -> (serde_json::Value, bool) {
    let mut raw = node.connect();
    raw.stream.write_all(bytes).unwrap();
    let (kind, error) = raw.answer().expect("an error");
    assert_eq!(kind, ERROR, "{error}");
    for field in ["code", "thing", "wrong", "remedy"] {
        assert!(error[field].is_string(), "{error}");
    }
    // A connection that continues answers the next request.
    let next = frame(STATUS, 1, b"{}");
    let goes_on = raw.stream.write_all(&next).is_ok() && raw.answer().is_some();
    (error, !goes_on)
}

#[test]
fn the_socket_is_for_user_and_group() {
    let node = Node::start(SMALL);
    let mode = std::fs::metadata(node.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn requests_that_make_no_sense_are_told_so() {
    let node = Node::start(SMALL);
    let many = serde_json::to_vec(&json!({"keys": vec!["a"; 201]})).unwrap();
    let cases: [(u16, u16, &[u8], &str); 23] = [
        (0, 1, b"{}", "unsupported"),
        (6, 1, b"{}", "invalid"),
        (7, 1, b"{\"id\":1}", "invalid"),
        (8, 1, b"{\"mode\":\"fast\"}", "invalid"),
        (8, 1, b"{\"mode\":\"mimo\"}", "unsupported"),
        (8, 1, b"{\"tardiness\":0.5}", "unsupported"),
        (9, 1, b"{\"puts\":[],\"deadline_ns\":1}", "invalid"),
        (99, 1, b"{}", "unsupported"),
        (VALUE, 1, b"{}", "unsupported"),
        (0xffff, 9, b"", "unsupported"),
        (GET, 0, b"{\"key\":\"a\"}", "unsupported"),
        (GET, 2, b"{\"key\":\"a\"}", "unsupported"),
        (GET, 1, b"", "invalid"),
        (GET, 1, b"{}", "invalid"),
        (GET, 1, b"{\"key\":\"a\",\"more\":1}", "invalid"),
        (GET, 1, b"\xff\xfe", "invalid"),
        (PUT, 1, b"{\"key\":\"a\",\"value\":[1]}", "invalid"),
        (PUT, 1, b"{\"key\":\"a\",\"value\":null}", "invalid"),
        (PUT, 1, b"{\"key\":\"a\",\"value\":1e999}", "invalid"),
        (HISTORY, 1, b"{\"key\":\"nobody\"}", "not-found"),
        (KEYS_RELEASE, 1, b"{\"keys\":[]}", "invalid"),
        (KEYS_RELEASE, 1, &many, "invalid"),
        (KEYS_RELEASE, 1, b"{\"keys\":[\"nobody\"]}", "not-found"),
    ];
    for (kind, version, payload, code) in cases {
        let (error, ended) = refused(&node, &frame(kind, version, payload));
        assert_eq!(error["code"], code, "{kind} {version}: {error}");
        assert!(!ended, "{kind} {version}");
    }
    // Deep nesting must not become deep recursion.
    let deep = format!("{{\"key\":\"a\",\"value\":{}", "[".repeat(60_000));
    assert_eq!(
        refused(&node, &frame(PUT, 1, deep.as_bytes())).0["code"],
        "invalid"
    );
    is_well(&node);
}

#[test]
fn bytes_that_are_no_frame_cost_their_connection() {
    let node = Node::start(SMALL);
    let oversized = frame(GET, 1, &vec![b' '; (64 << 10) + 1]);
    let mut damaged = frame(GET, 1, b"{\"key\":\"a\"}");
    *damaged.last_mut().unwrap() ^= 1;
    let cases: [(&[u8], &str); 5] = [
        (&oversized, "invalid"),
        (&oversized[..4], "invalid"),
        (&damaged, "corrupt"),
        (&[0; 64], "corrupt"),
        (b"GET / HTTP/1.1\r\n\r\n", "invalid"),
    ];
    for (bytes, code) in cases {
        let (error, ended) = refused(&node, bytes);
        assert_eq!(error["code"], code, "{error}");
        assert!(ended);
        is_well(&node);
    }
    // The longest allowed request is not a frame error.
    let mut longest = b"{\"key\":\"a\"".to_vec();
    longest.resize((64 << 10) - 1, b' ');
    longest.push(b'}');
    assert_eq!(
        refused(&node, &frame(GET, 1, &longest)).0["code"],
        "not-found"
    );
}

#[test]
fn half_frames_delay_no_other_client() {
    let node = Node::start(SMALL);
    let whole = frame(PUT, 1, b"{\"key\":\"slow\",\"value\":5}");
    // Cut off at each byte: by a client that disconnects, and by one that stays.
    let mut waiting = Vec::new();
    for length in 0..whole.len() {
        let mut raw = node.connect();
        raw.stream.write_all(&whole[..length]).unwrap();
        if length % 2 == 0 {
            waiting.push((raw, length));
        }
    }
    is_well(&node);
    // The clients that stayed may still complete their requests.
    for (raw, length) in &mut waiting {
        raw.stream.write_all(&whole[*length..]).unwrap();
        assert_eq!(raw.answer().unwrap().0, STORED);
    }
    // Byte by byte, and many requests in one write.
    let mut raw = node.connect();
    for byte in &whole {
        raw.stream.write_all(&[*byte]).unwrap();
    }
    raw.stream.write_all(&whole.repeat(20)).unwrap();
    for _ in 0..21 {
        assert_eq!(raw.answer().unwrap().0, STORED);
    }
}

#[test]
fn puts_in_a_row_share_a_flush_and_are_answered_in_order() {
    // A flush that is not requested comes only after the timeout of the test.
    let config = SMALL.replace("[store]", "[store]\ncommit_interval_ms = 60000");
    let node = Node::start(&config);
    let put = |value| {
        frame(
            PUT,
            1,
            &json!({"key": "row", "value": value})
                .to_string()
                .into_bytes(),
        )
    };
    let mut raw = node.connect();
    raw.stream.write_all(&put(json!(0))).unwrap();
    assert_eq!(raw.answer().unwrap().0, STORED);
    let commits = || {
        node.json_degraded(&["status", "--json"])["log"]["commits"]
            .as_u64()
            .unwrap()
    };
    let before = commits();
    // In one write, which the kernel delivers in one read. One put is refused, a get comes in the middle, and the last
    // put is refused as well.
    let mut bytes = put(json!(1)).repeat(50);
    bytes.extend(put(json!(null)));
    bytes.extend(put(json!(2)).repeat(49));
    bytes.extend(frame(GET, 1, b"{\"key\":\"row\"}"));
    bytes.extend(put(json!(3)).repeat(49));
    bytes.extend(put(json!([])));
    assert!(bytes.len() < 16 << 10);
    raw.stream.write_all(&bytes).unwrap();
    let mut lsn = 0;
    for place in 0..151 {
        let (kind, answer) = raw.answer().unwrap();
        match place {
            50 | 150 => assert_eq!((kind, answer["code"].as_str()), (ERROR, Some("invalid"))),
            100 => assert_eq!((kind, answer["value"].as_f64()), (VALUE, Some(2.0))),
            _ => {
                lsn += 1;
                assert_eq!(
                    (kind, answer["lsn"].as_u64()),
                    (STORED, Some(lsn)),
                    "{place}"
                );
            }
        }
    }
    // At least one flush before the get, and one after it; more on a busy machine, where a flush may begin after every
    // few puts. With one flush per put it would be 148.
    let flushes = commits() - before;
    assert!((2..=74).contains(&flushes), "{flushes} commits of 148 puts");
    // More puts than are passed on together, with a concurrent reader.
    let many = put(json!(4)).repeat(3000);
    std::thread::scope(|scope| {
        let mut writer = raw.stream.try_clone().unwrap();
        scope.spawn(move || writer.write_all(&many).unwrap());
        for _ in 0..3000 {
            lsn += 1;
            let (kind, answer) = raw.answer().unwrap();
            assert_eq!((kind, answer["lsn"].as_u64()), (STORED, Some(lsn)));
        }
    });
    assert_eq!(node.ok(&["get", "row"]), "4\n");
}

#[test]
fn readings_that_are_put_together_are_stored_all_or_none() {
    // A flush that is not requested comes only after the timeout of the test.
    let config = SMALL.replace("[store]", "[store]\ncommit_interval_ms = 60000");
    let node = Node::start(&format!("{config}[keys]\nvalue_bytes_max = 1000\n"));
    let reading = |key: &str, value| json!({"key": key, "value": value});
    let mut raw = node.connect();
    let task = json!({
        "name": "firm", "period_ns": 1_000_000, "deadline_ns": 1_000_000, "kind": "firm", "weight": 1.0,
        "process": std::process::id(), "thread": 1,
    });
    assert_eq!(raw.ask(TASK, &task).0, TASK_DECLARED);
    let together = |raw: &mut Raw, puts: &[serde_json::Value], deadline_ns: u64| {
        raw.ask(TOGETHER, &json!({"puts": puts, "deadline_ns": deadline_ns}))
    };
    let both = |value| [reading("one", json!(value)), reading("two", json!(value))];
    let (kind, answer) = together(&mut raw, &both(1), u64::MAX);
    assert_eq!((kind, answer["lsn"].as_u64()), (STORED, Some(1)));
    // Instances that were aborted and missed so far.
    let mut counted = (0, 0);
    let counts = || {
        let task = &node.json_degraded(&["qos", "status", "--json"])["tasks"][0];
        let count = |name: &str| task[name].as_u64().unwrap();
        (count("aborted"), count("deadline_misses"))
    };
    // The deadline is at the very beginning of this machine's clock, so it has passed.
    let (kind, answer) = together(&mut raw, &both(2), 1);
    assert_eq!(kind, ERROR);
    let late = json!({
        "code": "late", "thing": "one", "wrong": "the deadline has passed: nothing was stored",
        "remedy": "look at what slows the node down, or give the task a longer deadline",
    });
    assert_eq!(answer, late);
    counted = (counted.0 + 1, counted.1 + 1);
    assert_eq!(counts(), counted);
    // A late instance creates no key, either.
    let (kind, answer) = together(&mut raw, &[reading("new", json!(2))], 1);
    assert_eq!((kind, answer["code"].as_str()), (ERROR, Some("late")));
    counted = (counted.0 + 1, counted.1 + 1);
    let (kind, answer) = raw.ask(GET, &json!({"key": "new"}));
    assert_eq!(
        (kind, answer["wrong"].as_str()),
        (ERROR, Some("no such key"))
    );
    // Less than 64 KiB in the request, but more in the node, where each reading takes 928 bytes.
    let large = vec![reading("a", json!("x".repeat(896))); 71];
    let cases: [(&[serde_json::Value], &str); 8] = [
        (
            &[reading("one", json!(3)), reading("two", json!(null))],
            "value is invalid",
        ),
        (
            &[reading("one", json!(3)), reading("", json!(3))],
            "is no key",
        ),
        (
            &[reading("one", json!(3)), reading("two/+", json!(3))],
            "is no key",
        ),
        (
            &[reading("one", json!(3)), reading("two\u{200b}", json!(3))],
            "is no key",
        ),
        (
            &[
                reading("one", json!(3)),
                reading("two", json!("x".repeat(1000))),
            ],
            "longer than",
        ),
        (&[], "has 0 puts, not 1 to 128"),
        (
            &vec![reading("one", json!(4)); 129],
            "has 129 puts, not 1 to 128",
        ),
        (&large, "at most 128 readings of 65536 bytes in all"),
    ];
    for (puts, wrong) in cases {
        let (kind, answer) = together(&mut raw, puts, u64::MAX);
        assert_eq!(
            (kind, answer["code"].as_str()),
            (ERROR, Some("invalid")),
            "{answer}"
        );
        assert!(
            answer["wrong"].as_str().unwrap().contains(wrong),
            "{answer}"
        );
        assert_ne!(answer["remedy"], "", "{answer}");
        counted.0 += 1;
        assert_eq!(counts(), counted, "{wrong}");
    }
    for key in ["one", "two"] {
        assert_eq!(node.ok(&["get", key]), "1\n");
    }
    let report = node.json_degraded(&["status", "--json"]);
    assert_eq!(report["log"]["readings_durable"], 2);
    assert_eq!(report["commands"]["puts"], 2);
    // The maximum number of readings is accepted. An older client, which puts the readings of its firm task one by one,
    // still works.
    let (kind, answer) = together(&mut raw, &vec![reading("one", json!(5)); 128], u64::MAX);
    assert_eq!(
        (kind, answer["lsn"].as_u64()),
        (STORED, Some(129)),
        "{answer}"
    );
    for lsn in [130, 131] {
        let (kind, answer) = raw.ask(PUT, &reading("one", json!(lsn)));
        assert_eq!((kind, answer), (STORED, json!({"lsn": lsn})));
    }
    assert_eq!(counts(), counted);
    // On a connection without a task the result is the same, but no instance is counted.
    let (kind, _) = together(&mut node.connect(), &both(6), 1);
    assert_eq!((kind, counts()), (ERROR, counted));
    let (kind, answer) = together(&mut node.connect(), &both(7), u64::MAX);
    assert_eq!((kind, answer["lsn"].as_u64()), (STORED, Some(133)));
}

#[test]
fn a_hundred_idle_connections_delay_no_other_client() {
    let node = Node::start(SMALL);
    // More than connections_max: the oldest silent ones are closed.
    let idle: Vec<Raw> = (0..100).map(|_| node.connect()).collect();
    is_well(&node);
    let mut closed = 0;
    for mut raw in idle {
        raw.stream.write_all(&frame(STATUS, 1, b"{}")).ok();
        match raw.answer() {
            Some((kind, _)) => assert_eq!(kind, STATE),
            None => closed += 1,
        }
    }
    assert!((36..=37 + 1).contains(&closed), "{closed}");
    is_well(&node);
}

#[test]
fn connections_that_are_served_are_not_sent_away() {
    let config = format!("{SMALL}[node]\nconnections_max = 2\n");
    let node = Node::start(&config);
    let mut watchers = [node.connect(), node.connect()];
    for watcher in &mut watchers {
        assert_eq!(watcher.ask(WATCH, &json!({"pattern": "#"})).0, UPDATES);
    }
    let mut third = Raw::new(UnixStream::connect(node.socket()).unwrap());
    let (kind, error) = third.answer().unwrap();
    assert_eq!((kind, error["code"].as_str()), (ERROR, Some("busy")));
    assert!(third.answer().is_none());
    // The program's own client reports the same, whether or not it could still send its request.
    let line = node.fails(&["get", "a"], 1);
    assert!(
        line.contains("2 clients are being served already"),
        "{line}"
    );
    // The operator can still connect, to see the state and to set the mode.
    let said = node.ok(&["qos", "mode", "open"]);
    assert!(said.starts_with("mode      open"), "{said}");
    let status = node.json_degraded(&["status", "--json"]);
    let commands = &status["commands"];
    assert_eq!(commands["connections"], 2, "{commands}");
    assert!(
        commands["connections_refused"].as_u64() >= Some(2),
        "{commands}"
    );
    // Programs that are turned away lose readings, so the node is not well.
    let reasons = status["reasons"].to_string();
    assert!(
        reasons.contains("clients of the node's socket were turned away"),
        "{reasons}"
    );
    // The operator's connection accepts several requests, but only of these kinds, and silent connections do not block
    // it.
    let mut operator = node.connect();
    for _ in 0..3 {
        assert_eq!(operator.ask(STATUS, &json!({})).0, STATE);
    }
    let (kind, error) = operator.ask(PUT, &json!({"key": "a", "value": 1}));
    assert_eq!((kind, error["code"].as_str()), (ERROR, Some("busy")));
    assert!(operator.answer().is_none());
    let silent: Vec<Raw> = (0..20).map(|_| node.connect()).collect();
    common::wait_until("the operator's turn", || {
        node.run(&["qos", "mode", "open"]).status.success()
    });
    for mut raw in silent {
        assert_eq!(raw.answer().map(|(kind, _)| kind), Some(ERROR));
        assert!(raw.answer().is_none());
    }
    assert!(
        node.fails(&["get", "a"], 1)
            .contains("2 clients are being served")
    );
    drop(watchers);
    common::wait_until("room", || node.run(&["put", "a", "1"]).status.success());
}

#[test]
fn a_watch_ends_with_the_next_request_and_counts_missed_updates() {
    let node = Node::start(SMALL);
    let mut watch = node.connect();
    let (kind, first) = watch.ask(WATCH, &json!({"pattern": "fast"}));
    assert_eq!(
        (kind, &first),
        (UPDATES, &json!({"updates": [], "missed": 0}))
    );
    let mut writer = node.connect();
    for value in 1..=200 {
        writer.send(
            PUT,
            &json!({"key": "fast", "value": value, "time_ms": 1_772_368_200_000_i64 + value}),
        );
        assert_eq!(writer.answer().unwrap().0, STORED);
    }
    // A reading that is older than the latest value is stored, but not shown.
    let old = json!({"key": "fast", "value": 0, "time_ms": 1_772_368_200_000_i64});
    assert_eq!(writer.ask(PUT, &old).0, STORED);
    let (mut shown, mut missed, mut last) = (0, 0, 0.0);
    while shown + missed < 201 {
        let (kind, updates) = watch.answer().unwrap();
        assert_eq!(kind, UPDATES);
        missed += updates["missed"].as_u64().unwrap();
        for update in updates["updates"].as_array().unwrap() {
            shown += 1;
            assert_eq!(update["key"], "fast");
            let value = update["value"].as_f64().unwrap();
            assert!(value > last, "{value} after {last}");
            last = value;
        }
    }
    assert_eq!((shown + missed, last), (201, 200.0));
    let (kind, end) = watch.ask(STATUS, &json!({}));
    assert_eq!(kind, END);
    assert_eq!(
        (end["sent"].as_u64(), end["missed"].as_u64()),
        (Some(shown), Some(missed))
    );
    assert_eq!(watch.answer().unwrap().0, STATE);
}

#[test]
fn a_long_history_comes_in_bounded_frames() {
    let node = Node::start(SMALL);
    let mut writer = node.connect();
    let text = "\u{1}".repeat(60);
    for _ in 0..3000 {
        writer.send(PUT, &json!({"key": "long", "value": text}));
        assert_eq!(writer.answer().unwrap().0, STORED);
    }
    let mut raw = node.connect();
    raw.send(HISTORY, &json!({"key": "long"}));
    let (mut readings, mut frames) = (0, 0);
    let end = loop {
        // The connection's decoder rejects frames above the limit.
        let (kind, answer) = raw.answer().unwrap();
        match kind {
            READINGS => {
                frames += 1;
                for reading in answer["readings"].as_array().unwrap() {
                    assert_eq!(reading["lsn"], readings);
                    assert_eq!(reading["value"], text.as_str());
                    readings += 1;
                }
            }
            END => break answer,
            other => panic!("{other}: {answer}"),
        }
    };
    assert_eq!((readings, end["sent"].as_u64()), (3000, Some(3000)));
    assert!(frames > 5, "{frames}");
    assert_eq!(end["records_damaged"], 0);
    // A client that disconnects in the middle of an answer disturbs no others.
    let mut gone = node.connect();
    gone.send(HISTORY, &json!({"key": "long"}));
    gone.answer().unwrap();
    drop(gone);
    is_well(&node);
}

/// `.or(self.time_ns…)` instead of the refusal in `protocol::time::given` makes it red.
#[test]
fn a_time_is_given_in_ms_or_in_ns() {
    let node = Node::start(SMALL);
    let mut raw = node.connect();
    let ns = "1700000000123456789";
    let (kind, _) = raw.ask(PUT, &json!({"key": "a", "value": 1, "time_ns": ns}));
    assert_eq!(kind, STORED);
    for (kind, request, told) in [
        (
            PUT,
            json!({"key": "a", "value": 1, "time_ms": 1_700_000_000_123_i64, "time_ns": ns}),
            "has time_ms and time_ns",
        ),
        (
            HISTORY,
            json!({"key": "a", "from_ms": 5, "from_ns": "5000000"}),
            "has from_ms and from_ns",
        ),
        (
            HISTORY,
            json!({"key": "a", "to_ms": 5, "to_ns": "5000000"}),
            "has to_ms and to_ns",
        ),
        (
            PUT,
            json!({"key": "a", "value": 1, "time_ns": 5}),
            "expected a text of whole ns",
        ),
        (
            TOGETHER,
            json!({"puts": [{"key": "a", "value": 1, "time_ms": 5, "time_ns": "5"}], "deadline_ns": u64::MAX}),
            "has time_ms and time_ns",
        ),
    ] {
        let (found, answer) = raw.ask(kind, &request);
        let wrong = answer["wrong"].as_str().unwrap();
        assert_eq!(
            (found, &answer["code"]),
            (ERROR, &json!("invalid")),
            "{answer}"
        );
        assert!(wrong.contains(told), "{answer}");
    }
    let (kind, found) = raw.ask(GET, &json!({"key": "a"}));
    assert_eq!((kind, &found["time_ns"]), (VALUE, &json!(ns)));
    let whole = json!({"key": "a", "value": 2, "time_ns": "1700000000124000000"});
    assert_eq!(raw.ask(PUT, &whole).0, STORED);
    let (_, found) = raw.ask(GET, &json!({"key": "a"}));
    assert_eq!(found["time_ms"], json!(1_700_000_000_124_i64));
    // Whole ms have the bytes that they always had.
    assert!(found.get("time_ns").is_none(), "{found}");
}

#[test]
fn the_golden_requests_are_answered() {
    let node = Node::start(SMALL);
    node.ok(&["put", "room/1", "5"]);
    let golden = include_str!("../../libkeel/tests/golden/node-protocol-1.txt");
    let mut answered = Vec::new();
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let (name, digits) = line.split_once(' ').unwrap();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        if u16::from_le_bytes([bytes[4], bytes[5]]) < 256 {
            let mut raw = node.connect();
            raw.stream.write_all(&bytes).unwrap();
            let (kind, answer) = raw.answer().unwrap();
            let code = answer["code"].as_str().unwrap_or_default();
            let is_known = ["invalid", "unsupported", "not-found", "late"].contains(&code);
            assert!(kind != ERROR || is_known, "{name}: {answer}");
            answered.push((name.to_owned(), kind));
        }
    }
    let expected = [
        ("get", VALUE),
        ("put", STORED),
        // Its time lies before 1970.
        ("put-text-time", ERROR),
        ("watch", UPDATES),
        ("history", END),
        ("status", STATE),
        ("task", TASK_DECLARED),
        // For a task of another connection, and without gains.
        ("task-period", ERROR),
        ("qos-none", QOS_STATE),
        ("qos", ERROR),
        // Its deadline has passed.
        ("together", ERROR),
        ("backup", BACKUP_BEGUN),
        ("keys", KEY_LIST),
        ("put-ns", STORED),
        ("history-ns", END),
        // There is no room/2.
        ("keys-release", ERROR),
        ("put-typed", STORED),
    ];
    assert_eq!(
        answered,
        expected.map(|(name, kind)| (name.to_owned(), kind))
    );
}

#[test]
fn the_exit_status_of_status_is_the_state() {
    let mut node = Node::start(SMALL);
    let check = |node: &Node| {
        let output = node.run(&["status", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = match report["state"].as_str().unwrap() {
            "ok" => 0,
            "degraded" => 3,
            _ => 1,
        };
        assert_eq!(output.status.code(), Some(expected), "{report}");
        let text = node.run(&["status"]);
        assert_eq!(text.status.code(), Some(expected));
        let first = String::from_utf8(text.stdout).unwrap();
        assert!(
            first.starts_with(report["state"].as_str().unwrap()),
            "{first}"
        );
        report
    };
    node.ok(&["put", "a", "1"]);
    let report = check(&node);
    // The test must not depend on whether this machine's clock is trusted.
    let codes = |report: &serde_json::Value| -> Vec<String> {
        let reasons = report["reasons"].as_array().unwrap();
        let code = |reason: &serde_json::Value| reason["code"].as_str().unwrap().to_owned();
        reasons
            .iter()
            .map(code)
            .filter(|code| code != "clock_untrusted")
            .collect()
    };
    assert_eq!(codes(&report), [""; 0], "{report}");
    assert_eq!(report["log"]["readings_durable"], 1);
    assert_eq!(report["lifetime"]["starts"], 1);
    assert_eq!(report["node"]["pid"], node.pid());
    assert!(report["device"]["flushes"].as_u64().unwrap() > 0);
    assert_eq!(report["store"]["image"], "keel-data/store.img");

    let changed = format!("{SMALL}[keys]\nkeys_max = 1\n");
    std::fs::write(node.dir.file("keel.toml"), &changed).unwrap();
    node.signal(libc::SIGHUP);
    common::wait_until("the reload", || {
        codes(&check(&node)) == ["config_pending_restart"]
    });
    std::fs::write(node.dir.file("keel.toml"), format!("{changed}x = 1\n")).unwrap();
    node.signal(libc::SIGHUP);
    common::wait_until("the refusal", || {
        let output = node.run(&["status", "--json", "--node", "keel-data/keel.sock"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let report = serde_json::from_slice(&output.stdout).unwrap();
        codes(&report).contains(&"config_refused".to_owned())
    });
    // The only allowed key exists: another one is refused for all clients.
    std::fs::write(node.dir.file("keel.toml"), &changed).unwrap();
    assert!(node.stop().success());
    node.restart();
    let line = node.fails(&["put", "b", "1"], 1);
    assert!(line.contains("keys_max keys already"), "{line}");
    let report = check(&node);
    assert_eq!(report["intake"]["refused"]["keys_max"], 1);
    assert_eq!(report["intake"]["refused_last"]["keys_max"], "b");
    assert_eq!(report["lifetime"]["starts"], 2);
    assert_eq!(report["lifetime"]["readings"], 1);
    node.kill();
    let line = node.fails(&["status"], 1);
    assert!(line.contains("no node answers"), "{line}");
}
