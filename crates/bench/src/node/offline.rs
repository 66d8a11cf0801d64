//! A day without the upstream. A store holds the day's readings (recorded in virtual time), the node runs with live
//! readings, and then the upstream is available again. Each arriving reading is checked. The time until a reading is on
//! flash is measured before and during the drain of the backlog.
//!
//! **Invariants:** the readings of the day are numbered, so that lost and duplicate readings are found independently of
//! what the node reports. A round counts only if all live readings have arrived, too.

use std::fmt::Write as _;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::clock::SystemClock;
use db::value::Value as Stored;
use db::{Database, DbOptions, Durability, ObjectId, ObjectSpec};
use libkeel::{Node, Value};

use super::broker::free_address;
use super::cases::STEADY_RATE;
use super::process::Process;
use super::sink::Sink;
use crate::figures::{Figures, Metric, OURS};
use crate::scratch::check_interrupted;

pub(crate) const LOST: Metric = Metric::shown("readings_lost", "1");
pub(crate) const TWICE: Metric = Metric::shown("readings_twice", "1");
/// Latency while the backlog drains, divided by the latency before.
pub(crate) const MEDIAN_RATIO: Metric = Metric::shown("latency_median_draining", "x");
pub(crate) const P99_RATIO: Metric = Metric::shown("latency_p99_draining", "x");
pub(crate) const MEDIAN: Metric = Metric::shown("latency_median_offline", "ms");
pub(crate) const P99: Metric = Metric::shown("latency_p99_offline", "ms");
pub(crate) const DRAINED: Metric = Metric::shown("drained_per_second", "1/s");

const NAME: &str = "offline";
const KEYS: u64 = 260;
/// Timeout for the node to serve, and for a reading to be durable.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Timeout for the backlog to drain.
const DRAIN_MAX: Duration = Duration::from_secs(900);
/// Maximum pause between two probes, in milliseconds, so that a probe can fall anywhere between two commits.
const PAUSE_MS_MAX: u64 = 250;

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) case: &'static str,
    pub(crate) rounds: u32,
    pub(crate) readings: u64,
    pub(crate) image_mebibytes: u64,
    /// Time of measurement before the upstream is available again.
    pub(crate) before: Duration,
}

pub(crate) fn measure(
    figures: &mut Figures,
    keel: &Path,
    scratch: &Path,
    extent: Extent,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    for round in 0..extent.rounds {
        let folder = scratch.join(format!("{NAME}-{round}"));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{NAME}: {error}"))?;
        progress(&format!("{}, round {}", extent.case, round + 1));
        one_round(figures, keel, &folder, extent)?;
        std::fs::remove_dir_all(&folder).map_err(|error| format!("{NAME}: {error}"))?;
    }
    Ok(())
}

