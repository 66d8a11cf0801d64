//! Options: brokers, where alarms go, which keys drive actuators; and every limit.

use crate::forward::options::{
    Format, Late, MqttVersion, WAIT_MS_MAX, bad, check_name, check_topic, is_address,
};
use crate::{Error, Secret};
use db::AlarmCondition;
use std::fmt;

/// Largest number of brokers of one node.
pub const BROKERS_MAX: usize = 8;
/// Largest number of actuators of one node.
pub const ACTUATORS_MAX: usize = 256;
/// Largest number of keys of all actuators of a node together.
pub const ACTUATOR_KEYS_MAX: u32 = 4096;
/// Largest number of alarms that can wait for one broker, or for the command.
pub const QUEUE_MAX: u32 = 65_536;
/// Largest number of words of a command, and their total size in bytes.
pub const COMMAND_WORDS_MAX: usize = 64;
/// See [`COMMAND_WORDS_MAX`].
pub const COMMAND_BYTES_MAX: usize = 8192;
/// Longest deadline, ms: a year.
pub const DEADLINE_MS_MAX: u64 = 31_536_000_000;

/// A broker, and the client's identity there.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerOptions {
    /// The name that alarms and actuators refer to.
    pub name: String,
    /// `host:port`
    pub address: String,
    /// Encrypts the connection; without it, the connection is plain.
    pub tls: Option<tls::Client>,
    /// Which protocol to speak.
    pub version: MqttVersion,
    /// Client id: no other client of the broker may have it.
    pub client_id: String,
    /// User and password.
    pub login: Option<(String, Secret)>,
    /// Keep-alive interval: the node sends a packet to the broker at least this often.
    pub keep_alive_seconds: u16,
    /// Largest number of unacknowledged messages.
    pub inflight_max: u16,
    /// Largest number of alarms that wait for it; beyond that the oldest is dropped.
    pub queue_messages_max: u32,
    /// Longest wait for an answer, in ms.
    pub answer_ms_max: u64,
    /// Wait after the first failure, in ms; doubled after each further one.
    pub backoff_ms_min: u64,
    /// Longest wait after a failure, in ms.
    pub backoff_ms_max: u64,
}

impl fmt::Debug for BrokerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password is left out.
        write!(f, "BrokerOptions({}, {})", self.name, self.address)
    }
}

impl BrokerOptions {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        address: impl Into<String>,
        client_id: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            tls: None,
            version: MqttVersion::default(),
            client_id: client_id.into(),
            login: None,
            keep_alive_seconds: 30,
            inflight_max: 32,
            queue_messages_max: 1024,
            answer_ms_max: 5_000,
            backoff_ms_min: 200,
            backoff_ms_max: 5_000,
        }
    }

    fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        if !is_address(&self.address) {
            return bad("address", "must be host:port");
        }
        if self.client_id.is_empty() || self.client_id.contains('\0') {
            return bad(
                "client_id",
                "must be a name that no other client of the broker has",
            );
        }
        if self.keep_alive_seconds == 0 || self.inflight_max == 0 {
            return bad("keep_alive_seconds", "must be at least 1");
        }
        if !(1..=QUEUE_MAX).contains(&self.queue_messages_max) {
            return bad("queue_messages_max", "must be from 1 to 65536");
        }
        for (option, wait) in [
            ("answer_ms_max", self.answer_ms_max),
            ("backoff_ms_min", self.backoff_ms_min),
            ("backoff_ms_max", self.backoff_ms_max),
        ] {
            if !(1..=WAIT_MS_MAX).contains(&wait) {
                return bad(option, "must be from 1 to 3600000");
            }
        }
        match self.backoff_ms_min > self.backoff_ms_max {
            true => bad("backoff_ms_min", "must be at most backoff_ms_max"),
            false => Ok(()),
        }
    }
}

/// Where one alarm goes. The database has its rule at the same index.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmOptions {
    /// Its name.
    pub name: String,
    /// What raises it, for the text of messages.
    pub condition: AlarmCondition,
    /// Index of the broker that it goes to.
    pub broker: Option<usize>,
    /// Topic there; `{key}` stands for the key, `{1}` to `{9}` for its levels.
    pub topic: String,
    /// Whether the broker keeps the latest message for later subscribers.
    pub retain: bool,
    /// Program and arguments to run for it; empty: none.
    pub command: Vec<String>,
    /// Timeout of a run, in ms.
    pub command_ms_max: u64,
    /// Deadline after it happened, in ms; 0: none.
    pub deadline_ms: u64,
    /// What happens if it is late when its turn comes.
    pub late: Late,
}

