//! Payloads of Sparkplug B, as its protobuf schema describes them.
//!
//! The metrics of a payload stay packed until each is read for itself: a bad one affects no other. Each metric has two
//! bytes at least and takes 32 bytes more. So the longest payload takes 25 MiB at most while it is unpacked. Then a
//! payload of too many metrics is refused. What has no scalar value stays packed for good, so nothing is nested.

use bytes::Bytes;
use prost::Message;

use super::{SPARKPLUG_BYTES_MAX, SPARKPLUG_MESSAGE_METRICS_MAX};
use crate::intake::Reason;

/// The metric that numbers the sessions of an edge node: its birth and its death have the same number.
pub(super) const SESSION: &str = "bdSeq";

/// The number of the type of truth values.
pub(super) const BOOLEAN: u32 = 11;

/// The metric of an edge node that asks for its birth.
const REBIRTH: &str = "Node Control/Rebirth";

/// A payload.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Payload {
    /// When it was sent, in ms since 1970.
    #[prost(uint64, optional, tag = "1")]
    pub(super) timestamp: Option<u64>,
    /// The metrics, each packed.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) metrics: Vec<Bytes>,
    /// The number of the message, 0 to 255.
    #[prost(uint64, optional, tag = "3")]
    pub(super) seq: Option<u64>,
    /// What the body is.
    #[prost(string, optional, tag = "4")]
    pub(super) uuid: Option<String>,
    /// Data of any form, in place of metrics.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(super) body: Option<Bytes>,
}

/// A metric. What describes it (`metadata`, `properties`) is not read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    /// What stands for the name after the birth.
    #[prost(uint64, optional, tag = "2")]
    pub(super) alias: Option<u64>,
    /// When the value was measured, in ms since 1970.
    #[prost(uint64, optional, tag = "3")]
    pub(super) timestamp: Option<u64>,
    /// The number of the type; births have it.
    #[prost(uint32, optional, tag = "4")]
    pub(super) datatype: Option<u32>,
    /// The value is not the present one.
    #[prost(bool, optional, tag = "5")]
    pub(super) is_historical: Option<bool>,
    /// A historian need not store the value.
    #[prost(bool, optional, tag = "6")]
    pub(super) is_transient: Option<bool>,
    /// There is no value.
    #[prost(bool, optional, tag = "7")]
    pub(super) is_null: Option<bool>,
    #[prost(oneof = "Sent", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19")]
    pub(super) value: Option<Sent>,
}

/// A value as it was sent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Sent {
    #[prost(uint32, tag = "10")]
    Int(u32),
    #[prost(uint64, tag = "11")]
    Long(u64),
    #[prost(float, tag = "12")]
    Float(f32),
    #[prost(double, tag = "13")]
    Double(f64),
    #[prost(bool, tag = "14")]
    Boolean(bool),
    #[prost(string, tag = "15")]
    Text(String),
    #[prost(bytes = "bytes", tag = "16")]
    Bytes(Bytes),
    /// A table.
    #[prost(bytes = "bytes", tag = "17")]
    DataSet(Bytes),
    /// Metrics in a metric.
    #[prost(bytes = "bytes", tag = "18")]
    Template(Bytes),
    #[prost(bytes = "bytes", tag = "19")]
    Extension(Bytes),
}

impl Payload {
    /// Unpacks a payload, but not its metrics.
    ///
    /// # Errors
    /// [`Reason::Oversized`], [`Reason::SparkplugInvalid`].
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Reason> {
        if bytes.len() > SPARKPLUG_BYTES_MAX {
            return Err(Reason::Oversized);
        }
        let payload = Self::decode(Bytes::copy_from_slice(bytes));
        let payload = payload.map_err(|_| Reason::SparkplugInvalid)?;
        match payload.metrics.len() > SPARKPLUG_MESSAGE_METRICS_MAX {
            true => Err(Reason::Oversized),
            false => Ok(payload),
        }
    }

