//! Shared by the MQTT tests: a real broker, a publisher, a store whose durability the test controls, and a session on
//! its own thread.

// Each test file uses its own part of this.
#![allow(dead_code)]

pub mod fake;

use bytes::BytesMut;
use ingest::durable::DurableWatch;
use ingest::intake::{Destination, LogGone, Outcome, Outgoing, PutError, Reason};
use ingest::mqtt::{
    self, Consumer, Controller, Ended, MqttFigures, MqttOptions, MqttState, Qos, Subscription,
    Version,
};
use rumqttc::mqttbytes::{QoS, v4};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// Generous: reached only when something is broken.
const DEADLINE: Duration = Duration::from_secs(60);

const MOSQUITTO: &str = "/usr/sbin/mosquitto";

/// Polls until `done`.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether the system probes this connection's peer after at most 30 s of silence, as `/proc/net/tcp` shows it.
pub fn keep_alive_runs(of: &TcpStream) -> bool {
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (peer, ours) = (of.peer_addr().unwrap(), of.local_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Other tests have connections of the same port with other peers. `tr:tm->when`: 02 is the timer of
        // keep-alive, in ticks of 10 ms.
        let ticks = fields[5].strip_prefix("02:");
        fields[1].ends_with(&port(peer))
            && fields[2].ends_with(&port(ours))
            && ticks
                .is_some_and(|ticks| (1..=3000).contains(&u32::from_str_radix(ticks, 16).unwrap()))
    })
}

/// Returns whether the broker is installed; prints a note if not.
pub fn installed() -> bool {
    let found = std::path::Path::new(MOSQUITTO).exists();
    if !found {
        println!("skipped: mosquitto is not installed");
    }
    found
}

/// A reserved port of the loopback interface without a listener. The kernel gives it to no listener or connection of
/// another test, nor to the very connection that tries to reach it.
pub struct Port {
    pub number: u16,
    _held: TcpSocket,
}

impl Port {
    pub fn hold() -> Self {
        let held = TcpSocket::new_v4().unwrap();
        // The broker also sets it: then both may have the port, as long as only one listens.
        held.set_reuseaddr(true).unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let number = held.local_addr().unwrap().port();
        Self {
            number,
            _held: held,
        }
    }
}

/// A separate broker, with its own directory; both are removed when it is dropped.
pub struct Broker {
    pub port: u16,
    _held: Port,
    directory: PathBuf,
    child: Option<Child>,
}

impl Broker {
    pub fn start(extra: &str) -> Self {
        Self::start_at(Port::hold(), extra)
    }

    pub fn start_at(held: Port, extra: &str) -> Self {
        let port = held.number;
        let name = format!("ingest-mqtt-{}-{port}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let mut broker = Self {
            port,
            _held: held,
            directory,
            child: None,
        };
        let path = broker.directory.display();
        let configuration = format!(
            "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\n\
             max_inflight_messages 0\nmax_queued_messages 0\npersistence true\n\
             persistence_location {path}/\nlog_dest file {path}/log\n{extra}\n"
        );
        std::fs::write(broker.directory.join("mosquitto.conf"), configuration).unwrap();
        broker.up();
        broker
    }

    /// Returns the path of a file in the broker's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn up(&mut self) {
        let child = Command::new(MOSQUITTO)
            .arg("-c")
            .arg(self.directory.join("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        until("the broker listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// Ends the broker, which saves its sessions first.
    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            let id = child.id().to_string();
            let killed = Command::new("kill").args(["-TERM", &id]).status();
            if !killed.is_ok_and(|status| status.success()) {
                child.kill().unwrap();
            }
            child.wait().unwrap();
        }
    }

    /// Restarts the broker, which then accepts only the users of this file.
    pub fn secure(&mut self, passwords: &std::path::Path) {
        self.down();
        let path = self.file("mosquitto.conf");
        let text = std::fs::read_to_string(&path).unwrap();
        let users = format!(
            "allow_anonymous false\npassword_file {}",
            passwords.display()
        );
        std::fs::write(path, text.replace("allow_anonymous true", &users)).unwrap();
        self.up();
    }

