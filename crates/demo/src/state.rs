//! The state of a run at one moment, for its display.

use super::analysis::Picture;
use super::protocol::Stats;
use super::summary::Totals;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The store is being made.
    Starting,
    /// Readings are replayed.
    Running,
    /// The writer was killed and is restarting.
    Recovering,
    /// The last readings are becoming durable.
    Finishing,
    /// The reopened store is being compared with the record.
    Comparing,
}

/// One moment of a run.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<'r> {
    pub(crate) phase: Phase,
    pub(crate) end_ms: u64,
    pub(crate) speed: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) acknowledged: u64,
    pub(crate) open: u64,
    /// Readings acknowledged within the last second.
    pub(crate) rate_per_s: u64,
    /// The durable lag in ns at each report of the writer, oldest first.
    pub(crate) lag_history: &'r [u64],
    /// The last report of the current writer, or of the previous one during recovery.
    pub(crate) stats: Option<&'r Stats>,
    /// Sums over all lives, the current one included.
    pub(crate) figures: Sums,
    pub(crate) kills: u64,
    pub(crate) kills_planned: u64,
    pub(crate) direct: bool,
}

/// The sums that are shown during a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Instances that ended late, and releases without their own instance.
    pub(crate) late: u64,
    /// Releases of the task.
    pub(crate) releases: u64,
    pub(crate) device_writes: u64,
    pub(crate) device_flushes: u64,
}

impl Sums {
    /// Returns the sums of the ended lives and the current one.
    pub(crate) fn of(ended: &Totals, present: Option<&Stats>) -> Self {
        let zero = Stats::default();
        let now = present.unwrap_or(&zero);
        let instances = ended.instances + now.instances;
        let missed = ended.releases_missed + now.releases_missed;
        Self {
            late: ended.deadline_misses + now.deadline_misses + missed,
            releases: instances + missed,
            device_writes: ended.device_writes + now.device_writes,
            device_flushes: ended.device_flushes + now.device_flushes,
        }
    }
}

static NOTHING_YET: Picture = Picture::UNKNOWN;

impl Snapshot<'_> {
    /// Returns the latest result of the analysis.
    pub(crate) fn picture(&self) -> &Picture {
        self.stats.map_or(&NOTHING_YET, |stats| &stats.picture)
    }

    /// Returns the time of the trace, at most its end.
    pub(crate) fn trace_ms(&self) -> u64 {
        self.stats
            .map_or(0, |stats| stats.trace_ms)
            .min(self.end_ms)
    }

    /// Returns how much of the trace is done, from 0 to 1.
    pub(crate) fn share_done(&self) -> f64 {
        if self.end_ms == 0 {
            1.0
        } else {
            self.trace_ms() as f64 / self.end_ms as f64
        }
    }
}

/// Values of a history: more than the widest chart shows.
const HISTORY_MAX: usize = 120;

/// Adds a value to a history of bounded length.
pub(crate) fn remember(history: &mut Vec<u64>, value: u64) {
    if history.len() == HISTORY_MAX {
        history.remove(0);
    }
    history.push(value);
}

/// Readings per second over the last second.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    marks: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Records the total number of readings.
    pub(crate) fn note(&mut self, now: Instant, count: u64) {
        self.marks.push_back((now, count));
        let is_old = |mark: &(Instant, u64)| now.duration_since(mark.0) > Duration::from_secs(1);
        // Keep one mark that is at least one second old: the rate is measured from it.
        while self.marks.get(1).is_some_and(is_old) {
            self.marks.pop_front();
        }
    }

    /// Returns the readings per second.
    pub(crate) fn per_s(&self) -> u64 {
        let (Some((from, before)), Some((to, now))) = (self.marks.front(), self.marks.back())
        else {
            return 0;
        };
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds <= 0.0 {
            0
        } else {
            (now.saturating_sub(*before) as f64 / seconds).round() as u64
        }
    }
}

#[cfg(test)]
pub(crate) fn tests_snapshot(stats: Option<&Stats>) -> Snapshot<'_> {
    Snapshot {
        phase: Phase::Running,
        end_ms: 300_000,
        speed: 10.0,
        elapsed_s: 15.4,
        acknowledged: 39_800,
        open: 300,
        rate_per_s: 2_601,
        lag_history: &[1, 5, 9, 200_000_000],
        stats,
        figures: Sums::of(&Totals::default(), stats),
        kills: 3,
        kills_planned: 12,
        direct: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let begin = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.per_s(), 0);
        for tenth in 0..50_u64 {
            // 100 per second for two seconds, then 1,000 per second.
            let count = if tenth <= 20 {
                10 * tenth
            } else {
                200 + 100 * (tenth - 20)
            };
            rate.note(begin + Duration::from_millis(100 * tenth), count);
        }
        assert_eq!(rate.per_s(), 1_000);
        assert!(rate.marks.len() < 20);
    }
}
