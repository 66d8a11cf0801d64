//! Names and directories: everything that can be found in any way, and what does not agree with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::layout::{NAME_BYTES_MAX, attribute, state};
use crate::names::{
    CELL_BITS, HEAD_BYTES, MORE_BYTES, cell, check_name, hash, high, is_name, low, name_of, pair,
};
use crate::node::{Node, ROOT_INODE};
use crate::region::Region;

use super::list::follow;
use super::report::{CheckReport, Kind};

/// An upper limit of generations: no region ever has that many inodes.
pub(super) const GENERATION_MAX: u64 = 1 << 62;

/// Maximum position of a directory's last name: later names need room behind it, in the bits that a listing has for a
/// position.
const POSITION_MAX: u64 = 1 << (63 - CELL_BITS);

/// The number of damaged names for which all other values of each byte are tried.
const CORRECTIONS_MAX: u32 = 200;

/// A name that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameFound {
    pub(super) directory: u64,
    pub(super) name: Vec<u8>,
    pub(super) inode: u64,
    pub(super) position: u64,
}

/// All names and inodes that were found.
#[derive(Default)]
pub(super) struct NamesFound {
    /// Valid names, in the order of their directories' lists.
    pub(super) names: Vec<NameFound>,
    /// Inodes in use, with whether each is a directory.
    pub(super) inodes: BTreeMap<u64, bool>,
    /// Of these, deleted files without names.
    pub(super) orphans: BTreeSet<u64>,
    /// Of these, inodes that no name leads to.
    pub(super) lost: BTreeSet<u64>,
    /// The directory that each directory is in.
    pub(super) parents: HashMap<u64, u64>,
    /// Losses of names, for the repair.
    pub(super) losses: Vec<String>,
}

struct Looker<'r, 'p> {
    region: &'r Region,
    report: &'p mut CheckReport,
    /// Cells that are part of a name.
    used: HashSet<u64>,
    found: NamesFound,
    /// First cells that directories' lists lead to.
    listed: HashMap<u64, usize>,
    known: HashSet<(u64, Vec<u8>)>,
    /// Inodes on the list of free inodes.
    free: HashSet<u64>,
    /// Directories whose lists are still to be followed.
    waiting: Vec<u64>,
    corrections: u32,
}

/// Finds all names and inodes, and compares them with the counts and lists.
pub(super) fn look(region: &Region, report: &mut CheckReport) -> NamesFound {
    let mut looker = Looker {
        region,
        report,
        used: HashSet::new(),
        found: NamesFound::default(),
        listed: HashMap::new(),
        known: HashSet::new(),
        free: HashSet::new(),
        waiting: Vec::new(),
        corrections: 0,
    };
    looker.follow_free_inodes();
    looker.inodes();
    looker.lists();
    looker.chains();
    looker.tree();
    looker.links();
    looker.free_inodes();
    looker.orphans();
    looker.free_cells();
    looker.sequence();
    looker.found
}

fn is_directory_mode(mode: u64) -> bool {
    mode as u32 & libc::S_IFMT == libc::S_IFDIR
}

/// A region contains only files, directories and symbolic links.
fn is_known_mode(mode: u64) -> bool {
    let mode = mode as u32;
    mode & !(libc::S_IFMT | 0o7777) == 0
        && matches!(
            mode & libc::S_IFMT,
            libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK
        )
}

impl Looker<'_, '_> {
    fn attribute(&self, inode: u64, word: u64) -> u64 {
        self.region
            .memory
            .load(self.region.layout.inode(inode) + word)
    }

    fn cell(&self, cell: u64, word: u64) -> u64 {
        self.region
            .memory
            .load(self.region.layout.cell(cell) + word)
    }

    fn is_inode(&self, inode: u64) -> bool {
        self.found.inodes.contains_key(&inode)
    }

    fn is_directory(&self, inode: u64) -> bool {
        self.found.inodes.get(&inode) == Some(&true)
    }

