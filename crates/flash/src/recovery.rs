//! Opening a store in any state: after a clean close, a killed process, or a power cut at any point.
//!
//! Recovery reads the commit records and puts the blocks they carry in place. In the lanes of the files that were being
//! appended to, it looks for appends beyond the recorded tails. It writes only those blocks and one new record, so it
//! may itself be interrupted anywhere and run again. `recovery/tails.rs` finds those appends.

mod tails;

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice};

use crate::block::Header;
use crate::bytes::get_u32;
use crate::error::{Error, Part, Result};
use crate::layout::{CLUSTER_BLOCKS, COUNTER_END, FILE_ID_END, Layout, TABLE_COPIES, TRUNK_PLACE};
use crate::numbers::{FILE_ID_STEP, SEQUENCE_STEP};
use crate::root::{IMAGES_MAX, ImageReference, ImageReferences, Root, Slot};
use crate::space::{open_trunk, trunk_address};
use crate::store::{Store, is_readable};
use crate::table::Bucket;

/// Blocks of the longest record.
const RECORD_BLOCKS_MAX: usize = IMAGES_MAX + 2;

/// The blocks read from a place that may hold a record.
struct Area {
    /// Its first block.
    address: u64,
    blocks: BlockBuffer,
    /// The blocks that the device could not read; they are replaced by zeros.
    unreadable: [bool; RECORD_BLOCKS_MAX],
}

/// A record that was found, with its images.
struct Record {
    /// Its first block.
    address: u64,
    root: Root,
    /// The block of the record that the root was read from.
    root_at: usize,
    images: ImageReferences,
    /// The images as the record holds them; `None` for an image that is not intact.
    contents: [Option<Vec<u8>>; IMAGES_MAX],
    /// The list that the record spills is intact, if it spills one.
    list_intact: bool,
    /// The second copy of the list, if the list's own block is not intact and that copy is.
    list_again: Option<Vec<u8>>,
    /// Whether a block of it can be read but has the wrong content, as a power cut leaves it.
    torn: bool,
    /// The first of its blocks that the device could not read.
    unreadable: Option<u64>,
}

/// A possible record; candidates are examined newest first.
enum Candidate {
    Found(Box<Record>),
    /// A record with this number may be where this block cannot be read.
    Hidden(u64, u64),
}

/// The result of examining a record.
enum Standing {
    /// It was durable, or can be treated as durable.
    Counts,
    /// A power cut interrupted it: it was never acknowledged.
    Torn,
    /// It may have been acknowledged: only this block, which cannot be read, would tell.
    Unknown(u64),
}

/// The content of an image's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InPlace {
    Other,
    Image,
    /// Data written over the image since: the last block of a file moves, and its old place is overwritten without a
    /// record.
    Later,
}

impl<D: BlockDevice> Store<D> {
    pub(crate) fn recover(&mut self) -> Result<()> {
        if !self.read_only {
            // After a killed process or a failed write the device may still hold unflushed writes. The data read below
            // must be durable before a record that relies on it overwrites the older place.
            self.flush_device()?;
        }
        let mut candidates = self.find_records()?;
        while !candidates.is_empty() {
            let mut newest = match candidates.remove(0) {
                Candidate::Found(record) => record,
                Candidate::Hidden(_, block) => return Err(damaged_record(block)),
            };
            match self.standing_of(&mut newest)? {
                Standing::Counts => return self.recover_from(*newest, candidates),
                Standing::Torn => {}
                Standing::Unknown(block) => return Err(damaged_record(block)),
            }
        }
        Err(damaged_record(self.layout.record_block(0)))
    }

