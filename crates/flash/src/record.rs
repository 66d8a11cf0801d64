//! The two steps of every change: write a record, pass a barrier.
//!
//! A record is the root and up to three blocks (*images*) that change with it, as one contiguous request. After the
//! barrier the images are written in place, without waiting; the record stays until a later barrier has covered them.
//! So changing a few blocks and the root is atomic and costs one flush.
//!
//! Invariants:
//! - Between two barriers at most one record is written, and it does not describe anything written in the same epoch.
//!   So any subset of the epoch's writes, in any order and torn anywhere, is a consistent store.
//! - An image is written in place only after the record that carries it is durable.
//! - Blocks that become free are allocated again only after the record that frees them is durable.

use base::block::{BLOCK_BYTES, BlockDevice, DeviceError};
use base::seeded_bug::SeededBug;

use crate::bytes::get_u32;
use crate::error::Result;
use crate::layout::{CLUSTER_BLOCKS, RECORD_PLACE_BLOCKS, TABLE_COPIES, TRUNK_PLACE};
use crate::root::{IMAGES_MAX, ImageReference, PIECES_MAX, Piece};
use crate::space::{SPILL_AT, TRUNK_PIECES, seal_trunk};
use crate::store::{ImageStage, QUARANTINE_MAX, Store};
use crate::table::seal_bucket;

impl<D: BlockDevice> Store<D> {
    /// Pieces that may still be added to the root.
    pub(crate) fn piece_room(&self) -> usize {
        (PIECES_MAX - 1).saturating_sub(self.root.pieces.len() + self.quarantine_count)
    }

    /// Frees a piece that the coming record removes from its owner. The piece becomes available once that record is
    /// durable.
    pub(crate) fn quarantine(&mut self, piece: Piece) {
        debug_assert!(
            self.quarantine_count < QUARANTINE_MAX,
            "a call frees a bounded number of pieces"
        );
        self.quarantine[self.quarantine_count] = piece;
        self.quarantine_count += 1;
    }

    pub(crate) fn quarantine_room(&self) -> usize {
        QUARANTINE_MAX - self.quarantine_count
    }

    pub(crate) fn quarantined(&self) -> &[Piece] {
        &self.quarantine[..self.quarantine_count]
    }

    // ---- images ----

    /// Reserves space for one more block that the next record carries. The caller fills `self.images` at the returned
    /// place.
    pub(crate) fn begin_image(&mut self, address: u32) -> Result<usize> {
        if self.image_stage == ImageStage::Recorded {
            self.barrier()?;
        }
        if self.image_stage == ImageStage::InPlace {
            // If the device fails before the next flush, it may lose these images; then they are read from memory.
            std::mem::swap(&mut self.images, &mut self.images_before);
            self.image_references_before = self.image_references;
        }
        if self.image_stage != ImageStage::Pending {
            self.image_references.clear();
            self.image_stage = ImageStage::Pending;
        }
        debug_assert!(self.image_references.len() < IMAGES_MAX);
        self.image_references.push(ImageReference {
            address,
            checksum: 0,
        });
        Ok(self.image_references.len() - 1)
    }

    /// Adds the bucket at `place` of the scratch buffer to the images of the next record.
    pub(crate) fn begin_table_image(&mut self, bucket: u32, place: usize) -> Result<usize> {
        let address = self.layout.bucket_block(bucket);
        let image = self.begin_image(address as u32)?;
        self.images
            .block_mut(image)
            .copy_from_slice(self.scratch.block(place));
        Ok(image)
    }

    pub(crate) fn has_pending_images(&self) -> bool {
        self.image_stage == ImageStage::Pending
    }

    /// Table blocks carry the number of the record; data blocks are already sealed by the code that changed them.
    fn seal_images(&mut self) {
        for index in 0..self.image_references.len() {
            let reference = self.image_references.get_mut(index);
            let block = self.images.block_mut(index);
            if let Some(bucket) = self.layout.bucket_at(u64::from(reference.address)) {
                seal_bucket(block, bucket, self.root.record_sequence, &self.layout);
            }
            reference.checksum = get_u32(block, 4);
        }
    }

    // ---- records and barriers ----

