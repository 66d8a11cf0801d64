//! The bench of executable streaming: programs that start from the network, compared with the same programs on the
//! peers.
//!
//! **Invariants:** all systems start the same program from the same tree with the same arguments, and its output is
//! compared each time. Systems take turns, in a new random order for each round. Caches contain nothing of a tree
//! before a start, unless the case says so, while the programs of the systems themselves are in memory. Networks,
//! mounts, loop devices and groups of a run are either invisible to other processes or removed when the run ends or is
//! interrupted.
//!
//! **Files:** `tasks.rs` the programs, `tree.rs` their folders, `run.rs` one start, `needed.rs` what a start needs,
//! `net.rs` the line, `proxy.rs` its delay, `disks.rs` local disks, `groups.rs` limits on processes, `sshfs.rs` the
//! peer, `keel.rs` our system, `bed.rs` starts on all of them, `cases.rs` and `limits.rs` the cases, `clients.rs` many
//! devices, `goals.rs` the goals, `cold_server.rs` the same for a server with cold caches, `spread.rs` the effect of
//! chance, `paper.rs` and `table_1.rs` the figures of the paper it follows with `plots.rs` and `bars.rs` for their
//! drawings, `page.rs` and `promises.rs` the result page, `plain.rs` the peer on demand, `copies.rs` plain TCP,
//! `leftovers.rs` the remains of killed runs, `sys.rs` system calls.

mod bars;
mod bed;
mod cases;
pub(crate) mod clients;
mod cold_server;
mod copies;
mod disks;
mod goals;
mod groups;
mod keel;
mod leftovers;
mod limits;
mod needed;
mod net;
pub(crate) mod page;
mod paper;
pub(crate) mod plain;
mod plots;
mod promises;
mod proxy;
pub(crate) mod run;
mod spread;
mod sshfs;
mod sys;
mod table_1;
mod tasks;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use base::sim::Random;
use clap::{ValueEnum, value_parser};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::{Machine, load_1min, today};
use crate::progress::Progress;
use crate::report::Json;
use crate::scratch::{Scratch, absolute};
use bed::Bed;
use cases::Course;
pub(crate) use disks::{ReadsOptions, reads};
pub(crate) use paper::{PagesOptions, pages};
use tasks::Program;

/// Space for trees, stores, images and caches of all programs, in bytes.
const SCRATCH_BYTES: u64 = 3 << 30;

/// `keel-bench stream`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// One round of a few cases with one program: shows that everything works; no goal is judged.
    #[arg(long)]
    quick: bool,
    /// Folder for trees, stores and images of disks.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The figures of the paper instead of the table of goals, with tables and plots.
    #[arg(long)]
    paper: bool,
    /// Folder for the tables and plots of --paper.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "stream-paper",
        requires = "paper"
    )]
    out: PathBuf,
    /// Also write the value of each round as a table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// What is measured, for the report.
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
    /// Only these programs.
    #[arg(long, value_name = "TASK", value_delimiter = ',')]
    tasks: Vec<Program>,
    /// Only these parts.
    #[arg(
        long,
        value_name = "PART",
        value_delimiter = ',',
        conflicts_with = "paper"
    )]
    only: Vec<Part>,
    /// Rounds; each measures every case on every system once.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
}

impl Options {
    /// Returns the command that produces the same figures; the location of files does not matter.
    fn command(&self) -> String {
        let names = |name: &str, values: &[&dyn ValueName]| {
            let values: Vec<String> = values.iter().map(|value| value.value_name()).collect();
            match values.is_empty() {
                true => String::new(),
                false => format!(" --{name} {}", values.join(",")),
            }
        };
        let parts: Vec<&dyn ValueName> = self.only.iter().map(|part| part as _).collect();
        let tasks: Vec<&dyn ValueName> = self.tasks.iter().map(|task| task as _).collect();
        let words = [("quick", self.quick), ("paper", self.paper)];
        let words = words.map(|(name, is_said)| {
            if is_said {
                format!(" --{name}")
            } else {
                String::new()
            }
        });
        let rounds = (!self.quick).then(|| format!(" --rounds {}", self.rounds));
        format!(
            "keel bench stream{}{}{}{}",
            words.concat(),
            names("only", &parts),
            names("tasks", &tasks),
            rounds.unwrap_or_default()
        )
    }
}

/// The name of a value in texts.
trait ValueName {
    fn value_name(&self) -> String;
}

impl<T: ValueEnum> ValueName for T {
    fn value_name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Learned starts at 100 Mbit/s, 2 and 10 ms.
    Start,
    /// Learned starts at 1 Gbit/s, and a disk as slow as a card.
    Card,
    /// Learned starts on the other ways, of which nothing was promised.
    Others,
    /// The start after, and one without a network.
    Again,
    /// The first start of all.
    First,
    /// Prefetched blocks that the program does not read.
    Unread,
    /// Memory of the mount.
    Memory,
    /// Many devices at once.
    Clients,
    /// Packets that get lost.
    Loss,
    /// The server's readahead, cold: figure 7c of the paper.
    Arms,
}

