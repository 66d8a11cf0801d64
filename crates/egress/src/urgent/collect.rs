//! From the database to the outboxes: alarms that were raised or are over, and values that drive actuators.

use super::command::CommandQueue;
use super::figures::UrgentState;
use super::message;
use super::options::UrgentOptions;
use super::outbox::{Deadline, Outbox};
use crate::forward::encode::push_topic;
use base::clock::Clock;
use db::{Database, ObjectId, SegmentStore, VALUE_BYTES_LIMIT};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// Number of alarms taken in one turn, before other work gets its turn.
const TAKEN_MAX: usize = 256;
/// Number of keys checked in one turn for whether they drive an actuator.
const KEYS_LOOKED_MAX: u32 = 1024;

/// A key that drives an actuator.
struct Driver {
    object: ObjectId,
    actuator: usize,
    key: String,
    slot: usize,
    /// Version in the table of the value taken last; `None`: nothing was taken yet.
    version: Option<u64>,
    /// Arrival, time and bytes of the value taken last. They are compared because a reading that was too old for the
    /// table changes only the version. Readings that were stored together have the same time.
    last: Option<(u64, db::Time, Vec<u8>)>,
}

/// One broker as the collector sees it.
pub(crate) struct BrokerLink {
    pub(crate) outbox: Rc<RefCell<Outbox>>,
    pub(crate) wake: Rc<Notify>,
}

pub(crate) struct Collector<S: SegmentStore> {
    db: Arc<Database<S>>,
    clock: Arc<dyn Clock>,
    options: Arc<UrgentOptions>,
    state: Arc<UrgentState>,
    commands: Arc<CommandQueue>,
    links: Vec<BrokerLink>,
    drivers: Vec<Driver>,
    /// Objects below this number have been checked.
    looked: u32,
    /// Versions of the objects that existed at the start.
    versions: Vec<u64>,
    /// For each actuator: number of keys, and of keys that are not used.
    keys: Vec<(u64, u64)>,
    value: Vec<u8>,
}

impl<S: SegmentStore> Collector<S> {
    pub(crate) fn new(
        db: Arc<Database<S>>,
        clock: Arc<dyn Clock>,
        options: Arc<UrgentOptions>,
        state: Arc<UrgentState>,
        commands: Arc<CommandQueue>,
        links: Vec<BrokerLink>,
        versions: Vec<u64>,
    ) -> Self {
        Self {
            keys: vec![(0, 0); options.actuators.len()],
            db,
            clock,
            options,
            state,
            commands,
            links,
            drivers: Vec::new(),
            looked: 0,
            versions,
            value: vec![0; VALUE_BYTES_LIMIT],
        }
    }

    /// Returns an outbox for each broker.
    pub(crate) fn outboxes(options: &UrgentOptions) -> Vec<BrokerLink> {
        let rule = |ms, late, retain| (Deadline { ms, late }, retain);
        let one = |queue_max: u32| {
            let alarms = options.alarms.iter();
            let actuators = options.actuators.iter();
            Outbox::new(
                queue_max as usize,
                alarms
                    .map(|it| rule(it.deadline_ms, it.late, it.retain))
                    .collect(),
                actuators
                    .map(|it| rule(it.deadline_ms, it.late, it.retain))
                    .collect(),
            )
        };
        let brokers = options.brokers.iter();
        brokers
            .map(|broker| BrokerLink {
                outbox: Rc::new(RefCell::new(one(broker.queue_messages_max))),
                wake: Rc::new(Notify::new()),
            })
            .collect()
    }

    /// Collects once. Returns whether there may be more at once.
    pub(crate) fn look(&mut self) -> bool {
        let mut taken = 0;
        while taken < TAKEN_MAX
            && let Some(transition) = self.db.next_alarm()
        {
            taken += 1;
            self.alarm(&transition);
        }
        let more_keys = self.bind();
        for at in 0..self.drivers.len() {
            self.drive(at);
        }
        taken == TAKEN_MAX || more_keys
    }

    fn alarm(&self, transition: &db::AlarmTransition) {
        let at = transition.rule as usize;
        let Some(alarm) = self.options.alarms.get(at) else {
            return;
        };
        let key = self.db.key(transition.object);
        let key = key.as_str();
        let payload = message::alarm(&alarm.name, &alarm.condition, key, transition);
        let born_ms = transition.at_ns / 1_000_000;
        if let Some(link) = alarm.broker.and_then(|broker| self.links.get(broker)) {
            let mut topic = Vec::new();
            match push_topic(&mut topic, &alarm.topic, key) {
                Ok(()) => {
                    link.outbox
                        .borrow_mut()
                        .push_alarm(at, topic, payload.clone(), born_ms);
                    link.wake.notify_one();
                }
                Err(_) => {
                    link.outbox.borrow_mut().note_alarm_failed(at);
                    if let Some(figures) = self.state.lock().alarms.get_mut(at) {
                        figures.last_error = Some(no_topic(key));
                    }
                }
            }
        }
        if !alarm.command.is_empty() {
            let mut figures = self.state.lock();
            if let Some(figures) = figures.alarms.get_mut(at) {
                figures.command.waiting += 1;
            }
            let dropped = self.commands.push(at, payload, born_ms);
            if let Some(figures) = dropped.and_then(|at| figures.alarms.get_mut(at)) {
                figures.command.waiting = figures.command.waiting.saturating_sub(1);
                figures.command.dropped += 1;
            }
        }
    }