    /// Writes the root, with the pending images, over the older of the two records.
    pub(crate) fn write_record(&mut self) -> Result<()> {
        if self.unflushed {
            // The record would describe writes of this epoch. A second record in one epoch would also overwrite the
            // only one that is known to be durable.
            self.barrier()?;
        }
        self.root.record_sequence += 1;
        self.root.next_sequence = self.sequence;
        if self.image_stage != ImageStage::Pending {
            self.remember_images_in_place();
        }
        self.seal_images();
        let images = self.image_references.len();
        let (address, blocks) = if self.may_spill() {
            (u64::from(self.spill()), CLUSTER_BLOCKS as usize)
        } else {
            self.root.spilled = false;
            self.root.place ^= 1;
            self.announce();
            let address = self.layout.record_block(u64::from(self.root.place));
            (address, images + 2)
        };
        let extra = &self.quarantine[..self.quarantine_count];
        self.root.encode(
            self.record.block_mut(0),
            extra,
            &self.image_references,
            self.seed,
        );
        if self.root.spilled && images == 0 {
            // Write the list again at the place of an image.
            let trunk = TRUNK_PLACE * BLOCK_BYTES;
            self.record
                .copy_within(trunk..trunk + BLOCK_BYTES, BLOCK_BYTES);
        }
        let images_end = (1 + images) * BLOCK_BYTES;
        let (first, rest) = self.record.split_at_mut(BLOCK_BYTES);
        rest[..images_end - BLOCK_BYTES].copy_from_slice(&self.images[..images_end - BLOCK_BYTES]);
        let last = (blocks - 2) * BLOCK_BYTES;
        rest[last..last + BLOCK_BYTES].copy_from_slice(first);
        self.unflushed = true;
        if let Err(error) = self
            .device
            .write(address, &self.record[..blocks * BLOCK_BYTES])
        {
            return Err(self.fail(error));
        }
        self.root_changed = false;
        if self.image_stage == ImageStage::Pending {
            self.image_stage = ImageStage::Recorded;
        }
        if SeededBug::SwappedBarrier.is_on() && self.image_stage == ImageStage::Recorded {
            self.write_images_in_place()?;
        }
        Ok(())
    }

    /// Keeps the images written in place since the last flush apart from those of the next record, which carries none.
    fn remember_images_in_place(&mut self) {
        if self.image_stage == ImageStage::InPlace {
            std::mem::swap(&mut self.images, &mut self.images_before);
            self.image_references_before = self.image_references;
        }
        self.image_references.clear();
        self.image_stage = ImageStage::None;
    }

    /// Returns whether this record goes to the announced cluster, to spill a list of free pieces at no cost. The
    /// previous record must be in a fixed place; otherwise recovery would not find the cluster.
    fn may_spill(&self) -> bool {
        self.root.pieces.len() >= SPILL_AT
            && self.root.announced != 0
            && !self.root.spilled
            && !self.root.clean
            && match self.image_references.as_slice() {
                [] => true,
                // If the list rots, the table block written in place still proves that the record was durable.
                [image] => self.layout.bucket_at(u64::from(image.address)).is_some(),
                _ => false,
            }
    }

    /// Moves pieces of the root to a list in the announced cluster, as part of this record. Returns the cluster.
    fn spill(&mut self) -> u32 {
        let cluster = self.root.announced;
        let trunk = self.record.block_mut(TRUNK_PLACE);
        trunk.fill(0);
        // The largest plain piece stays, for the next allocation.
        let kept = self.root.pieces.largest_plain();
        let mut count = 0;
        for index in (0..self.root.pieces.len()).rev() {
            if count < TRUNK_PIECES && Some(self.root.pieces.as_slice()[index]) != kept {
                let piece = self.root.pieces.remove(index);
                crate::space::put_trunk_piece(trunk, count, &piece);
                count += 1;
            }
        }
        seal_trunk(trunk, cluster, self.root.trunk_head, count, self.seed);
        self.root.spilled_checksum = get_u32(trunk, 4);
        self.root.spilled_next = self.root.trunk_head;
        self.root.trunk_head = cluster;
        self.root.trunk_count = self.root.trunk_count.saturating_add(1);
        self.count_free(CLUSTER_BLOCKS);
        self.root.spilled = true;
        self.root.announced = 0;
        self.announce();
        cluster
    }

    /// Reserves a cluster for the next record that spills, if one is available.
    pub(crate) fn announce(&mut self) {
        if self.root.announced == 0
            && self.can_spare_a_cluster()
            && let Some(run) = self.take(CLUSTER_BLOCKS)
        {
            self.root.announced = run.start;
            let blocks = u64::from(run.blocks);
            self.root.free_blocks = self.root.free_blocks.saturating_sub(blocks);
        }
    }

