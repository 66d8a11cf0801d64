//! Figures of a device, and the stop of the source.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

use super::exchange::{Failure, Fault};

/// The figures of a device; its bus writes them, any thread may read them.
#[derive(Debug, Default)]
pub struct DeviceState {
    polls: AtomicU64,
    polls_failed: AtomicU64,
    polls_missed: AtomicU64,
    failed_in_row: AtomicU64,
    readings: AtomicU64,
    readings_left_out: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
    last_error: Mutex<String>,
}

/// [`DeviceState`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// Polls that ended; each asks for all registers of the device.
    pub polls: u64,
    /// Polls without an answer to every request.
    pub polls_failed: u64,
    /// Polls that were left out because the one before, or those of other devices of the link, took too long.
    pub polls_missed: u64,
    /// The last polls that failed, one after the other; 0 if the last one did not.
    pub failed_in_row: u64,
    /// Readings taken.
    pub readings: u64,
    /// Readings left out because the store took nothing for a while.
    pub readings_left_out: u64,
    /// Requests without an answer, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::ALL.len()],
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
}

impl DeviceState {
    /// Returns all figures. They are not of one instant.
    #[must_use]
    pub fn figures(&self) -> DeviceFigures {
        let last_error = self.last_error.lock();
        let last_error = last_error.unwrap_or_else(PoisonError::into_inner).clone();
        DeviceFigures {
            polls: self.polls.load(Relaxed),
            polls_failed: self.polls_failed.load(Relaxed),
            polls_missed: self.polls_missed.load(Relaxed),
            failed_in_row: self.failed_in_row.load(Relaxed),
            readings: self.readings.load(Relaxed),
            readings_left_out: self.readings_left_out.load(Relaxed),
            faults: std::array::from_fn(|index| self.faults[index].load(Relaxed)),
            last_error: (!last_error.is_empty()).then_some(last_error),
        }
    }

    /// Counts a request without an answer.
    pub(super) fn note(&self, failure: &Failure) {
        self.faults[failure.fault.index()].fetch_add(1, Relaxed);
        let mut text = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        text.clone_from(&failure.text);
    }

    /// Counts a poll.
    pub(super) fn polled(&self, is_answered: bool) {
        self.polls.fetch_add(1, Relaxed);
        if is_answered {
            self.failed_in_row.store(0, Relaxed);
        } else {
            self.polls_failed.fetch_add(1, Relaxed);
            self.failed_in_row.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn missed(&self, polls: u64) {
        self.polls_missed.fetch_add(polls, Relaxed);
    }

    pub(super) fn add_reading(&self) {
        self.readings.fetch_add(1, Relaxed);
    }

    pub(super) fn add_left_out(&self) {
        self.readings_left_out.fetch_add(1, Relaxed);
    }
}

/// Stops the source; usable from any thread. Dropping it stops the source, too.
#[derive(Debug)]
pub struct Controller {
    sender: watch::Sender<bool>,
}

/// The source's end of a [`Controller`]; each bus has a clone.
#[derive(Clone, Debug)]
pub struct Control {
    receiver: watch::Receiver<bool>,
}

/// Creates a controller and the control to run buses with.
#[must_use]
pub fn control() -> (Controller, Control) {
    let (sender, receiver) = watch::channel(false);
    (Controller { sender }, Control { receiver })
}

impl Controller {
    /// Stops the source at once: no sender waits for what it has taken.
    pub fn stop(&self) {
        self.sender.send_replace(true);
    }
}

impl Control {
    /// Waits for the stop. Dropping the future loses nothing.
    pub(super) async fn stopped(&mut self) {
        // An error means that the controller is gone.
        let _ = self.receiver.wait_for(|is_stopped| *is_stopped).await;
    }
}
