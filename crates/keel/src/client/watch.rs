//! `keel watch`: changes as they occur.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use super::get::{Latest, notes};
use super::value::{completed, printable, value_text};
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use libkeel::protocol::{self, Kind};
use node::time_text::format_time;
use serde::Deserialize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel watch 'room/+/temperature'\n  \
    keel watch '#' --current --count 10\n  \
    keel watch room/1/temperature --json | jq .value\n\n\
    The node checks for changes 20 times a second. If a key changes several times between two checks, the command\n\
    prints the latest change and counts the others on standard error. The history contains all of them.")]
pub(crate) struct WatchArgs {
    /// Key or pattern: + stands for one level, # for the rest
    pattern: String,
    /// Also print the current values at the start
    #[arg(long)]
    current: bool,
    /// Number of changes after which to end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object per line, with the fields of `keel get --json`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

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
