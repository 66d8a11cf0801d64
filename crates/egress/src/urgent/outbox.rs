//! The queue of one broker: alarms in order, and the latest value of each actuator key. It has no socket and no clock.
//!
//! **Invariants:** memory is bounded by `queue_max` and the number of slots. At most one value of a slot is in flight,
//! so that an older value never arrives after a newer one. Messages in flight when the connection broke are sent again:
//! an alarm as it was, a value unless a newer one waits. Each message ends exactly once.

use super::figures::Delivery;
use crate::forward::options::Late;
use std::collections::VecDeque;

use base::seeded_bug::SeededBug;

/// When a message is late, and what happens to it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Time after the event, in ms; 0: never late.
    pub ms: u64,
    /// What happens to a message that is late when its turn comes.
    pub late: Late,
}

impl Deadline {
    pub(crate) fn is_late(self, born_ms: u64, now_ms: u64) -> bool {
        self.ms > 0 && now_ms.saturating_sub(born_ms) > self.ms
    }

    pub(crate) fn is_skipped(self, born_ms: u64, now_ms: u64) -> bool {
        self.late == Late::Skip && self.is_late(born_ms, now_ms)
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Identifies its answer.
    pub token: u64,
    /// Its topic.
    pub topic: &'a [u8],
    /// Its payload.
    pub payload: &'a [u8],
    /// Whether the broker keeps it.
    pub retain: bool,
}

/// The source of a message that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An alarm, by its index.
    Alarm(usize),
    /// An actuator, by its index.
    Actuator(usize),
}

#[derive(Debug)]
struct Alarm {
    alarm: usize,
    topic: Vec<u8>,
    payload: Vec<u8>,
    born_ms: u64,
    /// Its token while it is in flight.
    token: Option<u64>,
    /// Number of connections that ended without any answer while it was the oldest unanswered message.
    ends: u32,
}

#[derive(Debug)]
struct Value {
    payload: Vec<u8>,
    born_ms: u64,
}

#[derive(Debug)]
struct Slot {
    actuator: usize,
    topic: Vec<u8>,
    waiting: Option<Value>,
    on_its_way: Option<(u64, Value)>,
    /// Whether the slot is in the queue of turns.
    is_queued: bool,
    /// As for an alarm.
    ends: u32,
}

/// Number of connections that may end with a message before it is sent alone, behind all others. A broker of MQTT 3.1.1
/// cannot refuse a message otherwise, but the network may also be bad.
const ENDS_BEHIND: u32 = 3;
/// Number of such connections after which the message is given up.
const ENDS_MAX: u32 = 10;

/// Where a message is stored.
#[derive(Clone, Copy, Debug)]
enum Place {
    Queue(usize),
    Slot(usize),
}

/// The messages that wait for one broker.
#[derive(Debug)]
pub struct Outbox {
    queue_max: usize,
    queue: VecDeque<Alarm>,
    alarm_rules: Vec<(Deadline, bool)>,
    actuator_rules: Vec<(Deadline, bool)>,
    slots: Vec<Slot>,
    turns: VecDeque<usize>,
    next_token: u64,
    /// Whether a message was answered on the current connection.
    has_answered: bool,
    alarms: Vec<Delivery>,
    actuators: Vec<Delivery>,
    sent_twice: u64,
    answers_unknown: u64,
}

impl Outbox {
    /// Creates an outbox from the deadlines and retain flags of every alarm and actuator, by index.
    #[must_use]
    pub fn new(
        queue_max: usize,
        alarms: Vec<(Deadline, bool)>,
        actuators: Vec<(Deadline, bool)>,
    ) -> Self {
        Self {
            queue_max: queue_max.max(1),
            queue: VecDeque::new(),
            alarms: vec![Delivery::default(); alarms.len()],
            actuators: vec![Delivery::default(); actuators.len()],
            alarm_rules: alarms,
            actuator_rules: actuators,
            slots: Vec::new(),
            turns: VecDeque::new(),
            next_token: 1,
            has_answered: false,
            sent_twice: 0,
            answers_unknown: 0,
        }
    }

    /// Adds an alarm that was raised or is over.
    pub fn push_alarm(&mut self, alarm: usize, topic: Vec<u8>, payload: Vec<u8>, born_ms: u64) {
        if self.queue.len() >= self.queue_max
            && let Some(oldest) = self.queue.pop_front()
        {
            self.alarms[oldest.alarm].dropped += 1;
        }
        self.queue.push_back(Alarm {
            alarm,
            topic,
            payload,
            born_ms,
            token: None,
            ends: 0,
        });
    }

    /// Adds a key that drives an actuator. Returns its slot.
    pub fn add_slot(&mut self, actuator: usize, topic: Vec<u8>) -> usize {
        self.slots.push(Slot {
            actuator,
            topic,
            waiting: None,
            on_its_way: None,
            is_queued: false,
            ends: 0,
        });
        self.slots.len() - 1
    }