    fn inodes(&mut self) {
        let region = self.region;
        let mut newest = 0;
        for inode in 1..region.layout.inode_count {
            let generation = self.attribute(inode, attribute::GENERATION);
            if generation == 0 {
                continue;
            }
            if generation > GENERATION_MAX {
                let text = format!("file {inode} has a generation that no file lives to see");
                let at = region.layout.inode(inode) + attribute::GENERATION;
                self.report.find(Kind::Free, at, text);
            }
            newest = newest.max(generation);
            let mode = self.attribute(inode, attribute::MODE_LINKS);
            let is_directory = is_directory_mode(mode);
            let has_names = self.has_names(inode);
            self.found.inodes.insert(inode, is_directory || has_names);
            if !is_known_mode(mode) || has_names && !is_directory {
                let text = format!("file {inode} is of another kind than it says");
                let at = region.layout.inode(inode) + attribute::MODE_LINKS;
                self.report.find(Kind::Links, at, text);
            }
        }
        if self.found.inodes.get(&ROOT_INODE) != Some(&true) {
            let text = "the root is no directory";
            self.report
                .find(Kind::Links, region.layout.inode(ROOT_INODE), text);
            self.found.inodes.insert(ROOT_INODE, true);
        }
        let generation = self.attribute(ROOT_INODE, attribute::GENERATION);
        if generation != Node::ROOT.generation {
            let at = region.layout.inode(ROOT_INODE) + attribute::GENERATION;
            let text = format!("the root has generation {generation}: no path is found");
            self.report.find(Kind::Links, at, text);
        }
        let next = region.memory.load(state::GENERATION);
        if next < newest || next > GENERATION_MAX {
            let text = "the next file would be taken for one that was deleted";
            self.report.find(Kind::Free, state::GENERATION, text);
        }
    }

    /// Whether the list of an inode begins with a name of this directory.
    fn has_names(&self, inode: u64) -> bool {
        let first = self.attribute(inode, attribute::FIRST_CELL).checked_sub(1);
        first
            .filter(|first| *first < self.region.layout.cell_count)
            .is_some_and(|first| low(self.cell(first, cell::DIRECTORY_LENGTH)) == inode)
    }

    /// Follows the lists of all directories, from both ends if they are broken.
    fn lists(&mut self) {
        let directories = self.found.inodes.iter();
        self.waiting = directories
            .filter_map(|(inode, is_directory)| is_directory.then_some(*inode))
            .rev()
            .collect();
        self.waiting_lists();
    }

    fn waiting_lists(&mut self) {
        while let Some(directory) = self.waiting.pop() {
            let before = self.found.names.len();
            if !self.list(directory, attribute::FIRST_CELL, low, high) {
                let at = self.region.layout.inode(directory) + attribute::FIRST_CELL;
                let text = format!("the list of directory {directory} is broken");
                self.report.find(Kind::List, at, text);
                let middle = self.found.names.len();
                self.list(directory, attribute::LAST_CELL, high, low);
                self.found.names[middle..].reverse();
            }
            let count = (self.found.names.len() - before) as u64;
            if self.attribute(directory, attribute::ENTRIES) != count {
                let at = self.region.layout.inode(directory) + attribute::ENTRIES;
                let text = format!("directory {directory} has {count} names and says otherwise");
                self.report.find(Kind::List, at, text);
            }
            let positions = self.found.names[before..].iter().map(|name| name.position);
            let last = positions.clone().max().unwrap_or(0);
            let newest = self.attribute(directory, attribute::NEXT_POSITION);
            let is_rising = positions.is_sorted_by(|one, other| one < other)
                && self
                    .found
                    .names
                    .get(before)
                    .is_none_or(|first| first.position > 0);
            if !is_rising || newest < last || newest > POSITION_MAX {
                let at = self.region.layout.inode(directory) + attribute::NEXT_POSITION;
                let text = format!("the list of directory {directory} is not in its order");
                self.report.find(Kind::List, at, text);
            }
        }
    }

    /// Follows a list in one direction. Returns whether it is valid to its end.
    fn list(
        &mut self,
        directory: u64,
        first: u64,
        onward: fn(u64) -> u64,
        back: fn(u64) -> u64,
    ) -> bool {
        let mut came_from = 0;
        let mut next = self.attribute(directory, first);
        while let Some(cell) = next.checked_sub(1) {
            if cell >= self.region.layout.cell_count || self.listed.contains_key(&cell) {
                return false;
            }
            let neighbours = self.cell(cell, cell::NEIGHBOURS);
            let is_ours = low(self.cell(cell, cell::DIRECTORY_LENGTH)) == directory;
            if !is_ours || back(neighbours) != came_from {
                return false;
            }
            if let Some(name) = self.name(cell, true) {
                self.listed.insert(cell, self.found.names.len());
                self.found.names.push(name);
            } else {
                // The list may continue through this cell, but must not pass it twice.
                self.listed.insert(cell, usize::MAX);
            }
            came_from = cell + 1;
            next = onward(neighbours);
        }
        let other_end = match first {
            attribute::FIRST_CELL => attribute::LAST_CELL,
            _ => attribute::FIRST_CELL,
        };
        self.attribute(directory, other_end) == came_from
    }

