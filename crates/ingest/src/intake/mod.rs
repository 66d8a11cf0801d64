//! From external bytes to readings: the part that all network sources share.
//!
//! **Holds:** decoding of payloads, the way from a topic or line to a key and an object, limits on times and sizes, and
//! the counts of refusals by reason ([`Intake`]); where readings go ([`Destination`]) and the database as that place
//! ([`NodeDestination`]).
//!
//! **Invariants:** a refusal affects that message, line or reading alone. No sender makes anything grow beyond its
//! limit. No reading of a message is handed over twice because the message had to wait, except over a reload. A refused
//! message creates no object.
//!
//! **Files:** `run.rs` the intake, `members.rs` messages of several values, `options.rs` its options, `decode.rs`
//! payloads, `json.rs` values of documents, `value.rs` kinds of values, `template.rs` keys, `series.rs` which series
//! has a key, `time.rs` which times are accepted, `counters.rs` and `reason.rs` refusals, `node.rs` the database as
//! destination, `rules.rs` the rule of a key, `put.rs` values of puts, `sparkplug/` messages of Sparkplug B.

mod counters;
mod decode;
mod json;
mod members;
mod node;
mod options;
mod put;
mod reason;
mod rules;
mod run;
mod series;
mod sparkplug;
mod template;
mod time;
mod value;

pub(crate) use counters::excerpt;
pub use counters::{EXCERPT_BYTES_MAX, EXCERPT_SHARED_BYTES_MAX, IntakeCounters};
pub use json::{
    ArrayRule, Decision, JSON_BYTES_MAX, JSON_VALUES_MAX, JsonRule, JsonTake, MemberRule,
    MemberRules, PathPattern,
};
pub use node::NodeDestination;
pub use options::{IntakeOptions, KeyRule, KeyRules, PayloadKind, Retained, SubscriptionRule};
pub use put::{PutType, encode_put};
pub use reason::Reason;
pub use run::{Intake, LineOutcome, LineProgress, TOPIC_CACHED_BYTES_MAX};
pub use sparkplug::{
    EDGE_NODE_DEVICES_SHOWN, EdgeNodeFigures, EdgeNodeState, Outgoing, SPARKPLUG_BYTES_MAX,
    SPARKPLUG_DEVICES_MAX, SPARKPLUG_MESSAGE_METRICS_MAX, SPARKPLUG_METRICS_PER_KEY,
    SPARKPLUG_NAME_BYTES_MAX, SPARKPLUG_NODES_MAX, SPARKPLUG_REBIRTH_MS_MIN, SparkplugRule,
};
pub use template::{TEMPLATE_BYTES_MAX, TagsForm, Template, TemplateKind};
pub use time::{TIME_MS_MAX, TIME_MS_MIN, rfc3339};
pub(crate) use value::finite;
pub use value::{ValueKind, ValueRule};

use std::time::Duration;

use db::Time;

/// Where readings go: the database in the node, something else in a measurement or a test.
pub trait Destination: Send + Sync + 'static {
    /// Returns the number of the object with this key, and creates the object if the rules allow it. Callers keep the
    /// number.
    ///
    /// # Errors
    /// The reason why there is no such object.
    fn resolve(&self, key: &str) -> Result<u32, Reason>;

    /// As [`resolve`](Self::resolve), for a key that a template has made of a series. The first series for which this
    /// is asked has the key, for readings by this template and its relatives, also after a restart.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Reason::KeyShared`] if another series has the key: `first` is then that one.
    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason>;

    /// Hands over one reading and returns its number in the log, which is its own. `time` is the sensor's time; without
    /// one the node's clock gives it.
    ///
    /// # Errors
    /// [`PutError`]; then nothing is stored.
    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError>;

    /// As [`put`](Self::put), for a reading of a message that the broker had retained: its arrival says nothing about
    /// its age.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError>;

    /// Returns the number below which all readings are durable.
    fn durable_end(&self) -> u64;

    /// Blocks until [`durable_end`](Self::durable_end) passes `seen` or `timeout` has elapsed; returns its value.
    ///
    /// # Errors
    /// The log has failed for good.
    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone>;

    /// Returns the node's wall clock, in ms since 1970.
    fn wall_ms(&self) -> i64;

    /// Returns whether that clock has been set from a trusted source.
    fn wall_trusted(&self) -> bool;

    /// Is told why the next reading is one, and what is refused. Only an explanation of the configuration needs this.
    fn note(&self, _note: Note<'_>) {}
}

/// A series of which a template has made a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOwner<'a> {
    /// Stands for the template.
    pub template: u32,
    /// Tells the series from all others by what the template names; at most [`db::SERIES_BYTES_MAX`] bytes, and never
    /// empty.
    pub series: &'a str,
    /// Stand for the template, too, in rules that give other names to values of documents.
    pub relatives: &'a [u32],
}

impl<'a> KeyOwner<'a> {
    /// Returns it as the owner of an object's key.
    #[must_use]
    pub fn of(self, object: u32) -> db::Owner<'a> {
        db::Owner {
            id: object,
            template: self.template,
            series: self.series,
        }
    }
}

/// What a destination is told beside readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// The rule with this index decides about the message.
    Rule(usize),
    /// The next reading or refusal is of this value of a JSON document, or of this metric.
    Member {
        /// Its path as levels, or its name.
        path: &'a str,
        /// What takes it.
        decision: Decision,
    },
    /// A message, line or reading is refused.
    Refused {
        /// Why.
        reason: Reason,
        /// The refused item, in pieces.
        what: &'a [&'a [u8]],
    },
}

/// The log has failed for good: nothing more becomes durable until the node starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGone;

/// Why a reading was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutError {
    /// Nothing is accepted at the moment; try again later. `full`: the store is full, not merely slow.
    Wait {
        /// Whether the store is full.
        full: bool,
    },
    /// This reading will never be accepted.
    Refused(Reason),
    /// It was dropped to shed load, as its key's rule says: finished, and not stored.
    Shed,
    /// The log has failed for good.
    Failed,
}

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its readings are durable once the destination's `durable_end` is at least `lsn_end`. Shed readings are counted,
    /// and must not be sent again.
    Accepted {
        /// Number of its last reading, plus one; 0 if none is to become durable.
        lsn_end: u64,
    },
    /// Refused, and counted by reason. The sender must drop it from its queue.
    Refused,
    /// Nothing more is accepted now. Offer the rest again later; everything before `consumed` is taken.
    Wait {
        /// Number of bytes of the payload that are finished.
        consumed: usize,
        /// Whether the store is full.
        full: bool,
    },
    /// The log has failed for good.
    Failed,
}

/// Checks that `key` is a valid key.
///
/// # Errors
/// [`Reason::KeyInvalid`]: it is empty, longer than 255 bytes, holds control or invisible characters, or has a level
/// that every pattern reads as a wildcard.
pub fn check_key(key: &str) -> Result<(), Reason> {
    let fits = (1..=db::KEY_BYTES_MAX).contains(&key.len());
    if fits && base::pattern::check_name(key).is_ok() {
        Ok(())
    } else {
        Err(Reason::KeyInvalid)
    }
}
