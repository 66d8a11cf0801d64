//! The path of a message: rule, value, time, key, object, destination.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use db::Time;
use db::value::Value;

use super::decode;
use super::series::Sources;
use super::sparkplug::Nodes;
use super::template::{IDENTITY_BYTES_MAX, Subject};
use super::time::Window;
use super::value::DecodedValue;
use super::{
    Destination, IntakeCounters, IntakeOptions, Note, Outcome, PayloadKind, PutError, Reason,
    Retained, Template, TemplateKind, check_key,
};
use crate::line::{self, Escaped, FieldValue, Line, Precision};
use crate::pattern;

/// Size of the longest topic whose object is cached, in bytes; longer ones are looked up each time.
pub const TOPIC_CACHED_BYTES_MAX: usize = 256;

/// Decodes what one network thread receives and passes it to the destination.
#[derive(Debug)]
pub struct Intake<D: Destination> {
    pub(super) destination: Arc<D>,
    pub(super) counters: Arc<IntakeCounters>,
    pub(super) options: IntakeOptions,
    window: Window,
    /// Maps a topic to rule and object: for a known topic only the payload must be decoded.
    topics: HashMap<Box<[u8]>, Target>,
    /// Maps the data that a field's key is made from, and what its template leaves out, to its object.
    fields: HashMap<Box<str>, KnownKey>,
    sources: Sources,
    /// What is known of the edge nodes of Sparkplug.
    pub(super) sparkplug: Nodes,
    pub(super) scratch: Scratch,
    /// Hashes messages that wait, with a random seed: senders must not be able to choose two with the same hash.
    pub(super) hasher: RandomState,
    pub(super) waiting_message: Option<Waiting>,
    waiting_line: Option<Waiting>,
    /// The reasons of refused lines and of their readings, one bit each.
    line_reasons: u32,
    /// How often the rules have been set.
    pub(super) rules_set: u64,
}

const _: () = assert!(
    Reason::ALL.len() <= u32::BITS as usize,
    "a bit for each reason"
);

#[derive(Clone, Copy, Debug)]
struct Target {
    rule: usize,
    known: KnownKey,
}

/// Where the readings of a series go.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownKey {
    object: u32,
    /// Whether another series, which differs only in what the template leaves out, had this key first.
    is_merged: bool,
}

/// How a message or line came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From its sender.
    Sent,
    /// The broker had retained it. Only readings with their own time are accepted.
    RetainedTimed,
    /// The broker had retained it.
    Retained,
}

/// Buffers that are reused for every message.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `value_bytes_max` long.
    pub(super) value: Vec<u8>,
    identity: String,
    whole: String,
    key: String,
    text: String,
}

/// A message of several readings, some of which are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Hash of everything that must still be offered again.
    pub(super) rest: u64,
    pub(super) progress: LineProgress,
    /// [`Intake::rules_set`] when it began to wait.
    pub(super) rules_set: u64,
}

/// Progress in a line that had to wait. Begin with the default; pass it unchanged with the same line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineProgress {
    /// Number of fields of the line, or of values of the document, that are finished.
    pub(super) fields_done: usize,
    pub(super) accepted: u32,
    pub(super) refused: u32,
    pub(super) shed: u32,
    pub(super) lsn_end: u64,
}

/// The outcome of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOutcome {
    /// It is finished; a blank line or comment has nothing accepted or refused.
    Done {
        /// Number of readings taken.
        accepted: u32,
        /// 1 for a line that was refused as a whole, otherwise the number of its refused readings.
        refused: u32,
        /// Number of readings dropped to shed load.
        shed: u32,
        /// Number of its last reading that was taken, plus one; 0 if there is none.
        lsn_end: u64,
    },
    /// Offer the same line again later, with the same progress.
    Wait {
        /// Whether the store is full.
        full: bool,
    },
    /// The log has failed for good.
    Failed,
}

