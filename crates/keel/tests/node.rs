//! `keel run` as a process: the commands that talk to it, its signals, and the errors of a second node.

use crate::common;
use crate::common::node::{Node, SMALL};
use crate::common::{one_line, wait_until};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn a_reading_is_found_by_get_watch_and_history_after_a_put() {
    let mut node = Node::start(SMALL);
    node.ok(&["put", "room/1/temperature", "21.5"]);
    node.ok(&["put", "room/1/temperature", "-3"]);
    node.ok(&["put", "door", "open"]);
    node.ok(&["put", "lamp", "true"]);
    node.ok(&["put", "batch", "--text", "0042"]);
    let stored = node.json(&["put", "room/2/temperature", "1e300", "--json"]);
    assert_eq!(stored["lsn"], 5);

    assert_eq!(node.ok(&["get", "room/1/temperature"]), "-3\n");
    assert_eq!(node.ok(&["get", "batch"]), "0042\n");
    let long = node.ok(&["get", "door", "--long"]);
    assert!(
        long.starts_with("open\ntime ") && long.contains("fresh    yes"),
        "{long}"
    );
    let found = node.json(&["get", "lamp", "--json"]);
    assert_eq!(found["value"], true);
    assert_eq!(found["type"], "boolean");
    assert_eq!(found["fresh"], true);
    assert!(
        found["clock_trusted"].is_boolean() && found["node_time"] == true,
        "{found}"
    );
    assert_eq!(
        node.json(&["get", "room/2/temperature", "--json"])["value"],
        1e300
    );

    let watched = node.ok(&["watch", "room/+/temperature", "--current", "--count", "2"]);
    assert_eq!(watched.lines().count(), 2, "{watched}");
    assert!(
        watched.contains("room/1/temperature  -3") && watched.contains("1e300"),
        "{watched}"
    );

    let lines = node.ok(&["history", "room/1/temperature"]);
    let values: Vec<_> = lines
        .lines()
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect();
    assert_eq!(values, ["21.5", "-3"]);
    let array = node.json(&["history", "room/1/temperature", "--json", "--from", "-1h"]);
    assert_eq!(array.as_array().unwrap().len(), 2);
    assert_eq!(array[0]["value"], 21.5);
    assert_eq!(array[0]["lsn"], 0);
    let csv = node.ok(&["history", "door", "--csv"]);
    assert!(
        csv.starts_with(
            "time,time_ms,value,type,recorded_ms,node_time,clock_trusted,lsn,time_ns\n"
        ),
        "{csv}"
    );
    assert!(csv.lines().nth(1).unwrap().contains(",open,text,"), "{csv}");
    assert_eq!(
        node.json(&["history", "door", "--json", "--to", "-1h"]),
        json!([])
    );
    assert_eq!(
        node.ok(&["history", "room/1/temperature", "--limit", "1"])
            .lines()
            .count(),
        1
    );
    assert!(node.stop().success());
    assert!(!node.socket().exists());
    assert!(!node.dir.file("keel-data/store.img.lock").exists());
}

#[test]
fn a_time_that_is_given_is_the_readings_time() {
    let node = Node::start(SMALL);
    for (time, ms) in [
        ("2026-03-01T12:30:00Z", 1_772_368_200_000_i64),
        ("2026-03-01T14:30:01+02:00", 1_772_368_201_000),
        ("1772368202", 1_772_368_202_000),
        ("1772368203500", 1_772_368_203_500),
    ] {
        node.ok(&["put", "a", "1", "--time", time]);
        let found = node.json(&["get", "a", "--json"]);
        assert_eq!(found["time_ms"], ms, "{time}");
        assert_eq!(found["node_time"], false);
    }
    let range = ["--from", "1772368201", "--to", "1772368203.5", "--json"];
    let found = node.json(&[&["history", "a"][..], &range[..]].concat());
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    let line = node.fails(&["put", "a", "1", "--time", "1980-01-01T00:00:00Z"], 1);
    assert!(line.contains("too far in the past"), "{line}");
    let line = node.fails(&["put", "a", "1", "--time", "yesterday"], 2);
    assert!(line.contains("is no time; write a time such as"), "{line}");
    node.ok(&["put", "a", "2", "--time", "-15m"]);
    assert_eq!(node.ok(&["get", "a"]), "2\n");
}

