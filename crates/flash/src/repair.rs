//! Repairing a damaged store: everything that can be repaired without inventing data is repaired, the rest comes back
//! as lost entries.
//!
//! A repair first reads everything and writes nothing. Its writes are ordered so that a power cut anywhere leaves a
//! store that another repair completes. First, damaged copies are written from intact ones. Then the records are
//! written, so that none of them is replayed any more. Then the table is written: first copies before second ones, and
//! lost buckets last, because they are the reason to look for lost files. Then new free lists are written, in free
//! space, and last the record that makes all of it valid. If nothing is wrong, or nothing can be repaired, nothing is
//! written.
//!
//! - **Copies** (superblock, records, table) are written again from the intact copy.
//! - **A lost bucket of the table** is created again. The files that no entry knows come back from their own blocks,
//!   called `lost-<file id>-<name>`. The name must be a new one, because the blocks only know the name at the first
//!   write: the file may have been renamed since, or its name given to another file.
//! - **A damaged block** of a file stays, and reading it stays an error; nothing replaces the lost bytes. If it is the
//!   last block of the file, the file ends before it, or nothing could ever be appended. If it held a link of the list
//!   of the file's runs, and other blocks tell that link, it gets a new header, but not its bytes.
//! - **Free space** is what no file owns, regardless of the old free list.
//! - **Blocks with two owners** stay with the file whose data is in them; the other file ends before them.
//! - **All records lost**: the table and the blocks themselves tell what each file holds.
//! - **Numbers used up**, in a forged image: the same, and the numbers continue from a point where enough of them are
//!   left.
//! - **A place for records that holds none** may have held the newest record. Blocks younger than the remaining record
//!   show the changes after it.
//!
//! Memory: one byte for each block of the device, 56 bytes for each block of the longest file, and a few hundred for
//! each file. If lost files must be looked for, 28 bytes more for each block found in clusters that no file is known to
//! own, and 160 more for each block of the longest of them. For 16 GiB that is 4 MiB, and up to 230 MiB, or 760 MiB, if
//! one file fills all of it.

use std::collections::{BTreeMap, BTreeSet};

use base::block::{BlockDevice, DeviceError};

use crate::check::{AHEAD, CheckReport};
use crate::error::{Error, Part, Result};
use crate::layout::{Layout, RECORD_PLACE_BLOCKS, TABLE_COPIES};
use crate::numbers::{REPAIRED_COUNTER_MAX, REPAIRED_FILE_ID_MAX, SEQUENCE_STEP};
use crate::repair_files::FoundFile;
use crate::repair_scan::Scan;
use crate::repair_space::{FreeSpace, OWNER_FREE, Owners};
use crate::repair_superblock::choose_layout;
use crate::root::Root;
use crate::store::{OpenOptions, Store, is_readable};

/// Maximum number of findings listed one by one; further ones are only counted.
const FINDINGS_LISTED_MAX: usize = 1000;
/// Blocks read or written between two calls of `progress`.
const PROGRESS_STEP_BLOCKS: u64 = 256;
/// Added to the counters when no record tells them: more than were in use beyond the numbers that blocks show.
const COUNTER_STEP: u64 = 1 << 16;

/// Maximum distance from the number of the record that recovery finds to the number of the record that it writes.
const RECORD_STEP_MAX: u64 = 3;

/// The counters that records hold.
#[derive(Default)]
struct RecordCounters {
    record_sequence: u64,
    next_file_id: u64,
    next_sequence: u64,
    mounts: u64,
}

/// One problem found, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The affected file, if it is known.
    pub file: Option<String>,
    /// The block in which the problem was found, if there is one.
    pub block: Option<u64>,
    /// The problem, and what was done about it.
    pub text: String,
    /// Whether the problem is repaired.
    pub mended: bool,
    /// Whether bytes or the name of a file are lost.
    pub data_lost: bool,
}

impl std::fmt::Display for Finding {
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

/// A file that came back under another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// The name that it has now.
    pub name: String,
    /// Its identity.
    pub file_id: u64,
    /// Bytes in the file.
    pub length_bytes: u64,
    /// Of these, bytes in damaged blocks; reading them is an error.
    pub damaged_bytes: u64,
    /// Whether the file may have been deleted before: other damage, to the list of free blocks or to a file that took
    /// over its blocks, leaves that open.
    pub may_be_old: bool,
}

