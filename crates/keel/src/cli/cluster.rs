//! The commands of power and advice.

use super::{KernelArgs, ReadingsArgs};
use crate::kernel::Kernel;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel power watch                             what the sensors of this machine say, each second\n  \
    keel power record --out run.jsonl -- ./job   average, maximum, minimum, idle and energy of a program\n\n\
    docs/cluster.md says which sensors there are and what each covers.")]
pub(crate) struct PowerArgs {
    #[command(subcommand)]
    pub(crate) command: PowerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PowerCommand {
    /// Print what each sensor says, until Ctrl-C
    #[command(after_help = "Examples:\n  \
        keel power watch --count 1\n  \
        keel power watch --meter /var/log/meter.csv --json\n\n\
        Each value is measured, modelled (with the formula's source) or unavailable (with the reason). Exit status 1\n\
        when there is no sensor, or none gave a value in all readings of --count.")]
    Watch(PowerWatchArgs),
    /// Sum up what each sensor says while a program runs, with idle power before and after, in a result file
    #[command(after_help = "Examples:\n  \
        keel power record --out run.jsonl -- ./job --input day.csv\n  \
        keel power record --out idle.jsonl --seconds 60\n  \
        keel power record --out power.jsonl --per-benchmark -- keel cluster measure --hosts hosts --only {}\n\n\
        The file is described in crates/cluster/SPEC.md. Exit status 1 when no sensor gave a value, or the program\n\
        failed; the file is written all the same. Without any sensor the program is not started.")]
    Record(PowerRecordArgs),
}

/// Which sensors.
#[derive(Debug, Args)]
pub(crate) struct PowerSourceArgs {
    /// CSV file that the program of a meter goes on writing, with columns time_s or time_ms, and watts or power_w
    #[arg(long, value_name = "FILE")]
    pub(crate) meter: Option<PathBuf>,
    /// Ask the power chip of a Raspberry Pi 5 by vcgencmd
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Only sensors whose name has this in it
    #[arg(long, alias = "source", value_name = "TEXT")]
    pub(crate) sensor: Option<String>,
    /// Folder that stands for /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PowerWatchArgs {
    #[command(flatten)]
    pub(crate) sources: PowerSourceArgs,
    /// Milliseconds between two readings, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) interval_ms: u64,
    /// Readings after which to end; counters of energy need one more before the first [default: no end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PowerRecordArgs {
    #[command(flatten)]
    pub(crate) sources: PowerSourceArgs,
    /// File to write: a new one
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// What the run is called in comparisons
    #[arg(long, value_name = "NAME", default_value = "power", value_parser = super::boards::label)]
    pub(crate) label: String,
    /// Seconds without load before and after, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Seconds to record, instead of a program
    #[arg(long, value_name = "N", conflicts_with = "command", required_unless_present = "command",
        value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub(crate) seconds: Option<u64>,
    /// Once for each of the eight benchmarks, whose name stands for {} in CMD
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) per_benchmark: bool,
    /// Milliseconds between two readings, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) interval_ms: u64,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Program to run, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Where data may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataMayGo {
    /// They stay on this board
    Board,
    /// To the boards beside it
    Neighbours,
    /// Also to a data centre
    Anywhere,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel advise --job job.json\n  \
    keel advise --job job.json --deadline 30 --assume --json | jq .advised\n  \
    keel advise --kernel vibration --input day.csv --data-may-go neighbours --assume\n  \
    keel advise --kernel k-means --key pump/vibration --job prices.json --write job.json\n\n\
    The file holds figures, each with where it comes from; docs/cluster.md has one to begin with. --kernel measures a\n\
    job on this board, on growing parts of the readings, and takes time, parallel fraction, messages and sizes from\n\
    that; all other figures are the file's. Missing figures are refused, unless --assume takes what is known from\n\
    elsewhere; the answer then says which. Exit status 3 when no option meets the deadline with the required\n\
    probability.")]
pub(crate) struct AdviseArgs {
    /// File with the question, in JSON; - is standard input
    #[arg(long, value_name = "FILE", required_unless_present = "kernel")]
    pub(crate) job: Option<PathBuf>,
    /// Measure this job on this board
    #[arg(long, value_enum, value_name = "JOB")]
    pub(crate) kernel: Option<Kernel>,
    #[command(flatten)]
    pub(crate) readings: ReadingsArgs,
    #[command(flatten)]
    pub(crate) settings: KernelArgs,
    /// Seconds for measuring, about, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 20, requires = "kernel",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) measure_seconds: u64,
    /// Write the question with all of its figures: a new file, for --job
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Take what is known from elsewhere for figures that are missing
    #[arg(long)]
    pub(crate) assume: bool,
    /// Seconds in which the result has to be there, instead of the file's
    #[arg(long, value_name = "SECONDS", value_parser = super::job::seconds, allow_hyphen_values = true)]
    pub(crate) deadline: Option<f64>,
    /// Boards that could be used, instead of the file's [default without a file: 4]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::advisor::BOARDS_MAX)))]
    pub(crate) boards: Option<u32>,
    /// Where data may go, instead of the file's [default without a file: anywhere]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) data_may_go: Option<DataMayGo>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
