//! The link between a node and its broker, its senders and its upstream is cut, loses packets, and is reset. It is the
//! loopback interface of a network of its own. Beside the readings of the node, those of the upstream are judged.

use crate::common::broker::Broker;
use crate::common::load::{self, ANSWER_TIME, Load, Rounds, Sent};
use crate::common::namespace::{cut, disturbed, in_own_network, lose, reset};
use crate::common::node::Node;
use crate::common::wait_until;
use crate::upstream::read_request;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Packets lost of 100,000, while the link is there.
const LOST: [u32; 3] = [1_000, 5_000, 20_000];

/// The node's port for lines: it is free in a network of its own.
const LISTEN: u16 = 8094;

/// An HTTP server, and the keys and values that it has taken.
struct Sink {
    port: u16,
    taken: Arc<Mutex<Vec<(String, f64)>>>,
}

impl Sink {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sink = Self {
            port: listener.local_addr().unwrap().port(),
            taken: Arc::default(),
        };
        let taken = Arc::clone(&sink.taken);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let taken = Arc::clone(&taken);
                // The connection may end at any moment, so errors are ignored.
                std::thread::spawn(move || attend(stream.ok()?, &taken));
            }
        });
        sink
    }

    /// Returns the numbers of the readings of a source, in the order of their arrival.
    fn numbers(&self, sent: &Sent) -> Vec<u64> {
        let taken = self.taken.lock().unwrap();
        let of = taken.iter().filter(|(key, _)| key == sent.key);
        of.map(|(_, value)| sent.number(*value)).collect()
    }
}

fn attend(mut stream: TcpStream, taken: &Mutex<Vec<(String, f64)>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (_, body) = read_request(&mut reader)?;
        taken.lock().unwrap().extend(body.lines().map(reading));
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}

/// Returns key and value of a line: `keel,key=puts value=1.25 1767225600000000000`.
fn reading(line: &str) -> (String, f64) {
    let (_, rest) = line.split_once(",key=").unwrap();
    let (key, rest) = rest.split_once(" value=").unwrap();
    let value = rest.split(' ').next().unwrap();
    (key.to_owned(), value.parse().unwrap())
}

#[test]
fn a_link_that_is_cut_lossy_and_reset_costs_no_reading() {
    if let Err(reason) = in_own_network(run) {
        println!("skipped: {reason}");
    }
}

fn run() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let sink = Sink::start();
    let port = broker.port;
    let upstream = format!(
        "[[upstream]]\nname = \"sink\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{}/write\"\nlinger_ms = 20\n\
         answer_ms_max = 3000\nbackoff_ms_min = 20\nbackoff_ms_max = 100\n",
        sink.port
    );
    // A reset may reach one end alone. The node then finds out by its own probe.
    let config = load::config("create_mebibytes = 64\n", Some(port))
        .replace("[mqtt]\n", "[mqtt]\nkeep_alive_seconds = 5\n")
        .replace("\"\"", &format!("\"127.0.0.1:{LISTEN}\""));
    let mut node = Node::start(&(config + &upstream));
    load::wait_subscribed(&node, 0);
    let load = Load::with_lines(&node, || {
        let stream = TcpStream::connect(("127.0.0.1", LISTEN))?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        Ok(stream)
    })
    .publish_to(port);
    let mut packets = 0;
    let mut rounds = Rounds::of(5);
    while rounds.more() {
        rounds.pause(300);
        match rounds.random.below(3) {
            0 => cut().unwrap(),
            1 => lose(LOST[rounds.random.below(3) as usize]).unwrap(),
            _ => {
                if let Err(reason) = reset() {
                    println!("skipped: resets: {reason}");
                    cut().unwrap();
                }
            }
        }
        rounds.pause(1_000);
        packets += disturbed();
        lose(0).unwrap();
    }
    let sent = load.end();
    load::wait_published(&node, &sent);
    drop(broker);
    let counted = load::counted(&node);
    let mut upstream = serde_json::Value::Null;
    wait_until("the last reading at the upstream", || {
        upstream = load::status(&node)["upstream"][0].clone();
        upstream["backlog_readings"] == 0
    });
    let mut arrived = 0;
    for source in &sent {
        let numbers = sink.numbers(source);
        source.check(&numbers, false);
        arrived += numbers.len() as u64;
    }
    // What the node has sent again is what it counts.
    let twice = upstream["sent_twice"].as_u64().unwrap();
    assert!(
        (counted..=counted + twice).contains(&arrived),
        "{arrived} of {counted} arrived: {upstream}"
    );
    let held = load::judge(&mut node, &sent, "keel-data/store.img", 0);
    assert_eq!(held, counted);
    println!("{packets} packets lost or refused; the upstream got {arrived} readings");
    assert!(packets > 0, "the link was never disturbed");
}