/// The results of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Files in the store afterwards.
    pub files: u64,
    /// Blocks that no file owns afterwards.
    pub blocks_free: u64,
    /// Blocks of files that are intact.
    pub blocks_verified: u64,
    /// Blocks that the repair wrote; 0 if there was nothing to repair.
    pub blocks_written: u64,
    /// Whether no record was left, or not the newest one, or its numbers were used up. Files may then have back the
    /// bytes that the last calls cut off their end.
    pub root_rebuilt: bool,
    /// Whether bytes or names of files are lost.
    pub data_lost: bool,
    /// The first findings.
    pub findings: Vec<Finding>,
    /// All findings.
    pub findings_total: u64,
    /// Files that came back without their names.
    pub lost_files: Vec<LostFile>,
    /// Files that were found but have no name by which they can be opened, because the table has no room for one. Their
    /// blocks stay reserved; a repair after some files were deleted gives them names.
    pub files_unnamed: u64,
}

impl RepairReport {
    /// Returns whether no problem was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

/// A repair in progress.
pub(crate) struct Repair<'p, D: BlockDevice> {
    pub(crate) store: Store<D>,
    pub(crate) report: RepairReport,
    progress: &'p mut dyn FnMut(u64),
    blocks_told: u64,
    pub(crate) owners: Owners,
    pub(crate) files: Vec<FoundFile>,
    /// The changed buckets of the table, with their new content.
    pub(crate) buckets: BTreeMap<u32, Vec<u8>>,
    /// Buckets of which both copies are damaged.
    pub(crate) lost_buckets: BTreeSet<u32>,
    /// Copies of buckets to write from the other copy: address of the damaged copy, bucket.
    pub(crate) stale_copies: Vec<(u64, u32)>,
    pub(crate) superblocks: Vec<u64>,
    /// Blocks for records that the device cannot read.
    pub(crate) unreadable_records: BTreeSet<u64>,
    /// The record number to write into changed buckets.
    pub(crate) table_sequence: u64,
    pub(crate) table_sequence_max: u64,
    /// Whether entries of the table are known to be gone: files without a name may be lost ones.
    pub(crate) names_missing: bool,
    /// Whether the records do not tell the state of the store.
    pub(crate) rootless: bool,
    /// Whether the records themselves must be written again.
    pub(crate) root_changed: bool,
    /// The new list of free blocks, if one is needed.
    pub(crate) free_space: Option<FreeSpace>,
    /// The list of free blocks that is valid until the table is written, if files are found to have grown.
    pub(crate) free_space_first: Option<FreeSpace>,
    /// Spilled lists to write in place again, with their clusters.
    pub(crate) lists_again: Vec<(u32, Vec<u8>)>,
    /// Clusters of the current free list that must not be overwritten before the new record.
    pub(crate) trunks_old: BTreeSet<u32>,
    pub(crate) free_list_damaged: bool,
    /// Whether damaged blocks were given a header again.
    pub(crate) blocks_marked: bool,
    /// Whether a record younger than the remaining one may be lost without a trace.
    pub(crate) newest_in_doubt: bool,
    /// In that case, the blocks that were written since.
    pub(crate) younger: Option<Scan>,
    /// Whether files were changed after the newest remaining record.
    pub(crate) is_younger: bool,
    /// The root as it was found, with younger states of files added.
    pub(crate) root_found: Root,
    /// Slots of the root whose files the table does not know.
    pub(crate) slots_lost: Vec<usize>,
    /// For each lost file, the number of bytes lost from its end.
    pub(crate) lost_ends: Vec<u64>,
    /// Files that have no entry in the table because there was no room in it.
    pub(crate) files_unplaced: u64,
}

