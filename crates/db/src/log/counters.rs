//! What the commit side counts, and why it gives a checkpoint up.

use base::histogram::Histogram;

use super::reader::Damage;

/// Counters of the commit side, behind a lock that no producer takes.
#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    pub(crate) batches: u64,
    pub(crate) appends: u64,
    pub(crate) log_bytes: u64,
    pub(crate) readings: u64,
    pub(crate) checkpoints: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoints_failed: u64,
    pub(crate) checkpoint_failing: Option<CheckpointFailure>,
    pub(crate) replay_bytes: u64,
    pub(crate) segments_expired: u64,
    pub(crate) readings_expired: u64,
    pub(crate) segments_dropped: u64,
    pub(crate) readings_dropped: u64,
    /// When a segment was last deleted to make room.
    pub(crate) dropped_last_ns: Option<u64>,
    pub(crate) segments: u64,
    pub(crate) history_bytes: u64,
    pub(crate) oldest_lsn: u64,
    /// Damage found by indexing.
    pub(crate) damage: Damage,
    pub(crate) append_ns: Histogram,
    pub(crate) put_durable_ns: Histogram,
}

/// Why a checkpoint was given up. Readings still become durable, but the next start reads more of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointFailure {
    /// There was no room beside the previous checkpoint and the log. Unless room returns, the log fills the store, and
    /// no part of it can be deleted, because a start would read it.
    NoRoom,
    /// The table's memory, which other processes can write to, was overwritten.
    TableSpoilt,
}
