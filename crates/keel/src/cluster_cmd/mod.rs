//! `keel cluster`: several boards. `boards.rs` the boards, their MPI, and whether all can be reached; `ranks.rs` a
//! supervised run of the launcher; `measure.rs` the benchmark suite; `report.rs` comparisons; `thesis.rs` the thesis's
//! figures. Jobs are in `job_cmd`.

pub(crate) mod boards;
mod measure;
pub(crate) mod ranks;
pub(crate) mod report;
mod thesis;

use crate::cli::ClusterCommand;
use crate::error::CliError;

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &ClusterCommand) -> Result<u8, CliError> {
    match command {
        ClusterCommand::Measure(arguments) => measure::run(arguments),
        ClusterCommand::Report(arguments) => report::run(arguments),
        ClusterCommand::Run(arguments) => crate::job_cmd::run(arguments),
        ClusterCommand::Job(arguments) => crate::job_cmd::periodic::run(arguments),
        ClusterCommand::Rank(arguments) => crate::job_cmd::rank::run(arguments),
    }
}
