//! The test bed: the line, and for each program its tree on local disks and in a store. Runs one start of a program on
//! one system with cold caches.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::disks::{Card, Disk, forget_all};
use super::keel::{Keel, Mounted, Mounting, PORT, Server, Serving, copy_learned, forget_learned};
use super::needed::{Needed, resident};
use super::net::{HEADER_BYTES, Line, Rate, Traffic, at_server};
use super::proxy::Proxy;
use super::run::{Outcome, Start};
use super::sshfs::{self, Sshd};
use super::tasks::{Expected, Program, Task};
use crate::figures::Figures;
use crate::mem::memory::Mount;

/// Our system after learning.
pub(crate) const KEEL: &str = "keel";
/// Our system after learning, with a server that has nothing of the content in memory, and nothing compressed ahead.
pub(crate) const UNPREPARED: &str = "keel-unprepared";
/// FUSE on demand with the kernel's readahead: the same mount and protocol as ours, without other features.
pub(crate) const READAHEAD: &str = "readahead";
pub(crate) const SSHFS: &str = "sshfs";
/// ext4 on a disk of this machine.
pub(crate) const EXT4: &str = "ext4";
/// ext4 on a disk as slow as a card.
pub(crate) const CARD: &str = "ext4-card";

/// Readahead of the kernel for a peer, in KiB.
pub(crate) const READAHEAD_KIB: u32 = 128;

/// Number of starts from which our system learns a task; in the second one it observes all reads.
const LEARNING_STARTS: u32 = 3;

/// Number of warm starts for the median.
const WARM_STARTS: u32 = 5;

/// The network path between device and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) rate: Rate,
    pub(crate) round_trip_ms: u64,
}

impl Way {
    pub(crate) const fn new(rate: Rate, round_trip_ms: u64) -> Self {
        Self {
            rate,
            round_trip_ms,
        }
    }

    /// Returns its name in cases.
    pub(crate) fn name(self) -> String {
        format!("{}-mbit-{}-ms", self.rate.mbit, self.round_trip_ms)
    }

    pub(crate) fn round_trip(self) -> Duration {
        Duration::from_millis(self.round_trip_ms)
    }
}

/// A program with all systems that it is measured on.
pub(crate) struct Prepared {
    pub(crate) task: Task,
    /// The expected output, for the usual arguments and each of the others.
    pub(crate) expected: Vec<Expected>,
    pub(crate) disk: Disk,
    pub(crate) card: Option<Card>,
    pub(crate) store: PathBuf,
    /// A copy of what the store has learned, for starts that must not change it.
    saved: PathBuf,
    /// The needed blocks, for the usual arguments and each of the others, if they were measured.
    pub(crate) needed: Vec<Option<Needed>>,
    /// Run time with everything in memory, in milliseconds.
    pub(crate) warm_ms: f64,
}

impl Prepared {
    pub(crate) fn name(&self) -> &'static str {
        self.task.name
    }

    /// Returns the arguments by number; number 0 is the usual ones.
    pub(crate) fn arguments(&self, number: usize) -> &[String] {
        number
            .checked_sub(1)
            .map_or(&self.task.arguments, |other| &self.task.varied[other])
    }
}

/// The whole test bed.
pub(crate) struct Bed<'a> {
    folder: &'a Path,
    line: Line,
    keel: Result<Keel, String>,
    sshd: Result<Sshd, String>,
    /// Compression levels, for the lower bound of a start.
    levels: &'static [i32],
    /// Trees on a disk in memory; declared last, so dropped after the disks of [`Card`].
    memory: Option<Mount>,
}

/// A start and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    pub(crate) outcome: Outcome,
    /// Traffic from before the mount until after the unmount.
    pub(crate) traffic: Traffic,
    /// The part of the traffic for mounting, if known.
    pub(crate) to_mount: Traffic,
    /// Counters of our system after the start.
    pub(crate) figures: Value,
    /// Readahead for this system as reported by the kernel, in KiB.
    pub(crate) readahead_kib: Option<u32>,
}

