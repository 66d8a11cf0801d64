//! The commands that talk to a running node: `get`, `put`, `watch`, `history`, `export`, `keys`, `status`, `top` and
//! `backup`.
//!
//! **Files:** a command is the file of its name; `endpoint.rs` the socket of the node, `connection.rs` requests and
//! answers, `region.rs` values in shared memory, `error.rs` errors, `value.rs` values, `time.rs` times,
//! `top_view.rs` the picture of `keel top`.

mod backup;
mod connection;
mod endpoint;
mod error;
mod export;
mod get;
mod history;
mod keys;
mod put;
mod region;
mod status;
mod time;
mod top;
mod top_view;
mod value;
mod watch;

use crate::error::CliError;
pub(crate) use backup::{BackupArgs, run as backup};
use clap::Subcommand;
pub(crate) use connection::Connection;
pub(crate) use endpoint::{NodeArgs, config_in_place, find_config};
use export::ExportArgs;
use get::GetArgs;
use history::HistoryArgs;
pub(crate) use history::numbers as history_numbers;
use keys::KeysArgs;
use put::PutArgs;
use status::StatusArgs;
pub(crate) use time::now_ms;
use top::TopArgs;
use watch::WatchArgs;

/// Commands that talk to a running node.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Print the latest value of a key
    Get(GetArgs),
    /// Store a reading, and return when it is on flash
    Put(PutArgs),
    /// Print changes as they arrive
    Watch(WatchArgs),
    /// Print the readings of a key, in order of arrival
    History(HistoryArgs),
    /// Print the readings of many keys, from a node or a store
    Export(ExportArgs),
    /// Let other series have keys
    Keys(KeysArgs),
    /// Report the state of the node: ok, degraded or failed
    Status(StatusArgs),
    /// Show the node's figures in this terminal, updated every second
    Top(TopArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &ClientCommand) -> Result<u8, CliError> {
    match command {
        ClientCommand::Get(arguments) => get::run(arguments),
        ClientCommand::Put(arguments) => put::run(arguments),
        ClientCommand::Watch(arguments) => watch::run(arguments),
        ClientCommand::History(arguments) => history::run(arguments),
        ClientCommand::Export(arguments) => export::run(arguments),
        ClientCommand::Keys(arguments) => keys::run(arguments),
        ClientCommand::Status(arguments) => status::run(arguments),
        ClientCommand::Top(arguments) => top::run(arguments),
    }
}
