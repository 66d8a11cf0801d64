//! `[[upstream]]` that accepts connections and gets no further: it answers nothing, or reads nothing. The node takes
//! readings as if it were well, keeps them, says what is wrong, and delivers them when the upstream has recovered.

use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use crate::upstream::{config, read_request, status};
use crate::upstream_broker::packet;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What both upstreams do until they are mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Accept connections, and neither read nor answer.
    Deaf,
    /// The broker answers the greeting; then as above.
    Stopped,
    /// Read and keep everything, and acknowledge nothing.
    Mute,
}

/// An upstream that is stuck until it is mended, and how often each reading arrived there.
struct Stuck {
    port: u16,
    fault: Fault,
    is_mended: AtomicBool,
    connections: AtomicU32,
    arrived: Mutex<BTreeMap<u64, u32>>,
}

impl Stuck {
    fn start(fault: Fault, attend: fn(&Self, TcpStream) -> Option<()>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stuck = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            fault,
            is_mended: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            arrived: Mutex::default(),
        });
        let theirs = Arc::clone(&stuck);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                theirs.connections.fetch_add(1, Ordering::SeqCst);
                let theirs = Arc::clone(&theirs);
                // The node may disconnect at any moment, so errors are ignored.
                std::thread::spawn(move || attend(&theirs, stream.ok()?));
            }
        });
        stuck
    }

    fn is_mended(&self) -> bool {
        self.is_mended.load(Ordering::SeqCst)
    }

    /// Keeps a connection open until the upstream is mended, as if its program had stopped.
    fn hold(&self) -> Option<()> {
        while !self.is_mended() {
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Notes the readings of a message: each value is `@NUMBER@` and a filling.
    fn take(&self, message: &str) {
        let mut arrived = self.arrived.lock().unwrap();
        for number in message.split('@').skip(1).step_by(2) {
            *arrived.entry(number.parse().unwrap()).or_default() += 1;
        }
    }

    fn arrived(&self) -> BTreeMap<u64, u32> {
        self.arrived.lock().unwrap().clone()
    }
}

/// Attends to a connection as an HTTP server.
fn server(upstream: &Stuck, mut stream: TcpStream) -> Option<()> {
    let is_well = upstream.is_mended();
    if !is_well && upstream.fault != Fault::Mute {
        return upstream.hold();
    }
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (_, body) = read_request(&mut reader)?;
        upstream.take(&body);
        if !is_well {
            return upstream.hold();
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}

/// Attends to a connection as a broker (MQTT 5).
fn broker(upstream: &Stuck, mut stream: TcpStream) -> Option<()> {
    let is_well = upstream.is_mended();
    if !is_well && upstream.fault == Fault::Deaf {
        return upstream.hold();
    }
    loop {
        let (first, body) = packet(&mut stream)?;
        match first >> 4 {
            // CONNECT.
            1 => {
                stream.write_all(&[0x20, 3, 0, 0, 0]).ok()?;
                if !is_well && upstream.fault == Fault::Stopped {
                    return upstream.hold();
                }
            }
            // PUBLISH with QoS 1 and no properties.
            3 => {
                let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
                let id = [body[2 + length], body[3 + length]];
                upstream.take(std::str::from_utf8(&body[5 + length..]).unwrap());
                if is_well {
                    stream.write_all(&[0x40, 3, id[0], id[1], 0]).ok()?;
                }
            }
            // PINGREQ.
            12 => stream.write_all(&[0xd0, 0]).ok()?,
            _ => return None,
        }
    }
}

/// Bytes of a value: what waits for an upstream is more than the kernel keeps for a connection.
const VALUE_BYTES: usize = 4_000;

/// Sends numbered readings and waits for the node's word that they are on flash.
fn send(node: &Node, numbers: std::ops::Range<u64>) {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let filling = "x".repeat(VALUE_BYTES);
    let count = numbers.end - numbers.start;
    let lines = numbers.map(|n| format!("hall,sensor={} t=\"@{n}@{filling}\"\n", n % 3));
    let lines = lines.collect::<String>() + "\n";
    stream.write_all(lines.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, format!("ok {count} 0\n"));
}

/// Returns a node with both kinds of upstream, which wait briefly for answers.
fn node(server: &Stuck, broker: &Stuck, window: usize) -> Node {
    let store = "create_mebibytes = 32\ncommit_interval_ms = 20\n";
    let both = format!(
        "window_readings_max = {window}\nbatch_bytes_max = 8388608\nanswer_ms_max = 3000\nlinger_ms = 20\n\
         backoff_ms_min = 20\nbackoff_ms_max = 100\n"
    );
    let text = format!(
        "[keys]\nkeys_max = 16\nvalue_bytes_max = 4096\n\
         [[upstream]]\nname = \"influx\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{}/write\"\n{both}\
         [[upstream]]\nname = \"cloud\"\nkind = \"mqtt\"\naddress = \"127.0.0.1:{}\"\nclient_id = \"keel-up\"\n\
         topic = \"all\"\n{both}",
        server.port, broker.port
    );
    let config = config(&text);
    assert!(config.starts_with(SMALL));
    Node::start(&config.replace("create_mebibytes = 16\n", store))
}

/// Returns what the status says of upstreams that take nothing.
fn complaints(status: &Value) -> Vec<&str> {
    let reasons = status["reasons"].as_array().unwrap().iter();
    let stuck = reasons.filter(|reason| reason["code"] == "upstream_disconnected");
    stuck.map(|one| one["text"].as_str().unwrap()).collect()
}

/// Waits until each upstream has `readings` readings ahead.
fn wait_for_backlog(node: &Node, readings: u64) {
    wait_until("the backlog", || {
        let found = status(node);
        (0..2).all(|at| found["upstream"][at]["backlog_readings"] == readings)
    });
}

#[test]
fn an_upstream_that_is_stuck_costs_no_reading_and_gets_all_of_them_when_it_recovers() {
    for fault in [Fault::Deaf, Fault::Stopped, Fault::Mute] {
        let upstreams = [Stuck::start(fault, server), Stuck::start(fault, broker)];
        // Nothing limits how much is written to one that does not read. One that keeps what it does not acknowledge may
        // get a window of it twice.
        let window = if fault == Fault::Mute { 100 } else { 100_000 };
        let mut node = node(&upstreams[0], &upstreams[1], window);
        let mut sent = 0;
        let mut more = |node: &Node| {
            send(node, sent..sent + 50);
            sent += 50;
            wait_for_backlog(node, sent);
            sent
        };
        more(&node);
        wait_until("the complaints about both", || {
            complaints(&status(&node)).len() == 2
        });
        let total = (0..20).fold(0, |_, _| more(&node));
        let found = status(&node);
        assert_eq!(found["state"], "degraded", "{fault:?}: {found}");
        let said = complaints(&found);
        assert_eq!(said.len(), 2, "{fault:?}: {found}");
        for ((name, upstream), text) in ["influx", "cloud"].iter().zip(&upstreams).zip(said) {
            let begin = format!("{name} at 127.0.0.1:{} takes nothing (", upstream.port);
            assert!(text.starts_with(&begin), "{fault:?}: {text}");
            assert!(upstream.connections.load(Ordering::SeqCst) >= 1);
        }
        let log = &found["log"];
        assert_eq!(log["readings_durable"], total, "{fault:?}: {log}");
        for lost in [
            &log["refused_full"],
            &log["refused_failed"],
            &found["intake"]["refused_total"],
            &found["intake"]["readings_shed"],
            &found["history"]["readings_dropped"],
            &found["history"]["readings_expired"],
        ] {
            assert_eq!(*lost, 0, "{fault:?}: {found}");
        }
        for upstream in &upstreams {
            upstream.is_mended.store(true, Ordering::SeqCst);
        }
        wait_for_backlog(&node, 0);
        let found = status(&node);
        for (at, upstream) in upstreams.iter().enumerate() {
            let arrived = upstream.arrived();
            assert!(
                arrived.keys().copied().eq(0..total),
                "{fault:?}: {arrived:?}"
            );
            let twice = arrived.values().filter(|times| **times > 1).count();
            let twice_max = if fault == Fault::Mute { window } else { 0 };
            assert!(twice <= twice_max, "{fault:?}: {twice} came twice");
            let figures = &found["upstream"][at];
            assert_eq!(
                (
                    &figures["acknowledged"],
                    &figures["refused_total"],
                    &figures["forward_lost"]
                ),
                (&total.into(), &0.into(), &0.into()),
                "{fault:?}: {figures}"
            );
        }
        wait_until("a healthy node", || status(&node)["state"] == "ok");
        assert!(node.stop().success());
    }
}
