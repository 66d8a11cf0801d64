//! `keel history` and `keel export`.

use super::NodeArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How readings are written.
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
    From a running node readings come key by key, each in the order of its arrival, with times corrected as in\n\
    `keel history`. --image reads a store that no node has open: all keys in the order of arrival, with times as they\n\
    were recorded.\n\n\
    --format csv: key, time, time_ms, value, type, node_time, clock_trusted (empty with --image: not known), lsn.\n\
    --format line: keel,key=KEY value=VALUE TIME_NS, as upstreams get it. What a line cannot write (NaN, infinite,\n\
    a text with a line break) is left out and counted on standard error.\n\n\
    Exit status 1, after everything that is readable, when damage hides a part, or something was left out.")]
pub(crate) struct ExportArgs {
    /// How readings are written
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    /// Keys that are wanted: + stands for one level, # for the rest [default: all]
    #[arg(value_name = "PATTERN", default_value = "#", hide_default_value = true)]
    pub(crate) patterns: Vec<String>,
    /// Earliest time
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// First time no longer wanted
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Read this store, which no node has open
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
    Times: RFC 3339; a local date, perhaps with a time of day; now; -90s, -15m, -1h30m, -7d, -2w, +5m; seconds or\n\
    milliseconds since 1970. --from is included, --to is not. Readings come in the order of their arrival,\n\
    which need not be that of their times. A time that the node gave before its clock was right is corrected\n\
    once it is; recorded_ms is then what it was.\n\n\
    --json prints one array with one object per line: time, time_ms, value, type, recorded_ms (or null),\n\
    node_time, clock_trusted, lsn. --csv prints the same columns under a header.\n\
    Exit status 1, after everything that is readable, when damage hides part of the history.")]
pub(crate) struct HistoryArgs {
    /// Key
    pub(crate) key: String,
    /// Earliest time
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// First time no longer wanted
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// End after so many readings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// One JSON array
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Comma-separated values with a header
    #[arg(long)]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}
