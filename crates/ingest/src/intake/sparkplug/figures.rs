//! What people are shown of edge nodes.

/// Number of devices whose names are shown.
pub const EDGE_NODE_DEVICES_SHOWN: usize = 8;

/// Whether an edge node is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EdgeNodeState {
    /// Something of it has come, and no birth.
    #[default]
    Unborn,
    /// Its birth has come, and no death since.
    Alive,
    /// Its death has come, and no birth since.
    Dead,
}

impl EdgeNodeState {
    /// Returns its name in status output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unborn => "unborn",
            Self::Alive => "alive",
            Self::Dead => "dead",
        }
    }
}

/// An edge node at one moment. Counts begin when it was first heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeNodeFigures {
    /// Group and edge node, `group/edge`.
    pub name: String,
    /// Whether it is there.
    pub state: EdgeNodeState,
    /// Its devices of which something has come since its birth, or that were alive before.
    pub devices: u64,
    /// Those of them that are dead.
    pub devices_dead: u64,
    /// The names of these, at most [`EDGE_NODE_DEVICES_SHOWN`].
    pub devices_dead_first: Vec<String>,
    /// Metrics whose names and types are known, with those of its devices.
    pub metrics: u64,
    /// Births of the edge node.
    pub births: u64,
    /// Deaths of the edge node that count.
    pub deaths: u64,
    /// Deaths of an earlier session, which say nothing about the present one.
    pub deaths_of_earlier: u64,
    /// Places where messages of it are missing, as numbers of messages and sessions tell.
    pub gaps: u64,
    /// Whether messages are missing since its birth: one of them may have been a birth.
    pub has_gap: bool,
    /// Whether metrics were refused since its birth because no birth names them.
    pub lacks_birth: bool,
    /// How often it was asked for its birth.
    pub rebirths_asked: u64,
}
