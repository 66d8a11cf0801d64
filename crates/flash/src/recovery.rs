//! Opening a store after anything: a clean close, a killed process, a power cut at any point.
//!
//! Recovery reads the commit records, puts the blocks they carry in place, and looks for appends
//! beyond the recorded tails in the lanes of the files that were being appended to. All it writes is those
//! blocks and one new record; so it may itself be interrupted anywhere and run again.

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice};

use crate::block::{GROUP_BLOCKS_MAX, Header, PAYLOAD_BYTES};
use crate::bytes::get_u32;
use crate::error::{Error, Part, Result};
use crate::layout::{CLUSTER_BLOCKS, Layout, RUN_BLOCKS_MAX, TABLE_COPIES};
use crate::record::{TRUNK_PLACE, read_through};
use crate::root::{
    COUNTER_END, ClosedRun, FILE_ID_END, FileState, IMAGES_MAX, ImageReference, ImageReferences,
    Root, SLOTS_MAX, Slot, SlotKind, Tail,
};
use crate::space::{PIECES_PER_FILE, open_trunk, trunk_address};
use crate::store::{Store, is_readable};
use crate::table::Bucket;

/// Added to group numbers at each opening, more than one record's life can use.
pub(crate) const SEQUENCE_STEP: u64 = 1 << 24;

// Before a file needs a record it can fill what is left of one run (too little for a group), another run and
// a reserve, with appends of a byte each; and so can every file that has a slot.
const _: () = assert!(
    SLOTS_MAX as u64
        * (GROUP_BLOCKS_MAX as u64 - 1 + 2 * RUN_BLOCKS_MAX as u64)
        * PAYLOAD_BYTES as u64
        <= SEQUENCE_STEP
);

/// Added to the identity of the next file at each opening, more than are given out between two. When damage has taken
/// the newest record, the one before it does not know which were given out since; and two files of one identity
/// would be read as each other.
const FILE_ID_STEP: u64 = 1 << 24;

/// A record that was found, with its images.
struct Record {
    root: Root,
    images: ImageReferences,
    /// The images as the record holds them; `None` for one that is torn.
    contents: [Option<Vec<u8>>; IMAGES_MAX],
    /// The list that the record spills is intact, if it spills one.
    trunk_intact: bool,
    /// The list, if its own block is torn and the copy before it is not.
    list: Option<Vec<u8>>,
    /// Every copy of everything is intact.
    whole: bool,
}

impl<D: BlockDevice> Store<D> {
    pub(crate) fn recover(&mut self) -> Result<()> {
        if !self.read_only {
            // After a killed process or a failed write the device may still hold unflushed writes. What is
            // read below must be durable before a record goes over the older place on the strength of it.
            self.flush_device()?;
        }
        let mut records = Vec::new();
        for place in 0..2 {
            let address = self.layout.record_block(place);
            if let Some(record) = self.read_record(address, IMAGES_MAX + 2)?
                && !record.root.spilled
                && u64::from(record.root.place) == place
            {
                records.push(record);
            }
        }
        // A record that spills a list stands in the cluster that the record before it has announced.
        for before in 0..records.len() {
            let root = &records[before].root;
            let (announced, sequence) = (root.announced, root.record_sequence + 1);
            if announced != 0
                && let Some(record) =
                    self.read_record(u64::from(announced), CLUSTER_BLOCKS as usize)?
                && record.root.spilled
                && record.root.trunk_head == announced
                && record.root.record_sequence == sequence
            {
                records.push(record);
            }
        }
        // Newest first. A record with an image that is torn was never acknowledged; the one before it counts.
        records.sort_by_key(|record| std::cmp::Reverse(record.root.record_sequence));
        while !records.is_empty() {
            let mut newest = records.remove(0);
            if self.is_complete(&mut newest)? {
                return self.recover_from(newest, records);
            }
        }
        Err(no_record())
    }

