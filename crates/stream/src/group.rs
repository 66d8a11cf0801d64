//! Hashes of a file's blocks in groups. Each group has a proof that it belongs to the content that a signed manifest
//! names.
//!
//! A content is identified by the blake3 hash of its concatenated block hashes. blake3 is a tree, and a group of a
//! power of two of its chunks is a subtree. From a group and the chaining values beside the path to the root, the root
//! can be computed. So one group can be verified without the others.

use crate::block::{BlockAt, BlockHash, ContentId, FileId};
use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use std::ops::Range;

/// The number of blocks in a group: 1 MiB of a file, 8 KiB of hashes. That is the cost of reading one byte of a long
/// file, 65 ms on a line of 1 Mbit/s. Half as many would save little compared with the run of blocks itself, and the
/// proofs would be larger.
pub const GROUP_BLOCKS: u32 = 256;

/// The maximum number of chaining values of a proof: those of 65,536 groups, the 64 GiB of the longest file.
pub const PROOF_VALUES_MAX: usize = 16;

const GROUP_BYTES: u64 = GROUP_BLOCKS as u64 * 32;

/// A group of hashes of a file of one published version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupAt {
    /// The file.
    pub file: FileId,
    /// The index of the group in the file, from 0.
    pub group: u32,
}

impl From<BlockAt> for GroupAt {
    fn from(at: BlockAt) -> Self {
        Self {
            file: at.file,
            group: at.index / GROUP_BLOCKS,
        }
    }
}

/// The hashes of the blocks of a group, and their proof: chaining values from the group's own neighbour up to the child
/// of the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The hashes of its blocks, in order.
    pub hashes: Box<[BlockHash]>,
    /// The chaining values, at most [`PROOF_VALUES_MAX`].
    pub proof: Box<[[u8; 32]]>,
}

/// Returns the number of groups of a file of `blocks` blocks. A file without a block has one, which is empty.
#[must_use]
pub fn groups_of(blocks: u32) -> u32 {
    blocks.div_ceil(GROUP_BLOCKS).max(1)
}

/// Returns the blocks of a group; `None` if a file of `blocks` blocks has no such group.
#[must_use]
pub fn group_blocks(blocks: u32, group: u32) -> Option<Range<u32>> {
    let first = group.checked_mul(GROUP_BLOCKS)?;
    (group < groups_of(blocks)).then(|| first..blocks.min(first.saturating_add(GROUP_BLOCKS)))
}

