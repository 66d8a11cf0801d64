//! Memory: which file has which piece, which slot and which pages, and what the maps say of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::linux::fs::MetadataExt;

use crate::inode::attribute;
use crate::layout::{PAGE_BYTES, PIECE_CLASSES, state};
use crate::region::{Backing, Region};
use crate::space::{Place, packed, piece_bytes};

use super::names::NamesFound;
use super::{CheckReport, Kind};

/// What becomes of a file that does not agree with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its bytes cannot be found.
    Lost,
    /// Its piece is another's as well: it gets a copy of these bytes.
    Copied {
        /// Where they begin.
        at: u64,
        /// How many there are.
        bytes: u64,
    },
    /// It says that it is longer than its place: what is behind that was never there.
    Cut(u64),
}

/// A page of the packed zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageFound {
    pub(super) class: u32,
    /// Numbers of the pieces that files have.
    pub(super) taken: BTreeSet<u64>,
}

/// Who has which memory.
#[derive(Default)]
pub(super) struct SpaceFound {
    /// Files that have to give way.
    pub(super) verdicts: BTreeMap<u64, Verdict>,
    /// Pages of the packed zone that are there.
    pub(super) pages: BTreeMap<u64, PageFound>,
    /// Slots that are taken, and by whom.
    pub(super) slots: BTreeMap<u64, u64>,
    /// Pages that the pool must have; less than none when files have more than there are.
    pub(super) pool: i64,
}

struct Looker<'r, 'p> {
    region: &'r Region,
    report: &'p mut CheckReport,
    found: SpaceFound,
}

/// Compares what files have with what the maps of memory say.
pub(super) fn look(region: &Region, names: &NamesFound, report: &mut CheckReport) -> SpaceFound {
    let mut looker = Looker {
        region,
        report,
        found: SpaceFound::default(),
    };
    looker.files(names);
    looker.pages();
    looker.lists();
    looker.slots();
    looker.pool();
    looker.found
}

impl Looker<'_, '_> {
    fn files(&mut self, names: &NamesFound) {
        let layout = &self.region.layout;
        let mut pieces: BTreeMap<u64, Vec<(u64, u32, u64)>> = BTreeMap::new();
        let mut slots: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for inode in names.inodes.keys().copied() {
            let at = layout.inode(inode);
            let size = self.region.memory.load(at + attribute::SIZE);
            let place = self.region.memory.load(at + attribute::PLACE);
            let size_max = match Place::decode(place, self.region) {
                Some(Place::Nowhere) => layout.slot_bytes,
                Some(Place::Piece { at: piece, class }) => {
                    let page = (piece - layout.packed_at) / PAGE_BYTES;
                    let number = (piece - layout.packed_at) % PAGE_BYTES / piece_bytes(class);
                    pieces.entry(page).or_default().push((inode, class, number));
                    piece_bytes(class)
                }
                Some(Place::Slot { slot, .. }) => {
                    slots.entry(slot).or_default().push(inode);
                    layout.slot_bytes
                }
                None => {
                    let text = format!("the bytes of file {inode} are where none can be");
                    self.report.find(Kind::Place, at, text);
                    self.found.verdicts.insert(inode, Verdict::Lost);
                    continue;
                }
            };
            if size > size_max {
                let text = format!("file {inode} says that it is longer than its place");
                self.report.find(Kind::Place, at, text);
                self.found.verdicts.insert(inode, Verdict::Cut(size_max));
            }
        }
        for (page, claims) in pieces {
            self.decide_page(page, &claims);
        }
        for (slot, claims) in slots {
            self.decide_slot(slot, &claims);
        }
    }

    /// Files that have pieces of one page agree on how large its pieces are; where they do not, its record says so.
    fn decide_page(&mut self, page: u64, claims: &[(u64, u32, u64)]) {
        let layout = &self.region.layout;
        let first = claims[0].1;
        let said = self
            .region
            .memory
            .load(layout.packed_map(page) + packed::CLASS);
        let class = match claims.iter().all(|(_, class, _)| *class == first) {
            true => first,
            false => claims
                .iter()
                .map(|(_, class, _)| *class)
                .find(|class| u64::from(*class) + 1 == said)
                .unwrap_or(first),
        };
        let mut taken = BTreeSet::new();
        for (inode, claimed, number) in claims {
            let at = layout.inode(*inode);
            if *claimed != class {
                let text = format!("the piece of file {inode} lies across those of others");
                self.report.find(Kind::Shared, at, text);
                self.found.verdicts.insert(*inode, Verdict::Lost);
            } else if !taken.insert(*number) {
                let text = format!("the piece of file {inode} is another's as well");
                self.report.find(Kind::Shared, at, text);
                let size = self.region.memory.load(at + attribute::SIZE);
                let verdict = Verdict::Copied {
                    at: layout.packed_at + page * PAGE_BYTES + number * piece_bytes(class),
                    bytes: size.min(piece_bytes(class)),
                };
                self.found.verdicts.insert(*inode, verdict);
            }
        }
        self.found.pages.insert(page, PageFound { class, taken });
    }

    fn decide_slot(&mut self, slot: u64, claims: &[u64]) {
        let owner_at = self.region.layout.slot_owners_at + slot * 8;
        let said = self.region.memory.load(owner_at);
        let owner = *claims
            .iter()
            .find(|inode| **inode == said)
            .unwrap_or(&claims[0]);
        for inode in claims.iter().filter(|inode| **inode != owner) {
            let text = format!("the slot of file {inode} is file {owner}'s");
            let at = self.region.layout.inode(*inode);
            self.report.find(Kind::Shared, at, text);
            self.found.verdicts.insert(*inode, Verdict::Lost);
        }
        self.found.slots.insert(slot, owner);
    }

