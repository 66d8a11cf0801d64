//! What the node and its clients say to each other; `NODE.md` beside this crate's manifest specifies every field.

use db::value::Value;
use serde::{Deserialize, Serialize, Serializer};

/// Version of every message here.
pub(crate) const VERSION: u16 = 1;

/// Bytes of the longest request.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Bytes of the longest answer.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Bytes after which an answer that holds a list ends; its last element may pass it.
pub(crate) const LIST_BYTES: usize = 64 << 10;

/// What a frame is. Requests are below 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    Get = 1,
    Put = 2,
    Watch = 3,
    History = 4,
    Status = 5,
    Value = 257,
    Stored = 258,
    Updates = 259,
    Readings = 260,
    State = 261,
    End = 262,
    Error = 511,
}

impl Kind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Get,
        Self::Put,
        Self::Watch,
        Self::History,
        Self::Status,
        Self::Value,
        Self::Stored,
        Self::Updates,
        Self::Readings,
        Self::State,
        Self::End,
        Self::Error,
    ];

    /// The kind with this number.
    pub(crate) fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Request: the latest value of a key.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Get {
    pub(crate) key: String,
}

/// Request: store a reading and answer once it is durable.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Put {
    pub(crate) key: String,
    /// A number, a truth value or a text.
    pub(crate) value: serde_json::Value,
    /// The sensor's time, ms since 1970; absent: the node's clock gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_ms: Option<i64>,
}

/// Request: changes of the keys that fit a pattern, until the client sends anything or goes.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watch {
    pub(crate) pattern: String,
    /// Whether the values at the beginning are sent, too.
    #[serde(default)]
    pub(crate) current: bool,
}

/// Request: readings of a key, in the order of arrival.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct History {
    pub(crate) key: String,
    /// Earliest time, ms since 1970; absent: the earliest there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_ms: Option<i64>,
    /// First time no longer wanted; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to_ms: Option<i64>,
    /// Readings at most; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
}

/// Request: the node's state.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Status {}

/// Answer to [`Get`], and one element of [`Updates`].
#[derive(Debug, Serialize)]
pub(crate) struct Latest<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: Shown<'a>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) time_ms: i64,
    /// Time since the sensor's time, ms; negative for a time in the future.
    pub(crate) age_ms: i64,
    pub(crate) fresh: bool,
    pub(crate) validity_ms: u32,
    /// Whether readings are expected, so that freshness means anything.
    pub(crate) temporal: bool,
    /// Whether the node's clock gave the time, not the sensor.
    pub(crate) node_time: bool,
    /// Whether the node's wall clock was trusted when the reading arrived.
    pub(crate) clock_trusted: bool,
    /// Whether it arrived since this machine started.
    pub(crate) this_boot: bool,
}

/// Answer to [`Put`]: the reading is on flash.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Stored {
    /// Number of the reading in the log.
    pub(crate) lsn: u64,
}

/// One reading of an answer to [`History`].
#[derive(Debug, Serialize)]
pub(crate) struct Reading<'a> {
    pub(crate) time_ms: i64,
    pub(crate) value: Shown<'a>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The time as it was recorded, where it has been corrected since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded_ms: Option<i64>,
    /// Whether the node's clock gave the time, not the sensor.
    pub(crate) node_time: bool,
    /// Whether that clock was trusted at arrival.
    pub(crate) clock_trusted: bool,
    pub(crate) lsn: u64,
}

/// Answer that ends a stream of others.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct End {
    /// Readings or updates sent.
    pub(crate) sent: u64,
    /// Changes that a watch did not show.
    pub(crate) missed: u64,
    /// Segments of the log, and how many of them were read, ruled out by the index, or gone meanwhile.
    pub(crate) segments_total: u64,
    pub(crate) segments_read: u64,
    pub(crate) segments_skipped: u64,
    pub(crate) segments_gone: u64,
    pub(crate) bytes_read: u64,
    /// Records that damage made unreadable, and readings known to be missing because of it.
    pub(crate) records_damaged: u64,
    pub(crate) readings_missing: u64,
}

/// Answer: what was asked for is refused or has failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Failure {
    /// Name of the code, as the error-code table has it.
    pub(crate) code: String,
    /// What it is about, what is wrong with it, what to do.
    pub(crate) thing: String,
    pub(crate) wrong: String,
    #[serde(default)]
    pub(crate) remedy: String,
}

/// A stored value as JSON. What is no value, and what JSON has no number for, is null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a>(pub(crate) Option<Value<'a>>);

