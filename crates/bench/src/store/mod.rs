//! The file store's bench. `timed.rs` has the cases that are timed beside the peers, `counted.rs` those in which the
//! device operations matter, `large.rs` those that need size. `page.rs` has the result page, and each system has its
//! own file.

mod counted;
mod counts;
mod floor;
mod keel;
mod kernel;
mod large;
mod loopback;
pub(crate) mod page;
mod sqlite;
mod timed;

pub(crate) use counted::many_name;
pub(crate) use counts::DeviceCounts;
pub(crate) use floor::{open_direct, write_through};
pub(crate) use keel::{describe, format_options};
pub(crate) use loopback::{Ext4Disk, LoopDevice, tool};
pub(crate) use timed::{OPERATION_BYTES, check_pattern, fill_pattern, timed};

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::value_parser;
use serde_json::json;

use crate::machine::{Disk, Machine, file_system_type, is_ext4_without_journal, load_1min, today};
use crate::progress::Progress;
use crate::report::{FLOOR, Figure, Goal, Report, Samples};
use crate::scratch::Scratch;
use timed::{Case, Place, System};

/// The case that compares our counts with the kernel's.
const COUNTS_AGREE: &str = "counts-agree-loop";

/// The peer of a database inside the store.
const SQLITE_ON_EXT4: &str = "sqlite-on-ext4";

/// The cases of databases inside the store.
const COMMITS: [Case; 2] = [Case::CommitWal, Case::CommitRollback];

/// Allowed range of `--repetitions`.
const REPETITIONS: RangeInclusive<i64> = 100..=1_000_000;

/// Allowed range of `--rounds`; the median of fewer than five means little.
const ROUNDS: RangeInclusive<i64> = 5..=100;

/// `keel-bench flash`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// Few repetitions, small files: shows that everything works; no latency is judged.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Instead, the two experiments of the paper that the store follows, with tables and plots; takes root.
    #[arg(long)]
    pub(crate) paper: bool,
    /// Only the appends: for many rounds, when their slowest calls are the question.
    #[arg(long, conflicts_with = "paper")]
    pub(crate) appends: bool,
    /// Folder for the tables and plots of --paper.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "flash-paper",
        requires = "paper"
    )]
    pub(crate) out: PathBuf,
    /// Folder to measure in; what matters is the device below it. As root also on loop devices over it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Operations of each case on each system; of appends and commits with a log, five times as many.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(REPETITIONS))]
    pub(crate) repetitions: u32,
    /// Rounds that the repetitions are spread over.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(ROUNDS))]
    rounds: u32,
}

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
struct Extent {
    cases: &'static [Case],
    repetitions: u32,
    rounds: u32,
    /// Number of calls of the counted varied run.
    varied_calls: u32,
    /// Number of files in the store with many names.
    files_many: u64,
    /// Number of calls of each kind in that store.
    calls_at_many: u64,
    large_file_bytes: u64,
    /// Number of power losses, each followed by an opening of the store.
    cuts: u32,
    /// Minimum device bytes of our store.
    store_bytes_min: u64,
    /// Device bytes of each file system on a loop device.
    ext4_bytes: u64,
}

impl Extent {
    fn of(options: &Options) -> Self {
        let cases: &[Case] = if options.appends {
            &Case::APPENDS
        } else {
            &Case::ALL
        };
        if options.quick {
            Self {
                cases,
                repetitions: 50,
                rounds: 5,
                varied_calls: 20_000,
                files_many: 20_000,
                calls_at_many: 2_000,
                large_file_bytes: 64 << 20,
                cuts: 3,
                store_bytes_min: 96 << 20,
                ext4_bytes: 128 << 20,
            }
        } else {
            Self {
                cases,
                repetitions: options.repetitions,
                rounds: options.rounds,
                varied_calls: 300_000,
                files_many: 1_000_000,
                calls_at_many: 20_000,
                large_file_bytes: 1 << 30,
                cuts: 20,
                // Each round deletes its files, so this suffices for any number of rounds.
                store_bytes_min: 256 << 20,
                ext4_bytes: 512 << 20,
            }
        }
    }

    fn round_steps(&self) -> u32 {
        self.repetitions.div_ceil(self.rounds)
    }

