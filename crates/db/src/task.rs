//! Periodic real-time tasks and their monitor.
//!
//! An instance is *released* at `start + n * period`, regardless of earlier instances. Its response time runs from its
//! release to its finish, so lateness of the wake-up counts. Data time is the time in `get` and `put`, and compute time
//! is the rest of its execution. Tardiness = response time / deadline (after QeDB: Kang and Chung, "QoS Management for
//! Embedded Databases in Multicore-Based Embedded Systems", 2015). A late instance finishes and is counted. Releases
//! that pass while one runs are skipped and counted, and never shift the later ones.
//!
//! A *firm* instance is worth nothing after its deadline. Its puts are staged and take effect at its end, all at once,
//! and only if the deadline has not passed. Otherwise none of them ever becomes visible.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use base::monitor::{Instance, Monitor};

use crate::database::put::{Commit, Staged};
use crate::database::{Database, Got};
use crate::error::Error;
use crate::mutex::lock;
use crate::options::{Durability, ObjectId};
use crate::pi_lock::PiLock;
use crate::realtime::{self, Cores};
use crate::store::SegmentStore;
use crate::ticket::Ticket;
use crate::time::Time;

/// Stack of a task, if its specification names none.
pub const STACK_BYTES: usize = 512 << 10;
const STACK_BYTES_MIN: usize = 128 << 10;
const STACK_BYTES_MAX: usize = 64 << 20;

/// What happens to an instance that misses its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskKind {
    /// It finishes late and is counted; what it puts takes effect at once.
    #[default]
    Soft,
    /// It is aborted and counted: none of its puts takes effect.
    Firm,
}

/// A task's timing, and what it needs from the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskSpec {
    /// Name of the task and its thread.
    pub name: &'static str,
    /// Time between releases, ns.
    pub period_ns: u64,
    /// Response time allowed, ns.
    pub deadline_ns: u64,
    /// What happens to an instance that misses its deadline.
    pub kind: TaskKind,
    /// Weight of the task among others when its figures steer the node. One that is no number above 0 counts as 1.
    pub weight: f64,
    /// Real-time priority of its thread, 1 to 99 (`SCHED_FIFO`); `None`: as other threads.
    pub fifo_priority: Option<u8>,
    /// Cores that its thread may run on; none named: all.
    pub cores: Cores,
    /// Stack of its thread, 128 KiB to 64 MiB. It is touched and, where that is permitted, locked at the start.
    pub stack_bytes: usize,
}

