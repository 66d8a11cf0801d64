//! Clients that behave badly: they harm only themselves, are counted, and delay no others.

use crate::common::http::{Events, HTTP, address, answer, connect, get, json, rest};
use crate::common::node::Node;
use crate::common::{keep_alive_runs, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

fn figures(address: &str) -> Value {
    json(address, "/api/v1/status")["http"].clone()
}

/// Sends lines and waits until they are on flash.
fn lines(node: &Node, text: &str) {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut said = [0; 64];
    let count = stream.read(&mut said).unwrap();
    assert!(said[..count].starts_with(b"ok "), "{said:?}");
}

/// Raises the limit of open files of this process.
fn raise_files_max() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls on a structure of this function.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(4096);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

#[test]
fn peers_that_vanish_are_found_out() {
    let node = Node::start(HTTP);
    let client = connect(&address(&node));
    wait_until("the timer of keep-alive", || keep_alive_runs(&client));
}

#[test]
fn a_head_that_does_not_come_ends_its_connection_and_no_other() {
    let node = Node::start(HTTP);
    let address = address(&node);
    let mut slow: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = connect(&address);
            stream
                .write_all(b"GET /api/v1/values HTTP/1.1\r\nhost: 127")
                .unwrap();
            stream
        })
        .collect();
    node.ok(&["put", "a", "1"]);
    assert_eq!(json(&address, "/api/v1/values/a")["value"], 1.0);
    // Sending more of the header does not extend the deadline.
    for stream in &mut slow {
        stream.write_all(b".").unwrap();
    }
    for mut stream in slow {
        let said = String::from_utf8(rest(&mut stream)).unwrap();
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408"),
            "{said}"
        );
    }
    wait_until("the count of broken heads", || {
        figures(&address)["heads_broken"].as_u64() >= Some(8)
    });
}

#[test]
fn a_head_that_is_too_long_or_no_http_is_refused() {
    let node = Node::start(HTTP);
    let address = address(&node);
    let long = "x".repeat(64 << 10);
    let many = "x: y\r\n".repeat(100);
    for request in [
        format!("GET /{long} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n{many}\r\n"),
        "hall,sensor=1 temperature=21.5\n\n".to_owned(),
        "\x16\x03\x01\x02\x00\x01\x00\x01".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let mut stream = connect(&address);
        // The connection may be closed before all has been sent.
        stream.write_all(request.as_bytes()).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        let said = String::from_utf8_lossy(&rest(&mut stream)).into_owned();
        let status = said.split(' ').nth(1).unwrap_or("closed").to_owned();
        assert!(
            ["400", "414", "431", "closed"].contains(&status.as_str()),
            "{said}"
        );
    }
    wait_until("the count of broken heads", || {
        figures(&address)["heads_broken"].as_u64() >= Some(4)
    });
    assert_eq!(get(&address, "/healthz").status, 200);
}

#[test]
fn a_thousand_silent_connections_do_not_shut_out_others() {
    raise_files_max();
    let node = Node::start(HTTP);
    let address = address(&node);
    let mut silent = Vec::new();
    for count in 1..=1000 {
        silent.push(TcpStream::connect(&address).unwrap());
        if count % 250 == 0 {
            node.ok(&["put", "a", &count.to_string()]);
            let found = json(&address, "/api/v1/values/a");
            assert_eq!(found["value"], f64::from(count));
        }
    }
    let found = figures(&address);
    assert!(found["connections"].as_u64().unwrap() <= 64, "{found}");
    assert!(
        found["connections_evicted"].as_u64().unwrap() >= 900,
        "{found}"
    );
    assert_eq!(found["refused"]["connections"], 0, "{found}");
    drop(silent);
}

