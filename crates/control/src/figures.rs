//! The figures of a sampling period for the tasks: the outputs of the loop, and what people look at.

use base::monitor::Monitor;

/// One period of one task, or of several by their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Instances finished.
    pub instances: u64,
    /// Mean of response time / deadline.
    pub tardiness_mean: f64,
    /// The tardiness that 95 % of the instances were below.
    pub tardiness_p95: f64,
    /// Part of the instances that missed their deadline.
    pub miss_ratio: f64,
    /// Data time / response time.
    pub data_ratio: f64,
}

impl Figures {
    /// Returns the figures of one task; `None` if no instance has finished.
    #[must_use]
    pub fn of(period: &Monitor, deadline_ns: u64) -> Option<Self> {
        if period.instances == 0 {
            return None;
        }
        let response_ns = period.response_ns.sum() as f64;
        let data_ratio = if response_ns > 0.0 {
            (period.data_ns.sum() as f64 / response_ns).min(1.0)
        } else {
            0.0
        };
        Some(Self {
            instances: period.instances,
            tardiness_mean: period.tardiness_mean(),
            tardiness_p95: period.response_ns.percentile(95.0) as f64 / deadline_ns.max(1) as f64,
            miss_ratio: period.deadline_misses as f64 / period.instances as f64,
            data_ratio,
        })
    }

    /// Returns the figures of several tasks: means by weight, for any number of instances. So a task with many
    /// instances does not outweigh one with few. Tasks without an instance do not count.
    #[must_use]
    pub fn together(tasks: &[(Option<Self>, f64)]) -> Option<Self> {
        let known = || {
            tasks
                .iter()
                .filter_map(|(figures, weight)| Some(((*figures)?, *weight)))
        };
        let total: f64 = known().map(|(_, weight)| weight).sum();
        let is_weighed = total > 0.0;
        if !is_weighed {
            return None;
        }
        let mean = |part: fn(&Self) -> f64| {
            known()
                .map(|(figures, weight)| part(&figures) * weight)
                .sum::<f64>()
                / total
        };
        Some(Self {
            instances: known().map(|(figures, _)| figures.instances).sum(),
            tardiness_mean: mean(|figures| figures.tardiness_mean),
            tardiness_p95: known()
                .map(|(figures, _)| figures.tardiness_p95)
                .fold(0.0, f64::max),
            miss_ratio: mean(|figures| figures.miss_ratio),
            data_ratio: mean(|figures| figures.data_ratio),
        })
    }

    /// The outputs that the controller follows.
    #[must_use]
    pub fn outputs(&self) -> [f64; 2] {
        [self.tardiness_mean, self.data_ratio]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(instances: &[(u64, u64)], deadline_ns: u64) -> Monitor {
        let mut monitor = Monitor::default();
        for (response_ns, data_ns) in instances {
            monitor.instances += 1;
            monitor.deadline_misses += u64::from(*response_ns > deadline_ns);
            monitor.tardiness_sum += *response_ns as f64 / deadline_ns as f64;
            monitor.response_ns.record(*response_ns);
            monitor.data_ns.record(*data_ns);
        }
        monitor
    }

    #[test]
    fn a_period_has_the_figures_of_its_instances() {
        let instances: Vec<_> = (1..=20)
            .map(|it| (it * 5_000_000, it * 1_000_000))
            .collect();
        let figures = Figures::of(&monitor(&instances, 50_000_000), 50_000_000).unwrap();
        assert_eq!(figures.instances, 20);
        assert!((figures.tardiness_mean - 1.05).abs() < 1e-9, "{figures:?}");
        assert!((figures.miss_ratio - 0.5).abs() < 1e-9);
        assert!((figures.data_ratio - 0.2).abs() < 1e-9, "{figures:?}");
        assert!((figures.tardiness_p95 - 1.9).abs() < 0.1, "{figures:?}");
        assert_eq!(Figures::of(&Monitor::default(), 1), None);
    }

    #[test]
    fn tasks_speak_by_their_weights() {
        let task = |tardiness_mean, instances| {
            Some(Figures {
                instances,
                tardiness_mean,
                tardiness_p95: tardiness_mean * 2.0,
                ..Figures::default()
            })
        };
        let tasks = [(task(1.0, 100), 1.0), (task(0.2, 2), 3.0), (None, 50.0)];
        let together = Figures::together(&tasks).unwrap();
        assert!((together.tardiness_mean - 0.4).abs() < 1e-9, "{together:?}");
        assert!((together.tardiness_p95 - 2.0).abs() < 1e-9);
        assert_eq!(together.instances, 102);
        assert_eq!(Figures::together(&[(None, 1.0)]), None);
        assert_eq!(Figures::together(&[(task(1.0, 1), 0.0)]), None);
    }
}
