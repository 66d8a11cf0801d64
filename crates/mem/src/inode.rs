//! Inodes: the attributes of a file except its name and its bytes.

use crate::error::{Error, Result};
use crate::layout::state;
use crate::region::Region;
use crate::words::Words;

/// Words of an inode, as offsets from its beginning. The first line changes with the file's bytes, under the inode's
/// lock. The other lines change by lists of words, under the lock of names and space.
pub(crate) mod attribute {
    /// Odd while the line or the bytes change.
    pub(crate) const SEQUENCE: u64 = 0;
    /// Bytes of the file.
    pub(crate) const SIZE: u64 = 8;
    /// When its bytes changed, in nanoseconds since 1970.
    pub(crate) const MODIFIED_NS: u64 = 16;
    /// When any of its attributes changed.
    pub(crate) const CHANGED_NS: u64 = 24;
    /// The encoded place of its bytes.
    pub(crate) const PLACE: u64 = 32;
    /// When it was read.
    pub(crate) const ACCESSED_NS: u64 = 40;
    /// The number of the lane that writes, plus 1; or 0.
    pub(crate) const LOCK: u64 = 48;
    // The word behind it says whether a thread sleeps until the lock is free.
    /// Tells this file from earlier files with the same inode number; 0: the inode is free.
    pub(crate) const GENERATION: u64 = 64;
    /// Type and permissions as `st_mode` has them, low; number of names, high.
    pub(crate) const MODE_LINKS: u64 = 72;
    /// User low, group high.
    pub(crate) const OWNER: u64 = 80;
    /// Of a directory: its parent. Of a free inode: the next free one, plus 1.
    pub(crate) const PARENT: u64 = 88;
    /// Of a directory: the first cell, plus 1.
    pub(crate) const FIRST_CELL: u64 = 96;
    /// Of a directory: the last cell, plus 1.
    pub(crate) const LAST_CELL: u64 = 104;
    /// Of a directory: the number of names in it.
    pub(crate) const ENTRIES: u64 = 112;
    /// Of a directory: the position that the next name gets.
    pub(crate) const NEXT_POSITION: u64 = 120;
    /// 1: it may have a stub.
    pub(crate) const HAS_STUB: u64 = 128;
    /// Of a file without names: the next such file, plus 1.
    pub(crate) const NEXT_ORPHAN: u64 = FIRST_CELL;
    /// The previous such file, plus 1.
    pub(crate) const ORPHAN_BEFORE: u64 = LAST_CELL;
}

/// A file or directory during its lifetime: the inode number, and the generation that tells it from earlier files with
/// that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of the inode.
    pub inode: u64,
    /// Generation of the inode.
    pub generation: u64,
}

impl Node {
    /// The root directory of all paths.
    pub const ROOT: Self = Self {
        inode: ROOT_INODE,
        generation: 1,
    };
}

/// Which file or directory a caller means. A number alone may belong to another file by the time of the call; a
/// [`Node`] is refused as stale then.
#[derive(Clone, Copy, Debug)]
pub struct Meant {
    pub(crate) inode: u64,
    generation: Option<u64>,
}

impl Meant {
    /// # Errors
    /// [`Error::Stale`] when an inode of this generation is free, or another file.
    pub(crate) fn require(self, generation: u64) -> Result<()> {
        if generation == 0 || self.generation.is_some_and(|meant| meant != generation) {
            return Err(Error::Stale);
        }
        Ok(())
    }
}

impl From<u64> for Meant {
    fn from(inode: u64) -> Self {
        Self {
            inode,
            generation: None,
        }
    }
}

impl From<Node> for Meant {
    fn from(node: Node) -> Self {
        Self {
            inode: node.inode,
            generation: Some(node.generation),
        }
    }
}

/// Inode number of the root directory.
pub const ROOT_INODE: u64 = 1;

/// The attributes that `stat` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the inode.
    pub inode: u64,
    /// Tells it from earlier files with the same inode number.
    pub generation: u64,
    /// Type and permissions as `st_mode` has them.
    pub mode: u32,
    /// Names that it has; for a directory: 2 plus the number of directories in it.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Bytes.
    pub size: u64,
    /// When its bytes changed, in nanoseconds since 1970; an earlier time is a negative `i64`.
    pub modified_ns: u64,
    /// When any of its attributes changed.
    pub changed_ns: u64,
    /// When it was read.
    pub accessed_ns: u64,
}

