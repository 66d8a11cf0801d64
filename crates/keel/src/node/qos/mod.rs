//! Quality of service in the node: the declared tasks, the thread that samples them and sets speed and admission, and
//! the requests of clients.
//!
//! The thread owns the loop (`db::qos::regulator`). It shares a list of tasks and of wishes with the socket's thread;
//! each locks it only for a lookup. Real-time tasks live in other processes and wait for neither thread.
//!
//! **Files:** `requests.rs` requests of clients, `tasks.rs` reports of tasks, `own.rs` tasks of programs that the node
//! has started, `thread.rs` the sampling thread, `speed.rs` the choice of the speed's actuator, `left.rs` settings that
//! were not restored.

mod left;
mod own;
pub(crate) mod requests;
mod speed;
mod tasks;
mod thread;

use super::session::failure;
use super::{Db, log};
use crate::config::{ActuatorKind, Config, QosConfig, quality_name};
use crate::qos::{self as words, DATA_RATIO, Gains, Loaded, QosState, TARDINESS, mode_name};
use base::clock::{Clock, SystemClock};
use base::error::Code;
use db::qos::actuator::RtGroup;
use db::qos::admission::Quality;
use db::qos::controller::{ADMISSION, Mode, SetPoints};
use db::qos::regulator::Excitation;
use libkeel::protocol::Failure;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tasks::{Sampling, Tasks};

pub(crate) use own::OwnTasks;
pub(crate) use tasks::{Declared, TaskId};

/// What a client may change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wishes {
    pub(crate) mode: Option<Mode>,
    pub(crate) set_points: Option<SetPoints>,
    pub(crate) identify: Option<Excitation>,
    pub(crate) stop_identification: bool,
}

/// State shared by both threads.
struct Inner {
    tasks: Tasks,
    config: QosConfig,
    gains: Option<Gains>,
    gains_error: Option<String>,
    /// The current mode.
    mode: Mode,
    set_points: Option<SetPoints>,
    wishes: Wishes,
    /// Whether gains or limits have changed since the loop's last look.
    is_changed: bool,
    /// When the client that requested the identification last polled its progress, and the client's process. Without
    /// polls the identification ends.
    asked_at: Option<Instant>,
    asked_by: Option<u32>,
    state: QosState,
    /// When the last period with figures ended.
    figures_at: Option<Instant>,
    /// Why no actuator sets the speed, although one is configured.
    actuator_error: Option<String>,
    warnings: Vec<String>,
    stop: bool,
}

/// Shared by the socket's thread and the sampling thread.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is usable: each change is complete before the lock is released.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn declare(&self, declared: Declared) -> Result<TaskId, Failure> {
        let mut inner = self.lock();
        let tasks_max = inner.config.tasks_max as usize;
        let id = inner.tasks.declare(declared, tasks_max)?;
        drop(inner);
        self.changed.notify_all();
        Ok(id)
    }

    fn report(&self, id: TaskId, period: &db::Monitor) -> Result<u32, Failure> {
        let mut inner = self.lock();
        inner.tasks.report(id, period)?;
        let sampling = inner.sampling();
        inner.tasks.note_apart(id, period.deadline_misses, sampling);
        let sampling_period_ms = inner.config.sampling_period_ms;
        drop(inner);
        self.changed.notify_all();
        Ok(sampling_period_ms)
    }

    fn leave(&self, ids: &[TaskId]) {
        if ids.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let sampling = inner.sampling();
        inner.tasks.leave(ids, sampling);
        drop(inner);
        self.changed.notify_all();
    }
}

/// The quality of service of a running node.
pub(crate) struct Qos {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    db: Arc<Db>,
}

