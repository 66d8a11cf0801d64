//! Whoever changes a region: a lane, and the calls on names that need one.

use crate::error::{Error, Result};
use crate::inode::{Attributes, NewInode, attribute};
use crate::lane::{Lane, word};
use crate::names::{Entry, check_name};
use crate::region::Region;
use crate::words::Words;

/// Type bits of `st_mode`.
const TYPE: u32 = libc::S_IFMT;

/// One thread's right to change a region. Made once and kept; given back when dropped.
pub struct Writer<'r> {
    pub(crate) region: &'r Region,
    pub(crate) lane: Lane,
}

impl Region {
    /// Takes a lane for the thread that calls this.
    ///
    /// # Errors
    /// [`Error::LanesFull`], [`Error::ReadOnly`].
    pub fn writer(&self) -> Result<Writer<'_>> {
        Ok(Writer {
            region: self,
            lane: self.take_lane()?,
        })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // A panic in a test stands for a death, which leaves the lane taken.
        if !std::thread::panicking() {
            self.region.give_back_lane(self.lane);
        }
    }
}

fn is_directory(mode: u32) -> bool {
    mode & TYPE == libc::S_IFDIR
}

impl Words<'_> {
    fn mode(&self, inode: u64) -> Result<u32> {
        let at = self.region.inode_at(inode)?;
        if self.get(at + attribute::GENERATION) == 0 {
            return Err(Error::Stale);
        }
        Ok(self.get(at + attribute::MODE_LINKS) as u32)
    }

    fn require_directory(&self, inode: u64) -> Result<()> {
        if is_directory(self.mode(inode)?) {
            Ok(())
        } else {
            Err(Error::NotADirectory)
        }
    }

    fn links(&self, inode: u64) -> Result<u32> {
        Ok((self.get(self.region.inode_at(inode)? + attribute::MODE_LINKS) >> 32) as u32)
    }

    pub(crate) fn change_links(&mut self, inode: u64, by: i32) -> Result<()> {
        let at = self.region.inode_at(inode)? + attribute::MODE_LINKS;
        let links = self
            .links(inode)?
            .checked_add_signed(by)
            .ok_or(Error::Damaged {
                at,
                what: "a file has fewer names than it loses",
            })?;
        self.change(at, |word| word & 0xffff_ffff | u64::from(links) << 32)
    }

    fn touch(&mut self, inode: u64, now_ns: u64) -> Result<()> {
        let at = self.region.inode_at(inode)?;
        self.set(at + attribute::CHANGED_NS, now_ns)
    }

    fn touch_directory(&mut self, directory: u64, now_ns: u64) -> Result<()> {
        let at = self.region.inode_at(directory)?;
        self.set(at + attribute::MODIFIED_NS, now_ns)?;
        self.touch(directory, now_ns)
    }
}

