//! Writers of a region: a lane, and the calls on names that need one. Calls that only read need none.

use crate::error::{Error, Result, system_error};
use crate::inode::{Attributes, NewInode};
use crate::lane::{Lane, word};
use crate::layout::{attribute, state};
use crate::names::{Entry, check_name, entries};
use crate::node::{Meant, Node};
use crate::region::Region;
use crate::space::{Place, class_for};
use crate::stub::{StubName, is_description_locked};
use crate::words::Words;

/// Type bits of `st_mode`.
const TYPE: u32 = libc::S_IFMT;

/// One thread's right to change a region. Made once and kept; dropping it frees the lane.
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
        // A panic in a test simulates a death, which leaves the lane taken.
        if !std::thread::panicking() {
            self.region.give_back_lane(self.lane);
        }
    }
}

/// What a rename does with a file that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// It stays, and the call fails.
    Keep,
    /// It gets the old name.
    Exchange,
}

/// What [`Writer::set_attributes`] changes; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions as `st_mode` has them; the type stays.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// When it was read, in nanoseconds since 1970; an earlier time is a negative `i64`.
    pub accessed_ns: Option<u64>,
    /// When its bytes changed.
    pub modified_ns: Option<u64>,
}

fn is_directory(mode: u32) -> bool {
    mode & TYPE == libc::S_IFDIR
}

