//! The time of a cache line between the two cores of the ranks, just before each start, and how closely the starts
//! follow it. A host may move a virtual core, so this time can differ from start to start.
//!
//! **Invariants:** both threads are bound to the cores to which both programs bind their ranks, and none waits for one
//! that is not bound. Where there is one core, nothing is measured, and the report says so. No figure lacks a start.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use cluster::results::Benchmark;
use cluster::statistics::median;

use super::bed::Found;
use crate::figures::{Figures, Metric};
use crate::realtime;

/// Time of a cache line from one core to the other, just before a start.
pub(crate) const CORE_TO_CORE: Metric = Metric::shown("core_to_core_ns", "ns");

/// Time of a round trip of the smallest message in the same start: its median.
pub(crate) const ROUNDTRIP: Metric = Metric::shown("start_roundtrip", "us");

/// What a report says on a machine with one core.
pub(crate) const ONE_CORE: &str =
    "core_to_core_ns is not measured: this machine has one core for both ranks";

/// Exchanges of a batch: in each, the line goes to the other core and back.
const EXCHANGES: u64 = 1_000;

/// Batches that count. One more comes before them, while both cores wake up.
const BATCHES: u64 = 15;

/// The least number of starts for a correlation.
const STARTS_MIN: usize = 3;

/// One start of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Start {
    pub(crate) core_to_core_ns: f64,
    pub(crate) roundtrip_us: f64,
}

/// Returns the cores of the two ranks among those that this program may use: ranks inherit this set, and rank r takes
/// its core r. `None` if there is one core.
pub(crate) fn cores_of_ranks(allowed: &[usize]) -> Option<[usize; 2]> {
    match allowed {
        [first, second, ..] => Some([*first, *second]),
        _ => None,
    }
}

/// A number that two threads change in turns: odd numbers ask, even ones answer. Alone on its line, and on the line
/// that processors load together with it.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn ask(&self, from: u64, exchanges: u64) {
        for number in from..from + exchanges {
            self.0.store(2 * number + 1, Ordering::Release);
            self.wait_for(2 * number + 2);
        }
    }

    fn answer(&self, exchanges: u64) {
        for number in 0..exchanges {
            self.wait_for(2 * number + 1);
            self.0.store(2 * number + 2, Ordering::Release);
        }
    }

    fn wait_for(&self, value: u64) {
        while self.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    }
}

/// Measures the time of a cache line between two cores, in nanoseconds for one way: the median of batches. It takes a
/// few milliseconds. The calling thread keeps its cores.
///
/// # Errors
/// One line: a thread cannot be bound.
pub(crate) fn core_to_core_ns(cores: [usize; 2]) -> Result<f64, String> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| batches(cores)).join();
        let times =
            asking.map_err(|_| "the thread on the first core has panicked".to_owned())??;
        median(&times).map_err(|error| format!("core_to_core_ns: {error}"))
    })
}

/// Returns the time of each batch, asked from this thread.
fn batches(cores: [usize; 2]) -> Result<Vec<f64>, String> {
    realtime::pin(cores[0])?;
    let line = &Line(AtomicU64::new(0));
    let (tell, told) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let bound = realtime::pin(cores[1]);
            let is_bound = bound.is_ok();
            tell.send(bound).ok();
            if is_bound {
                line.answer((BATCHES + 1) * EXCHANGES);
            }
        });
        told.recv()
            .map_err(|_| "the thread on the second core has ended".to_owned())??;
        let batch = |number: u64| {
            let begun = Instant::now();
            line.ask(number * EXCHANGES, EXCHANGES);
            begun.elapsed().as_nanos() as f64 / (2 * EXCHANGES) as f64
        };
        batch(0);
        Ok((1..=BATCHES).map(batch).collect())
    })
}

/// Returns the median round trip of the smallest message of a start. `None` if it measured no round trips.
pub(crate) fn roundtrip_us(found: &Found) -> Option<f64> {
    // Sorted by benchmark, then by size.
    let (_, samples) = found
        .iter()
        .find(|((benchmark, _), _)| *benchmark == Benchmark::Roundtrip)?;
    median(samples).ok()
}

/// Records both figures of each start, so that those of one start have the same round.
pub(crate) fn record(
    figures: &mut Figures,
    case: &'static str,
    system: &'static str,
    starts: &[Start],
) {
    for start in starts {
        figures.record(case, system, CORE_TO_CORE, start.core_to_core_ns);
        figures.record(case, system, ROUNDTRIP, start.roundtrip_us);
    }
}

/// Returns Spearman's rank correlation of pairs of values. `None` if they are too few, or if one side is constant.
pub(crate) fn rank_correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    if one.len() != other.len() || one.len() < STARTS_MIN {
        return None;
    }
    let (one, other) = (ranks(one), ranks(other));
    let middle = (one.len() as f64 + 1.0) / 2.0;
    let sum = |these: &[f64], those: &[f64]| -> f64 {
        let pairs = these.iter().zip(those);
        pairs.map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    let spread = (sum(&one, &one) * sum(&other, &other)).sqrt();
    (spread > 0.0).then(|| sum(&one, &other) / spread)
}

