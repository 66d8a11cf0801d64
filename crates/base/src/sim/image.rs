//! The content of a simulated device: a sparse, persistent map from block number to block.
//!
//! A tree of fan-out 8 whose nodes are shared between clones, and copied when one clone changes. A clone costs one
//! reference count; a block written afterwards copies at most one node per level. The hash of the whole content is a
//! sum over blocks and is therefore kept up to date by each change.

use std::ops::Range;
use std::sync::Arc;

use super::random::mix;
use crate::block::{BLOCK_BYTES, SECTOR_BYTES};

/// Small, because copying a node touches the reference count of each of its children. Measured with 10,000 blocks held:
/// a write after a clone takes 4 µs with fan-out 8 and 11 µs with 64.
const FAN_OUT_BITS: u32 = 3;
const FAN_OUT: usize = 1 << FAN_OUT_BITS;

/// One block with the hash of its content (0 if and only if all bytes are zero).
#[derive(Clone)]
pub(super) struct Block {
    hash: u64,
    bytes: [u8; BLOCK_BYTES],
}

impl Block {
    pub(super) fn new(bytes: &[u8; BLOCK_BYTES]) -> Arc<Self> {
        Arc::new(Self {
            hash: content_hash(bytes),
            bytes: *bytes,
        })
    }

    pub(super) fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        &self.bytes
    }

    /// This block with bit `bit` (0 to 32,767, modulo that) flipped.
    pub(super) fn with_flipped_bit(&self, bit: u32) -> Arc<Self> {
        let mut bytes = self.bytes;
        let bit = bit as usize % (BLOCK_BYTES * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        Self::new(&bytes)
    }
}

#[derive(Clone)]
enum Node {
    Inner([Option<Arc<Node>>; FAN_OUT]),
    Leaf([Option<Arc<Block>>; FAN_OUT]),
}

impl Node {
    fn empty(level: u32) -> Arc<Self> {
        Arc::new(if level == 0 {
            Self::Leaf([const { None }; FAN_OUT])
        } else {
            Self::Inner([const { None }; FAN_OUT])
        })
    }
}

/// The content; blocks never written read as zero.
#[derive(Clone)]
pub(super) struct Image {
    root: Arc<Node>,
    /// Levels of inner nodes above the leaves.
    levels: u32,
    held: u64,
    hash: u64,
}

impl Image {
    /// All zero, large enough for `block_count` blocks.
    pub(super) fn new(block_count: u64) -> Self {
        let mut levels = 0;
        while block_count.saturating_sub(1) >> (FAN_OUT_BITS * (levels + 1)) != 0 {
            levels += 1;
        }
        Self {
            root: Node::empty(levels),
            levels,
            held: 0,
            hash: 0,
        }
    }

    /// Blocks held in memory: those written and not cleared since.
    pub(super) fn held_count(&self) -> u64 {
        self.held
    }

    /// Hash of the whole content: equal contents have equal hashes, however they came about.
    pub(super) fn hash(&self) -> u64 {
        mix(self.hash)
    }

    pub(super) fn get(&self, block: u64) -> Option<&Arc<Block>> {
        let mut node = &self.root;
        let mut level = self.levels;
        loop {
            match &**node {
                Node::Inner(children) => node = children[slot(block, level)].as_ref()?,
                Node::Leaf(blocks) => return blocks[slot(block, 0)].as_ref(),
            }
            level -= 1;
        }
    }

    /// Copies block `block` to `buffer`.
    pub(super) fn read(&self, block: u64, buffer: &mut [u8]) {
        match self.get(block) {
            Some(held) => buffer.copy_from_slice(&held.bytes),
            None => buffer.fill(0),
        }
    }

    pub(super) fn set(&mut self, block: u64, content: Arc<Block>) {
        let mut node = &mut self.root;
        let mut level = self.levels;
        loop {
            match Arc::make_mut(node) {
                Node::Inner(children) => {
                    level -= 1;
                    node =
                        children[slot(block, level + 1)].get_or_insert_with(|| Node::empty(level));
                }
                Node::Leaf(blocks) => {
                    self.hash = self.hash.wrapping_add(share(block, content.hash));
                    match blocks[slot(block, 0)].replace(content) {
                        Some(old) => self.hash = self.hash.wrapping_sub(share(block, old.hash)),
                        None => self.held += 1,
                    }
                    return;
                }
            }
        }
    }

    /// Replaces the sectors of `block` for which `reached` returns `true` by those of `content`.
    pub(super) fn set_sectors(
        &mut self,
        block: u64,
        content: &Block,
        mut reached: impl FnMut(usize) -> bool,
    ) {
        let mut mask = 0_u32;
        for sector in 0..BLOCK_BYTES / SECTOR_BYTES {
            mask |= u32::from(reached(sector)) << sector;
        }
        // Zeros over a block that is not held change nothing; a torn discard of a large range is mostly that.
        if mask == 0 || (content.hash == 0 && self.get(block).is_none()) {
            return;
        }
        let mut bytes = [0; BLOCK_BYTES];
        self.read(block, &mut bytes);
        for sector in 0..BLOCK_BYTES / SECTOR_BYTES {
            if mask >> sector & 1 == 1 {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                bytes[range.clone()].copy_from_slice(&content.bytes[range]);
            }
        }
        self.set(block, Block::new(&bytes));
    }

    /// Makes the blocks of a range zero and forgets them, in time proportional to what is held there.
    pub(super) fn clear(&mut self, range: &Range<u64>) {
        let (held, hash) = clear_node(&mut self.root, self.levels, 0, range);
        self.held -= held;
        self.hash = self.hash.wrapping_sub(hash);
    }
}

