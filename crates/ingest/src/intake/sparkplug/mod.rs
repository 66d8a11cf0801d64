//! Messages of Sparkplug B, version 3.0: what edge nodes and their devices send.
//!
//! **Holds:** what a message says, what its values are, and what must be known from earlier messages: the names and
//! types that a birth gives to aliases, and which nodes are alive.
//!
//! **Invariants:** a metric that cannot be read affects no other metric. No alias gets a name that no birth has given
//! it. What is known of all edge nodes together stays within limits under any input.
//!
//! **Files:** `topic.rs` topics, `message.rs` payloads, `types.rs` types and values, `names.rs` names of metrics,
//! `nodes.rs` edge nodes and devices, `figures.rs` what people are shown of them, `run.rs` the path of a message.

mod figures;
mod message;
mod names;
mod nodes;
mod run;
mod topic;
mod types;

pub use figures::{EDGE_NODE_DEVICES_SHOWN, EdgeNodeFigures, EdgeNodeState};
pub(super) use nodes::Nodes;

/// Size of the longest payload, in bytes. A birth names each metric once; one of 10,000 metrics takes about half of it.
pub const SPARKPLUG_BYTES_MAX: usize = 1 << 20;

/// Number of metrics that a message may have. Each that is refused is counted for itself, which takes its time.
pub const SPARKPLUG_MESSAGE_METRICS_MAX: usize = 16_384;

/// Number of edge nodes that are followed. Those that are not alive make room for new ones.
pub const SPARKPLUG_NODES_MAX: usize = 256;

/// Number of devices that are followed, of all edge nodes together.
pub const SPARKPLUG_DEVICES_MAX: usize = 4096;

/// Number of metrics whose names and types are kept, of all edge nodes together, for each key that may exist. There are
/// more of them than keys: some have no scalar value, and others no declared key.
pub const SPARKPLUG_METRICS_PER_KEY: usize = 4;

/// Size of the longest name of a metric, and of a group, an edge node and a device together, in bytes.
pub const SPARKPLUG_NAME_BYTES_MAX: usize = 255;

/// Shortest time between two requests for the birth of one edge node, in ms.
pub const SPARKPLUG_REBIRTH_MS_MIN: i64 = 60_000;

/// How messages of Sparkplug are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparkplugRule {
    /// Whether an edge node is asked for its birth (a command, `Node Control/Rebirth`) when one is missing.
    pub rebirth: bool,
}

/// A message that the node sends to the broker it gets messages from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its topic.
    pub topic: String,
    /// Its payload.
    pub payload: Vec<u8>,
}
