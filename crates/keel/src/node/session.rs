//! What a client asks for, answered from the database.

use super::qos::requests::{self, Guest};
use super::settings::told;
use super::wire::{Fault, Request, Wire};
use super::{Node, history, watch};
use base::error::Code;
use db::value::Value;
use db::{Durability, ObjectId, VALUE_BYTES_LIMIT};
use ingest::intake::{Destination, Reason, TIME_MS_MAX, TIME_MS_MIN};
use libkeel::protocol::{self, ANSWER_BYTES_MAX, Failure, Get, History, Kind, Latest, Put, Shown};
use libkeel::protocol::{Stored, Watch};
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a put may take to become durable; only a device that stalls needs as much.
const DURABLE_MAX: Duration = Duration::from_secs(60);

/// Pause before a put that found no room is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long a put waits for room.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// One answer that is no stream, or why there is none.
pub(crate) type Answer = Result<Vec<u8>, Failure>;

/// Answers one request.
pub(crate) async fn answer(
    node: &Node,
    wire: &mut Wire,
    guest: &mut Guest,
    request: &Request,
) -> Result<(), Fault> {
    let kind = Kind::of(request.kind);
    let answer = if request.version != protocol::VERSION && kind.is_some() {
        let wrong = format!(
            "has version {}, this node speaks {}",
            request.version,
            protocol::VERSION
        );
        Err(failure(
            Code::Unsupported,
            "request",
            wrong,
            "use keel of the node's version",
        ))
    } else {
        match kind {
            Some(Kind::Get) => read(request).and_then(|get: Get| latest(node, &get.key)),
            Some(Kind::Put) => match read(request) {
                Ok(put) => store(node, &put).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Status) => read(request).and_then(|_: protocol::Status| node.state()),
            Some(Kind::Task) => {
                read(request).and_then(|task| requests::declare(node, guest, &task))
            }
            Some(Kind::TaskPeriod) => {
                read(request).and_then(|period| requests::note(node, guest, &period))
            }
            Some(Kind::Qos) => read(request).and_then(|asked| requests::regulate(node, asked)),
            Some(Kind::Watch) => match read(request) {
                Ok(asked) => return watch::run(node, wire, &asked as &Watch).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::History) => match read(request) {
                Ok(asked) => return history::run(node, wire, &asked as &History).await,
                Err(failure) => Err(failure),
            },
            _ => {
                let wrong = format!("kind {} is none that this node knows", request.kind);
                Err(failure(
                    Code::Unsupported,
                    "request",
                    wrong,
                    "use keel of the node's version",
                ))
            }
        }
    };
    match answer {
        Ok(frame) => wire.send(&frame).await,
        Err(failure) => wire.fail(&failure).await,
    }
}

pub(crate) fn failure(
    code: Code,
    thing: impl Display,
    wrong: impl Display,
    remedy: impl Display,
) -> Failure {
    Failure {
        code: code.name().to_owned(),
        thing: thing.to_string(),
        wrong: wrong.to_string(),
        remedy: remedy.to_string(),
    }
}

fn read<T: DeserializeOwned>(request: &Request) -> Result<T, Failure> {
    serde_json::from_slice(&request.payload).map_err(|error| {
        failure(
            Code::Invalid,
            "request",
            error,
            "see NODE.md for its fields",
        )
    })
}

/// The frame of an answer.
pub(crate) fn framed(kind: Kind, message: &impl serde::Serialize) -> Answer {
    protocol::frame(kind, message, ANSWER_BYTES_MAX).ok_or_else(|| {
        let wrong = format!("has more than {ANSWER_BYTES_MAX} bytes");
        failure(Code::Full, "answer", wrong, "ask for less")
    })
}

/// The object of a key that must exist.
pub(crate) fn object(node: &Node, key: &str) -> Result<ObjectId, Failure> {
    node.db.lookup(key).ok_or_else(|| no_such_key(key))
}

/// What a client is told that asks for a key that is none.
pub(crate) fn no_such_key(key: &str) -> Failure {
    let remedy = "see the keys that have values with `keel watch '#' --current`";
    failure(Code::NotFound, key, "no such key", remedy)
}

/// What a client is told whose value cannot be had.
pub(crate) fn unreadable(key: &str, error: &db::Error) -> Failure {
    let remedy = match error {
        db::Error::NoValue => "wait for its first reading",
        _ => "",
    };
    failure(error.code(), key, error, remedy)
}

fn latest(node: &Node, key: &str) -> Answer {
    let id = object(node, key)?;
    let mut bytes = [0; VALUE_BYTES_LIMIT];
    with_latest(node, id, key, &mut bytes, |latest| {
        framed(Kind::Value, latest)
    })
    .unwrap_or_else(|error| Err(unreadable(key, &error)))
}

