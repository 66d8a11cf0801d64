//! One data block of a file: a header that identifies the block, and the payload.
//!
//! Invariant: a block is accepted only if its checksum (seeded by the store's identity), its own address and the file's
//! identity agree. So stale, misdirected, torn and rotten blocks are all detected.

use base::block::BLOCK_BYTES;

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::layout::{COUNTER_END, FILE_ID_END, RUN_BLOCKS_MAX};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 192;
/// File bytes that one data block holds.
pub const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// Backward pointers to the blocks directly before: enough to read around a few damaged ones.
pub(crate) const NEAR_POINTERS: usize = 7;
/// The far pointers begin with the one to the last block whose position is a multiple of 2^3.
const FAR_LEVEL_FIRST: u32 = 3;
/// Backward pointers in a header.
pub(crate) const POINTERS: usize = NEAR_POINTERS + (u32::BITS - FAR_LEVEL_FIRST) as usize;
/// Blocks in one atomic group: 16 KiB, the largest request that an append makes.
pub(crate) const GROUP_BLOCKS_MAX: usize = 4;

const MAGIC: u32 = 0x4442_4b45; // "EKBD"
const POINTERS_OFFSET: usize = 48;

/// Group number of a marker: a block that replaces a damaged one and holds the link of its run but no data. No append
/// has this number.
pub(crate) const MARKER_SEQUENCE: u64 = 0;

/// Backward pointers of block `i`. First come the addresses of blocks `i - 1` to `i - 7`. Then comes for each level `j`
/// from 3 on that of block `((i - 1) >> j) << j`. A pointer is 0 where there is no such block.
pub(crate) type Pointers = [u32; POINTERS];

const _: () = assert!(POINTERS_OFFSET + 4 * POINTERS == HEADER_BYTES);

/// Decoded header of a data block.
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
    /// The run that this block lies in.
    pub(crate) run_start: u32,
    pub(crate) run_blocks: u8,
    /// The run before it in the same lane, and the number of its blocks that were used: the link of the list of runs.
    /// If the number is 0, this is the first run of its lane.
    pub(crate) before_start: u32,
    pub(crate) before_used: u8,
    /// The lane of the file that this block's run belongs to.
    pub(crate) lane: u8,
    pub(crate) pointers: Pointers,
    /// The beginning of the file's name when the block was written, followed by zeros. Only the first block of a file,
    /// which has no pointers, has it: a repair shows it to the owner to identify the file.
    pub(crate) name_hint: NameHint,
}

/// The first bytes of a name, padded with zeros.
pub(crate) type NameHint = [u8; NAME_HINT_BYTES];

/// Bytes of a name that the first block of a file holds, in the space of its pointers.
pub(crate) const NAME_HINT_BYTES: usize = 4 * POINTERS;

impl Header {
    /// Returns the number of blocks from the beginning of a run to `address` inclusive. `address` must be before this
    /// block in this block's run, or in the used part of the run before that; otherwise returns 0.
    pub(crate) fn in_run(&self, address: u32) -> u32 {
        let before_end = self
            .before_start
            .saturating_add(u32::from(self.before_used));
        if (self.run_start..self.address).contains(&address) {
            address - self.run_start + 1
        } else if (self.before_start..before_end).contains(&address) {
            address - self.before_start + 1
        } else {
            0
        }
    }

    /// Returns the numbers and addresses of the block itself and of the blocks that its pointers lead to.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let led_to = (0..POINTERS).filter_map(|place| {
            let index = pointer_target(self.index, place)?;
            Some((index, self.pointers[place]))
        });
        [(self.index, self.address)].into_iter().chain(led_to)
    }

    /// Writes the header over the first bytes of `block`, and seals the whole block, including the payload.
    pub(crate) fn seal(&self, block: &mut [u8], seed: u32) {
        put_u32(block, 0, MAGIC);
        put_u64(block, 8, self.file_id);
        put_u64(block, 16, self.sequence);
        put_u32(block, 24, self.address);
        put_u32(block, 28, self.index);
        put_u16(block, 32, self.fill);
        block[34] = self.group_blocks;
        block[35] = self.group_position;
        put_u32(block, 36, self.run_start);
        put_u32(block, 40, self.before_start);
        block[44] = self.run_blocks;
        block[45] = self.before_used;
        block[46] = self.lane;
        block[47] = 0;
        if self.index == 0 {
            block[POINTERS_OFFSET..HEADER_BYTES].copy_from_slice(&self.name_hint);
        } else {
            for (place, address) in self.pointers.iter().enumerate() {
                put_u32(block, POINTERS_OFFSET + 4 * place, *address);
            }
        }
        let checksum = crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]);
        put_u32(block, 4, checksum);
    }

    /// Returns the header of a block that was read from `address`, if the block is intact and belongs there.
    pub(crate) fn open(block: &[u8], address: u32, seed: u32) -> Option<Self> {
        if get_u32(block, 0) != MAGIC || get_u32(block, 24) != address {
            return None;
        }
        if crc32c::crc32c_append(seed, &block[8..BLOCK_BYTES]) != get_u32(block, 4) {
            return None;
        }
        let index = get_u32(block, 28);
        let mut pointers = [0; POINTERS];
        let mut name_hint = [0; NAME_HINT_BYTES];
        if index == 0 {
            name_hint.copy_from_slice(&block[POINTERS_OFFSET..HEADER_BYTES]);
        } else {
            for (place, pointer) in pointers.iter_mut().enumerate() {
                *pointer = get_u32(block, POINTERS_OFFSET + 4 * place);
            }
        }
        let header = Self {
            file_id: get_u64(block, 8),
            sequence: get_u64(block, 16),
            address,
            index,
            fill: get_u16(block, 32),
            group_blocks: block[34],
            group_position: block[35],
            run_start: get_u32(block, 36),
            before_start: get_u32(block, 40),
            run_blocks: block[44],
            before_used: block[45],
            lane: block[46],
            pointers,
            name_hint,
        };
        let sane = usize::from(header.fill) <= PAYLOAD_BYTES
            && header.fill > 0
            && header.group_position < header.group_blocks
            && usize::from(header.group_blocks) <= GROUP_BLOCKS_MAX
            && (1..FILE_ID_END).contains(&header.file_id)
            && header.sequence < COUNTER_END
            && header.index < u32::MAX
            && header.lane < 2
            && (1..=RUN_BLOCKS_MAX).contains(&u32::from(header.run_blocks))
            && u32::from(header.before_used) <= RUN_BLOCKS_MAX
            && address >= header.run_start
            && address - header.run_start < u32::from(header.run_blocks);
        sane.then_some(header)
    }
}

