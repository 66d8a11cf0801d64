//! What is measured on: the line, and for each program its tree on local disks and in a store. One start of a program
//! on one system, with nothing of it in any cache.

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

/// Ours, learned.
pub(crate) const KEEL: &str = "keel";
/// FUSE on demand with the kernel's readahead: the same mount and wire as ours, and nothing else.
pub(crate) const READAHEAD: &str = "readahead";
pub(crate) const SSHFS: &str = "sshfs";
/// ext4 on a disk of this machine.
pub(crate) const EXT4: &str = "ext4";
/// ext4 on a disk as slow as a card.
pub(crate) const CARD: &str = "ext4-card";

/// KiB that the kernel reads ahead at a peer.
pub(crate) const READAHEAD_KIB: u32 = 128;

/// Starts from which ours learns a task; the second one is one in which it looks at all reads.
const LEARNING_STARTS: u32 = 3;

/// Starts with everything in memory of which the median is taken.
const WARM_STARTS: u32 = 5;

/// The way between device and server.
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

    /// Its name in cases.
    pub(crate) fn name(self) -> String {
        format!("{}-mbit-{}-ms", self.rate.mbit, self.round_trip_ms)
    }

    pub(crate) fn round_trip(self) -> Duration {
        Duration::from_millis(self.round_trip_ms)
    }
}

/// A program with all that it is measured on.
pub(crate) struct Prepared {
    pub(crate) task: Task,
    /// What it says, for the usual arguments and each of the others.
    pub(crate) expected: Vec<Expected>,
    pub(crate) disk: Disk,
    pub(crate) card: Option<Card>,
    pub(crate) store: PathBuf,
    /// Holds what the store has learned, for starts that are not to change it.
    saved: PathBuf,
    /// What it needs, for the usual arguments and each of the others, as far as it was asked for.
    pub(crate) needed: Vec<Option<Needed>>,
    /// Its run time with everything in memory, in milliseconds.
    pub(crate) warm_ms: f64,
}

impl Prepared {
    pub(crate) fn name(&self) -> &'static str {
        self.task.name
    }

    /// The arguments by number: 0 the usual ones.
    pub(crate) fn arguments(&self, number: usize) -> &[String] {
        number
            .checked_sub(1)
            .map_or(&self.task.arguments, |other| &self.task.varied[other])
    }
}

/// Everything.
pub(crate) struct Bed<'a> {
    folder: &'a Path,
    line: Line,
    keel: Result<Keel, String>,
    sshd: Result<Sshd, String>,
    /// Of compression, for what a start takes at least.
    levels: &'static [i32],
    /// Trees on a disk in memory; behind the cards, so taken away after them.
    memory: Option<Mount>,
}

/// A start and what it has cost.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    pub(crate) outcome: Outcome,
    /// From before the tree was mounted until it was taken away.
    pub(crate) traffic: Traffic,
    /// Of these, what mounting has cost; where it is known.
    pub(crate) to_mount: Traffic,
    /// The counters of ours after the start.
    pub(crate) figures: Value,
    /// What the kernel read ahead of it, as it says itself.
    pub(crate) readahead_kib: Option<u32>,
}

impl Started {
    /// Bytes that came to the device from the program's start on, without the headers of packets.
    pub(crate) fn sent_bytes(&self) -> u64 {
        let bytes = self.traffic.to_device_bytes - self.to_mount.to_device_bytes;
        let packets = self.traffic.to_device_packets - self.to_mount.to_device_packets;
        bytes.saturating_sub(packets * HEADER_BYTES)
    }

    /// A counter of ours.
    pub(crate) fn counter(&self, name: &str) -> Option<f64> {
        counter(&self.figures, name)
    }
}

/// A counter in a mount's figures, wherever it stands there.
pub(crate) fn counter(figures: &Value, name: &str) -> Option<f64> {
    match figures {
        Value::Object(object) => object
            .get(name)
            .and_then(Value::as_f64)
            .or_else(|| object.values().find_map(|inner| counter(inner, name))),
        _ => None,
    }
}

/// How ours is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours {
    pub(crate) serving: Serving,
    pub(crate) mounting: Mounting,
    /// Whether it knows the task; otherwise it has learned nothing.
    pub(crate) is_learned: bool,
}

