//! The whole node: `keel run` composes every room from one configuration, while a page is open. It has a region with
//! checkpoints, a task whose program comes from a streamed mount, a job, an upstream over HTTP, and the HTTP side.
//!
//! **Invariants:** the node and all that it has started are charged to it. Sensors, page, upstream, the tree's server
//! and the program that writes into the region are charged to no system. A run counts only if the node took every
//! reading. A part that is missing is named, and no goal of the case is met then.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mem::{Attachment, NewInode, ROOT_INODE, now_ns};
use serde_json::{Value, json};

use super::broker::free_address;
use super::cases::{CPU_SHARE, RESIDENT_MAX, STEADY_RATE};
use super::family::{self, Each, Heads, NODE};
use super::live::{self, MESSAGES, Page, SENSORS, STREAM_BYTES, Sensors, WAIT_MAX};
use super::process::Process;
use super::sink::Sink;
use crate::figures::{Figures, Metric, OURS};
use crate::scratch::check_interrupted;
use crate::store::tool;

pub(crate) const WHOLE_NODE: &str = "whole-node-1024";

/// The processor time of each group of processes.
pub(crate) const CPU_OF: [Metric; 4] = [
    Metric::shown("cpu_of_node", "%"),
    Metric::shown("cpu_of_mount", "%"),
    Metric::shown("cpu_of_task", "%"),
    Metric::shown("cpu_of_jobs", "%"),
];
/// The most memory of each group.
pub(crate) const MEMORY_OF: [Metric; 4] = [
    Metric::shown("resident_max_of_node", "MiB"),
    Metric::shown("resident_max_of_mount", "MiB"),
    Metric::shown("resident_max_of_task", "MiB"),
    Metric::shown("resident_max_of_jobs", "MiB"),
];

/// Size of the region, and of the image for its checkpoints, in MiB.
const REGION_MEBIBYTES: u64 = 32;
/// The file of the region that a program writes, and how much it writes each time.
const RESULTS: &[u8] = b"results";
const RESULTS_BYTES: usize = 4096;
/// Number of places in that file that are written one after the other.
const RESULTS_PLACES: u64 = 16;

/// Readings in the history that the job works on, and the time between two of them.
const JOB_READINGS: u64 = 600;
const JOB_READING_MS: u64 = 100;

/// Time between two readings of the memory; the program writes into the region as often.
const SAMPLE: Duration = Duration::from_millis(100);

/// Timeout for every part to begin its work.
const BEGIN_MAX: Duration = Duration::from_secs(60);

/// Timeout for a mount to vanish after the end of its node.
const UNMOUNT_MAX: Duration = Duration::from_secs(10);

/// The task: a shell that acts on each reading of one sensor. Its first argument is the program `keel`.
const ACT: &str = r#"echo "runs from $0"
"$1" watch building/room=r0/temperature0 --current --node "$KEEL_NODE" | while read -r line; do
    echo "acts on $line"
done
"#;

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Time of a round.
    pub(crate) seconds: u64,
    /// Time between two runs of the job, and between two checkpoints.
    pub(crate) period_seconds: u64,
    pub(crate) image_mebibytes: u64,
}

/// What was seen of a part, or why it is missing.
type Part = Result<String, String>;

