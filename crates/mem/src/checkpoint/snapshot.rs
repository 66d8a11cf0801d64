//! The names of a region at one moment.
//!
//! Under the lock of names, the tables are copied as they are; everything else uses the copy. That is 320 bytes for
//! each name of up to 16 bytes: 3 MiB and a millisecond for 10,000 files. No file is deleted while the lock is held, so
//! files that are replaced often are copied under it, too.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::inode::Attributes;
use crate::layout::{CELL_BYTES, INODE_BYTES, attribute, state};
use crate::names::{Table, cell, high, low, name_of};
use crate::node::ROOT_INODE;
use crate::region::Region;
use crate::writer::Writer;

use super::format::Name;

/// A name of a directory: the directory and the name in it.
pub(super) type Path = (u64, Vec<u8>);

/// Copies of the tables.
pub(super) struct Snapshot<'r> {
    region: &'r Region,
    inodes: Vec<u8>,
    cells: Vec<u8>,
}

/// Maximum bytes of files that are copied under the lock, in total: a few milliseconds.
const HELD_BYTES_MAX: u64 = 32 << 20;

/// A file that was copied under the lock.
pub(super) struct CopiedFile {
    pub(super) attributes: Attributes,
    pub(super) bytes: Vec<u8>,
}

/// The inodes that the names of a snapshot lead to.
#[derive(Default)]
pub(super) struct Names {
    /// Directories, the root first, each one behind its parent.
    pub(super) directories: Vec<u64>,
    /// All other inodes that have a name, in the order of the walk.
    pub(super) files: Vec<u64>,
    /// The names of all of them, except the root.
    pub(super) of: HashMap<u64, Vec<Name>>,
}

impl<'r> Snapshot<'r> {
    /// Copies the tables, and at the same moment the files that have these names.
    ///
    /// # Errors
    /// Those of the lock, and [`Error::Damaged`].
    pub(super) fn take(
        writer: &Writer<'r>,
        wanted: &HashSet<Path>,
    ) -> Result<(Self, Vec<CopiedFile>)> {
        let region = writer.region;
        let words = region.begin_words(writer.lane)?;
        let used = |fresh, count: u64| region.memory.load(fresh).min(count);
        let inodes = used(state::FRESH_INODE, region.layout.inode_count) * INODE_BYTES;
        let cells = used(state::FRESH_CELL, region.layout.cell_count) * CELL_BYTES;
        let mut snapshot = Self {
            region,
            inodes: vec![0; inodes as usize],
            cells: vec![0; cells as usize],
        };
        let memory = &region.memory;
        memory.read(region.layout.inodes_at, &mut snapshot.inodes);
        memory.read(region.layout.cells_at, &mut snapshot.cells);
        let mut held = Vec::new();
        let mut bytes_left = HELD_BYTES_MAX;
        for (directory, name) in wanted {
            let inode = match words.look_up(*directory, name) {
                Ok(inode) => inode,
                Err(Error::NotFound) => continue,
                Err(error) => return Err(error),
            };
            // A writer of the file does not wait for the lock of names during its change, so this read ends.
            let mut attributes = region.attributes(inode)?;
            let Some(left) = bytes_left.checked_sub(attributes.size) else {
                continue;
            };
            bytes_left = left;
            let mut bytes = vec![0; attributes.size as usize];
            let count = writer.read(inode, attributes.generation, 0, &mut bytes)?;
            // The file may have become shorter since.
            bytes.truncate(count);
            attributes.size = count as u64;
            held.push(CopiedFile { attributes, bytes });
        }
        Ok((snapshot, held))
    }

    /// A word of an inode; 0 for an inode that was never used.
    pub(super) fn attribute(&self, inode: u64, word: u64) -> u64 {
        match inode < self.inodes.len() as u64 / INODE_BYTES {
            true => self.word(self.region.layout.inode(inode) + word),
            false => 0,
        }
    }

    pub(super) fn generation(&self, inode: u64) -> u64 {
        self.attribute(inode, attribute::GENERATION)
    }

    pub(super) fn mode(&self, inode: u64) -> u32 {
        self.attribute(inode, attribute::MODE_LINKS) as u32
    }

    /// Walks all names from the root.
    ///
    /// # Errors
    /// [`Error::Damaged`]: an incomplete checkpoint would replace a complete one.
    pub(super) fn names(&self) -> Result<Names> {
        let mut names = Names {
            directories: vec![ROOT_INODE],
            ..Names::default()
        };
        let mut cells_left = self.region.layout.cell_count;
        let mut next_directory = 0;
        while let Some(directory) = names.directories.get(next_directory).copied() {
            next_directory += 1;
            let mut next = self.attribute(directory, attribute::FIRST_CELL);
            while let Some(first) = next.checked_sub(1) {
                // Each cell has one name, so a walk over more of them is in a cycle.
                cells_left = cells_left.checked_sub(1).ok_or_else(|| self.damage())?;
                let at = self.cell_at(first)?;
                let inode = high(self.word(at + cell::LINK_INODE));
                let is_there = self.generation(inode) != 0;
                if low(self.word(at + cell::DIRECTORY_LENGTH)) != directory || !is_there {
                    return Err(self.damage());
                }
                let known = names.of.entry(inode).or_default();
                if known.is_empty() {
                    match self.mode(inode) & libc::S_IFMT {
                        libc::S_IFDIR => names.directories.push(inode),
                        _ => names.files.push(inode),
                    }
                } else if self.mode(inode) & libc::S_IFMT == libc::S_IFDIR {
                    return Err(self.damage());
                }
                known.push(Name {
                    directory,
                    position: self.word(at + cell::POSITION),
                    name: name_of(self, at)?,
                });
                next = low(self.word(at + cell::NEIGHBOURS));
            }
        }
        Ok(names)
    }

    fn cell_at(&self, cell: u64) -> Result<u64> {
        if cell < self.cells.len() as u64 / CELL_BYTES {
            Ok(self.region.layout.cells_at + cell * CELL_BYTES)
        } else {
            Err(self.damage())
        }
    }

    fn damage(&self) -> Error {
        Error::Damaged {
            at: self.region.layout.cells_at,
            what: "the names do not hang together; repair the region first",
        }
    }
}

impl Table for Snapshot<'_> {
    /// Parts that were not copied have never been used: they are zeros.
    fn word(&self, at: u64) -> u64 {
        let layout = &self.region.layout;
        let (table, from) = if at >= layout.cells_at {
            (&self.cells, layout.cells_at)
        } else {
            (&self.inodes, layout.inodes_at)
        };
        let from = at.wrapping_sub(from) as usize;
        let bytes = table.get(from..from.saturating_add(8));
        bytes.map_or(0, |bytes| {
            u64::from_ne_bytes(std::array::from_fn(|place| bytes[place]))
        })
    }

    fn region(&self) -> &Region {
        self.region
    }
}