    /// The name that begins in a cell, if it is valid and not known yet.
    fn name(&mut self, first: u64, is_listed: bool) -> Option<NameFound> {
        let at = self.region.layout.cell(first);
        let directory = low(self.cell(first, cell::DIRECTORY_LENGTH));
        let mut found = NameFound {
            directory,
            name: name_of(self.region, at).unwrap_or_default(),
            inode: high(self.cell(first, cell::LINK_INODE)),
            position: self.cell(first, cell::POSITION),
        };
        let cells = self.cells_of(first);
        let is_sane = check_name(&found.name).is_ok()
            && self.is_directory(directory)
            && found.inode != ROOT_INODE
            && cells.is_some();
        let shown = String::from_utf8_lossy(&found.name).into_owned();
        if !is_sane || !self.is_inode(found.inode) && !self.revive(first, &found) {
            let text = format!("a name of directory {directory} cannot be read or leads nowhere");
            self.report.find(Kind::Name, at, text);
            self.found.losses.push(format!(
                "the name {shown} of directory {directory}: it cannot be read or leads nowhere"
            ));
            return None;
        }
        if !is_name(self.region, at, &found.name).unwrap_or(false) {
            let text = format!("the name {shown} of directory {directory} is listed and not found");
            self.report.find(Kind::Name, at, text);
        }
        let said = low(self.cell(first, cell::HASH_CHAIN));
        if said != hash(directory, &found.name) {
            self.correct(&mut found, said, is_listed);
        }
        let path = (found.directory, found.name.clone());
        if !self.known.insert(path) {
            let text = format!("directory {directory} has a name twice");
            self.report.find(Kind::Name, at, text);
            self.found.losses.push(format!(
                "the name {shown} of directory {directory} for file {}: it is another's",
                found.inode
            ));
            return None;
        }
        self.used.extend(cells.into_iter().flatten());
        Some(found)
    }

    /// Treats an inode that is marked free as in use, if a name leads to it and the list of free inodes does not.
    fn revive(&mut self, first: u64, name: &NameFound) -> bool {
        let inode = name.inode;
        let is_named = low(self.cell(first, cell::HASH_CHAIN)) == hash(name.directory, &name.name);
        let is_one = (1..self.region.layout.inode_count).contains(&inode);
        if !is_named || !is_one || self.free.contains(&inode) {
            return false;
        }
        let mode = self.attribute(inode, attribute::MODE_LINKS);
        if !is_known_mode(mode) || high(mode) == 0 {
            return false;
        }
        let at = self.region.layout.inode(inode) + attribute::GENERATION;
        let text = format!("file {inode} is in use and says that it is free");
        self.report.find(Kind::Links, at, text);
        let is_directory = is_directory_mode(mode);
        self.found.inodes.insert(inode, is_directory);
        if is_directory {
            self.waiting.push(inode);
        }
        true
    }

    /// Corrects a name that does not match its hash: if one byte or the directory was changed, the hash shows the right
    /// value.
    fn correct(&mut self, found: &mut NameFound, said: u64, is_listed: bool) {
        let (directory, inode) = (found.directory, found.inode);
        let text =
            format!("a name of file {inode} in directory {directory} is not what was hashed");
        let at = self.region.layout.inode(inode);
        self.report.find(Kind::Name, at, text);
        // Another directory with another first byte may have the same hash. A name on a directory's list belongs to
        // that directory.
        if !is_listed {
            let directories = self.found.inodes.iter();
            let mut directories =
                directories.filter_map(|(inode, is_one)| is_one.then_some(*inode));
            if let Some(right) = directories.find(|it| hash(*it, &found.name) == said) {
                found.directory = right;
                return;
            }
        }
        let mut name = found.name.clone();
        self.corrections += 1;
        let places = match self.corrections <= CORRECTIONS_MAX {
            true => 0..name.len(),
            false => 0..0,
        };
        for place in places {
            let is = name[place];
            for byte in 1..=u8::MAX {
                name[place] = byte;
                if hash(found.directory, &name) == said && check_name(&name).is_ok() {
                    found.name = name;
                    return;
                }
            }
            name[place] = is;
        }
        // A change of the name changes the whole hash; a small difference means that the hash itself was changed.
        let is_hash_changed = (hash(found.directory, &found.name) ^ said).count_ones() <= 2;
        if !is_hash_changed {
            self.found.losses.push(format!(
                "file {}: its name was perhaps another; it is {} now",
                found.inode,
                String::from_utf8_lossy(&found.name)
            ));
        }
    }

