//! Names: cells that are linked in chains by hash, and in a list by directory.
//!
//! A name of up to [`HEAD_BYTES`] bytes takes one cell, each further [`MORE_BYTES`] bytes one more. Positions in a
//! directory grow and are never used twice, so a listing can stop and continue, even if names are removed in between.

use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::layout::{NAME_BYTES_MAX, attribute, state};
use crate::region::Region;
use crate::words::Words;

/// Bytes of a name in its first cell.
pub(crate) const HEAD_BYTES: usize = 16;
/// Bytes in each further cell.
pub(crate) const MORE_BYTES: usize = 56;

/// Words of a name's first cell; of further ones the first word is the link and the rest holds bytes.
pub(crate) mod cell {
    /// Low half: the next cell of the name, or of the free list. High half: the inode.
    pub(crate) const LINK_INODE: u64 = 0;
    /// Low half: the directory. High half: bytes of the name.
    pub(crate) const DIRECTORY_LENGTH: u64 = 8;
    /// Low half: the hash. High half: the next first cell of its chain, plus 1.
    pub(crate) const HASH_CHAIN: u64 = 16;
    /// Neighbours in the directory, plus 1: next in the low half, previous in the high half.
    pub(crate) const NEIGHBOURS: u64 = 24;
    /// Position in the directory.
    pub(crate) const POSITION: u64 = 32;
    /// Bytes of the name.
    pub(crate) const BYTES: u64 = 48;
}

/// Bits of a cell's number in the position of an [`Entry`].
pub(crate) const CELL_BITS: u32 = 26;
const CELL_MASK: u64 = (1 << CELL_BITS) - 1;
const _: () = assert!(crate::layout::CELLS_MAX <= CELL_MASK);

const LOW: u64 = 0xffff_ffff;

pub(crate) fn low(word: u64) -> u64 {
    word & LOW
}

pub(crate) fn high(word: u64) -> u64 {
    word >> 32
}

pub(crate) fn pair(low: u64, high: u64) -> u64 {
    low | high << 32
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position; pass it to [`Writer::list`](crate::Writer::list) to continue behind it.
    pub position: u64,
    /// The inode that it names.
    pub inode: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// Checks that a name is valid for a new file.
///
/// # Errors
/// [`Error::NameTooLong`], [`Error::Invalid`].
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|byte| matches!(byte, 0 | b'/'))
    {
        return Err(Error::Invalid {
            what: "a name is neither empty nor . or .., and has no slash and no zero byte",
        });
    }
    Ok(())
}

/// Spreads names over the chains. It need not resist chosen names: a process that can write to a region can do worse to
/// it.
pub(crate) fn hash(directory: u64, name: &[u8]) -> u64 {
    u64::from(crc32c::crc32c_append(directory as u32, name))
}

/// The words of `bytes`, the last one filled with zeros.
pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// A source of words: the region as it is, or as a change will make it.
pub(crate) trait Table {
    fn word(&self, at: u64) -> u64;
    fn region(&self) -> &Region;
}

impl Table for Region {
    fn word(&self, at: u64) -> u64 {
        self.memory.load(at)
    }

    fn region(&self) -> &Region {
        self
    }
}

impl Table for Words<'_> {
    fn word(&self, at: u64) -> u64 {
        self.get(at)
    }

    fn region(&self) -> &Region {
        self.region
    }
}

fn damaged(region: &Region) -> Error {
    Error::Damaged {
        at: region.layout.cells_at,
        what: "a name leads to a cell that does not exist",
    }
}

fn cell_at(region: &Region, cell: u64) -> Result<u64> {
    if cell < region.layout.cell_count {
        Ok(region.layout.cell(cell))
    } else {
        Err(damaged(region))
    }
}

