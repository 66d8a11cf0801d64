//! `keel qos`: state, modes, identification and design of the quality of service.
//!
//! **Files:** a command is the file of its name; `state_text.rs` the state of the node as people read it, `model.rs` a
//! model, `out.rs` the written files.

mod design;
mod identify;
mod mode;
mod model;
mod out;
mod state_text;
mod status;

use crate::error::CliError;
use clap::{Args, Subcommand};
use design::DesignArgs;
use identify::IdentifyArgs;
use mode::ModeArgs;
use status::StatusArgs;
use std::ffi::OsString;

#[derive(Debug, Args)]
#[command(after_help = "Examples, in this order on a new board:\n  \
    keel qos status                              the tasks, and how well they meet their deadlines\n  \
    keel qos identify --out qos-model.toml       drive the running node, fit a model\n  \
    keel qos design qos-model.toml --out qos-gains.toml\n  \
    keel qos mode mimo                           once qos.gains of the configuration names that file\n\n\
    docs/qos.md explains the purpose of these steps.")]
pub(crate) struct QosArgs {
    #[command(subcommand)]
    command: QosCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QosCommand {
    /// Show the tasks, how well they meet their deadlines, and what the controller does
    Status(StatusArgs),
    /// Choose what the node controls to hold deadlines, until its next start
    Mode(ModeArgs),
    /// Drive speed and updates of the running node with square waves, and fit a model of its tasks
    Identify(IdentifyArgs),
    /// Design gains from a model, in a file that a node loads
    Design(DesignArgs),
    /// Reproduce an experiment of the published method, with the program keel-bench
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Examples:\n  \
            keel qos experiment transient --out transient                    on a simulated plant\n  \
            keel qos experiment identification --plant real --out found      on this machine, as root\n  \
            keel qos experiment workloads --plant real --identified found/identified.json --out workloads\n\n\
            `keel qos experiment --help` lists the options of keel-bench."
    )]
    Experiment {
        /// Experiment (interference, identification, workloads, cores or transient), and the options of keel-bench
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<OsString>,
    },
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &QosArgs) -> Result<u8, CliError> {
    match &arguments.command {
        QosCommand::Status(arguments) => status::run(arguments),
        QosCommand::Mode(arguments) => mode::run(arguments),
        QosCommand::Identify(arguments) => identify::run(arguments),
        QosCommand::Design(arguments) => design::run(arguments),
        QosCommand::Experiment { arguments } => crate::bench_cmd::experiment(arguments),
    }
}