    /// Sets a new value for a slot.
    pub fn set(&mut self, slot: usize, payload: Vec<u8>, born_ms: u64) {
        let Some(one) = self.slots.get_mut(slot) else {
            return;
        };
        if one.waiting.is_some() {
            self.actuators[one.actuator].superseded += 1;
            if SeededBug::ActuatorFirstWins.is_on() {
                return;
            }
        }
        one.waiting = Some(Value { payload, born_ms });
        self.queue_slot(slot);
    }

    /// Counts values of an actuator that were replaced before they reached the outbox.
    pub fn note_superseded(&mut self, actuator: usize, values: u64) {
        self.actuators[actuator].superseded += values;
    }

    /// Counts a value of an actuator that cannot be sent.
    pub fn note_failed(&mut self, actuator: usize) {
        self.actuators[actuator].failed += 1;
    }

    /// Counts an alarm that cannot be sent.
    pub fn note_alarm_failed(&mut self, alarm: usize) {
        self.alarms[alarm].failed += 1;
    }

    fn queue_slot(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        // While a value is in flight, the next one waits for the answer.
        if slot.waiting.is_some() && slot.on_its_way.is_none() && !slot.is_queued {
            slot.is_queued = true;
            self.turns.push_back(at);
        }
    }

    /// Ends the messages that are late, to be skipped when late, and not in flight.
    pub fn skip_late(&mut self, now_ms: u64) {
        let (rules, alarms) = (&self.alarm_rules, &mut self.alarms);
        self.queue.retain(|one| {
            let skip = one.token.is_none() && rules[one.alarm].0.is_skipped(one.born_ms, now_ms);
            alarms[one.alarm].skipped += u64::from(skip);
            !skip
        });
        for slot in &mut self.slots {
            let (deadline, _) = self.actuator_rules[slot.actuator];
            if slot
                .waiting
                .as_ref()
                .is_some_and(|value| deadline.is_skipped(value.born_ms, now_ms))
            {
                slot.waiting = None;
                self.actuators[slot.actuator].skipped += 1;
            }
        }
    }

