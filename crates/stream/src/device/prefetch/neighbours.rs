//! Neighbours that wait to be read, kept compressed as they arrived, all of one message together. The memory that zstd
//! saves holds further blocks. A first start reads most arriving blocks late or never, so it need not request the same
//! blocks twice. The bundles that were read from last are also kept unpacked.
//!
//! Pure. The caller has verified the blocks that it puts here, unpacked from these very bytes.

use crate::block::{BLOCK_BYTES, BlockAt, FileId};
use crate::wire::unpack;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The maximum number of bundles that are unpacked at the same time, about 128 KiB each.
const UNPACKED_MAX: usize = 6;

/// One bundle may be unpacked for each this many pages of the pool.
const PAGES_PER_UNPACKED: usize = 128;

/// Readers that jump about have read less than one in this many blocks of the evicted bundles.
const SCATTERED_PART: u32 = 8;

/// The approximate number of bundles over which that mean is taken.
const MEAN_OF: u32 = 8;

/// The approximate bytes in tables per block, including its share of the bundle.
const ENTRY_BYTES: usize = 48;

/// The blocks of one message.
struct Bundle {
    file: FileId,
    indexes: Box<[u32]>,
    packed: Box<[u8]>,
    /// The length of each block, in bytes.
    lengths: Box<[u16]>,
    /// The unpacked unread blocks. Empty: the bundle must be unpacked.
    pages: Vec<Option<Arc<[u8]>>>,
    unread: usize,
    age: u64,
}

impl Bundle {
    fn kept_bytes(&self) -> usize {
        self.packed.len() + self.indexes.len() * ENTRY_BYTES
    }

    fn unpacked_pages(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    fn unpack(&mut self) -> bool {
        let lengths: Vec<usize> = self.lengths.iter().map(|&length| length.into()).collect();
        let Ok(bytes) = unpack(&self.packed, &lengths) else {
            return false;
        };
        let mut rest = &bytes[..];
        for length in lengths {
            let Some((block, behind)) = rest.split_at_checked(length) else {
                return false;
            };
            self.pages.push(Some(Arc::from(block)));
            rest = behind;
        }
        true
    }
}

/// The unread neighbours, in bundles.
#[derive(Default)]
pub(crate) struct Neighbours {
    bundles: HashMap<u64, Bundle>,
    /// Unread blocks: the bundle, and the position in it.
    places: HashMap<BlockAt, (u64, usize)>,
    /// The bundles, ordered by when they were last read from.
    ages: BTreeMap<u64, u64>,
    /// The unpacked bundles; the one that was read from last is at the end.
    unpacked: VecDeque<u64>,
    kept_bytes: usize,
    unpacked_pages: usize,
    next: u64,
    /// Of 1,024 blocks of recently evicted bundles, how many were read before the eviction. 0: nothing was evicted yet.
    read_of_1024: u32,
}

impl Neighbours {
    /// The number of pages of memory that they take.
    pub fn pages(&self) -> usize {
        self.kept_bytes.div_ceil(BLOCK_BYTES) + self.unpacked_pages
    }

    /// The maximum number of pages that a new bundle would take.
    pub fn pages_of(blocks: usize, packed_bytes: usize) -> usize {
        (packed_bytes + blocks * ENTRY_BYTES).div_ceil(BLOCK_BYTES) + blocks
    }

    /// The number of blocks that wait to be read.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether a block waits here to be read.
    pub fn has(&self, at: BlockAt) -> bool {
        self.places.contains_key(&at)
    }

