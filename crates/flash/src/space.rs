//! Free space: allocating runs, taking back pieces, spilling and reclaiming.
//!
//! Free blocks are in one of four places:
//! - beyond the frontier: never used;
//! - in plain pieces of the root;
//! - in chains: the runs of deleted files, which are unlinked one at a time;
//! - in spilled lists of pieces (trunks).
//!
//! A list is spilled inside a record that is written anyway, and taken back ahead of need. So neither costs a call a
//! write or a flush of its own.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::bytes::{get_u32, put_u32};
use crate::error::{Error, Result};
use crate::layout::{CLUSTER_BLOCKS, TRUNK_PLACE};
use crate::root::{ClosedRun, FileState, Lane, Piece, Run, SlotKind};
use crate::store::Store;

/// Pieces in one spilled list.
pub(crate) const TRUNK_PIECES: usize = 36;
/// Number of pieces in the root from which on the next record that can spill does. It is far enough below the root's
/// capacity that several calls may add pieces before one can spill.
pub(crate) const SPILL_AT: usize = 40;
const TRUNK_MAGIC: u32 = 0x5254_4b45; // "EKTR"
const TRUNK_HEADER_BYTES: usize = 32;
const PIECE_BYTES: usize = 16;
/// An identity that no file has.
const NO_FILE: u64 = 0;
/// Maximum number of pieces that freeing one file adds: for each lane its run and the list of earlier runs, and a
/// reserve.
pub(crate) const PIECES_PER_FILE: usize = 5;
/// Free places needed before a call whose record cannot spill. They are for its own pieces, and for those of a call
/// after it, which then need not make room.
pub(crate) const PIECES_WITHOUT_SPILL: usize = 2 * PIECES_PER_FILE + 2;
/// Keep this many blocks in plain pieces by reclaiming ahead of need.
const PLAIN_BLOCKS_AHEAD: u64 = 128;
/// Places in the list of pieces reserved for unlinking and splitting.
const PIECE_SLACK: usize = 6;
/// Maximum number of reclaiming steps in one allocation that found nothing ready: a spilled list, then a chain from it.
const RECLAIMS_MAX: usize = 2;
/// Maximum number of commits until a full list of pieces has been spilled: one gives a plain piece, one announces it,
/// one spills.
const SPILL_COMMITS_MAX: usize = 4;

/// The link in the first block of a chain's run.
enum Link {
    /// The previous run (no blocks if there is none), and the number of this run's own blocks.
    Before(ClosedRun, u32),
    /// The link is not valid.
    Damaged,
    /// The run is not the chain's: it holds data of another file.
    Foreign,
}

impl<D: BlockDevice> Store<D> {
    /// Takes a run of about `want` blocks, at least `CLUSTER_BLOCKS`, out of free space.
    ///
    /// The caller must write a record that gives the run to a file before or together with the first data in it.
    pub(crate) fn allocate(&mut self, want: u32) -> Result<Run> {
        debug_assert!(want.is_multiple_of(CLUSTER_BLOCKS) && want > 0);
        for attempt in 0..=RECLAIMS_MAX {
            if let Some(run) = self.take(want) {
                self.root.free_blocks = self.root.free_blocks.saturating_sub(u64::from(run.blocks));
                self.reclaim_ahead();
                return Ok(run);
            }
            if attempt == RECLAIMS_MAX || !self.reclaim()? {
                break;
            }
            // Unlinked blocks may be used only after the record is durable.
            self.commit()?;
        }
        Err(Error::Full)
    }

    /// Takes blocks that are ready. Skips blocks that something else claims; they stay out of free space until a
    /// repair. If they were allocated, they would have two owners, and one would overwrite the other's data.
    pub(crate) fn take(&mut self, want: u32) -> Option<Run> {
        loop {
            let run = self.take_listed(want)?;
            let blocks = u32::from(run.blocks);
            if !self.is_claimed(run.start, blocks, NO_FILE) {
                return Some(run);
            }
            self.free_chains_broken += 1;
            self.root.free_blocks = self.root.free_blocks.saturating_sub(u64::from(blocks));
        }
    }

