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
//!   write. The file may have been renamed since, or its name given to another file.
//! - **A damaged block** of a file stays, and reading it stays an error; nothing replaces the lost bytes. If it is the
//!   last block of the file, the file ends before it, or nothing could ever be appended. If it held a link of the list
//!   of the file's runs, and other blocks tell that link, it gets a new header. Its bytes stay lost.
//! - **Free space** is what no file owns, regardless of the old free list.
//! - **Blocks with two owners** stay with the file whose data is in them; the other file ends before them.
//! - **All records lost**: the table and the blocks themselves tell what each file holds.
//! - **Numbers used up**, in a forged image: the same, and the numbers continue from a point where enough of them are
//!   left.
//! - **A place for records that holds none** may have held the newest record. Blocks newer than the remaining record
//!   show the changes after it.
//!
//! Memory: one byte for each block of the device, 56 bytes for each block of the longest file, and a few hundred for
//! each file. A search for lost files needs 28 bytes more for each block found in clusters that no file is known to
//! own. For each block of the longest of them it needs 160 more. For 16 GiB that is 4 MiB, and up to 230 MiB, or 760
//! MiB, if one file fills all of it.

mod assemble;
mod blocks;
mod files;
mod newest_record;
mod owners;
mod report;
mod scan;
mod space;
mod state;
mod superblock;
mod unnamed_files;
mod write;

use base::block::{BlockDevice, DeviceError};

use crate::check::{AHEAD, CheckReport};
use crate::error::{Error, Part, Result};
use crate::layout::{Layout, RECORD_PLACE_BLOCKS, TABLE_COPIES};
use crate::numbers::{REPAIRED_COUNTER_MAX, REPAIRED_FILE_ID_MAX, SEQUENCE_STEP};
use crate::repair::state::Repair;
use crate::repair::superblock::choose_layout;
use crate::root::Root;
use crate::store::{OpenOptions, Store, is_readable};

pub use report::{Finding, LostFile, RepairReport};

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

impl<D: BlockDevice> Store<D> {
    /// Repairs the store on `device` as far as that is possible without inventing data, and returns the device. No
    /// other process may use the device meanwhile. From time to time `progress` gets the number of blocks read and
    /// written since its last call.
    ///
    /// It reads every block that a file owns, and all others only if lost files must be looked for. The report lists
    /// the findings; [`check`](Self::check) afterwards tells what is left: damaged bytes of files.
    ///
    /// # Errors
    /// [`Error::NotAStore`], [`Error::Version`] or [`Error::Damaged`] when no copy of the superblock is intact. Without
    /// it the blocks cannot be told from those of another store. [`Error::Device`] when the device fails. The repair
    /// can then be run again.
    pub fn repair(mut device: D, progress: &mut dyn FnMut(u64)) -> Result<(RepairReport, D)> {
        let layout = choose_layout(&mut device)?;
        let options = OpenOptions {
            open_files_max: 1,
            addresses_max: 0,
            read_only: true,
        };
        let mut repair = Repair::new(Self::assemble(device, layout, &options), progress);
        repair.run()?;
        Ok((repair.report, repair.store.device))
    }
}

impl<D: BlockDevice> Repair<'_, D> {
    fn run(&mut self) -> Result<()> {
        let written_before = self.store.device.counters().blocks_written;
        self.check_superblocks()?;
        self.recover_records()?;
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
            self.find_newer_changes()?;
            self.settle_files()?;
            self.check_free_space()?;
            let files = self.files.len() as u64;
            // The root may count more files because an interrupted repair has created a bucket again.
            if self.names_missing || self.store.root.files > files {
                self.release_newer()?;
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

    fn check_superblocks(&mut self) -> Result<()> {
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
    fn recover_records(&mut self) -> Result<()> {
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

    /// Returns whether there was a newer record than the one that the root is from. A bucket is written into the table
    /// only after its record is durable. The record after the newest complete one is at most a few numbers ahead.
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
    /// newer ones.
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
}
