//! A device with a write cache that loses unflushed data: a write stays in this process until the flush. So SIGKILL has
//! the same effect on the image as a power cut on a card. For `keel demo --full`.

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use std::collections::BTreeMap;

/// Forwards every call, or keeps writes until the flush.
pub(crate) struct WriteCache<D> {
    inner: D,
    /// `None` if every call is forwarded.
    cache: Option<Cache>,
}

#[derive(Default)]
struct Cache {
    /// Blocks by their number, as they will be after the flush.
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// The requested operations; the inner device sees different ones.
    counters: Counters,
}

impl<D: BlockDevice> WriteCache<D> {
    pub(crate) fn new(inner: D, is_volatile: bool) -> Self {
        Self {
            inner,
            cache: is_volatile.then(Cache::default),
        }
    }
}

impl<D: BlockDevice> BlockDevice for WriteCache<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(first_block, buffer)?;
        let Some(cache) = &mut self.cache else {
            return Ok(());
        };
        let count = (buffer.len() / BLOCK_BYTES) as u64;
        cache.counters.reads += 1;
        cache.counters.blocks_read += count;
        for (block, data) in cache.blocks.range(first_block..first_block + count) {
            let at = (block - first_block) as usize * BLOCK_BYTES;
            buffer[at..at + BLOCK_BYTES].copy_from_slice(data);
        }
        Ok(())
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        let Some(cache) = &mut self.cache else {
            return self.inner.write(first_block, data);
        };
        self.inner.geometry().check(first_block, data.len())?;
        for (block, data) in (first_block..).zip(data.chunks_exact(BLOCK_BYTES)) {
            cache.blocks.insert(block, data.into());
        }
        let count = (data.len() / BLOCK_BYTES) as u64;
        cache.counters.writes += 1;
        cache.counters.blocks_written += count;
        cache.counters.write_blocks_max = cache.counters.write_blocks_max.max(count);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        if let Some(cache) = &mut self.cache {
            cache.counters.flushes += 1;
            // Write one by one: a cut in the middle leaves any part of them. A failed write stays for the next flush.
            for (block, data) in &cache.blocks {
                self.inner.write(*block, data)?;
            }
        }
        self.inner.flush()?;
        if let Some(cache) = &mut self.cache {
            cache.blocks.clear();
        }
        Ok(())
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        if let Some(cache) = &mut self.cache {
            // A discard may be done at any time, so it may also be omitted.
            cache.counters.discards += 1;
            let bytes = (block_count as usize).saturating_mul(BLOCK_BYTES);
            return self.inner.geometry().check(first_block, bytes).map(drop);
        }
        self.inner.discard(first_block, block_count)
    }

    fn counters(&self) -> Counters {
        match &self.cache {
            Some(cache) => cache.counters,
            None => self.inner.counters(),
        }
    }

    fn reset_write_blocks_max(&mut self) {
        match &mut self.cache {
            Some(cache) => cache.counters.write_blocks_max = 0,
            None => self.inner.reset_write_blocks_max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::SimDevice;

    #[test]
    fn unflushed_blocks_are_read_and_are_not_on_the_device() {
        let block = |byte: u8| [byte; BLOCK_BYTES];
        let mut read = block(0);
        for is_volatile in [false, true] {
            let mut device = WriteCache::new(SimDevice::new(8, 1), is_volatile);
            device.write(2, &block(1)).unwrap();
            device.flush().unwrap();
            device.write(2, &[block(2), block(3)].concat()).unwrap();
            device.read(2, &mut read).unwrap();
            assert_eq!(read, block(2));
            assert_eq!(
                (device.counters().writes, device.counters().blocks_written),
                (2, 3)
            );
            let mut inner = device.inner;
            inner.read(2, &mut read).unwrap();
            assert_eq!(read, block(if is_volatile { 1 } else { 2 }));
            assert_eq!(inner.counters().flushes, 1);
        }
        let mut device = WriteCache::new(SimDevice::new(8, 1), true);
        device.write(7, &block(9)).unwrap();
        device.flush().unwrap();
        device.inner.read(7, &mut read).unwrap();
        assert_eq!(read, block(9));
        assert!(device.write(8, &block(1)).is_err());
    }
}
