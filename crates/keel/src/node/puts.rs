//! Puts of one client: all that it has sent one behind the other are handed on to the log before the first of them is
//! waited for, so that they share a flush. The answers keep the order of the requests.

use super::session::{Answer, failure, framed, read};
use super::settings::told;
use super::wire::{Fault, Request, Wire, failed};
use super::{Node, server};
use base::error::Code;
use db::value::Value;
use db::{Durability, ObjectId, Ticket, VALUE_BYTES_LIMIT};
use ingest::durable::DurableWatch;
use ingest::intake::{Destination, Reason, TIME_MS_MAX, TIME_MS_MIN};
use libkeel::protocol::{Failure, Kind, Put, REQUEST_BYTES_MAX, Stored};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long puts may take to become durable; only a device that stalls needs as much.
const DURABLE_MAX: Duration = Duration::from_secs(60);

/// Pause before a put that found no room is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long puts that are handed on together wait for room.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// Puts that are handed on together, at most.
const TOGETHER_MAX: usize = 1024;

/// Bytes of their requests, at most; the last one may pass it. An answer may be about as long as its request.
const TOGETHER_BYTES: usize = REQUEST_BYTES_MAX;

/// A reading in the queue to the log.
struct Taken {
    key: String,
    ticket: Ticket,
}

/// Stores a reading, and those of the puts that have been received behind it, without waiting for readings of others
/// to share their flush.
pub(crate) async fn answer(node: &Node, wire: &mut Wire, first: Request) -> Result<(), Fault> {
    let room_end = Instant::now() + ROOM_MAX;
    let mut together = Vec::new();
    let mut request = first;
    let mut bytes = 0;
    loop {
        bytes += request.payload.len();
        let is_full = together.len() + 1 >= TOGETHER_MAX || bytes >= TOGETHER_BYTES;
        let next = match is_full {
            true => None,
            false => wire.received(Kind::Put),
        };
        // The flush begins with the last one, or each of them might have its own.
        let durability = match next {
            Some(_) => Durability::Batched,
            None => Durability::Now,
        };
        let taken = match read(&request) {
            Ok(put) => take(node, put, durability, room_end).await,
            Err(failure) => Err(failure),
        };
        if next.is_none() && taken.is_err() {
            // It has begun none for those before it.
            node.db.hurry();
        }
        together.push(taken);
        match next {
            Some(next) => request = next,
            None => break,
        }
        server::add(&node.counters.requests);
    }
    let mut durable = node.durable.clone();
    let end = Instant::now() + DURABLE_MAX;
    let mut frames = Vec::new();
    for taken in together {
        let answer = match taken {
            Ok(taken) => stored(node, &mut durable, &taken, end).await,
            Err(failure) => Err(failure),
        };
        frames.extend(answer.unwrap_or_else(|failure| failed(&failure)));
    }
    wire.send(&frames).await
}

/// Hands a reading on to the log.
async fn take(
    node: &Node,
    put: Put,
    durability: Durability,
    room_end: Instant,
) -> Result<Taken, Failure> {
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
    let ticket = loop {
        let id = ObjectId(object);
        let done = match put.time_ms {
            Some(time_ms) => node.db.put(id, bytes, time_ms, durability),
            None => node.db.put_now(id, bytes, durability),
        };
        match done {
            Ok(ticket) => break ticket,
            Err(db::Error::Busy) if Instant::now() < room_end => {
                node.db.hurry();
                sleep(RETRY).await;
            }
            Err(db::Error::ValueTooLong { .. }) => return Err(refused(Reason::ValueTooLong)),
            Err(error) => return Err(database_failure(&put.key, &error)),
        }
    };
    if ticket.is_dropped() {
        return Err(failure(
            Code::Shed,
            &put.key,
            "was thrown away, as shed = \"drop\" says while fewer updates are admitted; nothing of it is stored",
            "see `keel qos status`; shed = \"log\" would keep it in the history",
        ));
    }
    node.target.changes().add(object);
    Ok(Taken {
        key: put.key,
        ticket,
    })
}

/// Waits until a reading is on flash.
async fn stored(node: &Node, durable: &mut DurableWatch, taken: &Taken, end: Instant) -> Answer {
    let lsn = taken.ticket.lsn();
    while durable.get().end <= lsn {
        if durable.get().failed {
            let error = taken.ticket.poll().err().unwrap_or(db::Error::Closed);
            return Err(database_failure(&taken.key, &error));
        }
        if timeout_at(end, durable.changed()).await.is_err() {
            return Err(database_failure(&taken.key, &db::Error::Timeout));
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
