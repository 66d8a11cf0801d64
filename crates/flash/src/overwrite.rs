//! Overwriting existing bytes of a file in place.
//!
//! The changed blocks, at most three, go into a record as images; after its barrier they are written in place. Their
//! headers do not change: no pointer to them changes, and neither does the file's state.
//!
//! Several pieces in one call are collected block by block, so that each record is full, and blocks that would not
//! change are left out. So a caller that changes a few bytes in each of several pages needs only one record.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::block::{HEADER_BYTES, Header, PAYLOAD_BYTES};
use crate::error::{Error, Result};
use crate::root::{FileState, IMAGES_MAX};
use crate::store::{FileHandle, ImageStage, Store, read_through};

/// Overwrites of up to this many bytes are atomic against a power cut, at any offset.
pub const OVERWRITE_ATOMIC_BYTES_MAX: usize = (IMAGES_MAX - 1) * PAYLOAD_BYTES + 1;

/// Zeros for a gap are appended in pieces of this length.
static ZEROS: [u8; 4 * PAYLOAD_BYTES] = [0; 4 * PAYLOAD_BYTES];

impl<D: BlockDevice> Store<D> {
    /// Writes `data` at byte `offset`. The data is durable when this returns. A gap between the end of the file and
    /// `offset` is filled with zeros.
    ///
    /// Up to [`OVERWRITE_ATOMIC_BYTES_MAX`] bytes within the file are atomic against a power cut. A cut may leave a
    /// prefix of a longer write, or of one that makes the file longer. Blocks that already hold the given bytes are not
    /// written again.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_at(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        self.write_file(file, offset, data, true)
    }

    /// As [`write_at`](Self::write_at), but bytes that make the file longer are durable only after [`sync`](Self::sync)
    /// or any durable call on the store. Overwritten bytes are durable at once.
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
        let index = self.index_to_change(file)?;
        let state = self.state_of(index);
        let length = state.length();
        if data.is_empty() {
            return Ok(());
        }
        // The whole write must fit before any of it is written.
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(Error::TooLarge)?;
        self.check_space_for(&state, end.saturating_sub(length))?;
        self.fill_with_zeros(file, offset)?;
        // Overwrite first, so that a cut leaves a prefix.
        self.change_within(index, length, &[(offset, data)], false)?;
        let inside = length.saturating_sub(offset).min(data.len() as u64) as usize;
        let new = &data[inside..];
        if new.is_empty() {
            Ok(())
        } else {
            self.append_file(file, new, durable)
        }
    }

    /// Writes `pieces`, each of them an offset and bytes, as if one after the other by
    /// [`write_at_nosync`](Self::write_at_nosync). It needs fewer records: one for each three blocks that change.
    /// Blocks that already hold the given bytes are read but not written. It costs at most the sum of the
    /// [`bounds`](Self::bounds) of the pieces one by one.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_pieces_nosync(&mut self, file: FileHandle, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.write_pieces(file, pieces, false).map(drop)
    }

    /// As [`write_pieces_nosync`](Self::write_pieces_nosync), but all changes within the file are atomic against a
    /// power cut, and durable. Bytes that make the file longer are durable before that. Returns false, and writes
    /// nothing, if more than three blocks within the file would change.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_pieces_at_once(
        &mut self,
        file: FileHandle,
        pieces: &[(u64, &[u8])],
    ) -> Result<bool> {
        self.write_pieces(file, pieces, true)
    }

    fn write_pieces(
        &mut self,
        file: FileHandle,
        pieces: &[(u64, &[u8])],
        at_once: bool,
    ) -> Result<bool> {
        self.begin_change()?;
        let index = self.index_to_change(file)?;
        let length = self.state_of(index).length();
        let mut end = length;
        for (offset, data) in pieces {
            let bytes = data.len() as u64;
            let piece_end = offset.checked_add(bytes).ok_or(Error::TooLarge)?;
            if bytes > 0 {
                end = end.max(piece_end);
            }
        }
        self.check_space_for(&self.state_of(index), end - length)?;
        if end > length {
            if at_once {
                let state = self.state_of(index);
                if self
                    .stage_changed(&state, length, pieces, 0)?
                    .next
                    .is_some()
                {
                    return Ok(false);
                }
            }
            // Before the rest: the appended bytes must be there when data that points to them is written.
            for (offset, data) in pieces {
                let inside = length.saturating_sub(*offset).min(data.len() as u64) as usize;
                if inside < data.len() {
                    self.write_file(file, offset + inside as u64, &data[inside..], false)?;
                }
            }
        }
        let Some(records) = self.change_within(index, length, pieces, at_once)? else {
            return Ok(false);
        };
        if at_once && end > length && records == 0 {
            // No record has made the append durable.
            self.barrier()?;
        }
        Ok(true)
    }

    /// Applies the parts of `pieces` before byte `length`, three blocks in a record, each record durable and atomic.
    /// Returns the number of records that this took. Returns `None`, and writes nothing, if the change must happen at
    /// once and does not fit into one record.
    fn change_within(
        &mut self,
        index: usize,
        length: u64,
        pieces: &[(u64, &[u8])],
        at_once: bool,
    ) -> Result<Option<u32>> {
        let mut records = 0;
        let mut next = first_touched(pieces, length, 0);
        while let Some(first) = next {
            // Each record is a separate change that is not acknowledged on its own.
            self.begin_record()?;
            // An append may have moved the last block.
            let state = self.state_of(index);
            let staged = self.stage_changed(&state, length, pieces, first)?;
            if at_once && staged.next.is_some() {
                return Ok(None);
            }
            next = staged.next;
            if staged.count > 0 {
                self.commit_staged(&state, &staged)?;
                records += 1;
            }
        }
        Ok(Some(records))
    }

    /// Puts the first blocks that `pieces` change, from block `from` on and before byte `length`, into the group
    /// buffer, which only an append uses otherwise.
    fn stage_changed(
        &mut self,
        state: &FileState,
        length: u64,
        pieces: &[(u64, &[u8])],
        from: u32,
    ) -> Result<Staged> {
        let mut staged = Staged::default();
        let mut touched = first_touched(pieces, length, from);
        while let Some(first) = touched {
            let mut last = first;
            while last + 1 - first < IMAGES_MAX as u32
                && first_touched(pieces, length, last + 1) == Some(last + 1)
            {
                last += 1;
            }
            let headers = self.load_blocks(state, first, last)?;
            for (place, header) in headers.into_iter().flatten().enumerate() {
                let block = self.neighbours.block_mut(place);
                if !put_pieces(pieces, length, header.index, block) {
                    continue;
                }
                if staged.count == IMAGES_MAX {
                    staged.next = Some(header.index);
                    return Ok(staged);
                }
                self.group.block_mut(staged.count).copy_from_slice(block);
                staged.headers[staged.count] = Some(header);
                staged.count += 1;
            }
            touched = first_touched(pieces, length, last + 1);
        }
        Ok(staged)
    }

    /// Reads blocks `first` to `last` of the file, at most three, into the neighbours' buffer.
    fn load_blocks(
        &mut self,
        state: &FileState,
        first: u32,
        last: u32,
    ) -> Result<[Option<Header>; IMAGES_MAX]> {
        let count = (last - first + 1) as usize;
        let mut headers = [None; IMAGES_MAX];
        if self.load_known(state, first, count)
            && self.open_blocks(state, first, &mut headers[..count])
        {
            return Ok(headers);
        }
        let mut header = self.seek(state, last)?;
        for place in (0..count).rev() {
            if place + 1 < count {
                header = self.read_file_block(state, header.pointers[0], first + place as u32)?;
            }
            headers[place] = Some(header);
            let block = self.scratch.block(0);
            self.neighbours.block_mut(place).copy_from_slice(block);
        }
        Ok(headers)
    }

    /// Gets blocks whose places are known from the images of the last record, or in one request if they are contiguous.
    /// Returns false if they are elsewhere or cannot be read; the caller then reads them one by one and reports the
    /// damaged one.
    fn load_known(&mut self, state: &FileState, first: u32, count: usize) -> bool {
        let mut places = [0; IMAGES_MAX];
        for (place, index) in places.iter_mut().zip(first..).take(count) {
            let known = if index == state.tail.index {
                Some(state.tail.address)
            } else {
                self.addresses.get(state.file_id, index)
            };
            let Some(address) = known else {
                return false;
            };
            *place = address;
        }
        let places = &places[..count];
        if self.load_images(places) {
            return true;
        }
        let side_by_side = places.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let bytes = count * BLOCK_BYTES;
        side_by_side
            && read_through(
                &mut self.device,
                &self.overlay,
                u64::from(places[0]),
                &mut self.neighbours[..bytes],
            )
            .is_ok()
    }

    /// Gets blocks that are in memory because the last record changed them. Until the next flush nothing else can be
    /// written in their places: only a durable record gives a place to other data.
    fn load_images(&mut self, places: &[u32]) -> bool {
        if self.image_stage != ImageStage::InPlace {
            return false;
        }
        for (number, address) in places.iter().enumerate() {
            let references = self.image_references.as_slice();
            let Some(image) = references
                .iter()
                .position(|reference| reference.address == *address)
            else {
                return false;
            };
            let block = self.images.block(image);
            self.neighbours.block_mut(number).copy_from_slice(block);
        }
        true
    }

    /// Returns whether the blocks in the neighbours' buffer are those of the file from `first` on.
    fn open_blocks(
        &mut self,
        state: &FileState,
        first: u32,
        headers: &mut [Option<Header>],
    ) -> bool {
        for (number, (header, index)) in headers.iter_mut().zip(first..).enumerate() {
            let is_last = index == state.tail.index;
            let known = if is_last {
                Some(state.tail.address)
            } else {
                self.addresses.get(state.file_id, index)
            };
            let block = self.neighbours.block(number);
            *header = known
                .and_then(|address| Header::open(block, address, self.seed))
                .filter(|header| {
                    let right_content = if is_last {
                        header.belongs_at_tail(state)
                    } else {
                        usize::from(header.fill) == PAYLOAD_BYTES
                    };
                    header.file_id == state.file_id && header.index == index && right_content
                });
            if header.is_none() {
                return false;
            }
        }
        true
    }

    /// Writes the staged blocks with one record.
    fn commit_staged(&mut self, state: &FileState, staged: &Staged) -> Result<()> {
        for (place, header) in staged.headers.iter().flatten().enumerate() {
            let image = self.begin_image(header.address)?;
            let block = self.images.block_mut(image);
            block.copy_from_slice(self.group.block(place));
            header.seal(block, self.seed);
        }
        self.commit()?;
        for (place, header) in staged.headers.iter().flatten().enumerate() {
            if header.index == state.tail.index
                && let Some(slot) = self.root.slot_of(state.file_id)
                && self.tails[slot].holds(state)
            {
                // The next append takes the content of the last block from memory.
                let payload = &self.group.block(place)[HEADER_BYTES..];
                self.tails[slot].payload.copy_from_slice(payload);
            }
        }
        Ok(())
    }

    /// Makes the file at least `length` bytes long. The change is not durable yet.
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
}

