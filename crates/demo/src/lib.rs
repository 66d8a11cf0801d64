//! The demo: the main job from end to end, with a record that proves it.
//!
//! **Holds:** the sensors of a burning office block whose readings flow to flash, the analysis that has to answer in
//! time, and what is shown of both. The parent (this process) records the messages of a pipe; only the writer, a child
//! process, accesses the store. At the end the store is reopened and compared only with the parent's record. A reading
//! counts as acknowledged only if the parent received its acknowledgement. [`run_full`] does the same with a whole
//! node, which is the program `keel`.
//!
//! **Must not know:** how a room does what it promises. (The analysis of the burning building is here as an example of
//! a program that uses the database.)
//!
//! **Invariants:** every exit path removes what the demo made and restores the terminal.
//!
//! **Files:** `lib.rs` from arguments to exit status, `main.rs` the demo without the other rooms, `run.rs` the run and
//! its comparison, `supervisor.rs` start, kill and restart of the child, `writer.rs` the child process, `protocol.rs`
//! the messages of both, `recorder.rs` the parent's record, `compare.rs` the store against it, `place.rs` the place of
//! the store, `building.rs` and `analysis.rs` the task, `state.rs` one moment of a run, `face.rs` plain lines,
//! `view.rs` the live view, `summary.rs` the figures at the end, `full/` all rooms together.

mod analysis;
mod building;
mod compare;
mod face;
mod full;
mod place;
mod protocol;
mod recorder;
mod run;
mod state;
mod summary;
mod supervisor;
mod view;
mod writer;

use command::error::{CliError, STATUS_FAILURE};
use command::output::Output;
use command::signals;
use face::Face;
use place::Place;
use run::{Run, RunOptions};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// What the demo does.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of the trace to replay, from 1 to 14400
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=14_400))]
    seconds: u64,
    /// Speed of the replay, as a multiple of real time, from 0.1 to 1000
    #[arg(long, value_name = "X", default_value_t = 10.0, value_parser = speed)]
    speed: f64,
    /// Directory that keeps the store, as demo.img; created if absent
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print plain lines instead of the live view
    #[arg(long)]
    headless: bool,
    /// Print one JSON object on standard output at the end, and nothing else
    #[arg(long)]
    json: bool,
    /// Kill the writer with SIGKILL at random moments, at least ten times, and restart it
    #[arg(long)]
    kill: bool,
    /// Seed of the random moments [default: a new one, which is printed]
    #[arg(long, value_name = "N", requires = "kill")]
    seed: Option<u64>,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.1..=1_000.0).contains(&speed) => Ok(speed),
        _ => Err("must be a number from 0.1 to 1000".to_owned()),
    }
}

/// Runs the child process that alone writes the store. Returns the exit status.
///
/// # Errors
/// One line: the store or the pipe fails.
pub fn run_writer(image: &Path, orphan_dir: Option<&Path>) -> Result<u8, CliError> {
    writer::run(image, orphan_dir)
}

/// Runs the demo with a whole node; this process must be `keel`. `no_library` says why `keel mem run` has no library to
/// serve programs with; `None` if it has one. Returns the exit status.
///
/// # Errors
/// One line: a part of the node cannot be started.
pub fn run_full(arguments: &Args, no_library: Option<String>) -> Result<u8, CliError> {
    signals::catch_stop();
    full::run(arguments, no_library)
}

/// Runs the program of the full demo's task. Returns the exit status.
///
/// # Errors
/// One line: the node or the folder of results cannot be used.
pub fn run_analysis(results: &Path) -> Result<u8, CliError> {
    full::program::run(results)
}

/// Runs the demo. Returns the exit status.
///
/// # Errors
/// One line: the store cannot be made, or the writer cannot be started.
pub fn run(arguments: &Args) -> Result<u8, CliError> {
    signals::catch_stop();
    let seed = match (arguments.kill, arguments.seed) {
        (false, _) => None,
        (true, Some(seed)) => Some(seed),
        // Only 32 bits, so that the seed is short enough to type again.
        (true, None) => Some(u64::from(u32::from_le_bytes(command::random::bytes()?))),
    };
    let place = Place::new(arguments.dir.as_deref())?;
    let live = !arguments.headless && !arguments.json && std::io::stdout().is_terminal();
    let mut face = if arguments.json {
        Face::Silent
    } else {
        Face::open(live)?
    };
    let options = RunOptions {
        end_ms: arguments.seconds * 1_000,
        speed: arguments.speed,
        seed,
    };
    face.begin(&options)?;
    let figures = Run::new(&place, &options).run(&mut face);
    // Release the terminal first, so that all further output is visible.
    drop(face);
    let mut figures = figures?;
    if place.temporary_dir().is_none() {
        figures.kept_image = Some(place.image().display().to_string());
    }
    drop(place);
    let mut out = Output::new();
    if arguments.json {
        out.json(&figures.json())?;
    } else {
        out.line(figures.text().trim_end())?;
    }
    out.flush()?;
    match figures.failures().as_slice() {
        [] => Ok(0),
        failures if arguments.json => {
            // The reasons are in the object; standard error repeats them for users who read only that.
            eprintln!(
                "keel: {}",
                CliError::failure("demo", failures.join("; "), "see the figures")
            );
            Ok(STATUS_FAILURE)
        }
        _ => Ok(STATUS_FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_have_a_range() {
        assert_eq!(speed("10"), Ok(10.0));
        for bad in ["0", "nan", "inf", "-1", "1001", "x"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }
}
