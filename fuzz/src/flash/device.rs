//! The device on which a damaged store is opened: it counts operations, and limits those of each call.

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use base::sim::SimDevice;

/// Operations that the current call may still make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
}

impl Allowance {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
        }
    }
}

/// A simulated device that panics on an access outside of its blocks, or on more operations than allowed. A read-only
/// one panics on a write.
pub(crate) struct Watched {
    pub(crate) inner: SimDevice,
    /// Blocks that are unreadable until they are written.
    pub(crate) unreadable: Vec<u64>,
    pub(crate) is_read_only: bool,
    call: &'static str,
    allowed: Allowance,
    left: Allowance,
}

impl Watched {
    pub(crate) fn new(inner: SimDevice, unreadable: Vec<u64>) -> Self {
        Self {
            inner,
            unreadable,
            is_read_only: false,
            call: "",
            allowed: Allowance::default(),
            left: Allowance::default(),
        }
    }

    /// Begins the call named `call`.
    pub(crate) fn allow(&mut self, call: &'static str, allowed: Allowance) {
        self.call = call;
        self.allowed = allowed;
        self.left = allowed;
    }

    fn check(&self, first_block: u64, bytes: usize) {
        let count = self.inner.geometry().block_count;
        let blocks = (bytes / BLOCK_BYTES) as u64;
        let inside = first_block
            .checked_add(blocks)
            .is_some_and(|end| end <= count);
        assert!(
            inside && blocks > 0 && bytes.is_multiple_of(BLOCK_BYTES),
            "{}: {bytes} bytes at block {first_block} of a device of {count}",
            self.call
        );
    }

    fn count(&mut self, counter: fn(&mut Allowance) -> &mut u64) {
        if !self.inner.is_powered() {
            // Every request fails; a request of several blocks is retried block by block.
            return;
        }
        let left = counter(&mut self.left);
        let Some(rest) = left.checked_sub(1) else {
            panic!("{}: more operations than {:?}", self.call, self.allowed);
        };
        *left = rest;
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.check(first_block, buffer.len());
        self.count(|left| &mut left.reads);
        let range = first_block..first_block + (buffer.len() / BLOCK_BYTES) as u64;
        if self.unreadable.iter().any(|block| range.contains(block)) {
            return Err(DeviceError::Io {
                operation: "read",
                first_block,
                source: std::io::ErrorKind::Other.into(),
            });
        }
        self.inner.read(first_block, buffer)
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check(first_block, data.len());
        assert!(
            !self.is_read_only,
            "{}: a read-only store writes",
            self.call
        );
        self.count(|left| &mut left.writes);
        let range = first_block..first_block + (data.len() / BLOCK_BYTES) as u64;
        self.unreadable.retain(|block| !range.contains(block));
        self.inner.write(first_block, data)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        assert!(
            !self.is_read_only,
            "{}: a read-only store flushes",
            self.call
        );
        self.count(|left| &mut left.flushes);
        self.inner.flush()
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        assert!(
            !self.is_read_only,
            "{}: a read-only store discards",
            self.call
        );
        self.check(first_block, block_count as usize * BLOCK_BYTES);
        self.inner.discard(first_block, block_count)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn reset_write_blocks_max(&mut self) {
        self.inner.reset_write_blocks_max();
    }
}
