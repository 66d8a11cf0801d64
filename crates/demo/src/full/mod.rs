//! `keel demo --full`: all rooms together on the fire trace, with a power cut in the middle. A figure for each promise
//! shows whether it was kept.
//!
//! The node is `keel run` with an ordinary configuration. The server of programs, the sensors and the upstream stand
//! for other machines, on loopback. The power cut is SIGKILL for the node, whose device loses unflushed data, and for
//! all that the node runs. The region's memory and the network are lost with it. What this machine does not permit (a
//! mount, the library for files in memory) is left out and said, and the rest is shown.
//!
//! **Files:** `processes.rs` processes, `feed.rs` the sensors, `sink.rs` the upstream, `program.rs` the program of the
//! task, `placement.rs` where its job may run, `run.rs` the run, `figures.rs` its figures, `promises.rs` their meaning.

mod feed;
mod figures;
mod placement;
mod processes;
pub(crate) mod program;
mod promises;
mod run;
mod sink;

use crate::directory::StoreDirectory;
use crate::options::Args;
use command::error::{CliError, STATUS_FAILURE};
use command::output::Output;

/// Runs the full demo. Returns the exit status.
pub(crate) fn run(arguments: &Args, no_library: Option<String>) -> Result<u8, CliError> {
    let directory = StoreDirectory::new(arguments.dir.as_deref())?;
    let mut out = Output::new();
    let mut summary = run::Run::new(&directory, arguments, no_library)?.run(&mut |text| {
        if arguments.json {
            return Ok(());
        }
        out.line(text)?;
        out.flush()
    })?;
    if directory.temporary_dir().is_none() {
        summary.kept_in = Some(directory.folder().display().to_string());
    }
    drop(directory);
    if arguments.json {
        out.json(&summary.json())?;
    } else {
        out.line(summary.text().trim_end())?;
    }
    out.flush()?;
    let failures = summary.failures();
    if failures.is_empty() {
        return Ok(0);
    }
    if arguments.json {
        let text = CliError::failure("demo", failures.join("; "), "see the figures");
        eprintln!("keel: {text}");
    }
    Ok(STATUS_FAILURE)
}
