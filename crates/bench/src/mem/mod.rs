//! The bench of the in-memory file system: unmodified programs on our region, compared with the kernel's file systems
//! in memory.
//!
//! **Invariants:** fio and the loop get the same options for all systems. Systems take turns, in a new random order for
//! each case and round. Our system is measured as programs see it, through the preloaded library. All that a run
//! mounts, attaches or allocates is released when it ends or is interrupted. What was not measured is listed as
//! missing.
//!
//! **Files:** `case.rs` the cases, `systems.rs` our system and the peers with their files, `memory.rs` the memory below
//! them, `fio.rs` and `calls.rs` the programs that make requests, `child.rs` processes, `mapping.rs` making files
//! addressable, `takeover.rs` waiting for the lock of a killed process, `goals.rs` the goals, `paper.rs` the figures of
//! the paper it follows, `plot.rs` their drawings, `page.rs` the result page.

pub(crate) mod calls;
mod case;
pub(crate) mod child;
mod fio;
mod goals;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod page;
mod paper;
mod plot;
mod systems;
pub(crate) mod takeover;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::sim::Random;
use clap::{ValueEnum, value_parser};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::{Machine, load_1min, today};
use crate::progress::Progress;
use crate::report::Json;
use crate::scratch::{Scratch, absolute, check_interrupted};
use calls::{By, Keeping, LOGS, Loop};
use case::{
    CPU_TIME, Case, Kind, OF_ONE_THREAD, Pattern, RATE, REQUESTS_BYTES, STACK, THROUGHPUT, TIME,
    bytes_text,
};
use child::Limits;
use systems::{
    DATA, Files, KEEL, KEEL_TMPFS, MEMCPY, MEMCPY_TMPFS, OF_THREADS, PACKED, System, TMPFS,
};

/// Maximum number of threads in the paper's figure 6; on fewer processors they share these.
const THREADS: usize = OF_THREADS.len();

/// `keel-bench mem`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) output: crate::output::Output,
    /// Small files, short runs, one round: shows that everything works; no goal is judged.
    #[arg(long)]
    quick: bool,
    /// Folder for the mount points; nothing is stored there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Also the figures of the paper that it follows, with tables and plots.
    #[arg(long)]
    paper: bool,
    /// Folder for the tables and plots of --paper.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "mem-paper",
        requires = "paper"
    )]
    out: PathBuf,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Size of the file, in MiB; of several threads each has a quarter of it.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u32).range(16..=4096))]
    file_mebibytes: u32,
    /// Rounds; each measures every case on every system once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// fio with one thread.
    Fio,
    /// The loop that does nothing else.
    Tight,
    /// The ways to keep overwrites whole, side by side.
    Logs,
    /// fio with several threads.
    Threads,
    /// Making files addressable.
    Map,
    /// A second process that attaches.
    Attach,
    /// Waiting for the lock of a process that is killed.
    Takeover,
}

/// How much a run measures.
#[derive(Clone, Copy, Debug)]
struct Extent {
    files: Files,
    requests_bytes: &'static [u32],
    fio: Duration,
    tight: Duration,
    threads: Duration,
    map_bytes_max: u64,
    attach_bytes: u64,
    rounds: u32,
    /// The number of processes that are killed for each takeover case.
    kills: u32,
}

impl Extent {
    fn of(options: &Options) -> Self {
        if options.quick {
            Self {
                files: Files {
                    data_bytes: 64 << 20,
                    thread_bytes: 32 << 20,
                    threads: THREADS,
                },
                requests_bytes: &REQUESTS_BYTES[1..2],
                fio: Duration::from_millis(300),
                tight: Duration::from_millis(20),
                threads: Duration::from_millis(300),
                map_bytes_max: 64 << 20,
                attach_bytes: 256 << 20,
                rounds: 1,
                kills: 5,
            }
        } else {
            Self {
                files: Files {
                    data_bytes: u64::from(options.file_mebibytes) << 20,
                    thread_bytes: u64::from(options.file_mebibytes) << 18,
                    threads: THREADS,
                },
                requests_bytes: &REQUESTS_BYTES,
                fio: Duration::from_secs(1),
                tight: Duration::from_millis(200),
                threads: Duration::from_millis(500),
                map_bytes_max: 4 << 30,
                attach_bytes: 2 << 30,
                rounds: options.rounds,
                kills: 200,
            }
        }
    }

