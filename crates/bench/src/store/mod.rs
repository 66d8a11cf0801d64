//! The file store's bench: each repetition does one operation on each system, in rotating order, so that
//! whatever disturbs the machine disturbs all of them alike.

mod floor;
mod keel;
mod kernel;

pub(crate) use floor::{open_direct, write_through};

use std::io::{IsTerminal, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Instant;

use base::sim::Random;
use clap::value_parser;

use crate::machine::{Machine, file_system_type, is_ext4_without_journal};
use crate::report::{Goal, Report, Samples};
use crate::scratch::{Scratch, check_interrupted};

/// Bytes of an append and of a read.
pub(crate) const OPERATION_BYTES: usize = 4096;

/// Bytes of the file that reads are spread over.
pub(crate) const READ_FILE_BYTES: u64 = 16 << 20;

/// Device bytes of our store. Rounds clean up after themselves, so this holds any number of them.
const STORE_BYTES_MIN: u64 = 256 << 20;

/// Repetitions and rounds of `--quick`.
const QUICK: (u32, u32) = (500, 5);

/// What `--repetitions` may be.
const REPETITIONS: RangeInclusive<i64> = 100..=1_000_000;

/// What `--rounds` may be; the median of fewer than five means little.
const ROUNDS: RangeInclusive<i64> = 5..=100;

/// `keel-bench flash`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::Output,
    /// Few repetitions: shows that everything works; the tails mean little.
    #[arg(long)]
    quick: bool,
    /// Folder to measure in; what matters is the device below it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Operations of each case on each system.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(REPETITIONS))]
    repetitions: u32,
    /// Rounds that the repetitions are spread over.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(ROUNDS))]
    rounds: u32,
}

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Append 4,096 bytes, durable on return.
    Append,
    /// Read 4,096 bytes at a random multiple of 4,096, from the device.
    Read,
    /// Create an empty file under a new name, durable on return.
    Create,
    /// Delete a file of 4,096 bytes, durable on return.
    Delete,
}

impl Case {
    /// In the order of a round: what is created is what is deleted.
    pub(crate) const ALL: [Self; 4] = [Self::Append, Self::Read, Self::Create, Self::Delete];

    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Append => "append-4096-sync",
            Self::Read => "read-4096-random",
            Self::Create => "create-sync",
            Self::Delete => "delete-sync",
        }
    }
}

/// Requests that a device has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// `None` where the source does not count them.
    pub(crate) flushes: Option<u64>,
    pub(crate) bytes_written: u64,
}

/// One operation to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) case: Case,
    pub(crate) round: u32,
    /// From 0 within the round.
    pub(crate) index: u32,
    /// Where a read starts; a multiple of [`OPERATION_BYTES`] within [`READ_FILE_BYTES`].
    pub(crate) offset: u64,
}

impl Step {
    /// The file that a create makes and a delete removes.
    fn file_name(&self) -> String {
        format!("file-{}-{}", self.round, self.index)
    }

    /// The file that the appends of a round grow.
    fn append_name(&self) -> String {
        format!("append-{}", self.round)
    }
}

/// A system under measurement. Only the operation itself is timed; everything around it is not.
pub(crate) trait System {
    /// The name in reports.
    fn name(&self) -> &str;

    /// Prepares the steps of `case` in `round`, of which there are `count`.
    fn begin(&mut self, case: Case, round: u32, count: u32) -> Result<(), String>;

    /// Does one step; returns the nanoseconds of the operation alone.
    fn step(&mut self, step: &Step) -> Result<u64, String>;

    /// Removes what a round left.
    fn end(&mut self, case: Case, round: u32) -> Result<(), String>;

    /// The device's counters now; `None` when unknown.
    fn counts(&self) -> Option<DeviceCounts>;

    /// Where the counters come from, for the report; `None` when there are none.
    fn counts_source(&self) -> Option<&'static str>;
}

/// Nanoseconds that `operation` takes, with what it returns.
fn timed<T>(operation: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = operation();
    let elapsed = start.elapsed();
    (
        result,
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
    )
}

/// The content of every file read here: each eight bytes hold their own position, so a wrong block shows.
fn fill_pattern(offset: u64, bytes: &mut [u8]) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(offset / 8 + index as u64).to_le_bytes());
    }
}

/// An error when `bytes` are not those of [`fill_pattern`].
fn check_pattern(offset: u64, bytes: &[u8]) -> Result<(), String> {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        if word != (offset / 8 + index as u64).to_le_bytes() {
            return Err(format!(
                "read at {offset}: wrong content at byte {}",
                index * 8
            ));
        }
    }
    Ok(())
}

