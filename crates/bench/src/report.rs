//! Derives figures from samples: exact percentiles, ratios between systems of the same run, a table and JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::store::DeviceCounts;

/// Reported percentiles, in parts per thousand, with their metric.
const PERCENTILES: [(u64, &str); 3] = [
    (500, "latency_p50"),
    (990, "latency_p99"),
    (999, "latency_p999"),
];

/// The system that does only one aligned write and one flush: the cost of the device itself.
pub(crate) const FLOOR: &str = "floor";

/// Counted metrics whose ratios are reported if both systems have them.
const RATIO_COUNTS: [&str; 4] = [
    "device_reads_per_op",
    "device_writes_per_op",
    "device_flushes_per_op",
    "device_written_per_op",
];

/// Latencies and device counts of one case on one system, kept in full until the run is over.
pub(crate) struct Samples {
    case: &'static str,
    system: String,
    /// The source of the counts, or `None` if there are none.
    counts_source: Option<&'static str>,
    round_steps: usize,
    /// Latencies in nanoseconds, in the order of the run: round after round.
    latencies_ns: Vec<u64>,
    totals: DeviceCounts,
    /// Maximum figures of a single operation.
    maxima: DeviceCounts,
    maxima_known: bool,
    counts_complete: bool,
}

impl Samples {
    /// Reserves room for all samples, so that recording one never allocates.
    pub(crate) fn new(
        case: &'static str,
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
            case,
            system: system.to_owned(),
            counts_source: source,
            round_steps: round_steps as usize,
            latencies_ns: Vec::with_capacity(rounds as usize * round_steps as usize),
            totals: none,
            maxima: none,
            // On a disk with other users, the maximum says nothing about this system.
            maxima_known: source != Some("whole disk"),
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
        let spent = after.since(before);
        self.totals.add(spent);
        self.maxima.raise_to(spent);
    }

    /// Adds one operation whose device counts are known only as part of a total.
    pub(crate) fn record_latency(&mut self, elapsed_ns: u64) {
        self.latencies_ns.push(elapsed_ns);
    }

    /// Sets the device counts of all operations together; those of a single operation are then unknown.
    pub(crate) fn set_totals(&mut self, totals: DeviceCounts) {
        self.totals = totals;
        self.maxima_known = false;
    }

    /// Returns the operations per second, one after the other.
    pub(crate) fn per_second(&self) -> f64 {
        let total_ns: u64 = self.latencies_ns.iter().sum();
        self.latencies_ns.len() as f64 * 1e9 / total_ns.max(1) as f64
    }

    /// The number of operations done.
    pub(crate) fn calls(&self) -> usize {
        self.latencies_ns.len()
    }

    /// Returns the latency of each operation in nanoseconds, in the order of the run.
    pub(crate) fn latencies_ns(&self) -> &[u64] {
        &self.latencies_ns
    }

    /// Returns the name of the case in reports.
    pub(crate) fn case(&self) -> &'static str {
        self.case
    }

    /// Returns the name of the system in reports.
    pub(crate) fn system(&self) -> &str {
        &self.system
    }

    /// Returns the median of the rounds' percentiles, in nanoseconds.
    pub(crate) fn percentile_ns(&self, per_mille: u64) -> f64 {
        median(&mut self.percentiles_ns(per_mille))
    }

    /// Returns the percentile of each round, in nanoseconds.
    fn percentiles_ns(&self, per_mille: u64) -> Vec<f64> {
        let rounds = self.latencies_ns.chunks(self.round_steps.max(1));
        rounds
            .map(|round| percentile(&mut round.to_vec(), per_mille) as f64)
            .collect()
    }

    /// Returns the minimum and the maximum over the rounds of the ratio of a percentile to that of `peer`.
    fn ratios_of_rounds(&self, peer: &Self, per_mille: u64) -> Option<[f64; 2]> {
        let ours = self.percentiles_ns(per_mille).into_iter();
        let ratios = ours
            .zip(peer.percentiles_ns(per_mille))
            .map(|(ours, peers)| ours / peers);
        ratios.fold(None, |range, ratio| {
            let [low, high] = range.unwrap_or([ratio; 2]);
            Some([ratio.min(low), ratio.max(high)])
        })
    }

    /// Returns the maximum latency in nanoseconds.
    pub(crate) fn max_ns(&self) -> u64 {
        self.latencies_ns.iter().copied().max().unwrap_or(0)
    }

    /// Returns metric, unit and value of all counts, per operation and as the maximum of one operation.
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
                "device_read_per_op",
                "KiB",
                totals.bytes_read as f64 / 1024.0 / operations,
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
        if self.maxima_known {
            figures.extend(maxima.figures_max());
        }
        figures
    }

    /// Whether these samples belong to that case and system.
    pub(crate) fn is_of(&self, case: &str, system: &str) -> bool {
        self.case == case && self.system == system
    }

    /// Returns a counted figure if it was counted.
    pub(crate) fn count(&self, metric: &str) -> Option<f64> {
        self.count_figures()
            .into_iter()
            .find(|(name, ..)| *name == metric)
            .map(|(.., value)| value)
    }
}

