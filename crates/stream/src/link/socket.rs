//! The socket of a link, which several threads use at the same time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A socket with its byte counts.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    /// As in [`LinkSettings`](super::LinkSettings).
    pub(super) read_max: Option<Duration>,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    is_ended: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, read_max: Option<Duration>) -> Self {
        Self {
            stream,
            read_max,
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
        }
    }

    /// Reads from the socket; 0 means its end. Returns [`io::ErrorKind::TimedOut`] if no byte arrives within the
    /// timeout.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.stream).read(into) {
                Ok(count) => {
                    self.received_bytes
                        .fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(timed_out(error)),
            }
        }
    }

    /// Writes all of these bytes. After an error the link is unusable: some of them may have been sent.
    pub(super) fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.end();
                    return Err(timed_out(error));
                }
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        // It fails if the other side has ended the connection already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether it was ended from this side.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

/// Converts the "would block" of a socket with a timeout into "timed out".
pub(super) fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
