//! Changing bytes that a file holds already, in their place.
//!
//! The changed blocks, at most three, go into a record as images; after its barrier they are written where they
//! stand. Their headers stay as they are: no pointer to them changes, and neither does the file's state.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::block::{HEADER_BYTES, Header, PAYLOAD_BYTES};
use crate::error::{Error, Result};
use crate::root::{FileState, IMAGES_MAX};
use crate::store::{FileHandle, Store};

/// Overwrites of up to this many bytes are atomic against a power cut, wherever they begin.
pub const OVERWRITE_ATOMIC_BYTES_MAX: usize = (IMAGES_MAX - 1) * PAYLOAD_BYTES + 1;

/// Zeros for a gap are appended in pieces of this length.
static ZEROS: [u8; 4 * PAYLOAD_BYTES] = [0; 4 * PAYLOAD_BYTES];

impl<D: BlockDevice> Store<D> {
    /// Writes `data` at byte `offset`; when this returns it is durable. A gap between the end of the file and
    /// `offset` is filled with zeros.
    ///
    /// Up to [`OVERWRITE_ATOMIC_BYTES_MAX`] bytes within the file are atomic against a power cut; of a longer
    /// write, or one that makes the file longer, a cut may leave a prefix.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_at(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        self.write_file(file, offset, data, true)
    }

    /// As [`write_at`](Self::write_at), but what makes the file longer is durable only after
    /// [`sync`](Self::sync) or any durable call on the store. What it overwrites is durable at once.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_at_nosync(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        self.write_file(file, offset, data, false)
    }

    fn write_file(
        &mut self,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<()> {
        self.begin_change()?;
        let state = self.state_of(self.open_index(file)?);
        let length = state.length();
        if data.is_empty() {
            return Ok(());
        }
        // The whole must fit before any of it is written.
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(Error::TooLarge)?;
        self.check_space_for(&state, end.saturating_sub(length))?;
        self.fill_with_zeros(file, offset)?;
        let inside = (length.saturating_sub(offset)).min(data.len() as u64) as usize;
        let (old, new) = data.split_at(inside);
        if !old.is_empty() {
            self.overwrite(&state, offset, old)?;
        }
        if new.is_empty() {
            Ok(())
        } else {
            self.append_file(file, new, durable)
        }
    }

    /// Makes the file at least `length` bytes long. Not durable.
    pub(crate) fn fill_with_zeros(&mut self, file: FileHandle, length: u64) -> Result<()> {
        loop {
            let missing = length.saturating_sub(self.length(file)?);
            if missing == 0 {
                return Ok(());
            }
            let count = missing.min(ZEROS.len() as u64) as usize;
            self.append_file(file, &ZEROS[..count], false)?;
        }
    }

    /// Overwrites bytes within the file, a few blocks at a time, each time durably and atomically.
    fn overwrite(&mut self, state: &FileState, offset: u64, data: &[u8]) -> Result<()> {
        let payload = PAYLOAD_BYTES as u64;
        let end = offset + data.len() as u64;
        let last_of_all = ((end - 1) / payload) as u32;
        let mut first = (offset / payload) as u32;
        while first <= last_of_all {
            let last = last_of_all.min(first + IMAGES_MAX as u32 - 1);
            // Each piece is a change of its own, acknowledged to nobody but recorded.
            self.begin_record()?;
            self.overwrite_blocks(state, first, last, offset, data)?;
            first = last + 1;
        }
        Ok(())
    }

    fn overwrite_blocks(
        &mut self,
        state: &FileState,
        first: u32,
        last: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let count = (last - first + 1) as usize;
        let mut headers: [Option<Header>; IMAGES_MAX] = [None; IMAGES_MAX];
        // All are read before anything is changed: one that is damaged leaves the file as it was.
        let mut header = self.seek(state, last)?;
        for place in (0..count).rev() {
            if place + 1 < count {
                header = self.read_file_block(state, header.pointers[0], first + place as u32)?;
            }
            headers[place] = Some(header);
            let block = self.scratch.block(0);
            // Not yet images: reading may fail.
            self.neighbours.block_mut(place).copy_from_slice(block);
        }
        for (place, header) in headers.iter().take(count).enumerate() {
            let Some(header) = header else { continue };
            let image = self.begin_image(header.address)?;
            let block_start = u64::from(header.index) * PAYLOAD_BYTES as u64;
            let from = block_start.max(offset);
            let to = (block_start + u64::from(header.fill)).min(offset + data.len() as u64);
            let source = &data[(from - offset) as usize..(to - offset) as usize];
            let target = HEADER_BYTES + (from - block_start) as usize;
            let block = self.images.block_mut(image);
            block.copy_from_slice(&self.neighbours[place * BLOCK_BYTES..(place + 1) * BLOCK_BYTES]);
            block[target..target + source.len()].copy_from_slice(source);
            header.seal(block, self.seed);
        }
        self.commit()?;
        if last == state.tail.index
            && let Some(slot) = self.root.slot_of(state.file_id)
            && self.tails[slot].holds(state)
            && let Some(header) = headers[count - 1]
        {
            // The next append carries the last block over from memory.
            let block_start = u64::from(header.index) * PAYLOAD_BYTES as u64;
            let from = block_start.max(offset);
            let to = (block_start + u64::from(header.fill)).min(offset + data.len() as u64);
            let source = &data[(from - offset) as usize..(to - offset) as usize];
            let target = (from - block_start) as usize;
            self.tails[slot].payload[target..target + source.len()].copy_from_slice(source);
        }
        Ok(())
    }
}