fn bytes_of(hashes: &[BlockHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

fn chaining(group: u32, bytes: &[u8]) -> ChainingValue {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(u64::from(group) * GROUP_BYTES);
    hasher.update(bytes).finalize_non_root()
}

/// Returns the number of chaining values in the proof of a group of a content of `blocks` blocks.
#[must_use]
pub fn proof_values(blocks: u32, group: u32) -> usize {
    let (mut at, mut width, mut values) = (group, groups_of(blocks), 0);
    while width > 1 {
        values += usize::from(at ^ 1 < width);
        (at, width) = (at / 2, width.div_ceil(2));
    }
    values
}

impl Group {
    /// Returns whether these are the hashes of group `group` of a content of `blocks` blocks.
    #[must_use]
    pub fn is_of(&self, content: &ContentId, blocks: u32, group: u32) -> bool {
        let count = group_blocks(blocks, group).map(|blocks| blocks.len());
        if count != Some(self.hashes.len()) {
            return false;
        }
        let (mut at, mut width) = (group, groups_of(blocks));
        let (bytes, mut proof) = (bytes_of(&self.hashes), self.proof.iter());
        if width == 1 {
            return proof.next().is_none() && *blake3::hash(&bytes).as_bytes() == content.0;
        }
        let mut value = chaining(group, &bytes);
        loop {
            // A value without a neighbour in its row moves to the next row unchanged.
            if at ^ 1 < width {
                let Some(beside) = proof.next() else {
                    return false;
                };
                let (left, right) = match at & 1 {
                    0 => (&value, beside),
                    _ => (beside, &value),
                };
                if width == 2 {
                    let root = merge_subtrees_root(left, right, Mode::Hash);
                    return proof.next().is_none() && *root.as_bytes() == content.0;
                }
                value = merge_subtrees_non_root(left, right, Mode::Hash);
            }
            (at, width) = (at / 2, width.div_ceil(2));
        }
    }

    /// Returns the hash of a block of the file.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<BlockHash> {
        let place = (index % GROUP_BLOCKS) as usize;
        self.hashes.get(place).copied()
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        32 * (self.hashes.len() + self.proof.len())
    }
}

/// The tree above the groups of a content that has more than one: rows of chaining values. The first row holds the
/// groups' own values, each further row those of two of them, up to the row of two. With an outline, each group can be
/// proven alone.
#[derive(Debug)]
pub(crate) struct Outline {
    values: Box<[ChainingValue]>,
    groups: u32,
}

/// Builds an outline, group by group.
pub(crate) struct Outlining {
    values: Vec<ChainingValue>,
}

impl Outlining {
    /// Starts an outline of a content of `blocks` blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        let values = Vec::with_capacity(2 * groups_of(blocks) as usize + PROOF_VALUES_MAX);
        Self { values }
    }

    /// Adds the next group: its concatenated hashes, never empty.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.values.push(chaining(self.values.len() as u32, bytes));
    }

    /// Returns the outline; `None` if the groups do not make this content, or are fewer than two.
    pub(crate) fn finish(self, content: &ContentId) -> Option<Outline> {
        let mut values = self.values;
        let groups = values.len() as u32;
        let mut row = 0..values.len();
        while row.len() > 2 {
            for at in row.clone().step_by(2) {
                let value = match at + 1 < row.end {
                    true => merge_subtrees_non_root(&values[at], &values[at + 1], Mode::Hash),
                    false => values[at],
                };
                values.push(value);
            }
            row = row.end..values.len();
        }
        let [left, right] = &values[row] else {
            return None;
        };
        let root = merge_subtrees_root(left, right, Mode::Hash);
        (*root.as_bytes() == content.0).then(|| Outline {
            values: values.into(),
            groups,
        })
    }
}

impl Outline {
    /// Returns whether these concatenated hashes are those of a group.
    pub(crate) fn has(&self, group: u32, bytes: &[u8]) -> bool {
        group < self.groups
            && !bytes.is_empty()
            && bytes.len() as u64 <= GROUP_BYTES
            && self.values[group as usize] == chaining(group, bytes)
    }

    /// Returns the proof of a group.
    pub(crate) fn proof(&self, group: u32) -> Box<[[u8; 32]]> {
        let mut proof = Vec::with_capacity(PROOF_VALUES_MAX);
        let (mut at, mut width, mut row) = (group, self.groups, 0);
        while width > 1 {
            if at ^ 1 < width {
                proof.extend(self.values.get(row + (at ^ 1) as usize));
            }
            row += width as usize;
            (at, width) = (at / 2, width.div_ceil(2));
        }
        proof.into()
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }
}

