//! `keel demo`: the main job from end to end, with a record that proves it.
//!
//! The parent (this process) records the messages of a pipe; only the writer, a child process, accesses the store. At
//! the end the store is reopened and compared only with the parent's record. A reading counts as acknowledged only if
//! the parent received its acknowledgement.

pub(crate) mod analysis;
mod building;
mod compare;
mod face;
pub(crate) mod full;
mod place;
mod protocol;
mod recorder;
mod run;
mod state;
mod summary;
mod supervisor;
mod view;
pub(crate) mod writer;

use crate::cli::DemoArgs;
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::Output;
use crate::signals;
use face::Face;
use place::Place;
use run::{Run, RunOptions};
use std::io::IsTerminal;

/// Runs the demo. Returns the exit status.
pub(crate) fn run(arguments: &DemoArgs) -> Result<u8, CliError> {
    signals::catch_stop();
    if arguments.full {
        return full::run(arguments);
    }
    let seed = match (arguments.kill, arguments.seed) {
        (false, _) => None,
        (true, Some(seed)) => Some(seed),
        // Only 32 bits, so that the seed is short enough to type again.
        (true, None) => Some(u64::from(u32::from_le_bytes(crate::random::bytes()?))),
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
