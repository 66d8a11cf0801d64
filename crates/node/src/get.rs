//! The latest value of a key, and the list of keys.

use super::answer::{Answer, failure, framed};
use super::state::Node;
use base::error::Code;
use db::{ObjectId, VALUE_BYTES_LIMIT};
use libkeel::protocol::{Failure, KeyList, Keys, Kind, LIST_BYTES, Latest, Nanoseconds, Shown};

/// The most keys checked for one answer.
const KEYS_CHECKED_MAX: u32 = 4096;

/// Returns the object of a key that must exist.
pub(crate) fn object(node: &Node, key: &str) -> Result<ObjectId, Failure> {
    node.db.lookup(key).ok_or_else(|| no_such_key(key))
}

/// Returns the failure for a request with an unknown key.
#[must_use]
pub fn no_such_key(key: &str) -> Failure {
    let remedy = "see the keys that have values with `keel watch '#' --current`";
    failure(Code::NotFound, key, "no such key", remedy)
}

/// Returns the failure for a value that cannot be read.
#[must_use]
pub fn unreadable(key: &str, error: &db::Error) -> Failure {
    let remedy = match error {
        db::Error::NoValue => "wait for its first reading",
        db::Error::Stalled => {
            "another program has written over the region: end that one, and put a value anew"
        }
        _ => "",
    };
    failure(error.code(), key, error, remedy)
}

/// Returns a part of the keys that match a pattern.
pub(crate) fn keys(node: &Node, asked: &Keys) -> Answer {
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
    let until = asked.from.saturating_add(KEYS_CHECKED_MAX).min(objects);
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

/// Returns the latest value of a key.
pub(crate) fn latest(node: &Node, key: &str) -> Answer {
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