impl DeviceCounts {
    /// Returns metric, unit and value, for counts that are maxima of any single call.
    pub(crate) fn figures_max(&self) -> [(&'static str, &'static str, f64); 5] {
        [
            ("device_reads_max", "1", self.reads as f64),
            (
                "device_blocks_read_max",
                "1",
                self.bytes_read as f64 / 4096.0,
            ),
            ("device_writes_max", "1", self.writes as f64),
            ("device_flushes_max", "1", self.flushes.unwrap_or(0) as f64),
            (
                "device_written_max",
                "KiB",
                self.bytes_written as f64 / 1024.0,
            ),
        ]
    }
}

/// Returns the smallest sample that at least `per_mille` thousandths of all samples do not exceed; 0 without samples.
pub(crate) fn percentile(samples: &mut [u64], per_mille: u64) -> u64 {
    if samples.is_empty() {
        return 0;
    }
    samples.sort_unstable();
    let rank = (samples.len() as u64 * per_mille).div_ceil(1000).max(1);
    samples[rank as usize - 1]
}

/// Returns the median; for an even number of values, the mean of the two middle ones.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// A figure that a case of ours must not exceed: its own value, or its ratio to a peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    /// The peer that our figure is divided by, or `None` for the figure itself.
    pub(crate) peer: Option<&'static str>,
    pub(crate) at_most: f64,
}

/// A figure that is not a latency or count of a timed case.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) case: &'static str,
    pub(crate) system: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// All results of one run.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// The system that ratios compare with the peers.
    pub(crate) ours: &'static str,
    /// Ordered by case, with the systems of a case together.
    pub(crate) samples: Vec<Samples>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) missing: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) method: serde_json::Value,
}

/// The format that `--json` writes.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    pub(crate) bench: &'static str,
    pub(crate) version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
    /// Peers, tools and figures that are missing.
    pub(crate) missing: Vec<String>,
    /// The method of measurement, if it is chosen for a run.
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

/// Present only if a goal was stated.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: f64,
    pub(crate) better: &'static str,
    pub(crate) met: bool,
}

/// Our figure divided by a peer's.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) peer: String,
    pub(crate) ratio: f64,
    pub(crate) better: &'static str,
    /// Absent if no goal was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
    /// The device's own floor in the same case divided by the same peer: the lower limit for any store. Present only if
    /// a goal was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_ratio: Option<f64>,
    /// The minimum and the maximum of the single rounds' ratios; only for latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of_rounds: Option<[f64; 2]>,
}

impl Report {
    /// Returns the figures as data.
    pub(crate) fn json(&self) -> Json {
        let mut method = self.method.clone();
        if let Some(object) = method.as_object_mut() {
            object.insert("notes".to_owned(), self.notes.clone().into());
        }
        Json {
            bench: self.bench,
            version: env!("CARGO_PKG_VERSION"),
            machine: self.machine.clone(),
            rows: self.rows(),
            ratios: self.ratios(),
            missing: self.missing.clone(),
            method: Some(method),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut push = |case, system: &str, metric, unit, value| {
            rows.push(Row {
                case,
                system: system.to_owned(),
                metric,
                unit,
                value,
                verdict: self.verdict(case, system, metric, value),
            });
        };
        for samples in &self.samples {
            for (per_mille, metric) in PERCENTILES {
                let value = samples.percentile_ns(per_mille) / 1000.0;
                push(samples.case, &samples.system, metric, "us", value);
            }
            let max = samples.max_ns() as f64 / 1000.0;
            push(samples.case, &samples.system, "latency_max", "us", max);
            for (metric, unit, value) in samples.count_figures() {
                push(samples.case, &samples.system, metric, unit, value);
            }
        }
        for figure in &self.figures {
            let Figure {
                case,
                metric,
                unit,
                value,
                ..
            } = *figure;
            push(case, &figure.system, metric, unit, value);
        }
        rows
    }

    fn ratios(&self) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        let mut push = |case,
                        metric,
                        peer: &str,
                        better,
                        ratio: f64,
                        floor: Option<f64>,
                        of_rounds: Option<[f64; 2]>| {
            // Zero divided by zero is not a figure.
            if !ratio.is_finite() {
                return;
            }
            let goal = self.goal(case, metric, Some(peer));
            ratios.push(Ratio {
                case,
                metric,
                peer: peer.to_owned(),
                ratio,
                better,
                goal: goal.map(|goal| goal.at_most),
                met: goal.map(|goal| ratio <= goal.at_most),
                floor_ratio: goal.and(floor),
                of_rounds,
            });
        };
        for (ours, peer) in self.pairs() {
            let floor = self
                .samples
                .iter()
                .find(|samples| samples.is_of(ours.case, FLOOR) && !peer.is_of(ours.case, FLOOR));
            for (per_mille, metric) in PERCENTILES {
                let peer_ns = peer.percentile_ns(per_mille);
                let ratio = ours.percentile_ns(per_mille) / peer_ns;
                let floor = floor.map(|floor| floor.percentile_ns(per_mille) / peer_ns);
                let of_rounds = ours.ratios_of_rounds(peer, per_mille);
                push(
                    ours.case,
                    metric,
                    &peer.system,
                    "lower",
                    ratio,
                    floor,
                    of_rounds,
                );
            }
            for metric in RATIO_COUNTS {
                if let (Some(ours_count), Some(peers)) = (ours.count(metric), peer.count(metric)) {
                    let ratio = ours_count / peers;
                    push(ours.case, metric, &peer.system, "lower", ratio, None, None);
                }
            }
        }
        for ours in self.figures.iter().filter(|own| own.system == self.ours) {
            let peers = self.figures.iter().filter(|peer| {
                (peer.case, peer.metric) == (ours.case, ours.metric) && peer.system != self.ours
            });
            for peer in peers {
                let better = if ours.unit == "1/s" {
                    "higher"
                } else {
                    "lower"
                };
                push(
                    ours.case,
                    ours.metric,
                    &peer.system,
                    better,
                    ours.value / peer.value,
                    None,
                    None,
                );
            }
        }
        ratios
    }

