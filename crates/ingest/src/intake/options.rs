//! The operator's options for decoding, keys and limits.

use super::{JsonRule, JsonTake, SparkplugRule, TagsForm, Template, TemplateKind, ValueRule};
use crate::line::Precision;

/// How the messages of one subscription become readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRule {
    /// MQTT topic filter; `$share/NAME/` before it is ignored.
    pub filter: String,
    /// Template of the key of a message's reading.
    pub key: Template,
    /// Kind of the payload.
    pub payload: PayloadKind,
    /// What happens to retained messages.
    pub retained: Retained,
}

/// What happens to a retained message: the broker has kept it since before the subscription, for an unknown time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retained {
    /// Readings with their own time are accepted. Others would look new, and are refused as
    /// [`Reason::RetainedUntimed`](super::Reason::RetainedUntimed).
    #[default]
    Timed,
    /// All readings are accepted; those without their own time get the current time, and are never fresh.
    Take,
    /// None is accepted; [`retained_skipped`](super::IntakeCounters::retained_skipped) counts the messages.
    Skip,
}

/// The kind of a message's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// A number as text, `21.5`; the node gives the time.
    Number,
    /// One value as text; the node gives the time.
    Value(ValueRule),
    /// A JSON document of at most [`JSON_BYTES_MAX`](super::JSON_BYTES_MAX) bytes.
    Json(JsonRule),
    /// Lines of line protocol.
    Line,
    /// Messages of Sparkplug B, of at most [`SPARKPLUG_BYTES_MAX`](super::SPARKPLUG_BYTES_MAX) bytes.
    Sparkplug(SparkplugRule),
}

impl PayloadKind {
    /// Returns what the template of the keys can use.
    #[must_use]
    pub fn template_kind(&self) -> TemplateKind {
        match self {
            Self::Line => TemplateKind::TopicAndLine,
            Self::Sparkplug(_) => TemplateKind::Sparkplug,
            Self::Json(json) if matches!(json.take, JsonTake::Several(_)) => {
                TemplateKind::TopicAndPath
            }
            Self::Number | Self::Value(_) | Self::Json(_) => TemplateKind::Topic,
        }
    }
}

/// Rules and limits of an [`Intake`](super::Intake).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeOptions {
    /// The first rule whose filter matches a message's topic decides.
    pub subscriptions: Vec<SubscriptionRule>,
    /// Template of the key of a field of a line from a socket.
    pub line_key: Template,
    /// Unit of the timestamps in lines, from any source.
    pub line_precision: Precision,
    /// Size of the longest stored value in bytes, at most what the database accepts; a number needs 8.
    pub value_bytes_max: usize,
    /// How many seconds a sender's time may be ahead of the node's clock, once that clock is trusted.
    pub future_seconds_max: u64,
    /// How many days a sender's time may be behind the node's clock, once that clock is trusted.
    pub past_days_max: u64,
    /// Number of topics, and of keys of lines, whose object number is cached; each list takes about 300 bytes per
    /// entry, at most 1,300. `keys_max` is a good choice.
    pub topics_cached_max: usize,
}

impl IntakeOptions {
    /// Returns the options with what `{tags}` of the templates stands for.
    #[must_use]
    pub fn with_tags(mut self, form: TagsForm) -> Self {
        self.line_key = self.line_key.with_tags(form);
        for rule in &mut self.subscriptions {
            rule.key = std::mem::replace(&mut rule.key, Template::topic()).with_tags(form);
        }
        self
    }
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

/// What is declared about the keys that match a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRule {
    /// A key, or a pattern with `+` and `#`.
    pub pattern: String,
    /// How long a value counts as fresh, ms.
    pub validity_ms: u32,
    /// Whether readings update the key regularly, so that freshness is calculated for it.
    pub temporal: bool,
    /// Weight of the key's freshness relative to others when updates are shed; above 0.
    pub weight: f64,
    /// What happens to a reading whose update is shed.
    pub shed: db::ShedPolicy,
}

/// Which keys may exist.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRules {
    /// The first rule whose pattern matches a key decides.
    pub rules: Vec<KeyRule>,
    /// Whether a key that matches no pattern may be created.
    pub auto_create: bool,
    /// Largest number of keys; at most the database's `objects_max`.
    pub keys_max: u32,
    /// Validity of keys that match no pattern, in ms.
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