    /// The cells of a name, if no other name uses them.
    fn cells_of(&self, first: u64) -> Option<Vec<u64>> {
        let length = high(self.cell(first, cell::DIRECTORY_LENGTH)) as usize;
        let mut cells = vec![first];
        let mut link = low(self.cell(first, cell::LINK_INODE));
        let more = length
            .min(NAME_BYTES_MAX)
            .saturating_sub(HEAD_BYTES)
            .div_ceil(MORE_BYTES);
        for _ in 0..more {
            let cell = link.checked_sub(1)?;
            if cell >= self.region.layout.cell_count || cells.contains(&cell) {
                return None;
            }
            cells.push(cell);
            link = low(self.cell(cell, 0));
        }
        let is_free = cells.iter().all(|cell| !self.used.contains(cell));
        is_free.then_some(cells)
    }

    /// Follows all chains. It finds the names that no list leads to.
    fn chains(&mut self) {
        let layout = self.region.layout;
        let mut chained = HashSet::new();
        for bucket in 0..layout.bucket_count {
            let bucket_at = layout.buckets_at + bucket * 8;
            let mut next = self.region.memory.load(bucket_at);
            while let Some(cell) = next.checked_sub(1) {
                if cell >= layout.cell_count || !chained.insert(cell) {
                    let text = format!("chain {bucket} of names is broken");
                    self.report.find(Kind::List, bucket_at, text);
                    break;
                }
                if !self.listed.contains_key(&cell) {
                    let text = "a name is in a chain and in no list";
                    self.report.find(Kind::List, layout.cell(cell), text);
                    if let Some(name) = self.name(cell, false) {
                        self.listed.insert(cell, self.found.names.len());
                        self.found.names.push(name);
                    }
                    self.waiting_lists();
                }
                next = high(self.cell(cell, cell::HASH_CHAIN));
                if low(self.cell(cell, cell::HASH_CHAIN)) % layout.bucket_count != bucket {
                    let text = format!("chain {bucket} has a name of another");
                    self.report.find(Kind::List, bucket_at, text);
                    break;
                }
            }
        }
        for (cell, number) in &self.listed {
            let Some(name) = self.found.names.get(*number) else {
                continue;
            };
            let right = hash(name.directory, &name.name);
            let is_right = low(self.cell(*cell, cell::HASH_CHAIN)) == right;
            if !is_right || !chained.contains(cell) {
                let text = "a name is not in the chain that it belongs to";
                self.report.find(Kind::List, layout.cell(*cell), text);
            }
        }
    }

    /// Walks from the root: which directories can be reached, by one name each.
    fn tree(&mut self) {
        let mut children: HashMap<u64, Vec<usize>> = HashMap::new();
        for (number, name) in self.found.names.iter().enumerate() {
            children.entry(name.directory).or_default().push(number);
        }
        let mut dropped = HashSet::new();
        let mut reached = HashSet::new();
        self.found.parents.insert(ROOT_INODE, ROOT_INODE);
        for number in self.reach(ROOT_INODE, &children, &mut reached) {
            let again = &self.found.names[number];
            let (directory, inode) = (again.directory, again.inode);
            let name = String::from_utf8_lossy(&again.name);
            let loss =
                format!("the name {name} of directory {directory}: directory {inode} has another");
            self.found.losses.push(loss);
            let text = format!("directory {inode} has two names");
            let at = self.region.layout.inode(inode);
            self.report.find(Kind::Name, at, text);
            dropped.insert(number);
        }
        // A cycle of directories is not reachable: one of them is lost, and leads to the others.
        let directories: Vec<u64> = self
            .found
            .inodes
            .iter()
            .filter_map(|(inode, is_directory)| is_directory.then_some(*inode))
            .collect();
        for top in self.tops(&directories, &reached, &children) {
            self.lose(top);
            dropped.extend(self.reach(top, &children, &mut reached));
        }
        let lost: Vec<u64> = self
            .found
            .inodes
            .keys()
            .copied()
            .filter(|inode| !reached.contains(inode))
            .collect();
        for inode in lost {
            let links = high(self.attribute(inode, attribute::MODE_LINKS));
            if links == 0 && !self.is_directory(inode) {
                self.found.orphans.insert(inode);
            } else {
                self.lose(inode);
            }
        }
        let mut number = 0;
        self.found.names.retain(|_| {
            number += 1;
            !dropped.contains(&(number - 1))
        });
    }

