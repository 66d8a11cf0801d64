//! `keel run` in extreme cases: a full store, too many keys, signals during the start, clients that do not read, what a
//! broker had retained.

use crate::common::node::{END, HISTORY, Node, PUT, READINGS, SMALL, STATE, STATUS, frame};
use crate::common::{one_line, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

fn state(node: &Node) -> Value {
    let (kind, state) = node.connect().ask(STATUS, &json!({}));
    assert_eq!(kind, STATE);
    state
}

/// Sends lines from a separate thread, which ends when the node accepts no more.
fn send_lines(node: &Node, line: String, count: usize) -> std::thread::JoinHandle<()> {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    std::thread::spawn(move || {
        let lines = line.repeat(100);
        for _ in 0..count / 100 {
            if stream.write_all(lines.as_bytes()).is_err() {
                return;
            }
        }
        stream.shutdown(std::net::Shutdown::Write).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    })
}

#[test]
fn a_full_store_is_no_obstacle_to_the_end_nor_to_the_next_start() {
    let config = SMALL.replace("[line]", "history_mebibytes_max = 100\n[line]");
    let config = format!("{config}[keys]\nvalue_bytes_max = 250\n");
    let mut node = Node::start(&config);
    assert!(state(&node)["store"]["free_bytes"].as_u64().unwrap() > 0);
    node.ok(&["put", "a", "1"]);
    let line = format!("m text=\"{}\"\n", "x".repeat(200));
    let sender = send_lines(&node, line, 200_000);
    wait_until("a full store", || state(&node)["store"]["full"] == true);
    let line = node.fails(&["put", "a", "2"], 1);
    assert!(line.contains("store.history_mebibytes_max"), "{line}");
    assert!(node.stop().success(), "{}", node.log());
    assert!(node.log().contains(" stopped: "), "{}", node.log());
    sender.join().unwrap();
    let drop_oldest = config.replace("[store]", "[store]\nfull_policy = \"drop-oldest\"");
    std::fs::write(node.dir.file("keel.toml"), drop_oldest).unwrap();
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "1\n");
    assert!(node.stop().success());
}

