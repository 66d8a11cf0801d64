//! From samples to figures: exact percentiles, ratios between systems of the same run, a table and JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::store::{Case, DeviceCounts};

/// Percentiles that are reported, in parts per thousand, with their metric.
const PERCENTILES: [(u64, &str); 3] = [
    (500, "latency_p50"),
    (990, "latency_p99"),
    (999, "latency_p999"),
];

/// Latencies and device counts of one case on one system, kept whole until the run is over.
pub(crate) struct Samples {
    case: &'static str,
    system: String,
    /// Where the counts come from; `None` when there are none.
    counts_source: Option<&'static str>,
    round_steps: usize,
    /// Nanoseconds, in the order of the run: round after round.
    latencies_ns: Vec<u64>,
    totals: DeviceCounts,
    /// Largest figures of a single operation.
    maxima: DeviceCounts,
    counts_complete: bool,
}

impl Samples {
    /// Room for every sample, so that recording one never allocates.
    pub(crate) fn new(
        case: Case,
        system: &str,
        source: Option<&'static str>,
        rounds: u32,
        round_steps: u32,
    ) -> Self {
        let none = DeviceCounts {
            flushes: Some(0),
            ..DeviceCounts::default()
        };
        Self {
            case: case.name(),
            system: system.to_owned(),
            counts_source: source,
            round_steps: round_steps as usize,
            latencies_ns: Vec::with_capacity(rounds as usize * round_steps as usize),
            totals: none,
            maxima: none,
            counts_complete: source.is_some(),
        }
    }

    /// Adds one operation with the device's counters before and after it.
    pub(crate) fn record(
        &mut self,
        elapsed_ns: u64,
        before: Option<DeviceCounts>,
        after: Option<DeviceCounts>,
    ) {
        self.latencies_ns.push(elapsed_ns);
        let (Some(before), Some(after)) = (before, after) else {
            self.counts_complete = false;
            return;
        };
        let spent = DeviceCounts {
            reads: after.reads - before.reads,
            writes: after.writes - before.writes,
            flushes: after
                .flushes
                .zip(before.flushes)
                .map(|(after, before)| after - before),
            bytes_written: after.bytes_written - before.bytes_written,
        };
        let (totals, maxima) = (&mut self.totals, &mut self.maxima);
        totals.reads += spent.reads;
        totals.writes += spent.writes;
        totals.flushes = totals
            .flushes
            .zip(spent.flushes)
            .map(|(sum, one)| sum + one);
        totals.bytes_written += spent.bytes_written;
        maxima.reads = maxima.reads.max(spent.reads);
        maxima.writes = maxima.writes.max(spent.writes);
        maxima.flushes = maxima
            .flushes
            .zip(spent.flushes)
            .map(|(most, one)| most.max(one));
        maxima.bytes_written = maxima.bytes_written.max(spent.bytes_written);
    }

    /// The exact percentile over all rounds, in nanoseconds.
    fn percentile_ns(&self, per_mille: u64) -> u64 {
        percentile(&mut self.latencies_ns.clone(), per_mille)
    }

    fn round_percentiles_ns(&self, per_mille: u64) -> Vec<u64> {
        let rounds = self.latencies_ns.chunks(self.round_steps.max(1));
        rounds
            .map(|round| percentile(&mut round.to_vec(), per_mille))
            .collect()
    }

    fn max_ns(&self) -> u64 {
        self.latencies_ns.iter().copied().max().unwrap_or(0)
    }

