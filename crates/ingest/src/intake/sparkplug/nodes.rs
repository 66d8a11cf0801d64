//! What is known of edge nodes and their devices: which are alive, their metrics, and which messages are missing.

use std::collections::{BTreeMap, VecDeque};

use super::figures::{EDGE_NODE_DEVICES_SHOWN, EdgeNodeFigures, EdgeNodeState};
use super::message::{self, Payload};
use super::names::{KnownMetric, Names};
use super::topic::{Kind, Topic};
use super::{
    Outgoing, SPARKPLUG_DEVICES_MAX, SPARKPLUG_METRICS_PER_KEY, SPARKPLUG_NAME_BYTES_MAX,
    SPARKPLUG_NODES_MAX, SPARKPLUG_REBIRTH_MS_MIN,
};
use crate::intake::Reason;

/// The numbers of messages go round: after 255 comes 0.
const SEQUENCE_LAST: u64 = 255;

/// The numbers of sessions go round, too. One that is at most so far ahead of another is later.
const SESSIONS_AHEAD_MAX: u64 = 127;

/// How often the time between two requests for a birth is doubled at most.
const REBIRTH_DOUBLINGS_MAX: u32 = 5;

/// A change that becomes a reading: an edge node or a device has come or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The device; `None`: the edge node itself.
    pub(super) device: Option<Box<str>>,
    pub(super) is_alive: bool,
}

/// All edge nodes.
#[derive(Debug, Default)]
pub(in crate::intake) struct Nodes {
    /// By group and edge node, `group/edge`.
    nodes: BTreeMap<Box<str>, EdgeNode>,
    metrics_max: usize,
    /// Devices, and metrics with names, of all edge nodes.
    devices: usize,
    metrics: usize,
    /// What the message that is being taken has changed.
    changes: Vec<Change>,
    /// The hash of the message that waits, if the changes are its own.
    waiting: Option<u64>,
    /// What is to be sent; at most one for each edge node.
    outgoing: VecDeque<Outgoing>,
}

#[derive(Debug, Default)]
struct EdgeNode {
    state: EdgeNodeState,
    /// The number of the session of its birth.
    session: Option<u64>,
    /// The number of its last message.
    sequence: Option<u64>,
    names: Names,
    devices: BTreeMap<Box<str>, Device>,
    /// Whether devices are to be born again after its birth.
    awaits_devices: bool,
    births: u64,
    deaths: u64,
    deaths_of_earlier: u64,
    gaps: u64,
    has_gap: bool,
    lacks_birth: bool,
    /// How many of its devices lack a birth.
    devices_lacking: usize,
    rebirths_asked: u64,
    /// When it was last asked, and how many births it had sent before.
    asked_ms: Option<i64>,
    births_before: u64,
    /// How often the time until it is asked again was doubled.
    doublings: u32,
}

#[derive(Debug, Default)]
struct Device {
    state: DeviceState,
    lacks_birth: bool,
    names: Names,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DeviceState {
    /// Something of it has come, and no birth.
    #[default]
    Unborn,
    /// Its birth has come.
    Alive,
    /// It was alive before the birth of its edge node, and was not born again since.
    Awaited,
    Dead,
}

impl EdgeNode {
    /// Follows the numbers of messages. A message that comes again has the number of the last one.
    fn follow(&mut self, sequence: Option<u64>) {
        let Some(found) = sequence else {
            return;
        };
        let is_next = match self.sequence {
            None => true,
            Some(SEQUENCE_LAST) => found == 0 || found == SEQUENCE_LAST,
            Some(last) => found == last || found == last + 1,
        };
        if !is_next {
            self.gaps += 1;
            self.has_gap = true;
        }
        self.sequence = Some(found.min(SEQUENCE_LAST));
    }

    /// Forgets its devices, but for those that are alive: after the birth of the edge node each is born again, or gone.
    fn await_devices(&mut self) {
        self.devices
            .retain(|_, device| matches!(device.state, DeviceState::Alive | DeviceState::Awaited));
        for device in self.devices.values_mut() {
            *device = Device {
                state: DeviceState::Awaited,
                ..Device::default()
            };
        }
        self.awaits_devices = !self.devices.is_empty();
    }