impl<D: Destination> Intake<D> {
    /// Creates an intake with rules that have been checked.
    pub fn new(options: IntakeOptions, destination: Arc<D>) -> Self {
        Self {
            destination,
            counters: Arc::new(IntakeCounters::default()),
            window: Window::new(options.future_seconds_max, options.past_days_max),
            topics: HashMap::new(),
            fields: HashMap::new(),
            sources: Sources::new(&options),
            sparkplug: Nodes::new(options.topics_cached_max),
            scratch: Scratch {
                value: vec![0; options.value_bytes_max],
                identity: String::new(),
                whole: String::new(),
                key: String::new(),
                text: String::new(),
            },
            hasher: RandomState::new(),
            waiting_message: None,
            waiting_line: None,
            line_reasons: 0,
            rules_set: 0,
            options,
        }
    }

    /// Returns its counters, for other threads.
    #[must_use]
    pub fn counters(&self) -> Arc<IntakeCounters> {
        Arc::clone(&self.counters)
    }

    /// Returns the destination of the readings.
    #[must_use]
    pub fn destination(&self) -> &Arc<D> {
        &self.destination
    }

    /// Sets new rules, or handles a change of the destination's rules. Counters continue.
    pub fn reload(&mut self, options: IntakeOptions) {
        self.window = Window::new(options.future_seconds_max, options.past_days_max);
        self.scratch.value = vec![0; options.value_bytes_max];
        self.topics.clear();
        self.fields.clear();
        self.sources.reload(&options);
        self.options = options;
        self.reload_sparkplug();
        self.rules_set += 1;
    }

    /// Forgets which objects the series have: the keys of these objects have been taken from their series. Each series
    /// asks anew with its next reading. What waits is continued.
    pub fn forget_owners(&mut self, objects: &[u32]) {
        self.topics.clear();
        self.fields.clear();
        self.sources.forget(objects);
    }

    /// Counts an item that a source refused itself.
    pub fn refuse(&mut self, reason: Reason) {
        self.counters.refuse(reason, &[]);
    }

    /// As [`refuse`](Self::refuse), and keeps the beginning of `what` as an excerpt.
    pub fn refuse_with(&mut self, reason: Reason, what: &[u8]) {
        self.counters.refuse(reason, &[what]);
    }

    /// Takes one MQTT message. After [`Outcome::Wait`] the next call with this topic and exactly the rest of the
    /// payload continues where it stopped. Any other call makes the intake forget that position.
    pub fn mqtt(&mut self, topic: &[u8], payload: &[u8]) -> Outcome {
        self.mqtt_message(topic, payload, false)
    }

    /// As [`mqtt`](Self::mqtt), for a message that the broker had retained since before the subscription: the rule of
    /// its topic says what happens to it.
    pub fn mqtt_retained(&mut self, topic: &[u8], payload: &[u8]) -> Outcome {
        self.mqtt_message(topic, payload, true)
    }

