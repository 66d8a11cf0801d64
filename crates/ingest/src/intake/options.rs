//! What the operator chooses about decoding, keys and limits.

use super::Template;
use crate::line::Precision;

/// How the messages of one subscription become readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRule {
    /// MQTT topic filter; `$share/NAME/` before it does not count.
    pub filter: String,
    /// Key of a message's reading.
    pub key: Template,
    /// What a message holds.
    pub payload: PayloadKind,
    /// What becomes of messages that the broker has kept.
    pub retained: Retained,
}

/// What becomes of a retained message: one that the broker has kept from before the subscription, for nobody knows how
/// long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retained {
    /// Readings with a time of their own are taken. Others would look new, and are refused as
    /// [`Reason::RetainedUntimed`](super::Reason::RetainedUntimed).
    #[default]
    Timed,
    /// All readings are taken; those without a time of their own count from now.
    Take,
    /// None is taken; [`retained_skipped`](super::IntakeCounters::retained_skipped) counts the messages.
    Skip,
}

/// What a message holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// A number as text, `21.5`; the node gives the time.
    Number,
    /// A JSON document of at most [`JSON_BYTES_MAX`](super::JSON_BYTES_MAX) bytes.
    Json {
        /// Where the value lies: names of members (or numbers of elements) separated by dots; empty: the
        /// document itself.
        field: String,
        /// Where the time lies, in ms since 1970 or as RFC 3339 text; without one the node gives it.
        time_field: Option<String>,
    },
    /// Lines of line protocol.
    Line,
}

/// Rules and limits of an [`Intake`](super::Intake).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeOptions {
    /// The first whose filter fits a message's topic decides.
    pub subscriptions: Vec<SubscriptionRule>,
    /// Key of a field of a line that came in by a socket.
    pub line_key: Template,
    /// Unit of the timestamps in lines, however they came.
    pub line_precision: Precision,
    /// Bytes of the longest stored value, at most what the database takes; a number needs 8.
    pub value_bytes_max: usize,
    /// Seconds that a sender's time may lie ahead of the node's clock, once that is trusted.
    pub future_seconds_max: u64,
    /// Days that a sender's time may lie behind the node's clock, once that is trusted.
    pub past_days_max: u64,
    /// Topics, and keys of lines, whose object's number is kept at hand; each list takes some 300 bytes for
    /// each, at most 1,300. `keys_max` is a good choice.
    pub topics_cached_max: usize,
}

impl Default for IntakeOptions {
    fn default() -> Self {
        Self {
            subscriptions: Vec::new(),
            line_key: Template::line(),
            line_precision: Precision::default(),
            value_bytes_max: 64,
            future_seconds_max: 300,
            past_days_max: 3650,
            topics_cached_max: 4096,
        }
    }
}

/// What is declared about the keys that fit a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRule {
    /// A key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// How long a value counts as fresh, ms.
    pub validity_ms: u32,
    /// Whether readings update the key regularly, so that freshness is counted for it.
    pub temporal: bool,
    /// How much the key's freshness counts beside that of others when updates are left out; above 0.
    pub weight: f64,
    /// What becomes of a reading whose update is left out.
    pub shed: db::ShedPolicy,
}

/// Which keys there may be.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRules {
    /// The first whose pattern fits a key decides.
    pub rules: Vec<KeyRule>,
    /// Whether a key that fits none may be made.
    pub auto_create: bool,
    /// Keys in all; at most the database's `objects_max`.
    pub keys_max: u32,
    /// Validity of keys that fit no pattern, ms.
    pub default_validity_ms: u32,
}

impl Default for KeyRules {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            auto_create: false,
            keys_max: 4096,
            default_validity_ms: 60_000,
        }
    }
}
