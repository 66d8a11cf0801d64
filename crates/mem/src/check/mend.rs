//! Rebuilding the tables from the names and files that were found.
//!
//! A process that dies while mending leaves the region as damaged as before, or less: the next process mends it again.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{Result, system_error};
use crate::layout::{PAGE_BYTES, PIECE_CLASSES, attribute, state};
use crate::memory::{give_back_pages, take_pages};
use crate::names::{HEAD_BYTES, MORE_BYTES, cell, hash, pair, words_of};
use crate::node::{Node, ROOT_INODE};
use crate::region::Region;
use crate::space::{Place, packed, piece_bytes};
use crate::writer::Writer;

use super::names::{GENERATION_MAX, NameFound, NamesFound};
use super::report::CheckReport;
use super::space::{SpaceFound, Verdict, has_free, present_pages};

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Bytes that a file gets after the tables are rebuilt.
pub(super) struct Copy {
    inode: u64,
    generation: u64,
    bytes: Vec<u8>,
}

/// Rebuilds the tables. The caller holds the lock of names and space.
///
/// # Errors
/// [`Error::System`](crate::Error::System) when the kernel has no memory for the files' pages.
pub(super) fn mend(
    region: &Region,
    names: &NamesFound,
    space: &SpaceFound,
    report: &mut CheckReport,
) -> Result<Vec<Copy>> {
    let sequence = region.memory.load(state::SEQUENCE) | 1;
    region.memory.store(state::SEQUENCE, sequence);
    for loss in names.losses.iter().chain(&space.losses) {
        report.lose(loss);
    }
    let copies = give_way(region, space, report);
    mend_names(region, names, report);
    let mended = mend_space(region, space);
    region
        .memory
        .store(state::SEQUENCE, sequence.wrapping_add(1));
    region.memory.persist([(0, region.layout.metadata_bytes)]);
    mended.map(|()| copies)
}

/// Writes the copies.
pub(super) fn give_copies(writer: &Writer<'_>, copies: Vec<Copy>, report: &mut CheckReport) {
    for copy in copies {
        let now_ns = crate::now_ns();
        let written = writer.write(copy.inode, copy.generation, 0, &copy.bytes, now_ns);
        if let Err(error) = written {
            report.lose(format!("file {}: its bytes: {error}", copy.inode));
        }
    }
}

/// Removes from files the space that they cannot have.
fn give_way(region: &Region, space: &SpaceFound, report: &mut CheckReport) -> Vec<Copy> {
    let mut copies = Vec::new();
    for (inode, verdict) in &space.verdicts {
        let at = region.layout.inode(*inode);
        let store = |word, value| region.memory.store(at + word, value);
        // Readers wait as long as this number is odd.
        let sequence = region.memory.load(at + attribute::SEQUENCE) | 1;
        store(attribute::SEQUENCE, sequence);
        match verdict {
            Verdict::Cut(size) => {
                store(attribute::SIZE, *size);
                report.lose(format!("file {inode}: it is {size} bytes long now"));
            }
            Verdict::Lost => {
                store(attribute::PLACE, Place::Nowhere.encode());
                store(attribute::SIZE, 0);
                report.lose(format!("file {inode}: its bytes"));
            }
            Verdict::Copied {
                at: from,
                bytes: count,
            } => {
                let mut bytes = vec![0; *count as usize];
                region.memory.read(*from, &mut bytes);
                store(attribute::PLACE, Place::Nowhere.encode());
                store(attribute::SIZE, 0);
                copies.push(Copy {
                    inode: *inode,
                    generation: region.memory.load(at + attribute::GENERATION),
                    bytes,
                });
            }
        }
        store(attribute::SEQUENCE, sequence.wrapping_add(1));
    }
    copies
}

