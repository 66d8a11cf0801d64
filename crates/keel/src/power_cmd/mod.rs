//! `keel power`: the power use of this machine. `watch.rs` prints values, `record.rs` summarizes them, `sources.rs`
//! finds sensors.

mod record;
pub(crate) mod sources;
mod watch;

use crate::error::CliError;
use clap::{Args, Subcommand};
use record::RecordArgs;
use watch::WatchArgs;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel power watch                             the readings of this machine's sensors, every second\n  \
    keel power record --out run.jsonl -- ./job   average, maximum, minimum, idle and energy of a program\n\n\
    docs/cluster.md lists the sensors and what each of them covers.")]
pub(crate) struct PowerArgs {
    #[command(subcommand)]
    command: PowerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PowerCommand {
    /// Print the readings of each sensor, until Ctrl-C
    Watch(WatchArgs),
    /// Summarise the power of a program and the idle power before and after, in a result file
    Record(RecordArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &PowerArgs) -> Result<u8, CliError> {
    match &arguments.command {
        PowerCommand::Watch(arguments) => watch::run(arguments),
        PowerCommand::Record(arguments) => record::run(arguments),
    }
}
