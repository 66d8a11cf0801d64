//! Edge nodes of Sparkplug in the status: figures, judgement, text.

use super::text::plural;
use ingest::intake::{EdgeNodeFigures as Found, EdgeNodeState};
use serde::{Deserialize, Serialize};

/// Names in one reason; the list of edge nodes has all.
const NAMES_SHOWN: usize = 8;
/// Bytes of a name that are shown, and names of dead devices in the whole list. Messages bring the names, and the whole
/// status must fit into one answer of the node's socket.
const NAME_BYTES_SHOWN: usize = 96;
const DEVICES_SHOWN: usize = 128;

/// An edge node of which something has come. Counts start then.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct EdgeNodeFigures {
    /// Group and edge node.
    pub name: String,
    /// `unborn`, `alive` or `dead`.
    pub state: String,
    /// Devices of which something has come.
    pub devices: u64,
    /// Those of them that are dead.
    pub devices_dead: u64,
    /// The first names of dead devices.
    pub devices_dead_first: Vec<String>,
    /// Metrics that births have named.
    pub metrics: u64,
    /// Births of the edge node.
    pub births: u64,
    /// Its deaths.
    pub deaths: u64,
    /// Deaths of an earlier session, which do not count.
    pub deaths_of_earlier: u64,
    /// Places where numbered messages are missing.
    pub gaps: u64,
    /// Whether messages are missing since the birth.
    pub has_gap: bool,
    /// Whether metrics were refused since the birth because no birth names them.
    pub lacks_birth: bool,
    /// Requests for a birth that the node has sent.
    pub rebirths_asked: u64,
}

impl EdgeNodeFigures {
    /// Returns the list of all edge nodes.
    pub(crate) fn list(found: &[Found]) -> Vec<Self> {
        let mut left = DEVICES_SHOWN;
        let bounded = |found: &Found| {
            let mut figures = Self::of(found);
            figures.devices_dead_first.truncate(left);
            left -= figures.devices_dead_first.len();
            figures
        };
        found.iter().map(bounded).collect()
    }

    fn of(found: &Found) -> Self {
        let devices = found.devices_dead_first.iter();
        Self {
            name: shown(&found.name),
            state: found.state.name().to_owned(),
            devices: found.devices,
            devices_dead: found.devices_dead,
            devices_dead_first: devices.map(|name| shown(name)).collect(),
            metrics: found.metrics,
            births: found.births,
            deaths: found.deaths,
            deaths_of_earlier: found.deaths_of_earlier,
            gaps: found.gaps,
            has_gap: found.has_gap,
            lacks_birth: found.lacks_birth,
            rebirths_asked: found.rebirths_asked,
        }
    }

    fn is_dead(&self) -> bool {
        self.state == EdgeNodeState::Dead.name()
    }

    /// Returns how much is dead. The devices of a dead edge node are dead with it.
    fn dead_count(&self) -> u64 {
        match self.is_dead() {
            true => 1,
            false => self.devices_dead,
        }
    }

    /// Returns the names of what is dead; of devices, the first ones.
    fn dead(&self) -> Vec<String> {
        if self.is_dead() {
            return vec![self.name.clone()];
        }
        let devices = self.devices_dead_first.iter();
        devices
            .map(|device| format!("{} device {device}", self.name))
            .collect()
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        let state = match self.is_dead() {
            true => "DEAD",
            false => self.state.as_str(),
        };
        let mut text = format!(
            "{} {state}: {}, {}",
            self.name,
            plural(self.devices, "device", "devices"),
            plural(self.metrics, "metric", "metrics")
        );
        for (count, one, many) in [
            (
                self.devices_dead,
                "of the devices dead",
                "of the devices dead",
            ),
            (self.gaps, "gap in its messages", "gaps in its messages"),
            (
                self.rebirths_asked,
                "request for its birth",
                "requests for its birth",
            ),
        ] {
            if count > 0 {
                text.push_str("; ");
                text.push_str(&plural(count, one, many));
            }
        }
        if self.lacks_birth {
            text.push_str("; metrics without a birth");
        }
        text
    }
}

/// Returns a name without control characters, which are escaped, and not longer than it may be.
fn shown(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        let end = text.len();
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
        if text.len() > NAME_BYTES_SHOWN {
            text.truncate(end);
            text.push('…');
            break;
        }
    }
    text
}

/// Adds the reasons of edge nodes.
pub(super) fn judge(nodes: &[EdgeNodeFigures], add: &mut impl FnMut(&str, String)) {
    let dead: Vec<String> = nodes.iter().flat_map(EdgeNodeFigures::dead).collect();
    if !dead.is_empty() {
        let text = format!(
            "gone, as Sparkplug tells (NDEATH, DDEATH, or no birth after that of the edge node): {}; the latest values \
             of these are old, and stay so until they are born again: look at their power and their connection to the \
             broker",
            named(&dead, nodes.iter().map(EdgeNodeFigures::dead_count).sum())
        );
        add("sparkplug_dead", text);
    }
    let is_missing =
        |node: &&EdgeNodeFigures| (node.lacks_birth || node.has_gap) && !node.is_dead();
    let missing: Vec<&EdgeNodeFigures> = nodes.iter().filter(is_missing).collect();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|node| node.name.clone()).collect();
        let remedy = match missing.iter().all(|node| node.rebirths_asked > 0) {
            true => {
                "the node has asked for births, and none has helped so far: the broker may not let it send to \
                 spBv1.0/+/NCMD/+, or the births leave out metrics"
            }
            false => {
                "restart the edge node, or set sparkplug_rebirth = true so that the node may ask for a birth"
            }
        };
        let text = format!(
            "messages of edge nodes are missing, a birth perhaps: {}; metrics without a known name are refused \
             (sparkplug_unknown_alias, sparkplug_no_birth): {remedy}",
            named(&names, names.len() as u64)
        );
        add("sparkplug_birth_missing", text);
    }
}

