//! `keel watch`: changes as they occur.

use super::get::{Latest, notes};
use super::{Connection, completed, printable, strange, value_text};
use crate::cli::WatchArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::time_text::format_time;
use libkeel::protocol::{self, Kind};
use serde::Deserialize;

/// One answer of a watch; each update stays as received.
#[derive(Debug, Deserialize)]
struct Updates {
    updates: Vec<serde_json::Value>,
    missed: u64,
}

pub(super) fn run(arguments: &WatchArgs) -> Result<u8, CliError> {
    if let Err(error) = ingest::pattern::check(&arguments.pattern) {
        let remedy = "write a key, + for one level, or # for the rest";
        return Err(CliError::usage(&arguments.pattern, error, remedy));
    }
    let mut connection = Connection::open(&arguments.node)?;
    let asked = protocol::Watch {
        pattern: arguments.pattern.clone(),
        current: arguments.current,
    };
    connection.send(Kind::Watch, &asked)?;
    let mut output = Output::new();
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && output.is_open() {
        // There may be no change for days: a reader that has gone must be noticed before the next change.
        let Some(answer) = connection.answer_to_reader()? else {
            return Ok(0);
        };
        if answer.kind == Kind::End {
            let wrong = "the node has ended the watch";
            return Err(CliError::failure(
                answer.shown,
                wrong,
                "look whether it still runs",
            ));
        }
        let Updates { updates, missed } = answer.read()?;
        for update in updates
            .into_iter()
            .take(usize::try_from(left).unwrap_or(usize::MAX))
        {
            left -= 1;
            if arguments.json {
                output.json(&completed(update))?;
                continue;
            }
            let found: Latest =
                serde_json::from_value(update).map_err(|error| strange("node", error))?;
            let value = printable(&value_text(&found.value, &found.kind));
            let (time, key) = (format_time(found.time()), printable(&found.key));
            output.line(format!("{time}  {key}  {value}{}", notes(&found)))?;
        }
        if missed > 0 {
            eprintln!("keel: {missed} changes came too fast to be shown");
        }
        output.flush()?;
    }
    Ok(0)
}
