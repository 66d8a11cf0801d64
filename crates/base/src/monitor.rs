//! Timing figures of a task's instances: those of a period, and their short form for figures from elsewhere.

use crate::histogram::{BUCKETS_PER_OCTAVE, Histogram, Parts, PartsError, VALUE_LIMIT};

/// Timing figures of a task's instances. Times in ns; histograms can be merged.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    /// Instances finished, including aborted ones.
    pub instances: u64,
    /// Instances whose response time exceeded the deadline.
    pub deadline_misses: u64,
    /// Instances of a firm task of which no put took effect: the deadline had passed, the body gave up, or the log took
    /// nothing.
    pub aborted: u64,
    /// Releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Sum of response time / deadline over all instances.
    pub tardiness_sum: f64,
    /// Greatest tardiness.
    pub tardiness_max: f64,
    /// From release to finish.
    pub response_ns: Histogram,
    /// Time in `get` and `put`.
    pub data_ns: Histogram,
    /// Execution outside `get` and `put`.
    pub compute_ns: Histogram,
    /// From release to the first instruction.
    pub jitter_ns: Histogram,
}

/// One instance of a task that has ended. Times in ns on one monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// When it was released.
    pub release_ns: u64,
    /// When its first instruction ran.
    pub begin_ns: u64,
    /// When it ended; for a firm one, when its commit was decided.
    pub finish_ns: u64,
    /// How long it spent in `get` and `put`.
    pub data_ns: u64,
    /// Releases that passed before this one while an earlier instance ran.
    pub releases_missed: u64,
    /// Whether it belongs to a firm task and none of its puts took effect.
    pub is_aborted: bool,
}

impl Monitor {
    /// Mean tardiness; 0 before the first instance.
    #[must_use]
    pub fn tardiness_mean(&self) -> f64 {
        if self.instances == 0 {
            0.0
        } else {
            self.tardiness_sum / self.instances as f64
        }
    }

    /// Returns data time / (data time + compute time) over all instances; 0 before the first one. The controller uses
    /// another ratio, with the response time as denominator.
    #[must_use]
    pub fn data_ratio(&self) -> f64 {
        let (data, compute) = (self.data_ns.sum() as f64, self.compute_ns.sum() as f64);
        if data + compute > 0.0 {
            data / (data + compute)
        } else {
            0.0
        }
    }

    /// Adds the figures of another period or task.
    pub fn merge(&mut self, other: &Self) {
        let add = |mine: &mut u64, theirs: u64| *mine = mine.saturating_add(theirs);
        add(&mut self.instances, other.instances);
        add(&mut self.deadline_misses, other.deadline_misses);
        add(&mut self.aborted, other.aborted);
        add(&mut self.releases_missed, other.releases_missed);
        self.tardiness_sum += other.tardiness_sum;
        self.tardiness_max = self.tardiness_max.max(other.tardiness_max);
        self.response_ns.merge(&other.response_ns);
        self.data_ns.merge(&other.data_ns);
        self.compute_ns.merge(&other.compute_ns);
        self.jitter_ns.merge(&other.jitter_ns);
    }

    /// Counts an instance with this deadline (response time allowed, ns; 0 counts as 1). Allocates nothing.
    pub fn record(&mut self, instance: &Instance, deadline_ns: u64) {
        let response_ns = instance.finish_ns.saturating_sub(instance.release_ns);
        let execution_ns = instance.finish_ns.saturating_sub(instance.begin_ns);
        let tardiness = response_ns as f64 / deadline_ns.max(1) as f64;
        self.instances += 1;
        self.deadline_misses += u64::from(response_ns > deadline_ns);
        self.aborted += u64::from(instance.is_aborted);
        self.releases_missed = self
            .releases_missed
            .saturating_add(instance.releases_missed);
        self.tardiness_sum += tardiness;
        self.tardiness_max = self.tardiness_max.max(tardiness);
        self.response_ns.record(response_ns);
        self.data_ns.record(instance.data_ns);
        self.compute_ns
            .record(execution_ns.saturating_sub(instance.data_ns));
        self.jitter_ns
            .record(instance.begin_ns.saturating_sub(instance.release_ns));
    }