/// Runs the whole bench.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<Report, String> {
    let (repetitions, rounds) = if options.quick {
        QUICK
    } else {
        (options.repetitions, options.rounds)
    };
    let round_steps = repetitions.div_ceil(rounds);
    let store_bytes = STORE_BYTES_MIN.max(u64::from(round_steps) * 64 * 1024);
    let scratch = Scratch::create(
        &options.dir,
        store_bytes + 4 * READ_FILE_BYTES + u64::from(round_steps) * 16_384,
    )?;
    let file_system = file_system_type(scratch.path())?;

    let ours = keel::Keel::create(scratch.path(), store_bytes, round_steps)?;
    let floor = floor::Floor::create(scratch.path())?;
    let mut notes = Vec::new();
    if !ours.is_direct() || !floor.is_direct() {
        notes.push(format!(
            "{file_system} refuses O_DIRECT: keel and floor went through the page cache"
        ));
    }
    if is_ext4_without_journal(scratch.path()) {
        notes.push(
            "this ext4 has no journal: cheaper than an ordinary one, not safe against a power cut"
                .to_owned(),
        );
    }
    let kernel = kernel::Kernel::create(scratch.path(), &file_system)?;
    let mut systems: Vec<Box<dyn System>> = vec![Box::new(ours), Box::new(floor), Box::new(kernel)];

    let mut samples = Vec::new();
    for case in Case::ALL {
        for system in &systems {
            samples.push(Samples::new(
                case,
                system.name(),
                system.counts_source(),
                rounds,
                round_steps,
            ));
        }
    }
    let mut random = Random::new(1);
    let progress = Progress::new(rounds);
    for round in 0..rounds {
        for (case_index, case) in Case::ALL.into_iter().enumerate() {
            progress.show(round, case);
            let of_case = case_index * systems.len()..(case_index + 1) * systems.len();
            run_round(
                &mut systems,
                &mut samples[of_case],
                case,
                round,
                round_steps,
                &mut random,
            )?;
        }
    }
    progress.clear();

    let mut missing = Vec::new();
    if file_system != "ext4" {
        missing.push("ext4-sync".to_owned());
    }
    Ok(Report {
        bench: "flash",
        title: format!(
            "flash: {} operations of each case on each system, in {rounds} rounds, on {file_system}; \
             reads from a file of {} MiB; times in us",
            round_steps * rounds,
            READ_FILE_BYTES >> 20
        ),
        machine: Machine::detect(),
        ours: "keel",
        samples,
        goals: vec![
            // The figures for a durable append, amortised.
            Goal {
                case: Case::Append.name(),
                metric: "device_writes_per_op",
                value: 2.0,
            },
            Goal {
                case: Case::Append.name(),
                metric: "device_flushes_per_op",
                value: 1.0,
            },
        ],
        missing,
        notes,
    })
}

/// One case of one round: the same steps on every system, the order rotating with each.
fn run_round(
    systems: &mut [Box<dyn System>],
    samples: &mut [Samples],
    case: Case,
    round: u32,
    round_steps: u32,
    random: &mut Random,
) -> Result<(), String> {
    for system in systems.iter_mut() {
        system
            .begin(case, round, round_steps)
            .map_err(|error| describe(system.name(), case, &error))?;
    }
    for index in 0..round_steps {
        check_interrupted()?;
        let offset =
            random.below(READ_FILE_BYTES / OPERATION_BYTES as u64) * OPERATION_BYTES as u64;
        let step = Step {
            case,
            round,
            index,
            offset,
        };
        for turn in 0..systems.len() {
            let position = (index as usize + turn) % systems.len();
            let system = &mut systems[position];
            let before = system.counts();
            let elapsed_ns = system
                .step(&step)
                .map_err(|error| describe(system.name(), case, &error))?;
            samples[position].record(elapsed_ns, before, system.counts());
        }
    }
    for system in systems.iter_mut() {
        system
            .end(case, round)
            .map_err(|error| describe(system.name(), case, &error))?;
    }
    Ok(())
}

fn describe(system: &str, case: Case, error: &str) -> String {
    format!("{system}, {}: {error}", case.name())
}

/// One line on a terminal that says how far the run is.
struct Progress {
    rounds: u32,
    is_terminal: bool,
}

impl Progress {
    fn new(rounds: u32) -> Self {
        Self {
            rounds,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&self, round: u32, case: Case) {
        if self.is_terminal {
            eprint!(
                "\r\x1b[Kround {} of {}: {}",
                round + 1,
                self.rounds,
                case.name()
            );
            // A progress line that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
