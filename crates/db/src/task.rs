//! Periodic real-time tasks and their monitor.
//!
//! An instance is *released* at `start + n * period`, whatever happened before. Its response time runs from its
//! release to its finish, so lateness of the wake-up counts; data time is what it spends in `get` and `put`,
//! compute time the rest of its execution. Tardiness = response time / deadline (after QeDB: Kang and Chung, "QoS
//! Management for Embedded Databases in Multicore-Based Embedded Systems", 2015). A late instance finishes and is
//! counted; releases that pass while one runs are skipped and counted, and never shift the later ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use base::histogram::Histogram;

use crate::commit::lock;
use crate::database::{Database, Got};
use crate::error::Error;
use crate::options::{Durability, ObjectId};
use crate::store::SegmentStore;
use crate::ticket::Ticket;

/// A task's timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Name of the task and its thread.
    pub name: &'static str,
    /// Time between releases, ns.
    pub period_ns: u64,
    /// Response time allowed, ns.
    pub deadline_ns: u64,
}

/// Absolute release times: the schedule, free of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseTimer {
    start_ns: u64,
    period_ns: u64,
    next: u64,
}

impl ReleaseTimer {
    /// First release at `start_ns`. A period of 0 counts as 1.
    #[must_use]
    pub fn new(start_ns: u64, period_ns: u64) -> Self {
        Self {
            start_ns,
            period_ns: period_ns.max(1),
            next: 0,
        }
    }

    /// The next release that is not before `now_ns`, and how many were passed over.
    pub fn next_release(&mut self, now_ns: u64) -> (u64, u64) {
        let due = now_ns
            .saturating_sub(self.start_ns)
            .div_ceil(self.period_ns);
        let missed = due.saturating_sub(self.next);
        let number = self.next + missed;
        self.next = number + 1;
        (
            self.start_ns
                .saturating_add(number.saturating_mul(self.period_ns)),
            missed,
        )
    }
}

/// What the instances of a task took. Times in ns; histograms can be merged.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    /// Instances finished.
    pub instances: u64,
    /// Instances whose response time exceeded the deadline.
    pub deadline_misses: u64,
    /// Releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Sum of response time / deadline over all instances.
    pub tardiness_sum: f64,
    /// Greatest tardiness.
    pub tardiness_max: f64,
    /// From release to finish.
    pub response_ns: Histogram,
    /// In `get` and `put`.
    pub data_ns: Histogram,
    /// Execution outside `get` and `put`.
    pub compute_ns: Histogram,
    /// From release to the first instruction.
    pub jitter_ns: Histogram,
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

    /// Data time / (data time + compute time) over all instances; 0 before the first one.
    #[must_use]
    pub fn data_ratio(&self) -> f64 {
        let (data, compute) = (self.data_ns.sum() as f64, self.compute_ns.sum() as f64);
        if data + compute > 0.0 {
            data / (data + compute)
        } else {
            0.0
        }
    }

    /// Adds another period's figures.
    fn merge(&mut self, other: &Self) {
        self.instances += other.instances;
        self.deadline_misses += other.deadline_misses;
        self.releases_missed += other.releases_missed;
        self.tardiness_sum += other.tardiness_sum;
        self.tardiness_max = self.tardiness_max.max(other.tardiness_max);
        self.response_ns.merge(&other.response_ns);
        self.data_ns.merge(&other.data_ns);
        self.compute_ns.merge(&other.compute_ns);
        self.jitter_ns.merge(&other.jitter_ns);
    }

    fn record(&mut self, instance: &Instance, deadline_ns: u64) {
        let response_ns = instance.finish_ns.saturating_sub(instance.release_ns);
        let execution_ns = instance.finish_ns.saturating_sub(instance.begin_ns);
        let tardiness = response_ns as f64 / deadline_ns.max(1) as f64;
        self.instances += 1;
        self.deadline_misses += u64::from(response_ns > deadline_ns);
        self.releases_missed += instance.missed;
        self.tardiness_sum += tardiness;
        self.tardiness_max = self.tardiness_max.max(tardiness);
        self.response_ns.record(response_ns);
        self.data_ns.record(instance.data_ns);
        self.compute_ns
            .record(execution_ns.saturating_sub(instance.data_ns));
        self.jitter_ns
            .record(instance.begin_ns.saturating_sub(instance.release_ns));
    }
}

