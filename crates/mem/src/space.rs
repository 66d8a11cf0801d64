//! Space for the bytes of files: pages of the pool, pieces of the packed zone, slots.

use crate::error::{Error, Result, system_error};
use crate::lane::{Lane, doing, word};
use crate::layout::{
    PACKED_MAP_BYTES, PAGE_BYTES, PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECE_CLASSES, state,
};
use crate::region::Region;
use crate::words::Words;

/// Words of the record of a packed page.
pub(crate) mod packed {
    /// Class of its pieces plus 1; 0: the page does not exist.
    pub(crate) const CLASS: u64 = 0;
    /// The number of free pieces.
    pub(crate) const FREE: u64 = 8;
    /// Next page of the class with a free piece, plus 1; or 0.
    pub(crate) const NEXT: u64 = 16;
    /// The previous one, plus 1; or 0.
    pub(crate) const BEFORE: u64 = 24;
    /// One bit for each piece, set if it is taken.
    pub(crate) const TAKEN: u64 = 64;
}

/// Where a file's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has none.
    Nowhere,
    /// A piece of this class at this offset.
    Piece { at: u64, class: u32 },
    /// A slot of its own. A file that was ever mapped keeps its slot as long as it exists.
    Slot { slot: u64, is_kept: bool },
}

const KIND_PIECE: u64 = 1;
const KIND_SLOT: u64 = 2;

impl Place {
    /// As one word: two bits of kind, six of class, the rest the offset or number.
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Nowhere => 0,
            Self::Piece { at, class } => KIND_PIECE | u64::from(class) << 2 | at << 8,
            Self::Slot { slot, is_kept } => KIND_SLOT | u64::from(is_kept) << 2 | slot << 8,
        }
    }

    /// The slot that a place word names, if it names one.
    #[inline]
    pub(crate) fn slot_in(word: u64, region: &Region) -> Option<u64> {
        let slot = word >> 8;
        (word & 0xfb == KIND_SLOT && slot < region.layout.slot_count).then_some(slot)
    }

    #[inline(always)]
    pub(crate) fn decode(word: u64, region: &Region) -> Option<Self> {
        let rest = word >> 8;
        let class = (word >> 2 & 63) as u32;
        match word & 3 {
            0 if word == 0 => Some(Self::Nowhere),
            KIND_PIECE => {
                let layout = &region.layout;
                let zone = layout.packed_at..layout.packed_at + layout.packed_pages * PAGE_BYTES;
                let is_sane = class < PIECE_CLASSES
                    && zone.contains(&rest)
                    && rest.is_multiple_of(piece_bytes(class));
                is_sane.then_some(Self::Piece { at: rest, class })
            }
            KIND_SLOT => (class <= 1 && rest < region.layout.slot_count).then_some(Self::Slot {
                slot: rest,
                is_kept: class == 1,
            }),
            _ => None,
        }
    }
}

#[inline]
pub(crate) fn piece_bytes(class: u32) -> u64 {
    PIECE_BYTES_MIN << class
}

/// The class of pieces that hold `bytes` bytes; `None` if no class does.
pub(crate) fn class_for(bytes: u64) -> Option<u32> {
    (bytes <= PIECE_BYTES_MAX)
        .then(|| (bytes.max(1).next_power_of_two().max(PIECE_BYTES_MIN) / PIECE_BYTES_MIN).ilog2())
}

