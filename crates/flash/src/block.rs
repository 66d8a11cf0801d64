//! One data block of a file: a header that proves what the block is, and the payload.
//!
//! Invariant: a block is believed only if its checksum (seeded by the store's identity), its own address and
//! the file's identity agree. So stale, misdirected, torn and rotten blocks are all told from good ones.

use base::block::BLOCK_BYTES;

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 192;
/// File bytes that one data block holds.
pub const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// Backward pointers in a header, one for each power of two.
pub(crate) const SKIP_LEVELS: usize = 32;
/// Blocks in one atomic group: 16 KiB, the largest request that the store makes.
pub(crate) const GROUP_BLOCKS_MAX: usize = 4;

const MAGIC: u32 = 0x4442_4b45; // "EKBD"
const SKIP_OFFSET: usize = 48;

/// Backward pointers: level `j` of block `i` holds the address of block `((i - 1) >> j) << j`.
pub(crate) type Skips = [u32; SKIP_LEVELS];

/// Header of a data block, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) file_id: u64,
    /// Number of the group (one append) this block was written in; grows over the life of the store.
    pub(crate) sequence: u64,
    pub(crate) address: u32,
    /// Position of the block in its file.
    pub(crate) index: u32,
    /// Payload bytes in use.
    pub(crate) fill: u16,
    pub(crate) group_blocks: u8,
    pub(crate) group_position: u8,
    /// The file's most recent full run when this block was written: the link of the list of runs.
    pub(crate) closed_start: u32,
    pub(crate) closed_blocks: u32,
    pub(crate) skips: Skips,
}

impl Header {
    /// Writes the header over the first bytes of `block` and seals the whole block, payload included.
    pub(crate) fn seal(&self, block: &mut [u8], seed: u32) {
        put_u32(block, 0, MAGIC);
        put_u64(block, 8, self.file_id);
        put_u64(block, 16, self.sequence);
        put_u32(block, 24, self.address);
        put_u32(block, 28, self.index);
        put_u16(block, 32, self.fill);
        block[34] = self.group_blocks;
        block[35] = self.group_position;
        put_u32(block, 36, self.closed_start);
        put_u32(block, 40, self.closed_blocks);
        put_u32(block, 44, 0);
        for (level, address) in self.skips.iter().enumerate() {
            put_u32(block, SKIP_OFFSET + 4 * level, *address);
        }
        block[SKIP_OFFSET + 4 * SKIP_LEVELS..HEADER_BYTES].fill(0);
        let checksum = crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]);
        put_u32(block, 4, checksum);
    }

    /// The header of a block that was read from `address`, if the block is intact and belongs there.
    pub(crate) fn open(block: &[u8], address: u32, seed: u32) -> Option<Self> {
        if get_u32(block, 0) != MAGIC || get_u32(block, 24) != address {
            return None;
        }
        if crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]) != get_u32(block, 4) {
            return None;
        }
        let mut skips = [0; SKIP_LEVELS];
        for (level, skip) in skips.iter_mut().enumerate() {
            *skip = get_u32(block, SKIP_OFFSET + 4 * level);
        }
        let header = Self {
            file_id: get_u64(block, 8),
            sequence: get_u64(block, 16),
            address,
            index: get_u32(block, 28),
            fill: get_u16(block, 32),
            group_blocks: block[34],
            group_position: block[35],
            closed_start: get_u32(block, 36),
            closed_blocks: get_u32(block, 40),
            skips,
        };
        let sane = usize::from(header.fill) <= PAYLOAD_BYTES
            && header.fill > 0
            && header.group_position < header.group_blocks
            && usize::from(header.group_blocks) <= GROUP_BLOCKS_MAX
            && header.file_id != 0;
        sane.then_some(header)
    }
}

/// The skip pointers of block `index + 1`, given those of block `index` and its address.
pub(crate) fn skips_after(index: u32, address: u32, skips: &Skips) -> Skips {
    let mut next = *skips;
    // Block `index` is the nearest aligned one for every level at which its number is aligned.
    let levels = index.trailing_zeros() as usize + 1;
    for skip in next.iter_mut().take(levels) {
        *skip = address;
    }
    next
}

/// From block `from` towards the earlier block `target`: the level to follow and the block it leads to.
///
/// Each step clears at least one zero bit of `target` from the distance, so the walk from the last block of
/// a file of n blocks takes at most ceil(log2 n) steps.
pub(crate) fn skip_towards(from: u32, target: u32) -> (usize, u32) {
    debug_assert!(target < from);
    let before = from - 1;
    let mut level = 0;
    while level + 1 < SKIP_LEVELS && (before >> (level + 1)) << (level + 1) >= target {
        level += 1;
    }
    (level, (before >> level) << level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let mut skips = [0; SKIP_LEVELS];
        for (level, skip) in skips.iter_mut().enumerate() {
            *skip = 1000 + level as u32;
        }
        Header {
            file_id: 42,
            sequence: 1 << 40,
            address: 77,
            index: 3,
            fill: 100,
            group_blocks: 2,
            group_position: 1,
            closed_start: 16,
            closed_blocks: 8,
            skips,
        }
    }

    #[test]
    fn a_sealed_block_opens_and_every_flipped_byte_is_refused() {
        let mut block = vec![0xa5; BLOCK_BYTES];
        header().seal(&mut block, 5);
        assert_eq!(Header::open(&block, 77, 5), Some(header()));
        assert_eq!(Header::open(&block, 78, 5), None, "another address");
        assert_eq!(Header::open(&block, 77, 6), None, "another store");
        for offset in 0..BLOCK_BYTES {
            block[offset] ^= 1;
            assert_eq!(Header::open(&block, 77, 5), None, "byte {offset}");
            block[offset] ^= 1;
        }
    }

    #[test]
    fn skips_lead_to_every_block_in_at_most_log2_steps() {
        let blocks = 3000_u32;
        let mut all = vec![[0; SKIP_LEVELS]];
        for index in 0..blocks - 1 {
            // The address of block i is i + 10 in this test.
            all.push(skips_after(index, index + 10, &all[index as usize]));
        }
        for last in [1_u32, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1023, 1024, 2999] {
            let steps_max = (last + 1).next_power_of_two().trailing_zeros();
            for target in 0..last {
                let (mut at, mut steps) = (last, 0);
                while at != target {
                    let (level, next) = skip_towards(at, target);
                    assert_eq!(
                        all[at as usize][level],
                        next + 10,
                        "block {at} level {level}"
                    );
                    assert!(next >= target && next < at);
                    at = next;
                    steps += 1;
                }
                assert!(steps <= steps_max, "{last} to {target}: {steps} steps");
            }
        }
    }
}
