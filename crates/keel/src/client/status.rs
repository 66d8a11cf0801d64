//! `keel status`: whether the node fulfils its task.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use libkeel::protocol::{self, Kind};
use node::status::Report;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel status\n  \
    keel status --json --node /run/keel/keel.sock\n\n\
    Exit status: 0 the node is ok, 3 it is degraded (the output names the reasons), 1 it has failed or does not\n\
    answer.")]
pub(crate) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

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