#[derive(Clone, Copy, Debug)]
struct Instance {
    release_ns: u64,
    begin_ns: u64,
    finish_ns: u64,
    data_ns: u64,
    missed: u64,
}

/// The database as an instance of a task sees it: the same calls, timed.
#[derive(Debug)]
pub struct TaskContext<'a, S: SegmentStore> {
    db: &'a Database<S>,
    data_ns: u64,
    release_ns: u64,
    instance: u64,
}

impl<S: SegmentStore> TaskContext<'_, S> {
    /// [`Database::get`], timed.
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        let now_ms = self.db.clock().wall_ms();
        self.get_at(id, now_ms, value)
    }

    /// [`Database::get_at`], timed.
    ///
    /// # Errors
    /// As there.
    pub fn get_at(&mut self, id: ObjectId, now_ms: i64, value: &mut [u8]) -> Result<Got, Error> {
        self.timed(|db| db.get_at(id, now_ms, value))
    }

    /// [`Database::put`], timed.
    ///
    /// # Errors
    /// As there.
    pub fn put(
        &mut self,
        id: ObjectId,
        value: &[u8],
        timestamp_ms: i64,
        durability: Durability,
    ) -> Result<Ticket, Error> {
        self.timed(|db| db.put(id, value, timestamp_ms, durability))
    }

    /// Counts any access to the database as data time: many `get`s in one closure cost two clock reads in all.
    pub fn timed<R>(&mut self, access: impl FnOnce(&Database<S>) -> R) -> R {
        let begin_ns = self.db.clock().monotonic_ns();
        let result = access(self.db);
        self.data_ns += self.db.clock().monotonic_ns().saturating_sub(begin_ns);
        result
    }

    /// When this instance was released, on the monotonic clock.
    #[must_use]
    pub fn release_ns(&self) -> u64 {
        self.release_ns
    }

    /// Number of this instance, from 0.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.instance
    }
}

#[derive(Debug)]
struct TaskShared {
    /// What was not collected yet. The task's thread waits for this lock: it is held for an exchange only.
    monitor: Mutex<Monitor>,
    stop: AtomicBool,
}

/// A running task. Dropping it stops the task and waits for the instance that runs.
#[derive(Debug)]
pub struct TaskHandle {
    shared: Arc<TaskShared>,
    /// Figures taken from the task since the last `take_monitor`; a lock that the task never takes.
    collected: Mutex<Monitor>,
    thread: Option<JoinHandle<()>>,
    spec: TaskSpec,
}

impl TaskHandle {
    /// The task's timing.
    #[must_use]
    pub fn spec(&self) -> &TaskSpec {
        &self.spec
    }

