//! `keel history` and `keel export`.

use super::NodeArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

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
    pub(crate) format: ExportFormat,
    /// Keys to print: + stands for one level, # for the rest [default: all]
    #[arg(value_name = "PATTERN", default_value = "#", hide_default_value = true)]
    pub(crate) patterns: Vec<String>,
    /// Start of the time range, included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End of the time range, not included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Read this store; no node may have it open
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["node", "config"])]
    pub(crate) image: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

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
    pub(crate) key: String,
    /// Start of the time range, included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End of the time range, not included
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Number of readings after which to end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Print one JSON array
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Comma-separated values with a header
    #[arg(long)]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}
