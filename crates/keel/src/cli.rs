//! The command line, defined once. The options of a command are in the file of the command.

use crate::advise_cmd::AdviseArgs;
use crate::client::{BackupArgs, ClientCommand};
use crate::cluster_cmd::ClusterArgs;
use crate::config_cmd::ConfigArgs;
use crate::demo_cmd::DemoArgs;
use crate::doctor_cmd::DoctorArgs;
use crate::flash_cmd::FlashArgs;
use crate::flash_cmd::restore::RestoreArgs;
use crate::mem_cmd::MemArgs;
use crate::power_cmd::PowerArgs;
use crate::qos_cmd::QosArgs;
use crate::run_cmd::RunArgs;
use crate::stream_cmd::StreamArgs;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(test)]
mod pages;
mod parse;
#[cfg(test)]
mod reference;

pub(crate) use parse::parse;

/// Names and examples are in the help because users copy them.
#[derive(Debug, Parser)]
#[command(
    name = "keel",
    version,
    about = "The predictable data path of a Linux edge device: from a sensor's reading to flash.",
    propagate_version = true,
    after_help = "Examples:\n  \
        keel demo                              the bundled fire trace, live in this terminal\n  \
        keel demo --kill --headless            the same, and kill the writer repeatedly\n  \
        keel config example > keel.toml        an example configuration\n  \
        keel run -c keel.toml                  the node; then, in the same directory:\n  \
        keel put room/1/temperature 21.5       stored when it returns\n  \
        keel get room/1/temperature\n  \
        keel status\n  \
        keel flash format store.img --size 64M\n  \
        keel flash put store.img notes.txt < notes.txt\n\n\
        Exit status: 0 success, 1 failure, 2 wrong usage. A command that has others says so in its help."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay the trace of a building fire through the database onto flash; check that nothing was lost
    Demo(DemoArgs),
    /// Run the node: sources of readings, the database, and a socket for the commands below
    Run(RunArgs),
    #[command(flatten)]
    Client(ClientCommand),
    /// Copy the store of a running node into a file, while readings arrive
    Backup(BackupArgs),
    /// Create the store of a node from a backup; the node must not run
    Restore(RestoreArgs),
    /// Report what this machine permits a node to do, and what to change
    Doctor(DoctorArgs),
    /// Check a configuration, or print an example
    Config(ConfigArgs),
    /// Manage a flash store in an image file or on a block device
    Flash(FlashArgs),
    /// Manage a region: files in memory that programs share
    Mem(MemArgs),
    /// Hold deadlines under load: identify a model, design gains, choose a mode
    Qos(QosArgs),
    /// Publish programs, and run them from the network with only the blocks that they need
    Stream(StreamArgs),
    /// Measure several boards, compare the results, run jobs on the boards
    Cluster(ClusterArgs),
    /// Watch or record the power that this machine uses, with the source of each value
    Power(PowerArgs),
    /// Advise where to run a job: on one board, on several boards or in the data centre
    Advise(AdviseArgs),
    /// Run a benchmark of the program keel-bench: flash, mem, db, node, qos, stream or cluster
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Examples:\n  keel bench flash --json bench.json\n  keel bench db --quick --only get"
    )]
    Bench {
        /// Benchmark to run, and the options of keel-bench
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<OsString>,
    },
    /// The writer of `keel demo`; started by it
    #[command(hide = true)]
    DemoWriter {
        /// Device image
        #[arg(long)]
        image: PathBuf,
        /// Remove this directory if the parent dies
        #[arg(long)]
        orphan_dir: Option<PathBuf>,
    },
    /// The analysis of `keel demo --full`; started by its node
    #[command(hide = true)]
    DemoAnalysis {
        /// Folder of the results
        results: PathBuf,
    },
}

#[cfg(test)]
mod tests;