fn mend_names(region: &Region, found: &NamesFound, report: &mut CheckReport) {
    let mut inodes = found.inodes.clone();
    let mut names = found.names.clone();
    let mut parents = found.parents.clone();
    if !found.lost.is_empty() {
        adopt(region, found, &mut inodes, &mut names, &mut parents, report);
    }
    let store = |at, value| region.memory.store(at, value);
    let highest = inodes.keys().next_back().copied().unwrap_or(ROOT_INODE);
    let generation_of = |inode: &u64| {
        region
            .memory
            .load(region.layout.inode(*inode) + attribute::GENERATION)
    };
    let sane = |generation: &u64| *generation <= GENERATION_MAX;
    let mut newest = inodes
        .keys()
        .map(generation_of)
        .chain([region.memory.load(state::GENERATION)])
        .filter(sane)
        .max()
        .unwrap_or(0);
    let mut links: HashMap<u64, u64> = HashMap::new();
    for name in &names {
        let counts = match inodes[&name.inode] {
            true => name.directory,
            false => name.inode,
        };
        *links.entry(counts).or_default() += 1;
    }
    for (inode, is_directory) in &inodes {
        let at = region.layout.inode(*inode);
        let generation = generation_of(inode);
        // A new directory may have no generation yet.
        if *inode == ROOT_INODE {
            store(at + attribute::GENERATION, Node::ROOT.generation);
        } else if generation == 0 || !sane(&generation) {
            newest += 1;
            store(at + attribute::GENERATION, newest);
        }
        let mode = region.memory.load(at + attribute::MODE_LINKS) as u32;
        let said = mode & !0o7777;
        let kind = match (*is_directory, said) {
            (true, _) => libc::S_IFDIR,
            (false, kind @ (libc::S_IFREG | libc::S_IFLNK)) => kind,
            (false, _) => libc::S_IFREG,
        };
        let mut permissions = mode & 0o7777;
        if kind != said {
            // The damage of the type may also have damaged the permissions.
            permissions &= 0o777;
            permissions |= match *is_directory {
                true => 0o700,
                false => 0o600,
            };
            if permissions != mode & 0o7777 {
                report.lose(format!(
                    "file {inode}: its permissions; they are {permissions:04o} now"
                ));
            }
        }
        let links = links.get(inode).copied().unwrap_or(0) + 2 * u64::from(*is_directory);
        store(
            at + attribute::MODE_LINKS,
            pair(u64::from(kind | permissions), links),
        );
        store(
            at + attribute::PARENT,
            parents.get(inode).copied().unwrap_or(ROOT_INODE),
        );
    }
    store(state::GENERATION, newest);
    store(state::INODES, inodes.len() as u64);
    store(state::FRESH_INODE, highest + 1);
    let mut free = 0;
    for inode in (1..=highest).filter(|inode| !inodes.contains_key(inode)) {
        let at = region.layout.inode(inode);
        store(at + attribute::GENERATION, 0);
        store(at + attribute::PARENT, free);
        free = inode + 1;
    }
    store(state::FREE_INODE, free);
    mend_orphans(region, found);
    let lost = mend_cells(region, &inodes, &names);
    for name in lost {
        let name = String::from_utf8_lossy(&name.name).into_owned();
        report.lose(format!("the name {name}: there is no room for it"));
    }
}

fn mend_orphans(region: &Region, found: &NamesFound) {
    let mut next = 0;
    for inode in &found.orphans {
        let at = region.layout.inode(*inode);
        region.memory.store(at + attribute::NEXT_ORPHAN, next);
        region.memory.store(at + attribute::ORPHAN_BEFORE, 0);
        if let Some(next) = next.checked_sub(1) {
            let next_at = region.layout.inode(next);
            region
                .memory
                .store(next_at + attribute::ORPHAN_BEFORE, inode + 1);
        }
        next = inode + 1;
    }
    region.memory.store(state::FIRST_ORPHAN, next);
    region
        .memory
        .store(state::ORPHANS, found.orphans.len() as u64);
}

/// Gives each file without a name a name in `lost+found`.
fn adopt(
    region: &Region,
    found: &NamesFound,
    inodes: &mut BTreeMap<u64, bool>,
    names: &mut Vec<NameFound>,
    parents: &mut HashMap<u64, u64>,
    report: &mut CheckReport,
) {
    let known = names
        .iter()
        .find(|name| name.directory == ROOT_INODE && name.name == LOST_AND_FOUND);
    let home = match known {
        Some(known) if inodes.get(&known.inode) == Some(&true) => known.inode,
        // A file has that name: use the root instead.
        Some(_) => ROOT_INODE,
        None => {
            let free =
                (ROOT_INODE + 1..region.layout.inode_count).find(|it| !inodes.contains_key(it));
            if let Some(inode) = free {
                new_directory(region, inode);
                inodes.insert(inode, true);
                parents.insert(inode, ROOT_INODE);
                names.push(NameFound {
                    directory: ROOT_INODE,
                    name: LOST_AND_FOUND.to_vec(),
                    inode,
                    position: u64::MAX,
                });
            }
            free.unwrap_or(ROOT_INODE)
        }
    };
    let taken: HashSet<Vec<u8>> = names
        .iter()
        .filter(|name| name.directory == home)
        .map(|name| name.name.clone())
        .collect();
    for inode in &found.lost {
        let plain = format!("file-{inode}");
        let name = (0..)
            .map(|number| match number {
                0 => plain.clone(),
                number => format!("{plain}-{number}"),
            })
            .map(String::into_bytes)
            .find(|name| !taken.contains(name));
        report.lose(format!("file {inode}: its name; it is in lost+found"));
        if inodes[inode] {
            parents.insert(*inode, home);
        }
        names.push(NameFound {
            directory: home,
            name: name.unwrap_or_default(),
            inode: *inode,
            position: u64::MAX,
        });
    }
}

