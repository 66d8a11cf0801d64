//! Compresses blocks together, and decompresses them.

use super::COMPRESSED_BYTES_MAX;
use crate::block::{BLOCK_BYTES, SEGMENT_BLOCKS};
use base::error::Code;
use std::cell::RefCell;
use std::io;
use zstd::bulk::{Compressor, Decompressor};

/// Why blocks could not be packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// There are no blocks, an empty one, one longer than a block, or more than a segment of them.
    #[error("{0} blocks of {1} bytes in all are not a segment")]
    Blocks(usize, usize),
    /// There are more compressed bytes than a segment can become.
    #[error("{0} compressed bytes are more than a segment can become")]
    Oversized(usize),
    /// The bytes are not exactly one frame, or have another length than expected.
    #[error("compressed blocks are damaged: {0}")]
    Damaged(&'static str),
    /// The compressor failed: memory, or an invalid level.
    #[error("compression: {0}")]
    Compressor(#[source] io::Error),
}

impl PackError {
    /// Returns the error code that this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Blocks(..) => Code::Invalid,
            Self::Oversized(_) | Self::Damaged(_) => Code::Corrupt,
            Self::Compressor(_) => Code::Full,
        }
    }
}

thread_local! {
    // Creating a context costs as much as compressing some blocks, so each thread keeps its own.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Returns one zstd frame of 1 to [`SEGMENT_BLOCKS`] concatenated blocks, at a zstd level (1 to 19 are useful).
///
/// # Errors
/// There are no blocks, too many, or too long ones; or the compressor fails.
pub fn pack_blocks(blocks: &[&[u8]], level: i32) -> Result<Vec<u8>, PackError> {
    let total = total(blocks.iter().map(|block| block.len()))?;
    let mut bytes = Vec::with_capacity(total);
    for block in blocks {
        bytes.extend_from_slice(block);
    }
    COMPRESSOR.with_borrow_mut(|slot| {
        let made = match slot.take() {
            Some(mut kept) => kept.set_compression_level(level).map(|()| kept),
            None => Compressor::new(level),
        };
        let compressor = slot.insert(made.map_err(PackError::Compressor)?);
        let mut packed = compressor.compress(&bytes).map_err(PackError::Compressor)?;
        packed.shrink_to_fit();
        Ok(packed)
    })
}

/// Decompresses one zstd frame into blocks of these lengths. Never allocates more than their sum, even if the frame
/// declares a larger size.
///
/// # Errors
/// The lengths are not those of a segment; the bytes are damaged or make up another length.
pub fn unpack(compressed: &[u8], lengths: &[usize]) -> Result<Vec<u8>, PackError> {
    let total = total(lengths.iter().copied())?;
    if compressed.len() > COMPRESSED_BYTES_MAX {
        return Err(PackError::Oversized(compressed.len()));
    }
    // The decompressor would accept several frames, and skippable ones.
    if zstd::zstd_safe::find_frame_compressed_size(compressed) != Ok(compressed.len()) {
        return Err(PackError::Damaged("not one frame"));
    }
    let mut bytes = vec![0; total];
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(kept) => kept,
            None => slot.insert(Decompressor::new().map_err(PackError::Compressor)?),
        };
        let count = decompressor
            .decompress_to_buffer(compressed, &mut bytes[..])
            .map_err(|_| PackError::Damaged("not the compressed form of its blocks"))?;
        if count == total {
            Ok(bytes)
        } else {
            Err(PackError::Damaged("too few bytes"))
        }
    })
}

/// Returns the sum of the lengths of a segment's blocks.
fn total(lengths: impl ExactSizeIterator<Item = usize>) -> Result<usize, PackError> {
    let count = lengths.len();
    let (mut sum, mut is_good) = (0usize, (1..=SEGMENT_BLOCKS as usize).contains(&count));
    for length in lengths {
        is_good &= (1..=BLOCK_BYTES).contains(&length);
        sum = sum.saturating_add(length);
    }
    if is_good {
        Ok(sum)
    } else {
        Err(PackError::Blocks(count, sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Vec<Vec<u8>> {
        let block = |number: usize, bytes: usize| {
            (0..bytes)
                .map(|at| (at * (number + 3) / 7 % 250) as u8)
                .collect()
        };
        let mut blocks: Vec<Vec<u8>> = (0..31).map(|number| block(number, BLOCK_BYTES)).collect();
        blocks.push(block(31, 17));
        blocks
    }

    fn pack(blocks: &[Vec<u8>], level: i32) -> Vec<u8> {
        let slices: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        pack_blocks(&slices, level).unwrap()
    }

    fn lengths(blocks: &[Vec<u8>]) -> Vec<usize> {
        blocks.iter().map(Vec::len).collect()
    }

    #[test]
    fn blocks_come_back_at_any_level() {
        let blocks = blocks();
        for level in [3, 19, 1, 3] {
            let packed = pack(&blocks, level);
            assert!(packed.len() < blocks.concat().len() / 2);
            assert_eq!(
                unpack(&packed, &lengths(&blocks)).unwrap(),
                blocks.concat(),
                "level {level}"
            );
        }
        assert_eq!(pack(&blocks, 3), pack(&blocks, 3));
    }

    #[test]
    fn every_other_length_is_refused() {
        let blocks = blocks();
        let packed = pack(&blocks, 3);
        for last in [1, 16, 18, BLOCK_BYTES] {
            let mut lengths = lengths(&blocks);
            lengths[31] = last;
            let error = unpack(&packed, &lengths).unwrap_err();
            assert!(matches!(error, PackError::Damaged(_)), "{error}");
        }
        for lengths in [
            &[][..],
            &[0],
            &[BLOCK_BYTES + 1],
            &[1; 33],
            &[usize::MAX; 2],
        ] {
            let error = unpack(&packed, lengths).unwrap_err();
            assert!(matches!(error, PackError::Blocks(..)), "{error}");
        }
    }

    #[test]
    fn a_frame_that_says_it_is_huge_makes_no_room_for_it() {
        // Single segment, with a content size field of eight bytes: 2^60.
        let mut liar = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        liar.extend_from_slice(&(1u64 << 60).to_le_bytes());
        // One last block of run-length bytes, 64 KiB of them.
        liar.extend_from_slice(&[0x03, 0x00, 0x08, 0xaa]);
        assert!(unpack(&liar, &[BLOCK_BYTES; 32]).is_err());
    }

    #[test]
    fn two_frames_or_bytes_behind_one_are_refused() {
        let one = pack(&[vec![1; 64]], 3);
        let two = [&one[..], &one[..]].concat();
        assert!(unpack(&two, &[64, 64]).is_err());
        assert!(unpack(&[&one[..], b"x"].concat(), &[64]).is_err());
        // A skippable frame before a valid one.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9][..], &one[..]].concat();
        assert!(unpack(&skipped, &[64]).is_err());
        assert!(unpack(&vec![0; COMPRESSED_BYTES_MAX + 1], &[64]).is_err());
        assert_eq!(unpack(&one, &[64]).unwrap(), [1; 64]);
    }
}
