//! The experiments of the paper that executable streaming follows (Lu et al., "SYSFLOW: Efficient Execution Platform
//! for IoT Devices", section V), as far as they are possible here. Figure 12, power, is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::bed::{Bed, CARD, EXT4, KEEL, Ours, Prepared, READAHEAD, SSHFS, Way};
use super::cases::{Course, PAGE_TIME, READS, named};
use super::clients::{Clients, Place, plan};
use super::disks::forget_all;
use super::keel::{PORT, Serving};
use super::needed::{count, resident};
use super::net::Rate;
use super::sys;
use super::tasks::Program;
use crate::figures::Metric;
use crate::mem::child::{Limits, output};

/// The wired network of the paper.
pub(crate) const WIRED: Way = Way::new(Rate::FAST, 0);
/// Replacement for its wireless network: slower, longer delay, and packet loss.
pub(crate) const WIRELESS: Way = Way::new(Rate::SLOW, 10);
pub(crate) const WIRELESS_LOSS_PERCENT: f64 = 0.1;
/// Starts of each system in a wireless round: a distribution needs many.
const WIRELESS_STARTS: usize = 2;
/// Packet loss of figure 11, in percent.
pub(crate) const LOSSES_PERCENT: [f64; 5] = [0.001, 0.01, 0.1, 1.0, 5.0];

/// The network path of figure 11.
pub(crate) const FIGURE_11_WAY: Way = Way::new(Rate::SLOW, 2);

/// Names of the parts in cases.
pub(crate) const TABLE_1: &str = "table-1";
pub(crate) const TABLE_2: &str = "table-2";
pub(crate) const FIGURE_1: &str = "figure-1";
pub(crate) const FIGURE_7A: &str = "figure-7a";
pub(crate) const FIGURE_7C: &str = "figure-7c";
pub(crate) const FIGURE_8: &str = "figure-8";
pub(crate) const FIGURE_10: &str = "figure-10";
pub(crate) const FIGURE_11: &str = "figure-11";
pub(crate) const MODES: &str = "modes";

/// Orders of reading the needed blocks, in figure 1.
pub(crate) const ORDERS: [&str; 2] = ["sequential", "execution"];

/// Kinds of connections and pages, in figure 7a.
pub(crate) const PATHS: [(&str, &[&str]); 5] = [
    ("keel-short-allocated", &["--short", "--pool-pages", "0"]),
    ("keel-short-pool", &["--short", "--pool-pages", "256"]),
    ("keel-long-allocated", &["--pool-pages", "0"]),
    ("keel-long-pool", &["--pool-pages", "256"]),
    (
        "keel-long-filled",
        &["--pool-pages", "256", "--pool-filled"],
    ),
];

/// Maximum number of blocks read in each of these ways: one connection per block is slow.
const PATH_BLOCKS_MAX: usize = 400;

/// Strategies of the server's memory, in figure 7c.
pub(crate) const ARMS: [(&str, &str); 4] = [
    ("keel-none", "none"),
    ("keel-madvise", "madvise"),
    ("keel-variance", "variance"),
    ("keel-async", "async"),
];

/// Memory of a server for content in figure 7c, in MiB: less than a program needs.
const ARM_MEBIBYTES: u32 = 4;

/// Our prediction mode, number of connections, and pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) system: &'static str,
    predict: &'static str,
    seg_max: Option<u32>,
    connections: Option<&'static str>,
    pool_pages: Option<u32>,
    pool_is_filled: bool,
}

const fn variant(system: &'static str, predict: &'static str) -> Variant {
    Variant {
        system,
        predict,
        seg_max: None,
        connections: None,
        pool_pages: None,
        pool_is_filled: false,
    }
}

/// Our default, and variants with one difference each. A segment of 64 blocks is the smallest power of two with three
/// matches. The filled pool, the paper's Allocator, differs from the pool of the same size.
pub(crate) const WAYS_OF_OURS: [Variant; 7] = [
    variant(KEEL, "task"),
    variant("keel-paper", "paper"),
    Variant {
        seg_max: Some(64),
        ..variant("keel-paper-64", "paper")
    },
    variant("keel-none", "none"),
    Variant {
        connections: Some("each"),
        ..variant("keel-connections-each", "task")
    },
    Variant {
        pool_pages: Some(256),
        ..variant("keel-pool-256", "task")
    },
    Variant {
        pool_pages: Some(256),
        pool_is_filled: true,
        ..variant("keel-pool-filled", "task")
    },
];