    /// Ends the births: an edge node sends data after all of them. A device that was not born again is gone; one that
    /// sends is there.
    fn end_births(&mut self, sender: Option<&str>, changes: &mut Vec<Change>) {
        let devices = self.devices.iter_mut();
        for (name, device) in devices.filter(|(_, device)| device.state == DeviceState::Awaited) {
            if sender == Some(&**name) {
                device.state = DeviceState::Alive;
            } else {
                device.state = DeviceState::Dead;
                changes.push(Change {
                    device: Some(name.clone()),
                    is_alive: false,
                });
            }
        }
        self.awaits_devices = false;
    }

    /// Whether a metric of it, or of a device, was refused since the birth because no birth names it.
    fn lacks_birth(&self) -> bool {
        self.lacks_birth || self.devices_lacking > 0
    }

    fn metrics(&self) -> usize {
        let devices = self.devices.values().map(|device| device.names.count());
        self.names.count() + devices.sum::<usize>()
    }

    /// Returns the metrics of the edge node itself or of a device.
    fn names_of(&self, device: Option<&str>) -> Option<&Names> {
        match device {
            None => Some(&self.names),
            Some(device) => self.devices.get(device).map(|device| &device.names),
        }
    }
}

/// Returns whether a session is later than the one that the birth has told.
fn is_later(died: u64, born: u64) -> bool {
    (1..=SESSIONS_AHEAD_MAX).contains(&(died.wrapping_sub(born) & SEQUENCE_LAST))
}

/// Returns the name of an edge node.
pub(super) fn name_of(topic: &Topic<'_>) -> String {
    [topic.group, "/", topic.edge].concat()
}

impl Nodes {
    /// `keys_max`: the number of keys that may exist.
    pub(in crate::intake) fn new(keys_max: usize) -> Self {
        let mut nodes = Self::default();
        nodes.set_keys_max(keys_max);
        nodes
    }

    /// Sets another number of keys. What is known stays, even if it is more than would be taken now.
    pub(in crate::intake) fn set_keys_max(&mut self, keys_max: usize) {
        self.metrics_max = keys_max.saturating_mul(SPARKPLUG_METRICS_PER_KEY);
    }

