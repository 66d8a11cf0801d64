//! `keel mem`: commands on regions.
//!
//! **Files:** a command is the file of its name. Shared: `saver.rs` saves a region while `run.rs` uses it, `program.rs`
//! whether a program can be served, `entry.rs` finds a file of a region, `flush.rs` how changes become durable,
//! `text.rs` names. The module `regions` of the crate `node` makes regions, saves them, and has their errors.

mod check;
mod checkpoint;
mod create;
mod entry;
mod flush;
mod ls;
mod mount;
mod program;
mod restore;
mod run;
mod saver;
mod stat;
mod text;

use crate::error::CliError;
use check::CheckArgs;
use checkpoint::CheckpointArgs;
use clap::{Args, Subcommand};
use create::CreateArgs;
use ls::LsArgs;
use mount::MountArgs;
use restore::RestoreArgs;
use run::RunArgs;
pub(crate) use run::library;
use stat::StatArgs;
pub(crate) use text::{hex, mode_text, shown};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem create /dev/hugepages/plant --size 1G\n  \
    keel mem run /dev/hugepages/plant --at /keel -- sh -c 'date > /keel/now; cat /keel/now'\n  \
    keel mem mount /dev/hugepages/plant /mnt/plant\n  \
    keel mem ls /dev/hugepages/plant -l\n\n\
    REGION is a file on hugetlbfs (fastest), tmpfs or, slower, any file system. Any user with write access to that\n\
    file may do anything to the region: share a region only between programs that trust each other. docs/mem.md says\n\
    more.")]
pub(crate) struct MemArgs {
    #[command(subcommand)]
    command: MemCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemCommand {
    /// Create an empty region, and allocate all of its memory now
    Create(CreateArgs),
    /// Check whether all tables agree, and report what does not; exit status 1 if there is any
    Check(CheckArgs),
    /// Save all files in a flash store, which survives a power cut
    Checkpoint(CheckpointArgs),
    /// Create a region from its newest checkpoint
    Restore(RestoreArgs),
    /// Run a program that accesses the region's files at a path, without the kernel in between
    Run(RunArgs),
    /// Mount the region as a directory, for any program
    Mount(MountArgs),
    /// List a directory of the region
    Ls(LsArgs),
    /// Print figures of the region, or of one file
    Stat(StatArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &MemArgs) -> Result<u8, CliError> {
    match &arguments.command {
        MemCommand::Create(arguments) => create::run(arguments),
        MemCommand::Check(arguments) => check::run(arguments),
        MemCommand::Checkpoint(arguments) => checkpoint::run(arguments),
        MemCommand::Restore(arguments) => restore::run(arguments),
        MemCommand::Run(arguments) => run::run(arguments),
        MemCommand::Mount(arguments) => mount::run(arguments),
        MemCommand::Ls(arguments) => ls::run(arguments),
        MemCommand::Stat(arguments) => stat::run(arguments),
    }
}
