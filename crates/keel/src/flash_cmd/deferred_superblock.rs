//! A device on which a store cannot be recognised before its release: for a store that is useless until it is complete.

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use std::collections::BTreeMap;

/// The first bytes of a store's superblock; no other block of a store begins with them (`SPEC.md` of the store).
const SUPERBLOCK_MAGIC: [u8; 8] = *b"KEELFLSH";

/// Maximum number of deferred superblocks; a store has two.
const DEFERRED_MAX: usize = 16;

type Block = [u8; BLOCK_BYTES];

/// Keeps superblocks in memory until the release, and writes everything else at once.
pub(super) struct DeferredSuperblock<D> {
    below: D,
    deferred: BTreeMap<u64, Box<Block>>,
}

impl<D: BlockDevice> DeferredSuperblock<D> {
    pub(super) fn new(below: D) -> Self {
        Self {
            below,
            deferred: BTreeMap::new(),
        }
    }

    /// Returns the device below, which has no superblock yet.
    #[cfg(test)]
    pub(super) fn below(&self) -> &D {
        &self.below
    }

    /// Makes everything else durable, then writes the superblocks.
    pub(super) fn release(mut self) -> Result<D, DeviceError> {
        self.below.flush()?;
        for (block, content) in &self.deferred {
            self.below.write(*block, &content[..])?;
        }
        self.below.flush()?;
        Ok(self.below)
    }

    /// Takes the superblocks out of `data`. Returns the rest, which goes to the device.
    fn defer(&mut self, first_block: u64, data: &[u8]) -> Result<Option<Vec<u8>>, DeviceError> {
        let mut rest = None;
        for (index, content) in data.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = first_block + index as u64;
            if !content.starts_with(&SUPERBLOCK_MAGIC) {
                self.deferred.remove(&block);
                continue;
            }
            if self.deferred.len() == DEFERRED_MAX && !self.deferred.contains_key(&block) {
                return Err(DeviceError::NotWritable {
                    reason: "more superblocks than any store has",
                });
            }
            let mut kept = Box::new([0; BLOCK_BYTES]);
            kept.copy_from_slice(content);
            self.deferred.insert(block, kept);
            let rest = rest.get_or_insert_with(|| data.to_vec());
            rest[index * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
        }
        Ok(rest)
    }
}

impl<D: BlockDevice> BlockDevice for DeferredSuperblock<D> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read(first_block, buffer)?;
        let end = first_block + (buffer.len() / BLOCK_BYTES) as u64;
        for (block, content) in self.deferred.range(first_block..end) {
            let at = (block - first_block) as usize * BLOCK_BYTES;
            buffer[at..at + BLOCK_BYTES].copy_from_slice(&content[..]);
        }
        Ok(())
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        match self.defer(first_block, data)? {
            Some(rest) => self.below.write(first_block, &rest),
            None => self.below.write(first_block, data),
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.below.discard(first_block, block_count)?;
        self.deferred
            .retain(|block, _| !(first_block..first_block + block_count).contains(block));
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn reset_write_blocks_max(&mut self) {
        self.below.reset_write_blocks_max();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::SimDevice;

    #[test]
    fn a_deferred_superblock_is_read_but_is_not_on_the_device() {
        let mut device = DeferredSuperblock::new(SimDevice::new(8, 1));
        let mut data = [7; 3 * BLOCK_BYTES];
        data[BLOCK_BYTES..BLOCK_BYTES + SUPERBLOCK_MAGIC.len()].copy_from_slice(&SUPERBLOCK_MAGIC);
        device.write(2, &data).unwrap();
        let mut read = [0; 4 * BLOCK_BYTES];
        device.read(1, &mut read).unwrap();
        assert!(read[BLOCK_BYTES..] == data);
        assert_eq!(device.below().peek(2), [7; BLOCK_BYTES]);
        assert_eq!(device.below().peek(3), [0; BLOCK_BYTES]);
        assert_eq!(device.below().peek(4), [7; BLOCK_BYTES]);
        let released = device.release().unwrap();
        assert!(released.peek_durable(3)[..] == data[BLOCK_BYTES..2 * BLOCK_BYTES]);
    }

    #[test]
    fn a_superblock_that_is_written_over_is_forgotten() {
        let mut device = DeferredSuperblock::new(SimDevice::new(8, 1));
        let mut data = [0; BLOCK_BYTES];
        data[..SUPERBLOCK_MAGIC.len()].copy_from_slice(&SUPERBLOCK_MAGIC);
        device.write(0, &data).unwrap();
        device.write(0, &[9; BLOCK_BYTES]).unwrap();
        device.write(1, &data).unwrap();
        device.discard(1, 1).unwrap();
        let released = device.release().unwrap();
        assert_eq!(released.peek(0), [9; BLOCK_BYTES]);
        assert_eq!(released.peek(1)[..8], [0; 8]);
    }

    #[test]
    fn the_number_of_deferred_superblocks_has_a_limit() {
        let mut device = DeferredSuperblock::new(SimDevice::new(32, 1));
        let mut data = [0; BLOCK_BYTES];
        data[..SUPERBLOCK_MAGIC.len()].copy_from_slice(&SUPERBLOCK_MAGIC);
        for block in 0..DEFERRED_MAX as u64 {
            device.write(block, &data).unwrap();
        }
        device.write(3, &data).unwrap();
        assert!(device.write(DEFERRED_MAX as u64, &data).is_err());
    }
}