    /// Takes what a message says about births, deaths and missing messages. What becomes readings is in
    /// [`change`](Self::change) until the next message begins.
    ///
    /// # Errors
    /// [`Reason::SparkplugLimit`]: a birth or a death for which there is no room, or names that are too long.
    pub(super) fn begin(&mut self, topic: &Topic<'_>, payload: &Payload) -> Result<(), Reason> {
        self.changes.clear();
        let device_bytes = topic.device.map_or(0, str::len);
        if topic.group.len() + topic.edge.len() + device_bytes > SPARKPLUG_NAME_BYTES_MAX {
            return Err(Reason::SparkplugLimit);
        }
        let name = name_of(topic);
        if !self.nodes.contains_key(name.as_str()) && !self.make_room(topic) {
            return match topic.kind {
                Kind::Birth | Kind::Death => Err(Reason::SparkplugLimit),
                // Metrics that have their names with them need no birth.
                Kind::Data => Ok(()),
            };
        }
        let has_room = self.devices < SPARKPLUG_DEVICES_MAX;
        let Self {
            nodes,
            metrics_max,
            devices,
            metrics,
            changes,
            ..
        } = self;
        let node = nodes.entry(name.into()).or_default();
        match (topic.kind, topic.device) {
            (Kind::Birth, None) => {
                *devices -= node.devices.len();
                *metrics -= node.metrics();
                node.await_devices();
                *devices += node.devices.len();
                node.names = Names::default();
                node.names
                    .learn(payload, metrics_max.saturating_sub(*metrics));
                *metrics += node.names.count();
                node.state = EdgeNodeState::Alive;
                node.session = payload.session();
                node.sequence = payload.seq.map(|found| found.min(SEQUENCE_LAST));
                node.births += 1;
                node.has_gap = false;
                node.lacks_birth = false;
                node.devices_lacking = 0;
                changes.push(Change {
                    device: None,
                    is_alive: true,
                });
            }
            (Kind::Birth, Some(device)) => {
                node.follow(payload.seq);
                if !node.devices.contains_key(device) {
                    if !has_room {
                        return Err(Reason::SparkplugLimit);
                    }
                    *devices += 1;
                }
                let born = node.devices.entry(device.into()).or_default();
                *metrics -= born.names.count();
                node.devices_lacking -= usize::from(born.lacks_birth);
                *born = Device {
                    state: DeviceState::Alive,
                    ..Device::default()
                };
                born.names
                    .learn(payload, metrics_max.saturating_sub(*metrics));
                *metrics += born.names.count();
                changes.push(Change {
                    device: Some(device.into()),
                    is_alive: true,
                });
            }
            (Kind::Data, device) => {
                node.follow(payload.seq);
                // What is missing may be the birth of a device.
                if node.awaits_devices && !node.has_gap {
                    node.end_births(device, changes);
                }
                // Whether a device lacks its birth is known of each for itself.
                if let Some(device) = device
                    && !node.devices.contains_key(device)
                    && has_room
                {
                    *devices += 1;
                    node.devices.insert(device.into(), Device::default());
                }
            }
            (Kind::Death, None) => match (node.session, payload.session()) {
                (Some(born), Some(died)) if is_later(died, born) => {
                    // Whose birth has not come.
                    node.gaps += 1;
                    node.has_gap = true;
                }
                (Some(born), Some(died)) if born != died => {
                    // The broker has found out late that an earlier connection is gone.
                    node.deaths_of_earlier += 1;
                }
                _ => {
                    *metrics -= node.metrics();
                    node.names = Names::default();
                    // A message that comes again gives its readings again: the first ones may be lost with the power.
                    let comes_again = node.state == EdgeNodeState::Dead;
                    node.state = EdgeNodeState::Dead;
                    node.sequence = None;
                    node.deaths += u64::from(!comes_again);
                    changes.push(Change {
                        device: None,
                        is_alive: false,
                    });
                    for (device, gone) in &mut node.devices {
                        gone.names = Names::default();
                        if gone.state != DeviceState::Dead || comes_again {
                            changes.push(Change {
                                device: Some(device.clone()),
                                is_alive: false,
                            });
                        }
                        gone.state = DeviceState::Dead;
                    }
                }
            },
            (Kind::Death, Some(device)) => {
                node.follow(payload.seq);
                if !node.devices.contains_key(device) {
                    if !has_room {
                        return Err(Reason::SparkplugLimit);
                    }
                    *devices += 1;
                }
                let gone = node.devices.entry(device.into()).or_default();
                *metrics -= gone.names.count();
                gone.names = Names::default();
                gone.state = DeviceState::Dead;
                changes.push(Change {
                    device: Some(device.into()),
                    is_alive: false,
                });
            }
        }
        Ok(())
    }

    /// Returns whether there is room for another edge node. Its birth takes the place of one that is not alive, rather
    /// of one that was never born. The birth of a device takes no place. Otherwise the removed edge node could come
    /// back in the same way, and would be asked for its birth each time.
    fn make_room(&mut self, topic: &Topic<'_>) -> bool {
        if self.nodes.len() < SPARKPLUG_NODES_MAX {
            return true;
        }
        if topic.kind != Kind::Birth || topic.device.is_some() {
            return false;
        }
        let is_in = |wanted: EdgeNodeState| {
            let mut nodes = self.nodes.iter();
            nodes.find(|(_, node)| node.state == wanted)
        };
        let found = is_in(EdgeNodeState::Unborn).or_else(|| is_in(EdgeNodeState::Dead));
        let Some(name) = found.map(|(name, _)| name.clone()) else {
            return false;
        };
        if let Some(node) = self.nodes.remove(&name) {
            self.devices -= node.devices.len();
            self.metrics -= node.metrics();
        }
        true
    }