    /// A copy of the figures so far.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.collect().clone()
    }

    fn collect(&self) -> MutexGuard<'_, Monitor> {
        let mut collected = lock(&self.collected);
        // Made before, merged and freed after the lock: the task waits only for the exchange.
        let fresh = Monitor::default();
        let part = std::mem::replace(&mut *lock(&self.shared.monitor), fresh);
        collected.merge(&part);
        collected
    }

    /// The figures since the last call of this kind (or the start), which begin anew: one sampling period's.
    #[must_use]
    pub fn take_monitor(&self) -> Monitor {
        std::mem::take(&mut *self.collect())
    }

    /// Whether the task still runs; it ends by itself only when its body panics.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Lets the instance that runs finish, ends the task and returns its figures.
    #[must_use]
    pub fn stop(mut self) -> Monitor {
        self.end();
        self.monitor()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the body ended the task; its figures stand.
            let _ = thread.join();
        }
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a periodic task; its first release is now. `body` runs once per release on a thread of its own.
///
/// # Errors
/// [`Error::OptionInvalid`] for a period or deadline of 0, [`Error::Thread`].
pub fn spawn_task<S, F>(
    db: Arc<Database<S>>,
    spec: TaskSpec,
    mut body: F,
) -> Result<TaskHandle, Error>
where
    S: SegmentStore,
    F: FnMut(&mut TaskContext<'_, S>) + Send + 'static,
{
    for (name, value) in [
        ("period_ns", spec.period_ns),
        ("deadline_ns", spec.deadline_ns),
    ] {
        if value == 0 {
            return Err(Error::OptionInvalid {
                name,
                value,
                low: 1,
                high: u64::MAX,
            });
        }
    }
    let shared = Arc::new(TaskShared {
        monitor: Mutex::new(Monitor::default()),
        stop: AtomicBool::new(false),
    });
    let runner = Arc::clone(&shared);
    let run = move || {
        let clock = Arc::clone(db.clock());
        let mut timer = ReleaseTimer::new(clock.monotonic_ns(), spec.period_ns);
        let mut number = 0;
        loop {
            let (release_ns, missed) = timer.next_release(clock.monotonic_ns());
            loop {
                if runner.stop.load(Ordering::Acquire) {
                    return;
                }
                let now_ns = clock.monotonic_ns();
                if now_ns >= release_ns {
                    break;
                }
                std::thread::park_timeout(Duration::from_nanos(release_ns - now_ns));
            }
            let begin_ns = clock.monotonic_ns();
            let mut context = TaskContext {
                db: &db,
                data_ns: 0,
                release_ns,
                instance: number,
            };
            body(&mut context);
            let data_ns = context.data_ns;
            let finish_ns = clock.monotonic_ns();
            let instance = Instance {
                release_ns,
                begin_ns,
                finish_ns,
                data_ns,
                missed,
            };
            lock(&runner.monitor).record(&instance, spec.deadline_ns);
            number += 1;
        }
    };
    let spawned = std::thread::Builder::new()
        .name(spec.name.to_owned())
        .spawn(run);
    let thread = spawned.map_err(|_| Error::Thread { name: spec.name })?;
    Ok(TaskHandle {
        shared,
        collected: Mutex::default(),
        thread: Some(thread),
        spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_absolute_and_overruns_are_counted() {
        let mut timer = ReleaseTimer::new(1000, 100);
        assert_eq!(timer.next_release(1000), (1000, 0));
        assert_eq!(timer.next_release(1030), (1100, 0));
        assert_eq!(timer.next_release(1199), (1200, 0));
        // The instance of 1200 ran until 1450: 1300 and 1400 passed.
        assert_eq!(timer.next_release(1450), (1500, 2));
        // It ended exactly at the next release, which is not missed.
        assert_eq!(timer.next_release(1600), (1600, 0));
        assert_eq!(timer.next_release(1601), (1700, 0));
        assert_eq!(timer.next_release(1601), (1800, 0));
    }

    #[test]
    fn tardiness_misses_and_shares_add_up() {
        let mut monitor = Monitor::default();
        let instance = Instance {
            release_ns: 100,
            begin_ns: 110,
            finish_ns: 150,
            data_ns: 10,
            missed: 0,
        };
        monitor.record(&instance, 100);
        monitor.record(
            &Instance {
                finish_ns: 250,
                missed: 3,
                ..instance
            },
            100,
        );
        assert_eq!(
            (
                monitor.instances,
                monitor.deadline_misses,
                monitor.releases_missed
            ),
            (2, 1, 3)
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
        assert_eq!((both.instances, both.response_ns.count()), (4, 4));
        assert!((both.tardiness_mean() - 1.0).abs() < 1e-12);
    }
}
