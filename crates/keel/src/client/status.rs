//! `keel status`: whether the node fulfils its task.

use super::{Connection, strange};
use crate::cli::StatusArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::status::Report;
use libkeel::protocol::{self, Kind};

pub(super) fn run(arguments: &StatusArgs) -> Result<u8, CliError> {
    let mut connection = Connection::open(&arguments.node)?;
    let state: serde_json::Value =
        connection.ask(Kind::Status, &protocol::Status {}, Kind::State)?;
    let report: Report =
        serde_json::from_value(state.clone()).map_err(|error| strange("status", error))?;
    let mut output = Output::new();
    if arguments.json {
        // Print the answer unchanged: a later node may send more fields than this version knows.
        output.json(&state)?;
    } else {
        output.bytes(report.text().as_bytes())?;
    }
    output.flush()?;
    Ok(report.state.exit_status())
}
