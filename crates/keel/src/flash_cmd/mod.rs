//! `keel flash`: commands on a store in an image file or on a block device.
//!
//! **Files:** a command is the file of its name, `check.rs` with `repair.rs`; `restore.rs` is `keel restore`,
//! `backup.rs` the file that `keel backup` writes. Shared: `prepare.rs` a place for a new store, `transfer.rs` its
//! content, `draft.rs` names of incomplete files, `new_image.rs` a file that is removed on failure,
//! `deferred_superblock.rs` a store that is none before its end, `read_progress.rs` a device that reports reads,
//! `source.rs` input, `interruption.rs` signals, `text.rs` names. The module `stores` of the crate `node` opens stores
//! and has their errors.

mod append;
pub(crate) mod backup;
mod bounds;
mod check;
mod copy;
mod deferred_superblock;
mod draft;
mod dump;
mod format;
mod get;
mod grow;
pub(crate) mod interruption;
mod ls;
mod mount;
mod mv;
mod new_image;
mod prepare;
mod put;
mod read_progress;
mod repair;
pub(crate) mod restore;
mod rm;
mod source;
mod stat;
mod text;
mod transfer;
mod truncate;

use crate::error::CliError;
use append::AppendArgs;
use bounds::BoundsArgs;
use check::CheckArgs;
use clap::{Args, Subcommand};
use copy::CopyArgs;
use dump::DumpArgs;
use format::FormatArgs;
use get::GetArgs;
use grow::GrowArgs;
use ls::LsArgs;
use mount::MountArgs;
use mv::MvArgs;
use node::stores::explain_file_limit;
use put::PutArgs;
use rm::RmArgs;
use stat::StatArgs;
pub(crate) use text::shown_name;
use truncate::TruncateArgs;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash format store.img --size 256M\n  \
    keel flash put store.img config.toml config.toml\n  \
    keel flash ls store.img\n  \
    keel flash get store.img config.toml > copy.toml\n  \
    keel flash check store.img && echo whole\n\n\
    IMAGE is a file or a block device. ls, get, stat, check (without --repair), bounds and dump never write to it.\n\
    While one program has a store open for writing, no other program can write, check or copy it. The other\n\
    commands show the store as a power cut at that moment would leave it.")]
pub(crate) struct FlashArgs {
    #[command(subcommand)]
    command: FlashCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlashCommand {
    /// Create an empty store
    Format(FormatArgs),
    /// List the files, in no particular order
    Ls(LsArgs),
    /// Store a whole file atomically, and replace a file of the same name
    Put(PutArgs),
    /// Write a file of the store to standard output or to a file
    Get(GetArgs),
    /// Append to a file of the store; create it if absent
    Append(AppendArgs),
    /// Delete a file of the store
    Rm(RmArgs),
    /// Rename a file of the store atomically, and replace a file that already has the new name
    Mv(MvArgs),
    /// Set the length of a file of the store: cut it off, or extend it with zeros
    Truncate(TruncateArgs),
    /// Copy all files of a store into a new store, optionally of another size, and compare them
    Copy(CopyArgs),
    /// Grow a store to the new size of its image or device
    Grow(GrowArgs),
    /// Print figures of the store, or of one file
    Stat(StatArgs),
    /// Read every block and report all damage; exit status 1 if there is any
    Check(CheckArgs),
    /// Print the maximum number of device operations that each call can need
    Bounds(BoundsArgs),
    /// Mount the store as a directory, for any program
    Mount(MountArgs),
    /// Print the layout of the store: superblock, commit records, name table
    Dump(DumpArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &FlashArgs) -> Result<u8, CliError> {
    explain_file_limit();
    match &arguments.command {
        FlashCommand::Format(arguments) => format::run(arguments),
        FlashCommand::Ls(arguments) => ls::run(arguments),
        FlashCommand::Put(arguments) => put::run(arguments),
        FlashCommand::Get(arguments) => get::run(arguments),
        FlashCommand::Append(arguments) => append::run(arguments),
        FlashCommand::Rm(arguments) => rm::run(arguments),
        FlashCommand::Mv(arguments) => mv::run(arguments),
        FlashCommand::Truncate(arguments) => truncate::run(arguments),
        FlashCommand::Copy(arguments) => copy::run(arguments),
        FlashCommand::Grow(arguments) => grow::run(arguments),
        FlashCommand::Stat(arguments) => stat::run(arguments),
        FlashCommand::Check(arguments) => check::run(arguments),
        FlashCommand::Bounds(arguments) => bounds::run(arguments),
        FlashCommand::Mount(arguments) => mount::run(arguments),
        FlashCommand::Dump(arguments) => dump::run(arguments),
    }
}
