//! Messages between the node and its clients; `crates/node/NODE.md` specifies every field.

use db::value::Value;
use serde::{Deserialize, Serialize, Serializer};

mod backup;
mod qos;
mod task;
mod time;
mod value;

pub use backup::{Backup, BackupBegun, BackupEnd, BackupFile, backup_piece_frame};
pub use qos::{Mode, Qos};
pub use task::{
    DECLARED_NS_MAX, PAIRS_MAX, PERIOD_NS_MIN, Spread, TASK_NAME_BYTES_MAX, Task, TaskDeclared,
    TaskKind, TaskNoted, TaskPeriod, Together, WEIGHT_MAX,
};
pub use time::Nanoseconds;
pub use value::{Digits, Json, PutType, PutValue};

/// Version of every message here.
pub const VERSION: u16 = 1;

/// Size of the longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Size of the longest answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Most keys of a [`KeysRelease`]. With the longest names they fit a request, unless JSON must escape many characters.
pub const KEYS_RELEASED_MAX: usize = 200;

/// Size in bytes after which an answer with a list ends; its last element may exceed it.
pub const LIST_BYTES: usize = 64 << 10;

/// The kind of a frame. Requests are below 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// [`Get`], answered by `Value`.
    Get = 1,
    /// [`Put`], answered by `Stored`.
    Put = 2,
    /// [`Watch`], answered by `Updates` and finally by `End`.
    Watch = 3,
    /// [`History`], answered by `Readings` and finally by `End`.
    History = 4,
    /// [`Status`], answered by `State`.
    Status = 5,
    /// [`Task`], answered by `TaskDeclared`.
    Task = 6,
    /// [`TaskPeriod`], answered by `TaskNoted`.
    TaskPeriod = 7,
    /// [`Qos`], answered by `QosState`.
    Qos = 8,
    /// [`Together`], answered by `Stored`.
    Together = 9,
    /// [`Backup`], answered by `BackupBegun`, files and pieces, and finally by `BackupEnd`.
    Backup = 10,
    /// [`Keys`], answered by `KeyList`.
    Keys = 11,
    /// [`KeysRelease`], answered by `KeysReleased`.
    KeysRelease = 12,
    /// [`Latest`].
    Value = 257,
    /// [`Stored`].
    Stored = 258,
    /// Changes, see [`updates_frame`].
    Updates = 259,
    /// Readings, see [`readings_frame`].
    Readings = 260,
    /// The report of `keel status --json`.
    State = 261,
    /// [`End`].
    End = 262,
    /// [`TaskDeclared`].
    TaskDeclared = 263,
    /// [`TaskNoted`].
    TaskNoted = 264,
    /// The state of quality of service, an object from the node.
    QosState = 265,
    /// [`BackupBegun`].
    BackupBegun = 266,
    /// [`BackupFile`].
    BackupFile = 267,
    /// Raw bytes of the file named last: the one payload that is not JSON.
    BackupPiece = 268,
    /// [`BackupEnd`].
    BackupEnd = 269,
    /// [`KeyList`].
    KeyList = 270,
    /// [`KeysReleased`].
    KeysReleased = 271,
    /// [`Failure`], in answer to anything.
    Error = 511,
}

impl Kind {
    /// Every kind; new ones are added at the end, so that an index keeps its meaning.
    pub const ALL: [Self; 28] = [
        Self::Get,
        Self::Put,
        Self::Watch,
        Self::History,
        Self::Status,
        Self::Task,
        Self::TaskPeriod,
        Self::Qos,
        Self::Together,
        Self::Value,
        Self::Stored,
        Self::Updates,
        Self::Readings,
        Self::State,
        Self::End,
        Self::TaskDeclared,
        Self::TaskNoted,
        Self::QosState,
        Self::Error,
        Self::Keys,
        Self::KeyList,
        Self::Backup,
        Self::BackupBegun,
        Self::BackupFile,
        Self::BackupPiece,
        Self::BackupEnd,
        Self::KeysRelease,
        Self::KeysReleased,
    ];

    /// Returns the kind with this number.
    #[must_use]
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Request: the latest value of a key.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Get {
    /// The key.
    pub key: String,
}

/// Request: store a reading and answer once it is durable.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Put {
    /// The key, 1 to 255 bytes without control or invisible characters; no level is `+` or `#` alone.
    pub key: String,
    /// A number, a truth value or a text.
    pub value: Json,
    /// The type that the number is stored with; absent: a double that holds it exactly, otherwise an integer.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PutType>,
    /// The sensor's time, ms since 1970; absent, as `time_ns`: the node's clock gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<i64>,
    /// The sensor's time, instead of `time_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<Nanoseconds>,
}

/// Request: changes of the keys that match a pattern, until the client sends anything or disconnects.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// A key; `+` stands for one level, a last `#` for the rest.
    pub pattern: String,
    /// Whether the current values are sent first.
    #[serde(default)]
    pub current: bool,
}

/// Request: readings of a key, in the order of arrival.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The key.
    pub key: String,
    /// Earliest time, ms since 1970; absent: the earliest there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<i64>,
    /// End of the time range, exclusive; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<i64>,
    /// Earliest time, instead of `from_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ns: Option<Nanoseconds>,
    /// End of the time range, instead of `to_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_ns: Option<Nanoseconds>,
    /// Largest number of readings; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Request: the keys that match a pattern.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// A key; `+` stands for one level, a last `#` for the rest.
    pub pattern: String,
    /// Number of the first key to check: 0, or `next` of the previous answer.
    #[serde(default)]
    pub from: u32,
}