impl Ours {
    pub(crate) fn learned() -> Self {
        Self {
            is_learned: true,
            ..Self::default()
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

    /// Each block by itself, when it is read.
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

/// A server and a mount of ours, and the way between them.
pub(crate) struct Running {
    pub(crate) mounted: Mounted,
    pub(crate) server: Server,
    _proxy: Option<Proxy>,
    pub(crate) at: PathBuf,
    before: Traffic,
    /// What mounting has cost.
    to_mount: Traffic,
}

impl<'a> Bed<'a> {
    /// Makes the line and the servers. A peer that cannot be is named when it is asked for.
    ///
    /// # Errors
    /// One line: the line cannot be made.
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

    /// Ours, or why it is missing.
    pub(crate) fn keel(&self) -> Result<&Keel, String> {
        self.keel.as_ref().map_err(Clone::clone)
    }

    /// Makes a program's trees, asks what it says and needs, and lets ours learn it. `has_card`: also a disk as slow as
    /// a card.
    ///
    /// # Errors
    /// One line: what is not installed, or what failed.
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
            // What it says from the tree itself is what it must say from everywhere.
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

    /// Measures what a start takes with everything in memory, on a local disk.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn measure_warm(&self, prepared: &mut Prepared) -> Result<(), String> {
        let root = prepared.disk.folder().to_owned();
        let mut times_ms = Vec::new();
        // The first brings everything into memory.
        for count in 0..=WARM_STARTS {
            let wall_ms = self.start_at(prepared, 0, &root, &[])?.wall_ms();
            if count > 0 {
                times_ms.push(wall_ms);
            }
        }
        prepared.warm_ms = crate::report::median(&mut times_ms);
        Ok(())
    }

    /// Asks what a program needs: the blocks that the kernel holds after a start in which nothing came but what was
    /// asked for.
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

    /// Lets ours learn a task, and keeps what it has learned.
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

    /// Puts what was learned of a task back into its store, which nobody serves.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn take_learned(&self, prepared: &Prepared) -> Result<(), String> {
        copy_learned(&prepared.saved, &prepared.store)
    }

    /// Starts server and mount of ours. What it knows is what was kept, or nothing.
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

    /// The same with what the store knows by now.
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

    /// A proxy in front of a port of the server, if the way takes time, and the port that leads there.
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

    /// Runs the program with its root there, and compares what it says.
    ///
    /// # Errors
    /// One line: it failed, or said something else.
    pub(crate) fn start_at(
        &self,
        prepared: &Prepared,
        number: usize,
        root: &Path,
        join: &[PathBuf],
    ) -> Result<Outcome, String> {
        self.start_saying(prepared, number, root, join, self.folder)
    }

    /// The same; what it says is kept in a folder of its own meanwhile.
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

    /// A start of ours with nothing in any cache.
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

    /// A start of ours after others from which it has learned in its own way.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn start_learning(
        &self,
        prepared: &Prepared,
        way: Way,
        ours: &Ours,
    ) -> Result<Started, String> {
        forget_learned(&prepared.store)?;
        for _ in 0..LEARNING_STARTS {
            let running = self.go(prepared, Way::new(Rate::FAST, 0), ours)?;
            self.start_at(prepared, 0, &running.at, &[])?;
            running.end()?;
        }
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

    /// A start on sshfs with nothing in any cache.
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

    /// Does something with a tree that is mounted with sshfs, nothing of it being in any cache.
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

    /// A start on a local disk with nothing in any cache.
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

    /// A start of ours without a server, from a cache on this device, with nothing in the kernel's; its milliseconds.
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

    /// A start on any system, with nothing in any cache.
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
            READAHEAD => self.start_ours(prepared, way, &Ours::readahead()),
            SSHFS => self.start_sshfs(prepared, way),
            _ => self.start_local(prepared, system),
        }
    }
}

impl Running {
    /// Ends both.
    ///
    /// # Errors
    /// One line: one of them does not end.
    pub(crate) fn end(self) -> Result<(), String> {
        self.mounted.end()?;
        self.server.end()
    }

    /// Ends both; what has gone over the line since before the tree was mounted.
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub(crate) fn end_counted(self, line: &Line) -> Result<Traffic, String> {
        let before = self.before;
        self.end()?;
        Ok(line.traffic()?.since(before))
    }
}

/// What the kernel reads ahead of a file system's files.
fn readahead_kib(root: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(root).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads the programs of these processes, and this one, into the page cache: a server that runs has its own program in
/// memory; what it serves is what is cold.
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
        // What cannot be read stays cold.
        let _ = fs::File::open(&file)
            .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    }
}
