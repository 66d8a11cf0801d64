//! Memory aligned to a block, so that `O_DIRECT` can transfer it without a copy.

use aligned_vec::{AVec, ConstAlign};
use std::ops::{Deref, DerefMut};

use super::BLOCK_BYTES;

/// A zeroed, block-aligned buffer of a fixed number of blocks.
#[derive(Clone, Debug)]
pub struct BlockBuffer {
    /// By blocks, because filling it byte by byte is slow.
    blocks: AVec<[u8; BLOCK_BYTES], ConstAlign<BLOCK_BYTES>>,
}

impl BlockBuffer {
    /// A buffer of `block_count` blocks, all zero.
    #[must_use]
    pub fn zeroed(block_count: usize) -> Self {
        let mut blocks = AVec::new(BLOCK_BYTES);
        blocks.resize(block_count, [0; BLOCK_BYTES]);
        Self { blocks }
    }

    /// Blocks in the buffer.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The bytes of block `index` of this buffer.
    ///
    /// # Panics
    /// When `index` is not below [`block_count`](Self::block_count).
    #[must_use]
    pub fn block(&self, index: usize) -> &[u8] {
        &self.blocks[index]
    }

    /// As [`block`](Self::block), to write.
    ///
    /// # Panics
    /// As [`block`](Self::block).
    pub fn block_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.blocks[index]
    }
}

impl Deref for BlockBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.blocks.as_flattened()
    }
}

impl DerefMut for BlockBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.blocks.as_flattened_mut()
    }
}
