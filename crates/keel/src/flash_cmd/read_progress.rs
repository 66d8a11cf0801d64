//! A device that reports how much has been read from it: for work whose progress only the device knows.

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use command::progress::Progress;

pub(super) struct ReadProgress<'a, D> {
    below: D,
    progress: &'a Progress,
}

impl<'a, D: BlockDevice> ReadProgress<'a, D> {
    pub(super) fn new(below: D, progress: &'a Progress) -> Self {
        Self { below, progress }
    }
}

impl<D: BlockDevice> BlockDevice for ReadProgress<'_, D> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.progress.add(buffer.len());
        self.below.read(first_block, buffer)
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.below.write(first_block, data)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.below.discard(first_block, block_count)
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn reset_write_blocks_max(&mut self) {
        self.below.reset_write_blocks_max();
    }
}
