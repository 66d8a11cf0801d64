//! `keel get`: the latest value of a key.

use super::{Connection, printable, value_text};
use crate::cli::GetArgs;
use crate::error::CliError;
use crate::node::protocol::{self, Kind};
use crate::output::Output;
use crate::time_text::{age_text, format_ms};
use serde::Deserialize;

/// What the node says about a value, as far as it is shown to people.
#[derive(Debug, Deserialize)]
pub(super) struct Latest {
    pub(super) key: String,
    pub(super) value: serde_json::Value,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) time_ms: i64,
    age_ms: i64,
    fresh: bool,
    temporal: bool,
    node_time: bool,
    clock_trusted: bool,
}

pub(super) fn run(arguments: &GetArgs) -> Result<u8, CliError> {
    let mut connection = Connection::open(&arguments.node)?;
    let key = arguments.key.clone();
    let asked = protocol::Get { key };
    let mut output = Output::new();
    if arguments.json {
        let found: serde_json::Value = connection.ask(Kind::Get, &asked, Kind::Value)?;
        output.json(&found)?;
    } else {
        let found: Latest = connection.ask(Kind::Get, &asked, Kind::Value)?;
        output.line(printable(&value_text(&found.value, &found.kind)))?;
        if arguments.long {
            output.line(format!(
                "time     {}{}",
                format_ms(found.time_ms),
                notes(&found)
            ))?;
            output.line(format!("age      {}", age_text(found.age_ms)))?;
            let fresh = match (found.temporal, found.fresh) {
                (false, _) => "not expected to be updated",
                (true, true) => "yes",
                (true, false) => "no",
            };
            output.line(format!("fresh    {fresh}"))?;
        }
    }
    output.flush()?;
    Ok(0)
}

/// Where the time of a value comes from, if that is worth a remark.
pub(super) fn notes(found: &Latest) -> &'static str {
    match (found.node_time, found.clock_trusted) {
        (false, _) => "",
        (true, true) => " (by the node's clock)",
        (true, false) => " (by the node's clock, which was not trusted)",
    }
}
