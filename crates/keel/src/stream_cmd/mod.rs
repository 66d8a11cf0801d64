//! `keel stream`: programs that run from the network. `key.rs`, `pack.rs`, `ls.rs`, `check.rs` and `prune.rs` publish,
//! with the errors of `store_error.rs`; `identity.rs` makes certificates; `serve.rs` and `actions.rs` belong to the
//! server; `mount.rs`, `complete.rs`, `pin.rs` and `status.rs` belong to the device, with `link.rs`; `storage.rs` is a
//! flash store as the storage of a device's cache.

mod actions;
mod check;
mod complete;
mod identity;
mod key;
mod link;
mod ls;
mod mount;
mod pack;
mod pin;
mod prune;
mod serve;
mod status;
mod storage;
mod store_error;

use crate::descriptors;
use crate::error::CliError;
use actions::ActionsArgs;
use check::CheckArgs;
use clap::{Args, Subcommand};
use identity::IdentityArgs;
use key::KeyArgs;
use ls::LsArgs;
use mount::MountArgs;
use pack::PackArgs;
use pin::PinArgs;
use prune::PruneArgs;
use serve::ServeArgs;
use status::StatusArgs;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream pack /opt/plant plant.store\n  \
    keel stream serve plant.store --listen 127.0.0.1:7007 --insecure\n  \
    keel stream mount 127.0.0.1:7007 /mnt/plant --insecure\n  \
    /mnt/plant/bin/plant\n\n\
    docs/stream.md is a guide, from the first key to devices without a network.")]
pub(crate) struct StreamArgs {
    #[command(subcommand)]
    command: StreamCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Make a key to sign manifests with
    Key(KeyArgs),
    /// Publish a directory tree; unchanged content is shared with what was published before
    Pack(PackArgs),
    /// List published versions and files
    Ls(LsArgs),
    /// Read everything in a store, and report what is damaged
    Check(CheckArgs),
    /// Drop old versions
    Prune(PruneArgs),
    /// Manage certificates of servers and devices
    Identity(IdentityArgs),
    /// Serve a store to devices
    Serve(ServeArgs),
    /// List or forget what was learned
    Actions(ActionsArgs),
    /// Mount a published tree as a directory, and run programs from it
    Mount(MountArgs),
    /// Fetch a task, or the whole tree, into the cache of this device before its first run
    Pin(PinArgs),
    /// Print figures of a mount
    Status(StatusArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &StreamArgs) -> Result<u8, CliError> {
    let command = &arguments.command;
    let opens_many = matches!(
        command,
        StreamCommand::Pack(_)
            | StreamCommand::Check(_)
            | StreamCommand::Prune(_)
            | StreamCommand::Serve(_)
            | StreamCommand::Mount(_)
            | StreamCommand::Pin(_)
    );
    if opens_many {
        descriptors::prepare()?;
    }
    match command {
        StreamCommand::Key(arguments) => key::run(arguments),
        StreamCommand::Pack(arguments) => pack::run(arguments),
        StreamCommand::Ls(arguments) => ls::run(arguments),
        StreamCommand::Check(arguments) => check::run(arguments),
        StreamCommand::Prune(arguments) => prune::run(arguments),
        StreamCommand::Identity(arguments) => identity::run(arguments),
        StreamCommand::Serve(arguments) => serve::run(arguments),
        StreamCommand::Actions(arguments) => actions::run(arguments),
        StreamCommand::Mount(arguments) => mount::run(arguments),
        StreamCommand::Pin(arguments) => pin::run(arguments),
        StreamCommand::Status(arguments) => status::run(arguments),
    }
}