/// Which values drive an actuator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActuatorOptions {
    /// Its name.
    pub name: String,
    /// Key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// Largest number of keys.
    pub keys_max: u32,
    /// Index of the broker.
    pub broker: usize,
    /// Topic there; `{key}` stands for the key, `{1}` to `{9}` for its levels.
    pub topic: String,
    /// Format of a value: a number, or JSON.
    pub payload: Format,
    /// Whether the broker keeps the latest value for later subscribers.
    pub retain: bool,
    /// Deadline after a value was put, in ms; 0: none.
    pub deadline_ms: u64,
    /// What happens if it is late when its turn comes.
    pub late: Late,
    /// Whether the value found at the start is sent, too.
    pub at_start: bool,
}

/// All options.
#[derive(Clone, Debug, PartialEq)]
pub struct UrgentOptions {
    /// Brokers.
    pub brokers: Vec<BrokerOptions>,
    /// Alarms, in the order of the database's rules.
    pub alarms: Vec<AlarmOptions>,
    /// Actuators.
    pub actuators: Vec<ActuatorOptions>,
    /// Largest number of runs of commands that wait; beyond that the oldest is dropped.
    pub command_queue_max: u32,
}

impl UrgentOptions {
    /// Returns whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.alarms.is_empty() && self.actuators.is_empty()
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`] names the first that is not.
    pub fn check(&self) -> Result<(), Error> {
        if self.brokers.len() > BROKERS_MAX || self.actuators.len() > ACTUATORS_MAX {
            return bad(
                "broker",
                "there are more than 8 brokers, or more than 256 actuators",
            );
        }
        self.brokers.iter().try_for_each(BrokerOptions::check)?;
        for alarm in &self.alarms {
            check_name(&alarm.name)?;
            alarm
                .condition
                .check()
                .or_else(|problem| bad("alarm", problem))?;
            self.check_way(alarm.broker, &alarm.topic, alarm.deadline_ms)?;
            check_command(&alarm.command, alarm.command_ms_max)?;
        }
        let mut keys = 0_u64;
        for actuator in &self.actuators {
            check_name(&actuator.name)?;
            base::pattern::check(&actuator.pattern).or_else(|problem| bad("key", problem))?;
            self.check_way(Some(actuator.broker), &actuator.topic, actuator.deadline_ms)?;
            if actuator.payload == Format::Line {
                return bad("payload", "must be \"number\" or \"json\"");
            }
            keys += u64::from(actuator.keys_max);
        }
        if keys > u64::from(ACTUATOR_KEYS_MAX) || self.actuators.iter().any(|one| one.keys_max == 0)
        {
            return bad(
                "keys_max",
                "must be at least 1, and 4096 for all actuators together",
            );
        }
        match (1..=QUEUE_MAX).contains(&self.command_queue_max) {
            true => Ok(()),
            false => bad("command_queue_max", "must be from 1 to 65536"),
        }
    }

    fn check_way(&self, broker: Option<usize>, topic: &str, deadline_ms: u64) -> Result<(), Error> {
        if broker.is_some() {
            check_topic(topic)?;
        }
        if broker.is_some_and(|at| at >= self.brokers.len()) {
            return bad("broker", "is not there");
        }
        match deadline_ms > DEADLINE_MS_MAX {
            true => bad("deadline_ms", "must be at most a year"),
            false => Ok(()),
        }
    }
}

/// Checks that a command can be run.
///
/// # Errors
/// [`Error::OptionInvalid`].
pub fn check_command(command: &[String], command_ms_max: u64) -> Result<(), Error> {
    let bytes: usize = command.iter().map(String::len).sum();
    if command.len() > COMMAND_WORDS_MAX || bytes > COMMAND_BYTES_MAX {
        return bad("command", "must have at most 64 words of 8192 bytes in all");
    }
    if command.first().is_some_and(String::is_empty)
        || command.iter().any(|word| word.contains('\0'))
    {
        return bad(
            "command",
            "must begin with a program, and hold no zero byte",
        );
    }
    match command.is_empty() || (1..=WAIT_MS_MAX).contains(&command_ms_max) {
        true => Ok(()),
        false => bad("command_seconds_max", "must be from 1 to 3600"),
    }
}