impl Words<'_> {
    /// Moves pages from the pool to `target`, where no pages exist; they are filled with zeros. At most once in a
    /// change, and not in a change that frees pages.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn take_pages(&mut self, target: u64, pages: u64) -> Result<()> {
        let region = self.region;
        let pool = self.get(state::POOL_PAGES);
        if pool < pages {
            return Err(Error::Full);
        }
        if pool > region.layout.data_pages() {
            let what = "the pool has more pages than there are";
            let at = state::POOL_PAGES;
            return Err(Error::Damaged { at, what });
        }
        // If this process dies halfway, the process that recovers the lane moves the pages back.
        region.set_lane_word(self.lane, word::TARGET, target);
        region.set_lane_word(self.lane, word::PAGES, pages);
        let lane_at = region.layout.lane(self.lane.0);
        region.memory.persist([(lane_at, word::HEADER_BYTES)]);
        region.set_doing(self.lane, doing::TAKING);
        let from = region.layout.pool_at + (pool - pages) * PAGE_BYTES;
        let (memory, file) = (&region.memory, &region.file);
        let moved = memory
            .give_back_pages(file, from, pages)
            .and_then(|()| memory.take_pages(file, target, pages))
            .and_then(|()| memory.sync_pages(file));
        if moved.is_err() {
            // Another user of the machine's memory took it between the two calls.
            region.put_pages_back(self.lane)?;
            region.set_doing(self.lane, doing::NOTHING);
            return Err(Error::Full);
        }
        self.set(state::POOL_PAGES, pool - pages)
    }

    fn takes_pages(&self) -> bool {
        self.region.lane_word(self.lane, word::STATE) == doing::TAKING
    }

    /// Records that `pages` pages from `target` on, of which `present` exist, go back to the pool. At most once in a
    /// change, and not in a change that takes pages. The memory moves when the change is committed.
    pub(crate) fn free_pages(&mut self, target: u64, pages: u64, present: u64) {
        let region = self.region;
        region.set_lane_word(self.lane, word::TARGET, target);
        region.set_lane_word(self.lane, word::PAGES, pages);
        region.set_lane_word(self.lane, word::PRESENT, present);
        region.set_lane_word(self.lane, word::POOL, self.get(state::POOL_PAGES));
        region.set_lane_word(self.lane, word::FREES, 1);
    }

    /// Allocates a piece of the class.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn take_piece(&mut self, class: u32) -> Result<u64> {
        let layout = &self.region.layout;
        let list_at = state::CLASS_PAGE + u64::from(class) * 8;
        let mut page = self.get(list_at);
        if page == 0 {
            let unused = (0..layout.packed_pages)
                .find(|page| self.get(layout.packed_map(*page) + packed::CLASS) == 0)
                .ok_or(Error::Full)?;
            self.take_pages(layout.packed_at + unused * PAGE_BYTES, 1)?;
            let map = layout.packed_map(unused);
            self.set(map + packed::CLASS, u64::from(class) + 1)?;
            self.set(map + packed::FREE, PAGE_BYTES / piece_bytes(class))?;
            self.set(map + packed::NEXT, 0)?;
            self.set(map + packed::BEFORE, 0)?;
            for word in 0..(PAGE_BYTES / piece_bytes(class)).div_ceil(64) {
                self.set(map + packed::TAKEN + word * 8, 0)?;
            }
            self.set(list_at, unused + 1)?;
            page = unused + 1;
        }
        let page = page - 1;
        let damaged = Error::Damaged {
            at: list_at,
            what: "the list of pages with free pieces leads to one without",
        };
        if page >= layout.packed_pages {
            return Err(damaged);
        }
        let map = layout.packed_map(page);
        let count = PAGE_BYTES / piece_bytes(class);
        let free = self.get(map + packed::FREE);
        if self.get(map + packed::CLASS) != u64::from(class) + 1 || free == 0 || free > count {
            return Err(damaged);
        }
        for word in 0..count.div_ceil(64) {
            let at = map + packed::TAKEN + word * 8;
            let taken = self.get(at);
            let bit = u64::from(taken.trailing_ones());
            if bit == 64 || word * 64 + bit >= count {
                continue;
            }
            self.set(at, taken | 1 << bit)?;
            self.set(map + packed::FREE, free - 1)?;
            if free == 1 {
                self.unlink_page(page, class)?;
            }
            return Ok(layout.packed_at
                + page * PAGE_BYTES
                + (word * 64 + bit) * piece_bytes(class));
        }
        Err(damaged)
    }

    /// Frees a piece; freeing the last piece of a page frees the page.
    pub(crate) fn free_piece(&mut self, at: u64, class: u32) -> Result<()> {
        let layout = &self.region.layout;
        let page = (at - layout.packed_at) / PAGE_BYTES;
        let map = layout.packed_map(page);
        let piece = (at - layout.packed_at) % PAGE_BYTES / piece_bytes(class);
        let count = PAGE_BYTES / piece_bytes(class);
        let word_at = map + packed::TAKEN + piece / 64 * 8;
        let taken = self.get(word_at);
        let free = self.get(map + packed::FREE);
        if self.get(map + packed::CLASS) != u64::from(class) + 1
            || taken >> (piece % 64) & 1 == 0
            || free >= count
        {
            return Err(Error::Damaged {
                at: word_at,
                what: "a file has a piece that is not taken",
            });
        }
        self.set(word_at, taken & !(1 << (piece % 64)))?;
        // A page that becomes empty stays in place if the same change takes other pages.
        if free + 1 == count && !self.takes_pages() {
            if free > 0 {
                self.unlink_page(page, class)?;
            }
            self.set(map + packed::CLASS, 0)?;
            self.free_pages(layout.packed_at + page * PAGE_BYTES, 1, 1);
            return Ok(());
        }
        self.set(map + packed::FREE, free + 1)?;
        if free == 0 {
            let list_at = state::CLASS_PAGE + u64::from(class) * 8;
            let first = self.get(list_at);
            self.set(map + packed::NEXT, first)?;
            self.set(map + packed::BEFORE, 0)?;
            if let Some(first_map) = self.packed_map_of(first)? {
                self.set(first_map + packed::BEFORE, page + 1)?;
            }
            self.set(list_at, page + 1)?;
        }
        Ok(())
    }

    fn packed_map_of(&self, page_and_one: u64) -> Result<Option<u64>> {
        let layout = &self.region.layout;
        match page_and_one.checked_sub(1) {
            None => Ok(None),
            Some(page) if page < layout.packed_pages => Ok(Some(layout.packed_map(page))),
            Some(_) => Err(Error::Damaged {
                at: layout.packed_maps_at,
                what: "the list of pages with free pieces leads outside",
            }),
        }
    }

    fn unlink_page(&mut self, page: u64, class: u32) -> Result<()> {
        let map = self.region.layout.packed_map(page);
        let (next, before) = (self.get(map + packed::NEXT), self.get(map + packed::BEFORE));
        if let Some(next_map) = self.packed_map_of(next)? {
            self.set(next_map + packed::BEFORE, before)?;
        }
        match self.packed_map_of(before)? {
            Some(before_map) => self.set(before_map + packed::NEXT, next),
            None => self.set(state::CLASS_PAGE + u64::from(class) * 8, next),
        }
    }

    /// Records whether pages of a slot exist.
    pub(crate) fn change_pages(
        &mut self,
        slot: u64,
        first: u64,
        pages: u64,
        present: bool,
    ) -> Result<()> {
        let map = self.region.layout.slot_map(slot);
        let mut page = first;
        let end = first + pages;
        while page < end {
            let bits = (64 - page % 64).min(end - page);
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            let change = |word: u64| if present { word | mask } else { word & !mask };
            self.change(map + page / 64 * 8, change)?;
            page += bits;
        }
        Ok(())
    }

    /// Allocates a slot for an inode.
    ///
    /// # Errors
    /// [`Error::Full`] when all are taken.
    pub(crate) fn take_slot(&mut self, inode: u64) -> Result<u64> {
        let layout = &self.region.layout;
        let slot = (0..layout.slot_count)
            .find(|slot| self.get(layout.slot_owners_at + slot * 8) == 0)
            .ok_or(Error::Full)?;
        self.set(layout.slot_owners_at + slot * 8, inode)?;
        Ok(slot)
    }
}

