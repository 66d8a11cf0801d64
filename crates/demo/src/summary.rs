//! The figures of a run, as text for people and as one JSON object for programs.

use super::protocol::{LatencyOf, Stats};
use super::recorder::Comparison;
use base::histogram::Histogram;
use serde_json::{Value, json};
use std::fmt::Write;

/// The least share of offered readings that must be acknowledged if the writer was killed.
pub(crate) const ACKNOWLEDGED_SHARE_MIN: f64 = 0.9;

/// The most releases before the first instance of a working task.
const RELEASES_WITHOUT_INSTANCE_MAX: u64 = 10;

/// Fewest kills of a run with `--kill`.
pub(crate) const KILLS_MIN: u64 = 10;

/// Sums over all lives of the writer, as far as it has reported them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) instances: u64,
    pub(crate) deadline_misses: u64,
    pub(crate) releases_missed: u64,
    pub(crate) tardiness_sum: f64,
    pub(crate) fresh_sum: f64,
    pub(crate) fresh_samples: u64,
    pub(crate) response_ns_max: u64,
    pub(crate) device_writes: u64,
    pub(crate) device_blocks_written: u64,
    pub(crate) device_flushes: u64,
    pub(crate) setup_writes: u64,
    pub(crate) setup_flushes: u64,
    pub(crate) latency: [Histogram; LatencyOf::ALL.len()],
    /// Starts that found a store and recovered it.
    pub(crate) recoveries: u64,
    pub(crate) recovery_ns_max: u64,
    pub(crate) recovery_ns_sum: u64,
    pub(crate) records_damaged: u64,
}

impl Totals {
    /// Adds the last figures of a life.
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.instances += stats.instances;
        self.deadline_misses += stats.deadline_misses;
        self.tardiness_sum += stats.tardiness_sum;
        self.releases_missed += stats.releases_missed;
        self.fresh_sum += stats.fresh_sum;
        self.fresh_samples += stats.fresh_samples;
        self.response_ns_max = self.response_ns_max.max(stats.response_ns_max);
        self.device_writes += stats.device_writes;
        self.device_blocks_written += stats.device_blocks_written;
        self.device_flushes += stats.device_flushes;
    }

    /// Returns the mean of response time ÷ deadline over all instances; 0 before the first.
    pub(crate) fn tardiness_mean(&self) -> f64 {
        ratio(self.tardiness_sum, self.instances)
    }

    /// Returns the mean share of fresh objects over all reports; 0 before the first.
    pub(crate) fn fresh_mean(&self) -> f64 {
        ratio(self.fresh_sum, self.fresh_samples)
    }
}

fn ratio(sum: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// All results of a finished run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) offered: u64,
    pub(crate) acknowledged: u64,
    /// Repeated offers after a restart.
    pub(crate) offered_again: u64,
    pub(crate) comparison: Comparison,
    pub(crate) totals: Totals,
    pub(crate) seconds: f64,
    pub(crate) trace_seconds: f64,
    pub(crate) speed: f64,
    /// Passes through the trace; more than one if the trace is shorter than requested.
    pub(crate) passes: u64,
    pub(crate) stopped_early: bool,
    pub(crate) kill_asked: bool,
    pub(crate) kills: u64,
    pub(crate) kills_with_open_tickets: u64,
    pub(crate) kills_during_recovery: u64,
    /// Kills within 5 ms after an acknowledgement arrived.
    pub(crate) kills_after_acknowledgement: u64,
    pub(crate) seed: Option<u64>,
    /// Total time between the kills and the writer's next readiness.
    pub(crate) downtime_s: f64,
    /// Damaged records, pieces or files of the log at the end.
    pub(crate) log_damaged: u64,
    /// Missing readings at the end, according to the numbering of the log.
    pub(crate) log_readings_missing: u64,
    /// Files of the log at the end.
    pub(crate) log_segments: u64,
    pub(crate) reopen_ns: u64,
    pub(crate) direct: bool,
    /// Where the store was left, if it was kept.
    pub(crate) kept_image: Option<String>,
}

