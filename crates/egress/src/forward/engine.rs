//! What is sent, sent again and passed over: the state machine of one upstream. It has no socket, clock or store: the
//! caller tells it what was read, sent, acknowledged and written, and it answers what comes next.
//!
//! **Words.** A *part* of the log is a run of numbers that is forwarded in order; there is one, or a few with
//! [`Order::RecentFirst`]. A *unit* is the content of one message or request, and has a *token*. The *window* limits
//! how many readings may have been sent beyond the durable cursor.
//!
//! **Invariants:** a part's cursor moves over a unit only when that unit and all before it have been acknowledged or
//! refused. Readings sent beyond the durable cursor never exceed the window. Each reading that is not sent is counted.
//! The readings and bytes that wait in the engine are limited.
//!
//! **After a lost connection** everything that was not acknowledged in order is read from the log again. Nothing is
//! kept in memory for that, however long the outage lasts.

mod explain;
mod size;

use super::cursor::{CursorRecord, PARTS_MAX, Span};
use super::encode::{Encoder, split_prefix};
use super::figures::{Counters, Refusal};
use super::options::{Late, Order, UNANSWERED_MAX, UpstreamOptions};
use super::rules::{Plan, Slots, rule_of};
use base::seeded_bug::SeededBug;
use db::Time;
use std::collections::VecDeque;

/// Limit of the bytes of units that wait to be sent, in addition to the unit that is being filled.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Largest number of readings requested from the log at a time.
const READ_READINGS_MAX: usize = 4096;

/// A reading as it is passed to the engine.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The object's number.
    pub object: u32,
    /// Its number in the log.
    pub lsn: u64,
    /// Its time stamp.
    pub time: Time,
    /// Time since it arrived or was taken; `None` if unknown.
    pub age_ms: Option<u64>,
    /// Its stored value.
    pub value: &'a [u8],
}

/// What to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Identifies the part in [`Engine::take`] and [`Engine::read_until`].
    pub part: u32,
    /// The first number to read.
    pub from: u64,
    /// The end: the first number not to read.
    pub end: u64,
    /// Largest number of readings.
    pub readings_max: usize,
}

/// A unit to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Identifies it in [`Engine::acknowledge`].
    pub token: u64,
    /// Empty if the upstream has no topics.
    pub topic: &'a [u8],
    /// Message or body.
    pub payload: &'a [u8],
    /// Number of readings in it.
    pub readings: u32,
}

struct Part {
    id: u32,
    /// Every reading before this number has been acknowledged or counted as passed over.
    next: u64,
    end: u64,
    /// Every reading before this number has been read.
    read: u64,
    /// Every reading sent in this run has a lower number.
    sent: u64,
    /// Readings between `next` and `sent` that were sent over a connection that has been lost since.
    in_doubt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Acknowledged,
    Refused,
}

struct Unit {
    part: u32,
    end_lsn: u64,
    /// When its first reading came, ms on the monotonic clock.
    born_ms: Option<i64>,
    readings: u32,
    /// How many of them were already sent in this run, and how many may have been sent in the run that a crash ended.
    again: u32,
    perhaps_again: u32,
    state: State,
    topic_bytes: usize,
    bytes: Vec<u8>,
    /// Length of its payload, set when it was sent.
    sent_bytes: usize,
    slots: Vec<(u32, i64)>,
    /// Readings passed over before and after it: counted when the unit has been answered.
    passed: Counters,
}

impl Unit {
    /// Returns the number of readings that were not sent before in this run.
    fn fresh(&self) -> u64 {
        u64::from(self.readings.saturating_sub(self.again))
    }
}