    /// Metric, unit and value of everything counted, per operation and as the largest of one operation.
    fn count_figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        if !self.counts_complete {
            return Vec::new();
        }
        let operations = self.latencies_ns.len().max(1) as f64;
        let (totals, maxima) = (&self.totals, &self.maxima);
        let mut figures = vec![
            ("device_reads_per_op", "1", totals.reads as f64 / operations),
            (
                "device_writes_per_op",
                "1",
                totals.writes as f64 / operations,
            ),
            (
                "device_written_per_op",
                "KiB",
                totals.bytes_written as f64 / 1024.0 / operations,
            ),
        ];
        if let Some(flushes) = totals.flushes {
            figures.push(("device_flushes_per_op", "1", flushes as f64 / operations));
        }
        // Of a disk that others use too the largest figure says nothing about this system.
        if self.counts_source == Some("exact") {
            figures.push(("device_reads_max", "1", maxima.reads as f64));
            figures.push(("device_writes_max", "1", maxima.writes as f64));
            figures.push((
                "device_flushes_max",
                "1",
                maxima.flushes.unwrap_or(0) as f64,
            ));
            figures.push((
                "device_written_max",
                "KiB",
                maxima.bytes_written as f64 / 1024.0,
            ));
        }
        figures
    }

    fn count(&self, metric: &str) -> Option<f64> {
        self.count_figures()
            .into_iter()
            .find(|(name, ..)| *name == metric)
            .map(|(.., value)| value)
    }
}

/// The smallest sample that at least `per_mille` thousandths of all samples do not exceed; 0 without samples.
fn percentile(samples: &mut [u64], per_mille: u64) -> u64 {
    if samples.is_empty() {
        return 0;
    }
    samples.sort_unstable();
    let rank = (samples.len() as u64 * per_mille).div_ceil(1000).max(1);
    samples[rank as usize - 1]
}

/// The middle value; the mean of the two middle ones of an even number.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Median over rounds of ours divided by the peer's.
fn ratio(ours: &Samples, peer: &Samples, per_mille: u64) -> f64 {
    let ours = ours.round_percentiles_ns(per_mille);
    let peers = peer.round_percentiles_ns(per_mille);
    let mut ratios: Vec<f64> = ours
        .iter()
        .zip(&peers)
        .map(|(ours, peer)| *ours as f64 / (*peer).max(1) as f64)
        .collect();
    median(&mut ratios)
}

/// An absolute figure that a case of ours must not exceed.
pub(crate) struct Goal {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
}

/// Everything that one run measured.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// The system that ratios are taken of.
    pub(crate) ours: &'static str,
    /// Case after case, the systems of a case together.
    pub(crate) samples: Vec<Samples>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) missing: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// The shape that `--json` writes.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    pub(crate) bench: &'static str,
    pub(crate) version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
    /// Peers, tools and figures that are not there.
    pub(crate) missing: Vec<String>,
    /// How it was measured, where that is chosen for a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<serde_json::Value>,
}

/// One figure of one system.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) system: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    #[serde(flatten)]
    pub(crate) verdict: Option<Verdict>,
}

/// Only where a goal was stated.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: f64,
    pub(crate) better: &'static str,
    pub(crate) met: bool,
}

/// Ours divided by a peer's.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) peer: String,
    pub(crate) ratio: f64,
    pub(crate) better: &'static str,
    /// Absent where no goal was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
}

impl Report {
    /// The figures as data.
    pub(crate) fn json(&self) -> Json {
        let mut rows = Vec::new();
        for samples in &self.samples {
            let latencies = PERCENTILES
                .iter()
                .map(|(per_mille, metric)| (*metric, samples.percentile_ns(*per_mille)));
            let latencies = latencies.chain([("latency_max", samples.max_ns())]);
            let latencies = latencies.map(|(metric, ns)| (metric, "us", ns as f64 / 1000.0));
            for (metric, unit, value) in latencies.chain(samples.count_figures()) {
                let verdict = self.verdict(samples, metric, value);
                rows.push(Row {
                    case: samples.case,
                    system: samples.system.clone(),
                    metric,
                    unit,
                    value,
                    verdict,
                });
            }
        }
        let mut ratios = Vec::new();
        for (ours, peer) in self.pairs() {
            for (per_mille, metric) in PERCENTILES {
                let ratio = ratio(ours, peer, per_mille);
                ratios.push(Ratio {
                    case: ours.case,
                    metric,
                    peer: peer.system.clone(),
                    ratio,
                    better: "lower",
                    goal: None,
                    met: None,
                });
            }
        }
        Json {
            bench: self.bench,
            version: env!("CARGO_PKG_VERSION"),
            machine: self.machine.clone(),
            rows,
            ratios,
            missing: self.missing.clone(),
            method: None,
        }
    }

