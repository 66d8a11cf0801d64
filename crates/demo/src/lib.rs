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
//! **Files:** `lib.rs` from arguments to exit status, `main.rs` the demo without the other rooms, `options.rs` the
//! arguments, `run.rs` the run and its comparison, `supervisor.rs` start, kill and restart of the child, `writer.rs`
//! the child process, `protocol.rs` the messages of both, `recorder.rs` the parent's record, `compare.rs` the store
//! against it, `directory.rs` where the store is, `building.rs` and `analysis.rs` the task, `state.rs` one moment of a
//! run, `progress.rs` plain lines, `view.rs` the live view, `summary.rs` the figures at the end, `full/` all rooms
//! together.

mod analysis;
mod building;
mod compare;
mod directory;
mod full;
mod options;
mod progress;
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
use directory::StoreDirectory;
use options::RunOptions;
use progress::Progress;
use run::Run;
use std::io::IsTerminal;
use std::path::Path;

pub use options::Args;

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
    let directory = StoreDirectory::new(arguments.dir.as_deref())?;
    let live = !arguments.headless && !arguments.json && std::io::stdout().is_terminal();
    let mut progress = if arguments.json {
        Progress::Silent
    } else {
        Progress::open(live)?
    };
    let options = RunOptions {
        end_ms: arguments.seconds * 1_000,
        speed: arguments.speed,
        seed,
    };
    progress.begin(&options)?;
    let figures = Run::new(&directory, &options).run(&mut progress);
    // Release the terminal first, so that all further output is visible.
    drop(progress);
    let mut figures = figures?;
    if directory.temporary_dir().is_none() {
        figures.kept_image = Some(directory.image().display().to_string());
    }
    drop(directory);
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
            // The reasons are in the object. Standard error repeats them for users that read only standard error.
            eprintln!(
                "keel: {}",
                CliError::failure("demo", failures.join("; "), "see the figures")
            );
            Ok(STATUS_FAILURE)
        }
        _ => Ok(STATUS_FAILURE),
    }
}
