//! Opening a store after anything: a clean close, a killed process, a power cut at any point.
//!
//! Recovery reads the two commit records, puts the table blocks they carry in place, and looks for appends
//! beyond the recorded tails in the lanes of the files that were being appended to. All it writes is those
//! table blocks and one new record; so it may itself be interrupted anywhere and run again.

use base::block::{BlockBuffer, BlockDevice};

use crate::block::{GROUP_BLOCKS_MAX, Header, PAYLOAD_BYTES};
use crate::bytes::get_u32;
use crate::error::{Error, Part, Result};
use crate::layout::{Layout, RECORD_BLOCKS, RUN_BLOCKS_MAX};
use crate::root::{FileState, ImageReference, Root, SLOTS_MAX, Slot, SlotKind, Tail};
use crate::store::Store;
use crate::table::Bucket;

/// Added to group numbers at each opening, more than one record's life can use.
const SEQUENCE_STEP: u64 = 1 << 24;

// Before a file needs a record it can fill what is left of one run (too little for a group), another run and
// a reserve, with appends of a byte each; and so can every file that has a slot.
const _: () = assert!(
    SLOTS_MAX as u64
        * (GROUP_BLOCKS_MAX as u64 - 1 + 2 * RUN_BLOCKS_MAX as u64)
        * PAYLOAD_BYTES as u64
        <= SEQUENCE_STEP
);

/// A record that was found, with its table block.
struct Record {
    root: Root,
    /// Every copy of it is intact.
    whole: bool,
    image: Option<(ImageReference, Option<Vec<u8>>)>,
}

impl<D: BlockDevice> Store<D> {
    pub(crate) fn recover(&mut self) -> Result<()> {
        if !self.read_only {
            // After a killed process or a failed write the device may still hold unflushed writes. What is
            // read below must be durable before a record goes over the older place on the strength of it.
            self.flush_device()?;
        }
        let mut records = [self.read_record(0)?, self.read_record(1)?];
        // Newest first.
        records.sort_by_key(|record| {
            std::cmp::Reverse(
                record
                    .as_ref()
                    .map(|record| record.root.record_sequence + 1),
            )
        });
        let [newest, other] = records;
        let newest = match newest {
            Some(record) if self.is_complete(&record)? => record,
            // A record whose table block is torn was never acknowledged; the one before it counts.
            Some(_) => match other {
                Some(record) => return self.recover_from(record, None),
                None => return Err(no_record()),
            },
            None => return Err(no_record()),
        };
        self.recover_from(newest, other)
    }

    fn recover_from(&mut self, newest: Record, other: Option<Record>) -> Result<()> {
        // The table block of the record before is in place unless the cut came before the next barrier;
        // putting it there again is harmless, and the newest record's goes last.
        // Its table block is older than one of the same bucket in the newest record, wherever that stands.
        let bucket = |record: &Record| record.image.as_ref().map(|(image, _)| image.bucket);
        let before = other.filter(|other| {
            other.root.record_sequence + 1 == newest.root.record_sequence
                && (bucket(other).is_none() || bucket(other) != bucket(&newest))
        });
        for record in before.iter().chain([&newest]) {
            if let Some((reference, Some(bytes))) = &record.image {
                self.replay(*reference, bytes)?;
            }
        }
        let newest_is_whole = newest.whole;
        self.root = newest.root;
        self.sequence = self.root.next_sequence + SEQUENCE_STEP;
        self.recover_slots()?;
        if !self.read_only {
            self.root.mounts += 1;
            self.root.clean = false;
            self.commit()?;
            if !newest_is_whole {
                // Write over the place that a power cut has left with one good copy.
                self.commit()?;
            }
        }
        Ok(())
    }

    fn replay(&mut self, reference: ImageReference, bytes: &[u8]) -> Result<()> {
        let address = self.layout.bucket_block(reference.bucket);
        // An older image that a read-only store holds in memory must not hide what is in place.
        let mut same = !self.is_overlaid(reference.bucket);
        for copy in 0..2 {
            let read = self.device.read(address + copy, self.scratch.block_mut(1));
            same &= read.is_ok() && self.scratch.block(1) == bytes;
        }
        if !same {
            self.recovery.table_blocks_replayed += 1;
            self.replay_image(reference.bucket, bytes)?;
        }
        Ok(())
    }

