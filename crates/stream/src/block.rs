//! Types that all parts share: blocks, the files they belong to, and the hashes that prove them.

use std::fmt;

/// The size of a block, in bytes: a page of the kernel. A file's last block may be shorter.
pub const BLOCK_BYTES: usize = 4096;

/// The number of blocks in a segment. A segment is compressed as one unit when a tree is published. It is also the
/// longest piece of an action that is sent at once. SEG_MAX of SYSFLOW.
pub const SEGMENT_BLOCKS: u32 = 32;

/// A file, directory or link of one published version: its number in the manifest. The root is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// One block of a file of one published version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAt {
    /// The file.
    pub file: FileId,
    /// Which block of it, from 0.
    pub index: u32,
}

/// The blake3 hash of a block's bytes. For a file's last block, only the bytes that exist.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

/// Identifies a file's content, independent of path and version: the blake3 hash of the concatenated block hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub [u8; 32]);

/// One run of an action, from its start to its end. The device generates it at random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; 16]);

/// The hashes of a file's blocks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashList(pub Box<[BlockHash]>);

impl BlockHash {
    /// Returns the hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl HashList {
    /// Returns the content id of a file with these blocks.
    #[must_use]
    pub fn content(&self) -> ContentId {
        let mut hasher = blake3::Hasher::new();
        for hash in &self.0 {
            hasher.update(&hash.0);
        }
        ContentId(*hasher.finalize().as_bytes())
    }

    /// Returns the hash of one block.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<BlockHash> {
        self.0.get(index as usize).copied()
    }
}

/// Returns the number of blocks of a file of `size_bytes` bytes.
///
/// # Panics
/// Only for 16 TiB or more, which no manifest allows.
#[must_use]
pub fn blocks_of(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(BLOCK_BYTES as u64)).expect("a file below 16 TiB")
}

/// Returns the size of block `index`, in bytes, in a file of `size_bytes` bytes; 0 if it is behind the end of the file.
#[must_use]
pub fn block_bytes(size_bytes: u64, index: u32) -> usize {
    let start = u64::from(index) * BLOCK_BYTES as u64;
    size_bytes.saturating_sub(start).min(BLOCK_BYTES as u64) as usize
}

fn hexadecimal(bytes: &[u8], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes
        .iter()
        .try_for_each(|byte| write!(formatter, "{byte:02x}"))
}

macro_rules! shown_in_hexadecimal {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                hexadecimal(&self.0, formatter)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                hexadecimal(&self.0, formatter)
            }
        }
    )*};
}

shown_in_hexadecimal!(BlockHash, ContentId, Token);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_as_many_blocks_as_cover_it() {
        assert_eq!([0, 1, 4096, 4097].map(blocks_of), [0, 1, 1, 2]);
        assert_eq!(
            [0, 1, 2].map(|index| block_bytes(4097, index)),
            [4096, 1, 0]
        );
    }

    #[test]
    fn content_is_known_by_its_blocks_and_their_order() {
        let (a, b) = (BlockHash::of(b"a"), BlockHash::of(b"b"));
        let list = |hashes: &[BlockHash]| HashList(hashes.into()).content();
        assert_ne!(list(&[a, b]), list(&[b, a]));
        assert_eq!(list(&[a]), ContentId(BlockHash::of(&a.0).0));
    }
}