/// The name that begins in a first cell.
pub(crate) fn name_of(table: &impl Table, at: u64) -> Result<Vec<u8>> {
    let length = high(table.word(at + cell::DIRECTORY_LENGTH)) as usize;
    if length > NAME_BYTES_MAX {
        return Err(damaged(table.region()));
    }
    let mut name = Vec::with_capacity(length.next_multiple_of(8));
    for place in 0..HEAD_BYTES.min(length).div_ceil(8) as u64 {
        name.extend(table.word(at + cell::BYTES + place * 8).to_le_bytes());
    }
    let mut link = low(table.word(at + cell::LINK_INODE));
    while name.len() < length {
        let more = cell_at(
            table.region(),
            link.checked_sub(1).ok_or_else(|| damaged(table.region()))?,
        )?;
        for place in 0..MORE_BYTES.min(length - name.len()).div_ceil(8) as u64 {
            name.extend(table.word(more + 8 + place * 8).to_le_bytes());
        }
        link = low(table.word(more));
    }
    name.truncate(length);
    Ok(name)
}

/// Whether a first cell has this name. The caller has checked that the lengths are equal.
pub(crate) fn is_name(table: &impl Table, at: u64, name: &[u8]) -> Result<bool> {
    let (head, mut rest) = name.split_at(name.len().min(HEAD_BYTES));
    for (place, word) in words_of(head).enumerate() {
        if table.word(at + cell::BYTES + place as u64 * 8) != word {
            return Ok(false);
        }
    }
    let mut link = low(table.word(at + cell::LINK_INODE));
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(rest.len().min(MORE_BYTES));
        let more = cell_at(
            table.region(),
            link.checked_sub(1).ok_or_else(|| damaged(table.region()))?,
        )?;
        for (place, word) in words_of(chunk).enumerate() {
            if table.word(more + 8 + place as u64 * 8) != word {
                return Ok(false);
            }
        }
        link = low(table.word(more));
        rest = behind;
    }
    Ok(true)
}

/// The first cell of a name.
fn find(table: &impl Table, directory: u64, name: &[u8]) -> Result<Option<u64>> {
    let region = table.region();
    let hash = hash(directory, name);
    let mut next = table.word(region.layout.buckets_at + hash % region.layout.bucket_count * 8);
    // A chain of a damaged table may be a cycle.
    for _ in 0..region.layout.cell_count {
        let Some(found) = next.checked_sub(1) else {
            return Ok(None);
        };
        let at = cell_at(region, found)?;
        let hash_chain = table.word(at + cell::HASH_CHAIN);
        let directory_length = table.word(at + cell::DIRECTORY_LENGTH);
        if low(hash_chain) == hash
            && directory_length == pair(directory, name.len() as u64)
            && is_name(table, at, name)?
        {
            return Ok(Some(found));
        }
        next = high(hash_chain);
    }
    Err(damaged(region))
}

/// The number of lock-free looks at tables that change meanwhile, before the lock is taken.
const LOOKS_MAX: u32 = 1000;