    /// Forgets the changes of a message that changes nothing.
    pub(super) fn forget_changes(&mut self) {
        self.changes.clear();
    }

    /// Notes that a message waits, by its hash. Its changes stay until it goes on, or another message begins.
    pub(super) fn wait(&mut self, message: u64) {
        self.waiting = Some(message);
    }

    /// Returns whether a message goes on that has waited, so that the changes are its own.
    pub(super) fn goes_on(&mut self, message: u64) -> bool {
        self.waiting.take() == Some(message)
    }

    /// Returns how many changes the message has brought.
    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn change(&self, place: usize) -> Option<&Change> {
        self.changes.get(place)
    }

    /// Returns the metrics that the birth of an edge node, or of a device, has named.
    fn names(&self, node: &str, device: Option<&str>) -> Option<&Names> {
        self.nodes.get(node)?.names_of(device)
    }

    /// Returns what the birth says about the metric with this name.
    pub(super) fn by_name(
        &self,
        node: &str,
        device: Option<&str>,
        name: &str,
    ) -> Option<&KnownMetric> {
        self.names(node, device)?.by_name(name)
    }

    /// Returns what the birth says about the metric with this alias.
    pub(super) fn by_alias(
        &self,
        node: &str,
        device: Option<&str>,
        alias: u64,
    ) -> Option<&KnownMetric> {
        self.names(node, device)?.by_alias(alias)
    }

    /// Notes that a metric was refused because no birth names it.
    pub(super) fn miss(&mut self, node: &str, device: Option<&str>) {
        let Some(node) = self.nodes.get_mut(node) else {
            return;
        };
        match device.and_then(|device| node.devices.get_mut(device)) {
            Some(device) => {
                node.devices_lacking += usize::from(!device.lacks_birth);
                device.lacks_birth = true;
            }
            None => node.lacks_birth = true,
        }
    }

    /// Asks the edge node for its birth if one may be missing, but not again within an interval: the answer takes time.
    /// If a birth comes and metrics still have no name, the interval doubles. An edge node with incomplete births must
    /// not send them all the time.
    pub(super) fn ask(&mut self, topic: &Topic<'_>, now_ms: i64) {
        let Some(node) = self.nodes.get_mut(name_of(topic).as_str()) else {
            return;
        };
        // What is dead sends nothing until it is born again.
        let is_helpful = node.has_gap || node.state == EdgeNodeState::Dead;
        let is_missing = is_helpful || node.lacks_birth();
        // A clock that was set back must not end the questions.
        let since_ms = node.asked_ms.map(|asked_ms| now_ms.abs_diff(asked_ms));
        let doublings = if is_helpful { 0 } else { node.doublings };
        let while_ms = (SPARKPLUG_REBIRTH_MS_MIN as u64) << doublings;
        if !is_missing || since_ms.is_some_and(|since_ms| since_ms < while_ms) {
            return;
        }
        let topic = format!("spBv1.0/{}/NCMD/{}", topic.group, topic.edge);
        let is_waiting = self.outgoing.iter().any(|waiting| waiting.topic == topic);
        if is_waiting || self.outgoing.len() >= SPARKPLUG_NODES_MAX {
            return;
        }
        if is_helpful || since_ms.is_none_or(|since_ms| since_ms >= 2 * while_ms) {
            node.doublings = 0;
        } else if node.births > node.births_before {
            node.doublings = (node.doublings + 1).min(REBIRTH_DOUBLINGS_MAX);
        }
        node.births_before = node.births;
        node.asked_ms = Some(now_ms);
        node.rebirths_asked += 1;
        let payload = message::rebirth(now_ms);
        self.outgoing.push_back(Outgoing { topic, payload });
    }

    /// Forgets what is to be sent.
    pub(super) fn forget_outgoing(&mut self) {
        self.outgoing.clear();
    }

