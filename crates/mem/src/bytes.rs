//! Reading and writing the bytes of files.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::inode::attribute;
use crate::lane::{LOOK_AFTER, Lane, doing, word};
use crate::layout::{LOG_BYTES_MAX, PAGE_BYTES};
use crate::memory::read_by_kernel;
use crate::region::Region;
use crate::room::NO_PLACE;
use crate::space::{Place, piece_bytes};
use crate::writer::Writer;

/// Looks at a file that is being written before a reader lets others run.
const LOOKS_MAX: u32 = 200;

/// How long a reader waits for a writer that nobody is, or that has died and whom he may not help.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that a reader copies at once: whoever wants to give memory back waits for as much.
const READ_BYTES_MAX: usize = 256 << 10;

/// Times that a reader tries to copy all at once, before he takes block by block what a writer disturbs.
const WHOLE_TRIES: u32 = 3;

/// Bytes of a large write for whose time readers wait.
const WRITE_BLOCK_BYTES: u64 = 64 << 10;

/// Bytes from which on a write goes past the cache.
const STREAM_BYTES_MIN: u64 = 64 << 10;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// There, also behind the end.
    Offset(u64),
    /// The end of the file as it is when the write is done.
    End,
}

impl Region {
    /// Copies bytes of a file from `offset` on; how many there were. Up to 16 KiB of them stood there at one moment, of
    /// more each aligned block of 16 KiB. Each call asks the kernel; [`Writer::read`] does not.
    ///
    /// # Errors
    /// [`Error::Stale`] when the inode is free, or another file's since `generation`.
    pub fn read(&self, inode: u64, generation: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(inode, generation, offset, &mut [IoSliceMut::new(into)])
    }

    /// As [`read`](Self::read), into several pieces.
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

    /// What `look` sees of an inode at one moment: it is called again when the inode has changed meanwhile.
    pub(crate) fn consistent<T>(&self, at: u64, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut wait = Wait::default();
        loop {
            let before = self.memory.load(at + attribute::SEQUENCE);
            if before.is_multiple_of(2) {
                let seen = look();
                // What was seen must be complete before the number is looked at again.
                fence(Ordering::Acquire);
                if self.memory.load(at + attribute::SEQUENCE) == before {
                    return seen;
                }
            }
            wait.once(self, at)?;
        }
    }

    pub(crate) fn is_present(&self, slot: u64, page: u64) -> bool {
        let word = self.memory.load(self.layout.slot_map(slot) + page / 64 * 8);
        word >> (page % 64) & 1 == 1
    }

    /// Says to readers that a file is being changed. Its lock is held.
    #[inline]
    pub(crate) fn begin_change(&self, at: u64) -> u64 {
        // It is odd already when a dead writer left it so.
        let sequence = self.memory.load(at + attribute::SEQUENCE) | 1;
        self.memory.store(at + attribute::SEQUENCE, sequence);
        // Nothing of the change may be seen before that.
        fence(Ordering::Release);
        sequence
    }

    #[inline]
    pub(crate) fn end_change(&self, at: u64, sequence: u64) {
        self.memory.store(at + attribute::SEQUENCE, sequence + 1);
    }
}

/// A reader's wait for a writer.
#[derive(Default)]
struct Wait {
    looks: u32,
    look_at: Option<Instant>,
    give_up_at: Option<Instant>,
}

impl Wait {
    /// Waits a little; now and then finishes what the writer has begun, if that one is dead.
    #[cold]
    fn once(&mut self, region: &Region, inode_at: u64) -> Result<()> {
        self.looks += 1;
        if self.looks < LOOKS_MAX {
            std::hint::spin_loop();
            return Ok(());
        }
        std::thread::yield_now();
        let now = Instant::now();
        if now < *self.look_at.get_or_insert(now + LOOK_AFTER) {
            return Ok(());
        }
        self.look_at = Some(now + LOOK_AFTER);
        let looked = region.look_after(inode_at + attribute::LOCK);
        if matches!(looked, Ok(true)) {
            self.give_up_at = None;
            std::thread::sleep(LOOK_AFTER / 10);
            return Ok(());
        }
        if now < *self.give_up_at.get_or_insert(now + PATIENCE) {
            return Ok(());
        }
        looked?;
        let is_even = region
            .memory
            .load(inode_at + attribute::SEQUENCE)
            .is_multiple_of(2);
        let what = "a file is being changed by nobody";
        if is_even {
            Ok(())
        } else {
            Err(Error::Damaged { at: inode_at, what })
        }
    }
}