    /// Returns whether these blocks also belong to something else that the root knows. That is a file being appended to
    /// other than `except`, a piece of free space, a list, or the never-used blocks. This never happens in a store that
    /// only this program has written.
    pub(crate) fn is_claimed(&self, start: u32, blocks: u32, except: u64) -> bool {
        let overlaps = |(other, count): (u32, u32)| start < other + count && other < start + blocks;
        let root = &self.root;
        let slots = root.slots.iter();
        let clusters = [root.announced, root.trunk_head];
        start + blocks > root.frontier
            || slots
                .filter(|slot| slot.kind != SlotKind::Free && slot.state.file_id != except)
                .any(|slot| slot.state.runs().any(overlaps))
            || (root.pieces.as_slice().iter().chain(self.quarantined()))
                .any(|piece| overlaps((piece.start, piece.blocks)))
            || (clusters.into_iter().filter(|cluster| *cluster != 0))
                .any(|cluster| overlaps((cluster, CLUSTER_BLOCKS)))
    }

    /// Checks whether a run of the file belongs to something else as well, or two of its runs overlap. Returns the
    /// start of that run.
    pub(crate) fn claimed_run(&self, state: &FileState) -> Option<u32> {
        state.runs().enumerate().find_map(|(place, run)| {
            let (start, blocks) = run;
            let mut others = state.runs().take(place);
            let twice =
                others.any(|(other, count)| start < other + count && other < start + blocks);
            (twice || self.is_claimed(start, blocks, state.file_id)).then_some(start)
        })
    }

    /// Gives up the cluster for the next list if something else claims it, because the list would overwrite that.
    pub(crate) fn drop_claimed_announcement(&mut self) {
        let cluster = std::mem::take(&mut self.root.announced);
        if cluster != 0 && self.is_claimed(cluster, CLUSTER_BLOCKS, NO_FILE) {
            self.free_chains_broken += 1;
        } else {
            self.root.announced = cluster;
        }
    }

    /// Takes blocks that the root lists as free: from the plain piece that fits best, otherwise beyond the frontier.
    fn take_listed(&mut self, want: u32) -> Option<Run> {
        let plain = |piece: &&(usize, Piece)| piece.1.file_id == 0;
        let pieces = || self.root.pieces.as_slice().iter().copied().enumerate();
        let best_fit = pieces().filter(|(_, piece)| piece.blocks >= want && piece.file_id == 0);
        let best_fit = best_fit.min_by_key(|(_, piece)| piece.blocks);
        let beyond = self.layout.data_end - self.root.frontier;
        if best_fit.is_none() && beyond >= want {
            return Some(self.take_frontier(want));
        }
        let largest = || {
            pieces()
                .filter(|piece| plain(&piece))
                .max_by_key(|(_, piece)| piece.blocks)
        };
        if let Some((index, piece)) = best_fit.or_else(largest) {
            let blocks = piece.blocks.min(want);
            if blocks == piece.blocks {
                self.root.pieces.remove(index);
            } else {
                let rest = self.root.pieces.get_mut(index);
                rest.start += blocks;
                rest.blocks -= blocks;
            }
            return Some(Run {
                start: piece.start,
                blocks: blocks as u8,
                next: 0,
            });
        }
        let blocks = beyond.min(want);
        (blocks > 0).then(|| self.take_frontier(blocks))
    }

    fn take_frontier(&mut self, blocks: u32) -> Run {
        let start = self.root.frontier;
        self.root.frontier += blocks;
        Run {
            start,
            blocks: blocks as u8,
            next: 0,
        }
    }

    /// Reclaims space in advance, so that an allocation need not wait for its own commit. The record that the caller
    /// writes anyway makes the space usable.
    fn reclaim_ahead(&mut self) {
        // The cluster for the next spilled list is needed in addition.
        let steps = if self.root.announced == 0 { 2 } else { 1 };
        for _ in 0..steps {
            if self.plain_blocks() < PLAIN_BLOCKS_AHEAD && self.quarantine_room() > 0 {
                // If a read fails now, a later call that needs the space meets the error before it has taken a run.
                let _ = self.reclaim();
            }
        }
    }

