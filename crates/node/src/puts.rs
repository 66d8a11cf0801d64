//! Puts of one client. Puts that it has sent back to back are handed to the log before the first is waited for. So they
//! share a flush. The answers keep the order of the requests. The puts of an instance of a firm task come in one
//! request; they are stored all together and in time, or not at all.

use super::answer::{Answer, failure, framed, read, twice};
use super::qos::requests::Guest;
use super::settings::told;
use super::state::{Node, add};
use super::wire::{Fault, Request, Wire, failed};
use base::error::Code;
use db::{Durability, ObjectId, STAGED_PUTS_MAX, Ticket, Time, TogetherReading, VALUE_BYTES_LIMIT};
use ingest::durable::DurableWatch;
use ingest::intake::{self, Destination, Reason, TIME_MS_MAX, TIME_MS_MIN};
use libkeel::protocol::{Failure, Kind, Put, PutType, REQUEST_BYTES_MAX, Stored, Together};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Timeout for puts to become durable; only a stalled device needs this long.
const DURABLE_MAX: Duration = Duration::from_secs(60);

/// Retry interval of a put that found no room.
const RETRY: Duration = Duration::from_millis(5);

/// How long puts that are handed over together wait for room.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// Puts that are handed over together, at most.
const TOGETHER_MAX: usize = 1024;

/// Bytes of their requests, at most; the last request may exceed it. An answer may be about as long as its request.
const TOGETHER_BYTES: usize = REQUEST_BYTES_MAX;

/// A reading in the queue to the log.
struct Taken {
    key: String,
    ticket: Ticket,
    /// LSN of the reading.
    lsn: u64,
}

/// Stores a reading and the puts already received behind it. It does not wait for other clients' readings to share
/// their flush.
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
        // Only the last put starts the flush; otherwise each of them might get its own.
        let durability = match next {
            Some(_) => Durability::Batched,
            None => Durability::Now,
        };
        let taken = match read(&request) {
            Ok(put) => take(node, put, durability, room_end).await,
            Err(failure) => Err(failure),
        };
        if next.is_none() && taken.is_err() {
            // The last put was refused, so no flush was started for the earlier ones.
            node.db.hurry();
        }
        together.push(taken);
        match next {
            Some(next) => request = next,
            None => break,
        }
        add(&node.counters.requests);
    }
    let mut durable = node.durable.clone();
    let end = Instant::now() + DURABLE_MAX;
    let mut frames = Vec::new();
    for taken in together {
        let answer = match taken {
            Ok(taken) => match wait_durable(&mut durable, (&taken.ticket, taken.lsn), end).await {
                Ok(()) => stored(node, taken.lsn, 1),
                Err(error) => Err(database_failure(&taken.key, &error)),
            },
            Err(failure) => Err(failure),
        };
        frames.extend(answer.unwrap_or_else(|failure| failed(&failure)));
    }
    wire.send(&frames).await
}

/// Stores the puts of an instance of a firm task: all of them, or none.
pub(crate) async fn together(node: &Node, guest: &Guest, asked: &Together) -> Answer {
    let first = asked.puts.first().map_or("request", |put| &put.key);
    let (ticket, lsn) = match take_together(node, asked).await {
        Ok(taken) => taken,
        Err(failure) => {
            // The program has continued and counts the instance as in time, so correct that here.
            let is_late = failure.code == Code::Late.name();
            node.qos.abort(&guest.tasks, is_late);
            return Err(failure);
        }
    };
    let end = Instant::now() + DURABLE_MAX;
    let waited = wait_durable(&mut node.durable.clone(), (&ticket, lsn), end).await;
    waited.map_err(|error| not_durable(first, &error))?;
    stored(node, lsn, asked.puts.len() as u64)
}

