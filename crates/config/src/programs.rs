//! `[[mount]]` and `[[task]]`: programs that the node keeps running, and the mounts that contain them.

use super::reader::{At, Section};
use super::values::{PATH_BYTES_MAX, TEXT_BYTES_MAX, host_port};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// `[[mount]]` tables.
const MOUNTS_MAX: usize = 8;
/// `[[task]]` tables.
const TASKS_MAX: usize = 32;
/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = 64;
/// Words of a command.
const WORDS_MAX: usize = 64;
/// Bytes of the longest word of a command.
const WORD_BYTES_MAX: usize = 4096;
/// Longest period and deadline, in ms: the maximum that the node's tasks may declare.
const TIME_MS_MAX: f64 = 3_600_000.0;
/// Shortest period and deadline, in ms: one microsecond.
const TIME_MS_MIN: f64 = 0.001;
/// Shortest period of a program that is started at each release, in ms: starting a process takes a moment.
const EACH_PERIOD_MS_MIN: f64 = 10.0;
/// Default limit of a run of a program that is started at each period, in periods.
const RUN_PERIODS: f64 = 10.0;
/// The least default limit, in ms.
const RUN_MS_MIN: u64 = 1_000;
/// The remedy for a bad name.
const NAME: &str = "give it a name of letters, digits, - and _";

/// `[[mount]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountConfig {
    /// Its name in the log, in the status and in tasks.
    pub name: String,
    /// `host:port` of the server.
    pub server: String,
    /// Where the tree is mounted.
    pub directory: PathBuf,
    /// Folder with this device's certificate; `None`: no TLS, only for this machine.
    pub identity: Option<PathBuf>,
    /// Public key of the publisher, or the file that holds it, as written.
    pub publisher: Option<String>,
    /// Keeps received blocks: a folder, or the image of a store.
    pub cache: Option<PathBuf>,
    /// Size of the cache.
    pub cache_mebibytes_max: u32,
    /// Folder of the notes beside the cache.
    pub state: Option<PathBuf>,
}

/// How a task's program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Once; the program stays.
    Stay,
    /// Again at each release: a run is an instance.
    EachPeriod,
}

/// `[[task]]`
#[derive(Clone, Debug, PartialEq)]
pub struct TaskConfig {
    /// Its name in the log and in the status.
    pub name: String,
    /// The command as written.
    pub command: Vec<String>,
    /// The program of the command: in the mount, beside the configuration, or a name to look up.
    pub program: PathBuf,
    /// How it is run.
    pub start: Start,
    /// Time between two releases, in ns; 0: unknown.
    pub period_ns: u64,
    /// Allowed response time, in ns; 0: unknown.
    pub deadline_ns: u64,
    /// Cores that it may run on; empty: all.
    pub cores: Vec<u16>,
    /// Name of the mount that contains its program.
    pub mount: Option<String>,
    /// Path at which it sees the files of the region.
    pub region_at: Option<PathBuf>,
    /// First pause before the next start.
    pub restart_ms_min: u32,
    /// Longest pause before the next start.
    pub restart_ms_max: u32,
    /// Consecutive restarts after which it is given up; 0: never.
    pub restarts_max: u32,
    /// A run of a program that is started at each period is ended after this time.
    pub run_ms_max: u64,
}

impl TaskConfig {
    /// Returns the command as one text, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        self.command.join(" ")
    }

    fn sentence(&self) -> String {
        let when = match (self.start, self.period_ns) {
            (Start::Stay, 0) => String::new(),
            (Start::Stay, _) => format!(", of a period of {} ms", ms(self.period_ns)),
            (Start::EachPeriod, _) => format!(" every {} ms", ms(self.period_ns)),
        };
        let deadline = match self.deadline_ns {
            0 => String::new(),
            ns => format!(", deadline {} ms", ms(ns)),
        };
        let cores = match cores_text(&self.cores) {
            None => String::new(),
            Some(cores) => format!(", {cores}"),
        };
        let from = match &self.mount {
            None => String::new(),
            Some(mount) => format!(", from {mount}"),
        };
        format!(
            "{}: {}{when}{deadline}{cores}{from}",
            self.name,
            self.shown()
        )
    }
}