/// How bytes come out of the region.
#[derive(Clone, Copy)]
enum Way {
    /// From the mapping: a note keeps the memory there, or the lock of the file.
    Mapping,
    /// By a call to the kernel, which answers zeros where there is no memory any more.
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
    /// Copies up to `part` bytes behind the first `done` of the pieces; how many, and whether the file ends there.
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
        let note = self.lane.and_then(|lane| region.free_note(lane));
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
                    region.note(note, place);
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
                // What was copied must be complete before the number is looked at again.
                fence(Ordering::Acquire);
                let is_true = memory.load(at + attribute::SEQUENCE) == before;
                if let Some(note) = note {
                    region.forget(note);
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
                // A signal handler reads what the write that it interrupts is writing: waiting would be for ever.
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
    /// Copies `count` bytes that a file has behind the first `done` of the pieces; what is copied while they change is
    /// of no use, and found out by the caller.
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
                    // A page that is not there is zeros; touching it would make the kernel look for memory.
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
            Way::Kernel => read_by_kernel(&self.file, at, into).map_err(|source| Error::System {
                path: self.path.clone(),
                what: "bytes cannot be read",
                source,
            }),
        }
    }
}

/// What a write has still to write.
struct Source<'d> {
    pieces: &'d [IoSlice<'d>],
    used: usize,
}

impl Source<'_> {
    /// Gives the next `bytes` bytes to `take`, piece by piece, each with its distance from the first.
    #[inline]
    fn take(&mut self, bytes: u64, mut take: impl FnMut(u64, &[u8])) {
        let mut done = 0;
        while let Some((first, rest)) = self.pieces.split_first() {
            let part = (first.len() - self.used).min((bytes - done) as usize);
            if part > 0 {
                take(done, &first[self.used..self.used + part]);
            }
            done += part as u64;
            if self.used + part < first.len() {
                self.used += part;
                return;
            }
            self.used = 0;
            self.pieces = rest;
            if done == bytes {
                return;
            }
        }
    }
}

