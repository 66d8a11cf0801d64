//! Writing the bytes of files, so that whoever dies leaves them whole.

use std::io::IoSlice;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::error::{Error, Result};
use crate::inode::attribute;
use crate::lane::{SLEEPERS, doing, word};
use crate::layout::LOG_BYTES_MAX;
use crate::memory::{Block, LINE_BYTES, Memory};
use crate::now_ns;
use crate::region::Region;
use crate::writer::Writer;

/// Bytes of a large write for whose time readers wait.
const WRITE_BLOCK_BYTES: u64 = 64 << 10;

/// Bytes of a write whose lines are asked for beforehand; more at once is slower than none.
const EXPECTED_BYTES_MAX: u64 = 2 << 10;

/// Bytes of a write behind the one before, for which it is faster to log the old bytes than the new ones.
const UNDONE_BYTES: RangeInclusive<u64> = 2049..=8 << 10;

/// Bytes of a file from which on a write at random of more than [`EXPECTED_BYTES_MAX`] goes past the cache: where it
/// goes is not in there, and would be fetched only to be written over.
const UNCACHED_FILE_BYTES_MIN: u64 = 32 << 20;

#[cfg(test)]
thread_local! {
    /// Tests write past the cache in small files.
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

/// What makes a write over bytes of a file whole, whoever dies. New bytes behind the end need nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Logging {
    /// What was measured as fastest: undo for writes of 2 to 8 KiB behind the one before, else redo.
    #[default]
    BySize,
    /// The new bytes go into the writer's log first; who finds him dead finishes the write.
    Redo,
    /// The old bytes and attributes go into the log first; who finds him dead undoes the write.
    Undo,
    /// A packed file gets a new piece, and one store says that it counts; in a slot as [`Redo`](Self::Redo).
    CopyOnWrite,
    /// Nothing: names, sizes and space are whole, bytes may be half written.
    None,
}

/// Which logging a region's writers in this process use.
#[derive(Default)]
pub(crate) struct Setting(AtomicU8);

impl Setting {
    #[inline]
    fn get(&self) -> Logging {
        match self.0.load(Ordering::Relaxed) {
            1 => Logging::Redo,
            2 => Logging::Undo,
            3 => Logging::CopyOnWrite,
            4 => Logging::None,
            _ => Logging::BySize,
        }
    }
}

impl Region {
    /// Chooses how this process keeps overwrites whole; others need not choose the same.
    pub fn set_logging(&self, logging: Logging) {
        self.logging.0.store(logging as u8, Ordering::Relaxed);
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
        self.memory
            .store(at + attribute::SEQUENCE, sequence.wrapping_add(1));
    }
}

/// Whether this lane's last write ended there: then the processor has the lines already, or is fetching them.
#[inline(always)]
fn continues_at(lane: Block<'_>, target: u64) -> bool {
    lane.load(word::LAST_END) == target
}

/// What a write writes.
trait Source {
    /// Gives `count` bytes from `from` on to `take`, piece by piece, each with its distance from the first.
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
        if let (At::Offset(offset), [piece]) = (at, pieces)
            && self.overwrite_undisturbed((inode, generation), offset, piece, now_ns)
        {
            return Ok(offset);
        }
        self.write_disturbed((inode, generation), at, pieces, now_ns)
    }

    /// As [`write_vectored`](Self::write_vectored), whatever else happens to the file.
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

    /// What most writes are: over bytes that lie in one page, few enough for the log, while nobody else writes. `false`
    /// when it is not so, and nothing happened.
    ///
    /// Nothing here is put together in memory and moved: such a move waits until all stores before are in the cache,
    /// also those of the write before.
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

    /// As [`overwrite_undisturbed`](Self::overwrite_undisturbed), of a file of which all is known but whether it is
    /// still so.
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
        // The number changes before anything else of the file does.
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

    /// Writes over bytes that are there, if `is_same` says under the lock that they are; `false` when they are not, or
    /// somebody else has the lock, and nothing happened.
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
            // Memory answers while the lock is taken and the log, which is always in the cache, is filled.
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

    /// Nobody reads what lies behind the size: one store of it makes the new bytes true.
    fn append(&self, change: &Change<'_>, source: &impl Source) {
        let region = self.region;
        source.give(0, change.total, |done, bytes| {
            region.memory.write(change.target + done, bytes);
        });
        region.memory.persist([(change.target, change.total)]);
        self.finish(change);
    }

    /// Size and times, of which the size is the one that counts.
    fn finish(&self, change: &Change<'_>) {
        let region = self.region;
        let sequence = change.begin();
        change.set_written();
        change.end(sequence);
        region.memory.persist([(change.inode.at(), LINE_BYTES)]);
    }

    /// A few bytes that the file has by one store, when they lie well.
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

    /// How the bytes of an overwrite at `target` are kept whole.
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
            // The size tells of what is there.
            region.memory.persist([(change.target, change.total)]);
        }
        change.set_written();
        change.end(sequence);
        let at = (change.inode.at(), LINE_BYTES);
        region.memory.persist([(change.target, change.total), at]);
    }

    /// The bytes as they were go into the log first, and size and times with them.
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

    /// The file as it will be goes into a new piece; `false` when it lies in a slot, and nothing happened.
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

    /// The bytes that are written over go into the log first.
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
        // From where they came, not from the log: the processor need not wait for what it has just stored.
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
        // Durable before anybody else writes there: this log would undo that.
        change.set_doing(memory, doing::NOTHING);
    }

    /// In place, block by block, so that readers do not wait for all of it.
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

/// What is known of a file whose sequence number is this one, and which has no holes.
pub(crate) struct Known {
    pub(crate) inode: u64,
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// The inode.
    pub(crate) at: u64,
    /// Byte 0 of the file.
    pub(crate) base: u64,
}

/// A write for which there is memory.
struct Change<'r> {
    /// The writer's lane.
    lane: Block<'r>,
    /// The inode.
    inode: Block<'r>,
    /// Where the bytes go, in the file.
    offset: u64,
    /// Where that is in the region.
    target: u64,
    /// How many.
    total: u64,
    /// How many of them, from the first on, stand where the file has bytes already.
    overwritten: u64,
    /// Size of the file afterwards.
    size: u64,
    now_ns: u64,
    /// Whether the processor need not fetch what is written over.
    goes_past_cache: bool,
}

impl Change<'_> {
    /// As [`Region::begin_change`].
    #[inline(always)]
    fn begin(&self) -> u64 {
        let sequence = self.inode.load(attribute::SEQUENCE) | 1;
        self.inode.store(attribute::SEQUENCE, sequence);
        // Nothing of the change may be seen before that.
        fence(Ordering::Release);
        sequence
    }

    #[inline(always)]
    fn end(&self, sequence: u64) {
        self.inode
            .store(attribute::SEQUENCE, sequence.wrapping_add(1));
    }

    /// Sets what changes with the bytes.
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
