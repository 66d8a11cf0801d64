//! `keel get`: the latest value of a key.

use super::connection::Connection;
use super::endpoint::{Endpoint, NodeArgs};
use super::error::strange;
use super::region::{NoAnswer, Values};
use super::value::{completed, printable, value_text};
use crate::error::CliError;
use crate::output::Output;
use clap::{Args, ValueEnum};
use config::REGION_TABLE;
use db::Time;
use libkeel::protocol::{self, Kind, Nanoseconds};
use node::time_text::{age_text, format_time};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel get room/1/temperature\n  \
    keel get room/1/temperature --long\n  \
    keel get room/1/temperature --json --node /run/keel/keel.sock\n  \
    keel get room/1/temperature --region /dev/shm/keel --via region\n\n\
    If the node keeps its values in a region (`[region]` of the configuration), the command reads the region\n\
    without a request to the node. If there is no region, the node has ended, or this user may not read the region,\n\
    the command asks the socket. --json (via: region or socket) and --long report which one was used.\n\n\
    Exit status 1 if the key does not exist, or has no value yet.")]
pub(crate) struct GetArgs {
    /// Key
    key: String,
    /// Also print its time, age and freshness
    #[arg(short, long, conflicts_with = "json")]
    long: bool,
    /// Print one JSON object: key, value, type, time_ms (rounded down), time_ns (exact, as text), age_ms, fresh,
    /// validity_ms, temporal, node_time, clock_trusted, this_boot, via. If a broker had kept the value, also retained
    #[arg(long)]
    json: bool,
    /// Where to read the value
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    via: Via,
    /// Region of the node [default: the region that a file beside the node's socket names]
    #[arg(long, value_name = "REGION")]
    region: Option<PathBuf>,
    /// Name of the file with the values in that region
    #[arg(long, value_name = "NAME", default_value = REGION_TABLE, requires = "region")]
    table: String,
    #[command(flatten)]
    node: NodeArgs,
}

/// Where a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// The region if possible, else the socket
    Auto,
    /// The node's region
    Region,
    /// The node's socket
    Socket,
}

/// The parts of the node's answer that are shown to people.
#[derive(Debug, Deserialize)]
pub(super) struct Latest {
    pub(super) key: String,
    pub(super) value: serde_json::Value,
    #[serde(rename = "type")]
    pub(super) kind: String,
    time_ms: i64,
    #[serde(default)]
    time_ns: Option<Nanoseconds>,
    age_ms: i64,
    fresh: bool,
    temporal: bool,
    node_time: bool,
    clock_trusted: bool,
    #[serde(default)]
    retained: bool,
}

impl Latest {
    pub(super) fn time(&self) -> Time {
        Nanoseconds::or_ms(self.time_ns, self.time_ms)
    }
}

pub(super) fn run(arguments: &GetArgs) -> Result<u8, CliError> {
    let (found, via) = find(arguments)?;
    let mut output = Output::new();
    if arguments.json {
        let mut found = completed(found);
        if let Some(fields) = found.as_object_mut() {
            fields.insert("via".to_owned(), via.into());
        }
        output.json(&found)?;
    } else {
        let found: Latest = serde_json::from_value(found).map_err(|error| strange(via, error))?;
        output.line(printable(&value_text(&found.value, &found.kind)))?;
        if arguments.long {
            output.line(format!(
                "time     {}{}",
                format_time(found.time()),
                notes(&found)
            ))?;
            output.line(format!("age      {}", age_text(found.age_ms)))?;
            let fresh = match (found.temporal, found.fresh) {
                (false, _) => "not expected to be updated",
                (true, true) => "yes",
                (true, false) => "no",
            };
            output.line(format!("fresh    {fresh}"))?;
            output.line(format!("via      {via}"))?;
        }
    }
    output.flush()?;
    Ok(0)
}

/// Returns the value as a node answers it, and the way by which it came.
fn find(arguments: &GetArgs) -> Result<(serde_json::Value, &'static str), CliError> {
    let key = &arguments.key;
    // A region can be named without a node.
    let endpoint = Endpoint::of(&arguments.node);
    let values = match (&arguments.region, &endpoint) {
        _ if arguments.via == Via::Socket => Ok(None),
        (Some(region), _) => Ok(Some(Values::named(region, &arguments.table))),
        (None, Ok(endpoint)) => Values::beside(&endpoint.socket),
        (None, Err(_)) => Ok(None),
    };
    let no_answer = match values.map(|values| values.map(|values| values.get(key))) {
        Ok(Some(Ok(found))) => return Ok((found, "region")),
        Ok(Some(Err(NoAnswer::Refused(error)))) => return Err(error),
        Ok(Some(Err(NoAnswer::Unusable(error)))) | Err(error) => Some(error),
        Ok(None) => None,
    };
    let endpoint = match (endpoint, no_answer) {
        (Ok(endpoint), no_answer) if arguments.via == Via::Region => {
            return Err(no_answer.unwrap_or_else(|| not_announced(&endpoint)));
        }
        (Ok(endpoint), _) => endpoint,
        (Err(error), no_answer) => return Err(no_answer.unwrap_or(error)),
    };
    let asked = protocol::Get { key: key.clone() };
    let found = Connection::to(endpoint)?.ask(Kind::Get, &asked, Kind::Value)?;
    Ok((found, "socket"))
}

fn not_announced(endpoint: &Endpoint) -> CliError {
    CliError::failure(
        endpoint.shown(),
        "no node says beside this socket that it keeps its values in a region",
        "start it with [region] in its configuration, name the region with --region, or ask the node with --via socket",
    )
}

/// Returns where the time of a value comes from, if that is notable.
pub(super) fn notes(found: &Latest) -> &'static str {
    match (found.retained, found.node_time, found.clock_trusted) {
        (false, false, _) => "",
        (false, true, true) => " (by the node's clock)",
        (false, true, false) => " (by the node's clock, which was not trusted)",
        (true, false, _) => " (retained by the broker)",
        (true, true, _) => " (of its arrival; retained by the broker, so its age is unknown)",
    }
}