    /// Selects smaller files if the machine has too little memory for the larger ones.
    fn fit(&mut self, available_bytes: u64, figures: &mut Figures) -> Result<(), String> {
        let asked = self.files.data_bytes;
        while self.files.memory_bytes() + (1 << 30) > available_bytes {
            if self.files.data_bytes <= 16 << 20 {
                return Err(format!(
                    "{} of memory are available, too little for the smallest run",
                    bytes_text(available_bytes >> 20 << 20)
                ));
            }
            self.files.data_bytes /= 2;
            self.files.thread_bytes /= 2;
        }
        if self.files.data_bytes < asked {
            figures.note(format!(
                "files of {} instead of {}: all systems hold theirs in memory at the same time",
                bytes_text(self.files.data_bytes),
                bytes_text(asked)
            ));
        }
        Ok(())
    }
}

/// Runs the bench. Returns the figures as JSON, and the table as text.
///
/// # Errors
/// One line that names what failed; nothing is reported then.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let mut extent = Extent::of(options);
    let load_1min = load_1min();
    let mut figures = Figures::new(Vec::new());
    // Programs get paths in this folder, so it must not depend on their working directory.
    let dir = absolute(&options.dir)?;
    let scratch = Scratch::create(&dir, 16 << 20)?;
    let progress = Progress::new();
    let mut show = |text: &str| progress.show(text);
    let has = |part| options.only.is_empty() || options.only.contains(&part);
    let fio_version = match fio::version() {
        Ok(version) => Some(version),
        Err(reason) => {
            if has(Part::Fio) || has(Part::Threads) {
                figures.missing(format!("every case of fio ({reason})"));
            }
            None
        }
    };
    let mut backings = Vec::new();
    if options.paper
        || [Part::Fio, Part::Tight, Part::Logs, Part::Threads]
            .into_iter()
            .any(has)
    {
        extent.fit(memory::available_bytes()?, &mut figures)?;
        let mut missing = Vec::new();
        let systems = systems::all(scratch.path(), &extent.files, &mut missing, &mut show)?;
        missing.into_iter().for_each(|what| figures.missing(what));
        for system in &systems {
            if let Some(ours) = &system.ours {
                backings.push((
                    system.name,
                    format!("{:?}", ours.attachment.region().backing()),
                ));
            }
        }
        let mut course = Course {
            systems: &systems,
            extent: &extent,
            folder: scratch.path(),
            random: Random::new(0x6d65_6d00),
            failed: BTreeSet::new(),
        };
        for round in 0..extent.rounds {
            if has(Part::Fio) && fio_version.is_some() {
                course.fio(Kind::Fio, round, &mut figures, &mut show)?;
            }
            if has(Part::Tight) {
                course.tight(round, &mut figures, &mut show)?;
            }
            if has(Part::Logs) {
                course.logs(round, &mut figures, &mut show)?;
            }
            if options.paper {
                course.stack(round, &mut figures, &mut show)?;
            }
            if has(Part::Threads) && fio_version.is_some() {
                for kind in [Kind::OneThread, Kind::TwoThreads, Kind::FourThreads] {
                    if kind.threads() <= extent.files.threads {
                        course.fio(kind, round, &mut figures, &mut show)?;
                    }
                }
            }
        }
        scaling(&mut figures);
    }
    if has(Part::Map) {
        mapping::measure(
            scratch.path(),
            extent.map_bytes_max,
            extent.rounds,
            &mut figures,
            &mut show,
        )?;
    }
    if has(Part::Attach) {
        mapping::measure_attaching(
            scratch.path(),
            extent.attach_bytes,
            extent.rounds,
            &mut figures,
            &mut show,
        )?;
    }
    if has(Part::Takeover) {
        takeover::measure(scratch.path(), extent.kills, &mut figures, &mut show)?;
    }
    progress.clear();
    let machine = Machine::detect();
    if options.quick {
        figures.note("quick: everything works; no figure is judged".to_owned());
    } else {
        goals::state(&mut figures, machine.cores);
    }
    if options.paper {
        paper::write(&options.out, &figures, &machine)?;
    }
    let method = json!({
        "date": today(),
        "load_1min": load_1min,
        "quick": options.quick,
        "order": "drawn anew for each case and round",
        "rounds": extent.rounds,
        "backing": backings.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "file_bytes": extent.files.data_bytes,
        "file_of_a_thread_bytes": extent.files.thread_bytes,
        "fio": fio_version,
        "fio_arguments": fio::ARGUMENTS,
        "fio_ms": extent.fio.as_millis() as u64,
        "threads_ms": extent.threads.as_millis() as u64,
        "tight_ms": extent.tight.as_millis() as u64,
        "takeover_kills": extent.kills,
        "value": "median of the rounds",
        "ratio": "median over the rounds of ours divided by the peer's of the same round",
    });
    let title = format!(
        "mem: a file of {}, its pages in memory, {} rounds",
        bytes_text(extent.files.data_bytes),
        extent.rounds
    );
    let (mut json, table) = figures.report("mem", &title, &machine, method);
    // Calls per second only repeat the time of one call in another form.
    let rounds = json.method.as_mut().map(|method| &mut method["rounds"]);
    if let Some(serde_json::Value::Array(rounds)) = rounds {
        rounds.retain(|figure| figure["metric"] != RATE.name);
    }
    Ok((json, table))
}

