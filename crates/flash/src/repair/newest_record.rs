//! When one of the two places for records holds none, it may have held the newest record. The remaining record may then
//! be older than the acknowledged state. The blocks show the later changes. Blocks written since have greater group
//! numbers than any before that record, and a block that was shortened in place is not full.

use std::collections::BTreeSet;

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice};

use crate::block::PAYLOAD_BYTES;
use crate::error::Result;
use crate::layout::{CLUSTER_BLOCKS, RECORD_PLACE_BLOCKS};
use crate::numbers::{REPAIRED_COUNTER_MAX, SEQUENCE_STEP};
use crate::recovery::{is_image, last_block};
use crate::repair::assemble::{ends_whole_group, wrong_from};
use crate::repair::blocks::{Brief, Fate, Settled, Step, is_sane, state_from};
use crate::repair::scan::Scan;
use crate::repair::state::Repair;
use crate::root::{FileState, IMAGES_MAX, Root, SlotKind};
use crate::store::is_readable;

/// Last blocks tried for one file: each belongs to a group that came after the remaining record.
const CANDIDATES_MAX: usize = 64;

impl<D: BlockDevice> Repair<'_, D> {
    /// Returns whether a record newer than the remaining one carries a table block that is damaged both in the record
    /// and in place. A power cut does not cause that: a block is written in place only after its record is durable.
    pub(crate) fn has_lost_newer_image(&mut self) -> Result<bool> {
        let root = &self.store.root;
        let other = self.store.layout.record_block(u64::from(root.place ^ 1));
        let mut places = vec![(other, RECORD_PLACE_BLOCKS)];
        if root.announced != 0 {
            places.push((u64::from(root.announced), u64::from(CLUSTER_BLOCKS)));
        }
        let newest = root.record_sequence;
        for (first, count) in places {
            for address in first..first + count {
                let block = self.store.scratch.block_mut(0);
                if !is_readable(self.store.device.read(address, block))? {
                    continue;
                }
                let decoded = Root::decode(self.store.scratch.block(0), &self.store.layout);
                let Some((_, images)) = decoded.filter(|(root, _)| root.record_sequence > newest)
                else {
                    continue;
                };
                for image in images.as_slice() {
                    let bucket = self.store.layout.bucket_at(u64::from(image.address));
                    if let Some(bucket) = bucket
                        && !self.store.is_overlaid(u64::from(image.address))
                        && self.sequence_of_copy(bucket, 0)?.is_none()
                        && self.sequence_of_copy(bucket, 1)?.is_none()
                    {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Looks for changes after the remaining record, if a newer one may be lost.
    pub(crate) fn find_newer_changes(&mut self) -> Result<()> {
        if !self.newest_in_doubt {
            return Ok(());
        }
        let text = "one of the two places for commit records holds none; if the newest stood there, files may have \
                    back what the last call cut off their end";
        let place = u64::from(self.store.root.place ^ 1);
        let block = self.store.layout.record_block(place);
        self.find(None, Some(block), true, false, text.to_owned());
        self.root_changed = true;
        let bound = self.root_found.next_sequence;
        // This scans all blocks, because no block has an owner yet.
        let scan = self.scan_from(bound)?;
        let sequence = (scan.sequence_max + SEQUENCE_STEP).min(REPAIRED_COUNTER_MAX);
        self.store.sequence = self.store.sequence.max(sequence);
        for index in 0..self.files.len() {
            let known = self.files[index].state;
            let Some(settled) = self.newer_state(&scan, &known)? else {
                continue;
            };
            let text = format!(
                "it was changed after the newest commit record that is left; it is {} bytes long now instead of {}",
                settled.state.length(),
                known.length()
            );
            let name = self.files[index].name.clone();
            self.find(Some(&name), None, true, false, text);
            self.drop_markers(&settled);
            self.files[index].state = settled.state;
            self.has_newer = true;
            self.put_newer(index)?;
        }
        self.newer = Some(scan);
        Ok(())
    }

    /// Takes space out of free space that the lost record may have given to files which have lost their names.
    pub(crate) fn release_newer(&mut self) -> Result<()> {
        let Some(scan) = self.newer.take() else {
            return Ok(());
        };
        let known: BTreeSet<u64> = self.files.iter().map(|file| file.state.file_id).collect();
        for address in scan.addresses_but_of(&known) {
            if let Some(header) = self.read_header(address)? {
                let blocks = u32::from(header.run_blocks);
                let was_free = self.owners.release(header.run_start, blocks);
                self.free_list_damaged |= was_free;
                self.has_newer |= was_free;
            }
        }
        self.newer = Some(scan);
        Ok(())
    }

    /// Settles a file with the state in slot `slot` of the root, or with a newer state.
    pub(crate) fn settle_newest(&mut self, slot: usize) -> Result<Settled> {
        let known = &self.root_found.slots[slot].state.clone();
        let newer = self.newer.take();
        let settled = match &newer {
            Some(scan) => self.newer_state(scan, known)?,
            None => None,
        };
        self.newer = newer;
        let Some(settled) = settled else {
            return self.settle(known);
        };
        self.root_found.slots[slot].state = settled.state;
        self.has_newer = true;
        Ok(settled)
    }

    /// Puts the state of a file into the root as it was found, so that the record which replaces the missing one knows
    /// it. From then on nothing shows that a record is missing.
    fn put_newer(&mut self, index: usize) -> Result<()> {
        let slots = &self.store.root.slots;
        let free = || slots.iter().position(|slot| slot.kind == SlotKind::Free);
        let slot = self.files[index].slot.or_else(free);
        self.files[index].slot = slot;
        self.put_state(index)?;
        if let Some(slot) = slot {
            self.root_found.slots[slot] = self.store.root.slots[slot];
        }
        Ok(())
    }

    /// Returns whether nothing shows that the place of the next record still holds an older one.
    pub(crate) fn is_newest_in_doubt(&mut self) -> Result<bool> {
        if self.store.root.record_sequence <= 1 {
            // Until the second record is written, one place has never held a record.
            return Ok(false);
        }
        let first = self
            .store
            .layout
            .record_block(u64::from(self.store.root.place ^ 1));
        let mut blocks = BlockBuffer::zeroed(IMAGES_MAX + 2);
        for (number, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            if !is_readable(self.store.device.read(first + number as u64, block))? {
                block.fill(0);
            }
        }
        let layout = &self.store.layout;
        if Root::decode(blocks.block(0), layout).is_some() {
            return Ok(false);
        }
        // Every record covers the first two blocks: if one of them is from an older record, no newer one was written.
        let is_older = |copy: usize| {
            Root::decode(blocks.block(copy), layout).is_some_and(|(root, images)| {
                let holds_second = copy == 1
                    || images
                        .as_slice()
                        .first()
                        .is_some_and(|image| is_image(blocks.block(1), *image, layout));
                copy == last_block(&root, &images)
                    && root.record_sequence < self.store.root.record_sequence
                    && holds_second
            })
        };
        Ok(!(1..IMAGES_MAX + 2).any(is_older))
    }

    /// Returns the state of a file that its blocks show, if it is newer than `known`.
    fn newer_state(&mut self, scan: &Scan, known: &FileState) -> Result<Option<Settled>> {
        let briefs = match scan.remains_of(known.file_id) {
            Some(remains) => self.briefs_of(scan, &remains)?,
            None => Vec::new(),
        };
        let is_end =
            |end: &&Brief| end.sequence > known.tail.sequence && ends_whole_group(end, &briefs);
        let mut ends: Vec<Brief> = briefs.iter().filter(is_end).copied().collect();
        ends.sort_by_key(|end| std::cmp::Reverse(end.sequence));
        for end in ends.iter().take(CANDIDATES_MAX) {
            if let Some(settled) = self.settled_at(scan, &briefs, known.file_id, end)? {
                return Ok(Some(settled));
            }
        }
        let steps = self.walk(known)?;
        let Some(end) = self.shortened_block(known, &steps)? else {
            return Ok(None);
        };
        self.settled_at(scan, &briefs, known.file_id, &end)
    }

    /// Returns the file with this last block, if the way back from it is complete.
    fn settled_at(
        &mut self,
        scan: &Scan,
        briefs: &[Brief],
        file_id: u64,
        end: &Brief,
    ) -> Result<Option<Settled>> {
        if u64::from(end.index) >= self.store.layout.data_blocks() {
            return Ok(None);
        }
        let state = FileState {
            file_id,
            tail: end.tail(),
            ..FileState::default()
        };
        let steps = self.walk(&state)?;
        if wrong_from(scan, briefs, file_id, &steps).is_some() {
            return Ok(None);
        }
        let state = state_from(file_id, steps.iter().filter_map(Step::brief));
        let settled = self.settle(&state)?;
        Ok(is_sane(&settled.state, &self.store.layout).then_some(settled))
    }

    /// Returns the first block on the path that is the file's own but not full: the file was truncated there, in place.
    fn shortened_block(&mut self, known: &FileState, steps: &[Step]) -> Result<Option<Brief>> {
        for (index, step) in steps.iter().enumerate() {
            if !matches!(step.fate, Fate::Foreign) {
                continue;
            }
            let found = self.read_header(step.address)?.filter(|header| {
                let is_its = header.file_id == known.file_id && header.index == index as u32;
                // A shortened last block keeps its group number; another number belongs to a later append.
                let is_tail = header.index == known.tail.index;
                let is_shortened = if is_tail {
                    header.sequence == known.tail.sequence && header.fill < known.tail.fill
                } else {
                    usize::from(header.fill) < PAYLOAD_BYTES
                };
                is_its && is_shortened && header.sequence > 0
            });
            if let Some(header) = found {
                return Ok(Some(Brief::of(&header)));
            }
        }
        Ok(None)
    }
}
