//! Brokers, alarms and actuators in the status: figures, judgement, text.

use super::text::{because, grouped, plural, span};
use serde::{Deserialize, Serialize};

/// An alarm or value that has waited this long, in ms, counts as stuck.
const WAITING_MS_MAX: u64 = 10_000;
/// Active alarms that the status names; further ones are counted.
pub(crate) const ACTIVE_MAX: usize = 100;
/// Of these, the number that the text names.
const ACTIVE_SHOWN_MAX: usize = 10;

/// A broker for alarms and actuators. Counts start with the node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct BrokerFigures {
    /// Its name in the configuration.
    pub name: String,
    /// `host:port`
    pub address: String,
    /// Whether the latest connection attempt succeeded.
    pub connected: bool,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub losses: u64,
    /// Messages that wait or are in flight.
    pub waiting: u64,
    /// Age of the oldest of them, in ms; null if there is none.
    pub waiting_age_ms: Option<u64>,
    /// Messages sent again because the connection broke before their acknowledgement.
    pub sent_twice: u64,
    /// Answers to no message that was sent.
    pub answers_unknown: u64,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
}

/// The outcomes of messages, or of runs of a command.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct DeliveryFigures {
    /// Those that arrived.
    pub delivered: u64,
    /// Those of the delivered ones that were delivered after their deadline.
    pub late: u64,
    /// Skipped because they were late.
    pub skipped: u64,
    /// Those that failed for good.
    pub failed: u64,
    /// Dropped because too many waited.
    pub dropped: u64,
    /// Values of actuators that were replaced by a later one.
    pub superseded: u64,
    /// Those that wait or are in flight.
    pub waiting: u64,
}

impl DeliveryFigures {
    fn of(found: &egress::urgent::Delivery) -> Self {
        Self {
            delivered: found.delivered,
            late: found.late,
            skipped: found.skipped,
            failed: found.failed,
            dropped: found.dropped,
            superseded: found.superseded,
            waiting: found.waiting,
        }
    }

    fn undelivered(&self) -> u64 {
        let sum = self.skipped.saturating_add(self.failed);
        sum.saturating_add(self.dropped)
    }

    fn text(&self) -> String {
        format!(
            "{} delivered, {} late, {} skipped, {} failed, {} dropped, {} waiting",
            grouped(self.delivered),
            grouped(self.late),
            grouped(self.skipped),
            grouped(self.failed),
            grouped(self.dropped),
            grouped(self.waiting)
        )
    }
}

/// One `[[alarm]]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct AlarmFigures {
    /// Its name in the configuration.
    pub name: String,
    /// The keys that it watches.
    pub pattern: String,
    /// `above 60, over at 55`
    pub condition: String,
    /// Keys that it watches.
    pub watched: u64,
    /// Matching keys that it does not watch.
    pub unwatched: u64,
    /// Alarms raised now.
    pub active: u64,
    /// Alarms raised since the start.
    pub raised: u64,
    /// Alarms cleared since the start.
    pub cleared: u64,
    /// Readings that cannot be compared with a threshold.
    pub values_unusable: u64,
    /// Messages; null if not configured.
    pub mqtt: Option<DeliveryFigures>,
    /// Runs of the command; null if not configured.
    pub command: Option<DeliveryFigures>,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
}

/// An alarm that is raised.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ActiveFigures {
    /// Name of the alarm.
    pub alarm: String,
    /// The key that raised it.
    pub key: String,
    /// The last number of the key, as text: exact for any kind of number.
    pub value: Option<String>,
    /// Time of the reading that raised it, or the node's time, in ms since 1970.
    pub time_ms: i64,
    /// How long it is raised, in ms.
    pub since_ms: u64,
}

/// One `[[actuator]]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ActuatorFigures {
    /// Its name in the configuration.
    pub name: String,
    /// The keys that drive it.
    pub pattern: String,
    /// Keys that drive it.
    pub keys: u64,
    /// Matching keys that are not used, because there are too many, or because they cannot form a topic.
    pub keys_unused: u64,
    /// The outcomes of its messages.
    #[serde(flatten)]
    pub delivery: DeliveryFigures,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
}

