//! The owner of each cluster, and a new list of free blocks built from that.

use base::block::BLOCK_BYTES;

use crate::layout::{CLUSTER_BLOCKS, Layout};
use crate::root::{Piece, Pieces};
use crate::space::{SPILL_AT, TRUNK_PIECES, put_trunk_piece, seal_trunk};

/// The cluster has no owner.
pub(crate) const OWNER_NONE: u32 = 0;
/// Free space owns it.
pub(crate) const OWNER_FREE: u32 = 1;
/// The cluster holds blocks of a file, but no list leads there; it is neither free nor freed with the file.
pub(crate) const OWNER_HIDDEN: u32 = 2;
/// The owner number of the first file; the others follow.
const OWNER_FILE_FIRST: u32 = 3;

/// Free pieces that a new root lists itself; the rest is spilled. The number is too small to make the next record
/// spill.
const PIECES_IN_ROOT: usize = SPILL_AT - 16;

/// Returns the owner number of file `index`.
pub(crate) fn owner_of_file(index: usize) -> u32 {
    OWNER_FILE_FIRST + index as u32
}

/// Returns the file with this owner number.
pub(crate) fn file_of_owner(owner: u32) -> Option<usize> {
    owner
        .checked_sub(OWNER_FILE_FIRST)
        .map(|index| index as usize)
}

/// The owner of each cluster of the data region.
pub(crate) struct Owners {
    clusters: Vec<u32>,
    first: u32,
}

impl Owners {
    pub(crate) fn new(layout: &Layout) -> Self {
        let count = (layout.data_end - layout.data_first) / CLUSTER_BLOCKS;
        Self {
            clusters: vec![OWNER_NONE; count as usize],
            first: layout.data_first,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.clusters.fill(OWNER_NONE);
    }

    fn place(&self, block: u32) -> Option<usize> {
        let place = (block.checked_sub(self.first)? / CLUSTER_BLOCKS) as usize;
        (place < self.clusters.len()).then_some(place)
    }

    /// Returns the owner of the cluster of block `block`, `OWNER_NONE` outside the data region.
    pub(crate) fn of(&self, block: u32) -> u32 {
        self.place(block)
            .map_or(OWNER_NONE, |place| self.clusters[place])
    }

    /// Gives a run to `owner`, except for clusters that have an owner. Returns the first of these, with its owner.
    pub(crate) fn claim(&mut self, start: u32, blocks: u32, owner: u32) -> Option<(u32, u32)> {
        let mut taken = None;
        for block in (start..start.saturating_add(blocks)).step_by(CLUSTER_BLOCKS as usize) {
            let Some(place) = self.place(block) else {
                continue;
            };
            let cluster = &mut self.clusters[place];
            if *cluster == OWNER_NONE {
                *cluster = owner;
            } else {
                taken = taken.or(Some((block, *cluster)));
            }
        }
        taken
    }

    /// Takes a run out of free space. Returns whether any of it was free.
    pub(crate) fn release(&mut self, start: u32, blocks: u32) -> bool {
        let mut was_free = false;
        for block in (start..start.saturating_add(blocks)).step_by(CLUSTER_BLOCKS as usize) {
            if let Some(place) = self.place(block)
                && self.clusters[place] == OWNER_FREE
            {
                self.clusters[place] = OWNER_NONE;
                was_free = true;
            }
        }
        was_free
    }

    /// Returns the total size of the clusters without an owner, in blocks.
    pub(crate) fn blocks_unowned(&self) -> u64 {
        let unowned = self.clusters.iter().filter(|owner| **owner == OWNER_NONE);
        unowned.count() as u64 * u64::from(CLUSTER_BLOCKS)
    }

    /// Returns the runs that no file owns, or only those that were listed as free before. They end with the last
    /// cluster that is not free; returns also where that ends.
    fn free_runs(&self, only_listed: bool) -> (Vec<Piece>, u32) {
        let is_free = |owner: &u32| *owner == OWNER_FREE || (*owner == OWNER_NONE && !only_listed);
        let used = self.clusters.iter().rposition(|owner| !is_free(owner));
        let end = used.map_or(0, |last| last + 1);
        let mut runs: Vec<Piece> = Vec::new();
        for (place, owner) in self.clusters[..end].iter().enumerate() {
            let start = self.first + place as u32 * CLUSTER_BLOCKS;
            if is_free(owner) {
                match runs
                    .last_mut()
                    .filter(|run| run.start + run.blocks == start)
                {
                    Some(run) => run.blocks += CLUSTER_BLOCKS,
                    None => runs.push(Piece::plain(start, CLUSTER_BLOCKS)),
                }
            }
        }
        (runs, self.first + end as u32 * CLUSTER_BLOCKS)
    }
}

/// A new list of free blocks.
pub(crate) struct FreeSpace {
    pub(crate) pieces: Pieces,
    pub(crate) frontier: u32,
    pub(crate) blocks: u64,
    /// Spilled lists: their clusters, and the blocks that hold them. The last list is the head.
    pub(crate) trunks: Vec<(u32, Vec<u8>)>,
}

impl FreeSpace {
    /// Builds a list of the space that `owners` leaves. No spilled list is put into a cluster of `avoid`, if possible.
    pub(crate) fn new(
        owners: &Owners,
        only_listed: bool,
        avoid: &dyn Fn(u32) -> bool,
        layout: &Layout,
    ) -> Self {
        let (mut runs, frontier) = owners.free_runs(only_listed);
        let blocks = runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>()
            + u64::from(layout.data_end - frontier);
        // The largest runs stay in the root.
        runs.sort_by_key(|run| (std::cmp::Reverse(run.blocks), run.start));
        let mut pieces = Pieces::new();
        let mut rest = runs.split_off(runs.len().min(PIECES_IN_ROOT));
        for run in runs {
            let pushed = pieces.push(run);
            debug_assert!(pushed, "fewer than a root holds");
        }
        let mut trunks: Vec<(u32, Vec<u8>)> = Vec::new();
        while !rest.is_empty() {
            let suitable = rest.iter().rposition(|run| !avoid(run.start));
            let mut place = rest.remove(suitable.unwrap_or(rest.len() - 1));
            let cluster = place.start;
            place.start += CLUSTER_BLOCKS;
            place.blocks -= CLUSTER_BLOCKS;
            if place.blocks > 0 {
                rest.push(place);
            }
            let listed = rest.split_off(rest.len().saturating_sub(TRUNK_PIECES));
            let mut block = vec![0; BLOCK_BYTES];
            for (index, piece) in listed.iter().enumerate() {
                put_trunk_piece(&mut block, index, piece);
            }
            let next = trunks.last().map_or(0, |(cluster, _)| *cluster);
            seal_trunk(
                &mut block,
                cluster,
                next,
                listed.len(),
                layout.checksum_seed(),
            );
            trunks.push((cluster, block));
        }
        Self {
            pieces,
            frontier,
            blocks,
            trunks,
        }
    }
}
