//! Keys and their latest values: single ones, and lists that are built while they are sent.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use base::error::Code;
use bytes::Bytes;
use db::value::Value;
use db::{ObjectId, Time, VALUE_BYTES_LIMIT};
use http_body::Frame;
use serde::{Serialize, Serializer};

use super::answer::{JSON, Refused, json, typed};
use super::options::SLICE_OBJECTS;
use super::query::Query;
use super::source::Source;

/// Size of a piece of a list, in bytes, from which it takes no more; one more entry fits after it.
const PIECE_BYTES: usize = 32 << 10;

/// Ns since 1970, as a text: most readers of JSON keep numbers as doubles, which hold no ns of today exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nanoseconds(i64);

impl Nanoseconds {
    /// Returns the ns of a time; `None` for one of an old record that no i64 can count.
    pub(crate) fn of(time: Time) -> Option<Self> {
        time.is_countable().then_some(Self(time.ns()))
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Nanoseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A value in JSON.
pub(crate) struct Shown {
    pub(crate) value: serde_json::Value,
    /// The digits of a whole number above 2^53 in magnitude: most readers of JSON keep numbers as doubles.
    pub(crate) text: Option<String>,
    /// The name of its type.
    pub(crate) kind: &'static str,
}

/// Returns a value in JSON.
pub(crate) fn shown(bytes: &[u8]) -> Shown {
    let value = Value::decode(bytes);
    let digits = value.as_ref().and_then(Value::beyond_doubles);
    let (value, kind) = match value {
        Some(Value::Float(value)) => (value.into(), "float"),
        Some(Value::Integer(value)) => (value.into(), "integer"),
        Some(Value::Unsigned(value)) => (value.into(), "unsigned"),
        Some(Value::Boolean(value)) => (value.into(), "boolean"),
        Some(Value::Text(value)) => (value.into(), "text"),
        None => (serde_json::Value::Null, "bytes"),
    };
    Shown {
        value,
        text: digits.map(|digits| digits.to_string()),
        kind,
    }
}

/// Writes a value without intermediate JSON objects. Returns the digits of a whole number above 2^53 in magnitude.
pub(crate) fn write_value(out: &mut Vec<u8>, bytes: &[u8]) -> Option<i128> {
    let value = Value::decode(bytes);
    // Writing to memory does not fail.
    let _ = match value {
        Some(Value::Float(value)) => serde_json::to_writer(out, &value),
        Some(Value::Integer(value)) => serde_json::to_writer(out, &value),
        Some(Value::Unsigned(value)) => serde_json::to_writer(out, &value),
        Some(Value::Boolean(value)) => serde_json::to_writer(out, &value),
        Some(Value::Text(value)) => serde_json::to_writer(out, value),
        None => serde_json::to_writer(out, &()),
    };
    value.as_ref().and_then(Value::beyond_doubles)
}

/// A latest value, with the fields of `keel get --json`.
#[derive(Serialize)]
struct Latest<'a> {
    key: &'a str,
    value: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_text: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    time_ms: i64,
    time_ns: Option<Nanoseconds>,
    age_ms: i64,
    fresh: bool,
    validity_ms: u32,
    temporal: bool,
    node_time: bool,
    clock_trusted: bool,
    this_boot: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    retained: bool,
}

/// Passes the latest value of an object to a function.
fn with_latest<R>(
    source: &dyn Source,
    id: ObjectId,
    buffer: &mut [u8],
    pass: impl FnOnce(&Latest<'_>) -> R,
) -> Result<R, db::Error> {
    let got = source.get(id, buffer)?;
    let key = source.key(id);
    let (validity_ms, temporal) = source.validity(id);
    let Shown { value, text, kind } = shown(buffer.get(..got.value_bytes).unwrap_or_default());
    Ok(pass(&Latest {
        key: key.as_str(),
        value,
        value_text: text,
        kind,
        time_ms: got.time.ms(),
        time_ns: Nanoseconds::of(got.time),
        age_ms: got.age_ms,
        fresh: got.fresh,
        validity_ms,
        temporal,
        node_time: got.node_time,
        clock_trusted: got.wall_trusted,
        this_boot: got.this_boot,
        retained: got.retained,
    }))
}

/// Returns the object of a key that must exist.
pub(crate) fn object(source: &dyn Source, key: &str) -> Result<ObjectId, Refused> {
    let remedy = "see /api/v1/keys for those that there are";
    source
        .lookup(key)
        .ok_or_else(|| Refused::new(Code::NotFound, key, "no such key", remedy))
}

/// Returns one value.
pub(crate) fn one(source: &dyn Source, key: &str) -> Result<Response, Refused> {
    let id = object(source, key)?;
    let mut buffer = vec![0; VALUE_BYTES_LIMIT];
    with_latest(source, id, &mut buffer, |latest| json(latest)).map_err(|error| {
        let (code, remedy) = match error {
            db::Error::NoValue => (Code::NotFound, "wait for its first reading"),
            ref other => (other.code(), "see /api/v1/status"),
        };
        Refused::new(code, key, error.to_string(), remedy)
    })
}

/// Returns the pattern of a query; `None` stands for every key.
pub(crate) fn pattern(source: &dyn Source, query: &mut Query) -> Result<Option<String>, Refused> {
    let Some(pattern) = query.text("pattern")? else {
        return Ok(None);
    };
    if pattern == "#" {
        return Ok(None);
    }
    source.check_pattern(&pattern).map_err(|wrong| {
        let remedy = "write a key, + for one level, or # for the rest";
        Refused::new(Code::Invalid, "pattern", wrong, remedy)
    })?;
    Ok(Some(pattern))
}

/// What a list contains for each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Key, validity and whether it is temporal, for every object.
    Keys,
    /// The fields of `keel get --json`, for objects that have a value.
    Values,
}

/// Returns `{"keys":[…]}` or `{"values":[…]}` of the objects that match the pattern.
pub(crate) fn list(
    source: Arc<dyn Source>,
    mut query: Query,
    shape: Shape,
) -> Result<Response, Refused> {
    let pattern = pattern(&*source, &mut query)?;
    query.finish()?;
    let list = List {
        objects: source.objects(),
        source,
        pattern,
        shape,
        at: 0,
        count: 0,
        is_begun: false,
        is_ended: false,
        buffer: vec![0; VALUE_BYTES_LIMIT],
    };
    Ok(typed(JSON, Body::new(list)))
}

/// A list that is built piece by piece.
struct List {
    source: Arc<dyn Source>,
    pattern: Option<String>,
    shape: Shape,
    /// Number of objects at the beginning.
    objects: u32,
    at: u32,
    count: u64,
    is_begun: bool,
    is_ended: bool,
    buffer: Vec<u8>,
}

impl List {
    /// Returns the next piece; empty if no object of a slice matched.
    fn piece(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.is_begun {
            self.is_begun = true;
            let begin: &[u8] = match self.shape {
                Shape::Keys => b"{\"keys\":[",
                Shape::Values => b"{\"values\":[",
            };
            out.extend_from_slice(begin);
        }
        let slice_end = self.objects.min(self.at.saturating_add(SLICE_OBJECTS));
        while self.at < slice_end && out.len() < PIECE_BYTES {
            let id = ObjectId(self.at);
            self.at += 1;
            self.write(id, &mut out);
        }
        if self.at >= self.objects {
            self.is_ended = true;
            out.extend_from_slice(b"]}\n");
        }
        out
    }

    fn write(&mut self, id: ObjectId, out: &mut Vec<u8>) {
        let key = self.source.key(id);
        let fits = self
            .pattern
            .as_ref()
            .is_none_or(|pattern| self.source.matches(pattern, key.as_str()));
        if !fits {
            return;
        }
        let before = out.len();
        if self.count > 0 {
            out.push(b',');
        }
        let is_written = match self.shape {
            Shape::Keys => {
                #[derive(Serialize)]
                struct Entry<'a> {
                    key: &'a str,
                    validity_ms: u32,
                    temporal: bool,
                }
                let (validity_ms, temporal) = self.source.validity(id);
                let entry = Entry {
                    key: key.as_str(),
                    validity_ms,
                    temporal,
                };
                serde_json::to_writer(&mut *out, &entry).is_ok()
            }
            Shape::Values => {
                let written = with_latest(&*self.source, id, &mut self.buffer, |latest| {
                    serde_json::to_writer(&mut *out, latest).is_ok()
                });
                matches!(written, Ok(true))
            }
        };
        if is_written {
            self.count += 1;
        } else {
            out.truncate(before);
        }
    }
}

impl http_body::Body for List {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let piece = self.piece();
        if piece.is_empty() {
            // Yield to other tasks between two slices.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }
}
