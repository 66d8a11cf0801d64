//! Counters of alarms and actuator values on their way, and the figures shown.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The outcome of messages, or of runs of a command, since the start. Each ends in one of the first five, or still
/// waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Acknowledged by the broker, or a run of the command that ended with success.
    pub delivered: u64,
    /// Left out because they were late, as configured.
    pub skipped: u64,
    /// Refused by the broker because of their content, or a run that failed.
    pub failed: u64,
    /// Dropped because too many waited.
    pub dropped: u64,
    /// Replaced by a later value before they were delivered; only for actuators.
    pub superseded: u64,
    /// How many of the delivered ones were delivered after their deadline.
    pub late: u64,
    /// Not ended yet.
    pub waiting: u64,
}

impl Delivery {
    /// Returns how many did not arrive although they were expected to.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        let sum = self.skipped.saturating_add(self.failed);
        sum.saturating_add(self.dropped)
    }
}

/// One broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerFigures {
    /// Whether the latest attempt to reach it succeeded.
    pub connected: bool,
    /// Connections made, and connections lost.
    pub connects: u64,
    /// See `connects`.
    pub losses: u64,
    /// Number of messages that wait or are in flight.
    pub waiting: u64,
    /// Age of the oldest of them, in ms.
    pub waiting_age_ms: Option<u64>,
    /// Messages that were sent again because the connection broke before their acknowledgement.
    pub sent_twice: u64,
    /// Answers that matched nothing that was sent.
    pub answers_unknown: u64,
    /// The last error; it stays after a recovery.
    pub last_error: Option<String>,
}

/// One alarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmFigures {
    /// To its topic.
    pub mqtt: Delivery,
    /// To its command.
    pub command: Delivery,
    /// Why a message or a run last failed; it stays after a success.
    pub last_error: Option<String>,
}

/// One actuator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActuatorFigures {
    /// Its values.
    pub delivery: Delivery,
    /// Number of keys that drive it; and of matching keys that do not, because there are too many or because they make
    /// no valid topic.
    pub keys: u64,
    /// See `keys`.
    pub keys_unused: u64,
    /// Why a value could not be sent last time; it stays after a success.
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
    /// When alarms and values were last collected, in ms on the monotonic clock.
    pub looked_ms: u64,
    /// Why they are no longer collected.
    pub error: Option<String>,
}

/// The figures, shared between the delivering threads and the readers of the figures.
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

    /// Returns a copy.
    #[must_use]
    pub fn figures(&self) -> UrgentFigures {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, UrgentFigures> {
        // A panic between two statements leaves every figure valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