/// Clears what lies in `range` below `node`, which starts at block `start`; returns blocks and hash removed.
fn clear_node(node: &mut Arc<Node>, level: u32, start: u64, range: &Range<u64>) -> (u64, u64) {
    let mut removed = (0_u64, 0_u64);
    let child_bits = FAN_OUT_BITS * level;
    match Arc::make_mut(node) {
        Node::Inner(children) => {
            for (index, child) in children.iter_mut().enumerate() {
                let child_start = start + ((index as u64) << child_bits);
                let child_last = child_start + ((1 << child_bits) - 1);
                if child_last < range.start || child_start >= range.end {
                    continue;
                }
                if let Some(child) = child {
                    let (held, hash) = clear_node(child, level - 1, child_start, range);
                    removed = (removed.0 + held, removed.1.wrapping_add(hash));
                }
            }
        }
        Node::Leaf(blocks) => {
            for (index, slot) in blocks.iter_mut().enumerate() {
                let block = start + index as u64;
                if range.contains(&block)
                    && let Some(old) = slot.take()
                {
                    removed = (
                        removed.0 + 1,
                        removed.1.wrapping_add(share(block, old.hash)),
                    );
                }
            }
        }
    }
    removed
}

fn slot(block: u64, level: u32) -> usize {
    (block >> (FAN_OUT_BITS * level)) as usize & (FAN_OUT - 1)
}

/// What one block adds to the image's hash. A block of zeros adds nothing, so that it counts like one never written.
fn share(block: u64, content_hash: u64) -> u64 {
    if content_hash == 0 {
        0
    } else {
        mix(content_hash ^ mix(block.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }
}

/// A fast 64-bit hash of one block, 0 if and only if all bytes are zero. Four independent lanes, because one
/// chain of multiplications would wait for itself.
fn content_hash(bytes: &[u8; BLOCK_BYTES]) -> u64 {
    let mut lanes = [
        0x243f_6a88_85a3_08d3_u64,
        0x1319_8a2e_0370_7344,
        0xa409_3822_299f_31d0,
        0x082e_fa98_ec4e_6c89,
    ];
    let mut any = 0;
    for chunk in bytes.as_chunks::<32>().0 {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            let word = u64::from_le_bytes(*word);
            any |= word;
            *lane = (*lane ^ word)
                .wrapping_mul(0x9fb2_1c65_1e98_df25)
                .rotate_left(31);
        }
    }
    if any == 0 {
        return 0;
    }
    let hash = lanes.iter().fold(0, |hash, lane| mix(hash ^ lane));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;
    use std::collections::BTreeMap;

    fn block(fill: u8) -> Arc<Block> {
        Block::new(&[fill; BLOCK_BYTES])
    }

    /// The image against a plain map, for sizes at which the tree gets another level.
    #[test]
    fn an_image_agrees_with_a_plain_map() {
        for block_count in [1, 2, 7, 8, 9, 64, 65, 4096, 4097, 1 << 22, 1 << 48] {
            let mut random = Random::new(block_count);
            let mut image = Image::new(block_count);
            let mut model = BTreeMap::new();
            for step in 0..200_u64 {
                let at = random.below(block_count);
                if step % 16 == 15 {
                    let end = at + 1 + random.below(block_count - at);
                    image.clear(&(at..end));
                    model.retain(|block, _| !(at..end).contains(block));
                } else {
                    let fill = random.below(256) as u8;
                    image.set(at, block(fill));
                    model.insert(at, fill);
                }
                assert_eq!(image.held_count(), model.len() as u64);
            }
            for (at, fill) in &model {
                assert_eq!(image.get(*at).unwrap().bytes(), &[*fill; BLOCK_BYTES]);
            }
            let mut rebuilt = Image::new(block_count);
            for (at, fill) in model.iter().rev() {
                rebuilt.set(*at, block(*fill));
            }
            assert_eq!(rebuilt.hash(), image.hash());
            image.clear(&(0..block_count));
            assert_eq!(
                (image.held_count(), image.hash()),
                (0, Image::new(1).hash())
            );
        }
    }

    #[test]
    fn clones_do_not_see_each_other() {
        let mut first = Image::new(5000);
        first.set(4999, block(1));
        let mut second = first.clone();
        second.set(4999, block(2));
        second.set(0, block(3));
        assert_eq!(first.get(4999).unwrap().bytes()[0], 1);
        assert!(first.get(0).is_none());
        assert_ne!(first.hash(), second.hash());
        second.clear(&(0..1));
        second.set(4999, block(1));
        assert_eq!(first.hash(), second.hash());
    }

    #[test]
    fn hash_depends_on_every_bit_and_on_the_place() {
        let mut seen = std::collections::HashSet::new();
        let empty = block(0);
        for bit in (0..BLOCK_BYTES as u32 * 8).step_by(7) {
            let mut image = Image::new(2);
            image.set(u64::from(bit % 2), empty.with_flipped_bit(bit));
            assert!(seen.insert(image.hash()), "bit {bit}");
        }
        let mut swapped = Image::new(2);
        swapped.set(0, block(1));
        swapped.set(1, block(2));
        let mut image = Image::new(2);
        image.set(0, block(2));
        image.set(1, block(1));
        assert_ne!(image.hash(), swapped.hash());
        let mut zeros = Image::new(2);
        zeros.set(1, block(0));
        assert_eq!(zeros.hash(), Image::new(2).hash());
    }

    #[test]
    fn sectors_are_replaced_one_by_one() {
        let mut image = Image::new(1);
        image.set_sectors(0, &block(0), |_| true);
        assert_eq!(image.held_count(), 0);
        image.set_sectors(0, &block(7), |sector| sector % 2 == 1);
        let bytes = *image.get(0).unwrap().bytes();
        for (index, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, if index / SECTOR_BYTES % 2 == 1 { 7 } else { 0 });
        }
    }
}
