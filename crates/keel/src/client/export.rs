//! `keel export`: exports readings of many keys as CSV or lines, from a node or from a store that no process has open.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use super::history::{csv, ns_text};
use super::time::{now_ms, parse_time};
use super::value::value_text;
use crate::error::CliError;
use crate::output::Output;
use clap::{Args, ValueEnum};
use command::progress::Progress;
use db::Time;
use db::value::Value as Stored;
use libkeel::protocol::{self, End, KeyList, Kind, Nanoseconds};
use node::stores::open_alone;
use node::time_text::format_time;
use serde::Deserialize;
use serde_json::value::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The output format of readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Comma-separated values with a header
    Csv,
    /// Line protocol with times in nanoseconds
    Line,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel export --format csv > all.csv\n  \
    keel export --format line 'hall/#' --from -7d > week.lines\n  \
    keel export --format csv --image keel-data/store.img > all.csv\n\n\
    A running node sends the readings key by key, each key in order of arrival, with times corrected as in\n\
    `keel history`. --image reads a store that no node has open: all keys in order of arrival, with the recorded\n\
    times.\n\n\
    --format csv: key, time, time_ms (rounded down), value, type, node_time, clock_trusted (empty with --image: not\n\
    known), lsn, time_ns. time has three digits behind the second, or nine if it is no whole millisecond.\n\
    --format line: keel,key=KEY value=VALUE TIME_NS. Line breaks of a text stand within its quotes. Values that a\n\
    line cannot express (NaN, infinite, a text with line breaks whose last line ends in `name field=`) are left out\n\
    and counted on standard error.\n\n\
    Exit status 1, after everything that is readable, if damage hides a part or something was left out.")]
pub(crate) struct ExportArgs {
    /// Output format
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// Keys to print: + stands for one level, # for the rest [default: all]
    #[arg(value_name = "PATTERN", default_value = "#", hide_default_value = true)]
    patterns: Vec<String>,
    /// Start of the time range, included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    from: Option<String>,
    /// End of the time range, not included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    to: Option<String>,
    /// Read this store; no node may have it open
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["node", "config"])]
    image: Option<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
}

/// One reading of a node's answer.
#[derive(Deserialize)]
struct Reading {
    time_ms: i64,
    #[serde(default)]
    time_ns: Option<Nanoseconds>,
    value: Value,
    #[serde(rename = "type")]
    kind: String,
    node_time: bool,
    clock_trusted: bool,
    lsn: u64,
}

#[derive(Deserialize)]
struct Readings {
    readings: Vec<Reading>,
}

/// The parameters and results of an export.
struct Export<'a> {
    arguments: &'a ExportArgs,
    from: Option<Time>,
    to: Option<Time>,
    output: Output,
    progress: Progress,
    line: String,
    /// Readings that cannot be represented in lines, and readings hidden by damage.
    left_out: u64,
    damaged: u64,
    /// Segments that retention deleted while keys were read.
    segments_gone: u64,
}

pub(super) fn run(arguments: &ExportArgs) -> Result<u8, CliError> {
    for pattern in &arguments.patterns {
        base::pattern::check(pattern).map_err(|why| {
            let remedy = "write a key, + for one level, or # for the rest";
            CliError::usage(pattern, why, remedy)
        })?;
    }
    let now_ms = now_ms();
    let time = |text| parse_time(text, now_ms);
    let mut export = Export {
        arguments,
        from: arguments.from.as_deref().map(time).transpose()?,
        to: arguments.to.as_deref().map(time).transpose()?,
        output: Output::new(),
        progress: Progress::start("exporting".to_owned()),
        line: String::new(),
        left_out: 0,
        damaged: 0,
        segments_gone: 0,
    };
    if let (Some(from), Some(to)) = (export.from, export.to)
        && from >= to
    {
        let remedy = "--to must be later: it is the first time no longer wanted";
        return Err(CliError::usage(
            "command line",
            "no time lies between --from and --to",
            remedy,
        ));
    }
    if arguments.format == ExportFormat::Csv {
        export
            .output
            .line("key,time,time_ms,value,type,node_time,clock_trusted,lsn,time_ns")?;
    }
    let done = match &arguments.image {
        Some(image) => export.image(image),
        None => export.node(&arguments.node),
    };
    drop(export.progress);
    // The output of an aborted export must consist of whole lines.
    export.output.flush()?;
    done?;
    let (damaged, left_out) = (export.damaged, export.left_out);
    if export.segments_gone > 0 {
        eprintln!(
            "keel: export: retention deleted the oldest readings of {} reads of the log meanwhile; they are missing",
            export.segments_gone
        );
    }
    if damaged > 0 {
        return Err(CliError::failure(
            "export",
            format!("damage hides {damaged} readings or places of the log"),
            "what is written is sound; see `keel status`, and check the card",
        ));
    }
    if left_out > 0 {
        return Err(CliError::failure(
            "export",
            format!("{left_out} readings have no form in lines and are left out"),
            "take --format csv for them",
        ));
    }
    Ok(0)
}

