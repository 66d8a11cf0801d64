//! Periodic tasks of a program outside the node: absolute releases, a deadline, and figures for the node's monitor.
//! Figures are reported between two instances and never inside one.

use crate::attachment::Attachment;
use crate::error::Error;
use crate::key::Key;
use crate::pipe::{Declared, Expected, Pipe, Refusals, Request, too_long};
use crate::protocol::{self, Kind, PAIRS_MAX, REQUEST_BYTES_MAX, TaskKind, TaskPeriod, Together};
use crate::ticket::{Promise, Ticket};
use actuator::OwnScheduling;
use base::clock::Clock;
use base::error::Code;
use db::realtime::{self, Cores};
use db::value::Value;
use db::{Instance, Monitor, ReleaseTimer, Time};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Retry interval of a failed connection.
const RETRY_NS: u64 = 500_000_000;

/// Retry interval of a node that had no room for the task: another task may have ended since, or the limit may have
/// been raised.
const ASK_AGAIN_NS: u64 = 5_000_000_000;

/// Report interval until the node sets another one.
const SAMPLING_NS: u64 = 1_000_000_000;

/// Interval at which `is_over` is called during a wait.
const ASKED_NS: u64 = 100_000_000;

/// How long the end of a task waits for a node that has not yet answered the declaration.
const LAST_REPORT_MAX: Duration = Duration::from_secs(1);

/// Number of instances after which the task checks whether the figures still fit into one report.
const LOOK_INSTANCES: u64 = 32;

/// Part of the stack that is not touched in advance: the calls on the way there need it.
const STACK_RESERVE_BYTES: usize = 64 << 10;

/// Largest number of puts of one instance of a firm task: the node stores them in one piece.
pub const STAGED_PUTS_MAX: usize = db::STAGED_PUTS_MAX as usize;

/// Largest number of bytes of their request that are not puts.
const TOGETHER_BYTES: usize = 64;

/// The parameters of a periodic task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSpec {
    /// Its name, 1 to 64 bytes without control characters.
    pub name: String,
    /// Time between releases, 1 µs to an hour.
    pub period: Duration,
    /// Response time allowed, up to an hour.
    pub deadline: Duration,
    /// What happens to a late instance.
    pub kind: TaskKind,
    /// Its weight in the figures that the node controls, above 0 and at most 1000.
    pub weight: f64,
    /// Real-time priority of the thread, 1 to 99 (`SCHED_FIFO`).
    pub fifo_priority: Option<u8>,
    /// Cores that the thread may run on; empty: all.
    pub cores: Vec<u16>,
    /// Bytes of the thread's stack that are touched and locked in memory before the first release; 0: none.
    pub stack_bytes: usize,
}

impl TaskSpec {
    /// Returns a soft task of weight 1 without requirements on the machine.
    #[must_use]
    pub fn new(name: &str, period: Duration, deadline: Duration) -> Self {
        Self {
            name: name.to_owned(),
            period,
            deadline,
            kind: TaskKind::Soft,
            weight: 1.0,
            fifo_priority: None,
            cores: Vec::new(),
            stack_bytes: 0,
        }
    }

    fn declaration(&self) -> Result<protocol::Task, Error> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let task = protocol::Task {
            name: self.name.clone(),
            period_ns: ns(self.period),
            deadline_ns: ns(self.deadline),
            kind: self.kind,
            weight: self.weight,
            process: std::process::id(),
            thread: thread_number(),
        };
        let refused = |wrong| Error::new(Code::Invalid, "task", wrong, "choose another");
        task.check().map_err(refused)?;
        if !self
            .fifo_priority
            .is_none_or(|priority| (1..=99).contains(&priority))
        {
            return Err(refused("fifo_priority is not 1 to 99".to_owned()));
        }
        if Cores::of(&self.cores).is_none() {
            let most = realtime::CORES_MAX - 1;
            return Err(refused(format!("cores names one above {most}")));
        }
        Ok(task)
    }
}

/// The outcome of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended within the deadline. Puts of a firm instance may still reach the node too late; [`Task::counts`] shows
    /// that then.
    InTime,
    /// It ended after the deadline.
    Late,
    /// A firm instance, and none of its puts was sent.
    Aborted,
}

