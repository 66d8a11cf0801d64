//! What a run looks like at one moment, for whoever shows it.

use super::analysis::Picture;
use super::protocol::Stats;
use super::summary::Totals;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The store is being made.
    Starting,
    /// Readings flow.
    Running,
    /// The writer was killed and is coming back.
    Recovering,
    /// The last readings become durable.
    Finishing,
    /// The store has been reopened and is compared with the record.
    Comparing,
}

/// One moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<'r> {
    pub(crate) phase: Phase,
    pub(crate) end_ms: u64,
    pub(crate) speed: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) acknowledged: u64,
    pub(crate) open: u64,
    /// Readings acknowledged in the last second.
    pub(crate) rate_per_s: u64,
    /// The durable lag in ns at each report of the writer, oldest first.
    pub(crate) lag_history: &'r [u64],
    /// The last report of the present writer, or of the one before while it recovers.
    pub(crate) stats: Option<&'r Stats>,
    /// Sums over all lives, the present one included.
    pub(crate) figures: Sums,
    pub(crate) kills: u64,
    pub(crate) kills_planned: u64,
    pub(crate) direct: bool,
}

/// The few sums that are shown while a run goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Instances that ended late, and releases that no instance of their own followed.
    pub(crate) late: u64,
    /// Releases of the task.
    pub(crate) releases: u64,
    pub(crate) device_writes: u64,
    pub(crate) device_flushes: u64,
}

impl Sums {
    /// The sums of ended lives and of the present one.
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
    /// What the analysis found last.
    pub(crate) fn picture(&self) -> &Picture {
        self.stats.map_or(&NOTHING_YET, |stats| &stats.picture)
    }

    /// The clock of the trace, at most its end.
    pub(crate) fn trace_ms(&self) -> u64 {
        self.stats
            .map_or(0, |stats| stats.trace_ms)
            .min(self.end_ms)
    }

    /// How much of the trace is done, from 0 to 1.
    pub(crate) fn share_done(&self) -> f64 {
        if self.end_ms == 0 {
            1.0
        } else {
            self.trace_ms() as f64 / self.end_ms as f64
        }
    }
}

/// Values of a history: more than the widest chart.
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
    /// Notes how many there are in all.
    pub(crate) fn note(&mut self, now: Instant, count: u64) {
        self.marks.push_back((now, count));
        let is_old = |mark: &(Instant, u64)| now.duration_since(mark.0) > Duration::from_secs(1);
        // One mark of at least a second ago stays: the rate is measured from it.
        while self.marks.get(1).is_some_and(is_old) {
            self.marks.pop_front();
        }
    }

    /// Readings per second.
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
            // 100 a second for two seconds, then 1,000 a second.
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
