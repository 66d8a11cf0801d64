//! The tasks that programs have declared, and what they have reported since the loop's last look.

use crate::answer::failure;
use crate::status::{TaskState, TasksEnded};
use base::error::Code;
use control::figures::Figures;
use db::Monitor;
use libkeel::protocol::Failure;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest period, as a multiple of the time that its instances should take; then it ends with what it has.
pub(super) const PATIENCE: u32 = 3;

/// A task whose instances of a sampling period take longer than this number of sampling periods is left out of the
/// loop. The other tasks would wait for it, and a loop that acts once a second cannot control a task that changes once
/// a minute.
const SLOW_PERIODS: u32 = 10;

/// A task without a report for this number of sampling periods, or of its own periods if they are longer, is silent.
const SILENT_PERIODS: u32 = 3;

/// How far a program's reports may be ahead of the node's clock, in ns: the node may process its declaration late.
const AHEAD_NS: u64 = 10_000_000_000;

/// Ended tasks whose figures wait for the end of the period, at most; of further ones only the sums are kept.
const DEPARTED_MAX: usize = 256;

/// Number of a task, unique in this run.
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
    /// The task's thread, if it belongs to that process.
    pub(crate) thread: Option<u32>,
}

/// Returns whether this process currently has this thread.
pub(super) fn is_thread_of(thread: u32, process: u32) -> bool {
    Path::new(&format!("/proc/{process}/task/{thread}")).exists()
}

struct Task {
    id: TaskId,
    declared: Declared,
    /// Reports since the loop's last look.
    pending: Monitor,
    declared_at: Instant,
    reported_at: Instant,
    /// Instances since the declaration.
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
    /// Returns how long the instances of a sampling period take.
    fn span(&self, sampling: Sampling) -> Duration {
        let instances = u64::from(sampling.instances_min);
        let span_ns = self.declared.period_ns.saturating_mul(instances);
        Duration::from_nanos(span_ns).max(sampling.period)
    }

    /// Returns the figures since the loop's last look; `None` for a slow task.
    fn figures(&self, sampling: Sampling) -> Option<Figures> {
        let is_heard = !self.is_slow(sampling);
        is_heard
            .then(|| Figures::of(&self.pending, self.declared.deadline_ns))
            .flatten()
    }

    /// Returns whether its instances are too rare for the loop.
    fn is_slow(&self, sampling: Sampling) -> bool {
        self.span(sampling) > sampling.period * SLOW_PERIODS
    }

    /// Returns the time until it counts as silent, so that the others no longer wait for it; zero if it is silent.
    fn until_silent(&self, sampling: Sampling) -> Duration {
        let own = Duration::from_nanos(self.declared.period_ns);
        let most = own.max(sampling.period) * SILENT_PERIODS;
        most.saturating_sub(self.reported_at.elapsed())
    }

    fn is_silent(&self, sampling: Sampling) -> bool {
        self.until_silent(sampling).is_zero()
    }

    /// Returns whether the loop considers it.
    fn is_heard(&self, sampling: Sampling) -> bool {
        !self.is_slow(sampling) && !self.is_silent(sampling)
    }

    /// Checks whether these figures are possible for this task.
    fn check(&self, period: &Monitor) -> Result<(), (&'static str, String)> {
        period
            .check(self.declared.deadline_ns)
            .map_err(|error| (error.figure(), error.to_string()))?;
        let elapsed_ns = u64::try_from(self.declared_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // The first instance is released at once, and one may be in flight.
        let releases = elapsed_ns.saturating_add(AHEAD_NS) / self.declared.period_ns.max(1) + 2;
        if self.instances.saturating_add(period.instances) > releases {
            let wrong = "there are more instances than releases since the declaration";
            return Err(("instances", wrong.to_owned()));
        }
        Ok(())
    }
}

/// The figures of tasks that ended within a period.
#[derive(Default)]
struct Departed {
    /// Figures with their weights.
    figures: Vec<(Option<Figures>, f64)>,
    /// When the first of them was declared.
    since: Option<Instant>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    departed: Departed,
    ended: TasksEnded,
    next: TaskId,
    refused: u64,
    /// Missed deadlines that no sampling period shows.
    misses_apart: u64,
    /// Contradictory reports, by figure.
    reports_refused: BTreeMap<&'static str, u64>,
}

impl Tasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Counts a report that was refused, by its error.
    pub(crate) fn refuse_report(&mut self, reason: &'static str) {
        *self.reports_refused.entry(reason).or_default() += 1;
    }

