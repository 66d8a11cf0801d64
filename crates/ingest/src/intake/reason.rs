//! Why input was refused.

/// One reason; each has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Bytes that are not UTF-8, where text is expected.
    InvalidUtf8,
    /// The payload, or a member of it, is not of the kind that the configuration says, or it is empty where lines are
    /// expected.
    PayloadInvalid,
    /// The payload is not JSON, or nested deeper than 127 levels.
    JsonInvalid,
    /// The JSON lacks the configured field or time field, or the field is not a number, text or (except for a time)
    /// truth value. Or the JSON, or an element of its array, holds none of several fields.
    JsonFieldMissing,
    /// Not a line of line protocol.
    LineInvalid,
    /// NaN or infinite.
    NotFinite,
    /// A line, packet or payload above its limit, a line with too many tags or fields, or a document or message with
    /// too many values.
    Oversized,
    /// The value is longer than `value_bytes_max`.
    ValueTooLong,
    /// The key is empty, longer than 255 bytes, holds control or invisible characters, or has a level that is `+` or
    /// `#` alone.
    KeyInvalid,
    /// The template gives the reading a key that another series owns.
    KeyShared,
    /// No declared pattern matches the key and `auto_create` is off.
    KeyUnknown,
    /// `keys_max` keys exist already, or their names take all bytes of `key_bytes_mean`.
    KeysMax,
    /// No subscription matches the topic.
    TopicUnmatched,
    /// The time is too far in the past or the future, or is invalid.
    TimeAbsurd,
    /// A packet that breaks the protocol.
    PacketInvalid,
    /// The broker has kept the message for an unknown time, and the reading has no time of its own.
    RetainedUntimed,
    /// A whole number that no kind of value holds exactly.
    NumberInexact,
    /// The topic is none of Sparkplug, or the payload or metric is no protobuf of its schema. Or it lacks a part that a
    /// message of its kind must have.
    SparkplugInvalid,
    /// The metric has an alias that no birth has given, or that a birth has given to two metrics.
    SparkplugUnknownAlias,
    /// The metric has a name without a type, and no birth says its type.
    SparkplugNoBirth,
    /// The metric is a data set, a template, bytes, a file or an array, or the payload has a body: no scalar value.
    SparkplugType,
    /// There are as many edge nodes, devices or named metrics as may be followed, or their names are too long.
    SparkplugLimit,
}

impl Reason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 22] = [
        Self::InvalidUtf8,
        Self::PayloadInvalid,
        Self::JsonInvalid,
        Self::JsonFieldMissing,
        Self::LineInvalid,
        Self::NotFinite,
        Self::Oversized,
        Self::ValueTooLong,
        Self::KeyInvalid,
        Self::KeyShared,
        Self::KeyUnknown,
        Self::KeysMax,
        Self::TopicUnmatched,
        Self::TimeAbsurd,
        Self::PacketInvalid,
        Self::RetainedUntimed,
        Self::NumberInexact,
        Self::SparkplugInvalid,
        Self::SparkplugUnknownAlias,
        Self::SparkplugNoBirth,
        Self::SparkplugType,
        Self::SparkplugLimit,
    ];

    /// Returns its index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its name in status output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidUtf8 => "invalid_utf8",
            Self::PayloadInvalid => "payload_invalid",
            Self::JsonInvalid => "json_invalid",
            Self::JsonFieldMissing => "json_field_missing",
            Self::LineInvalid => "line_invalid",
            Self::NotFinite => "not_finite",
            Self::Oversized => "oversized",
            Self::ValueTooLong => "value_too_long",
            Self::KeyInvalid => "key_invalid",
            Self::KeyShared => "key_shared",
            Self::KeyUnknown => "key_unknown",
            Self::KeysMax => "keys_max",
            Self::TopicUnmatched => "topic_unmatched",
            Self::TimeAbsurd => "time_absurd",
            Self::PacketInvalid => "packet_invalid",
            Self::RetainedUntimed => "retained_untimed",
            Self::NumberInexact => "number_inexact",
            Self::SparkplugInvalid => "sparkplug_invalid",
            Self::SparkplugUnknownAlias => "sparkplug_unknown_alias",
            Self::SparkplugNoBirth => "sparkplug_no_birth",
            Self::SparkplugType => "sparkplug_type",
            Self::SparkplugLimit => "sparkplug_limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place_and_name() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            let same = Reason::ALL
                .iter()
                .filter(|other| other.name() == reason.name());
            assert_eq!(same.count(), 1);
        }
    }
}
