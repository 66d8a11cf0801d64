//! The layout of the device: the superblock and the regions that follow from it.
//!
//! Invariant: every number here is fixed when the store is formatted; only growing a store (`grow.rs`) writes the
//! superblocks again.

use base::block::{BLOCK_BYTES, Geometry};

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::error::{Error, Part, Result};

/// The on-disk format that this program reads and writes. Format 0 was provisional and has no upgrade path.
pub const FORMAT_VERSION: u32 = 1;

/// Blocks of the largest device that a store can use completely: block numbers have 32 bits.
pub const DEVICE_BLOCKS_MAX: u64 = 1 << 32;

/// Blocks that are always allocated together: the unit of allocation, 16 KiB.
pub(crate) const CLUSTER_BLOCKS: u32 = 4;
/// Longest run of blocks that a file is given in one allocation.
pub(crate) const RUN_BLOCKS_MAX: u32 = 64;

pub(crate) const SUPERBLOCK_FIRST: u64 = 0;
/// A copy of the superblock whose place does not depend on the size of the device, which may have grown.
pub(crate) const SUPERBLOCK_NEAR: u64 = 2;
/// The first of the two places for records; the other one is at the end of the device.
const RECORD_FIRST: u64 = 4;
/// Blocks of a place for records: a root, the images of the record, the root again, and spare blocks.
pub(crate) const RECORD_PLACE_BLOCKS: u64 = 8;
pub(crate) const TABLE_FIRST: u64 = RECORD_FIRST + RECORD_PLACE_BLOCKS;
/// Blocks behind the data: the other place for records, and the last superblock. Structures that must not be lost
/// together lie at the two ends of the device, never in one erase block.
const END_BLOCKS: u64 = RECORD_PLACE_BLOCKS + CLUSTER_BLOCKS as u64;
/// Minimum size of a device for a store, in blocks.
pub(crate) const BLOCKS_MIN: u64 = TABLE_FIRST + END_BLOCKS;
/// The block of a spilling record that holds the list.
pub(crate) const TRUNK_PLACE: usize = 2;
/// Number of copies of each block of the name table, side by side.
pub(crate) const TABLE_COPIES: u64 = 2;

pub(crate) const BUCKET_HEADER_BYTES: usize = 32;
pub(crate) const ENTRY_FIXED_BYTES: usize = 68;

/// The limit for numbers that grow over a store's life. They never come near it, so an image with greater numbers is
/// rejected.
pub(crate) const COUNTER_END: u64 = 1 << 63;
/// The limit for identities of files, which share eight bytes with a length in the free list.
pub(crate) const FILE_ID_END: u64 = 1 << 56;

const MAGIC: &[u8; 8] = b"KEELFLSH";

/// The decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Identity of this store; seeds every checksum, so that blocks of an earlier store never pass.
    pub uuid: [u8; 16],
    /// Key of the name hash; random, so that an attacker cannot choose names that collide.
    pub hash_key: [u8; 16],
    /// Blocks of the device that the store uses.
    pub block_count: u64,
    /// Names that the table is sized for.
    pub files_max: u64,
    /// Blocks of the name table, each holding [`Self::entries_per_bucket`] names and kept twice.
    pub bucket_count: u32,
    /// Longest file name in bytes.
    pub name_bytes_max: u16,
    /// Names in one block of the table.
    pub entries_per_bucket: u16,
    /// First block that files may own.
    pub data_first: u32,
    /// First block after the blocks that files may own.
    pub data_end: u32,
}

/// The parameters of a new store.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Number of files to size the name table for. A table sized for N refuses fewer than one in 10^9
    /// fillings with N random names.
    pub files_max: u64,
    /// Longest name in bytes, 1 to 255. Shorter names make a smaller table.
    pub name_bytes_max: u16,
    /// Identity of the store, random.
    pub uuid: [u8; 16],
    /// Key of the name hash, random.
    pub hash_key: [u8; 16],
}

impl FormatOptions {
    /// Checks that a store with these options fits a device of this geometry.
    ///
    /// # Errors
    /// [`Error::Format`] with the reason if it does not fit.
    pub fn check(&self, geometry: Geometry) -> Result<()> {
        Layout::plan(geometry, self).map(|_| ())
    }
}

/// Returns the place of the last superblock on a device of `block_count` blocks.
pub(crate) fn superblock_far(block_count: u64) -> u64 {
    let cluster = u64::from(CLUSTER_BLOCKS);
    block_count.min(u64::from(u32::MAX)) / cluster * cluster - cluster
}

