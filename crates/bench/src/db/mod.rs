//! The data path's bench: latest values in our database beside embedded stores and a hash map in memory.
//!
//! **Invariants:** all systems of a case are open at once and take turns, in a new random order for each round. Each
//! operation is timed alone; its key and value are made before. The memory hog runs in all measurements of a case or in
//! none. A system that is not installed, or a case that does not fit into the machine's memory, is listed as missing.
//!
//! **Files:** `extent.rs` how much a run measures, `cases.rs` the cases, `copy.rs` the floor of a get, `hog.rs` the
//! memory hog, `goals.rs` the goals, `page.rs` the result page.

mod cases;
mod copy;
mod extent;
mod goals;
mod hog;
pub(crate) mod page;

use std::path::PathBuf;

use clap::{ValueEnum, value_parser};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::{Machine, file_system_type, load_1min, today};
use crate::progress::Progress;
use crate::report::Json;
use crate::scratch::Scratch;
use cases::{Course, SIZES};
use extent::Extent;

/// `keel-bench db`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// Few objects and operations, one round: shows that everything works; no goal is judged.
    #[arg(long)]
    quick: bool,
    /// Folder to measure in; what matters is the device below it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Folder for drawings of the distributions; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Rounds; each measures every case on every system once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Reading latest values.
    Get,
    /// Storing without waiting for the disk, beside a memory hog.
    Put,
    /// Storing and waiting for the disk, alone.
    Durable,
    /// The same from 64 threads.
    Writers,
    /// A periodic task, alone and beside another processor that works on the same store.
    Data,
}

/// Free bytes of the folder that a whole run needs.
const SPACE_BYTES: u64 = 20 << 30;

/// Runs the bench. Returns the figures as JSON, and the table as text.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let extent = Extent::of(options.quick, options.rounds);
    let load_1min = load_1min();
    let space = if options.quick { 2 << 30 } else { SPACE_BYTES };
    let scratch = Scratch::create(&options.dir, space)?;
    let file_system = file_system_type(scratch.path())?;
    if let Some(out) = &options.out {
        std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    let goals = if options.quick {
        Vec::new()
    } else {
        goals::goals()
    };
    let mut course = Course {
        figures: Figures::new(goals),
        folder: scratch.path().to_owned(),
        out: options.out.clone(),
        extent,
        progress: Progress::new(),
        setups: Vec::new(),
        random: base::sim::Random::new(u64::from(std::process::id())),
    };
    if let Some(lacking) = crate::realtime::lacking() {
        course
            .figures
            .note(format!("measured threads run like any others: {lacking}"));
    }
    let is_asked = |part| options.only.is_empty() || options.only.contains(&part);
    for size in &SIZES {
        if is_asked(Part::Get) || is_asked(Part::Put) {
            course.values(size, is_asked(Part::Get), is_asked(Part::Put))?;
        }
    }
    if is_asked(Part::Durable) || is_asked(Part::Writers) {
        course.durable(is_asked(Part::Durable), is_asked(Part::Writers))?;
    }
    if is_asked(Part::Data) {
        course.data_time()?;
    }
    course.progress.clear();
    let method = json!({
        "quick": options.quick,
        "date": today(),
        "load_1min": load_1min,
        "rounds_each": extent.rounds,
        "file_system": file_system,
        "gets": extent.gets,
        "puts": extent.puts,
        "durable_puts": extent.durable_puts,
        "writers": cases::WRITERS,
        "writers_ms": extent.writers_ms,
        "hog_bytes": extent.hog_bytes,
        "instances": extent.instances,
        "instance_gets": extent.instance_gets,
        "systems": course.setups.iter().map(|(name, setup)| json!({"name": name, "setup": setup})).collect::<Vec<_>>(),
    });
    let title = format!(
        "db: medians of {} rounds, the systems taking turns, on {file_system}{}",
        extent.rounds,
        if options.quick {
            "; QUICK: these figures mean little"
        } else {
            ""
        },
    );
    Ok(course
        .figures
        .report("db", &title, &Machine::detect(), method))
}
