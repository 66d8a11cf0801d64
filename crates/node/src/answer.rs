//! The messages that answer requests: frames and failures.

use super::wire::Request;
use base::error::Code;
use libkeel::protocol::{self, ANSWER_BYTES_MAX, Failure, Kind};
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// The answer to a request, unless it is a stream, or the failure.
pub(crate) type Answer = Result<Vec<u8>, Failure>;

/// Returns the failure of a request.
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
