//! The path of a message of Sparkplug: a reading for each change of an edge node or device, and one for each metric.

use std::hash::BuildHasher;

use super::message::{Metric, Payload, SESSION};
use super::names::KnownMetric;
use super::nodes::{Nodes, name_of};
use super::topic::{self, Found, Kind, Topic};
use super::types::DataType;
use crate::intake::run::{LineProgress, Origin, Waiting, encode, topic_name};
use crate::intake::template::Subject;
use crate::intake::value::DecodedValue;
use crate::intake::{
    Decision, Destination, EdgeNodeFigures, Intake, Note, Outcome, Outgoing, PayloadKind, PutError,
    Reason, SparkplugRule,
};

/// How `{place}` of a key begins. These are the beginnings for metrics of an edge node, for metrics of a device, whose
/// name follows, and for the state of either.
const PLACE_NODE: &str = "node";
const PLACE_DEVICE: &str = "device";
const PLACE_STATE: &str = "state";

/// A message of an edge node.
struct Message<'t> {
    topic: Topic<'t>,
    payload: Payload,
    /// The edge node, as `group/edge`.
    node: String,
    /// What `{place}` is for its metrics.
    place: String,
}

impl<'t> Message<'t> {
    /// Reads a message; `None` if it is no edge node's.
    ///
    /// # Errors
    /// [`Reason::SparkplugInvalid`], [`Reason::Oversized`].
    fn of(topic: &'t str, payload: &[u8]) -> Result<Option<Self>, Reason> {
        let topic = match topic::parse(topic) {
            Some(Found::Edge(topic)) => topic,
            Some(Found::Other) => return Ok(None),
            None => return Err(Reason::SparkplugInvalid),
        };
        let payload = Payload::of(payload)?;
        let is_numbered = payload.seq.is_some() || topic.kind == Kind::Death;
        if payload.metrics.is_empty() && !is_numbered {
            // Bytes of another format can look like a payload in which everything is unknown.
            return Err(Reason::SparkplugInvalid);
        }
        let place = match topic.device {
            None => PLACE_NODE.to_owned(),
            Some(device) => [PLACE_DEVICE, "/", device].concat(),
        };
        Ok(Some(Self {
            node: name_of(&topic),
            topic,
            payload,
            place,
        }))
    }

    /// Returns how many metrics may be readings.
    fn metrics(&self) -> usize {
        match self.topic.kind {
            Kind::Death => 0,
            Kind::Birth | Kind::Data => self.payload.metrics.len(),
        }
    }
}

impl<D: Destination> Intake<D> {
    /// Returns what is known of the edge nodes of Sparkplug, in the order of their names.
    #[must_use]
    pub fn edge_nodes(&self) -> Vec<EdgeNodeFigures> {
        self.sparkplug.figures()
    }

    /// Returns the next message that the rules let the node send, for the broker that its messages come from.
    pub fn outgoing(&mut self) -> Option<Outgoing> {
        self.sparkplug.outgoing()
    }

    /// Handles new rules. Names that births have given stay: an edge node sends no birth because of other rules.
    pub(in crate::intake) fn reload_sparkplug(&mut self) {
        let keys_max = self.options.topics_cached_max;
        let kinds = self.options.subscriptions.iter().map(|rule| &rule.payload);
        let rules = kinds.filter_map(|kind| match kind {
            PayloadKind::Sparkplug(rule) => Some(*rule),
            _ => None,
        });
        let rules: Vec<SparkplugRule> = rules.collect();
        if rules.is_empty() {
            self.sparkplug = Nodes::new(keys_max);
            return;
        }
        self.sparkplug.set_keys_max(keys_max);
        if !rules.iter().any(|rule| rule.rebirth) {
            self.sparkplug.forget_outgoing();
        }
    }