    /// Returns the next message that is to be sent.
    pub(in crate::intake) fn outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// Returns what people are shown, in the order of the names.
    pub(in crate::intake) fn figures(&self) -> Vec<EdgeNodeFigures> {
        let nodes = self.nodes.iter().map(|(name, node)| {
            let devices = node.devices.iter();
            let dead = devices.filter(|(_, device)| device.state == DeviceState::Dead);
            let names = dead.clone().map(|(name, _)| name.to_string());
            EdgeNodeFigures {
                name: name.to_string(),
                state: node.state,
                devices: node.devices.len() as u64,
                devices_dead: dead.count() as u64,
                devices_dead_first: names.take(EDGE_NODE_DEVICES_SHOWN).collect(),
                metrics: node.metrics() as u64,
                births: node.births,
                deaths: node.deaths,
                deaths_of_earlier: node.deaths_of_earlier,
                gaps: node.gaps,
                has_gap: node.has_gap,
                lacks_birth: node.lacks_birth(),
                rebirths_asked: node.rebirths_asked,
            }
        });
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Metric, SESSION, Sent};
    use super::super::topic::{Found, parse};
    use super::*;
    use bytes::Bytes;
    use prost::Message;

    fn metric(name: &str, alias: u64, value: Sent) -> Bytes {
        let metric = Metric {
            name: Some(name.to_owned()),
            alias: Some(alias),
            datatype: Some(4),
            value: Some(value),
            ..Metric::default()
        };
        Bytes::from(metric.encode_to_vec())
    }

    fn payload(seq: Option<u64>, metrics: Vec<Bytes>) -> Payload {
        Payload {
            metrics,
            seq,
            ..Payload::default()
        }
    }

    /// Begins a message with this number, and this session if there is one.
    fn begin(nodes: &mut Nodes, topic: &str, seq: u64, session: Option<u64>) -> Result<(), Reason> {
        let Some(Found::Edge(topic)) = parse(topic) else {
            panic!("{topic}");
        };
        let session = session.map(|number| metric(SESSION, 0, Sent::Long(number)));
        let metrics = session.into_iter().chain([metric("m", 1, Sent::Long(1))]);
        nodes.begin(&topic, &payload(Some(seq), metrics.collect()))
    }

    fn changed(nodes: &Nodes) -> Vec<(Option<&str>, bool)> {
        let all = (0..nodes.changes()).filter_map(|place| nodes.change(place));
        all.map(|change| (change.device.as_deref(), change.is_alive))
            .collect()
    }

    fn one(nodes: &Nodes) -> EdgeNodeFigures {
        let mut all = nodes.figures();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn numbers_go_round_and_a_gap_is_counted_until_the_next_birth() {
        let mut nodes = Nodes::new(100);
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 253, Some(0)).unwrap();
        for (topic, seq, gaps) in [
            ("spBv1.0/g/DBIRTH/e/d", 254, 0),
            ("spBv1.0/g/NDATA/e", 255, 0),
            ("spBv1.0/g/DDATA/e/d", 0, 0),
            // The same message again.
            ("spBv1.0/g/DDATA/e/d", 0, 0),
            ("spBv1.0/g/NDATA/e", 2, 1),
            ("spBv1.0/g/NDATA/e", 3, 1),
            ("spBv1.0/g/DDEATH/e/d", 4, 1),
            ("spBv1.0/g/NDATA/e", 1, 2),
            ("spBv1.0/g/NDATA/e", 999, 3),
            ("spBv1.0/g/NDATA/e", 0, 3),
        ] {
            begin(&mut nodes, topic, seq, None).unwrap();
            let figures = one(&nodes);
            assert_eq!(
                (figures.gaps, figures.has_gap),
                (gaps, gaps > 0),
                "{topic} {seq}"
            );
        }
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, Some(0)).unwrap();
        let figures = one(&nodes);
        assert_eq!((figures.gaps, figures.has_gap), (3, false));
    }

