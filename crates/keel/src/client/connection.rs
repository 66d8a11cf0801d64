//! The connection of a command to the node: wraps [`libkeel::connection`] and converts its errors to the command's.

use super::endpoint::{Endpoint, NodeArgs};
use super::error::{failed, strange};
use crate::error::{CliError, describe};
use libkeel::connection::{self, ANSWER_MAX, ConnectionError};
use libkeel::protocol::{Failure, Kind, REQUEST_BYTES_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::AsFd;
use std::time::Duration;

/// A connection to a node.
pub(crate) struct Connection {
    inner: connection::Connection,
    shown: Shown,
    /// The kind of the last request.
    asked: Option<Kind>,
}

/// The node's name in errors.
struct Shown {
    endpoint: Endpoint,
    name: String,
}

/// One answer.
pub(super) struct Answer<'c> {
    pub(super) kind: Kind,
    inner: connection::Answer<'c>,
    pub(super) shown: &'c str,
}

impl Answer<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        self.inner.read().map_err(|error| match error {
            ConnectionError::Strange(wrong) => strange(self.shown, wrong),
            other => strange(self.shown, other),
        })
    }
}

impl Connection {
    pub(crate) fn open(arguments: &NodeArgs) -> Result<Self, CliError> {
        Self::to(Endpoint::of(arguments)?)
    }

    pub(super) fn to(endpoint: Endpoint) -> Result<Self, CliError> {
        let shown = Shown {
            name: endpoint.shown(),
            endpoint,
        };
        let opened = connection::Connection::open(&shown.endpoint.socket, ANSWER_MAX);
        Ok(Self {
            inner: opened.map_err(|error| shown.told(error, None))?,
            shown,
            asked: None,
        })
    }

    /// Sends a request.
    pub(super) fn send(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), CliError> {
        self.asked = Some(kind);
        let sent = self.inner.send(kind, message);
        sent.map_err(|error| self.shown.told(error, None))
    }

    /// Waits for the next answer. An error answer becomes the command's error.
    pub(super) fn answer(&mut self) -> Result<Answer<'_>, CliError> {
        let (shown, asked) = (&self.shown, self.asked);
        let answer = self.inner.answer();
        let answer = answer.map_err(|error| shown.told(error, asked))?;
        Ok(shown.answer(answer))
    }

    /// Waits for the next answer of a stream. Returns `None` when standard output has lost its reader, so that further
    /// answers are not needed. An error answer becomes the command's error.
    pub(super) fn answer_to_reader(&mut self) -> Result<Option<Answer<'_>>, CliError> {
        let (shown, asked) = (&self.shown, self.asked);
        let output = std::io::stdout();
        let patience = self.inner.patience();
        let answer = self.inner.next(patience, Some(output.as_fd()));
        match answer.and_then(connection::Answer::unless_failed) {
            Ok(answer) => Ok(Some(shown.answer(answer))),
            Err(ConnectionError::NoReader) => Ok(None),
            Err(error) => Err(shown.told(error, asked)),
        }
    }

    /// Sends a request that has one answer of this kind.
    pub(crate) fn ask<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
    ) -> Result<T, CliError> {
        self.ask_or(kind, message, expected, |failure| {
            failed(&failure, Some(kind))
        })
    }

    /// The same, for a command that has more to say about a failure than the node.
    pub(super) fn ask_or<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        expected: Kind,
        tell: impl FnOnce(Failure) -> CliError,
    ) -> Result<T, CliError> {
        match self.inner.ask(kind, message, expected) {
            Err(ConnectionError::Refused(failure)) => Err(tell(failure)),
            other => other.map_err(|error| self.shown.told(error, Some(kind))),
        }
    }
}

impl Shown {
    fn answer<'c>(&'c self, inner: connection::Answer<'c>) -> Answer<'c> {
        Answer {
            kind: inner.kind,
            inner,
            shown: &self.name,
        }
    }

    /// Returns the error of the command.
    fn told(&self, error: ConnectionError, asked: Option<Kind>) -> CliError {
        let shown = &self.name;
        match error {
            ConnectionError::Unreachable(error) => self.endpoint.unreachable(&error),
            ConnectionError::Silent(patience) => self.silent(patience),
            ConnectionError::Lost(error) => {
                let wrong = format!("the connection to the node broke ({})", describe(&error));
                CliError::failure(shown, wrong, "look whether the node runs, then try again")
            }
            ConnectionError::Closed => CliError::failure(
                shown,
                "the node has closed the connection",
                "look at what it says, or whether it runs, then try again",
            ),
            ConnectionError::Strange(wrong) => strange(shown, wrong),
            ConnectionError::TooLong => {
                let wrong = format!("has more than {REQUEST_BYTES_MAX} bytes");
                CliError::usage("request", wrong, "shorten key and value")
            }
            ConnectionError::NoReader => {
                CliError::failure("standard output", "has no reader any more", "")
            }
            ConnectionError::Refused(failure) => failed(&failure, asked),
            other => CliError::failure(shown, other, ""),
        }
    }

    /// Returns the error of a socket that a process holds without answering.
    fn silent(&self, patience: Duration) -> CliError {
        let wrong = format!("the node has not answered for {} s", patience.as_secs_f64());
        CliError::failure(&self.name, wrong, self.endpoint.look_hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn line_of(error: ConnectionError) -> (u8, String) {
        let endpoint = Endpoint::named(Path::new("/nonexistent/keel.sock"));
        let shown = Shown {
            name: endpoint.shown(),
            endpoint,
        };
        let error = shown.told(error, None);
        (error.status(), error.to_string())
    }

    #[test]
    fn every_error_is_a_line_with_a_remedy() {
        let no_file = || std::io::Error::from_raw_os_error(libc::ENOENT);
        for (error, status, line) in [
            (
                ConnectionError::Silent(Duration::from_millis(40)),
                1,
                "keel.sock: the node has not answered for 0.04 s; look at its process",
            ),
            (
                ConnectionError::Unreachable(no_file()),
                1,
                "keel.sock: no node answers; start the node",
            ),
            (
                ConnectionError::Lost(no_file()),
                1,
                "broke (no such file or directory); look whether",
            ),
            (
                ConnectionError::Closed,
                1,
                "the node has closed the connection; look at",
            ),
            (
                ConnectionError::TooLong,
                2,
                "request: has more than 65536 bytes; shorten",
            ),
            (
                ConnectionError::Strange("kind 7".to_owned()),
                1,
                "(kind 7); use keel of",
            ),
            (
                ConnectionError::NoReader,
                1,
                "standard output: has no reader any more",
            ),
        ] {
            let (found, text) = line_of(error);
            assert_eq!(found, status, "{text}");
            assert!(text.contains(line), "{text}");
        }
    }
}
