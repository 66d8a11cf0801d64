//! Checking a store: every structure is read, every block is accounted for, all damage is reported.

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, DeviceError};

use crate::block::{Header, PAYLOAD_BYTES, POINTERS, pointer_target};
use crate::error::{Error, Result};
use crate::layout::{CLUSTER_BLOCKS, Layout, TABLE_COPIES};
use crate::recovery::{is_image, last_block};
use crate::root::{FileState, IMAGES_MAX, Piece, Root, SlotKind};
use crate::space::{open_trunk, trunk_address, trunk_piece};
use crate::store::{Store, is_readable};
use crate::table::{Bucket, buckets_of, validate_name};

/// Maximum number of problems listed one by one; further ones are only counted.
const PROBLEMS_LISTED_MAX: usize = 1000;

/// The problem of a file that [`FileState::is_ahead_of`] the store: recovery takes the group with the greatest number
/// as the newest.
pub(crate) const AHEAD: &str = "its last block has a number that the store has not come to; a power cut may undo what \
                                is appended to it, until a copy replaces it";

/// One problem found by a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The affected file, if it is known.
    pub file: Option<String>,
    /// The block in which the problem was found, if there is one.
    pub block: Option<u64>,
    /// What is wrong and what it means.
    pub text: String,
    /// Whether bytes of a file are lost.
    pub data_lost: bool,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(file) = &self.file {
            write!(formatter, "file {file:?}: ")?;
        }
        if let Some(block) = self.block {
            write!(formatter, "block {block}: ")?;
        }
        formatter.write_str(&self.text)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Files found in the name table.
    pub files: u64,
    /// Data blocks of files read and verified.
    pub blocks_verified: u64,
    /// Blocks that files own, including those reserved for appends.
    pub blocks_owned: u64,
    /// Blocks found in free space.
    pub blocks_free: u64,
    /// The first problems found.
    pub problems: Vec<Problem>,
    /// All problems found.
    pub problems_total: u64,
    /// Whether a read-only store's records are incomplete: normal after a power cut, damage otherwise. Opening the
    /// store for writing completes them.
    pub records_incomplete: bool,
}

impl CheckReport {
    /// Returns whether the store has no problems.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }

    fn add(&mut self, file: Option<&str>, block: Option<u64>, data_lost: bool, text: String) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(Problem {
                file: file.map(str::to_owned),
                block,
                text,
                data_lost,
            });
        }
    }
}

/// The owner of each cluster of the data region.
struct Owners {
    /// 0: no owner, 1: free space, n + 2: the n-th file visited.
    clusters: Vec<u32>,
    names: Vec<String>,
    first: u32,
    /// Blocks that have been read as part of a file: each block is read once, even if several entries lead to it.
    read: Vec<bool>,
    /// Blocks of the data region minus those of the files visited.
    blocks_left: u64,
}

impl Owners {
    fn new(layout: &Layout) -> Self {
        let clusters = (layout.data_end - layout.data_first) / CLUSTER_BLOCKS;
        Self {
            clusters: vec![0; clusters as usize],
            names: Vec::new(),
            first: layout.data_first,
            read: vec![false; layout.data_blocks() as usize],
            blocks_left: layout.data_blocks(),
        }
    }

    fn describe(&self, owner: u32) -> String {
        match owner {
            0 => "nobody".to_owned(),
            1 => "free space".to_owned(),
            file => format!(
                "file {:?}",
                self.names.get(file as usize - 2).map_or("", String::as_str)
            ),
        }
    }

    /// Claims a run that lies in the data region.
    fn claim(&mut self, start: u32, blocks: u32, owner: u32, report: &mut CheckReport) {
        for block in (start..start + blocks).step_by(CLUSTER_BLOCKS as usize) {
            let place = ((block - self.first) / CLUSTER_BLOCKS) as usize;
            let Some(cluster) = self.clusters.get_mut(place) else {
                continue;
            };
            if *cluster == 0 {
                *cluster = owner;
            } else {
                let other = *cluster;
                let text = format!(
                    "owned by {} and by {}",
                    self.describe(other),
                    self.describe(owner)
                );
                report.add(None, Some(u64::from(block)), false, text);
            }
        }
    }

    fn owns(&self, block: u32, owner: u32) -> bool {
        self.owner(block) == Some(owner)
    }

