//! The line to the server.

use crate::block::SEGMENT_BLOCKS;
use std::time::Duration;

/// Approximate bytes of a block on the wire: zstd compresses the blocks of programs to about this size.
pub(crate) const WIRE_BLOCK_BYTES: u64 = 1700;

/// The measured properties of the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) round_trip: Duration,
    pub(crate) bandwidth_bytes_s: u64,
}

impl Line {
    /// Returns how many tenths of a run the line carries in a round trip.
    pub(crate) fn run_tenths(&self) -> u64 {
        let micros = u64::try_from(self.round_trip.as_micros()).unwrap_or(u64::MAX);
        let bytes = self.bandwidth_bytes_s.saturating_mul(micros) / 1_000_000;
        bytes.saturating_mul(10) / (WIRE_BLOCK_BYTES * u64::from(SEGMENT_BLOCKS))
    }
}
