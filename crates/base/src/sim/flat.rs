//! A device that is plain memory: no faults, no history, no allocation after it is made. For counting operations and
//! for long runs whose content does not matter afterwards.

use crate::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};

/// Zeros until something is written. The system gives memory only to what was touched, so a large device costs little.
#[derive(Debug)]
pub struct FlatDevice {
    bytes: Vec<u8>,
    counters: Counters,
}

impl FlatDevice {
    /// A device of `block_count` blocks.
    #[must_use]
    pub fn new(block_count: u64) -> Self {
        Self {
            bytes: vec![0; block_count as usize * BLOCK_BYTES],
            counters: Counters::default(),
        }
    }

    /// Its content, block after block.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.bytes
    }

    fn place(&mut self, first_block: u64, bytes: usize) -> Result<&mut [u8], DeviceError> {
        let block_count = self.geometry().block_count;
        let fits = first_block
            .checked_add((bytes / BLOCK_BYTES) as u64)
            .is_some_and(|end| end <= block_count);
        if !fits || bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(DeviceError::Range {
                first_block,
                bytes: bytes as u64,
                block_count,
            });
        }
        let start = first_block as usize * BLOCK_BYTES;
        Ok(&mut self.bytes[start..start + bytes])
    }
}

impl BlockDevice for FlatDevice {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_blocks_are_read_back_and_other_blocks_are_zeros() {
        let mut device = FlatDevice::new(768);
        let data: Vec<u8> = (0..2 * BLOCK_BYTES).map(|byte| byte as u8 | 1).collect();
        device.write(255, &data).unwrap();
        let mut read = vec![9; 4 * BLOCK_BYTES];
        device.read(254, &mut read).unwrap();
        assert_eq!(read[BLOCK_BYTES..3 * BLOCK_BYTES], data);
        assert!(read[..BLOCK_BYTES].iter().all(|byte| *byte == 0));
        let counted = device.counters();
        assert_eq!((counted.reads, counted.blocks_read), (1, 4));
        assert_eq!((counted.writes, counted.blocks_written), (1, 2));
    }

    #[test]
    fn requests_outside_or_of_odd_size_are_refused_and_not_counted() {
        let mut device = FlatDevice::new(8);
        let data = [1; 2 * BLOCK_BYTES];
        assert!(device.write(7, &data).is_err());
        assert!(device.write(u64::MAX, &data).is_err());
        assert!(device.read(0, &mut [0; 100]).is_err());
        assert!(device.read(0, &mut []).is_err());
        assert_eq!(device.counters(), Counters::default());
    }
}
