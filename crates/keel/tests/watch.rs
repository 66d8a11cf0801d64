//! Watches of a node with many keys: a scan in slices shows each key, and clients that do not read use little memory.

use crate::common::node::{END, Node, Raw, UPDATES, WATCH};
use crate::common::wait_until;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

const KEYS: usize = 12_000;

const MANY: &str = "
[store]
create_mebibytes = 32
commit_interval_ms = 20
[keys]
keys_max = 20000
[line]
tcp_listen = \"\"
unix_socket = \"line.sock\"
";

/// Sets each key to this value, and waits until all are on flash.
fn give_all(node: &Node, value: usize) {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let mut lines = String::new();
    for number in 0..KEYS {
        lines.push_str(&format!("hall,sensor={number} temperature={value}\n"));
    }
    lines.push('\n');
    stream.write_all(lines.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, format!("ok {KEYS} 0\n"));
}

/// Reads answers until each key has been shown with this value. Returns the number of answers.
fn every_key(watch: &mut Raw, value: f64) -> usize {
    let mut shown = BTreeSet::new();
    let mut answers = 0;
    while shown.len() < KEYS {
        let (kind, answer) = watch.answer().unwrap();
        assert_eq!(kind, UPDATES);
        answers += 1;
        for update in answer["updates"].as_array().unwrap() {
            if update["value"] == value {
                shown.insert(update["key"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(shown.len(), KEYS);
    answers
}

fn resident_bytes(node: &Node) -> u64 {
    let output = node.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["node"]["memory_resident_bytes"].as_u64().unwrap()
}

#[test]
fn a_watch_of_many_keys_shows_each_of_them_and_waits_in_little_memory() {
    let mut node = Node::start(MANY);
    give_all(&node, 1);
    let mut watch = node.connect();
    watch.send(WATCH, &json!({"pattern": "hall/#", "current": true}));
    assert!(every_key(&mut watch, 1.0) > 5);
    // A change of all keys is shown, too. After changes while the client does not read, the latest value is shown.
    give_all(&node, 2);
    every_key(&mut watch, 2.0);
    give_all(&node, 3);
    give_all(&node, 4);
    every_key(&mut watch, 4.0);

    // A client that requests everything and does not read occupies memory for one frame only.
    let before = resident_bytes(&node);
    let mut silent: Vec<Raw> = (0..15).map(|_| node.connect()).collect();
    for watch in &mut silent {
        watch.send(WATCH, &json!({"pattern": "#", "current": true}));
    }
    wait_until("the watchers", || {
        let output = node.run(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["commands"]["watchers"] == 16
    });
    // The first answer of each client has arrived, so its scan has begun.
    let mut byte = [0];
    for watch in &silent {
        wait_until("a first answer", || {
            // SAFETY: peeks at received data, into one byte that exists.
            unsafe {
                let fd = std::os::fd::AsRawFd::as_raw_fd(&watch.stream);
                libc::recv(
                    fd,
                    byte.as_mut_ptr().cast(),
                    1,
                    libc::MSG_PEEK | libc::MSG_DONTWAIT,
                ) == 1
            }
        });
    }
    let more = resident_bytes(&node).saturating_sub(before);
    assert!(
        more < 16 << 20,
        "{more} bytes for {} watchers",
        silent.len()
    );
    // Meanwhile the node serves others, and the next request ends the watch.
    node.ok(&["put", "door", "open"]);
    watch.send(WATCH, &json!({"pattern": "no-such-key", "current": false}));
    let mut kinds = Vec::new();
    while kinds.last() != Some(&END) {
        kinds.push(watch.answer().unwrap().0);
    }
    let (kind, answer) = watch.answer().unwrap();
    assert_eq!(
        (kind, answer),
        (UPDATES, json!({"updates": [], "missed": 0}))
    );
    assert!(node.stop().success());
}
