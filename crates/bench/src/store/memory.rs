//! A device in memory, for cases of which only the counts matter: it takes room where it is written.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};

/// Blocks that room is taken for at once.
const CHUNK_BLOCKS: usize = 256;

/// Zeros until something is written.
pub(crate) struct MemoryDevice {
    chunks: Vec<Option<Box<[u8]>>>,
    block_count: u64,
    counters: Counters,
}

impl MemoryDevice {
    /// One of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let block_count = bytes / BLOCK_BYTES as u64;
        let chunk_count = block_count.div_ceil(CHUNK_BLOCKS as u64) as usize;
        Self {
            chunks: (0..chunk_count).map(|_| None).collect(),
            block_count,
            counters: Counters::default(),
        }
    }

    /// Writes its content to a new file.
    ///
    /// # Errors
    /// One line that names the path.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = File::create_new(path).map_err(failed)?;
        file.set_len(self.block_count * BLOCK_BYTES as u64)
            .map_err(failed)?;
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let Some(chunk) = chunk {
                let offset = (index * CHUNK_BLOCKS * BLOCK_BYTES) as u64;
                file.seek(SeekFrom::Start(offset)).map_err(failed)?;
                file.write_all(chunk).map_err(failed)?;
            }
        }
        file.sync_all().map_err(failed)
    }

    fn check(&self, first_block: u64, bytes: usize) -> Result<(), DeviceError> {
        let blocks = (bytes / BLOCK_BYTES) as u64;
        let fits = first_block
            .checked_add(blocks)
            .is_some_and(|end| end <= self.block_count);
        if fits && bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        Err(DeviceError::Range {
            first_block,
            bytes: bytes as u64,
            block_count: self.block_count,
        })
    }
}

/// Chunk of a block and where in it.
fn place(block: u64) -> (usize, usize) {
    let block = block as usize;
    (block / CHUNK_BLOCKS, block % CHUNK_BLOCKS * BLOCK_BYTES)
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_count: self.block_count,
        }
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.check(first_block, buffer.len())?;
        self.counters.reads += 1;
        self.counters.blocks_read += (buffer.len() / BLOCK_BYTES) as u64;
        for (index, block) in buffer.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let (chunk, at) = place(first_block + index as u64);
            match &self.chunks[chunk] {
                Some(chunk) => block.copy_from_slice(&chunk[at..at + BLOCK_BYTES]),
                None => block.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check(first_block, data.len())?;
        let blocks = (data.len() / BLOCK_BYTES) as u64;
        self.counters.writes += 1;
        self.counters.blocks_written += blocks;
        self.counters.write_blocks_max = self.counters.write_blocks_max.max(blocks);
        for (index, block) in data.chunks_exact(BLOCK_BYTES).enumerate() {
            let (chunk, at) = place(first_block + index as u64);
            let chunk = self.chunks[chunk]
                .get_or_insert_with(|| vec![0; CHUNK_BLOCKS * BLOCK_BYTES].into_boxed_slice());
            chunk[at..at + BLOCK_BYTES].copy_from_slice(block);
        }
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
    fn what_is_written_is_read_across_chunks_and_the_rest_is_zeros() {
        let mut device = MemoryDevice::new(3 << 20);
        let data: Vec<u8> = (0..2 * BLOCK_BYTES).map(|byte| byte as u8 | 1).collect();
        device.write(255, &data).unwrap();
        let mut read = vec![9; 4 * BLOCK_BYTES];
        device.read(254, &mut read).unwrap();
        assert_eq!(read[BLOCK_BYTES..3 * BLOCK_BYTES], data);
        assert!(read[..BLOCK_BYTES].iter().all(|byte| *byte == 0));
        let counted = device.counters();
        assert_eq!((counted.reads, counted.blocks_read), (1, 4));
        assert_eq!((counted.writes, counted.blocks_written), (1, 2));
        assert!(device.write(767, &data).is_err());
        assert!(device.read(u64::MAX, &mut read).is_err());
    }
}
