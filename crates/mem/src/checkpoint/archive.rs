//! Generations in a storage: one file each, `NAME.GENERATION.checkpoint`, with the pieces that were new in that
//! generation. Its table names pieces in its own file and in the files of earlier generations.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{
    FOOTER_BYTES, Footer, HEADER_BYTES, Identity, Locator, Part, Record, decode_group,
    decode_index, decode_list,
};
use super::storage::Storage;
use super::{CheckpointError, Result};

const SUFFIX: &str = ".checkpoint";

/// The number of bytes read at once: pieces of a file mostly lie side by side, and a seek costs as much as the read.
const WINDOW_BYTES: usize = 1 << 20;

/// The generations of one name in a storage.
pub(super) struct Archive<'s, S> {
    pub(super) storage: &'s mut S,
    name: &'s str,
    window: Window,
}

/// The part of a generation's file that was read last.
#[derive(Default)]
struct Window {
    generation: u64,
    /// Length of that file, in bytes.
    length: u64,
    from: u64,
    bytes: Vec<u8>,
}

/// The content of a generation's table.
pub(super) struct Table {
    pub(super) footer: Footer,
    pub(super) parts: Vec<(Part, Locator)>,
    /// By inode number.
    pub(super) records: BTreeMap<u64, Record>,
    /// Parts that could not be read. Their inodes, or some of their extents, are missing above.
    pub(super) damaged: Vec<Part>,
}

impl Table {
    pub(super) fn is_whole(&self) -> bool {
        self.damaged.is_empty()
    }

    /// All pieces that it names.
    pub(super) fn locators(&self) -> impl Iterator<Item = &Locator> {
        let parts = self.parts.iter().map(|(_, locator)| locator);
        let extents = self.records.values().flat_map(|record| &record.extents);
        parts.chain(extents.map(|(_, locator)| locator))
    }

    /// The generations whose files hold pieces that it names.
    pub(super) fn generations(&self) -> BTreeSet<u64> {
        let mut generations: BTreeSet<u64> =
            self.locators().map(|locator| locator.generation).collect();
        generations.insert(self.footer.generation);
        generations
    }

    /// Whether all extents of an inode are known.
    pub(super) fn knows_extents(&self, inode: u64) -> bool {
        !self
            .damaged
            .iter()
            .any(|part| matches!(part, Part::Extents(damaged, _) if *damaged == inode))
    }
}

