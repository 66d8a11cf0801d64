//! Memory for the bytes of a file: allocated, moved, freed; and the size, which says how much of it is valid.

use crate::error::{Error, Result};
use crate::layout::{PAGE_BYTES, attribute};
use crate::memory::LINE_BYTES;
use crate::region::Region;
use crate::space::{Place, class_for, piece_bytes};
use crate::words::Words;
use crate::writer::Writer;

/// The number of pages that one change allocates for a slot or frees.
const PAGES_AT_ONCE: u64 = 1024;

/// The number of pages that one change frees in the middle of a file. Readers wait meanwhile.
const PUNCHED_AT_ONCE: u64 = 8;

/// The number of bytes of a file that are cleared at once.
const BLOCK_BYTES: u64 = 64 << 10;

/// The error text for a damaged inode.
pub(crate) const NO_PLACE: &str = "an inode says that its bytes are where none can be";

/// Refuses a free piece that overlaps the file's piece; each is an offset and a length.
fn require_apart(taken: (u64, u64), free: (u64, u64)) -> Result<()> {
    if taken.0 + taken.1 <= free.0 || free.0 + free.1 <= taken.0 {
        Ok(())
    } else {
        Err(Error::Damaged {
            at: taken.0,
            what: "a piece of a file is said to be free",
        })
    }
}

impl Region {
    pub(crate) fn place(&self, at: u64) -> Result<Place> {
        Place::decode(self.memory.load(at + attribute::PLACE), self)
            .ok_or(Error::Damaged { at, what: NO_PLACE })
    }

    /// Refuses a directory: it has no bytes.
    fn require_no_directory(&self, at: u64) -> Result<()> {
        let mode = self.memory.load(at + attribute::MODE_LINKS) as u32;
        if mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Error::IsADirectory);
        }
        Ok(())
    }

    /// The next offset from `offset` on where the file has memory; `None` if only a hole or the end follows.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn next_data(&self, inode: u64, generation: u64, offset: u64) -> Result<Option<u64>> {
        self.next(inode, generation, offset, true)
    }

    /// The next offset from `offset` on where the file has no memory. The end of the file counts as a hole. `None`
    /// behind that.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn next_hole(&self, inode: u64, generation: u64, offset: u64) -> Result<Option<u64>> {
        self.next(inode, generation, offset, false)
    }

    fn next(&self, inode: u64, generation: u64, offset: u64, data: bool) -> Result<Option<u64>> {
        let at = self.inode_at(inode)?;
        self.consistent(at, || {
            if self.memory.load(at + attribute::GENERATION) != generation {
                return Err(Error::Stale);
            }
            let size = self.memory.load(at + attribute::SIZE);
            if offset >= size {
                return Ok(None);
            }
            let found = match self.place(at)? {
                Place::Nowhere => (!data).then_some(offset),
                Place::Piece { .. } => data.then_some(offset),
                Place::Slot { slot, .. } => {
                    let pages =
                        offset / PAGE_BYTES..size.min(self.layout.slot_bytes).div_ceil(PAGE_BYTES);
                    pages
                        .into_iter()
                        .find(|page| self.is_present(slot, *page) == data)
                        .map(|page| offset.max(page * PAGE_BYTES))
                }
            };
            Ok(found.or((!data).then_some(size)))
        })
    }
}

impl Region {
    /// Whether all of these pages of a slot exist. It checks 64 pages at once: 4 GiB take 32 checks.
    #[inline]
    pub(crate) fn are_present(&self, slot: u64, pages: std::ops::Range<u64>) -> bool {
        let map = self.layout.slot_map(slot);
        let mut page = pages.start;
        while page < pages.end {
            let bits = (64 - page % 64).min(pages.end - page);
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            if self.memory.load(map + page / 64 * 8) & mask != mask {
                return false;
            }
            page += bits;
        }
        true
    }
}