    /// Makes all writes so far durable, then writes the images that waited for this.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.flush_device()?;
        self.unflushed = false;
        for index in 0..self.quarantine_count {
            let pushed = self.root.pieces.push(self.quarantine[index]);
            debug_assert!(pushed, "room for quarantined pieces is kept");
        }
        self.quarantine_count = 0;
        if self.image_stage == ImageStage::Recorded {
            self.write_images_in_place()?;
        }
        Ok(())
    }

    /// As [`barrier`](Self::barrier), for a call that follows calls with unflushed writes. If the device fails later in
    /// this call, reads use the state from here, because older durable data may be overwritten from now on.
    pub(crate) fn barrier_for_earlier_calls(&mut self) -> Result<()> {
        self.barrier()?;
        self.root_before.clone_from(&self.root);
        Ok(())
    }

    /// No flush here: the record stays valid until the next barrier has made these writes durable.
    fn write_images_in_place(&mut self) -> Result<()> {
        self.image_stage = ImageStage::InPlace;
        let mut first = 0;
        while first < self.image_references.len() {
            let references = &self.image_references.as_slice()[first..];
            let address = u64::from(references[0].address);
            let (count, written) = if self.layout.bucket_at(address).is_some() {
                let image = self.images.block(first);
                let (one, other) = self.pair.split_at_mut(BLOCK_BYTES);
                one.copy_from_slice(image);
                other.copy_from_slice(image);
                (1, self.device.write(address, &self.pair))
            } else {
                // Adjacent images are written in one request.
                let side_by_side = references
                    .iter()
                    .zip(address..)
                    .take_while(|(reference, place)| u64::from(reference.address) == *place)
                    .count();
                let bytes = first * BLOCK_BYTES..(first + side_by_side) * BLOCK_BYTES;
                (
                    side_by_side,
                    self.device.write(address, &self.images[bytes]),
                )
            };
            if let Err(error) = written {
                // Their record is durable, so reads must use its root from now on.
                self.root_before.clone_from(&self.root);
                return Err(self.fail(error));
            }
            first += count;
        }
        Ok(())
    }

    /// Writes one record and passes one barrier.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.write_record()?;
        self.barrier()
    }

    pub(crate) fn flush_device(&mut self) -> Result<()> {
        if let Err(error) = self.device.flush() {
            return Err(self.fail(error));
        }
        self.epoch += 1;
        self.image_references_before.clear();
        if self.image_stage == ImageStage::InPlace {
            self.image_references.clear();
            self.image_stage = ImageStage::None;
        }
        Ok(())
    }

    /// Stops all writing permanently and restores the acknowledged state, so that reads can continue.
    pub(crate) fn fail(&mut self, error: DeviceError) -> crate::error::Error {
        self.failed = true;
        self.root.clone_from(&self.root_before);
        self.quarantine_count = 0;
        for tail in &mut self.tails {
            tail.forget();
        }
        // A failed device may have lost images that were written in place but not flushed.
        for index in 0..self.image_references_before.len() {
            let address = self.image_references_before.as_slice()[index].address;
            self.lay_over(address, true, index);
        }
        if self.image_stage == ImageStage::InPlace {
            for index in 0..self.image_references.len() {
                let address = self.image_references.as_slice()[index].address;
                self.lay_over(address, false, index);
            }
        }
        self.image_references_before.clear();
        self.image_references.clear();
        self.image_stage = ImageStage::None;
        crate::error::Error::Device(error)
    }

    fn lay_over(&mut self, address: u32, before: bool, index: usize) {
        let images = if before {
            &self.images_before
        } else {
            &self.images
        };
        let bytes = images.block(index).to_vec();
        self.put_overlay(address, bytes);
    }

    /// Makes all later reads of this block return `bytes` instead of the device's content.
    pub(crate) fn put_overlay(&mut self, address: u32, bytes: Vec<u8>) {
        if self.layout.bucket_at(u64::from(address)).is_some() {
            for copy in 1..TABLE_COPIES as u32 {
                self.overlay.push((address + copy, bytes.clone()));
            }
        }
        self.overlay.push((address, bytes));
    }

    /// Returns whether this block is held in memory because its place on the device does not hold it.
    pub(crate) fn is_overlaid(&self, address: u64) -> bool {
        self.overlay
            .iter()
            .any(|(other, _)| u64::from(*other) == address)
    }
}

const _: () = assert!(IMAGES_MAX as u64 + 2 <= RECORD_PLACE_BLOCKS);
