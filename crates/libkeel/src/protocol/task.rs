//! Periodic tasks of clients: their declaration, and what they report of each sampling period.

use super::Put;
use base::histogram::Parts;
use db::{Monitor, MonitorSum};
use serde::{Deserialize, Serialize};

/// Bytes of a task's name at most.
pub const TASK_NAME_BYTES_MAX: usize = 64;

/// Shortest period, ns.
pub const PERIOD_NS_MIN: u64 = 1_000;

/// Longest period and deadline, ns: an hour.
pub const DECLARED_NS_MAX: u64 = 3_600_000_000_000;

/// Greatest weight.
pub const WEIGHT_MAX: f64 = 1000.0;

/// Pairs of one [`Spread`] at most. Four of them fit a request, whatever is in them.
pub const PAIRS_MAX: usize = 512;

/// Request: this connection speaks for a periodic task from now on, until it ends.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// 1 to [`TASK_NAME_BYTES_MAX`] bytes without control characters.
    pub name: String,
    /// Time between releases, ns.
    pub period_ns: u64,
    /// Response time allowed, ns.
    pub deadline_ns: u64,
    /// What becomes of an instance that is late.
    pub kind: TaskKind,
    /// Share of the task in the figures that are controlled, above 0 and at most [`WEIGHT_MAX`].
    pub weight: f64,
    /// Number of the process that runs it.
    pub process: u32,
    /// Number of the thread that runs it, as the kernel knows it.
    pub thread: u32,
}

/// What becomes of an instance that is late.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// It finishes and is counted.
    #[default]
    Soft,
    /// It is aborted: none of its puts is ever seen.
    Firm,
}

/// Answer to [`Task`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskDeclared {
    /// Number of the task among those of this node's run.
    pub id: u64,
    /// How often the node wants to hear of it, ms.
    #[serde(default)]
    pub sampling_period_ms: u32,
}

/// Request: what a task did since the one before.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPeriod {
    /// Number of the task, declared on this connection.
    pub id: u64,
    /// Instances that ended, late and aborted ones among them.
    pub instances: u64,
    /// Instances whose response time exceeded the deadline.
    pub deadline_misses: u64,
    /// Instances of a firm task none of whose puts was sent. Those that the node has refused are not among them.
    pub aborted: u64,
    /// Releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Sum of response time ÷ deadline over the instances.
    pub tardiness_sum: f64,
    /// Greatest of them.
    pub tardiness_max: f64,
    /// From release to finish.
    pub response: Spread,
    /// In reads and puts.
    pub data: Spread,
    /// Execution outside of reads and puts.
    pub compute: Spread,
    /// From release to the first instruction.
    pub jitter: Spread,
}

/// Request: store what an instance of a firm task has put, all of it or nothing, and nothing after the deadline.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    /// 1 to [`db::STAGED_PUTS_MAX`] readings.
    pub puts: Vec<Put>,
    /// Moment after which none is stored, ns since the machine started (`CLOCK_BOOTTIME`).
    pub deadline_ns: u64,
}

/// Answer to [`TaskPeriod`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskNoted {
    /// How often the node wants to hear of it from now on, ms.
    pub sampling_period_ms: u32,
}

/// One time of each instance: a histogram without its empty buckets.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Sum of the times, ns.
    pub sum_ns: u64,
    /// Shortest, ns; 0 where there is none.
    pub min_ns: u64,
    /// Longest, ns; 0 where there is none.
    pub max_ns: u64,
    /// How many are too long for any bucket.
    pub saturated: u64,
    /// Buckets of [`base::histogram`] that hold something, in ascending order, and their counts.
    pub buckets: Vec<(u32, u64)>,
}

impl Task {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// What is wrong, in words.
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
        // Not-a-number is outside, too.
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
    /// Whether no spread has more pairs than fit. What the numbers are worth is told by [`figures`](Self::figures).
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        for (field, spread) in self.spreads() {
            let pairs = spread.buckets.len();
            if pairs > PAIRS_MAX {
                return Err(format!("{field} has {pairs} pairs, more than {PAIRS_MAX}"));
            }
        }
        Ok(())
    }

    /// The message that carries these figures; `None` where a spread has more than [`PAIRS_MAX`] pairs.
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

    /// The figures, where the numbers can be those of instances that were recorded.
    ///
    /// # Errors
    /// What is wrong, in words.
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
