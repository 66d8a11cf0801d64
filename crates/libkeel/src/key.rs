//! A key of a node: its latest value, read in place, where the node writes it.

use crate::attachment::Attachment;
use crate::error::Error;
use crate::pipe::{Expected, Request};
use crate::protocol::{self, Kind, Nanoseconds};
use crate::shared::Shared;
use crate::ticket::Ticket;
use base::error::Code;
use db::table::{InPlace, Now, SlotRead};
use db::value::Value;
use db::{KEY_BYTES_MAX, ObjectId, Time, VALUE_BYTES_LIMIT};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key. Copies may be sent to other threads.
pub struct Key {
    node: Arc<Attachment>,
    name: Arc<str>,
    /// Number of a table and the object in it, so that the key is looked up once in each table.
    found: AtomicU64,
}

/// Times and flags of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The reading's time, in ms since 1970, rounded down.
    pub time_ms: i64,
    /// The reading's time, in ns since 1970, exact in the years 1678 to 2261; a time beyond has the farthest number.
    pub time_ns: i64,
    /// Time since then, without what is below 1 ms; negative for a time in the future.
    pub age_ms: i64,
    /// Whether the age is known and within `validity_ms`. The age of what a broker had retained is known only if its
    /// sensor gave the time.
    pub fresh: bool,
    /// Largest age of a fresh value.
    pub validity_ms: u32,
    /// Whether readings are expected continuously.
    pub temporal: bool,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether that clock was trusted at arrival.
    pub clock_trusted: bool,
    /// Whether the reading arrived since this machine started.
    pub this_boot: bool,
    /// Whether a broker had kept it for an unknown time before it arrived.
    pub retained: bool,
}

