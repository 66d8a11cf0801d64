//! The commands of several boards: measuring them, comparing what was measured.

use super::job::{ClusterJobArgs, ClusterRankArgs, ClusterRunArgs};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel cluster measure --hosts hosts --label yocto --out yocto.jsonl\n  \
    keel cluster report yocto.jsonl fedora.jsonl --csv boards.csv --plots plots\n  \
    keel cluster run vibration --hosts hosts --input day.csv\n  \
    keel cluster run k-means --local 2 --key pump/vibration --from -1d\n\n\
    Except with --local, each board needs the program keel-mpi and an MPI, MPICH or Open MPI; docs/boards.md\n\
    explains this.")]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Measure messages between boards: the eight benchmarks of MPBench
    #[command(after_help = "Examples:\n  \
        keel cluster measure --hosts hosts                     all sizes, until intervals are narrow\n  \
        keel cluster measure --hosts hosts --compat mpbench    as the original MPBench does it\n  \
        keel cluster measure --hosts hosts --only latency --sizes 4,1024 --json\n\n\
        FILE of --hosts has one board per line: NAME, NAME:RANKS or NAME slots=RANKS. `localhost:2` measures this\n\
        machine. Each board has keel-mpi at the same path, and accepts ssh without a prompt. Messages are checked\n\
        before they are timed. The median of another run lies in the interval with a probability of 95 %.\n\
        crates/cluster/SPEC.md describes the file of --out. docs/boards.md is a guide to a first measurement.")]
    Measure(Box<ClusterMeasureArgs>),
    /// Compare labelled results in tables, CSV or plots
    #[command(after_help = "Examples:\n  \
        keel cluster report fedora.jsonl clear.jsonl yocto.jsonl\n  \
        keel cluster report one.jsonl --json\n  \
        keel cluster report a.jsonl b.jsonl --csv out.csv --plots plots\n  \
        keel cluster report --thesis b1.jsonl b2.jsonl --machine nuc.jsonl --plots thesis\n\n\
        Ratios are times ÷ those of the first file. `better` and `worse` mean that the whole interval lies on that\n\
        side of 1.")]
    Report(ClusterReportArgs),
    /// Run a job on readings, on several boards or on several ranks of this machine
    #[command(after_help = "Examples:\n  \
        keel cluster run vibration --hosts hosts --input day.csv --out features.csv\n  \
        keel cluster run k-means --hosts hosts --key pump/vibration --from -1d --retry\n  \
        keel cluster run matrix-profile --local 2 --input day.csv --column current --window 120 --json\n\n\
        Each board needs keel-mpi and an MPI, but not the readings: rank 0 sends them. Unusable rows are left out\n\
        and counted; no window spans a gap. The result is compared with that of one rank: exit status 1 if they\n\
        differ. A board that dies or is silent for --silence-seconds-max is named; --retry runs again on the other\n\
        boards. --local needs no MPI.")]
    Run(Box<ClusterRunArgs>),
    /// Run a job of the configuration once, as the node does in each period
    #[command(after_help = "Examples:\n  \
        keel cluster job bearing\n  \
        keel cluster job bearing -c /etc/keel/keel.toml\n\n\
        The command prints one JSON object: where the job ran and why, and the result, which also replaces the file\n\
        of job.out. Measured figures are kept beside that file, with .figures.json; without them the job is\n\
        measured again.")]
    Job(ClusterJobArgs),
    /// One rank of `keel cluster run --local`; started by it
    #[command(hide = true)]
    Rank(ClusterRankArgs),
}

