//! The superblock: the part of a region's first page that never changes.

use std::path::Path;

use crate::error::{Error, Result};
use crate::flush::Flush;
use crate::layout::{Layout, RegionOptions};

/// Version of the layout and of the protocols between processes; SPEC.md specifies every byte. A region of another
/// version is refused: a checkpoint, which does not depend on the version, carries its content into a new region. A
/// region that writes cache lines back has the newest format, because a program that does not know of that must not
/// write to it. All other regions have format 1, which all versions of this crate know.
pub const FORMAT_VERSION: u32 = 2;

/// The format of regions without [`Flush`].
const FORMAT_VERSION_PLAIN: u32 = 1;

pub(crate) const MAGIC: &[u8; 8] = b"KEELMEM\0";

pub(crate) const SUPERBLOCK_BYTES: usize = 64;

pub(crate) fn format_version(flush: Flush) -> u32 {
    match flush {
        Flush::None => FORMAT_VERSION_PLAIN,
        Flush::CacheLines => FORMAT_VERSION,
    }
}

/// The part of the superblock that never changes.
pub(crate) fn encode(layout: &Layout, flush: Flush) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&format_version(flush).to_le_bytes());
    bytes[16..24].copy_from_slice(&layout.capacity_bytes.to_le_bytes());
    bytes[24..32].copy_from_slice(&(layout.inode_count - 1).to_le_bytes());
    bytes[32..36].copy_from_slice(&(layout.lane_count as u32).to_le_bytes());
    bytes[36..40].copy_from_slice(&(layout.slot_count as u32).to_le_bytes());
    bytes[40..44].copy_from_slice(&flush.as_number().to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8; SUPERBLOCK_BYTES], path: &Path) -> Result<(Layout, Flush)> {
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    if &bytes[..8] != MAGIC {
        return Err(Error::NotARegion {
            path: path.to_owned(),
        });
    }
    if !(FORMAT_VERSION_PLAIN..=FORMAT_VERSION).contains(&half(8)) {
        return Err(Error::Version {
            path: path.to_owned(),
            found: half(8),
            supported: FORMAT_VERSION,
        });
    }
    let damaged = Error::Damaged {
        at: 0,
        what: "the superblock does not match its checksum",
    };
    if half(60) != crc32c::crc32c(&bytes[..60]) {
        return Err(damaged);
    }
    made_of(bytes).ok_or(damaged)
}

/// The numbers of a superblock, unchecked.
pub(crate) fn options_of(bytes: &[u8; SUPERBLOCK_BYTES]) -> RegionOptions {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    RegionOptions {
        capacity_bytes: word(16),
        files_max: Some(word(24)),
        lanes: word(32) as u32,
    }
}

/// The layout and flush mode that a superblock's numbers give, if they are valid for a region.
pub(crate) fn made_of(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<(Layout, Flush)> {
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    let flush = match half(8) {
        FORMAT_VERSION_PLAIN => Flush::None,
        _ => Flush::from_number(half(40)).filter(|flush| *flush != Flush::None)?,
    };
    let slots = u64::from(half(36));
    let layout = Layout::with_slots(&options_of(bytes), slots).ok()?;
    (layout.slot_count == slots).then_some((layout, flush))
}
