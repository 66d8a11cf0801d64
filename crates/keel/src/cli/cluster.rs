//! The commands of power and advice.

use super::{KernelArgs, ReadingsArgs};
use crate::kernel::Kernel;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel power watch                             the readings of this machine's sensors, every second\n  \
    keel power record --out run.jsonl -- ./job   average, maximum, minimum, idle and energy of a program\n\n\
    docs/cluster.md lists the sensors and what each of them covers.")]
pub(crate) struct PowerArgs {
    #[command(subcommand)]
    pub(crate) command: PowerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PowerCommand {
    /// Print the readings of each sensor, until Ctrl-C
    #[command(after_help = "Examples:\n  \
        keel power watch --count 1\n  \
        keel power watch --meter /var/log/meter.csv --json\n\n\
        Each value is measured, modelled (with the formula's source) or unavailable (with the reason). Exit\n\
        status 1 if there is no sensor, or no sensor gave a value in all readings of --count.")]
    Watch(PowerWatchArgs),
    /// Summarise the power of a program and the idle power before and after, in a result file
    #[command(after_help = "Examples:\n  \
        keel power record --out run.jsonl -- ./job --input day.csv\n  \
        keel power record --out idle.jsonl --seconds 60\n  \
        keel power record --out power.jsonl --per-benchmark -- keel cluster measure --hosts hosts --only {}\n\n\
        crates/cluster/SPEC.md describes the file. Exit status 1 if no sensor gave a value or the program failed;\n\
        the file is written nevertheless. Without any sensor the program is not started.")]
    Record(PowerRecordArgs),
}

/// Selection of sensors.
#[derive(Debug, Args)]
pub(crate) struct PowerSourceArgs {
    /// CSV file that the program of a power meter keeps writing, with columns time_s or time_ms, and watts or power_w
    #[arg(long, value_name = "FILE")]
    pub(crate) meter: Option<PathBuf>,
    /// Read the power chip of a Raspberry Pi 5 with vcgencmd
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Use only sensors whose name contains this text
    #[arg(long, alias = "source", value_name = "TEXT")]
    pub(crate) sensor: Option<String>,
    /// Folder to use instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PowerWatchArgs {
    #[command(flatten)]
    pub(crate) sources: PowerSourceArgs,
    /// Interval between two readings, in ms, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) interval_ms: u64,
    /// Number of readings after which to end; energy counters need one more before the first [default: no end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PowerRecordArgs {
    #[command(flatten)]
    pub(crate) sources: PowerSourceArgs,
    /// New file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Name of the run in comparisons
    #[arg(long, value_name = "NAME", default_value = "power", value_parser = super::boards::label)]
    pub(crate) label: String,
    /// Time without load before and after, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Time to record, in s, instead of running a program
    #[arg(long, value_name = "N", conflicts_with = "command", required_unless_present = "command",
        value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub(crate) seconds: Option<u64>,
    /// Run CMD once for each of the eight benchmarks, with {} replaced by its name
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) per_benchmark: bool,
    /// Interval between two readings, in ms, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) interval_ms: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Program to run, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Where data may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataMayGo {
    /// Data stays on this board
    Board,
    /// Data may go to the neighbouring boards
    Neighbours,
    /// Data may also go to a data centre
    Anywhere,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel advise --job job.json\n  \
    keel advise --job job.json --deadline 30 --assume --json | jq .advised\n  \
    keel advise --kernel vibration --input day.csv --data-may-go neighbours --assume\n  \
    keel advise --kernel k-means --key pump/vibration --job prices.json --write job.json\n  \
    keel advise --job job.json --link yocto.jsonl\n\n\
    The file contains figures, each with its source; docs/cluster.md has an example. --kernel measures a job on\n\
    this board, on growing parts of the readings, and takes time, parallel fraction, messages and sizes from that;\n\
    all other figures come from the file. Missing figures are an error, unless --assume replaces them by values\n\
    known from elsewhere; the answer then names them. Exit status 3 if no option meets the deadline with the\n\
    required probability.")]
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
    /// Approximate time for measuring, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 20, requires = "kernel",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) measure_seconds: u64,
    /// Result of `keel cluster measure` with round trips between boards, for the time of messages
    #[arg(long, value_name = "FILE")]
    pub(crate) link: Option<PathBuf>,
    /// New file for the question with all of its figures, to use with --job
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Use values known from elsewhere for missing figures
    #[arg(long)]
    pub(crate) assume: bool,
    /// Deadline for the result, in s, instead of the file's
    #[arg(long, value_name = "SECONDS", value_parser = super::job::seconds)]
    pub(crate) deadline: Option<f64>,
    /// Number of boards that could be used, instead of the file's [default without a file: 4]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::advisor::BOARDS_MAX)))]
    pub(crate) boards: Option<u32>,
    /// Where data may go, instead of the file's [default without a file: anywhere]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) data_may_go: Option<DataMayGo>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl AdviseArgs {
    /// Returns an option that says something of the job to be measured.
    pub(crate) fn said_of_job(&self) -> Option<&'static str> {
        let readings = [
            ("--input", self.readings.input.is_some()),
            ("--key", self.readings.key.is_some()),
        ];
        let mut said = readings.into_iter().chain(self.settings.said());
        said.find(|(_, is_said)| *is_said).map(|(option, _)| option)
    }
}