/// Hands readings to the log, if all of them are accepted and the deadline has not passed. Returns the ticket and the
/// LSN of the last one.
async fn take_together(node: &Node, asked: &Together) -> Result<(Ticket, u64), Failure> {
    let puts = &asked.puts;
    if puts.is_empty() || puts.len() > STAGED_PUTS_MAX as usize {
        let wrong = format!("has {} puts, not 1 to {STAGED_PUTS_MAX}", puts.len());
        let remedy = format!("send at most {STAGED_PUTS_MAX} puts for one instance");
        return Err(failure(Code::Invalid, "request", wrong, remedy));
    }
    let first = &puts[0].key;
    // The log checks the deadline again. This early check keeps a late request from making keys.
    if node.db.now_ns() > asked.deadline_ns {
        return Err(too_late(first));
    }
    let mut readings = Vec::with_capacity(puts.len());
    for put in puts {
        readings.push(reading(node, put)?);
    }
    let readings: Vec<_> = readings
        .iter()
        .map(|(id, value, time)| TogetherReading {
            id: *id,
            value,
            time: *time,
        })
        .collect();
    let room_end = Instant::now() + ROOM_MAX;
    let ticket = loop {
        match node.db.put_together(&readings, asked.deadline_ns) {
            Ok(ticket) => break ticket,
            // Retry until there is room or the deadline has passed.
            Err(db::Error::Busy) if Instant::now() < room_end => {
                node.db.hurry();
                sleep(RETRY).await;
            }
            Err(db::Error::TooLate) => return Err(too_late(first)),
            Err(error @ db::Error::ValueTooLong { bytes, .. }) => {
                let long = readings
                    .iter()
                    .position(|reading| reading.value.len() == bytes);
                let put = long.and_then(|place| puts.get(place));
                return Err(match put {
                    Some(put) => refused(node, &put.key, Reason::ValueTooLong),
                    None => database_failure(first, &error),
                });
            }
            Err(error) => return Err(database_failure(first, &error)),
        }
    };
    for reading in &readings {
        node.target.changes().add(reading.id.0);
    }
    // Readings that are put together are always logged; admission does not apply to them.
    let lsn = ticket.lsn();
    lsn.map(|lsn| (ticket, lsn))
        .ok_or_else(|| not_durable(first, &db::Error::Closed))
}

fn too_late(key: &str) -> Failure {
    let remedy = "look at what slows the node down, or give the task a longer deadline";
    failure(Code::Late, key, db::Error::TooLate, remedy)
}

/// Returns the failure for readings that were all taken in time but are not on flash. It is neither `late` nor `full`:
/// these codes say that nothing was stored.
fn not_durable(key: &str, error: &db::Error) -> Failure {
    let code = match error.code() {
        Code::Gone => Code::Gone,
        _ => Code::Io,
    };
    let (wrong, _) = told(error);
    let wrong = format!("was taken in time with the others, and may be stored or not: {wrong}");
    failure(
        code,
        key,
        wrong,
        "see `keel status` for what the device does",
    )
}

/// Hands a reading to the log.
async fn take(
    node: &Node,
    put: Put,
    durability: Durability,
    room_end: Instant,
) -> Result<Taken, Failure> {
    let (id, value, time) = reading(node, &put)?;
    let ticket = loop {
        let done = match time {
            Some(time) => node.db.put(id, &value, time, durability),
            None => node.db.put_now(id, &value, durability),
        };
        match done {
            Ok(ticket) => break ticket,
            Err(db::Error::Busy) if Instant::now() < room_end => {
                node.db.hurry();
                sleep(RETRY).await;
            }
            Err(db::Error::ValueTooLong { .. }) => {
                return Err(refused(node, &put.key, Reason::ValueTooLong));
            }
            Err(error) => return Err(database_failure(&put.key, &error)),
        }
    };
    let Some(lsn) = ticket.lsn() else {
        return Err(failure(
            Code::Shed,
            &put.key,
            "was thrown away, as shed = \"drop\" says while fewer updates are admitted; nothing of it is stored",
            "see `keel qos status`; shed = \"log\" would keep it in the history",
        ));
    };
    node.target.changes().add(id.0);
    Ok(Taken {
        key: put.key,
        ticket,
        lsn,
    })
}

