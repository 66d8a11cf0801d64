//! `keel config`: checks a configuration, prints an example, or tries a message.

use crate::error::CliError;
use crate::output::Output;
use crate::try_cmd::{self, TryArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel config example > keel.toml\n  \
    keel config check keel.toml\n  \
    keel config try sensors/hall/2 21.5")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report everything that is wrong with a configuration; exit status 1 if anything is wrong
    Check {
        /// Configuration file
        #[arg(default_value = "keel.toml", value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print a working configuration that explains every key
    Example,
    /// Show what a node would make of an MQTT message, without a node
    Try(TryArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &ConfigArgs) -> Result<u8, CliError> {
    match &arguments.command {
        ConfigCommand::Check { file, json } => config::check(file, *json),
        ConfigCommand::Try(arguments) => try_cmd::run(arguments),
        ConfigCommand::Example => {
            let mut output = Output::new();
            output.bytes(config::example().as_bytes())?;
            output.flush()?;
            Ok(0)
        }
    }
}
