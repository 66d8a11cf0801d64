//! A connection to a server, plain or with TLS: one thread reads, another writes, and any thread can end it.
//!
//! Reader and writer do not wait for each other. A rustls connection is locked only while records are encoded or
//! decoded, never during a wait for the socket. So a peer that reads nothing blocks only the writer, and what it sends
//! is still received. `connect.rs` makes a link, `socket.rs` is its socket, `secure.rs` TLS for two threads.

mod connect;
mod secure;
mod socket;

pub use connect::{LinkSettings, connect};

use base::error::Code;
use secure::Secure;
use socket::Socket;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The name of the server cannot be resolved.
    #[error("{server}: {source}")]
    Address {
        /// The server, as in the settings.
        server: String,
        /// The error of the resolver.
        #[source]
        source: io::Error,
    },
    /// Without TLS only loopback addresses are allowed.
    #[error("{0} is not on this machine; without an identity only loopback addresses are allowed")]
    NotLoopback(std::net::SocketAddr),
    /// The socket failed, or no server answered in time.
    #[error("{server}: {source}")]
    Socket {
        /// The server, as in the settings.
        server: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Both sides do not agree on TLS: another authority, a refused certificate.
    #[error("{server}: {source}")]
    Tls {
        /// The server, as in the settings.
        server: String,
        /// The error of rustls.
        #[source]
        source: rustls::Error,
    },
}

impl LinkError {
    /// Returns the error code that this error maps to; see [`base::error`].
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

/// The state that both ends of a link share.
struct Shared {
    socket: Socket,
    secure: Option<Secure>,
    /// Set by [`LinkControl::shutdown`]: errors caused by the shutdown are not reported.
    is_unwanted: AtomicBool,
}

/// The reading end, owned by one thread.
pub struct LinkReader {
    shared: Arc<Shared>,
    incoming: secure::Incoming,
}

impl Read for LinkReader {
    /// Waits for bytes. Returns 0 if the other side has ended the connection, or [`LinkControl::shutdown`] did. Returns
    /// [`io::ErrorKind::TimedOut`] if none arrived within the timeout; the link stays usable.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let result = match &self.shared.secure {
            None => self.shared.socket.receive(into),
            Some(secure) => secure.read(&self.shared.socket, &mut self.incoming, into),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(_) if self.shared.is_unwanted.load(Ordering::Acquire) => Ok(0),
            other => other,
        }
    }
}

/// The writing end, owned by one thread.
pub struct LinkWriter {
    shared: Arc<Shared>,
}

impl Write for LinkWriter {
    /// Writes all of the bytes, or fails. Nothing is buffered, so no flush is needed. [`io::ErrorKind::TimedOut`] means
    /// that the other side read nothing within the timeout; the link has ended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.shared.secure {
            None => self.shared.socket.send(bytes)?,
            Some(secure) => secure.write(&self.shared.socket, bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a link and returns its byte counts, from any thread.
#[derive(Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Ends the connection at once: a reader gets end of file, a writer an error.
    pub fn shutdown(&self) {
        self.shared.is_unwanted.store(true, Ordering::Release);
        self.shared.socket.end();
    }

    /// Returns whether it was ended from this side: by [`shutdown`](Self::shutdown), or by a write that failed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.socket.is_ended()
    }

    /// Returns the number of bytes given to TCP so far, including the handshake and the overhead of TLS.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.socket.sent_bytes()
    }

    /// Returns the number of bytes received from TCP so far, counted in the same way.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.shared.socket.received_bytes()
    }
}

/// Both ends of a connection, and its control.
pub struct Link {
    /// The reading end, for one thread.
    pub reader: LinkReader,
    /// The writing end, for one thread.
    pub writer: LinkWriter,
    /// The control, for any thread.
    pub control: LinkControl,
}

impl Link {
    fn new(socket: Socket, secure: Option<Secure>) -> Self {
        let shared = Arc::new(Shared {
            socket,
            secure,
            is_unwanted: AtomicBool::new(false),
        });
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
