//! What a node says of its quality of service: the answer to `qos`, the JSON of `keel qos status`, a part of
//! `keel status`. Names are stable, units stand last, what is not known is null.

use db::qos::controller::Held;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Keys of which an answer says how many of their readings were shed; those that lost the most.
pub(crate) const SHED_KEYS_MAX: usize = 100;

/// All of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct QosState {
    /// `open`, `dvfs-only`, `qod-only` or `mimo`.
    pub(crate) mode: String,
    /// The gains file in force; null: none.
    pub(crate) gains: Option<String>,
    /// Why the configured one is not.
    pub(crate) gains_error: Option<String>,
    /// Mean tardiness and data response ratio that are held; null: none.
    pub(crate) tardiness_target: Option<f64>,
    pub(crate) data_ratio_target: Option<f64>,
    pub(crate) sampling_period_ms: u32,
    /// What a temporal key keeps a part of: `admitted`, of its updates; `fresh`, of its freshness.
    pub(crate) quality_of_data: String,
    /// What sets the speed, and the smallest change of it that does anything.
    pub(crate) actuator: String,
    pub(crate) speed_step: f64,
    pub(crate) speed_min: f64,
    pub(crate) admission_min: f64,
    /// The inputs in force: parts of full speed and of all updates.
    pub(crate) speed: f64,
    pub(crate) admitted: f64,
    /// Where they are held at their limits: `free`, `low` or `high`.
    pub(crate) speed_held: String,
    pub(crate) admitted_held: String,
    /// Both are.
    pub(crate) saturated: bool,
    /// One input holds tardiness alone, because the other one is at its limit.
    pub(crate) single: bool,
    /// No figures: everything is at full.
    pub(crate) blind: bool,
    /// Whether the model predicts what is measured, and whether the machine does what it is told.
    pub(crate) model_true: bool,
    pub(crate) obeyed: bool,
    /// Speeds that could not be set, and why the latest could not.
    pub(crate) actuator_failures: u64,
    pub(crate) actuator_error: Option<String>,
    /// Settings of the processors that a node has changed and nobody could put back, and what to do: a line a file.
    pub(crate) settings_left: Vec<String>,
    /// Sampling periods, and those of them without an instance.
    pub(crate) periods: u64,
    pub(crate) periods_missing: u64,
    /// The latest period with an instance, and how long ago it ended.
    pub(crate) last: Option<PeriodState>,
    pub(crate) last_age_ms: Option<u64>,
    /// Temporal keys whose value is fresh, and all of them.
    pub(crate) keys_fresh: u32,
    pub(crate) keys_temporal: u32,
    /// Readings whose update was left out, and those of them that were thrown away.
    pub(crate) readings_shed: u64,
    pub(crate) readings_shed_dropped: u64,
    /// The keys that lost the most.
    pub(crate) shed_keys: Vec<ShedKey>,
    pub(crate) tasks: Vec<TaskState>,
    pub(crate) tasks_max: u32,
    pub(crate) tasks_refused: u64,
    /// What those did that are no longer among them.
    pub(crate) tasks_ended: TasksEnded,
    /// Deadlines missed that are in no sampling period: of slow tasks, and of firm instances that were in time and
    /// whose puts were not.
    pub(crate) deadline_misses_apart: u64,
    /// Reports of tasks that contradict themselves, by the figure that does.
    pub(crate) reports_refused: BTreeMap<String, u64>,
    pub(crate) identification: IdentificationState,
    /// What was not permitted.
    pub(crate) warnings: Vec<String>,
}

/// A sampling period of all tasks by their weights.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PeriodState {
    /// How long it was.
    pub(crate) length_ms: u64,
    pub(crate) instances: u64,
    /// Response time / deadline: mean, and what 95 % of the instances were below.
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
    /// Number of its thread; null: not known, so that its speed cannot be set.
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
    /// It has reported nothing for some periods, and nobody waits for it.
    pub(crate) silent: bool,
    /// Its instances come too seldom for the loop, which does not go by them.
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

/// What one key lost.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ShedKey {
    pub(crate) key: String,
    pub(crate) readings_shed: u64,
}

/// How far an identification is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct IdentificationState {
    /// `none`, `running`, `done` or `given-up`.
    pub(crate) state: String,
    pub(crate) periods_done: u32,
    pub(crate) periods_wanted: u32,
    /// Why it was given up.
    pub(crate) why: Option<String>,
    /// Once it is done: tardiness and data response ratio of the periods at full speed, and of the driven ones these
    /// and the speed and admitted fraction set at their ends.
    pub(crate) profiled: Vec<[f64; 2]>,
    pub(crate) driven: Vec<[f64; 4]>,
}

/// The name of a limit.
pub(crate) fn held_name(held: Held) -> &'static str {
    match held {
        Held::Free => "free",
        Held::Low => "low",
        Held::High => "high",
    }
}

impl QosState {
    /// Whether nothing is left to hold deadlines with. With the speed at its least both inputs are at their limits
    /// because tasks need less than that, as on a board at night.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.saturated && self.speed_held != held_name(Held::Low)
    }

    /// Whether both inputs are at their limits because the least speed is enough.
    pub(crate) fn is_at_ease(&self) -> bool {
        self.saturated && !self.is_exhausted()
    }

    /// Whether updates are left out now.
    pub(crate) fn is_shedding(&self) -> bool {
        self.admitted < 1.0 - 1e-9
    }

    /// Whether tasks have missed deadlines in the latest period.
    pub(crate) fn is_missing(&self) -> bool {
        self.last.is_some_and(|last| last.miss_ratio > 0.0)
    }
}
