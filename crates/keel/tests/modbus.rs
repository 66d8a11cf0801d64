//! Modbus devices and a whole node; and the commands of `docs/modbus.md`.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, wait_until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[test]
fn the_commands_of_the_page_work() {
    let dir = TempDir::new();
    let compared = crate::page_common::run_page("modbus.md", dir.path(), &[], |_| false);
    assert_eq!(compared, 2);
}

/// A server over TCP with the input registers 0 to 99, each of which holds its address plus 1000. While `is_silent`, it
/// answers nothing.
fn server(is_silent: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let is_silent = Arc::clone(is_silent);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let is_silent = Arc::clone(&is_silent);
            std::thread::spawn(move || serve(stream.unwrap(), &is_silent));
        }
    });
    address
}

fn serve(mut stream: TcpStream, is_silent: &AtomicBool) {
    let mut asked = [0; 12];
    while stream.read_exact(&mut asked).is_ok() {
        let [n0, n1, .., unit, function, a, b, c, d] = asked;
        let (begin, count) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let mut pdu = vec![function | 0x80, 2];
        if function == 4 && begin + count <= 100 {
            pdu = vec![4, 2 * count as u8];
            pdu.extend((begin..begin + count).flat_map(|address| (1000 + address).to_be_bytes()));
        }
        let answer = [&[n0, n1, 0, 0, 0, pdu.len() as u8 + 1, unit], &pdu[..]].concat();
        if !is_silent.load(SeqCst) && stream.write_all(&answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_device_is_read_and_its_silence_is_reported_with_reason() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let address = server(&is_silent);
    let config = format!(
        r#"{SMALL}
[time]
wall_clock = "trusted"
[[modbus]]
name = "meter"
address = "tcp://{address}"
interval_ms = 20
timeout_ms = 1000
retry_ms_max = 500
[[modbus.register]]
key = "meter/voltage"
table = "input"
address = 7
[[modbus.register]]
key = "meter/current"
table = "input"
address = 8
scale = 0.1
[[modbus.register]]
key = "meter/counter"
table = "input"
address = 0
type = "u64"
"#
    );
    let mut node = Node::start(&config);
    // The counter is asked for first, and of the other answer the current is the last.
    wait_until("readings", || {
        node.run(&["get", "meter/current"]).status.success()
    });
    assert_eq!(node.ok(&["get", "meter/voltage"]), "1007\n");
    assert_eq!(node.ok(&["get", "meter/current"]), "100.8\n");
    // 1000, 1001, 1002 and 1003 in a row: more than a double holds.
    let counter = (1000_u64 << 48) | (1001 << 32) | (1002 << 16) | 1003;
    assert_eq!(node.ok(&["get", "meter/counter"]), format!("{counter}\n"));
    let status = node.json_degraded(&["status", "--json"]);
    let device = &status["modbus"][0];
    assert_eq!(device["name"], "meter");
    assert_eq!(device["failing"], false);
    assert_eq!(device["address"], format!("tcp://{address}"));
    assert!(device["readings"].as_u64() >= Some(3), "{device}");

    is_silent.store(true, SeqCst);
    let mut text = String::new();
    wait_until("the reason", || {
        let said = node.run(&["status"]);
        text = String::from_utf8(said.stdout).unwrap();
        text.contains("modbus_failing")
    });
    let reason = format!(
        "device meter (tcp://{address} unit 1) does not give all its registers: no answer within 1000 ms;"
    );
    assert!(text.contains(&reason), "{text}");
    let line = text.lines().find(|line| line.starts_with("modbus "));
    assert!(line.is_some_and(|line| line.contains(" FAILS: ") && line.contains("timeout ")));
    let status = node.json_degraded(&["status", "--json"]);
    assert!(
        status["modbus_faults"]["timeout"].as_u64() >= Some(2),
        "{status}"
    );
    // What it has given stays, with its time: nothing is made up.
    let time_ms = |node: &Node| {
        let value = node.json(&["get", "meter/voltage", "--json"]);
        value["time_ms"].as_i64().unwrap()
    };
    let before = time_ms(&node);
    let polls = |node: &Node| {
        let status = node.json_degraded(&["status", "--json"]);
        status["modbus"][0]["polls"].as_u64().unwrap()
    };
    let polled = polls(&node);
    wait_until("another poll", || polls(&node) > polled);
    assert_eq!(time_ms(&node), before);

    is_silent.store(false, SeqCst);
    wait_until("an answer", || {
        let status = node.json_degraded(&["status", "--json"]);
        status["modbus"][0]["failing"] == false
    });
    assert!(time_ms(&node) > before);
    assert!(node.stop().success());
}