    /// Returns the device bytes of our store in the timed cases.
    fn store_bytes(&self) -> u64 {
        self.store_bytes_min
            .max(u64::from(self.round_steps()) * 96 * 1024)
    }
}

/// Returns the goals for figures that do not depend on the extent of the run.
fn goals() -> Vec<Goal> {
    let own = |case, metric, at_most| Goal {
        case,
        metric,
        peer: None,
        at_most,
    };
    let ratio = |case, metric, peer, at_most| Goal {
        case,
        metric,
        peer: Some(peer),
        at_most,
    };
    let (append, append_loop) = (
        Case::Append.name(Place::File),
        Case::Append.name(Place::Loop),
    );
    let mut goals = vec![
        own(append, "device_writes_per_op", 1.05),
        own(append, "device_flushes_per_op", 1.0),
        own(append, "device_written_per_op", 8.5),
        ratio(append, "latency_p50", FLOOR, 1.1),
        ratio(append, "latency_p999", FLOOR, 1.2),
        ratio(append_loop, "latency_p50", "ext4-sync", 0.55),
        ratio(append_loop, "latency_p999", "ext4-sync", 0.5),
        ratio(
            "open-by-name",
            "device_blocks_read_p99",
            counted::KEEL_FEW,
            1.1,
        ),
        own(COUNTS_AGREE, "difference", 0.0),
        own("mount-after-cut-16gib", "latency_max", 1e6),
        // Below 1 MiB.
        own("memory-16gib-32-open", "memory", (1 << 20) as f64 - 1.0),
        own("read-4096-large-file-index", "device_reads_p50", 1.0),
    ];
    let record = Case::Record.name(Place::Loop);
    goals.extend([
        ratio(record, "latency_p50", "sqlite-wal-full", 1.0),
        ratio(record, "latency_p999", "sqlite-wal-full", 0.5),
        ratio(record, "device_written_per_op", "sqlite-wal-full", 0.45),
    ]);
    for (cases, writes_max) in [
        (["append-4096-varied", "append-4096-many-files"], 3.0),
        (["create-varied", "create-many-files"], 2.0),
        (["delete-varied", "delete-many-files"], 2.0),
    ] {
        for case in cases {
            goals.push(own(case, "device_writes_max", writes_max));
            goals.push(own(case, "device_flushes_max", 2.0));
            goals.push(own(case, "device_reads_max", 4.0));
        }
    }
    goals
}

/// The results of a run so far.
#[derive(Default)]
struct Found {
    samples: Vec<Samples>,
    figures: Vec<Figure>,
    missing: Vec<String>,
    notes: Vec<String>,
}

/// Runs the whole bench.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<Report, String> {
    let extent = Extent::of(options);
    let load_1min = load_1min();
    let (rounds, round_steps) = (extent.rounds, extent.round_steps());
    // The larger one of the two parts that need space; they run one after the other.
    let loops_bytes = extent.store_bytes()
        + extent.store_bytes_min
        + 2 * extent.ext4_bytes
        + 2 * floor::FLOOR_BYTES;
    let large_bytes = 2 * extent.large_file_bytes + extent.files_many * 4096;
    let scratch = Scratch::create(&options.dir, loops_bytes.max(large_bytes) + (256 << 20))?;
    let file_system = file_system_type(scratch.path())?;
    let progress = Progress::new();
    let mut show = |text: &str| progress.show(text);
    let mut found = Found::default();
    let mut goals = goals();

    on_files(&mut found, scratch.path(), &file_system, &extent, &mut show)?;
    match LoopDevice::probe(scratch.path()) {
        Ok(()) => on_loops(&mut found, scratch.path(), &extent, &mut show)?,
        Err(reason) => found.missing.push(format!(
            "ext4-sync, sqlite-wal-full and every case on a loop device ({reason}; that takes root)"
        )),
    }
    if !options.appends {
        beyond_timed(&mut found, &mut goals, scratch.path(), &extent, &mut show)?;
    }
    progress.clear();
    if options.quick {
        goals.retain(|goal| {
            !goal.metric.starts_with("latency") && !goal.metric.ends_with("_per_op")
        });
        let note = "quick: too few calls to judge latencies and averages; the maximum of any call is judged";
        found.notes.push(note.to_owned());
    }
    Ok(Report {
        bench: "flash",
        title: format!(
            "flash: {} operations of each case on each system, appends and commits with a log {}, in {rounds} rounds, \
             on {file_system}; times in us",
            round_steps * rounds,
            round_steps * rounds * 5,
        ),
        machine: Machine::detect(),
        ours: "keel",
        samples: found.samples,
        figures: found.figures,
        goals,
        missing: found.missing,
        notes: found.notes,
        method: json!({
            "date": today(),
            "load_1min": load_1min,
            "quick": options.quick,
            "appends_only": options.appends,
            "order": "drawn anew for each operation",
            "file_system": file_system,
            "rounds": rounds,
            "operations_in_round": round_steps,
            "appends_in_round": round_steps * 5,
            "varied_calls": extent.varied_calls,
            "files_many": extent.files_many,
            "large_file_bytes": extent.large_file_bytes,
            "cuts": extent.cuts,
            "latency": "median of the rounds' percentiles; maximum of all rounds",
            "ratio": "ours divided by the peer's, of these",
        }),
    })
}