    pub(crate) fn reports_refused(&self) -> BTreeMap<String, u64> {
        let all = self.reports_refused.iter();
        all.map(|(reason, count)| ((*reason).to_owned(), *count))
            .collect()
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
            declared_at: Instant::now(),
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
        if let Err((reason, wrong)) = task.check(period) {
            self.refuse_report(reason);
            let thing = format!("task {id}");
            let remedy = "see NODE.md for what a period may say";
            return Err(failure(Code::Invalid, thing, wrong, remedy));
        }
        task.pending.merge(period);
        task.reported_at = Instant::now();
        // A program may report any number, so saturate.
        let add = |mine: &mut u64, theirs: u64| *mine = mine.saturating_add(theirs);
        add(&mut task.instances, period.instances);
        add(&mut task.deadline_misses, period.deadline_misses);
        add(&mut task.aborted, period.aborted);
        add(&mut task.releases_missed, period.releases_missed);
        task.tardiness_sum = (task.tardiness_sum + period.tardiness_sum).min(f64::MAX);
        task.tardiness_max = task.tardiness_max.max(period.tardiness_max);
        Ok(())
    }

    /// Counts an instance of which nothing was stored, although its program reports it as in time. `is_late`: nothing
    /// was stored because it came after its deadline.
    pub(crate) fn abort(&mut self, ids: &[TaskId], is_late: bool) {
        for task in self.tasks.iter_mut().filter(|task| ids.contains(&task.id)) {
            let late = u64::from(is_late);
            self.misses_apart = self.misses_apart.saturating_add(late);
            task.deadline_misses = task.deadline_misses.saturating_add(late);
            task.aborted = task.aborted.saturating_add(1);
        }
    }

    /// Counts misses reported by a slow task, which no sampling period includes.
    pub(crate) fn note_apart(&mut self, id: TaskId, deadline_misses: u64, sampling: Sampling) {
        let mut slow = self.tasks.iter().filter(|task| task.is_slow(sampling));
        if slow.any(|task| task.id == id) {
            self.misses_apart = self.misses_apart.saturating_add(deadline_misses);
        }
    }

    /// Returns the missed deadlines that no sampling period shows: those of slow tasks, and of instances of which
    /// nothing was stored because they were late.
    pub(crate) fn misses_apart(&self) -> u64 {
        self.misses_apart
    }

    /// Removes these tasks; what they did since the loop's last look stays until its next one.
    pub(crate) fn leave(&mut self, ids: &[TaskId], sampling: Sampling) {
        let left = self.tasks.extract_if(.., |task| ids.contains(&task.id));
        for task in left {
            let ended = &mut self.ended;
            for (sum, count) in [
                (&mut ended.count, 1),
                (&mut ended.instances, task.instances),
                (&mut ended.deadline_misses, task.deadline_misses),
                (&mut ended.aborted, task.aborted),
                (&mut ended.releases_missed, task.releases_missed),
            ] {
                *sum = sum.saturating_add(count);
            }
            let figures = task.figures(sampling);
            if figures.is_some() && self.departed.figures.len() < DEPARTED_MAX {
                self.departed.figures.push((figures, task.declared.weight));
                let since = self.departed.since.get_or_insert(task.declared_at);
                *since = (*since).min(task.declared_at);
            }
        }
    }

    /// Returns the sums of the tasks that have ended.
    pub(crate) fn ended(&self) -> TasksEnded {
        self.ended
    }

    /// Returns when the first of the ended tasks with pending figures was declared.
    pub(crate) fn departed_since(&self) -> Option<Instant> {
        self.departed.since
    }

    /// Returns the processes of all tasks except this one.
    pub(crate) fn processes(&self, except: Option<TaskId>) -> Vec<u32> {
        let others = self.tasks.iter().filter(|task| Some(task.id) != except);
        others.map(|task| task.declared.process).collect()
    }

    /// Returns the threads whose speed can be set, in order. A thread that has ended is left out: its number may belong
    /// to another program by now.
    pub(crate) fn threads(&self) -> Vec<u32> {
        let declared = self.tasks.iter().map(|task| &task.declared);
        let mut threads: Vec<u32> = declared
            .filter_map(|task| Some((task.thread?, task.process)))
            .filter(|(thread, process)| is_thread_of(*thread, *process))
            .map(|(thread, _)| thread)
            .collect();
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// Returns whether each reporting task has finished `instances_min` instances since the loop's last look.
    pub(crate) fn have_enough(&self, sampling: Sampling) -> bool {
        let mut heard = self
            .tasks
            .iter()
            .filter(|task| task.is_heard(sampling))
            .peekable();
        heard.peek().is_some()
            && heard.all(|task| task.pending.instances >= u64::from(sampling.instances_min))
    }

    /// Returns how long a period should take: the sampling period, or `instances_min` instances of the slowest
    /// reporting task.
    pub(crate) fn span(&self, sampling: Sampling) -> Duration {
        let heard = self.tasks.iter().filter(|task| task.is_heard(sampling));
        heard
            .map(|task| task.span(sampling))
            .max()
            .unwrap_or(sampling.period)
    }

    /// Returns the time until all tasks that the loop considers are silent; zero if they are.
    pub(crate) fn until_unheard(&self, sampling: Sampling) -> Duration {
        let followed = self.tasks.iter().filter(|task| !task.is_slow(sampling));
        followed
            .map(|task| task.until_silent(sampling))
            .max()
            .unwrap_or_default()
    }

    /// Returns the figures of the period that ends now, without slow tasks, and begins the next one.
    pub(crate) fn take(&mut self, sampling: Sampling) -> Option<Figures> {
        let mut all = std::mem::take(&mut self.departed).figures;
        all.extend(self.tasks.iter_mut().map(|task| {
            let figures = task.figures(sampling);
            task.pending = Monitor::default();
            (figures, task.declared.weight)
        }));
        Figures::together(&all)
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
                slow: task.is_slow(sampling),
            }
        };
        self.tasks.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use db::Instance;

