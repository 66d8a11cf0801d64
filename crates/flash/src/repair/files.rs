//! The files of a store under repair: the entries of the table, and the blocks that the files own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::block::PAYLOAD_BYTES;
use crate::error::Result;
use crate::layout::{CLUSTER_BLOCKS, TABLE_COPIES};
use crate::repair::blocks::{Brief, Fate, FoundRun, Settled, state_from};
use crate::repair::owners::{OWNER_HIDDEN, OWNER_NONE, file_of_owner, owner_of_file};
use crate::repair::scan::Scan;
use crate::repair::state::{FoundFile, Repair};
use crate::root::{FileState, Run, SLOTS_MAX, Slot, SlotKind};
use crate::store::is_readable;
use crate::table::{
    buckets_of, format_bucket, seal_bucket, set_entry, set_entry_state, validate_name,
};

/// Maximum total size that files may claim, as a multiple of the data blocks. A file beyond it is treated as empty.
const FILES_DEPTH_MAX: u64 = 8;
/// Maximum number of rounds in which files that own blocks of others are shortened.
const CONTESTS_MAX: usize = 8;

/// Clusters that several files own, with the indices of these files.
type Contested = BTreeMap<u32, BTreeSet<usize>>;

impl<D: BlockDevice> Repair<'_, D> {
    // ---- the table ----

    /// Reads every entry and separates those that are in a wrong place.
    pub(crate) fn read_table(&mut self) -> Result<()> {
        let mut found = Vec::new();
        for bucket in 0..self.store.layout.bucket_count {
            if self.check_copies(bucket)? {
                self.read_entries(bucket, &mut found)?;
            }
            self.note_progress();
        }
        // Correctly placed entries first, and among them the newer ones first.
        found.sort_by_key(|file| (file.is_misplaced, std::cmp::Reverse(file.record_sequence)));
        let mut names = BTreeSet::new();
        let mut ids = BTreeSet::new();
        let mut misplaced = Vec::new();
        for file in found {
            if !ids.insert(file.state.file_id) {
                self.clear_entry(file.bucket, file.entry)?;
                let text = "the name table had another name for this file; this one was dropped";
                self.find(Some(&file.name), None, true, false, text.to_owned());
            } else if file.is_misplaced || !names.insert(file.name.clone()) {
                misplaced.push(file);
            } else {
                self.files.push(file);
            }
        }
        for file in misplaced {
            let is_free = validate_name(&file.name, self.store.layout.name_bytes_max).is_ok()
                && names.insert(file.name.clone());
            self.put_back_misplaced(file, is_free)?;
        }
        Ok(())
    }

    /// Notes damaged copies of a bucket. Returns whether one copy is intact.
    fn check_copies(&mut self, bucket: u32) -> Result<bool> {
        let address = self.store.layout.bucket_block(bucket);
        if self.store.is_overlaid(address) {
            // A record holds the bucket; both copies will be written from there.
            return Ok(true);
        }
        let mut sequences = [None; TABLE_COPIES as usize];
        for (copy, sequence) in sequences.iter_mut().enumerate() {
            let block = self.store.scratch.block_mut(1 + copy);
            if is_readable(self.store.device.read(address + copy as u64, block))? {
                let opened = self.store.bucket_at(bucket, 1 + copy).ok();
                *sequence = opened.map(|bucket| bucket.record_sequence());
            }
        }
        let same = self.store.scratch.block(1) == self.store.scratch.block(2);
        let text = match sequences {
            [None, None] => {
                self.names_missing = true;
                self.lost_buckets.insert(bucket);
                return Ok(false);
            }
            [Some(_), Some(_)] if same => return Ok(true),
            [Some(_), Some(_)] => {
                "a copy of this part of the name table was outdated; written again from the other"
            }
            _ => "a copy of this part of the name table was damaged; written again from the other",
        };
        // Of two equally old copies the first one is used.
        let stale = address + u64::from(sequences[0] >= sequences[1]);
        self.stale_copies.push((stale, bucket));
        self.find(None, Some(stale), true, false, text.to_owned());
        Ok(true)
    }

    fn read_entries(&mut self, bucket: u32, found: &mut Vec<FoundFile>) -> Result<()> {
        self.store.read_bucket(bucket, 1)?;
        let layout = &self.store.layout;
        let opened = self.store.bucket_at(bucket, 1)?;
        let mut senseless = Vec::new();
        for entry in 0..layout.entries_per_bucket {
            let Some((name, state)) = opened.get(entry) else {
                if opened.is_used(entry) {
                    senseless.push(entry);
                }
                continue;
            };
            let is_right = validate_name(name, layout.name_bytes_max).is_ok()
                && buckets_of(name, layout).contains(&bucket);
            found.push(FoundFile {
                name: name.to_owned(),
                bucket,
                entry,
                record_sequence: opened.record_sequence(),
                is_misplaced: !is_right,
                slot: None,
                state,
            });
        }
        let address = Some(layout.bucket_block(bucket));
        for entry in senseless {
            self.names_missing = true;
            self.clear_entry(bucket, entry)?;
            let text = "an entry of the name table made no sense; its name is lost";
            self.find(None, address, true, true, text.to_owned());
        }
        Ok(())
    }

    /// Returns a bucket with its new content.
    pub(crate) fn bucket_content(&mut self, bucket: u32) -> Result<Vec<u8>> {
        if let Some(block) = self.buckets.get(&bucket) {
            return Ok(block.clone());
        }
        if self.lost_buckets.contains(&bucket) {
            let mut block = vec![0; BLOCK_BYTES];
            format_bucket(&mut block, bucket, &self.store.layout);
            return Ok(block);
        }
        self.store.read_bucket(bucket, 1)?;
        Ok(self.store.scratch.block(1).to_vec())
    }

    /// Changes a bucket in memory.
    pub(crate) fn change_bucket(
        &mut self,
        bucket: u32,
        change: impl FnOnce(&mut [u8], &crate::layout::Layout),
    ) -> Result<()> {
        let mut block = self.bucket_content(bucket)?;
        change(&mut block, &self.store.layout);
        seal_bucket(&mut block, bucket, self.table_sequence, &self.store.layout);
        self.buckets.insert(bucket, block);
        Ok(())
    }

    pub(crate) fn clear_entry(&mut self, bucket: u32, entry: u16) -> Result<()> {
        self.change_bucket(bucket, |block, layout| {
            set_entry(block, entry, None, layout)
        })
    }

    /// Writes the state of a file to its new place: its slot of the root, or its entry of the table.
    pub(crate) fn put_state(&mut self, index: usize) -> Result<()> {
        let file = &self.files[index];
        let (bucket, entry, state) = (file.bucket, file.entry, file.state);
        let Some(slot) = file.slot else {
            return self.change_bucket(bucket, |block, layout| {
                set_entry_state(block, entry, &state, layout);
            });
        };
        self.store.root.slots[slot] = Slot {
            kind: SlotKind::Named,
            bucket,
            entry,
            state,
        };
        self.root_changed = true;
        Ok(())
    }

    /// Finds the files of the slots. The states in the slots are newer than those in the table.
    pub(crate) fn match_slots(&mut self) -> Result<()> {
        let by_id: HashMap<u64, usize> = (0..self.files.len())
            .map(|index| (self.files[index].state.file_id, index))
            .collect();
        for slot in 0..SLOTS_MAX {
            let Slot {
                kind,
                bucket,
                entry,
                state,
            } = self.store.root.slots[slot];
            if kind != SlotKind::Named {
                continue;
            }
            let index = by_id.get(&state.file_id).copied();
            let Some(index) = index.filter(|index| self.files[*index].slot.is_none()) else {
                self.slots_lost.push(slot);
                self.names_missing |= index.is_none();
                continue;
            };
            let file = &mut self.files[index];
            file.slot = Some(slot);
            file.state = state;
            if (file.bucket, file.entry) != (bucket, entry) {
                let name = file.name.clone();
                let text = "the root had it in another place of the name table; corrected";
                self.find(Some(&name), None, true, false, text.to_owned());
                self.put_state(index)?;
            }
        }
        Ok(())
    }

    /// Reports which parts of the table are lost, and whether names are lost with them: the root knows how many files
    /// there were.
    pub(crate) fn report_lost_buckets(&mut self) {
        let files = self.files.len() as u64 + self.files_unplaced;
        let are_all_there = !self.rootless
            && !self.newest_in_doubt
            && self.store.root.files <= files
            && self.slots_lost.is_empty();
        self.names_missing &= !are_all_there;
        let text = if are_all_there {
            "both copies of this part of the name table were damaged; it held no names; made anew"
        } else {
            "both copies of this part of the name table were damaged, its names are lost; made anew"
        };
        for bucket in self.lost_buckets.clone() {
            let address = self.store.layout.bucket_block(bucket);
            self.find(None, Some(address), true, !are_all_there, text.to_owned());
        }
    }

    // ---- what files own ----

    /// Examines every block of every file, and assigns each cluster to the file that owns it.
    pub(crate) fn settle_files(&mut self) -> Result<()> {
        let mut contested = Contested::new();
        let mut hidden = Vec::new();
        let mut blocks_left = self.store.layout.data_blocks() * FILES_DEPTH_MAX;
        for index in 0..self.files.len() {
            let mut state = self.files[index].state;
            match blocks_left.checked_sub(u64::from(state.block_count())) {
                Some(left) => blocks_left = left,
                None => state = FileState::empty(state.file_id),
            }
            let settled = self.settle(&state)?;
            self.take_settled(index, &settled)?;
            self.claim_runs(index, &settled.runs, &mut contested);
            hidden.extend(settled.hidden);
        }
        for _ in 0..CONTESTS_MAX {
            if contested.is_empty() {
                break;
            }
            self.settle_contest(&contested)?;
            contested.clear();
            self.owners.clear();
            for index in 0..self.files.len() {
                let runs = {
                    let state = self.files[index].state;
                    self.runs_of(&state)?
                };
                self.claim_runs(index, &runs.found, &mut contested);
            }
        }
        for block in contested.keys() {
            let text = "several files own this block, and it could not be found out whose it is";
            self.find(None, Some(u64::from(*block)), false, false, text.to_owned());
        }
        self.hide(&hidden);
        Ok(())
    }

    /// Marks runs that hold blocks of a file but that no list leads to as hidden.
    pub(crate) fn hide(&mut self, runs: &[FoundRun]) {
        for run in runs {
            self.owners.claim(run.start, run.blocks, OWNER_HIDDEN);
        }
    }

    fn claim_runs(&mut self, index: usize, runs: &[FoundRun], contested: &mut Contested) {
        for run in runs {
            for block in (run.start..run.start + run.blocks).step_by(CLUSTER_BLOCKS as usize) {
                let taken = self
                    .owners
                    .claim(block, CLUSTER_BLOCKS, owner_of_file(index));
                if let Some(other) = taken.and_then(|(_, owner)| file_of_owner(owner)) {
                    contested.entry(block).or_default().extend([index, other]);
                }
            }
        }
    }

    /// Assigns runs without an owner to the file.
    pub(crate) fn claim_settled(&mut self, index: usize, settled: &Settled) {
        self.claim_runs(index, &settled.runs, &mut Contested::new());
        self.hide(&settled.hidden);
    }

    /// Returns whether none of the runs has an owner.
    pub(crate) fn is_unowned(&self, settled: &Settled) -> bool {
        let mut runs = settled.runs.iter().chain(&settled.hidden);
        runs.all(|run| {
            self.store.layout.is_data_run(run.start, run.blocks)
                && (run.start..run.start + run.blocks)
                    .step_by(CLUSTER_BLOCKS as usize)
                    .all(|block| self.owners.of(block) == OWNER_NONE)
        })
    }

    /// Reports the findings about a file, and keeps its new state.
    pub(crate) fn take_settled(&mut self, index: usize, settled: &Settled) -> Result<()> {
        let name = self.files[index].name.clone();
        let (before, after) = (self.files[index].state, settled.state);
        let (length, length_after) = (before.length(), after.length());
        if length_after < length {
            let text = format!(
                "its end was damaged; it is {length_after} bytes long now instead of {length}, and can grow again"
            );
            self.find(
                Some(&name),
                Some(u64::from(before.tail.address)),
                true,
                true,
                text,
            );
        }
        self.report_blocks(&name, settled);
        if before != after {
            if length_after == length && settled.markers.is_empty() {
                let text = "its full runs were counted wrongly; corrected";
                self.find(Some(&name), None, true, false, text.to_owned());
            }
            self.files[index].state = after;
            self.put_state(index)?;
        }
        Ok(())
    }

    pub(crate) fn report_blocks(&mut self, name: &str, settled: &Settled) {
        for (index, step) in settled.steps.iter().enumerate() {
            if step.brief().is_some() {
                self.report.blocks_verified += 1;
                continue;
            }
            let offset = index as u64 * PAYLOAD_BYTES as u64;
            let what = match step.fate {
                Fate::Unreachable => "cannot be reached",
                _ => "is damaged",
            };
            let text =
                format!("the block at file offset {offset} {what}; reading it stays an error");
            let address = (step.address != 0).then_some(u64::from(step.address));
            self.find(Some(name), address, false, true, text);
        }
        self.blocks_marked |= !settled.markers.is_empty();
        for block in &settled.markers {
            let text = "it had the link to the file's earlier runs, which was made again from other blocks";
            self.find(
                Some(name),
                Some(u64::from(*block)),
                true,
                false,
                text.to_owned(),
            );
        }
        if !settled.is_linked {
            let text = "the list of its runs is damaged; when it is deleted, some of its blocks become free only when \
                        the store is repaired again";
            self.find(Some(name), None, false, false, text.to_owned());
        }
    }

    /// Leaves each cluster that several files own to the file whose block in it is the newest. The other files end
    /// before it.
    fn settle_contest(&mut self, contested: &Contested) -> Result<()> {
        let mut forbidden: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        for (cluster, claimants) in contested {
            let mut winner = None;
            for block in *cluster..*cluster + CLUSTER_BLOCKS {
                let Some(header) = self.read_header(block)? else {
                    continue;
                };
                let is_of = |index: &&usize| self.files[**index].state.file_id == header.file_id;
                if let Some(index) = claimants.iter().find(is_of) {
                    winner = winner.max(Some((header.sequence, *index)));
                }
            }
            for index in claimants {
                if winner.is_none_or(|(_, winner)| winner != *index) {
                    forbidden.entry(*index).or_default().insert(*cluster);
                }
            }
        }
        for (index, clusters) in forbidden {
            self.keep_out(index, &clusters)?;
        }
        Ok(())
    }

    /// Makes a file end before its first run that touches one of the clusters.
    fn keep_out(&mut self, index: usize, clusters: &BTreeSet<u32>) -> Result<()> {
        let mut state = self.files[index].state;
        let touches =
            |start: u32, blocks: u32| clusters.range(start..start + blocks).next().is_some();
        let reserve = state.reserve;
        if touches(reserve.start, u32::from(reserve.blocks)) {
            state.reserve = Run::default();
        }
        let runs = self.runs_of(&state)?;
        if runs.found.iter().any(|run| touches(run.start, run.blocks)) {
            // Use the blocks themselves, because the blocks with pointers to them may be gone.
            let mut briefs = self.blocks_for_good(state.file_id, &runs)?;
            briefs.retain(|brief| !touches(brief.run_start, u32::from(brief.run_blocks)));
            briefs.sort_by_key(|brief| brief.index);
            let kept: Vec<Brief> = (0..)
                .zip(briefs)
                .map_while(|(index, brief)| (brief.index == index).then_some(brief))
                .collect();
            state = state_from(state.file_id, kept.iter().copied());
        }
        let settled = self.settle(&state)?;
        let (name, length) = (
            self.files[index].name.clone(),
            self.files[index].state.length(),
        );
        let after = settled.state.length();
        let text = format!(
            "it shared blocks with another file, whose they are; it is {after} bytes long now instead of {length}"
        );
        self.find(Some(&name), None, true, after < length, text);
        self.files[index].state = settled.state;
        self.put_state(index)
    }

    // ---- without a root ----

    /// Finds the content of every file of the table from its blocks; the table may be older.
    pub(crate) fn rebuild_known_files(&mut self, scan: &Scan) -> Result<()> {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_by_cached_key(|index| {
            let remains = scan.remains_of(self.files[*index].state.file_id);
            std::cmp::Reverse(remains.map_or(0, |remains| remains.sequence_max))
        });
        for index in order {
            let known = self.files[index].state;
            let name = self.files[index].name.clone();
            let settled = match scan.remains_of(known.file_id) {
                Some(remains) => self.assemble(scan, &remains, Some(&known))?,
                None => None,
            };
            let state = match &settled {
                Some(settled) => settled.state,
                None => FileState::empty(known.file_id),
            };
            if state.length() < known.length() {
                let text = format!(
                    "the name table knew {} bytes of it, {} are left",
                    known.length(),
                    state.length()
                );
                self.find(Some(&name), None, true, true, text);
            }
            if let Some(settled) = settled {
                self.report_blocks(&name, &settled);
                self.claim_settled(index, &settled);
            }
            self.files[index].state = state;
            if state != known {
                self.put_state(index)?;
            }
        }
        Ok(())
    }
}
