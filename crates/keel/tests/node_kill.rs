//! The node is killed with SIGKILL repeatedly, under load from all sources. Afterwards, nothing that it or the broker
//! has acknowledged may be missing or altered.
//!
//! `KEEL_KILL_SEED` and `KEEL_KILLS` select other random moments, and more of them.

use crate::common::broker::{Broker, Publisher};
use crate::common::node::{Node, PUT, Raw, STORED, frame};
use crate::common::wait_until;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of kills in one run.
const KILLS: u64 = 50;

/// Maximum lifetime after the node is ready, in µs.
const LIFE_US_MAX: u64 = 700_000;

/// Maximum lifetime of a node that is killed during its start, in µs.
const START_US_MAX: u64 = 60_000;

/// Every fifth kill, unless it is during a start, finds a node whose commits are suspended for this time.
const SUSPENDED_EVERY: u64 = 5;
const SUSPENDED: Duration = Duration::from_millis(200);

/// Messages published in one burst, and maximum number of messages in flight to the broker.
const BURST: u64 = 50;
const WINDOW: u64 = 200;

/// Pause of a publisher between two bursts; limits the amount of data that the final comparison must read.
const PACE: Duration = Duration::from_millis(15);

/// Pause before a source tries to connect to the node again.
const RETRY: Duration = Duration::from_millis(5);

/// The readings that a source has offered, and those acknowledged to it: all up to these numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    offered: u64,
    acknowledged: u64,
}

/// Returns the value of a reading; its fraction identifies the source.
fn value(number: u64, source: u64) -> f64 {
    number as f64 + source as f64 / 8.0
}

fn config(broker: Option<&Broker>) -> String {
    let mqtt = broker.map_or(String::new(), |broker| {
        format!(
            "[mqtt]\naddress = \"127.0.0.1:{}\"\nclient_id = \"kill\"\nreconnect_ms_min = 20\n\
             reconnect_ms_max = 100\n[[mqtt.subscribe]]\nfilter = \"load/#\"\n",
            broker.port
        )
    });
    format!(
        "[store]\ncreate_mebibytes = 64\ncommit_interval_ms = 50\n\
         [line]\ntcp_listen = \"\"\nunix_socket = \"line.sock\"\nkey = \"{{measurement}}\"\n{mqtt}"
    )
}

