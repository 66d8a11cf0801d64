//! The figures that the database shows: counters, latencies, health.

use base::histogram::Histogram;

use crate::error::LogFailure;
use crate::log::counters::CheckpointFailure;
use crate::log::reader::Damage;

/// Time that [`Health::Dropping`] stays set after the last reading that was refused, or deleted to make room.
pub(crate) const DROPPING_SHOWN_NS: u64 = 60_000_000_000;

/// Whether readings become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Readings become durable.
    Ok,
    /// Readings become durable, but within the last 60 s at least one was refused or deleted to make room. It was
    /// refused with `Busy` or because the store was full. [`Stats::busy`], [`Stats::refused_full`] and
    /// [`Stats::readings_dropped`] count them.
    Dropping,
    /// Readings become durable, but a checkpoint could not be written: the next start takes longer.
    CheckpointFailing,
    /// The store is full: nothing more becomes durable until room returns.
    Full,
    /// Readings do not become durable; every put is refused.
    LogFailed(LogFailure),
}

/// Whether the commit thread has work, and its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Rounds that the thread has ended, with success or with a full store.
    pub rounds: u64,
    /// Whether an entry waits for the thread or is in flight.
    pub is_waiting: bool,
    /// Whether the thread commits nothing any more: the log has failed or is closed.
    pub is_over: bool,
}

/// A copy of every figure at one moment. Counts run from the start of this database object.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Readings taken.
    pub puts: u64,
    /// Readings refused because the queue was full.
    pub busy: u64,
    /// Readings refused because the log had failed.
    pub refused: u64,
    /// Readings logged whose slot already held a newer one.
    pub outdated: u64,
    /// Readings that were not admitted to the table; see [`crate::Database::set_admission`].
    pub shed: u64,
    /// Shed readings that were not logged either, as their objects' policy says. They are not among `puts`.
    pub dropped_by_admission: u64,
    /// Readings taken and not yet durable.
    pub outstanding: u64,
    /// Bytes that wait in the queue.
    pub queue_bytes: u64,
    /// Age of the oldest reading that is not durable yet, in ms; 0 if there is none.
    pub durable_lag_ms: f64,
    /// Group commits.
    pub batches: u64,
    /// Log appends, each one durable write to the store (the store counts its own flushes).
    pub appends: u64,
    /// Bytes of log appended.
    pub log_bytes: u64,
    /// Readings made durable.
    pub readings: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Bytes of checkpoints appended.
    pub checkpoint_bytes: u64,
    /// Checkpoints given up.
    pub checkpoints_failed: u64,
    /// Why the last checkpoint was given up; `None` if it was not. Stays while the store is full or the log has failed.
    pub checkpoint_failing: Option<CheckpointFailure>,
    /// Bytes of log after the last checkpoint: what a start would read now. While checkpoints can be written, this is
    /// less than twice `checkpoint_bytes` (twice the checkpoint itself if that is larger), plus two commits and a
    /// piece. It begins with what the start has read, or with 0 if that was as much as a checkpoint is written within.
    pub replay_bytes: u64,
    /// Most bytes that a checkpoint of the table takes now.
    pub table_checkpoint_bytes: u64,
    /// Approximate bytes that the store can hold; see [`crate::TableFit`].
    pub store_bytes: u64,
    /// Whether the store is full: readings are refused until room returns.
    pub full: bool,
    /// Readings refused because the store was full.
    pub refused_full: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Bytes of the log; a segment not yet looked at counts as full.
    pub history_bytes: u64,
    /// Number of the oldest reading kept, which is the number of readings logged before it.
    pub oldest_lsn: u64,
    /// Readings deleted by retention.
    pub readings_expired: u64,
    /// Segments deleted by retention.
    pub segments_expired: u64,
    /// Readings deleted to make room for new ones.
    pub readings_dropped: u64,
    /// Segments deleted to make room for new ones.
    pub segments_dropped: u64,
    /// Whether the wall clock is trusted.
    pub wall_trusted: bool,
    /// Steps of the wall clock of more than a second.
    pub clock_steps: u64,
    /// Damage found by indexing since the start; the damage found by the start itself is in its report.
    pub damage: Damage,
    /// Objects declared.
    pub objects: u32,
    /// Bytes that their keys take, of `keys_bytes_max`.
    pub keys_bytes: u64,
    /// Bytes that all keys may take.
    pub keys_bytes_max: u64,
    /// Bytes of the slot table.
    pub table_bytes: u64,
    /// Whether readings become durable.
    pub health: Health,
    /// Time from the call of a log append to its durable return, ns.
    pub append_ns: Histogram,
    /// Time from put to durable, per reading, ns.
    pub put_durable_ns: Histogram,
}