impl Region {
    /// Frees the packed pages in which no file has a piece any more. They come from changes in which a file left a
    /// piece and took another. They stay until memory is short, because a file that grows again would need them filled
    /// with zeros again. Returns how many pages were freed.
    ///
    /// # Errors
    /// Those of locks.
    pub(crate) fn free_empty_pages(&self, lane: Lane) -> Result<u64> {
        let mut freed = 0;
        for (page, class) in self.empty_pages() {
            let mut words = self.begin_words(lane)?;
            // A piece of it may have been taken meanwhile.
            if self.empty_page(page) == Some(class) {
                words.unlink_page(page, class)?;
                words.set(self.layout.packed_map(page) + packed::CLASS, 0)?;
                words.free_pages(self.layout.packed_at + page * PAGE_BYTES, 1, 1);
                words.commit()?;
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// Pages of the packed zone that exist and have no taken piece, with the class of their pieces.
    pub(crate) fn empty_pages(&self) -> impl Iterator<Item = (u64, u32)> {
        (0..self.layout.packed_pages).filter_map(|page| Some((page, self.empty_page(page)?)))
    }

    fn empty_page(&self, page: u64) -> Option<u32> {
        let map = self.layout.packed_map(page);
        let class = self.memory.load(map + packed::CLASS).checked_sub(1)?;
        let class = u32::try_from(class)
            .ok()
            .filter(|class| *class < PIECE_CLASSES)?;
        let pieces = PAGE_BYTES / piece_bytes(class);
        (self.memory.load(map + packed::FREE) == pieces).then_some(class)
    }

    /// The pages that a dead lane was moving: their offset and number.
    fn pages_on_their_way(&self, lane: Lane) -> Result<(u64, u64)> {
        let (target, pages) = (
            self.lane_word(lane, word::TARGET),
            self.lane_word(lane, word::PAGES),
        );
        let end = pages
            .checked_mul(PAGE_BYTES)
            .and_then(|bytes| bytes.checked_add(target));
        let is_sane = target.is_multiple_of(PAGE_BYTES)
            && target >= self.layout.packed_at
            && end.is_some_and(|end| end <= self.memory.bytes());
        if is_sane {
            Ok((target, pages))
        } else {
            Err(self.lane_damage(lane, "pages on their way lead outside the files"))
        }
    }

    /// Puts pages back into the pool that no table has recorded elsewhere yet.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::System`] when the kernel has no memory for the pool.
    pub(crate) fn put_pages_back(&self, lane: Lane) -> Result<()> {
        let (target, pages) = self.pages_on_their_way(lane)?;
        let pool = self.memory.load(state::POOL_PAGES);
        if pages > pool || pool > self.layout.data_pages() {
            return Err(self.lane_damage(lane, "more pages are on their way than the pool has"));
        }
        self.move_pages(target, pages, pool - pages, pages)
    }

    /// Puts the pages into the pool that the committed change has freed.
    ///
    /// # Errors
    /// As [`put_pages_back`](Self::put_pages_back).
    pub(crate) fn move_freed_pages(&self, lane: Lane) -> Result<()> {
        if self.lane_word(lane, word::FREES) == 0 {
            return Ok(());
        }
        let (target, pages) = self.pages_on_their_way(lane)?;
        let present = self.lane_word(lane, word::PRESENT);
        // The pool size before the change: recovery may run this a second time.
        let pool = self.lane_word(lane, word::POOL);
        let after = pool.checked_add(present);
        if present > pages || after.is_none_or(|after| after > self.layout.data_pages()) {
            return Err(self.lane_damage(lane, "more pages are freed than there are"));
        }
        // Since the commit, no table refers to these pages.
        self.wait_for_readers(lane, target)?;
        let moved = self.move_pages(target, pages, pool, present);
        if moved.is_ok() {
            self.memory.store(state::POOL_PAGES, pool + present);
            self.memory.persist([(state::POOL_PAGES, 8)]);
        }
        self.set_lane_word(lane, word::FREES, 0);
        moved
    }

    fn move_pages(&self, target: u64, pages: u64, pool: u64, present: u64) -> Result<()> {
        let failed = |what| system_error(&self.path, what);
        let (memory, file) = (&self.memory, &self.file);
        memory
            .give_back_pages(file, target, pages)
            .map_err(failed("pages cannot be given back"))?;
        let at = self.layout.pool_at + pool * PAGE_BYTES;
        memory
            .take_pages(file, at, present)
            .and_then(|()| memory.sync_pages(file))
            .map_err(failed("pages cannot be put into the pool"))
    }
}

const _: () = assert!(PACKED_MAP_BYTES >= 64 + PAGE_BYTES / PIECE_BYTES_MIN / 8);
