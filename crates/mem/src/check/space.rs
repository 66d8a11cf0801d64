//! Memory: which file has which piece, slot and pages, and what the maps say.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;

use crate::layout::{PAGE_BYTES, PIECE_CLASSES, attribute, state};
use crate::region::{Backing, Region};
use crate::space::{Place, packed, piece_bytes};

use super::list::follow;
use super::names::NamesFound;
use super::report::{CheckReport, Kind};

/// The repair of a file that conflicts with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its bytes cannot be found.
    Lost,
    /// Its piece is also used by another file: it gets a copy of these bytes.
    Copied {
        /// Offset of the first byte.
        at: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Its size is larger than its place: the bytes behind that never existed.
    Cut(u64),
}

/// A page of the packed zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageFound {
    pub(super) class: u32,
    /// Numbers of the pieces that files use.
    pub(super) taken: BTreeSet<u64>,
}

/// The owners of all memory.
#[derive(Default)]
pub(super) struct SpaceFound {
    /// Files that must be changed.
    pub(super) verdicts: BTreeMap<u64, Verdict>,
    /// Pages of the packed zone that exist.
    pub(super) pages: BTreeMap<u64, PageFound>,
    /// Slots that are taken, with their owners.
    pub(super) slots: BTreeMap<u64, u64>,
    /// Pages that the pool must have; negative if files have more pages than exist.
    pub(super) pool: i64,
    /// Pages of slots that exist although their maps say otherwise.
    pub(super) unmapped: Vec<(u64, u64)>,
    /// Files that name a piece that another file names, too.
    shared: BTreeSet<u64>,
    /// Losses, for the repair.
    pub(super) losses: Vec<String>,
}

struct Looker<'r, 'p> {
    region: &'r Region,
    report: &'p mut CheckReport,
    found: SpaceFound,
}

