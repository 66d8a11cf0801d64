//! Quality of service in the node: which tasks there are, the thread that samples them and sets speed and admission,
//! and what is asked of it.
//!
//! The thread owns the loop (`db::qos::regulator`). With the thread of the socket it shares a list of tasks and of
//! wishes, for a lookup at a time; real-time tasks live in other processes and wait for neither.
//!
//! **Files:** `requests.rs` what clients ask, `tasks.rs` what tasks have reported, `own.rs` those of programs
//! that the node has started, `thread.rs` the
//! sampling thread, `speed.rs` what sets the speed, `left.rs` what was not put back.

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

/// What both threads see.
struct Inner {
    tasks: Tasks,
    config: QosConfig,
    gains: Option<Gains>,
    gains_error: Option<String>,
    /// What is held at present.
    mode: Mode,
    set_points: Option<SetPoints>,
    wishes: Wishes,
    /// Gains or limits have changed since the loop looked.
    is_changed: bool,
    /// When whoever wants an identification last asked how far it is, and which process that is: without a reader it
    /// ends.
    asked_at: Option<Instant>,
    asked_by: Option<u32>,
    state: QosState,
    /// When the last period with figures ended.
    figures_at: Option<Instant>,
    /// Why nothing sets the speed, though it is configured.
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
        // Each change is whole before the lock is given back.
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
    /// Starts the sampling thread. `warnings`: what was not permitted at the start.
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

    /// Takes a configuration that was read again.
    pub(crate) fn reload(&self, config: &QosConfig) {
        let loaded = Loaded::of(config);
        let mut inner = self.shared.lock();
        // A mode that was chosen meanwhile stays, unless the file now says another than before.
        let is_mode_new = inner.config.mode != config.mode;
        let mode = if is_mode_new { config.mode } else { inner.mode };
        let before = (inner.sentence(), inner.gains_error.clone());
        // So do set points, unless the file or the gains now say others than before.
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

    /// For whoever declares tasks of programs that it has started.
    pub(crate) fn own_tasks(&self) -> OwnTasks {
        OwnTasks::new(Arc::clone(&self.shared))
    }

    /// Declares a task; it lives until [`leave`](Self::leave).
    pub(crate) fn declare(&self, declared: Declared) -> Result<TaskId, Failure> {
        self.shared.declare(declared)
    }

    /// Adds what a task did since its last report; how long a sampling period is, ms.
    pub(crate) fn report(&self, id: TaskId, period: &db::Monitor) -> Result<u32, Failure> {
        self.shared.report(id, period)
    }

    /// Counts a report whose numbers cannot be read as figures.
    pub(crate) fn refuse_report(&self, reason: &'static str) {
        self.shared.lock().tasks.refuse_report(reason);
    }

    /// The node has stored nothing of an instance of these tasks; `is_late`: it came after its deadline.
    pub(crate) fn abort(&self, ids: &[TaskId], is_late: bool) {
        self.shared.lock().tasks.abort(ids, is_late);
    }

    /// The tasks of a connection that has ended are no more.
    pub(crate) fn leave(&self, ids: &[TaskId]) {
        self.shared.leave(ids);
    }

    /// Changes what is wished. `process`: whose wish it is.
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
            // One that was asked for a moment ago has not begun yet.
            inner.wishes.identify = None;
            inner.wishes.stop_identification = true;
        }
        drop(inner);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Why nothing can set the speed of the tasks that are declared now. Files are read without the lock.
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

    /// What is so at present. The process that runs an identification asks for it, so that it goes on; others may look
    /// at one whose reader has died, and do not keep it going.
    pub(crate) fn state(&self, process: Option<u32>) -> QosState {
        let mut inner = self.shared.lock();
        if inner.asked_by == process {
            inner.asked_at = Some(Instant::now());
        }
        drop(inner);
        self.look()
    }

    /// The same for whoever only looks.
    pub(crate) fn look(&self) -> QosState {
        // Before the lock: it goes through the whole table.
        let fresh = self.db.fresh_count(SystemClock::new().wall_ms());
        let mut state = self.shared.lock().show();
        (state.keys_fresh, state.keys_temporal) = (fresh.fresh, fresh.temporal);
        state
    }

    /// The set points in force, for one of which another is wished.
    pub(crate) fn set_points(&self) -> Option<SetPoints> {
        self.shared.lock().set_points
    }
}

impl Qos {
    /// Ends the sampling thread: speed as it was found, all updates.
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
    /// Without gains.
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

    /// After other gains or another configuration: set points and mode as these say, as far as they can be.
    fn settle(&mut self, loaded: Loaded) {
        let (mode, refused) = loaded.mode(&self.config);
        self.mode = mode;
        // Shown as long as it is so: the operator has asked for something else.
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

    /// What is driven from now on goes into the log, and what is not although the configuration asks for it.
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

    /// What sets the speed: `auto` takes what the gains in force were made with, because they are of no use to another.
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

    /// `missing`: why nothing sets the speed, though something is to.
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

    /// What each input may be at least.
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
