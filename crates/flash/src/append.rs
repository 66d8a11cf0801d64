//! Appending: one contiguous write and one barrier, independent of the file's length and the store's fill.
//!
//! A file being appended to owns two lanes, runs of contiguous blocks that its appends take in turn. An append rewrites
//! the partly filled last block together with the new ones. It uses the lane that does not hold the durable copy of
//! that block, so no write can harm acknowledged bytes. The append after the next one goes where the superseded copy
//! is. All blocks of one append (a group) carry one number. Recovery accepts a group only when all its blocks are
//! there, so the group is atomic without any other write. A group never spans two runs: a lane with too little room for
//! it is closed, and the reserve takes its place.

use base::block::BlockDevice;

use crate::block::{
    GROUP_BLOCKS_MAX, HEADER_BYTES, Header, PAYLOAD_BYTES, POINTERS, pointers_after,
};
use crate::error::{Error, Part, Result};
use crate::layout::{CLUSTER_BLOCKS, RUN_BLOCKS_MAX};
use crate::root::{ClosedRun, FileState, Run, SLOTS_MAX, Slot, SlotKind, Tail};
use crate::store::{FileHandle, ImageStage, Store};
use crate::table::set_entry_state;
use crate::tail_cache::EPOCH_LONG_AGO;

/// Appends of at most this many bytes are atomic against a power cut.
pub const APPEND_ATOMIC_BYTES_MAX: usize = (GROUP_BLOCKS_MAX - 1) * PAYLOAD_BYTES;

/// Places in the list of free pieces that writing back a file leaves untouched.
const PIECES_KEPT: usize = 12;

/// A planned group: the place of its blocks, and the state of the file after it.
struct Plan {
    /// Payload bytes carried over from the partly filled tail.
    carried: usize,
    blocks: usize,
    /// Bytes of the new data that the group takes.
    taken: usize,
    lane: usize,
    /// Whether the lane's run has too little room, so that the reserve takes its place.
    new_run: bool,
    first_index: u32,
}

impl<D: BlockDevice> Store<D> {
    /// Appends `data`. The data is durable when this returns.
    ///
    /// Up to [`APPEND_ATOMIC_BYTES_MAX`] bytes are atomic against a power cut; a cut during a longer append may leave a
    /// prefix. On [`Error::Full`] the same holds: a longer append may have added a prefix.
    ///
    /// # Errors
    /// [`Error::StaleHandle`], [`Error::Full`], [`Error::Damaged`] when the file's last block is unreadable,
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn append(&mut self, file: FileHandle, data: &[u8]) -> Result<()> {
        self.append_file(file, data, true)
    }