    /// Returns the short form: what a task in another process reports to the node for a period.
    #[must_use]
    pub fn to_sum(&self) -> MonitorSum {
        MonitorSum {
            instances: self.instances,
            deadline_misses: self.deadline_misses,
            aborted: self.aborted,
            releases_missed: self.releases_missed,
            tardiness_sum: self.tardiness_sum,
            tardiness_max: self.tardiness_max,
            response_ns: self.response_ns.parts(),
            data_ns: self.data_ns.parts(),
            compute_ns: self.compute_ns.parts(),
            jitter_ns: self.jitter_ns.parts(),
        }
    }

    /// Decodes a short form. It may come from any sender: it is refused unless recorded instances could have given it,
    /// so that merging it does no harm.
    ///
    /// # Errors
    /// Names the impossible figure.
    pub fn from_sum(sum: &MonitorSum) -> Result<Self, MonitorSumError> {
        let invalid = |figure| MonitorSumError::Figure { figure };
        for (figure, count) in [
            ("deadline_misses", sum.deadline_misses),
            ("aborted", sum.aborted),
        ] {
            if count > sum.instances {
                return Err(invalid(figure));
            }
        }
        let (mean_max, most) = (sum.tardiness_max, sum.instances as f64);
        let is_tardiness = |value: f64| value.is_finite() && value >= 0.0;
        if !is_tardiness(mean_max) || (sum.instances == 0 && mean_max > 0.0) {
            return Err(invalid("tardiness_max"));
        }
        // A sum of rounded terms may be slightly above.
        let sum_max = mean_max * most * (1.0 + 1e-9);
        if !is_tardiness(sum.tardiness_sum) || sum.tardiness_sum > sum_max {
            return Err(invalid("tardiness_sum"));
        }
        let histogram = |figure, parts: &Parts| {
            let found = Histogram::from_parts(parts)
                .map_err(|error| MonitorSumError::Histogram { figure, error })?;
            if found.count() == sum.instances {
                Ok(found)
            } else {
                Err(MonitorSumError::Count { figure })
            }
        };
        Ok(Self {
            instances: sum.instances,
            deadline_misses: sum.deadline_misses,
            aborted: sum.aborted,
            releases_missed: sum.releases_missed,
            tardiness_sum: sum.tardiness_sum,
            tardiness_max: sum.tardiness_max,
            response_ns: histogram("response_ns", &sum.response_ns)?,
            data_ns: histogram("data_ns", &sum.data_ns)?,
            compute_ns: histogram("compute_ns", &sum.compute_ns)?,
            jitter_ns: histogram("jitter_ns", &sum.jitter_ns)?,
        })
    }
}

impl Monitor {
    /// Checks whether figures from elsewhere can be those of instances with this deadline (ns; 0 counts as 1). What is
    /// reported twice, as a figure and in the histogram of the response times, must agree within the width of a bucket.
    ///
    /// # Errors
    /// Names the figure that contradicts the response times.
    pub fn check(&self, deadline_ns: u64) -> Result<(), MonitorSumError> {
        let invalid = |figure| Err(MonitorSumError::Contradiction { figure });
        let deadline_ns = deadline_ns.max(1) as f64;
        let instances = self.instances as f64;
        let is_near = |told: f64, ns: f64, slack_ns: f64| {
            let width = 1.0 / BUCKETS_PER_OCTAVE as f64;
            let (least, most) = (ns * (1.0 - width) - slack_ns, ns * (1.0 + width) + slack_ns);
            (least..=most).contains(&(told * deadline_ns))
        };
        if !is_near(self.tardiness_max, self.response_ns.max() as f64, 1.0) {
            return invalid("tardiness_max");
        }
        let response_ns = self.response_ns.sum();
        // A saturated sum says only that the true sum is greater; then the greatest value bounds it.
        let is_cut = response_ns >= u128::from(u64::MAX);
        if !is_cut && !is_near(self.tardiness_sum, response_ns as f64, instances) {
            return invalid("tardiness_sum");
        }
        // Of a bucket only the last value is known here, so a count may differ by the count of the deadline's own
        // bucket.
        let mut most = self.response_ns.saturated_count();
        let mut least = match VALUE_LIMIT as f64 > deadline_ns {
            true => most,
            false => 0,
        };
        for (last_ns, count) in self.response_ns.buckets() {
            let first_ns = last_ns as f64 * (1.0 - 2.0 / BUCKETS_PER_OCTAVE as f64) - 1.0;
            least += if first_ns > deadline_ns { count } else { 0 };
            most += if last_ns as f64 > deadline_ns {
                count
            } else {
                0
            };
        }
        if !(least..=most).contains(&self.deadline_misses) {
            return invalid("deadline_misses");
        }
        let slack_ns = u128::from(self.instances);
        for (figure, part) in [
            ("data_ns", &self.data_ns),
            ("compute_ns", &self.compute_ns),
            ("jitter_ns", &self.jitter_ns),
        ] {
            if part.sum() > response_ns + slack_ns || part.max() > self.response_ns.max() {
                return invalid(figure);
            }
        }
        Ok(())
    }
}

