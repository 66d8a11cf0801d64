//! Writing the bytes of files, so that they stay whole when a process dies at any point.

use std::io::IoSlice;
use std::ops::RangeInclusive;
use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::lane::{SLEEPERS, doing, word};
use crate::layout::{LOG_BYTES_MAX, attribute};
use crate::logging::Logging;
use crate::memory::{Block, LINE_BYTES, Memory};
use crate::now_ns;
use crate::region::Region;
use crate::writer::Writer;

/// Block of a large write, in bytes. Readers wait for one block at most.
const WRITE_BLOCK_BYTES: u64 = 64 << 10;

/// The number of bytes of a write whose cache lines are prefetched. Prefetching more is slower than prefetching none.
const EXPECTED_BYTES_MAX: u64 = 2 << 10;

/// Sizes of a sequential write, in bytes, for which logging the old bytes is faster than logging the new ones.
const UNDONE_BYTES: RangeInclusive<u64> = 2049..=8 << 10;

/// Minimum file size, in bytes, from which random writes of more than [`EXPECTED_BYTES_MAX`] bypass the cache. The
/// target is not in the cache, and would be fetched only to be overwritten.
const UNCACHED_FILE_BYTES_MIN: u64 = 32 << 20;

#[cfg(test)]
thread_local! {
    /// Tests bypass the cache in small files.
    pub(crate) static UNCACHED_FILE_BYTES: std::cell::Cell<u64> =
        const { std::cell::Cell::new(UNCACHED_FILE_BYTES_MIN) };
}

#[inline(always)]
fn is_uncached(file_bytes: u64) -> bool {
    #[cfg(test)]
    let min = UNCACHED_FILE_BYTES.get();
    #[cfg(not(test))]
    let min = UNCACHED_FILE_BYTES_MIN;
    file_bytes >= min
}

/// Minimum size of a write that bypasses the cache, in bytes.
const STREAM_BYTES_MIN: u64 = 64 << 10;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At this offset, also behind the end.
    Offset(u64),
    /// At the end of the file as it is when the write runs.
    End,
}

impl Region {
    /// Sets how this process keeps overwrites whole. Other processes may choose another way.
    pub fn set_logging(&self, logging: Logging) {
        self.logging.set(logging);
    }

    /// Marks a file as being changed, for readers. The caller holds its lock.
    #[inline]
    pub(crate) fn begin_change(&self, at: u64) -> u64 {
        // The number is already odd if a dead writer left it so.
        let sequence = self.memory.load(at + attribute::SEQUENCE) | 1;
        self.memory.store(at + attribute::SEQUENCE, sequence);
        // No part of the change may be visible before the odd number.
        fence(Ordering::Release);
        sequence
    }

    #[inline]
    pub(crate) fn end_change(&self, at: u64, sequence: u64) {
        self.memory
            .store(at + attribute::SEQUENCE, sequence.wrapping_add(1));
    }
}

/// Whether this lane's last write ended at `target`. The processor then has the lines already, or is fetching them.
#[inline(always)]
fn continues_at(lane: Block<'_>, target: u64) -> bool {
    lane.load(word::LAST_END) == target
}

/// The data of a write.
trait Source {
    /// Passes `count` bytes from `from` on to `take`, piece by piece, each with its distance from the first byte.
    fn give(&self, from: u64, count: u64, take: impl FnMut(u64, &[u8]));
}

impl Source for &[u8] {
    #[inline(always)]
    fn give(&self, from: u64, count: u64, mut take: impl FnMut(u64, &[u8])) {
        take(0, &self[from as usize..(from + count) as usize]);
    }
}

impl Source for &[IoSlice<'_>] {
    fn give(&self, from: u64, count: u64, mut take: impl FnMut(u64, &[u8])) {
        let (mut skipped, mut done) = (from, 0);
        for piece in *self {
            let there = piece.len() as u64;
            if skipped >= there {
                skipped -= there;
                continue;
            }
            let part = (there - skipped).min(count - done);
            take(done, &piece[skipped as usize..(skipped + part) as usize]);
            skipped = 0;
            done += part;
            if done == count {
                return;
            }
        }
    }
}

