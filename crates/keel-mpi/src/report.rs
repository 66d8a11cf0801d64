//! What a rank reports on standard output: events, and the failure of a run.

use cluster::measure::{Event, event_line};
use std::io::Write;

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
