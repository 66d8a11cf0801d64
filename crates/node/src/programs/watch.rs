//! Communication between the thread of a program and the rest of the node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Capacity of the event queue; lines of output beyond it are dropped and counted.
const EVENTS_MAX: usize = 64;

/// The events that a thread waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// The process of this number has written a line.
    Line(u64, String),
    /// The process of this number has ended but is not reaped; the second value is the time by the machine's clock, in
    /// ns.
    Ended(u64, u64),
    /// A request was made.
    Wake,
}

/// Shared by the thread and its observers.
pub(super) struct Watch<F> {
    stop: AtomicBool,
    again: AtomicBool,
    sender: SyncSender<Event>,
    figures: Mutex<F>,
    /// Lines that were dropped because the queue was full.
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

    /// Locks the figures; hold the guard only briefly.
    pub(super) fn figures(&self) -> MutexGuard<'_, F> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sender of events.
    pub(super) fn sender(&self) -> SyncSender<Event> {
        self.sender.clone()
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // If the queue is full, the thread wakes anyway because of the waiting events.
        self.sender.try_send(Event::Wake).ok();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Asks to start a program again that was given up.
    pub(super) fn try_again(&self) {
        self.again.store(true, Ordering::Release);
        self.sender.try_send(Event::Wake).ok();
    }

    /// Returns whether that was requested since the last call.
    pub(super) fn is_asked_again(&self) -> bool {
        self.again.swap(false, Ordering::AcqRel)
    }
}

/// Returns the next event, if one arrives within `patience`.
pub(super) fn next(events: &Receiver<Event>, patience: Duration) -> Option<Event> {
    events.recv_timeout(patience).ok()
}