    /// Puts the blocks of one message here, except those whose page is `None`; none of them may be here already.
    /// `pool_pages`: the pages of the whole pool.
    pub fn put(
        &mut self,
        blocks: &[BlockAt],
        mut pages: Vec<Option<Arc<[u8]>>>,
        lengths: &[usize],
        packed: &[u8],
        pool_pages: usize,
    ) {
        pages.truncate(blocks.len());
        let unread = pages.iter().flatten().count();
        let Some(first) = blocks.first().filter(|_| unread > 0) else {
            return;
        };
        let (number, age) = (self.step(), self.step());
        for (place, (at, page)) in blocks.iter().zip(&pages).enumerate() {
            if page.is_some() {
                self.places.insert(*at, (number, place));
            }
        }
        let bundle = Bundle {
            file: first.file,
            indexes: blocks.iter().map(|at| at.index).collect(),
            packed: packed.into(),
            // No block is longer than a page.
            lengths: lengths.iter().map(|&length| length as u16).collect(),
            pages,
            unread,
            age,
        };
        self.kept_bytes += bundle.kept_bytes();
        self.unpacked_pages += unread;
        self.bundles.insert(number, bundle);
        self.ages.insert(age, number);
        self.unpacked.push_back(number);
        self.pack_oldest(pool_pages);
    }

    /// Takes a block, if it is here.
    pub fn take(&mut self, at: BlockAt, pool_pages: usize) -> Option<Arc<[u8]>> {
        let (number, place) = self.places.remove(&at)?;
        let age = self.step();
        let bundle = self.bundles.get_mut(&number)?;
        self.ages.remove(&bundle.age);
        if bundle.pages.is_empty() {
            let is_whole = bundle.unpack();
            debug_assert!(is_whole, "it was unpacked before");
            // Keep only the blocks that wait to be read.
            for (index, place) in bundle.indexes.iter().zip(0..) {
                let other = BlockAt {
                    file: bundle.file,
                    index: *index,
                };
                let waits = other == at || self.places.get(&other) == Some(&(number, place));
                if let Some(page) = bundle.pages.get_mut(place)
                    && !waits
                {
                    *page = None;
                }
            }
            self.unpacked_pages += bundle.unpacked_pages();
            self.unpacked.push_back(number);
        } else if self.unpacked.back() != Some(&number) {
            self.unpacked.retain(|other| *other != number);
            self.unpacked.push_back(number);
        }
        let page = bundle.pages.get_mut(place).and_then(Option::take);
        self.unpacked_pages -= usize::from(page.is_some());
        bundle.unread -= 1;
        bundle.age = age;
        self.ages.insert(age, number);
        if bundle.unread == 0 {
            self.remove(number);
        } else {
            self.pack_oldest(pool_pages);
        }
        page
    }

    /// Whether most blocks are evicted unread, because of missing room.
    pub fn is_scattered(&self) -> bool {
        (1..1024 / SCATTERED_PART).contains(&self.read_of_1024)
    }

    /// The number of bundles.
    pub fn bundles(&self) -> usize {
        self.bundles.len()
    }

    /// Evicts the bundle that was least recently read from. Returns its unread blocks.
    pub fn drop_oldest(&mut self) -> Vec<BlockAt> {
        let Some(number) = self.ages.first_key_value().map(|(_, number)| *number) else {
            return Vec::new();
        };
        let Some(bundle) = self.bundles.get(&number) else {
            return Vec::new();
        };
        let blocks = bundle.indexes.len().max(1);
        let read_of_1024 = ((blocks - bundle.unread.min(blocks)) * 1024 / blocks) as u32;
        self.read_of_1024 = match self.read_of_1024 {
            0 => read_of_1024,
            mean => ((MEAN_OF - 1) * mean + read_of_1024) / MEAN_OF,
        }
        .max(1);
        let file = bundle.file;
        let blocks = bundle.indexes.iter().zip(0..).map(|(index, place)| {
            let index = *index;
            (BlockAt { file, index }, place)
        });
        let mut unread: Vec<(BlockAt, usize)> = blocks.collect();
        unread.retain(|(at, place)| self.places.get(at) == Some(&(number, *place)));
        for (at, _) in &unread {
            self.places.remove(at);
        }
        self.remove(number);
        unread.into_iter().map(|(at, _)| at).collect()
    }