    /// Compares the records of packed pages; pages that no file uses stay where they are.
    fn pages(&mut self) {
        let layout = &self.region.layout;
        for page in 0..layout.packed_pages {
            let map = layout.packed_map(page);
            let load = |word| self.region.memory.load(map + word);
            let said = load(packed::CLASS);
            let Some(found) = self.found.pages.get(&page) else {
                match u32::try_from(said) {
                    Ok(0) => {}
                    Ok(class @ 1..=PIECE_CLASSES) => {
                        let page_found = PageFound {
                            class: class - 1,
                            taken: BTreeSet::new(),
                        };
                        self.compare_page(page, &page_found);
                        self.found.pages.insert(page, page_found);
                    }
                    _ => {
                        let text = format!("packed page {page} has pieces of no size");
                        self.report.find(Kind::Map, map, text);
                    }
                }
                continue;
            };
            let found = found.clone();
            if said != u64::from(found.class) + 1 {
                let text = format!("packed page {page} has pieces of another size than files say");
                self.report.find(Kind::Map, map, text);
            } else {
                self.compare_page(page, &found);
            }
        }
    }

    fn compare_page(&mut self, page: u64, found: &PageFound) {
        let map = self.region.layout.packed_map(page);
        let count = PAGE_BYTES / piece_bytes(found.class);
        let free = self.region.memory.load(map + packed::FREE);
        let is_right = (0..count.div_ceil(64)).all(|word| {
            let said = self.region.memory.load(map + packed::TAKEN + word * 8);
            (0..64).all(|bit| {
                let is_taken = found.taken.contains(&(word * 64 + bit));
                word * 64 + bit >= count || said >> bit & 1 == u64::from(is_taken)
            })
        });
        if !is_right || free != count - found.taken.len() as u64 {
            let text = format!("the map of packed page {page} does not agree with the files");
            self.report.find(Kind::Map, map, text);
        }
    }

    /// Follows the lists of pages with free pieces.
    fn lists(&mut self) {
        let layout = &self.region.layout;
        for class in 0..PIECE_CLASSES {
            let list_at = state::CLASS_PAGE + u64::from(class) * 8;
            let right: BTreeSet<u64> = self
                .found
                .pages
                .iter()
                .filter(|(_, found)| found.class == class && has_free(found))
                .map(|(page, _)| *page)
                .collect();
            let mut listed = HashSet::new();
            let mut before = 0;
            let mut next = self.region.memory.load(list_at);
            let mut is_right = true;
            while let Some(page) = next.checked_sub(1) {
                if !right.contains(&page) || !listed.insert(page) {
                    is_right = false;
                    break;
                }
                let map = layout.packed_map(page);
                is_right &= self.region.memory.load(map + packed::BEFORE) == before;
                before = page + 1;
                next = self.region.memory.load(map + packed::NEXT);
            }
            if !is_right || listed.len() != right.len() {
                let text = format!(
                    "the list of pages with free pieces of {} bytes does not agree with them",
                    piece_bytes(class)
                );
                self.report.find(Kind::Free, list_at, text);
            }
        }
    }

    fn slots(&mut self) {
        let layout = &self.region.layout;
        for slot in 0..layout.slot_count {
            let owner_at = layout.slot_owners_at + slot * 8;
            let owner = self.found.slots.get(&slot).copied();
            if self.region.memory.load(owner_at) != owner.unwrap_or(0) {
                let text = format!("slot {slot} is said to be another file's than it is");
                self.report.find(Kind::Map, owner_at, text);
            }
            let present = present_pages(self.region, slot);
            if owner.is_some() {
                self.report.pages_slots += present;
            } else if present > 0 {
                let text = format!("slot {slot} has {present} pages and no file");
                self.report.find(Kind::Pages, layout.slot_map(slot), text);
            }
        }
    }

    fn pool(&mut self) {
        let region = self.region;
        self.report.pages_packed = self.found.pages.len() as u64;
        let used = self.report.pages_packed + self.report.pages_slots;
        self.found.pool = region.layout.data_pages() as i64 - used as i64;
        let pool = region.memory.load(state::POOL_PAGES);
        self.report.pages_pool = pool;
        if i64::try_from(pool) != Ok(self.found.pool) {
            let text = format!(
                "{pool} pages are in the pool and {used} in use, of {}",
                region.layout.data_pages()
            );
            self.report.find(Kind::Pages, state::POOL_PAGES, text);
        }
        // Other file systems count blocks of their own.
        if region.backing() == Backing::File {
            return;
        }
        if let Ok(metadata) = region.file.metadata() {
            let bytes = metadata.st_blocks() * 512;
            if bytes != region.layout.capacity_bytes {
                let text = format!(
                    "the region has {bytes} bytes of memory instead of {}",
                    region.layout.capacity_bytes
                );
                self.report.find(Kind::Pages, 0, text);
            }
        }
    }
}

pub(super) fn has_free(found: &PageFound) -> bool {
    (found.taken.len() as u64) < PAGE_BYTES / piece_bytes(found.class)
}

/// Pages of a slot that are said to be there.
pub(super) fn present_pages(region: &Region, slot: u64) -> u64 {
    let map = region.layout.slot_map(slot);
    (0..region.layout.slot_bytes / PAGE_BYTES / 64)
        .map(|word| u64::from(region.memory.load(map + word * 8).count_ones()))
        .sum()
}
