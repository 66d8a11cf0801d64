//! Reading the bytes of files, without a lock.

use std::io::IoSliceMut;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use crate::error::{Error, Result, system_error};
use crate::lane::{Lane, word};
use crate::layout::{LOG_BYTES_MAX, PAGE_BYTES, attribute};
use crate::memory::read_by_kernel;
use crate::owner::CHECK_INTERVAL;
use crate::region::Region;
use crate::room::NO_PLACE;
use crate::space::{Place, piece_bytes};
use crate::writer::Writer;

/// The number of looks at a file that is being written before the reader yields the processor.
const LOOKS_MAX: u32 = 200;

/// The number of bytes that a reader copies at once. A writer that frees memory waits for one such copy.
pub(crate) const READ_BYTES_MAX: usize = 256 << 10;

/// Longest read whose cache lines are prefetched, in bytes. For a longer one, the processor's own prefetcher is enough.
pub(crate) const EXPECTED_BYTES_MAX: u64 = 4 << 10;

/// The number of attempts to copy everything at once. Then the reader copies block by block what a writer disturbs.
const WHOLE_TRIES: u32 = 3;

impl Region {
    /// Copies bytes of a file from `offset` on. Returns how many there were. Up to 16 KiB are a snapshot of one moment;
    /// of a longer read, each aligned block of 16 KiB is. Each call enters the kernel; [`Writer::read`] does not.
    ///
    /// # Errors
    /// [`Error::Stale`] when the inode is free, or another file's since `generation`.
    pub fn read(&self, inode: u64, generation: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(inode, generation, offset, &mut [IoSliceMut::new(into)])
    }

    /// As [`read`](Self::read), into several buffers.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_vectored(
        &self,
        inode: u64,
        generation: u64,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        self.read_pieces(None, (inode, generation), offset, into)
    }

    #[inline]
    fn read_pieces(
        &self,
        lane: Option<Lane>,
        (inode, generation): (u64, u64),
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        let read = Read {
            region: self,
            lane,
            at: self.inode_at(inode)?,
            generation,
        };
        let wanted = into.iter().map(|piece| piece.len()).sum();
        let mut done = 0;
        loop {
            let part = READ_BYTES_MAX.min(wanted - done);
            let (count, is_end) = read.part(offset, into, done, part)?;
            done += count;
            if is_end || done == wanted {
                return Ok(done);
            }
        }
    }

    /// Returns what `look` sees of an inode at one moment. If the inode changes meanwhile, `look` is called again.
    pub(crate) fn consistent<T>(&self, at: u64, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut wait = Wait::default();
        loop {
            let before = self.memory.load(at + attribute::SEQUENCE);
            if before.is_multiple_of(2) {
                let seen = look();
                // What was seen must be complete before the number is read again.
                fence(Ordering::Acquire);
                if self.memory.load(at + attribute::SEQUENCE) == before {
                    return seen;
                }
            }
            wait.once(self, at)?;
        }
    }

    /// The place of `count` bytes of a file from `offset` on, if one page holds them all. `offset` must be less than
    /// the size of a slot.
    #[inline(always)]
    pub(crate) fn in_one_page(&self, place: u64, offset: u64, count: u64) -> Option<(Place, u64)> {
        if let Some(slot) = Place::slot_in(place, self) {
            let is_kept = place >> 2 & 1 == 1;
            (offset % PAGE_BYTES + count <= PAGE_BYTES).then_some((
                Place::Slot { slot, is_kept },
                self.layout.slot(slot) + offset,
            ))
        } else {
            match Place::decode(place, self)? {
                Place::Piece { at, class } if offset + count <= piece_bytes(class) => {
                    Some((Place::Piece { at, class }, at + offset))
                }
                _ => None,
            }
        }
    }

    /// Whether there is memory at `offset` of a file.
    #[inline(always)]
    pub(crate) fn is_there(&self, place: Place, offset: u64) -> bool {
        match place {
            Place::Nowhere => false,
            Place::Piece { .. } => true,
            Place::Slot { slot, .. } => self.is_present(slot, offset / PAGE_BYTES),
        }
    }

    #[inline]
    pub(crate) fn is_present(&self, slot: u64, page: u64) -> bool {
        let word = self.memory.load(self.layout.slot_map(slot) + page / 64 * 8);
        word >> (page % 64) & 1 == 1
    }
}

/// A reader's wait for a writer.
#[derive(Default)]
struct Wait {
    looks: u32,
    look_at: Option<Instant>,
    /// The odd number at the last look, and how often in a row it was seen while no live process was writing.
    stuck: (u64, u32),
}