    fn step(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // Removes a bundle of which no block waits any more.
    fn remove(&mut self, number: u64) {
        if let Some(bundle) = self.bundles.remove(&number) {
            self.kept_bytes -= bundle.kept_bytes();
            self.unpacked_pages -= bundle.unpacked_pages();
            self.ages.remove(&bundle.age);
            self.unpacked.retain(|other| *other != number);
        }
    }

    fn pack_oldest(&mut self, pool_pages: usize) {
        let unpacked_max = (pool_pages / PAGES_PER_UNPACKED).clamp(1, UNPACKED_MAX);
        while self.unpacked.len() > unpacked_max {
            let oldest = self.unpacked.pop_front();
            if let Some(bundle) = oldest.and_then(|number| self.bundles.get_mut(&number)) {
                self.unpacked_pages -= bundle.unpacked_pages();
                bundle.pages = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::pack_blocks;

    const POOL_PAGES: usize = 2048;

    fn at(index: u32) -> BlockAt {
        let file = FileId(9);
        BlockAt { file, index }
    }

    fn block(index: u32) -> Vec<u8> {
        let length = if index == 99 { 100 } else { BLOCK_BYTES };
        (0..length as u32)
            .map(|byte| (byte / 64 + index) as u8)
            .collect()
    }

    /// Puts blocks from `first` on; all except those in `without` wait to be read.
    fn put(neighbours: &mut Neighbours, first: u32, count: u32, without: &[u32]) {
        let blocks: Vec<BlockAt> = (first..first + count).map(at).collect();
        let bytes: Vec<Vec<u8>> = blocks.iter().map(|at| block(at.index)).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        let packed = pack_blocks(&slices, 1).unwrap();
        let lengths: Vec<usize> = bytes.iter().map(Vec::len).collect();
        let page = |at: &BlockAt| {
            let is_kept = !without.contains(&at.index);
            is_kept.then(|| Arc::from(block(at.index)))
        };
        let pages = blocks.iter().map(page).collect();
        neighbours.put(&blocks, pages, &lengths, &packed, POOL_PAGES);
    }

    fn is_empty(neighbours: &Neighbours) -> bool {
        let tables = neighbours.places.len() + neighbours.bundles.len() + neighbours.ages.len();
        tables + neighbours.unpacked.len() + neighbours.kept_bytes + neighbours.unpacked_pages == 0
    }

    #[test]
    fn a_neighbour_is_taken_once_packed_or_not_and_leaves_nothing() {
        let mut neighbours = Neighbours::default();
        let starts: Vec<u32> = (0..40).map(|bundle| bundle * 32 + 4).collect();
        for first in &starts {
            put(&mut neighbours, *first, 30, &[first + 1]);
        }
        assert_eq!(neighbours.len(), 40 * 29);
        assert!(neighbours.unpacked_pages <= UNPACKED_MAX * 29);
        assert!(
            neighbours.pages() < neighbours.len() / 2,
            "{} pages",
            neighbours.pages()
        );
        for offset in 0..30 {
            for first in &starts {
                let found = neighbours.take(at(first + offset), POOL_PAGES);
                let expected = (offset != 1).then(|| block(first + offset));
                assert_eq!(found.as_deref(), expected.as_deref(), "{first} {offset}");
                assert!(neighbours.take(at(first + offset), POOL_PAGES).is_none());
                assert!(neighbours.unpacked.len() <= UNPACKED_MAX);
            }
        }
        assert!(is_empty(&neighbours));
    }

    #[test]
    fn the_bundle_read_from_last_is_evicted_last() {
        let mut neighbours = Neighbours::default();
        for first in [0, 32, 64] {
            put(&mut neighbours, first, 4, &[]);
        }
        assert!(neighbours.take(at(1), POOL_PAGES).is_some());
        assert_eq!(
            neighbours.drop_oldest(),
            (32..36).map(at).collect::<Vec<_>>()
        );
        assert!(!neighbours.has(at(33)) && neighbours.has(at(65)));
        assert_eq!(
            neighbours.drop_oldest(),
            (64..68).map(at).collect::<Vec<_>>()
        );
        assert_eq!(neighbours.drop_oldest(), [0, 2, 3].map(at));
        assert_eq!(neighbours.drop_oldest(), []);
        assert!(is_empty(&neighbours));
    }
}
