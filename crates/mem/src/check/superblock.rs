//! The region's file as a whole: its superblock, without which nothing else can be read, and its length.
//!
//! The superblock has four numbers and a checksum, and the file's length follows from them. So an overwritten number is
//! found by trial: with the right one, the checksum and the length match.

use std::fs::{File, OpenOptions};
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, Result, system_error};
use crate::flush::Flush;
use crate::layout::{INODE_BYTES, Layout, PAGE_BYTES, attribute};
use crate::memory::Memory;
use crate::node::{Node, ROOT_INODE};
use crate::superblock::{
    MAGIC, SUPERBLOCK_BYTES, decode, encode, format_version, made_of, options_of,
};

use super::report::{Finding, Kind};

type Bytes = [u8; SUPERBLOCK_BYTES];

/// The damage of a region's file that prevents opening it.
#[derive(Default)]
pub(super) struct FileFound {
    pub(super) findings: Vec<Finding>,
    /// The file ends here, before its proper end: the bytes behind are gone.
    pub(super) cut_at: Option<u64>,
}

/// Checks the superblock and the length of the file, and mends them if `mends` is set.
///
/// # Errors
/// As [`Region::open`](crate::Region::open); [`Error::Damaged`] if the superblock cannot be reconstructed.
pub(super) fn look(path: &Path, mends: bool) -> Result<FileFound> {
    let system = |what| system_error(path, what);
    let file = OpenOptions::new()
        .read(true)
        .write(mends)
        .open(path)
        .map_err(system("cannot be opened"))?;
    let metadata = file.metadata().map_err(system("cannot be looked at"))?;
    let length = metadata.len();
    let mut found = FileFound::default();
    if length < PAGE_BYTES {
        return Err(Error::NotARegion {
            path: path.to_owned(),
        });
    }
    // hugetlbfs supports reads by mapping only.
    let first = Memory::map(&file, path, PAGE_BYTES, mends, Flush::None)?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    first.read(0, &mut bytes);
    let layout = match decode(&bytes, path) {
        Ok((layout, _)) => layout,
        Err(error @ Error::Version { .. }) if checksum(&bytes) == said(&bytes) => {
            return Err(error);
        }
        Err(error) => {
            let Some((right, layout)) = worked_out(&bytes, &file, path, length)? else {
                let is_none = matches!(error, Error::NotARegion { .. });
                return Err(if is_none { error } else { lost() });
            };
            found.findings.push(Finding {
                kind: Kind::Superblock,
                at: 0,
                text: "the superblock was written over; what it said follows from the rest".into(),
            });
            if mends {
                first.write(0, &right);
                file.sync_data()
                    .map_err(system("cannot be mended for good"))?;
            }
            layout
        }
    };
    drop(first);
    if length == layout.file_bytes {
        return Ok(found);
    }
    let text = if length > layout.file_bytes {
        format!(
            "the file is {} bytes longer than the region; `truncate -s {}` mends it, too",
            length - layout.file_bytes,
            layout.file_bytes
        )
    } else {
        found.cut_at = Some(length);
        format!(
            "the file is {} bytes shorter than the region; what lay there is gone",
            layout.file_bytes - length
        )
    };
    let at = length.min(layout.file_bytes);
    let kind = Kind::Superblock;
    found.findings.push(Finding { kind, at, text });
    if length < layout.metadata_bytes {
        return Err(Error::Damaged {
            at: length,
            what: "the file ends before its tables do: nothing can be found any more",
        });
    }
    if mends {
        file.set_len(layout.file_bytes)
            .map_err(system("cannot be made as long as its address space"))?;
    }
    Ok(found)
}

fn lost() -> Error {
    Error::Damaged {
        at: 0,
        what: "the superblock does not match its checksum, and cannot be worked out from the rest",
    }
}

fn said(bytes: &Bytes) -> u32 {
    u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]])
}

fn checksum(bytes: &Bytes) -> u32 {
    crc32c::crc32c(&bytes[..60])
}