#[test]
fn numbers_below_zero_are_taken_however_they_are_written_and_unknown_options_are_not() {
    let node = Node::start(SMALL);
    for (written, read) in [("-1e-3", "-0.001\n"), ("-.5", "-0.5\n"), ("-7", "-7\n")] {
        node.ok(&["put", "n", written]);
        assert_eq!(node.ok(&["get", "n"]), read);
    }
    for wrong in ["--jsn", "-x", "--"] {
        let line = node.fails(&["put", "n", wrong], 2);
        assert!(line.contains("put"), "{line}");
    }
    node.ok(&["put", "n", "--text", "-x"]);
    assert_eq!(node.ok(&["get", "n"]), "-x\n");
    assert_eq!(node.json(&["put", "n", "-1", "--json"])["key"], "n");
}

#[test]
fn a_put_that_returned_survives_a_kill() {
    let mut node = Node::start(SMALL);
    for round in 0..5 {
        let value = format!("{round}.25");
        node.ok(&["put", "a", &value]);
        node.kill();
        node.restart();
        assert_eq!(node.ok(&["get", "a"]), format!("{value}\n"));
    }
    assert_eq!(node.ok(&["history", "a"]).lines().count(), 5);
    // The files that a killed node leaves do not prevent the next start.
    assert!(node.stop().success());
    assert!(node.dir.file("keel-data/store.img").exists());
}

#[test]
fn a_second_node_is_told_the_process_of_the_first() {
    let mut node = Node::start(SMALL);
    let line = node.fails(&["run", "-c", "keel.toml"], 1);
    assert!(
        line.contains("store.img") && line.contains(&format!("process id {}", node.pid())),
        "{line}"
    );
    // The refused command has not disturbed the node.
    node.ok(&["put", "a", "1"]);
    let line = node.fails(
        &["flash", "put", "keel-data/store.img", "x", "keel.toml"],
        1,
    );
    assert!(line.contains("in use by another program"), "{line}");
    // Another store on the same socket.
    let other = SMALL.replace("[store]", "[store]\nimage = \"other.img\"");
    std::fs::write(node.dir.file("other.toml"), other).unwrap();
    let refused = node.run(&["run", "-c", "other.toml"]);
    assert_eq!(refused.status.code(), Some(1));
    // Its earlier steps are logged as events; the error is the last line.
    let said = String::from_utf8_lossy(&refused.stderr);
    let line = said.lines().last().unwrap_or_default();
    assert!(line.contains("another node serves this socket"), "{said}");
    assert_eq!(node.ok(&["get", "a"]), "1\n");
    // A stale lock file does not name a holder.
    node.kill();
    node.restart();
    assert!(node.stop().success());
}

