//! `keel qos status`: the tasks, how well they meet their deadlines, and what the controller does.

use super::state_text::{text, understood};
use crate::client::{Connection, NodeArgs};
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use libkeel::protocol::{Kind, Qos};
use node::status::STATUS_DEGRADED;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel qos status\n  \
    keel qos status --json | jq .tasks\n\n\
    Exit status 3 if nothing is left to hold deadlines with (full speed, and the fewest updates allowed), the\n\
    model no longer predicts, the speed is not the required one or cannot be set, settings of the processors\n\
    were not restored, or the gains cannot be used.")]
pub(crate) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(super) fn run(arguments: &StatusArgs) -> Result<u8, CliError> {
    let mut connection = Connection::open(&arguments.node)?;
    let state: serde_json::Value = connection.ask(Kind::Qos, &Qos::default(), Kind::QosState)?;
    let mut output = Output::new();
    let read = understood(&state)?;
    if arguments.json {
        // Print the answer unchanged: a later node may send more fields than this version knows.
        output.json(&state)?;
    } else {
        output.bytes(text(&read).as_bytes())?;
    }
    output.flush()?;
    let is_well = !read.is_exhausted()
        && read.model_true
        && read.obeyed
        && read.gains_error.is_none()
        && read.settings_left.is_empty();
    Ok(if is_well { 0 } else { STATUS_DEGRADED })
}