/// Passes an object's latest value on.
pub(crate) fn with_latest<R>(
    node: &Node,
    id: ObjectId,
    key: &str,
    bytes: &mut [u8],
    pass: impl FnOnce(&Latest<'_>) -> R,
) -> Result<R, db::Error> {
    let got = node.db.get(id, bytes)?;
    let (validity_ms, temporal) = node.db.validity(id);
    let (value, kind) = Shown::of(bytes.get(..got.value_bytes).unwrap_or_default());
    Ok(pass(&Latest {
        key,
        value,
        kind,
        time_ms: got.timestamp_ms,
        age_ms: got.age_ms,
        fresh: got.fresh,
        validity_ms,
        temporal,
        node_time: got.node_time,
        clock_trusted: got.wall_trusted,
        this_boot: got.this_boot,
    }))
}

/// Stores a reading at once, without waiting for others to share its flush.
async fn store(node: &Node, put: &Put) -> Answer {
    let refused = |reason: Reason| {
        let mut intake = node.intake.borrow_mut();
        intake.refuse_with(reason, put.key.as_bytes());
        refusal(&put.key, reason)
    };
    let value = match &put.value {
        serde_json::Value::Number(number) => number
            .as_f64()
            .filter(|number| number.is_finite())
            .map(Value::Float)
            .ok_or_else(|| refused(Reason::NotFinite))?,
        serde_json::Value::Bool(truth) => Value::Boolean(*truth),
        serde_json::Value::String(text) => Value::Text(text),
        _ => return Err(refused(Reason::PayloadInvalid)),
    };
    let mut bytes = [0; VALUE_BYTES_LIMIT];
    let length = value
        .encode(&mut bytes)
        .map_err(|_| refused(Reason::ValueTooLong))?;
    if let Some(time_ms) = put.time_ms {
        check_time(node, time_ms).map_err(refused)?;
    }
    // Before the key, which would be made for a reading that is not taken.
    if length > node.config.borrow().keys.value_bytes_max as usize {
        return Err(refused(Reason::ValueTooLong));
    }
    let object = node.target.resolve(&put.key).map_err(refused)?;
    let bytes = &bytes[..length];
    let room_end = Instant::now() + ROOM_MAX;
    let ticket = loop {
        let id = ObjectId(object);
        let done = match put.time_ms {
            Some(time_ms) => node.db.put(id, bytes, time_ms, Durability::Now),
            None => node.db.put_now(id, bytes, Durability::Now),
        };
        match done {
            Ok(ticket) => break ticket,
            Err(db::Error::Busy) if Instant::now() < room_end => sleep(RETRY).await,
            Err(db::Error::ValueTooLong { .. }) => return Err(refused(Reason::ValueTooLong)),
            Err(error) => return Err(database_failure(&put.key, &error)),
        }
    };
    node.target.changes().add(object);
    let lsn = ticket.lsn();
    let mut durable = node.durable.clone();
    let end = Instant::now() + DURABLE_MAX;
    while durable.get().end <= lsn {
        if durable.get().failed {
            let error = ticket.poll().err().unwrap_or(db::Error::Closed);
            return Err(database_failure(&put.key, &error));
        }
        if timeout_at(end, durable.changed()).await.is_err() {
            return Err(database_failure(&put.key, &db::Error::Timeout));
        }
    }
    node.counters.puts.set(node.counters.puts.get() + 1);
    framed(Kind::Stored, &Stored { lsn })
}

/// The rules that sources apply to times of sensors, for times that a person gives.
fn check_time(node: &Node, time_ms: i64) -> Result<(), Reason> {
    let limits = node.config.borrow().time;
    let is_plausible = (TIME_MS_MIN..TIME_MS_MAX).contains(&time_ms);
    let ahead_ms = time_ms.saturating_sub(node.target.wall_ms());
    let future_ms_max = limits.future_seconds_max.saturating_mul(1000) as i64;
    let past_ms_max = limits.past_days_max.saturating_mul(86_400_000) as i64;
    let is_near =
        !node.target.wall_trusted() || (ahead_ms <= future_ms_max && ahead_ms >= -past_ms_max);
    if is_plausible && is_near {
        Ok(())
    } else {
        Err(Reason::TimeAbsurd)
    }
}

fn database_failure(key: &str, error: &db::Error) -> Failure {
    let (wrong, remedy) = told(error);
    let remedy = match error {
        db::Error::Busy | db::Error::Timeout => "the device is too slow at the moment: try again",
        _ if remedy.is_empty() => "see `keel status`, and start the node again",
        _ => &remedy,
    };
    failure(error.code(), key, wrong, remedy)
}

fn refusal(key: &str, reason: Reason) -> Failure {
    let (code, wrong, remedy) = match reason {
        Reason::KeyUnknown => (
            Code::NotFound,
            "no [[key]] of the configuration fits it, and auto_create is off",
            "declare it, then send the node SIGHUP",
        ),
        Reason::KeysMax => (
            Code::Full,
            "the node has keys_max keys already",
            "raise keys_max in the configuration, then start the node again",
        ),
        Reason::KeyInvalid => (
            Code::Invalid,
            "is no key",
            "use 1 to 64 bytes without control characters",
        ),
        Reason::ValueTooLong => (
            Code::Invalid,
            "the value is longer than value_bytes_max",
            "shorten it, or raise the limit in the configuration",
        ),
        Reason::TimeAbsurd => (
            Code::Invalid,
            "the time lies too far in the past or the future",
            "check it, or change [time] in the configuration",
        ),
        Reason::NotFinite => (
            Code::Invalid,
            "the value is no finite number",
            "give a number, true, false or a text",
        ),
        _ => (
            Code::Invalid,
            "the value is no value",
            "give a number, true, false or a text",
        ),
    };
    failure(code, key, wrong, remedy)
}