#[test]
fn an_impossible_request_gets_one_line_with_a_remedy() {
    let node = Node::prepare(SMALL);
    let line = node.fails(&["get", "a"], 1);
    assert!(
        line.contains("keel.sock: no node answers; start it with `keel run"),
        "{line}"
    );
    let line = node.fails(&["get", "a", "--node", "elsewhere.sock"], 1);
    assert!(line.contains("elsewhere.sock: no node answers"), "{line}");
    drop(node);
    let node = Node::start(SMALL);
    let line = node.fails(&["get", "a"], 1);
    assert!(line.contains("a: no such key; "), "{line}");
    let line = node.fails(&["put", "", "1"], 1);
    assert!(line.contains("is no key; use 1 to 255 bytes"), "{line}");
    let line = node.fails(&["put", "a", &"x".repeat(65)], 1);
    assert!(line.contains("longer than value_bytes_max"), "{line}");
    let line = node.fails(&["put", "a", "nan"], 2);
    assert!(line.contains("no number"), "{line}");
    let line = node.fails(&["watch", "a/#/b"], 2);
    assert!(line.contains("whole last level"), "{line}");
    let line = node.fails(&["get", "a", "--node", "keel-data/keel.sock", "-c", "x"], 2);
    assert!(line.contains("cannot be used with"), "{line}");
    node.ok(&["get", "--help"]);
    // In another folder without a configuration, the location of the node is unknown.
    let outside = common::TempDir::new();
    let output = common::keel()
        .args(["get", "a"])
        .current_dir(outside.path())
        .output()
        .unwrap();
    if !std::path::Path::new("/etc/keel/keel.toml").exists() {
        let line = one_line(&output.stderr);
        assert!(line.contains("--node PATH"), "{line}");
    }
    let socket = node.socket();
    let output = common::keel()
        .args(["put", "b", "7", "--node"])
        .arg(&socket)
        .current_dir(outside.path())
        .output();
    assert!(output.unwrap().status.success());
    assert_eq!(node.ok(&["get", "b"]), "7\n");
}

#[test]
fn a_watch_shows_changes_as_they_come() {
    let node = Node::start(SMALL);
    node.ok(&["put", "room/1", "1"]);
    let mut watch = common::keel()
        .args(["watch", "room/#", "--current", "--count", "3", "--json"])
        .current_dir(node.dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next =
        || -> serde_json::Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["value"], 1.0);
    // The watch has begun; it also shows a key that is created now.
    node.ok(&["put", "room/2", "2"]);
    node.ok(&["put", "other", "3"]);
    assert_eq!(next()["key"], "room/2");
    node.ok(&["put", "room/1", "4"]);
    let last = next();
    assert_eq!(
        (last["key"].as_str(), last["value"].as_f64()),
        (Some("room/1"), Some(4.0))
    );
    assert!(watch.wait().unwrap().success());
}

#[test]
fn a_reload_applies_changeable_keys_and_refuses_wrong_ones() {
    let strict = format!("{SMALL}[keys]\nauto_create = false\n[[key]]\npattern = \"a\"\n");
    let mut node = Node::start(&strict);
    node.ok(&["put", "a", "1"]);
    let line = node.fails(&["put", "b", "1"], 1);
    assert!(line.contains("auto_create is off"), "{line}");

    let reload = |text: &str, said: &str| {
        std::fs::write(node.dir.file("keel.toml"), text).unwrap();
        let before = node.log().matches(" reload: ").count();
        node.signal(libc::SIGHUP);
        wait_until("the reload", || {
            node.log().matches(" reload: ").count() > before
        });
        let log = node.log();
        let last = log
            .lines()
            .rfind(|line| line.contains(" reload: "))
            .unwrap();
        assert!(last.contains(said), "{said}: {log}");
    };
    // An additional sensor needs no restart.
    let more = format!("{strict}[[key]]\npattern = \"b\"\nvalidity_ms = 5000\n");
    reload(&more, "applied: key; needs a restart: nothing");
    node.ok(&["put", "b", "1"]);
    assert_eq!(node.json(&["get", "b", "--json"])["validity_ms"], 5000);
    // An invalid file changes nothing.
    let wrong = more.replace("auto_create = false", "auto_creat = true");
    reload(&wrong, "refused, nothing changes: keel.toml:");
    let socket = ["--node", "keel-data/keel.sock"];
    node.fails(&[&["put", "c", "1"][..], &socket].concat(), 1);
    node.ok(&[&["put", "b", "2"][..], &socket].concat());
    // Commands read the same file to find the node: they report its mistake, and continue.
    let output = node.run(&["get", "b"]);
    assert!(output.status.success(), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(line.contains("did you mean auto_create?"), "{line}");
    // A setting that needs a restart is named, and takes effect only after it.
    let larger = more.replace("[keys]", "[keys]\nkeys_max = 9000");
    reload(&larger, "needs a restart: keys.keys_max");
    reload(&strict, "applied: key");
    node.fails(&["put", "b", "3"], 1);
    // The socket moves only at the next start.
    let moved = format!("{strict}[node]\nsocket = \"moved.sock\"\n");
    reload(&moved, "needs a restart: node.socket");
    node.ok(&["put", "a", "2", "--node", "keel-data/keel.sock"]);
    assert!(node.stop().success());
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "2\n");
    assert!(node.dir.file("moved.sock").exists());
}

