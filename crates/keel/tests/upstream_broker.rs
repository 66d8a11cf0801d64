//! `[[upstream]]` over MQTT: answers of a broker, and their effect on readings. The broker is a part of the test, with
//! configurable answers.

use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// Reason codes of MQTT 5.
const TAKEN: u8 = 0;
const NOT_AUTHORIZED: u8 = 0x87;
const QUOTA_EXCEEDED: u8 = 0x97;
const TOPIC_INVALID: u8 = 0x90;
const UNSPECIFIED: u8 = 0x80;
const SERVER_BUSY: u8 = 0x89;
const TOO_LARGE: u8 = 0x95;

/// The broker's reaction to a message.
#[derive(Clone, Copy)]
enum Reply {
    Answer(u8),
    /// Closes the connection with this reason.
    End(u8),
    Nothing,
}

struct Broker {
    port: u16,
    /// Topics and payloads of the accepted messages, in their order.
    taken: Arc<Mutex<Vec<(String, String)>>>,
    connections: Arc<Mutex<u32>>,
}

impl Broker {
    fn start(reply: impl Fn(&str, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let broker = Self {
            port: listener.local_addr().unwrap().port(),
            taken: Arc::default(),
            connections: Arc::default(),
        };
        let (taken, connections) = (Arc::clone(&broker.taken), Arc::clone(&broker.connections));
        let reply = Arc::new(reply);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                *connections.lock().unwrap() += 1;
                let (reply, taken) = (Arc::clone(&reply), Arc::clone(&taken));
                // The client may disconnect at any moment, so errors are ignored.
                std::thread::spawn(move || attend(stream.ok()?, &*reply, &taken));
            }
        });
        broker
    }

    /// Returns the distinct values received on a topic: messages after an unanswered one are sent again.
    fn values(&self, topic: &str) -> BTreeSet<String> {
        let taken = self.taken.lock().unwrap();
        let of = taken.iter().filter(|(found, _)| found == topic);
        of.map(|(_, payload)| payload.clone()).collect()
    }

    fn connections(&self) -> u32 {
        *self.connections.lock().unwrap()
    }
}

fn attend(
    mut stream: TcpStream,
    reply: &dyn Fn(&str, &str) -> Reply,
    taken: &Mutex<Vec<(String, String)>>,
) -> Option<()> {
    loop {
        let (first, body) = packet(&mut stream)?;
        match first >> 4 {
            // CONNECT: accept, with a packet size of at most 300 bytes.
            1 => stream
                .write_all(&[0x20, 8, 0, 0, 5, 0x27, 0, 0, 1, 44])
                .ok()?,
            // PUBLISH with QoS 1 and no properties.
            3 => {
                let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
                let topic = String::from_utf8(body[2..2 + length].to_vec()).unwrap();
                let id = [body[2 + length], body[3 + length]];
                let payload = String::from_utf8(body[5 + length..].to_vec()).unwrap();
                match reply(&topic, &payload) {
                    Reply::Answer(reason) => {
                        if reason == TAKEN {
                            taken.lock().unwrap().push((topic, payload));
                        }
                        stream.write_all(&[0x40, 3, id[0], id[1], reason]).ok()?;
                    }
                    Reply::End(reason) => {
                        stream.write_all(&[0xe0, 1, reason]).ok()?;
                        return None;
                    }
                    Reply::Nothing => {}
                }
            }
            // PINGREQ.
            12 => stream.write_all(&[0xd0, 0]).ok()?,
            _ => return None,
        }
    }
}

