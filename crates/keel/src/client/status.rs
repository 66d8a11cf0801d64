//! `keel status`: whether the node does what it shall.

use super::Connection;
use crate::cli::StatusArgs;
use crate::error::CliError;
use crate::node::protocol::{self, Kind};
use crate::output::Output;

pub(super) fn run(arguments: &StatusArgs) -> Result<u8, CliError> {
    let mut connection = Connection::open(&arguments.node)?;
    let state: serde_json::Value =
        connection.ask(Kind::Status, &protocol::Status {}, Kind::State)?;
    let mut output = Output::new();
    output.json(&state)?;
    output.flush()?;
    Ok(0)
}
