//! Reading: backwards by pointers from the last block or a nearer known block, then in requests of neighbouring blocks.
//!
//! A header tells where the seven blocks before it are, and where its run begins. If the seven are contiguous, those
//! before them in the run usually are too: one request takes as many as fit. A guessed block is accepted only if the
//! block behind it points to it, as in a walk. So a wrong guess costs only the transfer, and never touches a block
//! outside the file's own runs.
//!
//! Invariant: a byte is returned only from a block whose checksum, address, file and position all agree.

mod runs;

use base::block::{BLOCK_BYTES, BlockDevice, DeviceError};

use crate::block::{
    GROUP_BLOCKS_MAX, HEADER_BYTES, Header, NEAR_POINTERS, PAYLOAD_BYTES, pointer_towards,
};
use crate::error::{Error, Part, Result};
use crate::root::FileState;
use crate::store::{FileHandle, READ_BLOCKS_MAX, Store, is_readable, read_through};

/// Damaged blocks that one read walks around before it gives up.
pub(crate) const DAMAGED_AROUND_MAX: usize = 8;

/// Contiguous blocks that are expected to belong to one file.
#[derive(Clone, Copy)]
struct Row {
    /// The address of the first block, and its number in the file.
    address: u32,
    first: u32,
    blocks: u32,
    /// The number of blocks at the end that are known to be there; those before them are guessed.
    known: u32,
}

/// The block that a walk has reached; or the damaged block on the way (`None` if no start is left) and the error.
type Walk = std::result::Result<Header, (Option<u32>, Error)>;