/// Figures of all brokers, alarms and actuators.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct UrgentFigures {
    /// One for each `[[broker]]`.
    pub brokers: Vec<BrokerFigures>,
    /// One for each `[[alarm]]`.
    pub alarms: Vec<AlarmFigures>,
    /// Raised alarms, at most a hundred; each alarm's `active` counts all.
    pub alarms_active: Vec<ActiveFigures>,
    /// Changes that found no room in the delivery queue.
    pub alarms_queue_full: u64,
    /// Those of them that will never be delivered.
    pub alarms_lost: u64,
    /// Writes of the file of raised alarms since the start.
    pub alarms_raised_writes: u64,
    /// Its largest size, in bytes.
    pub alarms_raised_bytes_max: u64,
    /// One for each `[[actuator]]`.
    pub actuators: Vec<ActuatorFigures>,
    /// Why alarms and actuators do not work at all.
    pub urgent_error: Option<String>,
}

impl UrgentFigures {
    /// Copies the counters of delivery; names and conditions are already present.
    pub(crate) fn take(
        &mut self,
        options: &egress::urgent::UrgentOptions,
        found: &egress::urgent::UrgentFigures,
    ) {
        for (told, found) in options.brokers.iter().zip(&found.brokers) {
            self.brokers.push(BrokerFigures {
                name: told.name.clone(),
                address: told.address.clone(),
                connected: found.connected,
                connects: found.connects,
                losses: found.losses,
                waiting: found.waiting,
                waiting_age_ms: found.waiting_age_ms,
                sent_twice: found.sent_twice,
                answers_unknown: found.answers_unknown,
                last_error: found.last_error.clone(),
            });
        }
        for ((told, found), shown) in options
            .alarms
            .iter()
            .zip(&found.alarms)
            .zip(&mut self.alarms)
        {
            shown.mqtt = told.broker.map(|_| DeliveryFigures::of(&found.mqtt));
            shown.command = (!told.command.is_empty()).then(|| DeliveryFigures::of(&found.command));
            shown.last_error.clone_from(&found.last_error);
        }
        for (told, found) in options.actuators.iter().zip(&found.actuators) {
            self.actuators.push(ActuatorFigures {
                name: told.name.clone(),
                pattern: told.pattern.clone(),
                keys: found.keys,
                keys_unused: found.keys_unused,
                delivery: DeliveryFigures::of(&found.delivery),
                last_error: found.last_error.clone(),
            });
        }
    }

    /// Returns the changes of alarms since the start that should have been delivered and were not.
    pub(super) fn alarms_undelivered(&self) -> u64 {
        let ways = self
            .alarms
            .iter()
            .flat_map(|alarm| [alarm.mqtt, alarm.command]);
        let missed = ways.flatten().map(|way| way.undelivered());
        missed.fold(self.alarms_lost, u64::saturating_add)
    }

    /// Returns the actuator values since the start that should have been delivered and were not.
    pub(super) fn actuators_undelivered(&self) -> u64 {
        let missed = self.actuators.iter().map(|one| one.delivery.undelivered());
        missed.fold(0, u64::saturating_add)
    }

