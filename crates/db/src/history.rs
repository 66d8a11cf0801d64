//! Range reads over the log.

use crate::log::reader::Damage;
use crate::options::ObjectId;

/// What a range read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// One object, or all of them.
    pub id: Option<ObjectId>,
    /// Earliest time wanted, ms since 1970.
    pub from_ms: i64,
    /// First time no longer wanted.
    pub to_ms: i64,
}

/// Where a range read stands between two slices.
#[derive(Debug, Default)]
pub struct HistoryCursor {
    report: HistoryReport,
}

impl HistoryCursor {
    /// What the read has seen so far.
    #[must_use]
    pub fn report(&self) -> &HistoryReport {
        &self.report
    }
}

/// What a range read has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// Segments of the log when the read began.
    pub segments_total: u64,
    /// Segments that were read, at least in part.
    pub segments_read: u64,
    /// Segments that the index ruled out.
    pub segments_skipped: u64,
    /// Segments that retention deleted meanwhile.
    pub segments_gone: u64,
    /// Bytes of log read.
    pub bytes_read: u64,
    /// Readings looked at.
    pub readings: u64,
    /// Readings passed to the visitor.
    pub readings_matched: u64,
    /// What was broken.
    pub damage: Damage,
}

/// One reading of a range read.
#[derive(Clone, Copy, Debug)]
pub struct HistoryEntry<'a> {
    /// The object's number.
    pub id: ObjectId,
    /// Its time, ms since 1970; corrected where the node's clock gave it before it was trusted and is known now.
    pub time_ms: i64,
    /// The time as it was recorded.
    pub recorded_ms: i64,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether the node's clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether `time_ms` is not `recorded_ms` but what the clock would have said had it been right.
    pub time_corrected: bool,
    /// Arrival on the monotonic clock of `boot_id`, µs.
    pub arrival_us: u64,
    /// Boot in which it arrived.
    pub boot_id: [u8; 16],
    /// Number in the log.
    pub lsn: u64,
    /// The value.
    pub value: &'a [u8],
}