    /// Takes the readings of a message one after the other. One that is refused affects no other. The message is read
    /// again after each wait, and what was finished before is skipped.
    pub(in crate::intake) fn message_of_sparkplug(
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
        let message = match Message::of(name, payload) {
            Ok(Some(message)) => message,
            Ok(None) => return Outcome::Accepted { lsn_end: 0 },
            Err(reason) => return self.refused(reason, topic, payload),
        };
        let rest = self.hasher.hash_one((topic, payload));
        let mut progress = self.progress_of(waiting, topic, payload);
        // If rules without Sparkplug came while it waited, nothing is known of it any more, and it begins anew.
        let is_begun = self.sparkplug.goes_on(rest);
        if !(is_begun && waiting.is_some_and(|waiting| waiting.rest == rest)) {
            progress = LineProgress {
                lsn_end: progress.lsn_end,
                ..LineProgress::default()
            };
            let begun = match origin {
                Origin::Sent => self.sparkplug.begin(&message.topic, &message.payload),
                // It is of some earlier session.
                Origin::RetainedTimed | Origin::Retained => {
                    self.sparkplug.forget_changes();
                    Ok(())
                }
            };
            if let Err(reason) = begun {
                return self.refused(reason, topic, payload);
            }
            if let Some(body) = message
                .payload
                .body
                .as_ref()
                .filter(|body| !body.is_empty())
            {
                let uuid = message.payload.uuid.as_deref().unwrap_or_default();
                self.refuse_by(
                    Reason::SparkplugType,
                    &[topic, b" body ", uuid.as_bytes(), b": ", body],
                );
                progress.refused += 1;
            }
        }
        let changes = self.sparkplug.changes();
        while progress.fields_done < changes + message.metrics() {
            let put = match progress.fields_done.checked_sub(changes) {
                None => self.put_change((rule, name), &message.topic, progress.fields_done),
                Some(place) => self.put_metric((rule, origin), name, &message, place),
            };
            match put {
                Ok(Some(lsn)) => {
                    progress.accepted += 1;
                    progress.lsn_end = progress.lsn_end.max(lsn + 1);
                }
                Ok(None) => {}
                Err(PutError::Refused(reason)) => {
                    self.refuse_part(reason, &message, progress.fields_done, topic);
                    progress.refused += 1;
                }
                Err(PutError::Shed) => {
                    self.counters.add_shed();
                    progress.shed += 1;
                }
                Err(PutError::Wait { full }) => {
                    self.sparkplug.wait(rest);
                    self.waiting_message = Some(Waiting {
                        rest,
                        progress,
                        rules_set: self.rules_set,
                    });
                    return Outcome::Wait { consumed: 0, full };
                }
                Err(PutError::Failed) => return Outcome::Failed,
            }
            progress.fields_done += 1;
        }
        if origin == Origin::Sent && message.topic.kind != Kind::Death {
            self.ask_for_birth(rule, &message.topic);
        }
        if progress.accepted > 0 || progress.refused == 0 {
            let lsn_end = progress.lsn_end;
            Outcome::Accepted { lsn_end }
        } else {
            Outcome::Refused
        }
    }

    fn ask_for_birth(&mut self, rule: usize, topic: &Topic<'_>) {
        let subscription = self.options.subscriptions.get(rule);
        if let Some(PayloadKind::Sparkplug(sparkplug)) = subscription.map(|one| &one.payload)
            && sparkplug.rebirth
        {
            let now_ms = self.destination.wall_ms();
            self.sparkplug.ask(topic, now_ms);
        }
    }

    /// Puts the reading that says that an edge node or a device has come or gone. Its time is that of the node.
    fn put_change(
        &mut self,
        (rule, name): (usize, &str),
        topic: &Topic<'_>,
        place: usize,
    ) -> Result<Option<u64>, PutError> {
        let Some(change) = self.sparkplug.change(place) else {
            return Ok(None);
        };
        let (device, is_alive) = (change.device.clone(), change.is_alive);
        let path = match device.as_deref() {
            None => PLACE_NODE.to_owned(),
            Some(device) => [PLACE_DEVICE, "/", device].concat(),
        };
        self.destination.note(Note::Member {
            path: PLACE_STATE,
            decision: Decision::Metric,
        });
        let value = DecodedValue::Boolean(is_alive);
        let bytes = encode(&mut self.scratch.value, &value).map_err(PutError::Refused)?;
        let subject = Subject::Metric {
            group: topic.group,
            edge: topic.edge,
            device: device.as_deref().unwrap_or_default(),
            place: PLACE_STATE,
            path: &path,
        };
        let known = self.object_named(Some((rule, name)), subject);
        let known = known.map_err(PutError::Refused)?;
        let value = &self.scratch.value[..bytes];
        self.put(known, value, None, Origin::Sent).map(Some)
    }