#[test]
fn streams_are_limited_in_all_and_for_one_client() {
    let node = Node::start(&format!(
        "{HTTP}connections_max = 6\nstreams_max = 6\nstreams_per_client_max = 4\n"
    ));
    let address = address(&node);
    let mut streams: Vec<Events> = (0..4)
        .map(|_| {
            let mut events = Events::begin(&address, "/api/v1/stream", "");
            events.next().unwrap();
            events
        })
        .collect();
    let refused = get(&address, "/api/v1/stream");
    assert_eq!(
        (refused.status, &refused.json()["thing"]),
        (429, &Value::from("stream"))
    );
    // Active streams keep their places. A new connection gets one of the two others; the silent connection is closed
    // first.
    let silent = TcpStream::connect(&address).unwrap();
    for _ in 0..5 {
        assert_eq!(get(&address, "/healthz").status, 200);
    }
    drop((streams.pop(), silent));
    wait_until("the place of a stream that has ended", || {
        figures(&address)["streams"] == 3
    });
    Events::begin(&address, "/api/v1/stream", "")
        .next()
        .unwrap();
    assert!(figures(&address)["refused"]["streams"] == 1);
}

#[test]
fn a_new_connection_is_refused_with_a_reason_while_all_are_in_use() {
    let node = Node::start(&format!("{HTTP}connections_max = 2\nstreams_max = 2\n"));
    let address = address(&node);
    let mut streams: Vec<Events> = (0..2)
        .map(|_| {
            let mut events = Events::begin(&address, "/api/v1/stream?status=1", "");
            events.next().unwrap();
            events
        })
        .collect();
    let mut stream = connect(&address);
    let refused = answer(&mut stream);
    assert_eq!(
        (refused.status, &refused.json()["thing"]),
        (503, &Value::from("connections"))
    );
    let status = streams[0].until("the count", |event, data| {
        event == "status" && data["http"]["refused"]["connections"] == 1
    });
    assert_eq!(status["http"]["connections"], 2);
}

#[test]
fn a_client_with_too_many_requests_is_slowed_down() {
    let node = Node::start(&format!("{HTTP}requests_per_second_max = 5\n"));
    let address = address(&node);
    let statuses: Vec<u16> = (0..50).map(|_| get(&address, "/healthz").status).collect();
    assert_eq!(statuses[..5], [200; 5]);
    assert!(statuses.contains(&429), "{statuses:?}");
    // The node itself is not slowed down.
    node.ok(&["put", "a", "1"]);
    wait_until("an answer", || get(&address, "/healthz").status == 200);
}

#[test]
fn a_reader_that_takes_nothing_misses_updates_is_told_so_and_ends_with_the_latest() {
    const KEYS: usize = 200;
    let node = Node::start(&format!(
        "{HTTP}stream_kibibytes_max = 16\nstream_period_ms = 50\n"
    ));
    let address = address(&node);
    let slow = connect(&address);
    let bytes: libc::c_int = 4096;
    // SAFETY: a plain system call on a socket of this function.
    let set = unsafe {
        let value = std::ptr::from_ref(&bytes).cast();
        libc::setsockopt(
            slow.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            value,
            4,
        )
    };
    assert_eq!(set, 0);
    let mut slow = Events::on(slow, &address, "/api/v1/stream", "");
    slow.next().unwrap();
    let mut round: u32 = 0;
    // The kernel buffers some hundred KiB for a reader before it counts as slow.
    wait_until("dropped updates", || {
        round += 1;
        let text: String = (0..KEYS)
            .map(|key| format!("room,key={key:0>40} v={round}\n"))
            .collect();
        lines(&node, &text);
        figures(&address)["updates_dropped"].as_u64() >= Some(10 * KEYS as u64)
    });
    let dropped = figures(&address)["updates_dropped"].as_u64().unwrap();
    let mut values = BTreeMap::new();
    let mut missed = 0;
    slow.until("the latest values", |event, data| {
        if event == "missed" {
            missed += data["updates"].as_u64().unwrap();
        }
        for (key, value) in data["values"].as_object().into_iter().flatten() {
            values.insert(key.clone(), value[0].as_f64().unwrap());
        }
        values.len() == KEYS && values.values().all(|value| *value == f64::from(round))
    });
    assert!(missed >= dropped, "told {missed} of {dropped}");
    let status = json(&address, "/api/v1/status");
    assert_eq!(
        status["log"]["readings_durable"],
        KEYS as u64 * u64::from(round)
    );
}