/// A case of the loop in one round.
struct OfCase {
    name: &'static str,
    pattern: Pattern,
    request_bytes: u32,
    /// Name and size in bytes.
    file: (&'static str, u64),
    round: u32,
}

/// The system of a turn, and how bytes are moved.
struct Turn<'a> {
    system: &'a System,
    by: By,
    keeping: Keeping,
    name: &'static str,
}

impl<'a> Turn<'a> {
    fn new(system: &'a System, by: By, name: &'static str) -> Self {
        Self {
            system,
            by,
            keeping: Keeping::BySize,
            name,
        }
    }
}

/// The rounds of a run.
struct Course<'a> {
    systems: &'a [System],
    extent: &'a Extent,
    folder: &'a Path,
    random: Random,
    /// Case and system of each failed measurement; it is not tried again.
    failed: BTreeSet<(&'static str, &'static str)>,
}

impl Course<'_> {
    /// Runs all cases of a kind with fio, on all systems.
    fn fio(
        &mut self,
        kind: Kind,
        round: u32,
        figures: &mut Figures,
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let extent = self.extent;
        let (files, file_bytes, runtime): (&[&'static str], _, _) = match kind {
            Kind::Fio | Kind::Tight | Kind::Packed => {
                (&[DATA], extent.files.data_bytes, extent.fio)
            }
            Kind::OneThread | Kind::TwoThreads | Kind::FourThreads => (
                &OF_THREADS[..kind.threads()],
                extent.files.thread_bytes,
                extent.threads,
            ),
        };
        let limits = Limits::new(self.folder);
        for case in Case::all(kind, extent.requests_bytes) {
            let takes_part = |system: &&System| match kind {
                Kind::Fio | Kind::Tight | Kind::Packed => true,
                Kind::OneThread | Kind::TwoThreads | Kind::FourThreads => system.name != KEEL_TMPFS,
            };
            let mut order: Vec<_> = self
                .systems
                .iter()
                .filter(|system| system.serves_programs())
                .filter(takes_part)
                .collect();
            self.random.shuffle(&mut order);
            for system in order {
                show(&format!(
                    "round {}: {} on {}",
                    round + 1,
                    case.name(),
                    system.name
                ));
                let job = fio::Job {
                    pattern: case.pattern,
                    request_bytes: case.request_bytes,
                    files,
                    file_bytes,
                    runtime,
                };
                let measured = self.unless_failed(case.name(), system.name, figures, || {
                    fio::run(system, &job, &limits)
                })?;
                if let Some(throughput) = measured {
                    figures.record(case.name(), system.name, THROUGHPUT, throughput);
                }
                if case.pattern.is_write() {
                    system.settle()?;
                }
            }
        }
        Ok(())
    }

    /// Runs all cases of the loop, on all systems.
    fn tight(
        &mut self,
        round: u32,
        figures: &mut Figures,
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        for case in Case::all(Kind::Tight, &REQUESTS_BYTES) {
            let mut order = Vec::new();
            for system in self.systems {
                if system.serves_programs() {
                    order.push(Turn::new(system, By::Calls, system.name));
                }
                match system.name {
                    KEEL => {
                        order.push(Turn::new(system, By::Library, "keel-library"));
                        order.push(Turn::new(system, By::Copy, MEMCPY));
                    }
                    KEEL_TMPFS => {
                        order.push(Turn::new(system, By::Library, "keel-tmpfs-library"));
                    }
                    _ => {}
                }
            }
            let of_case = OfCase {
                name: case.name(),
                pattern: case.pattern,
                request_bytes: case.request_bytes,
                file: (DATA, self.extent.files.data_bytes),
                round,
            };
            self.take_turns(&of_case, order, figures, show)?;
        }
        Ok(())
    }

    /// Measures the ways to keep overwrites whole, with the library: in a large file, and in a small one among others.
    fn logs(
        &mut self,
        round: u32,
        figures: &mut Figures,
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let Some(system) = self.systems.iter().find(|system| system.name == KEEL) else {
            return Ok(());
        };
        for (kind, file) in [
            (Kind::Tight, (DATA, self.extent.files.data_bytes)),
            (Kind::Packed, PACKED),
        ] {
            // Larger writes are not kept whole.
            for case in Case::all(kind, &REQUESTS_BYTES[..3]) {
                if !case.pattern.is_write() {
                    continue;
                }
                let mut order = Vec::new();
                for (keeping, name) in LOGS {
                    // A file in a slot, such as the large one, uses redo instead of copy-on-write. For it, `BySize` is
                    // measured together with the systems.
                    let is_other = match kind {
                        Kind::Packed => true,
                        _ => !matches!(keeping, Keeping::CopyOnWrite | Keeping::BySize),
                    };
                    if is_other {
                        order.push(Turn {
                            keeping,
                            ..Turn::new(system, By::Library, name)
                        });
                    }
                }
                let of_case = OfCase {
                    name: case.name(),
                    pattern: case.pattern,
                    request_bytes: case.request_bytes,
                    file,
                    round,
                };
                self.take_turns(&of_case, order, figures, show)?;
            }
        }
        Ok(())
    }

    /// Measures reading by calls, and copying the same bytes, by request size: the difference is the cost of the
    /// software between them.
    fn stack(
        &mut self,
        round: u32,
        figures: &mut Figures,
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        for (request_bytes, name) in STACK {
            let mut order = Vec::new();
            for system in self.systems {
                let copied = match system.name {
                    KEEL => MEMCPY,
                    TMPFS => MEMCPY_TMPFS,
                    _ => continue,
                };
                order.push(Turn::new(system, By::Copy, copied));
                if system.serves_programs() {
                    order.push(Turn::new(system, By::Calls, system.name));
                }
            }
            let of_case = OfCase {
                name,
                pattern: Pattern::SequentialRead,
                request_bytes,
                file: (DATA, self.extent.files.data_bytes),
                round,
            };
            self.take_turns(&of_case, order, figures, show)?;
        }
        Ok(())
    }

    /// Runs the loop of one case for all turns, in a new random order.
    fn take_turns(
        &mut self,
        case: &OfCase,
        mut order: Vec<Turn<'_>>,
        figures: &mut Figures,
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let limits = Limits::new(self.folder);
        self.random.shuffle(&mut order);
        for turn in order {
            show(&format!(
                "round {}: {} on {}",
                case.round + 1,
                case.name,
                turn.name
            ));
            let measured = Loop {
                by: turn.by,
                keeping: turn.keeping,
                file: case.file.0,
                file_bytes: case.file.1,
                pattern: case.pattern,
                request_bytes: case.request_bytes,
                runtime: self.extent.tight,
            };
            let timing = self.unless_failed(case.name, turn.name, figures, || {
                calls::measure(turn.system, &measured, &limits)
            })?;
            if let Some(timing) = timing {
                let ns = timing.ns_per_request();
                figures.record(case.name, turn.name, TIME, ns);
                figures.record(case.name, turn.name, RATE, 1e9 / ns);
                let cpu_ns = timing.cpu_ns_per_request();
                figures.record(case.name, turn.name, CPU_TIME, cpu_ns);
            }
            if case.pattern.is_write() {
                turn.system.settle()?;
            }
        }
        Ok(())
    }

    /// Measures, unless this case has failed before. A failure is listed as missing and does not end the run.
    fn unless_failed<T>(
        &mut self,
        case: &'static str,
        system: &'static str,
        figures: &mut Figures,
        measure: impl FnOnce() -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let what = (case, system);
        if self.failed.contains(&what) {
            return Ok(None);
        }
        match measure() {
            Ok(measured) => Ok(Some(measured)),
            Err(reason) => {
                check_interrupted()?;
                figures.missing(format!("{system} in {case} ({reason})"));
                self.failed.insert(what);
                Ok(None)
            }
        }
    }
}