/// Answer to [`Keys`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct KeyList {
    /// The matching keys, in the order of their creation.
    pub keys: Vec<String>,
    /// Where to continue; absent: there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// Request: the keys belong to no series any more; the next one that sends gets each of them.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeysRelease {
    /// Up to [`KEYS_RELEASED_MAX`] keys. All of them must exist.
    pub keys: Vec<String>,
}

/// Answer to [`KeysRelease`]: it is on flash.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct KeysReleased {
    /// For each key, in the order of the request, the number of templates by which a series had it.
    pub owners: Vec<u64>,
}

/// Request: the node's state.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Status {}

/// Answer to [`Get`], and one element of `updates`.
#[derive(Debug, Serialize)]
pub struct Latest<'a> {
    /// The key, as requested.
    pub key: &'a str,
    /// The value.
    pub value: Shown<'a>,
    /// Its digits, if it is a whole number that readers of JSON may not keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_text: Option<Digits>,
    /// The name of its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The reading's time, ms since 1970, rounded down.
    pub time_ms: i64,
    /// The reading's time, if it is no whole ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<Nanoseconds>,
    /// Time since the sensor's time, ms; negative for a time in the future.
    pub age_ms: i64,
    /// Whether the age is known and within the validity.
    pub fresh: bool,
    /// Largest age of a fresh value, in ms.
    pub validity_ms: u32,
    /// Whether readings are expected, so that freshness is meaningful.
    pub temporal: bool,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether the node's wall clock was trusted when the reading arrived.
    pub clock_trusted: bool,
    /// Whether it arrived since this machine started.
    pub this_boot: bool,
    /// Whether a broker had kept it for an unknown time before it arrived.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retained: bool,
}

/// Answer to [`Put`] and [`Together`]: the readings are on flash.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Stored {
    /// Number of the reading in the log; of several readings that of the last one; the others have lower numbers.
    pub lsn: u64,
}

/// One reading of an answer to [`History`].
#[derive(Debug, Serialize)]
pub struct Reading<'a> {
    /// The reading's time, in ms since 1970, rounded down, corrected if possible.
    pub time_ms: i64,
    /// The same time, if it is no whole ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<Nanoseconds>,
    /// The value.
    pub value: Shown<'a>,
    /// Its digits, if it is a whole number that readers of JSON may not keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_text: Option<Digits>,
    /// The name of its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The time as it was recorded, if it has been corrected since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_ms: Option<i64>,
    /// The time as it was recorded, if it has been corrected since and was no whole ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_ns: Option<Nanoseconds>,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether that clock was trusted at arrival.
    pub clock_trusted: bool,
    /// Number of the reading in the log.
    pub lsn: u64,
}

/// Answer that ends a stream of others.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct End {
    /// Number of readings or updates sent.
    pub sent: u64,
    /// Number of changes that a watch did not show.
    pub missed: u64,
    /// Number of segments of the log.
    pub segments_total: u64,
    /// Segments that were read.
    pub segments_read: u64,
    /// Segments that the index has excluded.
    pub segments_skipped: u64,
    /// Segments that retention has deleted meanwhile.
    pub segments_gone: u64,
    /// Bytes of the log that were read.
    pub bytes_read: u64,
    /// Places of the log that damage made unreadable: records, pieces of files and whole files.
    pub records_damaged: u64,
    /// Readings known to be missing because of damage.
    pub readings_missing: u64,
}

/// Answer: the request is refused or has failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Failure {
    /// Name of the code, as in the error-code table.
    pub code: String,
    /// The object that it is about.
    pub thing: String,
    /// What is wrong with it.
    pub wrong: String,
    /// The remedy; may be empty.
    #[serde(default)]
    pub remedy: String,
}

/// A stored value as JSON. Bytes that are no value, and numbers that JSON cannot represent, become null.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub Option<Value<'a>>);

impl<'a> Shown<'a> {
    /// Returns the value of stored bytes, and the name of its type.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> (Self, &'static str) {
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

    /// Returns the digits of a whole number that readers of JSON may not keep.
    #[must_use]
    pub fn digits(&self) -> Option<Digits> {
        self.0.as_ref().and_then(Value::beyond_doubles).map(Digits)
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

/// Returns the frame of `message`; `None` if it is longer than `payload_bytes_max`.
#[must_use]
pub fn frame(kind: Kind, message: &impl Serialize, payload_bytes_max: usize) -> Option<Vec<u8>> {
    // Serialising plain structures to memory cannot fail.
    let payload = serde_json::to_vec(message).ok()?;
    frame_of(kind, &payload, payload_bytes_max)
}

/// Returns the frame of an answer to [`Watch`]; `list` contains updates as JSON, separated by commas.
#[must_use]
pub fn updates_frame(list: &[u8], missed: u64) -> Vec<u8> {
    let end = format!("],\"missed\":{missed}}}");
    let payload = [b"{\"updates\":[", list, end.as_bytes()].concat();
    frame_of(Kind::Updates, &payload, ANSWER_BYTES_MAX).unwrap_or_default()
}

/// Returns the frame of an answer to [`History`]; `list` contains readings as JSON, separated by commas.
#[must_use]
pub fn readings_frame(list: &[u8]) -> Vec<u8> {
    let payload = [b"{\"readings\":[", list, b"]}"].concat();
    frame_of(Kind::Readings, &payload, ANSWER_BYTES_MAX).unwrap_or_default()
}

/// Returns the frame of a payload.
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
mod tests;