impl Layout {
    /// Computes the regions for a device and the options.
    pub(crate) fn plan(geometry: Geometry, options: &FormatOptions) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Format { reason });
        if !(1..=255).contains(&options.name_bytes_max) {
            return refuse(format!(
                "name length {} is outside 1 to 255 bytes",
                options.name_bytes_max
            ));
        }
        if options.files_max == 0 || options.files_max > u64::from(u32::MAX) {
            return refuse(format!(
                "{} files is outside 1 to {}",
                options.files_max,
                u32::MAX
            ));
        }
        let entry_bytes = entry_bytes(options.name_bytes_max);
        let entries_per_bucket = (BLOCK_BYTES - BUCKET_HEADER_BYTES) / entry_bytes;
        let bucket_count = bucket_count_for(options.files_max, entries_per_bucket as u64);
        // Block numbers are 32 bits on the device: 16 TiB.
        let block_count = geometry.block_count.min(u64::from(u32::MAX));
        let table_end = TABLE_FIRST + bucket_count * TABLE_COPIES;
        let cluster = u64::from(CLUSTER_BLOCKS);
        let data_first = table_end.div_ceil(cluster) * cluster;
        let data_end = (block_count / cluster * cluster).saturating_sub(END_BLOCKS);
        if data_first + 4 * cluster > data_end {
            return refuse(format!(
                "a name table for {} files needs {} of the device's {} blocks and leaves too few for data; \
                 lower the number of files or enlarge the device",
                options.files_max, data_first, block_count
            ));
        }
        Ok(Self {
            uuid: options.uuid,
            hash_key: options.hash_key,
            block_count,
            files_max: options.files_max,
            bucket_count: bucket_count as u32,
            name_bytes_max: options.name_bytes_max,
            entries_per_bucket: entries_per_bucket as u16,
            data_first: data_first as u32,
            data_end: data_end as u32,
        })
    }

    /// Blocks that files may own.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        u64::from(self.data_end - self.data_first)
    }

    pub(crate) fn entry_bytes(&self) -> usize {
        entry_bytes(self.name_bytes_max)
    }

    /// First block of the pair that holds bucket `bucket`.
    pub(crate) fn bucket_block(&self, bucket: u32) -> u64 {
        TABLE_FIRST + u64::from(bucket) * TABLE_COPIES
    }

    /// Returns the places of the copies of the superblock, the most trusted first.
    pub(crate) fn superblocks(&self) -> [u64; 3] {
        [
            SUPERBLOCK_FIRST,
            SUPERBLOCK_NEAR,
            superblock_far(self.block_count),
        ]
    }

    /// The bucket whose first copy is block `address`.
    pub(crate) fn bucket_at(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(TABLE_FIRST)?;
        let bucket = offset / TABLE_COPIES;
        (offset.is_multiple_of(TABLE_COPIES) && bucket < u64::from(self.bucket_count))
            .then_some(bucket as u32)
    }

    /// Whether files may own block `address`.
    pub(crate) fn is_data_block(&self, address: u32) -> bool {
        (self.data_first..self.data_end).contains(&address)
    }

    /// First block of place `place` (0 or 1) for records.
    pub(crate) fn record_block(&self, place: u64) -> u64 {
        if place == 0 {
            RECORD_FIRST
        } else {
            u64::from(self.data_end)
        }
    }

    pub(crate) fn checksum_seed(&self) -> u32 {
        crc32c::crc32c(&self.uuid)
    }

    /// Whether `[start, start + length)` is a run of whole clusters inside the data region.
    pub(crate) fn is_data_run(&self, start: u32, length: u32) -> bool {
        length > 0
            && start >= self.data_first
            && start.is_multiple_of(CLUSTER_BLOCKS)
            && length.is_multiple_of(CLUSTER_BLOCKS)
            && u64::from(start) + u64::from(length) <= u64::from(self.data_end)
    }

    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        put_u32(block, 8, FORMAT_VERSION);
        block[16..32].copy_from_slice(&self.uuid);
        block[32..48].copy_from_slice(&self.hash_key);
        put_u64(block, 48, self.block_count);
        put_u64(block, 56, self.files_max);
        put_u32(block, 64, self.bucket_count);
        put_u16(block, 68, self.name_bytes_max);
        put_u16(block, 70, self.entries_per_bucket);
        put_u32(block, 72, self.data_first);
        put_u32(block, 76, self.data_end);
        let checksum = crc32c::crc32c(&block[16..BLOCK_BYTES]);
        put_u32(block, 12, checksum);
    }

    /// Reads a superblock from untrusted bytes.
    pub(crate) fn decode(block: &[u8], geometry: Geometry) -> Result<Self> {
        if &block[..8] != MAGIC {
            return Err(Error::NotAStore);
        }
        let damaged = Error::Damaged {
            part: Part::Superblock,
            block: SUPERBLOCK_FIRST,
            offset: None,
        };
        let found = get_u32(block, 8);
        if crc32c::crc32c(&block[16..BLOCK_BYTES]) != get_u32(block, 12) {
            return Err(damaged);
        }
        if found != FORMAT_VERSION {
            return Err(Error::Version {
                found,
                supported: FORMAT_VERSION,
            });
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[16..32]);
        let mut hash_key = [0; 16];
        hash_key.copy_from_slice(&block[32..48]);
        let block_count = get_u64(block, 48);
        let options = FormatOptions {
            files_max: get_u64(block, 56),
            name_bytes_max: get_u16(block, 68),
            uuid,
            hash_key,
        };
        if block_count > geometry.block_count {
            return Err(Error::Truncated {
                blocks_made: block_count,
                blocks_found: geometry.block_count,
            });
        }
        // The regions follow from the parameters; a superblock that contradicts them is not ours.
        let layout = Self::plan(Geometry { block_count }, &options).map_err(|_| damaged)?;
        let same = layout.bucket_count == get_u32(block, 64)
            && layout.entries_per_bucket == get_u16(block, 70)
            && layout.data_first == get_u32(block, 72)
            && layout.data_end == get_u32(block, 76);
        if same {
            Ok(layout)
        } else {
            Err(Error::Damaged {
                part: Part::Superblock,
                block: SUPERBLOCK_FIRST,
                offset: None,
            })
        }
    }
}

