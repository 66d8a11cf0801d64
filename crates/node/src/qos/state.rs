//! The state of the quality of service, shared by the socket's thread and the sampling thread.

use super::speed;
use super::tasks::{Declared, Sampling, TaskId, Tasks, is_thread_of};
use crate::answer::failure;
use crate::log;
use crate::status::{IdentificationState, QosState, held_name};
use actuator::{Actuator, NoActuator, RtGroup};
use base::error::Code;
use config::qos::{self as words, DATA_RATIO, Gains, Loaded, TARDINESS, mode_name};
use config::{ActuatorKind, QosConfig, quality_name};
use control::controller::{ADMISSION, Mode, Saturation, SetPoints};
use control::regulator::{Excitation, Identification};
use db::qos::admission::Quality;
use libkeel::protocol::Failure;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a client may change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wishes {
    pub(crate) mode: Option<Mode>,
    pub(crate) set_points: Option<SetPoints>,
    pub(crate) identify: Option<Excitation>,
    pub(crate) stop_identification: bool,
}

/// State shared by both threads.
pub(super) struct Inner {
    pub(super) tasks: Tasks,
    pub(super) config: QosConfig,
    pub(super) gains: Option<Gains>,
    pub(super) gains_error: Option<String>,
    /// The current mode.
    pub(super) mode: Mode,
    pub(super) set_points: Option<SetPoints>,
    pub(super) wishes: Wishes,
    /// Whether gains or limits have changed since the loop's last look.
    pub(super) is_changed: bool,
    /// When the client that requested the identification last polled its progress, and the client's process. Without
    /// polls the identification ends.
    pub(super) asked_at: Option<Instant>,
    pub(super) asked_by: Option<u32>,
    pub(super) state: QosState,
    /// When the last period with figures ended.
    pub(super) figures_at: Option<Instant>,
    /// Why no actuator sets the speed, although one is configured.
    pub(super) actuator_error: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) stop: bool,
}

/// Shared by the socket's thread and the sampling thread.
pub(crate) struct Shared {
    pub(super) inner: Mutex<Inner>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is usable: each change is complete before the lock is released.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn declare(&self, declared: Declared) -> Result<TaskId, Failure> {
        let mut inner = self.lock();
        let tasks_max = inner.config.tasks_max as usize;
        let id = inner.tasks.declare(declared, tasks_max)?;
        drop(inner);
        self.changed.notify_all();
        Ok(id)
    }

    pub(super) fn report(&self, id: TaskId, period: &db::Monitor) -> Result<u32, Failure> {
        let mut inner = self.lock();
        inner.tasks.report(id, period)?;
        let sampling = inner.sampling();
        inner.tasks.note_apart(id, period.deadline_misses, sampling);
        let sampling_period_ms = inner.config.sampling_period_ms;
        drop(inner);
        self.changed.notify_all();
        Ok(sampling_period_ms)
    }

    pub(super) fn leave(&self, ids: &[TaskId]) {
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

impl Inner {
    /// Creates the state without gains.
    pub(super) fn new(config: &QosConfig, warnings: Vec<String>) -> Self {
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
                ..at_rest()
            },
            figures_at: None,
            actuator_error: None,
            warnings,
            stop: false,
        }
    }

    /// Adopts set points and mode of new gains or a new configuration, as far as possible.
    pub(super) fn settle(&mut self, loaded: Loaded) {
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
    pub(super) fn say(&self) {
        log::event("qos", self.sentence());
        for warning in words::machine_warnings(&self.config) {
            log::event("warning", warning);
        }
        if let Some(error) = &self.gains_error {
            log::event("warning", words::undriven(self.gains.as_ref(), error));
        }
    }

    pub(super) fn sentence(&self) -> String {
        words::sentence(&self.config, self.gains.as_ref(), self.mode)
    }

    /// Returns the actuator for the speed. `auto` takes the actuator with which the gains were measured: the gains do
    /// not fit another one.
    pub(super) fn actuator(&self) -> ActuatorKind {
        let of_gains = self.gains.as_ref().map(|gains| gains.identified.kind());
        match (self.config.actuator, of_gains) {
            (ActuatorKind::Auto, Some(Ok(kind))) => kind,
            (kind, _) => kind,
        }
    }

    pub(super) fn check_mode(&self, mode: Mode) -> Result<(), Failure> {
        let (gains, error) = (self.gains.as_ref(), self.gains_error.as_deref());
        match words::mode_refused(mode, gains, error, &self.config) {
            None => Ok(()),
            Some((wrong, remedy)) => {
                Err(failure(Code::Unsupported, mode_name(mode), wrong, remedy))
            }
        }
    }

    pub(super) fn check_set_points(&self, wanted: SetPoints) -> Result<(), Failure> {
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
    pub(super) fn check_identify(
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
    pub(super) fn least(&self) -> [f64; 2] {
        let part = |percent: u32| f64::from(percent) / 100.0;
        [
            part(self.config.speed_percent_min),
            self.state.admission_min,
        ]
    }

    pub(super) fn sampling(&self) -> Sampling {
        Sampling {
            period: Duration::from_millis(u64::from(self.config.sampling_period_ms)),
            instances_min: self.config.instances_min,
        }
    }

    pub(super) fn show(&self) -> QosState {
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
                let thread = task.thread.filter(|id| is_thread_of(*id, task.process));
                thread.is_some_and(|id| !speed::is_real_time(id))
            });
            let names = plain.map(|task| speed::not_slowed(&task.name));
            state.warnings.extend(names);
        }
        state
    }
}

/// Returns the state before the first period.
pub(super) fn at_rest() -> QosState {
    let held = held_name(Saturation::Free);
    QosState {
        actuator: NoActuator.name().to_owned(),
        speed: 1.0,
        admitted: 1.0,
        speed_held: held.to_owned(),
        admitted_held: held.to_owned(),
        model_true: true,
        obeyed: true,
        identification: identification(&Identification::None),
        ..QosState::default()
    }
}

/// Rounds a measured number to useful digits: the longest identification with the most possible tasks must fit one
/// answer.
pub(super) fn short(number: f64) -> f64 {
    let rounded = (number * 1e9).round() / 1e9;
    if rounded.is_finite() { rounded } else { number }
}

/// Returns what is shown of an identification.
pub(super) fn identification(now: &Identification) -> IdentificationState {
    let done = |profiled: usize, driven: usize| (profiled + driven) as u32;
    match now {
        Identification::None => IdentificationState {
            state: "none".to_owned(),
            ..IdentificationState::default()
        },
        Identification::Running(excitation, run) => IdentificationState {
            state: "running".to_owned(),
            periods_done: done(run.profiled.len(), run.driven.len()),
            periods_wanted: excitation.profiled + excitation.driven,
            ..IdentificationState::default()
        },
        Identification::Done(run) => IdentificationState {
            state: "done".to_owned(),
            periods_done: done(run.profiled.len(), run.driven.len()),
            periods_wanted: done(run.profiled.len(), run.driven.len()),
            why: None,
            profiled: run.profiled.iter().map(|it| it.map(short)).collect(),
            driven: run
                .driven
                .iter()
                .map(|sample| {
                    let ([tardiness, ratio], [speed, admitted]) = (sample.outputs, sample.inputs);
                    [tardiness, ratio, speed, admitted].map(short)
                })
                .collect(),
        },
        Identification::GivenUp(why) => IdentificationState {
            state: "given-up".to_owned(),
            why: Some(why.clone()),
            ..IdentificationState::default()
        },
    }
}