impl Figures {
    /// Returns why the run has failed; empty if it has not.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let found = &self.comparison;
        if found.missing > 0 {
            failures.push(format!(
                "{} acknowledged readings are missing",
                found.missing
            ));
        }
        let (altered, unexpected) = (self.altered(), self.unexpected());
        if altered > 0 {
            failures.push(format!("{altered} readings are altered"));
        }
        if unexpected > 0 {
            failures.push(format!("{unexpected} readings were never offered"));
        }
        if found.tables.stale > 0 {
            failures.push(format!(
                "{} sensors were older in a recovered table than acknowledged",
                found.tables.stale
            ));
        }
        // Nothing damages the store here: a killed process leaves at most an unfinished end of the log.
        let damaged = self.log_damaged.max(self.totals.records_damaged);
        if damaged > 0 {
            failures.push(format!("{damaged} pieces of the log are damaged"));
        }
        if self.log_readings_missing > 0 {
            failures.push(format!(
                "the log says that {} of its readings are missing",
                self.log_readings_missing
            ));
        }
        if self.totals.instances == 0
            && self.totals.releases_missed >= RELEASES_WITHOUT_INSTANCE_MAX
        {
            failures.push("no instance of the analysis task has ended".to_owned());
        }
        if self.kill_asked
            && (self.acknowledged as f64) < ACKNOWLEDGED_SHARE_MIN * self.offered as f64
        {
            failures.push(format!(
                "only {} of {} readings were acknowledged",
                self.acknowledged, self.offered
            ));
        }
        if self.kill_asked && !self.stopped_early {
            if self.kills < KILLS_MIN {
                failures.push(format!("only {} kills of at least {KILLS_MIN}", self.kills));
            }
            if self.kills_with_open_tickets * 2 < self.kills {
                failures.push(format!(
                    "only {} of {} kills had open tickets, at least half must",
                    self.kills_with_open_tickets, self.kills
                ));
            }
        }
        if !self.kill_asked && !self.stopped_early && self.acknowledged < self.offered {
            failures.push(format!(
                "{} readings were never acknowledged",
                self.offered - self.acknowledged
            ));
        }
        if self.offered == 0 && !self.stopped_early {
            failures.push("no reading was offered".to_owned());
        }
        failures
    }

    /// Returns the readings altered in the log plus the sensors altered in a table.
    fn altered(&self) -> u64 {
        self.comparison.altered + self.comparison.tables.altered
    }

    /// Returns the readings and sensors with values that were never offered.
    fn unexpected(&self) -> u64 {
        self.comparison.unexpected + self.comparison.tables.unexpected
    }

    fn latency(&self, of: LatencyOf) -> &Histogram {
        &self.totals.latency[of as usize]
    }

    /// Returns the object of `--json`.
    pub(crate) fn json(&self) -> Value {
        let latency = |of| {
            let histogram = self.latency(of);
            let us = |percent| histogram.percentile(percent) as f64 / 1e3;
            json!({"p50": us(50.0), "p99": us(99.0), "p999": us(99.9), "max": us(100.0), "count": histogram.count()})
        };
        let totals = &self.totals;
        let mut figures = json!({
            "readings_offered": self.offered,
            "readings_acknowledged": self.acknowledged,
            "readings_missing": self.comparison.missing,
            "readings_altered": self.altered(),
            "readings_unexpected": self.unexpected(),
            "table_stale": self.comparison.tables.stale,
            "tables_compared": self.comparison.tables.compared,
            "readings_offered_again": self.offered_again,
            "tardiness_mean": totals.tardiness_mean(),
            "deadline_misses": totals.deadline_misses,
            "releases_missed": totals.releases_missed,
            "task_instances": totals.instances,
            "task_response_us": latency(LatencyOf::Response),
            "fresh_mean": totals.fresh_mean(),
            "append_latency_us": latency(LatencyOf::Append),
            "put_durable_us": latency(LatencyOf::PutDurable),
            "device_writes": totals.device_writes,
            "device_flushes": totals.device_flushes,
            "device_blocks_written": totals.device_blocks_written,
            "setup_device_writes": totals.setup_writes,
            "setup_device_flushes": totals.setup_flushes,
            "device_direct": self.direct,
            "seconds": self.seconds,
            "trace_seconds": self.trace_seconds,
            "trace_passes": self.passes,
            "speed": self.speed,
            "stopped_early": self.stopped_early,
            "failures": self.failures(),
        });
        // Split in two because of a limit of the macro.
        let recovery = json!({
            "kills": self.kills,
            "kills_with_open_tickets": self.kills_with_open_tickets,
            "kills_during_recovery": self.kills_during_recovery,
            "kills_after_acknowledgement": self.kills_after_acknowledgement,
            "seed": self.seed,
            "downtime_seconds": self.downtime_s,
            "recoveries": totals.recoveries,
            "recovery_ms_max": totals.recovery_ns_max as f64 / 1e6,
            "recovery_ms_mean": ratio(totals.recovery_ns_sum as f64 / 1e6, totals.recoveries),
            "records_damaged": totals.records_damaged,
            "log_damaged": self.log_damaged,
            "log_readings_missing": self.log_readings_missing,
            "log_segments": self.log_segments,
            "reopen_ms": self.reopen_ns as f64 / 1e6,
            "image": self.kept_image,
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut figures, recovery) {
            all.extend(more);
        }
        figures
    }

    /// Returns the summary for people, in several lines.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        self.write_text(&mut text).ok();
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let totals = &self.totals;
        let found = &self.comparison;
        let early = if self.stopped_early {
            ", stopped early"
        } else {
            ""
        };
        writeln!(
            out,
            "keel demo: {:.0} s of trace in {:.1} s{early}",
            self.trace_seconds, self.seconds
        )?;
        if self.passes > 1 {
            writeln!(
                out,
                "  (the trace is shorter than that; it was replayed {} times)",
                self.passes
            )?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "  readings   {} offered, {} acknowledged",
            grouped(self.offered),
            grouped(self.acknowledged)
        )?;
        writeln!(
            out,
            "  reopened   {} missing, {} altered, {} never offered",
            found.missing,
            self.altered(),
            self.unexpected()
        )?;
        writeln!(
            out,
            "             in {} log files; {} sensors stale in {} recovered tables",
            self.log_segments, found.tables.stale, found.tables.compared
        )?;
        writeln!(out)?;
        let [p50, p99, p999, max] = self.percentiles(LatencyOf::PutDurable);
        writeln!(
            out,
            "  durable    half of the readings were on flash {p50} after their put,"
        )?;
        writeln!(
            out,
            "             99 % within {p99}, 99.9 % within {p999}; the slowest took {max}"
        )?;
        let [p50, p99, p999, max] = self.percentiles(LatencyOf::Append);
        writeln!(
            out,
            "  append     half of the flash appends took {p50} at most,"
        )?;
        writeln!(
            out,
            "             99 % {p99}, 99.9 % {p999}; the slowest took {max}"
        )?;
        let per_reading = |count: u64| ratio(count as f64, self.acknowledged);
        writeln!(
            out,
            "  device     {} writes and {} flushes, {:.4} and {:.4} per reading",
            grouped(totals.device_writes),
            grouped(totals.device_flushes),
            per_reading(totals.device_writes),
            per_reading(totals.device_flushes)
        )?;
        let path = if self.direct {
            "O_DIRECT, past the page cache"
        } else {
            "through the page cache: no O_DIRECT here"
        };
        writeln!(out, "             ({path})")?;
        let [p50, _, _, max] = self.percentiles(LatencyOf::Response);
        writeln!(
            out,
            "  analysis   {} instances, {} missed the deadline, {} releases went without,",
            grouped(totals.instances),
            grouped(totals.deadline_misses),
            grouped(totals.releases_missed)
        )?;
        writeln!(
            out,
            "             half took {p50} at most, the longest {max}; mean tardiness {:.3}",
            totals.tardiness_mean()
        )?;
        writeln!(
            out,
            "  freshness  {:.1} % of the objects, on average",
            100.0 * totals.fresh_mean()
        )?;
        if self.kill_asked {
            self.write_kills(out)?;
        }
        if let Some(image) = &self.kept_image {
            writeln!(out, "\n  The store is kept: keel flash check {image}")?;
        }
        let failures = self.failures();
        if failures.is_empty() {
            writeln!(
                out,
                "\n  Every acknowledged reading is on flash, unaltered."
            )
        } else {
            writeln!(out, "\n  FAILED: {}", failures.join("; "))
        }
    }

    /// Returns p50, p99, p99.9 and maximum as text.
    fn percentiles(&self, of: LatencyOf) -> [String; 4] {
        let histogram = self.latency(of);
        [50.0, 99.0, 99.9, 100.0].map(|percent| duration(histogram.percentile(percent)))
    }

    fn write_kills(&self, out: &mut String) -> std::fmt::Result {
        let totals = &self.totals;
        writeln!(out)?;
        writeln!(
            out,
            "  kills      {} with SIGKILL: {} with tickets open, {} during start-up, {} right",
            self.kills,
            self.kills_with_open_tickets,
            self.kills_during_recovery,
            self.kills_after_acknowledgement
        )?;
        writeln!(
            out,
            "             after an acknowledgement (seed {}: --seed repeats the plan)",
            self.seed.unwrap_or_default()
        )?;
        writeln!(
            out,
            "  recovery   {} starts, {} on average, {} at most",
            totals.recoveries,
            duration(totals.recovery_ns_sum / totals.recoveries.max(1)),
            duration(totals.recovery_ns_max)
        )?;
        writeln!(
            out,
            "             {:.1} s without the task, apart from its deadline misses",
            self.downtime_s
        )?;
        writeln!(
            out,
            "  offered    {} times again, what a killed writer had not acknowledged",
            grouped(self.offered_again)
        )?;
        writeln!(
            out,
            "             (the figures of a killed writer lack its last 0.2 s)\n\n  \
             This proves recovery of the software from a killed process. The proof for\n  \
             power is the crash suite of the flash store: a cut at every device write."
        )
    }
}

