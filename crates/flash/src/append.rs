//! Appending: one contiguous write and one barrier, whatever the file's length and the store's fill.
//!
//! A file being appended to owns two lanes, runs of contiguous blocks that its appends take in turn. An
//! append rewrites the partly filled last block together with the new ones, always in the lane that does not
//! hold the durable copy of that block; so no write can harm acknowledged bytes, and the superseded copy is
//! where the next but one append goes. All blocks of one append (a group) carry one number, and recovery
//! believes a group only whole: the group is atomic without any other write.

use base::block::BlockDevice;

use crate::block::{
    GROUP_BLOCKS_MAX, HEADER_BYTES, Header, PAYLOAD_BYTES, POINTERS, Pointers, pointers_after,
};
use crate::error::{Error, Part, Result};
use crate::layout::{CLUSTER_BLOCKS, RUN_BLOCKS_MAX};
use crate::root::{FileState, Run, SLOTS_MAX, Slot, SlotKind, Tail};
use crate::space::PIECES_PER_FILE;
use crate::store::{FileHandle, Store};
use crate::table::set_entry_state;

/// Appends of up to this many bytes are atomic against a power cut.
pub const APPEND_ATOMIC_BYTES_MAX: usize = (GROUP_BLOCKS_MAX - 1) * PAYLOAD_BYTES;

/// The last block of an active file, kept in memory because the next append rewrites it.
pub(crate) struct TailCache {
    file_id: u64,
    sequence: u64,
    pub(crate) pointers: Pointers,
    pub(crate) payload: Box<[u8; PAYLOAD_BYTES]>,
    /// The lane that the last append went to.
    lane: usize,
}

impl TailCache {
    pub(crate) fn new() -> Self {
        Self {
            file_id: 0,
            sequence: 0,
            pointers: [0; POINTERS],
            payload: Box::new([0; PAYLOAD_BYTES]),
            lane: 0,
        }
    }

    pub(crate) fn holds(&self, state: &FileState) -> bool {
        self.file_id == state.file_id
            && self.sequence == state.tail.sequence
            && state.tail.address != 0
    }

    pub(crate) fn forget(&mut self) {
        self.file_id = 0;
        self.lane = 0;
    }
}

/// A group that has been planned: where its blocks go and how the file looks afterwards.
struct Plan {
    /// Payload bytes carried over from the partly filled tail.
    carried: usize,
    blocks: usize,
    /// Blocks that go to the lane; the rest goes to the reserve, which then becomes the lane.
    in_lane: usize,
    lane: usize,
    first_index: u32,
}

impl<D: BlockDevice> Store<D> {
    /// Appends `data`; when this returns it is durable.
    ///
    /// Up to [`APPEND_ATOMIC_BYTES_MAX`] bytes are atomic against a power cut; of a longer append a cut may
    /// leave a prefix. On [`Error::Full`] the same holds: a longer append may have added a prefix.
    ///
    /// # Errors
    /// [`Error::StaleHandle`], [`Error::Full`], [`Error::Damaged`] when the file's last block is unreadable,
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn append(&mut self, file: FileHandle, data: &[u8]) -> Result<()> {
        self.begin_change()?;
        let index = self.open_index(file)?;
        if data.is_empty() {
            return Ok(());
        }
        let state = self.state_of(index);
        self.check_space_for(&state, data.len())?;
        let slot = match self.root.slot_of(state.file_id) {
            Some(slot) => slot,
            None => self.activate(index)?,
        };
        self.append_to_slot(slot, data)
    }