/// Instances and reports of a task since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of instances that ended, including late and aborted ones.
    pub instances: u64,
    /// How many of them ended after the deadline, or had puts that the node refused because they came after it.
    pub deadline_misses: u64,
    /// Instances of a firm task none of whose puts was stored: they were not sent, or the node has refused them.
    pub aborted: u64,
    /// Releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Reports that were sent to the node.
    pub reports: u64,
    /// Reports that were given up because there was no node to take them.
    pub reports_lost: u64,
}

/// The running instance.
#[derive(Clone, Copy)]
struct Running {
    release_ns: u64,
    begin_ns: u64,
    releases_missed: u64,
    data_ns: u64,
    /// Since when data is accessed, for callers that mark begin and end of the access.
    data_since_ns: Option<u64>,
    has_given_up: bool,
}

/// A periodic task, run by the thread that calls [`next_instance`](Self::next_instance). Dropping it ends the running
/// instance, and sends the last report to the node. This can take up to a second if the node has not answered the
/// declaration yet.
pub struct Task {
    node: Arc<Attachment>,
    spec: TaskSpec,
    declaration: protocol::Task,
    /// A separate connection: it carries the declaration, the reports and the puts.
    pipe: Arc<Pipe>,
    /// Number of the connection on which the task was declared, and the node's answers about the task.
    declared: Option<(u64, Arc<Declared>)>,
    timer: Option<ReleaseTimer>,
    /// How the thread is scheduled while no node controls it.
    scheduling: Option<OwnScheduling>,
    running: Option<Running>,
    /// The next release, and the number of releases that had passed before.
    awaited: Option<(u64, u64)>,
    last: Option<Outcome>,
    /// Puts of an instance of a firm task, their promises, and their size in a request, in bytes.
    staged: Vec<protocol::Put>,
    promises: Vec<Arc<Promise>>,
    staged_bytes: usize,
    /// The instances that the node has refused.
    refusals: Arc<Refusals>,
    figures: Monitor,
    next_report_ns: u64,
    next_try_ns: u64,
    counts: Counts,
    warnings: Vec<String>,
    error: Option<Error>,
}

impl Task {
    pub(crate) fn new(node: &Arc<Attachment>, spec: TaskSpec) -> Result<Self, Error> {
        Ok(Self {
            declaration: spec.declaration()?,
            pipe: Pipe::new(&node.socket, node.inbox.clone()),
            node: Arc::clone(node),
            spec,
            declared: None,
            timer: None,
            scheduling: None,
            running: None,
            awaited: None,
            last: None,
            staged: Vec::new(),
            promises: Vec::new(),
            staged_bytes: 0,
            refusals: Arc::default(),
            figures: Monitor::default(),
            next_report_ns: 0,
            next_try_ns: 0,
            counts: Counts::default(),
            warnings: Vec::new(),
            error: None,
        })
    }

    /// Checks that this process may run the task. A child after `fork` may not: thread and connection belong to its
    /// parent. In a child nothing is sent, and the puts of an instance are dropped.
    ///
    /// # Errors
    /// [`Code::Stale`] in such a child.
    pub fn usable(&self) -> Result<(), Error> {
        self.node.usable()
    }

    /// Ends the running instance, and waits for the next release. The first call sets up the calling thread as the
    /// specification demands; its release is immediate. A release that has passed while an instance ran is skipped and
    /// counted, and does not shift the later ones.
    pub fn next_instance(&mut self) {
        while !self.next_unless(|_| false) {}
    }

    /// The same, but if `is_over` returns `true`, there is no instance and the result is `false`; the next call waits
    /// for the same release. `is_over` is called when a signal has interrupted the wait, with `true` as its argument.
    /// It is also called ten times a second, because a signal just before the wait interrupts nothing.
    pub fn next_unless(&mut self, mut is_over: impl FnMut(bool) -> bool) -> bool {
        self.end_instance();
        if self.timer.is_none() {
            self.prepare_thread();
            self.keep_in_touch();
            let start_ns = self.node.now_ns();
            let mut timer = ReleaseTimer::new(start_ns, self.declaration.period_ns);
            // Any later time, even by a nanosecond, would be too late for the first release.
            self.awaited = Some(timer.next_release(start_ns));
            self.timer = Some(timer);
        } else if self.awaited.is_none() {
            self.keep_in_touch();
        }
        let (release_ns, releases_missed) = match (self.awaited, &mut self.timer) {
            (Some(awaited), _) => awaited,
            (None, Some(timer)) => timer.next_release(self.node.clock().monotonic_ns()),
            (None, None) => (0, 0),
        };
        self.awaited = Some((release_ns, releases_missed));
        loop {
            let now_ns = self.node.now_ns();
            if now_ns >= release_ns {
                break;
            }
            let has_slept = sleep_until(release_ns.min(now_ns.saturating_add(ASKED_NS)));
            if self.node.now_ns() < release_ns && is_over(!has_slept) {
                return false;
            }
        }
        self.awaited = None;
        self.running = Some(Running {
            release_ns,
            begin_ns: self.node.now_ns(),
            releases_missed,
            data_ns: 0,
            data_since_ns: None,
            has_given_up: false,
        });
        true
    }

