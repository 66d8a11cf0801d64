//! The listeners on loopback: acknowledgements, back-pressure, senders of every kind, stopping.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::intake_support::{Fake, NOW_MS, options};
use crate::mqtt_support::keep_alive_runs;
use base::error::Code;
use ingest::durable::DurableWatch;
use ingest::intake::{Intake, IntakeCounters, Reason};
use ingest::line::{
    Controller, Ended, LineFigures, LineListeners, LineOptions, LineState, control, run,
};

/// Longer than any step takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    fake: Arc<Fake>,
    address: Option<SocketAddr>,
    controller: Controller,
    state: Arc<LineState>,
    counters: Arc<IntakeCounters>,
    thread: JoinHandle<Ended>,
}

impl Node {
    fn start(line: LineOptions) -> Self {
        let fake = Fake::new();
        let listeners = LineListeners::bind(line).unwrap();
        let address = listeners.tcp_address();
        let (controller, control) = control();
        let state = Arc::new(LineState::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = {
            let (fake, state) = (fake.clone(), state.clone());
            std::thread::spawn(move || {
                let intake = Intake::new(options(), fake.clone());
                sender.send(intake.counters()).unwrap();
                let durable = DurableWatch::start(fake).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let intake = Rc::new(RefCell::new(intake));
                runtime
                    .block_on(run(listeners, intake, durable, control, state))
                    .unwrap()
            })
        };
        Self {
            fake,
            address,
            controller,
            state,
            counters: receiver.recv().unwrap(),
            thread,
        }
    }

    fn tcp() -> Self {
        Self::start(tcp_options())
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address.unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client {
            reader: BufReader::new(stream),
        }
    }

    fn figures(&self) -> LineFigures {
        self.state.figures()
    }

    /// Waits until a condition holds.
    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..PATIENCE.as_millis() / 2 {
            if holds(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{what} did not happen: {:?}", self.figures());
    }

    fn stop(self, wait_ms_max: u64) -> Ended {
        self.controller.stop(wait_ms_max);
        self.thread.join().unwrap()
    }
}

fn tcp_options() -> LineOptions {
    LineOptions {
        tcp_listen: Some("127.0.0.1:0".to_owned()),
        ..LineOptions::default()
    }
}

struct Client<S: Read + Write> {
    reader: BufReader<S>,
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// Returns the next line from the node; empty at the end of the stream.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn a_batch_is_acknowledged_with_its_counts() {
    let node = Node::tcp();
    let mut client = node.connect();
    client.send(b"m a=1,b=2\r\nbroken\r\n# note\r\n\r\n");
    assert_eq!(client.answer(), "ok 2 1\n");
    // Counts start again; a half line waits for its other half.
    client.send(b"m c=3\nm d");
    client.send(b"=4\n\n\n");
    assert_eq!(client.answer(), "ok 2 0\n");
    assert_eq!(client.answer(), "ok 0 0\n");
    assert_eq!(node.fake.texts(), ["m/a=1", "m/b=2", "m/c=3", "m/d=4"]);
    let figures = node.figures();
    assert_eq!((figures.connections, figures.acknowledged), (1, 3));
    assert_eq!(figures.lines, 5);
    drop(client);
    node.until("the end of the connection", |node| {
        node.figures().connections == 0
    });
    assert_eq!(node.stop(0), Ended::Stopped);
}

/// Set for the separate process in which descriptors are allowed to run out.
const FEW_DESCRIPTORS: &str = "EVENKEEL_TEST_FEW_DESCRIPTORS";

#[test]
fn connections_that_cannot_be_taken_are_counted() {
    if std::env::var_os(FEW_DESCRIPTORS).is_some() {
        return run_out_of_descriptors();
    }
    let status = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "line_listen::connections_that_cannot_be_taken_are_counted",
        ])
        .env(FEW_DESCRIPTORS, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

fn run_out_of_descriptors() {
    let node = Node::tcp();
    let mut first = node.connect();
    first.send(b"m a=1\n\n");
    assert_eq!(first.answer(), "ok 1 0\n");
    assert_eq!(node.figures().accept_failures, 0);
    assert_eq!(node.state.accept_error(), None);
    let mut fillers: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok())
        .take(1000)
        .collect();
    // One is left for the sender, none for the node's end.
    fillers.pop();
    let mut second = node.connect();
    node.until("failures", |node| node.figures().accept_failures >= 2);
    assert!(node.figures().accept_failing);
    let error = node.state.accept_error().unwrap();
    assert!(error.contains("open files"), "{error}");
    // Existing connections are served meanwhile.
    first.send(b"m a=2\n\n");
    assert_eq!(first.answer(), "ok 1 0\n");
    drop(fillers);
    second.send(b"m a=3\n\n");
    assert_eq!(second.answer(), "ok 1 0\n");
    assert!(!node.figures().accept_failing);
    assert_eq!(node.state.accept_error(), None);
    node.stop(0);
}

#[test]
fn a_client_that_asks_for_no_answers_gets_none() {
    let node = Node::tcp();
    let mut client = node.connect();
    client.send(b"m a=1\nbroken\nm a=2\n");
    client.reader.get_mut().shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.reader.read_to_end(&mut all).unwrap();
    assert!(all.is_empty());
    assert_eq!(node.fake.texts(), ["m/a=1", "m/a=2"]);
    node.stop(0);
}

#[test]
fn acknowledgements_come_in_order_and_only_once_durable() {
    let node = Node::tcp();
    node.fake.with(|inner| inner.durable_at_once = false);
    let mut client = node.connect();
    client.send(b"m a=1\n\nm a=2\nm a=3\n\n");
    node.until("three readings", |node| node.fake.puts().len() == 3);
    client
        .reader
        .get_mut()
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!(client.reader.read_line(&mut String::new()).is_err());
    client
        .reader
        .get_mut()
        .set_read_timeout(Some(PATIENCE))
        .unwrap();
    node.fake.with(|inner| inner.durable_end = 2);
    assert_eq!(client.answer(), "ok 1 0\n");
    assert_eq!(node.figures().acknowledged, 1);
    // Another sender's batch is durable before this one's second.
    node.fake.with(|inner| inner.durable_end = 3);
    assert_eq!(client.answer(), "ok 2 0\n");
    // A sender that asks and says that it sends no more is answered before the end.
    client.send(b"m a=4\n\n");
    client.reader.get_mut().shutdown(Shutdown::Write).unwrap();
    node.until("the fourth", |node| node.fake.puts().len() == 4);
    node.fake.with(|inner| inner.durable_end = 4);
    assert_eq!(client.answer(), "ok 1 0\n");
    assert_eq!(client.answer(), "");
    node.stop(0);
}

#[test]
fn many_unanswered_questions_hold_their_sender_back_alone() {
    let node = Node::tcp();
    node.fake.with(|inner| inner.durable_at_once = false);
    let mut eager = node.connect();
    for number in 0..1000 {
        eager.send(format!("m a={number}\n\n").as_bytes());
    }
    let limit = ingest::line::ACKS_PENDING_MAX;
    node.until("the limit", |node| node.fake.puts().len() == limit);
    let mut other = node.connect();
    other.send(b"m b=1\n");
    node.until("the other's line", |node| {
        node.fake.puts().len() == limit + 1
    });
    node.fake.with(|inner| {
        inner.durable_at_once = true;
        inner.durable_end = inner.next_lsn;
    });
    for _ in 0..1000 {
        assert_eq!(eager.answer(), "ok 1 0\n");
    }
    node.stop(0);
}

#[test]
fn bad_lines_are_refused_alone() {
    let node = Node::start(LineOptions {
        line_bytes_max: 1000,
        ..tcp_options()
    });
    node.fake.with(|inner| inner.unknown.push("m/u".to_owned()));
    let mut client = node.connect();
    client.send(b"m a=1\n");
    client.send(&vec![b'x'; 10 << 20]);
    client.send(b"\nm v=NaN\nm v=\xff\nm u=1\nm a=1 5\n");
    client.send(format!("m a=1 {}\n", (NOW_MS + 60_001) * 1_000_000).as_bytes());
    client.send(format!("m {}=1\n", "k".repeat(254)).as_bytes());
    client.send(b"\0\x01\x02\nm a=2\n\n");
    assert_eq!(client.answer(), "ok 2 8\n");
    assert_eq!(node.fake.texts(), ["m/a=1", "m/a=2"]);
    for (reason, count) in [
        (Reason::Oversized, 1),
        (Reason::NotFinite, 1),
        (Reason::InvalidUtf8, 1),
        (Reason::KeyUnknown, 1),
        (Reason::TimeAbsurd, 2),
        (Reason::KeyInvalid, 1),
        (Reason::LineInvalid, 1),
    ] {
        assert_eq!(node.counters.refused(reason), count, "{}", reason.name());
    }
    assert_eq!(node.figures().oversized, 1);
    assert!(node.counters.excerpt(Reason::Oversized).starts_with("xxx"));
    // A line without an end may lack half of a number.
    client.send(b"m a=12");
    drop(client);
    node.until("the end", |node| node.figures().connections == 0);
    assert_eq!(node.fake.puts().len(), 2);
    assert_eq!(node.figures().unfinished, 1);
    assert_eq!(node.counters.refused(Reason::LineInvalid), 2);
    node.stop(0);
}

#[test]
fn a_byte_order_mark_before_a_connections_first_line_is_left_out() {
    let node = Node::tcp();
    let mut client = node.connect();
    // Of a question, too, and where it comes in pieces.
    client.send("\u{feff}\n".as_bytes());
    assert_eq!(client.answer(), "ok 0 0\n");
    drop(client);
    let mut client = node.connect();
    client.send(b"\xef");
    client.send(b"\xbb\xbfm a=1\r\n");
    client.send("m\u{feff} a=2\n\n".as_bytes());
    assert_eq!(client.answer(), "ok 1 1\n");
    assert_eq!(node.fake.texts(), ["m/a=1"]);
    assert_eq!(node.counters.refused(Reason::KeyInvalid), 1);
    drop(client);
    node.until("the end", |node| node.figures().connections == 0);
    node.stop(0);
}

#[test]
fn a_hundred_thousand_series_make_no_more_keys_than_allowed() {
    let node = Node::tcp();
    node.fake
        .with(|inner| (inner.keys_max, inner.forget) = (10, true));
    let mut client = node.connect();
    let mut lines = String::new();
    for number in 0..100_000 {
        lines.push_str(&format!("m,t={number} a=1\n"));
    }
    lines.push('\n');
    client.send(lines.as_bytes());
    assert_eq!(client.answer(), "ok 10 99990\n");
    assert_eq!(node.counters.refused(Reason::KeysMax), 99_990);
    node.stop(0);
}

#[test]
fn a_database_that_takes_nothing_holds_senders_back_and_loses_nothing() {
    let node = Node::tcp();
    let mut client = node.connect();
    for full in [false, true] {
        node.fake.with(|inner| {
            inner.puts.clear();
            (inner.room, inner.full) = (1, full);
        });
        client.send(b"m a=1,b=2,c=3\nm d=4\n\n");
        assert_eq!(client.answer(), "ok 4 0\n");
        assert_eq!(node.fake.texts(), ["m/a=1", "m/b=2", "m/c=3", "m/d=4"]);
    }
    // Two wait in the middle of the same line; neither affects the other's progress.
    let mut second = node.connect();
    node.fake.with(|inner| {
        inner.puts.clear();
        inner.room = 3;
    });
    client.send(b"m a=1,b=2\n\n");
    assert_eq!(client.answer(), "ok 2 0\n");
    second.send(b"m a=1,b=2\n\n");
    assert_eq!(second.answer(), "ok 2 0\n");
    assert_eq!(node.fake.texts(), ["m/a=1", "m/b=2", "m/a=1", "m/b=2"]);
    assert_eq!(node.figures().waiting, 0);
    node.stop(0);
}

#[test]
fn a_failed_log_is_told_and_ends_everything() {
    let node = Node::tcp();
    node.fake.with(|inner| inner.durable_at_once = false);
    let mut waits = node.connect();
    waits.send(b"m a=1\n\nm a=2\n\n");
    let mut silent = node.connect();
    silent.send(b"m b=1\n");
    node.until("three readings", |node| node.fake.puts().len() == 3);
    node.fake.with(|inner| {
        inner.durable_end = 1;
        inner.failed = true;
    });
    let first = waits.answer();
    if first == "ok 1 0\n" {
        assert_eq!(waits.answer(), "error failed\n");
    } else {
        // The other's reading arrived in between.
        assert_eq!(first, "error failed\n");
    }
    assert_eq!(waits.answer(), "");
    assert_eq!(silent.answer(), "");
    assert_eq!(node.thread.join().unwrap(), Ended::LogFailed);
}

#[test]
fn stopping_still_acknowledges_readings_in_flight() {
    let node = Node::tcp();
    node.fake.with(|inner| inner.durable_at_once = false);
    let mut asks = node.connect();
    asks.send(b"m a=1\n\n");
    let mut never = node.connect();
    never.send(b"m b=1\n");
    node.until("two readings", |node| node.fake.puts().len() == 2);
    node.controller.stop(10_000);
    // Connections that wait for nothing end at once.
    assert_eq!(never.answer(), "");
    node.fake.with(|inner| inner.durable_end = 2);
    assert_eq!(asks.answer(), "ok 1 0\n");
    assert_eq!(asks.answer(), "");
    assert_eq!(node.thread.join().unwrap(), Ended::Stopped);

    let node = Node::tcp();
    node.fake.with(|inner| inner.durable_at_once = false);
    let mut asks = node.connect();
    asks.send(b"m a=1\n\n");
    node.until("a reading", |node| node.fake.puts().len() == 1);
    // The time is over before the log advances: no acknowledgement.
    assert_eq!(node.stop(20), Ended::Stopped);
    assert_eq!(asks.answer(), "");
}

#[test]
fn connections_are_limited_and_idle_ones_end() {
    let node = Node::start(LineOptions {
        connections_max: 2,
        idle_seconds_max: 1,
        ..tcp_options()
    });
    let mut one = node.connect();
    one.send(b"\n");
    assert_eq!(one.answer(), "ok 0 0\n");
    let mut two = node.connect();
    two.send(b"\n");
    assert_eq!(two.answer(), "ok 0 0\n");
    let mut three = node.connect();
    assert_eq!(three.answer(), "error connections_max\n");
    assert_eq!(node.figures().connections_refused, 1);
    // A slow sender of half a line counts as idle, like one that sends nothing.
    two.send(b"m a=");
    assert_eq!(one.answer(), "");
    assert_eq!(two.answer(), "");
    node.until("their ends", |node| node.figures().connections == 0);
    assert_eq!(node.figures().connections_idle, 2);
    assert_eq!(node.figures().connections_total, 2);
    let mut four = node.connect();
    four.send(b"m a=1\n\n");
    assert_eq!(four.answer(), "ok 1 0\n");
    node.stop(0);
}

#[test]
fn a_text_with_a_line_break_sets_no_other_sensor() {
    let node = Node::tcp();
    let mut client = node.connect();
    client.send(b"log msg=\"first\nboiler,unit=1 temperature=999\nlast\"\nm a=1\n\n");
    assert_eq!(client.answer(), "ok 2 0\n");
    let text = "first\nboiler,unit=1 temperature=999\nlast";
    assert_eq!(
        node.fake.texts(),
        [format!("log/msg=\"{text}\""), "m/a=1".to_owned()]
    );
    // Split between any two reads.
    for byte in b"log msg=\"a\n\nb\"\n\n" {
        client.send(&[*byte]);
    }
    assert_eq!(client.answer(), "ok 1 0\n");
    assert_eq!(node.fake.texts()[2], "log/msg=\"a\n\nb\"");
    // A stream that ends within a text gives no line of it.
    client.send(b"m a=2\nlog msg=\"a\nm a=3\n");
    drop(client);
    node.until("the end", |node| node.figures().connections == 0);
    assert_eq!(node.fake.texts()[3..], ["m/a=2"]);
    assert_eq!(node.counters.refused(Reason::LineInvalid), 1);
    assert_eq!(node.figures().unfinished, 1);
    node.stop(0);
}

#[test]
fn a_text_that_does_not_end_closes_its_connection() {
    let node = Node::start(LineOptions {
        line_bytes_max: 100,
        ..tcp_options()
    });
    // A text that is too long to be followed.
    let mut long = node.connect();
    long.send(b"m a=1\n\nm v=\"cut off\n");
    long.send("m a=2\n".repeat(20).as_bytes());
    assert_eq!(long.answer(), "ok 1 0\n");
    assert_eq!(long.answer(), "error text_open\n");
    assert_eq!(long.answer(), "");
    assert_eq!(node.counters.refused(Reason::Oversized), 1);
    // A sender that is silent within a text; this takes 10 s.
    let mut silent = node.connect();
    silent.send(b"m a=3\nm v=\"cut off\n\n");
    assert_eq!(silent.answer(), "error text_open\n");
    assert_eq!(silent.answer(), "");
    assert_eq!(node.counters.refused(Reason::LineInvalid), 1);
    assert_eq!(node.fake.texts(), ["m/a=1", "m/a=3"]);
    assert_eq!(node.figures().connections_text_open, 2);
    node.stop(0);
}

#[test]
fn idle_connections_make_room_for_new_senders() {
    let node = Node::start(LineOptions {
        connections_max: 64,
        make_room_seconds_min: 3600,
        idle_seconds_max: 3600,
        ..tcp_options()
    });
    let mut idle: Vec<_> = (0..64).map(|_| node.connect()).collect();
    node.until("64 connections", |node| node.figures().connections == 64);
    // One of them has sent something, and half a line.
    idle[0].send(b"m a=1\n\nm b=");
    assert_eq!(idle[0].answer(), "ok 1 0\n");
    for number in 2..66 {
        let mut new = node.connect();
        new.send(format!("m a={number}\n\n").as_bytes());
        if number < 65 {
            assert_eq!(new.answer(), "ok 1 0\n");
            idle.push(new);
        } else {
            // All have sent something by now.
            assert_eq!(new.answer(), "error connections_max\n");
        }
    }
    for gone in &mut idle[1..64] {
        assert_eq!(gone.answer(), "error made_room\n");
        assert_eq!(gone.answer(), "");
    }
    idle[0].send(b"7\n\n");
    assert_eq!(idle[0].answer(), "ok 1 0\n");
    let figures = node.figures();
    assert_eq!(
        (figures.connections_idle, figures.connections_made_room),
        (0, 63)
    );
    assert_eq!(figures.connections_refused, 1);
    node.stop(0);
}

#[test]
fn a_silent_sender_makes_room_and_its_lines_are_taken() {
    let node = Node::start(LineOptions {
        connections_max: 1,
        make_room_seconds_min: 1,
        ..tcp_options()
    });
    let mut silent = node.connect();
    silent.send(b"m a=1\n\n");
    assert_eq!(silent.answer(), "ok 1 0\n");
    let mut new = loop {
        let mut new = node.connect();
        new.send(b"m a=2\n\n");
        match new.answer().as_str() {
            "ok 1 0\n" => break new,
            answer => assert_eq!(answer, "error connections_max\n"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(silent.answer(), "error made_room\n");
    assert_eq!(silent.answer(), "");
    assert_eq!(node.figures().connections_made_room, 1);
    // A connection that waits for the store is not idle, however long that takes.
    node.fake.with(|inner| inner.durable_at_once = false);
    new.send(b"m a=3\n\n");
    node.until("a reading", |node| node.fake.puts().len() == 3);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(node.connect().answer(), "error connections_max\n");
    node.stop(0);
}

#[test]
fn peers_that_vanish_are_found_out() {
    let node = Node::tcp();
    let client = node.connect();
    node.until("a connection", |node| node.figures().connections == 1);
    node.until("the timer of keep-alive", |_| {
        keep_alive_runs(client.reader.get_ref())
    });
    node.stop(0);
}

#[test]
fn lines_are_taken_although_their_answers_are_not_read() {
    let node = Node::tcp();
    let mut client = node.connect();
    let stream: String = (0..500).map(|number| format!("m a={number}\n\n")).collect();
    client.send(stream.as_bytes());
    // Closing with answers unread resets the connection.
    node.until("an answer", |node| node.figures().acknowledged > 0);
    drop(client);
    node.until("the end", |node| node.figures().connections == 0);
    let figures = node.figures();
    // All of it had been sent before the reset, and fits into the buffers of a connection.
    assert_eq!(node.fake.puts().len(), 500, "{figures:?}");
    assert_eq!(figures.connections_ended_early, 1);
    node.stop(0);
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("line-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_unix_socket_has_its_mode_and_leaves_nothing_behind() {
    let folder = Folder::new("mode");
    let path = folder.0.join("line.sock");
    let options = LineOptions {
        unix_socket: Some(path.clone()),
        unix_mode: 0o620,
        ..LineOptions::default()
    };
    let node = Node::start(options.clone());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o620);
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = Client {
        reader: BufReader::new(stream),
    };
    client.send(b"m a=1\n\n");
    assert_eq!(client.answer(), "ok 1 0\n");

    let taken = LineListeners::bind(options).unwrap_err();
    assert_eq!(taken.code(), Code::Busy);
    assert!(
        taken.to_string().contains("another process listens"),
        "{taken}"
    );
    node.stop(0);
    assert!(!path.exists());
}

#[test]
fn only_a_socket_without_a_listener_is_replaced() {
    let folder = Folder::new("stale");
    let path = folder.0.join("line.sock");
    let options = LineOptions {
        unix_socket: Some(path.clone()),
        ..LineOptions::default()
    };
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(LineListeners::bind(options.clone()).unwrap());
    assert!(!path.exists());

    fs::write(&path, "precious").unwrap();
    let error = LineListeners::bind(options.clone()).unwrap_err();
    assert_eq!(error.code(), Code::Exists);
    assert!(
        error
            .to_string()
            .contains("remove it or choose another path"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::rename(&path, folder.0.join("other")).unwrap();
    std::os::unix::fs::symlink(folder.0.join("other"), &path).unwrap();
    assert_eq!(
        LineListeners::bind(options).unwrap_err().code(),
        Code::Exists
    );

    let nowhere = LineOptions {
        unix_socket: Some(folder.0.join("no/such/folder")),
        ..LineOptions::default()
    };
    let error = LineListeners::bind(nowhere).unwrap_err();
    assert!(error.to_string().contains("make its folder"), "{error}");
}

#[test]
fn addresses_that_cannot_be_are_named() {
    let node = Node::tcp();
    for (address, text) in [
        (
            node.address.unwrap().to_string(),
            "another program listens there",
        ),
        ("nonsense".to_owned(), "host:port"),
        ("203.0.113.1:0".to_owned(), "no such address"),
    ] {
        let options = LineOptions {
            tcp_listen: Some(address.clone()),
            ..LineOptions::default()
        };
        let error = LineListeners::bind(options).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains(text), "{error}");
    }
    let options = LineOptions {
        line_bytes_max: 0,
        ..LineOptions::default()
    };
    let error = LineListeners::bind(options).unwrap_err().to_string();
    assert_eq!(
        error,
        "line_bytes_max must lie between 64 and 1048576, it is 0"
    );
    // Dropping the controller stops, too.
    drop(node.controller);
    assert_eq!(node.thread.join().unwrap(), Ended::Stopped);
}
