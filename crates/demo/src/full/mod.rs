//! `keel demo --full`: all rooms together on the fire trace, with a power cut in the middle, and for each promise the
//! figure that shows whether it was kept.
//!
//! The node is `keel run` with an ordinary configuration. The server of programs, the sensors and the upstream stand
//! for other machines, on loopback. The power cut is SIGKILL for the node, whose device loses unflushed data, and for
//! all that the node runs; the region's memory and the network are lost with it. What this machine does not permit (a
//! mount, the library for files in memory) is left out and said, and the rest is shown.
//!
//! **Files:** `parts.rs` processes, `feed.rs` the sensors, `sink.rs` the upstream, `program.rs` the program of the
//! task, `site.rs` where its job may run, `run.rs` the run, `look.rs` its figures, `promises.rs` their meaning.

mod feed;
mod look;
mod parts;
pub(crate) mod program;
mod promises;
mod run;
mod sink;
mod site;

use crate::Args;
use crate::place::Place;
use command::error::{CliError, STATUS_FAILURE};
use command::output::Output;

/// Runs the full demo. Returns the exit status.
pub(crate) fn run(arguments: &Args, no_library: Option<String>) -> Result<u8, CliError> {
    let place = Place::new(arguments.dir.as_deref())?;
    let mut out = Output::new();
    let mut summary = run::Run::new(&place, arguments, no_library)?.run(&mut |text| {
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
