//! Open file descriptions: which file, with which flags, and at which offset the next read begins. They lie in the
//! region, so that processes share them. The kernel's file position of the stub is the description's number. A lock on
//! a byte of the stub shows that a process still has it open.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use crate::attach::Attachment;
use crate::bytes::At;
use crate::error::{Error, Result, system_error};
use crate::inode::Attributes;
use crate::layout::attribute;
use crate::node::Node;
use crate::now_ns;
use crate::region::Region;
use crate::stub::{
    StubName, Stubs, is_description_locked, lock_all_descriptions, lock_description, look_at,
};
use crate::writer::Writer;

/// Words of a description.
pub(crate) mod entry {
    /// See [`Claim`](super::Claim).
    pub(crate) const CLAIM: u64 = 0;
    /// The inode.
    pub(crate) const INODE: u64 = 8;
    /// Its generation.
    pub(crate) const GENERATION: u64 = 16;
    /// Flags as `open` has them.
    pub(crate) const FLAGS: u64 = 24;
    /// Offset of the next read or write.
    pub(crate) const OFFSET: u64 = 32;
    /// The kernel's number of the stub.
    pub(crate) const STUB: u64 = 40;
}

/// State of a description: free, being taken by a process, or open. A lock marks an open one. The high half changes
/// each time the description is taken, so that freeing it cannot free a later use.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Claim(u64);

impl Claim {
    const OPEN: u64 = 1 << 31;
    const PROCESS: u64 = Self::OPEN - 1;

    fn is_free(self) -> bool {
        self.0 & (Self::OPEN | Self::PROCESS) == 0
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    /// Whether the process that takes it is alive. Another process with the same number only delays the sweep.
    fn is_being_taken(self) -> bool {
        !self.is_free()
            && !self.is_open()
            && crate::owner::is_process_there((self.0 & Self::PROCESS) as u32)
    }

    fn taken(self) -> Self {
        let times = (self.0 >> 32).wrapping_add(1) & 0xffff_ffff;
        Self(times << 32 | u64::from(std::process::id()) & Self::PROCESS)
    }

    fn opened(self) -> Self {
        Self(self.0 | Self::OPEN)
    }

    fn freed(self) -> Self {
        Self(self.0 & !(Self::OPEN | Self::PROCESS))
    }
}

/// A descriptor of a file of a region, in the form a process may remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Number of the open file description. From 2^31 on the region has no such description, and the low bits are the
    /// descriptor.
    pub description: u32,
    /// The file.
    pub node: Node,
    /// Access mode and `O_DIRECTORY`, `O_PATH`; the flags that can change are in the region.
    pub flags: libc::c_int,
}

impl Opened {
    /// Whether it was opened for reading. Access mode 3 allows neither reading nor writing.
    #[inline]
    #[must_use]
    pub fn may_read(self) -> bool {
        self.flags & (libc::O_WRONLY | libc::O_PATH) == 0
    }

    /// Whether it was opened for writing.
    #[inline]
    #[must_use]
    pub fn may_write(self) -> bool {
        let access = self.flags & libc::O_ACCMODE;
        (access == libc::O_WRONLY || access == libc::O_RDWR) && self.flags & libc::O_PATH == 0
    }
}

/// What a sweep found and freed of dead processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Lanes whose owner was dead; the owner's unfinished call is completed or undone.
    pub lanes: u64,
    /// Open file descriptions that no process has open any more.
    pub descriptions: u64,
    /// Deleted files whose memory was freed.
    pub files: u64,
    /// Stubs of files that no longer exist, or that no process needs.
    pub stubs: u64,
}

/// The number of stubs that a sweep keeps although no process has their files open: the next open is then faster.
const IDLE_STUBS_MAX: usize = if cfg!(test) { 2 } else { 1024 };

/// Refuses a range that ends behind the last possible position, 2^63 - 1.
#[inline]
fn require_positions(offset: u64, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Error::Invalid {
            what: "no position is behind 2^63 - 1",
        }),
    }
}

/// Writes `bytes` bytes of data at the end of a file. Returns where they end.
fn append(writer: &Writer<'_>, file: Node, data: &[IoSlice<'_>], bytes: usize) -> Result<u64> {
    let offset = writer.or_after_reclaiming(|| {
        writer.write_vectored(file.inode, file.generation, At::End, data, now_ns())
    })?;
    Ok(offset + bytes as u64)
}