/// The engine.
pub struct Engine {
    window: u64,
    order: Order,
    batch_readings_max: u32,
    batch_bytes_max: usize,
    /// The same limit for units of several readings, as far as the upstream is known to accept them.
    shared_bytes_max: usize,
    /// Number of units that the upstream has accepted since that limit last changed.
    shared_taken: u32,
    /// The limit that the upstream has announced for them.
    shared_bytes_said: usize,
    linger_ms: u64,
    has_topic: bool,
    options: UpstreamOptions,
    encoder: Encoder,
    plans: Vec<Option<Result<Plan, Option<Refusal>>>>,
    slots: Slots,
    parts: Vec<Part>,
    next_part: u32,
    units: VecDeque<Unit>,
    /// The content of the unit that was sent last.
    sending: Vec<u8>,
    /// An empty buffer for the next unit.
    spare: Vec<u8>,
    first_token: u64,
    /// The number of `units` that are not [`State::Waiting`].
    sent_units: usize,
    /// The unit that is being filled, and since when.
    draft: Option<(Unit, u64)>,
    /// Bytes of the units that wait to be sent.
    waiting_bytes: usize,
    waiting_readings: u64,
    /// Of the units that were sent: readings that had not been sent before, and units and readings without an answer.
    fresh_readings: u64,
    unanswered_units: usize,
    unanswered_readings: u64,
    /// Readings passed over that belong to no unit yet.
    passed: Counters,
    counters: Counters,
    /// The counters of the record that the engine started from.
    begun: Counters,
    sequence: u64,
    /// Readings that the cursor has passed since the cursor was last written.
    unwritten: u64,
    /// Whether the spans must be on flash before anything more is sent.
    must_write: bool,
    cursor_written_ms: u64,
    /// Number of the oldest unacknowledged reading when the cursor was last written.
    written_oldest: u64,
    /// A crash may have left readings below this number sent but not recorded; and the maximum number of them.
    crash_end: u64,
    crash_left: u64,
    /// Part, end, limit: up to this number of this part, a unit has at most this many readings, after a refusal.
    cautious: Option<(u32, u64, u32)>,
    answers_unknown: u64,
}

/// Returns the counters for the passed-over reading `lsn`: those of the unit being filled, or those for the next one.
/// The unit then ends behind the reading. Otherwise the reading would be read again, and counted again.
fn passed<'a>(
    draft: &'a mut Option<(Unit, u64)>,
    loose: &'a mut Counters,
    lsn: u64,
) -> &'a mut Counters {
    match draft {
        Some((unit, _)) => {
            unit.end_lsn = lsn + 1;
            &mut unit.passed
        }
        None => loose,
    }
}

/// Longest time in ms for which a moved cursor may stay unwritten.
const CURSOR_MS_MAX: u64 = 60_000;

impl Engine {
    /// Creates an engine that continues from a record. `durable_end` is that of the log.
    #[must_use]
    pub fn new(options: UpstreamOptions, record: &CursorRecord, durable_end: u64) -> Self {
        let mut engine = Self {
            window: u64::from(options.window_readings_max),
            order: options.order,
            batch_readings_max: options.batch_readings_max(),
            batch_bytes_max: options.batch_bytes_max,
            shared_bytes_max: options.batch_bytes_max,
            shared_taken: 0,
            shared_bytes_said: usize::MAX,
            linger_ms: options.linger_ms,
            has_topic: matches!(options.target, super::options::Target::Mqtt { .. }),
            encoder: Encoder::new(&options),
            options,
            plans: Vec::new(),
            slots: Slots::default(),
            parts: Vec::new(),
            next_part: 0,
            units: VecDeque::new(),
            sending: Vec::new(),
            spare: Vec::new(),
            first_token: 0,
            sent_units: 0,
            draft: None,
            waiting_bytes: 0,
            waiting_readings: 0,
            fresh_readings: 0,
            unanswered_units: 0,
            unanswered_readings: 0,
            passed: Counters::default(),
            counters: record.counters,
            begun: record.counters,
            sequence: record.sequence,
            unwritten: 0,
            // A clean cursor says that nothing is in flight, which is about to become false. One that is not clean
            // covers what the previous run may have sent, but not what this run will send.
            must_write: true,
            cursor_written_ms: 0,
            written_oldest: 0,
            crash_end: if record.clean { 0 } else { durable_end },
            crash_left: if record.clean {
                0
            } else {
                u64::from(record.window_readings_max)
            },
            cautious: None,
            answers_unknown: 0,
        };
        for span in &record.spans {
            engine.push_part(span.next, span.end);
        }
        engine.written_oldest = engine.oldest_wanted();
        engine
    }