/// Returns the first byte of a packet, and the content after its length.
pub fn packet(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut byte = || {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok().map(|()| byte[0])
    };
    let first = byte()?;
    let mut length = 0;
    for place in 0..4 {
        let next = byte()?;
        length |= usize::from(next & 0x7f) << (7 * place);
        if next < 0x80 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((first, body))
}

fn config(port: u16, more: &str) -> String {
    format!(
        "{SMALL}[time]\nwall_clock = \"trusted\"\n[[upstream]]\nname = \"up\"\nkind = \"mqtt\"\npayload = \"number\"\n\
         address = \"127.0.0.1:{port}\"\nclient_id = \"up\"\ntopic = \"{{key}}\"\nbackoff_ms_min = 10\n\
         backoff_ms_max = 20\n{more}"
    )
}

fn upstream(node: &Node) -> Value {
    node.json_degraded(&["status", "--json"])["upstream"][0].clone()
}

fn wait_for(node: &Node, what: &str, is_so: impl Fn(&Value) -> bool) {
    wait_until(what, || is_so(&upstream(node)));
}

fn put(node: &Node, key: &str, values: std::ops::Range<u32>) -> BTreeSet<String> {
    let values = values.map(|value| value.to_string());
    values
        .inspect(|value| drop(node.ok(&["put", key, value])))
        .collect()
}

/// A broker that accepts connections and messages, but acknowledges none.
#[test]
fn a_broker_that_acknowledges_no_message_is_not_connected() {
    let broker = Broker::start(|_, _| Reply::Nothing);
    let mut node = Node::start(&config(broker.port, "answer_ms_max = 200\n"));
    // The missing acknowledgements show only after something was sent.
    wait_for(&node, "the connection", |found| found["connected"] == true);
    put(&node, "a", 0..1);
    wait_for(&node, "a complaint", |found| {
        let error = found["last_error"].as_str();
        error.is_some_and(|error| error.contains("does not answer"))
    });
    for _ in 0..20 {
        let found = upstream(&node);
        assert_eq!(
            (&found["connected"], &found["losses"]),
            (&false.into(), &1.into()),
            "{found}"
        );
    }
    node.stop();
}

/// An error about the broker itself or about this client, in an answer or at the end of the connection, drops no
/// reading.
#[test]
fn a_broker_at_fault_costs_no_reading() {
    let refusals = [
        Reply::Answer(NOT_AUTHORIZED),
        Reply::Answer(QUOTA_EXCEEDED),
        Reply::End(NOT_AUTHORIZED),
        Reply::End(QUOTA_EXCEEDED),
        Reply::End(SERVER_BUSY),
    ];
    for refusal in refusals {
        let is_mended = Arc::new(AtomicU8::new(0));
        let mended = Arc::clone(&is_mended);
        let broker = Broker::start(move |_, _| match mended.load(Ordering::Relaxed) {
            0 => refusal,
            _ => Reply::Answer(TAKEN),
        });
        let mut node = Node::start(&config(broker.port, "give_up_seconds_min = 1\n"));
        let values = put(&node, "a", 0..3);
        let begun = std::time::Instant::now();
        wait_until("many connections, for longer than it waits", || {
            broker.connections() > 20 && begun.elapsed().as_millis() > 1_500
        });
        let found = upstream(&node);
        assert_eq!(found["refused_total"], 0, "{found}");
        assert_eq!(found["connected"], false, "{found}");
        is_mended.store(1, Ordering::Relaxed);
        wait_for(&node, "all", |found| found["backlog_readings"] == 0);
        assert_eq!(broker.values("a"), values);
        assert_eq!(upstream(&node)["connected"], true);
        node.stop();
    }
}

/// A reason that may concern the message: in the end only that reading is dropped.
#[test]
fn a_reading_at_which_a_broker_ends_connections_is_dropped_alone() {
    for (refusal, inflight_max) in [
        (Reply::End(TOO_LARGE), 1),
        (Reply::End(TOO_LARGE), 20),
        (Reply::Answer(UNSPECIFIED), 1),
        (Reply::Answer(UNSPECIFIED), 20),
    ] {
        let broker = Broker::start(move |_, payload| match payload {
            "1" => refusal,
            _ => Reply::Answer(TAKEN),
        });
        // With a value of 1, no other message is in flight together with it.
        let more = format!("give_up_seconds_min = 1\ninflight_max = {inflight_max}\n");
        let mut node = Node::start(&config(broker.port, &more));
        put(&node, "a", 0..4);
        wait_for(&node, "all", |found| found["backlog_readings"] == 0);
        let values = ["0", "2", "3"].map(str::to_owned);
        assert_eq!(broker.values("a"), values.into());
        assert_eq!(upstream(&node)["refused"]["upstream"], 1);
        node.stop();
    }
}

/// A client that may not publish to one topic: other topics still work, and refused readings are counted.
#[test]
fn a_topic_without_permission_does_not_block_the_others() {
    let broker = Broker::start(|topic, _| match topic {
        "closed" => Reply::Answer(NOT_AUTHORIZED),
        _ => Reply::Answer(TAKEN),
    });
    let mut node = Node::start(&config(broker.port, "answer_ms_max = 60000\n"));
    put(&node, "closed", 0..3);
    // It is not known yet whether the refusal concerns the topic or the client.
    wait_for(&node, "the complaint", |found| {
        let error = found["last_error"].as_str();
        error.is_some_and(|error| error.contains("0x87"))
    });
    assert_eq!(upstream(&node)["refused_total"], 0);
    let values = put(&node, "open", 0..2);
    wait_for(&node, "all", |found| found["backlog_readings"] == 0);
    assert_eq!(upstream(&node)["refused"]["upstream"], 3);
    assert_eq!(broker.values("open"), values);
    // From now on both kinds alternate: the broker has accepted messages by now.
    let connections = broker.connections();
    for round in 0..5 {
        put(&node, "closed", round..round + 1);
        put(&node, "open", 10 + round..11 + round);
    }
    wait_for(&node, "all", |found| found["backlog_readings"] == 0);
    assert_eq!(upstream(&node)["refused"]["upstream"], 8);
    assert_eq!(broker.connections(), connections);
    for round in 10..15 {
        assert!(broker.values("open").contains(&round.to_string()));
    }
    node.stop();
}

/// The same after a message to a refused topic, also if no other message is in flight.
#[test]
fn a_reading_that_is_refused_behind_a_closed_topic_is_dropped_alone() {
    for (refusal, inflight_max) in [
        (Reply::End(TOO_LARGE), 20),
        (Reply::Answer(UNSPECIFIED), 20),
        (Reply::Answer(UNSPECIFIED), 1),
    ] {
        let broker = Broker::start(move |topic, _| match topic {
            "closed" => Reply::Answer(NOT_AUTHORIZED),
            "poison" => refusal,
            _ => Reply::Answer(TAKEN),
        });
        let more = format!(
            "give_up_seconds_min = 1\nwindow_readings_max = 100\ninflight_max = {inflight_max}\n"
        );
        let mut node = Node::prepare(&config(broker.port, &more));
        node.restart();
        put(&node, "open", 0..1);
        wait_for(&node, "the first", |found| found["acknowledged"] == 1);
        for key in ["closed", "poison", "open"] {
            put(&node, key, 1..2);
        }
        wait_for(&node, "all", |found| found["backlog_readings"] == 0);
        assert_eq!(upstream(&node)["refused"]["upstream"], 2);
        assert_eq!(broker.values("open").len(), 2);
        node.stop();
    }
}

/// A message that the broker can certainly never accept is dropped alone, however many of them follow each other.
#[test]
fn a_message_that_the_broker_never_accepts_is_dropped_alone() {
    let broker = Broker::start(|topic, _| match topic {
        "wrong" => Reply::Answer(TOPIC_INVALID),
        _ => Reply::Answer(TAKEN),
    });
    let more = "payload = \"json\"\ngive_up_seconds_min = 1\n";
    let config = config(broker.port, "").replace("payload = \"number\"\n", more)
        + "[keys]\nvalue_bytes_max = 400\n";
    let mut node = Node::start(&config);
    let long = "x".repeat(300);
    for _ in 0..20 {
        node.ok(&["put", "long", &long]);
    }
    put(&node, "wrong", 0..20);
    put(&node, "right", 0..1);
    wait_for(&node, "all", |found| found["backlog_readings"] == 0);
    assert_eq!(upstream(&node)["refused"]["upstream"], 40);
    assert_eq!(broker.values("right").len(), 1);
    node.stop();
}