    /// Returns the number of the edge node's session, if the payload has it.
    pub(super) fn session(&self) -> Option<u64> {
        let metrics = self.metrics.iter();
        let mut metrics = metrics.filter_map(|bytes| Metric::of(bytes).ok());
        let metric = metrics.find(|metric| metric.name.as_deref() == Some(SESSION))?;
        match metric.value? {
            Sent::Int(number) => Some(number.into()),
            Sent::Long(number) => Some(number),
            _ => None,
        }
    }
}

impl Metric {
    /// Unpacks a metric.
    ///
    /// # Errors
    /// [`Reason::SparkplugInvalid`].
    pub(super) fn of(bytes: &Bytes) -> Result<Self, Reason> {
        Self::decode(bytes.clone()).map_err(|_| Reason::SparkplugInvalid)
    }
}

/// Returns the payload of a command that asks an edge node for its birth.
pub(super) fn rebirth(now_ms: i64) -> Vec<u8> {
    let now_ms = u64::try_from(now_ms).unwrap_or_default();
    let metric = Metric {
        name: Some(REBIRTH.to_owned()),
        timestamp: Some(now_ms),
        datatype: Some(BOOLEAN),
        value: Some(Sent::Boolean(true)),
        ..Metric::default()
    };
    let payload = Payload {
        timestamp: Some(now_ms),
        metrics: vec![Bytes::from(metric.encode_to_vec())],
        ..Payload::default()
    };
    payload.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_for_a_birth_is_the_one_of_the_specification() {
        // Field 1, the time; field 2, the metric: its name, its time, type 11, true.
        let mut expected = vec![0x08, 0x05, 0x12, 0x1c, 0x0a, 0x14];
        expected.extend_from_slice(REBIRTH.as_bytes());
        expected.extend_from_slice(&[0x18, 0x05, 0x20, 0x0b, 0x70, 0x01]);
        assert_eq!(rebirth(5), expected);
        assert_eq!(rebirth(-1)[..2], [0x08, 0x00]);
    }

    #[test]
    fn bytes_that_are_no_payload_are_refused_and_a_bad_metric_affects_itself() {
        let long = vec![0; SPARKPLUG_BYTES_MAX + 1];
        assert_eq!(Payload::of(&long), Err(Reason::Oversized));
        let mut many = [0x12_u8, 0x00].repeat(SPARKPLUG_MESSAGE_METRICS_MAX);
        assert!(Payload::of(&many).is_ok());
        many.extend_from_slice(&[0x12, 0x00]);
        assert_eq!(Payload::of(&many), Err(Reason::Oversized));
        for bytes in [&b"21.5"[..], b"{}", b"\x12\x05\x0a", b"\xff"] {
            assert_eq!(Payload::of(bytes), Err(Reason::SparkplugInvalid));
        }
        // A name that is not UTF-8, then the alias 7.
        let payload = Payload::of(b"\x12\x03\x0a\x01\xff\x12\x02\x10\x07\x18\x03").unwrap();
        assert_eq!((payload.metrics.len(), payload.seq), (2, Some(3)));
        assert_eq!(
            Metric::of(&payload.metrics[0]),
            Err(Reason::SparkplugInvalid)
        );
        let second = Metric::of(&payload.metrics[1]).unwrap();
        assert_eq!((second.name, second.alias), (None, Some(7)));
        // Fields that no version of the schema has are left out, however deep they are.
        let strange = Payload::of(b"\x3a\x02\x0a\x00").unwrap();
        assert_eq!(strange, Payload::default());
    }

    #[test]
    fn a_session_has_a_number_of_either_size() {
        let numbered = |value: &[u8]| {
            let mut metric = b"\x0a\x05bdSeq".to_vec();
            metric.extend_from_slice(value);
            let mut bytes = vec![0x12, u8::try_from(metric.len()).unwrap()];
            bytes.extend(metric);
            Payload::of(&bytes).unwrap().session()
        };
        assert_eq!(numbered(b"\x58\x03"), Some(3));
        assert_eq!(numbered(b"\x50\x04"), Some(4));
        assert_eq!(numbered(b"\x7a\x011"), None);
        assert_eq!(numbered(b""), None);
        assert_eq!(Payload::default().session(), None);
    }
}
