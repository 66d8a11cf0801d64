//! A repair in progress: what it has found, and what it will write.

use std::collections::{BTreeMap, BTreeSet};

use base::block::BlockDevice;

use crate::repair::owners::{FreeSpace, OWNER_FREE, Owners};
use crate::repair::report::{Finding, RepairReport};
use crate::repair::scan::Scan;
use crate::root::{FileState, Root};
use crate::store::Store;

/// Maximum number of findings listed one by one; further ones are only counted.
const FINDINGS_LISTED_MAX: usize = 1000;
/// Blocks read or written between two calls of `progress`.
const PROGRESS_STEP_BLOCKS: u64 = 256;

/// A file that the table names.
pub(crate) struct FoundFile {
    pub(crate) name: String,
    pub(crate) bucket: u32,
    pub(crate) entry: u16,
    /// Number of the record that its bucket is from.
    pub(crate) record_sequence: u64,
    /// Whether it cannot be found at its place, or not by this name.
    pub(crate) is_misplaced: bool,
    /// The slot of the root that holds its state, if one does.
    pub(crate) slot: Option<usize>,
    pub(crate) state: FileState,
}

impl FoundFile {
    /// A file that has just been given a name.
    pub(crate) fn new(name: String, bucket: u32, entry: u16, state: FileState) -> Self {
        Self {
            name,
            bucket,
            entry,
            record_sequence: 0,
            is_misplaced: false,
            slot: None,
            state,
        }
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
    /// Whether a record newer than the remaining one may be lost without a trace.
    pub(crate) newest_in_doubt: bool,
    /// In that case, the blocks that were written since.
    pub(crate) newer: Option<Scan>,
    /// Whether files were changed after the newest remaining record.
    pub(crate) has_newer: bool,
    /// The root as it was found, with newer states of files added.
    pub(crate) root_found: Root,
    /// Slots of the root whose files the table does not know.
    pub(crate) slots_lost: Vec<usize>,
    /// For each lost file, the number of bytes lost from its end.
    pub(crate) lost_ends: Vec<u64>,
    /// Files that have no entry in the table because there was no room in it.
    pub(crate) files_unplaced: u64,
}

impl<'p, D: BlockDevice> Repair<'p, D> {
    /// A repair of `store` that has found nothing yet.
    pub(crate) fn new(store: Store<D>, progress: &'p mut dyn FnMut(u64)) -> Self {
        let owners = Owners::new(&store.layout);
        let root_found = Root::new(&store.layout);
        Self {
            store,
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
            newer: None,
            has_newer: false,
            root_found,
            slots_lost: Vec::new(),
            lost_ends: Vec::new(),
            files_unplaced: 0,
        }
    }

    /// Adds a finding to the report.
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

    /// Claims clusters that are free according to the list of free blocks.
    pub(crate) fn claim_free(&mut self, start: u32, blocks: u32) -> bool {
        self.owners.claim(start, blocks, OWNER_FREE).is_none()
    }
}
