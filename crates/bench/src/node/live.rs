//! The live page's case: 1,024 sensors that change ten times a second come in by line protocol. The data that a page
//! requests goes out: the live stream with the status, and the history of four plots.
//!
//! The sensors and the client of the page serve the case of the whole node, too.
//!
//! **Invariants:** a round counts only if the node took every reading. The reader of the stream must also get every
//! sensor, and about the number of messages that the period implies. The cost of the sensors and the reader is charged
//! to no system. The same node is measured without a reader in the same round.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::broker::free_address;
use super::cases::{CPU_SHARE, RESIDENT, RESIDENT_MAX};
use super::process::Process;
use crate::figures::{Figures, Metric, OURS};
use crate::scratch::check_interrupted;

pub(crate) const LIVE: &str = "live-page-1024";
/// The processor time that the reader adds.
pub(crate) const CPU_OF_PAGE: Metric = Metric::shown("cpu_of_page", "%");
pub(crate) const MESSAGES: Metric = Metric::shown("stream_messages_per_second", "1/s");
pub(crate) const STREAM_BYTES: Metric = Metric::shown("stream_bytes_per_second", "B/s");

pub(crate) const SENSORS: u32 = 1024;
const UPDATES_PER_SECOND: u32 = 10;
/// Messages per second of the stream in the default configuration.
const MESSAGES_PER_SECOND: f64 = 4.0;
/// Timeout for the node to serve, and for an answer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Measures `rounds` rounds, each for `time` without a reader and for `time` with one.
pub(crate) fn measure(
    figures: &mut Figures,
    keel: &Path,
    scratch: &Path,
    rounds: u32,
    time: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let folder = scratch.join("live");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let address = || free_address().map_err(|error| error.to_string());
    let (lines, http) = (address()?, address()?);
    let file = folder.join("keel.toml");
    let text = format!(
        "[node]\nsocket = \"keel.sock\"\n[store]\nimage = \"keel.img\"\ncreate_mebibytes = 256\n\
         [line]\ntcp_listen = \"{lines}\"\nunix_socket = \"\"\n[http]\nlisten = \"{http}\"\n"
    );
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = Command::new(keel);
    command.arg("run").arg("-c").arg(&file);
    let mut process = Process::spawn(LIVE, &mut command, &folder.join("keel.log"))?;
    wait_to_serve(&mut process, http)?;
    let sensors = Sensors::start(lines, SENSORS, Duration::from_secs(1) / UPDATES_PER_SECOND)?;
    // Waits until every key exists.
    std::thread::sleep(time.min(Duration::from_secs(3)));
    let mut resident_max = 0.0;
    for round in 0..rounds {
        check_interrupted()?;
        progress(&format!("{LIVE}, round {}", round + 1));
        let share = |process: &Process| -> Result<f64, String> {
            let (cpu, begin) = (process.cpu_ns()?, Instant::now());
            std::thread::sleep(time);
            Ok(100.0 * (process.cpu_ns()? - cpu) as f64 / begin.elapsed().as_nanos() as f64)
        };
        let closed = share(&process)?;
        let page = Page::open(http)?;
        let (messages, bytes) = page.counts();
        let begin = Instant::now();
        let open = share(&process)?;
        let seconds = begin.elapsed().as_secs_f64();
        let (messages, bytes) = (page.counts().0 - messages, page.counts().1 - bytes);
        let keys = page.close()?;
        if !is_live(keys, messages, seconds) {
            return Err(format!(
                "{LIVE}: the page got {keys} sensors and {messages} messages in {seconds:.0} s"
            ));
        }
        figures.record(LIVE, OURS, CPU_SHARE, open);
        figures.record(LIVE, OURS, CPU_OF_PAGE, (open - closed).max(0.0));
        figures.record(LIVE, OURS, MESSAGES, messages as f64 / seconds);
        figures.record(LIVE, OURS, STREAM_BYTES, bytes as f64 / seconds);
        let (now, most) = process.resident_mebibytes()?;
        figures.record(LIVE, OURS, RESIDENT, now);
        resident_max = most;
    }
    // The most of all rounds: it cannot fall from one to the next.
    figures.record(LIVE, OURS, RESIDENT_MAX, resident_max);
    let sent = sensors.end()?;
    let begin = Instant::now();
    loop {
        let durable = status(http)?["log"]["readings_durable"].as_u64();
        if durable == Some(sent) {
            break;
        }
        if begin.elapsed() > WAIT_MAX {
            return Err(format!(
                "{LIVE}: {sent} readings sent, {durable:?} on flash"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    process.end()?;
    Ok(())
}

/// Whether a client that had the page open for this time got every sensor, and about the number of messages that the
/// period implies.
pub(crate) fn is_live(sensors: usize, messages: u64, seconds: f64) -> bool {
    sensors >= SENSORS as usize && messages as f64 >= 0.5 * MESSAGES_PER_SECOND * seconds
}

/// Waits until the HTTP side of a node serves.
pub(crate) fn wait_to_serve(process: &mut Process, http: SocketAddr) -> Result<(), String> {
    let begin = Instant::now();
    while ask(http, "/healthz").is_err() {
        process.check_alive()?;
        if begin.elapsed() > WAIT_MAX {
            return Err("the node does not serve".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns the status of a node.
pub(crate) fn status(http: SocketAddr) -> Result<serde_json::Value, String> {
    serde_json::from_slice(&ask(http, "/api/v1/status")?)
        .map_err(|error| format!("status: {error}"))
}

/// Requests `path` and returns the whole answer.
fn ask(http: SocketAddr, path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = TcpStream::connect(http).map_err(failed)?;
    stream.set_read_timeout(Some(WAIT_MAX)).map_err(failed)?;
    // HTTP/1.0: the answer is not chunked and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {http}\r\n\r\n").map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| format!("{path}: no answer"))?;
    if !answer.starts_with(b"HTTP/1.0 200") && !answer.starts_with(b"HTTP/1.1 200") {
        let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).into_owned();
        return Err(format!("{path}: {head}"));
    }
    Ok(answer.split_off(end + 4))
}

/// A thread that sends readings at a constant rate, one sensor after the other.
pub(crate) struct Sensors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Sensors {
    /// Starts to send: at first one reading of each sensor, then `together` readings each `period`.
    pub(crate) fn start(
        lines: SocketAddr,
        together: u32,
        period: Duration,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("sensors: {error}");
        let mut stream = TcpStream::connect(lines).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut sent, mut due) = (0_u64, u64::from(SENSORS));
            let mut next = Instant::now();
            let mut text = String::new();
            while !stopped.load(Ordering::Relaxed) {
                text.clear();
                for number in sent..sent + due {
                    let (round, sensor) =
                        (number / u64::from(SENSORS), number % u64::from(SENSORS));
                    let value = 20.0 + ((round + sensor) % 97) as f64 / 7.0;
                    let (room, at) = (sensor / 48, sensor % 48);
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "building,room=r{room} temperature{at}={value:.2}");
                }
                stream.write_all(text.as_bytes()).map_err(failed)?;
                sent += due;
                due = u64::from(together);
                next += period;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(sent)
        });
        Ok(Self { stop, thread })
    }

    /// Stops the thread. Returns the number of readings sent.
    pub(crate) fn end(self) -> Result<u64, String> {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.join();
        sent.map_err(|_| "the sensors' thread panicked".to_owned())?
    }
}

/// A thread that requests what a page requests, and reads as fast as data arrives.
pub(crate) struct Page {
    stream: TcpStream,
    counts: Arc<(AtomicU64, AtomicU64)>,
    thread: JoinHandle<Result<usize, String>>,
}

impl Page {
    pub(crate) fn open(http: SocketAddr) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("page: {error}");
        let mut stream = TcpStream::connect(http).map_err(failed)?;
        write!(
            stream,
            "GET /api/v1/stream?status=1 HTTP/1.0\r\nhost: {http}\r\n\r\n"
        )
        .map_err(failed)?;
        let counts = Arc::<(AtomicU64, AtomicU64)>::default();
        let (seen, from) = (Arc::clone(&counts), stream.try_clone().map_err(failed)?);
        let thread = std::thread::spawn(move || read(from, &seen));
        ask(http, "/api/v1/keys")?;
        for at in 0..4 {
            let path = format!(
                "/api/v1/history?key=building/room=r{at}/temperature0&last_ms=900000&points=400"
            );
            ask(http, &path)?;
        }
        Ok(Self {
            stream,
            counts,
            thread,
        })
    }

    /// Returns the number of messages with values and of bytes so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (messages, bytes) = &*self.counts;
        (
            messages.load(Ordering::Relaxed),
            bytes.load(Ordering::Relaxed),
        )
    }

    /// Closes the stream. Returns the number of sensors that it contained.
    pub(crate) fn close(self) -> Result<usize, String> {
        self.stream.shutdown(std::net::Shutdown::Both).ok();
        let keys = self.thread.join();
        keys.map_err(|_| "the page's thread panicked".to_owned())?
    }
}

/// Reads the stream to its end. Returns the number of keys in it.
fn read(mut stream: TcpStream, counts: &(AtomicU64, AtomicU64)) -> Result<usize, String> {
    let mut keys: HashSet<String> = HashSet::new();
    let mut text: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(keys.len()),
            Ok(count) => count,
        };
        counts.1.fetch_add(count as u64, Ordering::Relaxed);
        text.extend_from_slice(buffer.get(..count).unwrap_or_default());
        while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            if !event.starts_with(b"event: values") {
                continue;
            }
            counts.0.fetch_add(1, Ordering::Relaxed);
            if keys.len() >= SENSORS as usize {
                continue;
            }
            let data = event.windows(6).position(|six| six == b"data: ");
            let data = data.and_then(|at| event.get(at + 6..)).unwrap_or_default();
            let found: serde_json::Value =
                serde_json::from_slice(data).map_err(|error| format!("page: {error}"))?;
            let values = found["values"].as_object().into_iter().flatten();
            // The past of another sensor is in the history of the node, too.
            let sensors = values.filter(|(key, _)| key.starts_with("building/"));
            keys.extend(sensors.map(|(key, _)| key.clone()));
        }
    }
}