    fn push_part(&mut self, next: u64, end: u64) {
        self.parts.push(Part {
            id: self.next_part,
            next,
            end,
            read: next,
            sent: next,
            in_doubt: 0,
        });
        self.next_part = self.next_part.wrapping_add(1);
    }

    /// Returns whether this part still has readings to be acknowledged.
    #[must_use]
    pub fn has_part(&self, part: u32) -> bool {
        self.parts.iter().any(|one| one.id == part)
    }

    /// Returns the number of the oldest unacknowledged reading.
    #[must_use]
    pub fn oldest_wanted(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.next)
    }

    /// Returns the number of the oldest reading that the next start may need: the cursor on flash may be stale.
    #[must_use]
    pub fn oldest_held(&self) -> u64 {
        self.written_oldest.min(self.oldest_wanted())
    }

    /// Returns the first unit that was sent and has no answer: its token, the next reading of its part, and its number
    /// of readings.
    #[must_use]
    pub fn front(&self) -> Option<(u64, u64, u32)> {
        let unit = self.units.front().filter(|_| self.sent_units > 0)?;
        let part = self.parts.iter().find(|part| part.id == unit.part)?;
        Some((self.first_token, part.next, unit.readings))
    }

    /// Records that the log now begins with this reading. While no unit is pending, deleted readings are counted as
    /// lost at once; otherwise they are counted when the log is read there.
    pub fn log_begins(&mut self, lsn: u64) {
        if !self.units.is_empty() || self.draft.is_some() {
            return;
        }
        let mut ended = Vec::new();
        for part in &mut self.parts {
            let gone = lsn.min(part.end).saturating_sub(part.next);
            if gone > 0 {
                self.counters.lost = self.counters.lost.saturating_add(gone);
                part.next += gone;
                part.read = part.read.max(part.next);
                ended.push((part.id, part.next));
            }
        }
        for (part, next) in ended {
            self.move_to(part, next);
            // Otherwise a crash would hide the loss.
            self.must_write = true;
        }
    }

    /// Records a new connection. If so configured, the backlog then waits behind the readings from now on.
    pub fn connected(&mut self, durable_end: u64) {
        if self.order != Order::RecentFirst || self.parts.len() >= PARTS_MAX {
            return;
        }
        let unanswered_max = self.unanswered_max();
        let Some(last) = self.parts.last_mut() else {
            return;
        };
        // What one connection may leave unanswered is too little for a part of its own.
        if durable_end.saturating_sub(last.next) > unanswered_max {
            last.end = durable_end;
            last.sent = last.sent.min(durable_end);
            self.push_part(durable_end, u64::MAX);
            self.must_write = true;
        }
    }

    /// Returns whether readings of this object go upstream. Called while the log is read.
    pub fn is_wanted(&mut self, object: u32, key: impl FnOnce() -> db::Key) -> bool {
        let index = object as usize;
        if self.plans.len() <= index {
            self.plans.resize(index + 1, None);
        }
        if self.plans[index].is_none() {
            let key = key();
            let plan = match rule_of(&self.options.rules, key.as_str()) {
                None => Err(None),
                Some(rule) => match self.encoder.prefix(key.as_str()) {
                    Ok(prefix) => Ok(Plan {
                        downsample_ms: rule.downsample_ms,
                        deadline_ms: rule.deadline_ms,
                        late: rule.late,
                        prefix: prefix.into_boxed_slice(),
                    }),
                    Err(why) => Err(Some(why)),
                },
            };
            self.plans[index] = Some(plan);
        }
        !matches!(self.plans[index], Some(Err(None)))
    }

    /// Returns what to read of a log that is durable up to `durable_end`. `None` if there is nothing, or no room.
    #[must_use]
    pub fn want(&self, durable_end: u64) -> Option<Want> {
        let room = self.unanswered_max().saturating_sub(self.waiting_readings);
        if room == 0 || self.waiting_bytes >= QUEUE_BYTES_MAX.max(2 * self.batch_bytes_max) {
            return None;
        }
        // Readings in flight on a lost connection occupy the window until they are answered: they go first.
        let in_doubt = |part: &&Part| part.in_doubt > 0 && part.read < part.sent;
        if let Some(part) = self.parts.iter().rev().find(in_doubt) {
            return Some(Want {
                part: part.id,
                from: part.read,
                end: part.sent.min(part.end).min(durable_end),
                readings_max: READ_READINGS_MAX.min(room as usize),
            });
        }
        let is_unread = |part: &&Part| part.read < part.end.min(durable_end);
        let part = match self.order {
            Order::OldestFirst => self.parts.iter().find(is_unread),
            Order::RecentFirst => self.parts.iter().rev().find(is_unread),
        }?;
        Some(Want {
            part: part.id,
            from: part.read,
            end: part.end.min(durable_end),
            readings_max: READ_READINGS_MAX.min(room as usize),
        })
    }

    /// Takes a reading of the part that [`want`](Self::want) named, in log order.
    pub fn take(&mut self, part: u32, entry: &Entry<'_>, now_ms: u64) {
        let Some(index) = self.parts.iter().position(|one| one.id == part) else {
            return;
        };
        // A unit belongs to one part, and contains either only new or only repeated readings. A mixed unit could wait
        // for window space that it occupies itself.
        let is_new = entry.lsn >= self.parts[index].sent;
        let ends = |draft: &Unit| draft.part != part || (draft.again > 0 && is_new);
        if self.draft.as_ref().is_some_and(|(draft, _)| ends(draft)) {
            self.close_draft();
        }
        let plan = match self.plans.get(entry.object as usize) {
            Some(Some(Ok(plan))) => plan,
            Some(Some(Err(Some(why)))) => {
                return passed(&mut self.draft, &mut self.passed, entry.lsn).refuse(*why);
            }
            _ => return,
        };
        let is_late =
            plan.deadline_ms > 0 && entry.age_ms.is_some_and(|age| age > plan.deadline_ms);
        if is_late && plan.late == Late::Skip {
            passed(&mut self.draft, &mut self.passed, entry.lsn).late_skipped += 1;
            return;
        }
        let mut slot = None;
        if plan.downsample_ms > 0 {
            slot = self
                .slots
                .take(entry.object, entry.time.ms(), plan.downsample_ms);
            if slot.is_none() {
                passed(&mut self.draft, &mut self.passed, entry.lsn).thinned += 1;
                return;
            }
        }
        let (topic, payload_prefix) = split_prefix(&plan.prefix, self.has_topic);
        let is_first = self.draft.is_none();
        let (unit, _) = self.draft.get_or_insert_with(|| {
            let mut bytes = std::mem::take(&mut self.spare);
            bytes.extend_from_slice(topic);
            let unit = Unit {
                part,
                end_lsn: entry.lsn,
                born_ms: entry
                    .age_ms
                    .map(|age| (now_ms as i64).saturating_sub_unsigned(age)),
                readings: 0,
                again: 0,
                perhaps_again: 0,
                state: State::Waiting,
                topic_bytes: topic.len(),
                bytes,
                sent_bytes: 0,
                slots: Vec::new(),
                passed: std::mem::take(&mut self.passed),
            };
            (unit, now_ms)
        });
        let before = unit.bytes.len();
        let (time, value) = (entry.time, entry.value);
        let written = self
            .encoder
            .push(payload_prefix, time, value, is_first, &mut unit.bytes);
        let bytes_max = match is_first {
            true => self.batch_bytes_max,
            false => self.shared_bytes_max,
        };
        let is_over = unit.bytes.len() - unit.topic_bytes > bytes_max;
        let refusal = match written {
            Err(why) => Some(why),
            Ok(()) => (is_over && is_first).then_some(Refusal::TooLong),
        };
        if let Some(why) = refusal {
            unit.bytes.truncate(before);
            unit.passed.refuse(why);
            unit.end_lsn = entry.lsn + 1;
            if is_first && let Some((mut unit, _)) = self.draft.take() {
                self.passed = unit.passed;
                unit.bytes.clear();
                self.spare = unit.bytes;
            }
            // The next reading of the same slot is sent instead.
            if let Some(slot) = slot {
                self.slots.forget(entry.object, slot);
            }
            return;
        }
        if is_over {
            // The reading begins the next unit.
            unit.bytes.truncate(before);
            self.close_draft();
            if let Some(slot) = slot {
                self.slots.forget(entry.object, slot);
            }
            return self.take(part, entry, now_ms);
        }
        let place = &self.parts[index];
        unit.readings += 1;
        unit.again += u32::from(entry.lsn < place.sent);
        unit.perhaps_again += u32::from(entry.lsn < self.crash_end && entry.lsn >= place.sent);
        unit.end_lsn = entry.lsn + 1;
        unit.slots.extend(slot.map(|slot| (entry.object, slot)));
        unit.passed.late_sent += u64::from(is_late);
        let readings_max = match self.cautious {
            Some((cautious, until, max)) if cautious == part && entry.lsn < until => max,
            _ => self.batch_readings_max,
        };
        if unit.readings >= readings_max {
            self.close_draft();
        }
    }

    /// Records that all of this part below `lsn` has been read, with the counts of readings no longer there.
    pub fn read_until(&mut self, part: u32, lsn: u64, gone: u64, missing: u64) {
        let mut passed = std::mem::take(&mut self.passed);
        passed.lost += gone;
        passed.missing += missing;
        let Some(place) = self.parts.iter_mut().find(|one| one.id == part) else {
            return;
        };
        place.read = place.read.max(lsn);
        // Passed-over readings belong to the unit before them, whose answer decides for both.
        let read = place.read;
        let draft = self.draft.as_mut().map(|(draft, _)| draft);
        let unit = draft.filter(|draft| draft.part == part).or(self
            .units
            .iter_mut()
            .rev()
            .find(|unit| unit.part == part));
        match unit {
            Some(unit) => {
                unit.end_lsn = read;
                unit.passed.add(&passed);
            }
            None => {
                self.counters.add(&passed);
                self.move_to(part, read);
            }
        }
    }

    fn close_draft(&mut self) {
        if let Some((mut unit, _)) = self.draft.take() {
            self.encoder.finish(&mut unit.bytes);
            self.waiting_bytes += unit.bytes.len();
            self.waiting_readings += u64::from(unit.readings);
            self.units.push_back(unit);
        }
    }

    /// Closes the unit that is being filled if it has waited long enough. Otherwise returns how long it may still wait.
    pub fn close_due(&mut self, now_ms: u64) -> Option<u64> {
        let (_, since) = self.draft.as_ref()?;
        let waited = now_ms.saturating_sub(*since);
        if waited >= self.linger_ms {
            self.close_draft();
            return None;
        }
        Some(self.linger_ms - waited)
    }

    /// Closes the unit that is being filled.
    pub fn close_now(&mut self) {
        self.close_draft();
    }

    /// Returns the number of readings beyond the durable cursor that may have been sent.
    fn used(&self) -> u64 {
        self.unwritten + self.unanswered()
    }

    /// Returns the number of readings that may have arrived and have no answer.
    fn unanswered(&self) -> u64 {
        let doubt: u64 = self.parts.iter().map(|part| part.in_doubt).sum();
        doubt + self.fresh_readings
    }

    fn unanswered_max(&self) -> u64 {
        self.window.min(UNANSWERED_MAX.into())
    }

    /// Returns the next unit if it may be sent; it then counts as sent.
    pub fn send(&mut self) -> Option<Outgoing<'_>> {
        if self.must_write {
            return None;
        }
        let (used, unanswered) = (self.used(), self.unanswered());
        let unanswered_max = self.unanswered_max();
        let unit = self.units.get_mut(self.sent_units)?;
        let fresh = unit.fresh();
        let is_full = used + fresh > self.window
            || unanswered + fresh > unanswered_max
            || self.sent_units >= UNANSWERED_MAX as usize;
        if is_full && !SeededBug::WindowUnbounded.is_on() {
            return None;
        }
        unit.state = State::Sent;
        let readings = u64::from(unit.readings);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(unit.bytes.len());
        self.waiting_readings = self.waiting_readings.saturating_sub(readings);
        self.fresh_readings += unit.fresh();
        self.unanswered_units += 1;
        self.unanswered_readings += readings;
        self.counters.sent = self.counters.sent.saturating_add(readings);
        let perhaps = u64::from(unit.perhaps_again).min(self.crash_left);
        self.crash_left -= perhaps;
        let again = u64::from(unit.again) + perhaps;
        self.counters.sent_twice = self.counters.sent_twice.saturating_add(again);
        if let Some(part) = self.parts.iter_mut().find(|part| part.id == unit.part) {
            part.sent = part.sent.max(unit.end_lsn);
        }
        let token = self.first_token + self.sent_units as u64;
        self.sent_units += 1;
        // A sent unit is never sent again from memory.
        self.sending = std::mem::take(&mut unit.bytes);
        unit.sent_bytes = self.sending.len() - unit.topic_bytes;
        let (topic, payload) = self.sending.split_at(unit.topic_bytes);
        if SeededBug::CursorBeforeAck.is_on() {
            let (part, end) = (unit.part, unit.end_lsn);
            if let Some(part) = self.parts.iter_mut().find(|one| one.id == part) {
                part.next = end;
            }
        }
        Some(Outgoing {
            token,
            topic,
            payload,
            readings: unit.readings,
        })
    }

    /// Returns whether a waiting unit could be sent if the cursor were written.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.units.len() > self.sent_units
    }

    /// Records that the upstream has acknowledged a unit. Returns `false` if there was no such unit to acknowledge.
    pub fn acknowledge(&mut self, token: u64) -> bool {
        self.answer(token, State::Acknowledged)
    }

    /// Records that the upstream rejects a unit of one reading for its content: it is counted and passed over.
    pub fn refuse(&mut self, token: u64) -> bool {
        self.answer(token, State::Refused)
    }

    fn answer(&mut self, token: u64, state: State) -> bool {
        let token = if SeededBug::AckOfAnother.is_on() {
            self.first_token
        } else {
            token
        };
        let index = token
            .checked_sub(self.first_token)
            .and_then(|index| usize::try_from(index).ok());
        let unit = index
            .filter(|index| *index < self.sent_units)
            .and_then(|index| self.units.get_mut(index));
        let Some(unit) = unit.filter(|unit| unit.state == State::Sent) else {
            self.answers_unknown += 1;
            return false;
        };
        unit.state = state;
        self.unanswered_units -= 1;
        self.unanswered_readings -= u64::from(unit.readings);
        self.pass_answered();
        true
    }

    fn pass_answered(&mut self) {
        while let Some(unit) = self.units.front()
            && matches!(unit.state, State::Acknowledged | State::Refused)
        {
            let Some(unit) = self.units.pop_front() else {
                return;
            };
            self.first_token += 1;
            self.sent_units -= 1;
            self.unwritten += u64::from(unit.readings);
            self.fresh_readings -= unit.fresh();
            self.counters.add(&unit.passed);
            match unit.state {
                State::Acknowledged => {
                    let count = &mut self.counters.acknowledged;
                    *count = count.saturating_add(u64::from(unit.readings));
                    self.shared_taken = self.shared_taken.saturating_add(1);
                }
                _ => (0..unit.readings).for_each(|_| self.counters.refuse(Refusal::Upstream)),
            }
            for (object, slot) in &unit.slots {
                self.slots.acknowledge(*object, *slot);
            }
            if let Some(part) = self.parts.iter_mut().find(|part| part.id == unit.part) {
                part.in_doubt = part.in_doubt.saturating_sub(u64::from(unit.again));
            }
            self.move_to(unit.part, unit.end_lsn);
        }
        self.grow();
    }

    /// Moves the cursor of a part, and removes a part that has reached its end.
    fn move_to(&mut self, part: u32, lsn: u64) {
        let Some(index) = self.parts.iter().position(|one| one.id == part) else {
            return;
        };
        let place = &mut self.parts[index];
        place.next = place.next.max(lsn);
        if place.next >= place.sent {
            place.in_doubt = 0;
        }
        if self
            .cautious
            .is_some_and(|(cautious, until, _)| cautious == part && place.next >= until)
        {
            self.cautious = None;
        }
        if place.next >= place.end {
            self.parts.remove(index);
        }
        if self
            .parts
            .iter()
            .all(|part| part.next >= self.crash_end.min(part.end))
        {
            self.crash_left = 0;
        }
    }

    /// Records that the connection is lost: everything that was not acknowledged in order will be read and sent again.
    pub fn go_back(&mut self) {
        for (index, unit) in self.units.iter().enumerate() {
            if index >= self.sent_units {
                break;
            }
            if let Some(part) = self.parts.iter_mut().find(|part| part.id == unit.part) {
                part.in_doubt += unit.fresh();
            }
        }
        self.first_token += self.units.len() as u64;
        self.units.clear();
        self.sent_units = 0;
        (self.waiting_bytes, self.waiting_readings) = (0, 0);
        (self.fresh_readings, self.unanswered_readings) = (0, 0);
        self.unanswered_units = 0;
        self.draft = None;
        self.passed = Counters::default();
        self.slots.go_back();
        for part in &mut self.parts {
            part.read = part.next;
        }
    }

    /// Returns whether the cursor should be written now. With `force`, any movement of the cursor is enough.
    #[must_use]
    pub fn is_cursor_due(&self, now_ms: u64, force: bool) -> bool {
        if self.must_write {
            return true;
        }
        let waited = now_ms.saturating_sub(self.cursor_written_ms);
        if self.unwritten == 0 {
            // Readings that are not wanted move the cursor, too. Otherwise a start would read them again, and would
            // count as lost those that retention has deleted meanwhile.
            return self.oldest_wanted() != self.written_oldest
                && (force || waited >= CURSOR_MS_MAX);
        }
        let waiting = self.units.get(self.sent_units);
        let is_blocked = waiting.is_some_and(|unit| self.used() + unit.fresh() > self.window);
        force || is_blocked || 2 * self.unwritten >= self.window || waited >= CURSOR_MS_MAX
    }

    /// Returns the record to be written now. `stopping`: whether nothing more will be sent in this run.
    #[must_use]
    pub fn record(&self, stopping: bool) -> CursorRecord {
        let doubt: u64 = self.parts.iter().map(|part| part.in_doubt).sum();
        let is_settled = stopping && self.sent_units == 0 && doubt == 0;
        // What a crash left is in doubt until the cursor is past it or it has been sent again.
        let is_clean = is_settled && self.crash_left == 0;
        let window = self.window * u64::from(is_clean || !is_settled);
        CursorRecord {
            sequence: self.sequence.saturating_add(1),
            clean: is_clean,
            window_readings_max: u32::try_from(window + self.crash_left).unwrap_or(u32::MAX),
            spans: self
                .parts
                .iter()
                .map(|part| Span {
                    next: part.next,
                    end: part.end,
                })
                .collect(),
            counters: self.counters,
        }
    }

    /// Records that the record is durable.
    pub fn record_written(&mut self, now_ms: u64) {
        self.sequence = self.sequence.saturating_add(1);
        self.unwritten = 0;
        self.must_write = false;
        self.cursor_written_ms = now_ms;
        self.written_oldest = self.oldest_wanted();
    }
}
