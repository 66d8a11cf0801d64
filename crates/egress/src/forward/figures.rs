//! What forwarding counts, and what others see of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counters that a cursor keeps.
pub(crate) const COUNTERS: usize = 13;

/// Why a reading cannot be sent, or was not taken. Each costs itself alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// NaN or infinite, where the format has no way to write that.
    NotFinite,
    /// Bytes that are no value.
    NoValue,
    /// The key makes no topic, or one that is too long; in lines, it is empty or ends with a backslash.
    Topic,
    /// Longer than a batch may be.
    TooLong,
    /// The upstream refused it for what it is.
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

    /// As the status shows it.
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

/// Counts of readings since the cursor was made. They are written with the cursor: after a crash those of the last
/// window at most are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the upstream, each time.
    pub sent: u64,
    /// Acknowledged by it.
    pub acknowledged: u64,
    /// Handed to it again, or perhaps again: after a crash nobody knows, and as many are counted as can have been.
    pub sent_twice: u64,
    /// Deleted by retention or to make room before they were forwarded.
    pub lost: u64,
    /// Hidden by damage of the log.
    pub missing: u64,
    /// Older than their deadline when they were looked at, and sent all the same.
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

    /// Refused for any reason.
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

/// What an upstream looks like at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Whether the latest attempt to reach it worked.
    pub connected: bool,
    /// Times that a connection was made, and that one was lost.
    pub connects: u64,
    /// See `connects`.
    pub losses: u64,
    /// Since the cursor was made.
    pub counters: Counters,
    /// Readings from the cursor to `durable_end`, wanted or not.
    pub backlog_readings: u64,
    /// Where the log ended when these figures were taken, which is ten times a second: what has come since waits, too.
    pub durable_end: u64,
    /// Age of the oldest of them, ms; `None` while nobody can say, or when there is none.
    pub backlog_age_ms: Option<u64>,
    /// How long the oldest of them has been the oldest, ms.
    pub unmoved_ms: u64,
    /// Nothing is sent yet, because the node's clock is not trusted.
    pub waits_for_clock: bool,
    /// Readings sent and not acknowledged.
    pub in_flight: u64,
    /// What went wrong last; it stays when things go well again.
    pub last_error: Option<String>,
    /// Why the cursor cannot be written; nothing is sent beyond the window meanwhile.
    pub cursor_error: Option<String>,
    /// Whether the cursor's file was damaged, so that forwarding began with the oldest reading there is.
    pub cursor_was_lost: bool,
    /// Writes of the cursor since the start.
    pub cursor_writes: u64,
    /// Answers that fit nothing that was sent.
    pub answers_unknown: u64,
}

/// The figures of one upstream, shared between its task and whoever asks.
#[derive(Debug, Default)]
pub struct UpstreamState(Mutex<Figures>);

impl UpstreamState {
    /// A copy.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Figures> {
        // Every figure is valid between two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
