//! Growing a store to use all of a device that has become larger.
//!
//! Only the end moves: the size of the name table and the number of files stay as they were formatted. First, the
//! second place for records and the last superblock are written behind the new end of the data, where the old store has
//! nothing. Then the superblock changes, one copy after the other. The copy that is read first tells the size of the
//! store; for either size, all structures are in their place. From then on the former end consists of ordinary data
//! blocks, never used so far.

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, Geometry};

use crate::block::GROUP_BLOCKS_MAX;
use crate::error::{Error, Result};
use crate::layout::{
    DEVICE_BLOCKS_MAX, FormatOptions, Layout, RECORD_PLACE_BLOCKS, SUPERBLOCK_FIRST,
    SUPERBLOCK_NEAR, superblock_far,
};
use crate::root::ImageReferences;
use crate::store::{OpenOptions, Store, is_readable, read_superblock};

/// The changes made by growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowReport {
    /// Blocks of the device that the store used before.
    pub blocks_before: u64,
    /// Blocks that it uses now; equal to `blocks_before` if the device has not become larger by at least 12 blocks.
    pub blocks_after: u64,
    /// Blocks that files may own now.
    pub data_blocks: u64,
}

impl<D: BlockDevice> Store<D> {
    /// Makes the store use all of its device, which has become larger, and returns the device. Opens the store for
    /// writing, so recovery runs first; no other process may use the device. If this is interrupted, the store has
    /// either the old or the new size; growing again completes it.
    ///
    /// # Errors
    /// [`Error::Truncated`] when the device is smaller than the store, which cannot shrink. [`Error::DeviceTooLarge`]
    /// when it is larger than a store can be. [`Error::Damaged`] as for every change, when the store's numbers are used
    /// up. Those of [`open`](Self::open).
    pub fn grow(mut device: D) -> Result<(GrowReport, D)> {
        let old = read_superblock(&mut device)?;
        let new = grown(&old, device.geometry())?;
        let report = GrowReport {
            blocks_before: old.block_count,
            blocks_after: new.block_count,
            data_blocks: new.data_blocks(),
        };
        if new != old {
            let options = OpenOptions {
                open_files_max: 1,
                addresses_max: 0,
                read_only: false,
            };
            let mut store = Self::assemble(device, old, &options);
            store.recover()?;
            // Growing writes records, and their numbers must be new.
            store.begin_change()?;
            store.write_end(&new)?;
            device = store.device;
        }
        write_superblocks(&mut device, &new)?;
        Ok((report, device))
    }

    /// Writes the structures behind the end of the data of the larger store. The current store stays unchanged.
    fn write_end(&mut self, new: &Layout) -> Result<()> {
        // The newest record must be in the place that both sizes have in common.
        self.root.clean = true;
        loop {
            self.root.spilled = true;
            self.commit()?;
            if self.root.place == 0 {
                break;
            }
        }
        // The record to copy must contain only its own blocks: no image may wait to be written in place.
        self.flush_device()?;
        let mut root = self.root.clone();
        root.record_sequence += 1;
        root.place = 1;
        root.free_blocks += new.data_blocks() - self.layout.data_blocks();
        let mut blocks = BlockBuffer::zeroed(GROUP_BLOCKS_MAX);
        for part in (0..RECORD_PLACE_BLOCKS).step_by(GROUP_BLOCKS_MAX) {
            self.device.write(new.record_block(1) + part, &blocks)?;
        }
        self.device.flush()?;
        let no_images = ImageReferences::default();
        for copy in 0..2 {
            root.encode(
                blocks.block_mut(copy),
                self.quarantined(),
                &no_images,
                self.seed,
            );
        }
        self.device
            .write(new.record_block(1), &blocks[..2 * BLOCK_BYTES])?;
        let far = blocks.block_mut(2);
        new.encode(far);
        let far = &blocks[2 * BLOCK_BYTES..3 * BLOCK_BYTES];
        self.device.write(superblock_far(new.block_count), far)?;
        self.device.flush()?;
        Ok(())
    }
}

/// Returns the layout for all of the device. If there is no room for a new end that does not overlap the current one,
/// returns the store's current layout.
fn grown(old: &Layout, geometry: Geometry) -> Result<Layout> {
    if geometry.block_count < old.block_count {
        return Err(Error::Truncated {
            blocks_made: old.block_count,
            blocks_found: geometry.block_count,
        });
    }
    // Using only a part of the device would look like success.
    if geometry.block_count > DEVICE_BLOCKS_MAX {
        return Err(Error::DeviceTooLarge {
            blocks_found: geometry.block_count,
            blocks_max: DEVICE_BLOCKS_MAX,
        });
    }
    let options = FormatOptions {
        files_max: old.files_max,
        name_bytes_max: old.name_bytes_max,
        uuid: old.uuid,
        hash_key: old.hash_key,
    };
    let new = Layout::plan(geometry, &options)?;
    let end = superblock_far(old.block_count) + 1;
    Ok(if new.record_block(1) >= end {
        new
    } else {
        old.clone()
    })
}

impl<D: BlockDevice> Store<D> {
    /// Makes all copies of the superblock equal to the first one, so that damage to the first cannot change the size of
    /// the store. The copies differ after an interrupted growth and after damage.
    pub(crate) fn settle_superblocks(&mut self) -> Result<()> {
        write_superblocks(&mut self.device, &self.layout)?;
        let end = superblock_far(self.device.geometry().block_count);
        if end == superblock_far(self.layout.block_count) {
            return Ok(());
        }
        // Behind the end of the store there are remains of a growth that was interrupted early, or data that is not
        // ours.
        let geometry = self.device.geometry();
        let block = self.scratch.block_mut(0);
        let left = is_readable(self.device.read(end, block))?
            && Layout::decode(block, geometry).is_ok_and(|left| left.uuid == self.layout.uuid);
        if left {
            block.fill(0);
            self.device.write(end, block)?;
            self.device.flush()?;
        }
        Ok(())
    }
}

/// Writes `layout` to the copies of the superblock, the first copy first.
fn write_superblocks<D: BlockDevice>(device: &mut D, layout: &Layout) -> Result<()> {
    let mut wanted = BlockBuffer::zeroed(1);
    layout.encode(&mut wanted);
    let mut found = BlockBuffer::zeroed(1);
    for place in [
        SUPERBLOCK_FIRST,
        SUPERBLOCK_NEAR,
        superblock_far(layout.block_count),
    ] {
        let read = device.read(place, &mut found);
        if read.is_err() || found[..] != wanted[..] {
            device.write(place, &wanted)?;
            device.flush()?;
        }
    }
    Ok(())
}