impl Writer<'_> {
    /// Writes bytes of a file from `offset` on; a gap behind its end becomes zeros. Up to [`LOG_BYTES_MAX`] bytes are
    /// written completely or not at all, even if a process dies. A longer write may leave only its beginning.
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

    /// As [`write`](Self::write), from several buffers, as one write. Returns the offset it was written at.
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
        if let (At::Offset(offset), [piece]) = (at, pieces)
            && self.overwrite_undisturbed((inode, generation), offset, piece, now_ns)
        {
            return Ok(offset);
        }
        self.write_disturbed((inode, generation), at, pieces, now_ns)
    }

    /// As [`write_vectored`](Self::write_vectored), also when other threads use the file.
    fn write_disturbed(
        &self,
        (inode, generation): (u64, u64),
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

    /// The common case of a write: it overwrites bytes of one page, it fits in the log, and no other writer is active.
    /// Returns `false` if this is not so; nothing has happened then.
    ///
    /// This function builds no value in memory to move it. Such a move waits until all earlier stores are in the cache,
    /// including those of the previous write.
    #[inline(always)]
    fn overwrite_undisturbed(
        &self,
        (inode, generation): (u64, u64),
        offset: u64,
        data: &[u8],
        now_ns: u64,
    ) -> bool {
        let region = self.region;
        let Region { memory, layout, .. } = region;
        let total = data.len() as u64;
        if !(9..=LOG_BYTES_MAX).contains(&total) || !(1..layout.inode_count).contains(&inode) {
            return false;
        }
        let inode_at = layout.inode(inode);
        let line = memory.line(inode_at);
        let word = |word: u64| &line[word as usize / 8];
        let (place, size) = (
            word(attribute::PLACE).load(Ordering::Acquire),
            word(attribute::SIZE).load(Ordering::Acquire),
        );
        if offset > size || total > size - offset || size > layout.slot_bytes {
            return false;
        }
        let Some((found, target)) = region.in_one_page(place, offset, total) else {
            return false;
        };
        let is_same = || {
            memory.load(inode_at + attribute::GENERATION) == generation
                && word(attribute::PLACE).load(Ordering::Relaxed) == place
                && word(attribute::SIZE).load(Ordering::Relaxed) == size
                && region.is_there(found, offset)
        };
        let write = Change {
            lane: self.block(),
            inode: memory.block(inode_at),
            offset,
            target,
            total,
            overwritten: total,
            size,
            now_ns,
            goes_past_cache: false,
        };
        self.overwrite_if(inode, write, data, is_same)
    }

    /// As [`overwrite_undisturbed`](Self::overwrite_undisturbed), for a file whose state is known, except whether it is
    /// still the same.
    #[inline(always)]
    pub(crate) fn overwrite_known(&self, known: &Known, offset: u64, data: &[u8]) -> bool {
        let memory = &self.region.memory;
        let total = data.len() as u64;
        if !(9..=LOG_BYTES_MAX).contains(&total)
            || offset > known.size
            || total > known.size - offset
        {
            return false;
        }
        // The number changes before any other word of the file.
        let is_same = || {
            memory.load(known.at + attribute::SEQUENCE) == known.sequence
                && memory.load(known.at + attribute::GENERATION) == known.generation
        };
        let write = Change {
            lane: self.block(),
            inode: memory.block(known.at),
            offset,
            target: known.base + offset,
            total,
            overwritten: total,
            size: known.size,
            now_ns: now_ns(),
            goes_past_cache: false,
        };
        self.overwrite_if(known.inode, write, data, is_same)
    }

    /// Overwrites existing bytes, if `is_same` confirms under the lock that they are there. Returns `false` if not, or
    /// if another thread has the lock; nothing has happened then.
    #[inline(always)]
    fn overwrite_if(
        &self,
        inode: u64,
        mut change: Change<'_>,
        data: &[u8],
        is_same: impl FnOnce() -> bool,
    ) -> bool {
        let region = self.region;
        let Change {
            lane,
            inode: words,
            target,
            total,
            ..
        } = change;
        let logging = self.logging_for(lane, target, total);
        if logging == Logging::CopyOnWrite {
            return false;
        }
        let is_short = total <= EXPECTED_BYTES_MAX;
        change.goes_past_cache = !is_short
            && logging == Logging::Redo
            && is_uncached(change.size)
            && !continues_at(lane, target);
        if is_short
            || logging == Logging::Redo && !change.goes_past_cache && !continues_at(lane, target)
        {
            // Prefetch: memory answers while the lock is taken and the log is filled. The log is always in the cache.
            region
                .memory
                .expect_write(target, total.min(EXPECTED_BYTES_MAX));
        }
        lane.store(word::INODE, inode);
        if !region.try_lock(self.lane, words.at() + attribute::LOCK) {
            lane.store(word::INODE, 0);
            return false;
        }
        let is_same = is_same();
        if is_same {
            self.overwrite(logging, &change, &data);
        }
        words.store(attribute::LOCK, 0);
        if words.load(attribute::LOCK + SLEEPERS) != 0 {
            region.wake(words.at() + attribute::LOCK);
        }
        lane.store(word::INODE, 0);
        is_same
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

    #[inline(always)]
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
            lane: self.block(),
            inode: memory.block(at),
            offset,
            target: base + offset,
            total,
            overwritten: size.saturating_sub(offset).min(total),
            size: size.max(end),
            now_ns,
            goes_past_cache: false,
        };
        if total > LOG_BYTES_MAX {
            self.write_in_blocks(&change, &pieces);
        } else if change.overwritten == 0 {
            self.append(&change, &pieces);
        } else if total > 8 || change.overwritten < total || !self.write_at_once(&change, pieces) {
            let logging = self.logging_for(change.lane, change.target, total);
            if logging != Logging::CopyOnWrite || !self.write_by_copy(&change, &pieces)? {
                self.overwrite(logging, &change, &pieces);
            }
        }
        Ok(offset)
    }

    /// No reader reads behind the size, so one store of the size makes the new bytes valid.
    fn append(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        source.give(0, change.total, |done, bytes| {
            region.memory.write(change.target + done, bytes);
        });
        region.memory.persist([(change.target, change.total)]);
        self.finish(change);
    }

    /// Stores size and times. The size makes the bytes valid.
    fn finish(&self, change: &Change<'_>) {
        let region = self.region;
        let sequence = change.begin();
        change.set_written();
        change.end(sequence);
        region.memory.persist([(change.inode.at(), LINE_BYTES)]);
    }

    /// Writes a few bytes with one store, if they are aligned for it.
    fn write_at_once(&self, change: &Change<'_>, pieces: &[IoSlice<'_>]) -> bool {
        let (region, [piece]) = (self.region, pieces) else {
            return false;
        };
        let sequence = change.begin();
        let is_written = region.memory.write_at_once(change.target, piece);
        if is_written {
            change.set_written();
        }
        change.end(sequence);
        if is_written {
            let at = (change.inode.at(), LINE_BYTES);
            region.memory.persist([(change.target, change.total), at]);
        }
        is_written
    }

    /// This writer's lane.
    #[inline(always)]
    fn block(&self) -> Block<'_> {
        let at = self.region.layout.lane(self.lane.0);
        self.region.memory.block(at)
    }

    /// The logging for an overwrite at `target`.
    #[inline(always)]
    fn logging_for(&self, lane: Block<'_>, target: u64, total: u64) -> Logging {
        match self.region.logging.get() {
            Logging::BySize if UNDONE_BYTES.contains(&total) && continues_at(lane, target) => {
                Logging::Undo
            }
            Logging::BySize => Logging::Redo,
            chosen => chosen,
        }
    }

    #[inline(always)]
    fn overwrite(&self, logging: Logging, change: &Change<'_>, source: &impl Source) {
        let end = change.target + change.total;
        change.lane.store(word::LAST_END, end);
        match logging {
            Logging::None => self.write_in_place(change, source),
            Logging::Undo => self.write_by_undo(change, source),
            Logging::Redo | Logging::BySize | Logging::CopyOnWrite => {
                self.write_by_redo(change, source);
            }
        }
    }

    #[inline(always)]
    fn write_in_place(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        let sequence = change.begin();
        source.give(0, change.total, |done, bytes| {
            region.memory.write(change.target + done, bytes);
        });
        if change.overwritten < change.total {
            // The size makes the new bytes visible, so they must be durable first.
            region.memory.persist([(change.target, change.total)]);
        }
        change.set_written();
        change.end(sequence);
        let at = (change.inode.at(), LINE_BYTES);
        region.memory.persist([(change.target, change.total), at]);
    }

    /// Logs the old bytes first, together with size and times.
    #[inline(always)]
    fn write_by_undo(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        let memory = &region.memory;
        let log = region.log_at(self.lane);
        memory.copy(change.target, log, change.overwritten);
        for (word, value) in [
            (word::TARGET, change.target),
            (word::LENGTH, change.overwritten),
            (word::SIZE, change.inode.load(attribute::SIZE)),
            (word::TIME_NS, change.inode.load(attribute::MODIFIED_NS)),
            (word::CHANGED_NS, change.inode.load(attribute::CHANGED_NS)),
        ] {
            change.lane.store(word, value);
        }
        let lane_at = region.layout.lane(self.lane.0);
        memory.persist([(log, change.overwritten), (lane_at, word::HEADER_BYTES)]);
        // The log is complete.
        change.set_doing(memory, doing::UNDO);
        self.write_in_place(change, source);
        change.set_doing(memory, doing::NOTHING);
    }

    /// Writes the changed file into a new piece. Returns `false` if the file lies in a slot; nothing has happened then.
    fn write_by_copy(&self, change: &Change<'_>, source: &impl Source) -> Result<bool> {
        let memory = &self.region.memory;
        let offset = change.offset;
        self.replace_piece(
            change.inode.at(),
            (change.size, change.now_ns),
            |old, new| {
                memory.copy(old, new, offset);
                source.give(0, change.total, |done, bytes| {
                    memory.write(new + offset + done, bytes);
                });
                let end = offset + change.total;
                memory.copy(old + end, new + end, change.size - end);
                memory.write_back(new, change.size);
            },
        )
    }

    /// Logs the new bytes of the overwritten range first.
    #[inline(always)]
    fn write_by_redo(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        let memory = &region.memory;
        let log = region.log_at(self.lane);
        source.give(0, change.overwritten, |done, bytes| {
            memory.write(log + done, bytes)
        });
        let (behind, left) = (
            change.target + change.overwritten,
            change.total - change.overwritten,
        );
        if left > 0 {
            source.give(change.overwritten, left, |done, bytes| {
                memory.write(behind + done, bytes);
            });
        }
        for (word, value) in [
            (word::TARGET, change.target),
            (word::LENGTH, change.overwritten),
            (word::SIZE, change.size),
            (word::TIME_NS, change.now_ns),
        ] {
            change.lane.store(word, value);
        }
        memory.persist([
            (log, change.overwritten),
            (behind, change.total - change.overwritten),
            (region.layout.lane(self.lane.0), LINE_BYTES),
        ]);
        // The log is complete.
        change.set_doing(memory, doing::BYTES);
        let sequence = change.begin();
        // Copy from the source, not from the log: the processor need not wait for its own recent stores.
        source.give(0, change.overwritten, |done, bytes| {
            if change.goes_past_cache {
                memory.write_past_cache(change.target + done, bytes);
            } else {
                memory.write(change.target + done, bytes);
            }
        });
        change.set_written();
        change.end(sequence);
        let at = (change.inode.at(), LINE_BYTES);
        if change.goes_past_cache {
            memory.persist([at]);
        } else {
            memory.persist([(change.target, change.overwritten), at]);
        }
        // Must be durable before another writer writes there: recovery from this log would undo that write.
        change.set_doing(memory, doing::NOTHING);
    }

    /// Writes in place, block by block, so that readers wait for one block at most.
    fn write_in_blocks(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        let memory = &region.memory;
        let mut done = 0;
        while done < change.total {
            let is_behind = done >= change.overwritten;
            let block = WRITE_BLOCK_BYTES - (change.offset + done) % WRITE_BLOCK_BYTES;
            let left = change.total - done;
            let part = if is_behind { left } else { block.min(left) };
            let target = change.target + done;
            let sequence = (!is_behind).then(|| change.begin());
            source.give(done, part, |done, bytes| {
                if change.total >= STREAM_BYTES_MIN {
                    memory.write_past_cache(target + done, bytes);
                } else {
                    memory.write(target + done, bytes);
                    memory.write_back(target + done, bytes.len() as u64);
                }
            });
            if let Some(sequence) = sequence {
                change.end(sequence);
            }
            memory.persist([]);
            done += part;
        }
        self.finish(change);
    }
}