impl Writer<'_> {
    /// What a name in a directory names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`].
    pub fn look_up(&self, directory: u64, name: &[u8]) -> Result<Attributes> {
        let words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let inode = words.look_up(directory, name)?;
        // Whoever writes to the file may wait for the lock of names.
        drop(words);
        self.region.attributes(inode)
    }

    /// Up to `entries_max` names of a directory behind `position`, 0 for the first.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub fn list(&self, directory: u64, position: u64, entries_max: usize) -> Result<Vec<Entry>> {
        let words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        words.entries(directory, position, entries_max)
    }

    /// Makes a file or directory, empty, under a new name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TablesFull`], [`Error::NotADirectory`], those of names.
    pub fn create(&self, directory: u64, name: &[u8], new: &NewInode) -> Result<Attributes> {
        check_name(name)?;
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        match words.look_up(directory, name) {
            Err(Error::NotFound) => {}
            Ok(_) => return Err(Error::Exists),
            Err(other) => return Err(other),
        }
        let inode = words.take_inode(new, directory)?;
        words.add_name(directory, name, inode)?;
        if is_directory(new.mode) {
            words.change_links(inode, 2)?;
            words.change_links(directory, 1)?;
        } else {
            words.change_links(inode, 1)?;
        }
        words.touch_directory(directory, new.now_ns)?;
        words.commit()?;
        drop(words);
        self.region.attributes(inode)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::IsADirectory`], [`Error::TablesFull`], those of names.
    pub fn link(&self, inode: u64, directory: u64, name: &[u8], now_ns: u64) -> Result<()> {
        check_name(name)?;
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        if is_directory(words.mode(inode)?) {
            return Err(Error::IsADirectory);
        }
        match words.look_up(directory, name) {
            Err(Error::NotFound) => {}
            Ok(_) => return Err(Error::Exists),
            Err(other) => return Err(other),
        }
        words.add_name(directory, name, inode)?;
        words.change_links(inode, 1)?;
        words.touch(inode, now_ns)?;
        words.touch_directory(directory, now_ns)?;
        words.commit()
    }

    /// Takes a name of a file away; with the last one goes the file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    pub fn remove(&self, directory: u64, name: &[u8], now_ns: u64) -> Result<()> {
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let inode = words.look_up(directory, name)?;
        if is_directory(words.mode(inode)?) {
            return Err(Error::IsADirectory);
        }
        words.remove_name(directory, name)?;
        words.change_links(inode, -1)?;
        words.touch(inode, now_ns)?;
        words.touch_directory(directory, now_ns)?;
        let is_last = words.links(inode)? == 0;
        words.commit()?;
        drop(words);
        if is_last { self.reclaim(inode) } else { Ok(()) }
    }

    /// Takes an empty directory away.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NotEmpty`].
    pub fn remove_directory(&self, directory: u64, name: &[u8], now_ns: u64) -> Result<()> {
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let inode = words.look_up(directory, name)?;
        words.require_directory(inode)?;
        words.require_empty(inode)?;
        words.remove_name(directory, name)?;
        words.change_links(directory, -1)?;
        words.free_inode(inode)?;
        words.touch_directory(directory, now_ns)?;
        words.commit()
    }

    /// Gives a file or directory another name; a file of that name, or an empty directory, is replaced at once.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::NotADirectory`], [`Error::NotEmpty`],
    /// [`Error::IntoItself`], those of names.
    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), now_ns: u64) -> Result<()> {
        check_name(to.1)?;
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(from.0)?;
        words.require_directory(to.0)?;
        let moved = words.look_up(from.0, from.1)?;
        let moves_directory = is_directory(words.mode(moved)?);
        if moves_directory {
            words.require_not_inside(to.0, moved)?;
        }
        let replaced = match words.look_up(to.0, to.1) {
            Err(Error::NotFound) => None,
            Ok(same) if same == moved => return Ok(()),
            Ok(other) => Some(other),
            Err(error) => return Err(error),
        };
        let mut reclaimed = None;
        if let Some(replaced) = replaced {
            match (moves_directory, is_directory(words.mode(replaced)?)) {
                (true, false) => return Err(Error::NotADirectory),
                (false, true) => return Err(Error::IsADirectory),
                (true, true) => {
                    words.require_empty(replaced)?;
                    words.change_links(to.0, -1)?;
                    words.remove_name(to.0, to.1)?;
                    words.free_inode(replaced)?;
                }
                (false, false) => {
                    words.remove_name(to.0, to.1)?;
                    words.change_links(replaced, -1)?;
                    words.touch(replaced, now_ns)?;
                    reclaimed = Some(replaced)
                        .filter(|_| words.links(replaced).is_ok_and(|links| links == 0));
                }
            }
        }
        words.remove_name(from.0, from.1)?;
        words.add_name(to.0, to.1, moved)?;
        if moves_directory && from.0 != to.0 {
            words.change_links(from.0, -1)?;
            words.change_links(to.0, 1)?;
            let parent_at = self.region.inode_at(moved)? + attribute::PARENT;
            words.set(parent_at, to.0)?;
        }
        words.touch(moved, now_ns)?;
        words.touch_directory(from.0, now_ns)?;
        words.touch_directory(to.0, now_ns)?;
        words.commit()?;
        drop(words);
        reclaimed.map_or(Ok(()), |inode| self.reclaim(inode))
    }

    /// Gives back the memory and the number of a file without names.
    fn reclaim(&self, inode: u64) -> Result<()> {
        let region = self.region;
        let at = region.inode_at(inode)?;
        region.set_lane_word(self.lane, word::INODE, inode);
        region.lock(self.lane, at + attribute::LOCK)?;
        let freed = self.free_all(inode, at).and_then(|()| {
            let mut words = region.begin_words(self.lane)?;
            words.free_inode(inode)?;
            words.commit()
        });
        region.unlock(at + attribute::LOCK);
        region.set_lane_word(self.lane, word::INODE, 0);
        freed
    }
}

impl Words<'_> {
    fn require_empty(&self, directory: u64) -> Result<()> {
        match self.get(self.region.inode_at(directory)? + attribute::ENTRIES) {
            0 => Ok(()),
            _ => Err(Error::NotEmpty),
        }
    }

    /// Refuses `directory` when it is `other` or somewhere below it.
    fn require_not_inside(&self, directory: u64, other: u64) -> Result<()> {
        let mut at = directory;
        for _ in 0..self.region.layout.inode_count {
            if at == other {
                return Err(Error::IntoItself);
            }
            let parent = self.get(self.region.inode_at(at)? + attribute::PARENT);
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Error::Damaged {
            at: self.region.layout.inodes_at,
            what: "directories lie in each other in a ring",
        })
    }
}
