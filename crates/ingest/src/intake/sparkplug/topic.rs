//! Topics of Sparkplug: `spBv1.0/GROUP/KIND/EDGE_NODE/DEVICE`.

const NAMESPACE: &str = "spBv1.0/";

/// Topics of hosts, which say whether they are there: `spBv1.0/STATE/HOST`.
const STATE: &str = "STATE";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All metrics, with their names, types and values.
    Birth,
    /// Values that have changed.
    Data,
    /// The edge node, or the device, is gone.
    Death,
}

/// The topic of an edge node's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Topic<'t> {
    pub(super) kind: Kind,
    pub(super) group: &'t str,
    pub(super) edge: &'t str,
    /// The device, if the message is of one.
    pub(super) device: Option<&'t str>,
}

/// What a topic stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'t> {
    /// A message of an edge node.
    Edge(Topic<'t>),
    /// A command to an edge node or device, or the state of a host: no readings.
    Other,
}

/// Takes a topic apart; `None` if it is no topic of Sparkplug.
pub(super) fn parse(topic: &str) -> Option<Found<'_>> {
    let mut levels = topic.strip_prefix(NAMESPACE)?.split('/');
    let (group, verb) = (levels.next()?, levels.next()?);
    let Some(edge) = levels.next() else {
        return (group == STATE && !verb.is_empty()).then_some(Found::Other);
    };
    let device = levels.next();
    if levels.next().is_some() || [Some(group), Some(edge), device].contains(&Some("")) {
        return None;
    }
    let (of_device, kind) = match verb {
        "NBIRTH" => (false, Some(Kind::Birth)),
        "NDATA" => (false, Some(Kind::Data)),
        "NDEATH" => (false, Some(Kind::Death)),
        "NCMD" => (false, None),
        "DBIRTH" => (true, Some(Kind::Birth)),
        "DDATA" => (true, Some(Kind::Data)),
        "DDEATH" => (true, Some(Kind::Death)),
        "DCMD" => (true, None),
        _ => return None,
    };
    if of_device != device.is_some() {
        return None;
    }
    let topic = |kind| {
        Found::Edge(Topic {
            kind,
            group,
            edge,
            device,
        })
    };
    Some(kind.map_or(Found::Other, topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_follow_the_specification() {
        let edge = |kind, device| {
            Some(Found::Edge(Topic {
                kind,
                group: "g",
                edge: "e",
                device,
            }))
        };
        for (topic, expected) in [
            ("spBv1.0/g/NBIRTH/e", edge(Kind::Birth, None)),
            ("spBv1.0/g/NDATA/e", edge(Kind::Data, None)),
            ("spBv1.0/g/NDEATH/e", edge(Kind::Death, None)),
            ("spBv1.0/g/DBIRTH/e/d", edge(Kind::Birth, Some("d"))),
            ("spBv1.0/g/DDATA/e/d", edge(Kind::Data, Some("d"))),
            ("spBv1.0/g/DDEATH/e/d", edge(Kind::Death, Some("d"))),
            ("spBv1.0/g/NCMD/e", Some(Found::Other)),
            ("spBv1.0/g/DCMD/e/d", Some(Found::Other)),
            ("spBv1.0/STATE/host", Some(Found::Other)),
            ("spBv1.0/STATE/", None),
            ("spBv1.0/g/NDATA", None),
            ("spBv1.0/g/NDATA/e/d", None),
            ("spBv1.0/g/DDATA/e", None),
            ("spBv1.0/g/DDATA/e/", None),
            ("spBv1.0/g/DDATA/e/d/x", None),
            ("spBv1.0//NDATA/e", None),
            ("spBv1.0/g/NDATA/", None),
            ("spBv1.0/g/ndata/e", None),
            ("spAv1.0/g/NDATA/e", None),
            ("spBv1.0", None),
            ("", None),
        ] {
            assert_eq!(parse(topic), expected, "{topic}");
        }
    }
}