impl Wait {
    /// Waits briefly. At intervals of [`CHECK_INTERVAL`] it checks the writer, and finishes the writer's change if it
    /// is dead.
    #[cold]
    fn once(&mut self, region: &Region, inode_at: u64) -> Result<()> {
        self.looks += 1;
        if self.looks < LOOKS_MAX {
            std::hint::spin_loop();
            return Ok(());
        }
        std::thread::yield_now();
        let now = Instant::now();
        if now < *self.look_at.get_or_insert(now + CHECK_INTERVAL) {
            return Ok(());
        }
        self.look_at = Some(now + CHECK_INTERVAL);
        #[cfg(test)]
        region.patience.looks.fetch_add(1, Ordering::Relaxed);
        let sequence = region.memory.load(inode_at + attribute::SEQUENCE);
        let lock_at = inode_at + attribute::LOCK;
        let looked = region.look_after(lock_at);
        if matches!(looked, Ok(true)) {
            self.stuck = (sequence, 0);
            crate::nap(CHECK_INTERVAL / 10);
            return Ok(());
        }
        if sequence.is_multiple_of(2) || self.stuck.0 != sequence {
            // The number changes, so a writer is at work, only never at the moment of the look.
            self.stuck = (sequence, 0);
            return Ok(());
        }
        self.stuck.1 += 1;
        let dead = match looked {
            Ok(_) => None,
            Err(_) => region
                .holder(lock_at)
                .map(|holder| region.lane_word(holder, word::OWNER)),
        };
        if self.stuck.1 < region.patience.looks_max(dead) {
            return Ok(());
        }
        region.patience.is_spent(dead);
        looked?;
        let what = "a file was left in the middle of a change";
        Err(Error::Damaged { at: inode_at, what })
    }
}

/// How bytes are copied out of the region.
#[derive(Clone, Copy)]
enum Way {
    /// From the mapping: a note or the lock of the file keeps the memory there.
    Mapping,
    /// By a system call, which returns zeros where there is no memory any more.
    Kernel,
}

/// A call that reads a file.
struct Read<'r> {
    region: &'r Region,
    lane: Option<Lane>,
    at: u64,
    generation: u64,
}

impl Read<'_> {
    /// Copies up to `part` bytes after the first `done` of the buffers. Returns how many, and whether the file ends
    /// there.
    #[inline]
    fn part(
        &self,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
        done: usize,
        part: usize,
    ) -> Result<(usize, bool)> {
        let Self { region, at, .. } = *self;
        let memory = &region.memory;
        let note = self.lane.and_then(|lane| region.any_free_note(lane));
        let way = if note.is_some() {
            Way::Mapping
        } else {
            Way::Kernel
        };
        let offset = offset.saturating_add(done as u64);
        let mut part = part;
        let mut tries = 0;
        let mut wait = Wait::default();
        loop {
            let before = memory.load(at + attribute::SEQUENCE);
            if before.is_multiple_of(2) {
                let is_same = memory.load(at + attribute::GENERATION) == self.generation;
                let size = memory.load(at + attribute::SIZE);
                let place = memory.load(at + attribute::PLACE);
                let left = size.saturating_sub(offset);
                let count = left.min(part as u64) as usize;
                let decoded = Place::decode(place, region);
                if let (Some(note), Some(place)) = (note, decoded) {
                    note.set(region, place);
                }
                let seen = if !is_same {
                    Err(Error::Stale)
                } else if count == 0 {
                    Ok(())
                } else if memory.load(at + attribute::SEQUENCE) == before {
                    region.copy_out(way, decoded, offset, (into, done, count))
                } else {
                    Ok(())
                };
                // What was copied must be complete before the number is read again.
                fence(Ordering::Acquire);
                let is_true = memory.load(at + attribute::SEQUENCE) == before;
                if let Some(note) = note {
                    note.clear();
                }
                if is_true {
                    return seen.map(|()| (count, left <= part as u64));
                }
                tries += 1;
                if tries == WHOLE_TRIES {
                    let block = LOG_BYTES_MAX - offset % LOG_BYTES_MAX;
                    part = part.min(block.max(LOG_BYTES_MAX.min(part as u64)) as usize);
                }
            } else if self.lane.is_some() && region.holder(at + attribute::LOCK) == self.lane {
                // A signal handler reads what the interrupted write is writing: waiting would never end.
                return self.part_as_it_is(offset, into, done, part);
            }
            wait.once(region, at)?;
        }
    }

    fn part_as_it_is(
        &self,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
        done: usize,
        part: usize,
    ) -> Result<(usize, bool)> {
        let Self { region, at, .. } = *self;
        let left = (region.memory.load(at + attribute::SIZE)).saturating_sub(offset);
        let count = left.min(part as u64) as usize;
        let place = Place::decode(region.memory.load(at + attribute::PLACE), region);
        region.copy_out(Way::Kernel, place, offset, (into, done, count))?;
        Ok((count, left <= part as u64))
    }
}

