//! A connection whose peer must read its answers: a write without progress ends it after a timeout.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::counters::{Counters, add};

/// What a connection's bytes do, for the listener: `hyper` does not tell.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Whether bytes have arrived since the listener cleared this.
    pub(crate) heard: Cell<bool>,
    /// Heads that came whole.
    pub(crate) heads: Cell<u64>,
    /// Whether bytes wait for the peer to take them.
    pub(crate) sending: Cell<bool>,
    /// Whether the latest request has a body: bytes that arrive may be its.
    pub(crate) has_body: Cell<bool>,
}

/// The connection.
pub(crate) struct Patient<C> {
    inner: C,
    patience: Duration,
    counters: Arc<Counters>,
    traffic: Rc<Traffic>,
    /// The timer of a pending write.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<C> Patient<C> {
    pub(crate) fn new(
        inner: C,
        patience: Duration,
        counters: Arc<Counters>,
        traffic: Rc<Traffic>,
    ) -> Self {
        Self {
            inner,
            patience,
            counters,
            traffic,
            waits: None,
        }
    }

    /// Passes on the result of a write, and starts or ends the timer.
    fn heed<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.traffic.sending.set(result.is_pending());
        if result.is_ready() {
            self.waits = None;
            return result;
        }
        let patience = self.patience;
        let waits = self
            .waits
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waits.as_mut().poll(context));
        self.waits = None;
        add(&self.counters.connections_stalled, 1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Patient<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.traffic.heard.set(true);
        }
        result
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Patient<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.heed(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.heed(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
