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
pub struct QosState {
    /// `open`, `dvfs-only`, `qod-only` or `mimo`.
    pub mode: String,
    /// The gains file in force; null if none.
    pub gains: Option<String>,
    /// Why the configured gains file is not in force.
    pub gains_error: Option<String>,
    /// Set point of the mean tardiness; null if none.
    pub tardiness_target: Option<f64>,
    /// Set point of the data response ratio; null if none.
    pub data_ratio_target: Option<f64>,
    /// Length of a sampling period, in ms.
    pub sampling_period_ms: u32,
    /// What is kept in part for a temporal key: `admitted`, its updates; `fresh`, its freshness.
    pub quality_of_data: String,
    /// The actuator of the speed.
    pub actuator: String,
    /// The smallest change of speed that has an effect, as a part of full speed.
    pub speed_step: f64,
    /// The least speed, as a part of full speed.
    pub speed_min: f64,
    /// The least part of the updates.
    pub admission_min: f64,
    /// The speed in force, as a part of full speed.
    pub speed: f64,
    /// The part of the updates in force.
    pub admitted: f64,
    /// Whether the speed is held at its limit: `free`, `low` or `high`.
    pub speed_held: String,
    /// The same of the updates.
    pub admitted_held: String,
    /// Whether both inputs are at their limits.
    pub saturated: bool,
    /// Whether one input controls tardiness alone, because the other one is at its limit.
    pub single: bool,
    /// Whether there are no figures, so that all inputs are at full.
    pub blind: bool,
    /// Whether the model predicts the measurements.
    pub model_true: bool,
    /// Whether the machine obeys the settings.
    pub obeyed: bool,
    /// Speeds that could not be set.
    pub actuator_failures: u64,
    /// The reason of the latest failure.
    pub actuator_error: Option<String>,
    /// Processor settings that a node changed and that could not be restored, with the remedy: one line per file.
    pub settings_left: Vec<String>,
    /// Sampling periods.
    pub periods: u64,
    /// Those without an instance.
    pub periods_missing: u64,
    /// The latest period with an instance.
    pub last: Option<PeriodState>,
    /// How long ago it ended, in ms.
    pub last_age_ms: Option<u64>,
    /// Temporal keys with a fresh value.
    pub keys_fresh: u32,
    /// All temporal keys.
    pub keys_temporal: u32,
    /// Readings whose update was left out.
    pub readings_shed: u64,
    /// Those of them that were dropped.
    pub readings_shed_dropped: u64,
    /// The keys that lost the most.
    pub shed_keys: Vec<ShedKey>,
    /// The tasks that are declared.
    pub tasks: Vec<TaskState>,
    /// The most tasks.
    pub tasks_max: u32,
    /// Declarations that were refused.
    pub tasks_refused: u64,
    /// Sums over the tasks that have ended.
    pub tasks_ended: TasksEnded,
    /// Missed deadlines that no sampling period includes: those of slow tasks, and of firm instances that were in time
    /// but whose puts were not.
    pub deadline_misses_apart: u64,
    /// Contradictory reports of tasks, by figure.
    pub reports_refused: BTreeMap<String, u64>,
    /// The progress of an identification.
    pub identification: IdentificationState,
    /// Permissions that were missing.
    pub warnings: Vec<String>,
}

/// A sampling period over all tasks, by their weights.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct PeriodState {
    /// Its length, in ms.
    pub length_ms: u64,
    /// Instances that ended in it.
    pub instances: u64,
    /// Response time / deadline, the mean of the instances.
    pub tardiness_mean: f64,
    /// The 95th percentile of the same.
    pub tardiness_p95: f64,
    /// Part of the instances that missed their deadlines.
    pub miss_ratio: f64,
    /// Data time / response time.
    pub data_ratio: f64,
}

/// One task.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct TaskState {
    /// Its name.
    pub name: String,
    /// Its process ID.
    pub process: u32,
    /// Number of its thread; null if unknown, so that its speed cannot be set.
    pub thread: Option<u32>,
    /// `soft` or `firm`.
    pub kind: String,
    /// Its weight in the figures of a period.
    pub weight: f64,
    /// Time between two releases, in µs.
    pub period_us: f64,
    /// Allowed response time, in µs.
    pub deadline_us: f64,
    /// Instances that ended.
    pub instances: u64,
    /// Instances that missed their deadlines.
    pub deadline_misses: u64,
    /// Instances that were given up.
    pub aborted: u64,
    /// Releases that passed during an instance.
    pub releases_missed: u64,
    /// Response time / deadline, the mean over all instances.
    pub tardiness_mean: f64,
    /// The largest of the same.
    pub tardiness_max: f64,
    /// Whether it has reported nothing for some periods, so that the loop does not wait for it.
    pub silent: bool,
    /// Whether its instances are too rare for the loop, which ignores it.
    pub slow: bool,
}

/// Sums over the tasks of this run that have ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct TasksEnded {
    /// Tasks that have ended.
    pub count: u64,
    /// Their instances.
    pub instances: u64,
    /// Their missed deadlines.
    pub deadline_misses: u64,
    /// Their instances that were given up.
    pub aborted: u64,
    /// Releases that passed during their instances.
    pub releases_missed: u64,
}

/// The shed readings of one key.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ShedKey {
    /// The key.
    pub key: String,
    /// Its readings whose update was left out.
    pub readings_shed: u64,
}

/// The progress of an identification.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct IdentificationState {
    /// `none`, `running`, `done` or `given-up`.
    pub state: String,
    /// Periods that are measured.
    pub periods_done: u32,
    /// Periods that are to be measured.
    pub periods_wanted: u32,
    /// Why it was given up.
    pub why: Option<String>,
    /// When it is done: tardiness and data response ratio of the periods at full speed.
    pub profiled: Vec<[f64; 2]>,
    /// When it is done: the same of the driven periods, with the speed and admitted fraction set at their ends.
    pub driven: Vec<[f64; 4]>,
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
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.saturated && self.speed_held != held_name(Saturation::Low)
    }

    /// Returns whether both inputs are at their limits because the least speed is sufficient.
    #[must_use]
    pub fn is_at_ease(&self) -> bool {
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