/// Returns the cores as text: `core 1`, `cores 0,2`.
#[must_use]
pub fn cores_text(cores: &[u16]) -> Option<String> {
    let names: Vec<String> = cores.iter().map(u16::to_string).collect();
    match names.len() {
        0 => None,
        1 => Some(format!("core {}", names[0])),
        _ => Some(format!("cores {}", names.join(","))),
    }
}

/// Returns milliseconds, with a fraction only if there is one.
#[must_use]
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl MountConfig {
    fn sentence(&self) -> String {
        let how = match &self.identity {
            Some(identity) => format!("with the identity in {}", identity.display()),
            None => "without TLS".to_owned(),
        };
        let kept = match &self.cache {
            None => "nothing is kept for a start without network".to_owned(),
            Some(cache) => format!(
                "up to {} MiB kept in {}",
                self.cache_mebibytes_max,
                cache.display()
            ),
        };
        let directory = self.directory.display();
        format!(
            "{}: {} on {directory}, {how}, {kept}",
            self.name, self.server
        )
    }
}

/// Returns what `keel config check` prints about mounts and tasks, by subject.
pub(super) fn summary(mounts: &[MountConfig], tasks: &[TaskConfig]) -> Vec<(&'static str, String)> {
    let mut summary = Vec::new();
    if !mounts.is_empty() {
        let all: Vec<String> = mounts.iter().map(MountConfig::sentence).collect();
        summary.push(("mounts", all.join("; ")));
    }
    if !tasks.is_empty() {
        let all: Vec<String> = tasks.iter().map(TaskConfig::sentence).collect();
        summary.push(("tasks", all.join("; ")));
    }
    summary
}

/// Returns settings that may surprise.
pub(super) fn warnings(mounts: &[MountConfig], tasks: &[TaskConfig]) -> Vec<String> {
    let mut warnings = Vec::new();
    if !mounts.is_empty() && !Path::new("/dev/fuse").exists() {
        warnings.push(
            "mounts take FUSE, and /dev/fuse is not there: load it with `modprobe fuse`, or give the container the \
             device"
                .to_owned(),
        );
    }
    for mount in mounts {
        let identity = mount.identity.as_ref();
        if let Some(folder) = identity.filter(|folder| !folder.is_dir()) {
            let folder = folder.display();
            let name = &mount.name;
            warnings.push(format!(
                "mount.identity {folder} of mount {name} is not there"
            ));
        }
        if mount.cache.is_none() {
            warnings.push(format!(
                "mount {} has no cache: its programs start only while {} can be reached",
                mount.name, mount.server
            ));
        }
    }
    for task in tasks {
        let is_looked_for = task.program.components().count() == 1 && !task.program.is_absolute();
        if task.mount.is_none() && !is_looked_for && !task.program.is_file() {
            warnings.push(format!(
                "{} of task {} is not there",
                task.program.display(),
                task.name
            ));
        }
        let there = std::thread::available_parallelism().map_or(usize::MAX, std::num::NonZero::get);
        if let Some(core) = task.cores.iter().find(|core| usize::from(**core) >= there) {
            warnings.push(format!(
                "task.cores of task {} names core {core}, and this machine may use {there}, counted from 0",
                task.name
            ));
        }
        if task.deadline_ns > task.period_ns {
            warnings.push(format!(
                "the deadline of task {} is longer than its period: a release may pass while it still runs",
                task.name
            ));
        }
    }
    warnings
}

/// Reads the mounts of a document.
pub(super) fn mounts(top: &Section<'_, '_>, base_dir: &Path) -> Vec<MountConfig> {
    let mut all: Vec<MountConfig> = Vec::new();
    for one in top.sections("mount", MOUNTS_MAX) {
        let line = one.line();
        let mount = mount(one, base_dir);
        if all.iter().any(|other| other.name == mount.name) {
            top.wrong(
                line,
                "mount",
                "has the same name twice",
                "rename one of them",
            );
        }
        if all.iter().any(|other| other.directory == mount.directory) {
            let remedy = "give each a directory of its own";
            top.wrong(line, "mount.directory", "is that of two mounts", remedy);
        }
        all.push(mount);
    }
    all
}

