//! What forwarding counts, and the figures that it shows.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of counters that a cursor keeps.
pub(crate) const COUNTERS: usize = 13;

/// Why a reading cannot be sent, or was not accepted. A refusal affects that reading alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// NaN or infinite, and the format cannot represent it.
    NotFinite,
    /// The bytes are not a valid value.
    NoValue,
    /// The key makes no valid topic, or one that is too long; in lines, it is empty or ends with a backslash.
    Topic,
    /// Longer than the batch limit.
    TooLong,
    /// The upstream refused it because of its content.
    Upstream,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::NotFinite,
        Self::NoValue,
        Self::Topic,
        Self::TooLong,
        Self::Upstream,
    ];

    /// Returns its name in the status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFinite => "not_finite",
            Self::NoValue => "no_value",
            Self::Topic => "topic",
            Self::TooLong => "too_long",
            Self::Upstream => "upstream",
        }
    }
}

/// Counts of readings since the cursor was created. They are written with the cursor: a crash loses at most those of
/// the last window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the upstream, counted each time.
    pub sent: u64,
    /// Acknowledged by the upstream.
    pub acknowledged: u64,
    /// Handed to it again, or possibly again: after a crash the exact number is unknown, and the largest possible
    /// number is counted.
    pub sent_twice: u64,
    /// Deleted by retention, or to make room, before they were forwarded.
    pub lost: u64,
    /// Hidden by damage of the log.
    pub missing: u64,
    /// Older than their deadline when they were processed, and sent nevertheless.
    pub late_sent: u64,
    /// Older than their deadline, and left out as configured.
    pub late_skipped: u64,
    /// Left out by down-sampling.
    pub thinned: u64,
    /// By [`Refusal`].
    pub refused: [u64; 5],
}

impl Counters {
    pub(crate) fn values(&self) -> [u64; COUNTERS] {
        let [a, b, c, d, e] = self.refused;
        [
            self.sent,
            self.acknowledged,
            self.sent_twice,
            self.lost,
            self.missing,
            self.late_sent,
            self.late_skipped,
            self.thinned,
            a,
            b,
            c,
            d,
            e,
        ]
    }

    pub(crate) fn of_values(values: [u64; COUNTERS]) -> Self {
        let [
            sent,
            acknowledged,
            sent_twice,
            lost,
            missing,
            late_sent,
            late_skipped,
            thinned,
            a,
            b,
            c,
            d,
            e,
        ] = values;
        Self {
            sent,
            acknowledged,
            sent_twice,
            lost,
            missing,
            late_sent,
            late_skipped,
            thinned,
            refused: [a, b, c, d, e],
        }
    }

    /// Returns the number of readings refused, for any reason.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        let add = |sum: u64, count: &u64| sum.saturating_add(*count);
        self.refused.iter().fold(0, add)
    }

    pub(crate) fn add(&mut self, more: &Self) {
        let mut sum = self.values();
        for (total, more) in sum.iter_mut().zip(more.values()) {
            // A file may hold any number.
            *total = total.saturating_add(more);
        }
        *self = Self::of_values(sum);
    }

    pub(crate) fn refuse(&mut self, why: Refusal) {
        if let Some(count) = self.refused.get_mut(why as usize) {
            *count = count.saturating_add(1);
        }
    }
}

/// The state of an upstream at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Whether the latest attempt to reach it succeeded.
    pub connected: bool,
    /// Connections made, and connections lost.
    pub connects: u64,
    /// See `connects`.
    pub losses: u64,
    /// Since the cursor was created.
    pub counters: Counters,
    /// Readings from the cursor to `durable_end`, wanted or not.
    pub backlog_readings: u64,
    /// End of the log when these figures were taken, which is at least ten times a second: readings that arrived since
    /// then also wait.
    pub durable_end: u64,
    /// Age of the oldest of them, in ms; `None` if unknown, or if there is none.
    pub backlog_age_ms: Option<u64>,
    /// For how long the oldest of them has been the oldest, in ms.
    pub unmoved_ms: u64,
    /// Whether nothing is sent yet because the node's clock is not trusted.
    pub waits_for_clock: bool,
    /// Readings sent and not acknowledged.
    pub in_flight: u64,
    /// The last error; it stays after a recovery.
    pub last_error: Option<String>,
    /// Why the cursor cannot be written; nothing beyond the window is sent meanwhile.
    pub cursor_error: Option<String>,
    /// Whether the cursor's file was damaged, so that forwarding began with the oldest reading in the log.
    pub cursor_was_lost: bool,
    /// Writes of the cursor since the start.
    pub cursor_writes: u64,
    /// Answers that match nothing that was sent.
    pub answers_unknown: u64,
}

/// The figures of one upstream, shared between its task and the readers of the figures.
#[derive(Debug, Default)]
pub struct UpstreamState(Mutex<Figures>);

impl UpstreamState {
    /// Returns a copy.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Figures> {
        // A panic between two statements leaves every figure valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
