//! `keel power`: the power use of this machine. `watch.rs` prints values, `record.rs` summarizes them, `sources.rs`
//! finds sensors.

mod record;
pub(crate) mod sources;
mod watch;

use crate::cli::PowerCommand;
use crate::error::CliError;

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &PowerCommand) -> Result<u8, CliError> {
    match command {
        PowerCommand::Watch(arguments) => watch::run(arguments),
        PowerCommand::Record(arguments) => record::run(arguments),
    }
}
