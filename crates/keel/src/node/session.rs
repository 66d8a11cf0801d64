//! Requests of clients, answered from the database.

use super::qos::requests::{self, Guest};
use super::wire::{Fault, Request, Wire};
use super::{Node, backup, history, owners, puts, watch};
use base::error::Code;
use db::{ObjectId, VALUE_BYTES_LIMIT};
use libkeel::protocol::{
    self, ANSWER_BYTES_MAX, Failure, Get, History, KeyList, Keys, KeysRelease, Kind, LIST_BYTES,
    Latest, Nanoseconds, Shown, Watch,
};
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// The answer to a request, unless it is a stream, or the failure.
pub(crate) type Answer = Result<Vec<u8>, Failure>;

/// Answers one request.
pub(crate) async fn answer(
    node: &Node,
    wire: &mut Wire,
    guest: &mut Guest,
    request: Request,
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
            Some(Kind::Get) => read(&request).and_then(|get: Get| latest(node, &get.key)),
            Some(Kind::Put) => return puts::answer(node, wire, request).await,
            Some(Kind::Together) => match read(&request) {
                Ok(asked) => puts::together(node, guest, &asked).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Status) => read(&request).and_then(|_: protocol::Status| node.state()),
            Some(Kind::Task) => {
                read(&request).and_then(|task| requests::declare(node, guest, &task))
            }
            Some(Kind::TaskPeriod) => {
                read(&request).and_then(|period| requests::note(node, guest, &period))
            }
            Some(Kind::Qos) => {
                read(&request).and_then(|asked| requests::regulate(node, guest, asked))
            }
            Some(Kind::Keys) => read(&request).and_then(|asked: Keys| keys(node, &asked)),
            Some(Kind::KeysRelease) => match read(&request) {
                Ok(asked) => owners::release(node, &asked as &KeysRelease).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Watch) => match read(&request) {
                Ok(asked) => return watch::run(node, wire, &asked as &Watch).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::History) => match read(&request) {
                Ok(asked) => return history::run(node, wire, &asked as &History).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Backup) => match read(&request) {
                // The backup contains the key by which the store recognizes its own bytes, so only operators may have
                // it.
                Ok(protocol::Backup {}) if guest.may_operate => {
                    return backup::run(node, wire).await;
                }
                Ok(_) => Err(failure(
                    Code::Denied,
                    "backup",
                    "only root and the node's own user may make one",
                    "run as one of them",
                )),
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

pub(crate) fn read<T: DeserializeOwned>(request: &Request) -> Result<T, Failure> {
    serde_json::from_slice(&request.payload).map_err(|error| {
        failure(
            Code::Invalid,
            "request",
            error,
            "see NODE.md for its fields",
        )
    })
}

/// Returns the failure for a request that gives a time in ms and in ns.
pub(crate) fn twice(wrong: String) -> Failure {
    failure(Code::Invalid, "request", wrong, "give one of them")
}

/// Returns the frame of an answer.
pub(crate) fn framed(kind: Kind, message: &impl serde::Serialize) -> Answer {
    protocol::frame(kind, message, ANSWER_BYTES_MAX).ok_or_else(|| {
        let wrong = format!("has more than {ANSWER_BYTES_MAX} bytes");
        failure(Code::Full, "answer", wrong, "ask for less")
    })
}

/// Returns the object of a key that must exist.
pub(crate) fn object(node: &Node, key: &str) -> Result<ObjectId, Failure> {
    node.db.lookup(key).ok_or_else(|| no_such_key(key))
}

/// Returns the failure for a request with an unknown key.
pub(crate) fn no_such_key(key: &str) -> Failure {
    let remedy = "see the keys that have values with `keel watch '#' --current`";
    failure(Code::NotFound, key, "no such key", remedy)
}

/// Returns the failure for a value that cannot be read.
pub(crate) fn unreadable(key: &str, error: &db::Error) -> Failure {
    let remedy = match error {
        db::Error::NoValue => "wait for its first reading",
        db::Error::Stalled => {
            "another program has written over the region: end that one, and put a value anew"
        }
        _ => "",
    };
    failure(error.code(), key, error, remedy)
}

/// The most keys checked for one answer.
const KEYS_LOOKED_AT_MAX: u32 = 4096;

/// Returns a part of the keys that match a pattern.
fn keys(node: &Node, asked: &Keys) -> Answer {
    if let Err(error) = ingest::pattern::check(&asked.pattern) {
        let remedy = "write a key, + for one level, or # for the rest";
        return Err(failure(Code::Invalid, &asked.pattern, error, remedy));
    }
    let objects = node.db.objects();
    let mut list = KeyList {
        keys: Vec::new(),
        next: None,
    };
    let (mut at, mut bytes) = (asked.from, 0);
    let until = asked.from.saturating_add(KEYS_LOOKED_AT_MAX).min(objects);
    // A character of a key can take six bytes in JSON.
    while at < until && bytes < LIST_BYTES / 2 {
        let key = node.db.key(ObjectId(at));
        if !key.as_str().is_empty() && ingest::pattern::matches(&asked.pattern, key.as_str()) {
            bytes += key.as_str().len() + 3;
            list.keys.push(key.as_str().to_owned());
        }
        at += 1;
    }
    list.next = (at < objects).then_some(at);
    framed(Kind::KeyList, &list)
}

fn latest(node: &Node, key: &str) -> Answer {
    let id = object(node, key)?;
    let mut bytes = [0; VALUE_BYTES_LIMIT];
    with_latest(node, id, key, &mut bytes, |latest| {
        framed(Kind::Value, latest)
    })
    .unwrap_or_else(|error| Err(unreadable(key, &error)))
}

/// Passes an object's latest value to a closure.
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
        value_text: value.digits(),
        kind,
        time_ms: got.time.ms(),
        time_ns: Nanoseconds::beside_ms(got.time),
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
