//! A key of a node: its latest value, read where the node writes it.

use crate::error::Error;
use crate::node::{Inner, Node};
use crate::protocol::{self, Kind};
use crate::shared::Shared;
use crate::ticket::Ticket;
use base::error::Code;
use db::table::{InPlace, Now, SlotRead, is_fresh};
use db::value::Value;
use db::{KEY_BYTES_MAX, ObjectId, VALUE_BYTES_LIMIT};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key. Copies may go to other threads.
pub struct Key {
    node: Arc<Inner>,
    name: Arc<str>,
    /// Number of a table and the object in it, so that the key is looked up once in each table.
    found: AtomicU64,
}

/// What is known of a value beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The reading's time, ms since 1970.
    pub time_ms: i64,
    /// Time since then; negative for a time in the future.
    pub age_ms: i64,
    /// Whether the age is within `validity_ms`.
    pub fresh: bool,
    /// How old a value may be that still counts.
    pub validity_ms: u32,
    /// Whether readings are expected all the time.
    pub temporal: bool,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether that clock was trusted at arrival.
    pub clock_trusted: bool,
    /// Whether the reading arrived since this machine started.
    pub this_boot: bool,
}

/// A value of its own.
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
    /// Bytes that are no value of a type; none where the node was asked through its socket.
    Bytes(Vec<u8>),
}

/// The bytes of a value: where the node writes them, or a copy where the node was asked.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(Place<'a>);

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Shared(InPlace<'a>),
    Copied(&'a [u8]),
}

impl Bytes<'_> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Place::Shared(value) => value.times().value_bytes,
            Place::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Eight of them at a time, the first one lowest; behind the last one are zeros.
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

    /// The eight bytes from byte 8 × `index` on, as [`words`](Self::words) has them; `None` behind the end.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        match self.0 {
            Place::Shared(value) => value.word(index),
            Place::Copied(_) => self.words().nth(index),
        }
    }

    /// The number, where the value is a double.
    #[must_use]
    pub fn float(&self) -> Option<f64> {
        let word = self.words().next()?;
        (self.len() == 8).then_some(f64::from_bits(word))
    }

    /// Copies as many as `into` has room for.
    pub fn copy_to(&self, into: &mut [u8]) {
        let length = self.len().min(into.len());
        for (chunk, word) in into[..length].chunks_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// What a node answers, as far as it is needed here.
#[derive(Deserialize)]
struct Answered {
    value: serde_json::Value,
    #[serde(rename = "type")]
    kind: String,
    time_ms: i64,
    age_ms: i64,
    fresh: bool,
    validity_ms: u32,
    temporal: bool,
    node_time: bool,
    clock_trusted: bool,
    this_boot: bool,
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
    pub(crate) fn new(node: &Arc<Inner>, name: &str) -> Self {
        Self {
            node: Arc::clone(node),
            name: name.into(),
            found: AtomicU64::new(0),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn name_shared(&self) -> &Arc<str> {
        &self.name
    }

    /// The latest value, of its own.
    ///
    /// # Errors
    /// As [`with_bytes`](Self::with_bytes).
    pub fn read(&self) -> Result<(Owned, Times), Error> {
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let (length, times) = self.read_into(&mut bytes)?;
        Ok((Owned::of(bytes.get(..length).unwrap_or_default()), times))
    }

    /// The latest value where it is a double. Where values are shared: without a copy, a lock, an allocation or a
    /// system call.
    ///
    /// # Errors
    /// [`Code::Unsupported`] where it is something else, and those of [`with_bytes`](Self::with_bytes).
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

    /// Copies the latest value's stored bytes into `into`; answers how many they are.
    ///
    /// # Errors
    /// [`Code::Invalid`] when `into` is too short, and those of [`with_bytes`](Self::with_bytes).
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

    /// Lets `look` see the bytes of the latest value. Where values are shared, it sees them where the node writes them,
    /// without a copy, and again where a write has disturbed them; what it answered when it saw one value from
    /// beginning to end is passed on. It should not take long: a node that starts again is attached to only between two
    /// looks.
    ///
    /// # Errors
    /// [`Code::NotFound`] when there is no such key, or no value yet; [`Code::Gone`] when the node has ended;
    /// [`Code::Busy`] or another when it stopped in the middle of the value; [`Code::Stale`] in a child after `fork`;
    /// where values are not shared, those of a connection.
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

    /// The object in this table.
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

    /// The value as the node tells it through its socket.
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

    /// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, ms since 1970; without it
    /// the node's clock gives it. Every number becomes a double.
    ///
    /// The reading is shown and becomes durable in the order of the puts. Who needs to know waits for the ticket: a
    /// process that ends before may take what was on its way with it.
    ///
    /// # Errors
    /// [`Code::Invalid`] for numbers that are not finite or that no double holds; [`Code::Busy`] while 1,024 puts wait
    /// for the node; those of a connection.
    pub fn put(&self, value: Value<'_>, time_ms: Option<i64>) -> Result<Ticket, Error> {
        Node::of(&self.node).put(self, value, time_ms)
    }
}

impl Times {
    fn of(read: &SlotRead, now: &Now, (validity_ms, temporal): (u32, bool)) -> Self {
        let age_ms = now.age_ms(
            read.timestamp_ms,
            read.node_time,
            read.arrival_ns,
            read.boot_tag,
        );
        Self {
            time_ms: read.timestamp_ms,
            age_ms,
            fresh: is_fresh(age_ms, read.avi_ms),
            validity_ms,
            temporal,
            node_time: read.node_time,
            clock_trusted: read.wall_trusted,
            this_boot: read.boot_tag == now.boot_tag,
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
    /// `None` for bytes, which the socket does not show.
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
            age_ms: self.age_ms,
            fresh: self.fresh,
            validity_ms: self.validity_ms,
            temporal: self.temporal,
            node_time: self.node_time,
            clock_trusted: self.clock_trusted,
            this_boot: self.this_boot,
        }
    }
}

pub(crate) fn check_key(name: &str) -> Result<(), Error> {
    if !name.is_empty() && name.len() <= KEY_BYTES_MAX && !name.contains(char::is_control) {
        return Ok(());
    }
    // A long one would make a long line.
    let shown: String = name.chars().take(KEY_BYTES_MAX).collect();
    let remedy = "use 1 to 64 bytes without control characters";
    Err(Error::new(Code::Invalid, shown, "is no key", remedy))
}
