//! Lending: a caller reads a range of a file in place, without a copy, until it gives the range back.
//!
//! What is lent stays in place: the file keeps its slot. A lock on a byte of its stub shows a process that shortens or
//! deletes the file that its memory is still read. If the reader dies, the kernel releases the lock. The content is not
//! fixed: other processes may write the bytes at any time. A reader that needs bytes of one moment checks the file's
//! sequence number before and after.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use crate::attach::Attachment;
use crate::error::{Error, Result, system_error};
use crate::flush::Flush;
use crate::inode::Attributes;
use crate::layout::{PAGE_BYTES, attribute};
use crate::node::Node;
use crate::open::Opened;
use crate::region::Region;
use crate::space::Place;
use crate::stub::{StubName, is_claimed, is_lent, lock_claim, lock_lent};

/// A cache line of words. Programs that share a file as words keep related words in one line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line(pub [AtomicU64; 8]);

/// A range of a file that stays in place as long as this value lives.
pub struct Lent<'a> {
    attachment: &'a Attachment,
    opened: Opened,
    stub: Option<OwnedFd>,
    inode_at: u64,
    start: *const AtomicU8,
    length: usize,
}

// SAFETY: the pointer leads to shared memory that stays mapped as long as the attachment, which is borrowed; all access
// through it is atomic.
unsafe impl Send for Lent<'_> {}
// SAFETY: as above.
unsafe impl Sync for Lent<'_> {}

/// A moment at which no process was writing the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Moment {
    /// As a number, for other languages.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// From a number that [`number`](Self::number) has returned.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl Attachment {
    /// Lends bytes `offset` to `offset + length` of a file, or as many of them as it has. The file moves into a slot of
    /// its own, at least one page of 2 MiB, and keeps it. If the region cannot be changed, a process that could change
    /// it must have mapped or lent the file before.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::Full`], [`Error::ReadOnly`] where it must be changed and
    /// cannot be.
    pub fn lend(&self, file: &Attributes, offset: u64, length: u64) -> Result<Lent<'_>> {
        if file.is_directory() {
            return Err(Error::IsADirectory);
        }
        let region = self.region();
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let (descriptor, opened) = if region.is_writable() {
            self.open_description(file, flags)?
        } else {
            // Only the lock on a stub keeps the memory in place.
            let found = self.open_stub_for_reading(file, flags);
            found.ok_or(Error::ReadOnly)?
        };
        // SAFETY: opened just now, and no other code knows it.
        let stub = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mut lent = Lent {
            attachment: self,
            opened,
            stub: Some(stub),
            inode_at: region.inode_at(file.inode)?,
            start: std::ptr::dangling(),
            length: 0,
        };
        // Lock before the size is read: a process that shortens the file from now on keeps its memory.
        lock_lent(descriptor, opened.number().into())
            .map_err(system_error(&region.path, "a stub cannot be locked"))?;
        let now = region
            .attributes(file.inode)
            .ok()
            // The number may belong to another file since.
            .filter(|now| now.generation == file.generation)
            .ok_or(Error::NotFound)?;
        let end = offset.saturating_add(length).min(now.size);
        if offset >= end {
            return Ok(lent);
        }
        let at = if region.is_writable() {
            let writer = self.writer()?;
            writer.map_range(file.inode, file.generation, offset, end)?
        } else {
            region.kept_slot(lent.inode_at, offset, end)?
        };
        lent.length = (end - offset) as usize;
        lent.start = region.memory.address(at + offset, end - offset).cast();
        Ok(lent)
    }
}

impl Attachment {
    /// Makes durable what programs have stored through mappings of the file, as `fsync` and `msync` do. What a call
    /// wrote is durable when the call returns. Does nothing if the region does not write lines back.
    ///
    /// # Errors
    /// Those of locks.
    pub fn sync(&self, opened: &Opened) -> Result<()> {
        let region = self.region();
        if region.flush() == Flush::None || !region.is_writable() {
            return Ok(());
        }
        let Node { inode, generation } = opened.node;
        let writer = self.writer()?;
        // Under this lock none of its pages is freed.
        let at = writer.lock_inode(inode, generation)?;
        let place = region.place(at);
        if let Ok(Place::Slot {
            slot,
            is_kept: true,
        }) = place
        {
            for page in 0..region.layout.slot_bytes / PAGE_BYTES {
                if region.is_present(slot, page) {
                    let page_at = region.layout.slot(slot) + page * PAGE_BYTES;
                    region.memory.write_back(page_at, PAGE_BYTES);
                }
            }
            region.memory.persist([]);
        }
        writer.unlock_inode(at);
        place.map(drop)
    }
}

