//! Readings under load: sources that know what was acknowledged to them, and the judge of what a node then holds.
//!
//! **After any fault:** No acknowledged reading is missing or altered, and none is invented. The first arrivals of a
//! key keep their order. A node that was not killed holds as many readings as it has counted.
//!
//! `KEEL_FAULT_SEED` selects other random moments, `KEEL_FAULT_SECONDS` a longer time with faults.

use super::broker::Publisher;
use super::node::{ERROR, Node, PUT, Raw, STORED, frame};
use super::wait_until;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keys of the sources.
pub const MQTT: &str = "load/mqtt";
pub const LINES: &str = "lines";
pub const PUTS: &str = "puts";
pub const TEXTS: &str = "filling";

/// The number of the source that publishes; the others follow.
const PUBLISHER: u64 = 1;
const FILLER: u64 = PUBLISHER + 3;

/// Bytes of a text that fills a store.
const TEXT_BYTES: usize = 8_000;

/// Messages published in one burst, and maximum number of messages in flight to the broker.
pub const BURST: u64 = 50;
pub const WINDOW: u64 = 200;

/// Pause of a publisher between two bursts; limits the amount of data that the final comparison must read.
const PACE: Duration = Duration::from_millis(15);

/// Pause before a source tries again.
const RETRY: Duration = Duration::from_millis(5);

/// Time after which a source gives its connection up, and sends again what was not acknowledged.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Time in which a source must have its last acknowledgement after it was told to stop. It ends only what hangs.
pub const END_TIME: Duration = Duration::from_secs(60);

/// Returns the configuration of a node for these sources; `store` is lines of its `[store]`.
pub fn config(store: &str, broker: Option<u16>) -> String {
    let mqtt = broker.map_or(String::new(), |port| {
        format!(
            "[mqtt]\naddress = \"127.0.0.1:{port}\"\nclient_id = \"load\"\nreconnect_ms_min = 20\n\
             reconnect_ms_max = 100\n[[mqtt.subscribe]]\nfilter = \"load/#\"\n"
        )
    });
    format!(
        "[store]\n{store}commit_interval_ms = 50\n[time]\nwall_clock = \"trusted\"\n\
         [line]\ntcp_listen = \"\"\nunix_socket = \"line.sock\"\nkey = \"{{measurement}}\"\n{mqtt}"
    )
}

/// Ignores the exit status, which may say that the node is degraded or has failed.
pub fn status(node: &Node) -> Value {
    node.json_degraded(&["status", "--json"])
}

/// Returns the number in an environment variable, or else this one.
pub fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Rounds of a fault: a fixed number, and more until `KEEL_FAULT_SECONDS` have passed.
pub struct Rounds {
    pub random: Random,
    begun: Instant,
    done: u64,
    rounds_min: u64,
    time: Duration,
}

impl Rounds {
    pub fn of(rounds_min: u64) -> Self {
        let seed = environment("KEEL_FAULT_SEED", 1);
        println!("KEEL_FAULT_SEED={seed}");
        Self {
            random: Random(seed),
            begun: Instant::now(),
            done: 0,
            rounds_min,
            time: Duration::from_secs(environment("KEEL_FAULT_SECONDS", 0)),
        }
    }

    /// Returns whether another round follows.
    pub fn more(&mut self) -> bool {
        let more = self.done < self.rounds_min || self.begun.elapsed() < self.time;
        self.done += u64::from(more);
        more
    }

    /// Sleeps for a random time of at most this number of ms.
    pub fn pause(&mut self, ms_max: u64) {
        std::thread::sleep(Duration::from_micros(self.random.below(1_000 * ms_max)));
    }
}

/// The readings that a source has offered, and those acknowledged to it: all up to these numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    pub offered: u64,
    pub acknowledged: u64,
    /// Requests answered with a failure.
    pub failed: u64,
    /// Connections that could not be made, or ended without an answer.
    pub lost: u64,
}

impl Record {
    fn refused(&self) -> u64 {
        self.failed + self.lost
    }
}

/// Returns the value of a reading; its fraction identifies the source.
fn value(number: u64, source: u64) -> f64 {
    number as f64 + source as f64 / 8.0
}

/// Returns the payloads of messages with these readings.
pub fn payloads(numbers: std::ops::RangeInclusive<u64>) -> impl Iterator<Item = String> {
    numbers.map(|number| value(number, PUBLISHER).to_string())
}

/// Returns the text with this number: a value, and letters behind it.
pub fn text(number: u64) -> String {
    format!("{:x<TEXT_BYTES$}", value(number, FILLER))
}

