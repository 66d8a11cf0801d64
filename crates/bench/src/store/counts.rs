//! Requests that a device has completed, from any source of counts.

use base::block::{BLOCK_BYTES, BlockDevice};

/// Counters of a device at one moment, or the difference between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    /// `None` if the source does not count them.
    pub(crate) flushes: Option<u64>,
    pub(crate) bytes_written: u64,
}

impl DeviceCounts {
    /// Returns the operations since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            bytes_read: self.bytes_read - before.bytes_read,
            writes: self.writes - before.writes,
            flushes: self
                .flushes
                .zip(before.flushes)
                .map(|(after, before)| after - before),
            bytes_written: self.bytes_written - before.bytes_written,
        }
    }

    /// Adds the cost of one more call.
    pub(crate) fn add(&mut self, spent: Self) {
        self.reads += spent.reads;
        self.bytes_read += spent.bytes_read;
        self.writes += spent.writes;
        self.flushes = self.flushes.zip(spent.flushes).map(|(sum, one)| sum + one);
        self.bytes_written += spent.bytes_written;
    }

    /// Raises each figure to the cost of a call if that is higher.
    pub(crate) fn raise_to(&mut self, spent: Self) {
        self.reads = self.reads.max(spent.reads);
        self.bytes_read = self.bytes_read.max(spent.bytes_read);
        self.writes = self.writes.max(spent.writes);
        self.flushes = self
            .flushes
            .zip(spent.flushes)
            .map(|(most, one)| most.max(one));
        self.bytes_written = self.bytes_written.max(spent.bytes_written);
    }
}

/// Returns the exact counts of one of our devices.
pub(crate) fn counts_of(device: &impl BlockDevice) -> DeviceCounts {
    let counters = device.counters();
    DeviceCounts {
        reads: counters.reads,
        bytes_read: counters.blocks_read * BLOCK_BYTES as u64,
        writes: counters.writes,
        flushes: Some(counters.flushes),
        bytes_written: counters.blocks_written * BLOCK_BYTES as u64,
    }
}
