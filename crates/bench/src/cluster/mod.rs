//! The bench of messages between boards: our suite beside a plain C program with the same loops, on the same MPI, in
//! turns. It also compares two runs of the suite's default mode with each other.
//!
//! **Invariants:** both programs run the same loops with the same sizes, repetitions and numbers of samples. The order
//! is random in each round and the same for both; which program runs first is random, too. Emulated boards are
//! namespaces that end with the run.
//!
//! The parts of a run can be made one by one (`--only`, `--mpi`, `--keep`), each with its own report; the page combines
//! them.
//!
//! **Files:** `advisor.rs` the advisor against the simulation, `bed.rs` how both are started, `pairs.rs` ratios and
//! their judgement, `agreement.rs` two runs, `cores.rs` time of a cache line before each start, `launch.rs` the
//! launcher that measures it for a run, `mpi.rs` the implementations of MPI, `fit.rs` time of jobs against their size,
//! `page.rs` the result page with its plots.

mod advisor;
mod agreement;
mod bed;
mod cores;
mod fit;
pub(crate) mod launch;
mod mpi;
pub(crate) mod page;
mod pairs;

use std::path::PathBuf;
use std::time::Instant;

use base::sim::Random;
use clap::{ValueEnum, value_parser};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::{Machine, load_1min, today};
use crate::progress::Progress;
use crate::realtime;
use crate::report::Json;
use crate::scratch::{Scratch, absolute};
use bed::{Bed, Way};
use mpi::Mpi;

/// Space for host files and result files, in bytes.
const SCRATCH_BYTES: u64 = 64 << 20;

/// `keel-bench cluster`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// One round of a few sizes: shows that everything works; no goal is judged.
    #[arg(long)]
    quick: bool,
    /// Folder for files of the run.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Folder with mpi-mpich and mpi-openmpi, as scripts/mpi-build.sh makes them [default: beside that of this
    /// program].
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Only these MPIs.
    #[arg(long, value_name = "MPI", value_delimiter = ',')]
    mpi: Vec<Mpi>,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Rounds of pairs.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Folder for the result files of the two runs, MPI-1.jsonl and MPI-2.jsonl; a run that is there already is taken.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Also write the value of each round as a table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// What is measured, for the report.
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Ours beside C through the memory of one host.
    Memory,
    /// Ours beside C on a line of 1 Gbit/s.
    Link,
    /// Two runs of the default mode.
    Agreement,
    /// Time of the three jobs against the size of their input; takes no MPI.
    Fit,
    /// Regret of the advisor against the simulation; takes no MPI and no quiet machine.
    Advisor,
}

/// Runs the bench. Returns the figures as JSON, and the table as text.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let load_1min = load_1min();
    let begun = Instant::now();
    let dir = absolute(&options.dir)?;
    let scratch = Scratch::create(&dir, SCRATCH_BYTES)?;
    let progress = Progress::new();
    let mut figures = Figures::new(Vec::new());
    let mut random = Random::new(0x6b65_656c_6d70);
    let has = |part| options.only.is_empty() || options.only.contains(&part);
    let rounds = if options.quick { 1 } else { options.rounds };
    let mut libraries = Vec::new();
    if has(Part::Fit) {
        fit::measure(options.quick, rounds, &mut random, &mut figures, &|text| {
            progress.show(text)
        })?;
    }
    if has(Part::Advisor) {
        advisor::measure(options.quick, &mut figures, &|text| progress.show(text))?;
    }
    let takes_mpi = |part: &Part| !matches!(part, Part::Fit | Part::Advisor);
    let wants_mpi = options.only.is_empty() || options.only.iter().any(takes_mpi);
    let mpis = if wants_mpi {
        &[Mpi::Mpich, Mpi::Openmpi][..]
    } else {
        &[]
    };
    if wants_mpi && cores::cores_of_ranks(&realtime::cores()).is_none() {
        figures.note(cores::ONE_CORE.to_owned());
    }
    for &mpi in mpis {
        if !options.mpi.is_empty() && !options.mpi.contains(&mpi) {
            continue;
        }
        let bed = match Bed::find(mpi, options.programs.as_deref(), scratch.path()) {
            Ok(bed) => bed,
            Err(reason) => {
                figures.missing(format!("{} ({reason})", mpi.name()));
                continue;
            }
        };
        libraries.push(json!({"mpi": mpi.name(), "library": bed.library_text}));
        for (part, way) in [(Part::Memory, Way::Memory), (Part::Link, Way::Link)] {
            if !has(part) {
                continue;
            }
            let show = |round: u32| {
                progress.show(&format!(
                    "{}, {}: round {}",
                    mpi.name(),
                    way.name(),
                    round + 1
                ))
            };
            let cases = pairs::cases(way, options.quick);
            match pairs::measure(&bed, way, &cases, rounds, &mut random, &show)? {
                Some(found) => found.record(&mut figures, mpi, way, !options.quick),
                None => figures.missing(format!(
                    "{} on a line (it takes root, namespaces, ip and tc)",
                    mpi.name()
                )),
            }
        }
        if has(Part::Agreement) {
            progress.show(&format!("{}: two runs", mpi.name()));
            agreement::measure(&bed, options.quick, options.keep.as_deref(), &mut figures)?;
        }
    }
    progress.clear();
    if wants_mpi && libraries.is_empty() {
        return Err("no MPI to measure with: scripts/mpi-build.sh --release builds keel-mpi for those that are installed"
            .to_owned());
    }
    if options.quick {
        figures.note("quick: everything works; no figure is judged".to_owned());
    }
    let mut method = json!({
        "date": today(),
        "commit": options.commit,
        "minutes": begun.elapsed().as_secs_f64() / 60.0,
        "load_1min": load_1min,
        "quick": options.quick,
        "has_pairs": has(Part::Memory) || has(Part::Link),
        "libraries": libraries,
        "order": "cases and which program goes first are drawn anew for each round",
        "ratio": "median over the rounds of ours divided by the peer's of the same round",
    });
    let is_advisor = |part: &Part| *part == Part::Advisor;
    if options.only.is_empty() || !options.only.iter().all(is_advisor) {
        // The advisor's simulation has no rounds and no line.
        method["rounds_of_each"] = json!(rounds);
        method["value"] = json!("median of the rounds, each the median of its samples");
        method["line"] = json!(bed::LINE);
    }
    figures.write_csv(options.csv.as_deref())?;
    let title = format!("cluster: our suite beside the same loops in C, {rounds} rounds");
    Ok(figures.report("cluster", &title, &Machine::detect(), method))
}