impl Region {
    /// Returns what `look` sees of names at one moment. If the names change meanwhile, `look` is called again. `None`
    /// if they change all the time, or if a writer has died while changing them.
    pub(crate) fn names_at_rest<T>(
        &self,
        mut look: impl FnMut(&Self) -> Result<T>,
    ) -> Option<Result<T>> {
        for _ in 0..LOOKS_MAX {
            let before = self.memory.load(state::SEQUENCE);
            if before.is_multiple_of(2) {
                let seen = look(self);
                fence(Ordering::Acquire);
                if self.memory.load(state::SEQUENCE) == before {
                    return Some(seen);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The inode of a name. Call this only from [`names_at_rest`](Self::names_at_rest).
    pub(crate) fn look_up_now(&self, directory: u64, name: &[u8]) -> Result<u64> {
        let found = find(self, directory, name)?.ok_or(Error::NotFound)?;
        Ok(high(
            self.memory.load(cell_at(self, found)? + cell::LINK_INODE),
        ))
    }

    /// Returns a name of an inode in a directory. Call this only from [`names_at_rest`](Self::names_at_rest). Walks all
    /// names of the directory.
    pub(crate) fn name_now(&self, directory: u64, inode: u64) -> Result<Vec<u8>> {
        let mut next = self
            .memory
            .load(self.inode_at(directory)? + attribute::FIRST_CELL);
        for _ in 0..=self.layout.cell_count {
            let Some(found) = next.checked_sub(1) else {
                return Err(Error::NotFound);
            };
            let at = cell_at(self, found)?;
            if high(self.memory.load(at + cell::LINK_INODE)) == inode {
                return name_of(self, at);
            }
            next = low(self.memory.load(at + cell::NEIGHBOURS));
        }
        Err(damaged(self))
    }
}

impl Words<'_> {
    /// Makes a name of a directory refer to another inode.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn change_name(&mut self, directory: u64, name: &[u8], inode: u64) -> Result<()> {
        let found = find(self, directory, name)?.ok_or(Error::NotFound)?;
        let at = cell_at(self.region, found)? + cell::LINK_INODE;
        self.change(at, |word| pair(low(word), inode))
    }

    /// The inode of a name.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn look_up(&self, directory: u64, name: &[u8]) -> Result<u64> {
        let found = find(self, directory, name)?.ok_or(Error::NotFound)?;
        Ok(high(
            self.get(cell_at(self.region, found)? + cell::LINK_INODE),
        ))
    }

    fn take_cell(&mut self) -> Result<u64> {
        let free = self.get(state::FREE_CELL);
        let taken = if let Some(taken) = free.checked_sub(1) {
            let next = low(self.get(cell_at(self.region, taken)? + cell::LINK_INODE));
            self.set(state::FREE_CELL, next)?;
            taken
        } else {
            let fresh = self.get(state::FRESH_CELL);
            if fresh >= self.region.layout.cell_count {
                return Err(Error::TablesFull);
            }
            self.set(state::FRESH_CELL, fresh + 1)?;
            fresh
        };
        self.change(state::CELLS, |count| count.wrapping_add(1))?;
        Ok(taken)
    }

    fn free_cell(&mut self, freed: u64) -> Result<()> {
        let next = self.get(state::FREE_CELL);
        let at = cell_at(self.region, freed)?;
        self.set(at + cell::LINK_INODE, next)?;
        // A listing that stopped at this cell must not continue from here.
        self.set(at + cell::DIRECTORY_LENGTH, 0)?;
        self.set(state::FREE_CELL, freed + 1)?;
        self.change(state::CELLS, |count| count.saturating_sub(1))
    }

    /// Gives an inode a name that the directory does not have.
    ///
    /// # Errors
    /// [`Error::TablesFull`].
    pub(crate) fn add_name(&mut self, directory: u64, name: &[u8], inode: u64) -> Result<()> {
        let layout = self.region.layout;
        let directory_at = self.region.inode_at(directory)?;
        let (head, rest) = name.split_at(name.len().min(HEAD_BYTES));
        // Backwards, so that each cell can link to the next.
        let mut link = 0;
        let chunks: Vec<&[u8]> = rest.chunks(MORE_BYTES).collect();
        for chunk in chunks.into_iter().rev() {
            let more = self.take_cell()?;
            let at = cell_at(self.region, more)?;
            self.set(at, link)?;
            for (place, word) in words_of(chunk).enumerate() {
                self.set(at + 8 + place as u64 * 8, word)?;
            }
            link = more + 1;
        }
        let first = self.take_cell()?;
        let at = cell_at(self.region, first)?;
        let hash = hash(directory, name);
        let bucket_at = layout.buckets_at + hash % layout.bucket_count * 8;
        let last = self.get(directory_at + attribute::LAST_CELL);
        let position = self
            .get(directory_at + attribute::NEXT_POSITION)
            .wrapping_add(1);
        for (word, value) in [
            (cell::LINK_INODE, pair(link, inode)),
            (cell::DIRECTORY_LENGTH, pair(directory, name.len() as u64)),
            (cell::HASH_CHAIN, pair(hash, self.get(bucket_at))),
            (cell::NEIGHBOURS, pair(0, last)),
            (cell::POSITION, position),
        ] {
            self.set(at + word, value)?;
        }
        for (place, word) in words_of(head).enumerate() {
            self.set(at + cell::BYTES + place as u64 * 8, word)?;
        }
        self.set(bucket_at, first + 1)?;
        match last.checked_sub(1) {
            Some(last) => {
                let last_at = cell_at(self.region, last)? + cell::NEIGHBOURS;
                self.change(last_at, |word| pair(first + 1, high(word)))?;
            }
            None => self.set(directory_at + attribute::FIRST_CELL, first + 1)?,
        }
        self.set(directory_at + attribute::LAST_CELL, first + 1)?;
        self.set(directory_at + attribute::NEXT_POSITION, position)?;
        self.change(directory_at + attribute::ENTRIES, |count| {
            count.wrapping_add(1)
        })
    }

    /// Removes a name. Returns the inode that it named.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub(crate) fn remove_name(&mut self, directory: u64, name: &[u8]) -> Result<u64> {
        let layout = self.region.layout;
        let directory_at = self.region.inode_at(directory)?;
        let first = find(self, directory, name)?.ok_or(Error::NotFound)?;
        let at = cell_at(self.region, first)?;
        // Unlink it from the chain.
        let hash_chain = self.get(at + cell::HASH_CHAIN);
        let bucket_at = layout.buckets_at + low(hash_chain) % layout.bucket_count * 8;
        let head = self.get(bucket_at);
        if head == first + 1 {
            self.set(bucket_at, high(hash_chain))?;
        } else {
            // No cycle: the search has passed here.
            let mut before = cell_at(self.region, head.wrapping_sub(1))?;
            while high(self.get(before + cell::HASH_CHAIN)) != first + 1 {
                let next = high(self.get(before + cell::HASH_CHAIN));
                before = cell_at(self.region, next.wrapping_sub(1))?;
            }
            self.change(before + cell::HASH_CHAIN, |word| {
                pair(low(word), high(hash_chain))
            })?;
        }
        // Unlink it from the directory.
        let neighbours = self.get(at + cell::NEIGHBOURS);
        let (next, before) = (low(neighbours), high(neighbours));
        match next.checked_sub(1) {
            Some(next) => {
                let next_at = cell_at(self.region, next)? + cell::NEIGHBOURS;
                self.change(next_at, |word| pair(low(word), before))?;
            }
            None => self.set(directory_at + attribute::LAST_CELL, before)?,
        }
        match before.checked_sub(1) {
            Some(before) => {
                let before_at = cell_at(self.region, before)? + cell::NEIGHBOURS;
                self.change(before_at, |word| pair(next, high(word)))?;
            }
            None => self.set(directory_at + attribute::FIRST_CELL, next)?,
        }
        self.change(directory_at + attribute::ENTRIES, |count| {
            count.saturating_sub(1)
        })?;
        let link_inode = self.get(at + cell::LINK_INODE);
        self.free_cell(first)?;
        let mut link = low(link_inode);
        for _ in 0..(name.len().saturating_sub(HEAD_BYTES)).div_ceil(MORE_BYTES) {
            let more = link.checked_sub(1).ok_or_else(|| damaged(self.region))?;
            link = low(self.get(cell_at(self.region, more)?));
            self.free_cell(more)?;
        }
        Ok(high(link_inode))
    }
}