impl Qos {
    /// Starts the sampling thread. `warnings`: permissions that were missing at the start.
    pub(crate) fn start(
        config: &Config,
        db: &Arc<Db>,
        warnings: Vec<String>,
    ) -> std::io::Result<Self> {
        let loaded = Loaded::of(&config.qos);
        let mut inner = Inner::new(&config.qos, warnings);
        inner.settle(loaded);
        inner.say();
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        });
        let places = left::Places::of(config);
        let here = Arc::clone(db);
        let (theirs, db) = (Arc::clone(&shared), Arc::clone(db));
        let thread = std::thread::Builder::new()
            .name("qos".into())
            .stack_size(256 << 10)
            .spawn(move || thread::run(&theirs, &db, places))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            db: here,
        })
    }

    /// Applies a configuration that was read again.
    pub(crate) fn reload(&self, config: &QosConfig) {
        let loaded = Loaded::of(config);
        let mut inner = self.shared.lock();
        // A mode that was chosen at run time stays, unless the file changes its mode.
        let is_mode_new = inner.config.mode != config.mode;
        let mode = if is_mode_new { config.mode } else { inner.mode };
        let before = (inner.sentence(), inner.gains_error.clone());
        // Set points stay, too, unless the file or the gains change them.
        let said = (config.tardiness, config.data_ratio);
        let is_same = said == (inner.config.tardiness, inner.config.data_ratio)
            && inner.gains.is_some()
            && inner.gains == loaded.gains;
        let kept = inner.set_points.filter(|_| is_same);
        inner.config = config.clone();
        inner.settle(loaded);
        inner.set_points = kept.or(inner.set_points);
        inner.mode = if inner.check_mode(mode).is_ok() {
            mode
        } else {
            Mode::Open
        };
        if (inner.sentence(), inner.gains_error.clone()) != before {
            inner.say();
        }
        inner.is_changed = true;
        drop(inner);
        self.shared.changed.notify_all();
    }

    /// Returns the handle for threads that declare tasks of programs that they have started.
    pub(crate) fn own_tasks(&self) -> OwnTasks {
        OwnTasks::new(Arc::clone(&self.shared))
    }

    /// Declares a task; it lives until [`leave`](Self::leave).
    pub(crate) fn declare(&self, declared: Declared) -> Result<TaskId, Failure> {
        self.shared.declare(declared)
    }

    /// Adds what a task did since its last report. Returns the length of a sampling period, in ms.
    pub(crate) fn report(&self, id: TaskId, period: &db::Monitor) -> Result<u32, Failure> {
        self.shared.report(id, period)
    }

    /// Counts a report whose numbers cannot be read as figures.
    pub(crate) fn refuse_report(&self, reason: &'static str) {
        self.shared.lock().tasks.refuse_report(reason);
    }

    /// Counts an instance of these tasks of which the node stored nothing; `is_late`: it came after its deadline.
    pub(crate) fn abort(&self, ids: &[TaskId], is_late: bool) {
        self.shared.lock().tasks.abort(ids, is_late);
    }

    /// Removes the tasks of a connection that has ended.
    pub(crate) fn leave(&self, ids: &[TaskId]) {
        self.shared.leave(ids);
    }

    /// Changes the wishes. `process`: the process that sent them.
    pub(crate) fn wish(&self, wishes: Wishes, process: Option<u32>) -> Result<(), Failure> {
        let missing = wishes.identify.and_then(|_| self.missing_actuator());
        let mut inner = self.shared.lock();
        if let Some(mode) = wishes.mode {
            inner.check_mode(mode)?;
        }
        if let Some(set_points) = wishes.set_points {
            inner.check_set_points(set_points)?;
        }
        if let Some(excitation) = &wishes.identify {
            inner.check_identify(excitation, missing)?;
        }
        if let Some(mode) = wishes.mode {
            let before = std::mem::replace(&mut inner.mode, mode);
            if before != mode {
                let (mode, before) = (mode_name(mode), mode_name(before));
                log::event(
                    "qos",
                    format!("mode {mode}, as was asked for; before: {before}"),
                );
            }
        }
        if wishes.set_points.is_some() {
            inner.set_points = wishes.set_points;
        }
        inner.is_changed |= wishes.mode.is_some() || wishes.set_points.is_some();
        if wishes.identify.is_some() {
            inner.wishes.identify = wishes.identify;
            inner.wishes.stop_identification = false;
            (inner.asked_at, inner.asked_by) = (Some(Instant::now()), process);
            "running".clone_into(&mut inner.state.identification.state);
        }
        if wishes.stop_identification {
            // An identification requested a moment ago has not begun yet.
            inner.wishes.identify = None;
            inner.wishes.stop_identification = true;
        }
        drop(inner);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Returns why nothing can set the speed of the currently declared tasks. Files are read without the lock.
    fn missing_actuator(&self) -> Option<String> {
        let inner = self.shared.lock();
        let (threads, kind) = (inner.tasks.threads(), inner.actuator());
        let (root, known) = (
            inner.config.machine_root.clone(),
            inner.actuator_error.clone(),
        );
        drop(inner);
        speed::missing(kind, &threads, &speed::root(&root)).or(known)
    }

    /// Returns the current state. A request from the process that runs the identification renews its lease. Other
    /// processes may look at an identification whose reader has died, but do not keep it running.
    pub(crate) fn state(&self, process: Option<u32>) -> QosState {
        let mut inner = self.shared.lock();
        if inner.asked_by == process {
            inner.asked_at = Some(Instant::now());
        }
        drop(inner);
        self.look()
    }

    /// Returns the current state without renewing a lease.
    pub(crate) fn look(&self) -> QosState {
        // Count before taking the lock: this scans the whole table.
        let now = db::Time::from_ns(SystemClock::new().wall_ns());
        let fresh = self.db.fresh_count(now);
        let mut state = self.shared.lock().show();
        (state.keys_fresh, state.keys_temporal) = (fresh.fresh, fresh.temporal);
        state
    }

    /// Returns the set points in force, for a request that changes only one of them.
    pub(crate) fn set_points(&self) -> Option<SetPoints> {
        self.shared.lock().set_points
    }
}