    /// Returns the number of free blocks that can be allocated, at once or after the next barrier.
    fn plain_blocks(&self) -> u64 {
        let pieces = self.root.pieces.as_slice().iter();
        pieces
            .chain(self.quarantined())
            .filter(|piece| piece.file_id == 0)
            .map(|piece| u64::from(piece.blocks))
            .sum()
    }

    /// If all free space lies in chains, takes a run off one, so that the next allocation and the next spilled list
    /// find something ready. Costs one block read, and is rarely needed.
    pub(crate) fn keep_something_plain(&mut self) {
        let ready = self.plain_blocks() + u64::from(self.layout.data_end - self.root.frontier);
        if ready < 2 * u64::from(CLUSTER_BLOCKS)
            && self.quarantine_room() > 0
            && self.piece_room() > 0
        {
            let _ = self.unlink_chain();
        }
    }

    /// Returns whether a cluster can be reserved without taking the last ready space from the next allocation.
    pub(crate) fn can_spare_a_cluster(&self) -> bool {
        let pieces = self.root.pieces.as_slice();
        let plain: u64 = pieces
            .iter()
            .filter(|piece| piece.file_id == 0)
            .map(|piece| u64::from(piece.blocks))
            .sum();
        let ready = plain + u64::from(self.layout.data_end - self.root.frontier);
        let reclaimable =
            self.root.trunk_head != 0 || pieces.iter().any(|piece| piece.file_id != 0);
        ready >= 2 * u64::from(CLUSTER_BLOCKS) || !reclaimable
    }