    fn declared(name: &str, weight: f64) -> Declared {
        Declared {
            name: name.to_owned(),
            period_ns: 100_000_000,
            deadline_ns: 50_000_000,
            is_firm: false,
            weight,
            process: std::process::id(),
            thread: Some(std::process::id()),
        }
    }

    fn period(instances: u64, tardiness: f64) -> Monitor {
        let mut period = Monitor::default();
        for _ in 0..instances {
            let one = Instance {
                finish_ns: (tardiness * 5e7) as u64,
                data_ns: (tardiness * 1e7) as u64,
                ..Instance::default()
            };
            period.record(&one, 50_000_000);
        }
        period
    }

    #[test]
    fn reports_add_up_until_they_are_taken() {
        let mut tasks = Tasks::default();
        let hour = Sampling {
            period: Duration::from_secs(3600),
            instances_min: 10,
        };
        assert_eq!(tasks.take(hour), None);
        let one = tasks.declare(declared("one", 1.0), 2).unwrap();
        let other = tasks.declare(declared("other", 3.0), 2).unwrap();
        let refused = tasks.declare(declared("third", 1.0), 2).unwrap_err();
        assert!(refused.wrong.contains("2 tasks"), "{refused:?}");
        assert_eq!(tasks.refused(), 1);
        assert_eq!(tasks.threads(), [std::process::id()]);
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
        let figures = tasks.take(hour).unwrap();
        assert_eq!(figures.instances, 20);
        assert!((figures.tardiness_mean - 0.5).abs() < 1e-9, "{figures:?}");
        assert!((figures.data_ratio - 0.2).abs() < 0.01, "{figures:?}");
        assert_eq!(tasks.take(hour), None);
        assert_eq!(tasks.show(sampling(10))[0].instances, 10);
        // A period does not wait for a silent task.
        let at_once = Sampling {
            period: Duration::from_millis(1),
            instances_min: 0,
        };
        tasks.report(one, &period(1, 0.8)).unwrap();
        tasks.tasks[0].reported_at = Instant::now() + Duration::from_secs(60);
        tasks.tasks[1].reported_at = Instant::now() - Duration::from_secs(1);
        assert!(!tasks.until_unheard(at_once).is_zero());
        assert!(tasks.show(at_once)[1].silent && !tasks.show(at_once)[0].silent);
        assert!(tasks.have_enough(at_once));
        tasks.leave(&[one, other], hour);
        assert!(tasks.is_empty());
        assert!(tasks.report(one, &period(1, 1.0)).is_err());
        assert_eq!(tasks.until_unheard(at_once), Duration::ZERO);
        // Numbers are not reused: a late report of a task that has left belongs to no task.
        assert!(tasks.declare(declared("again", 1.0), 2).unwrap() > other);
    }