    /// Adds the reasons. `alarms` and `actuators`: the numbers not delivered within the last ten minutes.
    pub(super) fn judge(&self, alarms: u64, actuators: u64, add: &mut impl FnMut(&str, String)) {
        if let Some(error) = &self.urgent_error {
            add(
                "alarm_undelivered",
                format!("alarms and actuators do not work: {error}"),
            );
        }
        for broker in &self.brokers {
            let name = &broker.name;
            // A broker that has not been contacted yet is no problem.
            let is_new = broker.last_error.is_none() && broker.connects == 0;
            let is_stuck = broker
                .waiting_age_ms
                .is_some_and(|age_ms| age_ms > WAITING_MS_MAX);
            if (!broker.connected && !is_new) || is_stuck {
                let why = because(broker.last_error.as_deref(), &broker.address);
                add(
                    "broker_disconnected",
                    format!(
                        "broker {name} at {} takes nothing{why}: {} for it",
                        broker.address,
                        plural(broker.waiting, "message waits", "messages wait")
                    ),
                );
            }
        }
        if alarms > 0 {
            let names = self.failing(self.alarms.iter().map(|one| (&one.name, &one.last_error)));
            add(
                "alarm_undelivered",
                format!(
                    "{} of alarms failed within the last ten minutes{names}",
                    plural(alarms, "message or command", "messages or commands")
                ),
            );
        }
        if actuators > 0 {
            let names = self.failing(
                self.actuators
                    .iter()
                    .map(|one| (&one.name, &one.last_error)),
            );
            add(
                "actuator_undelivered",
                format!(
                    "{} for actuators did not reach them within the last ten minutes{names}",
                    plural(actuators, "value", "values")
                ),
            );
        }
        let unwatched = self.alarms.iter().filter(|one| one.unwatched > 0);
        let unwatched = unwatched.map(|one| format!("alarm {} ({})", one.name, one.unwatched));
        let unused = self.actuators.iter().filter(|one| one.keys_unused > 0);
        let unused = unused.map(|one| format!("actuator {} ({})", one.name, one.keys_unused));
        let beyond: Vec<String> = unwatched.chain(unused).collect();
        if !beyond.is_empty() {
            add(
                "alarm_unwatched",
                format!(
                    "keys that fit are not watched, or drive nothing: {}; raise keys_max there, or choose a \
                     narrower pattern",
                    beyond.join(", ")
                ),
            );
        }
    }

    fn failing<'a>(&self, all: impl Iterator<Item = (&'a String, &'a Option<String>)>) -> String {
        let said: Vec<String> = all
            .filter_map(|(name, error)| Some(format!("{name}: {}", error.as_ref()?)))
            .collect();
        match said.is_empty() {
            true => String::new(),
            false => format!(" ({})", said.join("; ")),
        }
    }

    /// Returns lines for people: subject and text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        for broker in &self.brokers {
            let state = match broker.connected {
                true => "connected",
                false => "NOT CONNECTED",
            };
            let age = match broker.waiting_age_ms {
                Some(age_ms) => format!(", the oldest {} old", span(age_ms)),
                None => String::new(),
            };
            let waiting = grouped(broker.waiting);
            lines.push((
                "broker",
                format!(
                    "{}, {} {state}; {waiting} waiting{age}",
                    broker.name, broker.address
                ),
            ));
        }
        for alarm in &self.alarms {
            lines.push((
                "alarm",
                format!(
                    "{}, {} {}: {} active of {}; {} raised, {} cleared",
                    alarm.name,
                    alarm.pattern,
                    alarm.condition,
                    grouped(alarm.active),
                    plural(alarm.watched, "key", "keys"),
                    grouped(alarm.raised),
                    grouped(alarm.cleared)
                ),
            ));
            for (way, found) in [("mqtt", &alarm.mqtt), ("command", &alarm.command)] {
                if let Some(found) = found {
                    lines.push(("", format!("{way}: {}", found.text())));
                }
            }
        }
        for active in self.alarms_active.iter().take(ACTIVE_SHOWN_MAX) {
            let value = active.value.as_deref().unwrap_or("no number");
            let since = span(active.since_ms);
            lines.push((
                "ACTIVE",
                format!("{} {} since {since}: {value}", active.alarm, active.key),
            ));
        }
        let active: u64 = self.alarms.iter().map(|alarm| alarm.active).sum();
        let more = active.saturating_sub(ACTIVE_SHOWN_MAX as u64);
        if more > 0 {
            lines.push(("", format!("and {} more active", grouped(more))));
        }
        for one in &self.actuators {
            lines.push((
                "actuator",
                format!(
                    "{}, {} of {}",
                    one.name,
                    plural(one.keys, "key", "keys"),
                    one.pattern
                ),
            ));
            let superseded = grouped(one.delivery.superseded);
            lines.push((
                "",
                format!("{}, {superseded} superseded", one.delivery.text()),
            ));
        }
        lines
    }
}