/// Counts of table II.
pub(crate) const TOTAL_BLOCKS: Metric = Metric::shown("total_blocks", "1");
pub(crate) const PRE_READ_BLOCKS: Metric = Metric::shown("pre_read_blocks", "1");

/// Timeout of reading them.
const PAGES_MAX: Duration = Duration::from_secs(600);

/// `keel-bench stream-pages`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PagesOptions {
    /// Folder with the files.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// File with what to read, as JSON: paths from there with the index of a block.
    #[arg(long, value_name = "FILE")]
    blocks: PathBuf,
    /// Each block by itself: the kernel is not to read ahead.
    #[arg(long)]
    single: bool,
    /// File in which the number of this process is written first.
    #[arg(long, value_name = "FILE")]
    join: Vec<PathBuf>,
}

/// Reads blocks one after the other. Prints the mean time of one, in microseconds.
///
/// # Errors
/// One line with the path.
pub(crate) fn pages(options: &PagesOptions) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    for file in &options.join {
        fs::write(file, std::process::id().to_string()).map_err(|error| failed(file, error))?;
    }
    let text = fs::read(&options.blocks).map_err(|error| failed(&options.blocks, error))?;
    let blocks: Vec<(PathBuf, u32)> = serde_json::from_slice(&text)
        .map_err(|error| format!("{}: {error}", options.blocks.display()))?;
    let mut files = std::collections::BTreeMap::new();
    for (path, _) in &blocks {
        if !files.contains_key(path) {
            let place = options.root.join(path);
            let file = fs::File::open(&place).map_err(|error| failed(&place, error))?;
            if options.single {
                advise_single(&file).map_err(|error| failed(&place, error))?;
            }
            files.insert(path.clone(), file);
        }
    }
    let mut page = [0; stream::BLOCK_BYTES];
    let begun = Instant::now();
    for (path, index) in &blocks {
        let from = u64::from(*index) * page.len() as u64;
        files[path]
            .read_at(&mut page, from)
            .map_err(|error| failed(path, error))?;
    }
    println!(
        "{}",
        begun.elapsed().as_secs_f64() * 1e6 / blocks.len().max(1) as f64
    );
    Ok(())
}

fn advise_single(file: &fs::File) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: an open descriptor; no memory is passed.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