    fn recover_from(&mut self, newest: Record, others: Vec<Record>) -> Result<()> {
        // The images of the record before are in place unless the cut came before the next barrier; putting
        // them there again is harmless, and those of the newest record go last. One of the same block in the
        // newest record is younger, wherever that stands.
        let sequence = newest.root.record_sequence;
        let before = others
            .into_iter()
            .find(|other| other.root.record_sequence + 1 == sequence);
        let mut written = false;
        for record in before.iter().chain([&newest]) {
            for (reference, content) in record.images.as_slice().iter().zip(&record.contents) {
                let is_newest = record.root.record_sequence == sequence;
                let again = newest
                    .images
                    .as_slice()
                    .iter()
                    .any(|other| other.address == reference.address);
                if let Some(bytes) = content
                    && (is_newest || !again)
                {
                    written |= self.replay(*reference, bytes)?;
                }
            }
        }
        if let Some(list) = newest.list.as_ref().filter(|_| !self.read_only) {
            let address = trunk_address(newest.root.trunk_head);
            self.pair.block_mut(0).copy_from_slice(list);
            if let Err(error) = self.device.write(address, &self.pair[..BLOCK_BYTES]) {
                return Err(self.fail(error));
            }
            written = true;
        }
        if written {
            self.flush_device()?;
        }
        let newest_is_whole = newest.whole && !newest.root.spilled;
        self.root = newest.root;
        self.sequence = self.root.next_sequence + SEQUENCE_STEP;
        self.recover_slots()?;
        if !self.read_only {
            self.root.clean = false;
            // A store that was just formatted has no record before its only one.
            if self.root.mounts > 0 {
                self.root.next_file_id =
                    (self.root.next_file_id + FILE_ID_STEP).min(FILE_ID_END - 1);
            }
            self.root.mounts = (self.root.mounts + 1).min(COUNTER_END - 1);
            // What a cut has left of the record after this one must pass neither for a part of the next nor for the
            // one before it.
            self.root.record_sequence += 2;
            // Over the places that a power cut may have left with one good copy; so neither record spills a list.
            self.keep_something_plain();
            for _ in 0..if newest_is_whole { 1 } else { 2 } {
                self.root.spilled = true;
                self.commit()?;
            }
        }
        Ok(())
    }