/// The known state of a file while it has this sequence number. The file has no holes.
pub(crate) struct Known {
    pub(crate) inode: u64,
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// Offset of the inode.
    pub(crate) at: u64,
    /// Offset of byte 0 of the file.
    pub(crate) base: u64,
}

/// A write whose memory is allocated.
struct Change<'r> {
    /// The writer's lane.
    lane: Block<'r>,
    /// The inode.
    inode: Block<'r>,
    /// Offset in the file.
    offset: u64,
    /// The same place, as an offset in the region.
    target: u64,
    /// The number of bytes.
    total: u64,
    /// The number of these bytes, from the first on, that overwrite existing bytes.
    overwritten: u64,
    /// Size of the file afterwards.
    size: u64,
    now_ns: u64,
    /// Whether the write bypasses the cache, so that the processor does not fetch what is overwritten.
    goes_past_cache: bool,
}

impl Change<'_> {
    /// As [`Region::begin_change`].
    #[inline(always)]
    fn begin(&self) -> u64 {
        let sequence = self.inode.load(attribute::SEQUENCE) | 1;
        self.inode.store(attribute::SEQUENCE, sequence);
        // No part of the change may be visible before the odd number.
        fence(Ordering::Release);
        sequence
    }

    #[inline(always)]
    fn end(&self, sequence: u64) {
        self.inode
            .store(attribute::SEQUENCE, sequence.wrapping_add(1));
    }

    /// Sets the attributes that change with the bytes.
    #[inline(always)]
    fn set_written(&self) {
        self.inode.store(attribute::SIZE, self.size);
        self.inode.store(attribute::MODIFIED_NS, self.now_ns);
        self.inode.store(attribute::CHANGED_NS, self.now_ns);
    }

    /// As [`Region::set_doing`].
    #[inline(always)]
    fn set_doing(&self, memory: &Memory, doing: u64) {
        self.lane.store(word::STATE, doing);
        memory.persist([(self.lane.at() + word::STATE, 8)]);
    }
}
