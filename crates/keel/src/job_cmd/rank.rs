//! One rank of `keel cluster run --local`.

use super::parent::end_with;
use crate::error::{CliError, STATUS_FAILURE};
use clap::Args;
use cluster::jobs::star::Star;
use cluster::jobs::worker::{self, Board, Options};
use std::path::PathBuf;
use std::time::Duration;

/// Exit status of a rank whose parent has gone.
const STATUS_ALONE: i32 = 4;

/// A rank of `keel cluster run --local`, which starts it.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// Socket at which the ranks meet
    #[arg(long)]
    socket: PathBuf,
    /// Number of this rank
    #[arg(long)]
    rank: usize,
    /// Number of ranks
    #[arg(long)]
    ranks: usize,
    /// Process ID of the parent
    #[arg(long)]
    parent: Option<i32>,
    /// Time to wait for the other ranks, in s
    #[arg(long)]
    patience_seconds: u64,
    /// Options of each rank
    #[arg(last = true)]
    options: Vec<String>,
}

pub(crate) fn run(arguments: &RankArgs) -> Result<u8, CliError> {
    let words: Vec<&str> = arguments.options.iter().map(String::as_str).collect();
    let options = Options::parse(&words).map_err(|wrong| {
        CliError::usage(
            "command line",
            wrong,
            "it is started by `keel cluster run --local`",
        )
    })?;
    // Until the ranks have connected, no other process would notice that the parent has gone.
    let is_alone = |parent| !end_with(parent, libc::SIGKILL);
    if arguments.parent.is_some_and(is_alone) {
        return Ok(STATUS_FAILURE);
    }
    let patience = Duration::from_secs(arguments.patience_seconds.max(1));
    let star = Star::meet(&arguments.socket, arguments.rank, arguments.ranks, patience);
    let mut star = star.map_err(|failure| {
        CliError::failure(
            "keel cluster run",
            failure,
            "it is started by `keel cluster run --local`",
        )
    })?;
    let is_done = worker::run(
        &mut star,
        &Board::here(),
        &options,
        std::io::stdin(),
        std::io::stdout(),
        // The output has no reader: the parent has gone, and no process will end this one.
        || std::process::exit(STATUS_ALONE),
    );
    Ok(if is_done { 0 } else { STATUS_FAILURE })
}
