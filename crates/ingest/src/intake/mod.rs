//! From outside bytes to readings: what every network source shares.

mod reason;

pub use reason::Reason;

use std::time::Duration;

/// Where readings go: the database in the node, something else in a measurement or a test.
pub trait Destination: Send + Sync + 'static {
    /// Number of the object with this key, which is made if the rules allow it. Callers keep the number.
    ///
    /// # Errors
    /// The reason why there is none.
    fn resolve(&self, key: &str) -> Result<u32, Reason>;

    /// Hands over one reading and returns its number in the log. `time_ms` is the sensor's time in ms since 1970;
    /// without one the node's clock gives it.
    ///
    /// # Errors
    /// [`PutError`]; then nothing has changed.
    fn put(&self, object: u32, value: &[u8], time_ms: Option<i64>) -> Result<u64, PutError>;

    /// Readings numbered below this are durable.
    fn durable_end(&self) -> u64;

    /// Blocks until [`durable_end`](Self::durable_end) passes `seen` or `timeout` is over; returns its value.
    ///
    /// # Errors
    /// The log has failed for good.
    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone>;

    /// The node's wall clock, ms since 1970.
    fn wall_ms(&self) -> i64;

    /// Whether that clock has been set from a trusted source.
    fn wall_trusted(&self) -> bool;
}

/// The log has failed for good: nothing more becomes durable until the node starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGone;

/// Why a reading was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutError {
    /// Nothing is taken at the moment; try again later. `full`: the store is full, not merely slow.
    Wait {
        /// Whether the store is full.
        full: bool,
    },
    /// This reading will never be taken.
    Refused(Reason),
    /// The log has failed for good.
    Failed,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its readings are durable once the destination's `durable_end` is at least `lsn_end`.
    Accepted {
        /// Number of its last reading, plus one.
        lsn_end: u64,
    },
    /// Counted by reason. The sender's queue shall forget it.
    Refused,
    /// Nothing more is taken now. Offer the rest again later; what came before `consumed` is taken.
    Wait {
        /// Bytes of the payload that are done with.
        consumed: usize,
        /// Whether the store is full.
        full: bool,
    },
    /// The log has failed for good.
    Failed,
}