/// Measures `rounds` rounds. Returns the parts, whether each is there, and counts, for the report.
pub(crate) fn measure(
    figures: &mut Figures,
    keel: &Path,
    scratch: &Path,
    rounds: u32,
    extent: Extent,
    progress: &mut dyn FnMut(&str),
) -> Result<Value, String> {
    progress(&format!("{WHOLE_NODE}, starting"));
    let site = Site::create(scratch)?;
    let no_mount = why_no_mount();
    let (_server, server) = publish(keel, &site.folder)?;
    let sink = Sink::start()?;
    let address = || free_address().map_err(|error| error.to_string());
    let (lines, http) = (address()?, address()?);
    let file = site.folder.join("keel.toml");
    let addresses = [lines, http, sink.address()].map(|address| address.to_string());
    let mount = no_mount.is_none().then_some(server.as_str());
    let text = configuration(&site, keel, &addresses, mount, extent);
    write(&file, &text)?;
    let mut command = Command::new(keel);
    command.arg("run").arg("-c").arg(&file);
    let mut process = Process::spawn(WHOLE_NODE, &mut command, &site.folder.join("keel.log"))?;
    live::wait_to_serve(&mut process, http)?;
    record_past(lines)?;
    let period = Duration::from_secs(1) / STEADY_RATE;
    let sensors = Sensors::start(lines, 1, period)?;

    let mut results = Results::open(&site.region);
    let mut memory = Memory::default();
    let begin = Instant::now();
    let heads = loop {
        check_interrupted()?;
        process.check_alive()?;
        let status = live::status(http)?;
        let heads = heads_of(&process, &status);
        memory.take_all(&heads)?;
        results.write();
        let has_keys = status["keys"]["count"].as_u64() > Some(u64::from(SENSORS));
        let parts = node_parts(&status, no_mount.as_deref(), &results);
        let have_begun = parts
            .iter()
            .all(|(name, part)| part.is_ok() || (*name == "mount" && no_mount.is_some()));
        // A part that has not begun by then is missing.
        let is_late = begin.elapsed() > BEGIN_MAX;
        if has_keys && (have_begun || is_late) {
            break heads;
        }
        if is_late {
            return Err(format!("{WHOLE_NODE}: not every sensor has a key"));
        }
        std::thread::sleep(SAMPLE);
    };

    let page = Page::open(http)?;
    let opened = Instant::now();
    let time = Duration::from_secs(extent.seconds);
    for round in 0..rounds {
        check_interrupted()?;
        progress(&format!("{WHOLE_NODE}, round {}", round + 1));
        let before = family::cpu_ns(&heads)?;
        let (messages, bytes) = page.counts();
        let begin = Instant::now();
        while begin.elapsed() < time {
            check_interrupted()?;
            process.check_alive()?;
            results.write();
            memory.take(&heads)?;
            std::thread::sleep(SAMPLE.min(time.saturating_sub(begin.elapsed())));
        }
        let elapsed = begin.elapsed();
        let (messages, bytes) = (page.counts().0 - messages, page.counts().1 - bytes);
        let after = family::cpu_ns(&heads)?;
        process.check_alive()?;
        let mut record = |metric, value| figures.record(WHOLE_NODE, OURS, metric, value);
        let percent = |ns: u64| 100.0 * ns as f64 / elapsed.as_nanos() as f64;
        // The time of ended processes is counted in whole ticks, so it may go back by one.
        let spent: Vec<u64> = (before.iter().zip(after))
            .map(|(before, after)| after.saturating_sub(*before))
            .collect();
        record(CPU_SHARE, percent(spent.iter().sum()));
        for (metric, ns) in CPU_OF.into_iter().zip(spent) {
            record(metric, percent(ns));
        }
        record(MESSAGES, messages as f64 / elapsed.as_secs_f64());
        record(STREAM_BYTES, bytes as f64 / elapsed.as_secs_f64());
    }
    // The most of all rounds: it cannot fall from one to the next.
    let (_, node_max) = process.resident_mebibytes()?;
    let mut record = |metric, value| figures.record(WHOLE_NODE, OURS, metric, value);
    record(RESIDENT_MAX, mebibytes(memory.together).max(node_max));
    for (group, metric) in MEMORY_OF.into_iter().enumerate() {
        let most = match group {
            NODE => node_max,
            group => mebibytes(memory.most[group]),
        };
        record(metric, most);
    }
    let (open_seconds, messages) = (opened.elapsed().as_secs_f64(), page.counts().0);
    let keys = page.close()?;
    let sent = sensors.end()? + JOB_READINGS;
    let status = last_status(http, &sink, sent)?;

    let mut parts = Vec::from(node_parts(&status, no_mount.as_deref(), &results));
    parts.push(("upstream", upstream_part(&status, sink.lines(), sent)));
    parts.push(("page", page_part(keys, messages, open_seconds)));
    if heads_of(&process, &status) != heads {
        // What was measured of these processes is then of some others, too.
        for (name, part) in &mut parts {
            if ["mount", "task"].contains(name) && part.is_ok() {
                *part = Err("it has begun anew while it was measured".to_owned());
            }
        }
    }
    let ended = process.end()?;
    if !ended.success() {
        return Err(format!("{WHOLE_NODE}: the node ended with {ended}"));
    }
    for (name, part) in &parts {
        if let Err(why) = part {
            figures.incomplete(WHOLE_NODE);
            figures.missing(format!("{WHOLE_NODE}, {name}: {why}"));
        }
    }
    let shown: serde_json::Map<String, Value> = parts
        .iter()
        .map(|(name, part)| {
            let (Ok(reason) | Err(reason)) = part;
            let shown = json!({"present": part.is_ok(), "reason": reason});
            ((*name).to_owned(), shown)
        })
        .collect();
    Ok(json!({
        "sensors": SENSORS,
        "readings_per_second": STEADY_RATE,
        "seconds": extent.seconds,
        "job_period_seconds": extent.period_seconds,
        "checkpoint_interval_seconds": extent.period_seconds,
        "parts": shown,
        "counts": {
            "readings_sent": sent,
            "readings_durable": status["log"]["readings_durable"],
            "readings_upstream": sink.lines(),
            "page_sensors": keys,
            "page_messages": messages,
            "job_runs": status["jobs"][0]["runs"],
            "job_failed": status["jobs"][0]["failed"],
            "task_lines": status["tasks"][0]["output_lines"],
            "mount_reads": status["mounts"][0]["reads"],
            "checkpoints": status["region"]["checkpoints"],
            "region_writes": results.writes,
        },
    }))
}

