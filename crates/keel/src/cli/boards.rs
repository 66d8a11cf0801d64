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
    But for --local it takes the program keel-mpi and an MPI, MPICH or Open MPI, on each board; docs/boards.md says\n\
    how.")]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Measure messages between boards: the eight benchmarks of MPBench
    #[command(after_help = "Examples:\n  \
        keel cluster measure --hosts hosts                     all sizes, until intervals are narrow\n  \
        keel cluster measure --hosts hosts --compat mpbench    as the original does it\n  \
        keel cluster measure --hosts hosts --only latency --sizes 4,1024 --json\n\n\
        FILE of --hosts has a board on each line: NAME, NAME:RANKS or NAME slots=RANKS. `localhost:2` measures this\n\
        machine. Each board has keel-mpi at the same path, and lets ssh in without a question. Messages are checked\n\
        before they are timed. Intervals are those in which the median of another run falls, at 95 %. The file of\n\
        --out is described in crates/cluster/SPEC.md. docs/boards.md leads through a first measurement.")]
    Measure(Box<ClusterMeasureArgs>),
    /// Compare labelled results: tables, CSV, plots
    #[command(after_help = "Examples:\n  \
        keel cluster report fedora.jsonl clear.jsonl yocto.jsonl\n  \
        keel cluster report one.jsonl --json\n  \
        keel cluster report a.jsonl b.jsonl --csv out.csv --plots plots\n  \
        keel cluster report --thesis b1.jsonl b2.jsonl --plots thesis\n\n\
        Ratios are times ÷ those of the first file. `better` and `worse`: the whole interval lies on that side of 1.")]
    Report(ClusterReportArgs),
    /// Run a job on readings, on several boards or on several ranks of this machine
    #[command(after_help = "Examples:\n  \
        keel cluster run vibration --hosts hosts --input day.csv --out features.csv\n  \
        keel cluster run k-means --hosts hosts --key pump/vibration --from -1d --retry\n  \
        keel cluster run matrix-profile --local 2 --input day.csv --column current --window 120 --json\n\n\
        Each board needs keel-mpi and an MPI. The readings need not be there: rank 0 sends them. Rows that cannot be\n\
        used are left out and counted; no window reaches across a gap. The answer is compared with that of one rank:\n\
        exit status 1 where it is another. A board that dies or says nothing for --silence-seconds-max is named;\n\
        --retry runs again on the others. --local takes no MPI.")]
    Run(Box<ClusterRunArgs>),
    /// Run a job of the configuration once, as the node does at its period
    #[command(after_help = "Examples:\n  \
        keel cluster job bearing\n  \
        keel cluster job bearing -c /etc/keel/keel.toml\n\n\
        Prints one JSON object: where it ran and why, and the result, which also replaces the file of job.out. What\n\
        was measured is kept beside that file, with .figures.json; without it the job is measured anew.")]
    Job(ClusterJobArgs),
    /// One rank of `keel cluster run --local`; started by it
    #[command(hide = true)]
    Rank(ClusterRankArgs),
}

/// Which boards, and how ranks get there.
#[derive(Debug, Args)]
pub(crate) struct BoardsArgs {
    /// File with a board on each line
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: PathBuf,
    /// The program keel-mpi, which each board has at this path [default: beside keel, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// MPI's launcher [default: that of the MPI which keel-mpi is built with, in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Program in place of ssh, called as PROGRAM [options] HOST COMMAND
    #[arg(long, value_name = "PATH")]
    pub(crate) launcher: Option<PathBuf>,
    /// Where boards reach this machine, such as 10.77.0.254/24
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) address: Option<String>,
    /// The boards' interface that carries messages, such as eth0
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Send through TCP alone, also where memory is shared
    #[arg(long)]
    pub(crate) tcp: bool,
    /// A further word for MPI's launcher; may be said several times
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub(crate) mpi_arg: Vec<String>,
    /// End after so many seconds, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Give up when nothing has come for so many seconds, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) silence_seconds_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compat {
    /// 100 iterations after one, caches emptied before each repetition and size, timed by rank 0
    Mpbench,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterMeasureArgs {
    #[command(flatten)]
    pub(crate) boards: BoardsArgs,
    /// What the run is called in comparisons
    #[arg(long, value_name = "NAME", default_value = "run", value_parser = label)]
    pub(crate) label: String,
    /// Do what another suite does
    #[arg(long, value_name = "SUITE")]
    pub(crate) compat: Option<Compat>,
    /// File to write: a new one
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Sizes of messages in bytes, multiples of 4 [default: the powers of two from 4 to 4194304]
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(4..=cluster::measure::BYTES_MAX))]
    pub(crate) sizes: Vec<u64>,
    /// Only these benchmarks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Starts at most, from 3 to 100
    #[arg(long, value_name = "N", default_value_t = 12, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u32).range(3..=100))]
    pub(crate) starts_max: u32,
    /// Seconds from the beginning of a start to that of the next at least, from 0 to 3600: what a machine is busy with
    /// besides, and how fast it is, often stays as it is for longer than a start takes
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) start_seconds: u64,
    /// Half of an interval's width ÷ the median that is narrow enough, in percent, above 0 and up to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, conflicts_with_all = ["compat", "samples"],
        value_parser = percent)]
    pub(crate) half_width_percent: f64,
    /// One start with so many samples of each case
    #[arg(long, value_name = "N", conflicts_with = "compat",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) samples: Option<u32>,
    /// Operations in a sample [default: as many as take 100 µs; with --compat 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Repetitions of each case, with --compat
    #[arg(long, value_name = "N", default_value_t = 5, requires = "compat",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repetitions: u32,
    /// Measure also what each board uses during each benchmark; reading its sensors disturbs small messages a little
    #[arg(long)]
    pub(crate) power: bool,
    /// Seconds without load before each start, for idle power, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 2, requires = "power",
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Only sensors of power whose name has this in it
    #[arg(long, value_name = "TEXT", requires = "power")]
    pub(crate) sensor: Option<String>,
    /// Folder that stands for / where boards look for sensors
    #[arg(long, value_name = "DIR", default_value = "/", requires = "power")]
    pub(crate) root: PathBuf,
    /// CSV file that the program of a meter goes on writing: what all boards use together, beside their own sensors
    #[arg(long, value_name = "FILE", requires = "power")]
    pub(crate) meter: Option<PathBuf>,
    /// Bind no rank to a core
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// The link's rate, for the file
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) link_mbit: Option<u64>,
    /// Bytes that pass before that rate holds, for the file
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
    /// Files of results, the first of which the others are compared with
    #[arg(value_name = "FILE", required_unless_present = "thesis")]
    pub(crate) files: Vec<PathBuf>,
    /// The thesis's efficiency figures, from its power tables and from the files
    #[arg(long)]
    pub(crate) thesis: bool,
    /// Write the cells as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "thesis")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a drawing of each benchmark into this folder, as SVG; with --thesis each figure as SVG and CSV
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
