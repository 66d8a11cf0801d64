//! The tasks that programs have declared, and what they have reported since the loop looked last.

use super::failure;
use crate::qos::TaskState;
use base::error::Code;
use db::Monitor;
use db::qos::figures::Figures;
use libkeel::protocol::Failure;
use std::time::{Duration, Instant};

/// A period may last so many times longer than its instances should take; then it has what it has.
pub(super) const PATIENCE: u32 = 3;

/// Number of a task among those of this run.
pub(crate) type TaskId = u64;

/// What a program declares.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) period_ns: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) is_firm: bool,
    pub(crate) weight: f64,
    /// The process at the other end of the socket.
    pub(crate) process: u32,
    /// Its thread, if that is one of that process.
    pub(crate) thread: Option<u32>,
}

struct Task {
    id: TaskId,
    declared: Declared,
    /// Since the loop looked last.
    pending: Monitor,
    reported_at: Instant,
    /// Since the declaration.
    instances: u64,
    deadline_misses: u64,
    aborted: u64,
    releases_missed: u64,
    tardiness_sum: f64,
    tardiness_max: f64,
}

/// How figures are sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) period: Duration,
    pub(crate) instances_min: u32,
}

impl Task {
    /// How long the instances of a sampling period take.
    fn span(&self, sampling: Sampling) -> Duration {
        let instances = u64::from(sampling.instances_min);
        let span_ns = self.declared.period_ns.saturating_mul(instances);
        Duration::from_nanos(span_ns).max(sampling.period)
    }

    /// Whether it has not reported for so long that the others do not wait for it.
    fn is_silent(&self, sampling: Sampling) -> bool {
        self.reported_at.elapsed() > self.span(sampling) * PATIENCE
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    next: TaskId,
    refused: u64,
}

impl Tasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn declare(
        &mut self,
        declared: Declared,
        tasks_max: usize,
    ) -> Result<TaskId, Failure> {
        if self.tasks.len() >= tasks_max {
            self.refused += 1;
            return Err(failure(
                Code::Full,
                &declared.name,
                format!("there are {tasks_max} tasks already"),
                "raise qos.tasks_max in the configuration and send the node SIGHUP",
            ));
        }
        self.next += 1;
        self.tasks.push(Task {
            id: self.next,
            declared,
            pending: Monitor::default(),
            reported_at: Instant::now(),
            instances: 0,
            deadline_misses: 0,
            aborted: 0,
            releases_missed: 0,
            tardiness_sum: 0.0,
            tardiness_max: 0.0,
        });
        Ok(self.next)
    }