/// What a source has sent under its key.
#[derive(Debug)]
pub struct Sent {
    pub key: &'static str,
    source: u64,
    pub record: Record,
}

impl Sent {
    /// Returns what a test has published itself.
    pub fn published(record: Record) -> Self {
        Self {
            key: MQTT,
            source: PUBLISHER,
            record,
        }
    }

    /// Returns what a test has sent itself to fill a store.
    pub fn filled(record: Record) -> Self {
        Self {
            key: TEXTS,
            source: FILLER,
            record,
        }
    }

    /// Returns the number of a reading. Panics if none with this value was offered.
    pub fn number(&self, stored: f64) -> u64 {
        let number = stored as u64;
        assert!(
            stored == value(number, self.source) && (1..=self.record.offered).contains(&number),
            "altered or invented: {stored} in {self:?}"
        );
        number
    }

    /// Requires that these numbers, in the order of their arrival, include all acknowledged ones, and that first
    /// arrivals rise. With `expires`, the oldest may be gone. Returns how many of the acknowledged ones are.
    pub fn check(&self, numbers: &[u64], expires: bool) -> u64 {
        let first = numbers
            .first()
            .copied()
            .unwrap_or(self.record.acknowledged + 1);
        let mut seen = BTreeSet::new();
        let mut last = 0;
        for &number in numbers {
            // What was sent twice may have lost its first arrival.
            if seen.insert(number) && (!expires || number >= first) {
                assert!(number > last, "{number} came after {last}: {self:?}");
                last = number;
            }
        }
        let missing = |number: &u64| !seen.contains(number);
        let missing: Vec<u64> = (1..=self.record.acknowledged).filter(missing).collect();
        let lost = missing.iter().find(|&&number| !expires || number > first);
        assert!(
            lost.is_none(),
            "missing: {} of {self:?}, among them {lost:?}",
            missing.len()
        );
        missing.len() as u64
    }
}

/// What a source and its test share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    record: Mutex<Record>,
}

/// The course of a source: it goes on until it is told to stop, and then has [`END_TIME`].
struct Course<'t> {
    shared: &'t Shared,
    stopped: Option<Instant>,
}

impl<'t> Course<'t> {
    fn of(shared: &'t Shared) -> Self {
        Self {
            shared,
            stopped: None,
        }
    }

    /// Shows the record to the test. Returns whether the source was told to stop; panics if that is too long ago.
    fn is_over(&mut self, record: Record) -> bool {
        *self.shared.record.lock().unwrap() = record;
        if !self.shared.stop.load(Ordering::Relaxed) {
            return false;
        }
        let stopped = *self.stopped.get_or_insert_with(Instant::now);
        assert!(
            stopped.elapsed() < END_TIME,
            "the last acknowledgement does not come: {record:?}"
        );
        true
    }
}

/// A running source.
struct Source {
    key: &'static str,
    number: u64,
    shared: Arc<Shared>,
    thread: JoinHandle<Record>,
}

/// Running sources, until they are ended or this is dropped.
#[derive(Default)]
pub struct Load(Vec<Source>);

impl Load {
    /// Starts a sender of lines and a client that puts, through the sockets of a node.
    pub fn start(node: &Node) -> Self {
        let path = node.dir.file("line.sock");
        Self::with_lines(node, move || {
            let stream = UnixStream::connect(&path)?;
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            Ok(stream)
        })
    }

