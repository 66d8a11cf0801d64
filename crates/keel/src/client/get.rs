//! `keel get`: the latest value of a key.

use super::place::Place;
use super::region::{Untold, Values};
use super::{Connection, completed, printable, strange, value_text};
use crate::cli::{GetArgs, Via};
use crate::error::CliError;
use crate::output::Output;
use crate::time_text::{age_text, format_time};
use db::Time;
use libkeel::protocol::{self, Kind, Nanoseconds};
use serde::Deserialize;

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
    let place = Place::of(&arguments.node);
    let values = match (&arguments.region, &place) {
        _ if arguments.via == Via::Socket => Ok(None),
        (Some(region), _) => Ok(Some(Values::named(region, &arguments.table))),
        (None, Ok(place)) => Values::beside(&place.socket),
        (None, Err(_)) => Ok(None),
    };
    let untold = match values.map(|values| values.map(|values| values.get(key))) {
        Ok(Some(Ok(found))) => return Ok((found, "region")),
        Ok(Some(Err(Untold::Refused(error)))) => return Err(error),
        Ok(Some(Err(Untold::Unusable(error)))) | Err(error) => Some(error),
        Ok(None) => None,
    };
    let place = match (place, untold) {
        (Ok(place), untold) if arguments.via == Via::Region => {
            return Err(untold.unwrap_or_else(|| not_announced(&place)));
        }
        (Ok(place), _) => place,
        (Err(error), untold) => return Err(untold.unwrap_or(error)),
    };
    let asked = protocol::Get { key: key.clone() };
    let found = Connection::to(place)?.ask(Kind::Get, &asked, Kind::Value)?;
    Ok((found, "socket"))
}

fn not_announced(place: &Place) -> CliError {
    CliError::failure(
        place.shown(),
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
