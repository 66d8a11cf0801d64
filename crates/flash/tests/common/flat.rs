//! A device that is plain memory: no faults, no history, and no allocation after it is made.

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};

pub struct Flat {
    /// Taken as zeros, so that only blocks that were written take memory.
    bytes: Vec<u8>,
    counters: Counters,
}

impl Flat {
    pub fn new(block_count: usize) -> Self {
        Self {
            bytes: vec![0; block_count * BLOCK_BYTES],
            counters: Counters::default(),
        }
    }

    fn place(&mut self, first_block: u64, bytes: usize) -> Result<&mut [u8], DeviceError> {
        let block_count = self.geometry().block_count;
        let start = first_block as usize * BLOCK_BYTES;
        self.bytes
            .get_mut(start..start + bytes)
            .filter(|place| !place.is_empty() && place.len().is_multiple_of(BLOCK_BYTES))
            .ok_or(DeviceError::Range {
                first_block,
                bytes: bytes as u64,
                block_count,
            })
    }
}

impl BlockDevice for Flat {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_count: (self.bytes.len() / BLOCK_BYTES) as u64,
        }
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        buffer.copy_from_slice(self.place(first_block, buffer.len())?);
        self.counters.reads += 1;
        self.counters.blocks_read += (buffer.len() / BLOCK_BYTES) as u64;
        Ok(())
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.place(first_block, data.len())?.copy_from_slice(data);
        let blocks = (data.len() / BLOCK_BYTES) as u64;
        self.counters.writes += 1;
        self.counters.blocks_written += blocks;
        self.counters.write_blocks_max = self.counters.write_blocks_max.max(blocks);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.counters.flushes += 1;
        Ok(())
    }
    fn discard(&mut self, _first_block: u64, _block_count: u64) -> Result<(), DeviceError> {
        self.counters.discards += 1;
        Ok(())
    }
    fn counters(&self) -> Counters {
        self.counters
    }
    fn reset_write_blocks_max(&mut self) {
        self.counters.write_blocks_max = 0;
    }
}