    /// Returns every record that may be the newest or the one before it, newest first.
    ///
    /// A block that cannot be read may hold anything. For a durable record the other blocks are intact, or there would
    /// be two kinds of damage at once. So a record is hidden only if neither copy of its root can be read.
    fn find_records(&mut self) -> Result<Vec<Candidate>> {
        let mut places = Vec::new();
        for place in 0..2 {
            let area = self.read_area(self.layout.record_block(place), RECORD_BLOCKS_MAX)?;
            let record = self
                .record_in(&area)
                .filter(|record| !record.root.spilled && u64::from(record.root.place) == place);
            places.push((area, record));
        }
        for (place, other) in [(0, 1), (1, 0)] {
            let (area, record) = &places[place];
            let shown = record.as_ref();
            // Records go to the two places in turn. If the first block of the other place shows an older record, no
            // newer record was written here.
            let is_newest = shown
                .zip(places[other].1.as_ref())
                .is_some_and(|(shown, other)| {
                    other.root_at == 0 && other.root.record_sequence < shown.root.record_sequence
                });
            let end = shown.map_or(RECORD_BLOCKS_MAX, |record| record.root_at);
            if !is_newest && let Some(block) = area.hides_record(end, &self.layout) {
                return Err(damaged_record(block));
            }
        }
        let records: Vec<Record> = places
            .into_iter()
            .filter_map(|(_, record)| record)
            .collect();
        // A record that spills a list is in the cluster that the previous record has announced.
        let announced: Vec<(u64, u32)> = records
            .iter()
            .map(|record| (record.root.record_sequence + 1, record.root.announced))
            .filter(|(sequence, cluster)| {
                *cluster != 0
                    && records
                        .iter()
                        .all(|record| record.root.record_sequence != *sequence)
            })
            .collect();
        let mut candidates: Vec<Candidate> = records
            .into_iter()
            .map(|record| Candidate::Found(Box::new(record)))
            .collect();
        for (sequence, cluster) in announced {
            let area = self.read_area(u64::from(cluster), CLUSTER_BLOCKS as usize)?;
            let record = self.record_in(&area).filter(|record| {
                record.root.spilled
                    && record.root.trunk_head == cluster
                    && record.root.record_sequence == sequence
            });
            if let Some(record) = record {
                candidates.push(Candidate::Found(Box::new(record)));
            } else if let Some(block) = area.hides_spilling_record(&self.layout) {
                candidates.push(Candidate::Hidden(sequence, block));
            }
        }
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.record_sequence()));
        Ok(candidates)
    }

    fn recover_from(&mut self, mut newest: Record, others: Vec<Candidate>) -> Result<()> {
        // The images of the previous record are in place unless the cut came before the next barrier. Writing them
        // again is harmless, and the newest record's images are written last. If both records have an image of the same
        // block, the newest record's image is used, wherever it is.
        let sequence = newest.root.record_sequence;
        let mut before = match others
            .into_iter()
            .find(|other| other.record_sequence() + 1 == sequence)
        {
            Some(Candidate::Found(record)) => Some(*record),
            Some(Candidate::Hidden(_, block)) => {
                self.miss_table_block(&mut newest.root, block)?;
                None
            }
            None => None,
        };
        if let Some(before) = &mut before {
            self.require_images_of(before, &mut newest)?;
        }
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
        if let Some(list) = newest.list_again.as_ref().filter(|_| !self.read_only) {
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
        let newest_is_whole = !newest.torn && newest.unreadable.is_none() && !newest.root.spilled;
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
            // Remains of a record after this one must not be taken for a part of the next record or of the previous
            // one.
            self.root.record_sequence += 2;
            // Overwrite the places that a power cut may have left with one good copy; so neither record spills a list.
            self.keep_something_plain();
            for _ in 0..if newest_is_whole { 1 } else { 2 } {
                self.root.spilled = true;
                self.commit()?;
            }
        }
        Ok(())
    }

    /// Writes a block from a record in place, unless it or a newer block is there already. Keeps it in memory only if
    /// the store is read-only. Returns whether the device was written.
    fn replay(&mut self, reference: ImageReference, bytes: &[u8]) -> Result<bool> {
        let address = u64::from(reference.address);
        let is_table = self.layout.bucket_at(address).is_some();
        // An older image that a read-only store holds in memory must not hide the content on the device.
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

    /// Returns whether the scratch buffer holds, at a data image's place, a block of a later append. The last block of
    /// a file moves, and its old place is overwritten without a record.
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

    fn read_area(&mut self, address: u64, count: usize) -> Result<Area> {
        let mut area = Area {
            address,
            blocks: BlockBuffer::zeroed(count),
            unreadable: [false; RECORD_BLOCKS_MAX],
        };
        if is_readable(self.device.read(address, &mut area.blocks))? {
            return Ok(area);
        }
        for number in 0..count {
            let block = area.blocks.block_mut(number);
            if !is_readable(self.device.read(address + number as u64, block))? {
                block.fill(0);
                area.unreadable[number] = true;
            }
        }
        Ok(area)
    }

    /// Returns the record in this area, from either intact copy of its root.
    fn record_in(&self, area: &Area) -> Option<Record> {
        let blocks = &area.blocks;
        let mut best: Option<(usize, Root, ImageReferences)> = None;
        for copy in 0..area.count() {
            let Some((root, images)) = Root::decode(blocks.block(copy), &self.layout) else {
                continue;
            };
            let last = last_block(&root, &images);
            let newer = best
                .as_ref()
                .is_none_or(|(_, best, _)| best.record_sequence < root.record_sequence);
            // A root found in a cluster may describe a record longer than the cluster: that is not a record there.
            if (copy == 0 || copy == last) && last < area.count() && newer {
                best = Some((copy, root, images));
            }
        }
        let (root_at, root, images) = best?;
        let last = last_block(&root, &images);
        let mut intact = [false; RECORD_BLOCKS_MAX];
        for copy in [0, last] {
            intact[copy] = blocks.block(copy) == blocks.block(root_at);
        }
        let mut contents = [const { None }; IMAGES_MAX];
        for (index, reference) in images.as_slice().iter().enumerate() {
            let bytes = blocks.block(1 + index);
            contents[index] = is_image(bytes, *reference, &self.layout).then(|| bytes.to_vec());
            intact[1 + index] = contents[index].is_some();
        }
        // Without an image the list is there twice. If a cut has left out this list, the cluster may hold an intact
        // list of an earlier life.
        let is_list = |place: usize| {
            let bytes = blocks.block(place);
            open_trunk(bytes, root.trunk_head, self.seed).is_some()
                && get_u32(bytes, 4) == root.spilled_checksum
        };
        let list_first = if root.spilled { 1 + images.len() } else { last };
        let lists = (list_first..last).filter(|place| is_list(*place));
        let mut list_at = None;
        for place in lists {
            intact[place] = true;
            list_at = Some(place);
        }
        let list_again = list_at.filter(|place| *place != TRUNK_PLACE);
        let unreadable = (0..=last).find(|block| area.unreadable[*block]);
        Some(Record {
            address: area.address,
            root_at,
            contents,
            list_intact: !root.spilled || list_at.is_some(),
            list_again: list_again.map(|place| blocks.block(place).to_vec()),
            torn: (0..=last).any(|block| !intact[block] && !area.unreadable[block]),
            unreadable: unreadable.map(|block| area.address + block as u64),
            root,
            images,
        })
    }

    /// Returns whether the record counts: each image must be intact in the record or in place already, and so must the
    /// list that it spills. Something may be missing if an image's place holds data written after the record was
    /// durable. That is a table block with the record's number, or later data. Then the missing part is damage, not a
    /// power cut.
    fn standing_of(&mut self, record: &mut Record) -> Result<Standing> {
        let count = record.images.len();
        if record.list_intact && record.contents[..count].iter().all(Option::is_some) {
            return Ok(Standing::Counts);
        }
        let (mut missing, mut was_durable) = (None, false);
        for index in 0..count {
            let reference = record.images.as_slice()[index];
            let in_place = self.look_in_place(reference, &record.root)?;
            let is_table = self.is_table(reference);
            // This does not prove it for a data block: it may have held the same bytes before.
            was_durable |= in_place == InPlace::Later || (in_place == InPlace::Image && is_table);
            if record.contents[index].is_none() {
                match in_place {
                    // One copy of a table block is in place; the other may need to be written.
                    InPlace::Image => {
                        record.contents[index] = Some(self.scratch.block(1).to_vec());
                    }
                    InPlace::Later => {}
                    InPlace::Other => {
                        missing = missing.or(Some((is_table, record.block_of_image(index))));
                    }
                }
            }
        }
        if !was_durable && (missing.is_some() || !record.list_intact) {
            // A block with wrong content was torn by a cut: damaged blocks of a durable record cannot be read.
            if record.torn {
                return Ok(Standing::Torn);
            }
            // If only the list is missing, accepting the record undoes nothing, whether or not it was durable.
            if let (Some(_), Some(block)) = (missing, record.unreadable) {
                return Ok(Standing::Unknown(block));
            }
        }
        if let Some((true, block)) = missing {
            self.miss_table_block(&mut record.root, block)?;
        }
        if !record.list_intact {
            // The pieces of this list are lost until a repair finds them; those of earlier lists are not.
            self.free_chains_broken += 1;
            record.root.trunk_head = record.root.spilled_next;
            record.root.trunk_count = record.root.trunk_count.saturating_sub(1);
        }
        Ok(Standing::Counts)
    }

    /// Checks that each table block that a durable record carried is in the record or in place. Otherwise acknowledged
    /// names would be missing, and deleted names would be back.
    fn require_images_of(&mut self, before: &mut Record, newest: &mut Record) -> Result<()> {
        for index in 0..before.images.len() {
            let reference = before.images.as_slice()[index];
            let mut later = newest.images.as_slice().iter();
            if before.contents[index].is_some()
                || !self.is_table(reference)
                || later.any(|later| later.address == reference.address)
            {
                continue;
            }
            if self.look_in_place(reference, &before.root)? == InPlace::Other {
                self.miss_table_block(&mut newest.root, before.block_of_image(index))?;
            } else {
                before.contents[index] = Some(self.scratch.block(1).to_vec());
            }
        }
        Ok(())
    }

    /// Handles a table block of a durable record that is lost for good. An opening for writing fails, because it would
    /// silently make the older table the state of the store. An opening for reading only, as a check and a repair do,
    /// sees the rest and that a name is missing.
    fn miss_table_block(&self, root: &mut Root, block: u64) -> Result<()> {
        if !self.read_only {
            return Err(damaged_record(block));
        }
        root.files = (root.files + 1).min(COUNTER_END - 1);
        Ok(())
    }

    fn is_table(&self, reference: ImageReference) -> bool {
        self.layout
            .bucket_at(u64::from(reference.address))
            .is_some()
    }

    /// Returns what is in the place of an image of the record that `root` is from.
    fn look_in_place(&mut self, reference: ImageReference, root: &Root) -> Result<InPlace> {
        let address = u64::from(reference.address);
        let copies = if self.is_table(reference) {
            TABLE_COPIES
        } else {
            1
        };
        for copy in 0..copies {
            let read = self.device.read(address + copy, self.scratch.block_mut(1));
            if !is_readable(read)? {
                continue;
            }
            let there = self.scratch.block(1);
            if is_image(there, reference, &self.layout) {
                return Ok(InPlace::Image);
            }
            let header = Header::open(there, reference.address, self.seed);
            let is_later = |slot: &Slot, header: &Header| {
                slot.state.tail.address == reference.address
                    && slot.state.file_id == header.file_id
                    && slot.state.tail.sequence < header.sequence
            };
            if header.is_some_and(|header| root.slots.iter().any(|slot| is_later(slot, &header))) {
                return Ok(InPlace::Later);
            }
        }
        Ok(InPlace::Other)
    }
}

