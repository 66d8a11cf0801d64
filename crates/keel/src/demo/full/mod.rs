//! `keel demo --full`: every room at once on the fire trace, a power cut in the middle, and each promise with the
//! figure that shows whether it was kept.
//!
//! The node is `keel run` with a configuration that anybody could write; the server of programs, the sensors and what
//! is upstream stand for other machines, on loopback. The power cut is SIGKILL for the node, whose device loses what
//! was not flushed, and for all that it runs; the region's memory is lost, and the network with it.
//!
//! **Files:** `parts.rs` processes, `feed.rs` the sensors, `sink.rs` what is upstream, `program.rs` the program of the
//! task, `run.rs` the run, `look.rs` figures out of it, `promises.rs` what they say.

mod feed;
mod look;
mod parts;
pub(crate) mod program;
mod promises;
mod run;
mod sink;

use super::place::Place;
use crate::cli::DemoArgs;
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::Output;

/// Runs it; the answer is the exit status.
pub(super) fn run(arguments: &DemoArgs) -> Result<u8, CliError> {
    let place = Place::new(arguments.dir.as_deref())?;
    let mut out = Output::new();
    let mut summary = run::Run::new(&place, arguments)?.run(&mut |text| {
        if arguments.json {
            return Ok(());
        }
        out.line(text)?;
        out.flush()
    })?;
    if place.temporary_dir().is_none() {
        summary.kept_in = Some(place.folder().display().to_string());
    }
    drop(place);
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
