//! Reading the data blocks when the table or the root does not tell enough. The blocks tell which files they belong to,
//! and where each of these files ends.
//!
//! The last block is found as in recovery. It is the last block of the complete group with the highest number from
//! which the pointers lead back to the first block. The path may contain damaged blocks, but none that was written by
//! another file, or by this file at another position. In that case the group is from before the file was truncated
//! there.

use std::collections::{BTreeMap, BTreeSet};

use base::block::BlockDevice;

use crate::error::Result;
use crate::layout::CLUSTER_BLOCKS;
use crate::repair::blocks::{Brief, Fate, Settled, Step, is_sane, state_from};
use crate::repair::owners::OWNER_NONE;
use crate::repair::scan::{Remains, Scan};
use crate::repair::state::Repair;
use crate::root::{FileState, Root};

/// Last blocks tried for one file.
const CANDIDATES_MAX: usize = 4096;
/// The search for the last block of a file stops after reading this many times the file's blocks plus
/// `SEARCH_BLOCKS_MIN`.
const SEARCH_DEPTH_MAX: usize = 64;
const SEARCH_BLOCKS_MIN: usize = 1024;

impl<D: BlockDevice> Repair<'_, D> {
    /// Returns whether a cluster without an owner is not explained by a block of a known file. The run that a file's
    /// other lane is filling may hold only an outdated copy of its last block, so it is explained.
    pub(crate) fn has_unexplained(&mut self, scan: &Scan, known: &BTreeSet<u64>) -> Result<bool> {
        let mut explained = 0;
        let (first, end) = (self.store.layout.data_first, self.store.layout.data_end);
        for cluster in (first..end).step_by(CLUSTER_BLOCKS as usize) {
            if self.owners.of(cluster) != OWNER_NONE || cluster < explained {
                continue;
            }
            for seen in scan.within(cluster, CLUSTER_BLOCKS) {
                if known.contains(&seen.file_id)
                    && let Some(header) = self.read_header(seen.address)?
                {
                    explained = explained.max(header.run_start + u32::from(header.run_blocks));
                }
            }
            if cluster >= explained {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads every block of the clusters without an owner.
    pub(crate) fn scan_unowned(&mut self) -> Result<Scan> {
        self.scan_from(0)
    }

    /// As [`scan_unowned`](Self::scan_unowned), but takes only blocks whose group numbers are not below `bound`.
    pub(crate) fn scan_from(&mut self, bound: u64) -> Result<Scan> {
        let mut scan = Scan::default();
        let (first, end) = (self.store.layout.data_first, self.store.layout.data_end);
        for address in first..end {
            self.note_progress();
            if self.owners.of(address) != OWNER_NONE {
                continue;
            }
            if let Some(header) = self.read_header(address)? {
                if header.sequence < bound {
                    continue;
                }
                scan.note_block(address, &header);
            } else if let Some((root, _)) =
                Root::decode(self.store.scratch.block(0), &self.store.layout)
            {
                scan.note_root(&root);
            }
        }
        scan.sort_by_file();
        Ok(scan)
    }

    /// Rebuilds a file from its blocks in the scan. `known` is an earlier state of the file, whose last block counts
    /// whether or not its group is complete. `None` if no block leads back to the first.
    pub(crate) fn assemble(
        &mut self,
        scan: &Scan,
        remains: &Remains,
        known: Option<&FileState>,
    ) -> Result<Option<Settled>> {
        let briefs = self.briefs_of(scan, remains)?;
        let is_end = |brief: &Brief| {
            let is_known = known.is_some_and(|state| state.tail == brief.tail());
            is_known || ends_whole_group(brief, &briefs) || is_cut_off(brief, scan)
        };
        let all = 0..briefs.len() as u32;
        let ends = all.clone().filter(|end| is_end(&briefs[*end as usize]));
        if let Some(found) = self.best_of(scan, remains.file_id, &briefs, ends.collect())? {
            return Ok(Some(found));
        }
        // The only group is damaged itself: use the blocks that are there.
        self.best_of(scan, remains.file_id, &briefs, all.collect())
    }

    /// Returns the blocks of a file in the scan, by address.
    pub(crate) fn briefs_of(&mut self, scan: &Scan, remains: &Remains) -> Result<Vec<Brief>> {
        let mut briefs = Vec::with_capacity(remains.count);
        for address in scan.addresses_of(remains) {
            if let Some(header) = self.read_header(address)? {
                briefs.push(Brief::of(&header));
            }
        }
        Ok(briefs)
    }

    /// Returns the file with the newest of the last blocks `ends`, positions in `briefs`, from which the way back is
    /// complete.
    fn best_of(
        &mut self,
        scan: &Scan,
        file_id: u64,
        briefs: &[Brief],
        mut ends: Vec<u32>,
    ) -> Result<Option<Settled>> {
        let index_end = self.store.layout.data_blocks();
        let brief_of = |end: &u32| &briefs[*end as usize];
        ends.retain(|end| {
            let brief = brief_of(end);
            brief.sequence > 0 && u64::from(brief.index) < index_end
        });
        // The best candidates come last, because `pop` takes the last one.
        ends.sort_by_key(|end| (brief_of(end).sequence, brief_of(end).group_position));
        let mut blocks_left = SEARCH_DEPTH_MAX * (briefs.len() + SEARCH_BLOCKS_MIN);
        for _ in 0..CANDIDATES_MAX {
            let Some(end) = ends.pop() else { break };
            let state = FileState {
                file_id,
                tail: brief_of(&end).tail(),
                ..FileState::default()
            };
            let steps = self.walk(&state)?;
            if let Some(wrong_from) = wrong_from(scan, briefs, file_id, &steps) {
                // Blocks on this path share all earlier blocks with it, so candidates behind the wrong position would
                // fail too. Without this, a long truncated file would be walked once for each of its groups.
                ends.retain(|end| {
                    let brief = brief_of(end);
                    let step = steps.get(brief.index as usize);
                    let is_on_way = step.is_some_and(|step| step.address == brief.address);
                    !is_on_way || brief.index < wrong_from
                });
            } else {
                let state = state_from(file_id, steps.iter().filter_map(Step::brief));
                let settled = self.settle(&state)?;
                if is_sane(&settled.state, &self.store.layout) && self.is_unowned(&settled) {
                    return Ok(Some(settled));
                }
                self.drop_markers(&settled);
            }
            let read = steps.iter().filter(|step| step.address != 0).count();
            // A forged position makes a long path from few blocks.
            let Some(left) = blocks_left.checked_sub(read + steps.len() / SEARCH_DEPTH_MAX) else {
                break;
            };
            blocks_left = left;
        }
        Ok(None)
    }
}

/// Checks that the way back from a last block is the file as it was when that block was written. No block on it may
/// belong elsewhere, and its runs may hold no newer blocks. Returns `None` if so, otherwise the position from which on
/// no block of this path can be a last block.
pub(crate) fn wrong_from(
    scan: &Scan,
    briefs: &[Brief],
    file_id: u64,
    steps: &[Step],
) -> Option<u32> {
    let is_foreign = |step: &Step| matches!(step.fate, Fate::Foreign);
    // A block that does not belong in the middle may be the last block itself.
    let foreign = steps.iter().position(is_foreign);
    let foreign = foreign.map(|index| index as u32 + 1);
    let mut runs = BTreeMap::new();
    for brief in steps.iter().filter_map(Step::brief) {
        let oldest = runs
            .entry((brief.run_start, brief.run_blocks))
            .or_insert(brief);
        if brief.sequence < oldest.sequence {
            *oldest = brief;
        }
    }
    let overwritten = runs.iter().filter(|((start, blocks), oldest)| {
        let of_this_run = |address: u32| {
            let found = briefs.binary_search_by_key(&address, |brief| brief.address);
            found.is_ok_and(|found| {
                (briefs[found].run_start, briefs[found].run_blocks) == (*start, *blocks)
            })
        };
        let mut within = scan.within(*start, u32::from(*blocks)).iter();
        within.any(|seen| {
            seen.sequence >= oldest.sequence
                && (seen.file_id != file_id || !of_this_run(seen.address))
        })
    });
    let overwritten = overwritten.map(|(_, oldest)| oldest.index).min();
    foreign.into_iter().chain(overwritten).min()
}

/// Returns whether the block is the last one of a complete group.
pub(crate) fn ends_whole_group(end: &Brief, briefs: &[Brief]) -> bool {
    end.group_position + 1 == end.group_blocks
        && (0..end.group_position).all(|position| {
            let distance = u32::from(end.group_position - position);
            let Some(address) = end.address.checked_sub(distance) else {
                return false;
            };
            let found = briefs.binary_search_by_key(&address, |brief| brief.address);
            found.is_ok_and(|found| {
                let brief = &briefs[found];
                brief.sequence == end.sequence
                    && brief.group_position == position
                    && brief.index + distance == end.index
                    && brief.is_full()
            })
        })
}

/// Returns whether a file was truncated behind this block, which is not the last of its group. Then the block was
/// shortened in place, or the block after it was overwritten since.
fn is_cut_off(end: &Brief, scan: &Scan) -> bool {
    let is_inner = end.group_position + 1 < end.group_blocks;
    let over = scan.sequence_at(end.address + 1);
    is_inner && (!end.is_full() || over.is_some_and(|sequence| sequence > end.sequence))
}
