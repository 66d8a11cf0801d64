//! `keel history`: the readings of a key, in the order of arrival.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use super::time::{now_ms, parse_time};
use super::value::{completed, printable, value_text};
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use db::Time;
use libkeel::protocol::{self, End, Kind, Nanoseconds};
use node::time_text::format_time;
use serde::Deserialize;
use serde_json::value::Value;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel history room/1/temperature --from -1h\n  \
    keel history room/1/temperature --from 2026-03-01 --to 2026-03-02 --csv > march-1.csv\n  \
    keel history room/1/temperature --from 2026-03-01T12:00:00+01:00 --to now --json\n\n\
    Times: RFC 3339; a local date, with or without a time of day; now; -90s, -15m, -1h30m, -7d, -2w, +5m; seconds\n\
    or milliseconds since 1970. --from is included, --to is not. Readings are printed in order of arrival, which\n\
    may differ from the order of their times. A time that the node gave before its clock was right is corrected\n\
    once the clock is right; recorded_ms is then the original time.\n\n\
    --json prints one array with one object per line: time, time_ms (rounded down), time_ns (exact, as text),\n\
    value, type, recorded_ms and recorded_ns (or null), node_time, clock_trusted, lsn. --csv prints time, time_ms,\n\
    value, type, recorded_ms, node_time, clock_trusted, lsn and time_ns under a header. time has three digits behind\n\
    the second, or nine if it is no whole millisecond.\n\
    Exit status 1, after everything that is readable, if damage hides part of the history.")]
pub(crate) struct HistoryArgs {
    /// Key
    key: String,
    /// Start of the time range, included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    from: Option<String>,
    /// End of the time range, not included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    to: Option<String>,
    /// Number of readings after which to end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print one JSON array
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Comma-separated values with a header
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// One reading.
#[derive(Debug, Deserialize)]
struct Reading {
    time_ms: i64,
    #[serde(default)]
    time_ns: Option<Nanoseconds>,
    value: Value,
    #[serde(rename = "type")]
    kind: String,
    recorded_ms: Option<i64>,
    #[serde(default)]
    recorded_ns: Option<Nanoseconds>,
    node_time: bool,
    clock_trusted: bool,
    lsn: u64,
}

impl Reading {
    fn time(&self) -> Time {
        Nanoseconds::or_ms(self.time_ns, self.time_ms)
    }

    /// Returns the time as it was recorded, if it has been corrected since.
    fn recorded(&self) -> Option<Time> {
        let ms = self.recorded_ms?;
        Some(Nanoseconds::or_ms(self.recorded_ns, ms))
    }
}

#[derive(Debug, Deserialize)]
struct Readings {
    readings: Vec<Reading>,
}

/// The output format of the readings.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Lines,
    Csv,
    Json,
}

pub(super) fn run(arguments: &HistoryArgs) -> Result<u8, CliError> {
    let now_ms = now_ms();
    let time = |text| parse_time(text, now_ms);
    let from = arguments.from.as_deref().map(time).transpose()?;
    let to = arguments.to.as_deref().map(time).transpose()?;
    if let (Some(from), Some(to)) = (from, to)
        && from >= to
    {
        let wrong = format!(
            "no time lies between --from {} and --to {}",
            format_time(from),
            format_time(to)
        );
        return Err(CliError::usage(
            "command line",
            wrong,
            "--to must be later: it is the first time no longer wanted",
        ));
    }
    let asked = protocol::History::new(arguments.key.clone(), from, to, arguments.limit);
    let form = match (arguments.json, arguments.csv) {
        (true, _) => Form::Json,
        (false, true) => Form::Csv,
        (false, false) => Form::Lines,
    };
    let mut connection = Connection::open(&arguments.node)?;
    connection.send(Kind::History, &asked)?;
    let mut output = Output::new();
    let mut count: u64 = 0;
    let ended = print(&mut connection, form, &mut output, &mut count);
    // The output of an aborted history must consist of whole lines; if it never began, nothing is printed.
    if ended.is_ok() && count == 0 {
        output.bytes(form.head())?;
    }
    if form == Form::Json && (ended.is_ok() || count > 0) {
        output.line("]")?;
    }
    output.flush()?;
    let Some(end) = ended? else { return Ok(0) };
    if end.records_damaged > 0 || end.readings_missing > 0 {
        return Err(CliError::failure(
            &asked.key,
            format!(
                "damage hides part of the history: {} places unreadable, {} readings missing",
                end.records_damaged, end.readings_missing
            ),
            "what is printed is sound; see `keel status`, and check the card",
        ));
    }
    Ok(0)
}