    /// The record in place `place`, from whichever copy of its root is intact.
    fn read_record(&mut self, place: u64) -> Result<Option<Record>> {
        let mut blocks = BlockBuffer::zeroed(RECORD_BLOCKS as usize);
        let address = self.layout.record_block(place);
        if self.device.read(address, &mut blocks).is_err() {
            // One bad sector: the other copy of the root stands in. With two, what is left may be of an
            // older record than the one that cannot be read; that must not pass for the state of the store.
            let mut failures = 0;
            for block in 0..RECORD_BLOCKS as usize - 1 {
                if let Err(error) = self
                    .device
                    .read(address + block as u64, blocks.block_mut(block))
                {
                    blocks.block_mut(block).fill(0);
                    failures += 1;
                    if failures > 1 {
                        return Err(error.into());
                    }
                }
            }
        }
        let mut best: Option<Record> = None;
        for copy in 0..3 {
            let Some((root, image)) = Root::decode(blocks.block(copy), &self.layout) else {
                continue;
            };
            // With a table block the record is root, block, root; without one root, root.
            if (copy == 1 && image.is_some()) || (copy == 2 && image.is_none()) {
                continue;
            }
            if root.record_sequence & 1 != place {
                continue;
            }
            let newer = best
                .as_ref()
                .is_none_or(|best| best.root.record_sequence < root.record_sequence);
            if newer {
                let image = image.map(|reference| {
                    let bytes = blocks.block(1);
                    (
                        reference,
                        is_image(bytes, reference, &self.layout).then(|| bytes.to_vec()),
                    )
                });
                best = Some(Record {
                    root,
                    whole: false,
                    image,
                });
            }
        }
        if let Some(best) = &mut best {
            let last = if best.image.is_some() { 2 } else { 1 };
            let same = blocks.block(0) == blocks.block(last);
            best.whole = same && !matches!(best.image, Some((_, None)));
        }
        Ok(best)
    }

    /// Whether the record is whole: its table block is intact in the record, or in its place already.
    fn is_complete(&mut self, record: &Record) -> Result<bool> {
        let Some((reference, None)) = &record.image else {
            return Ok(true);
        };
        let address = self.layout.bucket_block(reference.bucket);
        for copy in 0..2 {
            let read = self.device.read(address + copy, self.scratch.block_mut(1));
            if read.is_ok() && is_image(self.scratch.block(1), *reference, &self.layout) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds the tails of the files that were being appended to; then frees an unfinished replacement. In
    /// this order, because making room for the freed pieces may write a record, and appends that it does not
    /// know would be older than it.
    fn recover_slots(&mut self) -> Result<()> {
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
                    self.make_piece_room_to_undo()?;
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
    /// It is the whole group with the highest number from which the links lead back, block by block, to the
    /// recorded tail. Whatever was acknowledged is such a group or behind one: a group is begun only when
    /// the one before it is durable, except within one long append, of which a prefix may remain. The last
    /// block of an earlier group may be gone, because the group after the next is written over it; only
    /// full blocks are on the way back.
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

    /// Blocks of the file in its lanes that are newer than the record. Newer than the file's recorded tail
    /// is not enough: a run may hold blocks of this very file from before a cut that lost the record which
    /// gave it the run, and those were never acknowledged.
    fn scan_lanes(&mut self, state: &FileState, sequence_min: u64) -> Result<Vec<Header>> {
        let mut found = Vec::new();
        for run in [state.lanes[0], state.lanes[1], state.reserve] {
            for offset in run.next..run.blocks {
                let header = self.read_data_block(run.start + u32::from(offset))?;
                let newer = header.filter(|header| {
                    header.file_id == state.file_id && header.sequence >= sequence_min
                });
                match newer {
                    Some(header) => found.push(header),
                    // Lanes are filled in order: what follows was not written since, or belongs to a group
                    // that is not whole.
                    None => break,
                }
            }
        }
        Ok(found)
    }
}

/// Whether this is the table block that a record carries.
pub(crate) fn is_image(bytes: &[u8], reference: ImageReference, layout: &Layout) -> bool {
    Bucket::open(bytes, reference.bucket, layout).is_some()
        && get_u32(bytes, 4) == reference.checksum
}

fn no_record() -> Error {
    Error::Damaged {
        part: Part::Record,
        block: 4,
        offset: None,
    }
}

/// The blocks of the group that `first` begins, last one first, if all are there and linked.
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
    // Index of the first block that is not durable for good, and the address of the one before it.
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

/// The state after all blocks of the chain, last one first in it; `None` if they do not lie where appends
/// put them.
fn accept_chain(mut state: FileState, chain: &[&Header]) -> Option<FileState> {
    for header in chain.iter().rev() {
        let lane = if state.lanes[0].contains(header.address) {
            0
        } else if state.lanes[1].contains(header.address) {
            1
        } else {
            // The reserve takes an empty lane.
            state.lanes.iter().position(|lane| lane.is_none())?
        };
        let run = if state.lanes[lane].is_none() {
            state.reserve
        } else {
            state.lanes[lane]
        };
        if run.is_none()
            || run.start + u32::from(run.next) != header.address
            || run.next == run.blocks
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
        state.accept(lane, tail);
    }
    Some(state)
}
