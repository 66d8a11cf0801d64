//! `keel cluster`: several boards.
//!
//! **Files:** `measure.rs` the benchmark suite, `report.rs` comparisons with `thesis.rs` the thesis's figures. Shared:
//! `boards.rs` the boards, their MPI, and whether all can be reached, `ranks.rs` a supervised run of the launcher,
//! `result_file.rs` reading what was measured, `power_table.rs` the power of each benchmark. Jobs are in `job_cmd`.

pub(crate) mod boards;
mod measure;
mod power_table;
pub(crate) mod ranks;
mod report;
pub(crate) mod result_file;
mod thesis;

use crate::error::CliError;
use crate::job_cmd::periodic::{self, JobArgs};
use crate::job_cmd::rank::{self, RankArgs};
use crate::job_cmd::run::{self, RunArgs};
use clap::{Args, Subcommand};
use measure::MeasureArgs;
use report::ReportArgs;

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
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Measure messages between boards: the eight benchmarks of MPBench
    Measure(Box<MeasureArgs>),
    /// Compare labelled results in tables, CSV or plots
    Report(ReportArgs),
    /// Run a job on readings, on several boards or on several ranks of this machine
    Run(Box<RunArgs>),
    /// Run a job of the configuration once, as the node does in each period
    Job(JobArgs),
    /// One rank of `keel cluster run --local`; started by it
    #[command(hide = true)]
    Rank(RankArgs),
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(arguments: &ClusterArgs) -> Result<u8, CliError> {
    match &arguments.command {
        ClusterCommand::Measure(arguments) => measure::run(arguments),
        ClusterCommand::Report(arguments) => report::run(arguments),
        ClusterCommand::Run(arguments) => run::run(arguments),
        ClusterCommand::Job(arguments) => periodic::run(arguments),
        ClusterCommand::Rank(arguments) => rank::run(arguments),
    }
}