impl Writer<'_> {
    /// As [`Region::read`], without a call to the kernel.
    ///
    /// # Errors
    /// As [`Region::read`].
    #[inline]
    pub fn read(&self, inode: u64, generation: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(inode, generation, offset, &mut [IoSliceMut::new(into)])
    }

    /// As [`read`](Self::read), into several pieces.
    ///
    /// # Errors
    /// As [`Region::read`].
    #[inline]
    pub fn read_vectored(
        &self,
        inode: u64,
        generation: u64,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        self.region
            .read_pieces(Some(self.lane), (inode, generation), offset, into)
    }

    /// Writes bytes of a file from `offset` on; a gap behind its end becomes zeros. Up to [`LOG_BYTES_MAX`] bytes are
    /// written as a whole or not at all, whoever dies; of more a beginning may be.
    ///
    /// # Errors
    /// [`Error::Stale`] as for [`read`](Region::read); [`Error::Full`]; [`Error::TooLarge`].
    #[inline]
    pub fn write(
        &self,
        inode: u64,
        generation: u64,
        offset: u64,
        data: &[u8],
        now_ns: u64,
    ) -> Result<()> {
        let at = At::Offset(offset);
        self.write_vectored(inode, generation, at, &[IoSlice::new(data)], now_ns)
            .map(drop)
    }

    /// As [`write`](Self::write), from several pieces, which are one write; where it was written.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_vectored(
        &self,
        inode: u64,
        generation: u64,
        at: At,
        pieces: &[IoSlice<'_>],
        now_ns: u64,
    ) -> Result<u64> {
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        let inode_at = self.lock_inode(inode, generation)?;
        let written = self.write_locked(inode_at, at, pieces, total, now_ns);
        self.unlock_inode(inode_at);
        written
    }

    #[inline]
    pub(crate) fn lock_inode(&self, inode: u64, generation: u64) -> Result<u64> {
        let region = self.region;
        let at = region.inode_at(inode)?;
        region.set_lane_word(self.lane, word::INODE, inode);
        region.lock(self.lane, at + attribute::LOCK)?;
        if region.memory.load(at + attribute::GENERATION) == generation {
            Ok(at)
        } else {
            self.unlock_inode(at);
            Err(Error::Stale)
        }
    }

    #[inline]
    pub(crate) fn unlock_inode(&self, at: u64) {
        self.region.unlock(at + attribute::LOCK);
        self.region.set_lane_word(self.lane, word::INODE, 0);
    }

    #[inline]
    fn write_locked(
        &self,
        at: u64,
        place: At,
        pieces: &[IoSlice<'_>],
        total: u64,
        now_ns: u64,
    ) -> Result<u64> {
        let region = self.region;
        let memory = &region.memory;
        let size = memory.load(at + attribute::SIZE);
        let offset = match place {
            At::Offset(offset) => offset,
            At::End => size,
        };
        if total == 0 {
            return Ok(offset);
        }
        let end = offset
            .checked_add(total)
            .filter(|end| *end <= region.layout.slot_bytes)
            .ok_or(Error::TooLarge)?;
        let base = self.make_room(at, size, offset, end)?;
        if offset > size {
            self.clear_gap(at, size, offset)?;
        }
        let change = Change {
            at,
            target: base + offset,
            total,
            overwritten: size.saturating_sub(offset).min(total),
            size: size.max(end),
            now_ns,
        };
        let source = Source { pieces, used: 0 };
        if total > LOG_BYTES_MAX {
            self.write_in_blocks(&change, offset, source);
        } else if change.overwritten == 0 {
            self.append(&change, source);
        } else if total > 8 || !self.write_at_once(&change, pieces) {
            self.write_by_redo(&change, source);
        }
        Ok(offset)
    }

    /// Nobody reads what lies behind the size: one store of it makes the new bytes true.
    fn append(&self, change: &Change, mut source: Source<'_>) {
        let region = self.region;
        source.take(change.total, |done, bytes| {
            region.memory.write(change.target + done, bytes);
        });
        self.finish(change);
    }

    /// Size and times, of which the size is the one that counts.
    fn finish(&self, change: &Change) {
        let region = self.region;
        let sequence = region.begin_change(change.at);
        region.set_written(change.at, change.size, change.now_ns, change.now_ns);
        region.end_change(change.at, sequence);
    }

    /// A few bytes by one store, when they lie well.
    fn write_at_once(&self, change: &Change, pieces: &[IoSlice<'_>]) -> bool {
        let (region, [piece]) = (self.region, pieces) else {
            return false;
        };
        let sequence = region.begin_change(change.at);
        let is_written = region.memory.write_at_once(change.target, piece);
        if is_written {
            region.set_written(change.at, change.size, change.now_ns, change.now_ns);
        }
        region.end_change(change.at, sequence);
        is_written
    }

    /// The bytes that are written over go into the log first.
    fn write_by_redo(&self, change: &Change, mut source: Source<'_>) {
        let region = self.region;
        let memory = &region.memory;
        let log = region.log_at(self.lane);
        // Memory answers while the log, which is always in the cache, is filled.
        memory.expect_write(change.target, change.overwritten);
        source.take(change.overwritten, |done, bytes| {
            memory.write(log + done, bytes)
        });
        let behind = change.target + change.overwritten;
        source.take(change.total - change.overwritten, |done, bytes| {
            memory.write(behind + done, bytes);
        });
        for (word, value) in [
            (word::TARGET, change.target),
            (word::LENGTH, change.overwritten),
            (word::SIZE, change.size),
            (word::TIME_NS, change.now_ns),
            // The log is complete.
            (word::STATE, doing::BYTES),
        ] {
            region.set_lane_word(self.lane, word, value);
        }
        let sequence = region.begin_change(change.at);
        memory.copy(log, change.target, change.overwritten);
        region.set_written(change.at, change.size, change.now_ns, change.now_ns);
        region.end_change(change.at, sequence);
        region.set_lane_word(self.lane, word::STATE, doing::NOTHING);
    }

    /// In place, block by block, so that readers do not wait for all of it.
    fn write_in_blocks(&self, change: &Change, offset: u64, mut source: Source<'_>) {
        let region = self.region;
        let memory = &region.memory;
        let mut done = 0;
        while done < change.total {
            let is_behind = done >= change.overwritten;
            let block = WRITE_BLOCK_BYTES - (offset + done) % WRITE_BLOCK_BYTES;
            let left = change.total - done;
            let part = if is_behind { left } else { block.min(left) };
            let target = change.target + done;
            let sequence = (!is_behind).then(|| region.begin_change(change.at));
            source.take(part, |done, bytes| {
                if change.total >= STREAM_BYTES_MIN {
                    memory.write_past_cache(target + done, bytes);
                } else {
                    memory.write(target + done, bytes);
                }
            });
            if let Some(sequence) = sequence {
                region.end_change(change.at, sequence);
            }
            done += part;
        }
        self.finish(change);
    }
}

/// A write for which there is memory.
struct Change {
    /// The inode.
    at: u64,
    /// Where the bytes go.
    target: u64,
    /// How many.
    total: u64,
    /// How many of them, from the first on, stand where the file has bytes already.
    overwritten: u64,
    /// Size of the file afterwards.
    size: u64,
    now_ns: u64,
}
