//! Reading and writing the bytes of files.

use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::inode::attribute;
use crate::lane::{doing, word};
use crate::layout::{LOG_BYTES_MAX, PAGE_BYTES};
use crate::region::Region;
use crate::space::{Place, class_for, piece_bytes};
use crate::writer::Writer;

/// Looks at a file that is being written before a reader looks whether the writer lives.
const LOOKS_MAX: u32 = 10_000;

/// Pages that one change takes for a slot.
const PAGES_AT_ONCE: u64 = 1024;

impl Region {
    /// Copies bytes of a file from `offset` on; how many there were. What it copies stood there at one moment.
    ///
    /// # Errors
    /// [`Error::Stale`] when the inode is free, or another file's since `generation`.
    pub fn read(&self, inode: u64, generation: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let at = self.inode_at(inode)?;
        self.consistent(at, || {
            if self.memory.load(at + attribute::GENERATION) != generation {
                return Err(Error::Stale);
            }
            let size = self.memory.load(at + attribute::SIZE);
            let place = self.memory.load(at + attribute::PLACE);
            let count = size.saturating_sub(offset).min(into.len() as u64) as usize;
            self.copy_out(place, offset, &mut into[..count])?;
            Ok(count)
        })
    }

    /// What `look` sees of an inode at one moment: it is called again when the inode has changed meanwhile.
    pub(crate) fn consistent<T>(&self, at: u64, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut looks = 0;
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
            looks += 1;
            if looks >= LOOKS_MAX {
                looks = 0;
                self.help(at)?;
            }
            std::hint::spin_loop();
        }
    }

    /// Copies bytes that a file has; what is read while they change is of no use, and found out by the caller.
    fn copy_out(&self, place: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let damaged = Error::Damaged {
            at: self.layout.inodes_at,
            what: "an inode says that its bytes are where none can be",
        };
        let end = offset.saturating_add(into.len() as u64);
        match Place::decode(place, self) {
            Some(Place::Nowhere) => into.fill(0),
            Some(Place::Piece { at, class }) if end <= piece_bytes(class) => {
                self.memory.read(at + offset, into);
            }
            Some(Place::Slot { slot }) if end <= self.layout.slot_bytes => {
                let mut done = 0;
                while done < into.len() {
                    let from = offset + done as u64;
                    let in_page = (PAGE_BYTES - from % PAGE_BYTES) as usize;
                    let part = in_page.min(into.len() - done);
                    let target = &mut into[done..done + part];
                    // A page that is not there is zeros; touching it would make the kernel look for memory.
                    if self.is_present(slot, from / PAGE_BYTES) {
                        self.memory.read(self.layout.slot(slot) + from, target);
                    } else {
                        target.fill(0);
                    }
                    done += part;
                }
            }
            _ => return Err(damaged),
        }
        Ok(())
    }

    fn is_present(&self, slot: u64, page: u64) -> bool {
        let word = self.memory.load(self.layout.slot_map(slot) + page / 64 * 8);
        word >> (page % 64) & 1 == 1
    }

    /// A reader has waited long: finishes what the writer has begun, if that one is dead.
    fn help(&self, inode_at: u64) -> Result<()> {
        if !self.writable {
            std::thread::yield_now();
            return Ok(());
        }
        let lane = self.take_lane()?;
        let locked = self.lock(lane, inode_at + attribute::LOCK);
        if locked.is_ok() {
            self.unlock(inode_at + attribute::LOCK);
        }
        self.give_back_lane(lane);
        locked
    }
}