/// Records the throughput of several threads divided by that of one.
fn scaling(figures: &mut Figures) {
    for kind in [Kind::TwoThreads, Kind::FourThreads] {
        for case in Case::all(kind, &REQUESTS_BYTES) {
            let one = Case {
                kind: Kind::OneThread,
                ..case
            };
            let one = figures.rounds(one.name(), KEEL, THROUGHPUT).to_vec();
            let several = figures.rounds(case.name(), KEEL, THROUGHPUT).to_vec();
            for (several, one) in several.into_iter().zip(one) {
                figures.record(case.name(), KEEL, OF_ONE_THREAD, several / one);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_shrink_until_they_fit_with_a_note() {
        let options = Options {
            output: crate::output::Output { json: None },
            quick: false,
            paper: false,
            out: PathBuf::from("."),
            dir: PathBuf::from("."),
            only: Vec::new(),
            file_mebibytes: 1024,
            rounds: 5,
        };
        let mut extent = Extent::of(&options);
        let mut figures = Figures::new(Vec::new());
        extent.fit(64 << 30, &mut figures).unwrap();
        assert_eq!(extent.files.data_bytes, 1 << 30);
        extent.fit(8 << 30, &mut figures).unwrap();
        assert!(extent.files.data_bytes < 1 << 30);
        assert!(extent.files.memory_bytes() + (1 << 30) <= 8 << 30);
        let machine = Machine::detect();
        assert!(figures.table("t", &machine).contains("instead of 1 GiB"));
        assert!(extent.fit(1 << 30, &mut figures).is_err());
    }

    #[test]
    fn several_threads_are_compared_with_one_of_the_same_round() {
        let mut figures = Figures::new(Vec::new());
        for (kind, values) in [
            (Kind::OneThread, [100.0, 200.0, 100.0]),
            (Kind::TwoThreads, [180.0, 300.0, 190.0]),
        ] {
            for value in values {
                let case = Case::all(kind, &[4096])[1];
                figures.record(case.name(), KEEL, THROUGHPUT, value);
            }
        }
        scaling(&mut figures);
        let case = Case::all(Kind::TwoThreads, &[4096])[1].name();
        assert_eq!(figures.value(case, KEEL, OF_ONE_THREAD), Some(1.8));
        assert_eq!(figures.rounds(case, KEEL, OF_ONE_THREAD).len(), 3);
    }
}