fn mount(section: Section<'_, '_>, base_dir: &Path) -> MountConfig {
    const SERVER: &str = "give host:port of its server, such as \"plant.example:7007\"";
    let name = name(&section);
    let server = section.required("server", TEXT_BYTES_MAX, SERVER);
    let host = host_port(&server.value);
    if host.is_none() && !server.value.is_empty() {
        let wrong = format!("is \"{}\"", server.value);
        section.wrong(server.line, "server", &wrong, SERVER);
    }
    let directory = section.required(
        "directory",
        PATH_BYTES_MAX,
        "name the empty directory in which it appears",
    );
    let file = |at: Option<At<String>>| at.map(|at| base_dir.join(at.value));
    let identity = file(section.text("identity", PATH_BYTES_MAX));
    let is_insecure = section.boolean("insecure", false);
    let is_here = server
        .value
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.ip().is_loopback());
    match (&identity, is_insecure) {
        (Some(_), true) => {
            let remedy = "remove it: with an identity the connection is encrypted";
            section.wrong(
                section.line(),
                "insecure",
                "is true beside an identity",
                remedy,
            );
        }
        (None, false) => {
            let remedy = "name the folder that `keel stream identity device` made";
            section.wrong(section.line(), "identity", "is missing", remedy);
        }
        (None, true) if !is_here => {
            let remedy = "name an identity: without one the connection is not encrypted";
            section.wrong(
                section.line(),
                "insecure",
                "is true for a server that is not 127.0.0.1:PORT or [::1]:PORT",
                remedy,
            );
        }
        _ => {}
    }
    let mount = MountConfig {
        name,
        server: server.value,
        directory: base_dir.join(directory.value),
        identity,
        publisher: section.text("publisher", PATH_BYTES_MAX).map(|at| at.value),
        cache: file(section.text("cache", PATH_BYTES_MAX)),
        cache_mebibytes_max: section.integer("cache_mebibytes_max", 256, (16, 1 << 20)) as u32,
        state: file(section.text("state", PATH_BYTES_MAX)),
    };
    section.finish();
    mount
}

fn name(section: &Section<'_, '_>) -> String {
    let name = section.required("name", NAME_BYTES_MAX, NAME);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.value.starts_with('-') || !name.value.chars().all(is_plain) {
        let wrong = format!("is \"{}\"", name.value);
        section.wrong(name.line, "name", &wrong, NAME);
    }
    name.value
}

/// Reads the tasks of a document.
pub(super) fn tasks(
    top: &Section<'_, '_>,
    base_dir: &Path,
    mounts: &[MountConfig],
    has_region: bool,
) -> Vec<TaskConfig> {
    let mut all: Vec<TaskConfig> = Vec::new();
    for one in top.sections("task", TASKS_MAX) {
        let line = one.line();
        let task = task(one, base_dir, mounts, has_region);
        if all.iter().any(|other| other.name == task.name) {
            top.wrong(
                line,
                "task",
                "has the same name twice",
                "rename one of them",
            );
        }
        all.push(task);
    }
    all
}