/// Returns the object, the bytes and the time of a reading, if its key, value and time are accepted. Makes a new key.
fn reading(node: &Node, put: &Put) -> Result<(ObjectId, Vec<u8>, Option<Time>), Failure> {
    let time = put.time().map_err(twice)?;
    let refused = |reason: Reason| refused(node, &put.key, reason);
    let kind = put.kind.map(|kind| match kind {
        PutType::Float => intake::PutType::Float,
        PutType::Integer => intake::PutType::Integer,
        PutType::Unsigned => intake::PutType::Unsigned,
    });
    let mut bytes = [0; VALUE_BYTES_LIMIT];
    let length = intake::encode_put(put.value.raw(), kind, &mut bytes).map_err(refused)?;
    if let Some(time) = time {
        check_time(node, time).map_err(refused)?;
    }
    // Check this before the key: otherwise the key would be made for a refused reading.
    if length > node.config.borrow().keys.value_bytes_max as usize {
        return Err(refused(Reason::ValueTooLong));
    }
    let object = node.target.resolve(&put.key).map_err(refused)?;
    Ok((ObjectId(object), bytes[..length].to_vec(), time))
}

/// Counts a refused reading and returns the failure for its client.
fn refused(node: &Node, key: &str, reason: Reason) -> Failure {
    let mut intake = node.intake.borrow_mut();
    intake.refuse_with(reason, key.as_bytes());
    refusal(key, reason)
}

/// Waits until the reading with this ticket and LSN is on flash.
async fn wait_durable(
    durable: &mut DurableWatch,
    (ticket, lsn): (&Ticket, u64),
    end: Instant,
) -> Result<(), db::Error> {
    while durable.get().end <= lsn {
        if durable.get().failed {
            return Err(ticket.poll().err().unwrap_or(db::Error::Closed));
        }
        if timeout_at(end, durable.changed()).await.is_err() {
            return Err(db::Error::Timeout);
        }
    }
    Ok(())
}

/// Counts readings that are on flash and returns the answer for the last one.
fn stored(node: &Node, lsn: u64, readings: u64) -> Answer {
    node.counters.puts.set(node.counters.puts.get() + readings);
    framed(Kind::Stored, &Stored { lsn })
}

/// Checks a time given by a person by the rules that sources apply to sensor times, which count in whole ms.
fn check_time(node: &Node, time: Time) -> Result<(), Reason> {
    let time_ms = time.ms();
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
        db::Error::StagedFull { .. } => "put less in one instance",
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
            "the node has keys_max keys already, or no room for their names (key_bytes_mean)",
            "raise the one that `keel status` names, then start the node again",
        ),
        Reason::KeyInvalid => (
            Code::Invalid,
            "is no key",
            "use 1 to 255 bytes without control or invisible characters, and no level that is + or # alone",
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
        Reason::NumberInexact => (
            Code::Invalid,
            "no type holds each digit of the number, or the requested type does not",
            "give an integer of 64 bits, or ask for the nearest double (type float)",
        ),
        _ => (
            Code::Invalid,
            "the value is invalid, or has another type than the requested one",
            "give a number, true, false or a text; with a type, a number that it holds",
        ),
    };
    failure(code, key, wrong, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use db::LogFailure;

    /// `late` and `full` of readings that are put together mean that none was stored.
    #[test]
    fn a_put_taken_in_time_is_not_called_refused() {
        for (error, code) in [
            (db::Error::Timeout, "io"),
            (db::Error::Full, "io"),
            (db::Error::LogFailed(LogFailure::Device), "io"),
            (db::Error::Closed, "gone"),
        ] {
            let failure = not_durable("valve", &error);
            assert_eq!(
                (failure.code.as_str(), failure.thing.as_str()),
                (code, "valve")
            );
            assert!(
                failure.wrong.contains("may be stored or not"),
                "{failure:?}"
            );
            assert!(!failure.wrong.contains('\n') && !failure.remedy.is_empty());
        }
        assert_eq!(too_late("valve").code, "late");
    }
}
