//! Takes keys from the series that have them, after an operator has replaced sensors. The answer comes when the release
//! is durable.

use super::answer::{Answer, failure, framed};
use super::get::object;
use super::log;
use super::settings::told;
use super::state::Node;
use base::error::Code;
use db::ObjectId;
use libkeel::protocol::{Failure, KEYS_RELEASED_MAX, KeysRelease, KeysReleased, Kind};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for the release to become durable; only a stalled device needs this long.
const DURABLE_MAX: Duration = Duration::from_secs(60);

/// Releases keys: all of them, or none if one does not exist.
pub(crate) async fn release(node: &Node, asked: &KeysRelease) -> Answer {
    let count = asked.keys.len();
    let Some(first) = asked.keys.first().filter(|_| count <= KEYS_RELEASED_MAX) else {
        let wrong = format!("has {count} keys, not 1 to {KEYS_RELEASED_MAX}");
        let remedy = format!("release at most {KEYS_RELEASED_MAX} keys at once");
        return Err(failure(Code::Invalid, "request", wrong, remedy));
    };
    let objects = asked.keys.iter().map(|key| object(node, key));
    let objects = objects.collect::<Result<Vec<ObjectId>, Failure>>()?;
    let owners = objects.iter().map(|id| node.db.release(*id) as u64);
    let owners: Vec<u64> = owners.collect();
    // What the intake remembers would let the old series go on.
    let objects: Vec<u32> = objects.iter().map(|id| id.0).collect();
    node.intake.borrow_mut().forget_owners(&objects);
    // Also if none had an owner: an earlier request may not have become durable yet.
    let db = Arc::clone(&node.db);
    let flushed = tokio::task::spawn_blocking(move || db.flush_owners(DURABLE_MAX)).await;
    // The blocking thread has already reported its panic.
    let flushed = flushed.unwrap_or(Err(db::Error::Closed));
    flushed.map_err(|error| not_durable(first, &error))?;
    let others = match count {
        1 => String::new(),
        _ => format!(" and {} more keys", count - 1),
    };
    log::event(
        "released",
        format!("{first}{others}: the next series to send gets it"),
    );
    framed(Kind::KeysReleased, &KeysReleased { owners })
}

/// Returns the failure for a release that may end with the power.
fn not_durable(key: &str, error: &db::Error) -> Failure {
    let (wrong, remedy) = match error {
        db::Error::Timeout => {
            let wrong = format!("the device is not done after {} s", DURABLE_MAX.as_secs());
            (wrong, String::new())
        }
        error => told(error),
    };
    let remedy = if remedy.is_empty() {
        "see `keel status` for what the device does, then release it again"
    } else {
        &remedy
    };
    let wrong = format!("is released now, but a power cut may undo it: {wrong}");
    failure(error.code(), key, wrong, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use db::LogFailure;

    #[test]
    fn a_release_that_may_not_last_is_no_success() {
        for (error, code, said) in [
            (db::Error::Timeout, "late", "not done after 60 s"),
            (db::Error::Full, "full", "the store is full"),
            (db::Error::LogFailed(LogFailure::Device), "io", "log"),
            (db::Error::Closed, "gone", "closed"),
        ] {
            let failure = not_durable("hall/2", &error);
            let of = (failure.code.as_str(), failure.thing.as_str());
            assert_eq!(of, (code, "hall/2"));
            assert!(
                failure.wrong.starts_with("is released now") && failure.wrong.contains(said),
                "{failure:?}"
            );
            assert!(!failure.wrong.contains('\n') && !failure.remedy.is_empty());
        }
    }
}