/// Passes the time and, if the value is one, the number of each reading of a key to `wanted` until it returns `false`.
/// Returns the number of places and readings that damage hides.
pub(crate) fn numbers(
    node: &NodeArgs,
    key: &str,
    from: Option<&str>,
    to: Option<&str>,
    mut wanted: impl FnMut(Time, Option<f64>) -> bool,
) -> Result<u64, CliError> {
    let now_ms = now_ms();
    let time = |text| parse_time(text, now_ms);
    let (from, to) = (from.map(time).transpose()?, to.map(time).transpose()?);
    let asked = protocol::History::new(key.to_owned(), from, to, None);
    let mut connection = Connection::open(node)?;
    connection.send(Kind::History, &asked)?;
    loop {
        let answer = connection.answer()?;
        match answer.kind {
            Kind::End => {
                let end: End = answer.read()?;
                return Ok(end.records_damaged.saturating_add(end.readings_missing));
            }
            Kind::Readings => {
                let Readings { readings } = answer.read()?;
                for reading in &readings {
                    if !wanted(reading.time(), reading.value.as_f64()) {
                        return Ok(0);
                    }
                }
            }
            other => return Err(strange(answer.shown, format!("{other:?}"))),
        }
    }
}

/// Prints and counts readings as they arrive; `None` when the output has no reader any more.
fn print(
    connection: &mut Connection,
    form: Form,
    output: &mut Output,
    count: &mut u64,
) -> Result<Option<End>, CliError> {
    loop {
        let answer = connection.answer()?;
        match answer.kind {
            Kind::End => return answer.read().map(Some),
            Kind::Readings => {
                let Readings { readings } = answer.read()?;
                for reading in &readings {
                    if *count == 0 {
                        output.bytes(form.head())?;
                    }
                    output.line(form.reading(reading, *count == 0))?;
                    *count += 1;
                }
            }
            other => return Err(strange(answer.shown, format!("{other:?}"))),
        }
        if !output.is_open() {
            return Ok(None);
        }
    }
}

impl Form {
    fn head(self) -> &'static [u8] {
        match self {
            Self::Lines => b"",
            Self::Csv => {
                b"time,time_ms,value,type,recorded_ms,node_time,clock_trusted,lsn,time_ns\n"
            }
            Self::Json => b"[\n",
        }
    }

    /// Returns one line.
    fn reading(self, reading: &Reading, is_first: bool) -> String {
        let time = format_time(reading.time());
        let text = value_text(&reading.value, &reading.kind);
        match self {
            Self::Lines => format!("{time}  {}{}", printable(&text), notes(reading)),
            Self::Csv => {
                let value = if reading.value.is_null() {
                    String::new()
                } else {
                    text
                };
                format!(
                    "{time},{},{},{},{},{},{},{},{}",
                    reading.time_ms,
                    csv(&value),
                    reading.kind,
                    reading
                        .recorded_ms
                        .map_or(String::new(), |ms| ms.to_string()),
                    reading.node_time,
                    reading.clock_trusted,
                    reading.lsn,
                    ns_text(reading.time())
                )
            }
            Self::Json => {
                let object = serde_json::json!({
                    "time": time,
                    "time_ms": reading.time_ms,
                    "time_ns": Nanoseconds::of(reading.time()),
                    "value": reading.value,
                    "type": reading.kind,
                    "recorded_ms": reading.recorded_ms,
                    "recorded_ns": reading.recorded().and_then(Nanoseconds::of),
                    "node_time": reading.node_time,
                    "clock_trusted": reading.clock_trusted,
                    "lsn": reading.lsn,
                });
                let object = completed(object);
                format!("{}{object}", if is_first { "" } else { "," })
            }
        }
    }
}

/// Returns notes about the time of a reading.
fn notes(reading: &Reading) -> String {
    match reading.recorded() {
        Some(recorded) => format!("  (time corrected, was {})", format_time(recorded)),
        None if reading.node_time && !reading.clock_trusted => "  (clock not trusted)".to_owned(),
        None => String::new(),
    }
}

/// Returns the column `time_ns`; empty for a time of an old record that no ns can count.
pub(super) fn ns_text(time: Time) -> String {
    Nanoseconds::of(time).map_or(String::new(), |ns| ns.to_string())
}

/// Returns a field of CSV (RFC 4180).
pub(super) fn csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_csv_are_quoted_where_they_must() {
        assert_eq!(csv("21.5"), "21.5");
        assert_eq!(csv("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }
}