impl Started {
    /// Returns the bytes that the device received after the start of the program, without packet headers.
    pub(crate) fn sent_bytes(&self) -> u64 {
        let bytes = self.traffic.to_device_bytes - self.to_mount.to_device_bytes;
        let packets = self.traffic.to_device_packets - self.to_mount.to_device_packets;
        bytes.saturating_sub(packets * HEADER_BYTES)
    }

    /// Returns a counter of our system.
    pub(crate) fn counter(&self, name: &str) -> Option<f64> {
        counter(&self.figures, name)
    }
}

/// Returns a counter from a mount's figures, at any level of nesting.
pub(crate) fn counter(figures: &Value, name: &str) -> Option<f64> {
    match figures {
        Value::Object(object) => object
            .get(name)
            .and_then(Value::as_f64)
            .or_else(|| object.values().find_map(|inner| counter(inner, name))),
        _ => None,
    }
}

/// The configuration of our system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours {
    pub(crate) serving: Serving,
    pub(crate) mounting: Mounting,
    /// Whether it has learned the task; otherwise it has learned nothing.
    pub(crate) is_learned: bool,
}

impl Ours {
    pub(crate) fn learned() -> Self {
        Self {
            is_learned: true,
            ..Self::default()
        }
    }

    /// As learned, with a server that reads and compresses nothing before it is requested.
    pub(crate) fn unprepared() -> Self {
        Self {
            serving: Serving {
                prepares: false,
                provide: "none",
                ..Serving::default()
            },
            ..Self::learned()
        }
    }

    /// FUSE on demand with the kernel's readahead.
    pub(crate) fn readahead() -> Self {
        Self {
            serving: Serving {
                predict: "none",
                ..Serving::default()
            },
            mounting: Mounting {
                readahead_kib: READAHEAD_KIB,
                is_plain: true,
                ..Mounting::default()
            },
            is_learned: false,
        }
    }

    /// Fetches each block separately, when it is read.
    pub(crate) fn on_demand() -> Self {
        Self {
            mounting: Mounting {
                is_plain: true,
                ..Mounting::default()
            },
            ..Self::readahead()
        }
    }
}

/// A running server and mount of ours, and the path between them.
pub(crate) struct Running {
    pub(crate) mounted: Mounted,
    pub(crate) server: Server,
    _proxy: Option<Proxy>,
    pub(crate) at: PathBuf,
    before: Traffic,
    /// Traffic for mounting.
    to_mount: Traffic,
}

