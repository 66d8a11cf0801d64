//! A connection to a server, plain or with TLS: one thread reads, another writes, any ends it.
//!
//! Neither waits for the other: a rustls connection is locked only while bytes are made or taken apart, never while the
//! socket is waited for. So a peer that reads nothing stops the writer alone, and what it sends still comes in.
//! `connect.rs` makes a link, `secure.rs` is TLS for two threads.

mod connect;
mod secure;

pub use connect::{LinkSettings, connect};

use base::error::Code;
use secure::Secure;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The name of the server leads nowhere.
    #[error("{server}: {source}")]
    Address {
        /// As it was given.
        server: String,
        /// What the resolver says.
        #[source]
        source: io::Error,
    },
    /// Without TLS only this machine itself is talked to.
    #[error("{0} is not on this machine; without an identity only loopback addresses are allowed")]
    NotLoopback(std::net::SocketAddr),
    /// The socket failed, or nobody answered in time.
    #[error("{server}: {source}")]
    Socket {
        /// As it was given.
        server: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The two do not agree on TLS: another authority, a refused certificate.
    #[error("{server}: {source}")]
    Tls {
        /// As it was given.
        server: String,
        /// What rustls says.
        #[source]
        source: rustls::Error,
    },
}

impl LinkError {
    /// The one code this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Address { .. } => Code::NotFound,
            Self::NotLoopback(_) | Self::Tls { .. } => Code::Denied,
            Self::Socket { source, .. } => match source.kind() {
                io::ErrorKind::TimedOut => Code::Late,
                _ => Code::from_io(source),
            },
        }
    }
}

/// What both ends of a link share.
struct Shared {
    socket: TcpStream,
    secure: Option<Secure>,
    /// As in [`LinkSettings`].
    read_max: Option<Duration>,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    is_ended: AtomicBool,
    /// By [`LinkControl::shutdown`]: nobody wants to hear what broke by that.
    is_unwanted: AtomicBool,
}

impl Shared {
    fn new(socket: TcpStream, read_max: Option<Duration>) -> Self {
        Self {
            socket,
            secure: None,
            read_max,
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
            is_unwanted: AtomicBool::new(false),
        }
    }

    /// Reads from the socket; 0 is its end. A time that is over without a byte is [`io::ErrorKind::TimedOut`].
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.socket).read(into) {
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

    /// Writes all of these bytes. After an error the link is of no use: a part of them may have been sent.
    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&self.socket).write(bytes) {
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

    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        // It fails when the other side has ended the connection already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// A socket with a time limit says "would block" when it is over.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// The reading end. One thread has it.
pub struct LinkReader {
    shared: Arc<Shared>,
    incoming: secure::Incoming,
}

impl Read for LinkReader {
    /// Waits for bytes; 0: the other side has ended the connection, or [`LinkControl::shutdown`] did.
    /// [`io::ErrorKind::TimedOut`]: none came within the limit; the link is as good as before.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let result = match &self.shared.secure {
            None => self.shared.receive(into),
            Some(secure) => secure.read(&self.shared, &mut self.incoming, into),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(_) if self.shared.is_unwanted.load(Ordering::Acquire) => Ok(0),
            other => other,
        }
    }
}

/// The writing end. One thread has it.
pub struct LinkWriter {
    shared: Arc<Shared>,
}

impl Write for LinkWriter {
    /// Writes all of the bytes, or fails; nothing is kept back, so nothing is to be flushed.
    /// [`io::ErrorKind::TimedOut`]: the other side has taken nothing for so long; the link has ended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.shared.secure {
            None => self.shared.send(bytes)?,
            Some(secure) => secure.write(&self.shared, bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a link and counts its bytes, from any thread.
#[derive(Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Ends the connection: who reads gets its end, who writes an error, at once.
    pub fn shutdown(&self) {
        self.shared.is_unwanted.store(true, Ordering::Release);
        self.shared.end();
    }

    /// Whether it was ended from this side: by [`shutdown`](Self::shutdown), or by a write that failed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.is_ended.load(Ordering::Acquire)
    }

    /// Bytes given to TCP until now: with TLS all that it adds, the handshake too.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::Relaxed)
    }

    /// Bytes taken from TCP until now, counted likewise.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.shared.received_bytes.load(Ordering::Relaxed)
    }
}

/// Both ends of a connection, and what ends it.
pub struct Link {
    /// For the thread that reads.
    pub reader: LinkReader,
    /// For the thread that writes.
    pub writer: LinkWriter,
    /// For all.
    pub control: LinkControl,
}

impl Link {
    fn new(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        Self {
            reader: LinkReader {
                shared: Arc::clone(&shared),
                incoming: secure::Incoming::new(shared.secure.is_some()),
            },
            writer: LinkWriter {
                shared: Arc::clone(&shared),
            },
            control: LinkControl { shared },
        }
    }
}
