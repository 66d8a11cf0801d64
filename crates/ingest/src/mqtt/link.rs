//! The socket, in one of two states: registered with the runtime, or not; or a connection with TLS, which is always
//! registered.
//!
//! A broker sends one small segment per message. As long as the runtime watches the socket, each segment wakes the
//! thread, even while the session sleeps on purpose. This costs several microseconds per message. So a session
//! deregisters the socket while it paces its reads, or does not read because the store is behind. Then it polls the
//! socket at its own times. With TLS the socket stays registered. The session then polls it without a wake-up, and the
//! arrival of bytes costs less than a run of the session.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A byte stream in both directions over something else than a bare socket.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin {}

impl<W: AsyncRead + AsyncWrite + Unpin> Wire for W {}

pub(super) enum Link {
    /// The runtime wakes the session when bytes arrive.
    Watched(TcpStream),
    /// Non-blocking, and polled only by the session.
    Unwatched(std::net::TcpStream),
    /// Encrypted.
    Secure(Secure),
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

    /// Waits for bytes, or for room if `wants_room`. Never returns for an unwatched socket. Dropping the future loses
    /// nothing.
    pub(super) async fn wait(&mut self, space: &mut [u8], wants_room: bool) -> Ready {
        match self {
            Self::Watched(stream) => {
                let (mut reads, writes) = stream.split();
                tokio::select! {
                    read = reads.read(space) => Ready::Read(read),
                    _ = writes.writable(), if wants_room => Ready::Room,
                }
            }
            Self::Secure(secure) => secure.wait(space, wants_room).await,
            Self::Unwatched(_) | Self::Gone => std::future::pending().await,
        }
    }

    /// Reads the available bytes; `None` if there are none.
    pub(super) fn read(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match self {
            Self::Watched(stream) => stream.try_read(space),
            Self::Unwatched(stream) => stream.read(space),
            Self::Secure(secure) => secure.try_read(space),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        };
        some_unless_it_would_block(read)
    }

    /// Writes as much as fits; `None` if nothing does.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = match self {
            Self::Watched(stream) => stream.try_write(bytes),
            Self::Unwatched(stream) => stream.write(bytes),
            Self::Secure(secure) => secure.try_write(bytes),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        };
        some_unless_it_would_block(written)
    }

    /// Sends encrypted bytes that a full socket has held back, as far as there is room now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Self::Secure(secure) = self else {
            return Ok(());
        };
        match secure.poll_flush(&mut unwatched()) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Tells the peer that nothing more will be written. Returns whether that is done; otherwise it must be called
    /// again.
    pub(super) fn end_writes(&mut self) -> bool {
        match self {
            Self::Unwatched(stream) => {
                let _ = stream.shutdown(Shutdown::Write);
                true
            }
            // If that fails, the connection has ended.
            Self::Secure(secure) => Pin::new(&mut *secure.wire)
                .poll_shutdown(&mut unwatched())
                .is_ready(),
            Self::Watched(_) | Self::Gone => true,
        }
    }
}

/// The context of a poll after which nothing wakes the task.
fn unwatched() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// A connection with TLS.
pub(super) struct Secure {
    wire: Box<dyn Wire>,
    /// Whether bytes that were written may still wait behind a full socket.
    holds_back: bool,
}

impl Secure {
    pub(super) fn new(wire: Box<dyn Wire>) -> Self {
        Self {
            wire,
            holds_back: false,
        }
    }

    async fn wait(&mut self, space: &mut [u8], wants_room: bool) -> Ready {
        poll_fn(|context| {
            if let Poll::Ready(read) = self.poll_read(context, space) {
                return Poll::Ready(Ready::Read(read));
            }
            match self.poll_flush(context) {
                Poll::Ready(Err(error)) => Poll::Ready(Ready::Read(Err(error))),
                Poll::Ready(Ok(())) if wants_room => Poll::Ready(Ready::Room),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn try_read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self.poll_read(&mut unwatched(), space) {
            Poll::Ready(read) => read,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.holds_back = true;
        match Pin::new(&mut *self.wire).poll_write(&mut unwatched(), bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        space: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(space);
        let read = Pin::new(&mut *self.wire).poll_read(context, &mut buffer);
        read.map(|read| read.map(|()| buffer.filled().len()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.holds_back {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut *self.wire).poll_flush(context);
        self.holds_back = flushed.is_pending();
        flushed
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncWriteExt, BufWriter, duplex};
    use tokio::time::timeout;

    /// As TLS does, this takes more than the socket behind it has room for.
    #[tokio::test]
    async fn bytes_behind_a_full_socket_are_sent_while_the_session_waits() {
        let (ours, mut theirs) = duplex(16);
        let held = BufWriter::with_capacity(64, ours);
        let mut link = Link::Secure(Secure::new(Box::new(held)));
        let mut space = [0; 8];
        assert_eq!(link.read(&mut space).unwrap(), None);
        assert_eq!(link.write(&[7; 40]).unwrap(), Some(40));
        link.flush().unwrap();
        // 16 bytes have gone, and nothing else will be written.
        let mut got = [0; 40];
        let peer = async {
            theirs.read_exact(&mut got).await.unwrap();
            theirs.write_all(b"ack").await.unwrap();
        };
        let both = async { tokio::join!(link.wait(&mut space, false), peer) };
        let (ready, ()) = timeout(Duration::from_secs(60), both).await.unwrap();
        assert!(matches!(ready, Ready::Read(Ok(3))));
        assert_eq!(got, [7; 40]);
        // The end of the writes arrives, and what comes meanwhile is read.
        assert!(link.end_writes());
        assert_eq!(theirs.read(&mut got).await.unwrap(), 0);
        theirs.write_all(b"rest").await.unwrap();
        assert_eq!(link.read(&mut space).unwrap(), Some(4));
        drop(theirs);
        assert_eq!(link.read(&mut space).unwrap(), Some(0));
    }
}