impl Writer<'_> {
    /// Writes bytes of a file from `offset` on; a gap behind its end becomes zeros. Up to [`LOG_BYTES_MAX`] bytes are
    /// written as a whole or not at all, whoever dies; of more a beginning may be.
    ///
    /// # Errors
    /// [`Error::Stale`] as for [`read`](Region::read); [`Error::Full`]; [`Error::TooLarge`].
    pub fn write(
        &self,
        inode: u64,
        generation: u64,
        offset: u64,
        data: &[u8],
        now_ns: u64,
    ) -> Result<()> {
        let region = self.region;
        let at = self.lock_inode(inode, generation)?;
        let written = self.write_locked(at, offset, data, now_ns);
        region.unlock(at + attribute::LOCK);
        region.set_lane_word(self.lane, word::INODE, 0);
        written
    }

    /// Makes a file shorter or longer; what is added is zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn set_size(&self, inode: u64, generation: u64, size: u64, now_ns: u64) -> Result<()> {
        let region = self.region;
        let at = self.lock_inode(inode, generation)?;
        let done = self.set_size_locked(inode, at, size, now_ns);
        region.unlock(at + attribute::LOCK);
        region.set_lane_word(self.lane, word::INODE, 0);
        done
    }

    fn lock_inode(&self, inode: u64, generation: u64) -> Result<u64> {
        let region = self.region;
        let at = region.inode_at(inode)?;
        region.set_lane_word(self.lane, word::INODE, inode);
        region.lock(self.lane, at + attribute::LOCK)?;
        if region.memory.load(at + attribute::GENERATION) == generation {
            Ok(at)
        } else {
            region.unlock(at + attribute::LOCK);
            region.set_lane_word(self.lane, word::INODE, 0);
            Err(Error::Stale)
        }
    }

    fn write_locked(&self, at: u64, offset: u64, data: &[u8], now_ns: u64) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let region = self.region;
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= region.layout.slot_bytes)
            .ok_or(Error::TooLarge)?;
        let size = region.memory.load(at + attribute::SIZE);
        let base = self.make_room(at, size, offset, end)?;
        if offset > size {
            self.clear_gap(at, size, offset)?;
        }
        let new_size = size.max(end);
        let sequence = region.memory.load(at + attribute::SEQUENCE);
        region.memory.store(at + attribute::SEQUENCE, sequence | 1);
        let written = if data.len() as u64 <= LOG_BYTES_MAX {
            region.memory.write(region.log_at(self.lane), data);
            self.begin_bytes(base + offset, data.len() as u64, new_size, now_ns);
            let applied = region.apply_bytes(self.lane);
            region.set_lane_word(self.lane, word::STATE, doing::NOTHING);
            applied
        } else {
            region.memory.write(base + offset, data);
            self.begin_bytes(base + offset, 0, new_size, now_ns);
            let applied = region.apply_bytes(self.lane);
            region.set_lane_word(self.lane, word::STATE, doing::NOTHING);
            applied
        };
        region
            .memory
            .store(at + attribute::SEQUENCE, (sequence | 1) + 1);
        written
    }

    /// Says that the log of bytes is complete: `length` of them go to `target`.
    fn begin_bytes(&self, target: u64, length: u64, size: u64, now_ns: u64) {
        let region = self.region;
        region.set_lane_word(self.lane, word::TARGET, target);
        region.set_lane_word(self.lane, word::LENGTH, length);
        region.set_lane_word(self.lane, word::SIZE, size);
        region.set_lane_word(self.lane, word::TIME_NS, now_ns);
        region.set_lane_word(self.lane, word::STATE, doing::BYTES);
    }

    /// Makes sure that bytes `from` to `end` of the file are in memory; where the file begins.
    fn make_room(&self, at: u64, size: u64, from: u64, end: u64) -> Result<u64> {
        let region = self.region;
        let damaged = Error::Damaged {
            at,
            what: "an inode says that its bytes are where none can be",
        };
        match Place::decode(region.memory.load(at + attribute::PLACE), region).ok_or(damaged)? {
            Place::Piece { at: piece, class } if end <= piece_bytes(class) => Ok(piece),
            Place::Slot { slot } => {
                self.take_slot_pages(slot, from, end)?;
                Ok(region.layout.slot(slot))
            }
            old => match class_for(end.max(size)) {
                Some(class) => self.move_to_piece(at, size, old, class),
                None => {
                    let slot = self.move_to_slot(at, size, old)?;
                    self.take_slot_pages(slot, from, end)?;
                    Ok(region.layout.slot(slot))
                }
            },
        }
    }

    fn move_to_piece(&self, at: u64, size: u64, old: Place, class: u32) -> Result<u64> {
        let region = self.region;
        let mut words = region.begin_words(self.lane)?;
        let piece = words.take_piece(class)?;
        let kept = size.min(piece_bytes(class));
        if let Place::Piece { at: from, class } = old {
            // Nobody finds the new piece before the change is true.
            let there = kept.min(piece_bytes(class));
            region.memory.copy(from, piece, there);
            region.memory.clear(piece + there, kept - there);
            words.free_piece(from, class)?;
        } else {
            region.memory.clear(piece, kept);
        }
        self.change_place(words, at, Place::Piece { at: piece, class })?;
        Ok(piece)
    }

    fn move_to_slot(&self, at: u64, size: u64, old: Place) -> Result<u64> {
        let region = self.region;
        let mut words = region.begin_words(self.lane)?;
        let inode = region.lane_word(self.lane, word::INODE);
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
            words.free_piece(from, class)?;
        }
        self.change_place(words, at, Place::Slot { slot })?;
        Ok(slot)
    }

    /// Readers must see either the old place or the new one, and not read what becomes of the old one.
    fn change_place(
        &self,
        mut words: crate::words::Words<'_>,
        at: u64,
        place: Place,
    ) -> Result<()> {
        let region = self.region;
        words.set(at + attribute::PLACE, place.encode())?;
        let sequence = region.memory.load(at + attribute::SEQUENCE);
        region.memory.store(at + attribute::SEQUENCE, sequence | 1);
        let committed = words.commit();
        drop(words);
        region
            .memory
            .store(at + attribute::SEQUENCE, (sequence | 1) + 1);
        committed
    }

    /// Takes memory for the pages of a slot from byte `from` to `end` that are not there.
    fn take_slot_pages(&self, slot: u64, from: u64, end: u64) -> Result<()> {
        let region = self.region;
        let pages = from / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let mut page = pages.start;
        while page < pages.end {
            if region.is_present(slot, page) {
                page += 1;
                continue;
            }
            let mut words = region.begin_words(self.lane)?;
            let absent = (page..pages.end.min(page + PAGES_AT_ONCE))
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

    /// Makes bytes `size` to `offset` of the file zeros, where there is memory for them.
    fn clear_gap(&self, at: u64, size: u64, offset: u64) -> Result<()> {
        let region = self.region;
        match Place::decode(region.memory.load(at + attribute::PLACE), region) {
            Some(Place::Piece { at: piece, class }) => {
                let end = offset.min(piece_bytes(class));
                if size < end {
                    region.memory.clear(piece + size, end - size);
                }
            }
            Some(Place::Slot { slot }) => {
                let mut from = size;
                while from < offset {
                    let end = (from / PAGE_BYTES + 1) * PAGE_BYTES;
                    let end = end.min(offset);
                    if region.is_present(slot, from / PAGE_BYTES) {
                        region
                            .memory
                            .clear(region.layout.slot(slot) + from, end - from);
                    }
                    from = end;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn set_size_locked(&self, inode: u64, at: u64, size: u64, now_ns: u64) -> Result<()> {
        let region = self.region;
        if size > region.layout.slot_bytes {
            return Err(Error::TooLarge);
        }
        let old = region.memory.load(at + attribute::SIZE);
        if size > old {
            let place = Place::decode(region.memory.load(at + attribute::PLACE), region);
            let is_outgrown = match place {
                Some(Place::Nowhere) => false,
                Some(Place::Piece { class, .. }) => size > piece_bytes(class),
                _ => false,
            };
            if is_outgrown {
                self.make_room(at, old, old, size.min(old.max(1) + PAGE_BYTES))?;
            }
            self.clear_gap(at, old, size)?;
        }
        let sequence = region.memory.load(at + attribute::SEQUENCE);
        region.memory.store(at + attribute::SEQUENCE, sequence | 1);
        self.begin_bytes(region.layout.packed_at, 0, size, now_ns);
        let applied = region.apply_bytes(self.lane);
        region.set_lane_word(self.lane, word::STATE, doing::NOTHING);
        region
            .memory
            .store(at + attribute::SEQUENCE, (sequence | 1) + 1);
        applied?;
        if size < old {
            self.free_behind(inode, at, size)?;
        }
        Ok(())
    }

    /// Gives back the memory behind byte `size` of a file, which has become shorter.
    pub(crate) fn free_behind(&self, inode: u64, at: u64, size: u64) -> Result<()> {
        let region = self.region;
        match Place::decode(region.memory.load(at + attribute::PLACE), region) {
            Some(Place::Piece { at: piece, class }) if size == 0 => {
                let mut words = region.begin_words(self.lane)?;
                words.free_piece(piece, class)?;
                self.change_place(words, at, Place::Nowhere)
            }
            Some(Place::Slot { slot }) => {
                let owner = region.layout.slot_owners_at + slot * 8;
                if region.memory.load(owner) != inode {
                    return Err(Error::Damaged {
                        at: owner,
                        what: "a file has a slot that is another's",
                    });
                }
                let first = size.div_ceil(PAGE_BYTES);
                let last = region.layout.slot_bytes / PAGE_BYTES;
                let mut page = first;
                while page < last {
                    let pages = PAGES_AT_ONCE.min(last - page);
                    let present = (page..page + pages)
                        .filter(|page| region.is_present(slot, *page))
                        .count() as u64;
                    if present > 0 {
                        let mut words = region.begin_words(self.lane)?;
                        words.change_pages(slot, page, pages, false)?;
                        words.free_pages(
                            region.layout.slot(slot) + page * PAGE_BYTES,
                            pages,
                            present,
                        );
                        words.commit()?;
                    }
                    page += pages;
                }
                if size == 0 {
                    let mut words = region.begin_words(self.lane)?;
                    words.set(owner, 0)?;
                    return self.change_place(words, at, Place::Nowhere);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
