//! A device with blocks that cannot be read until they are written again, and that fails on request.

use std::collections::BTreeSet;

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use base::sim::SimDevice;

pub struct Worn {
    pub inner: SimDevice,
    pub unreadable: BTreeSet<u64>,
    /// Read requests that failed.
    pub reads_failed: u64,
    /// Number of write requests until one fails and stores nothing: the one that finds 1 here. No later one fails.
    pub writes_until_failure: u64,
    /// The same for flushes, which then flush nothing.
    pub flushes_until_failure: u64,
}

impl Worn {
    pub fn new(inner: SimDevice, unreadable: impl IntoIterator<Item = u64>) -> Self {
        Self {
            inner,
            unreadable: unreadable.into_iter().collect(),
            reads_failed: 0,
            writes_until_failure: 0,
            flushes_until_failure: 0,
        }
    }
}

fn failure(operation: &'static str, first_block: u64) -> DeviceError {
    DeviceError::Io {
        operation,
        first_block,
        source: std::io::Error::other("medium error"),
    }
}

/// Counts down to a failure. Returns whether this request fails.
fn fails(left: &mut u64) -> bool {
    let now = *left == 1;
    *left = left.saturating_sub(1);
    now
}

impl BlockDevice for Worn {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = first_block..first_block + (buffer.len() / BLOCK_BYTES) as u64;
        if let Some(bad) = self.unreadable.range(blocks).next() {
            // A failed read may leave anything in the buffer.
            buffer.fill(0x5a);
            self.reads_failed += 1;
            return Err(failure("read", *bad));
        }
        self.inner.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        if fails(&mut self.writes_until_failure) {
            return Err(failure("write", first_block));
        }
        for block in first_block..first_block + (data.len() / BLOCK_BYTES) as u64 {
            self.unreadable.remove(&block);
        }
        self.inner.write(first_block, data)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        if fails(&mut self.flushes_until_failure) {
            return Err(failure("flush", 0));
        }
        self.inner.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.inner.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.inner.reset_write_blocks_max();
    }
}
