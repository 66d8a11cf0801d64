//! The observable state of the listeners, and their stop.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;

/// The listeners' figures; the listeners write them, any thread may read them.
#[derive(Debug, Default)]
pub struct LineState {
    pub(super) connections: AtomicU64,
    pub(super) connections_total: AtomicU64,
    pub(super) connections_refused: AtomicU64,
    pub(super) connections_idle: AtomicU64,
    pub(super) connections_made_room: AtomicU64,
    pub(super) connections_ended_early: AtomicU64,
    pub(super) connections_text_open: AtomicU64,
    accept_failures: AtomicU64,
    /// Error number of the latest accept; 0: it succeeded.
    accept_errno: AtomicI32,
    pub(super) waiting: AtomicU64,
    pub(super) waiting_full: AtomicU64,
    pub(super) lines: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) acknowledged: AtomicU64,
    pub(super) oversized: AtomicU64,
    pub(super) unfinished: AtomicU64,
}

/// [`LineState`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFigures {
    /// Open connections.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections that were closed at once because `connections_max` existed already, none of them idle.
    pub connections_refused: u64,
    /// Connections that were closed because they were silent for too long.
    pub connections_idle: u64,
    /// Idle connections that were closed because a new one needed the place. What they send next may be lost.
    pub connections_made_room: u64,
    /// Connections that ended with a reset, vanished, or left their answers unread: their last data may not have
    /// arrived. Data that had arrived is taken.
    pub connections_ended_early: u64,
    /// Connections that were closed because a quoted text with line breaks did not end.
    pub connections_text_open: u64,
    /// Failed accepts, for example for lack of descriptors; one every 100 ms while that lasts.
    pub accept_failures: u64,
    /// Whether the latest accept failed: senders cannot connect now. [`LineState::accept_error`] says why.
    pub accept_failing: bool,
    /// Connections whose lines wait now because the database accepts nothing.
    pub waiting: u64,
    /// How many of them wait because the store is full.
    pub waiting_full: u64,
    /// Finished lines, without empty ones.
    pub lines: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Acknowledgement lines sent.
    pub acknowledged: u64,
    /// Lines above `line_bytes_max`.
    pub oversized: u64,
    /// Lines that were cut off by the end of their connection.
    pub unfinished: u64,
}

impl LineState {
    /// Returns the current figures. They are not read at a single instant.
    #[must_use]
    pub fn figures(&self) -> LineFigures {
        LineFigures {
            connections: self.connections.load(Relaxed),
            connections_total: self.connections_total.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            connections_idle: self.connections_idle.load(Relaxed),
            connections_made_room: self.connections_made_room.load(Relaxed),
            connections_ended_early: self.connections_ended_early.load(Relaxed),
            connections_text_open: self.connections_text_open.load(Relaxed),
            accept_failures: self.accept_failures.load(Relaxed),
            accept_failing: self.accept_errno.load(Relaxed) != 0,
            waiting: self.waiting.load(Relaxed),
            waiting_full: self.waiting_full.load(Relaxed),
            lines: self.lines.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            acknowledged: self.acknowledged.load(Relaxed),
            oversized: self.oversized.load(Relaxed),
            unfinished: self.unfinished.load(Relaxed),
        }
    }

    /// Returns why no connection can be accepted at the moment, as text.
    #[must_use]
    pub fn accept_error(&self) -> Option<String> {
        match self.accept_errno.load(Relaxed) {
            0 => None,
            UNKNOWN => Some("the system gives no reason".to_owned()),
            errno => Some(io::Error::from_raw_os_error(errno).to_string()),
        }
    }

    pub(super) fn accept_failed(&self, error: &io::Error) {
        self.accept_failures.fetch_add(1, Relaxed);
        let errno = error.raw_os_error().filter(|errno| *errno != 0);
        self.accept_errno.store(errno.unwrap_or(UNKNOWN), Relaxed);
    }

    pub(super) fn accept_succeeded(&self) {
        self.accept_errno.store(0, Relaxed);
    }
}

/// Stands for an error without a number.
const UNKNOWN: i32 = -1;

/// Increments a gauge for its lifetime.
pub(super) struct Counted<'s>(&'s AtomicU64);

impl<'s> Counted<'s> {
    pub(super) fn new(gauge: &'s AtomicU64) -> Self {
        gauge.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Stops the listeners; usable from any thread. Dropping it stops them without waiting for anything.
#[derive(Debug)]
pub struct Controller {
    sender: watch::Sender<Option<Duration>>,
}

/// The listeners' end of a [`Controller`].
#[derive(Clone, Debug)]
pub struct Control {
    receiver: watch::Receiver<Option<Duration>>,
}

/// Creates a controller and the control to run listeners with.
#[must_use]
pub fn control() -> (Controller, Control) {
    let (sender, receiver) = watch::channel(None);
    (Controller { sender }, Control { receiver })
}

impl Controller {
    /// Stops the listeners: nothing more is accepted, and acknowledgements that were asked for have `wait_ms_max` to
    /// become due and be sent.
    pub fn stop(&self, wait_ms_max: u64) {
        self.sender
            .send_replace(Some(Duration::from_millis(wait_ms_max)));
    }
}

impl Control {
    /// Waits for the request to stop, and returns the time that is left for acknowledgements. Dropping the future loses
    /// nothing.
    pub(super) async fn stopped(&mut self) -> Duration {
        match self.receiver.wait_for(Option::is_some).await {
            Ok(wish) => wish.unwrap_or_default(),
            // The controller is gone, perhaps after a request.
            Err(_) => Duration::ZERO,
        }
    }
}