/// Measures the cases counted on a device in memory, and those that need size.
fn beyond_timed(
    found: &mut Found,
    goals: &mut Vec<Goal>,
    folder: &Path,
    extent: &Extent,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    found
        .figures
        .extend(counted::varied(extent.varied_calls, show)?);
    let (figures, many, few) = counted::many_names(extent.files_many, extent.calls_at_many, show)?;
    found.figures.extend(figures);
    found.samples.extend(large::names_on_disk(
        folder,
        [many, few],
        extent.files_many,
        extent.rounds,
        extent.round_steps(),
        show,
    )?);
    let (samples, figures, blocks) = large::random_reads(
        folder,
        extent.large_file_bytes,
        extent.rounds,
        extent.round_steps(),
        show,
    )?;
    found.samples.extend(samples);
    found.figures.extend(figures);
    goals.push(Goal {
        case: "read-4096-large-file",
        metric: "device_reads_max",
        peer: None,
        at_most: 1.0 + (blocks as f64).log2().ceil(),
    });
    let (figures, bound) = large::mounts(folder, extent.cuts, show)?;
    found.figures.extend(figures);
    for (metric, at_most) in [
        ("device_reads_max", bound.reads),
        ("device_blocks_read_max", bound.blocks_read),
    ] {
        goals.push(Goal {
            case: "mount-after-cut-16gib",
            metric,
            peer: None,
            at_most: at_most as f64,
        });
    }
    Ok(())
}

