//! One connection of the node's socket: frames in, frames out, with limits on bytes and time.

use base::error::Code;
use base::wire::{self, Decoded};
use libkeel::protocol::{self, Failure, Kind, REQUEST_BYTES_MAX};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

/// Timeout of a connection without a request.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// Timeout of a connection with tasks without a report. The longest period is one hour, and a report may cover ten
/// periods.
const LASTING_MAX: Duration = Duration::from_secs(24 * 3600);

/// Timeout of a request, from its first byte.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Timeout for the client to receive an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Bytes per read.
const READ_BYTES: usize = 4096;

/// One request.
pub(crate) struct Request {
    pub(crate) kind: u16,
    pub(crate) version: u16,
    pub(crate) payload: Vec<u8>,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The client has gone, or does not receive its answers.
    Gone,
    /// The client's data make it impossible to continue; the client is told why.
    Reply(Failure),
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

pub(crate) struct Wire {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
        }
    }

    /// Returns the next request; `None` if the client has closed the connection between two requests, or was idle too
    /// long. Dropping the future loses nothing. `is_lasting`: the timeout is [`LASTING_MAX`].
    pub(crate) async fn request(&mut self, is_lasting: bool) -> Result<Option<Request>, Fault> {
        let idle_max = if is_lasting { LASTING_MAX } else { IDLE_MAX };
        let idle_end = Instant::now() + idle_max;
        let mut request_end = None;
        loop {
            let (taken, missing) = self.decode()?;
            if let Some(request) = taken {
                return Ok(Some(request));
            }
            let is_begun = !self.input.is_empty();
            let end = if is_begun {
                *request_end.get_or_insert_with(|| Instant::now() + REQUEST_MAX)
            } else {
                idle_end
            };
            let mut limited = (&mut self.stream).take(missing.max(READ_BYTES) as u64);
            let read = timeout_at(end, limited.read_buf(&mut self.input)).await;
            match read.map(|read| read.unwrap_or(0)) {
                Ok(1..) => {}
                // A partial request or a connection error cannot be answered either.
                Ok(0) => return Ok(None),
                Err(_) if is_begun => {
                    return Err(told(Code::Late, "did not arrive whole within 10 s"));
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Returns the next request, if it has been received completely and is of this kind. Never waits; all other data
    /// stay for [`request`](Self::request).
    pub(crate) fn received(&mut self, kind: Kind) -> Option<Request> {
        loop {
            match wire::decode(&self.input, REQUEST_BYTES_MAX) {
                Ok(Decoded::Frame(frame)) => {
                    let is_wanted = frame.kind == kind as u16 && frame.version == protocol::VERSION;
                    return is_wanted.then(|| self.decode().ok()?.0).flatten();
                }
                Ok(Decoded::NeedMore(_)) => {}
                Err(_) => return None,
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.try_read(&mut bytes) {
                Ok(read @ 1..) => self.input.extend_from_slice(&bytes[..read]),
                _ => return None,
            }
        }
    }

    /// Returns a complete request at the front of the input, or the minimum number of missing bytes.
    fn decode(&mut self) -> Result<(Option<Request>, usize), Fault> {
        match wire::decode(&self.input, REQUEST_BYTES_MAX) {
            Ok(Decoded::NeedMore(missing)) => {
                if self.input.is_empty() {
                    // Free the buffer: an idle connection holds no memory.
                    self.input = Vec::new();
                }
                Ok((None, missing))
            }
            Ok(Decoded::Frame(frame)) => {
                let consumed = frame.consumed;
                let request = Request {
                    kind: frame.kind,
                    version: frame.version,
                    payload: frame.payload.to_vec(),
                };
                self.input.drain(..consumed);
                Ok((Some(request), 0))
            }
            Err(error) => Err(told(error.code(), &error.to_string())),
        }
    }

    /// Sends frames. Gives up a client that receives nothing for too long.
    pub(crate) async fn send(&mut self, frames: &[u8]) -> Result<(), Fault> {
        for part in frames.chunks(REQUEST_BYTES_MAX) {
            timeout(ANSWER_MAX, self.stream.write_all(part))
                .await
                .map_err(|_| Fault::Gone)??;
        }
        Ok(())
    }

    /// Sends an error.
    pub(crate) async fn fail(&mut self, failure: &Failure) -> Result<(), Fault> {
        self.send(&failed(failure)).await
    }

    /// Returns when the client has gone. A client that only shut down its sending side still waits for its answer. A
    /// client that has sent its next request is detected only when an answer cannot be sent.
    pub(crate) async fn left(&mut self) {
        while self.input.is_empty() {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.try_read_buf(&mut self.input) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
                Ok(0) => match self.stream.ready(Interest::WRITABLE).await {
                    Ok(ready) if !ready.is_write_closed() => break,
                    _ => return,
                },
                Ok(_) => {}
            }
        }
        std::future::pending().await
    }

    /// Returns when the client has sent something or gone.
    pub(crate) async fn stirs(&mut self) {
        while self.input.is_empty() {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.try_read_buf(&mut self.input) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Bytes, the end or an error: the next request handles it.
                _ => return,
            }
        }
    }
}

/// Returns the frame of an error.
pub(crate) fn failed(failure: &Failure) -> Vec<u8> {
    protocol::frame(Kind::Error, failure, protocol::ANSWER_BYTES_MAX).unwrap_or_default()
}

fn told(code: Code, wrong: &str) -> Fault {
    Fault::Reply(Failure {
        code: code.name().to_owned(),
        thing: "request".to_owned(),
        wrong: wrong.to_owned(),
        remedy: "use keel of the node's version".to_owned(),
    })
}
