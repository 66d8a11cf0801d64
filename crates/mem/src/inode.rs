//! Inodes: the attributes of a file except its name and its bytes.

use crate::error::{Error, Result};
use crate::layout::{attribute, state};
use crate::node::Node;
use crate::region::Region;
use crate::words::Words;

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

    /// Whether an inode is in use. The number must be valid.
    pub(crate) fn is_live(&self, inode: u64) -> bool {
        let at = self.layout.inode(inode);
        self.memory.load(at + attribute::GENERATION) != 0
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