impl Words<'_> {
    fn mode(&self, meant: impl Into<Meant>) -> Result<u32> {
        let meant = meant.into();
        let at = self.region.inode_at(meant.inode)?;
        meant.require(self.get(at + attribute::GENERATION))?;
        Ok(self.get(at + attribute::MODE_LINKS) as u32)
    }

    fn require_directory(&self, meant: impl Into<Meant>) -> Result<()> {
        if is_directory(self.mode(meant)?) {
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
    /// The file that a name in a directory names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::Stale`].
    pub fn look_up(&self, directory: impl Into<Meant>, name: &[u8]) -> Result<Attributes> {
        let directory = directory.into();
        self.region.look_up_by(directory, name, || {
            let words = self.region.begin_words(self.lane)?;
            words.require_directory(directory)?;
            self.region.node(words.look_up(directory.inode, name)?)
        })
    }

    /// Returns up to `entries_max` names of a directory behind `position`; 0 starts at the first.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::Stale`].
    pub fn list(
        &self,
        directory: impl Into<Meant>,
        position: u64,
        entries_max: usize,
    ) -> Result<Vec<Entry>> {
        let directory = directory.into();
        self.region
            .list_at_rest(directory, position, entries_max)
            .unwrap_or_else(|| {
                let words = self.region.begin_words(self.lane)?;
                words.require_directory(directory)?;
                entries(&words, directory.inode, position, entries_max)
            })
    }

    /// Makes an empty file or directory under a new name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TablesFull`], [`Error::NotADirectory`], [`Error::Stale`], those of names.
    pub fn create(
        &self,
        directory: impl Into<Meant>,
        name: &[u8],
        new: &NewInode,
    ) -> Result<Attributes> {
        self.create_with(directory, name, new, &[])
    }

    /// As [`create`](Self::create), with initial content: a symbolic link gets its target this way.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Error::TooLarge`] for more than 1 MiB; [`Error::Full`].
    pub fn create_with(
        &self,
        directory: impl Into<Meant>,
        name: &[u8],
        new: &NewInode,
        content: &[u8],
    ) -> Result<Attributes> {
        let directory = directory.into();
        self.or_after_reclaiming(|| self.create_once(directory, name, new, content))
    }

    /// Runs `call`. If it finds no room, frees deleted files that no process has open and packed pages without pieces.
    /// If that frees anything, runs `call` again.
    pub(crate) fn or_after_reclaiming<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(error) => self.after_reclaiming(error, call),
            done => done,
        }
    }

    /// As above, after the first call has failed with `error`.
    #[cold]
    pub(crate) fn after_reclaiming<T>(
        &self,
        error: Error,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match error {
            Error::Full | Error::TablesFull
                if self.reclaim_orphans()? + self.region.free_empty_pages(self.lane)? > 0 =>
            {
                call()
            }
            other => Err(other),
        }
    }

    fn create_once(
        &self,
        directory: Meant,
        name: &[u8],
        new: &NewInode,
        content: &[u8],
    ) -> Result<Attributes> {
        check_name(name)?;
        let class = class_for(content.len() as u64).ok_or(Error::TooLarge)?;
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let directory = directory.inode;
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
        if !content.is_empty() {
            let piece = words.take_piece(class)?;
            self.region.memory.write(piece, content);
            self.region.memory.write_back(piece, content.len() as u64);
            let at = self.region.inode_at(inode)?;
            words.set(at + attribute::SIZE, content.len() as u64)?;
            let place = Place::Piece { at: piece, class };
            words.set(at + attribute::PLACE, place.encode())?;
        }
        words.touch_directory(directory, new.now_ns)?;
        let generation = words.get(self.region.inode_at(inode)? + attribute::GENERATION);
        words.commit()?;
        drop(words);
        match self.region.attributes(inode)? {
            made if made.generation == generation => Ok(made),
            // Deleted already, and the number belongs to another file.
            _ => Err(Error::Stale),
        }
    }

    /// Changes a file's attributes.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_attributes(&self, node: Node, changes: &Changes, now_ns: u64) -> Result<()> {
        let region = self.region;
        let at = self.lock_inode(node.inode, node.generation)?;
        let changed = region.begin_words(self.lane).and_then(|mut words| {
            if let Some(mode) = changes.mode {
                words.change(at + attribute::MODE_LINKS, |word| {
                    let mode = word as u32 & TYPE | mode & !TYPE;
                    word & !0xffff_ffff | u64::from(mode)
                })?;
            }
            if let Some(user) = changes.user {
                let user = u64::from(user);
                words.change(at + attribute::OWNER, |word| word & !0xffff_ffff | user)?;
            }
            if let Some(group) = changes.group {
                let group = u64::from(group) << 32;
                words.change(at + attribute::OWNER, |word| word & 0xffff_ffff | group)?;
            }
            if let Some(time_ns) = changes.accessed_ns {
                words.set(at + attribute::ACCESSED_NS, time_ns)?;
            }
            if let Some(time_ns) = changes.modified_ns {
                words.set(at + attribute::MODIFIED_NS, time_ns)?;
            }
            words.set(at + attribute::CHANGED_NS, now_ns)?;
            words.commit()
        });
        region.unlock(at + attribute::LOCK);
        region.set_lane_word(self.lane, word::INODE, 0);
        changed
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::IsADirectory`], [`Error::TablesFull`], [`Error::Stale`], those of names.
    pub fn link(
        &self,
        file: impl Into<Meant>,
        directory: impl Into<Meant>,
        name: &[u8],
        now_ns: u64,
    ) -> Result<()> {
        let (file, directory) = (file.into(), directory.into());
        check_name(name)?;
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        if is_directory(words.mode(file)?) {
            return Err(Error::IsADirectory);
        }
        let (inode, directory) = (file.inode, directory.inode);
        // A deleted file cannot get a name again.
        if words.links(inode)? == 0 {
            return Err(Error::NotFound);
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

    /// Removes a name of a file; removing the last name deletes the file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::Stale`].
    pub fn remove(&self, directory: impl Into<Meant>, name: &[u8], now_ns: u64) -> Result<()> {
        let directory = directory.into();
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let directory = directory.inode;
        let inode = words.look_up(directory, name)?;
        if is_directory(words.mode(inode)?) {
            return Err(Error::IsADirectory);
        }
        words.remove_name(directory, name)?;
        words.change_links(inode, -1)?;
        words.touch(inode, now_ns)?;
        words.touch_directory(directory, now_ns)?;
        let is_last = words.links(inode)? == 0;
        if is_last {
            words.add_orphan(inode)?;
        }
        let node = words.node(inode)?;
        words.commit()?;
        drop(words);
        if is_last {
            self.reclaim_removed(node);
        }
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NotEmpty`], [`Error::Stale`].
    pub fn remove_directory(
        &self,
        directory: impl Into<Meant>,
        name: &[u8],
        now_ns: u64,
    ) -> Result<()> {
        let directory = directory.into();
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(directory)?;
        let directory = directory.inode;
        let inode = words.look_up(directory, name)?;
        words.require_directory(inode)?;
        words.require_empty(inode)?;
        words.remove_name(directory, name)?;
        words.change_links(directory, -1)?;
        let node = words.node(inode)?;
        words.free_inode(inode)?;
        words.touch_directory(directory, now_ns)?;
        words.commit()?;
        drop(words);
        self.remove_directory_stub(node);
        Ok(())
    }

    /// Renames a file or directory; a file of the new name, or an empty directory, is replaced atomically.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::NotADirectory`], [`Error::NotEmpty`],
    /// [`Error::IntoItself`], [`Error::Stale`], those of names.
    pub fn rename(
        &self,
        from: (impl Into<Meant>, &[u8]),
        to: (impl Into<Meant>, &[u8]),
        now_ns: u64,
    ) -> Result<()> {
        self.rename_as(from, to, now_ns, Rename::Replace)
    }

    /// As [`rename`](Self::rename); `Rename` says what happens to a file that has the name already.
    ///
    /// # Errors
    /// As [`rename`](Self::rename), and [`Error::Exists`] for [`Rename::Keep`].
    pub fn rename_as(
        &self,
        from: (impl Into<Meant>, &[u8]),
        to: (impl Into<Meant>, &[u8]),
        now_ns: u64,
        how: Rename,
    ) -> Result<()> {
        let (from, to) = ((from.0.into(), from.1), (to.0.into(), to.1));
        let mut words = self.region.begin_words(self.lane)?;
        words.require_directory(from.0)?;
        words.require_directory(to.0)?;
        let (from, to) = ((from.0.inode, from.1), (to.0.inode, to.1));
        let moved = words.look_up(from.0, from.1)?;
        check_name(to.1)?;
        let moves_directory = is_directory(words.mode(moved)?);
        if moves_directory {
            words.require_not_inside(to.0, moved)?;
        }
        let replaced = match (words.look_up(to.0, to.1), how) {
            (Ok(_), Rename::Keep) => return Err(Error::Exists),
            (Err(Error::NotFound), Rename::Replace | Rename::Keep) => None,
            (Ok(same), _) if same == moved => return Ok(()),
            (Ok(other), Rename::Exchange) => {
                words.exchange((from.0, from.1, moved), (to.0, to.1, other), now_ns)?;
                return words.commit();
            }
            (Ok(other), Rename::Replace) => Some(other),
            (Err(error), _) => return Err(error),
        };
        let mut gone = None;
        let mut reclaimed = None;
        if let Some(replaced) = replaced {
            match (moves_directory, is_directory(words.mode(replaced)?)) {
                (true, false) => return Err(Error::NotADirectory),
                (false, true) => return Err(Error::IsADirectory),
                (true, true) => {
                    words.require_empty(replaced)?;
                    words.change_links(to.0, -1)?;
                    words.remove_name(to.0, to.1)?;
                    gone = Some(words.node(replaced)?);
                    words.free_inode(replaced)?;
                }
                (false, false) => {
                    words.remove_name(to.0, to.1)?;
                    words.change_links(replaced, -1)?;
                    words.touch(replaced, now_ns)?;
                    if words.links(replaced)? == 0 {
                        words.add_orphan(replaced)?;
                        reclaimed = Some(words.node(replaced)?);
                    }
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
        if let Some(gone) = gone {
            self.remove_directory_stub(gone);
        }
        if let Some(reclaimed) = reclaimed {
            self.reclaim_removed(reclaimed);
        }
        Ok(())
    }

    /// Frees a file that has just lost its last name. The name is gone already, so the call has succeeded. If this
    /// fails, the file stays on the list of deleted files until a sweep, or a call that finds no room, frees it.
    fn reclaim_removed(&self, node: Node) {
        let _ = self.reclaim(node);
    }

    /// Frees the memory and the inode of a file without names, unless a process has it open. Returns whether it did.
    ///
    /// # Errors
    /// Those of locks.
    pub(crate) fn reclaim(&self, node: Node) -> Result<bool> {
        let region = self.region;
        let at = match self.lock_inode(node.inode, node.generation) {
            Ok(at) => at,
            Err(Error::Stale) => return Ok(false),
            Err(error) => return Err(error),
        };
        let reclaimed = self.reclaim_locked(node, at);
        region.unlock(at + attribute::LOCK);
        region.set_lane_word(self.lane, word::INODE, 0);
        if matches!(reclaimed, Ok(true)) {
            self.remove_stub(node);
        }
        reclaimed
    }

    fn reclaim_locked(&self, node: Node, at: u64) -> Result<bool> {
        let region = self.region;
        let links = region.memory.load(at + attribute::MODE_LINKS) >> 32;
        if links != 0 || region.is_open(node)? {
            return Ok(false);
        }
        if !self.free_all(node.inode, at)? {
            return Ok(false);
        }
        let mut words = region.begin_words(self.lane)?;
        words.remove_orphan(node.inode)?;
        words.free_inode(node.inode)?;
        words.commit()?;
        Ok(true)
    }

    /// Reclaims the files without names that no process has open. Returns how many.
    ///
    /// # Errors
    /// Those of locks.
    pub fn reclaim_orphans(&self) -> Result<u64> {
        let region = self.region;
        let orphans = {
            let words = region.begin_words(self.lane)?;
            words.orphans()?
        };
        let mut reclaimed = 0;
        for node in orphans {
            reclaimed += u64::from(self.reclaim(node)?);
        }
        Ok(reclaimed)
    }

    fn remove_stub(&self, node: Node) {
        if let Some(stubs) = &self.region.stubs {
            stubs.remove(&StubName::new(node, false), false);
        }
    }

    fn remove_directory_stub(&self, node: Node) {
        if let Some(stubs) = &self.region.stubs {
            stubs.remove_closed_directory(node, self.region.layout.description_count);
        }
    }
}

impl Region {
    fn require_directory(&self, meant: Meant) -> Result<()> {
        let at = self.inode_at(meant.inode)?;
        meant.require(self.memory.load(at + attribute::GENERATION))?;
        if is_directory(self.memory.load(at + attribute::MODE_LINKS) as u32) {
            Ok(())
        } else {
            Err(Error::NotADirectory)
        }
    }

    /// The file that a name names, without a lock if names do not change meanwhile, else by `locked`.
    fn look_up_by(
        &self,
        directory: Meant,
        name: &[u8],
        locked: impl FnOnce() -> Result<Node>,
    ) -> Result<Attributes> {
        let found = self
            .names_at_rest(|region| {
                region.require_directory(directory)?;
                region.node(region.look_up_now(directory.inode, name)?)
            })
            .unwrap_or_else(locked)?;
        match self.attributes(found.inode) {
            // Deleted just now; the number may already belong to another file.
            Err(Error::Stale) => Err(Error::NotFound),
            Ok(other) if other.generation != found.generation => Err(Error::NotFound),
            other => other,
        }
    }

    /// The inode with its generation. Call this only from [`names_at_rest`](Self::names_at_rest).
    fn node(&self, inode: u64) -> Result<Node> {
        let at = self.inode_at(inode)? + attribute::GENERATION;
        let generation = self.memory.load(at);
        Ok(Node { inode, generation })
    }

    /// The file that a name in a directory names, for processes that only read.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`]; [`Error::Stale`] when a writer has died and no process has
    /// finished its change.
    pub fn look_up(&self, directory: impl Into<Meant>, name: &[u8]) -> Result<Attributes> {
        self.look_up_by(directory.into(), name, || Err(Error::Stale))
    }

    /// Returns up to `entries_max` names of a directory behind `position`; 0 starts at the first. For processes that
    /// only read.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub fn list(
        &self,
        directory: impl Into<Meant>,
        position: u64,
        entries_max: usize,
    ) -> Result<Vec<Entry>> {
        self.list_at_rest(directory.into(), position, entries_max)
            .unwrap_or(Err(Error::Stale))
    }

    fn list_at_rest(
        &self,
        directory: Meant,
        position: u64,
        entries_max: usize,
    ) -> Option<Result<Vec<Entry>>> {
        self.names_at_rest(|region| {
            region.require_directory(directory)?;
            entries(region, directory.inode, position, entries_max)
        })
    }

    /// Whether a process has the file open: it then holds a lock on a byte of the stub.
    pub(crate) fn is_open(&self, node: Node) -> Result<bool> {
        let Some(stubs) = &self.stubs else {
            return Ok(false);
        };
        let at = self.inode_at(node.inode)?;
        if self.memory.load(at + attribute::HAS_STUB) == 0 {
            return Ok(false);
        }
        // This process took a record lock on the file, so it has the file open.
        if self.record_locked.has(node.generation) {
            return Ok(true);
        }
        let failed = system_error(stubs.path(), "a stub cannot be asked for locks");
        match stubs.open_existing(&StubName::new(node, false), false, true) {
            Ok(stub) => {
                use std::os::fd::AsRawFd;
                is_description_locked(stub.as_raw_fd(), 0, self.layout.description_count)
                    .map_err(failed)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Words<'_> {
    fn node(&self, inode: u64) -> Result<Node> {
        let at = self.region.inode_at(inode)?;
        Ok(Node {
            inode,
            generation: self.get(at + attribute::GENERATION),
        })
    }

    fn orphans(&self) -> Result<Vec<Node>> {
        let mut orphans = Vec::new();
        let mut next = self.get(state::FIRST_ORPHAN);
        while let Some(inode) = next.checked_sub(1) {
            if orphans.len() as u64 > self.region.layout.inode_count {
                return Err(Error::Damaged {
                    at: state::FIRST_ORPHAN,
                    what: "the list of deleted files is a ring",
                });
            }
            orphans.push(self.node(inode)?);
            next = self.get(self.region.inode_at(inode)? + attribute::NEXT_ORPHAN);
        }
        Ok(orphans)
    }

    /// Exchanges the files of two names: directory, name, inode.
    fn exchange(
        &mut self,
        one: (u64, &[u8], u64),
        other: (u64, &[u8], u64),
        now_ns: u64,
    ) -> Result<()> {
        let (moves_directory, gets_directory) = (
            is_directory(self.mode(one.2)?),
            is_directory(self.mode(other.2)?),
        );
        if gets_directory {
            self.require_not_inside(one.0, other.2)?;
        }
        self.change_name(one.0, one.1, other.2)?;
        self.change_name(other.0, other.1, one.2)?;
        if one.0 != other.0 {
            for (inode, is_directory, from, to) in [
                (one.2, moves_directory, one.0, other.0),
                (other.2, gets_directory, other.0, one.0),
            ] {
                if is_directory {
                    self.change_links(from, -1)?;
                    self.change_links(to, 1)?;
                    let parent_at = self.region.inode_at(inode)? + attribute::PARENT;
                    self.set(parent_at, to)?;
                }
            }
        }
        self.touch(one.2, now_ns)?;
        self.touch(other.2, now_ns)?;
        self.touch_directory(one.0, now_ns)?;
        self.touch_directory(other.0, now_ns)
    }
}

impl Words<'_> {
    fn require_empty(&self, directory: u64) -> Result<()> {
        match self.get(self.region.inode_at(directory)? + attribute::ENTRIES) {
            0 => Ok(()),
            _ => Err(Error::NotEmpty),
        }
    }

    /// Refuses `directory` if it is `other` or lies below it.
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