    /// Appends to the file of an active slot, group by group, and makes it durable.
    pub(crate) fn append_to_slot(&mut self, slot: usize, data: &[u8]) -> Result<()> {
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
            // A device that fails now is worse news than a full store.
            self.finish()?;
        }
        result
    }

    /// Makes durable whatever the call has written, and commits an eviction that no record carried yet.
    fn finish(&mut self) -> Result<()> {
        if self.image_pending.is_some() || self.root_changed {
            self.write_record()?;
        }
        if self.unflushed {
            self.barrier()
        } else {
            Ok(())
        }
    }

    /// Refuses early what cannot fit, so that a full store is refused whole.
    pub(crate) fn check_space_for(&self, state: &FileState, bytes: usize) -> Result<()> {
        let end = state.length() + bytes as u64;
        let blocks_after = end.div_ceil(PAYLOAD_BYTES as u64);
        if blocks_after > self.layout.data_blocks() {
            return Err(Error::Full);
        }
        let new = blocks_after - u64::from(state.block_count());
        let owned = state
            .lanes
            .iter()
            .map(|lane| u64::from(lane.room()))
            .sum::<u64>();
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
        // Until a record names the slot, recovery would look for the file's tail in the table only.
        self.root_changed = true;
        Ok(slot)
    }

    /// A slot that no file uses. The record that must follow carries the table block of an evicted file.
    pub(crate) fn free_slot(&mut self) -> Result<usize> {
        if let Some(slot) = self
            .root
            .slots
            .iter()
            .position(|slot| slot.kind == SlotKind::Free)
        {
            return Ok(slot);
        }
        self.make_piece_room(PIECES_PER_FILE)?;
        // A file whose table block is damaged keeps its slot; another one goes.
        let mut order: [usize; SLOTS_MAX] = std::array::from_fn(|slot| slot);
        order.sort_unstable_by_key(|slot| self.slot_used[*slot]);
        let mut error = Error::TooManyOpenFiles;
        for slot in order.into_iter().take(2) {
            match self.evict(slot) {
                Ok(()) => return Ok(slot),
                Err(found) => {
                    error = found;
                    // The next call tries others.
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
        self.free_plain(state.reserve);
        state.reserve = Run::default();
        self.begin_image(bucket, 1);
        set_entry_state(self.image.block_mut(0), entry, &state, &self.layout);
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

    /// Appends as much of `data` as fits one group; returns how much. Not yet durable.
    fn append_group(&mut self, slot: usize, data: &[u8]) -> Result<usize> {
        let state = self.root.slots[slot].state;
        self.load_tail(slot, &state)?;
        let (plan, taken) = self.plan_group(slot, &state, data.len());
        let spills = plan.blocks > plan.in_lane;
        let mut record = self.image_pending.is_some() || self.root_changed;
        if spills && state.reserve.is_none() {
            if self.unflushed {
                // What this call wrote before must be durable before a record may describe it.
                self.barrier()?;
            }
            let missing = plan.blocks - plan.in_lane;
            let want = run_blocks_wanted(&state, missing, data.len());
            self.root.slots[slot].state.reserve = self.allocate(want)?;
            record = true;
        }
        if record {
            self.write_record()?;
        }
        self.build_group(slot, &plan, &data[..taken])?;
        self.write_planned(slot, &plan)?;
        self.apply_group(slot, &plan, taken);
        Ok(taken)
    }

    /// Brings the file's last block into memory.
    fn load_tail(&mut self, slot: usize, state: &FileState) -> Result<()> {
        if state.tail.address == 0 || self.tails[slot].holds(state) {
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
        let lane = usize::from(state.lanes[1].contains(state.tail.address));
        let tail = &mut self.tails[slot];
        tail.payload
            .copy_from_slice(&self.scratch.block(0)[HEADER_BYTES..]);
        tail.file_id = state.file_id;
        tail.sequence = state.tail.sequence;
        tail.pointers = header.pointers;
        tail.lane = lane;
        Ok(())
    }

    fn plan_group(&self, slot: usize, state: &FileState, length: usize) -> (Plan, usize) {
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
        let lane = if partial {
            // Never the lane that holds the acknowledged copy of the block that is rewritten.
            usize::from(!state.lanes[1].contains(state.tail.address))
        } else {
            // A durable, full last block is safe in either lane: rather the one with room than a new run.
            // Within a long append it is not: the other lane may hold the copy that was acknowledged.
            let lane = self.tails[slot].lane;
            let turn =
                state.lanes[lane].is_none() && !state.lanes[1 - lane].is_none() && !self.unflushed;
            if turn { 1 - lane } else { lane }
        };
        let in_lane = blocks.min(state.lanes[lane].room() as usize);
        (
            Plan {
                carried,
                blocks,
                in_lane,
                lane,
                first_index,
            },
            taken,
        )
    }

    /// Fills and seals the blocks of the group in the group buffer.
    fn build_group(&mut self, slot: usize, plan: &Plan, data: &[u8]) -> Result<()> {
        let state = self.root.slots[slot].state;
        let run = state.lanes[plan.lane];
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
            let address = if position < plan.in_lane {
                run.start + u32::from(run.next) + position as u32
            } else {
                state.reserve.start + (position - plan.in_lane) as u32
            };
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
                closed_start: state.closed_start,
                closed_blocks: state.closed_blocks,
                pointers,
            };
            header.seal(block, self.seed);
            if position + 1 < plan.blocks {
                pointers = pointers_after(index, address, &pointers);
            }
        }
        debug_assert!(rest.is_empty());
        self.tails[slot].pointers = pointers;
        Ok(())
    }

    fn write_planned(&mut self, slot: usize, plan: &Plan) -> Result<()> {
        let Slot { state, .. } = self.root.slots[slot];
        let run = state.lanes[plan.lane];
        if plan.in_lane > 0 {
            self.write_group(run.start + u32::from(run.next), 0, plan.in_lane)?;
        }
        if plan.blocks > plan.in_lane {
            self.write_group(
                state.reserve.start,
                plan.in_lane,
                plan.blocks - plan.in_lane,
            )?;
        }
        Ok(())
    }

    /// Changes the state in memory to what the group made of it.
    fn apply_group(&mut self, slot: usize, plan: &Plan, taken: usize) {
        let filled = plan.carried + taken;
        let fill = filled - (plan.blocks - 1) * PAYLOAD_BYTES;
        let previous = self.tails[slot].pointers[0];
        let state = &mut self.root.slots[slot].state;
        for position in 0..plan.blocks {
            let last = position + 1 == plan.blocks;
            let address = if position < plan.in_lane {
                let run = state.lanes[plan.lane];
                run.start + u32::from(run.next)
            } else {
                // A full lane was closed and left its place empty; the reserve takes it.
                let run = if state.lanes[plan.lane].is_none() {
                    state.reserve
                } else {
                    state.lanes[plan.lane]
                };
                run.start + u32::from(run.next)
            };
            let tail = Tail {
                address,
                index: plan.first_index + position as u32,
                sequence: self.sequence,
                fill: if last {
                    fill as u16
                } else {
                    PAYLOAD_BYTES as u16
                },
                previous: if last { previous } else { 0 },
            };
            state.accept(plan.lane, tail);
            if usize::from(tail.fill) == PAYLOAD_BYTES {
                self.addresses.put(state.file_id, tail.index, tail.address);
            }
        }
        let tail = &mut self.tails[slot];
        tail.file_id = state.file_id;
        tail.sequence = self.sequence;
        tail.lane = plan.lane;
        tail.payload
            .copy_from_slice(&self.group.block(plan.blocks - 1)[HEADER_BYTES..]);
        self.sequence += 1;
    }
}

impl FileState {
    /// Takes note of one more block of the file, written at the next place of lane `lane` or, when that lane
    /// is empty, of the reserve, which becomes the lane. A lane that is full for good is closed.
    pub(crate) fn accept(&mut self, lane: usize, tail: Tail) {
        if self.lanes[lane].is_none() {
            self.lanes[lane] = self.reserve;
            self.reserve = Run::default();
        }
        let run = &mut self.lanes[lane];
        debug_assert_eq!(run.start + u32::from(run.next), tail.address);
        self.tail = tail;
        if usize::from(tail.fill) == PAYLOAD_BYTES {
            run.next += 1;
        }
        if run.next == run.blocks {
            self.closed_start = run.start;
            self.closed_blocks = u32::from(run.blocks);
            self.closed_total = self.closed_total.saturating_add(u32::from(run.blocks));
            *run = Run::default();
        }
    }
}

impl Header {
    /// Whether this block is the last one of the file as `state` describes it.
    pub(crate) fn belongs_at_tail(&self, state: &FileState) -> bool {
        self.file_id == state.file_id
            && self.index == state.tail.index
            && self.sequence == state.tail.sequence
            && self.fill == state.tail.fill
    }
}

/// Length of the next run: a quarter of the file, within limits, so that small files stay small and large
/// ones allocate seldom; or what is known to be needed, if that is more.
fn run_blocks_wanted(state: &FileState, missing: usize, bytes_left: usize) -> u32 {
    let growing = state.block_count() / 4;
    let known = bytes_left
        .div_ceil(PAYLOAD_BYTES)
        .min(RUN_BLOCKS_MAX as usize) as u32;
    growing
        .max(known)
        .max(missing as u32)
        .max(1)
        .next_multiple_of(CLUSTER_BLOCKS)
        .min(RUN_BLOCKS_MAX)
}