impl Attributes {
    /// Which file it is.
    #[must_use]
    pub fn node(&self) -> Node {
        Node {
            inode: self.inode,
            generation: self.generation,
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symbolic_link(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }
}

impl Region {
    /// The offset of an inode. It checks the number, because it comes from a table that may be damaged.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn inode_at(&self, inode: u64) -> Result<u64> {
        if (1..self.layout.inode_count).contains(&inode) {
            Ok(self.layout.inode(inode))
        } else {
            Err(Error::Damaged {
                at: self.layout.inodes_at,
                what: "an inode has a number that no inode has",
            })
        }
    }

    /// The attributes of an inode, as `stat` returns them.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is free.
    pub fn attributes(&self, inode: u64) -> Result<Attributes> {
        let at = self.inode_at(inode)?;
        self.consistent(at, || self.attributes_now(inode, at))
    }

    fn attributes_now(&self, inode: u64, at: u64) -> Result<Attributes> {
        let load = |word| self.memory.load(at + word);
        let generation = load(attribute::GENERATION);
        if generation == 0 {
            return Err(Error::Stale);
        }
        let mode_links = load(attribute::MODE_LINKS);
        let owner = load(attribute::OWNER);
        Ok(Attributes {
            inode,
            generation,
            mode: mode_links as u32,
            links: (mode_links >> 32) as u32,
            user: owner as u32,
            group: (owner >> 32) as u32,
            size: load(attribute::SIZE),
            modified_ns: load(attribute::MODIFIED_NS),
            changed_ns: load(attribute::CHANGED_NS),
            accessed_ns: load(attribute::ACCESSED_NS),
        })
    }
}

/// The initial attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// Type and permissions as `st_mode` has them.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Now, in nanoseconds since 1970.
    pub now_ns: u64,
}

impl Words<'_> {
    /// Allocates an inode, with no bytes, names or entries.
    ///
    /// # Errors
    /// [`Error::TablesFull`].
    pub(crate) fn take_inode(&mut self, new: &NewInode, parent: u64) -> Result<u64> {
        let region = self.region;
        let free = self.get(state::FREE_INODE);
        let inode = if let Some(inode) = free.checked_sub(1) {
            let at = region.inode_at(inode)?;
            self.set(state::FREE_INODE, self.get(at + attribute::PARENT))?;
            inode
        } else {
            let fresh = self.get(state::FRESH_INODE);
            if fresh >= region.layout.inode_count {
                return Err(Error::TablesFull);
            }
            self.set(state::FRESH_INODE, fresh + 1)?;
            fresh
        };
        let at = region.inode_at(inode)?;
        let generation = self.get(state::GENERATION).wrapping_add(1).max(1);
        self.set(state::GENERATION, generation)?;
        self.change(state::INODES, |count| count.wrapping_add(1))?;
        for (word, value) in [
            (attribute::SIZE, 0),
            (attribute::MODIFIED_NS, new.now_ns),
            (attribute::CHANGED_NS, new.now_ns),
            (attribute::ACCESSED_NS, new.now_ns),
            (attribute::PLACE, 0),
            (attribute::GENERATION, generation),
            (attribute::MODE_LINKS, new.mode.into()),
            (
                attribute::OWNER,
                u64::from(new.group) << 32 | u64::from(new.user),
            ),
            (attribute::PARENT, parent),
            (attribute::FIRST_CELL, 0),
            (attribute::LAST_CELL, 0),
            (attribute::ENTRIES, 0),
            (attribute::NEXT_POSITION, 0),
            (attribute::HAS_STUB, 0),
        ] {
            self.set(at + word, value)?;
        }
        Ok(inode)
    }

    /// Adds a file that has lost its last name to the list of orphans: a process may still have it open.
    pub(crate) fn add_orphan(&mut self, inode: u64) -> Result<()> {
        let at = self.region.inode_at(inode)?;
        let first = self.get(state::FIRST_ORPHAN);
        self.set(at + attribute::NEXT_ORPHAN, first)?;
        self.set(at + attribute::ORPHAN_BEFORE, 0)?;
        if let Some(first) = first.checked_sub(1) {
            let first_at = self.region.inode_at(first)?;
            self.set(first_at + attribute::ORPHAN_BEFORE, inode + 1)?;
        }
        self.set(state::FIRST_ORPHAN, inode + 1)?;
        self.change(state::ORPHANS, |count| count.wrapping_add(1))
    }

    /// Removes a file from the list of files without names.
    pub(crate) fn remove_orphan(&mut self, inode: u64) -> Result<()> {
        let at = self.region.inode_at(inode)?;
        let next = self.get(at + attribute::NEXT_ORPHAN);
        let before = self.get(at + attribute::ORPHAN_BEFORE);
        if let Some(next) = next.checked_sub(1) {
            let next_at = self.region.inode_at(next)?;
            self.set(next_at + attribute::ORPHAN_BEFORE, before)?;
        }
        match before.checked_sub(1) {
            Some(before) => {
                let before_at = self.region.inode_at(before)?;
                self.set(before_at + attribute::NEXT_ORPHAN, next)?;
            }
            None => self.set(state::FIRST_ORPHAN, next)?,
        }
        self.change(state::ORPHANS, |count| count.saturating_sub(1))
    }

    /// Frees an inode that has neither names nor bytes any more.
    pub(crate) fn free_inode(&mut self, inode: u64) -> Result<()> {
        let at = self.region.inode_at(inode)?;
        self.set(at + attribute::GENERATION, 0)?;
        self.set(at + attribute::PARENT, self.get(state::FREE_INODE))?;
        self.set(state::FREE_INODE, inode + 1)?;
        self.change(state::INODES, |count| count.saturating_sub(1))
    }
}