    /// Runs an instance at each release until `body` breaks.
    pub fn run(&mut self, mut body: impl FnMut(&mut Self) -> ControlFlow<()>) {
        loop {
            self.next_instance();
            let flow = body(self);
            self.end_instance();
            if flow.is_break() {
                return;
            }
        }
    }

    /// Ends the running instance and counts it. Sends the puts of a firm task, if it is in time. Does not wait for the
    /// node. `None` if no instance runs.
    pub fn end_instance(&mut self) -> Option<Outcome> {
        self.data_end();
        let running = self.running.take()?;
        let finish_ns = self.node.now_ns();
        let deadline_ns = self.declaration.deadline_ns;
        let is_late = finish_ns.saturating_sub(running.release_ns) > deadline_ns;
        let is_aborted = self.spec.kind == TaskKind::Firm
            && !self.commit(
                is_late || running.has_given_up,
                running.release_ns.saturating_add(deadline_ns),
            );
        self.figures.record(
            &Instance {
                release_ns: running.release_ns,
                begin_ns: running.begin_ns,
                finish_ns,
                data_ns: running.data_ns,
                releases_missed: running.releases_missed,
                is_aborted,
            },
            deadline_ns,
        );
        self.counts.instances += 1;
        self.counts.deadline_misses += u64::from(is_late);
        self.counts.aborted += u64::from(is_aborted);
        self.counts.releases_missed += running.releases_missed;
        self.last = Some(match (is_aborted, is_late) {
            (true, _) => Outcome::Aborted,
            (false, true) => Outcome::Late,
            (false, false) => Outcome::InTime,
        });
        self.last
    }