impl TaskSpec {
    /// A soft task of weight 1 that needs nothing from the machine.
    #[must_use]
    pub fn new(name: &'static str, period_ns: u64, deadline_ns: u64) -> Self {
        Self {
            name,
            period_ns,
            deadline_ns,
            kind: TaskKind::Soft,
            weight: 1.0,
            fifo_priority: None,
            cores: Cores::default(),
            stack_bytes: STACK_BYTES,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let priority = self.fifo_priority.map_or(1, u64::from);
        let stack_bytes = (STACK_BYTES_MIN as u64, STACK_BYTES_MAX as u64);
        for (name, value, (low, high)) in [
            ("period_ns", self.period_ns, (1, u64::MAX)),
            ("deadline_ns", self.deadline_ns, (1, u64::MAX)),
            ("fifo_priority", priority, (1, 99)),
            ("stack_bytes", self.stack_bytes as u64, stack_bytes),
        ] {
            if value < low || value > high {
                return Err(Error::OptionInvalid {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        Ok(())
    }

    /// Requests the settings of the calling thread; returns those that were not permitted. The priority comes last,
    /// because the other settings take time.
    fn prepare_thread(&self) -> Vec<String> {
        let stack = realtime::prepare_stack(self.stack_bytes);
        let cores = realtime::set_cores(&self.cores);
        let priority = self.fifo_priority.and_then(realtime::set_fifo);
        [stack, cores, priority].into_iter().flatten().collect()
    }
}

/// Absolute release times: the schedule, independent of threads.
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

    /// Returns the next release that is not before `now_ns`, and how many were passed over.
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

/// The database as an instance of a task sees it: the same calls, timed.
#[derive(Debug)]
pub struct TaskContext<'a, S: SegmentStore> {
    db: &'a Database<S>,
    data_ns: u64,
    release_ns: u64,
    deadline_at_ns: u64,
    instance: u64,
    /// For a firm task: what this instance has put.
    staged: Option<&'a mut Staged>,
    has_given_up: bool,
    committed: Option<&'a Ticket>,
}

impl<S: SegmentStore> TaskContext<'_, S> {
    /// [`Database::get`], timed.
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        let now = Time::from_ns(self.db.clock().wall_ns());
        self.get_at(id, now, value)
    }

    /// [`Database::get_at`], timed.
    ///
    /// # Errors
    /// As there.
    pub fn get_at(&mut self, id: ObjectId, now: Time, value: &mut [u8]) -> Result<Got, Error> {
        self.timed(|db| db.get_at(id, now, value))
    }

    /// [`Database::put`], timed. In a firm task the reading is staged; it is not visible, not even to this instance,
    /// before the instance has ended in time. Then there is no ticket here, see [`committed`](Self::committed).
    ///
    /// # Errors
    /// As there; in a firm task [`Error::StagedFull`], and of the others only those that the reading itself causes.
    pub fn put(
        &mut self,
        id: ObjectId,
        value: &[u8],
        time: Time,
        durability: Durability,
    ) -> Result<Option<Ticket>, Error> {
        let begin_ns = self.db.clock().monotonic_ns();
        let result = match &mut self.staged {
            Some(staged) => self
                .db
                .stage(staged, id, value, Some(time), durability)
                .map(|()| None),
            None => self.db.put(id, value, time, durability).map(Some),
        };
        self.data_ns += self.db.clock().monotonic_ns().saturating_sub(begin_ns);
        result
    }

    /// Whether the deadline has passed: a body may stop early. A firm body that goes on works without effect.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.db.clock().monotonic_ns() > self.deadline_at_ns
    }

    /// For a firm task: discards everything that this instance has put or will put.
    pub fn give_up(&mut self) {
        self.has_given_up = true;
    }

    /// For a firm task: the ticket of the last put of the last instance that committed before this one. It completes
    /// when all of that instance's readings are on flash. `None` before the first.
    #[must_use]
    pub fn committed(&self) -> Option<&Ticket> {
        self.committed
    }

    /// Counts any access to the database as data time: many `get`s in one closure cost two clock reads in all. Puts
    /// through it take effect at once, in a firm task, too.
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
    /// Figures not collected yet. The task's thread waits for this lock: it is held for an exchange only.
    monitor: PiLock<Monitor>,
    stop: AtomicBool,
}

/// A running task. Dropping it stops the task and waits for the running instance.
#[derive(Debug)]
pub struct TaskHandle {
    shared: Arc<TaskShared>,
    /// Figures taken from the task since the last `take_monitor`. The task never takes this lock.
    collected: Mutex<Monitor>,
    thread: Option<JoinHandle<()>>,
    spec: TaskSpec,
    warnings: Vec<String>,
}

impl TaskHandle {
    /// What the machine did not permit the task's thread, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

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
        // Create before, merge and free after the lock is held: the task waits only for the exchange.
        let fresh = Monitor::default();
        let part = std::mem::replace(&mut *self.shared.monitor.lock(), fresh);
        collected.merge(&part);
        collected
    }

    /// Returns the figures since the last call of this method (or the start) and resets them: one sampling period's.
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