impl<'a> Shown<'a> {
    /// The value of stored bytes, and the name of its type.
    pub(crate) fn of(bytes: &'a [u8]) -> (Self, &'static str) {
        let value = Value::decode(bytes);
        let kind = match value {
            Some(Value::Float(_)) => "float",
            Some(Value::Integer(_)) => "integer",
            Some(Value::Unsigned(_)) => "unsigned",
            Some(Value::Boolean(_)) => "boolean",
            Some(Value::Text(_)) => "text",
            None => "bytes",
        };
        (Self(value), kind)
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(Value::Float(value)) if value.is_finite() => serializer.serialize_f64(value),
            Some(Value::Integer(value)) => serializer.serialize_i64(value),
            Some(Value::Unsigned(value)) => serializer.serialize_u64(value),
            Some(Value::Boolean(value)) => serializer.serialize_bool(value),
            Some(Value::Text(value)) => serializer.serialize_str(value),
            Some(Value::Float(_)) | None => serializer.serialize_unit(),
        }
    }
}

/// The frame that carries `message`; `None` when it is longer than `payload_bytes_max`.
pub(crate) fn frame(
    kind: Kind,
    message: &impl Serialize,
    payload_bytes_max: usize,
) -> Option<Vec<u8>> {
    // Serialising plain structures to memory cannot fail.
    let payload = serde_json::to_vec(message).ok()?;
    frame_of(kind, &payload, payload_bytes_max)
}

/// The frame of an answer to [`Watch`]; `list` holds updates as JSON, separated by commas.
pub(crate) fn updates_frame(list: &[u8], missed: u64) -> Vec<u8> {
    let end = format!("],\"missed\":{missed}}}");
    let payload = [b"{\"updates\":[", list, end.as_bytes()].concat();
    frame_of(Kind::Updates, &payload, ANSWER_BYTES_MAX).unwrap_or_default()
}

/// The frame of an answer to [`History`]; `list` holds readings as JSON, separated by commas.
pub(crate) fn readings_frame(list: &[u8]) -> Vec<u8> {
    let payload = [b"{\"readings\":[", list, b"]}"].concat();
    frame_of(Kind::Readings, &payload, ANSWER_BYTES_MAX).unwrap_or_default()
}

