//! What every part speaks of: blocks, the files they belong to, and the proofs that they are right.

use std::fmt;

/// Bytes of a block: a page of the kernel. A file's last block may be shorter.
pub const BLOCK_BYTES: usize = 4096;

/// Blocks of a segment: what is compressed together when a tree is published, and the longest piece of an action that
/// is sent at once. SEG_MAX of SYSFLOW.
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

/// The blake3 hash of a block's bytes (the last block of a file: of those it has).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

/// What a file's content is known by, wherever it lies and in whichever version: the blake3 hash of its block hashes,
/// one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub [u8; 32]);

/// One run of an action, from its start to its end. Made at random by the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; 16]);

/// The hashes of a file's blocks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashList(pub Box<[BlockHash]>);

impl BlockHash {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl HashList {
    /// What a file with these blocks is known by.
    #[must_use]
    pub fn content(&self) -> ContentId {
        let mut hasher = blake3::Hasher::new();
        for hash in &self.0 {
            hasher.update(&hash.0);
        }
        ContentId(*hasher.finalize().as_bytes())
    }

    /// The hash of one block.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<BlockHash> {
        self.0.get(index as usize).copied()
    }
}

/// Blocks of a file of so many bytes.
///
/// # Panics
/// Never below 16 TiB, which no manifest exceeds.
#[must_use]
pub fn blocks_of(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(BLOCK_BYTES as u64)).expect("a file below 16 TiB")
}

/// Bytes of one block of a file of so many bytes; 0 behind its end.
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