    /// Walks from a directory. Returns the names of directories that were reached before by another name.
    fn reach(
        &mut self,
        top: u64,
        children: &HashMap<u64, Vec<usize>>,
        reached: &mut HashSet<u64>,
    ) -> Vec<usize> {
        let mut again = Vec::new();
        let mut waiting = vec![top];
        reached.insert(top);
        while let Some(directory) = waiting.pop() {
            for number in children.get(&directory).into_iter().flatten() {
                let inode = self.found.names[*number].inode;
                let is_new = reached.insert(inode);
                if !self.is_directory(inode) {
                    continue;
                }
                if is_new {
                    self.found.parents.insert(inode, directory);
                    waiting.push(inode);
                } else {
                    again.push(*number);
                }
            }
        }
        again
    }

    /// Directories that cannot be reached; those without any name come first.
    fn tops(
        &self,
        directories: &[u64],
        reached: &HashSet<u64>,
        children: &HashMap<u64, Vec<usize>>,
    ) -> Vec<u64> {
        let named: HashSet<u64> = self.found.names.iter().map(|name| name.inode).collect();
        let lost = directories
            .iter()
            .copied()
            .filter(|directory| !reached.contains(directory));
        let (with_name, mut tops): (Vec<u64>, Vec<u64>) =
            lost.partition(|directory| named.contains(directory));
        // A named directory below another one is reached from there; the remaining ones form cycles.
        let mut below: HashSet<u64> = HashSet::new();
        let mut waiting = tops.clone();
        for next in with_name {
            while let Some(directory) = waiting.pop() {
                if below.insert(directory) {
                    let names = children.get(&directory).into_iter().flatten();
                    waiting.extend(names.map(|number| self.found.names[*number].inode));
                }
            }
            if !below.contains(&next) {
                tops.push(next);
                waiting.push(next);
            }
        }
        tops
    }

    fn lose(&mut self, inode: u64) {
        let at = self.region.layout.inode(inode);
        let text = format!("no name leads to file {inode}");
        self.report.find(Kind::Lost, at, text);
        self.found.lost.insert(inode);
    }

    /// Compares inodes with their names.
    fn links(&mut self) {
        let mut right: HashMap<u64, u64> = HashMap::new();
        for name in &self.found.names {
            if self.is_directory(name.inode) {
                *right.entry(name.directory).or_default() += 1;
            } else {
                *right.entry(name.inode).or_default() += 1;
            }
        }
        let inodes: Vec<(u64, bool)> = self
            .found
            .inodes
            .iter()
            .map(|(inode, is_directory)| (*inode, *is_directory))
            .collect();
        // Files with a link count above, and below, their number of names.
        let (mut more, mut fewer) = (Vec::new(), Vec::new());
        for (inode, is_directory) in inodes {
            let at = self.region.layout.inode(inode);
            let links = right.get(&inode).copied().unwrap_or(0) + 2 * u64::from(is_directory);
            let is_lost = self.found.lost.contains(&inode);
            if high(self.attribute(inode, attribute::MODE_LINKS)) != links && !is_lost {
                let text = format!("file {inode} has {links} names and says otherwise");
                self.report.find(Kind::Links, at, text);
                match high(self.attribute(inode, attribute::MODE_LINKS)) > links {
                    true => more.push(inode),
                    false => fewer.push(inode),
                }
            }
            let parent = self.found.parents.get(&inode);
            if parent.is_some_and(|parent| self.attribute(inode, attribute::PARENT) != *parent) {
                let text = format!("directory {inode} says that it is in another");
                self.report.find(Kind::Links, at, text);
            }
            match is_directory {
                true => self.report.directories += 1,
                false => self.report.files += 1,
            }
        }
        if !fewer.is_empty() {
            for inode in more {
                let loss = format!("file {inode}: perhaps a name, which is another file's now");
                self.found.losses.push(loss);
            }
        }
        self.report.files -= self.found.orphans.len() as u64;
        self.report.orphans = self.found.orphans.len() as u64;
        self.report.names = self.found.names.len() as u64;
    }