/// Blocks that will change, with their new content.
#[derive(Default)]
struct Staged {
    headers: [Option<Header>; IMAGES_MAX],
    count: usize,
    /// The next block to stage: the first one that did not fit.
    next: Option<u32>,
}

/// Returns the bytes of block `index` that a piece covers, limited to those before `length`.
fn overlap(offset: u64, data: &[u8], length: u64, index: u32) -> Option<(u64, u64)> {
    let block_start = u64::from(index) * PAYLOAD_BYTES as u64;
    let from = block_start.max(offset);
    let to = (block_start + PAYLOAD_BYTES as u64)
        .min(offset + data.len() as u64)
        .min(length);
    (from < to).then_some((from, to))
}

/// Returns the first block from `from` on that holds a byte, before `length`, of any of the pieces.
fn first_touched(pieces: &[(u64, &[u8])], length: u64, from: u32) -> Option<u32> {
    let payload = PAYLOAD_BYTES as u64;
    let candidates = pieces.iter().filter_map(|(offset, data)| {
        let index = u32::try_from(offset / payload).ok()?.max(from);
        overlap(*offset, data, length, index).map(|_| index)
    });
    candidates.min()
}

/// Copies the parts of the pieces that belong into a block. Returns whether that changes anything.
fn put_pieces(pieces: &[(u64, &[u8])], length: u64, index: u32, block: &mut [u8]) -> bool {
    let block_start = u64::from(index) * PAYLOAD_BYTES as u64;
    let mut changed = false;
    for (offset, data) in pieces {
        if let Some((from, to)) = overlap(*offset, data, length, index) {
            let source = &data[(from - offset) as usize..(to - offset) as usize];
            let target = HEADER_BYTES + (from - block_start) as usize;
            let target = &mut block[target..target + source.len()];
            changed |= target != source;
            target.copy_from_slice(source);
        }
    }
    changed
}

#[cfg(test)]
#[path = "overwrite_tests.rs"]
mod tests;