impl<D: BlockDevice> Store<D> {
    /// Repairs the store on `device` as far as that is possible without inventing data, and returns the device. No
    /// other process may use the device meanwhile. From time to time `progress` gets the number of blocks read and
    /// written since its last call.
    ///
    /// It reads every block that a file owns, and all others only if lost files must be looked for. The report lists
    /// the findings; [`check`](Self::check) afterwards tells what is left: damaged bytes of files.
    ///
    /// # Errors
    /// [`Error::NotAStore`], [`Error::Version`] or [`Error::Damaged`] when no copy of the superblock is intact: without
    /// it the blocks cannot be told from those of another store; [`Error::Device`] when the device fails. The repair
    /// can then be run again.
    pub fn repair(mut device: D, progress: &mut dyn FnMut(u64)) -> Result<(RepairReport, D)> {
        let layout = choose_layout(&mut device)?;
        let options = OpenOptions {
            open_files_max: 1,
            addresses_max: 0,
            read_only: true,
        };
        let owners = Owners::new(&layout);
        let root_found = Root::new(&layout);
        let mut repair = Repair {
            store: Self::assemble(device, layout, &options),
            report: RepairReport::default(),
            progress,
            blocks_told: 0,
            owners,
            files: Vec::new(),
            buckets: BTreeMap::new(),
            lost_buckets: BTreeSet::new(),
            stale_copies: Vec::new(),
            superblocks: Vec::new(),
            unreadable_records: BTreeSet::new(),
            table_sequence: 0,
            table_sequence_max: 0,
            names_missing: false,
            rootless: false,
            root_changed: false,
            free_space: None,
            free_space_first: None,
            lists_again: Vec::new(),
            trunks_old: BTreeSet::new(),
            free_list_damaged: false,
            blocks_marked: false,
            newest_in_doubt: false,
            younger: None,
            is_younger: false,
            root_found,
            slots_lost: Vec::new(),
            lost_ends: Vec::new(),
            files_unplaced: 0,
        };
        repair.run()?;
        Ok((repair.report, repair.store.device))
    }
}

