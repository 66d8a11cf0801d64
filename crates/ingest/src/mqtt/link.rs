//! The socket, in one of two states: registered with the runtime, or not.
//!
//! A broker sends one small segment per message. As long as the runtime watches the socket, each segment wakes the
//! thread, even while the session sleeps on purpose. This costs several microseconds per message. So a session
//! deregisters the socket while it paces its reads, or does not read because the store is behind. Then it polls the
//! socket at its own times.

use std::io::{self, ErrorKind, Read, Write};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

pub(super) enum Link {
    /// The runtime wakes the session when bytes arrive.
    Watched(TcpStream),
    /// Non-blocking, and polled only by the session.
    Unwatched(std::net::TcpStream),
    /// A change between the two states failed.
    Gone,
}

/// The result of [`Link::wait`].
pub(super) enum Ready {
    /// This many bytes have been read; 0 is the end of the stream.
    Read(io::Result<usize>),
    /// There may be room to write.
    Room,
}

impl Link {
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if let Self::Unwatched(_) = self
            && let Self::Unwatched(stream) = std::mem::replace(self, Self::Gone)
        {
            *self = Self::Watched(TcpStream::from_std(stream)?);
        }
        Ok(())
    }

    pub(super) fn unwatch(&mut self) -> io::Result<()> {
        if let Self::Watched(_) = self
            && let Self::Watched(stream) = std::mem::replace(self, Self::Gone)
        {
            *self = Self::Unwatched(stream.into_std()?);
        }
        Ok(())
    }

    /// Waits for bytes, or for room if `wants_room`. Needs a watched socket; otherwise it never returns. Dropping the
    /// future loses nothing.
    pub(super) async fn wait(&mut self, space: &mut [u8], wants_room: bool) -> Ready {
        let Self::Watched(stream) = self else {
            return std::future::pending().await;
        };
        let (mut reads, writes) = stream.split();
        tokio::select! {
            read = reads.read(space) => Ready::Read(read),
            _ = writes.writable(), if wants_room => Ready::Room,
        }
    }

    /// Reads the available bytes; `None` if there are none.
    pub(super) fn read(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match self {
            Self::Watched(stream) => stream.try_read(space),
            Self::Unwatched(stream) => stream.read(space),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        };
        some_unless_it_would_block(read)
    }

    /// Writes as much as fits; `None` if nothing does.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = match self {
            Self::Watched(stream) => stream.try_write(bytes),
            Self::Unwatched(stream) => stream.write(bytes),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        };
        some_unless_it_would_block(written)
    }
}

fn some_unless_it_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