fn one_round(
    figures: &mut Figures,
    keel: &Path,
    folder: &Path,
    extent: Extent,
) -> Result<(), String> {
    let address = || free_address().map_err(|error| error.to_string());
    let (lines, upstream) = (address()?, address()?);
    let file = folder.join("keel.toml");
    let text = format!(
        "[node]\nsocket = \"keel.sock\"\n[store]\nimage = \"keel.img\"\ncreate_mebibytes = {}\n\
         [line]\ntcp_listen = \"{lines}\"\nunix_socket = \"\"\n[time]\nwall_clock = \"trusted\"\n\
         [[upstream]]\nname = \"sink\"\nkind = \"http\"\nurl = \"http://{upstream}/write\"\nbegin = \"oldest\"\n\
         backoff_ms_max = 1000\n",
        extent.image_mebibytes
    );
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let run = || {
        let mut command = Command::new(keel);
        command.arg("run").arg("-c").arg(&file);
        Process::spawn(NAME, &mut command, &folder.join("keel.log"))
    };
    // This run creates the store, and the cursor of its upstream.
    let mut process = run()?;
    attach(&mut process, folder)?;
    process.end()?;
    fill(&folder.join("keel.img"), extent.readings)?;
    let mut process = run()?;
    let node = attach(&mut process, folder)?;
    let live = Live::start(lines)?;
    let begin = Instant::now();
    let mut probe = Probe::new(&node)?;
    while begin.elapsed() < extent.before {
        probe.once()?;
        check_interrupted()?;
        process.check_alive()?;
    }
    let offline = std::mem::take(&mut probe.times_ms);
    let sink = Sink::numbered(upstream, extent.readings)?;
    let begin = Instant::now();
    // Readings that have not arrived by then are reported as lost.
    let drain = loop {
        probe.once()?;
        check_interrupted()?;
        process.check_alive()?;
        if sink.once_and_again().0 >= extent.readings || begin.elapsed() > DRAIN_MAX {
            break begin.elapsed();
        }
    };
    let draining = std::mem::take(&mut probe.times_ms);
    let probes = probe.count;
    let sent = live.end()? + probes;
    let begin = Instant::now();
    while sink.others() < sent {
        if begin.elapsed() > WAIT_MAX {
            let others = sink.others();
            return Err(format!("{NAME}: {others} of {sent} live readings arrived"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    process.end()?;
    // Counted only after the node has ended, since duplicates arrive late.
    let (once, again) = sink.once_and_again();
    let mut record = |metric, value| figures.record(extent.case, OURS, metric, value);
    record(LOST, (extent.readings - once) as f64);
    record(TWICE, (again + sink.others() - sent) as f64);
    record(DRAINED, once as f64 / drain.as_secs_f64());
    let (median, p99) = (at(&offline, 0.5), at(&offline, 0.99));
    record(MEDIAN, median);
    record(P99, p99);
    record(MEDIAN_RATIO, at(&draining, 0.5) / median);
    record(P99_RATIO, at(&draining, 0.99) / p99);
    Ok(())
}

/// Returns a quantile.
fn at(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let place = (last as f64 * part).round() as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}

/// Waits until the node serves.
fn attach(process: &mut Process, folder: &Path) -> Result<Node, String> {
    let begin = Instant::now();
    loop {
        process.check_alive()?;
        match Node::attach(folder.join("keel.sock")) {
            Ok(node) => return Ok(node),
            Err(error) if begin.elapsed() > WAIT_MAX => return Err(format!("{NAME}: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Records one day of readings, the last one at the current time.
fn fill(image: &Path, readings: u64) -> Result<(), String> {
    let describe = |error: db::Error| format!("{NAME}: {error}");
    let store = flash::Store::open(
        crate::store::open_direct(image)?,
        &flash::OpenOptions::default(),
    );
    let store = store.map_err(|error| error.to_string())?;
    let database = Database::open(store, Arc::new(SystemClock::new()), DbOptions::default());
    let database = database.map_err(describe)?;
    let declare = |number| {
        let key = format!("hall/{number}/number");
        database.declare(&ObjectSpec {
            key: &key,
            avi_ms: 60_000,
            temporal: true,
        })
    };
    let ids: Vec<ObjectId> = (0..KEYS)
        .map(declare)
        .collect::<Result<_, _>>()
        .map_err(describe)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let before = |number: u64| ((readings - number) * 1000 / u64::from(STEADY_RATE)) as i64;
    for number in 0..readings {
        let mut bytes = [0; 9];
        let length = Stored::Float(number as f64).encode(&mut bytes);
        let length = length.map_err(|error| format!("{NAME}: {error:?}"))?;
        let time_ms = now.as_millis() as i64 - before(number);
        let id = ids[(number % KEYS) as usize];
        loop {
            let time = db::Time::from_ms(time_ms);
            match database.put(id, &bytes[..length], time, Durability::Batched) {
                Ok(_) => break,
                Err(db::Error::Busy) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(describe(error)),
            }
        }
        if number % 16_384 == 0 {
            check_interrupted()?;
            while database.maintain().map_err(describe)? {}
        }
    }
    database.close().map_err(describe).map(drop)
}

/// Sends one reading at a time and waits until it is on flash.
struct Probe<'a> {
    node: &'a Node,
    key: libkeel::Key,
    times_ms: Vec<f64>,
    count: u64,
    random: u64,
}

impl<'a> Probe<'a> {
    fn new(node: &'a Node) -> Result<Self, String> {
        let key = node
            .key("probe")
            .map_err(|error| format!("{NAME}: {error}"))?;
        Ok(Self {
            node,
            key,
            times_ms: Vec::new(),
            count: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    fn once(&mut self) -> Result<(), String> {
        // Xorshift. The pause is random: a probe that followed each commit at once would always come just after a
        // commit.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        std::thread::sleep(Duration::from_millis(self.random % PAUSE_MS_MAX));
        let failed = |error: libkeel::Error| format!("{NAME}: {error}");
        let begin = Instant::now();
        let ticket = self
            .node
            .put(&self.key, Value::Float(self.count as f64), None);
        ticket.map_err(failed)?.wait(WAIT_MAX).map_err(failed)?;
        self.times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        self.count += 1;
        Ok(())
    }
}

/// A thread that sends readings at the rate at which the day was recorded.
struct Live {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Live {
    fn start(lines: SocketAddr) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{NAME}, live readings: {error}");
        let mut stream = TcpStream::connect(lines).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let begin = Instant::now();
            let mut sent = 0_u64;
            let mut text = String::new();
            while !stopped.load(Ordering::Relaxed) {
                let due = (begin.elapsed().as_secs_f64() * f64::from(STEADY_RATE)) as u64;
                text.clear();
                while sent < due {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "live,room=r{} value={sent}", sent % KEYS);
                    sent += 1;
                }
                stream.write_all(text.as_bytes()).map_err(failed)?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(sent)
        });
        Ok(Self { stop, thread })
    }

    /// Stops the thread. Returns the number of readings sent.
    fn end(self) -> Result<u64, String> {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.join();
        sent.map_err(|_| format!("{NAME}: the thread of live readings panicked"))?
    }
}