/// An owned value.
#[derive(Clone, Debug, PartialEq)]
pub enum Owned {
    /// An IEEE 754 double.
    Float(f64),
    /// A signed integer.
    Integer(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A truth value.
    Boolean(bool),
    /// UTF-8 text.
    Text(String),
    /// Bytes that are not a typed value; empty if the node was asked through its socket.
    Bytes(Vec<u8>),
}

/// The bytes of a value: in place, where the node writes them, or a copy if the node was asked.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(Place<'a>);

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Shared(InPlace<'a>),
    Copied(&'a [u8]),
}

impl Bytes<'_> {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Place::Shared(value) => value.times().value_bytes,
            Place::Copied(bytes) => bytes.len(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns eight bytes at a time, the first one lowest; the last word is filled with zeros.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let (shared, copied) = match self.0 {
            Place::Shared(value) => (Some(value.words()), &[][..]),
            Place::Copied(bytes) => (None, bytes),
        };
        let copied = copied.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        shared.into_iter().flatten().chain(copied)
    }

    /// Returns the eight bytes from byte 8 × `index` on, as [`words`](Self::words) does; `None` past the end.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        match self.0 {
            Place::Shared(value) => value.word(index),
            Place::Copied(_) => self.words().nth(index),
        }
    }

    /// Returns the number, if the value is a double.
    #[must_use]
    pub fn float(&self) -> Option<f64> {
        let word = self.words().next()?;
        (self.len() == 8).then_some(f64::from_bits(word))
    }

    /// Copies as many bytes as fit into `into`.
    pub fn copy_to(&self, into: &mut [u8]) {
        let length = self.len().min(into.len());
        for (chunk, word) in into[..length].chunks_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The part of a node's answer that is used here.
#[derive(Deserialize)]
struct Answered {
    value: serde_json::Value,
    #[serde(rename = "type")]
    kind: String,
    time_ms: i64,
    #[serde(default)]
    time_ns: Option<Nanoseconds>,
    age_ms: i64,
    fresh: bool,
    validity_ms: u32,
    temporal: bool,
    node_time: bool,
    clock_trusted: bool,
    this_boot: bool,
    #[serde(default)]
    retained: bool,
}

impl Clone for Key {
    fn clone(&self) -> Self {
        Self {
            node: Arc::clone(&self.node),
            name: Arc::clone(&self.name),
            found: AtomicU64::new(self.found.load(Ordering::Relaxed)),
        }
    }
}

impl Key {
    pub(crate) fn new(node: &Arc<Attachment>, name: &str) -> Self {
        Self {
            node: Arc::clone(node),
            name: name.into(),
            found: AtomicU64::new(0),
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn name_shared(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the latest value as an owned value.
    ///
    /// # Errors
    /// As [`with_bytes`](Self::with_bytes).
    pub fn read(&self) -> Result<(Owned, Times), Error> {
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let (length, times) = self.read_into(&mut bytes)?;
        Ok((Owned::of(bytes.get(..length).unwrap_or_default()), times))
    }

    /// Returns the latest value if it is a double. If values are shared, this needs no copy, lock, allocation or system
    /// call.
    ///
    /// # Errors
    /// [`Code::Unsupported`] if it has another type, and those of [`with_bytes`](Self::with_bytes).
    pub fn float(&self) -> Result<(f64, Times), Error> {
        let (number, times) = self.with_bytes(|bytes| bytes.float())?;
        let number = number.ok_or_else(|| {
            let wrong = "its value is no floating-point number";
            Error::new(
                Code::Unsupported,
                &self.name,
                wrong,
                "read it with its type",
            )
        })?;
        Ok((number, times))
    }

    /// Copies the stored bytes of the latest value into `into`; returns their number.
    ///
    /// # Errors
    /// [`Code::Invalid`] if `into` is too short, and those of [`with_bytes`](Self::with_bytes).
    pub fn read_into(&self, into: &mut [u8]) -> Result<(usize, Times), Error> {
        let room = into.len();
        let (needed, times) = self.with_bytes(|bytes| {
            bytes.copy_to(into);
            bytes.len()
        })?;
        if needed <= room {
            return Ok((needed, times));
        }
        let wrong = format!("its value has {needed} bytes, the buffer {room}");
        Err(Error::new(
            Code::Invalid,
            &self.name,
            wrong,
            "pass a longer buffer",
        ))
    }

    /// Lets `look` read the bytes of the latest value. If values are shared, `look` reads them in place, without a
    /// copy. It is called again if a write has disturbed them, and the result of an undisturbed call is returned.
    /// `look` should be short: the client cannot attach to a restarted node while it runs.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is no such key, or no value yet. [`Code::Gone`] if the node has ended.
    /// [`Code::Busy`] or another if it stopped in the middle of the value. [`Code::Stale`] in a child after `fork`. If
    /// values are not shared, those of a connection.
    pub fn with_bytes<R>(
        &self,
        mut look: impl FnMut(&Bytes<'_>) -> R,
    ) -> Result<(R, Times), Error> {
        self.node.usable()?;
        let shared = self.node.live()?;
        let Some(shared) = &*shared else {
            drop(shared);
            return self.asked(look);
        };
        let id = self.object(shared)?;
        let seen = shared.with_value(id, |value| {
            (look(&Bytes(Place::Shared(*value))), value.times())
        });
        let (seen, read) = seen.map_err(|error| Error::of_key(&self.name, &error))?;
        Ok((
            seen,
            Times::of(&read, &self.node.now(), shared.validity(id)),
        ))
    }

    /// Returns the object in this table.
    fn object(&self, shared: &Shared) -> Result<ObjectId, Error> {
        let found = self.found.load(Ordering::Relaxed);
        if (found >> 32) as u32 == shared.number {
            return Ok(ObjectId(found as u32));
        }
        let id = shared.lookup(&self.name).ok_or_else(|| {
            let remedy = "see the keys that have values with `keel watch '#' --current`";
            Error::new(Code::NotFound, &self.name, "no such key", remedy)
        })?;
        let found = u64::from(shared.number) << 32 | u64::from(id.0);
        self.found.store(found, Ordering::Relaxed);
        Ok(id)
    }

    /// Asks the node for the value through its socket.
    fn asked<R>(&self, mut look: impl FnMut(&Bytes<'_>) -> R) -> Result<(R, Times), Error> {
        let get = protocol::Get {
            key: self.name.to_string(),
        };
        let answered: Answered = self.node.ask(Kind::Get, &get, Kind::Value)?;
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let value = answered.value();
        let length = value.map_or(Ok(0), |value| value.encode(&mut bytes));
        let length = length.map_err(|error| Error::of_key(&self.name, &error))?;
        let seen = look(&Bytes(Place::Copied(
            bytes.get(..length).unwrap_or_default(),
        )));
        Ok((seen, answered.times()))
    }

    /// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, in ms since 1970; without
    /// it the node's clock gives it. An integer up to 2^53 in magnitude becomes a double, so that a key with 21 and
    /// 21.5 has one type. A larger one stays an integer, digit for digit.
    ///
    /// Readings become visible and durable in the order of the puts. A caller that needs certainty must wait for the
    /// ticket: if the process ends earlier, in-flight readings may be lost.
    ///
    /// # Errors
    /// [`Code::Invalid`] for numbers that are not finite; [`Code::Busy`] while 1,024 puts wait for the node; those of a
    /// connection. A node of an earlier version refuses an integer above 2^53, since it would round it.
    pub fn put(&self, value: Value<'_>, time_ms: Option<i64>) -> Result<Ticket, Error> {
        self.send(&self.node, value, time_ms.map(Time::from_ms))
    }

    /// As [`put`](Self::put), with a time in ns since 1970.
    ///
    /// # Errors
    /// As there. A node of an earlier version refuses a time that is no whole ms, since it cannot keep it.
    pub fn put_ns(&self, value: Value<'_>, time_ns: Option<i64>) -> Result<Ticket, Error> {
        self.send(&self.node, value, time_ns.map(Time::from_ns))
    }

    /// Sends a reading to a node and does not wait for it.
    pub(crate) fn send(
        &self,
        to: &Attachment,
        value: Value<'_>,
        time: Option<Time>,
    ) -> Result<Ticket, Error> {
        to.usable()?;
        let (request, ticket) = self.put_request(value, time)?;
        to.pipe.send(request)?;
        Ok(ticket)
    }

    /// Builds the request that puts a value, and its ticket.
    pub(crate) fn put_request(
        &self,
        value: Value<'_>,
        time: Option<Time>,
    ) -> Result<(Request, Ticket), Error> {
        let put = self.put_message(value, time)?;
        let ticket = Ticket::new(&self.name);
        let expected = Expected::Stored(ticket.promise());
        let request = Request::new(&self.name, Kind::Put, &put, expected)?;
        Ok((request, ticket))
    }

    /// Builds the message of a reading.
    pub(crate) fn put_message(
        &self,
        value: Value<'_>,
        time: Option<Time>,
    ) -> Result<protocol::Put, Error> {
        let value = protocol::PutValue::of(value).ok_or_else(|| {
            let wrong = "the number is not finite";
            Error::new(Code::Invalid, &self.name, wrong, "put a finite number")
        })?;
        Ok(protocol::Put::new(self.name.to_string(), value, time))
    }
}

impl Times {
    fn of(read: &SlotRead, now: &Now, (validity_ms, temporal): (u32, bool)) -> Self {
        let age_ns = now.age_ns(read.time, read.node_time, read.arrival_ns, read.boot_tag);
        Self {
            time_ms: read.time.ms(),
            time_ns: read.time.ns(),
            age_ms: age_ns / 1_000_000,
            fresh: read.is_fresh(age_ns),
            validity_ms,
            temporal,
            node_time: read.node_time,
            clock_trusted: read.wall_trusted,
            this_boot: read.boot_tag == now.boot_tag,
            retained: read.retained,
        }
    }
}

impl Owned {
    fn of(bytes: &[u8]) -> Self {
        match Value::decode(bytes) {
            Some(Value::Float(value)) => Self::Float(value),
            Some(Value::Integer(value)) => Self::Integer(value),
            Some(Value::Unsigned(value)) => Self::Unsigned(value),
            Some(Value::Boolean(value)) => Self::Boolean(value),
            Some(Value::Text(value)) => Self::Text(value.to_owned()),
            None => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl Answered {
    /// Returns the value; `None` for bytes, which the socket does not show.
    fn value(&self) -> Option<Value<'_>> {
        use serde_json::Value as Json;
        match (self.kind.as_str(), &self.value) {
            ("integer", Json::Number(number)) => number.as_i64().map(Value::Integer),
            ("unsigned", Json::Number(number)) => number.as_u64().map(Value::Unsigned),
            (_, Json::Number(number)) => number.as_f64().map(Value::Float),
            ("float", Json::Null) => Some(Value::Float(f64::NAN)),
            (_, Json::Bool(truth)) => Some(Value::Boolean(*truth)),
            (_, Json::String(text)) => Some(Value::Text(text)),
            _ => None,
        }
    }

    fn times(&self) -> Times {
        Times {
            time_ms: self.time_ms,
            time_ns: Nanoseconds::or_ms(self.time_ns, self.time_ms).ns(),
            age_ms: self.age_ms,
            fresh: self.fresh,
            validity_ms: self.validity_ms,
            temporal: self.temporal,
            node_time: self.node_time,
            clock_trusted: self.clock_trusted,
            this_boot: self.this_boot,
            retained: self.retained,
        }
    }
}

pub(crate) fn check_key(name: &str) -> Result<(), Error> {
    let fits = (1..=KEY_BYTES_MAX).contains(&name.len());
    if fits && base::pattern::check_name(name).is_ok() {
        return Ok(());
    }
    // A long name would make a long line.
    let shown: String = name.chars().take(KEY_BYTES_MAX).collect();
    let remedy = "use 1 to 255 bytes without control or invisible characters, and no level that is + or # alone";
    Err(Error::new(Code::Invalid, shown, "is no key", remedy))
}