impl<'a> Bed<'a> {
    /// Creates the line and the servers. An unavailable peer is reported only when it is used.
    ///
    /// # Errors
    /// One line if the line cannot be created.
    pub(crate) fn create(folder: &'a Path, levels: &'static [i32]) -> Result<Self, String> {
        let line = Line::create()?;
        line.limit(Rate::SLOW)?;
        let memory = Mount::new("tmpfs", "mode=700", &folder.join("memory")).ok();
        Ok(Self {
            folder,
            keel: Keel::create(&folder.join("keel")),
            sshd: Sshd::start(&folder.join("sshd"), &line),
            line,
            levels,
            memory,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns our system, or the reason why it is missing.
    pub(crate) fn keel(&self) -> Result<&Keel, String> {
        self.keel.as_ref().map_err(Clone::clone)
    }

    /// Creates a program's trees, measures its output and needs, and lets our system learn it. `has_card`: also creates
    /// a disk as slow as a card.
    ///
    /// # Errors
    /// One line that names what is not installed, or what failed.
    pub(crate) fn prepare(
        &self,
        program: Program,
        has_card: bool,
        figures: &mut Figures,
    ) -> Result<Prepared, String> {
        let name = program.name();
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut task = program.build(&folder.join("tree"))?;
        let disk = Disk::create(&folder, "ext4", &task.tree)?;
        let card = match (&self.memory, has_card) {
            (Some(memory), true) => {
                Card::create(memory.folder(), &format!("card-{name}"), &task.tree)
                    .map_err(|error| figures.missing(format!("{CARD} of {name} ({error})")))
                    .ok()
            }
            _ => None,
        };
        let mut expected = Vec::new();
        let all = std::iter::once(&task.arguments).chain(&task.varied);
        let mut varied = Vec::new();
        for (number, arguments) in all.enumerate() {
            let start = Start {
                arguments,
                ..Start::usual(&task, disk.folder())
            };
            // The output from the tree itself is the expected output on all systems.
            match start.run(self.folder) {
                Ok(ran) => {
                    let random = task.says_random(arguments);
                    expected.push(random.unwrap_or(Expected::Bytes(ran.output)));
                    if number > 0 {
                        varied.push(arguments.clone());
                    }
                }
                Err(error) if number > 0 => {
                    figures.missing(format!("other arguments of {name} ({error})"));
                }
                Err(error) => return Err(error),
            }
        }
        task.varied = varied;
        let mut prepared = Prepared {
            needed: vec![None; task.varied.len() + 1],
            task,
            expected,
            disk,
            card,
            store: folder.join("store"),
            saved: folder.join("learned"),
            warm_ms: 0.0,
        };
        self.measure_warm(&mut prepared)?;
        if let Ok(keel) = &self.keel {
            keel.pack(&prepared.task.tree, &prepared.store)?;
            self.ask_needed(&mut prepared, 0)?;
            self.learn(&prepared)?;
        }
        Ok(prepared)
    }

    /// Measures the time of a start with everything in memory, on a local disk.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn measure_warm(&self, prepared: &mut Prepared) -> Result<(), String> {
        let root = prepared.disk.folder().to_owned();
        let mut times_ms = Vec::new();
        // The first start brings everything into memory.
        for count in 0..=WARM_STARTS {
            let wall_ms = self.start_at(prepared, 0, &root, &[])?.wall_ms();
            if count > 0 {
                times_ms.push(wall_ms);
            }
        }
        prepared.warm_ms = crate::report::median(&mut times_ms);
        Ok(())
    }

    /// Measures what a program needs: the blocks in the page cache after a start in which only requested blocks were
    /// fetched.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn ask_needed(&self, prepared: &mut Prepared, number: usize) -> Result<(), String> {
        if prepared.needed[number].is_some() {
            return Ok(());
        }
        let way = Way::new(Rate::FAST, 0);
        let running = self.run_ours(prepared, way, &Ours::on_demand())?;
        self.start_at(prepared, number, &running.at, &[])?;
        let blocks = resident(&running.at)?;
        prepared.needed[number] = Some(Needed::of(&prepared.task.tree, blocks, self.levels)?);
        running.end()
    }

    /// Lets our system learn a task, and saves what it has learned.
    fn learn(&self, prepared: &Prepared) -> Result<(), String> {
        forget_learned(&prepared.store)?;
        let way = Way::new(Rate::FAST, 0);
        let ours = Ours::default();
        for _ in 0..LEARNING_STARTS {
            let running = self.go(prepared, way, &ours)?;
            self.start_at(prepared, 0, &running.at, &[])?;
            running.end()?;
        }
        copy_learned(&prepared.store, &prepared.saved)
    }

    /// Copies the saved knowledge of a task back into its store. No server may use the store.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn take_learned(&self, prepared: &Prepared) -> Result<(), String> {
        copy_learned(&prepared.saved, &prepared.store)
    }

