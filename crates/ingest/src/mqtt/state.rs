//! The observable state of a running session.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Size of the longest error text that is kept, in bytes.
pub const ERROR_BYTES_MAX: usize = 256;

/// Why nothing is read from the broker at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The queue of the database or the window of unacknowledged messages is full: the store is slower than the
    /// broker.
    Busy,
    /// The store is full and accepts nothing.
    Full,
}

/// A session's figures; the session writes them, any thread may read them.
#[derive(Debug, Default)]
pub struct MqttState {
    pub(super) connected: AtomicBool,
    pub(super) failed: AtomicBool,
    /// 0, or a [`Pause`] plus one.
    pub(super) pause: AtomicU8,
    pub(super) connects: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) acknowledged: AtomicU64,
    pub(super) in_flight: AtomicU64,
    pub(super) busy_us: AtomicU64,
    pub(super) full_us: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) copies: AtomicU64,
    pub(super) retained: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) oversized: AtomicU64,
    pub(super) packets_invalid: AtomicU64,
    pub(super) subscriptions_held: AtomicU64,
    pub(super) subscriptions_refused: AtomicU64,
    pub(super) subscriptions_unanswered: AtomicU64,
    last_error: Mutex<String>,
}

/// [`MqttState`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MqttFigures {
    /// Whether there is a connection to the broker now.
    pub connected: bool,
    /// The log has failed for good; the session has ended and does not restart.
    pub failed: bool,
    /// Why nothing is read at the moment; `None` while messages are read.
    pub pause: Option<Pause>,
    /// Connections that the broker accepted.
    pub connects: u64,
    /// Connections that ended without a request of the node.
    pub losses: u64,
    /// Messages finished: taken or refused, including oversized ones.
    pub messages: u64,
    /// Bytes read from the broker.
    pub bytes: u64,
    /// Messages acknowledged to the broker (QoS 1, and QoS 2 by its PUBREC).
    pub acknowledged: u64,
    /// Messages taken that are not acknowledged yet.
    pub in_flight: u64,
    /// Time in which nothing was read because the store was slower than the broker, ms.
    pub paused_busy_ms: u64,
    /// Time in which nothing was read because the store was full, ms.
    pub paused_full_ms: u64,
    /// Messages that the broker marked as sent before.
    pub redelivered: u64,
    /// Copies of messages that also arrived for another filter; they were left out.
    pub copies: u64,
    /// Messages that the broker had retained for new subscribers.
    pub retained: u64,
    /// Messages that the node has sent: commands that ask for something.
    pub sent: u64,
    /// Messages above `packet_bytes_max`.
    pub oversized: u64,
    /// Packets that broke the protocol; each ended a connection.
    pub packets_invalid: u64,
    /// Subscriptions that the broker has granted on this connection, or on the last one.
    pub subscriptions_held: u64,
    /// Subscriptions that the broker refused, or granted with a lower QoS than requested; `last_error` says which.
    pub subscriptions_refused: u64,
    /// Subscriptions that the broker has not answered within `connect_ms_max`, while it sends other packets.
    pub subscriptions_unanswered: u64,
}

impl MqttState {
    /// Returns all figures. They are read one after the other, so that two of them can be of different moments.
    #[must_use]
    pub fn figures(&self) -> MqttFigures {
        MqttFigures {
            connected: self.connected.load(Relaxed),
            failed: self.failed.load(Relaxed),
            pause: match self.pause.load(Relaxed) {
                0 => None,
                1 => Some(Pause::Busy),
                _ => Some(Pause::Full),
            },
            connects: self.connects.load(Relaxed),
            losses: self.losses.load(Relaxed),
            messages: self.messages.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            acknowledged: self.acknowledged.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            paused_busy_ms: self.busy_us.load(Relaxed) / 1_000,
            paused_full_ms: self.full_us.load(Relaxed) / 1_000,
            redelivered: self.redelivered.load(Relaxed),
            copies: self.copies.load(Relaxed),
            retained: self.retained.load(Relaxed),
            sent: self.sent.load(Relaxed),
            oversized: self.oversized.load(Relaxed),
            packets_invalid: self.packets_invalid.load(Relaxed),
            subscriptions_held: self.subscriptions_held.load(Relaxed),
            subscriptions_refused: self.subscriptions_refused.load(Relaxed),
            subscriptions_unanswered: self.subscriptions_unanswered.load(Relaxed),
        }
    }

    /// Returns the last error, at most [`ERROR_BYTES_MAX`] bytes; it stays after a recovery.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        let text = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        (!text.is_empty()).then(|| text.clone())
    }

    pub(super) fn set_error(&self, error: &str) {
        let mut end = error.len().min(ERROR_BYTES_MAX);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        let mut text = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        text.clear();
        text.push_str(&error[..end]);
    }

    pub(super) fn set_pause(&self, pause: Option<Pause>) {
        let value = match pause {
            None => 0,
            Some(Pause::Busy) => 1,
            Some(Pause::Full) => 2,
        };
        self.pause.store(value, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_characters() {
        let state = MqttState::default();
        assert_eq!(state.last_error(), None);
        state.set_error(&"ä".repeat(500));
        assert_eq!(state.last_error().unwrap().len(), ERROR_BYTES_MAX);
        state.set_error(&format!("x{}", "ä".repeat(500)));
        assert_eq!(state.last_error().unwrap().len(), ERROR_BYTES_MAX - 1);
    }
}