    #[test]
    fn a_death_counts_for_its_own_session_and_takes_the_devices_with_it() {
        let mut nodes = Nodes::new(100);
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, Some(7)).unwrap();
        assert_eq!(changed(&nodes), [(None, true)]);
        for device in ["a", "b"] {
            let topic = format!("spBv1.0/g/DBIRTH/e/{device}");
            begin(&mut nodes, &topic, 1, None).unwrap();
            assert_eq!(changed(&nodes), [(Some(device), true)]);
        }
        begin(&mut nodes, "spBv1.0/g/DDEATH/e/b", 2, None).unwrap();
        assert_eq!(changed(&nodes), [(Some("b"), false)]);
        // A message that comes again.
        begin(&mut nodes, "spBv1.0/g/DDEATH/e/b", 2, None).unwrap();
        assert_eq!(changed(&nodes), [(Some("b"), false)]);
        assert_eq!(one(&nodes).devices_dead_first, ["b"]);
        // The will of an earlier connection.
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(6)).unwrap();
        assert!(changed(&nodes).is_empty());
        assert!(nodes.by_alias("g/e", None, 1).is_some());
        assert_eq!(one(&nodes).state, EdgeNodeState::Alive);
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(7)).unwrap();
        assert_eq!(changed(&nodes), [(None, false), (Some("a"), false)]);
        assert_eq!(nodes.by_alias("g/e", None, 1), None);
        assert_eq!(nodes.by_alias("g/e", Some("a"), 1), None);
        // The edge node has said so itself, and the broker says it again.
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(7)).unwrap();
        assert_eq!(
            changed(&nodes),
            [(None, false), (Some("a"), false), (Some("b"), false)]
        );
        let figures = one(&nodes);
        assert_eq!(figures.state, EdgeNodeState::Dead);
        assert_eq!(
            (figures.births, figures.deaths, figures.deaths_of_earlier),
            (1, 1, 1)
        );
        assert_eq!(
            (figures.devices, figures.devices_dead, figures.metrics),
            (2, 2, 0)
        );
        // A birth begins anew. Without numbers of sessions each death counts.
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, None).unwrap();
        assert_eq!(one(&nodes).devices, 0);
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(3)).unwrap();
        assert_eq!(one(&nodes).state, EdgeNodeState::Dead);
    }

    #[test]
    fn a_device_that_is_not_born_again_after_its_edge_node_is_gone() {
        let mut nodes = Nodes::new(100);
        let take = |nodes: &mut Nodes, topic: &str| {
            begin(nodes, &format!("spBv1.0/g/{topic}"), 0, None).unwrap();
        };
        for topic in ["NBIRTH/e", "DBIRTH/e/a", "DBIRTH/e/b", "DDATA/e/c"] {
            take(&mut nodes, topic);
        }
        take(&mut nodes, "NBIRTH/e");
        assert_eq!(changed(&nodes), [(None, true)]);
        take(&mut nodes, "DBIRTH/e/a");
        // No message has said that `c` is there.
        assert_eq!(one(&nodes).devices, 2);
        assert_eq!(nodes.by_alias("g/e", Some("b"), 1), None);
        take(&mut nodes, "NDATA/e");
        assert_eq!(changed(&nodes), [(Some("b"), false)]);
        assert_eq!(one(&nodes).devices_dead_first, ["b"]);
        take(&mut nodes, "NDATA/e");
        assert!(changed(&nodes).is_empty());
        // One that sends is there, even if its birth was lost.
        take(&mut nodes, "NBIRTH/e");
        take(&mut nodes, "DDATA/e/a");
        assert!(changed(&nodes).is_empty());
        let figures = one(&nodes);
        assert_eq!((figures.devices, figures.devices_dead), (1, 0));
        // What is missing may have been the birth.
        take(&mut nodes, "NBIRTH/e");
        begin(&mut nodes, "spBv1.0/g/NDATA/e", 2, None).unwrap();
        assert!(changed(&nodes).is_empty());
        let figures = one(&nodes);
        assert_eq!((figures.devices_dead, figures.has_gap), (0, true));
    }

    #[test]
    fn the_death_of_a_later_session_tells_of_a_birth_that_has_not_come() {
        let mut nodes = Nodes::new(100);
        for (born, died, is_missing) in [
            (7, 8, true),
            (7, 134, true),
            (7, 135, false),
            (7, 6, false),
            (255, 0, true),
            (0, 255, false),
        ] {
            begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, Some(born)).unwrap();
            let before = one(&nodes);
            begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(died)).unwrap();
            assert!(changed(&nodes).is_empty());
            let after = one(&nodes);
            assert_eq!(after.state, EdgeNodeState::Alive);
            assert_eq!(after.has_gap, is_missing, "{born} {died}");
            assert_eq!(after.gaps - before.gaps, u64::from(is_missing));
            let earlier = after.deaths_of_earlier - before.deaths_of_earlier;
            assert_eq!(earlier, u64::from(!is_missing));
        }
    }

    #[test]
    fn an_edge_node_is_asked_for_its_birth_once_in_a_while() {
        let mut nodes = Nodes::new(100);
        let topic = "spBv1.0/g/DDATA/e/d";
        let Some(Found::Edge(parsed)) = parse(topic) else {
            panic!("{topic}");
        };
        nodes.ask(&parsed, 0);
        assert_eq!(nodes.outgoing(), None, "nothing has come of it");
        begin(&mut nodes, topic, 5, None).unwrap();
        nodes.ask(&parsed, 0);
        assert_eq!(nodes.outgoing(), None, "nothing is missing");
        nodes.miss("g/e", Some("d"));
        for now_ms in [1_000, 1_001, 1_000 + SPARKPLUG_REBIRTH_MS_MIN - 1] {
            nodes.ask(&parsed, now_ms);
        }
        let asked = nodes.outgoing().unwrap();
        assert_eq!(asked.topic, "spBv1.0/g/NCMD/e");
        assert_eq!(asked.payload, message::rebirth(1_000));
        assert_eq!(nodes.outgoing(), None);
        // It may have been lost. A clock that was set back makes no difference.
        nodes.ask(&parsed, 1_000 + SPARKPLUG_REBIRTH_MS_MIN);
        assert!(nodes.outgoing().is_some());
        nodes.ask(&parsed, -500_000);
        assert!(nodes.outgoing().is_some());
        assert_eq!(one(&nodes).rebirths_asked, 3);
        // The birth of the device alone is enough.
        begin(&mut nodes, "spBv1.0/g/DBIRTH/e/d", 6, None).unwrap();
        assert!(!one(&nodes).lacks_birth);
        nodes.ask(&parsed, 900_000);
        assert_eq!(nodes.outgoing(), None);
        // After a gap, a birth may be among what is missing.
        begin(&mut nodes, topic, 9, None).unwrap();
        nodes.ask(&parsed, 2_000_000);
        assert!(nodes.outgoing().is_some());
        // What sends after its death has been born again.
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, Some(1)).unwrap();
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, Some(1)).unwrap();
        begin(&mut nodes, topic, 9, None).unwrap();
        nodes.ask(&parsed, 3_000_000);
        assert!(nodes.outgoing().is_some());
    }

    #[test]
    fn births_that_do_not_help_are_asked_for_less_and_less() {
        let mut nodes = Nodes::new(100);
        let topic = "spBv1.0/g/NDATA/e";
        let Some(Found::Edge(parsed)) = parse(topic) else {
            panic!("{topic}");
        };
        begin(&mut nodes, topic, 5, None).unwrap();
        let asked_at = |nodes: &mut Nodes, answers: bool, minutes: i64| {
            let mut asked = Vec::new();
            for minute in 0..minutes {
                nodes.miss("g/e", None);
                nodes.ask(&parsed, minute * SPARKPLUG_REBIRTH_MS_MIN);
                if nodes.outgoing().is_some() {
                    asked.push(minute);
                    if answers {
                        begin(nodes, "spBv1.0/g/NBIRTH/e", 0, None).unwrap();
                    }
                }
            }
            asked
        };
        let asked = asked_at(&mut nodes, true, 128);
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 95, 127]);
        // After a gap, a birth helps.
        begin(&mut nodes, topic, 9, None).unwrap();
        nodes.ask(&parsed, 128 * SPARKPLUG_REBIRTH_MS_MIN);
        assert!(nodes.outgoing().is_some());
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, None).unwrap();
        // The clock is set back by two hours: begin anew. A request without an answer may have been lost.
        let asked = asked_at(&mut nodes, false, 5);
        assert_eq!(asked, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn known_nodes_and_metrics_stay_within_limits() {
        let mut nodes = Nodes::new(1);
        for at in 0..SPARKPLUG_NODES_MAX {
            let kind = if at == 3 { "NDATA" } else { "NBIRTH" };
            let topic = format!("spBv1.0/g/{kind}/{at:03}");
            begin(&mut nodes, &topic, 0, None).unwrap();
        }
        let of = |nodes: &Nodes| nodes.figures().iter().map(|node| node.metrics).sum::<u64>();
        assert_eq!(of(&nodes), SPARKPLUG_METRICS_PER_KEY as u64);
        // What only sends data is not followed then, and a birth takes the place of what was never born.
        begin(&mut nodes, "spBv1.0/g/NDATA/x", 0, None).unwrap();
        assert!(nodes.figures().iter().all(|node| node.name != "g/x"));
        let refused = begin(&mut nodes, "spBv1.0/g/DBIRTH/x/d", 0, None);
        assert_eq!(refused, Err(Reason::SparkplugLimit));
        begin(&mut nodes, "spBv1.0/g/NBIRTH/x", 0, None).unwrap();
        let full = nodes.figures();
        assert_eq!(full.len(), SPARKPLUG_NODES_MAX);
        assert!(full.iter().all(|node| node.name != "g/003"));
        for kind in ["NBIRTH", "NDEATH"] {
            let refused = begin(&mut nodes, &format!("spBv1.0/g/{kind}/y"), 0, None);
            assert_eq!(refused, Err(Reason::SparkplugLimit));
        }
        begin(&mut nodes, "spBv1.0/g/NDEATH/005", 0, None).unwrap();
        begin(&mut nodes, "spBv1.0/g/NBIRTH/y", 0, None).unwrap();
        assert!(nodes.figures().iter().all(|node| node.name != "g/005"));
        let long = format!("spBv1.0/g/NDATA/{}", "e".repeat(SPARKPLUG_NAME_BYTES_MAX));
        let refused = begin(&mut nodes, &long, 0, None);
        assert_eq!(refused, Err(Reason::SparkplugLimit));

        let mut nodes = Nodes::new(100);
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, None).unwrap();
        for at in 0..SPARKPLUG_DEVICES_MAX {
            let topic = format!("spBv1.0/g/DBIRTH/e/{at}");
            begin(&mut nodes, &topic, 1, None).unwrap();
        }
        for kind in ["DBIRTH", "DDEATH"] {
            let refused = begin(&mut nodes, &format!("spBv1.0/g/{kind}/e/x"), 1, None);
            assert_eq!(refused, Err(Reason::SparkplugLimit));
        }
        let known = one(&nodes);
        assert_eq!(known.devices, SPARKPLUG_DEVICES_MAX as u64);
        assert_eq!(known.metrics, 100 * SPARKPLUG_METRICS_PER_KEY as u64);
        // All of it is given back.
        begin(&mut nodes, "spBv1.0/g/NDEATH/e", 0, None).unwrap();
        assert_eq!(one(&nodes).metrics, 0);
        begin(&mut nodes, "spBv1.0/g/NBIRTH/e", 0, None).unwrap();
        let known = one(&nodes);
        assert_eq!((known.devices, known.metrics), (0, 1));
    }
}