/// A [`Monitor`] in few numbers: the contents of its histograms, without their empty buckets.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each figure is the monitor's of that name")]
pub struct MonitorSum {
    pub instances: u64,
    pub deadline_misses: u64,
    pub aborted: u64,
    pub releases_missed: u64,
    pub tardiness_sum: f64,
    pub tardiness_max: f64,
    pub response_ns: Parts,
    pub data_ns: Parts,
    pub compute_ns: Parts,
    pub jitter_ns: Parts,
}

/// Why a short form cannot come from a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorSumError {
    /// A figure that no instances can have.
    #[error("{figure} does not fit the number of instances")]
    Figure {
        /// Its name.
        figure: &'static str,
    },
    /// A figure that the response times contradict.
    #[error("{figure} contradicts the response times")]
    Contradiction {
        /// Its name.
        figure: &'static str,
    },
    /// A histogram does not have one value for each instance.
    #[error("{figure} has not as many values as there were instances")]
    Count {
        /// Its name.
        figure: &'static str,
    },
    /// A histogram that no recording can give.
    #[error("{figure}: {error}")]
    Histogram {
        /// Its name.
        figure: &'static str,
        /// What is wrong.
        error: PartsError,
    },
}

impl MonitorSumError {
    /// The figure that is wrong.
    #[must_use]
    pub fn figure(&self) -> &'static str {
        match self {
            Self::Figure { figure }
            | Self::Contradiction { figure }
            | Self::Count { figure }
            | Self::Histogram { figure, .. } => figure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instance() -> Instance {
        Instance {
            release_ns: 100,
            begin_ns: 110,
            finish_ns: 150,
            data_ns: 10,
            ..Instance::default()
        }
    }

    #[test]
    fn tardiness_misses_and_shares_add_up() {
        let mut monitor = Monitor::default();
        monitor.record(&instance(), 100);
        monitor.record(
            &Instance {
                finish_ns: 250,
                releases_missed: 3,
                is_aborted: true,
                ..instance()
            },
            100,
        );
        assert_eq!(
            (
                monitor.instances,
                monitor.deadline_misses,
                monitor.aborted,
                monitor.releases_missed
            ),
            (2, 1, 1, 3)
        );
        assert!((monitor.tardiness_mean() - 1.0).abs() < 1e-12);
        assert!((monitor.tardiness_max - 1.5).abs() < 1e-12);
        assert_eq!(
            (
                monitor.data_ns.sum(),
                monitor.compute_ns.sum(),
                monitor.jitter_ns.max()
            ),
            (20, 160, 10)
        );
        assert!((monitor.data_ratio() - 20.0 / 180.0).abs() < 1e-12);
        let mut both = monitor.clone();
        both.merge(&monitor);
        assert_eq!(
            (both.instances, both.aborted, both.response_ns.count()),
            (4, 2, 4)
        );
        assert!((both.tardiness_mean() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_short_form_that_cannot_be_is_refused() {
        let mut monitor = Monitor::default();
        monitor.record(&instance(), 100);
        let good = monitor.to_sum();
        assert!(Monitor::from_sum(&good).is_ok());
        assert!(Monitor::from_sum(&MonitorSum::default()).is_ok());
        type Change = fn(&mut MonitorSum);
        let changes: [(&str, Change); 9] = [
            ("deadline_misses", |sum| sum.deadline_misses = 2),
            ("aborted", |sum| sum.aborted = 2),
            ("tardiness_max", |sum| sum.tardiness_max = f64::NAN),
            ("tardiness_max", |sum| sum.tardiness_max = f64::INFINITY),
            ("tardiness_sum", |sum| sum.tardiness_sum = -0.1),
            ("tardiness_sum", |sum| sum.tardiness_sum = 0.6),
            ("response_ns", |sum| sum.response_ns = Parts::default()),
            ("data_ns", |sum| sum.data_ns.buckets[0].1 = 2),
            ("compute_ns", |sum| sum.compute_ns.buckets[0].0 = u32::MAX),
        ];
        for (named, change) in changes {
            let mut sum = good.clone();
            change(&mut sum);
            let error = Monitor::from_sum(&sum).expect_err(named).to_string();
            assert!(error.starts_with(named), "{named}: {error}");
        }
    }

    #[test]
    fn figures_that_contradict_themselves_are_refused() {
        let mut monitor = Monitor::default();
        for finish_ns in [130, 150, 260, 400] {
            monitor.record(
                &Instance {
                    finish_ns,
                    ..instance()
                },
                100,
            );
        }
        monitor.check(100).expect("recorded");
        Monitor::default().check(1).expect("nothing");
        type Change = fn(&mut Monitor);
        let changes: [(&str, Change); 8] = [
            ("tardiness_max", |it| it.tardiness_max = 1e308),
            ("tardiness_max", |it| it.tardiness_max = 2.0),
            ("tardiness_sum", |it| it.tardiness_sum = 1e308),
            ("tardiness_sum", |it| it.tardiness_sum = 4.0),
            ("deadline_misses", |it| it.deadline_misses = 1),
            ("deadline_misses", |it| it.deadline_misses = 3),
            ("data_ns", |it| it.data_ns.record(301)),
            ("compute_ns", |it| it.compute_ns.merge(&it.response_ns)),
        ];
        for (named, change) in changes {
            let mut monitor = monitor.clone();
            change(&mut monitor);
            let error = monitor.check(100).expect_err(named).to_string();
            assert!(error.starts_with(named), "{named}: {error}");
        }
        assert!(monitor.check(200).is_err(), "another deadline");
    }

    proptest! {
        #[test]
        fn recorded_instances_make_a_consistent_sum(
            times in proptest::collection::vec((0..1_u64 << 50, 0.0..1.0, 0.0..1.0), 0..60),
            deadline_ns in 1..1_u64 << 44,
        ) {
            let mut monitor = Monitor::default();
            for (response_ns, begun, data) in times {
                let begin_ns = (response_ns as f64 * begun) as u64;
                let one = Instance {
                    release_ns: 7,
                    begin_ns: 7 + begin_ns,
                    finish_ns: 7 + response_ns,
                    data_ns: ((response_ns - begin_ns) as f64 * data) as u64,
                    ..Instance::default()
                };
                monitor.record(&one, deadline_ns);
            }
            let back = Monitor::from_sum(&monitor.to_sum()).expect("recorded");
            prop_assert_eq!(back.check(deadline_ns), Ok(()));
        }

        #[test]
        fn a_short_form_stands_for_the_same_figures(
            times in proptest::collection::vec((0..1_u64 << 44, 0..1_u64 << 20, 0..1_u64 << 20, any::<bool>()), 0..60),
        ) {
            let mut monitor = Monitor::default();
            for (response_ns, jitter_ns, data_ns, is_aborted) in times {
                let one = Instance {
                    release_ns: 7,
                    begin_ns: 7 + jitter_ns,
                    finish_ns: 7 + response_ns,
                    data_ns,
                    releases_missed: data_ns % 3,
                    is_aborted,
                };
                monitor.record(&one, 1 << 40);
            }
            let sum = monitor.to_sum();
            let back = Monitor::from_sum(&sum).expect("recorded");
            prop_assert_eq!(back.to_sum(), sum);
            for (mine, theirs) in [
                (&back.response_ns, &monitor.response_ns),
                (&back.data_ns, &monitor.data_ns),
                (&back.compute_ns, &monitor.compute_ns),
                (&back.jitter_ns, &monitor.jitter_ns),
            ] {
                prop_assert_eq!(mine, theirs);
            }
        }

        #[test]
        fn any_short_form_is_refused_or_can_be_merged(
            buckets in proptest::collection::vec((any::<u32>().prop_map(|it| it % 3000), any::<u64>()), 0..8),
            saturated in any::<u64>(), sum in any::<u64>(), bounds in any::<[u64; 2]>(),
            is_sorted in any::<bool>(),
        ) {
            let mut buckets = buckets;
            if is_sorted {
                buckets.sort_unstable();
            }
            let parts = Parts { buckets, saturated, sum, min: bounds[0], max: bounds[1] };
            if let Ok(found) = Histogram::from_parts(&parts) {
                let mut all = found.clone();
                all.merge(&found);
                for percent in [0.0, 50.0, 99.9, 100.0] {
                    let value = all.percentile(percent);
                    prop_assert!(value >= found.min() && value <= found.max());
                }
            }
        }
    }
}
