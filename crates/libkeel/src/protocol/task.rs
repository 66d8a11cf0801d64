//! Periodic tasks of clients: their declaration, and their report of each sampling period.

use super::Put;
use base::histogram::Parts;
use db::{Monitor, MonitorSum};
use serde::{Deserialize, Serialize};

/// Size of the longest task name, in bytes.
pub const TASK_NAME_BYTES_MAX: usize = 64;

/// Shortest period, ns.
pub const PERIOD_NS_MIN: u64 = 1_000;

/// Longest period and deadline, ns: an hour.
pub const DECLARED_NS_MAX: u64 = 3_600_000_000_000;

/// Greatest weight.
pub const WEIGHT_MAX: f64 = 1000.0;

/// Largest number of pairs of one [`Spread`]. Four spreads of any content fit a request.
pub const PAIRS_MAX: usize = 512;

/// Request: this connection belongs to a periodic task from now on, until it ends.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// 1 to [`TASK_NAME_BYTES_MAX`] bytes without control characters.
    pub name: String,
    /// Time between releases, ns.
    pub period_ns: u64,
    /// Response time allowed, ns.
    pub deadline_ns: u64,
    /// What happens to a late instance.
    pub kind: TaskKind,
    /// Weight of the task in the controlled figures, above 0 and at most [`WEIGHT_MAX`].
    pub weight: f64,
    /// Process id of the process that runs it.
    pub process: u32,
    /// Kernel thread id of the thread that runs it.
    pub thread: u32,
}

/// What happens to a late instance.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// It finishes and is counted.
    #[default]
    Soft,
    /// It is aborted: none of its puts ever becomes visible.
    Firm,
}

/// Answer to [`Task`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskDeclared {
    /// Number of the task within this run of the node.
    pub id: u64,
    /// Interval at which the node wants reports, in ms.
    #[serde(default)]
    pub sampling_period_ms: u32,
}

/// Request: what a task did since its previous report.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPeriod {
    /// Number of the task, declared on this connection.
    pub id: u64,
    /// Number of instances that ended, including late and aborted ones.
    pub instances: u64,
    /// Instances whose response time exceeded the deadline.
    pub deadline_misses: u64,
    /// Instances of a firm task none of whose puts was sent. Instances that the node has refused are not included.
    pub aborted: u64,
    /// Releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Sum of response time ÷ deadline over the instances.
    pub tardiness_sum: f64,
    /// The greatest of these ratios.
    pub tardiness_max: f64,
    /// Response time, from release to finish.
    pub response: Spread,
    /// Time in reads and puts.
    pub data: Spread,
    /// Execution time outside of reads and puts.
    pub compute: Spread,
    /// Delay from release to the first instruction.
    pub jitter: Spread,
}

/// Request: store all puts of an instance of a firm task or none, and none after the deadline.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// 1 to [`db::STAGED_PUTS_MAX`] readings.
    pub puts: Vec<Put>,
    /// Time after which nothing is stored, in ns since the machine started (`CLOCK_BOOTTIME`).
    pub deadline_ns: u64,
}

/// Answer to [`TaskPeriod`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskNoted {
    /// Interval at which the node wants reports from now on, in ms.
    pub sampling_period_ms: u32,
}

/// Distribution of one time over the instances: a histogram without its empty buckets.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Sum of the times, ns.
    pub sum_ns: u64,
    /// Shortest time in ns; 0 if there is none.
    pub min_ns: u64,
    /// Longest time in ns; 0 if there is none.
    pub max_ns: u64,
    /// Number of times that are too long for any bucket.
    pub saturated: u64,
    /// The non-empty buckets of [`base::histogram`], in ascending order, and their counts.
    pub buckets: Vec<(u32, u64)>,
}

impl Task {
    /// Checks that the numbers are valid.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || name.len() > TASK_NAME_BYTES_MAX || name.contains(char::is_control) {
            return Err(format!(
                "name must have 1 to {TASK_NAME_BYTES_MAX} bytes without control characters"
            ));
        }
        for (field, value, low) in [
            ("period_ns", self.period_ns, PERIOD_NS_MIN),
            ("deadline_ns", self.deadline_ns, 1),
        ] {
            if !(low..=DECLARED_NS_MAX).contains(&value) {
                return Err(format!(
                    "{field} is {value}, not {low} to {DECLARED_NS_MAX}"
                ));
            }
        }
        // This also rejects not-a-number.
        if !(self.weight > 0.0 && self.weight <= WEIGHT_MAX) {
            let weight = self.weight;
            return Err(format!(
                "weight is {weight}, not above 0 and at most {WEIGHT_MAX}"
            ));
        }
        Ok(())
    }
}

impl TaskPeriod {
    /// Checks that no spread has more pairs than permitted. [`figures`](Self::figures) checks the numbers themselves.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn check(&self) -> Result<(), String> {
        for (field, spread) in self.spreads() {
            let pairs = spread.buckets.len();
            if pairs > PAIRS_MAX {
                return Err(format!("{field} has {pairs} pairs, more than {PAIRS_MAX}"));
            }
        }
        Ok(())
    }

    /// Returns the message for these figures; `None` if a spread has more than [`PAIRS_MAX`] pairs.
    #[must_use]
    pub fn of(id: u64, figures: &MonitorSum) -> Option<Self> {
        let period = Self {
            id,
            instances: figures.instances,
            deadline_misses: figures.deadline_misses,
            aborted: figures.aborted,
            releases_missed: figures.releases_missed,
            tardiness_sum: figures.tardiness_sum,
            tardiness_max: figures.tardiness_max,
            response: Spread::of(&figures.response_ns),
            data: Spread::of(&figures.data_ns),
            compute: Spread::of(&figures.compute_ns),
            jitter: Spread::of(&figures.jitter_ns),
        };
        period.check().is_ok().then_some(period)
    }

    /// Returns the figures, if recorded instances can have such numbers.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn figures(&self) -> Result<Monitor, String> {
        self.check()?;
        let sum = MonitorSum {
            instances: self.instances,
            deadline_misses: self.deadline_misses,
            aborted: self.aborted,
            releases_missed: self.releases_missed,
            tardiness_sum: self.tardiness_sum,
            tardiness_max: self.tardiness_max,
            response_ns: self.response.parts(),
            data_ns: self.data.parts(),
            compute_ns: self.compute.parts(),
            jitter_ns: self.jitter.parts(),
        };
        Monitor::from_sum(&sum).map_err(|error| error.to_string())
    }

    fn spreads(&self) -> [(&'static str, &Spread); 4] {
        [
            ("response", &self.response),
            ("data", &self.data),
            ("compute", &self.compute),
            ("jitter", &self.jitter),
        ]
    }
}

impl Spread {
    fn of(parts: &Parts) -> Self {
        Self {
            sum_ns: parts.sum,
            min_ns: parts.min,
            max_ns: parts.max,
            saturated: parts.saturated,
            buckets: parts.buckets.clone(),
        }
    }

    fn parts(&self) -> Parts {
        Parts {
            buckets: self.buckets.clone(),
            saturated: self.saturated,
            sum: self.sum_ns,
            min: self.min_ns,
            max: self.max_ns,
        }
    }
}
