//! What waits for one broker: alarms in their order, and of each actuator key the latest value. No socket and no clock.
//!
//! **Invariants:** memory is bounded by `queue_max` and the number of slots; of a slot at most one value is on its way,
//! so that an older one never arrives behind a newer one; what was on its way when the connection broke is sent again
//! (an alarm as it was, a value unless a newer one waits); each message ends exactly once.

use super::figures::Delivery;
use crate::forward::options::Late;
use std::collections::VecDeque;

use base::seeded_bug::SeededBug;

/// When a message is late, and what becomes of it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// After it happened, ms; 0: never.
    pub ms: u64,
    /// What becomes of one that is late when its turn comes.
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
    /// What its answer is told by.
    pub token: u64,
    /// Its topic.
    pub topic: &'a [u8],
    /// What it says.
    pub payload: &'a [u8],
    /// Whether the broker keeps it.
    pub retain: bool,
}

/// Whose message has ended, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An alarm, by its place.
    Alarm(usize),
    /// An actuator, by its place.
    Actuator(usize),
}

#[derive(Debug)]
struct Alarm {
    alarm: usize,
    topic: Vec<u8>,
    payload: Vec<u8>,
    born_ms: u64,
    /// On its way under this token.
    token: Option<u64>,
    /// Connections that ended when it was the first without an answer, and nothing had one.
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
    /// Whether it stands in the order of those whose turn will come.
    is_queued: bool,
    /// As of an alarm.
    ends: u32,
}

/// So many connections may end with a message before it is sent alone, behind all others: a broker of MQTT 3.1.1 has no
/// other way to refuse a message, and the line may be bad all the same.
const ENDS_BEHIND: u32 = 3;
/// So many, before it is given up.
const ENDS_MAX: u32 = 10;

/// Where a message is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Queue(usize),
    Slot(usize),
}

/// What waits for one broker.
#[derive(Debug)]
pub struct Outbox {
    queue_max: usize,
    queue: VecDeque<Alarm>,
    alarm_rules: Vec<(Deadline, bool)>,
    actuator_rules: Vec<(Deadline, bool)>,
    slots: Vec<Slot>,
    turns: VecDeque<usize>,
    next_token: u64,
    /// Whether a message was answered since the last connection was lost.
    has_answered: bool,
    alarms: Vec<Delivery>,
    actuators: Vec<Delivery>,
    sent_twice: u64,
    answers_unknown: u64,
}

impl Outbox {
    /// Deadlines, and whether the broker keeps messages, of every alarm and actuator by its place.
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

    /// An alarm was raised, or is over.
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

    /// A key drives an actuator from now on; its slot.
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

    /// A slot has another value.
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

    /// So many values of an actuator were replaced before they were seen here.
    pub fn note_superseded(&mut self, actuator: usize, values: u64) {
        self.actuators[actuator].superseded += values;
    }

    /// A value of an actuator cannot be sent.
    pub fn note_failed(&mut self, actuator: usize) {
        self.actuators[actuator].failed += 1;
    }

    /// An alarm cannot be sent.
    pub fn note_alarm_failed(&mut self, alarm: usize) {
        self.alarms[alarm].failed += 1;
    }

    fn queue_slot(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        // While one is on its way the next one waits for the answer.
        if slot.waiting.is_some() && slot.on_its_way.is_none() && !slot.is_queued {
            slot.is_queued = true;
            self.turns.push_back(at);
        }
    }

    /// Ends what is late and is left out then, and is not on its way.
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

    /// The next message to send: alarms first, then actuators by turns. What may be at fault when connections end comes
    /// behind all others, and alone.
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

    /// The first alarm that was not sent; `behind`: of those that come behind all others. One of the same topic as
    /// another one of these stays behind it, so that they keep their order.
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

    /// The slot whose turn it is; it leaves the order.
    fn next_slot(&mut self, is_quiet: bool) -> Option<usize> {
        // A value may have been left out since.
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

    /// What was sent first of all that has no answer.
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

    /// A connection has ended with this one, and without any answer. What is given up is counted as failed.
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

    /// An answer has come: whether the broker has taken the message. Whose it was.
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
        // One that was dropped on its way has an answer, too.
        self.answers_unknown += 1;
        None
    }

    /// The connection is gone, and what was on its way with it.
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
                    // It may have arrived; whatever: the next one is what counts.
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

    /// What has become of the messages of each alarm and of each actuator.
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

    /// How many messages wait or are on their way, and when the oldest of them was born.
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

    /// Messages sent again, and answers that fitted nothing.
    #[must_use]
    pub fn oddities(&self) -> (u64, u64) {
        (self.sent_twice, self.answers_unknown)
    }
}
