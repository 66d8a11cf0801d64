//! The cached result of a thread's last call: where the file lies and how long it is. A program reads and writes one
//! file many times before it uses another. While the file's sequence number is the same, the cached values are valid.
//!
//! It saves about two fifths of the instructions of a small call. They count twice: the processor only looks a limited
//! number of instructions ahead. If the next read is within that window, the processor requests its bytes before it has
//! the bytes of this one. With 200 instructions of any kind between them, bare copies of 1 KiB from memory take 2.7
//! times as long.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::null;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::attach::Attachment;
use crate::bytes::Known;
use crate::lane::Lane;
use crate::layout::{PAGE_BYTES, attribute};
use crate::node::Node;
use crate::notes::{WHERE, named};
use crate::open::{Opened, entry};
use crate::read::{EXPECTED_BYTES_MAX, READ_BYTES_MAX};
use crate::region::Region;
use crate::space::{Place, piece_bytes};
use crate::stream;
use crate::writer::Writer;

/// The number of words of the page map that are checked to find that a file has no holes: enough for 8 GiB.
const MAP_WORDS_MAX: u64 = 64;

/// The increment of a file's sequence number by one write: to an odd number, and to the next even one.
const ONE_CHANGE: u64 = 2;

/// The file of a thread's last call. It belongs to the thread, and no signal handler may use it in the middle of a
/// call. All zeros is a valid value that knows no file. The pointers lead into the mapping of the attachment that it
/// names.
#[derive(Debug)]
#[repr(C)]
pub struct LastFile {
    /// The caller's key of the file.
    key: Cell<(u64, u64)>,
    /// The attachment's number; 0 if no file is known.
    attachment: Cell<u32>,
    may_read: Cell<bool>,
    may_write: Cell<bool>,
    generation: Cell<u64>,
    /// Sequence number of the file for which all following fields are valid.
    sequence: Cell<u64>,
    size: Cell<u64>,
    /// Words of the inode.
    at_sequence: Cell<*const AtomicU64>,
    at_generation: Cell<*const AtomicU64>,
    /// The word in which this thread notes what it reads.
    note: Cell<*const AtomicU64>,
    /// The value of the note.
    named: Cell<u64>,
    /// Byte 0 of the file; all others follow it contiguously.
    bytes: Cell<*const u8>,
    /// Offset of the same byte in the region; then the inode's number and its offset.
    base: Cell<u64>,
    inode: Cell<u64>,
    inode_at: Cell<u64>,
    /// This thread's lane.
    lane: Cell<u64>,
    /// Flags of the description, which other threads may change.
    at_flags: Cell<*const AtomicU64>,
    /// The file of the last long call, its sequence number after the call, and its size.
    seen: Cell<(u64, u64, u64)>,
}

impl Default for LastFile {
    fn default() -> Self {
        Self {
            key: Cell::new((0, 0)),
            attachment: Cell::new(0),
            may_read: Cell::new(false),
            may_write: Cell::new(false),
            generation: Cell::new(0),
            sequence: Cell::new(0),
            size: Cell::new(0),
            at_sequence: Cell::new(null()),
            at_generation: Cell::new(null()),
            note: Cell::new(null()),
            named: Cell::new(0),
            bytes: Cell::new(null()),
            base: Cell::new(0),
            inode: Cell::new(0),
            inode_at: Cell::new(0),
            lane: Cell::new(0),
            at_flags: Cell::new(null()),
            seen: Cell::new((0, 0, 0)),
        }
    }
}

impl LastFile {
    /// The key that it was remembered for.
    #[inline(always)]
    #[must_use]
    pub fn key(&self) -> (u64, u64) {
        self.key.get()
    }

    /// Reads again from the file, if it has not changed since. Returns `None` otherwise; nothing has happened then.
    #[inline(always)]
    #[must_use]
    pub fn read(&self, attachment: &Attachment, offset: u64, into: &mut [u8]) -> Option<usize> {
        let size = self.size.get();
        if self.attachment.get() != attachment.number()
            || !self.may_read.get()
            || offset > size
            || into.len() > READ_BYTES_MAX
        {
            return None;
        }
        let count = (size - offset).min(into.len() as u64) as usize;
        let from = self.bytes.get().wrapping_add(offset as usize);
        if count <= EXPECTED_BYTES_MAX as usize {
            // Prefetch: memory answers while the rest is checked.
            stream::expect_read(from, count);
        }
        // SAFETY: the attachment with this number is this one, so its mapping exists. The pointers lead into it: to
        // words of the inode and of this thread's lane.
        let (at_sequence, at_generation, note) = unsafe {
            (
                &*self.at_sequence.get(),
                &*self.at_generation.get(),
                &*self.note.get(),
            )
        };
        let sequence = self.sequence.get();
        let before = note.load(Ordering::Relaxed);
        if at_sequence.load(Ordering::Acquire) != sequence
            || at_generation.load(Ordering::Acquire) != self.generation.get()
            || before & WHERE != 0
        {
            return None;
        }
        let next = before.wrapping_add(1 << 32);
        note.store(next | self.named.get(), Ordering::Relaxed);
        // See `Note::set`.
        compiler_fence(Ordering::SeqCst);
        let mut is_true = at_sequence.load(Ordering::Acquire) == sequence;
        if is_true {
            // SAFETY: as long as the sequence number is the same, the file has this length and lies there without
            // holes. No thread frees the memory while the note says that it is read. A writer changes the number first,
            // and the copy is then not used; the C library's copy is opaque to the compiler.
            unsafe { libc::memcpy(into.as_mut_ptr().cast(), from.cast(), count) };
            // What was copied must be complete before the number is read again.
            fence(Ordering::Acquire);
            is_true = at_sequence.load(Ordering::Acquire) == sequence;
        }
        note.store(next, Ordering::Release);
        is_true.then_some(count)
    }