impl Region {
    fn stubs(&self) -> Result<&Stubs> {
        self.stubs.as_ref().ok_or_else(|| Error::System {
            path: self.path.clone(),
            what: "its folder of stubs is missing; attach it for writing once",
            source: std::io::Error::from_raw_os_error(libc::ENOENT),
        })
    }

    pub(crate) fn description_word(&self, description: u32, word: u64) -> u64 {
        self.memory
            .load(self.layout.description(description.into()) + word)
    }
}

impl Attachment {
    /// Opens a file or directory: a descriptor of its stub, with its own open file description. Of `flags`, only the
    /// access mode, `O_APPEND`, `O_CLOEXEC`, `O_PATH` and the flags that `fcntl` returns count. The caller creates and
    /// truncates.
    ///
    /// # Errors
    /// [`Error::DescriptionsFull`]; [`Error::NotFound`] when the file has just lost its last name; [`Error::System`],
    /// for example when the process has no descriptor left.
    pub fn open_description(
        &self,
        attributes: &Attributes,
        flags: libc::c_int,
    ) -> Result<(RawFd, Opened)> {
        let region = self.region();
        if !region.is_writable() {
            return self.open_for_reading(attributes, flags);
        }
        let description = match self.take_description() {
            Err(Error::DescriptionsFull) => {
                self.sweep_descriptions()?;
                self.take_description()?
            }
            other => other?,
        };
        let opened = self.open_taken(attributes, flags, description);
        if opened.is_err() {
            self.free_description(description, self.claim(description));
        }
        opened
    }

    fn claim(&self, description: u32) -> Claim {
        Claim(self.region().description_word(description, entry::CLAIM))
    }

    /// Frees a description if its claim is still `seen`. Returns whether it was freed.
    fn free_description(&self, description: u32, seen: Claim) -> bool {
        let region = self.region();
        let at = region.layout.description(description.into()) + entry::CLAIM;
        region.memory.replace(at, seen.0, seen.freed().0).is_ok()
    }

    fn open_taken(
        &self,
        attributes: &Attributes,
        flags: libc::c_int,
        description: u32,
    ) -> Result<(RawFd, Opened)> {
        let region = self.region();
        let stubs = region.stubs()?;
        let node = attributes.node();
        let is_directory = attributes.is_directory();
        let inode_at = region.inode_at(node.inode)?;
        if region.memory.load(inode_at + attribute::HAS_STUB) == 0 {
            region.memory.store(inode_at + attribute::HAS_STUB, 1);
        }
        let at = region.layout.description(description.into());
        for (word, value) in [
            (entry::INODE, node.inode),
            (entry::GENERATION, node.generation),
            (entry::FLAGS, flags as u32 as u64),
            (entry::OFFSET, 0),
        ] {
            region.memory.store(at + word, value);
        }
        let (stub, number) =
            self.open_locked(stubs, node, is_directory, flags, description.into())?;
        // A process that deleted the file before this lock did not see the lock, and may be freeing the file's memory
        // now.
        let is_there = region.attributes(node.inode).is_ok_and(|now| {
            now.generation == node.generation && (now.links > 0 || attributes.links == 0)
        });
        if !is_there {
            drop(stub);
            if region
                .attributes(node.inode)
                .map_or(true, |now| now.generation != node.generation)
            {
                self.remove_stub_of_removed(stubs, node, is_directory);
            }
            return Err(Error::NotFound);
        }
        region.memory.store(at + entry::STUB, number);
        let claim = self.claim(description).opened();
        region.memory.store(at + entry::CLAIM, claim.0);
        let kind = if is_directory { libc::O_DIRECTORY } else { 0 };
        let opened = Opened {
            description,
            node,
            flags: flags & (libc::O_ACCMODE | libc::O_PATH) | kind,
        };
        Ok((stub.into_raw_fd(), opened))
    }

    /// Removes the stub of a file or directory that no longer exists. Returns whether it is gone.
    fn remove_stub_of_removed(&self, stubs: &Stubs, node: Node, is_directory: bool) -> bool {
        if is_directory {
            return stubs.remove_closed_directory(node, self.region().layout.description_count);
        }
        // A file's inode is only freed when no process has it open.
        stubs.remove(&StubName::new(node, false), false);
        true
    }