fn new_directory(region: &Region, inode: u64) {
    let at = region.layout.inode(inode);
    let root = region.layout.inode(ROOT_INODE);
    let load = |word| region.memory.load(root + word);
    for (word, value) in [
        (attribute::SIZE, 0),
        (attribute::PLACE, 0),
        (attribute::LOCK, 0),
        (attribute::MODIFIED_NS, load(attribute::MODIFIED_NS)),
        (attribute::CHANGED_NS, load(attribute::CHANGED_NS)),
        (attribute::ACCESSED_NS, load(attribute::ACCESSED_NS)),
        // It gets a generation together with the other inodes that have none.
        (attribute::GENERATION, 0),
        (attribute::MODE_LINKS, u64::from(libc::S_IFDIR | 0o700_u32)),
        (attribute::OWNER, load(attribute::OWNER)),
        (attribute::HAS_STUB, 0),
    ] {
        region.memory.store(at + word, value);
    }
}

/// Writes all names into cells from the first cell on. Returns the names for which there are not enough cells.
fn mend_cells<'n>(
    region: &Region,
    inodes: &BTreeMap<u64, bool>,
    names: &'n [NameFound],
) -> Vec<&'n NameFound> {
    let layout = &region.layout;
    let store = |at, value| region.memory.store(at, value);
    for bucket in 0..layout.bucket_count {
        store(layout.buckets_at + bucket * 8, 0);
    }
    // Per directory: first, last, count, position.
    let mut lists: HashMap<u64, (u64, u64, u64, u64)> = HashMap::new();
    let mut fresh = 0;
    let mut lost = Vec::new();
    for name in names {
        let (head, rest) = name.name.split_at(name.name.len().min(HEAD_BYTES));
        let more = rest.len().div_ceil(MORE_BYTES) as u64;
        if fresh + 1 + more > layout.cell_count {
            lost.push(name);
            continue;
        }
        let first = fresh;
        fresh += 1 + more;
        for (number, chunk) in (1..).zip(rest.chunks(MORE_BYTES)) {
            let at = layout.cell(first + number);
            store(
                at,
                if number == more {
                    0
                } else {
                    first + number + 2
                },
            );
            for (place, word) in words_of(chunk).enumerate() {
                store(at + 8 + place as u64 * 8, word);
            }
        }
        let at = layout.cell(first);
        let hash = hash(name.directory, &name.name);
        let bucket_at = layout.buckets_at + hash % layout.bucket_count * 8;
        let list = lists.entry(name.directory).or_default();
        let position = list.3 + 1;
        let link = if more == 0 { 0 } else { first + 2 };
        for (word, value) in [
            (cell::LINK_INODE, pair(link, name.inode)),
            (
                cell::DIRECTORY_LENGTH,
                pair(name.directory, name.name.len() as u64),
            ),
            (cell::HASH_CHAIN, pair(hash, region.memory.load(bucket_at))),
            (cell::NEIGHBOURS, pair(0, list.1)),
            (cell::POSITION, position),
        ] {
            store(at + word, value);
        }
        for (place, word) in words_of(head).enumerate() {
            store(at + cell::BYTES + place as u64 * 8, word);
        }
        store(bucket_at, first + 1);
        match list.1.checked_sub(1) {
            Some(last) => {
                let last_at = layout.cell(last) + cell::NEIGHBOURS;
                let before = region.memory.load(last_at) >> 32;
                store(last_at, pair(first + 1, before));
            }
            None => list.0 = first + 1,
        }
        *list = (list.0, first + 1, list.2 + 1, position);
    }
    for inode in inodes
        .iter()
        .filter_map(|(inode, is_directory)| is_directory.then_some(inode))
    {
        let at = layout.inode(*inode);
        let list = lists.get(inode).copied().unwrap_or_default();
        store(at + attribute::FIRST_CELL, list.0);
        store(at + attribute::LAST_CELL, list.1);
        store(at + attribute::ENTRIES, list.2);
        store(at + attribute::NEXT_POSITION, list.3);
    }
    store(state::FREE_CELL, 0);
    store(state::FRESH_CELL, fresh);
    store(state::CELLS, fresh);
    lost
}

