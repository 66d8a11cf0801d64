//! `keel-mpi`: the ranks of `keel cluster`, one process each, started by an MPI launcher.
//!
//! **Holds:** the eight loops of the benchmark suite, how samples are taken, and jobs whose ranks talk through MPI.
//!
//! **Must not know:** configuration, result files, the use of its results. It reports measurements in lines on standard
//! output (`cluster::measure::event_line`), and the process that started it collects them.
//!
//! **Invariants:** nothing is measured before each rank has reported its host and its library. Each case is checked
//! before it is timed: what arrives is what was sent. Every rank ends after the plan's time limit, independent of the
//! other ranks. An error of MPI ends all ranks, after a pause in which the launcher can see its cause.
//!
//! **Files:** `world.rs` the ranks and their reports, `core.rs` binding to a core, `suite.rs` from plan to rows,
//! `loops.rs` the eight loops, `check.rs` whether messages arrive whole, `exchange.rs` the loop with raw calls,
//! `lost.rs` errors of MPI, `job.rs` MPI for jobs, `power.rs` the power of boards.

mod check;
mod core;
mod exchange;
mod job;
mod loops;
mod lost;
mod power;
mod suite;
mod world;

use cluster::jobs::worker::Options;
use cluster::measure::{Event, Plan, event_line};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status of wrong usage.
const STATUS_USAGE: u8 = 2;

/// Exit status of a rank that still ran at its time limit.
const STATUS_LATE: i32 = 4;

/// Exit status of a failure.
pub(crate) const STATUS_FAILURE: i32 = 1;

/// Time limit for MPI's own end, when everything is done.
pub(crate) const ORDERLY_END: Duration = Duration::from_secs(2);

const USAGE: &str = "keel-mpi: is started by `keel cluster`; by hand: keel-mpi library | measure PLAN | job OPTIONS";

fn main() -> ExitCode {
    let words: Vec<String> = match std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect()
    {
        Ok(words) => words,
        Err(word) => {
            eprintln!("keel-mpi: {}: is not UTF-8", word.display());
            return ExitCode::from(STATUS_USAGE);
        }
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // Each board is asked before anything is started: does the program exist, and with which library?
        ["library"] => match world::library() {
            Ok(library) => {
                println!("{library}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("keel-mpi: {error}");
                ExitCode::FAILURE
            }
        },
        ["measure", plan] => match Plan::parse(plan) {
            Ok(plan) => measure(&plan),
            Err(error) => {
                eprintln!(
                    "keel-mpi: {error}; it is started by `keel cluster measure` of the same version"
                );
                ExitCode::from(STATUS_USAGE)
            }
        },
        ["job", ref options @ ..] => match Options::parse(options) {
            Ok(options) => job::run(&options),
            Err(error) => {
                eprintln!(
                    "keel-mpi: {error}; it is started by `keel cluster run` of the same version"
                );
                ExitCode::from(STATUS_USAGE)
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(STATUS_USAGE)
        }
    }
}

fn measure(plan: &Plan) -> ExitCode {
    end_after(Duration::from_secs(plan.seconds_max), STATUS_LATE);
    // The watchdog's thread never calls MPI.
    let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Funneled) else {
        eprintln!("keel-mpi: MPI was begun already");
        return ExitCode::FAILURE;
    };
    if let Err(error) = lost::wait_for_the_cause() {
        eprintln!("keel-mpi: {error}");
    }
    let world = universe.world();
    let done = world::World::gather(&world, plan).and_then(|world| suite::run(&world, plan));
    // All results are reported. With more ranks than cores MPICH's end can take minutes, in which ranks poll.
    end_after(ORDERLY_END, if done.is_ok() { 0 } else { STATUS_FAILURE });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // All ranks know of the failure, so all of them end in order.
            if failure.is_said_here {
                say(&Event::Failed {
                    why: failure.why,
                    host: failure.host,
                })
                .ok();
            }
            ExitCode::FAILURE
        }
    }
}

/// The reason why the run cannot continue; it is the same on every rank.
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) host: Option<String>,
    /// Whether this rank reports it.
    pub(crate) is_said_here: bool,
}

/// Reports an event at once.
///
/// # Errors
/// No process reads the output any more, or the event is too long.
pub(crate) fn say(event: &Event) -> Result<(), String> {
    let line = event_line(event).map_err(|error| error.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("standard output: {error}"))
}

/// Ends this process after `time`. A rank whose peers are gone waits forever in a call of MPI. On a board that cannot
/// be reached, no other process ends it.
pub(crate) fn end_after(time: Duration, status: i32) {
    let watch = move || {
        std::thread::sleep(time);
        if status == STATUS_LATE {
            eprintln!(
                "keel-mpi: still there after {} s, ends itself",
                time.as_secs()
            );
        }
        // Not the orderly end, which would wait for the blocked thread.
        std::process::exit(status);
    };
    if let Err(error) = std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(watch)
    {
        eprintln!("keel-mpi: has no watchdog: {error}");
    }
}
