//! Free space: handing out runs, taking back pieces, spilling and reclaiming.
//!
//! Free blocks are in one of four places: beyond the frontier (never used), in plain pieces of the root, in
//! chains (the runs of deleted files, which are unlinked one at a time), or in spilled lists of pieces
//! (trunks). A list is spilled inside a record that is written anyway, and taken back ahead of need, so neither
//! costs a call a write or a flush of its own.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::bytes::{get_u32, put_u32};
use crate::error::{Error, Result};
use crate::layout::CLUSTER_BLOCKS;
use crate::record::TRUNK_PLACE;
use crate::root::{ClosedRun, FileState, Lane, Piece, Run, SlotKind};
use crate::store::Store;

/// Pieces in one spilled list.
pub(crate) const TRUNK_PIECES: usize = 36;
/// With so many pieces in the root, the next record that can spill does. Far enough below what the root holds
/// that several calls may add theirs before one can.
pub(crate) const SPILL_AT: usize = 40;
const TRUNK_MAGIC: u32 = 0x5254_4b45; // "EKTR"
const TRUNK_HEADER_BYTES: usize = 32;
const PIECE_BYTES: usize = 16;
/// An identity that no file has.
const NO_FILE: u64 = 0;
/// Pieces that freeing one file adds at most: for each lane its run and the list of those before, and a reserve.
pub(crate) const PIECES_PER_FILE: usize = 5;
/// Room for pieces before a call whose record cannot spill: its own, and those of a call after it, which then need not
/// make room.
pub(crate) const PIECES_WITHOUT_SPILL: usize = 2 * PIECES_PER_FILE + 2;
/// Keep this many blocks in plain pieces by reclaiming ahead of need.
const PLAIN_BLOCKS_AHEAD: u64 = 128;
/// Places in the list of pieces that are kept for unlinking and splitting.
const PIECE_SLACK: usize = 6;
/// Reclaiming steps in one allocation that found nothing ready: a spilled list, then a chain from it.
const RECLAIMS_MAX: usize = 2;
/// Commits until a full list of pieces has been spilled: one gives a plain piece, one announces it, one spills.
const SPILL_COMMITS_MAX: usize = 4;

/// What the first block of a chain's run says of it.
enum Link {
    /// The run before it (no blocks: there is none), and how many blocks it has itself.
    Before(ClosedRun, u32),
    /// Nothing that can be believed.
    Damaged,
    /// The run is not the chain's: it holds data of another file.
    Foreign,
}

