//! A device whose operations can be counted from outside while the database owns it.

use super::{BlockDevice, Counters, DeviceError, Geometry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations on a [`CountedDevice`], readable at any time.
#[derive(Debug, Default)]
pub struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    blocks_written: AtomicU64,
    flushes: AtomicU64,
}

/// A copy of [`Counts`] at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountsNow {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Blocks in these writes.
    pub blocks_written: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Counts {
    /// Returns a copy.
    #[must_use]
    pub fn now(&self) -> CountsNow {
        CountsNow {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            blocks_written: self.blocks_written.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
}

/// Forwards every call and publishes the inner device's counters after each.
#[derive(Debug)]
pub struct CountedDevice<D> {
    inner: D,
    counts: Arc<Counts>,
}

impl<D: BlockDevice> CountedDevice<D> {
    /// Returns the device with its counts.
    pub fn new(inner: D) -> (Self, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (
            Self {
                inner,
                counts: Arc::clone(&counts),
            },
            counts,
        )
    }

    fn publish(&self) {
        let counters = self.inner.counters();
        self.counts.reads.store(counters.reads, Ordering::Relaxed);
        self.counts.writes.store(counters.writes, Ordering::Relaxed);
        self.counts
            .blocks_written
            .store(counters.blocks_written, Ordering::Relaxed);
        self.counts
            .flushes
            .store(counters.flushes, Ordering::Relaxed);
    }
}

impl<D: BlockDevice> BlockDevice for CountedDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        let result = self.inner.write(first_block, data);
        self.publish();
        result
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        let result = self.inner.flush();
        self.publish();
        result
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