/// Ignores the exit status, which may say that the node is degraded: the state of this machine's clock is irrelevant
/// for the test.
fn status(node: &Node) -> serde_json::Value {
    serde_json::from_slice(&node.run(&["status", "--json"]).stdout).unwrap()
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Suspends the node's commits for a while, then kills the node. What it acknowledges meanwhile is not durable, so a
/// premature acknowledgement is found however fast the disk is.
fn kill_without_commits(node: &mut Node) {
    let commits = thread(node.pid(), "db-commit");
    let seized = trace(libc::PTRACE_SEIZE, commits);
    if let Err(error) = seized.and_then(|()| trace(libc::PTRACE_INTERRUPT, commits)) {
        println!("skipped: a kill while commits are suspended, since ptrace fails: {error}");
    }
    std::thread::sleep(SUSPENDED);
    node.signal(libc::SIGKILL);
    // The process cannot be waited for before its traced thread has been.
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    while unsafe { libc::waitpid(commits, &mut status, libc::__WALL) } == commits {}
    node.ended();
}

/// Returns the ID of the process's thread that has this name.
fn thread(process: u32, name: &str) -> libc::pid_t {
    let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let found = threads.find_map(|thread| {
        let thread = thread.unwrap();
        // Threads of connections may end at any time, and their files with them.
        let its_name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        (its_name.trim() == name).then(|| thread.file_name().into_string().unwrap())
    });
    found.expect(name).parse().unwrap()
}

fn trace(request: libc::c_uint, thread: libc::pid_t) -> std::io::Result<()> {
    // SAFETY: both requests take no data, and the thread belongs to a child of this process.
    match unsafe { libc::ptrace(request, thread, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

type Source = JoinHandle<Record>;

/// Publishes without regard to the node: the broker keeps accepted messages for it.
fn publish(port: u16, stop: Arc<AtomicBool>) -> Source {
    std::thread::spawn(move || {
        let mut publisher = Publisher::connect(port, "publisher");
        let mut offered = 0;
        while !stop.load(Ordering::Relaxed) {
            let numbers = offered + 1..=offered + BURST;
            publisher.publish(
                "load/mqtt",
                numbers.map(|number| value(number, 1).to_string()),
            );
            offered += BURST;
            publisher.settle(WINDOW);
            std::thread::sleep(PACE);
        }
        publisher.settle(0);
        Record {
            offered,
            acknowledged: publisher.acknowledged,
        }
    })
}

/// Sends lines in batches and requests an acknowledgement of each batch; an unacknowledged batch is sent again.
fn send_lines(path: PathBuf, stop: Arc<AtomicBool>) -> Source {
    std::thread::spawn(move || {
        let mut record = Record::default();
        let mut connection: Option<BufReader<UnixStream>> = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(reader) = &mut connection else {
                std::thread::sleep(RETRY);
                connection = UnixStream::connect(&path).ok().map(BufReader::new);
                continue;
            };
            let last = record.acknowledged + 1 + record.acknowledged % 7;
            let mut text = String::new();
            for number in record.acknowledged + 1..=last {
                text.push_str(&format!("lines v={}\n", value(number, 2)));
            }
            text.push('\n');
            record.offered = record.offered.max(last);
            let count = last - record.acknowledged;
            let mut answer = String::new();
            let sent = reader.get_mut().write_all(text.as_bytes());
            let answered = sent.and_then(|()| reader.read_line(&mut answer));
            if answered.is_ok() && answer.ends_with('\n') {
                assert_eq!(answer, format!("ok {count} 0\n"));
                record.acknowledged = last;
            } else {
                connection = None;
            }
        }
        record
    })
}

/// Puts readings one by one; an unacknowledged one is put again.
fn put(path: PathBuf, stop: Arc<AtomicBool>) -> Source {
    std::thread::spawn(move || {
        let mut record = Record::default();
        let mut connection: Option<Raw> = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(raw) = &mut connection else {
                std::thread::sleep(RETRY);
                connection = UnixStream::connect(&path).ok().map(Raw::new);
                continue;
            };
            let number = record.acknowledged + 1;
            record.offered = record.offered.max(number);
            let request = json!({"key": "puts", "value": value(number, 3)}).to_string();
            let sent = raw.stream.write_all(&frame(PUT, 1, request.as_bytes()));
            match sent.ok().and_then(|()| raw.answer()) {
                Some((STORED, _)) => record.acknowledged = number,
                Some(other) => panic!("{other:?}"),
                None => connection = None,
            }
        }
        record
    })
}

/// Compares a key's history with its source's record. Returns how many readings are stored more than once.
fn compare(node: &Node, key: &str, source: u64, record: Record) -> u64 {
    let csv = node.ok(&["history", key, "--csv"]);
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let text = line.split(',').nth(2).unwrap();
        let stored: f64 = text.parse().unwrap();
        let number = stored as u64;
        assert!(
            stored == value(number, source) && (1..=record.offered).contains(&number),
            "altered: {key} holds {text}, {record:?}"
        );
        *found.entry(number).or_default() += 1;
    }
    let missing: Vec<u64> = (1..=record.acknowledged)
        .filter(|number| !found.contains_key(number))
        .collect();
    assert!(
        missing.is_empty(),
        "missing: {} of {key}, the first {:?}, {record:?}",
        missing.len(),
        &missing[..missing.len().min(10)]
    );
    found.values().map(|count| count - 1).sum()
}

#[test]
fn acknowledged_readings_outlive_a_killed_node() {
    let seed = environment("KEEL_KILL_SEED", 1);
    let kills = environment("KEEL_KILLS", KILLS);
    let mut random = Random(seed);
    let broker = Broker::start();
    let mut node = Node::start(&config(broker.as_ref()));
    if broker.is_some() {
        // From now on the broker keeps accepted messages for this node.
        wait_until("the subscription", || {
            node.log().contains(" mqtt: connected")
                && status(&node)["mqtt"]["subscriptions_held"] == 1
        });
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut sources = vec![
        (
            "lines",
            2,
            send_lines(node.dir.file("line.sock"), stop.clone()),
        ),
        ("puts", 3, put(node.socket(), stop.clone())),
    ];
    if let Some(broker) = &broker {
        sources.push(("load/mqtt", 1, publish(broker.port, stop.clone())));
    }
    let (mut in_start, mut suspended) = (0, 0);
    let mut is_ready = true;
    for kill in 0..kills {
        let life_us = if is_ready {
            random.below(LIFE_US_MAX)
        } else {
            in_start += 1;
            random.below(START_US_MAX)
        };
        std::thread::sleep(Duration::from_micros(life_us));
        if is_ready && kill % SUSPENDED_EVERY == 0 {
            suspended += 1;
            kill_without_commits(&mut node);
        } else {
            node.kill();
        }
        // Every third life ends before the node may have become ready.
        is_ready = random.below(3) > 0;
        if is_ready {
            node.restart();
        } else {
            node.spawn();
        }
    }
    if !is_ready {
        node.kill();
        node.restart();
    }
    // A last life without a kill, so that each source can finish.
    std::thread::sleep(Duration::from_micros(LIFE_US_MAX));
    stop.store(true, Ordering::Relaxed);
    let records: Vec<(&str, u64, Record)> = sources
        .into_iter()
        .map(|(key, source, thread)| (key, source, thread.join().unwrap()))
        .collect();
    for (key, source, record) in &records {
        assert!(record.acknowledged > kills, "{key}: {record:?}");
        if *key == "load/mqtt" {
            // All published messages, since the broker keeps those that the node has not acknowledged.
            assert_eq!(record.offered, record.acknowledged);
            let last = format!("{}\n", value(record.offered, *source));
            wait_until("the broker's last message", || {
                node.run(&["get", key]).stdout == last.as_bytes()
            });
        }
    }
    // Compare again after a restart, to check the stored data instead of memory.
    node.kill();
    node.restart();
    for (key, source, record) in &records {
        let again = compare(&node, key, *source, *record);
        println!(
            "seed {seed}, {kills} kills ({in_start} during a start, {suspended} without commits): {key}: \
             {} acknowledged, none missing, {again} stored more than once",
            record.acknowledged
        );
    }
    assert!(node.stop().success());
    node.ok(&["flash", "check", "keel-data/store.img"]);
}