    /// Sends the puts of a firm instance, unless it is given up. Returns whether they were sent. The node checks the
    /// deadline again at the moment at which it stores all of them or none.
    fn commit(&mut self, is_given_up: bool, deadline_at_ns: u64) -> bool {
        let puts = std::mem::take(&mut self.staged);
        let promises = std::mem::take(&mut self.promises);
        self.staged_bytes = 0;
        let together = Expected::Together(promises, Arc::clone(&self.refusals));
        if is_given_up {
            let wrong = "the instance was late or gave up, and none of its puts was sent";
            together.fail(&Error::new(Code::Late, &self.spec.name, wrong, ""));
            return false;
        }
        if puts.is_empty() {
            return true;
        }
        let message = Together {
            puts,
            deadline_ns: deadline_at_ns,
        };
        let name = &self.spec.name;
        let sent = Request::new(name, Kind::Together, &message, together)
            .and_then(|request| self.send_one(request));
        match sent {
            Ok(()) => true,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    /// Sends a request over the connection on which the task was declared, or gives it up.
    fn send_one(&self, request: Request) -> Result<(), Error> {
        if let Err(error) = self.usable() {
            request.give_up(&error);
            return Err(error);
        }
        let number = self.declared.as_ref().map(|(number, _)| *number);
        let mut requests = vec![request];
        let sent = self.pipe.send_over(number, &mut requests);
        if let Err(error) = &sent {
            for request in requests {
                request.give_up(error);
            }
        }
        sent
    }

    /// Counts an access as data time: reads of keys belong in here, several reads in one scope.
    pub fn data<R>(&mut self, access: impl FnOnce() -> R) -> R {
        let begin_ns = self.node.now_ns();
        let result = access();
        self.add_data_ns(self.node.now_ns().saturating_sub(begin_ns));
        result
    }

    /// Begins an access to data that lasts until [`data_end`](Self::data_end): for languages without closures.
    pub fn data_begin(&mut self) {
        let now_ns = self.node.now_ns();
        if let Some(running) = &mut self.running {
            running.data_since_ns.get_or_insert(now_ns);
        }
    }

    /// Ends the access of [`data_begin`](Self::data_begin); without one it does nothing. The end of an instance also
    /// ends it.
    pub fn data_end(&mut self) {
        let now_ns = self.node.now_ns();
        if let Some(running) = &mut self.running
            && let Some(since_ns) = running.data_since_ns.take()
        {
            running.data_ns = running
                .data_ns
                .saturating_add(now_ns.saturating_sub(since_ns));
        }
    }

    fn add_data_ns(&mut self, ns: u64) {
        if let Some(running) = &mut self.running
            // Within data_begin and data_end the time is already counted.
            && running.data_since_ns.is_none()
        {
            running.data_ns = running.data_ns.saturating_add(ns);
        }
    }

    /// Sends a reading, as [`Key::put`] does, over the task's own connection; counted as data time. In a firm task it
    /// is kept until the instance ends, and sent with the other readings of the instance in one request. The node
    /// stores all of them or none, and none after the deadline: then each ticket ends with [`Code::Late`]. After
    /// [`Code::Io`] and [`Code::Gone`] some of them may be stored; after any other error none is.
    ///
    /// # Errors
    /// As there. [`Code::Gone`] while there is no connection; the task retries it between instances. In a firm task
    /// [`Code::Busy`] for more than [`STAGED_PUTS_MAX`] readings in an instance, or for more than fit into one request.
    pub fn put(
        &mut self,
        key: &Key,
        value: Value<'_>,
        time_ms: Option<i64>,
    ) -> Result<Ticket, Error> {
        self.put_timed(key, value, time_ms.map(Time::from_ms))
    }

    /// As [`put`](Self::put), with a time in ns since 1970; see [`Key::put_ns`].
    ///
    /// # Errors
    /// As there.
    pub fn put_ns(
        &mut self,
        key: &Key,
        value: Value<'_>,
        time_ns: Option<i64>,
    ) -> Result<Ticket, Error> {
        self.put_timed(key, value, time_ns.map(Time::from_ns))
    }

    fn put_timed(
        &mut self,
        key: &Key,
        value: Value<'_>,
        time: Option<Time>,
    ) -> Result<Ticket, Error> {
        let begin_ns = self.node.now_ns();
        let done = self.put_untimed(key, value, time);
        self.add_data_ns(self.node.now_ns().saturating_sub(begin_ns));
        done
    }

    fn put_untimed(
        &mut self,
        key: &Key,
        value: Value<'_>,
        time: Option<Time>,
    ) -> Result<Ticket, Error> {
        self.usable()?;
        if self.spec.kind != TaskKind::Firm || self.running.is_none() {
            let (request, ticket) = key.put_request(value, time)?;
            self.send_one(request)?;
            return Ok(ticket);
        }
        let put = key.put_message(value, time)?;
        // Includes the comma after it. Plain structures can always be written.
        let bytes = serde_json::to_vec(&put).map_or(0, |bytes| bytes.len()) + 1;
        if bytes + TOGETHER_BYTES > REQUEST_BYTES_MAX {
            return Err(too_long(key.name()));
        }
        let staged_bytes = self.staged_bytes + bytes;
        let is_full = self.staged.len() >= STAGED_PUTS_MAX
            || staged_bytes + TOGETHER_BYTES > REQUEST_BYTES_MAX;
        if is_full {
            let wrong = format!(
                "an instance of a firm task puts at most {STAGED_PUTS_MAX} readings, \
                 of {REQUEST_BYTES_MAX} bytes in all"
            );
            let remedy = "put less in one instance";
            return Err(Error::new(Code::Busy, &self.spec.name, wrong, remedy));
        }
        let ticket = Ticket::new(key.name_shared());
        self.promises.push(ticket.promise());
        self.staged.push(put);
        self.staged_bytes = staged_bytes;
        Ok(ticket)
    }

    /// Returns whether the deadline of the running instance has passed: a body may stop early.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.running.is_some_and(|running| {
            let response_ns = self.node.now_ns().saturating_sub(running.release_ns);
            response_ns > self.declaration.deadline_ns
        })
    }

    /// In a firm task: drops everything that this instance has put or will put.
    pub fn give_up(&mut self) {
        if let Some(running) = &mut self.running {
            running.has_given_up = true;
        }
    }

    /// Returns the outcome of the last instance that ended, as it was known then.
    #[must_use]
    pub fn last_outcome(&self) -> Option<Outcome> {
        self.last
    }

    /// Returns counts of instances and reports so far. An instance that the node has refused counts as aborted once its
    /// tickets have ended. It also counts as missed if it came after its deadline.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let refused = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            deadline_misses: self.counts.deadline_misses + refused(&self.refusals.late),
            aborted: self.counts.aborted + refused(&self.refusals.aborted),
            ..self.counts
        }
    }

    /// Returns what the machine did not permit the thread, one line each; known from the first release on.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns whether the node knows the task now.
    #[must_use]
    pub fn is_declared(&self) -> bool {
        let declared = self.declared.as_ref();
        declared.is_some_and(|(number, declared)| {
            declared.id.get().is_some() && self.pipe.connection() == Some(*number)
        })
    }

    /// Returns the last error between task and node: why a declaration, a report or the puts of a firm instance were
    /// not accepted. Puts that were late are not reported. The task continues and retries.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        let declared = self.declared.as_ref();
        let told = declared.and_then(|(_, declared)| declared.refusal());
        let refused = || {
            let error = self.refusals.error.lock();
            error.unwrap_or_else(PoisonError::into_inner).clone()
        };
        told.or_else(refused).or_else(|| self.error.clone())
    }

    fn prepare_thread(&mut self) {
        let wanted = self.spec.stack_bytes.min(stack_left_bytes());
        if wanted > 0 {
            self.warnings.extend(realtime::prepare_stack(wanted));
        }
        // Checked when the task was created.
        let cores = Cores::of(&self.spec.cores).unwrap_or_default();
        self.warnings.extend(realtime::set_cores(&cores));
        // Last, because the steps before take time.
        let priority = self.spec.fifo_priority;
        self.warnings.extend(priority.and_then(realtime::set_fifo));
        self.scheduling = OwnScheduling::of_this_thread();
    }

    /// A killed node may have left the thread with a part of the processor, and another node does not know the earlier
    /// settings.
    fn take_back_scheduling(&mut self) {
        let Some(own) = &self.scheduling else { return };
        if let Err(error) = own.take_back() {
            let text =
                format!("what a node that has gone has set is not taken back as it was: {error}");
            if !self.warnings.contains(&text) {
                self.warnings.push(text);
            }
        }
    }

    /// Declares the task if no node knows it, and reports the figures of a finished sampling period.
    fn keep_in_touch(&mut self) {
        let now_ns = self.node.now_ns();
        let connection = self.pipe.connection();
        let number = self.declared.as_ref().map(|(number, _)| *number);
        let is_lost = connection.is_none() || number != connection;
        let declared = self.declared.as_ref();
        let is_without_place = declared.is_some_and(|(_, declared)| declared.is_without_place());
        if is_lost || is_without_place {
            if is_lost && number.is_some() && self.usable().is_ok() {
                self.take_back_scheduling();
            }
            if now_ns >= self.next_try_ns {
                let pause_ns = if is_lost { RETRY_NS } else { ASK_AGAIN_NS };
                self.next_try_ns = now_ns.saturating_add(pause_ns);
                match self.declare() {
                    Ok(()) => {
                        // These figures will not be sent to any node.
                        self.counts.reports_lost += u64::from(self.figures.instances > 0);
                        return self.begin_period(now_ns);
                    }
                    Err(error) => self.error = Some(error),
                }
            }
            if now_ns >= self.next_report_ns {
                self.counts.reports_lost += 1;
                self.begin_period(now_ns);
            }
            return;
        }
        if now_ns >= self.next_report_ns || self.is_nearly_full() {
            match self.report() {
                Ok(()) => self.counts.reports += 1,
                Err(error) => {
                    self.error = Some(error);
                    self.counts.reports_lost += 1;
                }
            }
            self.begin_period(now_ns);
        }
    }

    fn declare(&mut self) -> Result<(), Error> {
        self.usable()?;
        self.declared = None;
        let number = self.pipe.connect()?;
        self.declaration.process = std::process::id();
        self.declaration.thread = thread_number();
        let declared = Arc::new(Declared::default());
        let expected = Expected::Declared(Arc::clone(&declared));
        let name = &self.spec.name;
        let request = Request::new(name, Kind::Task, &self.declaration, expected)?;
        self.pipe.send_over(Some(number), &mut vec![request])?;
        self.declared = Some((number, declared));
        Ok(())
    }

    fn report(&mut self) -> Result<(), Error> {
        self.usable()?;
        let Some((number, declared)) = &self.declared else {
            return Ok(());
        };
        let name = &self.spec.name;
        let lost = |wrong| Error::new(Code::Busy, name, wrong, "look at the node");
        // A node without support for tasks has said so, and is not asked again.
        let Some(id) = declared.id.get() else {
            return Err(lost("the node has not taken the task yet"));
        };
        let period = TaskPeriod::of(*id, &self.figures.to_sum());
        let period = period.ok_or_else(|| lost("the figures of a period do not fit a message"))?;
        let expected = Expected::Noted(Arc::clone(declared));
        let request = Request::new(name, Kind::TaskPeriod, &period, expected)?;
        self.pipe.send_over(Some(*number), &mut vec![request])
    }

    /// Reports what is not reported yet: a task may end before its first sampling period does.
    fn report_rest(&mut self) {
        if self.figures.instances == 0 || self.usable().is_err() {
            return;
        }
        if let Some((_, declared)) = &self.declared {
            declared.wait_for_answer(LAST_REPORT_MAX);
        }
        // No caller is left for an error.
        self.report().ok();
    }

    /// Returns whether the next instances could make the figures too long for one report.
    fn is_nearly_full(&self) -> bool {
        let figures = &self.figures;
        let near = PAIRS_MAX as u64 - LOOK_INSTANCES;
        figures.instances >= near
            && figures.instances.is_multiple_of(LOOK_INSTANCES)
            && [
                &figures.response_ns,
                &figures.data_ns,
                &figures.compute_ns,
                &figures.jitter_ns,
            ]
            .iter()
            .any(|histogram| histogram.buckets().count() as u64 > near)
    }

    fn begin_period(&mut self, now_ns: u64) {
        let told = self.declared.as_ref().map_or(0, |(_, declared)| {
            declared.sampling_period_ms.load(Ordering::Relaxed)
        });
        let period_ns = match told {
            0 => SAMPLING_NS,
            ms => u64::from(ms) * 1_000_000,
        };
        self.next_report_ns = now_ns.saturating_add(period_ns);
        // The memory is kept, so that nothing is allocated here.
        let figures = &mut self.figures;
        (figures.instances, figures.deadline_misses) = (0, 0);
        (figures.aborted, figures.releases_missed) = (0, 0);
        (figures.tardiness_sum, figures.tardiness_max) = (0.0, 0.0);
        for histogram in [
            &mut figures.response_ns,
            &mut figures.data_ns,
            &mut figures.compute_ns,
            &mut figures.jitter_ns,
        ] {
            histogram.clear();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end_instance();
        self.report_rest();
    }
}