    fn mqtt_message(&mut self, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome {
        let waiting = self.waiting_message.take();
        let taken_end = self.progress_of(waiting, topic, payload).lsn_end;
        let mut outcome = self.message(topic, payload, is_retained, waiting);
        if taken_end > 0 {
            // New rules may refuse the rest of the message. The readings taken before are still stored, and must be
            // durable before the message is acknowledged.
            match &mut outcome {
                Outcome::Accepted { lsn_end } => *lsn_end = taken_end.max(*lsn_end),
                Outcome::Refused => outcome = Outcome::Accepted { lsn_end: taken_end },
                // Only messages of several readings can be taken in part. If they wait again they keep the position.
                Outcome::Wait { .. } | Outcome::Failed => {}
            }
        }
        if !matches!(outcome, Outcome::Wait { .. }) {
            self.counters.add_message();
        }
        outcome
    }

    fn message(
        &mut self,
        topic: &[u8],
        payload: &[u8],
        is_retained: bool,
        waiting: Option<Waiting>,
    ) -> Outcome {
        let known = self.topics.get(topic).copied();
        let rule = match known {
            Some(target) => target.rule,
            None => match self.rule_of(topic) {
                Ok(rule) => rule,
                Err(reason) => return self.refused(reason, topic, payload),
            },
        };
        let Some(subscription) = self.options.subscriptions.get(rule) else {
            return self.refused(Reason::TopicUnmatched, topic, payload);
        };
        self.destination.note(Note::Rule(rule));
        let origin = match (is_retained, subscription.retained) {
            (false, _) => Origin::Sent,
            (true, Retained::Timed) => Origin::RetainedTimed,
            (true, Retained::Take) => Origin::Retained,
            (true, Retained::Skip) => {
                self.counters.add_retained_skipped();
                return Outcome::Accepted { lsn_end: 0 };
            }
        };
        if subscription.payload == PayloadKind::Number {
            // The path of most messages: no allocation, no clock.
            let value = match decode::number(payload) {
                Ok(value) => value,
                Err(reason) => return self.refused(reason, topic, payload),
            };
            if origin == Origin::RetainedTimed {
                return self.refused(Reason::RetainedUntimed, topic, payload);
            }
            let bytes = match encode(&mut self.scratch.value, &value) {
                Ok(bytes) => bytes,
                Err(reason) => return self.refused(reason, topic, payload),
            };
            let known = match known {
                Some(target) => target.known,
                None => match self.object_of(rule, topic) {
                    Ok(known) => known,
                    Err(reason) => return self.refused(reason, topic, payload),
                },
            };
            let put = self.put(known, &self.scratch.value[..bytes], None, origin);
            return self.concluded(put, topic, payload);
        }
        let known = known.map(|target| target.known);
        // What a key is made from depends on how many readings a message can hold.
        match subscription.payload.template_kind() {
            TemplateKind::TopicAndLine => {
                self.message_of_lines((rule, origin), topic, payload, waiting)
            }
            TemplateKind::TopicAndPath => {
                self.message_of_members((rule, origin), topic, payload, waiting)
            }
            TemplateKind::Sparkplug => {
                self.message_of_sparkplug((rule, origin), topic, payload, waiting)
            }
            TemplateKind::Topic | TemplateKind::Line => {
                self.message_of_one((rule, origin), known, topic, payload)
            }
        }
    }

    /// As [`put_at`](Self::put_at), with a time in whole ms.
    pub(super) fn put(
        &self,
        known: KnownKey,
        value: &[u8],
        time_ms: Option<i64>,
        origin: Origin,
    ) -> Result<u64, PutError> {
        self.put_at(known, value, time_ms.map(Time::from_ms), origin)
    }

    /// Hands a reading over and counts it.
    pub(super) fn put_at(
        &self,
        known: KnownKey,
        value: &[u8],
        time: Option<Time>,
        origin: Origin,
    ) -> Result<u64, PutError> {
        let object = known.object;
        let lsn = match origin {
            Origin::Sent => self.destination.put(object, value, time)?,
            Origin::RetainedTimed | Origin::Retained => {
                let lsn = self.destination.put_retained(object, value, time)?;
                self.counters.add_retained_taken();
                lsn
            }
        };
        self.counters.add_reading();
        if known.is_merged {
            self.counters.add_merged();
        }
        Ok(lsn)
    }

    fn message_of_one(
        &mut self,
        (rule, origin): (usize, Origin),
        known: Option<KnownKey>,
        topic: &[u8],
        payload: &[u8],
    ) -> Outcome {
        let decoded = match self.options.subscriptions.get(rule) {
            Some(subscription) => decode::payload(&subscription.payload, payload),
            None => Err(Reason::TopicUnmatched),
        };
        let checked = decoded.and_then(|decoded| {
            match decoded.time {
                Some(time) => self.check_at(time)?,
                None if origin == Origin::RetainedTimed => return Err(Reason::RetainedUntimed),
                None => {}
            }
            let bytes = encode(&mut self.scratch.value, &decoded.value)?;
            let known = match known {
                Some(known) => known,
                None => self.object_of(rule, topic)?,
            };
            Ok((known, bytes, decoded.time))
        });
        let (known, bytes, time) = match checked {
            Ok(checked) => checked,
            Err(reason) => return self.refused(reason, topic, payload),
        };
        let put = self.put_at(known, &self.scratch.value[..bytes], time, origin);
        self.concluded(put, topic, payload)
    }

    fn message_of_lines(
        &mut self,
        (rule, origin): (usize, Origin),
        topic: &[u8],
        payload: &[u8],
        waiting: Option<Waiting>,
    ) -> Outcome {
        let name = match topic_name(topic) {
            Ok(name) => name,
            Err(reason) => return self.refused(reason, topic, payload),
        };
        let mut progress = self.progress_of(waiting, topic, payload);
        // For the whole message, over all its lines.
        let mut lsn_end = progress.lsn_end;
        let mut any_accepted = lsn_end > 0;
        let mut any_refused = false;
        if payload.is_empty() && !any_accepted {
            return self.refused(Reason::PayloadInvalid, topic, payload);
        }
        let mut consumed = 0;
        while consumed < payload.len() {
            let rest = &payload[consumed..];
            let length = line::first_line_bytes(rest);
            let line = &rest[..length.unwrap_or(rest.len())];
            // Lines of connections and bodies come without their ends, too.
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match self.take_line(line, Some((rule, name)), origin, &mut progress) {
                LineOutcome::Done {
                    accepted,
                    refused,
                    lsn_end: end,
                    shed: _,
                } => {
                    any_accepted |= accepted > 0;
                    any_refused |= refused > 0;
                    lsn_end = lsn_end.max(end);
                    consumed += length.map_or(rest.len(), |length| length + 1);
                    progress = LineProgress::default();
                }
                LineOutcome::Wait { full } => {
                    progress.lsn_end = progress.lsn_end.max(lsn_end);
                    self.waiting_message = Some(Waiting {
                        rest: self.hasher.hash_one((topic, rest)),
                        progress,
                        rules_set: self.rules_set,
                    });
                    return Outcome::Wait { consumed, full };
                }
                LineOutcome::Failed => return Outcome::Failed,
            }
        }
        if any_accepted || !any_refused {
            Outcome::Accepted { lsn_end }
        } else {
            Outcome::Refused
        }
    }

    /// Takes one line of line protocol without its line feed; a carriage return at its end belongs to the line end. A
    /// blank line or comment is accepted with `lsn_end` 0. After [`Outcome::Wait`] (whose `consumed` is 0) the next
    /// call with the same line continues where it stopped. Any other call makes the intake forget that position.
    pub fn line(&mut self, line: &[u8]) -> Outcome {
        let waiting = self.waiting_line.take();
        let mut progress = self.progress_of(waiting, b"", line);
        match self.line_from(line, &mut progress) {
            LineOutcome::Done {
                refused, lsn_end, ..
            } if lsn_end > 0 || refused == 0 => Outcome::Accepted { lsn_end },
            LineOutcome::Done { .. } => Outcome::Refused,
            LineOutcome::Wait { full } => {
                let rest = self.hasher.hash_one((&b""[..], line));
                self.waiting_line = Some(Waiting {
                    rest,
                    progress,
                    rules_set: self.rules_set,
                });
                Outcome::Wait { consumed: 0, full }
            }
            LineOutcome::Failed => Outcome::Failed,
        }
    }

    /// As [`line`](Self::line), for a source that keeps the position in a waiting line itself, so that several
    /// connections can have one each. `progress` is the default again when the line is finished.
    pub fn line_from(&mut self, line: &[u8], progress: &mut LineProgress) -> LineOutcome {
        self.take_line(line, None, Origin::Sent, progress)
    }

    /// As [`line_from`](Self::line_from), for a line whose time is in `precision` instead of the configured unit.
    pub fn line_in(
        &mut self,
        line: &[u8],
        precision: Precision,
        progress: &mut LineProgress,
    ) -> LineOutcome {
        let configured = std::mem::replace(&mut self.options.line_precision, precision);
        let outcome = self.take_line(line, None, Origin::Sent, progress);
        self.options.line_precision = configured;
        outcome
    }

    /// Returns why lines, or readings of them, were refused since the last call, each reason once.
    pub fn take_line_reasons(&mut self) -> Vec<Reason> {
        let bits = std::mem::take(&mut self.line_reasons);
        let is_one = |reason: &Reason| bits & (1 << reason.index()) != 0;
        Reason::ALL.into_iter().filter(is_one).collect()
    }

    fn take_line(
        &mut self,
        line: &[u8],
        from: Option<(usize, &str)>,
        origin: Origin,
        progress: &mut LineProgress,
    ) -> LineOutcome {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let parsed = std::str::from_utf8(line)
            .map_err(|_| Reason::InvalidUtf8)
            .and_then(|text| {
                // Some programs begin with a byte order mark, which would make the key look like another one.
                let text = text.strip_prefix('\u{feff}').unwrap_or(text);
                match text.trim_ascii_start().as_bytes().first() {
                    None | Some(b'#') => Ok(None),
                    Some(_) => line::parse(text).map(Some),
                }
            })
            .and_then(|parsed| match parsed {
                Some(parsed) => match self.line_time(&parsed)? {
                    None if origin == Origin::RetainedTimed => Err(Reason::RetainedUntimed),
                    time => Ok(Some((parsed, time))),
                },
                None => Ok(None),
            });
        let (parsed, time) = match parsed {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return LineProgress::default().done(progress),
            Err(reason) => {
                self.counters.add_line();
                self.refuse_by(reason, &[line]);
                self.line_reasons |= 1 << reason.index();
                progress.refused += 1;
                return progress.done(progress);
            }
        };
        for (name, value) in parsed.fields().skip(progress.fields_done) {
            let taken = self
                .field_ready(&parsed, name, value, from)
                .map_err(PutError::Refused)
                .and_then(|(known, bytes)| {
                    self.put_at(known, &self.scratch.value[..bytes], time, origin)
                });
            match taken {
                Ok(lsn) => {
                    progress.accepted += 1;
                    progress.lsn_end = progress.lsn_end.max(lsn + 1);
                }
                Err(PutError::Refused(reason)) => {
                    self.refuse_by(reason, &[line]);
                    self.line_reasons |= 1 << reason.index();
                    progress.refused += 1;
                }
                Err(PutError::Shed) => {
                    self.counters.add_shed();
                    progress.shed += 1;
                }
                Err(PutError::Wait { full }) => return LineOutcome::Wait { full },
                Err(PutError::Failed) => return LineOutcome::Failed,
            }
            progress.fields_done += 1;
        }
        self.counters.add_line();
        progress.done(progress)
    }

    fn line_time(&self, line: &Line<'_>) -> Result<Option<Time>, Reason> {
        let Some(count) = line.time() else {
            return Ok(None);
        };
        let time = self.options.line_precision.time(count);
        let time = time.ok_or(Reason::TimeAbsurd)?;
        self.check_at(time)?;
        Ok(Some(time))
    }

    /// Writes the value to `scratch.value` and returns its object and length.
    fn field_ready(
        &mut self,
        line: &Line<'_>,
        name: Escaped<'_>,
        value: FieldValue<'_>,
        from: Option<(usize, &str)>,
    ) -> Result<(KnownKey, usize), Reason> {
        let Scratch {
            value: buffer,
            text,
            ..
        } = &mut self.scratch;
        let value = match value {
            FieldValue::Float(value) => Value::Float(value),
            FieldValue::Integer(value) => Value::Integer(value),
            FieldValue::Unsigned(value) => Value::Unsigned(value),
            FieldValue::Boolean(value) => Value::Boolean(value),
            FieldValue::Text(quoted) => {
                text.clear();
                quoted.push_to(text);
                Value::Text(text)
            }
        };
        let bytes = value.encode(buffer).map_err(|_| Reason::ValueTooLong)?;
        let known = self.object_named(from, Subject::Field(line, name))?;
        Ok((known, bytes))
    }

    /// Returns the object of a field of a line, or of a value of a document. `from`: the rule and the topic of its
    /// message, if it came in one.
    pub(super) fn object_named(
        &mut self,
        from: Option<(usize, &str)>,
        subject: Subject<'_>,
    ) -> Result<KnownKey, Reason> {
        let (template, topic) = match from {
            None => (&self.options.line_key, ""),
            Some((rule, topic)) => match self.options.subscriptions.get(rule) {
                Some(subscription) => (&subscription.key, topic),
                None => return Err(Reason::TopicUnmatched),
            },
        };
        let Scratch {
            identity,
            whole,
            key,
            text,
            ..
        } = &mut self.scratch;
        let source = self.sources.of(from.map(|(rule, _)| rule));
        let leaves_out = template.leaves_out(subject);
        whole.clear();
        if leaves_out {
            whole.push(source.mark);
            template.identify_whole(whole, topic, subject);
            if let Some(known) = self.fields.get(whole.as_str()) {
                return Ok(*known);
            }
        }
        identity.clear();
        identity.push(source.mark);
        template.identify(identity, topic, subject);
        if identity.len() > IDENTITY_BYTES_MAX {
            return Err(Reason::KeyInvalid);
        }
        if !leaves_out && let Some(known) = self.fields.get(identity.as_str()) {
            return Ok(*known);
        }
        template.render(key, topic, subject);
        check_key(key)?;
        let is_owned = leaves_out || !template.can_be_read_back(subject);
        let owner = is_owned.then_some((source, source.unmarked(identity)));
        let object = self.sources.resolve(&*self.destination, key, owner, text)?;
        let (place, series) = ((source.template, object), source.unmarked(whole));
        let is_merged = leaves_out && self.sources.is_merged(place, series, key, text);
        if is_merged {
            self.counters.keep_merged(text);
        }
        let known = KnownKey { object, is_merged };
        let name = if leaves_out { &*whole } else { &*identity };
        // What a template leaves out has no limit of its own. A longer one is looked up each time.
        if name.len() <= IDENTITY_BYTES_MAX {
            if self.fields.len() >= self.options.topics_cached_max {
                self.fields.clear();
            }
            self.fields.insert(name.as_str().into(), known);
        }
        Ok(known)
    }

    fn rule_of(&self, topic: &[u8]) -> Result<usize, Reason> {
        let topic = std::str::from_utf8(topic).map_err(|_| Reason::InvalidUtf8)?;
        self.options
            .subscriptions
            .iter()
            .position(|rule| pattern::matches(pattern::topic_filter(&rule.filter), topic))
            .ok_or(Reason::TopicUnmatched)
    }

    /// Returns the object of a topic that was not cached, and caches it.
    fn object_of(&mut self, rule: usize, topic: &[u8]) -> Result<KnownKey, Reason> {
        let name = std::str::from_utf8(topic).map_err(|_| Reason::InvalidUtf8)?;
        let template: &Template = match self.options.subscriptions.get(rule) {
            Some(subscription) => &subscription.key,
            None => return Err(Reason::TopicUnmatched),
        };
        let Scratch {
            identity,
            whole,
            key,
            text,
            ..
        } = &mut self.scratch;
        template.render(key, name, Subject::Message);
        check_key(key)?;
        let source = self.sources.of(Some(rule));
        identity.clear();
        whole.clear();
        // If the template has the whole topic, each topic has its own key, and no owner needs to be kept.
        let leaves_out = template.leaves_out(Subject::Message);
        let is_owned = leaves_out || !template.can_be_read_back(Subject::Message);
        if is_owned {
            template.identify(identity, name, Subject::Message);
        }
        if leaves_out {
            template.identify_whole(whole, name, Subject::Message);
        }
        let owner = is_owned.then_some((source, identity.as_str()));
        let object = self.sources.resolve(&*self.destination, key, owner, text)?;
        let place = (source.template, object);
        let is_merged = leaves_out && self.sources.is_merged(place, whole, key, text);
        if is_merged {
            self.counters.keep_merged(text);
        }
        let known = KnownKey { object, is_merged };
        if topic.len() <= TOPIC_CACHED_BYTES_MAX {
            // Several topics can have the same key, so the limit on keys does not limit topics.
            if self.topics.len() >= self.options.topics_cached_max {
                self.topics.clear();
            }
            self.topics.insert(topic.into(), Target { rule, known });
        }
        Ok(known)
    }

    /// As [`check_at`](Self::check_at), for a time in whole ms.
    pub(super) fn check_time(&self, time_ms: i64) -> Result<(), Reason> {
        self.check_at(Time::from_ms(time_ms))
    }

    pub(super) fn check_at(&self, time: Time) -> Result<(), Reason> {
        let is_trusted = self.destination.wall_trusted();
        let now_ms = is_trusted.then(|| self.destination.wall_ms());
        self.window.check(time, now_ms)
    }

    pub(super) fn progress_of(
        &self,
        waiting: Option<Waiting>,
        topic: &[u8],
        rest: &[u8],
    ) -> LineProgress {
        waiting
            .filter(|waiting| waiting.rest == self.hasher.hash_one((topic, rest)))
            .map_or(LineProgress::default(), |waiting| waiting.progress)
    }

    pub(super) fn refused(&self, reason: Reason, topic: &[u8], payload: &[u8]) -> Outcome {
        self.refuse_by(reason, &[topic, b": ", payload]);
        Outcome::Refused
    }

    /// Counts a refusal of `what`. For a shared key the text that names both series says more.
    pub(super) fn refuse_by(&self, reason: Reason, what: &[&[u8]]) {
        let both = [self.scratch.text.as_bytes()];
        let what = match reason {
            Reason::KeyShared => &both[..],
            _ => what,
        };
        self.destination.note(Note::Refused { reason, what });
        self.counters.refuse(reason, what);
    }

    fn concluded(&self, put: Result<u64, PutError>, topic: &[u8], payload: &[u8]) -> Outcome {
        match put {
            Ok(lsn) => Outcome::Accepted { lsn_end: lsn + 1 },
            Err(PutError::Wait { full }) => Outcome::Wait { consumed: 0, full },
            Err(PutError::Refused(reason)) => self.refused(reason, topic, payload),
            Err(PutError::Shed) => {
                self.counters.add_shed();
                Outcome::Accepted { lsn_end: 0 }
            }
            Err(PutError::Failed) => Outcome::Failed,
        }
    }
}

impl LineProgress {
    /// Returns the outcome of a line that ends with `self`; clears `kept` for the next one.
    fn done(self, kept: &mut Self) -> LineOutcome {
        *kept = Self::default();
        LineOutcome::Done {
            accepted: self.accepted,
            refused: self.refused,
            shed: self.shed,
            lsn_end: self.lsn_end,
        }
    }
}

/// Returns the topic of a message of several readings as text.
///
/// # Errors
/// [`Reason::InvalidUtf8`]; [`Reason::KeyInvalid`] for a topic with a line feed, which would make one identity of two.
pub(super) fn topic_name(topic: &[u8]) -> Result<&str, Reason> {
    let name = std::str::from_utf8(topic).map_err(|_| Reason::InvalidUtf8)?;
    if name.contains('\n') {
        return Err(Reason::KeyInvalid);
    }
    Ok(name)
}

pub(super) fn encode(buffer: &mut [u8], value: &DecodedValue<'_>) -> Result<usize, Reason> {
    let encoded = value.as_value().encode(buffer);
    encoded.map_err(|_| Reason::ValueTooLong)
}