    /// The figures for a reader.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        let machine = &self.machine;
        writeln!(text, "{}", self.title)?;
        writeln!(
            text,
            "machine: {}, {} cores, kernel {}\n",
            machine.cpu, machine.cores, machine.kernel
        )?;
        writeln!(
            text,
            "{:<18}{:<12}{:>9}{:>9}{:>9}{:>10}  {:>6}{:>6}{:>7}{:>7}  counted",
            "case", "system", "p50", "p99", "p99.9", "max", "R/op", "W/op", "F/op", "KiB/op"
        )?;
        for samples in &self.samples {
            write!(text, "{:<18}{:<12}", samples.case, samples.system)?;
            for (per_mille, _) in PERCENTILES {
                write!(
                    text,
                    "{:>9.1}",
                    samples.percentile_ns(per_mille) as f64 / 1000.0
                )?;
            }
            write!(text, "{:>10.1}  ", samples.max_ns() as f64 / 1000.0)?;
            let columns = [("reads", 6), ("writes", 6), ("flushes", 7), ("written", 7)];
            for (what, width) in columns {
                match samples.count(&format!("device_{what}_per_op")) {
                    Some(value) => write!(text, "{value:>width$.2}")?,
                    None => write!(text, "{:>width$}", "-")?,
                }
            }
            writeln!(text, "  {}", samples.counts_source.unwrap_or("-"))?;
        }
        writeln!(
            text,
            "\n{} divided by the peer, median of the rounds (lower is better)",
            self.ours
        )?;
        writeln!(
            text,
            "{:<18}{:<12}{:>9}{:>9}{:>9}",
            "case", "peer", "p50", "p99", "p99.9"
        )?;
        for (ours, peer) in self.pairs() {
            write!(text, "{:<18}{:<12}", ours.case, peer.system)?;
            for (per_mille, _) in PERCENTILES {
                write!(text, "{:>9.2}", ratio(ours, peer, per_mille))?;
            }
            writeln!(text)?;
        }
        for goal in &self.goals {
            let ours = self
                .samples
                .iter()
                .find(|samples| samples.case == goal.case && samples.system == self.ours);
            if let Some(value) = ours.and_then(|samples| samples.count(goal.metric)) {
                let met = if value <= goal.value { "met" } else { "MISSED" };
                writeln!(
                    text,
                    "\ngoal {} {}: {value:.3}, at most {}: {met}",
                    goal.case, goal.metric, goal.value
                )?;
            }
        }
        for missing in &self.missing {
            writeln!(
                text,
                "\nmissing: {missing} (no such file system in this folder)"
            )?;
        }
        for note in &self.notes {
            writeln!(text, "\nnote: {note}")?;
        }
        Ok(())
    }

    fn verdict(&self, samples: &Samples, metric: &str, value: f64) -> Option<Verdict> {
        let goal = self
            .goals
            .iter()
            .find(|goal| goal.case == samples.case && goal.metric == metric)?;
        let is_ours = samples.system == self.ours;
        is_ours.then_some(Verdict {
            goal: goal.value,
            better: "lower",
            met: value <= goal.value,
        })
    }

    /// Ours with each peer of the same case.
    fn pairs(&self) -> Vec<(&Samples, &Samples)> {
        let mut pairs = Vec::new();
        for ours in self
            .samples
            .iter()
            .filter(|samples| samples.system == self.ours)
        {
            let peers = self
                .samples
                .iter()
                .filter(|peer| peer.case == ours.case && peer.system != self.ours);
            pairs.extend(peers.map(|peer| (ours, peer)));
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(system: &str, latencies_ns: &[u64], writes: u64) -> Samples {
        let round_steps = latencies_ns.len() as u32 / 2;
        let mut samples = Samples::new(Case::Append, system, Some("exact"), 2, round_steps);
        for latency in latencies_ns {
            let before = DeviceCounts {
                flushes: Some(4),
                ..DeviceCounts::default()
            };
            let after = DeviceCounts {
                writes,
                flushes: Some(5),
                bytes_written: 8192,
                reads: 0,
            };
            samples.record(*latency, Some(before), Some(after));
        }
        samples
    }

    fn report(writes: u64) -> Report {
        Report {
            bench: "flash",
            title: "a title".to_owned(),
            machine: Machine {
                cpu: "c".to_owned(),
                kernel: "k".to_owned(),
                cores: 2,
            },
            ours: "keel",
            samples: vec![
                samples("keel", &[2000, 2000, 6000, 6000], writes),
                samples("floor", &[1000, 1000, 2000, 2000], 1),
            ],
            goals: vec![Goal {
                case: Case::Append.name(),
                metric: "device_writes_per_op",
                value: 2.0,
            }],
            missing: vec!["ext4-sync".to_owned()],
            notes: Vec::new(),
        }
    }

    #[test]
    fn percentiles_are_ranks_of_the_samples() {
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 500), 50);
        assert_eq!(percentile(&mut hundred, 990), 99);
        assert_eq!(percentile(&mut hundred, 999), 100);
        assert_eq!(percentile(&mut [7], 500), 7);
        assert_eq!(percentile(&mut [], 500), 0);
    }

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_not_of_the_whole() {
        let json = serde_json::to_value(report(2).json()).unwrap();
        // Round one is 2, round two is 3.
        assert_eq!(json["ratios"][0]["ratio"], 2.5);
        assert_eq!(json["ratios"][0]["peer"], "floor");
        assert_eq!(json["ratios"][0]["metric"], "latency_p50");
    }

    #[test]
    fn json_has_the_agreed_shape_and_verdicts_only_where_a_goal_is() {
        let json = serde_json::to_value(report(3).json()).unwrap();
        let keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(
            keys,
            ["bench", "machine", "missing", "ratios", "rows", "version"]
        );
        let rows = json["rows"].as_array().unwrap();
        let row = |system: &str, metric: &str| {
            rows.iter()
                .find(|row| row["system"] == system && row["metric"] == metric)
                .unwrap()
        };
        assert_eq!(row("keel", "latency_p50")["value"], 2.0);
        assert_eq!(row("keel", "latency_p50")["unit"], "us");
        assert!(row("keel", "latency_p50").get("goal").is_none());
        assert_eq!(row("keel", "device_writes_per_op")["met"], false);
        assert_eq!(row("keel", "device_written_per_op")["value"], 8.0);
        assert!(row("floor", "device_writes_per_op").get("goal").is_none());
        let met = serde_json::to_value(report(2).json()).unwrap();
        assert!(
            met["rows"]
                .as_array()
                .unwrap()
                .iter()
                .any(|row| row["met"] == true)
        );
    }

    #[test]
    fn counts_that_were_not_taken_are_absent() {
        let mut samples = Samples::new(Case::Read, "xfs-sync", None, 1, 1);
        samples.record(5, None, None);
        assert!(samples.count_figures().is_empty());
        let mut disk = Samples::new(Case::Read, "xfs-sync", Some("whole disk"), 1, 1);
        disk.record(
            5,
            Some(DeviceCounts::default()),
            Some(DeviceCounts::default()),
        );
        let figures = disk.count_figures();
        assert!(
            figures
                .iter()
                .all(|(metric, ..)| !metric.contains("flushes") && !metric.ends_with("_max"))
        );
        assert_eq!(figures.len(), 3);
    }

    #[test]
    fn the_table_names_every_case_system_goal_and_gap() {
        let table = report(3).table();
        for part in [
            "keel",
            "floor",
            "append-4096-sync",
            "MISSED",
            "missing: ext4-sync",
        ] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
    }
}