/// Runs the bench. Returns the figures as JSON, and the table as text.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let load_1min = load_1min();
    let begun = Instant::now();
    // SAFETY: the call only returns the identity of the process.
    if unsafe { libc::geteuid() } != 0 {
        return Err("it takes root: networks, mounts and disks of its own".to_owned());
    }
    let lacking = net::lacking();
    if !lacking.is_empty() {
        return Err(format!(
            "{} is not installed: scripts/setup.sh --stream",
            lacking.join(", ")
        ));
    }
    let dir = absolute(&options.dir)?;
    for what in leftovers::sweep(&dir) {
        eprintln!("keel-bench: taken away, as the run that left it has ended: {what}");
    }
    let scratch = Scratch::create(&dir, SCRATCH_BYTES)?;
    leftovers::mark(scratch.path())?;
    sys::own_mounts().map_err(|error| format!("mounts of its own: {error}"))?;
    let progress = Progress::new();
    let show = |text: &str| progress.show(text);
    let has = |part| {
        let quick = [Part::Start, Part::Card, Part::First];
        match (options.only.is_empty(), options.quick) {
            (true, true) => quick.contains(&part),
            (true, false) => true,
            _ => options.only.contains(&part),
        }
    };
    // Only starts are compared with the bound of the better compression.
    let levels =
        usize::from(!options.paper && [Part::Start, Part::Card, Part::Others].into_iter().any(has));
    let bed = Bed::create(scratch.path(), &needed::LEVELS[..1 + levels])?;
    let mut figures = Figures::new(Vec::new());
    let programs: Vec<Program> = match (options.tasks.is_empty(), options.quick) {
        (true, true) => vec![Program::Perl],
        (true, false) => Program::ALL.to_vec(),
        _ => options.tasks.clone(),
    };
    let mut prepared = Vec::new();
    for program in programs {
        show(&format!("preparing {}", program.name()));
        match bed.prepare(program, options.paper || has(Part::Card), &mut figures) {
            Ok(one) => prepared.push(one),
            Err(reason) => {
                crate::scratch::check_interrupted()?;
                figures.missing(format!("{} ({reason})", program.name()));
            }
        }
    }
    let card = prepared.iter().find_map(|prepared| prepared.card.as_ref());
    let card = card.map(|card| card.check()).transpose()?;
    let mut course = Course {
        bed: &bed,
        prepared,
        random: Random::new(0x7374_7265_616d),
        failed: BTreeSet::new(),
        figures,
        readahead_kib: BTreeMap::new(),
        is_quick: options.quick,
    };
    course.record_needed();
    let rounds = if options.quick { 1 } else { options.rounds };
    for round in 0..rounds {
        let mut show = |text: &str| show(&format!("round {}: {text}", round + 1));
        if options.paper {
            course.paper(&mut show)?;
            continue;
        }
        for part in Part::value_variants()
            .iter()
            .copied()
            .filter(|part| has(*part))
        {
            match part {
                Part::Start => course.starts(&mut show)?,
                Part::Card => course.cards(&mut show)?,
                Part::Others => course.others(&mut show)?,
                Part::Again => course.again(&mut show)?,
                Part::First => course.first(&mut show)?,
                Part::Unread => course.unread(&mut show)?,
                Part::Memory => course.memory(&mut show)?,
                Part::Clients => course.clients(&mut show)?,
                Part::Loss => course.losses(&mut show)?,
                Part::Arms => course.arms(&mut show)?,
            }
        }
    }
    progress.clear();
    let mut figures = course.figures;
    if options.quick {
        figures.note("quick: everything works; no figure is judged".to_owned());
    } else if !options.paper {
        goals::state(&mut figures);
    }
    let machine = Machine::detect();
    if options.paper {
        figures.missing("figure 12: the power of this machine cannot be measured".to_owned());
        plots::write(&options.out, &figures, &machine)?;
    }
    let method = json!({
        "date": today(),
        "commit": options.commit,
        "command": options.command(),
        "minutes": begun.elapsed().as_secs_f64() / 60.0,
        "load_1min": load_1min,
        "quick": options.quick,
        "order": "drawn anew for each case and round",
        "paper": options.paper,
        "rounds": rounds,
        "rounds_of_each": rounds,
        "card_measured": card.map(|(reads_per_s, bytes_per_s)| json!({
            "reads_per_s": reads_per_s, "bytes_per_s": bytes_per_s,
        })),
        "readahead_kib": course.readahead_kib,
        "value": "median of the rounds",
        "ratio": "median over the rounds of ours divided by the peer's of the same round",
    });
    figures.write_csv(options.csv.as_deref())?;
    let title = format!("stream: programs that start from the network, {rounds} rounds");
    Ok(figures.report("stream", &title, &machine, method))
}
