//! Truncating and extending files.
//!
//! The file gets the state that it had when its new last block was the last one. That block's header names its run, its
//! lane and the run before; the run of the other lane is found by walking its list back. Younger runs are freed. If the
//! new end lies within a block, the block is shortened in place, as an image of the same record.

use base::block::BlockDevice;

use crate::block::{HEADER_BYTES, Header, PAYLOAD_BYTES};
use crate::error::{Error, Part, Result};
use crate::root::{ClosedRun, FileState, Lane, Run, Tail};
use crate::space::PIECES_WITHOUT_SPILL;
use crate::store::{FileHandle, Store};
use crate::table::set_entry_state;

/// Block of the scratch buffer for the entry's bucket; blocks of files are read elsewhere.
const SCRATCH_ENTRY: usize = 1;

impl<D: BlockDevice> Store<D> {
    /// Makes the file `length` bytes long by cutting off its end or appending zeros. Durable and, when it shortens the
    /// file, atomic.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`Error::Damaged`] also when a block that must be read to find the new end
    /// is not intact.
    pub fn truncate(&mut self, file: FileHandle, length: u64) -> Result<()> {
        self.begin_change()?;
        let index = self.index_to_change(file)?;
        let state = self.state_of(index);
        let now = state.length();
        if length > now {
            let missing = length - now;
            self.check_space_for(&state, missing)?;
            self.fill_with_zeros(file, length)?;
            return self.sync();
        }
        if length == now {
            return self.sync();
        }
        if self.unflushed {
            self.barrier_for_earlier_calls()?;
        }
        self.make_piece_room(PIECES_WITHOUT_SPILL)?;
        // Do all reads that may fail before anything is changed.
        self.read_entry(index, &state)?;
        if length == 0 {
            let empty = FileState::empty(state.file_id);
            self.free_file(&state);
            return self.put_state(index, empty);
        }
        self.shorten(index, &state, length)
    }

    fn shorten(&mut self, index: usize, state: &FileState, length: u64) -> Result<()> {
        let payload = PAYLOAD_BYTES as u64;
        let last = ((length - 1) / payload) as u32;
        let fill = (length - u64::from(last) * payload) as u16;
        let header = self.seek(state, last)?;
        self.neighbours
            .block_mut(0)
            .copy_from_slice(self.scratch.block(0));
        let mut kept = *state;
        if last < state.tail.index {
            kept.reserve = Run::default();
            for number in 0..kept.lanes.len() {
                let (lane, closed) = self.lane_at(state, number, &header, fill)?;
                kept.lanes[number] = lane;
                kept.closed_blocks = kept.closed_blocks.saturating_sub(closed);
            }
        } else if usize::from(fill) < PAYLOAD_BYTES && usize::from(state.tail.fill) == PAYLOAD_BYTES
        {
            // The last block was full, so it was not to be overwritten; now it is not full any more.
            let own = usize::from(header.lane);
            let used = (header.address - header.run_start) as u8;
            if kept.lanes[own].run.contains(header.address) {
                kept.lanes[own].run.next = used;
            } else {
                // Its run was closed as the last one of its lane.
                kept.lanes[own] = self.lane_of(&header, used)?;
                kept.closed_blocks = kept
                    .closed_blocks
                    .saturating_sub(u32::from(header.run_blocks));
            }
        }
        kept.tail = Tail {
            address: header.address,
            index: last,
            sequence: header.sequence,
            fill,
            previous: header.pointers[0],
        };
        if header.fill != fill {
            let image = self.begin_image(header.address)?;
            let block = self.images.block_mut(image);
            block.copy_from_slice(self.neighbours.block(0));
            block[HEADER_BYTES + usize::from(fill)..].fill(0);
            Header { fill, ..header }.seal(block, self.seed);
        }
        self.free_behind(state, &kept);
        self.put_state(index, kept)
    }

    /// Returns the lane as it was when `end`, with `fill` bytes in it, was the last block of the file. Returns also the
    /// number of blocks to subtract from its closed runs. The newest run that holds blocks up to `end` is filled again.
    fn lane_at(
        &mut self,
        state: &FileState,
        number: usize,
        end: &Header,
        fill: u16,
    ) -> Result<(Lane, u32)> {
        let lane = state.lanes[number];
        let is_own = number == usize::from(end.lane);
        let mut run = ClosedRun {
            start: lane.run.start,
            used: lane.run.next,
        };
        let mut is_closed = run.is_none();
        if is_closed {
            run = lane.before;
        }
        let mut closed = 0_u32;
        let mut index_end = u32::MAX;
        while !run.is_none() {
            let found = if is_own && run.start == end.run_start {
                // A last block that is not full may be overwritten. The next append goes to the other lane, and the one
                // after it over this block.
                let used = (end.address - end.run_start) as u8
                    + u8::from(usize::from(fill) == PAYLOAD_BYTES);
                Some((*end, used))
            } else {
                let first = self.first_of_run(state, &run, &mut index_end)?;
                if first.index <= end.index {
                    Some((first, self.blocks_up_to(state, &run, end.index)?))
                } else {
                    closed = closed.saturating_add(if is_closed { run.blocks() } else { 0 });
                    run = ClosedRun {
                        start: first.before_start,
                        used: first.before_used,
                    };
                    is_closed = true;
                    None
                }
            };
            if let Some((header, used)) = found {
                if is_own && header.run_start != end.run_start {
                    break;
                }
                let lane = self.lane_of(&header, used)?;
                let is_open_again = is_closed && !lane.run.is_none();
                closed = closed.saturating_add(if is_open_again { run.blocks() } else { 0 });
                return Ok((lane, closed));
            }
        }
        if is_own {
            // The list of its runs does not lead to the block.
            return Err(damaged(end.address));
        }
        Ok((Lane::default(), closed))
    }

