//! The state of a node's quality of service: the answer to `qos`, the JSON of `keel qos status`, and a part of `keel
//! status`. Names are stable and end with their unit; unknown values are null.

use control::controller::Saturation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most keys with counts of shed readings in an answer: those that lost the most.
pub(crate) const SHED_KEYS_MAX: usize = 100;

/// The whole state.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct QosState {
    /// `open`, `dvfs-only`, `qod-only` or `mimo`.
    pub(crate) mode: String,
    /// The gains file in force; null if none.
    pub(crate) gains: Option<String>,
    /// Why the configured gains file is not in force.
    pub(crate) gains_error: Option<String>,
    /// Set points of mean tardiness and data response ratio; null if none.
    pub(crate) tardiness_target: Option<f64>,
    pub(crate) data_ratio_target: Option<f64>,
    pub(crate) sampling_period_ms: u32,
    /// What is kept in part for a temporal key: `admitted`, its updates; `fresh`, its freshness.
    pub(crate) quality_of_data: String,
    /// The actuator of the speed, and the smallest change of speed that has an effect.
    pub(crate) actuator: String,
    pub(crate) speed_step: f64,
    pub(crate) speed_min: f64,
    pub(crate) admission_min: f64,
    /// The inputs in force, as parts of full speed and of all updates.
    pub(crate) speed: f64,
    pub(crate) admitted: f64,
    /// Whether the inputs are held at their limits: `free`, `low` or `high`.
    pub(crate) speed_held: String,
    pub(crate) admitted_held: String,
    /// Whether both inputs are at their limits.
    pub(crate) saturated: bool,
    /// Whether one input controls tardiness alone, because the other one is at its limit.
    pub(crate) single: bool,
    /// Whether there are no figures, so that all inputs are at full.
    pub(crate) blind: bool,
    /// Whether the model predicts the measurements, and whether the machine obeys the settings.
    pub(crate) model_true: bool,
    pub(crate) obeyed: bool,
    /// Speeds that could not be set, and the reason of the latest failure.
    pub(crate) actuator_failures: u64,
    pub(crate) actuator_error: Option<String>,
    /// Processor settings that a node changed and that could not be restored, with the remedy: one line per file.
    pub(crate) settings_left: Vec<String>,
    /// Sampling periods, and those without an instance.
    pub(crate) periods: u64,
    pub(crate) periods_missing: u64,
    /// The latest period with an instance, and how long ago it ended.
    pub(crate) last: Option<PeriodState>,
    pub(crate) last_age_ms: Option<u64>,
    /// Temporal keys with a fresh value, and all temporal keys.
    pub(crate) keys_fresh: u32,
    pub(crate) keys_temporal: u32,
    /// Readings whose update was left out, and those of them that were dropped.
    pub(crate) readings_shed: u64,
    pub(crate) readings_shed_dropped: u64,
    /// The keys that lost the most.
    pub(crate) shed_keys: Vec<ShedKey>,
    pub(crate) tasks: Vec<TaskState>,
    pub(crate) tasks_max: u32,
    pub(crate) tasks_refused: u64,
    /// Sums over the tasks that have ended.
    pub(crate) tasks_ended: TasksEnded,
    /// Missed deadlines that no sampling period includes: those of slow tasks, and of firm instances that were in time
    /// but whose puts were not.
    pub(crate) deadline_misses_apart: u64,
    /// Contradictory reports of tasks, by figure.
    pub(crate) reports_refused: BTreeMap<String, u64>,
    pub(crate) identification: IdentificationState,
    /// Permissions that were missing.
    pub(crate) warnings: Vec<String>,
}

/// A sampling period over all tasks, by their weights.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PeriodState {
    /// Its length.
    pub(crate) length_ms: u64,
    pub(crate) instances: u64,
    /// Response time / deadline: mean, and 95th percentile of the instances.
    pub(crate) tardiness_mean: f64,
    pub(crate) tardiness_p95: f64,
    /// Part of the instances that missed their deadlines.
    pub(crate) miss_ratio: f64,
    /// Data time / response time.
    pub(crate) data_ratio: f64,
}

/// One task.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct TaskState {
    pub(crate) name: String,
    pub(crate) process: u32,
    /// Number of its thread; null if unknown, so that its speed cannot be set.
    pub(crate) thread: Option<u32>,
    /// `soft` or `firm`.
    pub(crate) kind: String,
    pub(crate) weight: f64,
    pub(crate) period_us: f64,
    pub(crate) deadline_us: f64,
    pub(crate) instances: u64,
    pub(crate) deadline_misses: u64,
    pub(crate) aborted: u64,
    pub(crate) releases_missed: u64,
    /// Over all instances.
    pub(crate) tardiness_mean: f64,
    pub(crate) tardiness_max: f64,
    /// Whether it has reported nothing for some periods, so that the loop does not wait for it.
    pub(crate) silent: bool,
    /// Whether its instances are too rare for the loop, which ignores it.
    pub(crate) slow: bool,
}

/// Sums over the tasks of this run that have ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub(crate) struct TasksEnded {
    pub(crate) count: u64,
    pub(crate) instances: u64,
    pub(crate) deadline_misses: u64,
    pub(crate) aborted: u64,
    pub(crate) releases_missed: u64,
}

/// The shed readings of one key.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ShedKey {
    pub(crate) key: String,
    pub(crate) readings_shed: u64,
}

/// The progress of an identification.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct IdentificationState {
    /// `none`, `running`, `done` or `given-up`.
    pub(crate) state: String,
    pub(crate) periods_done: u32,
    pub(crate) periods_wanted: u32,
    /// Why it was given up.
    pub(crate) why: Option<String>,
    /// When it is done: tardiness and data response ratio of the periods at full speed. For the driven periods also the
    /// speed and admitted fraction set at their ends.
    pub(crate) profiled: Vec<[f64; 2]>,
    pub(crate) driven: Vec<[f64; 4]>,
}

/// Returns the name of a limit.
pub(crate) fn held_name(held: Saturation) -> &'static str {
    match held {
        Saturation::Free => "free",
        Saturation::Low => "low",
        Saturation::High => "high",
    }
}

impl QosState {
    /// Returns whether no input is left to meet deadlines with. Both inputs at their limits do not count if the speed
    /// is at its least value. The tasks then need less, as on a board at night.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.saturated && self.speed_held != held_name(Saturation::Low)
    }

    /// Returns whether both inputs are at their limits because the least speed is sufficient.
    pub(crate) fn is_at_ease(&self) -> bool {
        self.saturated && !self.is_exhausted()
    }

    /// Returns whether updates are currently left out.
    pub(crate) fn is_shedding(&self) -> bool {
        self.admitted < 1.0 - 1e-9
    }

    /// Returns whether tasks missed deadlines in the latest period.
    pub(crate) fn is_missing(&self) -> bool {
        self.last.is_some_and(|last| last.miss_ratio > 0.0)
    }
}