    /// Follows the list of free inodes. Returns those on it, as far as it is valid, and whether it is valid to its end.
    fn free_list(&self) -> (HashSet<u64>, bool) {
        let region = self.region;
        let fresh = region.memory.load(state::FRESH_INODE);
        let used = 1..fresh.min(region.layout.inode_count);
        follow(region.memory.load(state::FREE_INODE), |inode| {
            let is_free = used.contains(&inode) && !region.is_live(inode);
            is_free.then(|| self.attribute(inode, attribute::PARENT))
        })
    }

    fn follow_free_inodes(&mut self) {
        let fresh = self.region.memory.load(state::FRESH_INODE);
        self.free = self.free_list().0;
        // The other inodes were never allocated.
        self.free
            .extend(fresh.max(1)..self.region.layout.inode_count);
    }

    fn free_inodes(&mut self) {
        let region = self.region;
        let fresh = region.memory.load(state::FRESH_INODE);
        let (free, is_whole) = self.free_list();
        let used = self.found.inodes.len() as u64;
        let highest = self.found.inodes.keys().next_back().copied().unwrap_or(0);
        let is_right = is_whole
            && (1..=region.layout.inode_count).contains(&fresh)
            && highest < fresh
            && used + free.len() as u64 + 1 == fresh;
        if !is_right || region.memory.load(state::INODES) != used {
            let text = "the list of free inodes does not agree with those in use";
            self.report.find(Kind::Free, state::FREE_INODE, text);
        }
    }

    /// Lookups of names wait as long as the number is odd, but no writer changes names during this check.
    fn sequence(&mut self) {
        let memory = &self.region.memory;
        let is_locked_by_others = !self.region.is_writable() && memory.load(state::LOCK) != 0;
        if memory.load(state::SEQUENCE) % 2 == 1 && !is_locked_by_others {
            let text = "names and space were left in the middle of a change";
            self.report.find(Kind::Change, state::SEQUENCE, text);
        }
    }

    fn orphans(&mut self) {
        let region = self.region;
        let mut before = 0;
        let (listed, is_whole) = follow(region.memory.load(state::FIRST_ORPHAN), |inode| {
            let is_next = self.found.orphans.contains(&inode)
                && self.attribute(inode, attribute::ORPHAN_BEFORE) == before;
            before = inode + 1;
            is_next.then(|| self.attribute(inode, attribute::NEXT_ORPHAN))
        });
        let is_right = is_whole && listed.len() == self.found.orphans.len();
        if !is_right || region.memory.load(state::ORPHANS) != listed.len() as u64 {
            let text = "the list of deleted files does not agree with those that are";
            self.report.find(Kind::Free, state::FIRST_ORPHAN, text);
        }
    }

    fn free_cells(&mut self) {
        let region = self.region;
        let count = region.layout.cell_count;
        let fresh = region.memory.load(state::FRESH_CELL);
        let mut are_plain = true;
        let (free, is_whole) = follow(region.memory.load(state::FREE_CELL), |cell| {
            if cell >= fresh.min(count) || self.used.contains(&cell) {
                return None;
            }
            let link = self.cell(cell, cell::LINK_INODE);
            are_plain &= link == pair(low(link), 0);
            Some(link)
        });
        let mut is_right = is_whole && are_plain && fresh <= count;
        let used = self.used.len() as u64;
        is_right &= self.used.iter().all(|cell| *cell < fresh);
        is_right &= used + free.len() as u64 == fresh;
        if !is_right || region.memory.load(state::CELLS) != used {
            let text = "the list of free cells does not agree with those in use";
            self.report.find(Kind::Free, state::FREE_CELL, text);
        }
    }
}
