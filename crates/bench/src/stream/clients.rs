//! Many devices that start the same program at the same time: library devices in a few processes. Each reads the blocks
//! that the program needs, in the order of the program.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stream::device::{Device, Publisher, Settings, TaskPlan};
use stream::{BlockAt, FileId};

use super::bed::{Bed, KEEL, Prepared, Way};
use super::cases::{Course, RUN_TIME, named};
use super::keel::{PORT, Serving};
use super::net::{Rate, at_server};
use super::sys;
use crate::figures::Metric;
use crate::report::percentile;

/// The part's name in cases.
pub(crate) const CLIENTS: &str = "clients-200";

/// The 99th percentile of starts, divided by the fair share. The fair share is the time in which the line carries the
/// bytes of all devices. These are the bytes actually sent, or the published size of the needed blocks for each device,
/// whichever is less.
pub(crate) const OF_FAIR_SHARE: Metric = Metric::shown("p99_of_fair_share", "1");
const START_P50: Metric = Metric::shown("start_p50", "ms");
const START_P99: Metric = Metric::shown("start_p99", "ms");
const FAIR_SHARE: Metric = Metric::shown("fair_share", "ms");

/// Number of devices, and of the processes that contain them.
const DEVICES: usize = 200;
const PROCESSES: usize = 4;

/// Programs whose starts occupy the line for longer are left out, in seconds.
const TOGETHER_S_MAX: f64 = 180.0;

/// Timeout for a block; it ends the measurement.
const DEADLINE: Duration = Duration::from_secs(240);

/// Maximum number of pages that one of these devices holds: there are many devices, and the read data is discarded.
const POOL_PAGES: usize = 256;

/// `keel-bench stream-clients`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Address of the server.
    #[arg(long, value_name = "ADDR")]
    server: String,
    /// Folder of the device's certificate.
    #[arg(long, value_name = "DIR")]
    identity: PathBuf,
    /// File with the publisher's public key.
    #[arg(long, value_name = "FILE")]
    publisher: PathBuf,
    /// Path of the program in the tree.
    #[arg(long, value_name = "PATH")]
    task: PathBuf,
    /// Devices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: usize,
    /// File with the blocks to read, as JSON; without it those that the server predicts.
    #[arg(long, value_name = "FILE")]
    blocks: Option<PathBuf>,
    /// Only prints what the server predicts.
    #[arg(long)]
    plan: bool,
    /// A connection for each request.
    #[arg(long)]
    short: bool,
    /// Blocks of a device's pool; 0: each has its page made for it.
    #[arg(long, value_name = "N", default_value_t = POOL_PAGES)]
    pool_pages: usize,
    /// A thread allocates as many free pages ahead.
    #[arg(long)]
    pool_filled: bool,
}

/// A block: file and index.
pub(crate) type Place = (u32, u32);

/// The measurements of the devices in one process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Time from the begin until the last block has arrived, for each device.
    pub(crate) starts_ns: Vec<u64>,
    /// Time of each block of the first device.
    pub(crate) blocks_ns: Vec<u64>,
}