/// Returns up to `entries_max` entries of a directory behind `position`. Names that are added or removed between two
/// calls may or may not be listed. All other names are listed exactly once.
///
/// # Errors
/// [`Error::Damaged`].
pub(crate) fn entries(
    table: &impl Table,
    directory: u64,
    position: u64,
    entries_max: usize,
) -> Result<Vec<Entry>> {
    let region = table.region();
    let mut entries = Vec::new();
    let (behind, cell) = (position >> CELL_BITS, position & CELL_MASK);
    let mut next = table.word(region.inode_at(directory)? + attribute::FIRST_CELL);
    // Continue at the cell where the last call stopped, if that name still exists.
    if behind != 0
        && let Ok(at) = cell_at(region, cell)
        && table.word(at + cell::POSITION) == behind
        && low(table.word(at + cell::DIRECTORY_LENGTH)) == directory
    {
        next = low(table.word(at + cell::NEIGHBOURS));
    }
    for _ in 0..=region.layout.cell_count {
        let Some(found) = next.checked_sub(1).filter(|_| entries.len() < entries_max) else {
            return Ok(entries);
        };
        let at = cell_at(region, found)?;
        let found_position = table.word(at + cell::POSITION);
        if found_position > behind {
            entries.push(Entry {
                position: found_position << CELL_BITS | found,
                inode: high(table.word(at + cell::LINK_INODE)),
                name: name_of(table, at)?,
            });
        }
        next = low(table.word(at + cell::NEIGHBOURS));
    }
    Err(damaged(region))
}