    pub(crate) fn report(&mut self, id: TaskId, period: &Monitor) -> Result<(), Failure> {
        let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) else {
            return Err(failure(
                Code::NotFound,
                format!("task {id}"),
                "is not declared",
                "declare it again",
            ));
        };
        task.pending.merge(period);
        task.reported_at = Instant::now();
        // What a program says of itself may be anything.
        let add = |mine: &mut u64, theirs: u64| *mine = mine.saturating_add(theirs);
        add(&mut task.instances, period.instances);
        add(&mut task.deadline_misses, period.deadline_misses);
        add(&mut task.aborted, period.aborted);
        add(&mut task.releases_missed, period.releases_missed);
        task.tardiness_sum = (task.tardiness_sum + period.tardiness_sum).min(f64::MAX);
        task.tardiness_max = task.tardiness_max.max(period.tardiness_max);
        Ok(())
    }

    pub(crate) fn leave(&mut self, ids: &[TaskId]) {
        self.tasks.retain(|task| !ids.contains(&task.id));
    }

    /// The threads whose speed can be set, in order.
    pub(crate) fn threads(&self) -> Vec<u32> {
        let mut threads: Vec<u32> = self
            .tasks
            .iter()
            .filter_map(|task| task.declared.thread)
            .collect();
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// Whether each task that reports has finished so many instances since the loop looked last.
    pub(crate) fn have_enough(&self, sampling: Sampling) -> bool {
        let mut heard = self
            .tasks
            .iter()
            .filter(|task| !task.is_silent(sampling))
            .peekable();
        heard.peek().is_some()
            && heard.all(|task| task.pending.instances >= u64::from(sampling.instances_min))
    }

    /// How long a period should take: the sampling period, or so many instances of the slowest task that reports.
    pub(crate) fn span(&self, sampling: Sampling) -> Duration {
        let heard = self.tasks.iter().filter(|task| !task.is_silent(sampling));
        heard
            .map(|task| task.span(sampling))
            .max()
            .unwrap_or(sampling.period)
    }

    /// The figures of a period that ends now; the next one begins.
    pub(crate) fn take(&mut self) -> Option<Figures> {
        let figures: Vec<_> = self
            .tasks
            .iter_mut()
            .map(|task| {
                let pending = std::mem::take(&mut task.pending);
                let figures = Figures::of(&pending, task.declared.deadline_ns);
                (figures, task.declared.weight)
            })
            .collect();
        Figures::together(&figures)
    }

    pub(crate) fn show(&self, sampling: Sampling) -> Vec<TaskState> {
        let one = |task: &Task| {
            let declared = &task.declared;
            TaskState {
                name: declared.name.clone(),
                process: declared.process,
                thread: declared.thread,
                kind: if declared.is_firm { "firm" } else { "soft" }.to_owned(),
                weight: declared.weight,
                period_us: declared.period_ns as f64 / 1e3,
                deadline_us: declared.deadline_ns as f64 / 1e3,
                instances: task.instances,
                deadline_misses: task.deadline_misses,
                aborted: task.aborted,
                releases_missed: task.releases_missed,
                tardiness_mean: if task.instances == 0 {
                    0.0
                } else {
                    task.tardiness_sum / task.instances as f64
                },
                tardiness_max: task.tardiness_max,
                silent: task.is_silent(sampling),
            }
        };
        self.tasks.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(name: &str, weight: f64) -> Declared {
        Declared {
            name: name.to_owned(),
            period_ns: 100_000_000,
            deadline_ns: 50_000_000,
            is_firm: false,
            weight,
            process: 1,
            thread: Some(7),
        }
    }

    fn period(instances: u64, tardiness: f64) -> Monitor {
        let mut period = Monitor {
            instances,
            tardiness_sum: tardiness * instances as f64,
            tardiness_max: tardiness,
            ..Monitor::default()
        };
        for _ in 0..instances {
            period.response_ns.record((tardiness * 5e7) as u64);
            period.data_ns.record((tardiness * 1e7) as u64);
        }
        period
    }

    #[test]
    fn reports_add_up_until_they_are_taken() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.take(), None);
        let one = tasks.declare(declared("one", 1.0), 2).unwrap();
        let other = tasks.declare(declared("other", 3.0), 2).unwrap();
        let refused = tasks.declare(declared("third", 1.0), 2).unwrap_err();
        assert!(refused.wrong.contains("2 tasks"), "{refused:?}");
        assert_eq!((tasks.refused(), tasks.threads()), (1, vec![7]));
        let sampling = |instances_min| Sampling {
            period: Duration::from_secs(3600),
            instances_min,
        };
        assert!(!tasks.have_enough(sampling(1)));
        tasks.report(one, &period(6, 0.8)).unwrap();
        tasks.report(one, &period(4, 0.8)).unwrap();
        assert!(!tasks.have_enough(sampling(10)), "the other one has none");
        tasks.report(other, &period(10, 0.4)).unwrap();
        assert!(tasks.have_enough(sampling(10)));
        let figures = tasks.take().unwrap();
        assert_eq!(figures.instances, 20);
        assert!((figures.tardiness_mean - 0.5).abs() < 1e-9, "{figures:?}");
        assert!((figures.data_ratio - 0.2).abs() < 0.01, "{figures:?}");
        assert_eq!(tasks.take(), None);
        assert_eq!(tasks.show(sampling(10))[0].instances, 10);
        // Whoever is silent is not waited for.
        let at_once = Sampling {
            period: Duration::ZERO,
            instances_min: 0,
        };
        std::thread::sleep(Duration::from_millis(1));
        tasks.report(one, &period(1, 0.8)).unwrap();
        tasks.tasks[0].reported_at = Instant::now() + Duration::from_secs(60);
        assert!(tasks.show(at_once)[1].silent && !tasks.show(at_once)[0].silent);
        assert!(tasks.have_enough(at_once));
        tasks.leave(&[one, other]);
        assert!(tasks.is_empty());
        assert!(tasks.report(one, &period(1, 1.0)).is_err());
        // Numbers are not given twice: a late report of one that has left is nobody's.
        assert!(tasks.declare(declared("again", 1.0), 2).unwrap() > other);
    }
}