/// Reconstructs the superblock, if only one of its numbers was overwritten, besides the parts that are always the same.
fn worked_out(
    bytes: &Bytes,
    file: &File,
    path: &Path,
    length: u64,
) -> Result<Option<(Bytes, Layout)>> {
    for flush in [Flush::None, Flush::CacheLines] {
        let mut right = *bytes;
        right[..8].copy_from_slice(MAGIC);
        right[8..12].copy_from_slice(&format_version(flush).to_le_bytes());
        right[12..16].fill(0);
        right[40..44].copy_from_slice(&flush.as_number().to_le_bytes());
        right[44..60].fill(0);
        let found = numbers_worked_out(&right, length);
        if found.is_some() {
            return Ok(found);
        }
        // Only the checksum was changed: all numbers are valid, and the tables lie where they say.
        if right[..44] == bytes[..44]
            && let Some((layout, flush)) = made_of(&right)
            && layout.file_bytes == length
            && has_root(file, path, &layout)?
            && has_capacity(file, path, &layout)?
        {
            return Ok(Some((encode(&layout, flush), layout)));
        }
    }
    Ok(None)
}

/// Finds the numbers that match the checksum. If a number had to be changed, they must also match the length of the
/// file.
fn numbers_worked_out(right: &Bytes, length: u64) -> Option<(Bytes, Layout)> {
    let made = |bytes: &Bytes| made_of(bytes).map(|(layout, _)| (*bytes, layout));
    if checksum(right) == said(right) {
        // No number was changed. The length is checked next.
        return made(right);
    }
    let fits = |bytes: &Bytes| match checksum(bytes) == said(bytes) {
        true => made(bytes).filter(|(_, layout)| layout.file_bytes == length),
        false => None,
    };
    let capacity_bytes = options_of(right).capacity_bytes;
    let pages_max = crate::layout::CAPACITY_BYTES_MAX / PAGE_BYTES;
    let tries: [(usize, usize, u64, u64); 4] = [
        (16, 8, PAGE_BYTES, pages_max),
        // Tables use at most half of the region.
        (24, 8, 1, (capacity_bytes / INODE_BYTES).min(1 << 24)),
        (32, 4, 1, 4096),
        (36, 4, 1, 4096),
    ];
    for (at, count, step, last) in tries {
        let mut tried = *right;
        for number in 1..=last {
            tried[at..at + count].copy_from_slice(&(number * step).to_le_bytes()[..count]);
            let found = fits(&tried);
            if found.is_some() {
                return found;
            }
        }
    }
    // Lanes and slots lie in one word, so both may be damaged.
    let both = (1..=4096_u32).flat_map(|lanes| (1..=4096_u32).map(move |slots| (lanes, slots)));
    let mut tried = *right;
    for (lanes, slots) in both {
        tried[32..36].copy_from_slice(&lanes.to_le_bytes());
        tried[36..40].copy_from_slice(&slots.to_le_bytes());
        let found = fits(&tried);
        if found.is_some() {
            return found;
        }
    }
    None
}

fn has_root(file: &File, path: &Path, layout: &Layout) -> Result<bool> {
    let tables = Memory::map(file, path, layout.metadata_bytes, false, Flush::None)?;
    let at = layout.inode(ROOT_INODE);
    Ok(
        tables.load(at + attribute::GENERATION) == Node::ROOT.generation
            && tables.load(at + attribute::PARENT) == ROOT_INODE
            && tables.load(at + attribute::MODE_LINKS) as u32 & libc::S_IFMT == libc::S_IFDIR,
    )
}

fn has_capacity(file: &File, path: &Path, layout: &Layout) -> Result<bool> {
    if crate::region::backing(file).map_err(system_error(path, "cannot be looked at"))?
        == crate::Backing::File
    {
        return Ok(true);
    }
    let metadata = file
        .metadata()
        .map_err(system_error(path, "cannot be looked at"))?;
    Ok(metadata.st_blocks() * 512 == layout.capacity_bytes)
}