    pub fn options(&self, version: Version, filter: &str) -> MqttOptions {
        options(self.port, version, filter)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("the broker's last lines, newest first: {tail:#?}");
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns options for a broker on this machine, with short waits.
pub fn options(port: u16, version: Version, filter: &str) -> MqttOptions {
    let mut options = MqttOptions::new(format!("127.0.0.1:{port}"), "node");
    options.version = version;
    options.reconnect_ms_min = 5;
    options.reconnect_ms_max = 50;
    options.subscriptions = vec![subscription(filter, Qos::AtLeastOnce)];
    options
}

pub fn subscription(filter: &str, qos: Qos) -> Subscription {
    let filter = filter.to_string();
    Subscription { filter, qos }
}

/// Publishes over MQTT 3.1.1.
pub struct Publisher {
    stream: TcpStream,
    next_id: u16,
}

impl Publisher {
    pub fn connect(port: u16, id: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = BytesMut::new();
        let mut packet = v4::Connect::new(id);
        packet.keep_alive = 0;
        packet.write(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[3], 0, "the broker refuses the publisher");
        Self { stream, next_id: 0 }
    }

    /// Publishes all with QoS 1 and returns once the broker has them all.
    pub fn publish(&mut self, topic: &str, payloads: &[String]) {
        self.publish_bytes(payloads.iter().map(|text| (topic, text.as_bytes(), false)));
    }

    pub fn publish_bytes<'a>(&mut self, messages: impl Iterator<Item = (&'a str, &'a [u8], bool)>) {
        let mut bytes = BytesMut::new();
        let mut count = 0;
        for (topic, payload, retain) in messages {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            let mut packet = v4::Publish::new(topic, QoS::AtLeastOnce, payload);
            packet.pkid = self.next_id;
            packet.retain = retain;
            packet.write(&mut bytes).unwrap();
            count += 1;
            if count % 500 == 0 {
                self.send(&mut bytes, 500);
            }
        }
        self.send(&mut bytes, count % 500);
    }

    fn send(&mut self, bytes: &mut BytesMut, count: usize) {
        self.stream.write_all(bytes).unwrap();
        bytes.clear();
        let mut answers = vec![0; 4 * count];
        self.stream.read_exact(&mut answers).unwrap();
        assert!(answers.chunks(4).all(|answer| answer[0] == 0x40));
    }

    /// Publishes with QoS 0.
    pub fn publish_once(&mut self, topic: &str, payload: &str) {
        let mut bytes = BytesMut::new();
        let packet = v4::Publish::new(topic, QoS::AtMostOnce, payload);
        packet.write(&mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }
}

/// `0`, `1`, … as payloads.
pub fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[derive(Default)]
pub struct Inner {
    /// Topic and payload of each message taken; its index is its number in the log.
    pub taken: Vec<(String, Vec<u8>)>,
    pub durable_end: u64,
    pub failed: bool,
    /// How many more messages are accepted before the store returns `Wait`; `None`: any number.
    pub room: Option<usize>,
    pub full: bool,
    pub waits: u64,
    pub refused: Vec<Reason>,
    /// Payloads starting with this are refused.
    pub refuse: Option<&'static str>,
    /// What the consumer sends.
    pub outgoing: VecDeque<Outgoing>,
}

/// A store whose durability the test controls.
#[derive(Default)]
pub struct Store {
    inner: Mutex<Inner>,
    moved: Condvar,
}

impl Store {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn set(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.lock());
        self.moved.notify_all();
    }

    pub fn set_durable(&self, end: u64) {
        self.set(|inner| inner.durable_end = end);
    }

    /// Returns the payloads taken on this topic, as text.
    pub fn payloads(&self, topic: &str) -> Vec<String> {
        let text = |(_, payload): &(String, Vec<u8>)| String::from_utf8(payload.clone()).unwrap();
        let inner = self.lock();
        let on = inner.taken.iter().filter(|(found, _)| found == topic);
        on.map(text).collect()
    }

    pub fn count(&self, topic: &str) -> usize {
        let inner = self.lock();
        inner
            .taken
            .iter()
            .filter(|(found, _)| found == topic)
            .count()
    }
}

impl Destination for Store {
    fn resolve(&self, _key: &str) -> Result<u32, Reason> {
        Ok(0)
    }
    fn resolve_for(
        &self,
        key: &str,
        _: ingest::intake::KeyOwner<'_>,
        _: &mut String,
    ) -> Result<u32, Reason> {
        self.resolve(key)
    }
    fn put(&self, _: u32, _: &[u8], _: Option<db::Time>) -> Result<u64, PutError> {
        Err(PutError::Failed)
    }
    fn put_retained(
        &self,
        object: u32,
        value: &[u8],
        time: Option<db::Time>,
    ) -> Result<u64, PutError> {
        self.put(object, value, time)
    }
    fn durable_end(&self) -> u64 {
        self.lock().durable_end
    }
    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
        let still = |inner: &mut Inner| inner.durable_end <= seen && !inner.failed;
        let (inner, _) = self
            .moved
            .wait_timeout_while(self.lock(), timeout, still)
            .unwrap();
        if inner.failed {
            Err(LogGone)
        } else {
            Ok(inner.durable_end)
        }
    }
    fn wall_ms(&self) -> i64 {
        0
    }
    fn wall_trusted(&self) -> bool {
        true
    }
}