    /// The same; `connect` opens the connections of the sender of lines.
    pub fn with_lines<S: Read + Write + 'static>(
        node: &Node,
        connect: impl Fn() -> io::Result<S> + Send + 'static,
    ) -> Self {
        let socket = node.socket();
        let mut load = Self::default();
        load.run(LINES, PUBLISHER + 1, move |source, shared| {
            send_lines(&connect, source, shared)
        });
        load.run(PUTS, PUBLISHER + 2, move |source, shared| {
            put(&socket, source, shared)
        });
        load
    }

    /// Adds a publisher at the broker with this port.
    pub fn publish_to(mut self, port: u16) -> Self {
        self.run(MQTT, PUBLISHER, move |_, shared| publish(port, shared));
        self
    }

    fn run(
        &mut self,
        key: &'static str,
        number: u64,
        send: impl FnOnce(u64, &Shared) -> Record + Send + 'static,
    ) {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || send(number, &theirs));
        self.0.push(Source {
            key,
            number,
            shared,
            thread,
        });
    }

    fn records(&self) -> Vec<Record> {
        let record = |source: &Source| *source.shared.record.lock().unwrap();
        self.0.iter().map(record).collect()
    }

    /// Waits until each source was refused this number of times from now on.
    fn wait_refused(&self, times: u64) {
        let before = self.records();
        wait_until("refusals of all sources", || {
            let now = self.records();
            now.iter()
                .zip(&before)
                .all(|(now, before)| now.refused() >= before.refused() + times)
        });
    }

    /// Requires that a node whose log has failed acknowledges nothing more.
    pub fn require_no_acknowledgement(&self) {
        let acknowledged = || -> Vec<u64> {
            let records = self.records();
            records.iter().map(|record| record.acknowledged).collect()
        };
        // The request of the first refusal may have begun before the failure, the next one has not.
        self.wait_refused(2);
        let before = acknowledged();
        self.wait_refused(2);
        assert_eq!(acknowledged(), before, "acknowledged after the failure");
    }

    fn stop(&self) {
        for source in &self.0 {
            source.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the sources, each after its first acknowledgement.
    pub fn end(mut self) -> Vec<Sent> {
        self.stop();
        let ended = |source: Source| Sent {
            key: source.key,
            source: source.number,
            record: source.thread.join().unwrap(),
        };
        std::mem::take(&mut self.0).into_iter().map(ended).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Publishes without regard to the node: the broker keeps accepted messages for it. After a lost connection, the
/// unacknowledged messages are published again.
fn publish(port: u16, shared: &Shared) -> Record {
    let mut record = Record::default();
    let mut course = Course::of(shared);
    // With the number of messages acknowledged before it.
    let mut connection: Option<(Publisher, u64)> = None;
    loop {
        let is_over = course.is_over(record) && record.offered > 0;
        if is_over && record.acknowledged == record.offered {
            return record;
        }
        let Some((publisher, before)) = &mut connection else {
            std::thread::sleep(RETRY);
            let made = Publisher::try_connect(port, "publisher", ANSWER_TIME).ok();
            record.lost += u64::from(made.is_none());
            connection = made.map(|publisher| (publisher, record.acknowledged));
            continue;
        };
        let first = record.acknowledged + publisher.in_flight + 1;
        let (last, in_flight_max) = if is_over {
            (record.offered, 0)
        } else {
            (first + BURST - 1, WINDOW)
        };
        record.offered = record.offered.max(last);
        let done = publisher
            .try_publish(MQTT, payloads(first..=last))
            .and_then(|()| publisher.try_settle(in_flight_max));
        record.acknowledged = *before + publisher.acknowledged;
        if done.is_err() {
            record.lost += 1;
            connection = None;
        }
        std::thread::sleep(PACE);
    }
}

/// Sends lines in batches and requests an acknowledgement of each batch; an unacknowledged batch is sent again.
fn send_lines<S: Read + Write>(
    connect: &dyn Fn() -> io::Result<S>,
    source: u64,
    shared: &Shared,
) -> Record {
    let mut record = Record::default();
    let mut course = Course::of(shared);
    let mut connection: Option<BufReader<S>> = None;
    while !course.is_over(record) || record.acknowledged == 0 {
        let Some(reader) = &mut connection else {
            std::thread::sleep(RETRY);
            connection = connect().ok().map(BufReader::new);
            record.lost += u64::from(connection.is_none());
            continue;
        };
        let last = record.acknowledged + 1 + record.acknowledged % 7;
        let mut text = String::new();
        for number in record.acknowledged + 1..=last {
            text.push_str(&format!("{LINES} v={}\n", value(number, source)));
        }
        text.push('\n');
        record.offered = record.offered.max(last);
        let count = last - record.acknowledged;
        let mut answer = String::new();
        let sent = reader.get_mut().write_all(text.as_bytes());
        let answered = sent.and_then(|()| reader.read_line(&mut answer));
        if answered.is_err() || !answer.ends_with('\n') {
            record.lost += 1;
            connection = None;
        } else if answer.starts_with("error ") {
            record.failed += 1;
            connection = None;
        } else {
            assert_eq!(answer, format!("ok {count} 0\n"));
            record.acknowledged = last;
        }
    }
    record
}

/// Puts readings one by one; an unacknowledged one is put again.
fn put(path: &Path, source: u64, shared: &Shared) -> Record {
    let mut record = Record::default();
    let mut course = Course::of(shared);
    let mut connection: Option<Raw> = None;
    while !course.is_over(record) || record.acknowledged == 0 {
        let Some(raw) = &mut connection else {
            std::thread::sleep(RETRY);
            connection = UnixStream::connect(path).ok().map(Raw::new);
            record.lost += u64::from(connection.is_none());
            continue;
        };
        let number = record.acknowledged + 1;
        record.offered = number;
        let request = json!({"key": PUTS, "value": value(number, source)}).to_string();
        let sent = raw.stream.write_all(&frame(PUT, 1, request.as_bytes()));
        match sent.ok().and_then(|()| raw.answer()) {
            Some((STORED, _)) => record.acknowledged = number,
            Some((ERROR, _)) => {
                record.failed += 1;
                std::thread::sleep(RETRY);
            }
            Some(other) => panic!("{other:?}"),
            None => {
                record.lost += 1;
                connection = None;
            }
        }
    }
    record
}

/// Waits until the node has a connection to its broker, after this number of earlier ones, and its subscription. From
/// then on the broker keeps accepted messages for the node. Returns the number of connections.
pub fn wait_subscribed(node: &Node, connects_before: u64) -> u64 {
    let mut connects = 0;
    wait_until("the subscription", || {
        let mqtt = status(node)["mqtt"].clone();
        connects = mqtt["connects"].as_u64().unwrap();
        connects > connects_before && mqtt["connected"] == true && mqtt["subscriptions_held"] == 1
    });
    connects
}

/// Waits until the node has the last message that was published.
pub fn wait_published(node: &Node, sent: &[Sent]) {
    for source in sent.iter().filter(|source| source.key == MQTT) {
        // The broker keeps what the node has not acknowledged, so the node gets what the publisher has offered.
        assert_eq!(source.record.offered, source.record.acknowledged);
        let last = format!("{}\n", value(source.record.offered, source.source));
        wait_until("the broker's last message", || {
            node.run(&["get", source.key]).stdout == last.as_bytes()
        });
    }
}

/// Waits until all readings are on flash, after the end of the sources and of the broker. Requires that the node has
/// refused, dropped and lost none. Returns how many readings it has counted since its start.
pub fn counted(node: &Node) -> u64 {
    let mut found = Value::Null;
    wait_until("the end of the intake", || {
        found = status(node);
        found["mqtt"]["connected"] != true && found["log"]["readings_outstanding"] == 0
    });
    for lost in [
        &found["log"]["refused_full"],
        &found["log"]["refused_failed"],
        &found["intake"]["readings_shed"],
        &found["history"]["readings_dropped"],
        &found["history"]["readings_expired"],
    ] {
        assert_eq!(*lost, 0, "{found}");
    }
    // A lost connection may have cut off a line.
    let refused = &found["intake"]["refused_total"];
    assert_eq!(*refused, found["line"]["unfinished"], "{found}");
    found["log"]["readings_durable"].as_u64().unwrap()
}

/// Returns the numbers of the readings that the node holds of a source, in the order of their arrival.
pub fn held(node: &Node, sent: &Sent) -> Vec<u64> {
    let csv = node.ok(&["history", sent.key, "--csv"]);
    csv.lines()
        .skip(1)
        .map(|line| sent.number(stored(line)))
        .collect()
}

/// Returns the value in a line of CSV, which a text begins with.
fn stored(line: &str) -> f64 {
    let cell = line.split(',').nth(2).unwrap();
    let number = cell.trim_end_matches('x');
    let is_whole = number == cell || cell.len() == TEXT_BYTES;
    assert!(is_whole, "altered: {line}");
    number.parse().unwrap()
}

/// Kills the node, starts it again, and compares what it has on flash in `image` with what its sources were told. At
/// most `expired` readings, the oldest of a key, may be gone. Ends the node. Returns how many readings it holds.
pub fn judge(node: &mut Node, sent: &[Sent], image: &str, expired: u64) -> u64 {
    node.kill();
    node.restart();
    let (mut readings, mut gone) = (0, 0);
    for source in sent {
        let held = held(node, source);
        let gone_here = source.check(&held, expired > 0);
        let distinct = held.iter().collect::<BTreeSet<_>>().len();
        println!(
            "{}: {} acknowledged, {gone_here} expired, none missing, {} stored more than once, {} requests failed",
            source.key,
            source.record.acknowledged,
            held.len() - distinct,
            source.record.failed
        );
        readings += held.len() as u64;
        gone += gone_here;
    }
    assert!(gone <= expired, "{gone} are gone, {expired} were counted");
    let found = status(node);
    let log = &found["log"];
    for damage in [
        &log["records_damaged"],
        &log["pieces_unreadable"],
        &log["files_unreadable"],
        &log["readings_missing"],
    ] {
        assert_eq!(*damage, 0, "{log}");
    }
    assert!(node.stop().success());
    node.ok(&["flash", "check", image]);
    readings
}