    /// Puts the value of a metric; `None` if it has none.
    fn put_metric(
        &mut self,
        (rule, origin): (usize, Origin),
        name: &str,
        message: &Message<'_>,
        place: usize,
    ) -> Result<Option<u64>, PutError> {
        let Some(bytes) = message.payload.metrics.get(place) else {
            return Ok(None);
        };
        let metric = Metric::of(bytes).map_err(PutError::Refused)?;
        self.destination.note(Note::Member {
            path: metric.name.as_deref().unwrap_or_default(),
            decision: Decision::Metric,
        });
        let is_node_birth = message.topic.kind == Kind::Birth && message.topic.device.is_none();
        if is_node_birth && metric.name.as_deref() == Some(SESSION) {
            return Ok(None);
        }
        let known = self.known_of(origin, message, &metric);
        let known = known.map_err(PutError::Refused)?;
        if metric.is_null == Some(true) {
            return Ok(None);
        }
        let refused = PutError::Refused;
        let sent = metric.value.as_ref();
        let sent = sent.ok_or(refused(Reason::SparkplugInvalid))?;
        let value = known.kind.value(sent).map_err(refused)?;
        let bytes = encode(&mut self.scratch.value, &value).map_err(refused)?;
        let time_ms = self.time_of(origin, message, &metric).map_err(refused)?;
        if known.path.is_empty() {
            return Err(refused(Reason::KeyInvalid));
        }
        let subject = Subject::Metric {
            group: message.topic.group,
            edge: message.topic.edge,
            device: message.topic.device.unwrap_or_default(),
            place: &message.place,
            path: &known.path,
        };
        let object = self.object_named(Some((rule, name)), subject);
        let object = object.map_err(refused)?;
        let value = &self.scratch.value[..bytes];
        self.put(object, value, time_ms, origin).map(Some)
    }

    /// Returns the name and the type of a metric: those of the birth, or its own.
    fn known_of(
        &mut self,
        origin: Origin,
        message: &Message<'_>,
        metric: &Metric,
    ) -> Result<KnownMetric, Reason> {
        let (node, device) = (message.node.as_str(), message.topic.device);
        let name = metric.name.as_deref().filter(|name| !name.is_empty());
        let own = DataType::of(metric.datatype.unwrap_or_default());
        if message.topic.kind == Kind::Birth {
            let (Some(name), Some(kind)) = (name, own) else {
                return Err(Reason::SparkplugInvalid);
            };
            let known = KnownMetric::of(name, kind);
            // Without the name of a metric nothing could be made of its later values.
            let is_kept =
                known.path.is_empty() || self.sparkplug.by_name(node, device, name).is_some();
            return match origin == Origin::Sent && !is_kept {
                true => Err(Reason::SparkplugLimit),
                false => Ok(known),
            };
        }
        let (found, reason) = match (name, metric.alias) {
            (Some(name), _) => {
                let born = self.sparkplug.by_name(node, device, name);
                let found = match own {
                    Some(kind) => Some(KnownMetric::of(name, kind)),
                    None => born.filter(|_| origin == Origin::Sent).cloned(),
                };
                (found, Reason::SparkplugNoBirth)
            }
            (None, Some(alias)) => {
                let born = self.sparkplug.by_alias(node, device, alias);
                let found = born.filter(|_| origin == Origin::Sent).cloned();
                (found, Reason::SparkplugUnknownAlias)
            }
            (None, None) => return Err(Reason::SparkplugInvalid),
        };
        if found.is_none() && origin == Origin::Sent {
            self.sparkplug.miss(node, device);
        }
        found.ok_or(reason)
    }

    /// Returns the time of a value: that of the metric, or of the message.
    fn time_of(
        &self,
        origin: Origin,
        message: &Message<'_>,
        metric: &Metric,
    ) -> Result<Option<i64>, Reason> {
        // A value of the past must not look new.
        let is_past = metric.is_historical == Some(true);
        let of_message = message.payload.timestamp.filter(|_| !is_past);
        let Some(time_ms) = metric.timestamp.or(of_message) else {
            return match (is_past, origin) {
                (true, _) => Err(Reason::SparkplugInvalid),
                (false, Origin::RetainedTimed) => Err(Reason::RetainedUntimed),
                (false, Origin::Sent | Origin::Retained) => Ok(None),
            };
        };
        let time_ms = i64::try_from(time_ms).map_err(|_| Reason::TimeAbsurd)?;
        self.check_time(time_ms)?;
        Ok(Some(time_ms))
    }

    /// Counts the refusal of a change, or of a metric.
    fn refuse_part(&self, reason: Reason, message: &Message<'_>, place: usize, topic: &[u8]) {
        let Some(place) = place.checked_sub(self.sparkplug.changes()) else {
            return self.refuse_by(reason, &[topic, b" state"]);
        };
        let bytes = message.payload.metrics.get(place);
        let metric = bytes.and_then(|bytes| Metric::of(bytes).ok());
        let number = |text: &str, number: u64| [text, &number.to_string()].concat();
        let what = match metric {
            Some(Metric {
                name: Some(name), ..
            }) if !name.is_empty() => name,
            Some(Metric {
                alias: Some(alias), ..
            }) => number("alias ", alias),
            _ => number("metric ", place as u64),
        };
        self.refuse_by(reason, &[topic, b" ", what.as_bytes()]);
    }
}