    /// Overwrites bytes of the file again, if no other writer has changed it since. Returns how many. Returns `None`
    /// otherwise; nothing has happened then.
    #[inline(always)]
    #[must_use]
    pub fn write(&self, attachment: &Attachment, offset: u64, data: &[u8]) -> Option<usize> {
        if self.attachment.get() != attachment.number() || !self.may_write.get() {
            return None;
        }
        // SAFETY: as in `read`.
        let flags = unsafe { &*self.at_flags.get() }.load(Ordering::Relaxed);
        if flags & libc::O_APPEND as u64 != 0 {
            return None;
        }
        let known = Known {
            inode: self.inode.get(),
            generation: self.generation.get(),
            sequence: self.sequence.get(),
            size: self.size.get(),
            at: self.inode_at.get(),
            base: self.base.get(),
        };
        // Never dropped: the thread keeps its lane.
        let writer = ManuallyDrop::new(Writer {
            region: attachment.region(),
            lane: Lane(self.lane.get()),
        });
        if !writer.overwrite_known(&known, offset, data) {
            return None;
        }
        self.sequence.set(known.sequence.wrapping_add(ONE_CHANGE));
        Some(data.len())
    }

    /// Collects what the short paths need to know of a file, after a long call. It does so only if this is the second
    /// call in a row and no other writer has changed the file. Otherwise programs that switch between files, or that
    /// share written files, would pay this cost for each call. `is_write` says that the call was a write.
    #[inline(never)]
    pub fn remember(
        &self,
        attachment: &Attachment,
        opened: &Opened,
        key: (u64, u64),
        is_write: bool,
    ) {
        let memory = &attachment.region().memory;
        let Node { inode, .. } = opened.node;
        let Ok(at) = attachment.region().inode_at(inode) else {
            return;
        };
        let sequence = memory.load(at + attribute::SEQUENCE);
        let size = memory.load(at + attribute::SIZE);
        let before = if is_write {
            sequence.wrapping_sub(ONE_CHANGE)
        } else {
            sequence
        };
        if self.seen.replace((inode, sequence, size)) != (inode, before, size) {
            return;
        }
        self.forget();
        if self.fill(attachment, opened).is_some() {
            self.key.set(key);
            self.attachment.set(attachment.number());
        }
    }

    fn fill(&self, attachment: &Attachment, opened: &Opened) -> Option<()> {
        let region = attachment.region();
        let lane = attachment.kept_writer()?.lane;
        let Region { memory, layout, .. } = region;
        let Node { inode, generation } = opened.node;
        if opened.flags & libc::O_DIRECTORY != 0 {
            return None;
        }
        let at = region.inode_at(inode).ok()?;
        let sequence = memory.load(at + attribute::SEQUENCE);
        let is_same = memory.load(at + attribute::GENERATION) == generation;
        let size = memory.load(at + attribute::SIZE);
        let place = Place::decode(memory.load(at + attribute::PLACE), region)?;
        let (base, room) = match place {
            Place::Nowhere => return None,
            Place::Piece { at, class } => (at, piece_bytes(class)),
            Place::Slot { slot, .. } => (layout.slot(slot), layout.slot_bytes),
        };
        if size > room {
            return None;
        }
        if let Place::Slot { slot, .. } = place {
            let pages = size.div_ceil(PAGE_BYTES);
            if pages > MAP_WORDS_MAX * 64 || !region.are_present(slot, 0..pages) {
                return None;
            }
        }
        // What was seen must be complete before the number is read again.
        fence(Ordering::Acquire);
        let is_true = is_same
            && sequence.is_multiple_of(2)
            && memory.load(at + attribute::SEQUENCE) == sequence;
        if !is_true {
            return None;
        }
        self.may_read.set(opened.may_read());
        self.may_write
            .set(opened.may_write() && region.is_writable());
        self.generation.set(generation);
        self.sequence.set(sequence);
        self.size.set(size);
        self.at_sequence
            .set(memory.address_of(at + attribute::SEQUENCE));
        self.at_generation
            .set(memory.address_of(at + attribute::GENERATION));
        self.note.set(region.first_note(lane));
        self.named.set(named(region, place));
        self.bytes.set(memory.address(base, size));
        self.base.set(base);
        self.inode.set(inode);
        self.inode_at.set(at);
        self.lane.set(lane.0);
        self.at_flags
            .set(memory.address_of(layout.description(opened.description.into()) + entry::FLAGS));
        Some(())
    }

    /// Invalidates what is known of the file: the thread's lane will belong to another thread.
    pub fn forget(&self) {
        self.attachment.set(0);
    }
}