impl Candidate {
    fn record_sequence(&self) -> u64 {
        match self {
            Self::Found(record) => record.root.record_sequence,
            Self::Hidden(sequence, _) => *sequence,
        }
    }
}

impl Record {
    fn block_of_image(&self, index: usize) -> u64 {
        self.address + 1 + index as u64
    }
}

impl Area {
    fn count(&self) -> usize {
        self.blocks.len() / BLOCK_BYTES
    }

    /// Returns the first block, if two blocks cannot be read: it, and one before `end` that may hold the other root of
    /// a durable record. The blocks between the two are then intact where they can be read.
    fn hides_record(&self, end: usize, layout: &Layout) -> Option<u64> {
        let may_be_between = |block: &usize| {
            self.unreadable[*block] || is_any_image(self.blocks.block(*block), layout)
        };
        let mut others = 1..end;
        let hides = self.unreadable[0]
            && others
                .any(|last| self.unreadable[last] && (1..last).all(|block| may_be_between(&block)));
        hides.then_some(self.address)
    }

    /// As [`hides_record`](Self::hides_record), for a record that spills a list.
    fn hides_spilling_record(&self, layout: &Layout) -> Option<u64> {
        let is_list = |block: usize| {
            let bytes = self.blocks.block(block);
            open_trunk(bytes, self.address as u32, layout.checksum_seed()).is_some()
        };
        let [first, image, list, last, _] = self.unreadable;
        let hides = first
            && last
            && (list || is_list(TRUNK_PLACE))
            && (image
                || is_list(TRUNK_PLACE - 1)
                || is_any_image(self.blocks.block(TRUNK_PLACE - 1), layout));
        hides.then_some(self.address)
    }
}

/// Returns whether this is a block that some record may carry.
fn is_any_image(bytes: &[u8], layout: &Layout) -> bool {
    Bucket::open(bytes, get_u32(bytes, 12), layout).is_some()
        || Header::open(bytes, get_u32(bytes, 24), layout.checksum_seed()).is_some()
}

/// Returns the position of the second copy of a record's root.
pub(crate) fn last_block(root: &Root, images: &ImageReferences) -> usize {
    if root.spilled {
        CLUSTER_BLOCKS as usize - 1
    } else {
        images.len() + 1
    }
}

/// Returns whether this is the block that a record carries.
pub(crate) fn is_image(bytes: &[u8], reference: ImageReference, layout: &Layout) -> bool {
    let intact = match layout.bucket_at(u64::from(reference.address)) {
        Some(bucket) => Bucket::open(bytes, bucket, layout).is_some(),
        None => Header::open(bytes, reference.address, layout.checksum_seed()).is_some(),
    };
    intact && get_u32(bytes, 4) == reference.checksum
}

fn damaged_record(block: u64) -> Error {
    Error::Damaged {
        part: Part::Record,
        block,
        offset: None,
    }
}