fn entry_bytes(name_bytes_max: u16) -> usize {
    (ENTRY_FIXED_BYTES + usize::from(name_bytes_max)).next_multiple_of(8)
}

/// Returns the number of buckets for `files_max` names if each name goes to the emptier of two buckets.
///
/// With two choices the load of the fullest bucket exceeds the mean by a doubly logarithmic term only (Azar, Broder,
/// Karlin, Upfal: "Balanced allocations"; Mitzenmacher's differential equations give the tail). Six entries of headroom
/// over the mean leave the tail below 1e-80 for a large table. The 16 extra buckets do the same for small ones, where
/// the equations do not hold. `tests/names.rs` computes both.
pub(crate) fn bucket_count_for(files_max: u64, entries_per_bucket: u64) -> u64 {
    let load_mean = entries_per_bucket.saturating_sub(6).max(1);
    files_max.div_ceil(load_mean) + 16
}

const _: () = assert!(RECORD_FIRST + RECORD_PLACE_BLOCKS <= TABLE_FIRST);
const _: () = assert!(RECORD_PLACE_BLOCKS < END_BLOCKS);

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> FormatOptions {
        FormatOptions {
            files_max: 1000,
            name_bytes_max: 255,
            uuid: [7; 16],
            hash_key: [9; 16],
        }
    }

    #[test]
    fn superblock_round_trips_and_any_changed_byte_is_noticed() {
        let geometry = Geometry { block_count: 65536 };
        let layout = Layout::plan(geometry, &options()).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        layout.encode(&mut block);
        assert_eq!(Layout::decode(&block, geometry).unwrap(), layout);
        for offset in 0..BLOCK_BYTES {
            block[offset] ^= 0x10;
            assert!(Layout::decode(&block, geometry).is_err(), "byte {offset}");
            block[offset] ^= 0x10;
        }
    }

    #[test]
    fn a_shrunk_image_is_refused_with_the_reason() {
        let layout = Layout::plan(Geometry { block_count: 65536 }, &options()).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        layout.encode(&mut block);
        let error = Layout::decode(&block, Geometry { block_count: 65535 }).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
    }

    #[test]
    fn regions_do_not_overlap() {
        for files_max in [1, 10, 1000, 100_000] {
            let layout = Layout::plan(
                Geometry {
                    block_count: 1 << 20,
                },
                &FormatOptions {
                    files_max,
                    ..options()
                },
            )
            .unwrap();
            let table_end = layout.bucket_block(layout.bucket_count - 1) + TABLE_COPIES;
            assert!(table_end <= u64::from(layout.data_first));
            let second = superblock_far(layout.block_count);
            assert!(layout.record_block(1) + RECORD_PLACE_BLOCKS <= second);
            assert!(second < layout.block_count);
        }
    }
}
