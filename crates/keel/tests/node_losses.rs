//! Losses that a node must report: series that share a key, senders without a free connection, texts that contain line
//! breaks.

use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

fn sender(node: &Node) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    BufReader::new(stream)
}

fn send(sender: &mut BufReader<UnixStream>, lines: &str) -> String {
    sender.get_mut().write_all(lines.as_bytes()).unwrap();
    let mut answer = String::new();
    sender.read_line(&mut answer).unwrap();
    answer
}

/// Returns the text of a reason for a degraded node.
fn reason(status: &Value, code: &str) -> Option<String> {
    let reasons = status["reasons"].as_array().unwrap();
    let found = reasons.iter().find(|reason| reason["code"] == code)?;
    Some(found["text"].as_str().unwrap().to_owned())
}

#[test]
fn two_series_with_one_key_are_named() {
    let key = "key = \"{measurement}/{values}/{field}\"\n";
    let mut node = Node::start(&format!("{SMALL}{key}[keys]\nauto_create = true\n"));
    let mut sender = sender(&node);
    assert_eq!(
        send(&mut sender, "m,room=1 v=1\nm,floor=1 v=2\n\n"),
        "ok 1 1\n"
    );
    let status = node.json_degraded(&["status", "--json"]);
    let text = reason(&status, "key_shared").unwrap();
    assert!(
        text.contains("m,floor=1 v has the key of m,room=1 v: m/1/v"),
        "{text}"
    );
    assert_eq!(status["intake"]["refused"]["key_shared"], 1);
    assert_eq!(node.ok(&["get", "m/1/v"]), "1\n");
    assert!(node.stop().success());
    // Also after a restart, although the other series comes first.
    node.restart();
    let mut sender = self::sender(&node);
    assert_eq!(
        send(&mut sender, "m,floor=1 v=2\nm,room=1 v=3\n\n"),
        "ok 1 1\n"
    );
    let status = node.json_degraded(&["status", "--json"]);
    let again = reason(&status, "key_shared").unwrap();
    assert!(
        again.contains("m,floor=1 v has the key of m,room=1 v: m/1/v"),
        "{again}"
    );
    assert_eq!(node.ok(&["get", "m/1/v"]), "3\n");
    assert!(node.stop().success());
}

/// The command that the status names for a replaced sensor, and what it says is so after the node was killed, too.
#[test]
fn a_replaced_sensor_goes_on_under_the_key_that_was_released() {
    let key = "key = \"{measurement}/{values}/{field}\"\n";
    let mut node = Node::start(&format!("{SMALL}{key}[keys]\nauto_create = true\n"));
    let mut sender = sender(&node);
    let lines = "m,room=1 v=1\nm,room=2 v=1\nm,floor=1 v=2\n\n";
    assert_eq!(send(&mut sender, lines), "ok 2 1\n");
    let status = node.json_degraded(&["status", "--json"]);
    let text = reason(&status, "key_shared").unwrap();
    assert!(text.contains("`keel keys release KEY`"), "{text}");
    // None is released where one does not exist.
    let error = node.fails(&["keys", "release", "m/1/v", "m/3/v"], 1);
    assert!(error.contains("m/3/v: no such key"), "{error}");
    assert_eq!(
        send(&mut sender, "m,floor=1 v=3\nm,room=1 v=4\n\n"),
        "ok 1 1\n"
    );
    // Those that the node remembers from the last lines, too, ask anew.
    let released = node.json(&["keys", "release", "m/1/v", "--json"]);
    let expected = serde_json::json!({"released": [{"key": "m/1/v", "owners": 1}]});
    assert_eq!(released, expected);
    node.kill();
    node.restart();
    let mut sender = self::sender(&node);
    let lines = "m,floor=1 v=5\nm,room=1 v=6\nm,room=2 v=7\nm,floor=2 v=8\n\n";
    assert_eq!(send(&mut sender, lines), "ok 2 2\n");
    assert_eq!(node.ok(&["get", "m/1/v"]), "5\n");
    assert_eq!(node.ok(&["get", "m/2/v"]), "7\n");
    // The history goes on.
    assert_eq!(node.ok(&["history", "m/1/v", "--csv"]).lines().count(), 4);
    // Without an end of the node, and back again.
    let said = node.ok(&["keys", "release", "m/1/v", "m/1/v"]);
    let expected =
        "m/1/v: released; the next series to send gets it\nm/1/v: no owner was kept for it\n";
    assert_eq!(said, expected);
    assert_eq!(
        send(&mut sender, "m,room=1 v=9\nm,floor=1 v=10\n\n"),
        "ok 1 1\n"
    );
    assert_eq!(node.ok(&["get", "m/1/v"]), "9\n");
    let many: Vec<String> = (0..201).map(|n| n.to_string()).collect();
    let words = ["keys", "release"].into_iter();
    let words: Vec<&str> = words.chain(many.iter().map(String::as_str)).collect();
    let error = node.fails(&words, 2);
    assert!(error.contains("201 keys: are more than the 200"), "{error}");
    assert!(node.stop().success());
}

#[test]
fn senders_that_find_no_place_degrade_the_node() {
    let config = SMALL.replace(
        "[line]",
        "[line]\nconnections_max = 1\nmake_room_seconds_min = 3600",
    );
    let mut node = Node::start(&format!("{config}[keys]\nauto_create = true\n"));
    // A sender that has sent something keeps its connection for an hour.
    let mut first = sender(&node);
    assert_eq!(send(&mut first, "m v=1\n\n"), "ok 1 0\n");
    let mut second = sender(&node);
    let mut answer = String::new();
    second.read_line(&mut answer).unwrap();
    assert_eq!(answer, "error connections_max\n");
    let status = node.json_degraded(&["status", "--json"]);
    let text = reason(&status, "connections_max").unwrap();
    assert!(
        text.contains("1 senders") && text.contains("there were 1 connections"),
        "{text}"
    );
    drop(first);
    // A connection that has never sent anything is closed for a new one. This is reported, because its client may have
    // been about to send.
    wait_until("a place", || {
        node.json_degraded(&["status", "--json"])["line"]["connections"] == 0
    });
    let mute = sender(&node);
    wait_until("its place", || {
        node.json_degraded(&["status", "--json"])["line"]["connections"] == 1
    });
    assert_eq!(send(&mut sender(&node), "m v=2\n\n"), "ok 1 0\n");
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["line"]["connections_made_room"], 1);
    let text = reason(&status, "connections_max").unwrap();
    assert!(text.contains("1 idle ones"), "{text}");
    drop(mute);
    assert!(node.stop().success());
}

#[test]
fn a_line_break_in_a_text_stays_in_it_wherever_it_is_shown() {
    let mut node = Node::start(&format!("{SMALL}[keys]\nauto_create = true\n"));
    let text = "first\nboiler,unit=1 temperature=999\nlast";
    let line = format!("log msg=\"{text}\"\n\n");
    assert_eq!(send(&mut sender(&node), &line), "ok 1 0\n");
    node.fails(&["get", "boiler/unit=1/temperature"], 1);
    let value = node.json(&["get", "--json", "log/msg"]);
    assert_eq!(value["value"], text);
    for arguments in [
        &["get", "log/msg"][..],
        &["history", "log/msg", "--from", "-1h"],
        &["watch", "#", "--current", "--count", "1"],
    ] {
        let shown = node.ok(arguments);
        let lines = shown.lines().filter(|line| line.contains("boiler"));
        // The text is on the line of its key and time, not at the beginning of a separate line.
        for line in lines {
            assert!(!line.starts_with("boiler"), "{arguments:?}: {shown}");
        }
    }
    assert!(node.stop().success());
}
