//! Free space: handing out runs, taking back pieces, spilling and reclaiming.
//!
//! Free blocks are in one of four places: beyond the frontier (never used), in plain pieces of the root, in
//! chains (whole deleted files, whose runs are unlinked one at a time), or in spilled lists of pieces
//! (trunks). Each step costs a constant number of device operations, whatever is free or used.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::bytes::{get_u32, put_u32};
use crate::error::{Error, Result};
use crate::layout::CLUSTER_BLOCKS;
use crate::root::{FileState, Piece, Run};
use crate::store::Store;

/// Pieces in one spilled list.
const TRUNK_PIECES: usize = 40;
const TRUNK_MAGIC: u32 = 0x5254_4b45; // "EKTR"
const TRUNK_HEADER_BYTES: usize = 32;
const PIECE_BYTES: usize = 16;
/// Pieces that freeing one file adds at most: two lanes, a reserve, a chain.
pub(crate) const PIECES_PER_FILE: usize = 4;
/// Keep this many blocks in plain pieces by unlinking chains ahead of need.
const PLAIN_BLOCKS_AHEAD: u64 = 128;
/// Places in the list of pieces that are kept for unlinking and splitting.
const PIECE_SLACK: usize = 6;
/// Reclaiming steps in one allocation: a spilled list, then a chain from it.
const RECLAIMS_MAX: usize = 2;

