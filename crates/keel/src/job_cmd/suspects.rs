//! Boards on which no rank of a job has started, although they answer: MPI may not reach them. Runs leave them out, and
//! try them again after a number of runs that doubles with each failure, up to a limit.

use super::text_file::{read, replace};
use crate::error::CliError;
use config::{JobConfig, beside};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The most runs without these boards, after which all boards are tried again.
const RUNS_MAX: u64 = 64;

/// How it is known that they are missing.
const HOW: &str = "has started no rank with the other boards: a firewall, an interface or an address may keep MPI's \
                   messages away; it is tried again after some runs";

fn path(job: &JobConfig) -> PathBuf {
    beside(&job.out, "suspects.json")
}

/// The state between two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Suspects {
    boards: Vec<String>,
    /// Failures since all boards were there.
    failures: u64,
    /// Runs that leave the boards out.
    runs_left: u64,
}

/// Returns the kept state. A file that cannot be read counts as none: the next failure replaces it.
fn kept(job: &JobConfig) -> Option<Suspects> {
    let found: Value = serde_json::from_str(&read(&path(job)).ok()?).ok()?;
    let boards = found["boards"].as_array()?.iter();
    let suspects = Suspects {
        boards: boards
            .filter_map(|board| board.as_str().map(str::to_owned))
            .collect(),
        failures: found["failures"].as_u64()?,
        runs_left: found["runs_left"].as_u64()?.min(RUNS_MAX),
    };
    (found["version"] == 1).then_some(suspects)
}

fn write(job: &JobConfig, suspects: &Suspects) -> Result<(), CliError> {
    let text = json!({
        "version": 1,
        "boards": suspects.boards,
        "failures": suspects.failures,
        "runs_left": suspects.runs_left,
    });
    replace(&path(job), &format!("{text:#}\n"))
}

/// Returns the boards that this run leaves out, and how that is known. Counts the run.
pub(super) fn of_run(job: &JobConfig) -> Result<Vec<(String, String)>, CliError> {
    let Some(mut suspects) = kept(job).filter(|suspects| suspects.runs_left > 0) else {
        return Ok(Vec::new());
    };
    suspects.runs_left -= 1;
    write(job, &suspects)?;
    let boards = suspects.boards.into_iter();
    Ok(boards.map(|board| (board, HOW.to_owned())).collect())
}

/// Keeps boards on which no rank has started. Boards that are left out already stay so.
pub(super) fn keep(job: &JobConfig, boards: &[String]) -> Result<(), CliError> {
    if boards.is_empty() {
        return Ok(());
    }
    let mut suspects = kept(job).unwrap_or_default();
    if suspects.runs_left == 0 {
        suspects.boards.clear();
    }
    for board in boards {
        if !suspects.boards.contains(board) {
            suspects.boards.push(board.clone());
        }
    }
    suspects.failures = suspects.failures.saturating_add(1);
    let doubled = 1_u64.checked_shl(u32::try_from(suspects.failures).unwrap_or(u32::MAX));
    suspects.runs_left = doubled.map_or(RUNS_MAX, |runs| runs.min(RUNS_MAX));
    write(job, &suspects)
}

/// Forgets the boards after a run on several boards, unless that left them out.
pub(super) fn forget_tried(job: &JobConfig) {
    if kept(job).is_some_and(|suspects| suspects.runs_left == 0) {
        std::fs::remove_file(path(job)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::Folder;
    use config::Config;

    #[test]
    fn suspects_are_left_out_for_twice_as_many_runs_after_each_failure_up_to_a_limit() {
        let folder = Folder::create("suspects").expect("a folder");
        let text = "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\n";
        let config = Config::parse(text, "keel.toml", folder.path()).expect("valid");
        let job = &config.job[0];
        let boards = ["b2".to_owned(), "b3".to_owned()];
        assert!(of_run(job).expect("read").is_empty());
        for runs in [2, 4, 8, 16, 32, 64, 64] {
            keep(job, &boards).expect("written");
            forget_tried(job);
            for _ in 0..runs {
                let left_out = of_run(job).expect("read");
                let names: Vec<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, ["b2", "b3"], "{runs}");
            }
            // All boards are tried again.
            assert!(of_run(job).expect("read").is_empty(), "{runs}");
        }
        // They were there: the next failure is the first one again.
        forget_tried(job);
        keep(job, &boards[..1]).expect("written");
        // Another one, while the first is left out.
        keep(job, &boards[1..]).expect("written");
        assert_eq!(of_run(job).expect("read").len(), 2);
        assert_eq!(kept(job).map(|suspects| suspects.runs_left), Some(3));
    }
}