impl Writer<'_> {
    /// Makes a file shorter or longer; what is added is zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn set_size(&self, inode: u64, generation: u64, size: u64, now_ns: u64) -> Result<()> {
        self.or_after_reclaiming(|| {
            let at = self.lock_inode(inode, generation)?;
            let done = self.set_size_locked(inode, at, size, now_ns);
            self.unlock_inode(at);
            done
        })
    }

    /// Allocates memory for bytes `from` to `end` of a file and gives it a slot, which it then keeps. Returns the
    /// offset of the file's byte 0 in the region's file. The size does not change.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn map_range(&self, inode: u64, generation: u64, from: u64, end: u64) -> Result<u64> {
        self.or_after_reclaiming(|| {
            let at = self.lock_inode(inode, generation)?;
            let mapped = self.map_range_locked(inode, at, from, end);
            self.unlock_inode(at);
            mapped
        })
    }

    fn map_range_locked(&self, inode: u64, at: u64, from: u64, end: u64) -> Result<u64> {
        let region = self.region;
        if from > end || end > region.layout.slot_bytes {
            return Err(Error::TooLarge);
        }
        region.require_no_directory(at)?;
        let size = region.memory.load(at + attribute::SIZE);
        let slot = match region.place(at)? {
            Place::Slot {
                slot,
                is_kept: true,
            } => slot,
            Place::Slot { slot, .. } => {
                let words = region.begin_words(self.lane)?;
                let place = Place::Slot {
                    slot,
                    is_kept: true,
                };
                self.change_place(words, at, place)?;
                slot
            }
            old => self.move_to_slot(inode, at, size, old, true)?,
        };
        self.take_slot_pages(slot, from, end)?;
        // A mapping shows zeros behind the end of the file.
        let tail = end.min(size.next_multiple_of(PAGE_BYTES));
        if size < tail {
            self.clear_gap(at, size, tail)?;
        }
        Ok(region.layout.slot(slot))
    }

    /// Allocates memory for bytes `from` to `end` of a file, so that writes there do not fail for lack of memory.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn allocate(
        &self,
        inode: u64,
        generation: u64,
        (from, end): (u64, u64),
        keeps_size: bool,
        now_ns: u64,
    ) -> Result<()> {
        self.or_after_reclaiming(|| {
            let at = self.lock_inode(inode, generation)?;
            let done = self.allocate_locked(inode, at, (from, end), keeps_size, now_ns);
            self.unlock_inode(at);
            done
        })
    }

    fn allocate_locked(
        &self,
        inode: u64,
        at: u64,
        (from, end): (u64, u64),
        keeps_size: bool,
        now_ns: u64,
    ) -> Result<()> {
        let region = self.region;
        if from >= end || end > region.layout.slot_bytes {
            return Err(Error::TooLarge);
        }
        let size = region.memory.load(at + attribute::SIZE);
        self.make_room(at, size, from, end)?;
        if keeps_size || end <= size {
            Ok(())
        } else {
            self.set_size_locked(inode, at, end, now_ns)
        }
    }

    /// Fills bytes `from` to `end` of a file with zeros and frees memory where it can; the size does not change.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn punch(
        &self,
        inode: u64,
        generation: u64,
        (from, end): (u64, u64),
        now_ns: u64,
    ) -> Result<()> {
        let at = self.lock_inode(inode, generation)?;
        let done = self.punch_locked(at, from, end, now_ns);
        self.unlock_inode(at);
        done
    }

    fn punch_locked(&self, at: u64, from: u64, end: u64, now_ns: u64) -> Result<()> {
        let region = self.region;
        let size = region.memory.load(at + attribute::SIZE);
        match region.place(at)? {
            Place::Slot { slot, is_kept } => {
                let end = end.min(region.layout.slot_bytes);
                let inode = region.lane_word(self.lane, crate::lane::word::INODE);
                if is_kept && region.is_lent(inode, at) {
                    self.clear_in_blocks(at, from, end)?;
                    return self.note_change(at, size, now_ns);
                }
                let pages = from.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
                if pages.start < pages.end {
                    self.clear_in_blocks(at, from, pages.start * PAGE_BYTES)?;
                    self.punch_pages(at, slot, pages.clone())?;
                    self.clear_in_blocks(at, pages.end * PAGE_BYTES, end)?;
                } else {
                    self.clear_in_blocks(at, from, end)?;
                }
            }
            _ => self.clear_in_blocks(at, from, end.min(size))?,
        }
        self.note_change(at, size, now_ns)
    }

    fn note_change(&self, at: u64, size: u64, now_ns: u64) -> Result<()> {
        let region = self.region;
        let sequence = region.begin_change(at);
        region.set_written(at, size, now_ns, now_ns);
        region.end_change(at, sequence);
        region.memory.persist([(at, LINE_BYTES)]);
        Ok(())
    }

    /// Clears bytes that readers may see.
    fn clear_in_blocks(&self, at: u64, from: u64, end: u64) -> Result<()> {
        let mut from = from;
        while from < end {
            let block_end = end.min((from / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let sequence = self.region.begin_change(at);
            let cleared = self.clear_gap(at, from, block_end);
            self.region.end_change(at, sequence);
            cleared?;
            from = block_end;
        }
        Ok(())
    }

    fn punch_pages(&self, at: u64, slot: u64, pages: std::ops::Range<u64>) -> Result<()> {
        let mut page = pages.start;
        while page < pages.end {
            let count = PUNCHED_AT_ONCE.min(pages.end - page);
            self.free_slot_pages(slot, page, count, Some(at))?;
            page += count;
        }
        Ok(())
    }

    /// Makes sure that bytes `from` to `end` of the file have memory. Returns the offset of the file's byte 0.
    #[inline]
    pub(crate) fn make_room(&self, at: u64, size: u64, from: u64, end: u64) -> Result<u64> {
        let region = self.region;
        match region.place(at)? {
            Place::Piece { at: piece, class } if end <= piece_bytes(class) => Ok(piece),
            Place::Slot { slot, .. } => {
                self.take_slot_pages(slot, from, end)?;
                Ok(region.layout.slot(slot))
            }
            old => self.make_other_room(at, size, from, end, old),
        }
    }

    fn make_other_room(&self, at: u64, size: u64, from: u64, end: u64, old: Place) -> Result<u64> {
        let region = self.region;
        region.require_no_directory(at)?;
        match class_for(end.max(size)) {
            Some(class) => self.move_to_piece(at, size, old, class),
            None => {
                let inode = region.lane_word(self.lane, crate::lane::word::INODE);
                let slot = self.move_to_slot(inode, at, size, old, false)?;
                self.take_slot_pages(slot, from, end)?;
                Ok(region.layout.slot(slot))
            }
        }
    }

    fn move_to_piece(&self, at: u64, size: u64, old: Place, class: u32) -> Result<u64> {
        let region = self.region;
        let mut words = region.begin_words(self.lane)?;
        let piece = words.take_piece(class)?;
        let kept = size.min(piece_bytes(class));
        if let Place::Piece { at: from, class } = old {
            // No reader finds the new piece before the commit.
            let there = kept.min(piece_bytes(class));
            require_apart((from, piece_bytes(class)), (piece, kept))?;
            region.memory.copy(from, piece, there);
            region.memory.clear(piece + there, kept - there);
            words.free_piece(from, class)?;
        } else {
            region.memory.clear(piece, kept);
        }
        region.memory.write_back(piece, kept);
        self.change_place(words, at, Place::Piece { at: piece, class })?;
        Ok(piece)
    }

    /// Lets `fill` make a new piece from the old one, and assigns it to the file, with a size and times. Returns
    /// `false` if the file has no piece; nothing has happened then.
    pub(crate) fn replace_piece(
        &self,
        at: u64,
        (size, now_ns): (u64, u64),
        fill: impl FnOnce(u64, u64),
    ) -> Result<bool> {
        let region = self.region;
        let Place::Piece { at: old, class } = region.place(at)? else {
            return Ok(false);
        };
        // What lies behind the piece belongs to other files.
        if size > piece_bytes(class) {
            return Err(Error::Damaged {
                at,
                what: "a file is longer than its memory",
            });
        }
        let mut words = region.begin_words(self.lane)?;
        let new = words.take_piece(class)?;
        require_apart((old, piece_bytes(class)), (new, piece_bytes(class)))?;
        fill(old, new);
        words.free_piece(old, class)?;
        for (word, value) in [
            (attribute::SIZE, size),
            (attribute::MODIFIED_NS, now_ns),
            (attribute::CHANGED_NS, now_ns),
        ] {
            words.set(at + word, value)?;
        }
        self.change_place(words, at, Place::Piece { at: new, class })?;
        Ok(true)
    }

    fn move_to_slot(
        &self,
        inode: u64,
        at: u64,
        size: u64,
        old: Place,
        is_kept: bool,
    ) -> Result<u64> {
        let region = self.region;
        let mut words = region.begin_words(self.lane)?;
        let slot = words.take_slot(inode)?;
        let map = region.layout.slot_map(slot);
        for place in 0..region.layout.slot_bytes / PAGE_BYTES / 64 {
            if words.get(map + place * 8) != 0 {
                return Err(Error::Damaged {
                    at: map,
                    what: "a free slot has pages",
                });
            }
        }
        if let Place::Piece { at: from, class } = old {
            words.take_pages(region.layout.slot(slot), 1)?;
            words.set(map, 1)?;
            let there = size.min(piece_bytes(class));
            region.memory.copy(from, region.layout.slot(slot), there);
            region.memory.write_back(region.layout.slot(slot), there);
            words.free_piece(from, class)?;
        }
        self.change_place(words, at, Place::Slot { slot, is_kept })?;
        Ok(slot)
    }

    /// Readers must see either the old place or the new one, and must not read what the old one becomes.
    fn change_place(&self, mut words: Words<'_>, at: u64, place: Place) -> Result<()> {
        words.set(at + attribute::PLACE, place.encode())?;
        let sequence = self.region.begin_change(at);
        let committed = words.commit();
        drop(words);
        self.region.end_change(at, sequence);
        committed
    }

    /// Allocates memory for the missing pages of a slot from byte `from` to `end`.
    #[inline]
    fn take_slot_pages(&self, slot: u64, from: u64, end: u64) -> Result<()> {
        let pages = from / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        if self.region.are_present(slot, pages.clone()) {
            Ok(())
        } else {
            self.take_absent_pages(slot, pages.start, pages.end)
        }
    }

    #[cold]
    fn take_absent_pages(&self, slot: u64, first: u64, end: u64) -> Result<()> {
        let region = self.region;
        let mut page = first;
        while page < end {
            if region.is_present(slot, page) {
                page += 1;
                continue;
            }
            let mut words = region.begin_words(self.lane)?;
            let absent = (page..end.min(page + PAGES_AT_ONCE))
                .take_while(|page| !region.is_present(slot, *page))
                .count() as u64;
            let first = region.layout.slot(slot) + page * PAGE_BYTES;
            words.take_pages(first, absent)?;
            words.change_pages(slot, page, absent, true)?;
            words.commit()?;
            page += absent;
        }
        Ok(())
    }

    /// Clears bytes `size` to `offset` of the file, where they have memory.
    pub(crate) fn clear_gap(&self, at: u64, size: u64, offset: u64) -> Result<()> {
        let region = self.region;
        match region.place(at)? {
            Place::Piece { at: piece, class } => {
                let end = offset.min(piece_bytes(class));
                if size < end {
                    region.memory.clear(piece + size, end - size);
                    region.memory.write_back(piece + size, end - size);
                }
            }
            Place::Slot { slot, .. } => {
                let mut from = size;
                while from < offset {
                    let end = (from / PAGE_BYTES + 1) * PAGE_BYTES;
                    let end = end.min(offset);
                    if region.is_present(slot, from / PAGE_BYTES) {
                        let start = region.layout.slot(slot) + from;
                        region.memory.clear(start, end - from);
                        region.memory.write_back(start, end - from);
                    }
                    from = end;
                }
            }
            Place::Nowhere => {}
        }
        Ok(())
    }

    fn set_size_locked(&self, inode: u64, at: u64, size: u64, now_ns: u64) -> Result<()> {
        let region = self.region;
        region.require_no_directory(at)?;
        if size > region.layout.slot_bytes {
            return Err(Error::TooLarge);
        }
        let old = region.memory.load(at + attribute::SIZE);
        if size > old {
            let place = region.place(at)?;
            if matches!(place, Place::Piece { class, .. } if size > piece_bytes(class)) {
                match class_for(size) {
                    Some(class) => self.move_to_piece(at, old, place, class).map(drop)?,
                    None => self.move_to_slot(inode, at, old, place, false).map(drop)?,
                }
            }
            self.clear_gap(at, old, size)?;
            region.memory.persist([]);
        }
        let sequence = region.begin_change(at);
        region.set_written(at, size, now_ns, now_ns);
        region.end_change(at, sequence);
        region.memory.persist([(at, LINE_BYTES)]);
        if size < old {
            self.free_behind(inode, at, size)?;
        }
        Ok(())
    }

    /// Frees all memory of a file that cannot be opened any more. Returns `false` if some of it is lent and stays: the
    /// slot must then stay the file's, too.
    pub(crate) fn free_all(&self, inode: u64, at: u64) -> Result<bool> {
        let region = self.region;
        // A process that still has its number reads nothing from now on.
        let sequence = region.begin_change(at);
        region.memory.store(at + attribute::SIZE, 0);
        region.end_change(at, sequence);
        region.memory.persist([(at, LINE_BYTES)]);
        self.free_behind(inode, at, 0)?;
        let Place::Slot { slot, .. } = region.place(at)? else {
            return Ok(true);
        };
        let mut pages = 0..region.layout.slot_bytes / PAGE_BYTES;
        if pages.any(|page| region.is_present(slot, page)) {
            return Ok(false);
        }
        self.free_slot(at, slot).map(|()| true)
    }

    fn free_slot(&self, at: u64, slot: u64) -> Result<()> {
        let mut words = self.region.begin_words(self.lane)?;
        words.set(self.region.layout.slot_owners_at + slot * 8, 0)?;
        self.change_place(words, at, Place::Nowhere)
    }

    /// Frees the memory behind byte `size` of a file that has become shorter. A file that was mapped keeps its slot,
    /// because the mapping always shows that slot.
    fn free_behind(&self, inode: u64, at: u64, size: u64) -> Result<()> {
        let region = self.region;
        match region.place(at)? {
            Place::Piece { at: piece, class } if size == 0 => {
                let mut words = region.begin_words(self.lane)?;
                words.free_piece(piece, class)?;
                self.change_place(words, at, Place::Nowhere)
            }
            Place::Slot { slot, is_kept } => {
                let owner = region.layout.slot_owners_at + slot * 8;
                if region.memory.load(owner) != inode {
                    return Err(Error::Damaged {
                        at: owner,
                        what: "a file has a slot that is another's",
                    });
                }
                // Lent memory stays, also behind the end; a later change of size frees it.
                if is_kept && region.is_lent(inode, at) {
                    return Ok(());
                }
                let mut page = size.div_ceil(PAGE_BYTES);
                let last = region.layout.slot_bytes / PAGE_BYTES;
                while page < last {
                    let pages = PAGES_AT_ONCE.min(last - page);
                    self.free_slot_pages(slot, page, pages, None)?;
                    page += pages;
                }
                if size == 0 && !is_kept {
                    return self.free_slot(at, slot);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Frees pages of a slot. `read`: the place of the inode, if the pages are within the file's size.
    fn free_slot_pages(&self, slot: u64, page: u64, pages: u64, read: Option<u64>) -> Result<()> {
        let region = self.region;
        let present = (page..page + pages)
            .filter(|page| region.is_present(slot, *page))
            .count() as u64;
        if present == 0 {
            return Ok(());
        }
        let mut words = region.begin_words(self.lane)?;
        words.change_pages(slot, page, pages, false)?;
        words.free_pages(region.layout.slot(slot) + page * PAGE_BYTES, pages, present);
        // Readers see the hole, or they wait. The number becomes odd under the lock of the tables. Otherwise a
        // checkpoint, which reads files under that lock, would wait for an even number while this thread waited for the
        // lock.
        let sequence = read.map(|at| (at, region.begin_change(at)));
        let committed = words.commit();
        drop(words);
        if let Some((at, sequence)) = sequence {
            region.end_change(at, sequence);
        }
        committed
    }
}
