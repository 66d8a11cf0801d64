//! The overhead of a job of the configuration: the time from its start to its answer in which it does not compute. It
//! starts processes, reads the history and finds its place. Earlier runs have measured it; the forecast of the next one
//! includes it.

use super::text_file::{read, replace};
use crate::error::CliError;
use config::{JobConfig, beside};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A longer overhead, in s, is none of a job.
const OVERHEAD_S_MAX: f64 = 1e6;

fn path(job: &JobConfig) -> PathBuf {
    beside(&job.out, "overhead.json")
}

/// Returns the overhead of earlier runs, in s. A file that cannot be read counts as none: the next run replaces it.
pub(super) fn kept(job: &JobConfig) -> Option<f64> {
    let found: Value = serde_json::from_str(&read(&path(job)).ok()?).ok()?;
    let overhead_s = found["overhead_s"].as_f64()?;
    ((0.0..=OVERHEAD_S_MAX).contains(&overhead_s) && found["version"] == 1).then_some(overhead_s)
}

/// Returns the mean of the earlier overhead and that of a run: the last run counts as much as all before it.
fn mended(before_s: Option<f64>, run_s: f64) -> f64 {
    let run_s = run_s.clamp(0.0, OVERHEAD_S_MAX);
    before_s.map_or(run_s, |before_s| f64::midpoint(before_s, run_s))
}

/// Keeps the overhead of a run.
pub(super) fn keep(job: &JobConfig, run_s: f64) -> Result<(), CliError> {
    let overhead_s = mended(kept(job), run_s);
    let text = format!("{:#}\n", json!({"version": 1, "overhead_s": overhead_s}));
    replace(&path(job), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_counts_as_much_as_all_before_it() {
        let first = mended(None, 2.0);
        let second = mended(Some(first), 4.0);
        let last = mended(Some(second), -1.0);
        assert!((first - 2.0).abs() < 1e-9 && (second - 3.0).abs() < 1e-9);
        // A clock that was measured too early gives no negative overhead.
        assert!((last - 1.5).abs() < 1e-9, "{last}");
    }
}