    #[test]
    fn a_thread_that_has_ended_is_not_slowed_down() {
        // SAFETY: a plain system call that cannot fail.
        let number = || unsafe { libc::gettid() }.unsigned_abs();
        let (wait, end) = std::sync::mpsc::channel::<()>();
        let (to, from) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            to.send(number()).unwrap();
            end.recv().ok();
        });
        let mut tasks = Tasks::default();
        let declared = Declared {
            thread: Some(from.recv().unwrap()),
            ..declared("one", 1.0)
        };
        tasks.declare(declared.clone(), 9).unwrap();
        assert_eq!(tasks.threads(), [declared.thread.unwrap()]);
        drop(wait);
        thread.join().unwrap();
        // The kernel releases its number a moment later.
        while is_thread_of(declared.thread.unwrap(), declared.process) {
            std::thread::yield_now();
        }
        assert!(tasks.threads().is_empty());
    }

    #[test]
    fn instances_of_a_departed_task_count_in_its_period_and_ever_after() {
        let mut tasks = Tasks::default();
        let one = tasks.declare(declared("one", 1.0), 9).unwrap();
        let other = tasks.declare(declared("other", 1.0), 9).unwrap();
        tasks.report(one, &period(10, 1.5)).unwrap();
        tasks.report(other, &period(10, 0.5)).unwrap();
        assert_eq!(tasks.departed_since(), None);
        tasks.leave(&[one], at(1));
        assert!(tasks.departed_since().is_some());
        let figures = tasks.take(at(1)).unwrap();
        assert_eq!(figures.instances, 20);
        assert!((figures.tardiness_mean - 1.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.miss_ratio - 0.5).abs() < 1e-9, "{figures:?}");
        assert_eq!((tasks.take(at(1)), tasks.departed_since()), (None, None));
        // A task without figures is counted, and delays nothing.
        tasks.leave(&[other], at(1));
        assert_eq!(tasks.departed_since(), None);
        let ended = TasksEnded {
            count: 2,
            instances: 20,
            deadline_misses: 10,
            ..TasksEnded::default()
        };
        assert_eq!(tasks.ended(), ended);
        // Any number of tasks may come and go within a period.
        for _ in 0..2 * DEPARTED_MAX {
            let id = tasks.declare(declared("short", 1.0), 9).unwrap();
            tasks.report(id, &period(1, 0.5)).unwrap();
            tasks.leave(&[id], at(1));
        }
        assert_eq!(tasks.departed.figures.len(), DEPARTED_MAX);
        assert_eq!(tasks.ended().count, 2 + 2 * DEPARTED_MAX as u64);
    }

    /// An instance of one hour would make the loop wait for ten hours.
    #[test]
    fn a_slow_task_is_not_waited_for_and_has_no_say() {
        let sampling = Sampling {
            period: Duration::from_secs(1),
            instances_min: 10,
        };
        let mut tasks = Tasks::default();
        let quick = tasks.declare(declared("quick", 1.0), 9).unwrap();
        let hourly = Declared {
            period_ns: 3_600_000_000_000,
            deadline_ns: 3_600_000_000_000,
            ..declared("hourly", 1000.0)
        };
        let hourly = tasks.declare(hourly, 9).unwrap();
        assert_eq!(tasks.span(sampling), Duration::from_secs(1));
        tasks.report(quick, &period(10, 0.8)).unwrap();
        let mut one = Monitor::default();
        let late = Instance {
            finish_ns: 7_200_000_000_000,
            ..Instance::default()
        };
        one.record(&late, 3_600_000_000_000);
        tasks.report(hourly, &one).unwrap();
        assert!(tasks.have_enough(sampling));
        let figures = tasks.take(sampling).unwrap();
        assert!((figures.tardiness_mean - 0.8).abs() < 1e-9, "{figures:?}");
        let shown = tasks.show(sampling);
        assert!(!shown[0].slow && shown[1].slow && !shown[1].silent);
        assert_eq!(shown[1].deadline_misses, 1, "its own counts go on");
        // These misses are visible nowhere else.
        for (id, misses, apart) in [(quick, 5, 0), (hourly, 1, 1), (hourly, 2, 3)] {
            tasks.note_apart(id, misses, sampling);
            assert_eq!(tasks.misses_apart(), apart);
        }
        tasks.abort(&[quick], false);
        tasks.abort(&[quick], true);
        assert_eq!(tasks.misses_apart(), 4);
        // Alone, it gives the loop nothing to act on.
        tasks.leave(&[quick], sampling);
        assert!(!tasks.have_enough(sampling));
        assert_eq!(tasks.until_unheard(sampling), Duration::ZERO);
    }

    #[test]
    fn reports_that_cannot_be_are_refused_and_counted() {
        let mut tasks = Tasks::default();
        let id = tasks.declare(declared("one", 1.0), 9).unwrap();
        let mut absurd = period(10, 0.8);
        (absurd.tardiness_sum, absurd.tardiness_max) = (1e308, 1e308);
        for report in [absurd, period(100_000, 0.1)] {
            let refused = tasks.report(id, &report).unwrap_err();
            assert_eq!(refused.code, Code::Invalid.name());
        }
        let reasons = tasks.reports_refused();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert_eq!((reasons["tardiness_max"], reasons["instances"]), (1, 1));
        assert_eq!(tasks.show(at(1))[0].instances, 0);
        tasks.report(id, &period(10, 0.8)).unwrap();
    }

    fn at(seconds: u64) -> Sampling {
        Sampling {
            period: Duration::from_secs(seconds),
            instances_min: 10,
        }
    }
}
