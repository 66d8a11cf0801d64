//! Reading: from the last block backwards by skip pointers, then block by block.
//!
//! Invariant: a byte is returned only from a block whose checksum, address, file and position all agree.

use base::block::BlockDevice;

use crate::block::{HEADER_BYTES, Header, PAYLOAD_BYTES, skip_towards};
use crate::error::{Error, Part, Result};
use crate::root::FileState;
use crate::store::{FileHandle, Store};

impl<D: BlockDevice> Store<D> {
    /// Reads into `buffer` from byte `offset` on; returns how many bytes, short only at the end of the file.
    ///
    /// Finding the place costs at most ceil(log2 n) + 1 block reads in a file of n blocks; each further block
    /// costs one.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a block that is needed is not intact, [`Error::StaleHandle`],
    /// [`Error::Device`].
    pub fn read(&mut self, file: FileHandle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = self.state_of(self.open_index(file)?);
        let length = state.length();
        if offset >= length || buffer.is_empty() {
            return Ok(0);
        }
        let count = (length - offset).min(buffer.len() as u64) as usize;
        let payload = PAYLOAD_BYTES as u64;
        let first = (offset / payload) as u32;
        let last = ((offset + count as u64 - 1) / payload) as u32;
        let mut header = self.seek(&state, last)?;
        loop {
            self.copy_out(&state, &header, offset, &mut buffer[..count]);
            if header.index == first {
                return Ok(count);
            }
            header = self.read_file_block(&state, header.skips[0], header.index - 1)?;
        }
    }

    /// Walks from the last block of the file to block `target`, which it leaves in the scratch buffer.
    fn seek(&mut self, state: &FileState, target: u32) -> Result<Header> {
        let mut header = self.read_file_block(state, state.tail.address, state.tail.index)?;
        if !header.belongs_at_tail(state) {
            return Err(damaged(state.tail.address, state.tail.index));
        }
        while header.index != target {
            let (level, index) = skip_towards(header.index, target);
            header = self.read_file_block(state, header.skips[level], index)?;
        }
        Ok(header)
    }

    /// Reads the block that should be number `index` of the file.
    pub(crate) fn read_file_block(
        &mut self,
        state: &FileState,
        address: u32,
        index: u32,
    ) -> Result<Header> {
        if !(self.layout.data_first..self.layout.data_end).contains(&address) {
            return Err(damaged(address, index));
        }
        let header = self.read_data_block(address)?.filter(|header| {
            let full = usize::from(header.fill) == PAYLOAD_BYTES;
            header.file_id == state.file_id
                && header.index == index
                && (full || index == state.tail.index)
        });
        header.ok_or_else(|| damaged(address, index))
    }

    /// Copies the part of the block in the scratch buffer that the caller asked for.
    fn copy_out(&self, state: &FileState, header: &Header, offset: u64, buffer: &mut [u8]) {
        let payload = PAYLOAD_BYTES as u64;
        let block_start = u64::from(header.index) * payload;
        let block_end = block_start + u64::from(header.fill);
        let from = block_start.max(offset);
        let to = block_end
            .min(offset + buffer.len() as u64)
            .min(state.length());
        if from < to {
            let source = HEADER_BYTES + (from - block_start) as usize;
            let length = (to - from) as usize;
            let target = (from - offset) as usize;
            buffer[target..target + length]
                .copy_from_slice(&self.scratch.block(0)[source..source + length]);
        }
    }
}

fn damaged(address: u32, index: u32) -> Error {
    Error::Damaged {
        part: Part::Data,
        block: u64::from(address),
        offset: Some(u64::from(index) * PAYLOAD_BYTES as u64),
    }
}