impl Qos {
    /// Ends the sampling thread: the original speed is restored, and all updates are admitted.
    pub(crate) fn finish(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}

impl Drop for Qos {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Inner {
    /// Creates the state without gains.
    fn new(config: &QosConfig, warnings: Vec<String>) -> Self {
        Self {
            tasks: Tasks::default(),
            config: config.clone(),
            gains: None,
            gains_error: None,
            mode: Mode::Open,
            set_points: None,
            wishes: Wishes::default(),
            is_changed: true,
            asked_at: None,
            asked_by: None,
            state: QosState {
                admission_min: match config.quality {
                    Quality::Admitted => f64::from(config.admitted_percent_min) / 100.0,
                    Quality::Fresh => 1.0,
                },
                ..thread::at_rest()
            },
            figures_at: None,
            actuator_error: None,
            warnings,
            stop: false,
        }
    }

    /// Adopts set points and mode of new gains or a new configuration, as far as possible.
    fn settle(&mut self, loaded: Loaded) {
        let (mode, refused) = loaded.mode(&self.config);
        self.mode = mode;
        // Keep showing the error while it applies: the operator has requested something else.
        self.gains_error = loaded.error.or(refused);
        self.gains = loaded.gains;
        self.set_points = self.gains.as_ref().map(|gains| SetPoints {
            tardiness: self.config.tardiness.unwrap_or(gains.set_points.tardiness),
            data_ratio: self
                .config
                .data_ratio
                .unwrap_or(gains.set_points.data_ratio),
        });
    }

    /// Logs what is driven from now on, and what the configuration requests but is not driven.
    fn say(&self) {
        log::event("qos", self.sentence());
        for warning in words::machine_warnings(&self.config) {
            log::event("warning", warning);
        }
        if let Some(error) = &self.gains_error {
            log::event("warning", words::undriven(self.gains.as_ref(), error));
        }
    }

    fn sentence(&self) -> String {
        words::sentence(&self.config, self.gains.as_ref(), self.mode)
    }

    /// Returns the actuator for the speed. `auto` takes the actuator with which the gains were measured: the gains do
    /// not fit another one.
    fn actuator(&self) -> ActuatorKind {
        let of_gains = self.gains.as_ref().map(|gains| gains.identified.kind());
        match (self.config.actuator, of_gains) {
            (ActuatorKind::Auto, Some(Ok(kind))) => kind,
            (kind, _) => kind,
        }
    }

