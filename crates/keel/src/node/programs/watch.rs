//! What the thread of a program and the rest of the node tell each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events that wait to be looked at; lines of output beyond that are left out and counted.
const EVENTS_MAX: usize = 64;

/// What a thread waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// A line that the process of this number has written.
    Line(u64, String),
    /// That process has ended, and was not waited for yet; when, by the machine's clock.
    Ended(u64, u64),
    /// Something was asked for.
    Wake,
}

/// Shared by the thread and those who look.
pub(super) struct Watch<F> {
    stop: AtomicBool,
    again: AtomicBool,
    sender: SyncSender<Event>,
    figures: Mutex<F>,
    /// Lines that nobody has looked at.
    pub(super) lines_unseen: Arc<AtomicU64>,
}

impl<F: Clone> Watch<F> {
    pub(super) fn new(figures: F) -> (Self, Receiver<Event>) {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let watch = Self {
            stop: AtomicBool::new(false),
            again: AtomicBool::new(false),
            sender,
            figures: Mutex::new(figures),
            lines_unseen: Arc::default(),
        };
        (watch, events)
    }

    /// The figures, for a moment.
    pub(super) fn figures(&self) -> MutexGuard<'_, F> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whoever has events.
    pub(super) fn sender(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Asks for the end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // Where there is no room, events wait that are looked at first.
        self.sender.try_send(Event::Wake).ok();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whoever was given up is tried again.
    pub(super) fn try_again(&self) {
        self.again.store(true, Ordering::Release);
        self.sender.try_send(Event::Wake).ok();
    }

    /// Whether that was asked for since the last question.
    pub(super) fn is_asked_again(&self) -> bool {
        self.again.swap(false, Ordering::AcqRel)
    }
}

/// The next event, if one comes in time.
pub(super) fn next(events: &Receiver<Event>, patience: Duration) -> Option<Event> {
    events.recv_timeout(patience).ok()
}