/// Runs devices that connect, wait for a line on standard input, read, and print the time taken.
///
/// # Errors
/// One line: a device could not start, or a block did not arrive.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let key = fs::read_to_string(&options.publisher)
        .map_err(|error| format!("{}: {error}", options.publisher.display()))?;
    let key = key
        .trim()
        .parse()
        .map_err(|error| format!("the publisher's key: {error:?}"))?;
    let mut settings = Settings::new(&options.server, Publisher::Key(key));
    settings.tls = Some(options.identity.clone());
    settings.deadline = DEADLINE;
    settings.start_wait = Duration::from_secs(60);
    settings.pool_pages = options.pool_pages;
    settings.pool_is_filled = options.pool_filled;
    settings.is_persistent = !options.short;
    settings.around = false;
    let start = || Device::start(settings.clone()).map_err(|error| error.to_string());
    let devices: Vec<Device> = (0..options.count)
        .map(|_| start())
        .collect::<Result<_, _>>()?;
    let first = devices.first().ok_or("no device")?;
    use std::os::unix::ffi::OsStrExt;
    let task =
        real_file(first, options.task.as_os_str().as_bytes()).ok_or("there is no such program")?;
    let blocks: Vec<BlockAt> = match &options.blocks {
        Some(path) => read_places(path)?
            .into_iter()
            .map(|(file, index)| BlockAt {
                file: FileId(file),
                index,
            })
            .collect(),
        None => {
            let plan = first.plan(task).and_then(TaskPlan::known);
            plan.map_err(|error| error.to_string())?
        }
    };
    if options.plan {
        let places: Vec<Place> = blocks.iter().map(|at| (at.file.0, at.index)).collect();
        println!(
            "{}",
            serde_json::to_string(&places).map_err(|error| error.to_string())?
        );
        return Ok(());
    }
    println!("ready");
    std::io::stdout()
        .flush()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    let barrier = Barrier::new(devices.len());
    let done: Vec<Result<(u64, Vec<u64>), String>> = std::thread::scope(|scope| {
        let starts: Vec<_> = devices
            .iter()
            .map(|device| scope.spawn(|| one_start(device, task, &blocks, &barrier)))
            .collect();
        let ended = starts.into_iter().map(|start| start.join());
        ended
            .map(|done| done.unwrap_or_else(|_| Err("a device has ended early".to_owned())))
            .collect()
    });
    let mut measured = Measured::default();
    for (place, done) in done.into_iter().enumerate() {
        let (start_ns, blocks_ns) = done?;
        measured.starts_ns.push(start_ns);
        if place == 0 {
            measured.blocks_ns = blocks_ns;
        }
    }
    println!(
        "{}",
        serde_json::to_string(&measured).map_err(|error| error.to_string())?
    );
    for device in &devices {
        device.stop();
    }
    Ok(())
}

fn one_start(
    device: &Device,
    task: FileId,
    blocks: &[BlockAt],
    barrier: &Barrier,
) -> Result<(u64, Vec<u64>), String> {
    let mut blocks_ns = Vec::with_capacity(blocks.len());
    barrier.wait();
    let begun = Instant::now();
    let token = device.begin(task);
    let mut last = Instant::now();
    for at in blocks {
        device
            .read(Some(token), *at)
            .map_err(|error| error.to_string())?;
        let now = Instant::now();
        blocks_ns.push((now - last).as_nanos() as u64);
        last = now;
    }
    let start_ns = begun.elapsed().as_nanos() as u64;
    device.end(token, true);
    Ok((start_ns, blocks_ns))
}

/// Returns the regular file that a path leads to, following the links of the tree.
fn real_file(device: &Device, path: &[u8]) -> Option<FileId> {
    use stream::manifest::{Kind, ROOT};
    let manifest = device.manifest();
    let mut todo: Vec<Vec<u8>> = path
        .split(|byte| *byte == b'/')
        .rev()
        .map(<[u8]>::to_vec)
        .collect();
    let mut way = vec![ROOT];
    let mut links = 0;
    while let Some(part) = todo.pop() {
        match part.as_slice() {
            b"" | b"." => {}
            b".." => {
                if way.len() > 1 {
                    way.pop();
                }
            }
            name => {
                let node = manifest.look_up(*way.last()?, name)?;
                if let Kind::Link { target } = &manifest.node(node)?.kind {
                    links += 1;
                    if links > 40 {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    todo.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                } else {
                    way.push(node);
                }
            }
        }
    }
    way.last().copied()
}

pub(crate) fn read_places(path: &Path) -> Result<Vec<Place>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A process with devices.
pub(crate) struct Clients {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Clients {
    /// Starts a process on the device's side, which waits until its devices are connected.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start(
        bed: &Bed<'_>,
        prepared: &Prepared,
        port: u16,
        words: &[&str],
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["stream-clients", "--server", &at_server(port).to_string()]);
        command.arg("--identity").arg(bed.keel()?.device_identity());
        command
            .arg("--publisher")
            .arg(prepared.store.join("publisher.pub"));
        command.arg("--task").arg(&prepared.task.path).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        sys::in_network(&mut command, Some(bed.line().device()));
        let mut child = command
            .spawn()
            .map_err(|error| format!("devices: {error}"))?;
        let said = child.stdout.take().ok_or("devices that say nothing")?;
        Ok(Self {
            child,
            said: BufReader::new(said),
        })
    }

    /// Returns its next line of output.
    ///
    /// # Errors
    /// One line: it has ended.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self
            .said
            .read_line(&mut line)
            .map_err(|error| format!("devices: {error}"))?;
        if read == 0 {
            return Err("the devices have ended early".to_owned());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Lets its devices begin.
    ///
    /// # Errors
    /// One line: it has ended.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .ok_or("devices that hear nothing")?;
        stdin
            .write_all(b"go\n")
            .map_err(|error| format!("devices: {error}"))
    }

    /// Returns the measurements of its devices.
    ///
    /// # Errors
    /// One line: a block did not arrive.
    pub(crate) fn measured(mut self) -> Result<Measured, String> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| format!("devices: {error}"))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the server's prediction for a program, in the order in which the blocks are needed.
