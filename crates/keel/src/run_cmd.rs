//! `keel run`: the node.

use crate::error::CliError;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml && keel run -c keel.toml\n  \
    keel config check keel.toml && kill -HUP $(cat keel-data/store.img.lock)\n\n\
    The node stays in the foreground and reports each event as one line on standard error; `ready` means that it\n\
    serves. The first start creates the store. SIGTERM or SIGINT stops the node: it makes the readings that it has\n\
    received durable, and acknowledges them. SIGHUP reads the configuration again; if the configuration has a\n\
    mistake, nothing changes.")]
pub(crate) struct RunArgs {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = "keel.toml")]
    config: PathBuf,
    /// Lose unflushed data when the process ends, as in a power cut; for `keel demo --full`
    #[arg(long, hide = true)]
    volatile_device: bool,
}

/// Runs the node until it is stopped. Returns the exit status.
pub(crate) fn run(arguments: &RunArgs) -> Result<u8, CliError> {
    node::run_and_finish(&arguments.config, arguments.volatile_device)
}
