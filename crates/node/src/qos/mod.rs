//! Quality of service in the node: the declared tasks, the thread that samples them and sets speed and admission, and
//! the requests of clients.
//!
//! The thread owns the loop (`control::regulator`). It shares the list of tasks and the requests of clients with the
//! socket's thread; each locks them only for a lookup. Real-time tasks live in other processes and wait for neither
//! thread.
//!
//! **Files:** `requests.rs` requests of clients, `tasks.rs` reports of tasks, `own.rs` tasks of programs that the node
//! has started, `state.rs` the shared state, `thread.rs` the sampling thread, `speed.rs` the choice of the speed's
//! actuator, `unrestored.rs` settings that were not restored.

mod own;
pub(crate) mod requests;
mod speed;
mod state;
mod tasks;
mod thread;
mod unrestored;

use super::database::Db;
use super::log;
use crate::status::QosState;
use base::clock::{Clock, SystemClock};
use config::qos::{Loaded, mode_name};
use config::{Config, QosConfig};
use control::controller::{Mode, SetPoints};
use libkeel::protocol::Failure;
use state::{Inner, Shared, Wishes};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use unrestored::Places;

pub(crate) use own::OwnTasks;
pub(crate) use tasks::{Declared, TaskId};

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
        let places = Places::of(config);
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
                    format!("mode {mode}, as requested; before: {before}"),
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
            // An identification that was just requested has not begun yet.
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
