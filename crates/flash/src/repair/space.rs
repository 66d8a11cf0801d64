//! Free space under repair: comparing the free list with the blocks that files own, and making a new list.

use base::block::BlockDevice;

use crate::error::Result;
use crate::layout::CLUSTER_BLOCKS;
use crate::repair::owners::FreeSpace;
use crate::repair::state::Repair;
use crate::root::Piece;
use crate::space::{open_trunk, trunk_address, trunk_piece};
use crate::store::is_readable;

impl<D: BlockDevice> Repair<'_, D> {
    /// Builds a new list of all blocks that no file owns.
    pub(crate) fn make_free_space(&mut self) {
        if self.has_newer {
            // Until the table is written nothing becomes free: the table still names these blocks.
            let first = self.free_space_of(true);
            let trunks = first.trunks.iter().map(|(cluster, _)| *cluster);
            self.trunks_old.extend(trunks);
            self.free_space_first = Some(first);
        }
        self.free_space = Some(self.free_space_of(false));
    }

    fn free_space_of(&self, only_listed: bool) -> FreeSpace {
        let avoid = |cluster: u32| self.trunks_old.contains(&cluster);
        FreeSpace::new(&self.owners, only_listed, &avoid, &self.store.layout)
    }

    /// Compares the list of free blocks with the blocks that files own. Clusters in neither stay without an owner.
    pub(crate) fn check_free_space(&mut self) -> Result<()> {
        let mut listed = 0;
        let mut problems = 0_u64;
        let frontier = self.store.root.frontier;
        let mut pieces = self.store.root.pieces.as_slice().to_vec();
        pieces.extend_from_slice(self.store.quarantined());
        let mut trunk = self.store.root.trunk_head;
        while trunk != 0 {
            let is_new = self.store.layout.is_data_run(trunk, CLUSTER_BLOCKS)
                && self.trunks_old.insert(trunk);
            let opened = if is_new {
                self.read_trunk(trunk)?
            } else {
                None
            };
            let Some((next, count)) = opened else {
                problems += 1;
                let text = "a block of the free list was damaged; the list was made anew";
                self.find(
                    None,
                    Some(trunk_address(trunk)),
                    true,
                    false,
                    text.to_owned(),
                );
                break;
            };
            for index in 0..count {
                let block = self.store.scratch.block(0);
                match trunk_piece(block, index, &self.store.layout) {
                    Some(piece) => pieces.push(piece),
                    None => problems += 1,
                }
            }
            problems += u64::from(!self.claim_free(trunk, CLUSTER_BLOCKS));
            listed += u64::from(CLUSTER_BLOCKS);
            trunk = next;
        }
        if self.trunks_old.len() as u64 != u64::from(self.store.root.trunk_count) {
            problems += 1;
        }
        let mut chains_broken = 0_u64;
        for piece in pieces {
            let (blocks, broken, taken) = self.claim_free_chain(piece)?;
            listed += blocks;
            chains_broken += u64::from(broken);
            problems += u64::from(taken);
        }
        let announced = self.store.root.announced;
        if announced != 0 {
            problems += u64::from(!self.claim_free(announced, CLUSTER_BLOCKS));
            self.trunks_old.insert(announced);
        }
        let beyond = self.store.layout.data_end - frontier;
        problems += u64::from(!self.claim_free(frontier, beyond));
        listed += u64::from(beyond);
        if chains_broken > 0 {
            let text = format!(
                "{chains_broken} chains of freed runs could not be followed; the free list was made anew"
            );
            self.find(None, None, true, false, text);
        }
        if problems > 0 {
            let text = "the free list named blocks that it should not; it was made anew";
            self.find(None, None, true, false, text.to_owned());
        }
        let counted = self.store.root.free_blocks;
        if chains_broken + problems == 0 && listed != counted {
            let text = format!("{listed} blocks were listed as free, the root counted {counted}");
            self.find(None, None, true, false, text);
        }
        self.free_list_damaged = chains_broken + problems > 0 || listed != counted;
        if self.free_list_damaged {
            self.root_changed = true;
        }
        Ok(())
    }

    /// Claims a piece for free space, and the runs before it. Returns the number of blocks, whether a link was broken,
    /// and whether a part has another owner.
    fn claim_free_chain(&mut self, mut piece: Piece) -> Result<(u64, bool, bool)> {
        let mut total = 0;
        loop {
            if !self.store.layout.is_data_run(piece.start, piece.blocks) {
                return Ok((total, true, false));
            }
            if !self.claim_free(piece.start, piece.blocks) {
                // This also ends a chain that is a circle.
                return Ok((total, false, true));
            }
            total += u64::from(piece.blocks);
            if piece.file_id == 0 {
                return Ok((total, false, false));
            }
            match self.link(&piece)? {
                None => return Ok((total, true, false)),
                Some(before) if before.is_none() || before.start == piece.end => {
                    return Ok((total, false, false));
                }
                Some(before) => {
                    piece.start = before.start;
                    piece.blocks = before.blocks();
                }
            }
        }
    }

    /// Reads a spilled list into the scratch buffer. Its cluster may hold it twice.
    fn read_trunk(&mut self, trunk: u32) -> Result<Option<(u32, usize)>> {
        for address in [trunk_address(trunk), u64::from(trunk) + 1] {
            let block = self.store.scratch.block_mut(0);
            if is_readable(self.store.device.read(address, block))? {
                let block = self.store.scratch.block(0);
                let opened = open_trunk(block, trunk, self.store.seed);
                if opened.is_some() {
                    if address != trunk_address(trunk) {
                        let block = block.to_vec();
                        self.lists_again.push((trunk, block));
                        let text = "a copy of a block of the free list was damaged; written again from the other";
                        let place = Some(trunk_address(trunk));
                        self.find(None, place, true, false, text.to_owned());
                    }
                    return Ok(opened);
                }
            }
        }
        Ok(None)
    }
}