impl<'s, S: Storage> Archive<'s, S> {
    /// # Errors
    /// [`CheckpointError::Name`].
    pub(super) fn new(storage: &'s mut S, name: &'s str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=40).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(CheckpointError::Name);
        }
        Ok(Self {
            storage,
            name,
            window: Window::default(),
        })
    }

    pub(super) fn file_of(&self, generation: u64) -> String {
        format!("{}.{generation:x}{SUFFIX}", self.name)
    }

    /// The numbers of all generations that have a file, with the file's length.
    pub(super) fn files(&mut self) -> Result<BTreeMap<u64, u64>> {
        let name = self.name;
        let mut files = BTreeMap::new();
        self.storage.list(&mut |file, bytes| {
            let number = file
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('.'))
                .and_then(|rest| rest.strip_suffix(SUFFIX));
            let generation = number.and_then(|number| u64::from_str_radix(number, 16).ok());
            // A number can be written in several ways; accept only the canonical one.
            if let Some(generation) = generation.filter(|it| number == Some(&format!("{it:x}"))) {
                files.insert(generation, bytes);
            }
        })?;
        Ok(files)
    }

    /// The footer of a generation's file, if the generation is valid.
    pub(super) fn footer(&mut self, generation: u64, bytes: u64) -> Option<Footer> {
        let at = bytes.checked_sub(FOOTER_BYTES as u64)?;
        let mut footer = [0; FOOTER_BYTES];
        let file = self.file_of(generation);
        self.storage.read(&file, at, &mut footer).ok()?;
        let footer = Footer::decode(&footer).ok()?;
        let end = footer.index_at.checked_add(footer.index_bytes);
        let is_sane = footer.generation == generation
            && footer.index_at >= HEADER_BYTES as u64
            && end == Some(at);
        is_sane.then_some(footer)
    }

    /// The table of a generation, as far as it can be read; `None` if its index cannot be read.
    pub(super) fn table(&mut self, footer: Footer) -> Option<Table> {
        let mut index = vec![0; footer.index_bytes as usize];
        let file = self.file_of(footer.generation);
        self.storage.read(&file, footer.index_at, &mut index).ok()?;
        if crc32c::crc32c(&index) != footer.index_checksum {
            return None;
        }
        let parts = decode_index(&index).ok()?;
        let mut table = Table {
            footer,
            parts: Vec::new(),
            records: BTreeMap::new(),
            damaged: Vec::new(),
        };
        let mut bytes = Vec::new();
        // Inodes come first.
        for (part, locator) in &parts {
            let is_there = self.read_piece(footer.key, locator, &mut bytes);
            if !is_there || enter(&mut table.records, *part, &bytes).is_none() {
                table.damaged.push(*part);
            }
        }
        table.parts = parts;
        Some(table)
    }

    /// At most `count_max` generations that have a table, newest first. The number counts the generations without a
    /// table that were found before the last of them.
    pub(super) fn tables(&mut self, count_max: usize) -> Result<(Vec<Table>, u64)> {
        let (mut tables, mut damaged) = (Vec::new(), 0);
        for (generation, bytes) in self.files()?.into_iter().rev() {
            if tables.len() == count_max {
                break;
            }
            let footer = self.footer(generation, bytes);
            match footer.and_then(|footer| self.table(footer)) {
                Some(table) => tables.push(table),
                None => damaged += 1,
            }
        }
        Ok((tables, damaged))
    }

    /// Reads a piece. Returns whether its identity is correct.
    pub(super) fn read_piece(&mut self, key: u64, locator: &Locator, into: &mut Vec<u8>) -> bool {
        into.clear();
        into.resize(locator.identity.bytes as usize, 0);
        if !self.read_from_window(locator, into) {
            let file = self.file_of(locator.generation);
            if self.storage.read(&file, locator.offset, into).is_err() {
                return false;
            }
        }
        Identity::of(key, into) == locator.identity
    }

    /// Reads from the window, and moves the window first if necessary. Returns `false` if the window cannot be read.
    fn read_from_window(&mut self, locator: &Locator, into: &mut [u8]) -> bool {
        let wanted = into.len() as u64;
        let Some(end) = locator.offset.checked_add(wanted) else {
            return false;
        };
        let window = &self.window;
        let is_inside = window.generation == locator.generation
            && window.from <= locator.offset
            && end <= window.from + window.bytes.len() as u64;
        if !is_inside && !self.move_window(locator.generation, locator.offset, end) {
            return false;
        }
        let from = (locator.offset - self.window.from) as usize;
        into.copy_from_slice(&self.window.bytes[from..from + into.len()]);
        true
    }

    fn move_window(&mut self, generation: u64, from: u64, end: u64) -> bool {
        if self.window.generation != generation {
            let length = self
                .files()
                .ok()
                .and_then(|files| files.get(&generation).copied());
            self.window = Window {
                generation,
                length: length.unwrap_or(0),
                ..Window::default()
            };
        }
        let length = self.window.length;
        if end > length {
            return false;
        }
        let bytes = (end - from).max((WINDOW_BYTES as u64).min(length - from));
        let mut read = std::mem::take(&mut self.window.bytes);
        read.clear();
        read.resize(bytes as usize, 0);
        let file = self.file_of(generation);
        let is_read = self.storage.read(&file, from, &mut read).is_ok();
        if !is_read {
            read.clear();
        }
        self.window.bytes = read;
        self.window.from = from;
        is_read
    }
}

/// Enters the content of a part; `None` if it is invalid.
fn enter(records: &mut BTreeMap<u64, Record>, part: Part, bytes: &[u8]) -> Option<()> {
    match part {
        Part::Inodes(group) => {
            let group = decode_group(group, bytes).ok()?;
            records.extend(group.into_iter().map(|record| (record.inode, record)));
        }
        Part::Extents(inode, list) => {
            let extents = decode_list(list, bytes).ok()?;
            // Without the inode's record, its extents are useless.
            records.get_mut(&inode)?.extents.extend(extents);
        }
    }
    Some(())
}
