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

use crate::cli::StreamCommand;
use crate::descriptors;
use crate::error::CliError;

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &StreamCommand) -> Result<u8, CliError> {
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
        StreamCommand::Identity(arguments) => identity::run(&arguments.command),
        StreamCommand::Serve(arguments) => serve::run(arguments),
        StreamCommand::Actions(arguments) => actions::run(arguments),
        StreamCommand::Mount(arguments) => mount::run(arguments),
        StreamCommand::Pin(arguments) => pin::run(arguments),
        StreamCommand::Status(arguments) => status::run(arguments),
    }
}