/// Returns the rank of each value, from 1 on; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let order = |other: &&f64| other.total_cmp(value);
        let below = values.iter().filter(|other| order(other).is_lt()).count();
        let same = values.iter().filter(|other| order(other).is_eq()).count();
        below as f64 + (same as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Reads the times that [`super::launch`] has written before the starts of a run, one on each line.
///
/// # Errors
/// One line that names the file.
pub(crate) fn read_times(path: &Path) -> Result<Vec<f64>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let time = |line: &str| match line.parse::<f64>() {
        Ok(time) if time.is_finite() && time > 0.0 => Ok(time),
        _ => Err(failed(&format_args!("`{line}` is no time above 0"))),
    };
    text.lines().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::OURS;
    use crate::machine::Machine;
    use serde_json::json;

    fn close(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-12)
    }

    #[test]
    fn the_correlation_is_that_of_ranks() {
        let up = [10.0, 20.0, 40.0, 1_000.0];
        assert!(close(rank_correlation(&up, &[1.0, 1.1, 1.2, 1.3]), 1.0));
        assert!(close(rank_correlation(&up, &[4.0, 3.0, 2.0, -9.0]), -1.0));
        // Without equal values it is 1 − 6 Σd² ÷ (n (n² − 1)); ranks 2, 1, 4, 3 have Σd² = 4.
        assert!(close(rank_correlation(&up, &[2.0, 1.0, 4.0, 3.0]), 0.6));
        // The order of the pairs does not matter.
        let (one, other) = ([40.0, 10.0, 1_000.0, 20.0], [4.0, 2.0, 3.0, 1.0]);
        assert!(close(rank_correlation(&one, &other), 0.6));
    }

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [2.5, 1.0, 2.5, 4.0]);
        // Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, sums of squares 4.5 and 5.
        let found = rank_correlation(&[1.0, 5.0, 5.0, 9.0], &[1.0, 2.0, 3.0, 4.0]);
        assert!(close(found, 4.5 / (4.5_f64 * 5.0).sqrt()), "{found:?}");
    }

    #[test]
    fn constant_or_too_few_values_have_no_correlation() {
        assert_eq!(rank_correlation(&[1.0, 2.0], &[1.0, 2.0]), None, "too few");
        assert_eq!(rank_correlation(&[1.0; 4], &[1.0, 2.0, 3.0, 4.0]), None);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[1.0; 3]), None);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn each_question_of_a_core_is_answered_once() {
        let line = Line(AtomicU64::new(0));
        let mut between = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| line.answer(6));
            line.ask(0, 4);
            // A failed assertion here would leave the other thread waiting.
            between = line.0.load(Ordering::Acquire);
            line.ask(4, 2);
        });
        assert_eq!((between, line.0.load(Ordering::Acquire)), (8, 12));
    }

    #[test]
    fn a_time_is_measured_on_the_cores_of_the_ranks_and_this_thread_keeps_its_own() {
        assert_eq!(cores_of_ranks(&[]), None);
        assert_eq!(cores_of_ranks(&[3]), None);
        assert_eq!(cores_of_ranks(&[3, 5, 6]), Some([3, 5]));
        let before = realtime::cores();
        if let Some(cores) = cores_of_ranks(&before) {
            let found = core_to_core_ns(cores).expect("both are allowed");
            assert!(found.is_finite() && found > 0.0, "{found}");
        }
        for cores in [[before[0], 1 << 20], [1 << 20, before[0]]] {
            let error = core_to_core_ns(cores).expect_err("no such core");
            assert!(error.contains("no such processor"), "{error}");
        }
        assert_eq!(realtime::cores(), before);
    }

    #[test]
    fn the_latency_of_a_start_is_the_round_trip_of_its_smallest_message() {
        let mut found = Found::new();
        found.insert((Benchmark::Latency, 4), vec![9.0]);
        assert_eq!(roundtrip_us(&found), None);
        found.insert((Benchmark::Roundtrip, 1_024), vec![8.0]);
        found.insert((Benchmark::Roundtrip, 4), vec![1.0, 3.0, 2.0]);
        assert_eq!(roundtrip_us(&found), Some(2.0));
    }

    #[test]
    fn times_stand_beside_the_figures_of_their_start_in_both_reports() {
        let mut figures = Figures::new(Vec::new());
        let starts = [(50.5, 0.4), (210.0, 1.6)].map(|(core_to_core_ns, roundtrip_us)| Start {
            core_to_core_ns,
            roundtrip_us,
        });
        record(&mut figures, "memory-mpich", OURS, &starts);
        let csv = figures.csv();
        for line in [
            "memory-mpich,keel,core_to_core_ns,ns,1,50.5\n",
            "memory-mpich,keel,core_to_core_ns,ns,2,210\n",
            "memory-mpich,keel,start_roundtrip,us,2,1.6\n",
        ] {
            assert!(csv.contains(line), "{csv}");
        }
        let machine = Machine {
            cpu: "c".to_owned(),
            kernel: "k".to_owned(),
            cores: 2,
        };
        let json = serde_json::to_value(figures.json("cluster", &machine, json!({})));
        let json = json.expect("a report");
        let of = |metric: Metric, values: [f64; 2]| {
            json!({"case": "memory-mpich", "system": OURS, "metric": metric.name,
                "values": values})
        };
        let expected = [of(CORE_TO_CORE, [50.5, 210.0]), of(ROUNDTRIP, [0.4, 1.6])];
        assert_eq!(json["method"]["rounds"], json!(expected));
    }

    #[test]
    fn a_file_of_times_is_read_whole_or_not_at_all() {
        let path = std::env::temp_dir().join(format!("keel-bench-times-{}", std::process::id()));
        std::fs::write(&path, "50.5\n210\n").expect("a file");
        assert_eq!(read_times(&path), Ok(vec![50.5, 210.0]));
        for wrong in ["50.5\n\n", "0\n", "-1\n", "nan\n", "50.5 210\n"] {
            std::fs::write(&path, wrong).expect("a file");
            let error = read_times(&path).expect_err(wrong);
            assert!(error.ends_with("is no time above 0"), "{error}");
        }
        std::fs::remove_file(&path).expect("the file");
        assert!(read_times(&path).is_err());
    }
}