    /// Opens a stub, sets its position to the description's number, and locks its byte. Also returns the kernel's
    /// number of the stub.
    fn open_locked(
        &self,
        stubs: &Stubs,
        node: Node,
        is_directory: bool,
        flags: libc::c_int,
        description: u64,
    ) -> Result<(OwnedFd, u64)> {
        // A sweep may remove an unused stub between the open and the lock.
        for _ in 0..100 {
            let stub = match stubs.open_stub(node, is_directory, flags & libc::O_CLOEXEC != 0) {
                // The stub was made and removed before it was opened.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                other => other.map_err(system_error(stubs.path(), "a stub cannot be opened"))?,
            };
            // SAFETY: a descriptor that was opened just now.
            let sought =
                unsafe { libc::lseek64(stub.as_raw_fd(), description as i64, libc::SEEK_SET) };
            if sought < 0 {
                let error = std::io::Error::last_os_error();
                return Err(system_error(stubs.path(), "a stub has no positions")(error));
            }
            match lock_description(stub.as_raw_fd(), description) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    // A sweep is removing it.
                    std::thread::yield_now();
                    continue;
                }
                other => other.map_err(system_error(stubs.path(), "a stub cannot be locked"))?,
            }
            let seen = look_at(stub.as_raw_fd())
                .map_err(system_error(stubs.path(), "a stub cannot be looked at"))?;
            if seen.links > 0 {
                return Ok((stub, seen.number));
            }
        }
        Err(Error::NotFound)
    }

    fn take_description(&self) -> Result<u32> {
        let region = self.region();
        let count = region.layout.description_count as u32;
        let start = self.next_description.load(Ordering::Relaxed);
        for step in 0..count {
            let description = start.wrapping_add(step) % count;
            // A file position that was never changed is 0.
            let claim = self.claim(description);
            if description == 0 || !claim.is_free() {
                continue;
            }
            let at = region.layout.description(description.into()) + entry::CLAIM;
            if region.memory.replace(at, claim.0, claim.taken().0).is_ok() {
                self.next_description
                    .store(description.wrapping_add(1), Ordering::Relaxed);
                return Ok(description);
            }
        }
        Err(Error::DescriptionsFull)
    }

    /// The file that a descriptor of this process belongs to, if it is a file of the region. Used after exec, and for a
    /// descriptor that came from another process.
    ///
    /// # Errors
    /// None that a program must be told: a descriptor that the kernel returns an error for counts as not ours.
    #[must_use]
    pub fn description_of(&self, descriptor: RawFd) -> Option<Opened> {
        let region = self.region();
        let seen = look_at(descriptor).ok()?;
        if let Some(opened) = self.opened_for_reading(descriptor, &seen) {
            return Some(opened);
        }
        let stubs = region.stubs.as_ref()?;
        if seen.device != stubs.device {
            return None;
        }
        // SAFETY: plain numbers; the kernel judges the descriptor.
        let position = unsafe { libc::lseek64(descriptor, 0, libc::SEEK_CUR) };
        let description = u32::try_from(position).ok()?;
        if description == 0 || u64::from(description) >= region.layout.description_count {
            return None;
        }
        let word = |word| region.description_word(description, word);
        if !self.claim(description).is_open() || word(entry::STUB) != seen.number {
            return None;
        }
        let node = Node {
            inode: word(entry::INODE),
            generation: word(entry::GENERATION),
        };
        let flags = word(entry::FLAGS) as u32 as libc::c_int;
        let found = region.attributes(node.inode).ok()?;
        if found.generation != node.generation {
            return None;
        }
        let kind = if found.is_directory() {
            libc::O_DIRECTORY
        } else {
            0
        };
        Some(Opened {
            description,
            node,
            flags: flags & (libc::O_ACCMODE | libc::O_PATH) | kind,
        })
    }

    /// Call this before the kernel closes the last descriptor of a description, if the process knows that no other
    /// descriptor, child or process has it. Without this call, a sweep frees the description.
    pub fn closing(&self, opened: &Opened) {
        if !self.stands_in_region(opened) {
            return;
        }
        let claim = self.claim(opened.description);
        if claim.is_open() {
            self.free_description(opened.description, claim);
        }
    }

    /// Must be called after the kernel has closed a descriptor. Frees a deleted file that no process has open any more.
    ///
    /// # Errors
    /// Those of locks; the descriptor is closed in any case.
    pub fn closed(&self, opened: &Opened) -> Result<()> {
        let region = self.region();
        if !region.is_writable() {
            return Ok(());
        }
        let inode_at = region.inode_at(opened.node.inode)?;
        let is_same =
            region.memory.load(inode_at + attribute::GENERATION) == opened.node.generation;
        if opened.flags & libc::O_DIRECTORY != 0 {
            if let Some(stubs) = region.stubs.as_ref().filter(|_| !is_same) {
                self.remove_stub_of_removed(stubs, opened.node, true);
            }
            return Ok(());
        }
        let is_deleted = is_same && region.memory.load(inode_at + attribute::MODE_LINKS) >> 32 == 0;
        if is_deleted {
            self.writer()?.reclaim(opened.node)?;
        }
        Ok(())
    }

    pub(crate) fn offset_at(&self, opened: &Opened) -> u64 {
        self.region()
            .layout
            .description(u64::from(opened.description))
            + entry::OFFSET
    }

    /// Flags as `fcntl` returns them.
    #[must_use]
    pub fn flags(&self, opened: &Opened) -> libc::c_int {
        if let Some(descriptor) = opened.descriptor() {
            return self.kernel_flags(descriptor) | opened.flags & libc::O_PATH;
        }
        let changing = self
            .region()
            .description_word(opened.description, entry::FLAGS);
        changing as u32 as libc::c_int
            & !(libc::O_CLOEXEC | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL)
    }

    /// Sets the flags that can change: `O_APPEND`, `O_NONBLOCK`, `O_NOATIME`, `O_DIRECT`, `O_ASYNC`.
    pub fn set_flags(&self, opened: &Opened, flags: libc::c_int) {
        const CHANGE: libc::c_int =
            libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT | libc::O_ASYNC;
        if let Some(descriptor) = opened.descriptor() {
            return self.set_kernel_flags(descriptor, flags & CHANGE);
        }
        let region = self.region();
        if !region.is_writable() {
            // Another process's description cannot be changed from here; none of these flags matters to a reader.
            return;
        }
        let at = region.layout.description(opened.description.into()) + entry::FLAGS;
        let old = region.memory.load(at) as u32 as libc::c_int;
        let new = old & !CHANGE | flags & CHANGE;
        region.memory.store(at, u64::from(new as u32));
    }

    fn appends(&self, opened: &Opened) -> bool {
        let flags = self
            .region()
            .description_word(opened.description, entry::FLAGS);
        flags & libc::O_APPEND as u64 != 0
    }

    /// Reads at the description's offset, and advances it.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::IsADirectory`].
    #[inline]
    pub fn read(&self, opened: &Opened, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(opened, &mut [IoSliceMut::new(into)])
    }

    /// As [`read`](Self::read), into several buffers.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_vectored(&self, opened: &Opened, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        if !self.stands_in_region(opened) {
            return self.read_elsewhere(opened, into);
        }
        let offset_at = self.offset_at(opened);
        let memory = &self.region().memory;
        loop {
            let offset = memory.load(offset_at);
            let count = self.read_vectored_at(opened, offset, into)?;
            // If another reader of the same description was faster, it has read these bytes; this call then reads the
            // next ones.
            if count == 0
                || memory
                    .replace(offset_at, offset, offset + count as u64)
                    .is_ok()
            {
                return Ok(count);
            }
        }
    }

    /// As [`read_at`](Self::read_at) for the simple case, with its state in registers only. Returns `None` if the case
    /// is not simple; nothing has happened then.
    #[inline(always)]
    #[must_use]
    pub fn read_undisturbed(&self, opened: &Opened, offset: u64, into: &mut [u8]) -> Option<usize> {
        if !opened.may_read() || opened.flags & libc::O_DIRECTORY != 0 {
            return None;
        }
        let Node { inode, generation } = opened.node;
        self.kept_writer()?
            .read_undisturbed((inode, generation), offset, into)
    }

    /// Reads from `offset` on.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_at(&self, opened: &Opened, offset: u64, into: &mut [u8]) -> Result<usize> {
        if let Some(count) = self.read_undisturbed(opened, offset, into) {
            return Ok(count);
        }
        if !opened.may_read() {
            return Err(Error::NotOpenFor);
        }
        require_positions(offset, into.len())?;
        if opened.flags & libc::O_DIRECTORY != 0 {
            return Err(Error::IsADirectory);
        }
        let Node { inode, generation } = opened.node;
        if self.region().is_writable() {
            let into = &mut *into;
            let read = self.with_own_writer(|writer| writer.read(inode, generation, offset, into));
            if let Some(read) = read {
                return read;
            }
        }
        self.region().read(inode, generation, offset, into)
    }

    /// As [`read_at`](Self::read_at), into several buffers.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_vectored_at(
        &self,
        opened: &Opened,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        if let [one] = into {
            return self.read_at(opened, offset, one);
        }
        if !opened.may_read() {
            return Err(Error::NotOpenFor);
        }
        require_positions(offset, into.iter().map(|part| part.len()).sum())?;
        if opened.flags & libc::O_DIRECTORY != 0 {
            return Err(Error::IsADirectory);
        }
        let Node { inode, generation } = opened.node;
        if self.region().is_writable() {
            let into = &mut *into;
            let read = self
                .with_own_writer(|writer| writer.read_vectored(inode, generation, offset, into));
            if let Some(read) = read {
                return read;
            }
        }
        self.region().read_vectored(inode, generation, offset, into)
    }

    /// Writes at the description's offset, or at the end with `O_APPEND`, and advances the offset.
    ///
    /// # Errors
    /// [`Error::NotOpenFor`], [`Error::Full`], [`Error::TooLarge`].
    #[inline]
    pub fn write(&self, opened: &Opened, data: &[u8]) -> Result<usize> {
        self.write_vectored(opened, &[IoSlice::new(data)])
    }

    /// As [`write`](Self::write), from several buffers.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_vectored(&self, opened: &Opened, data: &[IoSlice<'_>]) -> Result<usize> {
        if !opened.may_write() {
            return Err(Error::NotOpenFor);
        }
        self.with_writer(|writer| self.write_where_it_stands(writer, opened, data))
    }

    #[inline(always)]
    fn write_where_it_stands(
        &self,
        writer: &Writer<'_>,
        opened: &Opened,
        data: &[IoSlice<'_>],
    ) -> Result<usize> {
        let Node { inode, generation } = opened.node;
        let bytes: usize = data.iter().map(|part| part.len()).sum();
        if bytes == 0 {
            return Ok(0);
        }
        let memory = &self.region().memory;
        let offset_at = self.offset_at(opened);
        if self.appends(opened) {
            let end = append(writer, opened.node, data, bytes)?;
            memory.store(offset_at, end);
            return Ok(bytes);
        }
        // Another writer of the same description writes behind these bytes.
        let mut offset = memory.load(offset_at);
        loop {
            let end = offset.saturating_add(bytes as u64);
            match memory.replace(offset_at, offset, end) {
                Ok(()) => break,
                Err(now) => offset = now,
            }
        }
        let written = writer.or_after_reclaiming(|| {
            writer.write_vectored(inode, generation, At::Offset(offset), data, now_ns())
        });
        if let Err(error) = written {
            let _ = memory.replace(offset_at, offset.saturating_add(bytes as u64), offset);
            require_positions(offset, bytes)?;
            return Err(error);
        }
        Ok(bytes)
    }

    /// Writes at the end, also if the description has no `O_APPEND`. `advances` says whether the description's offset
    /// is then behind these bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append_vectored(
        &self,
        opened: &Opened,
        data: &[IoSlice<'_>],
        advances: bool,
    ) -> Result<usize> {
        if !opened.may_write() {
            return Err(Error::NotOpenFor);
        }
        let bytes = data.iter().map(|part| part.len()).sum();
        if bytes == 0 {
            return Ok(0);
        }
        self.with_writer(|writer| {
            let end = append(writer, opened.node, data, bytes)?;
            if advances {
                self.region().memory.store(self.offset_at(opened), end);
            }
            Ok(bytes)
        })
    }

    /// Writes from `offset` on. With `O_APPEND` it writes at the end, as the kernel does.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_at(&self, opened: &Opened, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_vectored_at(opened, offset, &[IoSlice::new(data)])
    }

    /// As [`write_at`](Self::write_at), from several buffers.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_vectored_at(
        &self,
        opened: &Opened,
        offset: u64,
        data: &[IoSlice<'_>],
    ) -> Result<usize> {
        if !opened.may_write() {
            return Err(Error::NotOpenFor);
        }
        let at = if self.appends(opened) {
            At::End
        } else {
            At::Offset(offset)
        };
        let bytes = data.iter().map(|part| part.len()).sum();
        if bytes == 0 {
            return Ok(0);
        }
        let Node { inode, generation } = opened.node;
        self.with_writer(|writer| {
            let write = || writer.write_vectored(inode, generation, at, data, now_ns());
            // Look at the result by reference instead of moving it; see `with_writer`.
            if let Err(error) = write() {
                if let At::Offset(offset) = at {
                    require_positions(offset, bytes)?;
                }
                writer.after_reclaiming(error, write)?;
            }
            Ok(bytes)
        })
    }

    /// For mapping: returns the region's descriptor, and the offset in its file of byte `offset` of this file. All
    /// `length` bytes from there on have memory.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLarge`], [`Error::ReadOnly`].
    pub fn map(&self, opened: &Opened, offset: u64, length: u64) -> Result<(RawFd, u64)> {
        let end = offset.checked_add(length).ok_or(Error::TooLarge)?;
        let Node { inode, generation } = opened.node;
        let at = self.writer()?.map_range(inode, generation, offset, end)?;
        Ok((self.region().file.as_raw_fd(), at + offset))
    }

    /// Frees the descriptions that no process has open any more. Returns how many.
    fn sweep_descriptions(&self) -> Result<u64> {
        let region = self.region();
        let stubs = region.stubs()?;
        let mut freed = 0;
        for description in 1..region.layout.description_count as u32 {
            let claim = self.claim(description);
            if claim.is_free() || claim.is_being_taken() {
                continue;
            }
            let node = Node {
                inode: region.description_word(description, entry::INODE),
                generation: region.description_word(description, entry::GENERATION),
            };
            let may_look = !region.record_locked.has(node.generation);
            if claim.is_open()
                && (!may_look || self.is_description_alive(stubs, node, description)?)
            {
                continue;
            }
            freed += u64::from(self.free_description(description, claim));
        }
        Ok(freed)
    }

    fn is_description_alive(&self, stubs: &Stubs, node: Node, description: u32) -> Result<bool> {
        for is_directory in [false, true] {
            match stubs.open_existing(&StubName::new(node, is_directory), is_directory, true) {
                Ok(stub) => {
                    return is_description_locked(stub.as_raw_fd(), description.into(), 1).map_err(
                        system_error(stubs.path(), "a stub cannot be asked for locks"),
                    );
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => {
                    return Err(system_error(stubs.path(), "a stub cannot be opened")(error));
                }
            }
        }
        Ok(false)
    }

    /// Frees what dead processes have left: lanes, descriptions, deleted files, stubs. Cheap enough to run once a
    /// second.
    ///
    /// # Errors
    /// Those of locks and stubs.
    pub fn sweep(&self) -> Result<Swept> {
        let region = self.region();
        let stubs = region.stubs()?;
        let lanes = region.settle_dead_lanes()?;
        let descriptions = self.sweep_descriptions()?;
        let files = self.writer()?.reclaim_orphans()?;
        let mut swept = Swept {
            lanes,
            descriptions,
            files,
            stubs: 0,
        };
        let names = stubs.names().map_err(system_error(
            stubs.path(),
            "the folder of stubs cannot be listed",
        ))?;
        for (place, name) in names.enumerate() {
            let Some((node, is_directory)) = StubName::parse(&name) else {
                continue;
            };
            let is_living = region
                .attributes(node.inode)
                .is_ok_and(|now| now.generation == node.generation);
            // A directory may be a process's working directory, which no lock shows.
            if is_living && (is_directory || place < IDLE_STUBS_MAX) {
                continue;
            }
            let stub_name = StubName::new(node, is_directory);
            if !is_living {
                swept.stubs += u64::from(self.remove_stub_of_removed(stubs, node, is_directory));
                continue;
            }
            if region.record_locked.has(node.generation) {
                continue;
            }
            let Ok(stub) = stubs.open_existing(&stub_name, is_directory, true) else {
                continue;
            };
            // Hold the locks until the stub is gone, so that no process can open it in between.
            if lock_all_descriptions(stub.as_raw_fd(), region.layout.description_count).is_ok() {
                stubs.remove(&stub_name, is_directory);
                swept.stubs += 1;
            }
        }
        Ok(swept)
    }
}