    /// Finds the new keys that drive an actuator. Returns whether there are more.
    fn bind(&mut self) -> bool {
        let objects = self.db.objects();
        if self.options.actuators.is_empty() || self.looked >= objects {
            return false;
        }
        let end = objects.min(self.looked.saturating_add(KEYS_LOOKED_MAX));
        for number in self.looked..end {
            let object = ObjectId(number);
            let key = self.db.key(object);
            for (at, actuator) in self.options.actuators.iter().enumerate() {
                if !base::pattern::matches(&actuator.pattern, key.as_str()) {
                    continue;
                }
                let Some(link) = self.links.get(actuator.broker) else {
                    continue;
                };
                let (keys, unused) = &mut self.keys[at];
                let mut topic = Vec::new();
                let has_topic = push_topic(&mut topic, &actuator.topic, key.as_str()).is_ok();
                if *keys >= u64::from(actuator.keys_max) || !has_topic {
                    *unused += 1;
                    if !has_topic && let Some(figures) = self.state.lock().actuators.get_mut(at) {
                        figures.last_error = Some(no_topic(key.as_str()));
                    }
                    continue;
                }
                *keys += 1;
                // The value found at the start is treated as known, unless `at_start` is set. A command to stop a fan
                // must arrive under load too, so the key is never shed.
                self.db.never_shed(object);
                let known = match self.versions.get(number as usize) {
                    Some(version) => Some(*version).filter(|_| !actuator.at_start),
                    // The key is new: its values arrived after the start.
                    None => Some(0),
                };
                self.drivers.push(Driver {
                    object,
                    actuator: at,
                    key: key.as_str().to_owned(),
                    slot: link.outbox.borrow_mut().add_slot(at, topic),
                    version: known,
                    last: None,
                });
            }
        }
        self.looked = end;
        end < objects
    }

    /// Takes the value of a key if it has changed.
    fn drive(&mut self, at: usize) {
        let driver = &mut self.drivers[at];
        let version = self.db.version(driver.object);
        if driver.version == Some(version) {
            return;
        }
        let Ok(got) = self.db.get(driver.object, &mut self.value) else {
            return;
        };
        let actuator = &self.options.actuators[driver.actuator];
        let stored = &self.value[..got.value_bytes];
        let passed_over = match driver.version {
            Some(before) => version.saturating_sub(before).saturating_sub(1),
            // Values from before the first look do not count.
            None => 0,
        };
        driver.version = Some(version);
        let is_same = driver
            .last
            .as_ref()
            .is_some_and(|(arrival_ns, time, value)| {
                (*arrival_ns, *time, value.as_slice()) == (got.arrival_ns, got.time, stored)
            });
        if is_same {
            return;
        }
        driver.last = Some((got.arrival_ns, got.time, stored.to_vec()));
        let Some(link) = self.links.get(actuator.broker) else {
            return;
        };
        let mut outbox = link.outbox.borrow_mut();
        outbox.note_superseded(driver.actuator, passed_over);
        match message::value(actuator.payload, &driver.key, got.time, stored) {
            Ok(payload) => {
                let born_ns = match got.this_boot {
                    true => got.arrival_ns,
                    // For a value of an earlier boot, the wall clock gives the age.
                    false => {
                        let age_ms = u64::try_from(got.age_ms).unwrap_or(0);
                        self.clock
                            .monotonic_ns()
                            .saturating_sub(age_ms.saturating_mul(1_000_000))
                    }
                };
                outbox.set(driver.slot, payload, born_ns / 1_000_000);
                link.wake.notify_one();
            }
            Err(why) => {
                outbox.note_failed(driver.actuator);
                if let Some(figures) = self.state.lock().actuators.get_mut(driver.actuator) {
                    figures.last_error = Some(format!("{}: {}", driver.key, why.name()));
                }
            }
        }
    }

    /// Updates the figures.
    pub(crate) fn publish(&self) {
        let now_ms = self.clock.monotonic_ns() / 1_000_000;
        let mut figures = self.state.lock();
        let figures = &mut *figures;
        figures.looked_ms = now_ms;
        for (at, link) in self.links.iter().enumerate() {
            let mut outbox = link.outbox.borrow_mut();
            outbox.skip_late(now_ms);
            let (alarms, actuators) = outbox.deliveries();
            let options = &self.options;
            for ((told, shown), found) in options.alarms.iter().zip(&mut figures.alarms).zip(alarms)
            {
                if told.broker == Some(at) {
                    shown.mqtt = found;
                }
            }
            for ((told, shown), found) in options
                .actuators
                .iter()
                .zip(&mut figures.actuators)
                .zip(actuators)
            {
                if told.broker == at {
                    shown.delivery = found;
                }
            }
            let (waiting, oldest_ms) = outbox.waiting();
            let (sent_twice, answers_unknown) = outbox.oddities();
            if let Some(broker) = figures.brokers.get_mut(at) {
                broker.waiting = waiting;
                broker.waiting_age_ms = oldest_ms.map(|born_ms| now_ms.saturating_sub(born_ms));
                broker.sent_twice = sent_twice;
                broker.answers_unknown = answers_unknown;
            }
        }
        for (figures, (keys, unused)) in figures.actuators.iter_mut().zip(&self.keys) {
            figures.keys = *keys;
            figures.keys_unused = *unused;
        }
    }
}

fn no_topic(key: &str) -> String {
    format!("{key}: the key makes no topic")
}