/// The places of a run. Dropping it removes what lies outside of the run's folder.
struct Site {
    /// An absolute path: the kernel shows the mount by it.
    folder: PathBuf,
    region: PathBuf,
}

impl Site {
    fn create(scratch: &Path) -> Result<Self, String> {
        let folder = scratch.join("whole");
        fs::create_dir_all(&folder).map_err(|error| failed_at(&folder, &error))?;
        let folder = fs::canonicalize(&folder).map_err(|error| failed_at(&folder, &error))?;
        let shared = Path::new("/dev/shm");
        let region = if shared.is_dir() {
            shared.join(format!("keel-bench-{}.region", std::process::id()))
        } else {
            folder.join("region")
        };
        Ok(Self { folder, region })
    }

    fn is_mounted(&self) -> bool {
        // The kernel writes a space so.
        let plant = self.folder.join("plant").display().to_string();
        let plant = plant.replace(' ', "\\040");
        fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.contains(&plant))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The mount ends with its node, also when that was killed.
        let begin = Instant::now();
        while self.is_mounted() && begin.elapsed() < UNMOUNT_MAX {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.is_mounted() {
            let plant = self.folder.join("plant");
            if let Err(error) = tool(Command::new("umount").arg("-l").arg(&plant)) {
                eprintln!("keel-bench: {error}; unmount {} by hand", plant.display());
            }
        }
        fs::remove_file(&self.region).ok();
        // It is there if the node was killed while it made the region.
        let mut unfinished = self.region.clone().into_os_string();
        unfinished.push(".new");
        fs::remove_file(unfinished).ok();
        fs::remove_dir_all(mem::stubs_path(&self.region)).ok();
        // Room for the cases that follow; the run's folder is removed in any case.
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Returns why no tree can be mounted here, as far as that is known beforehand.
fn why_no_mount() -> Option<String> {
    if base::mount::effective_ids().0 == 0 {
        return base::mount::why_root_cannot_mount();
    }
    if let Err(error) = base::mount::check_fuse() {
        return Some(error.to_string());
    }
    let folders = ["/bin", "/usr/bin", "/usr/local/bin"];
    let has_helper = |folder: &&str| Path::new(folder).join("fusermount3").exists();
    let is_there = folders.iter().any(has_helper);
    (!is_there).then(|| "users other than root need the package fuse3".to_owned())
}

/// Publishes a small tree with the task's program, and serves it. Returns the server and its address.
fn publish(keel: &Path, folder: &Path) -> Result<(Process, String), String> {
    let tree = folder.join("tree");
    for part in ["bin", "share"] {
        let part = tree.join(part);
        fs::create_dir_all(&part).map_err(|error| failed_at(&part, &error))?;
    }
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).map_err(|error| failed_at(from, &error))?;
        Ok::<_, String>(())
    };
    copy(Path::new("/bin/sh"), &tree.join("bin/sh"))?;
    write(&tree.join("share/act.sh"), ACT)?;
    // The server runs from a copy, because it is not charged: it must not share the memory of the node's program.
    let program = folder.join("server");
    copy(keel, &program)?;
    let stream = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(folder).arg("stream").args(arguments);
        command
    };
    tool(&mut stream(&["pack", "tree", "plant.store"]))?;
    let log = folder.join("server.log");
    let serve = [
        "serve",
        "plant.store",
        "--listen",
        "127.0.0.1:0",
        "--insecure",
    ];
    let mut process = Process::spawn("keel stream serve", &mut stream(&serve), &log)?;
    let begin = Instant::now();
    loop {
        process.check_alive()?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        // The line may be incomplete without its end.
        let lines = said
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let mut serving = lines.filter(|line| line.starts_with("serving "));
        if let Some(address) = serving
            .next()
            .and_then(|line| line.split_whitespace().next_back())
        {
            return Ok((process, address.to_owned()));
        }
        if begin.elapsed() > WAIT_MAX {
            return Err("keel stream serve: it does not serve".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a configuration with every room. What is not here has its default. `mount`: the address of the tree's
/// server; without it the task starts from the folder that was published.
fn configuration(
    site: &Site,
    keel: &Path,
    [lines, http, upstream]: &[String; 3],
    mount: Option<&str>,
    extent: Extent,
) -> String {
    let (region, keel) = (site.region.display(), keel.display());
    let (image_mebibytes, seconds) = (extent.image_mebibytes, extent.period_seconds);
    let mut text = format!(
        "[node]\nsocket = \"keel.sock\"\n\
         [store]\nimage = \"keel.img\"\ncreate_mebibytes = {image_mebibytes}\n\
         [time]\nwall_clock = \"trusted\"\n\
         [line]\ntcp_listen = \"{lines}\"\nunix_socket = \"\"\n\
         [http]\nlisten = \"{http}\"\n\
         [region]\nfile = \"{region}\"\ncreate_mebibytes = {REGION_MEBIBYTES}\ncheckpoint_image = \"region.img\"\n\
         checkpoint_create_mebibytes = {REGION_MEBIBYTES}\ncheckpoint_interval_seconds = {seconds}\n\
         [[job]]\nname = \"bearing\"\nkernel = \"vibration\"\nkey = \"pump/unit=a/vibration\"\nwindow = 64\n\
         out = \"bearing.json\"\nperiod_seconds = {seconds}\n\
         [[upstream]]\nname = \"sink\"\nkind = \"http\"\nurl = \"http://{upstream}/write\"\nbegin = \"oldest\"\n\
         [[task]]\nname = \"act\"\n"
    );
    // Writing to a string cannot fail.
    let _ = match mount {
        Some(server) => write!(
            text,
            "command = [\"bin/sh\", \"plant/share/act.sh\", \"{keel}\"]\nmount = \"plant\"\n\
             [[mount]]\nname = \"plant\"\nserver = \"{server}\"\ndirectory = \"plant\"\ninsecure = true\n\
             cache = \"plant-cache\"\n"
        ),
        None => writeln!(
            text,
            "command = [\"./tree/bin/sh\", \"tree/share/act.sh\", \"{keel}\"]"
        ),
    };
    text
}

/// Sends the history on which the job works, with times of the last minute.
fn record_past(lines: SocketAddr) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the job's readings: {error}");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut text = String::new();
    for number in 0..JOB_READINGS {
        let before = Duration::from_millis((JOB_READINGS - number) * JOB_READING_MS);
        let time_ns = now.saturating_sub(before).as_nanos();
        let value =
            (number as f64 * 0.25 * std::f64::consts::TAU).sin() + (number % 7) as f64 * 0.01;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "pump,unit=a vibration={value:.4} {time_ns}");
    }
    let mut stream = TcpStream::connect(lines).map_err(failed)?;
    stream.write_all(text.as_bytes()).map_err(failed)
}

/// A program that writes its results into the region, as other programs of a device do.
struct Results {
    /// The file, or why it cannot be written.
    file: Result<(Attachment, mem::Attributes), String>,
    writes: u64,
}

impl Results {
    fn open(region: &Path) -> Self {
        let make = || -> mem::Result<_> {
            let attachment = Attachment::open(region, b"/keel-bench", true)?;
            let (user, group) = base::mount::effective_ids();
            let new = NewInode {
                mode: libc::S_IFREG | 0o644,
                user,
                group,
                now_ns: now_ns(),
            };
            let made = attachment.writer()?.create(ROOT_INODE, RESULTS, &new)?;
            Ok((attachment, made))
        };
        Self {
            file: make().map_err(|error| error.to_string()),
            writes: 0,
        }
    }

    fn write(&mut self) {
        let Ok((attachment, file)) = &self.file else {
            return;
        };
        let offset = self.writes % RESULTS_PLACES * RESULTS_BYTES as u64;
        let data = [self.writes as u8; RESULTS_BYTES];
        let written = attachment
            .writer()
            .and_then(|writer| writer.write(file.inode, file.generation, offset, &data, now_ns()));
        match written {
            Ok(()) => self.writes += 1,
            Err(error) => self.file = Err(error.to_string()),
        }
    }
}

/// The most memory that was seen, in bytes.
#[derive(Default)]
struct Memory {
    /// Of each group, in the rounds.
    most: Each,
    /// Of all together, since the start of the node.
    together: u64,
}

impl Memory {
    fn take(&mut self, heads: &Heads) -> Result<(), String> {
        let now = self.take_all(heads)?;
        for (most, now) in self.most.iter_mut().zip(now) {
            *most = now.max(*most);
        }
        Ok(())
    }

    fn take_all(&mut self, heads: &Heads) -> Result<Each, String> {
        let now = family::memory_bytes(heads)?;
        self.together = self.together.max(now.iter().sum());
        Ok(now)
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn heads_of(process: &Process, status: &Value) -> Heads {
    let process_of = |list: &str| u32::try_from(status[list][0]["process"].as_u64()?).ok();
    Heads {
        node: process.id(),
        mount: process_of("mounts"),
        task: process_of("tasks"),
    }
}

/// Waits until the readings have arrived everywhere. Returns the status then.
fn last_status(http: SocketAddr, sink: &Sink, sent: u64) -> Result<Value, String> {
    let begin = Instant::now();
    loop {
        let status = live::status(http)?;
        let durable = status["log"]["readings_durable"].as_u64();
        let acknowledged = status["upstream"][0]["acknowledged"].as_u64();
        let is_late = begin.elapsed() > WAIT_MAX;
        if durable == Some(sent)
            && (is_late || (acknowledged >= Some(sent) && sink.lines() >= sent))
        {
            return Ok(status);
        }
        if is_late {
            return Err(format!(
                "{WHOLE_NODE}: {sent} readings sent, {durable:?} on flash"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the first of these reasons that the status has, or `otherwise`.
fn why<'a>(reasons: &[&'a Value], otherwise: &'a str) -> String {
    let given = reasons.iter().find_map(|reason| reason.as_str());
    given.unwrap_or(otherwise).to_owned()
}

/// Returns the parts that the status shows.
fn node_parts(
    status: &Value,
    no_mount: Option<&str>,
    results: &Results,
) -> [(&'static str, Part); 4] {
    let count = |object: &Value, name: &str| object[name].as_u64().unwrap_or(0);
    let region = &status["region"];
    let checkpoints = count(region, "checkpoints");
    let region = if let Err(error) = &results.file {
        Err(why(&[&region["error"]], error))
    } else if region["served"] == true && region["checkpoint_failing"] == false && checkpoints > 0 {
        Ok(format!("values are served, {checkpoints} checkpoints"))
    } else {
        let otherwise = "it has no checkpoint yet";
        Err(why(
            &[&region["error"], &region["checkpoint_error"]],
            otherwise,
        ))
    };
    let mount = &status["mounts"][0];
    let reads = count(mount, "reads");
    let mount = match no_mount {
        Some(why) => Err(why.to_owned()),
        None if mount["mounted"] == true && reads > 0 => Ok(format!("{reads} blocks were read")),
        None => Err(why(&[&mount["last_error"]], "nothing was read from it")),
    };
    let task = &status["tasks"][0];
    let lines = count(task, "output_lines");
    // The first line is its start, the others are readings.
    let task = match task["state"] == "running" && lines > 1 {
        true => Ok(format!("it acted on {} readings", lines - 1)),
        false => Err(why(&[&task["last_error"]], "it acted on no reading")),
    };
    let job = &status["jobs"][0];
    let (runs, failed) = (count(job, "runs"), count(job, "failed"));
    let job = match job["failing"] == false && job["last_seconds"].is_number() && runs > failed {
        true => Ok(format!("{runs} runs, {failed} failed")),
        false => Err(why(&[&job["last_error"]], "no run has ended")),
    };
    [
        ("region", region),
        ("mount", mount),
        ("task", task),
        ("job", job),
    ]
}

fn upstream_part(status: &Value, arrived: u64, sent: u64) -> Part {
    let upstream = &status["upstream"][0];
    match arrived == sent && upstream["acknowledged"].as_u64() == Some(sent) {
        true => Ok(format!("{arrived} readings arrived, each once")),
        false => {
            let otherwise = format!("{arrived} readings arrived, of {sent}");
            Err(why(
                &[&upstream["unusable"], &upstream["last_error"]],
                &otherwise,
            ))
        }
    }
}

fn page_part(sensors: usize, messages: u64, seconds: f64) -> Part {
    let seen = format!("{sensors} sensors in {messages} messages in {seconds:.0} s");
    match live::is_live(sensors, messages, seconds) {
        true => Ok(seen),
        false => Err(seen),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| failed_at(path, &error))
}

fn failed_at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        Results {
            file: Err("no region".to_owned()),
            writes: 0,
        }
    }

    fn names(parts: &[(&'static str, Part)], is_there: bool) -> Vec<&'static str> {
        let found = parts.iter().filter(|(_, part)| part.is_ok() == is_there);
        found.map(|(name, _)| *name).collect()
    }

    #[test]
    fn a_part_counts_only_when_it_has_worked() {
        let mut status = json!({
            "region": {"served": true, "error": null, "checkpoint_failing": false, "checkpoint_error": null,
                       "checkpoints": 1},
            "mounts": [{"mounted": true, "reads": 7, "last_error": null}],
            "tasks": [{"state": "running", "output_lines": 2, "last_error": null}],
            "jobs": [{"runs": 2, "failed": 1, "failing": false, "last_seconds": 0.1, "last_error": "late"}],
        });
        let parts = node_parts(&status, None, &results());
        assert_eq!(names(&parts, true), ["mount", "task", "job"]);
        assert_eq!(parts[0].1, Err("no region".to_owned()));
        // Each of them as it is before it has worked.
        status["mounts"][0]["reads"] = json!(0);
        status["tasks"][0]["output_lines"] = json!(1);
        status["jobs"][0]["failing"] = json!(true);
        let parts = node_parts(&status, None, &results());
        assert_eq!(names(&parts, true), [""; 0]);
        assert_eq!(parts[3].1, Err("late".to_owned()));
        let parts = node_parts(&status, Some("no FUSE"), &results());
        assert_eq!(parts[1].1, Err("no FUSE".to_owned()));
        // A node that knows nothing of these parts.
        assert_eq!(
            names(&node_parts(&json!({}), None, &results()), true),
            [""; 0]
        );
    }

    #[test]
    fn an_upstream_must_have_each_reading_once_and_a_page_each_sensor() {
        let status = |acknowledged: u64| json!({"upstream": [{"acknowledged": acknowledged}]});
        assert!(upstream_part(&status(9), 9, 9).is_ok());
        assert!(upstream_part(&status(9), 10, 9).is_err());
        assert!(upstream_part(&status(8), 9, 9).is_err());
        assert!(page_part(SENSORS as usize, 8, 2.0).is_ok());
        assert!(page_part(SENSORS as usize - 1, 8, 2.0).is_err());
        assert!(page_part(SENSORS as usize, 3, 2.0).is_err());
    }
}
