//! `keel power`: what this machine uses. `watch.rs` prints values, `record.rs` sums them up, `sources.rs` finds
//! sensors.

mod record;
mod sources;
mod watch;

use crate::cli::PowerCommand;
use crate::error::CliError;

/// Runs one command; the answer is the exit status.
pub(crate) fn run(command: &PowerCommand) -> Result<u8, CliError> {
    match command {
        PowerCommand::Watch(arguments) => watch::run(arguments),
        PowerCommand::Record(arguments) => record::run(arguments),
    }
}