impl Region {
    /// Copies `count` bytes of a file after the first `done` of the buffers. If the bytes change meanwhile, the copy is
    /// useless, and the caller detects it.
    #[inline]
    fn copy_out(
        &self,
        way: Way,
        place: Option<Place>,
        offset: u64,
        (into, done, count): (&mut [IoSliceMut<'_>], usize, usize),
    ) -> Result<()> {
        let place = place.ok_or(Error::Damaged {
            at: self.layout.inodes_at,
            what: NO_PLACE,
        })?;
        let (mut from, mut skipped, mut left) = (offset, done, count);
        for piece in into {
            if skipped > 0 && skipped >= piece.len() {
                skipped -= piece.len();
                continue;
            }
            let part = (piece.len() - skipped).min(left);
            self.copy_out_piece(way, place, from, &mut piece[skipped..skipped + part])?;
            skipped = 0;
            from += part as u64;
            left -= part;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn copy_out_piece(&self, way: Way, place: Place, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(into.len() as u64);
        match place {
            Place::Nowhere => into.fill(0),
            Place::Piece { at, class } if end <= piece_bytes(class) => {
                self.copy_present(way, at + offset, into)?;
            }
            Place::Slot { slot, .. } if end <= self.layout.slot_bytes => {
                let mut done = 0;
                while done < into.len() {
                    let from = offset + done as u64;
                    let in_page = (PAGE_BYTES - from % PAGE_BYTES) as usize;
                    let part = in_page.min(into.len() - done);
                    let target = &mut into[done..done + part];
                    // A missing page reads as zeros; touching it would make the kernel allocate memory.
                    if self.is_present(slot, from / PAGE_BYTES) {
                        self.copy_present(way, self.layout.slot(slot) + from, target)?;
                    } else {
                        target.fill(0);
                    }
                    done += part;
                }
            }
            _ => {
                return Err(Error::Damaged {
                    at: self.layout.inodes_at,
                    what: NO_PLACE,
                });
            }
        }
        Ok(())
    }

    #[inline]
    fn copy_present(&self, way: Way, at: u64, into: &mut [u8]) -> Result<()> {
        match way {
            Way::Mapping => {
                self.memory.read(at, into);
                Ok(())
            }
            Way::Kernel => read_by_kernel(&self.file, at, into)
                .map_err(system_error(&self.path, "bytes cannot be read")),
        }
    }
}

impl Writer<'_> {
    /// As [`Region::read`], without a system call.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn read(&self, inode: u64, generation: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        if let Some(count) = self.read_undisturbed((inode, generation), offset, into) {
            return Ok(count);
        }
        let into = &mut [IoSliceMut::new(into)];
        self.region
            .read_pieces(Some(self.lane), (inode, generation), offset, into)
    }

    /// As [`read`](Self::read), into several buffers.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn read_vectored(
        &self,
        inode: u64,
        generation: u64,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        if let [piece] = into {
            return self.read(inode, generation, offset, piece);
        }
        self.region
            .read_pieces(Some(self.lane), (inode, generation), offset, into)
    }

    /// The common case of a read: no writer is active, and the bytes lie in one page. Returns `None` if this is not so.
    #[inline(always)]
    pub(crate) fn read_undisturbed(
        &self,
        (inode, generation): (u64, u64),
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let Region { memory, layout, .. } = self.region;
        if into.len() > READ_BYTES_MAX || !(1..layout.inode_count).contains(&inode) {
            return None;
        }
        let inode_at = layout.inode(inode);
        let note = self.region.free_note(self.lane, 0)?;
        let inode = memory.line(inode_at);
        let word = |word: u64| inode[word as usize / 8].load(Ordering::Acquire);
        let before = word(attribute::SEQUENCE);
        if before % 2 == 1 || memory.load(inode_at + attribute::GENERATION) != generation {
            return None;
        }
        let size = word(attribute::SIZE);
        if offset > size || size > layout.slot_bytes {
            return None;
        }
        let count = (size - offset).min(into.len() as u64);
        let place = word(attribute::PLACE);
        let (found, from) = self.region.in_one_page(place, offset, count)?;
        if count <= EXPECTED_BYTES_MAX {
            // Prefetch: memory answers while the rest is checked.
            memory.expect_read(from, count);
        }
        if !self.region.is_there(found, offset) {
            return None;
        }
        note.set(self.region, found);
        let mut is_true = word(attribute::SEQUENCE) == before;
        if is_true {
            memory.read(from, &mut into[..count as usize]);
            // What was copied must be complete before the number is read again.
            fence(Ordering::Acquire);
            is_true = word(attribute::SEQUENCE) == before;
        }
        note.clear();
        is_true.then_some(count as usize)
    }
}