/// The warning comes at the start because of the configuration, then because of the existing values, then because of
/// the failed checkpoint. In spite of it, readings become durable until the store is full, and the next start works.
#[test]
fn a_table_too_large_for_its_store_is_reported() {
    let config = SMALL.replace("[line]", "history_mebibytes_max = 100\n[line]");
    let config = format!("{config}[keys]\nkeys_max = 6000\nvalue_bytes_max = 1000\n");
    let mut node = Node::start(&config);
    assert!(node.log().contains("more than a quarter"), "{}", node.log());
    let says = |state: &Value, code: &str| {
        let reasons = state["reasons"].as_array().unwrap();
        reasons.iter().any(|reason| reason["code"] == code)
    };
    node.ok(&["put", "first", "1"]);
    assert!(!says(&state(&node), "table_large"));
    wait_until("the log of it", || {
        state(&node)["log"]["replay_bytes"].as_u64().unwrap() > 0
    });
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let sender = std::thread::spawn(move || {
        let value = "x".repeat(900);
        for n in 0..20_000 {
            let line = format!("m,k={} text=\"{value}\"\n", n % 5990);
            if stream.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
        stream.shutdown(std::net::Shutdown::Write).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    wait_until("a full store", || {
        let state = state(&node);
        says(&state, "table_large") && says(&state, "store_full")
    });
    // Whether a checkpoint is due in time to find no room depends on the pace of the commits, and the next one may find
    // room; `db` has tests in which none does.
    let full = state(&node);
    if full["log"]["checkpoint_failing"] == true {
        assert_eq!(full["log"]["checkpoint_error"], "no_room");
        assert!(says(&full, "checkpoint_failing"));
        wait_until("the word of it", || node.log().contains(" checkpoint: "));
    }
    let keys = state(&node)["keys"]["count"].as_u64().unwrap();
    assert!(node.stop().success(), "{}", node.log());
    sender.join().unwrap();
    node.restart();
    let log = node.log();
    assert!(
        log.contains("a checkpoint of the latest values takes up to"),
        "{log}"
    );
    assert_eq!(node.ok(&["get", "first"]), "1\n");
    // A key whose only reading was refused by the full store no longer exists.
    let count = state(&node)["keys"]["count"].as_u64().unwrap();
    assert!(1 < count && count <= keys, "{count} of {keys} keys");
    assert!(node.stop().success());
}

#[test]
fn a_declared_key_too_many_is_reported_and_left_out_alone() {
    let config = format!("{SMALL}[keys]\nkeys_max = 2\n");
    let mut node = Node::start(&config);
    node.ok(&["put", "a", "1"]);
    node.ok(&["put", "b", "1"]);
    assert!(state(&node)["node"]["config_error"].is_null());
    // A reload and a start give the same warning, and neither is refused.
    let more =
        format!("{config}[[key]]\npattern = \"c\"\n[[key]]\npattern = \"b\"\nvalidity_ms = 7\n");
    std::fs::write(node.dir.file("keel.toml"), more).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: "));
    let is_said = |node: &Node| {
        let error = state(node)["node"]["config_error"].clone();
        let text = error.as_str().unwrap_or_default().to_owned();
        assert!(
            text.contains('c') && text.contains("keys.keys_max"),
            "{error}"
        );
        assert!(node.log().contains(" warning: "), "{}", node.log());
        assert_eq!(node.json(&["get", "b", "--json"])["validity_ms"], 7);
    };
    is_said(&node);
    assert!(node.stop().success());
    node.restart();
    is_said(&node);
    std::fs::write(node.dir.file("keel.toml"), &config).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: "));
    assert!(state(&node)["node"]["config_error"].is_null());
    assert!(node.stop().success());
    // Keys that are already stored are treated differently.
    let fewer = config.replace("keys_max = 2", "keys_max = 1");
    std::fs::write(node.dir.file("keel.toml"), fewer).unwrap();
    let output = node.run(&["run"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.contains("raise keys.keys_max"), "{text}");
}

#[test]
fn a_value_that_is_too_long_makes_no_key() {
    let node = Node::start(SMALL);
    let put = json!({"key": "a", "value": "x".repeat(65)});
    assert_eq!(node.connect().ask(PUT, &put).1["code"], "invalid");
    assert_eq!(state(&node)["keys"]["count"], 0);
}

#[test]
fn signals_during_the_start_are_heeded() {
    let config = SMALL.replace("16", "128");
    let mut node = Node::prepare(&config);
    let is_begun = |node: &Node| node.dir.file("keel-data").exists();
    node.spawn();
    wait_until("the beginning", || is_begun(&node));
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: "));
    node.ok(&["put", "a", "1"]);
    assert!(node.stop().success());
    std::fs::remove_dir_all(node.dir.file("keel-data")).unwrap();
    node.spawn();
    wait_until("the beginning", || is_begun(&node));
    node.signal(libc::SIGTERM);
    assert!(node.ended().success(), "{}", node.log());
    assert!(node.log().contains(" stopped: "), "{}", node.log());
    node.restart();
    node.ok(&["put", "a", "1"]);
    assert!(node.stop().success());
}

#[test]
fn links_beside_the_store_are_not_followed() {
    let mut node = Node::prepare(SMALL);
    let data = node.dir.file("keel-data");
    std::fs::create_dir(&data).unwrap();
    let image = data.join("store.img");
    // If the card is not mounted, no new store is created in its place.
    std::os::unix::fs::symlink(node.dir.file("card/store.img"), &image).unwrap();
    node.spawn();
    assert!(!node.ended().success());
    assert!(
        node.log().contains("is a symbolic link to nothing; mount"),
        "{}",
        node.log()
    );
    std::fs::remove_file(&image).unwrap();
    // The lock file is a symbolic link here; its target must stay unchanged.
    let precious = node.dir.file("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, data.join("store.img.lock")).unwrap();
    node.restart();
    node.ok(&["put", "a", "1"]);
    assert!(node.stop().success());
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_surprising_setting_is_logged_at_the_start() {
    let node = Node::start(&format!("{SMALL}[keys]\nauto_create = false\n"));
    let log = node.log();
    assert!(log.contains(" warning: keys.auto_create is false"), "{log}");
}

#[test]
fn clients_that_do_not_take_their_history_delay_no_others() {
    let node = Node::start(SMALL);
    const COUNT: usize = 30_000;
    send_lines(&node, "m v=1\n".to_owned(), COUNT)
        .join()
        .unwrap();
    wait_until("the readings", || {
        state(&node)["log"]["readings_durable"] == COUNT
    });
    let mut slow: Vec<_> = (0..8).map(|_| node.connect()).collect();
    for raw in &mut slow {
        raw.send(HISTORY, &json!({"key": "m/v"}));
    }
    let lines = node.ok(&["history", "m/v"]);
    assert_eq!(lines.lines().count(), COUNT);
    // The node has not given up the slow clients, either.
    for raw in &mut slow {
        let mut readings = 0;
        loop {
            match raw.answer().expect("an answer") {
                (READINGS, found) => readings += found["readings"].as_array().unwrap().len(),
                (kind, _) => {
                    assert_eq!(kind, END);
                    break;
                }
            }
        }
        assert_eq!(readings, COUNT);
    }
}

#[test]
fn a_history_that_breaks_off_is_whole_json_and_a_failure() {
    let node = Node::prepare(SMALL);
    let listener = UnixListener::bind(node.dir.file("fake.sock")).unwrap();
    let fake = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        let readings = json!({"readings": [{"time_ms": 0, "value": 1.5, "type": "float",
            "node_time": false, "clock_trusted": true, "lsn": 0}]});
        let bytes = frame(READINGS, 1, readings.to_string().as_bytes());
        stream.write_all(&bytes).unwrap();
    });
    let output = node.run(&["history", "a", "--json", "--node", "fake.sock"]);
    fake.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = one_line(&output.stderr);
    assert!(line.contains("closed the connection"), "{line}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1);
}

/// Returns the first byte of an MQTT packet of less than 128 bytes, and its body.
fn packet(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).unwrap();
    (head[0], body)
}

#[test]
fn retained_messages_are_marked_and_never_fresh_without_their_own_time() {
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = broker.local_addr().unwrap().port();
    let serves = std::thread::spawn(move || {
        let (mut stream, _) = broker.accept().unwrap();
        assert_eq!(packet(&mut stream).0, 0x10);
        stream.write_all(&[0x20, 2, 0, 0]).unwrap();
        let (_, subscribe) = packet(&mut stream);
        let grant = [0x90, 3, subscribe[0], subscribe[1], 1];
        stream.write_all(&grant).unwrap();
        // Two messages with QoS 0; the first one is marked as retained.
        stream.write_all(b"\x31\x07\x00\x04kept7").unwrap();
        stream.write_all(b"\x30\x07\x00\x04sent8").unwrap();
        // Stays until the node leaves.
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let mut node = Node::start(&format!(
        "{SMALL}[keys]\nauto_create = true\n[mqtt]\naddress = \"127.0.0.1:{port}\"\nclient_id = \"t\"\n\
         version = \"3.1.1\"\n[[mqtt.subscribe]]\nfilter = \"#\"\nretained = \"take\"\n"
    ));
    wait_until("both messages", || {
        node.run(&["get", "sent"]).status.success()
    });
    let kept = node.json(&["get", "kept", "--json"]);
    assert_eq!(kept["value"].as_f64(), Some(7.0));
    assert_eq!(
        (&kept["retained"], &kept["fresh"]),
        (&json!(true), &json!(false))
    );
    assert!(node.json(&["get", "sent", "--json"])["retained"].is_null());
    let long = node.ok(&["get", "kept", "--long"]);
    assert!(long.contains("its age is unknown)\n"), "{long}");
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["intake"]["retained_taken"], 1);
    assert!(node.stop().success());
    serves.join().unwrap();
}