    /// Returns the next message to send: alarms first, then actuators in turn. A message that may be the reason for
    /// ended connections comes behind all others, and alone.
    pub fn next(&mut self, now_ms: u64) -> Option<Outgoing<'_>> {
        self.skip_late(now_ms);
        if let Some(at) = self.next_alarm(false) {
            return Some(self.send_alarm(at));
        }
        let is_quiet = self.oldest_on_its_way().is_none();
        if let Some(at) = self.next_slot(is_quiet) {
            return self.send_value(at);
        }
        let at = self.next_alarm(true).filter(|_| is_quiet)?;
        Some(self.send_alarm(at))
    }

    /// Returns the first alarm that was not sent. With `behind`, returns the first alarm that comes behind all others.
    /// Later alarms of the same topic stay behind such an alarm, so that they keep their order.
    fn next_alarm(&self, behind: bool) -> Option<usize> {
        let is_behind = |at: usize| {
            let topic = &self.queue[at].topic;
            let mut before = self.queue.iter().take(at + 1);
            before.any(|one| one.ends >= ENDS_BEHIND && one.topic == *topic)
        };
        (0..self.queue.len()).find(|at| self.queue[*at].token.is_none() && is_behind(*at) == behind)
    }

    fn send_alarm(&mut self, at: usize) -> Outgoing<'_> {
        let token = self.next_token;
        self.next_token += 1;
        let one = &mut self.queue[at];
        one.token = Some(token);
        Outgoing {
            token,
            topic: &one.topic,
            payload: &one.payload,
            retain: self.alarm_rules[one.alarm].1,
        }
    }

    /// Returns the slot whose turn it is, and removes it from the queue of turns.
    fn next_slot(&mut self, is_quiet: bool) -> Option<usize> {
        // A value may have been skipped since.
        let (slots, turns) = (&mut self.slots, &mut self.turns);
        turns.retain(|at| {
            slots[*at].is_queued = slots[*at].waiting.is_some();
            slots[*at].is_queued
        });
        let is_behind = |at: &usize| slots[*at].ends >= ENDS_BEHIND;
        let place = match turns.iter().position(|at| !is_behind(at)) {
            Some(place) => place,
            None if is_quiet && !turns.is_empty() => 0,
            None => return None,
        };
        let at = turns.remove(place)?;
        slots[at].is_queued = false;
        Some(at)
    }

    fn send_value(&mut self, at: usize) -> Option<Outgoing<'_>> {
        let token = self.next_token;
        self.next_token += 1;
        let slot = &mut self.slots[at];
        let value = slot.waiting.take()?;
        let (_, value) = slot.on_its_way.insert((token, value));
        Some(Outgoing {
            token,
            topic: &slot.topic,
            payload: &value.payload,
            retain: self.actuator_rules[slot.actuator].1,
        })
    }

    /// Returns the oldest message in flight.
    fn oldest_on_its_way(&self) -> Option<Place> {
        let alarms = self.queue.iter().enumerate();
        let alarms = alarms.filter_map(|(at, one)| Some((one.token?, Place::Queue(at))));
        let slots = self.slots.iter().enumerate();
        let slots = slots.filter_map(|(at, slot)| {
            let (token, _) = slot.on_its_way.as_ref()?;
            Some((*token, Place::Slot(at)))
        });
        let oldest = alarms.chain(slots).min_by_key(|(token, _)| *token);
        oldest.map(|(_, place)| place)
    }

    /// Blames this message for a connection that ended without any answer. A message that is given up counts as failed.
    fn blame(&mut self, place: Place) {
        match place {
            Place::Queue(at) => {
                let one = &mut self.queue[at];
                one.ends += 1;
                if one.ends >= ENDS_MAX
                    && let Some(one) = self.queue.remove(at)
                {
                    self.alarms[one.alarm].failed += 1;
                }
            }
            Place::Slot(at) => {
                let slot = &mut self.slots[at];
                slot.ends += 1;
                if slot.ends >= ENDS_MAX {
                    slot.ends = ENDS_BEHIND;
                    slot.on_its_way = None;
                    self.actuators[slot.actuator].failed += 1;
                }
            }
        }
    }

    /// Handles an answer: whether the broker has taken the message. Returns the message's source.
    pub fn answered(&mut self, token: u64, is_taken: bool, now_ms: u64) -> Option<Source> {
        let end = |delivery: &mut Delivery, deadline: Deadline, born_ms: u64| match is_taken {
            true => {
                delivery.delivered += 1;
                delivery.late += u64::from(deadline.is_late(born_ms, now_ms));
            }
            false => delivery.failed += 1,
        };
        self.has_answered = true;
        if let Some(at) = self.queue.iter().position(|one| one.token == Some(token))
            && let Some(one) = self.queue.remove(at)
        {
            end(
                &mut self.alarms[one.alarm],
                self.alarm_rules[one.alarm].0,
                one.born_ms,
            );
            return Some(Source::Alarm(one.alarm));
        }
        let is_it = |slot: &Slot| {
            slot.on_its_way
                .as_ref()
                .is_some_and(|(sent, _)| *sent == token)
        };
        if let Some(at) = self.slots.iter().position(is_it)
            && let Some((_, value)) = self.slots[at].on_its_way.take()
        {
            self.slots[at].ends = 0;
            let actuator = self.slots[at].actuator;
            end(
                &mut self.actuators[actuator],
                self.actuator_rules[actuator].0,
                value.born_ms,
            );
            self.queue_slot(at);
            return Some(Source::Actuator(actuator));
        }
        // A message that was dropped while in flight also gets an answer.
        self.answers_unknown += 1;
        None
    }

    /// Handles the loss of the connection with everything in flight.
    pub fn connection_lost(&mut self) {
        let has_answered = std::mem::take(&mut self.has_answered);
        if let Some(place) = self.oldest_on_its_way().filter(|_| !has_answered) {
            self.blame(place);
        }
        for one in &mut self.queue {
            if one.token.take().is_some() {
                self.sent_twice += 1;
            }
        }
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            if let Some((_, value)) = slot.on_its_way.take() {
                match slot.waiting {
                    // It may or may not have arrived: only the next value counts.
                    Some(_) => self.actuators[slot.actuator].superseded += 1,
                    None => {
                        slot.waiting = Some(value);
                        self.sent_twice += 1;
                    }
                }
            }
            self.queue_slot(at);
        }
    }

    /// Returns the outcomes of the messages of each alarm and of each actuator.
    #[must_use]
    pub fn deliveries(&self) -> (Vec<Delivery>, Vec<Delivery>) {
        let (mut alarms, mut actuators) = (self.alarms.clone(), self.actuators.clone());
        for one in &self.queue {
            alarms[one.alarm].waiting += 1;
        }
        for slot in &self.slots {
            let waiting = &mut actuators[slot.actuator].waiting;
            *waiting += u64::from(slot.waiting.is_some()) + u64::from(slot.on_its_way.is_some());
        }
        (alarms, actuators)
    }

    /// Returns how many messages wait or are in flight, and when the oldest of them was born.
    #[must_use]
    pub fn waiting(&self) -> (u64, Option<u64>) {
        let alarms = self.queue.iter().map(|one| one.born_ms);
        let values = self.slots.iter().flat_map(|slot| {
            let on_its_way = slot.on_its_way.as_ref().map(|(_, value)| value.born_ms);
            slot.waiting
                .as_ref()
                .map(|value| value.born_ms)
                .into_iter()
                .chain(on_its_way)
        });
        alarms
            .chain(values)
            .fold((0, None), |(count, oldest), born_ms| {
                (
                    count + 1,
                    Some(oldest.map_or(born_ms, |oldest: u64| oldest.min(born_ms))),
                )
            })
    }

    /// Returns the number of messages sent again, and of answers that matched nothing.
    #[must_use]
    pub fn oddities(&self) -> (u64, u64) {
        (self.sent_twice, self.answers_unknown)
    }
}