impl<D: BlockDevice> Store<D> {
    /// Reads into `buffer` from byte `offset` on. Returns the number of bytes, less than the buffer's length only at
    /// the end of the file.
    ///
    /// A damaged block usually costs its own bytes only: the walk goes around it.
    ///
    /// Finding the block costs at most ceil(log2 n) + 1 block reads in a file of n blocks, and one if its address is
    /// remembered. Each further block costs one request at most; in a long run 16 blocks share one.
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
        let out = &mut buffer[..count];
        let mut header = match self.read_known(&state, first, last, offset, out)? {
            Some(header) => header,
            None => {
                let header = self.seek(&state, last)?;
                copy_out(&state, &header, self.scratch.block(0), offset, out);
                header
            }
        };
        let mut may_guess = true;
        while header.index > first {
            header = self.read_before(&state, &header, first, offset, out, &mut may_guess)?;
        }
        Ok(count)
    }

    /// Reads the whole range in one request, if it is short and its blocks are known to be contiguous.
    fn read_known(
        &mut self,
        state: &FileState,
        first: u32,
        last: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<Header>> {
        let blocks = last - first + 1;
        if blocks as usize > GROUP_BLOCKS_MAX {
            return Ok(None);
        }
        let known = |index| match index {
            index if index == state.tail.index => Some(state.tail.address),
            index => self.addresses.get(state.file_id, index),
        };
        let Some(start) = known(first) else {
            return Ok(None);
        };
        let side_by_side = (1..blocks).all(|number| known(first + number) == Some(start + number));
        if side_by_side {
            let row = Row {
                address: start,
                first,
                blocks,
                known: blocks,
            };
            self.read_row(state, row, offset, buffer)
        } else {
            Ok(None)
        }
    }

    /// Reads the blocks before the block of `header` in one request, but none before block `first`. It reads as many as
    /// the pointers show to be contiguous, and if all of them are, further ones of their run. Returns the header of the
    /// first block that was read. If a request with guessed blocks fails, only the known ones are read. This call then
    /// stops guessing, because each request for a bad block takes long.
    fn read_before(
        &mut self,
        state: &FileState,
        header: &Header,
        first: u32,
        offset: u64,
        buffer: &mut [u8],
        may_guess: &mut bool,
    ) -> Result<Header> {
        let (before, address) = (header.index - 1, header.pointers[0]);
        let wanted = header.index - first;
        let shown_max = wanted.min(NEAR_POINTERS as u32);
        let is_beside =
            |place: &u32| header.pointers[*place as usize] == address.wrapping_sub(*place);
        let known = (1..shown_max).take_while(is_beside).count() as u32 + 1;
        let row = |blocks: u32| Row {
            address: address.wrapping_sub(blocks - 1),
            first: before - (blocks - 1),
            blocks,
            known,
        };
        let in_run = header
            .in_run(address)
            .min(wanted)
            .min(READ_BLOCKS_MAX as u32);
        if *may_guess && known == shown_max && in_run > known {
            match self.read_row(state, row(in_run), offset, buffer)? {
                Some(header) => return Ok(header),
                None => *may_guess = false,
            }
        }
        let read = self.read_row(state, row(known), offset, buffer)?;
        read.ok_or_else(|| damaged(address, before))
    }

    /// Reads a row of blocks and returns the header of the first one. If a guessed block is not there, returns the
    /// header of the last valid one, counted from the end. Returns `None` if the device cannot read a row with guessed
    /// blocks.
    fn read_row(
        &mut self,
        state: &FileState,
        row: Row,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<Header>> {
        let Row {
            address,
            first,
            blocks,
            known,
        } = row;
        let is_data = |address| self.layout.is_data_block(address);
        if !is_data(address) || !is_data(address + (blocks - 1)) {
            return match blocks > known {
                true => Ok(None),
                false => Err(damaged(address, first)),
            };
        }
        let bytes = blocks as usize * BLOCK_BYTES;
        let read = read_through(
            &mut self.device,
            &self.overlay,
            u64::from(address),
            &mut self.neighbours[..bytes],
        );
        if !is_readable(read)? {
            if blocks > known {
                return Ok(None);
            }
            // Only those blocks that the device cannot read are damaged.
            self.read_one_by_one(u64::from(address), blocks as usize)?;
        }
        let mut lowest: Option<Header> = None;
        for number in (0..blocks).rev() {
            let block = self.neighbours.block(number as usize);
            let (address, index) = (address + number, first + number);
            let is_known = blocks - number <= known;
            let is_elsewhere = lowest.is_some_and(|behind| behind.pointers[0] != address);
            if !is_known && is_elsewhere {
                break;
            }
            let found = Header::open(block, address, self.seed)
                .filter(|header| belongs(header, state, index));
            let header = match found {
                Some(header) => header,
                // The next request treats this block as known and reports the error.
                None if !is_known => break,
                None => return Err(damaged(address, index)),
            };
            copy_out(state, &header, block, offset, buffer);
            if index < state.tail.index {
                self.addresses.put(state.file_id, index, address);
            }
            lowest = Some(header);
        }
        lowest.map(Some).ok_or_else(|| damaged(address, first))
    }

    /// Walks to block `target` and leaves it in the scratch buffer. The walk starts from the last block of the file, or
    /// from a nearer one whose address is known. It goes around damaged blocks, as far as the pointers allow, and then
    /// follows the lists of runs.
    pub(crate) fn seek(&mut self, state: &FileState, target: u32) -> Result<Header> {
        // For the last block, a failed append may have remembered a different address.
        let known = self.addresses.get(state.file_id, target);
        if let Some(address) = known.filter(|_| target < state.tail.index) {
            return self.read_file_block(state, address, target);
        }
        let (damaged_at, error) = match self.try_walks(state, target, None)? {
            Ok(header) => return Ok(header),
            Err(failure) => failure,
        };
        if damaged_at != Some(target)
            && let Some(near) = self.nearest_in_runs(state, target)?
            && let Ok(header) = self.try_walks(state, target, Some(near))?
        {
            return Ok(header);
        }
        Err(match error {
            // The damaged block is later in the file than the wanted one; the wanted block is the one that cannot be
            // read.
            Error::Damaged { part, block, .. } => Error::Damaged {
                part,
                block,
                offset: Some(offset_of(target)),
            },
            error => error,
        })
    }

    /// Repeats walks to block `target` until one succeeds. Each walk goes around the damaged blocks found by earlier
    /// ones.
    fn try_walks(
        &mut self,
        state: &FileState,
        target: u32,
        start: Option<(u32, u32)>,
    ) -> Result<Walk> {
        let mut avoid = [u32::MAX; DAMAGED_AROUND_MAX];
        let mut damaged_count = 0;
        loop {
            match self.walk(state, target, start, &avoid)? {
                Err((Some(at), _)) if at != target && damaged_count < DAMAGED_AROUND_MAX => {
                    avoid[damaged_count] = at;
                    damaged_count += 1;
                }
                walk => return Ok(walk),
            }
        }
    }

    /// Does one walk, from `start`, or else from the end of the file or a nearer known block.
    fn walk(
        &mut self,
        state: &FileState,
        target: u32,
        start: Option<(u32, u32)>,
        avoid: &[u32],
    ) -> Result<Walk> {
        let tail = state.tail;
        let near = self.addresses.above(state.file_id, target, tail.index);
        let ends = [
            near,
            Some((tail.index, tail.address)),
            // When the last block is damaged, the root still knows the one before it.
            tail.index
                .checked_sub(1)
                .map(|index| (index, tail.previous)),
        ];
        let starts = match start {
            Some(_) => [start, None, None],
            None => ends,
        };
        let usable = |(index, _): &(u32, u32)| *index >= target && !avoid.contains(index);
        let start = starts.into_iter().flatten().find(usable);
        let Some((mut index, mut address)) = start else {
            return Ok(Err((None, damaged(tail.address, target))));
        };
        loop {
            let header = match self.read_file_block(state, address, index) {
                Ok(header) => header,
                Err(error @ Error::Damaged { .. }) => return Ok(Err((Some(index), error))),
                Err(error) => return Err(error),
            };
            if index == target {
                return Ok(Ok(header));
            }
            let Some((place, next)) = pointer_towards(index, target, avoid) else {
                // Every path from here leads through a damaged block.
                return Ok(Err((Some(index), damaged(header.pointers[0], index - 1))));
            };
            (index, address) = (next, header.pointers[place]);
        }
    }

    /// Reads the block that should be number `index` of the file.
    pub(crate) fn read_file_block(
        &mut self,
        state: &FileState,
        address: u32,
        index: u32,
    ) -> Result<Header> {
        if !self.layout.is_data_block(address) {
            return Err(damaged(address, index));
        }
        let found = match self.read_data_block(address) {
            Err(Error::Device(DeviceError::Io { .. })) => None,
            found => found?,
        };
        let header = found.filter(|header| belongs(header, state, index));
        if header.is_some() && index < state.tail.index {
            self.addresses.put(state.file_id, index, address);
        }
        header.ok_or_else(|| damaged(address, index))
    }
}

/// Returns whether an intact block is number `index` of the file.
pub(crate) fn belongs(header: &Header, state: &FileState, index: u32) -> bool {
    let right_content = if index == state.tail.index {
        header.belongs_at_tail(state)
    } else {
        usize::from(header.fill) == PAYLOAD_BYTES
    };
    header.file_id == state.file_id && header.index == index && right_content
}

/// Copies the part of a block that the caller asked for.
fn copy_out(state: &FileState, header: &Header, block: &[u8], offset: u64, buffer: &mut [u8]) {
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
        buffer[target..target + length].copy_from_slice(&block[source..source + length]);
    }
}

fn damaged(address: u32, index: u32) -> Error {
    Error::Damaged {
        part: Part::Data,
        block: u64::from(address),
        offset: Some(offset_of(index)),
    }
}

fn offset_of(index: u32) -> u64 {
    u64::from(index) * PAYLOAD_BYTES as u64
}