impl<D: BlockDevice> Repair<'_, D> {
    pub(crate) fn find(
        &mut self,
        file: Option<&str>,
        block: Option<u64>,
        mended: bool,
        data_lost: bool,
        text: String,
    ) {
        self.report.findings_total += 1;
        self.report.data_lost |= data_lost;
        if self.report.findings.len() < FINDINGS_LISTED_MAX {
            self.report.findings.push(Finding {
                file: file.map(str::to_owned),
                block,
                text,
                mended,
                data_lost,
            });
        }
    }

    pub(crate) fn note_progress(&mut self) {
        let counters = self.store.device.counters();
        let now = counters.blocks_read + counters.blocks_written;
        // Do not report every block: the caller may print a line for each call.
        if now >= self.blocks_told + PROGRESS_STEP_BLOCKS {
            (self.progress)(now - self.blocks_told);
            self.blocks_told = now;
        }
    }

    fn run(&mut self) -> Result<()> {
        let written_before = self.store.device.counters().blocks_written;
        self.look_at_superblocks()?;
        self.look_at_records()?;
        self.table_sequence = if self.rootless {
            self.store.root.record_sequence + 1
        } else {
            // The number of the record that replaces the present ones before the table is changed.
            self.store.root.record_sequence + RECORD_STEP_MAX
        };
        self.root_found = self.store.root.clone();
        self.read_table()?;
        self.match_slots()?;
        self.report_lost_buckets();
        if self.rootless {
            self.rebuild_files()?;
        } else {
            self.look_for_younger()?;
            self.settle_files()?;
            self.check_free_space()?;
            let files = self.files.len() as u64;
            // The root may count more files because an interrupted repair has created a bucket again.
            if self.names_missing || self.store.root.files > files {
                self.release_younger()?;
                self.bring_back_lost_files()?;
            }
        }
        self.report_lost_files();
        self.settle_totals();
        if self.needs_writing() {
            self.write()?;
        }
        let counters = self.store.device.counters();
        self.report.blocks_written = counters.blocks_written - written_before;
        self.report.files = self.store.root.files;
        self.report.blocks_free = self.store.statistics().blocks_free;
        Ok(())
    }

    fn look_at_superblocks(&mut self) -> Result<()> {
        let geometry = self.store.device.geometry();
        for place in self.store.layout.superblocks() {
            let read = self
                .store
                .device
                .read(place, self.store.scratch.block_mut(0));
            let same = is_readable(read)?
                && Layout::decode(self.store.scratch.block(0), geometry)
                    .ok()
                    .as_ref()
                    == Some(&self.store.layout);
            if !same {
                self.superblocks.push(place);
                let text = "a copy of the superblock was damaged; written again from another one";
                self.find(None, Some(place), true, false, text.to_owned());
            }
        }
        Ok(())
    }

    /// Recovers the root in memory. Notes whether there is none, or not the newest one.
    fn look_at_records(&mut self) -> Result<()> {
        let mut is_overlay_kept = false;
        match self.store.recover() {
            Ok(()) => {
                let is_outdated = self.is_root_outdated()? || self.has_lost_newer_image()?;
                let root = &self.store.root;
                let is_worn_out =
                    root.has_no_changes_left(self.store.sequence) || root.has_no_file_ids_left();
                self.rootless = is_outdated || is_worn_out;
                if self.rootless && !is_outdated {
                    // The blocks carried by that record are still valid, and may not be in place yet.
                    is_overlay_kept = true;
                    let text = "the numbers in the newest commit record were used up, which a store does not do by \
                                itself; it has lower ones again, and what each file holds was found from the table \
                                and its blocks";
                    let block = self.store.layout.record_block(u64::from(root.place));
                    self.find(None, Some(block), true, false, text.to_owned());
                } else if self.rootless {
                    let text = "the newest commit record was lost, as a younger table or remains of it show; what \
                                each file holds was found from the table and its blocks, up to the first damaged end";
                    self.find(None, None, true, false, text.to_owned());
                } else {
                    self.newest_in_doubt = self.is_newest_in_doubt()?;
                    let mut report = CheckReport::default();
                    self.store.check_records(&mut report)?;
                    if report.records_incomplete {
                        self.root_changed = true;
                        let text = "a copy of a commit record was incomplete, as after a power cut; written again";
                        self.find(None, None, true, false, text.to_owned());
                    }
                }
            }
            Err(Error::Damaged {
                part: Part::Record, ..
            })
            | Err(Error::Device(DeviceError::Io { .. })) => {
                self.is_root_outdated()?;
                self.rootless = true;
                let text = "every commit record was lost; what each file holds was found from the table and from \
                            its blocks, up to the first damaged end";
                self.find(
                    None,
                    Some(self.store.layout.record_block(0)),
                    true,
                    false,
                    text.to_owned(),
                );
            }
            Err(error) => return Err(error),
        }
        if let Some(block) = self.unreadable_records.first().copied() {
            self.root_changed = true;
            let text = "the device could not read all blocks for commit records; written again";
            self.find(None, Some(block), true, false, text.to_owned());
        }
        if self.rootless {
            self.report.root_rebuilt = true;
            self.root_changed = true;
            let left = self.counters_of_records()?;
            let mut root = Root::new(&self.store.layout);
            let record_sequence = left.record_sequence.max(self.table_sequence_max);
            root.record_sequence = record_sequence.min(REPAIRED_COUNTER_MAX);
            if left.next_file_id < REPAIRED_FILE_ID_MAX {
                root.next_file_id = left.next_file_id.max(1);
            }
            root.mounts = left.mounts;
            root.place = self.store.root.place;
            self.store.root = root;
            self.store.sequence = left.next_sequence;
            if !is_overlay_kept {
                self.store.overlay.clear();
            }
            self.store.quarantine_count = 0;
        }
        Ok(())
    }

    /// Returns whether there was a younger record than the one that the root is from. A bucket is written into the
    /// table only after its record is durable, and the record after the newest complete one is at most a few numbers
    /// ahead.
    fn is_root_outdated(&mut self) -> Result<bool> {
        for bucket in 0..self.store.layout.bucket_count {
            for copy in 0..TABLE_COPIES {
                let sequence = self.sequence_of_copy(bucket, copy)?;
                self.table_sequence_max = self.table_sequence_max.max(sequence.unwrap_or(0));
            }
            self.note_progress();
        }
        let root = self.store.root.record_sequence;
        let left = self.counters_of_records()?.record_sequence;
        Ok(self.table_sequence_max > root || left > root + RECORD_STEP_MAX)
    }

    /// Returns the number of the record that an intact copy of a bucket is from.
    pub(crate) fn sequence_of_copy(&mut self, bucket: u32, copy: u64) -> Result<Option<u64>> {
        let address = self.store.layout.bucket_block(bucket) + copy;
        let read = self
            .store
            .device
            .read(address, self.store.scratch.block_mut(1));
        if !is_readable(read)? {
            return Ok(None);
        }
        let opened = self.store.bucket_at(bucket, 1).ok();
        Ok(opened.map(|bucket| bucket.record_sequence()))
    }

    /// Without a root: finds the content of every file of the table, and the files that no entry knows.
    fn rebuild_files(&mut self) -> Result<()> {
        let scan = self.scan_unowned()?;
        self.store.sequence = self.store.sequence.max(scan.sequence_max);
        let root = &mut self.store.root;
        let record_sequence = scan.record_sequence_max.min(REPAIRED_COUNTER_MAX);
        root.record_sequence = root.record_sequence.max(record_sequence);
        let file_id_max = root.next_file_id.max(scan.file_id_max);
        root.next_file_id = file_id_max + COUNTER_STEP;
        let tails = self.files.iter().map(|file| file.state.tail.sequence);
        let sequence = self.store.sequence.max(tails.max().unwrap_or(0)) + SEQUENCE_STEP;
        self.store.sequence = sequence.min(REPAIRED_COUNTER_MAX);
        self.renumber_table()?;
        self.rebuild_known_files(&scan)?;
        if self.names_missing {
            self.put_back_remains(&scan)?;
            self.doubt_lost_files(0);
        }
        self.make_free_space();
        Ok(())
    }

    /// Renumbers buckets whose record numbers are greater than those of the new records: they would be taken for
    /// younger ones.
    fn renumber_table(&mut self) -> Result<()> {
        for bucket in 0..self.store.layout.bucket_count {
            if self.lost_buckets.contains(&bucket) {
                continue;
            }
            self.store.read_bucket(bucket, 1)?;
            let sequence = self.store.bucket_at(bucket, 1)?.record_sequence();
            if sequence > self.table_sequence {
                self.change_bucket(bucket, |_, _| {})?;
            }
            self.note_progress();
        }
        Ok(())
    }

    /// Returns the highest numbers in the remains of records, even if the remains are too little to be a record.
    fn counters_of_records(&mut self) -> Result<RecordCounters> {
        let mut counters = RecordCounters::default();
        for place in 0..2 {
            for block in 0..RECORD_PLACE_BLOCKS {
                let address = self.store.layout.record_block(place) + block;
                let read = self
                    .store
                    .device
                    .read(address, self.store.scratch.block_mut(0));
                if !is_readable(read)? {
                    self.unreadable_records.insert(address);
                    continue;
                }
                let left = Root::decode(self.store.scratch.block(0), &self.store.layout);
                if let Some((left, _)) = left {
                    counters.record_sequence = counters.record_sequence.max(left.record_sequence);
                    counters.next_file_id = counters.next_file_id.max(left.next_file_id);
                    counters.next_sequence = counters.next_sequence.max(left.next_sequence);
                    counters.mounts = counters.mounts.max(left.mounts);
                }
            }
        }
        Ok(counters)
    }

    fn settle_totals(&mut self) {
        let ids = self.files.iter().map(|file| file.state.file_id);
        // A greater, forged identity would leave none for other files.
        let id_max = ids.filter(|id| *id < REPAIRED_FILE_ID_MAX).max();
        let root = &mut self.store.root;
        if let Some(id) = id_max.filter(|id| *id >= root.next_file_id) {
            root.next_file_id = id + 1;
            self.root_changed = true;
        }
        for index in 0..self.files.len() {
            let file = &self.files[index];
            if file.state.is_ahead_of(self.store.sequence) {
                let (name, block) = (file.name.clone(), u64::from(file.state.tail.address));
                self.find(Some(&name), Some(block), false, false, AHEAD.to_owned());
            }
        }
        let root = &mut self.store.root;
        let files = self.files.len() as u64 + self.files_unplaced;
        if root.files != files {
            let text = format!("the root counted {} files, there are {files}", root.files);
            let is_loss = root.files > files && !self.rootless;
            root.files = files;
            self.root_changed = true;
            if is_loss {
                let text = format!("{text}; the others were empty, or nothing of them is left");
                self.find(None, None, true, true, text);
            } else if !self.rootless {
                self.find(None, None, true, false, text);
            }
        }
        let unowned = self.owners.blocks_unowned();
        if self.rootless || (unowned == 0 && !self.free_list_damaged) {
            return;
        }
        if unowned > 0 && !self.free_list_damaged {
            let text = format!("{unowned} blocks were neither free nor a file's; they are free");
            self.find(None, None, true, false, text);
        }
        self.make_free_space();
    }

    fn needs_writing(&self) -> bool {
        self.root_changed
            || self.blocks_marked
            || self.free_space.is_some()
            || !self.superblocks.is_empty()
            || !self.stale_copies.is_empty()
            || !self.lists_again.is_empty()
            || !self.buckets.is_empty()
            || !self.lost_buckets.is_empty()
    }

    /// Claims clusters that are free according to the list of free blocks.
    pub(crate) fn claim_free(&mut self, start: u32, blocks: u32) -> bool {
        self.owners.claim(start, blocks, OWNER_FREE).is_none()
    }
}
