//! What the time of a reading costs, by the unit in which it is whole: bytes of log, and processor time of the storage
//! alone. The readings and their commits are those of `bytes-per-reading-260`; only their times differ.

use std::path::Path;

use db::Time;

use super::cases::{folder, turns};
use super::wear::{BATCH, BEGIN_MS, Ours, STEP_NS};
use crate::figures::{Figures, Metric, OURS};
use crate::mem::calls::cpu_ns;
use crate::scratch::check_interrupted;

pub(crate) const NODE: &str = "times-node";
pub(crate) const MS: &str = "times-ms";
pub(crate) const US: &str = "times-us";
pub(crate) const NS: &str = "times-ns";

pub(crate) const LOG_BYTES: Metric = Metric::shown("log_bytes_per_reading", "B");
pub(crate) const CPU: Metric = Metric::shown("storage_cpu_per_reading", "us");

/// Bytes of log that the same readings took in a log with times of whole ms, and 4 % more.
pub(crate) const LOG_BYTES_MAX: f64 = 24.38;

/// Each store is this large at most: it holds what all rounds write, several times.
const IMAGE_MEBIBYTES_MAX: u64 = 64;

/// Each case with the unit in ns in which its times are whole; `None`: the node's clock gives them.
const CASES: [(&str, Option<i64>); 4] = [
    (NODE, None),
    (MS, Some(1_000_000)),
    (US, Some(1_000)),
    (NS, Some(1)),
];

/// Returns the sensor's time of a reading.
fn time_of(number: u64, unit_ns: i64) -> Time {
    let ns = BEGIN_MS * 1_000_000 + (number * STEP_NS) as i64;
    Time::from_ns(ns / unit_ns * unit_ns)
}

/// Stores `readings` readings in each of `rounds` rounds, with each kind of times in turn, after an equal number as
/// warm-up.
pub(crate) fn measure(
    figures: &mut Figures,
    scratch: &Path,
    rounds: u32,
    readings: u64,
    image_mebibytes: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let mut storages = Vec::new();
    for (case, _) in CASES {
        progress(&format!("{case}, store"));
        let image_mebibytes = image_mebibytes.min(IMAGE_MEBIBYTES_MAX);
        storages.push(Ours::create(&folder(scratch, case)?, image_mebibytes)?);
    }
    let batches = readings.div_ceil(BATCH);
    for round in 0..=rounds {
        for at in turns(&mut storages, round) {
            let ((case, unit_ns), storage) = (CASES[at], &mut storages[at]);
            progress(&format!("{case}, round {round}"));
            let (log_bytes, cpu) = (storage.stats().log_bytes, cpu_ns());
            for batch in 0..batches {
                check_interrupted()?;
                let first = (u64::from(round) * batches + batch) * BATCH;
                storage.batch_at(first, |number| {
                    unit_ns.map(|unit_ns| time_of(number, unit_ns))
                })?;
            }
            let (spent, written) = (cpu_ns() - cpu, storage.stats().log_bytes - log_bytes);
            if round > 0 {
                let each = |total: u64| total as f64 / (batches * BATCH) as f64;
                figures.record(case, OURS, LOG_BYTES, each(written));
                figures.record(case, OURS, CPU, each(spent) / 1000.0);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_in_their_unit_and_in_no_greater_one() {
        for (_, unit_ns) in CASES {
            let Some(unit_ns) = unit_ns else { continue };
            let ns = |number| time_of(number, unit_ns).ns();
            assert!((0..1000).all(|number| ns(number) % unit_ns == 0));
            let whole_above = (0..1000).filter(|number| ns(*number) % (1000 * unit_ns) == 0);
            assert!(whole_above.count() <= 10, "{unit_ns}");
            assert!((0..1000).all(|number| ns(number) < ns(number + 1)));
        }
    }
}