    /// As [`append`](Self::append), but durable only after [`sync`](Self::sync) or any durable call on the store. Until
    /// then a power cut may lose the last of these appends, and no other bytes.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_nosync(&mut self, file: FileHandle, data: &[u8]) -> Result<()> {
        self.append_file(file, data, false)
    }

    /// Makes all earlier writes durable. Issues at most one flush.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn sync(&mut self) -> Result<()> {
        self.begin_sync()?;
        if self.unflushed {
            self.barrier()
        } else {
            Ok(())
        }
    }

    pub(crate) fn append_file(
        &mut self,
        file: FileHandle,
        data: &[u8],
        durable: bool,
    ) -> Result<()> {
        self.begin_change()?;
        let index = self.index_to_change(file)?;
        if data.is_empty() {
            return Ok(());
        }
        let state = self.state_of(index);
        self.check_space_for(&state, data.len() as u64)?;
        let slot = match self.root.slot_of(state.file_id) {
            Some(slot) => slot,
            None => {
                if self.unflushed {
                    self.barrier_for_earlier_calls()?;
                }
                self.activate(index)?
            }
        };
        self.append_to_slot(slot, data, durable)
    }

    /// Appends to the file of an active slot, group by group, and makes the data durable if `durable`.
    pub(crate) fn append_to_slot(&mut self, slot: usize, data: &[u8], durable: bool) -> Result<()> {
        self.slot_clock += 1;
        self.slot_used[slot] = self.slot_clock;
        let mut rest = data;
        let mut result = Ok(());
        while !rest.is_empty() {
            match self.append_group(slot, rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if !self.has_failed() {
            // Report a failing device rather than a full store: it is the worse error.
            self.finish(durable)?;
        }
        result
    }

    /// Commits an eviction that no record carries yet, and makes all earlier writes durable.
    fn finish(&mut self, durable: bool) -> Result<()> {
        if self.has_pending_images() || self.root_changed {
            self.write_record()?;
        }
        // A block that waits for a barrier before it is written in place would burden the next call.
        let waiting = self.image_stage == ImageStage::Recorded;
        if self.unflushed && (durable || waiting) {
            self.barrier()
        } else {
            Ok(())
        }
    }

    /// Refuses data that cannot fit before anything is written, so that a call on a full store fails as a whole.
    pub(crate) fn check_space_for(&self, state: &FileState, bytes: u64) -> Result<()> {
        let end = state.length().saturating_add(bytes);
        let blocks_after = end.div_ceil(PAYLOAD_BYTES as u64);
        if blocks_after > self.layout.data_blocks() {
            return Err(Error::Full);
        }
        let new = blocks_after - u64::from(state.block_count());
        let owned: u64 = state
            .lanes
            .iter()
            .map(|lane| u64::from(lane.run.room()))
            .sum();
        if new > owned + u64::from(state.reserve.blocks) + self.root.free_blocks {
            Err(Error::Full)
        } else {
            Ok(())
        }
    }

    /// Gives an open file a slot of the root, writing back the least recently used one if all are taken.
    fn activate(&mut self, index: usize) -> Result<usize> {
        let slot = self.free_slot()?;
        let file = &self.files[index];
        self.root.slots[slot] = Slot {
            kind: SlotKind::Named,
            bucket: file.bucket,
            entry: file.entry,
            state: file.state,
        };
        self.tails[slot].forget();
        self.tails[slot].name_hint = file.name_hint;
        // Until a record names the slot, recovery would look for the file's tail in the table only.
        self.root_changed = true;
        Ok(slot)
    }

    /// Returns a slot that no file uses. The record that must follow carries the table block of an evicted file.
    pub(crate) fn free_slot(&mut self) -> Result<usize> {
        if let Some(slot) = self
            .root
            .slots
            .iter()
            .position(|slot| slot.kind == SlotKind::Free)
        {
            return Ok(slot);
        }
        // A file whose table block is damaged keeps its slot; another file is evicted instead.
        let mut order: [usize; SLOTS_MAX] = std::array::from_fn(|slot| slot);
        order.sort_unstable_by_key(|slot| self.slot_used[*slot]);
        let mut error = Error::TooManyOpenFiles;
        for slot in order.into_iter().take(2) {
            match self.evict(slot) {
                Ok(()) => return Ok(slot),
                Err(found) => {
                    error = found;
                    // Mark the slot as used, so that the next call tries other slots.
                    self.slot_clock += 1;
                    self.slot_used[slot] = self.slot_clock;
                }
            }
        }
        Err(error)
    }

    fn evict(&mut self, slot: usize) -> Result<()> {
        let Slot {
            bucket,
            entry,
            mut state,
            ..
        } = self.root.slots[slot];
        self.read_bucket(bucket, 1)?;
        let known = self
            .bucket_at(bucket, 1)?
            .get(entry)
            .map(|(_, state)| state.file_id);
        if known != Some(state.file_id) {
            let block = self.layout.bucket_block(bucket);
            return Err(Error::Damaged {
                part: Part::Table,
                block,
                offset: None,
            });
        }
        if self.piece_room() > PIECES_KEPT {
            self.free_plain(state.file_id, state.reserve);
            state.reserve = Run::default();
        }
        let image = self.begin_table_image(bucket, 1)?;
        set_entry_state(self.images.block_mut(image), entry, &state, &self.layout);
        self.root.slots[slot] = Slot::default();
        if let Some(file) = self
            .files
            .iter_mut()
            .find(|file| file.references > 0 && file.state.file_id == state.file_id)
        {
            file.state = state;
        }
        Ok(())
    }

    /// Appends as much of `data` as fits into one group and returns that number of bytes. The data is not durable yet.
    fn append_group(&mut self, slot: usize, data: &[u8]) -> Result<usize> {
        let state = self.root.slots[slot].state;
        if !self.tails[slot].holds(&state) {
            // The file is used for the first time: if the root or the table is damaged, its runs may belong to another
            // file as well.
            if let Some(start) = self.claimed_run(&state) {
                return Err(Error::Damaged {
                    part: Part::FreeList,
                    block: u64::from(start),
                    offset: None,
                });
            }
            self.load_tail(slot, &state)?;
        }
        let mut plan = self.plan_group(slot, &state, data.len());
        if plan.new_run && state.reserve.is_none() && self.unflushed {
            // Earlier writes must be durable before a record may describe them. The barrier may also change where the
            // group can go.
            self.barrier_for_earlier_calls()?;
            plan = self.plan_group(slot, &state, data.len());
        }
        let mut record = self.has_pending_images() || self.root_changed;
        if plan.new_run && state.reserve.is_none() {
            let want = run_blocks_wanted(&state, plan.blocks, data.len());
            self.root.slots[slot].state.reserve = self.allocate(want)?;
            record = true;
        }
        if record {
            self.write_record()?;
        }
        let address = self.build_group(slot, &plan, &data[..plan.taken])?;
        self.write_group(address, 0, plan.blocks)?;
        self.apply_group(slot, &plan, address);
        Ok(plan.taken)
    }

    /// Reads the file's last block into memory.
    fn load_tail(&mut self, slot: usize, state: &FileState) -> Result<()> {
        if state.tail.address == 0 {
            return Ok(());
        }
        let header = self
            .read_data_block(state.tail.address)?
            .filter(|header| header.belongs_at_tail(state));
        let Some(header) = header else {
            return Err(Error::Damaged {
                part: Part::Data,
                block: u64::from(state.tail.address),
                offset: Some(u64::from(state.tail.index) * PAYLOAD_BYTES as u64),
            });
        };
        let lane = usize::from(state.lanes[1].run.contains(state.tail.address));
        let tail = &mut self.tails[slot];
        tail.payload
            .copy_from_slice(&self.scratch.block(0)[HEADER_BYTES..]);
        tail.file_id = state.file_id;
        tail.sequence = state.tail.sequence;
        tail.pointers = header.pointers;
        tail.lane = lane;
        tail.epoch = EPOCH_LONG_AGO;
        if header.index == 0 {
            tail.name_hint = header.name_hint;
        }
        Ok(())
    }

    fn plan_group(&self, slot: usize, state: &FileState, length: usize) -> Plan {
        let tail = &self.tails[slot];
        let partial = state.tail.address != 0 && usize::from(state.tail.fill) < PAYLOAD_BYTES;
        let carried = if partial {
            usize::from(state.tail.fill)
        } else {
            0
        };
        let taken = length.min(GROUP_BLOCKS_MAX * PAYLOAD_BYTES - carried);
        let blocks = (carried + taken).div_ceil(PAYLOAD_BYTES);
        let first_index = if state.tail.address == 0 {
            0
        } else {
            state.tail.index + u32::from(!partial)
        };
        let tail_lane = usize::from(state.lanes[1].run.contains(state.tail.address));
        let candidates = if tail.holds(state) && tail.epoch == self.epoch {
            // The last block is not durable, so it may be overwritten. The other lane may hold the durable copy.
            [tail.lane, tail.lane]
        } else if partial {
            // Never write to the lane that holds the acknowledged copy of the block that is rewritten.
            [1 - tail_lane, 1 - tail_lane]
        } else {
            // A durable, full last block is safe in either lane: prefer a lane with room to a new run.
            [tail.lane, 1 - tail.lane]
        };
        let fits = |lane: &usize| state.lanes[*lane].run.room() as usize >= blocks;
        let fitting = candidates.iter().copied().find(|lane| fits(lane));
        Plan {
            carried,
            blocks,
            taken,
            lane: fitting.unwrap_or(candidates[0]),
            new_run: fitting.is_none(),
            first_index,
        }
    }

    /// Fills and seals the blocks of the group in the group buffer and returns their address.
    fn build_group(&mut self, slot: usize, plan: &Plan, data: &[u8]) -> Result<u32> {
        let state = self.root.slots[slot].state;
        let lane = state.lanes[plan.lane];
        let (run, before) = if !plan.new_run {
            (lane.run, lane.before)
        } else if lane.run.is_none() {
            (state.reserve, lane.before)
        } else {
            let closed = ClosedRun {
                start: lane.run.start,
                used: lane.run.next,
            };
            (state.reserve, closed)
        };
        let first = run.start + u32::from(run.next);
        let tail = &self.tails[slot];
        let mut pointers = if plan.carried > 0 {
            tail.pointers
        } else if state.tail.address == 0 {
            [0; POINTERS]
        } else {
            pointers_after(state.tail.index, state.tail.address, &tail.pointers)
        };
        let mut rest = data;
        for position in 0..plan.blocks {
            let block = self.group.block_mut(position);
            let carried = if position == 0 { plan.carried } else { 0 };
            let payload = &mut block[HEADER_BYTES..];
            payload[..carried].copy_from_slice(&tail.payload[..carried]);
            let taken = rest.len().min(PAYLOAD_BYTES - carried);
            payload[carried..carried + taken].copy_from_slice(&rest[..taken]);
            payload[carried + taken..].fill(0);
            rest = &rest[taken..];
            let address = first + position as u32;
            let index = plan
                .first_index
                .checked_add(position as u32)
                .filter(|index| *index < u32::MAX)
                .ok_or(Error::TooLarge)?;
            let header = Header {
                file_id: state.file_id,
                sequence: self.sequence,
                address,
                index,
                fill: (carried + taken) as u16,
                group_blocks: plan.blocks as u8,
                group_position: position as u8,
                run_start: run.start,
                run_blocks: run.blocks,
                before_start: before.start,
                before_used: before.used,
                lane: plan.lane as u8,
                pointers,
                name_hint: tail.name_hint,
            };
            header.seal(block, self.seed);
            if position + 1 < plan.blocks {
                pointers = pointers_after(index, address, &pointers);
            }
        }
        debug_assert!(rest.is_empty());
        self.tails[slot].pointers = pointers;
        Ok(first)
    }

    /// Updates the state in memory for the group that was written from block `first` on.
    fn apply_group(&mut self, slot: usize, plan: &Plan, first: u32) {
        let filled = plan.carried + plan.taken;
        let fill = filled - (plan.blocks - 1) * PAYLOAD_BYTES;
        let previous = self.tails[slot].pointers[0];
        let state = &mut self.root.slots[slot].state;
        for position in 0..plan.blocks {
            let last = position + 1 == plan.blocks;
            let tail = Tail {
                address: first + position as u32,
                index: plan.first_index + position as u32,
                sequence: self.sequence,
                fill: if last {
                    fill as u16
                } else {
                    PAYLOAD_BYTES as u16
                },
                previous: if last { previous } else { 0 },
            };
            state.accept(plan.lane, tail, plan.new_run && position == 0);
            if usize::from(tail.fill) == PAYLOAD_BYTES {
                self.addresses.put(state.file_id, tail.index, tail.address);
            }
        }
        let tail = &mut self.tails[slot];
        tail.file_id = state.file_id;
        tail.sequence = self.sequence;
        tail.lane = plan.lane;
        tail.epoch = self.epoch;
        tail.payload
            .copy_from_slice(&self.group.block(plan.blocks - 1)[HEADER_BYTES..]);
        self.sequence += 1;
    }
}

impl FileState {
    /// Records one more block of the file. It is written at the next place of lane `lane`. The first block of a new run
    /// goes to the reserve, which then becomes the lane's run. A run whose blocks are all full is closed.
    pub(crate) fn accept(&mut self, lane: usize, tail: Tail, in_reserve: bool) {
        let lane = &mut self.lanes[lane];
        if in_reserve {
            if !lane.run.is_none() {
                self.closed_blocks = self.closed_blocks.saturating_add(lane.close());
            }
            lane.run = self.reserve;
            self.reserve = Run::default();
        }
        debug_assert_eq!(lane.run.start + u32::from(lane.run.next), tail.address);
        self.tail = tail;
        if usize::from(tail.fill) == PAYLOAD_BYTES {
            lane.run.next += 1;
        }
        if lane.run.next == lane.run.blocks {
            self.closed_blocks = self.closed_blocks.saturating_add(lane.close());
        }
    }
}

impl Header {
    /// Returns whether this block is the last one of the file as `state` describes it.
    pub(crate) fn belongs_at_tail(&self, state: &FileState) -> bool {
        self.file_id == state.file_id
            && self.index == state.tail.index
            && self.sequence == state.tail.sequence
            && self.fill == state.tail.fill
    }
}

/// Returns the length of the next run: a quarter of the file, or the number of blocks known to be needed, if that is
/// more. There are limits, so that small files stay small and large files allocate seldom.
fn run_blocks_wanted(state: &FileState, group_blocks: usize, bytes_left: usize) -> u32 {
    let growing = state.block_count() / 4;
    let known = bytes_left
        .div_ceil(PAYLOAD_BYTES)
        .min(RUN_BLOCKS_MAX as usize) as u32;
    growing
        .max(known)
        .max(group_blocks as u32)
        .max(1)
        .next_multiple_of(CLUSTER_BLOCKS)
        .min(RUN_BLOCKS_MAX)
}