/// Compares the places of files with the maps of memory.
pub(super) fn look(region: &Region, names: &NamesFound, report: &mut CheckReport) -> SpaceFound {
    let mut looker = Looker {
        region,
        report,
        found: SpaceFound::default(),
    };
    looker.files(names);
    looker.forgotten(names);
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

    /// Files with pieces in one page must agree on the size of its pieces; if they do not, the page's record decides.
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
                let both = claims.iter().filter(|claim| claim.2 == *number);
                self.found.shared.extend(both.map(|claim| claim.0));
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

    /// Memory that the tables give to a file, but that no file uses: some file has lost its place. Which one is not
    /// known. The files are named for which only their own inode says where their bytes are.
    fn forgotten(&mut self, names: &NamesFound) {
        let region = self.region;
        let layout = &region.layout;
        let load = |at| region.memory.load(at);
        let has_forgotten_slot = (0..layout.slot_count).any(|slot| {
            !self.found.slots.contains_key(&slot)
                && load(layout.slot_owners_at + slot * 8) != 0
                && present_pages(region, slot) > 0
        });
        let no_file = BTreeSet::new();
        let has_forgotten_piece = (0..layout.packed_pages).any(|page| {
            let map = layout.packed_map(page);
            let Some(class) = load(map + packed::CLASS).checked_sub(1) else {
                return false;
            };
            if class >= u64::from(PIECE_CLASSES) {
                return false;
            }
            let count = PAGE_BYTES / piece_bytes(class as u32);
            let words = 0..count.div_ceil(64);
            let said: Vec<u64> = words
                .map(|word| load(map + packed::TAKEN + word * 8))
                .collect();
            let taken_count: u64 = said.iter().map(|word| u64::from(word.count_ones())).sum();
            let taken = self.found.pages.get(&page).map_or(&no_file, |it| &it.taken);
            let mut numbers = 0..count;
            // Skip a page whose counts do not match: a wrongly set bit is no forgotten piece.
            taken_count.checked_add(load(map + packed::FREE)) == Some(count)
                && numbers.any(|number| {
                    said[number as usize / 64] >> (number % 64) & 1 == 1 && !taken.contains(&number)
                })
        });
        if !has_forgotten_slot && !has_forgotten_piece {
            return;
        }
        for inode in names.inodes.keys().copied() {
            let at = layout.inode(inode);
            let size = load(at + attribute::SIZE);
            let is_vouched_for = match Place::decode(load(at + attribute::PLACE), region) {
                Some(Place::Slot { slot, .. }) => load(layout.slot_owners_at + slot * 8) == inode,
                Some(Place::Piece { at: piece, class }) => {
                    let page = (piece - layout.packed_at) / PAGE_BYTES;
                    let number = (piece - layout.packed_at) % PAGE_BYTES / piece_bytes(class);
                    let map = layout.packed_map(page);
                    let word = load(map + packed::TAKEN + number / 64 * 8);
                    load(map + packed::CLASS) == u64::from(class) + 1
                        && word >> (number % 64) & 1 == 1
                }
                Some(Place::Nowhere) | None => false,
            };
            let is_lost = matches!(
                self.found.verdicts.get(&inode),
                Some(Verdict::Lost | Verdict::Cut(_))
            );
            let is_suspect = !is_vouched_for || self.found.shared.contains(&inode);
            if size > 0 && is_suspect && !is_lost {
                self.found.losses.push(format!(
                    "file {inode}: perhaps its bytes: memory of some file has no owner"
                ));
            }
        }
    }

    /// Compares the records of packed pages; pages without a file stay in place.
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
            let mut before = 0;
            let mut is_right = true;
            let (listed, is_whole) = follow(self.region.memory.load(list_at), |page| {
                if !right.contains(&page) {
                    return None;
                }
                let map = layout.packed_map(page);
                is_right &= self.region.memory.load(map + packed::BEFORE) == before;
                before = page + 1;
                Some(self.region.memory.load(map + packed::NEXT))
            });
            if !is_whole || !is_right || listed.len() != right.len() {
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

    /// Finds pages that the maps of slots leave out. If the kernel says which memory exists, each page is found. On
    /// huge pages only their existence is known.
    fn unmapped(&mut self) {
        let region = self.region;
        let layout = &region.layout;
        let is_known = region.backing() != Backing::HugePages;
        let said = region.memory.load(state::POOL_PAGES);
        let tables = self.report.pages_packed + self.report.pages_slots;
        if !is_known && said.saturating_add(tables) >= layout.data_pages() {
            return;
        }
        for (slot, inode) in &self.found.slots {
            let begin = layout.slot(*slot);
            if !is_known {
                let size = region
                    .memory
                    .load(layout.inode(*inode) + attribute::SIZE)
                    .min(layout.slot_bytes);
                let has_hole =
                    (0..size.div_ceil(PAGE_BYTES)).any(|page| !region.is_present(*slot, page));
                if has_hole {
                    self.found.losses.push(format!(
                        "file {inode}: perhaps bytes where it has holes: memory of some file has no owner"
                    ));
                }
                continue;
            }
            let mut at = begin;
            while let Some(data) = next_data(region, at, begin + layout.slot_bytes) {
                let page = (data - begin) / PAGE_BYTES;
                if !region.is_present(*slot, page) {
                    self.found.unmapped.push((*slot, page));
                    let text = format!("the map of slot {slot} leaves out page {page}");
                    self.report.find(Kind::Map, layout.slot_map(*slot), text);
                }
                at = begin + (page + 1) * PAGE_BYTES;
            }
        }
    }

    fn pool(&mut self) {
        let region = self.region;
        self.report.pages_packed = self.found.pages.len() as u64;
        self.unmapped();
        self.report.pages_slots += self.found.unmapped.len() as u64;
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
        // Other file systems count additional blocks of their own.
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

/// Names the files whose memory lay behind the end of a region's file that was cut.
pub(super) fn lose_behind(
    region: &Region,
    cut_at: u64,
    names: &NamesFound,
    report: &mut CheckReport,
) {
    let layout = &region.layout;
    for inode in names.inodes.keys() {
        let place = region.memory.load(layout.inode(*inode) + attribute::PLACE);
        let is_cut = match Place::decode(place, region) {
            Some(Place::Piece { at, class }) => at + piece_bytes(class) > cut_at,
            Some(Place::Slot { slot, .. }) => {
                let kept = cut_at.saturating_sub(layout.slot(slot)) / PAGE_BYTES;
                (kept..layout.slot_bytes / PAGE_BYTES).any(|page| region.is_present(slot, page))
            }
            Some(Place::Nowhere) | None => false,
        };
        if is_cut {
            report.lose(format!(
                "file {inode}: what of it lay behind the end of the region's file is zeros now"
            ));
        }
    }
}

/// The next offset at which the kernel has memory.
fn next_data(region: &Region, from: u64, end: u64) -> Option<u64> {
    // SAFETY: plain numbers and an open descriptor, whose position no other code uses.
    let found = unsafe {
        libc::lseek64(
            region.file.as_raw_fd(),
            from as libc::off64_t,
            libc::SEEK_DATA,
        )
    };
    u64::try_from(found).ok().filter(|found| *found < end)
}

pub(super) fn has_free(found: &PageFound) -> bool {
    (found.taken.len() as u64) < PAGE_BYTES / piece_bytes(found.class)
}

/// The number of pages of a slot that its map marks as present.
pub(super) fn present_pages(region: &Region, slot: u64) -> u64 {
    let map = region.layout.slot_map(slot);
    (0..region.layout.slot_bytes / PAGE_BYTES / 64)
        .map(|word| u64::from(region.memory.load(map + word * 8).count_ones()))
        .sum()
}