    /// Starts our server and mount. The store knows either what was saved, or nothing.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn run_ours(
        &self,
        prepared: &Prepared,
        way: Way,
        ours: &Ours,
    ) -> Result<Running, String> {
        if ours.is_learned {
            copy_learned(&prepared.saved, &prepared.store)?;
        } else {
            forget_learned(&prepared.store)?;
        }
        self.go(prepared, way, ours)
    }

    /// As [`run_ours`](Self::run_ours), with what the store knows at the moment.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn go(&self, prepared: &Prepared, way: Way, ours: &Ours) -> Result<Running, String> {
        let keel = self.keel()?;
        self.line.limit(way.rate)?;
        let mut server = keel.serve(&self.line, &prepared.store, &ours.serving)?;
        server.settle()?;
        let (proxy, port) = self.proxy(way, PORT)?;
        let at = self.folder.join("mounted");
        let before = self.line.traffic()?;
        let mounted = keel.mount(&self.line, port, &at, &ours.mounting)?;
        let wanted = ours.mounting.readahead_kib;
        if let Some(found) = readahead_kib(&at).filter(|found| *found != wanted) {
            return Err(format!(
                "the kernel reads {found} KiB ahead of the mount, not {wanted}"
            ));
        }
        forget_all()?;
        keep_programs(&[server.id(), mounted.id()]);
        let to_mount = self.line.traffic()?.since(before);
        Ok(Running {
            to_mount,
            mounted,
            server,
            _proxy: proxy,
            at,
            before,
        })
    }

    /// Starts a proxy in front of a port of the server, if the path has a delay. Also returns the port that leads to
    /// the server.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn proxy(&self, way: Way, port: u16) -> Result<(Option<Proxy>, u16), String> {
        if way.round_trip_ms == 0 {
            return Ok((None, port));
        }
        let network = self.line.server();
        let any = at_server(0);
        let proxy = Proxy::start(network, any, at_server(port), way.round_trip(), way.rate)?;
        let port = proxy.address().port();
        Ok((Some(proxy), port))
    }

    /// Runs the program with its root at `at`, and compares its output.
    ///
    /// # Errors
    /// One line if it failed, or if its output differs.
    pub(crate) fn start_at(
        &self,
        prepared: &Prepared,
        number: usize,
        root: &Path,
        join: &[PathBuf],
    ) -> Result<Outcome, String> {
        self.start_saying(prepared, number, root, join, self.folder)
    }

    /// As [`start_at`](Self::start_at), with its own folder for the output.
    ///
    /// # Errors
    /// As [`start_at`](Self::start_at).
    pub(crate) fn start_saying(
        &self,
        prepared: &Prepared,
        number: usize,
        root: &Path,
        join: &[PathBuf],
        folder: &Path,
    ) -> Result<Outcome, String> {
        let start = Start {
            arguments: prepared.arguments(number),
            join,
            ..Start::usual(&prepared.task, root)
        };
        let ran = start.run(folder)?;
        prepared.expected[number]
            .check(&ran.output)
            .map_err(|error| format!("{}: {error}", prepared.name()))?;
        Ok(ran.outcome)
    }

    /// A start of our system with cold caches.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_ours(
        &self,
        prepared: &Prepared,
        way: Way,
        ours: &Ours,
    ) -> Result<Started, String> {
        let running = self.run_ours(prepared, way, ours)?;
        let outcome = self.start_at(prepared, 0, &running.at, &[])?;
        self.started(running, outcome)
    }

    /// A start of our system after earlier starts from which it has learned with this configuration.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_learning(
        &self,
        prepared: &Prepared,
        way: Way,
        ours: &Ours,
    ) -> Result<Started, String> {
        self.learn_anew(prepared, ours)?;
        self.start_as_learned(prepared, way, ours)
    }

    /// Starts from which our system learns with this configuration, and with nothing else.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn learn_anew(&self, prepared: &Prepared, ours: &Ours) -> Result<(), String> {
        forget_learned(&prepared.store)?;
        for _ in 0..LEARNING_STARTS {
            let running = self.go(prepared, Way::new(Rate::FAST, 0), ours)?;
            self.start_at(prepared, 0, &running.at, &[])?;
            running.end()?;
        }
        Ok(())
    }

    /// A start of our system with anything that the store has learned.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_as_learned(
        &self,
        prepared: &Prepared,
        way: Way,
        ours: &Ours,
    ) -> Result<Started, String> {
        let running = self.go(prepared, way, ours)?;
        let outcome = self.start_at(prepared, 0, &running.at, &[])?;
        self.started(running, outcome)
    }

    fn started(&self, running: Running, outcome: Outcome) -> Result<Started, String> {
        let figures = running.mounted.figures()?;
        let readahead_kib = readahead_kib(&running.at);
        let to_mount = running.to_mount;
        let traffic = running.end_counted(&self.line)?;
        Ok(Started {
            to_mount,
            outcome,
            traffic,
            figures,
            readahead_kib,
        })
    }

    /// A start on sshfs with cold caches.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_sshfs(&self, prepared: &mut Prepared, way: Way) -> Result<Started, String> {
        self.line.limit(way.rate)?;
        let before = self.line.traffic()?;
        let (outcome, readahead_kib) = self.with_sshfs(prepared, way, |prepared, at| {
            Ok((self.start_at(prepared, 0, at, &[])?, readahead_kib(at)))
        })?;
        Ok(Started {
            outcome,
            traffic: self.line.traffic()?.since(before),
            to_mount: Traffic::default(),
            figures: Value::Null,
            readahead_kib,
        })
    }

    /// Runs a function on a tree that is mounted with sshfs, with cold caches.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn with_sshfs<T>(
        &self,
        prepared: &mut Prepared,
        way: Way,
        work: impl FnOnce(&Prepared, &Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let sshd = self.sshd.as_ref().map_err(Clone::clone)?;
        self.line.limit(way.rate)?;
        prepared.disk.remount()?;
        let (_proxy, port) = self.proxy(way, sshfs::PORT)?;
        let at = self.folder.join("mounted");
        let mounted = sshd.mount(&self.line, port, prepared.disk.folder(), &at)?;
        forget_all()?;
        keep_programs(&sshd.processes(&mounted));
        let done = work(prepared, &at);
        drop(mounted);
        done
    }

    /// A start on a local disk with cold caches.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_local(
        &self,
        prepared: &mut Prepared,
        system: &str,
    ) -> Result<Started, String> {
        let (disk, join) = if system == CARD {
            let card = prepared.card.as_mut().ok_or("it could not be made")?;
            (&mut card.disk, vec![card.group.members()])
        } else {
            (&mut prepared.disk, Vec::new())
        };
        disk.remount()?;
        forget_all()?;
        keep_programs(&[]);
        let root = disk.folder().to_owned();
        let outcome = self.start_at(prepared, 0, &root, &join)?;
        Ok(Started {
            outcome,
            traffic: Traffic::default(),
            to_mount: Traffic::default(),
            figures: Value::Null,
            readahead_kib: readahead_kib(&root),
        })
    }

    /// A start of our system without a server, from a cache on this device and with cold kernel caches. Returns its
    /// milliseconds.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_offline(
        &self,
        prepared: &Prepared,
        mounting: &Mounting,
    ) -> Result<f64, String> {
        let at = self.folder.join("mounted");
        let mounted = self.keel()?.mount(&self.line, PORT, &at, mounting)?;
        forget_all()?;
        keep_programs(&[mounted.id()]);
        let outcome = self.start_at(prepared, 0, &at, &[])?;
        mounted.end()?;
        Ok(outcome.wall_ms())
    }

    /// A start on any system, with cold caches.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start(
        &self,
        prepared: &mut Prepared,
        way: Way,
        system: &str,
    ) -> Result<Started, String> {
        match system {
            KEEL => self.start_ours(prepared, way, &Ours::learned()),
            UNPREPARED => self.start_ours(prepared, way, &Ours::unprepared()),
            READAHEAD => self.start_ours(prepared, way, &Ours::readahead()),
            SSHFS => self.start_sshfs(prepared, way),
            _ => self.start_local(prepared, system),
        }
    }
}

impl Running {
    /// Ends the mount and the server.
    ///
    /// # Errors
    /// One line if one of them does not end.
    pub(crate) fn end(self) -> Result<(), String> {
        self.mounted.end()?;
        self.server.end()
    }

    /// Ends the mount and the server. Returns the traffic on the line since before the tree was mounted.
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub(crate) fn end_counted(self, line: &Line) -> Result<Traffic, String> {
        let before = self.before;
        self.end()?;
        Ok(line.traffic()?.since(before))
    }
}

/// Returns the kernel's readahead for a file system, in KiB.
fn readahead_kib(root: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(root).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads the programs of these processes, and this one, into the page cache. A running server has its own program in
/// memory; only the served data must be cold.
fn keep_programs(processes: &[Option<u32>]) {
    let mut files = BTreeSet::new();
    for process in processes.iter().flatten().chain([&std::process::id()]) {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        files.extend(
            maps.lines()
                .filter_map(|line| line.find('/').map(|from| line[from..].to_owned())),
        );
    }
    for file in files {
        // A file that cannot be read stays cold.
        let _ = fs::File::open(&file)
            .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    }
}