#[test]
fn sigterm_acknowledges_readings_in_flight_and_ends() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let mut node = Node::start(SMALL);
        // Idle clients, and one that watches, do not delay the end.
        let idle = [node.connect(), node.connect()];
        let mut watch = node.connect();
        watch.send(common::node::WATCH, &json!({"pattern": "#"}));
        assert_eq!(watch.answer().unwrap().0, common::node::UPDATES);
        let mut writers = Vec::new();
        for writer in 0..4 {
            let mut raw = node.connect();
            writers.push(std::thread::spawn(move || {
                let mut acknowledged = 0;
                loop {
                    let value = json!({"key": format!("w/{writer}"), "value": acknowledged + 1});
                    let bytes =
                        common::node::frame(common::node::PUT, 1, value.to_string().as_bytes());
                    if std::io::Write::write_all(&mut raw.stream, &bytes).is_err() {
                        return acknowledged;
                    }
                    match raw.answer() {
                        Some((common::node::STORED, _)) => acknowledged += 1,
                        _ => return acknowledged,
                    }
                }
            }));
        }
        wait_until("some load", || {
            (0..4).all(|writer| node.run(&["get", &format!("w/{writer}")]).status.success())
        });
        node.signal(number);
        assert!(node.ended().success(), "{}", node.log());
        let counts: Vec<u64> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        drop(idle);
        assert!(node.log().contains(" stopped: "), "{}", node.log());
        node.restart();
        for (writer, count) in counts.iter().enumerate() {
            let readings = node.json(&["history", &format!("w/{writer}"), "--json"]);
            let values: Vec<u64> = readings
                .as_array()
                .unwrap()
                .iter()
                .map(|reading| reading["value"].as_f64().unwrap() as u64)
                .collect();
            // One more reading may have been stored whose answer was lost.
            let stored = values.len() as u64;
            assert!((*count..=*count + 1).contains(&stored), "{count} {stored}");
            assert_eq!(values, (1..=stored).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_example_works_in_an_empty_directory() {
    let node = Node::prepare("");
    let example = node.ok(&["config", "example"]);
    // Only the port is edited, because another program on this machine may use it.
    let text = example.replace("127.0.0.1:8094", "127.0.0.1:0");
    assert_ne!(text, example);
    std::fs::write(node.dir.file("keel.toml"), text).unwrap();
    node.ok(&["config", "check", "keel.toml"]);
    let mut node = node;
    node.restart();
    node.ok(&["put", "a/b", "1.5"]);
    assert_eq!(node.ok(&["get", "a/b"]), "1.5\n");
    assert!(node.stop().success());
}

#[test]
fn a_start_that_was_interrupted_while_it_made_the_store_is_no_obstacle() {
    let mut node = Node::prepare(SMALL);
    std::fs::create_dir(node.dir.file("keel-data")).unwrap();
    std::fs::write(node.dir.file("keel-data/store.img.new"), vec![7; 20 << 20]).unwrap();
    node.restart();
    node.ok(&["put", "a", "1"]);
    assert!(!node.dir.file("keel-data/store.img.new").exists());
    let bytes = std::fs::metadata(node.dir.file("keel-data/store.img"))
        .unwrap()
        .len();
    assert_eq!(bytes, 16 << 20);
    assert!(node.stop().success());
    // A file that is not a store stays unchanged.
    std::fs::write(node.dir.file("keel-data/store.img"), vec![7; 16 << 20]).unwrap();
    let line = node.fails(&["run"], 1);
    assert!(line.contains("store.img"), "{line}");
}