/// Returns the kernel's thread id of this thread.
fn thread_number() -> u32 {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// Sleeps until this time of the system's clock; `false` if a signal came first, or the system did not sleep.
fn sleep_until(moment_ns: u64) -> bool {
    let moment = libc::timespec {
        tv_sec: (moment_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (moment_ns % 1_000_000_000) as _,
    };
    // SAFETY: the time is valid for the length of the call; with an absolute time nothing is written.
    let slept = unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_BOOTTIME,
            libc::TIMER_ABSTIME,
            &raw const moment,
            std::ptr::null_mut(),
        )
    };
    slept == 0
}

/// Returns the free stack of this thread in bytes, less a reserve; 0 if the system does not report it.
fn stack_left_bytes() -> usize {
    let mark = 0_u8;
    let here = (&raw const mark).addr();
    // SAFETY: plain data, for which all zeros are a value; filled before it is read, and given back.
    let lowest = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return 0;
        }
        let (mut lowest, mut bytes, mut guard) = (std::ptr::null_mut(), 0, 0);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut lowest, &raw mut bytes);
        libc::pthread_attr_getguardsize(&raw const attributes, &raw mut guard);
        libc::pthread_attr_destroy(&raw mut attributes);
        lowest.addr().saturating_add(guard)
    };
    here.saturating_sub(lowest)
        .saturating_sub(STACK_RESERVE_BYTES)
}