/// The boards, and how ranks are started there.
#[derive(Debug, Args)]
pub(crate) struct BoardsArgs {
    /// File with one board per line
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: PathBuf,
    /// Path of the program keel-mpi on each board [default: beside keel, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Launcher of MPI [default: launcher of the MPI that keel-mpi is built with, in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Program to use instead of ssh, called as PROGRAM [options] HOST COMMAND
    #[arg(long, value_name = "PATH")]
    pub(crate) launcher: Option<PathBuf>,
    /// Address at which boards reach this machine, such as 10.77.0.254/24
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) address: Option<String>,
    /// Network interface of the boards that carries messages, such as eth0
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Send through TCP only, even between ranks that share memory; needs two hosts
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Additional argument for MPI's launcher; may be repeated
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub(crate) mpi_arg: Vec<String>,
    /// Maximum duration of the command, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Timeout after which to give up if nothing arrives, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) silence_seconds_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compat {
    /// 100 iterations after a first one, caches emptied before each repetition and size, timed by rank 0
    Mpbench,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterMeasureArgs {
    #[command(flatten)]
    pub(crate) boards: BoardsArgs,
    /// Name of the run in comparisons
    #[arg(long, value_name = "NAME", default_value = "run", value_parser = label)]
    pub(crate) label: String,
    /// Measure in the way of another suite
    #[arg(long, value_name = "SUITE")]
    pub(crate) compat: Option<Compat>,
    /// New file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Sizes of messages, in bytes, multiples of 4 [default: the powers of two from 4 to 4194304]
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(4..=cluster::measure::BYTES_MAX))]
    pub(crate) sizes: Vec<u64>,
    /// Run only these benchmarks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Maximum number of starts, from 3 to 100
    #[arg(long, value_name = "N", default_value_t = 12, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u32).range(3..=100))]
    pub(crate) starts_max: u32,
    /// Minimum interval between the beginnings of two starts, in s, from 0 to 3600: other load and the speed of a
    /// machine often stay the same for longer than a start takes
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) start_seconds: u64,
    /// Half width of an interval that is narrow enough, in percent of the median, above 0 and up to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, conflicts_with_all = ["compat", "samples"],
        value_parser = percent)]
    pub(crate) half_width_percent: f64,
    /// Measure one start, with this number of samples of each case
    #[arg(long, value_name = "N", conflicts_with = "compat",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) samples: Option<u32>,
    /// Number of operations in a sample [default: as many as take 100 µs; with --compat 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Number of repetitions of each case, with --compat
    #[arg(long, value_name = "N", default_value_t = 5, requires = "compat",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repetitions: u32,
    /// Also measure the power of each board during each benchmark; reads of sensors use a rank's core for a moment
    #[arg(long)]
    pub(crate) power: bool,
    /// Time without load before each start, for idle power, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 2, requires = "power",
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Also read the power chip of each Raspberry Pi 5 with vcgencmd, ten times a second
    #[arg(long, requires = "power")]
    pub(crate) pmic: bool,
    /// Use only power sensors whose name contains this text
    #[arg(long, value_name = "TEXT", requires = "power")]
    pub(crate) sensor: Option<String>,
    /// Folder to use instead of / where boards look for sensors
    #[arg(long, value_name = "DIR", default_value = "/", requires = "power")]
    pub(crate) root: PathBuf,
    /// CSV file that the program of a power meter keeps writing: power of all boards together, besides their own
    /// sensors
    #[arg(long, value_name = "FILE", requires = "power")]
    pub(crate) meter: Option<PathBuf>,
    /// Do not bind ranks to cores
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Rate of the link, in Mbit/s, to note in the file
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) link_mbit: Option<u64>,
    /// Number of bytes that pass before that rate applies, to note in the file
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) link_burst: Option<u64>,
}

/// What a run is called: as result files take it.
pub(super) fn label(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
        return Err("must have 1 to 200 bytes and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A share that is one.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("must be a number above 0 and up to 100, such as 5".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ClusterReportArgs {
    /// Result files; the others are compared with the first
    #[arg(value_name = "FILE", required_unless_present = "thesis")]
    pub(crate) files: Vec<PathBuf>,
    /// Print the thesis's efficiency figures, from its power tables and from the files
    #[arg(long)]
    pub(crate) thesis: bool,
    /// Result file of a larger machine to compare the boards with; may be repeated. Unmeasured watts are those of the
    /// thesis's NUC
    #[arg(long, value_name = "FILE", requires = "thesis")]
    pub(crate) machine: Vec<PathBuf>,
    /// File for the cells, as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "thesis")]
    pub(crate) csv: Option<PathBuf>,
    /// File for the power of each benchmark, as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "thesis")]
    pub(crate) power_csv: Option<PathBuf>,
    /// Folder for a plot of each benchmark, as SVG; with --thesis for each figure, as SVG and CSV
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