impl<D: BlockDevice> Store<D> {
    /// Takes a run of about `want` blocks, at least `CLUSTER_BLOCKS`, out of free space.
    ///
    /// The caller writes a record that gives the run to a file before or together with the first data in it.
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
            // What was unlinked may be used only once its record is durable.
            self.commit()?;
        }
        Err(Error::Full)
    }

    /// Takes blocks that are ready. What something else lays claim to is passed over, and stays out of free space
    /// until a repair: handed out, it would have two owners, and one would write over the other's bytes.
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

    /// Whether these blocks also belong to something else that the root knows: a file that is being appended to other
    /// than `except`, a piece of free space, a list, or the blocks that were never used. In a store that only this
    /// program has written they never do.
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

    /// Whether a run of the file belongs to something else as well, or two of them overlap: the start of that run.
    pub(crate) fn claimed_run(&self, state: &FileState) -> Option<u32> {
        state.runs().enumerate().find_map(|(place, run)| {
            let (start, blocks) = run;
            let mut others = state.runs().take(place);
            let twice =
                others.any(|(other, count)| start < other + count && other < start + blocks);
            (twice || self.is_claimed(start, blocks, state.file_id)).then_some(start)
        })
    }

    /// Gives up the cluster for the next list if something else lays claim to it: the list would be written over it.
    pub(crate) fn drop_claimed_announcement(&mut self) {
        let cluster = std::mem::take(&mut self.root.announced);
        if cluster != 0 && self.is_claimed(cluster, CLUSTER_BLOCKS, NO_FILE) {
            self.free_chains_broken += 1;
        } else {
            self.root.announced = cluster;
        }
    }

    /// Takes blocks that the root lists as free: from the plain piece that fits best, else beyond the frontier.
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

    /// Reclaims something in good time, so that an allocation need not wait for a commit of its own. The record
    /// that the caller writes anyway makes it usable.
    fn reclaim_ahead(&mut self) {
        // What the next spilled list needs comes on top.
        let steps = if self.root.announced == 0 { 2 } else { 1 };
        for _ in 0..steps {
            if self.plain_blocks() < PLAIN_BLOCKS_AHEAD && self.quarantine_room() > 0 {
                // A read that fails now is met again when there is need, by a call that has not taken a run.
                let _ = self.reclaim();
            }
        }
    }

    /// Free blocks that can be handed out, at once or after the next barrier.
    fn plain_blocks(&self) -> u64 {
        let pieces = self.root.pieces.as_slice().iter();
        pieces
            .chain(self.quarantined())
            .filter(|piece| piece.file_id == 0)
            .map(|piece| u64::from(piece.blocks))
            .sum()
    }

    /// When all that is free lies in chains, takes a run off one, so that the next allocation and the next list that
    /// is spilled find something ready. One block read, and rarely.
    pub(crate) fn keep_something_plain(&mut self) {
        let ready = self.plain_blocks() + u64::from(self.layout.data_end - self.root.frontier);
        if ready < 2 * u64::from(CLUSTER_BLOCKS)
            && self.quarantine_room() > 0
            && self.piece_room() > 0
        {
            let _ = self.unlink_chain();
        }
    }

    /// Whether a cluster can be set aside without taking the last that is ready from the next allocation.
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

    /// Turns something that is free but not yet usable into plain pieces, as part of the next record. One block
    /// read. False when there is nothing.
    fn reclaim(&mut self) -> Result<bool> {
        if self.piece_room() < PIECE_SLACK {
            return Ok(false);
        }
        match self.unlink_chain() {
            Ok(true) => Ok(true),
            Ok(false) => self.load_trunk(),
            // Another source may do; what cannot be read now is not given up.
            Err(error) => match self.load_trunk() {
                Ok(true) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Takes the last run off a chain: one block read. A chain that cannot be read now is passed over.
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
                    // Whose the run is now is not known; so it is not free.
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

    /// Puts the run of a chain's piece among the blocks that the coming record frees, and the rest back.
    fn unlinked(&mut self, piece: Piece, link: Link) {
        let mut run = Piece::plain(piece.start, piece.blocks);
        match link {
            Link::Before(before, blocks) => {
                if blocks != run.blocks {
                    // No more than both say, for behind the run there is somebody else's.
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
            // The run itself is free all the same; the ones before it are lost until a repair finds them.
            Link::Damaged | Link::Foreign => self.free_chains_broken += 1,
        }
        if run.blocks == 0 || self.is_claimed(run.start, run.blocks, piece.file_id) {
            self.free_chains_broken += 1;
        } else {
            self.quarantine(run);
        }
    }

    /// The run before that of a chain's piece, as the run's blocks say; `None` when they do not.
    pub(crate) fn run_before(&mut self, piece: &Piece) -> Result<Option<ClosedRun>> {
        Ok(match self.link_of(piece)? {
            Link::Before(before, _) => Some(before),
            Link::Damaged | Link::Foreign => None,
        })
    }

    fn link_of(&mut self, piece: &Piece) -> Result<Link> {
        // The first block of a run that was left holds data. Those behind it may not, and then show the link of
        // an earlier life of the run.
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

    /// Takes the most recently spilled list back into the root: one block read.
    fn load_trunk(&mut self) -> Result<bool> {
        let head = self.root.trunk_head;
        if head == 0 || self.piece_room() < TRUNK_PIECES + PIECE_SLACK {
            return Ok(false);
        }
        // A list that was spilled without an image stands in its cluster twice.
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
            // What cannot be read now is not given up.
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
        // The count of the lists ends a circle of them.
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

    /// Makes sure that `count` pieces can be added before the next record. Costs nothing unless several calls in a
    /// row could not spill.
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

    /// Puts all blocks of a file into free space, as part of the next record. Room has been made.
    pub(crate) fn free_file(&mut self, state: &FileState) {
        for lane in &state.lanes {
            self.free_lane(state.file_id, lane, 0);
        }
        self.free_plain(state.file_id, state.reserve);
        self.count_free(state.closed_blocks);
    }

    /// Puts the runs of a lane into free space, back to the one that begins at `end`, which is kept; counts only
    /// the blocks of the run that is being filled.
    pub(crate) fn free_lane(&mut self, file_id: u64, lane: &Lane, end: u32) {
        let mut last = lane.before;
        if !lane.run.is_none() {
            // When nothing else is ready, the run itself is, without a read.
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

    /// Adds a piece of free space, unless something else lays claim to it.
    fn push_piece(&mut self, piece: Piece) {
        self.push_piece_of(piece.file_id, piece);
    }

    /// As [`push_piece`](Self::push_piece), of blocks that file `owner` gives up: a slot may know it still.
    fn push_piece_of(&mut self, owner: u64, piece: Piece) {
        if piece.blocks == 0 {
            return;
        }
        if self.is_claimed(piece.start, piece.blocks, owner) || !self.root.pieces.push(piece) {
            self.free_chains_broken += 1;
        }
    }

    /// Never more than there are: a root that says so is not believed, and the store would not open again.
    pub(crate) fn count_free(&mut self, blocks: u32) {
        let free = self.root.free_blocks + u64::from(blocks);
        self.root.free_blocks = free.min(self.layout.data_blocks());
    }
}

/// The block of a spilled list, given its cluster: where the record that spilled it had put it.
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

/// Next list and number of pieces of a spilled list, if the block is one.
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
