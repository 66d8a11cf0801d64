//! Finding the ends of the files that were being appended to when the store was left. They are beyond the tails in the
//! newest record, in the lanes of these files.
//!
//! Invariant: a group that is found was written completely after that record, and lies where an append would have put
//! it.

use base::block::BlockDevice;

use crate::block::{GROUP_BLOCKS_MAX, Header, PAYLOAD_BYTES};
use crate::error::Result;
use crate::numbers::SEQUENCE_STEP;
use crate::root::{ClosedRun, FileState, Slot, SlotKind, Tail};
use crate::space::PIECES_PER_FILE;
use crate::store::Store;

impl<D: BlockDevice> Store<D> {
    /// Finds the tails of the files that were being appended to, then frees an unfinished replacement. The order
    /// matters: making room for the freed pieces may write a record, and appends unknown to that record would be older
    /// than it.
    pub(crate) fn recover_slots(&mut self) -> Result<()> {
        let sequence_min = self.root.next_sequence;
        for slot in 0..self.root.slots.len() {
            let Slot { kind, state, .. } = self.root.slots[slot];
            if kind == SlotKind::Named {
                self.root.slots[slot].state = self.recover_tail(state, sequence_min)?;
            }
        }
        for slot in 0..self.root.slots.len() {
            let Slot { kind, state, .. } = self.root.slots[slot];
            if kind == SlotKind::Temporary {
                if !self.read_only {
                    self.make_piece_room(PIECES_PER_FILE)?;
                }
                self.free_file(&state);
                self.root.slots[slot] = Slot::default();
                self.recovery.replacements_undone += 1;
            }
        }
        Ok(())
    }

    /// Finds the last append after `state` was recorded.
    ///
    /// This is the complete group with the highest number from which the links lead back, block by block, to the
    /// recorded tail. Every acknowledged append is such a group or lies before one. A group is started only when the
    /// previous one is durable, except within one long append, of which a prefix may remain. The last block of an
    /// earlier group may be gone, because the group after the next overwrites it; the way back uses only full blocks.
    fn recover_tail(&mut self, state: FileState, sequence_min: u64) -> Result<FileState> {
        let found = self.scan_lanes(&state, sequence_min)?;
        let mut firsts: Vec<&Header> = found
            .iter()
            .filter(|header| header.group_position == 0)
            .collect();
        firsts.sort_by_key(|header| std::cmp::Reverse(header.sequence));
        for first in firsts {
            let Some(mut chain) = whole_group(first, &found) else {
                continue;
            };
            if !link_back(&state, &mut chain, &found) {
                continue;
            }
            if let Some(next) = accept_chain(state, &chain) {
                self.sequence = self.sequence.max(first.sequence + SEQUENCE_STEP);
                self.recovery.tails_advanced += 1;
                return Ok(next);
            }
        }
        Ok(state)
    }

    /// Returns the blocks of the file in its lanes that are newer than the record. Being newer than the file's recorded
    /// tail is not enough. A run may hold blocks of this same file from before a cut that lost the record which gave it
    /// the run. Those blocks were never acknowledged.
    fn scan_lanes(&mut self, state: &FileState, sequence_min: u64) -> Result<Vec<Header>> {
        let mut found = Vec::new();
        for run in [state.lanes[0].run, state.lanes[1].run, state.reserve] {
            let mut offset = u32::from(run.next);
            'run: while offset < u32::from(run.blocks) {
                let count = (u32::from(run.blocks) - offset).min(GROUP_BLOCKS_MAX as u32);
                self.read_neighbours(u64::from(run.start + offset), count as usize)?;
                for number in 0..count {
                    let address = run.start + offset + number;
                    let block = self.neighbours.block(number as usize);
                    let newer = Header::open(block, address, self.seed).filter(|header| {
                        header.file_id == state.file_id && header.sequence >= sequence_min
                    });
                    match newer {
                        Some(header) => found.push(header),
                        // Lanes are filled in order: the following blocks were not written since, or belong to an
                        // incomplete group.
                        None => break 'run,
                    }
                }
                offset += count;
            }
        }
        Ok(found)
    }
}

/// Returns the blocks of the group that `first` begins, last one first, if all are there and linked.
fn whole_group<'a>(first: &'a Header, found: &'a [Header]) -> Option<Vec<&'a Header>> {
    let mut blocks = vec![first];
    for position in 1..first.group_blocks {
        let before = blocks[blocks.len() - 1];
        let next = found.iter().find(|header| {
            header.sequence == first.sequence
                && header.group_position == position
                && header.group_blocks == first.group_blocks
                && header.index == before.index + 1
                && header.pointers[0] == before.address
        })?;
        if usize::from(before.fill) < PAYLOAD_BYTES {
            return None;
        }
        blocks.push(next);
    }
    blocks.reverse();
    Some(blocks)
}

/// Extends `chain`, whose last element is a group's first block, back to the recorded tail.
fn link_back<'a>(state: &FileState, chain: &mut Vec<&'a Header>, found: &'a [Header]) -> bool {
    let tail = state.tail;
    let partial = tail.address != 0 && usize::from(tail.fill) < PAYLOAD_BYTES;
    // The index of the first block that may still be overwritten, and the address of the block before it.
    let (start, previous) = match (tail.address, partial) {
        (0, _) => (0, 0),
        (_, true) => (tail.index, tail.previous),
        (address, false) => (tail.index + 1, address),
    };
    while let Some(block) = chain.last().copied() {
        if block.index == start {
            return start == 0 || block.pointers[0] == previous;
        }
        let before = found.iter().find(|header| {
            header.address == block.pointers[0]
                && header.index + 1 == block.index
                && header.sequence <= block.sequence
                && usize::from(header.fill) == PAYLOAD_BYTES
        });
        match before {
            Some(header) if header.index >= start => chain.push(header),
            _ => return false,
        }
    }
    false
}

/// Returns the state after all blocks of the chain, whose last block is first; `None` if they do not lie where appends
/// put them.
fn accept_chain(mut state: FileState, chain: &[&Header]) -> Option<FileState> {
    for header in chain.iter().rev() {
        let number = usize::from(header.lane);
        let lane = state.lanes[number];
        let in_reserve =
            state.reserve.contains(header.address) && !lane.run.contains(header.address);
        let run = if in_reserve { state.reserve } else { lane.run };
        // The block's header tells its run and the run before it.
        let before = if in_reserve && !lane.run.is_none() {
            ClosedRun {
                start: lane.run.start,
                used: lane.run.next,
            }
        } else {
            lane.before
        };
        let said = ClosedRun {
            start: header.before_start,
            used: header.before_used,
        };
        // A run is given up for the reserve only if it holds data and has too little room for another group.
        let may_close = !in_reserve
            || lane.run.is_none()
            || (lane.run.next > 0 && lane.run.room() < GROUP_BLOCKS_MAX as u32);
        if run.is_none()
            || run.start + u32::from(run.next) != header.address
            || header.run_start != run.start
            || header.run_blocks != run.blocks
            || said != before
            || !may_close
        {
            return None;
        }
        let tail = Tail {
            address: header.address,
            index: header.index,
            sequence: header.sequence,
            fill: header.fill,
            previous: header.pointers[0],
        };
        state.accept(number, tail, in_reserve);
    }
    Some(state)
}