impl<D: BlockDevice> Store<D> {
    /// Takes a run of about `want` blocks, at least `CLUSTER_BLOCKS`, out of free space.
    ///
    /// The caller writes a record that gives the run to a file before or together with the first data in it.
    pub(crate) fn allocate(&mut self, want: u32) -> Result<Run> {
        debug_assert!(want.is_multiple_of(CLUSTER_BLOCKS) && want > 0);
        for attempt in 0..=RECLAIMS_MAX {
            if let Some(run) = self.take(want) {
                self.root.free_blocks = self.root.free_blocks.saturating_sub(u64::from(run.blocks));
                self.unlink_ahead();
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

    fn take(&mut self, want: u32) -> Option<Run> {
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
                blocks: blocks as u16,
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
            blocks: blocks as u16,
            next: 0,
        }
    }

    /// Unlinks one chain run in good time, so that an allocation seldom has to wait for a commit of its own.
    fn unlink_ahead(&mut self) {
        let plain: u64 = self
            .root
            .pieces
            .as_slice()
            .iter()
            .chain(self.quarantined())
            .filter(|piece| piece.file_id == 0)
            .map(|piece| u64::from(piece.blocks))
            .sum();
        if plain < PLAIN_BLOCKS_AHEAD
            && self.quarantine_room() > 0
            && self.piece_room() >= PIECE_SLACK
        {
            // A read that fails now is met again when there is need, by a call that has not taken a run.
            let _ = self.unlink_chain();
        }
    }

    /// Turns something that is free but not yet usable into plain pieces, as part of the next record.
    /// False when there is nothing.
    fn reclaim(&mut self) -> Result<bool> {
        self.make_piece_room(1)?;
        if self.unlink_chain()? {
            return Ok(true);
        }
        self.load_trunk()
    }

    /// Takes the last run off a chain: one block read.
    fn unlink_chain(&mut self) -> Result<bool> {
        let chain = self
            .root
            .pieces
            .as_slice()
            .iter()
            .position(|piece| piece.file_id != 0);
        let Some(index) = chain else { return Ok(false) };
        let piece = self.root.pieces.remove(index);
        let link = match self.read_data_block(piece.start + piece.blocks - 1) {
            Ok(link) => link,
            Err(error) => {
                // Nothing is lost; it goes to the end, so that the next call tries another.
                let pushed = self.root.pieces.push(piece);
                debug_assert!(pushed, "its own place is free");
                return Err(error);
            }
        };
        match link {
            Some(header) if header.file_id == piece.file_id => {
                let before = Piece {
                    start: header.closed_start,
                    blocks: header.closed_blocks,
                    file_id: piece.file_id,
                };
                if before.blocks > 0 {
                    let sane = self.layout.is_data_run(before.start, before.blocks);
                    if !sane || !self.root.pieces.push(before) {
                        self.free_chains_broken += 1;
                    }
                }
            }
            // The run itself is free all the same; the ones before it are lost until a check finds them.
            _ => self.free_chains_broken += 1,
        }
        self.quarantine(Piece {
            file_id: 0,
            ..piece
        });
        Ok(true)
    }

    /// Takes the most recently spilled list back into the root: one block read.
    fn load_trunk(&mut self) -> Result<bool> {
        let head = self.root.trunk_head;
        if head == 0 || self.piece_room() < TRUNK_PIECES + 1 {
            return Ok(false);
        }
        self.device
            .read(u64::from(head), self.scratch.block_mut(0))?;
        let Some((next, count)) = open_trunk(self.scratch.block(0), head, self.seed) else {
            // The list is unreadable: its blocks are lost until a check finds them.
            self.free_chains_broken += 1;
            self.root.trunk_head = 0;
            self.root.trunk_count = 0;
            return Ok(false);
        };
        for index in 0..count {
            let piece = trunk_piece(self.scratch.block(0), index, &self.layout);
            if !piece.is_some_and(|piece| self.root.pieces.push(piece)) {
                self.free_chains_broken += 1;
            }
        }
        self.root.trunk_head = next;
        self.root.trunk_count = self.root.trunk_count.saturating_sub(1);
        self.quarantine(Piece {
            start: head,
            blocks: CLUSTER_BLOCKS,
            file_id: 0,
        });
        Ok(true)
    }

    /// Makes sure that `count` pieces can be added before the next record, spilling some if need be.
    pub(crate) fn make_piece_room(&mut self, count: usize) -> Result<()> {
        if self.piece_room() >= count + PIECE_SLACK {
            return Ok(());
        }
        let cluster = self.take_cluster_for_trunk()?;
        let block = self.group.block_mut(0);
        block.fill(0);
        let mut spilled = 0;
        for piece in self.root.pieces.as_slice().iter().take(TRUNK_PIECES) {
            let offset = TRUNK_HEADER_BYTES + spilled * PIECE_BYTES;
            piece.encode(&mut block[offset..offset + PIECE_BYTES]);
            spilled += 1;
        }
        put_u32(block, 0, TRUNK_MAGIC);
        put_u32(block, 8, cluster);
        put_u32(block, 12, self.root.trunk_head);
        put_u32(block, 16, spilled as u32);
        let checksum = crc32c::crc32c_append(self.seed, &block[8..BLOCK_BYTES]);
        put_u32(block, 4, checksum);
        self.write_group(cluster, 0, 1)?;
        // The root may name the list only once it is durable; until a record does, nothing has changed.
        self.barrier()?;
        for index in (0..spilled).rev() {
            self.root.pieces.remove(index);
        }
        self.root.trunk_head = cluster;
        self.root.trunk_count = self.root.trunk_count.saturating_add(1);
        Ok(())
    }

    /// Room for the pieces of an unfinished replacement. The slack that other calls leave is meant for this:
    /// an undoing that fails would leave a second unfinished replacement to come, and a root with two of them
    /// is not believed.
    pub(crate) fn make_piece_room_to_undo(&mut self) -> Result<()> {
        if self.piece_room() >= PIECES_PER_FILE {
            return Ok(());
        }
        self.make_piece_room(PIECES_PER_FILE)
    }

    fn take_cluster_for_trunk(&mut self) -> Result<u32> {
        for _ in 0..2 {
            if let Some(run) = self.take(CLUSTER_BLOCKS) {
                return Ok(run.start);
            }
            if !self.unlink_chain()? {
                break;
            }
            self.commit()?;
        }
        // Cannot happen: there are pieces to spill, and each holds at least a cluster.
        Err(Error::Full)
    }

    /// Puts all blocks of a file into free space, as part of the next record. Room has been made.
    pub(crate) fn free_file(&mut self, state: &FileState) {
        for run in [state.lanes[0], state.lanes[1], state.reserve] {
            self.free_plain(run);
        }
        let chain = Piece {
            start: state.closed_start,
            blocks: state.closed_blocks,
            file_id: state.file_id,
        };
        if !self.root.pieces.push(chain) {
            self.free_chains_broken += 1;
        }
        self.count_free(state.closed_total);
    }

    /// Puts one run into free space, as part of the next record.
    pub(crate) fn free_plain(&mut self, run: Run) {
        let piece = Piece {
            start: run.start,
            blocks: u32::from(run.blocks),
            file_id: 0,
        };
        if !self.root.pieces.push(piece) {
            self.free_chains_broken += 1;
        }
        self.count_free(u32::from(run.blocks));
    }

    /// Never more than there are: a root that says so is not believed, and the store would not open again.
    fn count_free(&mut self, blocks: u32) {
        let free = self.root.free_blocks + u64::from(blocks);
        self.root.free_blocks = free.min(self.layout.data_blocks());
    }
}

/// Next list and number of pieces of a spilled list, if the block is one.
pub(crate) fn open_trunk(block: &[u8], address: u32, seed: u32) -> Option<(u32, usize)> {
    let intact = get_u32(block, 0) == TRUNK_MAGIC
        && get_u32(block, 8) == address
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