impl Course<'_> {
    /// Runs all experiments for one round.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn paper(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            let name = self.prepared[place].name();
            for (part, measure) in [
                (
                    TABLE_2,
                    Self::table_2 as fn(&mut Self, usize, &'static str) -> Result<(), String>,
                ),
                (TABLE_1, Self::table_1),
                (FIGURE_1, Self::figure_1),
                (FIGURE_7A, Self::figure_7a),
                (FIGURE_7C, Self::figure_7c),
                (MODES, Self::modes),
            ] {
                let case = named(format!("{part}-{name}"));
                show(case);
                self.unless_failed(case, KEEL, |course| measure(course, place, case))?;
            }
        }
        self.cold(FIGURE_8, WIRED, &[KEEL, READAHEAD, SSHFS, CARD, EXT4], show)?;
        self.bed.line().lose(WIRELESS_LOSS_PERCENT)?;
        for _ in 0..WIRELESS_STARTS {
            self.cold(FIGURE_10, WIRELESS, &[KEEL, READAHEAD, SSHFS], show)?;
        }
        // The paper starts Python; without it, another program is used.
        let all = self.prepared.iter();
        let python = all
            .map(|prepared| prepared.task.program)
            .position(|program| program == Program::Python);
        let shown: Vec<usize> = (0..self.prepared.len())
            .filter(|place| *place == python.unwrap_or(0))
            .collect();
        for percent in LOSSES_PERCENT {
            self.bed.line().lose(percent)?;
            let part = named(format!("{FIGURE_11}-{percent}"));
            self.cold_of(&shown, part, FIGURE_11_WAY, &[KEEL, SSHFS], show)?;
        }
        self.bed.line().lose(0.0)
    }

    /// Table II: blocks of the files, needed, and read ahead; requests.
    fn table_2(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let prepared = &self.prepared[place];
        let needed = prepared.needed[0]
            .as_ref()
            .ok_or("it is not known what it needs")?;
        let total = needed.blocks_of_files as f64;
        let running = bed.run_ours(prepared, WIRED, &Ours::readahead())?;
        bed.start_at(prepared, 0, &running.at, &[])?;
        let read_ahead = count(&resident(&running.at)?) as f64;
        let figures = running.mounted.figures()?;
        let requests =
            super::bed::counter(&figures, "fuse_reads").ok_or("the mount counts no fuse_reads")?;
        running.end()?;
        let needed = needed.count as f64;
        self.figures.record(case, READAHEAD, TOTAL_BLOCKS, total);
        self.figures
            .record(case, READAHEAD, super::cases::NEEDED_BLOCKS, needed);
        self.figures
            .record(case, READAHEAD, PRE_READ_BLOCKS, read_ahead);
        self.figures.record(case, READAHEAD, READS, requests);
        Ok(())
    }

    /// Figure 1: the needed blocks, read in the order of the files and in that of the program.
    fn figure_1(&mut self, place: usize, _: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let execution = execution_order(bed, &self.prepared[place])?;
        let mut sequential = execution.clone();
        sequential.sort();
        for (order, blocks) in ORDERS.into_iter().zip([sequential, execution]) {
            let case = named(format!(
                "{FIGURE_1}-{order}-{}",
                self.prepared[place].name()
            ));
            let prepared = &mut self.prepared[place];
            prepared.disk.remount()?;
            forget_all()?;
            let us = read_pages(bed, &blocks, prepared.disk.folder(), &[])?;
            self.figures.record(case, EXT4, PAGE_TIME, us);
            if let Some(card) = &mut self.prepared[place].card {
                card.disk.remount()?;
                forget_all()?;
                let us = read_pages(bed, &blocks, card.disk.folder(), &[card.group.members()])?;
                self.figures.record(case, CARD, PAGE_TIME, us);
            }
            for (system, ours) in [
                (READAHEAD, Ours::readahead()),
                ("keel-on-demand", Ours::on_demand()),
            ] {
                let running = bed.run_ours(&self.prepared[place], WIRED, &ours)?;
                let us = read_pages(bed, &blocks, &running.at, &[])?;
                running.end()?;
                self.figures.record(case, system, PAGE_TIME, us);
            }
        }
        Ok(())
    }

    /// Figure 7a: a connection for each request or a permanent one. Pages are allocated for each block, taken from a
    /// pool of used ones, or allocated ahead by a thread. All blocks are in the server's memory, and nothing is
    /// prefetched.
    fn figure_7a(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let prepared = &self.prepared[place];
        let mut blocks = plan(bed, prepared)?;
        blocks.truncate(PATH_BLOCKS_MAX);
        let file = bed.folder().join("places.json");
        write_json(&file, &blocks)?;
        let serving = Serving {
            predict: "none",
            ..Serving::default()
        };
        let server = bed.keel()?.serve(bed.line(), &prepared.store, &serving)?;
        bed.line().limit(WIRED.rate)?;
        let mut order: Vec<_> = std::iter::once(("", PATHS[3].1)).chain(PATHS).collect();
        // The first pass brings all blocks into the server's memory.
        self.random.shuffle(&mut order[1..]);
        for (system, words) in order {
            let path = file.display().to_string();
            let words = [words, &["--blocks", &path]].concat();
            let mut clients = Clients::start(bed, prepared, PORT, &words)?;
            clients.line()?;
            clients.go()?;
            let blocks_ns = clients.measured()?.blocks_ns;
            if !system.is_empty() {
                let us = blocks_ns.iter().sum::<u64>() as f64 / 1e3 / blocks_ns.len().max(1) as f64;
                self.figures.record(case, system, PAGE_TIME, us);
            }
        }
        server.end()
    }

    /// Measures figure 7c by itself.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn arms(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            let case = named(format!("{FIGURE_7C}-{}", self.prepared[place].name()));
            show(case);
            self.unless_failed(case, KEEL, |course| course.figure_7c(place, case))?;
        }
        Ok(())
    }

    /// Figure 7c: readahead of a server with little memory. It begins with none of the content in it, except for what
    /// the arm itself reads at the start. Actions are sent in segments, as in the paper. The asynchronous arm reads the
    /// next three segments of the action behind the one that is being sent. `madvise` asks the kernel for all files
    /// with actions when the program begins.
    fn figure_7c(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let mut ours = Ours::learned();
        ours.serving.predict = "paper";
        ours.serving.memory_mebibytes = ARM_MEBIBYTES;
        ours.serving.prepares = false;
        bed.learn_anew(&self.prepared[place], &ours)?;
        let mut order = ARMS;
        self.random.shuffle(&mut order);
        for (system, provide) in order {
            ours.serving.provide = provide;
            let started = bed.start_as_learned(&self.prepared[place], WIRED, &ours)?;
            self.record_start(case, system, place, &started);
        }
        Ok(())
    }

    /// Measures the variants of our system.
    fn modes(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let mut order = WAYS_OF_OURS;
        self.random.shuffle(&mut order);
        for way in order {
            let mut ours = Ours::learned();
            ours.serving.predict = way.predict;
            ours.serving.seg_max = way.seg_max;
            ours.mounting.connections = way.connections;
            ours.mounting.pool_pages = way.pool_pages;
            ours.mounting.pool_is_filled = way.pool_is_filled;
            let started = if way.predict == "paper" {
                bed.start_learning(&self.prepared[place], WIRELESS, &ours)?
            } else {
                bed.start_ours(&self.prepared[place], WIRELESS, &ours)?
            };
            self.record_start(case, way.system, place, &started);
        }
        Ok(())
    }
}

