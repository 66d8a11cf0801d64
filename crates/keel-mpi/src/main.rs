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
//! **Files:** `world.rs` the ranks and their reports, `report.rs` lines on standard output, `core.rs` binding to a
//! core, `suite.rs` from plan to rows, `loops.rs` the eight loops, `check.rs` whether messages arrive whole,
//! `exchange.rs` the loop with raw calls, `error_handler.rs` errors of MPI, `end.rs` how a rank ends, `job.rs` MPI for
//! jobs, `power.rs` the power of boards.

mod check;
mod core;
mod end;
mod error_handler;
mod exchange;
mod job;
mod loops;
mod power;
mod report;
mod suite;
mod world;

use cluster::jobs::worker::Options;
use cluster::measure::{Event, Plan};
use end::{ORDERLY_END, STATUS_FAILURE, STATUS_LATE, end_after};
use report::say;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status of wrong usage.
const STATUS_USAGE: u8 = 2;

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
    if let Err(error) = error_handler::install() {
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
