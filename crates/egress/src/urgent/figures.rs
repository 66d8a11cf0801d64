//! What is counted of alarms and actuators on their way, and what others see of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What has become of messages, or of runs of a command, since the start. Each ends in one of the first five, or
/// waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Acknowledged by the broker, or a run of the command that ended with success.
    pub delivered: u64,
    /// Left out because they were late, as configured.
    pub skipped: u64,
    /// Refused by the broker for what they are, or a run that failed.
    pub failed: u64,
    /// Dropped because too many waited.
    pub dropped: u64,
    /// Replaced by a later value before they were delivered; actuators alone.
    pub superseded: u64,
    /// Of the delivered ones, those that were so after their deadline.
    pub late: u64,
    /// Not ended yet.
    pub waiting: u64,
}

impl Delivery {
    /// What did not arrive, though somebody counts on it.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        let sum = self.skipped.saturating_add(self.failed);
        sum.saturating_add(self.dropped)
    }
}

/// One broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerFigures {
    /// Whether the latest attempt to reach it worked.
    pub connected: bool,
    /// Times that a connection was made, and that one was lost.
    pub connects: u64,
    /// See `connects`.
    pub losses: u64,
    /// What waits or is on its way.
    pub waiting: u64,
    /// Age of the oldest of it, ms.
    pub waiting_age_ms: Option<u64>,
    /// Messages that were sent once more because the connection broke before their acknowledgement.
    pub sent_twice: u64,
    /// Answers that fitted nothing that was sent.
    pub answers_unknown: u64,
    /// What went wrong last; it stays when things go well again.
    pub last_error: Option<String>,
}

/// One alarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmFigures {
    /// To its topic.
    pub mqtt: Delivery,
    /// To its command.
    pub command: Delivery,
    /// Why a message or a run failed last; it stays.
    pub last_error: Option<String>,
}

/// One actuator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActuatorFigures {
    /// Its values.
    pub delivery: Delivery,
    /// Keys that drive it, and keys that fit and do not because there are too many, or because they make no topic.
    pub keys: u64,
    /// See `keys`.
    pub keys_unused: u64,
    /// Why a value could not be sent last; it stays.
    pub last_error: Option<String>,
}

/// Everything, in the order of the options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrgentFigures {
    /// Brokers.
    pub brokers: Vec<BrokerFigures>,
    /// Alarms.
    pub alarms: Vec<AlarmFigures>,
    /// Actuators.
    pub actuators: Vec<ActuatorFigures>,
    /// When alarms and values were looked for last, ms on the monotonic clock.
    pub looked_ms: u64,
    /// Why nobody looks for them.
    pub error: Option<String>,
}

/// The figures, shared between the threads that deliver and whoever asks.
#[derive(Debug, Default)]
pub struct UrgentState(Mutex<UrgentFigures>);

impl UrgentState {
    pub(crate) fn new(brokers: usize, alarms: usize, actuators: usize, now_ms: u64) -> Self {
        Self(Mutex::new(UrgentFigures {
            brokers: vec![BrokerFigures::default(); brokers],
            alarms: vec![AlarmFigures::default(); alarms],
            actuators: vec![ActuatorFigures::default(); actuators],
            looked_ms: now_ms,
            error: None,
        }))
    }

    /// A copy.
    #[must_use]
    pub fn figures(&self) -> UrgentFigures {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, UrgentFigures> {
        // Every figure is valid between two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