/// Returns the first names, and how many there are beside, of `count` in all.
fn named(names: &[String], count: u64) -> String {
    let first = names.get(..NAMES_SHOWN).unwrap_or(names);
    let beside = count.saturating_sub(first.len() as u64);
    let first = first.join(", ");
    match beside {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Judgement, NodeFigures, State, judge as judge_all};
    use super::*;
    use ingest::intake::{EDGE_NODE_DEVICES_SHOWN, SPARKPLUG_NAME_BYTES_MAX, SPARKPLUG_NODES_MAX};
    use libkeel::protocol::ANSWER_BYTES_MAX;

    fn found(name: &str, state: EdgeNodeState) -> Found {
        Found {
            name: name.to_owned(),
            state,
            devices: 2,
            metrics: 1_200,
            births: 1,
            ..Found::default()
        }
    }

    fn judged(nodes: Vec<Found>) -> Judgement {
        let mut figures = NodeFigures::default();
        figures.clock.trusted = true;
        figures.sparkplug = EdgeNodeFigures::list(&nodes);
        judge_all(&figures)
    }

    #[test]
    fn dead_edge_nodes_and_devices_are_named() {
        let alive = found("plant/line1", EdgeNodeState::Alive);
        assert_eq!(judged(vec![alive.clone()]).state, State::Ok);
        let mut with_device = found("plant/line2", EdgeNodeState::Alive);
        with_device.devices_dead = 1;
        with_device.devices_dead_first = vec!["press".to_owned()];
        let dead = found("plant/line3", EdgeNodeState::Dead);
        let Judgement { state, reasons } = judged(vec![alive, with_device, dead]);
        assert_eq!(state, State::Degraded);
        let [reason] = &reasons[..] else {
            panic!("{reasons:?}");
        };
        assert_eq!(reason.code, "sparkplug_dead");
        let names = "plant/line2 device press, plant/line3;";
        assert!(reason.text.contains(names), "{}", reason.text);
        // Many of them do not fill the page.
        let many = (0..20).map(|at| found(&format!("g/{at:02}"), EdgeNodeState::Dead));
        let text = judged(many.collect()).reasons.remove(0).text;
        assert!(text.contains("g/07 and 12 more;"), "{text}");
        let mut with_devices = found("g/e", EdgeNodeState::Alive);
        with_devices.devices_dead = 30;
        with_devices.devices_dead_first = vec!["a".to_owned(), "b".to_owned()];
        let text = judged(vec![with_devices]).reasons.remove(0).text;
        let names = "g/e device a, g/e device b and 28 more;";
        assert!(text.contains(names), "{text}");
    }

    #[test]
    fn a_birth_that_is_missing_has_its_remedy() {
        for (has_gap, lacks_birth, asked, remedy) in [
            (true, false, 0, "sparkplug_rebirth = true"),
            (false, true, 0, "sparkplug_rebirth = true"),
            (false, true, 3, "none has helped so far"),
        ] {
            let mut node = found("plant/line1", EdgeNodeState::Alive);
            (node.has_gap, node.lacks_birth) = (has_gap, lacks_birth);
            node.rebirths_asked = asked;
            let reasons = judged(vec![node]).reasons;
            assert_eq!(reasons[0].code, "sparkplug_birth_missing");
            assert!(reasons[0].text.contains(remedy), "{}", reasons[0].text);
        }
    }

    #[test]
    fn the_line_of_an_edge_node_names_its_faults() {
        let mut node = found("plant/line1", EdgeNodeState::Alive);
        let line = |node: &Found| EdgeNodeFigures::of(node).line();
        assert_eq!(line(&node), "plant/line1 alive: 2 devices, 1,200 metrics");
        (node.gaps, node.devices_dead, node.lacks_birth) = (3, 1, true);
        assert_eq!(
            line(&node),
            "plant/line1 alive: 2 devices, 1,200 metrics; 1 of the devices dead; 3 gaps in its messages; metrics \
             without a birth"
        );
        node.state = EdgeNodeState::Dead;
        assert!(line(&node).starts_with("plant/line1 DEAD: "));
    }

    #[test]
    fn the_list_of_edge_nodes_is_bounded_and_printable_for_all_names() {
        for letter in ["\u{1}", "\\", "ü"] {
            let name = letter.repeat(SPARKPLUG_NAME_BYTES_MAX / letter.len());
            let node = Found {
                devices: u64::MAX,
                devices_dead: u64::MAX,
                devices_dead_first: vec![name.clone(); EDGE_NODE_DEVICES_SHOWN],
                gaps: u64::MAX,
                ..found(&name, EdgeNodeState::Alive)
            };
            let list = EdgeNodeFigures::list(&vec![node; SPARKPLUG_NODES_MAX]);
            let bytes = serde_json::to_vec(&list).unwrap().len();
            assert!(bytes < ANSWER_BYTES_MAX * 5 / 8, "{bytes}");
            let first = &list[0];
            assert_eq!(first.devices_dead_first.len(), EDGE_NODE_DEVICES_SHOWN);
            assert!(first.name.ends_with('…') && !first.name.contains(char::is_control));
        }
        assert_eq!(shown("plant/line\u{1b}1"), "plant/line\\u{1b}1");
    }
}
