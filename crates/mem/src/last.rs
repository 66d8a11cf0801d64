//! What a thread found out at its last read: where the file lies and how long it is. A program reads one file many
//! times before it reads another, and as long as the file's sequence number is the same, so is all this.
//!
//! It saves half of the instructions of a small read. They count twice: the processor looks only so many ahead, and
//! what it finds there is the next read, whose bytes it then asks for before it has those of this one. With 200
//! instructions of any kind between them, bare copies of 1 KiB from memory take 2.7 times as long.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::attach::Attachment;
use crate::inode::{Node, attribute};
use crate::layout::PAGE_BYTES;
use crate::notes::{WHERE, named};
use crate::read::{EXPECTED_BYTES_MAX, READ_BYTES_MAX};
use crate::region::Region;
use crate::space::{Place, piece_bytes};
use crate::stream;

/// Words of the map of pages that are gone through to find that a file has no holes: it has up to 8 GiB.
const MAP_WORDS_MAX: u64 = 64;

/// The last read of a thread. It is the thread's own, and no signal handler may use it in the middle of a call; zeros
/// are a valid one that knows nothing. The pointers lead into the mapping of the attachment that it names.
#[derive(Debug)]
#[repr(C)]
pub struct LastRead {
    /// What the caller knows the file by.
    key: Cell<(u64, u64)>,
    /// The attachment's number; 0: nothing is known.
    attachment: Cell<u32>,
    generation: Cell<u64>,
    /// Of the file, when all that follows was true.
    sequence: Cell<u64>,
    size: Cell<u64>,
    /// Words of the inode.
    at_sequence: Cell<*const AtomicU64>,
    at_generation: Cell<*const AtomicU64>,
    /// Where this thread notes what it reads.
    note: Cell<*const AtomicU64>,
    /// What it notes.
    named: Cell<u64>,
    /// Byte 0 of the file; all others lie behind it.
    bytes: Cell<*const u8>,
    /// The file that was read last, and its sequence number then.
    seen: Cell<(u64, u64)>,
}

impl Default for LastRead {
    fn default() -> Self {
        Self {
            key: Cell::new((0, 0)),
            attachment: Cell::new(0),
            generation: Cell::new(0),
            sequence: Cell::new(0),
            size: Cell::new(0),
            at_sequence: Cell::new(null()),
            at_generation: Cell::new(null()),
            note: Cell::new(null()),
            named: Cell::new(0),
            bytes: Cell::new(null()),
            seen: Cell::new((0, 0)),
        }
    }
}

impl LastRead {
    /// What it was remembered for.
    #[inline(always)]
    #[must_use]
    pub fn key(&self) -> (u64, u64) {
        self.key.get()
    }

    /// Reads again from the file that was read last, if nothing of it has changed since. `None` when it is not so, and
    /// nothing happened.
    #[inline(always)]
    #[must_use]
    pub fn read(&self, attachment: &Attachment, offset: u64, into: &mut [u8]) -> Option<usize> {
        let size = self.size.get();
        if self.attachment.get() != attachment.number()
            || offset > size
            || into.len() > READ_BYTES_MAX
        {
            return None;
        }
        let count = (size - offset).min(into.len() as u64) as usize;
        let from = self.bytes.get().wrapping_add(offset as usize);
        if count <= EXPECTED_BYTES_MAX as usize {
            // Memory answers while the rest is looked at.
            stream::expect_read(from, count);
        }
        // SAFETY: the attachment with this number is this one, so its mapping is there, which the pointers were made
        // from: to words of the inode and of this thread's lane.
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
            // SAFETY: as long as the sequence number is the same the file is that long and lies there without holes, in
            // memory that nobody gives back while the note says that it is read. Whoever writes to it meanwhile changes
            // the number first, and what was copied is not used; the C library's copy is opaque to the compiler.
            unsafe { libc::memcpy(into.as_mut_ptr().cast(), from.cast(), count) };
            // What was copied must be complete before the number is looked at again.
            fence(Ordering::Acquire);
            is_true = at_sequence.load(Ordering::Acquire) == sequence;
        }
        note.store(next, Ordering::Release);
        is_true.then_some(count)
    }

    /// Finds out what [`read`](Self::read) needs to know of a file, once it is read a second time and has not changed:
    /// who reads now here, now there, or what is being written, would pay for it each time.
    #[inline(never)]
    pub fn remember(&self, attachment: &Attachment, node: Node, key: (u64, u64)) {
        let region = attachment.region();
        let Ok(at) = region.inode_at(node.inode) else {
            return;
        };
        let seen = (node.inode, region.memory.load(at + attribute::SEQUENCE));
        if self.seen.replace(seen) != seen {
            return;
        }
        self.forget();
        if self.fill(attachment, node).is_some() {
            self.key.set(key);
            self.attachment.set(attachment.number());
        }
    }

    fn fill(&self, attachment: &Attachment, node: Node) -> Option<()> {
        let region = attachment.region();
        let lane = attachment.kept_writer()?.lane;
        let Region { memory, layout, .. } = region;
        let at = region.inode_at(node.inode).ok()?;
        let sequence = memory.load(at + attribute::SEQUENCE);
        let generation = memory.load(at + attribute::GENERATION);
        let size = memory.load(at + attribute::SIZE);
        let place = Place::decode(memory.load(at + attribute::PLACE), region)?;
        let (base, room) = match place {
            Place::Nowhere => return None,
            Place::Piece { at, class } => (at, piece_bytes(class)),
            Place::Slot { slot, .. } => (layout.slot(slot), layout.slot_bytes),
        };
        let is_whole = match place {
            Place::Slot { slot, .. } if size <= room => {
                let pages = size.div_ceil(PAGE_BYTES);
                pages <= MAP_WORDS_MAX * 64 && (0..pages).all(|page| region.is_present(slot, page))
            }
            _ => true,
        };
        // What was seen must be complete before the number is looked at again.
        fence(Ordering::Acquire);
        let is_true = generation == node.generation
            && sequence.is_multiple_of(2)
            && memory.load(at + attribute::SEQUENCE) == sequence;
        if !is_true || !is_whole || size > room {
            return None;
        }
        self.generation.set(generation);
        self.sequence.set(sequence);
        self.size.set(size);
        let word =
            |word: u64| &raw const memory.line((at + word) / 64 * 64)[(word % 64 / 8) as usize];
        self.at_sequence.set(word(attribute::SEQUENCE));
        self.at_generation.set(word(attribute::GENERATION));
        self.note.set(region.first_note(lane));
        self.named.set(named(region, place));
        self.bytes.set(memory.address(base, size));
        Some(())
    }

    /// What is known of the last read says nothing any more: the thread's lane will be another's.
    pub fn forget(&self) {
        self.attachment.set(0);
    }
}
