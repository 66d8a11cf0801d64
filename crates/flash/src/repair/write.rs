//! Writing the results of a repair, in an order that tolerates a power cut anywhere.
//!
//! The writes of a step are durable before the next step begins. Until the last record, a second repair finds the same
//! problems as the first one, or fewer.

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice};

use crate::error::Result;
use crate::layout::{CLUSTER_BLOCKS, RECORD_PLACE_BLOCKS, TABLE_COPIES};
use crate::repair::owners::FreeSpace;
use crate::repair::state::Repair;
use crate::space::trunk_address;
use crate::store::is_readable;

/// Blocks of a record without images: two copies of the root.
const RECORD_BLOCKS: u64 = 2;

impl<D: BlockDevice> Repair<'_, D> {
    pub(crate) fn write(&mut self) -> Result<()> {
        self.store.read_only = false;
        // The data read must be durable before any write relies on it.
        self.store.flush_device()?;
        self.write_copies()?;
        if !self.rootless {
            // Write the root as it was found, in a record without images, so that recovery no longer replays an image
            // over the following writes.
            let root = std::mem::replace(&mut self.store.root, self.root_found.clone());
            self.store.root.record_sequence = self.table_sequence - 1;
            if let Some(free) = self.free_space_first.take() {
                // The root names file blocks that the old list of free blocks still contains.
                self.write_free_list(&free)?;
                self.list_free_space(free);
            }
            self.commit_apart()?;
            self.store.root.slots = root.slots;
            self.store.root.files = root.files;
            self.store.root.next_file_id = root.next_file_id;
        }
        self.write_table()?;
        let free = self.free_space.take();
        if let Some(free) = &free {
            self.write_free_list(free)?;
        }
        if self.rootless {
            let root = &mut self.store.root;
            root.record_sequence = root.record_sequence.max(self.table_sequence);
        }
        if let Some(free) = free {
            self.list_free_space(free);
        }
        self.make_announced_readable()?;
        // Overwrite both places, so that the old state cannot come back.
        self.commit_apart()?;
        self.store.root.clean = true;
        self.commit_apart()?;
        self.clear_behind_records()
    }

    /// Puts a new list of free blocks into the root.
    fn list_free_space(&mut self, free: FreeSpace) {
        let root = &mut self.store.root;
        root.pieces = free.pieces;
        root.frontier = free.frontier;
        root.free_blocks = free.blocks;
        root.trunk_head = free.trunks.last().map_or(0, |(cluster, _)| *cluster);
        root.trunk_count = free.trunks.len() as u32;
        root.announced = 0;
        self.store.quarantine_count = 0;
    }

    /// Clears remains of earlier, longer records behind the new ones, if they might pass for a record or keep the store
    /// from being opened.
    fn clear_behind_records(&mut self) -> Result<()> {
        if !self.rootless && self.unreadable_records.is_empty() {
            return Ok(());
        }
        for place in 0..2 {
            let first = self.store.layout.record_block(place);
            for address in first + RECORD_BLOCKS..first + RECORD_PLACE_BLOCKS {
                self.put(address, &[0; BLOCK_BYTES])?;
            }
        }
        self.store.flush_device()
    }

    /// Writes a record to the older of the two fixed places.
    fn commit_apart(&mut self) -> Result<()> {
        // A record that spills a list must not follow another one that does.
        self.store.root.spilled = true;
        self.store.commit()
    }

    /// Writes the cluster that the record announces, if the device cannot read all of it. Opening a store reads this
    /// cluster, and it is free.
    fn make_announced_readable(&mut self) -> Result<()> {
        self.store.announce();
        let cluster = self.store.root.announced;
        for block in cluster..cluster + CLUSTER_BLOCKS {
            let scratch = self.store.scratch.block_mut(0);
            if cluster != 0 && !is_readable(self.store.device.read(u64::from(block), scratch))? {
                self.put(u64::from(block), &[0; BLOCK_BYTES])?;
            }
        }
        self.store.flush_device()
    }

    /// Writes the blocks that records carry in place, the marked blocks, and the damaged copies.
    fn write_copies(&mut self) -> Result<()> {
        for (address, block) in std::mem::take(&mut self.store.overlay) {
            self.put(u64::from(address), &block)?;
        }
        let mut superblock = BlockBuffer::zeroed(1);
        self.store.layout.encode(&mut superblock);
        for place in self.superblocks.clone() {
            self.put(place, &superblock)?;
        }
        for (cluster, block) in std::mem::take(&mut self.lists_again) {
            self.put(trunk_address(cluster), &block)?;
        }
        for (address, bucket) in self.stale_copies.clone() {
            self.store.read_bucket(bucket, 1)?;
            let block = self.store.scratch.block(1).to_vec();
            self.put(address, &block)?;
        }
        self.store.flush_device()
    }

    /// Writes changed buckets: one copy, then the other. Lost buckets come last, because they show that there are lost
    /// files.
    fn write_table(&mut self) -> Result<()> {
        for bucket in self.lost_buckets.clone() {
            self.change_bucket(bucket, |_, _| {})?;
        }
        let buckets = std::mem::take(&mut self.buckets);
        let (lost, changed): (Vec<_>, Vec<_>) = buckets
            .into_iter()
            .partition(|(bucket, _)| self.lost_buckets.contains(bucket));
        for copy in 0..TABLE_COPIES {
            for (bucket, block) in &changed {
                self.put(self.store.layout.bucket_block(*bucket) + copy, block)?;
            }
            self.store.flush_device()?;
        }
        for (bucket, block) in &lost {
            for copy in 0..TABLE_COPIES {
                self.put(self.store.layout.bucket_block(*bucket) + copy, block)?;
            }
        }
        self.store.flush_device()
    }

    fn write_free_list(&mut self, free: &FreeSpace) -> Result<()> {
        for (cluster, block) in &free.trunks {
            // Write it twice, as a record without images does.
            self.put(u64::from(*cluster) + 1, block)?;
            self.put(trunk_address(*cluster), block)?;
        }
        self.store.flush_device()
    }

    fn put(&mut self, address: u64, block: &[u8]) -> Result<()> {
        // Devices require buffers of their own alignment.
        self.store.pair.block_mut(0).copy_from_slice(block);
        let written = self
            .store
            .device
            .write(address, &self.store.pair[..BLOCK_BYTES]);
        self.note_progress();
        written.map_err(|error| self.store.fail(error))
    }
}