struct Taker(Arc<Store>);

impl Consumer for Taker {
    /// Takes one reading per message; of a payload with lines, one per line, so that it can be taken in part.
    fn message(&mut self, topic: &[u8], payload: &[u8], _is_retained: bool) -> Outcome {
        let mut inner = self.0.lock();
        if inner.failed {
            return Outcome::Failed;
        }
        let refused = inner
            .refuse
            .is_some_and(|text| payload.starts_with(text.as_bytes()));
        if refused {
            inner.refused.push(Reason::PayloadInvalid);
            return Outcome::Refused;
        }
        // A broker of random bytes may send any topic.
        let topic = String::from_utf8_lossy(topic).into_owned();
        let mut consumed = 0;
        for line in payload.split_inclusive(|byte| *byte == b'\n') {
            if inner.room == Some(0) {
                inner.waits += 1;
                let full = inner.full;
                return Outcome::Wait { consumed, full };
            }
            inner.room = inner.room.map(|room| room - 1);
            let line_end = line.strip_suffix(b"\n").unwrap_or(line).to_vec();
            inner.taken.push((topic.clone(), line_end));
            consumed += line.len();
        }
        let lsn_end = inner.taken.len() as u64;
        Outcome::Accepted { lsn_end }
    }

    fn refuse(&mut self, reason: Reason) {
        self.0.lock().refused.push(reason);
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        self.0.lock().outgoing.pop_front()
    }
}

/// A session on its own thread.
pub struct Running {
    pub controller: Controller,
    pub state: Arc<MqttState>,
    abort: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Option<Ended>>>,
}

impl Running {
    pub fn start(options: MqttOptions, store: &Arc<Store>) -> Self {
        let (controller, control) = mqtt::control();
        let (abort, aborted) = tokio::sync::oneshot::channel::<()>();
        let state = Arc::new(MqttState::default());
        let (shown, store) = (state.clone(), store.clone());
        let thread = std::thread::spawn(move || {
            // The session must not use the blocking threads, which belong to others: here, all of them are occupied.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(1)
                .build()
                .unwrap();
            let (_taken, until_dropped) = std::sync::mpsc::channel::<()>();
            runtime.spawn_blocking(move || until_dropped.recv());
            runtime.block_on(async move {
                let durable = DurableWatch::start(store.clone()).unwrap();
                let consumer = Rc::new(RefCell::new(Taker(store)));
                tokio::select! {
                    ended = mqtt::run(options, consumer, durable, control, shown) => Some(ended),
                    _ = aborted => None,
                }
            })
        });
        Self {
            controller,
            state,
            abort: Some(abort),
            thread: Some(thread),
        }
    }

    pub fn figures(&self) -> MqttFigures {
        self.state.figures()
    }

    /// Waits until the session has subscribed to `count` filters.
    pub fn subscribed(self, count: u64) -> Self {
        until("the session has subscribed", || {
            let figures = self.figures();
            figures.connected && figures.subscriptions_held == count
        });
        self
    }

    /// Ends the session as a crash would: nothing more is written to the broker.
    pub fn abort(mut self) {
        drop(self.abort.take());
        assert_eq!(self.thread.take().unwrap().join().unwrap(), None);
    }

    pub fn stop(mut self, wait_ms_max: u64) -> MqttFigures {
        self.controller.stop(wait_ms_max);
        let ended = self.thread.take().unwrap().join().unwrap();
        assert_eq!(ended, Some(Ended::Stopped));
        self.figures()
    }

    /// Waits until it ends by itself.
    pub fn join(mut self) -> Option<Ended> {
        self.thread.take().unwrap().join().unwrap()
    }
}