    fn check_mode(&self, mode: Mode) -> Result<(), Failure> {
        let (gains, error) = (self.gains.as_ref(), self.gains_error.as_deref());
        match words::mode_refused(mode, gains, error, &self.config) {
            None => Ok(()),
            Some((wrong, remedy)) => {
                Err(failure(Code::Unsupported, mode_name(mode), wrong, remedy))
            }
        }
    }

    fn check_set_points(&self, wanted: SetPoints) -> Result<(), Failure> {
        let is_possible =
            TARDINESS.contains(&wanted.tardiness) && DATA_RATIO.contains(&wanted.data_ratio);
        if is_possible {
            return Ok(());
        }
        Err(failure(
            Code::Invalid,
            "set points",
            "are out of their ranges",
            "tardiness is 0.05 to 10, the data response ratio 0.001 to 0.999",
        ))
    }

    /// Checks whether an identification can run. `missing`: why nothing sets the speed, although something should.
    fn check_identify(
        &self,
        excitation: &Excitation,
        missing: Option<String>,
    ) -> Result<(), Failure> {
        let refused = |wrong: &str, remedy: &str| {
            Err(failure(Code::Unsupported, "identification", wrong, remedy))
        };
        if self.state.identification.state == "running" {
            return refused("one runs already", "wait for its end");
        }
        if self.tasks.is_empty() {
            return refused(
                "no task is declared, so there is nothing to measure",
                "start the programs whose deadlines must be held; docs/clients.md shows how they declare tasks",
            );
        }
        if self.config.actuator == ActuatorKind::None {
            return refused(
                "nothing sets the speed",
                "name an actuator in qos.actuator and send the node SIGHUP",
            );
        }
        if let Some(why) = missing {
            return refused(&format!("the speed cannot be set: {why}"), speed::REMEDY);
        }
        if self.config.quality == Quality::Fresh && self.least()[ADMISSION] > 0.98 {
            return refused(
                "no update can be left out: how often they come is not known yet, or each of them is needed",
                "try again in some sampling periods, or set qos.quality_of_data = \"admitted\"",
            );
        }
        excitation.check(self.least()).map_err(|error| {
            failure(
                Code::Invalid,
                "identification",
                error,
                "choose other ranges (--speed, --updates)",
            )
        })
    }

    /// Returns the lower limit of each input.
    fn least(&self) -> [f64; 2] {
        let part = |percent: u32| f64::from(percent) / 100.0;
        [
            part(self.config.speed_percent_min),
            self.state.admission_min,
        ]
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            period: Duration::from_millis(u64::from(self.config.sampling_period_ms)),
            instances_min: self.config.instances_min,
        }
    }

    fn show(&self) -> QosState {
        let mut state = self.state.clone();
        mode_name(self.mode).clone_into(&mut state.mode);
        state.gains = match (&self.gains, &self.config.gains) {
            (Some(_), Some(path)) => Some(path.display().to_string()),
            _ => None,
        };
        state.gains_error.clone_from(&self.gains_error);
        state.tardiness_target = self.set_points.map(|points| points.tardiness);
        state.data_ratio_target = self.set_points.map(|points| points.data_ratio);
        state.sampling_period_ms = self.config.sampling_period_ms;
        quality_name(self.config.quality).clone_into(&mut state.quality_of_data);
        [state.speed_min, state.admission_min] = self.least();
        state.tasks = self.tasks.show(self.sampling());
        state.tasks_max = self.config.tasks_max;
        state.tasks_refused = self.tasks.refused();
        state.tasks_ended = self.tasks.ended();
        state.deadline_misses_apart = self.tasks.misses_apart();
        state.reports_refused = self.tasks.reports_refused();
        state.last_age_ms = self
            .figures_at
            .map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
        state.warnings.clone_from(&self.warnings);
        if state.actuator == RtGroup::NAME {
            let plain = state.tasks.iter().filter(|task| {
                let thread = task
                    .thread
                    .filter(|id| tasks::is_thread_of(*id, task.process));
                thread.is_some_and(|id| !speed::is_real_time(id))
            });
            let names = plain.map(|task| speed::not_slowed(&task.name));
            state.warnings.extend(names);
        }
        state
    }
}