    /// Lets the running instance finish, ends the task and returns its figures.
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

/// Starts a periodic task; its first release is when its thread is ready, before this call returns. `body` runs once
/// per release on that thread. What the machine does not permit is a warning: [`TaskHandle::warnings`].
///
/// # Errors
/// [`Error::OptionInvalid`] for a value out of range in the specification, [`Error::Thread`].
pub fn spawn_task<S, F>(
    db: Arc<Database<S>>,
    spec: TaskSpec,
    mut body: F,
) -> Result<TaskHandle, Error>
where
    S: SegmentStore,
    F: FnMut(&mut TaskContext<'_, S>) + Send + 'static,
{
    spec.check()?;
    let shared = Arc::new(TaskShared {
        monitor: PiLock::new(Monitor::default()),
        stop: AtomicBool::new(false),
    });
    let runner = Arc::clone(&shared);
    let (ready, started) = sync_channel(1);
    let run = move || {
        let clock = Arc::clone(db.clock());
        let mut instances = Instances {
            staged: (spec.kind == TaskKind::Firm).then(|| db.staging()),
            committed: None,
            number: 0,
            db: &db,
        };
        let _ = ready.send(spec.prepare_thread());
        // Use the same moment for both: a later one would be past the first release.
        let mut now_ns = clock.monotonic_ns();
        let mut timer = ReleaseTimer::new(now_ns, spec.period_ns);
        loop {
            let (release_ns, missed) = timer.next_release(now_ns);
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
            let mut instance = instances.run(release_ns, spec.deadline_ns, &mut body);
            instance.releases_missed = missed;
            runner.monitor.lock().record(&instance, spec.deadline_ns);
            now_ns = clock.monotonic_ns();
        }
    };
    let spawned = std::thread::Builder::new()
        .name(spec.name.to_owned())
        .stack_size(spec.stack_bytes)
        .spawn(run);
    let thread = spawned.map_err(|_| Error::Thread { name: spec.name })?;
    Ok(TaskHandle {
        shared,
        collected: Mutex::default(),
        thread: Some(thread),
        spec,
        // The thread sends nothing only if it panicked, and then it does not run.
        warnings: started.recv().unwrap_or_default(),
    })
}

/// State that one instance of a task leaves to the next.
struct Instances<'a, S: SegmentStore> {
    db: &'a Database<S>,
    staged: Option<Staged>,
    committed: Option<Ticket>,
    number: u64,
}

impl<S: SegmentStore> Instances<'_, S> {
    /// Runs the body once, and commits what it put if it is firm.
    fn run(
        &mut self,
        release_ns: u64,
        deadline_ns: u64,
        body: &mut impl FnMut(&mut TaskContext<'_, S>),
    ) -> Instance {
        let clock = self.db.clock();
        let deadline_at_ns = release_ns.saturating_add(deadline_ns);
        let begin_ns = clock.monotonic_ns();
        let mut context = TaskContext {
            db: self.db,
            data_ns: 0,
            release_ns,
            deadline_at_ns,
            instance: self.number,
            staged: self.staged.as_mut(),
            has_given_up: false,
            committed: self.committed.as_ref(),
        };
        body(&mut context);
        let (mut data_ns, mut is_aborted) = (context.data_ns, context.has_given_up);
        self.number += 1;
        let mut finish_ns = clock.monotonic_ns();
        if let Some(staged) = &mut self.staged {
            if !is_aborted && !staged.is_empty() {
                let begin_ns = finish_ns;
                match self.db.commit_staged(staged, deadline_at_ns) {
                    Commit::Done { decided_ns, ticket } => {
                        self.committed = Some(ticket);
                        finish_ns = decided_ns;
                    }
                    Commit::Late { decided_ns } | Commit::Refused { decided_ns, .. } => {
                        is_aborted = true;
                        finish_ns = decided_ns;
                    }
                }
                data_ns += finish_ns.saturating_sub(begin_ns);
            }
            staged.clear();
            is_aborted |= finish_ns > deadline_at_ns;
        } else {
            // Puts of a soft instance cannot be taken back.
            is_aborted = false;
        }
        Instance {
            release_ns,
            begin_ns,
            finish_ns,
            data_ns,
            releases_missed: 0,
            is_aborted,
        }
    }
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
}
