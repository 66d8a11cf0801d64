//! `keel qos mode`: chooses what the node controls to hold deadlines.

use super::state_text::{mode_now, understood};
use crate::client::{Connection, NodeArgs};
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use libkeel::protocol::{Kind, Mode, Qos};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel qos mode mimo\n  \
    keel qos mode open                       the machine's own speed, all updates: nothing is controlled\n\n\
    dvfs-only controls the speed of the tasks' processors, qod-only the admitted updates, mimo both. All modes\n\
    but open need gains (`keel qos design`). The mode of the next start is qos.mode of the configuration.\n\
    During an identification, the mode is noted and takes effect at its end.")]
pub(crate) struct ModeArgs {
    /// open, dvfs-only, qod-only or mimo
    #[arg(value_parser = ["open", "dvfs-only", "qod-only", "mimo"])]
    mode: String,
    /// Print one JSON object, the same as `keel qos status --json`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(super) fn run(arguments: &ModeArgs) -> Result<u8, CliError> {
    let mode = arguments.mode.as_str();
    let mode: Mode = serde_json::from_value(mode.into())
        .map_err(|_| CliError::usage(mode, "is no mode", "see `keel qos mode --help`"))?;
    let wish = Qos {
        mode: Some(mode),
        ..Qos::default()
    };
    let mut connection = Connection::open(&arguments.node)?;
    let state: serde_json::Value = connection.ask(Kind::Qos, &wish, Kind::QosState)?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&state)?;
    } else {
        output.line(mode_now(&understood(&state)?))?;
    }
    output.flush()?;
    Ok(0)
}