impl Region {
    /// The offset of byte 0 of a file that keeps its slot, if bytes `from` to `end` have memory.
    fn kept_slot(&self, inode_at: u64, from: u64, end: u64) -> Result<u64> {
        match self.place(inode_at)? {
            Place::Slot {
                slot,
                is_kept: true,
            } if (from / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
                .all(|page| self.is_present(slot, page)) =>
            {
                Ok(self.layout.slot(slot))
            }
            _ => Err(Error::ReadOnly),
        }
    }

    /// Whether a process reads the file in place, so that its memory must stay.
    pub(crate) fn is_lent(&self, inode: u64, inode_at: u64) -> bool {
        let Some(stubs) = &self.stubs else {
            return false;
        };
        if self.memory.load(inode_at + attribute::HAS_STUB) == 0 {
            return false;
        }
        let node = crate::node::Node {
            inode,
            generation: self.memory.load(inode_at + attribute::GENERATION),
        };
        // The check would cost this process its record locks. Memory that stays too long is freed by a later change.
        if self.record_locked.has(node.generation) {
            return true;
        }
        match stubs.open_existing(&StubName::new(node, false), false, true) {
            Ok(stub) => is_lent(stub.as_raw_fd(), self.layout.description_count).unwrap_or(true),
            Err(error) => error.raw_os_error() != Some(libc::ENOENT),
        }
    }
}

impl Lent<'_> {
    /// The bytes. Others may change them at any time.
    #[must_use]
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: inside the mapping, which outlives the attachment's borrow; the pages stay by the lock on the stub.
        // Atomic bytes may change while they are looked at.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// The same as lines of words, whole lines only. Empty if the range does not begin at a multiple of 64 bytes. A
    /// process that has attached the region for writing may store to them. Other processes see the store at once, but
    /// the file's sequence number does not change, as with any mapping. If the region is read-only, the kernel kills
    /// the process on a store.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        let start: *const Line = self.start.cast();
        let count = match start.is_aligned() {
            true => self.length / size_of::<Line>(),
            false => 0,
        };
        if count == 0 {
            return &[];
        }
        // SAFETY: as in `bytes`, and aligned by the check; any bytes are words.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Makes this lender responsible for the file's content, until it is dropped or its process dies. Returns `false`
    /// if another lender is responsible. The claim enforces nothing: readers ask [`is_claimed`](Self::is_claimed).
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::System`].
    pub fn claim(&self) -> Result<bool> {
        if !self.attachment.region().is_writable() {
            return Err(Error::ReadOnly);
        }
        match lock_claim(self.stub_descriptor()) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(error) => Err(self.cannot_be_locked(error)),
        }
    }

    /// Whether another live lender has claimed the file. It asks the kernel, with one call.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn is_claimed(&self) -> Result<bool> {
        is_claimed(self.stub_descriptor()).map_err(|error| self.cannot_be_locked(error))
    }

    fn stub_descriptor(&self) -> RawFd {
        self.descriptor().unwrap_or(-1)
    }

    fn cannot_be_locked(&self, source: std::io::Error) -> Error {
        let path = &self.attachment.region().path;
        system_error(path, "a stub cannot be locked")(source)
    }

    /// Waits until no process writes the file, and records that moment.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the file stays marked as being written, and no process writes it.
    pub fn moment(&self) -> Result<Moment> {
        let region = self.attachment.region();
        let at = self.inode_at + attribute::SEQUENCE;
        region.consistent(self.inode_at, || Ok(Moment(region.memory.load(at))))
    }

    /// Whether no process has written the file since `moment`: then everything read meanwhile is of that moment.
    /// Writers that have the file mapped are not detected.
    #[must_use]
    pub fn is_still(&self, moment: Moment) -> bool {
        fence(Ordering::Acquire);
        let region = self.attachment.region();
        region.memory.load(self.inode_at + attribute::SEQUENCE) == moment.0
    }

    /// The descriptor that keeps the range in place; it is closed when this value is dropped.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        self.stub.as_ref().map(AsRawFd::as_raw_fd)
    }
}

impl AsRef<[Line]> for Lent<'_> {
    fn as_ref(&self) -> &[Line] {
        self.lines()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let region = self.attachment.region();
        if region.record_locked.has(self.opened.node.generation) {
            // Closing it would cost this process its record locks, so it stays open until the process ends.
            std::mem::forget(self.stub.take());
            return;
        }
        // A child may have the descriptor too; a sweep frees the description after the last close.
        drop(self.stub.take());
        // If the deleted file cannot be freed now, the next sweep frees it.
        let _ = self.attachment.closed(&self.opened);
    }
}