/// A block as path and index.
pub(crate) type Named = (PathBuf, u32);

/// Returns the needed blocks as paths and indexes, in the order of the program.
fn execution_order(bed: &Bed<'_>, prepared: &Prepared) -> Result<Vec<Named>, String> {
    let both = execution_order_of_both(bed, prepared)?;
    Ok(both.into_iter().map(|(_, named)| named).collect())
}

/// As [`execution_order`], also with the numbers that the store uses for the blocks.
pub(crate) fn execution_order_of_both(
    bed: &Bed<'_>,
    prepared: &Prepared,
) -> Result<Vec<(Place, Named)>, String> {
    let store = stream::store::Store::open(&prepared.store).map_err(|error| error.to_string())?;
    let newest = store.newest().map_err(|error| error.to_string())?;
    let published = store.published(newest).map_err(|error| error.to_string())?;
    let paths = paths(&published.manifest);
    let named = |place: Place| Some((place, (paths.get(place.0 as usize)?.clone(), place.1)));
    Ok(plan(bed, prepared)?.into_iter().filter_map(named).collect())
}

/// Returns a path of each node of a version.
fn paths(manifest: &stream::manifest::Manifest) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut paths = vec![PathBuf::new(); manifest.nodes.len()];
    let mut todo = vec![stream::manifest::ROOT];
    while let Some(directory) = todo.pop() {
        for name in manifest.entries(directory) {
            let part = std::ffi::OsStr::from_bytes(&name.name);
            paths[name.node.0 as usize] = paths[directory.0 as usize].join(part);
            if matches!(
                manifest.nodes[name.node.0 as usize].kind,
                stream::manifest::Kind::Directory
            ) {
                todo.push(name.node);
            }
        }
    }
    paths
}

/// Returns the mean microseconds of reading one of these blocks from a folder.
fn read_pages(
    bed: &Bed<'_>,
    blocks: &[Named],
    root: &Path,
    join: &[PathBuf],
) -> Result<f64, String> {
    read_pages_with(bed, blocks, root, join, &[])
}

/// As [`read_pages`], with further arguments.
pub(crate) fn read_pages_with(
    bed: &Bed<'_>,
    blocks: &[Named],
    root: &Path,
    join: &[PathBuf],
    words: &[&str],
) -> Result<f64, String> {
    let file = bed.folder().join("blocks.json");
    write_json(&file, &blocks)?;
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new(program);
    sys::in_network(&mut command, None);
    command
        .arg("stream-pages")
        .args(words)
        .arg("--root")
        .arg(root)
        .arg("--blocks")
        .arg(&file);
    for file in join {
        command.arg("--join").arg(file);
    }
    let limits = Limits {
        folder: bed.folder(),
        time: PAGES_MAX,
    };
    let text = output("stream-pages", &mut command, &limits)?;
    text.trim()
        .parse()
        .map_err(|error| format!("stream-pages: {error}"))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