    /// Returns how many blocks of a run have numbers up to `last`; the first block must be one of them.
    fn blocks_up_to(&mut self, state: &FileState, run: &ClosedRun, last: u32) -> Result<u8> {
        // Block numbers grow along a run, so a binary search finds the count.
        let (mut stays, mut goes) = (1, run.used);
        while stays < goes {
            let middle = stays + (goes - stays) / 2;
            if self.block_of_run(state, run, middle)?.index <= last {
                stays = middle + 1;
            } else {
                goes = middle;
            }
        }
        Ok(stays)
    }

    /// Reads block `offset` of a run of the file, which holds data.
    pub(crate) fn block_of_run(
        &mut self,
        state: &FileState,
        run: &ClosedRun,
        offset: u8,
    ) -> Result<Header> {
        if !self.layout.is_data_run(run.start, run.blocks()) {
            return Err(damaged(run.start));
        }
        let address = run.start + u32::from(offset);
        self.read_data_block(address)?
            .filter(|header| header.file_id == state.file_id && header.run_start == run.start)
            .ok_or_else(|| damaged(address))
    }

    /// Frees the runs that the shortened file no longer has.
    fn free_behind(&mut self, state: &FileState, kept: &FileState) {
        if kept.reserve.is_none() {
            self.free_plain(state.file_id, state.reserve);
        }
        for (lane, kept_lane) in state.lanes.iter().zip(&kept.lanes) {
            let end = if kept_lane.run.is_none() {
                kept_lane.before.start
            } else {
                kept_lane.run.start
            };
            if lane.run.is_none() || lane.run.start != end {
                self.free_lane(state.file_id, lane, end);
            }
        }
        // `free_lane` has counted the lane's current run. Count the closed runs that are no longer closed, except those
        // that are being filled again.
        let reopened: u32 = state
            .lanes
            .iter()
            .zip(&kept.lanes)
            .filter(|(lane, kept)| !kept.run.is_none() && kept.run.start != lane.run.start)
            .map(|(_, kept)| u32::from(kept.run.blocks))
            .sum();
        self.count_free(
            (state.closed_blocks - kept.closed_blocks.min(state.closed_blocks))
                .saturating_sub(reopened),
        );
    }

    /// Records the new state of an open file, in its slot or else in its entry of the table.
    fn put_state(&mut self, index: usize, state: FileState) -> Result<()> {
        self.addresses.forget_from(state.file_id, state.tail.index);
        self.keep_something_plain();
        if let Some(slot) = self.root.slot_of(state.file_id) {
            self.root.slots[slot].state = state;
            self.tails[slot].forget();
            return self.commit();
        }
        let (bucket, entry) = (self.files[index].bucket, self.files[index].entry);
        let image = self.begin_table_image(bucket, SCRATCH_ENTRY)?;
        let block = self.images.block_mut(image);
        set_entry_state(block, entry, &state, &self.layout);
        let done = self.commit();
        if done.is_ok() {
            self.files[index].state = state;
        } else if self.read_bucket(bucket, SCRATCH_ENTRY).is_ok()
            && let Ok(opened) = self.bucket_at(bucket, SCRATCH_ENTRY)
            && let Some((_, known)) = opened.get(entry)
            && known.file_id == state.file_id
        {
            // The device has failed, before or after the change was durable: the handle must show the same state as the
            // name.
            self.files[index].state = known;
        }
        done
    }

    /// Reads the table block with the state of an open file, unless a slot holds the state.
    fn read_entry(&mut self, index: usize, state: &FileState) -> Result<()> {
        if self.root.slot_of(state.file_id).is_some() {
            return Ok(());
        }
        let (bucket, entry) = (self.files[index].bucket, self.files[index].entry);
        self.read_bucket(bucket, SCRATCH_ENTRY)?;
        let known = self.bucket_at(bucket, SCRATCH_ENTRY)?.get(entry);
        if known.map(|(_, known)| known.file_id) == Some(state.file_id) {
            return Ok(());
        }
        let block = self.layout.bucket_block(bucket);
        Err(Error::Damaged {
            part: Part::Table,
            block,
            offset: None,
        })
    }

    /// Reads the first block of a run on the way back through a lane's list. Block numbers must fall from run to run,
    /// or the list is not valid.
    fn first_of_run(
        &mut self,
        state: &FileState,
        run: &ClosedRun,
        index_end: &mut u32,
    ) -> Result<Header> {
        let first = self.block_of_run(state, run, 0)?;
        if first.index >= *index_end {
            return Err(damaged(run.start));
        }
        *index_end = first.index;
        Ok(first)
    }

    /// Returns a lane whose run is that of `header`, with the first `used` blocks of it full.
    fn lane_of(&self, header: &Header, used: u8) -> Result<Lane> {
        let before = ClosedRun {
            start: header.before_start,
            used: header.before_used,
        };
        let run_blocks = u32::from(header.run_blocks);
        let sane = used <= header.run_blocks
            && self.layout.is_data_run(header.run_start, run_blocks)
            && (before.is_none() || self.layout.is_data_run(before.start, before.blocks()));
        if !sane {
            return Err(damaged(header.address));
        }
        let mut lane = Lane {
            run: Run {
                start: header.run_start,
                blocks: header.run_blocks,
                next: used,
            },
            before,
        };
        if used == header.run_blocks {
            lane.close();
        }
        Ok(lane)
    }
}

fn damaged(address: u32) -> Error {
    Error::Damaged {
        part: Part::Data,
        block: u64::from(address),
        offset: None,
    }
}