    fn owner(&self, block: u32) -> Option<u32> {
        let place = ((block - self.first) / CLUSTER_BLOCKS) as usize;
        self.clusters.get(place).copied()
    }

    /// Returns whether block `address` of the data region has not been read yet, and marks it as read.
    fn reads_first(&mut self, address: u32) -> bool {
        let place = address.wrapping_sub(self.first) as usize;
        self.read
            .get_mut(place)
            .is_none_or(|read| !std::mem::replace(read, true))
    }
}

impl<D: BlockDevice> Store<D> {
    /// Reads everything and reports all problems. Changes nothing.
    ///
    /// Memory grows with the device (two bytes for each block) and with the longest file.
    ///
    /// # Errors
    /// [`Error::Device`] when the device cannot be read at all; damage is reported, not returned.
    pub fn check(&mut self) -> Result<CheckReport> {
        self.check_with_progress(&mut |_, _| {})
    }

    /// As [`check`](Self::check), calling `progress` with the number of table blocks done and their total.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_with_progress(
        &mut self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut owners = Owners::new(&self.layout);
        self.check_superblocks(&mut report)?;
        self.check_records(&mut report)?;
        self.check_numbers(&mut report);
        self.check_free_space(&mut report, &mut owners)?;
        let mut slots_seen = 0;
        for bucket in 0..self.layout.bucket_count {
            progress(u64::from(bucket), u64::from(self.layout.bucket_count));
            for (name, state) in self.check_bucket(bucket, &mut report)? {
                if self.root.slot_of(state.file_id).is_some() {
                    slots_seen += 1;
                }
                let state = self.current(&state);
                self.check_file(&name, &state, &mut report, &mut owners)?;
            }
        }
        self.check_totals(slots_seen, &mut report, &owners);
        Ok(report)
    }

    fn check_superblocks(&mut self, report: &mut CheckReport) -> Result<()> {
        let geometry = self.device.geometry();
        let mut block = BlockBuffer::zeroed(1);
        for place in self.layout.superblocks() {
            if !is_readable(self.device.read(place, &mut block))?
                || Layout::decode(&block, geometry).ok().as_ref() != Some(&self.layout)
            {
                let text = "a copy of the superblock is damaged; another one stands in".to_owned();
                report.add(None, Some(place), false, text);
            }
        }
        Ok(())
    }

    /// Checks that every copy of the last records is there. Copies may be missing after a power cut during the write of
    /// a record. Opening the store for writing repairs that, so it is a problem only then.
    pub(crate) fn check_records(&mut self, report: &mut CheckReport) -> Result<()> {
        let current = self.root.record_sequence;
        let place = u64::from(self.root.place);
        // The last record in each fixed place, and the very last record if it is in a cluster of its own.
        let mut wanted = vec![
            (self.layout.record_block(place), None),
            (self.layout.record_block(1 - place), None),
        ];
        if self.root.spilled {
            wanted.push((u64::from(self.root.trunk_head), Some(current)));
        } else {
            wanted[0].1 = Some(current);
        }
        for (address, sequence) in wanted {
            let mut blocks = BlockBuffer::zeroed(IMAGES_MAX + 2);
            for (number, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                // Blocks behind the end of the last cluster cannot be read.
                let read = self.device.read(address + number as u64, block);
                if !is_readable(read)? {
                    block.fill(0);
                }
            }
            self.check_record(address, sequence, &blocks, report);
        }
        Ok(())
    }

    fn check_record(
        &self,
        address: u64,
        sequence: Option<u64>,
        blocks: &BlockBuffer,
        report: &mut CheckReport,
    ) {
        let root = |place: usize| {
            Root::decode(blocks.block(place), &self.layout).filter(|(root, images)| {
                (place == 0 || place == last_block(root, images))
                    && sequence.is_none_or(|sequence| root.record_sequence == sequence)
            })
        };
        // An older, longer record may have left blocks behind: the newest root tells which blocks must be there.
        let known = (0..IMAGES_MAX + 2)
            .rev()
            .filter_map(root)
            .max_by_key(|(root, _)| root.record_sequence);
        let mut damaged = Vec::new();
        if let Some((newest, images)) = known {
            let same = |place: usize| {
                root(place).is_some_and(|(root, _)| root.record_sequence == newest.record_sequence)
            };
            let last = last_block(&newest, &images);
            damaged.extend([0, last].into_iter().filter(|place| !same(*place)));
            for (index, image) in images.as_slice().iter().enumerate() {
                if !is_image(blocks.block(1 + index), *image, &self.layout) {
                    damaged.push(1 + index);
                }
            }
        } else if self.root.record_sequence > 1 {
            // Until the second record is written, one place has never held a record.
            damaged.push(0);
        }
        for place in damaged {
            if self.read_only {
                report.records_incomplete = true;
            } else {
                let text = "a copy of a commit record is damaged; another one stands in";
                report.add(None, Some(address + place as u64), false, text.to_owned());
            }
        }
    }

    /// Checks whether the store's numbers are used up. Such a store opens and can be read but refuses changes; nothing
    /// else about it is wrong.
    fn check_numbers(&self, report: &mut CheckReport) {
        let block = self.layout.record_block(u64::from(self.root.place));
        if self.root.has_no_changes_left(self.sequence) {
            let text = "the numbers for commit records and groups are used up; opened for writing, the store refuses \
                        every change until it is repaired";
            report.add(None, Some(block), false, text.to_owned());
        }
        if self.root.has_no_file_ids_left() {
            let text = "the identities for files are used up; opened for writing, the store refuses every new file \
                        until it is repaired";
            report.add(None, Some(block), false, text.to_owned());
        }
    }

    fn check_free_space(&mut self, report: &mut CheckReport, owners: &mut Owners) -> Result<()> {
        let frontier = self.root.frontier;
        let mut pieces: Vec<_> = self
            .root
            .pieces
            .as_slice()
            .iter()
            .chain(self.quarantined())
            .copied()
            .collect();
        let mut trunk = self.root.trunk_head;
        let mut trunks = 0;
        while trunk != 0 {
            // At this point free space owns only the spilled lists.
            if !self.layout.is_data_run(trunk, CLUSTER_BLOCKS) || owners.owns(trunk, 1) {
                let text = "the free list leads outside the data region or in a circle".to_owned();
                report.add(None, Some(u64::from(trunk)), false, text);
                break;
            }
            // A list that was spilled without an image is in its cluster twice.
            for (copy, address) in [trunk_address(trunk), u64::from(trunk) + 1]
                .into_iter()
                .enumerate()
            {
                if !is_readable(self.device.read(address, self.scratch.block_mut(0)))? {
                    self.scratch.block_mut(0).fill(0);
                }
                if open_trunk(self.scratch.block(0), trunk, self.seed).is_none() {
                    continue;
                }
                if copy > 0 && self.read_only {
                    report.records_incomplete = true;
                } else if copy > 0 {
                    let text =
                        "a copy of a block of the free list is damaged; another one stands in";
                    let place = trunk_address(trunk);
                    report.add(None, Some(place), false, text.to_owned());
                }
                break;
            }
            let Some((next, count)) = open_trunk(self.scratch.block(0), trunk, self.seed) else {
                let text =
                    "a block of the free list is damaged; what it lists cannot be used".to_owned();
                report.add(None, Some(u64::from(trunk)), false, text);
                break;
            };
            for index in 0..count {
                match trunk_piece(self.scratch.block(0), index, &self.layout) {
                    Some(piece) => pieces.push(piece),
                    None => {
                        let text = "the free list names blocks that no file may own".to_owned();
                        report.add(None, Some(u64::from(trunk)), false, text);
                    }
                }
            }
            owners.claim(trunk, CLUSTER_BLOCKS, 1, report);
            report.blocks_free += u64::from(CLUSTER_BLOCKS);
            trunks += 1;
            trunk = next;
        }
        if trunks != u64::from(self.root.trunk_count) {
            let text = format!(
                "the free list has {trunks} spilled blocks, the root counts {}",
                self.root.trunk_count
            );
            report.add(None, None, false, text);
        }
        for piece in pieces {
            if piece.file_id == 0 {
                owners.claim(piece.start, piece.blocks, 1, report);
                report.blocks_free += u64::from(piece.blocks);
            } else {
                report.blocks_free += self.claim_chain(&piece, None, 1, report, owners)?;
            }
        }
        if self.root.announced != 0 {
            // The announced cluster is neither free nor owned by a file, but accounted for.
            owners.claim(self.root.announced, CLUSTER_BLOCKS, 1, report);
        }
        let beyond = self.layout.data_end - frontier;
        owners.claim(frontier, beyond, 1, report);
        report.blocks_free += u64::from(beyond);
        Ok(())
    }

    /// Claims the runs of a list, most recent first, as far as the links can be followed. Returns the number of their
    /// blocks.
    fn claim_chain(
        &mut self,
        chain: &Piece,
        file: Option<&str>,
        owner: u32,
        report: &mut CheckReport,
        owners: &mut Owners,
    ) -> Result<u64> {
        let mut total = 0;
        let mut piece = *chain;
        loop {
            let (start, blocks) = (piece.start, piece.blocks);
            if !self.layout.is_data_run(start, blocks) || owners.owns(start, owner) {
                let text =
                    "the list of its runs leads outside the data region or in a circle".to_owned();
                report.add(file, Some(u64::from(start)), false, text);
                break;
            }
            let was_free = owners.owns(start, 0);
            owners.claim(start, blocks, owner, report);
            total += u64::from(blocks);
            if !was_free {
                // The run's owner has already led to the runs before it.
                break;
            }
            let link = match self.run_before(&piece) {
                Err(Error::Device(DeviceError::Io { .. })) => None,
                link => link?,
            };
            match link {
                Some(before) if before.is_none() || before.start == piece.end => break,
                Some(before) => {
                    piece.start = before.start;
                    piece.blocks = before.blocks();
                }
                None => {
                    let text = "the link to the file's earlier runs is damaged; their blocks would not be freed";
                    report.add(file, Some(u64::from(start)), false, text.to_owned());
                    break;
                }
            }
        }
        Ok(total)
    }

    fn check_bucket(
        &mut self,
        bucket: u32,
        report: &mut CheckReport,
    ) -> Result<Vec<(String, FileState)>> {
        let address = self.layout.bucket_block(bucket);
        let (mut intact, mut newest) = (0, 0);
        for copy in 0..TABLE_COPIES {
            let block = self.scratch.block_mut(1 + copy as usize);
            if !is_readable(self.device.read(address + copy, block))? {
                self.scratch.block_mut(1 + copy as usize).fill(0);
            }
            if let Ok(opened) = self.bucket_at(bucket, 1 + copy as usize) {
                newest = newest.max(opened.record_sequence());
                intact += 1;
            }
        }
        if newest > self.root.record_sequence {
            let text = "this part of the name table is younger than the newest commit record, which is lost";
            report.add(None, Some(address), false, text.to_owned());
        }
        // The image of a record, held in memory, replaces both copies.
        if !self.is_overlaid(address) {
            if intact == 0 {
                let text =
                    "both copies of this part of the name table are damaged; its names are lost"
                        .to_owned();
                report.add(None, Some(address), true, text);
                return Ok(Vec::new());
            }
            if intact == 1 || self.scratch.block(1) != self.scratch.block(2) {
                let text =
                    "one copy of this part of the name table is damaged; the other stands in"
                        .to_owned();
                report.add(None, Some(address), false, text);
            }
        }
        self.read_bucket(bucket, 1)?;
        let Some(opened) = Bucket::open(self.scratch.block(1), bucket, &self.layout) else {
            return Ok(Vec::new());
        };
        let mut files = Vec::new();
        for (_, name, state) in opened.entries() {
            if let Err(Error::NameInvalid { reason }) =
                validate_name(name, self.layout.name_bytes_max)
            {
                let text = format!(
                    "no file can be called this: {reason}; it is neither listed nor opened until a repair names it anew"
                );
                report.add(Some(name), Some(address), false, text);
            }
            if !buckets_of(name, &self.layout).contains(&bucket) {
                report.add(
                    Some(name),
                    Some(address),
                    false,
                    "its name is in the wrong place".to_owned(),
                );
            }
            files.push((name.to_owned(), state));
        }
        if usize::from(opened.used()) != files.len() {
            let text = "an entry of the name table makes no sense".to_owned();
            report.add(None, Some(address), true, text);
        }
        Ok(files)
    }

    fn check_file(
        &mut self,
        name: &str,
        state: &FileState,
        report: &mut CheckReport,
        owners: &mut Owners,
    ) -> Result<()> {
        report.files += 1;
        if state.is_ahead_of(self.sequence) {
            let block = Some(u64::from(state.tail.address));
            report.add(Some(name), block, false, AHEAD.to_owned());
        }
        let owner = owners.names.len() as u32 + 2;
        owners.names.push(name.to_owned());
        let mut total = 0;
        for lane in &state.lanes {
            if !lane.before.is_none() {
                let chain = Piece {
                    start: lane.before.start,
                    blocks: lane.before.blocks(),
                    file_id: state.file_id,
                    end: 0,
                };
                total += self.claim_chain(&chain, Some(name), owner, report, owners)?;
            }
        }
        if total != u64::from(state.closed_blocks) {
            let text = format!(
                "its full runs hold {total} blocks instead of {}",
                state.closed_blocks
            );
            report.add(Some(name), None, false, text);
        }
        for run in [state.lanes[0].run, state.lanes[1].run, state.reserve] {
            if !run.is_none() {
                owners.claim(run.start, u32::from(run.blocks), owner, report);
            }
        }
        report.blocks_owned += state.owned_blocks();
        self.check_blocks(name, state, owner, report, owners)
    }

    /// Verifies every block of a file and every backward pointer in it.
    fn check_blocks(
        &mut self,
        name: &str,
        state: &FileState,
        owner: u32,
        report: &mut CheckReport,
        owners: &mut Owners,
    ) -> Result<()> {
        let count = state.block_count();
        let Some(left) = owners.blocks_left.checked_sub(u64::from(count)) else {
            let text = "with it the files hold more blocks than there are; it was not read";
            report.add(Some(name), None, true, text.to_owned());
            return Ok(());
        };
        owners.blocks_left = left;
        let mut addresses = vec![0_u32; count as usize];
        if let Some(last) = addresses.last_mut() {
            *last = state.tail.address;
        }
        let mut has_runs = false;
        for index in (0..count).rev() {
            if addresses[index as usize] == 0 && !has_runs {
                has_runs = true;
                self.places_in_runs(state, &mut addresses)?;
            }
            let address = addresses[index as usize];
            let offset = u64::from(index) * PAYLOAD_BYTES as u64;
            if address == 0 {
                let text = format!("the block at file offset {offset} cannot be reached");
                report.add(Some(name), None, true, text);
                continue;
            }
            if !owners.reads_first(address) {
                let text = format!("the block at file offset {offset} belongs to another place");
                report.add(Some(name), Some(u64::from(address)), true, text);
                continue;
            }
            match self.read_file_block(state, address, index) {
                Ok(header) => {
                    report.blocks_verified += 1;
                    if !owners.owns(address, owner) {
                        let text = format!(
                            "the block at file offset {offset} is not in a run of the file"
                        );
                        report.add(Some(name), Some(u64::from(address)), false, text);
                    }
                    note_pointers(&header, &mut addresses, name, report);
                }
                Err(Error::Damaged { .. }) => {
                    let text = format!("the block at file offset {offset} is damaged");
                    report.add(Some(name), Some(u64::from(address)), true, text);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn check_totals(&mut self, slots_seen: usize, report: &mut CheckReport, owners: &Owners) {
        let slots = self
            .root
            .slots
            .iter()
            .filter(|slot| slot.kind == SlotKind::Named)
            .count();
        if slots_seen != slots {
            let text = format!(
                "{slots} files are recorded as open for appending, the table holds {slots_seen} of them"
            );
            report.add(None, None, false, text);
        }
        if report.files != self.root.files {
            let text = format!(
                "the table holds {} files, the root counts {}",
                report.files, self.root.files
            );
            report.add(None, None, false, text);
        }
        if report.blocks_free != self.root.free_blocks {
            let text = format!(
                "{} blocks are free, the root counts {}",
                report.blocks_free, self.root.free_blocks
            );
            report.add(None, None, false, text);
        }
        let lost = owners.clusters.iter().filter(|owner| **owner == 0).count() as u64
            * u64::from(CLUSTER_BLOCKS);
        if lost > 0 {
            let text = format!("{lost} blocks are neither free nor owned by a file");
            report.add(None, None, false, text);
        }
    }
}

/// Compares the block's backward pointers with those of later blocks and records new ones.
fn note_pointers(header: &Header, addresses: &mut [u32], name: &str, report: &mut CheckReport) {
    for place in 0..POINTERS {
        let Some(target) = pointer_target(header.index, place) else {
            continue;
        };
        let known = &mut addresses[target as usize];
        if *known == 0 {
            *known = header.pointers[place];
        } else if *known != header.pointers[place] {
            let text =
                format!("its pointer to block {target} of the file differs from another block's");
            report.add(Some(name), Some(u64::from(header.address)), false, text);
            return;
        }
    }
}