/// Returns the pointers of block `index + 1`, given those of block `index` and its address.
pub(crate) fn pointers_after(index: u32, address: u32, pointers: &Pointers) -> Pointers {
    let mut next = *pointers;
    next.copy_within(..NEAR_POINTERS - 1, 1);
    next[0] = address;
    // Block `index` is the nearest aligned one for every level at which its number is aligned.
    let levels = (index.trailing_zeros() + 1).saturating_sub(FAR_LEVEL_FIRST);
    for far in next[NEAR_POINTERS..].iter_mut().take(levels as usize) {
        *far = address;
    }
    next
}

/// Returns the number of the block that pointer `place` of block `from` leads to.
pub(crate) fn pointer_target(from: u32, place: usize) -> Option<u32> {
    let before = from.checked_sub(1)?;
    if place < NEAR_POINTERS {
        return before.checked_sub(place as u32);
    }
    let level = (place - NEAR_POINTERS) as u32 + FAR_LEVEL_FIRST;
    (level < u32::BITS).then(|| (before >> level) << level)
}

/// Returns the pointer to follow from block `from` towards the earlier block `target`, and the block it leads to. That
/// block is the nearest to `target` that is not in `avoid`.
///
/// Unless blocks are avoided, each step except the last clears a zero bit of `target` from the distance. So the walk
/// from the last block of a file of n blocks takes at most ceil(log2 n) steps.
pub(crate) fn pointer_towards(from: u32, target: u32, avoid: &[u32]) -> Option<(usize, u32)> {
    (0..POINTERS)
        .filter_map(|place| pointer_target(from, place).map(|index| (place, index)))
        .filter(|(_, index)| *index >= target && !avoid.contains(index))
        .min_by_key(|(_, index)| *index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let mut pointers = [0; POINTERS];
        for (place, pointer) in pointers.iter_mut().enumerate() {
            *pointer = 1000 + place as u32;
        }
        Header {
            file_id: 42,
            sequence: 1 << 40,
            address: 77,
            index: 3,
            fill: 100,
            group_blocks: 2,
            group_position: 1,
            run_start: 16,
            run_blocks: 64,
            before_start: 8,
            before_used: 3,
            lane: 1,
            pointers,
            name_hint: [0; NAME_HINT_BYTES],
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

    /// Pointers of the first blocks of a file whose block i is at address i + 10.
    fn chain(blocks: u32) -> Vec<Pointers> {
        let mut all = vec![[0; POINTERS]];
        for index in 0..blocks - 1 {
            all.push(pointers_after(index, index + 10, &all[index as usize]));
        }
        all
    }

    #[test]
    fn pointers_lead_to_every_block_in_at_most_log2_steps() {
        let all = chain(3000);
        for last in [1_u32, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1023, 1024, 2999] {
            let steps_max = (last + 1).next_power_of_two().trailing_zeros();
            for target in 0..last {
                let (mut at, mut steps) = (last, 0);
                while at != target {
                    let (place, next) = pointer_towards(at, target, &[]).unwrap();
                    assert_eq!(
                        all[at as usize][place],
                        next + 10,
                        "block {at} pointer {place}"
                    );
                    assert!(next >= target && next < at);
                    at = next;
                    steps += 1;
                }
                assert!(steps <= steps_max, "{last} to {target}: {steps} steps");
            }
        }
    }

    #[test]
    fn every_block_is_reached_around_any_one_that_is_avoided() {
        for last in [9_u32, 63, 64, 65, 200, 513] {
            for avoided in 0..last {
                for target in (0..last).filter(|target| *target != avoided) {
                    let mut at = last;
                    while at != target {
                        let step = pointer_towards(at, target, &[avoided]);
                        (_, at) =
                            step.unwrap_or_else(|| panic!("{last} to {target} around {avoided}"));
                    }
                }
            }
        }
    }
}