/// Returns a duration with three digits: `742 µs`, `1.24 ms`.
pub(crate) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

/// Returns a number with separated thousands: `155,499`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::recorder::TablesFound;
    use super::*;

    fn good() -> Figures {
        Figures {
            offered: 100,
            acknowledged: 100,
            ..Figures::default()
        }
    }

    #[test]
    fn one_lost_or_altered_reading_fails_a_run() {
        assert!(good().failures().is_empty());
        for comparison in [
            Comparison {
                missing: 1,
                ..Comparison::default()
            },
            Comparison {
                altered: 1,
                ..Comparison::default()
            },
            Comparison {
                unexpected: 1,
                ..Comparison::default()
            },
        ] {
            let figures = Figures {
                comparison,
                ..good()
            };
            assert_eq!(figures.failures().len(), 1);
            assert!(figures.text().contains("FAILED"));
        }
    }

    #[test]
    fn a_wrong_table_a_damaged_log_or_a_task_that_stands_still_fails_a_run() {
        let tables = |tables| Figures {
            comparison: Comparison {
                tables,
                ..Comparison::default()
            },
            ..good()
        };
        let with_totals = |totals| Figures { totals, ..good() };
        let zero = TablesFound::default;
        for figures in [
            tables(TablesFound { stale: 1, ..zero() }),
            tables(TablesFound {
                altered: 1,
                ..zero()
            }),
            tables(TablesFound {
                unexpected: 1,
                ..zero()
            }),
            Figures {
                log_damaged: 1,
                ..good()
            },
            Figures {
                log_readings_missing: 1,
                ..good()
            },
            with_totals(Totals {
                records_damaged: 1,
                ..Totals::default()
            }),
            with_totals(Totals {
                releases_missed: 10,
                ..Totals::default()
            }),
        ] {
            assert_eq!(figures.failures().len(), 1, "{figures:?}");
        }
    }

    #[test]
    fn a_run_with_kills_has_its_own_conditions() {
        let kill = |kills, open, acknowledged| Figures {
            kill_asked: true,
            kills,
            kills_with_open_tickets: open,
            acknowledged,
            seed: Some(7),
            ..good()
        };
        assert!(kill(10, 5, 90).failures().is_empty());
        assert_eq!(kill(9, 9, 100).failures().len(), 1);
        assert_eq!(kill(10, 4, 100).failures().len(), 1);
        assert_eq!(kill(10, 5, 89).failures().len(), 1);
        assert!(kill(10, 10, 100).text().contains("crash suite"));
        // Without kills, a user's stop leaves readings open, which is no failure.
        assert!(
            Figures {
                acknowledged: 50,
                stopped_early: true,
                ..good()
            }
            .failures()
            .is_empty()
        );
    }

    #[test]
    fn the_json_object_has_the_promised_names() {
        let json = good().json();
        for name in [
            "readings_offered",
            "readings_acknowledged",
            "readings_missing",
            "readings_altered",
            "tardiness_mean",
            "deadline_misses",
            "releases_missed",
            "table_stale",
            "fresh_mean",
            "device_writes",
            "device_flushes",
            "seconds",
        ] {
            assert!(json[name].is_number(), "{name}");
        }
        for name in ["append_latency_us", "put_durable_us"] {
            for percentile in ["p50", "p99", "p999", "max"] {
                assert!(json[name][percentile].is_number(), "{name}.{percentile}");
            }
        }
    }

    #[test]
    fn the_summary_fits_a_terminal() {
        let kill = Figures {
            kill_asked: true,
            offered: 1_234_567,
            acknowledged: 1_234_567,
            ..good()
        };
        for line in kill.text().lines() {
            assert!(line.chars().count() <= 79, "{line}");
        }
    }

    #[test]
    fn numbers_and_durations_are_grouped_and_rounded() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(155_499), "155,499");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_240_000), "1.24 ms");
        assert_eq!(duration(12_345_678), "12.3 ms");
        assert_eq!(duration(742_000), "742 µs");
        assert_eq!(duration(2_000_000_000), "2.00 s");
    }
}