///
/// # Errors
/// One line: the server has no prediction.
pub(crate) fn plan(bed: &Bed<'_>, prepared: &Prepared) -> Result<Vec<Place>, String> {
    bed.take_learned(prepared)?;
    let server = bed
        .keel()?
        .serve(bed.line(), &prepared.store, &Serving::default())?;
    let mut clients = Clients::start(bed, prepared, PORT, &["--plan"])?;
    let line = clients.line()?;
    drop(clients);
    server.end()?;
    serde_json::from_str(&line).map_err(|error| format!("devices: {error}"))
}

impl Course<'_> {
    /// Measures many devices at once, over one line.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn clients(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        let way = Way::new(Rate::SLOW, 0);
        for place in 0..self.prepared.len() {
            let case = named(format!("{CLIENTS}-{}", self.prepared[place].name()));
            show(case);
            let bed = self.bed;
            self.unless_failed(case, KEEL, |course| {
                let needed = course.prepared[place].needed[0].as_ref();
                let bytes = needed.map_or(0, |needed| needed.compressed_bytes[0]);
                let together_s = (bytes * DEVICES as u64) as f64 / way.rate.bytes_per_s();
                if together_s > TOGETHER_S_MAX {
                    return Err(format!(
                        "the line would take {together_s:.0} s for each round"
                    ));
                }
                let (mut starts_ns, bytes) = many(bed, &course.prepared[place], way)?;
                // Uselessly sent bytes must not increase the fair share.
                let needed = course.prepared[place].needed[0].as_ref();
                let needed = needed.map(|needed| needed.compressed_bytes[0] * DEVICES as u64);
                let bytes = needed.map_or(bytes, |needed| needed.min(bytes));
                let fair_ms = bytes as f64 / way.rate.bytes_per_s() * 1e3;
                let [p50, p99, last] = [500, 990, 1000]
                    .map(|per_mille| percentile(&mut starts_ns, per_mille) as f64 / 1e6);
                for (metric, value) in [
                    (START_P50, p50),
                    (START_P99, p99),
                    (FAIR_SHARE, fair_ms),
                    (OF_FAIR_SHARE, p99 / fair_ms),
                    (RUN_TIME, last),
                ] {
                    course.figures.record(case, KEEL, metric, value);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Returns the time of each start, and the bytes that the line has carried to the devices since the begin.
fn many(bed: &Bed<'_>, prepared: &Prepared, way: Way) -> Result<(Vec<u64>, u64), String> {
    bed.take_learned(prepared)?;
    // Connecting is not measured, so use the fast rate.
    bed.line().limit(Rate::FAST)?;
    let mut server = bed
        .keel()?
        .serve(bed.line(), &prepared.store, &Serving::default())?;
    server.settle()?;
    let count = (DEVICES / PROCESSES).to_string();
    let mut all = Vec::new();
    for _ in 0..PROCESSES {
        all.push(Clients::start(bed, prepared, PORT, &["--count", &count])?);
    }
    for clients in &mut all {
        let said = clients.line()?;
        if said != "ready" {
            return Err(format!("devices: {said}"));
        }
    }
    bed.line().limit(way.rate)?;
    let before = bed.line().traffic()?;
    for clients in &mut all {
        clients.go()?;
    }
    let mut starts_ns = Vec::new();
    for clients in all {
        starts_ns.extend(clients.measured()?.starts_ns);
    }
    let bytes = bed.line().traffic()?.since(before).to_device_bytes;
    server.end()?;
    Ok((starts_ns, bytes))
}
