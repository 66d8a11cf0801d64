//! The commands of jobs: running one on boards, and figures of one for the advisor.

use super::{BoardsArgs, NodeArgs};
use crate::error::CliError;
use crate::kernel::Kernel;
use clap::builder::{PossibleValue, RangedU64ValueParser};
use clap::{Args, ValueEnum};
use cluster::jobs::Settings;
use std::path::PathBuf;

impl ValueEnum for Kernel {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Vibration, Self::KMeans, Self::MatrixProfile]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Vibration => "Vibration features of each window's spectrum",
            Self::KMeans => "Clusters of usual windows, and the windows that are unusual",
            Self::MatrixProfile => {
                "Nearest neighbour of each window: repeated patterns and outliers"
            }
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

/// A job of the configuration.
#[derive(Debug, Args)]
pub(crate) struct ClusterJobArgs {
    /// Name of the job in the configuration
    pub(crate) name: String,
    /// Configuration file of the node
    #[arg(short, long, value_name = "FILE", default_value = "keel.toml")]
    pub(crate) config: PathBuf,
    /// Run as a job of the node with this process ID: at low priority, ending with the node, in lines of JSON
    #[arg(long, hide = true, value_name = "PROCESS")]
    pub(crate) background: Option<i32>,
}

/// How a job cuts readings into windows and analyses them.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Number of readings in a window, from 4 to 65536 [default: vibration 1024, k-means 32, matrix-profile 64]
    #[arg(long, value_name = "N", value_parser = counts(4, 65_536))]
    pub(crate) window: Option<usize>,
    /// Number of readings between the starts of two windows; not for matrix-profile [default: half a window]
    #[arg(long, value_name = "N", value_parser = counts(1, 65_536))]
    pub(crate) step: Option<usize>,
    /// Number of clusters of k-means, from 1 to 64 [default: 8]
    #[arg(long, value_name = "N", value_parser = counts(1, 64))]
    pub(crate) clusters: Option<usize>,
    /// Maximum number of rounds of k-means, from 1 to 1000 [default: 25]
    #[arg(long, value_name = "N", value_parser = counts(1, 1_000))]
    pub(crate) rounds: Option<usize>,
    /// Seed of the random starts of k-means [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// A number within a range.
fn counts(least: usize, most: usize) -> impl clap::builder::TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(least as u64..=most as u64)
}

/// A length of time that is one.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err("must be a number of seconds above 0, such as 30 or 0.5".to_owned()),
    }
}