    /// Turns free space that is not yet usable into plain pieces, as part of the next record. Costs one block read.
    /// Returns false if there is none.
    fn reclaim(&mut self) -> Result<bool> {
        if self.piece_room() < PIECE_SLACK {
            return Ok(false);
        }
        match self.unlink_chain() {
            Ok(true) => Ok(true),
            Ok(false) => self.load_trunk(),
            // Another source may work; space that cannot be read now is not given up.
            Err(error) => match self.load_trunk() {
                Ok(true) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Takes the last run off a chain, with one block read. Skips a chain that cannot be read now.
    fn unlink_chain(&mut self) -> Result<bool> {
        let mut failed = None;
        let mut index = 0;
        while let Some(piece) = self.root.pieces.as_slice().get(index).copied() {
            if piece.file_id == 0 {
                index += 1;
                continue;
            }
            match self.link_of(&piece) {
                Ok(Link::Foreign) => {
                    // The run's present owner is unknown, so it is not free.
                    self.root.pieces.remove(index);
                    self.free_chains_broken += 1;
                }
                Ok(link) => {
                    self.root.pieces.remove(index);
                    self.unlinked(piece, link);
                    return Ok(true);
                }
                Err(error) => {
                    failed = Some(error);
                    index += 1;
                }
            }
        }
        failed.map_or(Ok(false), Err)
    }

    /// Adds the run of a chain's piece to the blocks that the coming record frees, and puts the rest of the chain back.
    fn unlinked(&mut self, piece: Piece, link: Link) {
        let mut run = Piece::plain(piece.start, piece.blocks);
        match link {
            Link::Before(before, blocks) => {
                if blocks != run.blocks {
                    // Free no more than both say, because the blocks behind the run belong to another owner.
                    self.free_chains_broken += 1;
                    run.blocks = run.blocks.min(blocks) / CLUSTER_BLOCKS * CLUSTER_BLOCKS;
                }
                let ends = before.is_none() || before.start == piece.end;
                if !ends {
                    self.push_piece(Piece {
                        start: before.start,
                        blocks: before.blocks(),
                        ..piece
                    });
                }
            }
            // The run itself is still free; the earlier runs are lost until a repair finds them.
            Link::Damaged | Link::Foreign => self.free_chains_broken += 1,
        }
        if run.blocks == 0 || self.is_claimed(run.start, run.blocks, piece.file_id) {
            self.free_chains_broken += 1;
        } else {
            self.quarantine(run);
        }
    }

    /// Returns the run before that of a chain's piece, according to the run's blocks; `None` if they do not tell it.
    pub(crate) fn run_before(&mut self, piece: &Piece) -> Result<Option<ClosedRun>> {
        Ok(match self.link_of(piece)? {
            Link::Before(before, _) => Some(before),
            Link::Damaged | Link::Foreign => None,
        })
    }

    fn link_of(&mut self, piece: &Piece) -> Result<Link> {
        // The first block of a closed run holds data. The blocks behind it may not, and then they show the link of an
        // earlier life of the run.
        let Some(header) = self.read_data_block(piece.start)? else {
            return Ok(Link::Damaged);
        };
        if header.file_id != piece.file_id || header.run_start != piece.start {
            return Ok(Link::Foreign);
        }
        let before = ClosedRun {
            start: header.before_start,
            used: header.before_used,
        };
        let is_run = before.is_none() || self.layout.is_data_run(before.start, before.blocks());
        Ok(if is_run {
            Link::Before(before, u32::from(header.run_blocks))
        } else {
            Link::Damaged
        })
    }

    /// Takes the most recently spilled list back into the root, with one block read.
    fn load_trunk(&mut self) -> Result<bool> {
        let head = self.root.trunk_head;
        if head == 0 || self.piece_room() < TRUNK_PIECES + PIECE_SLACK {
            return Ok(false);
        }
        // A list that was spilled without an image is in its cluster twice.
        let (mut opened, mut failed) = (None, None);
        for address in [trunk_address(head), u64::from(head) + 1] {
            match self.device.read(address, self.scratch.block_mut(0)) {
                Ok(()) => opened = open_trunk(self.scratch.block(0), head, self.seed),
                Err(error) => failed = Some(error),
            }
            if opened.is_some() {
                break;
            }
        }
        if let (None, Some(error)) = (opened, failed) {
            // A list that cannot be read now is not given up.
            return Err(error.into());
        }
        let Some((next, count)) = opened else {
            // The list is unreadable: its blocks are lost until a repair finds them.
            self.free_chains_broken += 1;
            self.root.trunk_head = 0;
            self.root.trunk_count = 0;
            return Ok(false);
        };
        self.root.trunk_head = 0;
        for index in 0..count {
            match trunk_piece(self.scratch.block(0), index, &self.layout) {
                Some(piece) => self.push_piece(piece),
                None => self.free_chains_broken += 1,
            }
        }
        // The count of the lists ends a loop over a circle of lists.
        let lists = self.root.trunk_count.saturating_sub(1);
        let next_is_sane = if lists == 0 {
            next == 0
        } else {
            next != head && self.layout.is_data_run(next, CLUSTER_BLOCKS)
        };
        self.free_chains_broken += u64::from(!next_is_sane);
        let (next, lists) = if next_is_sane { (next, lists) } else { (0, 0) };
        self.root.trunk_head = next;
        self.root.trunk_count = lists;
        if self.is_claimed(head, CLUSTER_BLOCKS, NO_FILE) {
            self.free_chains_broken += 1;
        } else {
            self.quarantine(Piece::plain(head, CLUSTER_BLOCKS));
        }
        Ok(true)
    }

    /// Ensures that `count` pieces can be added before the next record. Costs nothing unless several calls in a row
    /// could not spill.
    pub(crate) fn make_piece_room(&mut self, count: usize) -> Result<()> {
        for _ in 0..SPILL_COMMITS_MAX {
            if self.piece_room() >= count {
                break;
            }
            self.keep_something_plain();
            self.drop_claimed_announcement();
            self.commit()?;
        }
        if self.piece_room() >= count {
            Ok(())
        } else {
            // Cannot happen: each piece holds at least a cluster, and one is enough to spill.
            Err(Error::Full)
        }
    }

    /// Puts all blocks of a file into free space, as part of the next record. The caller must have made room.
    pub(crate) fn free_file(&mut self, state: &FileState) {
        for lane in &state.lanes {
            self.free_lane(state.file_id, lane, 0);
        }
        self.free_plain(state.file_id, state.reserve);
        self.count_free(state.closed_blocks);
    }

    /// Puts the runs of a lane into free space, back to the one that begins at `end`, which is kept. Counts only the
    /// blocks of the run that is being filled.
    pub(crate) fn free_lane(&mut self, file_id: u64, lane: &Lane, end: u32) {
        let mut last = lane.before;
        if !lane.run.is_none() {
            // If no plain blocks are ready, free this run as a plain piece, which needs no read.
            let first_holds_data = lane.run.next > 0
                && !last.is_none()
                && last.start != end
                && self.plain_blocks() > 0;
            let piece = Piece {
                start: lane.run.start,
                blocks: u32::from(lane.run.blocks),
                file_id: if first_holds_data { file_id } else { 0 },
                end: if first_holds_data { end } else { 0 },
            };
            self.push_piece_of(file_id, piece);
            self.count_free(piece.blocks);
            if first_holds_data {
                last = ClosedRun::default();
            }
        }
        if !last.is_none() && last.start != end {
            self.push_piece_of(
                file_id,
                Piece {
                    start: last.start,
                    blocks: last.blocks(),
                    file_id,
                    end,
                },
            );
        }
    }

    /// Puts one run of a file into free space, as part of the next record.
    pub(crate) fn free_plain(&mut self, file_id: u64, run: Run) {
        let blocks = u32::from(run.blocks);
        self.push_piece_of(file_id, Piece::plain(run.start, blocks));
        self.count_free(blocks);
    }

    /// Adds a piece of free space, unless something else claims it.
    fn push_piece(&mut self, piece: Piece) {
        self.push_piece_of(piece.file_id, piece);
    }

    /// As [`push_piece`](Self::push_piece), for blocks that file `owner` gives up: a slot may still name them.
    fn push_piece_of(&mut self, owner: u64, piece: Piece) {
        if piece.blocks == 0 {
            return;
        }
        if self.is_claimed(piece.start, piece.blocks, owner) || !self.root.pieces.push(piece) {
            self.free_chains_broken += 1;
        }
    }

    /// Never count more blocks than there are: such a root is rejected, and the store would not open again.
    pub(crate) fn count_free(&mut self, blocks: u32) {
        let free = self.root.free_blocks + u64::from(blocks);
        self.root.free_blocks = free.min(self.layout.data_blocks());
    }
}

/// Returns the block of a spilled list in its cluster: the place where the record that spilled it put it.
pub(crate) fn trunk_address(cluster: u32) -> u64 {
    u64::from(cluster) + TRUNK_PLACE as u64
}

/// Writes piece `index` of a list.
pub(crate) fn put_trunk_piece(block: &mut [u8], index: usize, piece: &Piece) {
    let offset = TRUNK_HEADER_BYTES + index * PIECE_BYTES;
    piece.encode(&mut block[offset..offset + PIECE_BYTES]);
}

/// Completes the block of a list of `count` pieces in cluster `cluster`; `next` is the list spilled before.
pub(crate) fn seal_trunk(block: &mut [u8], cluster: u32, next: u32, count: usize, seed: u32) {
    put_u32(block, 0, TRUNK_MAGIC);
    put_u32(block, 8, cluster);
    put_u32(block, 12, next);
    put_u32(block, 16, count as u32);
    let checksum = crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]);
    put_u32(block, 4, checksum);
}

/// Returns the next list and the number of pieces of a spilled list, if the block is one.
pub(crate) fn open_trunk(block: &[u8], cluster: u32, seed: u32) -> Option<(u32, usize)> {
    let intact = get_u32(block, 0) == TRUNK_MAGIC
        && get_u32(block, 8) == cluster
        && crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]) == get_u32(block, 4);
    let count = get_u32(block, 16) as usize;
    (intact && count <= TRUNK_PIECES).then_some((get_u32(block, 12), count))
}

/// Piece `index` of an opened spilled list.
pub(crate) fn trunk_piece(
    block: &[u8],
    index: usize,
    layout: &crate::layout::Layout,
) -> Option<Piece> {
    let offset = TRUNK_HEADER_BYTES + index * PIECE_BYTES;
    Piece::decode(&block[offset..offset + PIECE_BYTES], layout)
}