fn task(
    section: Section<'_, '_>,
    base_dir: &Path,
    mounts: &[MountConfig],
    has_region: bool,
) -> TaskConfig {
    const COMMAND: &str = "give the program and its arguments, such as [\"bin/valve\", \"--fast\"]";
    let name = name(&section);
    if !section.has("command") {
        section.wrong(section.line(), "command", "is missing", COMMAND);
    }
    let command = section.words("command", (WORDS_MAX, WORD_BYTES_MAX));
    let command = command.map_or_else(Vec::new, |at| {
        if at.value.first().is_none_or(String::is_empty) {
            section.wrong(at.line, "command", "names no program", COMMAND);
        }
        at.value
    });
    let start = section.choice(
        "start",
        Start::Stay,
        &[("stay", Start::Stay), ("each-period", Start::EachPeriod)],
    );
    let time = |key: &'static str| {
        let number = section.number(key, 0.0, (TIME_MS_MIN, TIME_MS_MAX));
        (number * 1e6).round() as u64
    };
    let period_ns = time("period_ms");
    let deadline_ns = match time("deadline_ms") {
        0 => period_ns,
        ns => ns,
    };
    if section.has("deadline_ms") && !section.has("period_ms") {
        let remedy = "give period_ms as well, or remove it";
        section.wrong(section.line(), "deadline_ms", "lacks a period", remedy);
    }
    if start == Start::EachPeriod {
        let remedy = "give period_ms, the time from one start to the next";
        if !section.has("period_ms") {
            section.wrong(section.line(), "start", "needs a period", remedy);
        } else if period_ns < (EACH_PERIOD_MS_MIN * 1e6) as u64 {
            let wrong = format!("is {}, with a process for each", ms(period_ns));
            let remedy = format!("give {EACH_PERIOD_MS_MIN} or more, or start = \"stay\"");
            section.wrong(section.line(), "period_ms", &wrong, remedy);
        }
    }
    let run_ms_max = match section.integer("run_ms_max", 0, (0, 86_400_000)) {
        0 => ((ms(period_ns) * RUN_PERIODS) as u64).max(RUN_MS_MIN),
        ms => ms,
    };
    let mount = section.text("mount", NAME_BYTES_MAX);
    let from = mount.as_ref().and_then(|at| {
        let found = mounts.iter().find(|mount| mount.name == at.value);
        if found.is_none() {
            let wrong = format!("is \"{}\", and there is no such [[mount]]", at.value);
            section.wrong(at.line, "mount", &wrong, "give the name of one");
        }
        found
    });
    let region_at = section.text("region_at", PATH_BYTES_MAX).map(|at| {
        if !has_region {
            let remedy = "add [region], or remove it";
            section.wrong(at.line, "region_at", "lacks a region", remedy);
        }
        if !at.value.starts_with('/') {
            let wrong = format!("is \"{}\"", at.value);
            let remedy = "give a path from the root, such as \"/keel\"";
            section.wrong(at.line, "region_at", &wrong, remedy);
        }
        PathBuf::from(at.value)
    });
    let cores = section.integers("cores", (64, 0, u64::from(db::realtime::CORES_MAX) - 1));
    let task = TaskConfig {
        name,
        program: program(command.first(), from, base_dir),
        command,
        start,
        period_ns,
        deadline_ns,
        cores: cores.into_iter().map(|core| core as u16).collect(),
        mount: mount.map(|at| at.value),
        region_at,
        restart_ms_min: section.integer("restart_ms_min", 500, (10, 3_600_000)) as u32,
        restart_ms_max: section.integer("restart_ms_max", 30_000, (10, 3_600_000)) as u32,
        restarts_max: section.integer("restarts_max", 10, (0, 1_000_000)) as u32,
        run_ms_max,
    };
    if task.restart_ms_max < task.restart_ms_min {
        let wrong = format!("is {}", task.restart_ms_max);
        let low = task.restart_ms_min;
        let remedy = format!("give at least restart_ms_min, which is {low}");
        section.wrong(section.line(), "restart_ms_max", &wrong, remedy);
    }
    section.finish();
    task
}

/// Returns the program's path. A name without a folder is looked up in `PATH`, as a shell does; any other path is in
/// the mount, or beside the configuration.
fn program(first: Option<&String>, from: Option<&MountConfig>, base_dir: &Path) -> PathBuf {
    let Some(first) = first else {
        return PathBuf::new();
    };
    match (first.contains('/'), from) {
        (false, _) => PathBuf::from(first),
        (true, Some(mount)) => mount.directory.join(first),
        (true, None) => base_dir.join(first),
    }
}
