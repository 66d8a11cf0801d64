//! Choosing the copy of the superblock that a repair trusts, when the copies differ.
//!
//! The copies differ after an interrupted growth. Some tell the old size, some the new one, and the store has since
//! used the size in the first copy. If the first copy is damaged, the repair must not use the wrong size: the records
//! tell the right one. Behind the end of a store there may also be remains of another, larger store.

use base::block::{BlockBuffer, BlockDevice};

use crate::error::{Error, Part, Result};
use crate::layout::{
    Layout, RECORD_PLACE_BLOCKS, SUPERBLOCK_FIRST, SUPERBLOCK_NEAR, TABLE_COPIES, superblock_far,
};
use crate::root::Root;
use crate::store::{is_readable, read_superblock};
use crate::table::Bucket;

/// Buckets of the table that are checked for belonging to another store.
const BUCKETS_ASKED: u32 = 64;

/// Returns the layout of the store on the device.
pub(crate) fn choose_layout<D: BlockDevice>(device: &mut D) -> Result<Layout> {
    let first = read_superblock(device)?;
    let geometry = device.geometry();
    let far = superblock_far(geometry.block_count);
    let mut found = Vec::new();
    let mut block = BlockBuffer::zeroed(1);
    for place in [SUPERBLOCK_FIRST, SUPERBLOCK_NEAR, far] {
        if is_readable(device.read(place, &mut block))?
            && let Ok(layout) = Layout::decode(&block, geometry)
            && layout.uuid == first.uuid
        {
            found.push((place, layout));
        }
    }
    if found.iter().all(|(place, _)| *place == far) && is_of_another(device, &first)? {
        return Err(Error::Damaged {
            part: Part::Superblock,
            block: SUPERBLOCK_FIRST,
            offset: None,
        });
    }
    let (mut best, mut newest) = (first, None);
    for (_, layout) in found {
        let record = newest_at_end(device, &layout)?;
        if record > newest {
            (best, newest) = (layout, record);
        }
    }
    Ok(best)
}

/// Returns the number of the newest record at the end of the store in this layout. The other place for records is the
/// same for all sizes.
fn newest_at_end<D: BlockDevice>(device: &mut D, layout: &Layout) -> Result<Option<u64>> {
    let mut newest = None;
    let mut block = BlockBuffer::zeroed(1);
    for offset in 0..RECORD_PLACE_BLOCKS {
        if is_readable(device.read(layout.record_block(1) + offset, &mut block))?
            && let Some((root, _)) = Root::decode(&block, layout)
        {
            newest = newest.max(Some(root.record_sequence));
        }
    }
    Ok(newest)
}

/// Returns whether records or table at the beginning of the device are there, but none of them is this store's.
fn is_of_another<D: BlockDevice>(device: &mut D, layout: &Layout) -> Result<bool> {
    let mut block = BlockBuffer::zeroed(1);
    let mut others = 0;
    for offset in 0..RECORD_PLACE_BLOCKS {
        if is_readable(device.read(layout.record_block(0) + offset, &mut block))? {
            if Root::decode(&block, layout).is_some() {
                return Ok(false);
            }
            others += u32::from(block.starts_with(b"KEELROOT"));
        }
    }
    for bucket in 0..layout.bucket_count.min(BUCKETS_ASKED) {
        for copy in 0..TABLE_COPIES {
            let place = layout.bucket_block(bucket) + copy;
            if is_readable(device.read(place, &mut block))? {
                if Bucket::open(&block, bucket, layout).is_some() {
                    return Ok(false);
                }
                others += u32::from(block.starts_with(b"EKTB"));
            }
        }
    }
    Ok(others > 0)
}