impl Export<'_> {
    fn is_wanted(&self, key: &str) -> bool {
        let mut patterns = self.arguments.patterns.iter();
        patterns.any(|pattern| base::pattern::matches(pattern, key))
    }

    /// Exports key by key.
    fn node(&mut self, node: &NodeArgs) -> Result<(), CliError> {
        let mut connection = Connection::open(node)?;
        let mut keys = Vec::new();
        let mut from = Some(0);
        while let Some(first) = from {
            let asked = protocol::Keys {
                pattern: "#".to_owned(),
                from: first,
            };
            let list: KeyList = connection.ask(Kind::Keys, &asked, Kind::KeyList)?;
            keys.extend(list.keys.into_iter().filter(|key| self.is_wanted(key)));
            from = list.next.filter(|next| *next > first);
        }
        let count = keys.len();
        for (number, key) in keys.into_iter().enumerate() {
            self.progress
                .part(&format!("key {} of {count}", number + 1));
            let asked = protocol::History::new(key.clone(), self.from, self.to, None);
            connection.send(Kind::History, &asked)?;
            loop {
                let answer = connection.answer()?;
                match answer.kind {
                    Kind::End => {
                        let end: End = answer.read()?;
                        // Each read of a damaged segment finds the same damage, so take the maximum.
                        self.damaged = self
                            .damaged
                            .max(end.records_damaged.saturating_add(end.readings_missing));
                        self.segments_gone = self.segments_gone.saturating_add(end.segments_gone);
                        break;
                    }
                    Kind::Readings => {
                        let Readings { readings } = answer.read()?;
                        for reading in &readings {
                            self.reading(&key, reading)?;
                        }
                    }
                    other => return Err(strange(answer.shown, format!("{other:?}"))),
                }
                if !self.output.is_open() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn reading(&mut self, key: &str, reading: &Reading) -> Result<(), CliError> {
        let time = Nanoseconds::or_ms(reading.time_ns, reading.time_ms);
        if self.arguments.format == ExportFormat::Csv {
            let value = match reading.value.is_null() {
                true => String::new(),
                false => value_text(&reading.value, &reading.kind),
            };
            let (node_time, trusted) = (reading.node_time, reading.clock_trusted);
            let flags = format!("{node_time},{trusted}");
            return self.csv(key, time, &value, &reading.kind, &flags, reading.lsn);
        }
        let value = match (reading.kind.as_str(), &reading.value) {
            ("float", value) => value.as_f64().map(Stored::Float),
            ("integer", value) => value.as_i64().map(Stored::Integer),
            ("unsigned", value) => value.as_u64().map(Stored::Unsigned),
            ("boolean", value) => value.as_bool().map(Stored::Boolean),
            ("text", value) => value.as_str().map(Stored::Text),
            _ => None,
        };
        self.line(key, time, value)
    }

    /// Exports in the order of arrival.
    fn image(&mut self, image: &Path) -> Result<(), CliError> {
        let mut store = open_alone(image, false)?;
        let mut failed = None;
        let report = db::scan_log(&mut store, &mut |entry| {
            let time = entry.time;
            let Some(key) = entry.key else {
                return ControlFlow::Continue(());
            };
            let is_in_time =
                self.from.is_none_or(|from| time >= from) && self.to.is_none_or(|to| time < to);
            if !is_in_time || !self.is_wanted(key) {
                return ControlFlow::Continue(());
            }
            let value = Stored::decode(entry.value);
            let written = match self.arguments.format {
                ExportFormat::Csv => {
                    let (text, kind) = match &value {
                        Some(value) => (value.to_string(), kind_of(value)),
                        None => (String::new(), "bytes"),
                    };
                    self.csv(key, time, &text, kind, ",", entry.lsn)
                }
                ExportFormat::Line => self.line(key, time, value),
            };
            match written {
                Ok(()) if self.output.is_open() => ControlFlow::Continue(()),
                Ok(()) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let report = report.map_err(|error| {
            let remedy = "check it with `keel flash check`";
            CliError::coded(error.code(), image.display(), &error, remedy)
        })?;
        let damage = report.damage;
        self.damaged =
            report.readings_unnamed + damage.places_unreadable() + damage.readings_missing;
        Ok(())
    }

    fn csv(
        &mut self,
        key: &str,
        time: Time,
        value: &str,
        kind: &str,
        flags: &str,
        lsn: u64,
    ) -> Result<(), CliError> {
        let (key, value, time_ms, ns) = (csv(key), csv(value), time.ms(), ns_text(time));
        let time = format_time(time);
        let line = format!("{key},{time},{time_ms},{value},{kind},{flags},{lsn},{ns}");
        self.progress.add(line.len() + 1);
        self.output.line(line)
    }

    fn line(&mut self, key: &str, time: Time, value: Option<Stored<'_>>) -> Result<(), CliError> {
        let has_form = match value {
            Some(Stored::Float(value)) => value.is_finite(),
            Some(Stored::Text(text)) => egress::forward::has_line_form(text),
            Some(_) => true,
            None => false,
        };
        // Behind a tag's value a backslash would escape the space.
        let has_form = has_form && !key.ends_with('\\');
        let Some(value) = value.filter(|_| has_form) else {
            self.left_out += 1;
            return Ok(());
        };
        self.line.clear();
        ingest::line::write_line(
            &mut self.line,
            "keel",
            &[("key", key)],
            &[("value", value)],
            // In ns, the default unit of programs that read lines.
            Some(time.ns()),
        );
        self.progress.add(self.line.len() + 1);
        self.output.line(&self.line)
    }
}

fn kind_of(value: &Stored<'_>) -> &'static str {
    match value {
        Stored::Float(_) => "float",
        Stored::Integer(_) => "integer",
        Stored::Unsigned(_) => "unsigned",
        Stored::Boolean(_) => "boolean",
        Stored::Text(_) => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_text_has_a_form_if_a_node_finds_the_end_of_its_line(
            text in "[ab= ,#\"\\\\\r\n]{0,12}",
        ) {
            let mut line = String::new();
            let fields = [("value", Stored::Text(&text))];
            ingest::line::write_line(&mut line, "keel", &[("key", "a/b")], &fields, Some(1));
            let end = line.len();
            line.push('\n');
            let found = ingest::line::first_line_bytes(line.as_bytes());
            let has_form = egress::forward::has_line_form(&text);
            prop_assert_eq!(found == Some(end), has_form, "{:?}", text);
        }
    }
}