/// Returns all groups of a list of hashes; `None` if the list does not make this content. For lists that are in memory
/// as a whole.
#[must_use]
pub fn split(list: &crate::HashList, content: &ContentId) -> Option<Vec<Group>> {
    if list.content() != *content {
        return None;
    }
    let groups = list.0.chunks(GROUP_BLOCKS as usize);
    if list.0.len() <= GROUP_BLOCKS as usize {
        return Some(vec![Group {
            hashes: list.0.clone(),
            proof: Box::default(),
        }]);
    }
    let mut outlining = Outlining::new(list.0.len() as u32);
    for hashes in groups.clone() {
        outlining.add(&bytes_of(hashes));
    }
    let outline = outlining.finish(content)?;
    let group = |(group, hashes): (u32, &[BlockHash])| Group {
        hashes: hashes.into(),
        proof: outline.proof(group),
    };
    Some((0..).zip(groups).map(group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_has_as_many_values_as_are_said() {
        for groups in [1, 2, 3, 5, 8, 13] {
            let blocks = groups * GROUP_BLOCKS - 7;
            let hash = |number: u32| BlockHash::of(&number.to_le_bytes());
            let list = crate::block::HashList((0..blocks).map(hash).collect());
            let all = split(&list, &list.content()).unwrap();
            for (number, group) in (0..).zip(all) {
                assert_eq!(group.proof.len(), proof_values(blocks, number));
            }
        }
    }
    use crate::block::HashList;

    fn list(blocks: u32) -> HashList {
        let hash = |number: u32| BlockHash::of(&number.to_le_bytes());
        HashList((0..blocks).map(hash).collect())
    }

    #[test]
    fn every_group_of_every_shape_of_tree_is_proven_and_nothing_else_is() {
        let all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 31, 33];
        let lengths = all.iter().flat_map(|groups| {
            let last = [1, 31, 32, 33, 255, 256];
            last.map(|last| groups * GROUP_BLOCKS + last)
        });
        for blocks in lengths.chain([0]) {
            let list = list(blocks);
            let content = list.content();
            let groups = split(&list, &content).unwrap();
            assert_eq!(groups.len(), groups_of(blocks) as usize, "{blocks}");
            for (number, group) in (0..).zip(&groups) {
                assert!(group.is_of(&content, blocks, number), "{blocks} {number}");
                let range = group_blocks(blocks, number).unwrap();
                assert_eq!(
                    *group.hashes,
                    list.0[range.start as usize..range.end as usize]
                );
                // Under another number, or of another content.
                for other in (0..groups_of(blocks) + 2).filter(|other| *other != number) {
                    assert!(!group.is_of(&content, blocks, other), "{blocks} {other}");
                }
                assert!(!group.is_of(&ContentId([1; 32]), blocks, number));
            }
        }
    }

    #[test]
    fn one_bit_or_one_value_more_or_less_proves_nothing() {
        for blocks in [200, 256, 257, 1500, 1792] {
            let list = list(blocks);
            let content = list.content();
            for (number, group) in (0..).zip(split(&list, &content).unwrap()) {
                let is_of = |group: &Group| group.is_of(&content, blocks, number);
                for at in 0..group.hashes.len() {
                    let mut wrong = group.clone();
                    wrong.hashes[at].0[at % 32] ^= 1 << (at % 8);
                    assert!(!is_of(&wrong), "{blocks} {number} {at}");
                }
                for at in 0..group.proof.len() {
                    let mut wrong = group.clone();
                    wrong.proof[at][31] ^= 0x80;
                    assert!(!is_of(&wrong));
                    wrong.proof = group.proof[..at].into();
                    assert!(!is_of(&wrong));
                }
                let mut wrong = group.clone();
                wrong.proof = group.proof.iter().chain(&[[0; 32]]).copied().collect();
                assert!(!is_of(&wrong));
                wrong = group.clone();
                wrong.hashes = group.hashes[1..].into();
                assert!(!is_of(&wrong));
            }
        }
    }

    #[test]
    fn numbers_of_the_longest_file_fit() {
        let blocks = crate::block::blocks_of(crate::manifest::FILE_BYTES_MAX);
        assert_eq!(groups_of(blocks), 1 << PROOF_VALUES_MAX);
        assert_eq!(group_blocks(blocks, u32::MAX), None);
        // The outline of the longest file, which a server must hold to serve that file.
        let mut outlining = Outlining::new(blocks);
        let group = bytes_of(&list(GROUP_BLOCKS).0);
        for _ in 0..groups_of(blocks) {
            outlining.add(&group);
        }
        let mut hasher = Hasher::new();
        for _ in 0..groups_of(blocks) {
            hasher.update(&group);
        }
        let content = ContentId(*hasher.finalize().as_bytes());
        let outline = outlining.finish(&content).unwrap();
        assert!(outline.bytes() <= 4 << 20, "{}", outline.bytes());
        for number in [0, 1, 40_000, (1 << 16) - 1] {
            let proven = Group {
                hashes: list(GROUP_BLOCKS).0,
                proof: outline.proof(number),
            };
            assert_eq!(proven.proof.len(), PROOF_VALUES_MAX);
            assert!(proven.is_of(&content, blocks, number));
        }
    }
}