fn mend_space(region: &Region, space: &SpaceFound) -> Result<()> {
    let layout = &region.layout;
    let store = |at, value| region.memory.store(at, value);
    let mut lists = [0; PIECE_CLASSES as usize];
    for page in 0..layout.packed_pages {
        let map = layout.packed_map(page);
        let Some(found) = space.pages.get(&page) else {
            store(map + packed::CLASS, 0);
            continue;
        };
        let count = PAGE_BYTES / piece_bytes(found.class);
        store(map + packed::CLASS, u64::from(found.class) + 1);
        store(map + packed::FREE, count - found.taken.len() as u64);
        for word in 0..count.div_ceil(64) {
            let bits = (0..64)
                .filter(|bit| found.taken.contains(&(word * 64 + bit)))
                .fold(0_u64, |bits, bit| bits | 1 << bit);
            store(map + packed::TAKEN + word * 8, bits);
        }
        store(map + packed::NEXT, 0);
        store(map + packed::BEFORE, 0);
        if has_free(found) {
            let list: &mut u64 = &mut lists[found.class as usize];
            store(map + packed::NEXT, *list);
            if let Some(next) = list.checked_sub(1) {
                store(layout.packed_map(next) + packed::BEFORE, page + 1);
            }
            *list = page + 1;
        }
    }
    for (class, first) in lists.into_iter().enumerate() {
        store(state::CLASS_PAGE + class as u64 * 8, first);
    }
    for slot in 0..layout.slot_count {
        let owner = space.slots.get(&slot).copied();
        store(layout.slot_owners_at + slot * 8, owner.unwrap_or(0));
        if owner.is_none() && present_pages(region, slot) > 0 {
            clear_slot_map(region, slot, 0);
        }
    }
    for (slot, page) in &space.unmapped {
        let word = layout.slot_map(*slot) + page / 64 * 8;
        store(word, region.memory.load(word) | 1 << (page % 64));
    }
    if space.pool < 0 {
        // Files have more pages than exist: pages behind their ends cannot be theirs.
        for (slot, inode) in &space.slots {
            let size = region.memory.load(layout.inode(*inode) + attribute::SIZE);
            clear_slot_map(region, *slot, size.div_ceil(PAGE_BYTES));
        }
    }
    let used: u64 = space
        .slots
        .keys()
        .map(|slot| present_pages(region, *slot))
        .sum();
    let used = used + space.pages.len() as u64;
    let pool = layout.data_pages().saturating_sub(used);
    store(state::POOL_PAGES, pool);
    mend_memory(region, space, pool)
}

/// Marks the pages of a slot from `first` on as missing.
fn clear_slot_map(region: &Region, slot: u64, first: u64) {
    let map = region.layout.slot_map(slot);
    for word in 0..region.layout.slot_bytes / PAGE_BYTES / 64 {
        let kept = first.saturating_sub(word * 64).min(64);
        let mask = if kept == 64 {
            u64::MAX
        } else {
            (1 << kept) - 1
        };
        let bits = region.memory.load(map + word * 8);
        if bits & mask != bits {
            region.memory.store(map + word * 8, bits & mask);
        }
    }
}

/// Allocates memory where the tables say that it is, after freeing it everywhere else.
fn mend_memory(region: &Region, space: &SpaceFound, pool: u64) -> Result<()> {
    let layout = &region.layout;
    let mut is_there = vec![(0, layout.metadata_bytes / PAGE_BYTES)];
    let mut put = |page: u64| match is_there.last_mut() {
        Some((first, count)) if *first + *count == page => *count += 1,
        _ => is_there.push((page, 1)),
    };
    for page in space.pages.keys() {
        put(layout.packed_at / PAGE_BYTES + page);
    }
    (0..pool).for_each(|page| put(layout.pool_at / PAGE_BYTES + page));
    for slot in space.slots.keys() {
        for page in 0..layout.slot_bytes / PAGE_BYTES {
            if region.is_present(*slot, page) {
                put(layout.slot(*slot) / PAGE_BYTES + page);
            }
        }
    }
    let failed = system_error(&region.path, "its memory cannot be put in order");
    let mut end = 0;
    for (first, count) in &is_there {
        if *first > end {
            give_back_pages(&region.file, end * PAGE_BYTES, first - end).map_err(&failed)?;
        }
        end = first + count;
    }
    let last = layout.file_bytes / PAGE_BYTES;
    if last > end {
        give_back_pages(&region.file, end * PAGE_BYTES, last - end).map_err(&failed)?;
    }
    for (first, count) in is_there {
        take_pages(&region.file, first * PAGE_BYTES, count).map_err(&failed)?;
    }
    region.memory.sync_pages(&region.file).map_err(&failed)
}
