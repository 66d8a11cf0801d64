//! The queue of bodies between HTTP and the owner of the node's intake, and the owner's answers.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::counters::{Counters, add, less};
use super::options::WRITES_MAX;

/// Unit of the times in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Nanoseconds, the default.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Minutes.
    Minutes,
    /// Hours.
    Hours,
}

impl TimeUnit {
    /// Returns the unit with this name, in version 1 or 2 of the protocol.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        match name {
            "" | "ns" | "n" => Some(Self::Nanoseconds),
            "us" | "u" | "µ" => Some(Self::Microseconds),
            "ms" => Some(Self::Milliseconds),
            "s" => Some(Self::Seconds),
            "m" => Some(Self::Minutes),
            "h" => Some(Self::Hours),
            _ => None,
        }
    }
}

/// A line that was refused, as a whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedLine {
    /// Its number in the body, from 1.
    pub line: u64,
    /// Names of the reasons, as in `keel status`.
    pub reasons: Vec<&'static str>,
    /// Its beginning.
    pub text: String,
}

/// What has become of the lines of a body. The readings that were stored are durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Readings that are stored.
    pub accepted: u64,
    /// Lines that were refused as a whole, and single refused readings.
    pub refused: u64,
    /// Readings that were dropped to shed load.
    pub shed: u64,
    /// The first refused lines.
    pub lines: Vec<RefusedLine>,
    /// The number of the line, from 1, whose quoted text has no certain end, so that everything behind it was left out.
    pub text_open_line: Option<u64>,
}

/// The answer of the intake's owner. Except with the first, a part of the lines may have been stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Every line is finished, and what was stored is durable.
    Durable(Taken),
    /// The queue of the log has no room.
    Busy,
    /// The store is full, and its policy is to refuse new readings.
    Full,
    /// The log takes nothing more until the node starts again: the device fails, or cannot be written.
    Failed,
    /// What was stored did not become durable in time.
    Late,
    /// The node stops.
    Stopping,
}

/// Lines to be taken.
#[derive(Debug)]
pub struct WriteRequest {
    lines: Vec<u8>,
    /// Unit of their times.
    pub unit: TimeUnit,
    answer: oneshot::Sender<Written>,
    _place: Place,
}

impl WriteRequest {
    /// Returns the lines. They have come whole, so the last one needs no line feed.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    /// Answers it. The client may be gone.
    pub fn answer(self, written: Written) {
        self.answer.send(written).ok();
    }

    /// Returns when the client is gone.
    pub async fn gone(&mut self) {
        self.answer.closed().await;
    }
}

/// The queue of bodies that the owner of the intake reads. Each is to be taken beside the others: one may have to wait.
#[derive(Debug)]
pub struct Writes(mpsc::Receiver<WriteRequest>);

impl Writes {
    /// Returns the next body; `None` once the HTTP side has ended.
    pub async fn next(&mut self) -> Option<WriteRequest> {
        self.0.recv().await
    }
}

/// The other end of [`Writes`].
#[derive(Clone, Debug)]
pub struct Writer(mpsc::Sender<WriteRequest>);

impl Writer {
    /// Hands over the lines of a body; returns what has become of them.
    pub(super) async fn write(&self, lines: Vec<u8>, unit: TimeUnit, place: Place) -> Written {
        let (answer, answered) = oneshot::channel();
        let given = self.0.try_send(WriteRequest {
            lines,
            unit,
            answer,
            _place: place,
        });
        match given {
            // Without an answer the owner of the intake has ended.
            Ok(()) => answered.await.unwrap_or(Written::Stopping),
            Err(_) => Written::Stopping,
        }
    }
}

/// Returns both ends.
#[must_use]
pub fn write_channel() -> (Writer, Writes) {
    let (sender, receiver) = mpsc::channel(WRITES_MAX as usize);
    (Writer(sender), Writes(receiver))
}

/// The place of one body, released when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    counters: Arc<Counters>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Takes one of the places for bodies, if any is free.
    pub(super) fn take(bodies: &Arc<Semaphore>, counters: &Arc<Counters>) -> Option<Self> {
        let permit = Arc::clone(bodies).try_acquire_owned().ok()?;
        add(&counters.writes_active, 1);
        Some(Self {
            counters: Arc::clone(counters),
            _permit: permit,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        less(&self.counters.writes_active);
    }
}