    /// Returns the figures as text.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
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
            "{:<28}{:<22}{:>9}{:>9}{:>9}{:>10}  {:>6}{:>6}{:>7}{:>7}  counted",
            "case", "system", "p50", "p99", "p99.9", "max", "R/op", "W/op", "F/op", "KiB/op"
        )?;
        for samples in &self.samples {
            write!(text, "{:<28}{:<22}", samples.case, samples.system)?;
            for (per_mille, _) in PERCENTILES {
                write!(text, "{:>9.1}", samples.percentile_ns(per_mille) / 1000.0)?;
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
            "\n{} divided by the peer, of the medians of the rounds (lower is better)",
            self.ours
        )?;
        writeln!(
            text,
            "{:<28}{:<22}{:>9}{:>9}{:>9}",
            "case", "peer", "p50", "p99", "p99.9"
        )?;
        for (ours, peer) in self.pairs() {
            write!(text, "{:<28}{:<22}", ours.case, peer.system)?;
            for (per_mille, _) in PERCENTILES {
                let ratio = ours.percentile_ns(per_mille) / peer.percentile_ns(per_mille);
                write!(text, "{ratio:>9.2}")?;
            }
            writeln!(text)?;
        }
        let mut last = None;
        for figure in &self.figures {
            let of = Some((figure.case, &figure.system));
            if of != last {
                write!(text, "\n{} {}:", figure.case, figure.system)?;
                last = of;
            }
            let unit = if figure.unit == "1" { "" } else { figure.unit };
            let decimals = if figure.value.fract() == 0.0 { 0 } else { 2 };
            write!(text, " {}={:.decimals$}{unit}", figure.metric, figure.value)?;
        }
        writeln!(text)?;
        self.write_goals(text)?;
        for missing in &self.missing {
            writeln!(text, "\nmissing: {missing}")?;
        }
        for note in &self.notes {
            writeln!(text, "\nnote: {note}")?;
        }
        Ok(())
    }

    fn write_goals(&self, text: &mut String) -> std::fmt::Result {
        if !self.goals.is_empty() {
            writeln!(text)?;
        }
        let verdict = |met| if met { "met" } else { "MISSED" };
        for row in self.rows() {
            if let Some(Verdict { goal, met, .. }) = row.verdict {
                let (case, metric, value) = (row.case, row.metric, row.value);
                writeln!(
                    text,
                    "goal {case} {metric}: {value:.3}, at most {goal}: {}",
                    verdict(met)
                )?;
            }
        }
        for row in self.ratios() {
            if let (Some(goal), Some(met)) = (row.goal, row.met) {
                let Ratio {
                    case,
                    metric,
                    peer,
                    ratio,
                    ..
                } = &row;
                write!(
                    text,
                    "goal {case} {metric} divided by {peer}: {ratio:.3}, at most {goal}: {}",
                    verdict(met)
                )?;
                match row.floor_ratio {
                    Some(floor) => writeln!(text, " (the device's floor: {floor:.3})")?,
                    None => writeln!(text)?,
                }
            }
        }
        Ok(())
    }

    fn goal(&self, case: &str, metric: &str, peer: Option<&str>) -> Option<&Goal> {
        self.goals
            .iter()
            .find(|goal| (goal.case, goal.metric, goal.peer) == (case, metric, peer))
    }

    fn verdict(&self, case: &str, system: &str, metric: &str, value: f64) -> Option<Verdict> {
        let goal = self.goal(case, metric, None)?;
        (system == self.ours).then_some(Verdict {
            goal: goal.at_most,
            better: "lower",
            met: value <= goal.at_most,
        })
    }

    /// Returns our samples paired with those of each peer of the same case.
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
#[path = "report_tests.rs"]
mod tests;