    /// Puts a block from a record in its place, unless it or something younger stands there; in memory only when
    /// the store is read-only. Returns whether the device was written.
    fn replay(&mut self, reference: ImageReference, bytes: &[u8]) -> Result<bool> {
        let address = u64::from(reference.address);
        let is_table = self.layout.bucket_at(address).is_some();
        // An older image that a read-only store holds in memory must not hide what is in place.
        let mut same = !self.is_overlaid(address);
        let copies = if is_table { TABLE_COPIES } else { 1 };
        for copy in 0..copies {
            let read = self.device.read(address + copy, self.scratch.block_mut(1));
            same &= read.is_ok() && self.scratch.block(1) == bytes;
            if !is_table && read.is_ok() && self.is_superseded(reference.address, bytes) {
                return Ok(false);
            }
        }
        if same {
            return Ok(false);
        }
        self.recovery.blocks_replayed += 1;
        if self.read_only {
            self.put_overlay(reference.address, bytes.to_vec());
            return Ok(false);
        }
        for copy in 0..copies as usize {
            self.pair.block_mut(copy).copy_from_slice(bytes);
        }
        let count = copies as usize * BLOCK_BYTES;
        match self.device.write(address, &self.pair[..count]) {
            Ok(()) => Ok(true),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Whether the scratch buffer holds, at a data image's place, a block of a later append: the last block of a
    /// file moves, and its old place is written over without a record.
    fn is_superseded(&self, address: u32, image: &[u8]) -> bool {
        let there = Header::open(self.scratch.block(1), address, self.seed);
        let image = Header::open(image, address, self.seed);
        match (there, image) {
            (Some(there), Some(image)) => {
                there.file_id == image.file_id && there.sequence > image.sequence
            }
            _ => false,
        }
    }

    /// The record that begins at `address`, from whichever copy of its root is intact.
    fn read_record(&mut self, address: u64, blocks_max: usize) -> Result<Option<Record>> {
        let mut blocks = BlockBuffer::zeroed(blocks_max);
        if self.device.read(address, &mut blocks).is_err() {
            // One bad sector: the other copy of the root stands in. With two, what is left may be of an
            // older record than the one that cannot be read; that must not pass for the state of the store.
            let mut failures = 0;
            for block in 0..blocks_max {
                let read = self
                    .device
                    .read(address + block as u64, blocks.block_mut(block));
                if let Err(error) = read {
                    blocks.block_mut(block).fill(0);
                    failures += 1;
                    if failures > 1 {
                        return Err(error.into());
                    }
                }
            }
        }
        let mut best: Option<(Root, ImageReferences)> = None;
        for copy in 0..blocks_max {
            let Some((root, images)) = Root::decode(blocks.block(copy), &self.layout) else {
                continue;
            };
            let last = last_block(&root, &images);
            if copy != 0 && copy != last {
                continue;
            }
            let newer = best
                .as_ref()
                .is_none_or(|(best, _)| best.record_sequence < root.record_sequence);
            if newer {
                best = Some((root, images));
            }
        }
        let Some((root, images)) = best else {
            return Ok(None);
        };
        let mut contents = [const { None }; IMAGES_MAX];
        for (index, reference) in images.as_slice().iter().enumerate() {
            let bytes = blocks.block(1 + index);
            contents[index] = is_image(bytes, *reference, &self.layout).then(|| bytes.to_vec());
        }
        let is_list = |place: usize| {
            let block = blocks.block(place);
            open_trunk(block, root.trunk_head, self.seed).is_some()
                && get_u32(block, 4) == root.spilled_checksum
        };
        let list_again = root.spilled && images.len() == 0 && is_list(TRUNK_PLACE - 1);
        let list_whole = !root.spilled || is_list(TRUNK_PLACE);
        let trunk_intact = list_whole || list_again;
        let list = (list_again && !list_whole).then(|| blocks.block(TRUNK_PLACE - 1).to_vec());
        let last = last_block(&root, &images);
        let images_whole = contents
            .iter()
            .take(images.len())
            .all(std::option::Option::is_some);
        Ok(Some(Record {
            whole: blocks.block(0) == blocks.block(last) && images_whole && list_whole,
            root,
            images,
            contents,
            trunk_intact,
            list,
        }))
    }

    /// Whether the record counts: each image is intact in the record, or in its place already, and so is the list that
    /// it spills. Something may be missing if a table block in its place bears the record's number: it was written
    /// there after the record was durable, so what is missing is damage, not a cut.
    fn is_complete(&mut self, record: &mut Record) -> Result<bool> {
        let (mut complete, mut was_durable) = (record.trunk_intact, false);
        for index in 0..record.images.len() {
            let reference = record.images.as_slice()[index];
            let address = u64::from(reference.address);
            let is_table = self.layout.bucket_at(address).is_some();
            let mut in_place = false;
            for copy in 0..if is_table { TABLE_COPIES } else { 1 } {
                let read = self.device.read(address + copy, self.scratch.block_mut(1));
                in_place |=
                    read.is_ok() && is_image(self.scratch.block(1), reference, &self.layout);
            }
            was_durable |= is_table && in_place;
            complete &= in_place || record.contents[index].is_some();
        }
        if !complete && was_durable && !record.trunk_intact {
            // The pieces of the list are lost until a repair finds them; those spilled before are not.
            self.free_chains_broken += 1;
            record.root.trunk_head = record.root.spilled_next;
            record.root.trunk_count = record.root.trunk_count.saturating_sub(1);
        }
        Ok(complete || was_durable)
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
        for run in [state.lanes[0].run, state.lanes[1].run, state.reserve] {
            let mut offset = u32::from(run.next);
            'run: while offset < u32::from(run.blocks) {
                let count = (u32::from(run.blocks) - offset).min(GROUP_BLOCKS_MAX as u32);
                self.read_some(run.start + offset, count as usize)?;
                for number in 0..count {
                    let address = run.start + offset + number;
                    let block = self.neighbours.block(number as usize);
                    let newer = Header::open(block, address, self.seed).filter(|header| {
                        header.file_id == state.file_id && header.sequence >= sequence_min
                    });
                    match newer {
                        Some(header) => found.push(header),
                        // Lanes are filled in order: what follows was not written since, or belongs to a group
                        // that is not whole.
                        None => break 'run,
                    }
                }
                offset += count;
            }
        }
        Ok(found)
    }

    /// Reads up to as many blocks as one request takes; one that the device cannot read counts as damaged.
    fn read_some(&mut self, address: u32, count: usize) -> Result<()> {
        let bytes = count * BLOCK_BYTES;
        let read = read_through(
            &mut self.device,
            &self.overlay,
            u64::from(address),
            &mut self.neighbours[..bytes],
        );
        if is_readable(read)? {
            return Ok(());
        }
        for number in 0..count {
            let place = u64::from(address) + number as u64;
            let block = self.neighbours.block_mut(number);
            let read = read_through(&mut self.device, &self.overlay, place, block);
            if !is_readable(read)? {
                self.neighbours.block_mut(number).fill(0);
            }
        }
        Ok(())
    }
}

/// Where the second copy of a record's root stands.
pub(crate) fn last_block(root: &Root, images: &ImageReferences) -> usize {
    if root.spilled {
        CLUSTER_BLOCKS as usize - 1
    } else {
        images.len() + 1
    }
}

/// Whether this is the block that a record carries.
pub(crate) fn is_image(bytes: &[u8], reference: ImageReference, layout: &Layout) -> bool {
    let intact = match layout.bucket_at(u64::from(reference.address)) {
        Some(bucket) => Bucket::open(bytes, bucket, layout).is_some(),
        None => Header::open(bytes, reference.address, layout.checksum_seed()).is_some(),
    };
    intact && get_u32(bytes, 4) == reference.checksum
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
        let number = usize::from(header.lane);
        let lane = state.lanes[number];
        let in_reserve =
            state.reserve.contains(header.address) && !lane.run.contains(header.address);
        let run = if in_reserve { state.reserve } else { lane.run };
        // What the block says of its run and of the one before it.
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
        // Only a run that holds data, and has too little room for another group, is given up for the reserve.
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