/// The frame around a payload that is JSON already.
fn frame_of(kind: Kind, payload: &[u8], payload_bytes_max: usize) -> Option<Vec<u8>> {
    if payload.len() > payload_bytes_max {
        return None;
    }
    let header = base::wire::encode_header(kind as u16, VERSION, payload).ok()?;
    let mut bytes = Vec::with_capacity(header.len() + payload.len());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(payload);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::wire::{Decoded, decode};
    use std::fmt::Write;

    const GOLDEN: &str = include_str!("../../tests/golden/node-protocol-1.txt");

    fn latest<'a>(key: &'a str, bytes: &'a [u8]) -> Latest<'a> {
        let (value, kind) = Shown::of(bytes);
        Latest {
            key,
            value,
            kind,
            time_ms: 1_772_368_200_250,
            age_ms: -40,
            fresh: true,
            validity_ms: 60_000,
            temporal: true,
            node_time: false,
            clock_trusted: true,
            this_boot: true,
        }
    }

    fn reading(bytes: &[u8], recorded_ms: Option<i64>, lsn: u64) -> Vec<u8> {
        let (value, kind) = Shown::of(bytes);
        let reading = Reading {
            time_ms: 1_772_368_200_250,
            value,
            kind,
            recorded_ms,
            node_time: recorded_ms.is_some(),
            clock_trusted: false,
            lsn,
        };
        serde_json::to_vec(&reading).unwrap()
    }

    /// One message of every kind, with every field.
    fn messages() -> Vec<(&'static str, Vec<u8>)> {
        let request = |kind, message: &dyn erased::Message| message.frame(kind);
        let float = 21.5_f64.to_le_bytes();
        let put = |value, time_ms| Put {
            key: "room/1".to_owned(),
            value,
            time_ms,
        };
        let history = History {
            key: "room/1".to_owned(),
            from_ms: Some(-1),
            to_ms: Some(1_772_368_200_000),
            limit: Some(10),
        };
        let end = End {
            sent: 1,
            missed: 2,
            segments_total: 3,
            segments_read: 4,
            segments_skipped: 5,
            segments_gone: 6,
            bytes_read: 7,
            records_damaged: 8,
            readings_missing: 9,
        };
        let failure = Failure {
            code: "not-found".to_owned(),
            thing: "room/1".to_owned(),
            wrong: "no such key".to_owned(),
            remedy: String::new(),
        };
        let watched: Vec<Vec<u8>> = [
            &b"b\x01"[..],
            b"topen",
            b"i\xfe\xff\xff\xff\xff\xff\xff\xff",
        ]
        .iter()
        .map(|bytes| serde_json::to_vec(&latest("door", bytes)).unwrap())
        .collect();
        let readings = [reading(&float, None, 5), reading(b"?", Some(-7), 6)];
        vec![
            (
                "get",
                request(
                    Kind::Get,
                    &Get {
                        key: "room/1".to_owned(),
                    },
                ),
            ),
            ("put", request(Kind::Put, &put(21.5.into(), None))),
            (
                "put-text-time",
                request(Kind::Put, &put("\u{e4}\n".into(), Some(-5))),
            ),
            (
                "watch",
                request(
                    Kind::Watch,
                    &Watch {
                        pattern: "room/#".to_owned(),
                        current: true,
                    },
                ),
            ),
            ("history", request(Kind::History, &history)),
            ("status", request(Kind::Status, &Status {})),
            ("value", request(Kind::Value, &latest("room/1", &float))),
            ("stored", request(Kind::Stored, &Stored { lsn: u64::MAX })),
            ("updates-none", updates_frame(b"", 0)),
            ("updates", updates_frame(&watched.join(&b','), 3)),
            ("readings", readings_frame(&readings.join(&b','))),
            ("end", request(Kind::End, &end)),
            ("error", request(Kind::Error, &failure)),
        ]
    }

    mod erased {
        use super::{ANSWER_BYTES_MAX, Kind, frame};

        /// Whatever can be sent.
        pub(super) trait Message {
            fn frame(&self, kind: Kind) -> Vec<u8>;
        }

        impl<T: serde::Serialize> Message for T {
            fn frame(&self, kind: Kind) -> Vec<u8> {
                frame(kind, self, ANSWER_BYTES_MAX).unwrap()
            }
        }
    }

    #[test]
    fn every_message_has_its_golden_bytes() {
        let mut text = String::new();
        for (name, bytes) in messages() {
            let payload = String::from_utf8_lossy(&bytes[base::wire::HEADER_BYTES..]);
            write!(text, "# {payload}\n{name} ").unwrap();
            for byte in &bytes {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        // A difference means another version of the protocol, unless fields were added to an answer.
        assert_eq!(text, GOLDEN, "what is sent now:\n{text}");
    }

    #[test]
    fn requests_read_back_as_they_were_written() {
        for (name, bytes) in messages() {
            let Ok(Decoded::Frame(frame)) = decode(&bytes, REQUEST_BYTES_MAX) else {
                panic!("{name}");
            };
            let again = match Kind::of(frame.kind).unwrap() {
                Kind::Get => serde_json::to_vec(&read::<Get>(frame.payload)),
                Kind::Put => serde_json::to_vec(&read::<Put>(frame.payload)),
                Kind::Watch => serde_json::to_vec(&read::<Watch>(frame.payload)),
                Kind::History => serde_json::to_vec(&read::<History>(frame.payload)),
                Kind::Status => serde_json::to_vec(&read::<Status>(frame.payload)),
                Kind::End => serde_json::to_vec(&read::<End>(frame.payload)),
                Kind::Error => serde_json::to_vec(&read::<Failure>(frame.payload)),
                _ => continue,
            };
            assert_eq!(again.unwrap(), frame.payload, "{name}");
        }
    }

    fn read<T: serde::de::DeserializeOwned>(payload: &[u8]) -> T {
        serde_json::from_slice(payload).unwrap()
    }

    #[test]
    fn a_number_comes_back_bit_for_bit() {
        for value in [
            0.1,
            -0.0,
            1e300,
            f64::MIN_POSITIVE,
            5e-324,
            2.0_f64.powi(60) + 256.0,
            0.3 - 0.1,
        ] {
            let bytes = value.to_le_bytes();
            let text = serde_json::to_vec(&latest("a", &bytes)).unwrap();
            let found: serde_json::Value = read(&text);
            assert_eq!(found["value"].as_f64().unwrap().to_bits(), value.to_bits());
        }
        for nothing in [f64::NAN, f64::INFINITY] {
            let bytes = nothing.to_le_bytes();
            let text = serde_json::to_vec(&latest("a", &bytes)).unwrap();
            assert!(read::<serde_json::Value>(&text)["value"].is_null());
        }
    }

    #[test]
    fn kinds_are_told_by_their_numbers() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind as u16), Some(kind));
        }
        assert_eq!(Kind::of(0), None);
    }
}