/// Measures on image files that bypass the page cache, beside the file system that holds them.
fn on_files(
    found: &mut Found,
    folder: &Path,
    file_system: &str,
    extent: &Extent,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    show("preparing files");
    let round_steps = extent.round_steps();
    let ours = keel::Keel::create(&folder.join("store.img"), extent.store_bytes(), round_steps)?;
    let floor = floor::Floor::create(&folder.join("floor.img"))?;
    let wide = floor::Floor::create_wide(&folder.join("wide.img"))?;
    if !ours.is_direct() || !floor.is_direct() {
        found.notes.push(format!(
            "{file_system} refuses O_DIRECT: keel and floor went through the page cache"
        ));
    }
    let mut name = format!("{file_system}-sync");
    let mut database = "sqlite-wal-full";
    if is_ext4_without_journal(folder) {
        name = "ext4-no-journal-sync".to_owned();
        database = "sqlite-no-journal";
        found.notes.push(
            "the ext4 of this folder has no journal: cheaper than an ordinary one, not safe against a power cut; \
             ordinary ones are on the loop devices"
                .to_owned(),
        );
    }
    let kernel = kernel::Kernel::create(folder, &name, "whole disk")?;
    let sqlite = sqlite::Sqlite::in_folder(folder, database, &[Case::Record], "whole disk")?;
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(ours),
        Box::new(floor),
        Box::new(wide),
        Box::new(kernel),
        Box::new(sqlite),
    ];
    let rounds = extent.rounds;
    let samples = timed::measure(
        &mut systems,
        extent.cases,
        Place::File,
        rounds,
        round_steps,
        show,
    )?;
    drop(systems);
    let case = Case::Append.name(Place::File);
    let p50 = |system| {
        let of = samples.iter().find(|samples| samples.is_of(case, system));
        of.map_or(f64::NAN, |samples| samples.percentile_ns(500))
    };
    found.figures.push(Figure {
        case,
        system: floor::WIDE.to_owned(),
        metric: "latency_p50_of_floor",
        unit: "1",
        value: p50(floor::WIDE) / p50(FLOOR),
    });
    found.samples.extend(samples);
    for name in ["store.img", "floor.img", "wide.img"] {
        std::fs::remove_file(folder.join(name)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Measures on loop devices of one kind, one for each system; our store and the floor use theirs raw, ext4 has its
/// journal.
fn on_loops(
    found: &mut Found,
    folder: &Path,
    extent: &Extent,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    show("preparing loop devices");
    let (rounds, round_steps) = (extent.rounds, extent.round_steps());
    let store_bytes = extent.store_bytes();
    // Declared before the systems, so that the loop devices outlive them.
    let store_loop = LoopDevice::create(folder, "store", store_bytes)?;
    let floor_loop = LoopDevice::create(folder, "floor", floor::FLOOR_BYTES)?;
    let ext4 = Ext4Disk::create(folder, "ext4", extent.ext4_bytes)?;
    let database = Ext4Disk::create(folder, "database", extent.ext4_bytes)?;
    let inside_loop = LoopDevice::create(folder, "inside", extent.store_bytes_min)?;

    let kernel_counts = Disk::at(store_loop.path());
    let kernel_before = kernel_counts.as_ref().and_then(Disk::counts);
    let ours = keel::Keel::create(store_loop.path(), store_bytes, round_steps)?;
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(ours),
        Box::new(floor::Floor::create(floor_loop.path())?),
        Box::new(kernel::Kernel::create(
            ext4.folder(),
            "ext4-sync",
            "own disk",
        )?),
        Box::new(sqlite::Sqlite::in_folder(
            database.folder(),
            "sqlite-wal-full",
            &[Case::Record],
            "own disk",
        )?),
        Box::new(sqlite::Sqlite::in_folder(
            database.folder(),
            SQLITE_ON_EXT4,
            &COMMITS,
            "own disk",
        )?),
        Box::new(sqlite::Sqlite::in_store(inside_loop.path(), &COMMITS)?),
    ];
    let samples = timed::measure(
        &mut systems,
        extent.cases,
        Place::Loop,
        rounds,
        round_steps,
        show,
    )?;
    for case in COMMITS.map(|case| case.name(Place::Loop)) {
        for system in ["keel", SQLITE_ON_EXT4] {
            let of = samples.iter().find(|samples| samples.is_of(case, system));
            found.figures.extend(of.map(|samples| Figure {
                case,
                system: system.to_owned(),
                metric: "commits_per_s",
                unit: "1/s",
                value: samples.per_second(),
            }));
        }
    }
    found.samples.extend(samples);
    let own = systems[0].counts();
    let kernel_after = kernel_counts.as_ref().and_then(Disk::counts);
    if let (Some(own), Some(before), Some(after)) = (own, kernel_before, kernel_after) {
        found.figures.extend(agreement(own, after.since(before)));
    }
    Ok(())
}

/// Returns our counts and the kernel's counts at the block layer of our loop device, over the whole section. The kernel
/// counts an empty flush as a write too.
fn agreement(own: DeviceCounts, kernel: DeviceCounts) -> Vec<Figure> {
    let flushes = |counts: DeviceCounts| counts.flushes.unwrap_or(0);
    let pairs = [
        ("writes", own.writes, kernel.writes - flushes(kernel)),
        ("flushes", flushes(own), flushes(kernel)),
        ("bytes_written", own.bytes_written, kernel.bytes_written),
    ];
    let difference: u64 = pairs
        .iter()
        .map(|(_, ours, kernels)| ours.abs_diff(*kernels))
        .sum();
    let mut figures = Vec::new();
    let mut push = |system: &str, metric, value: u64| {
        figures.push(Figure {
            case: COUNTS_AGREE,
            system: system.to_owned(),
            metric,
            unit: if metric == "bytes_written" { "B" } else { "1" },
            value: value as f64,
        });
    };
    for (metric, ours, kernels) in pairs {
        push("keel", metric, ours);
        push("block-layer", metric, kernels);
    }
    push("keel", "difference", difference);
    figures
}