impl KernelArgs {
    /// Returns each option, and whether it is on the command line.
    pub(super) fn said(&self) -> [(&'static str, bool); 5] {
        [
            ("--window", self.window.is_some()),
            ("--step", self.step.is_some()),
            ("--clusters", self.clusters.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--seed", self.seed.is_some()),
        ]
    }

    /// As the job takes it.
    ///
    /// # Errors
    /// An option that this job has no use for: it would be taken for one that did something.
    pub(crate) fn checked(&self, kernel: Kernel) -> Result<Settings, CliError> {
        let k_means = [
            ("--clusters", self.clusters.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        let useless = match kernel {
            Kernel::KMeans => None,
            _ => k_means.into_iter().find(|(_, is_said)| *is_said),
        };
        let step = (
            "--step",
            self.step.is_some() && kernel == Kernel::MatrixProfile,
        );
        match useless.or(Some(step).filter(|(_, is_said)| *is_said)) {
            None => Ok(self.settings(kernel)),
            Some((option, _)) => Err(CliError::usage(
                option,
                format_args!("{} has no use for it", kernel.name()),
                "leave it out",
            )),
        }
    }

    /// As the job takes it.
    pub(crate) fn settings(&self, kernel: Kernel) -> Settings {
        let window = self.window.unwrap_or(match kernel {
            Kernel::Vibration => 1_024,
            Kernel::KMeans => 32,
            Kernel::MatrixProfile => 64,
        });
        let step = self.step.unwrap_or((window / 2).max(1));
        match kernel {
            Kernel::Vibration => Settings::Vibration { window, step },
            Kernel::KMeans => Settings::KMeans {
                window,
                step,
                clusters: self.clusters.unwrap_or(8),
                rounds_max: self.rounds.unwrap_or(25),
                seed: self.seed.unwrap_or(1),
            },
            Kernel::MatrixProfile => Settings::MatrixProfile { window },
        }
    }
}

/// The readings that a job works on.
#[derive(Debug, Args)]
pub(crate) struct ReadingsArgs {
    /// CSV file with a header, as `keel history --csv` writes it; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub(crate) input: Option<PathBuf>,
    /// Column of the file; may be repeated [default: value, or the only column]
    #[arg(long, value_name = "NAME", requires = "input")]
    pub(crate) column: Vec<String>,
    /// Key of the node whose history to use
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Start of the time range of the history, included
    #[arg(
        long,
        value_name = "T",
        allow_hyphen_values = true,
        requires = "key",
        conflicts_with = "input"
    )]
    pub(crate) from: Option<String>,
    /// End of the time range, not included
    #[arg(
        long,
        value_name = "T",
        allow_hyphen_values = true,
        requires = "key",
        conflicts_with = "input"
    )]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterRunArgs {
    /// Job to run
    #[arg(value_enum)]
    pub(crate) kernel: Kernel,
    /// File with one board per line: NAME, NAME:RANKS or NAME slots=RANKS
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "local",
        conflicts_with = "local"
    )]
    pub(crate) hosts: Option<PathBuf>,
    /// Number of ranks on this machine instead, without MPI, from 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) local: Option<u32>,
    #[command(flatten)]
    pub(crate) readings: ReadingsArgs,
    #[command(flatten)]
    pub(crate) settings: KernelArgs,
    /// If a board is lost, run again on the other boards, as often as needed
    #[arg(long)]
    pub(crate) retry: bool,
    /// New file for the complete result, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Timeout after which a silent board counts as lost, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) silence_seconds_max: u64,
    /// Maximum duration of the command, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Time without load before the job, for idle power, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Also read the power chip of each Raspberry Pi 5 with vcgencmd, five times a second
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Use only power sensors whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) sensor: Option<String>,
    /// Folder to use instead of / where boards look for sensors
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Deadline for the result, in s, for the advice
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) deadline: Option<f64>,
    /// Result of `keel cluster measure` with round trips between boards, for the advice
    #[arg(long, value_name = "FILE")]
    pub(crate) link: Option<PathBuf>,
    /// Path of the program keel-mpi on each board [default: beside keel, or in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) program: Option<PathBuf>,
    /// Launcher of MPI [default: launcher of the MPI that keel-mpi is built with, in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Program to use instead of ssh, called as PROGRAM [options] HOST COMMAND
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) launcher: Option<PathBuf>,
    /// Address at which boards reach this machine, such as 10.77.0.254/24
    #[arg(long, value_name = "ADDRESS/BITS", conflicts_with = "local")]
    pub(crate) address: Option<String>,
    /// Network interface of the boards that carries messages, such as eth0
    #[arg(long, value_name = "NAME", conflicts_with = "local")]
    pub(crate) interface: Option<String>,
    /// Send through TCP only, even between ranks that share memory
    #[arg(long, conflicts_with = "local")]
    pub(crate) tcp: bool,
    /// Additional argument for MPI's launcher; may be repeated
    #[arg(
        long,
        value_name = "WORD",
        allow_hyphen_values = true,
        conflicts_with = "local"
    )]
    pub(crate) mpi_arg: Vec<String>,
}

impl ClusterRunArgs {
    /// The boards, where they are not this machine alone.
    pub(crate) fn boards(&self) -> Option<BoardsArgs> {
        Some(BoardsArgs {
            hosts: self.hosts.clone()?,
            program: self.program.clone(),
            mpirun: self.mpirun.clone(),
            launcher: self.launcher.clone(),
            address: self.address.clone(),
            interface: self.interface.clone(),
            tcp: self.tcp,
            mpi_arg: self.mpi_arg.clone(),
            seconds_max: self.seconds_max,
            silence_seconds_max: self.silence_seconds_max,
        })
    }
}

/// A rank of `keel cluster run --local`, which starts it.
#[derive(Debug, Args)]
pub(crate) struct ClusterRankArgs {
    /// Socket at which the ranks meet
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Number of this rank
    #[arg(long)]
    pub(crate) rank: usize,
    /// Number of ranks
    #[arg(long)]
    pub(crate) ranks: usize,
    /// Process ID of the parent
    #[arg(long)]
    pub(crate) parent: Option<i32>,
    /// Time to wait for the other ranks, in s
    #[arg(long)]
    pub(crate) patience_seconds: u64,
    /// Options of each rank
    #[arg(last = true)]
    pub(crate) options: Vec<String>,
}
