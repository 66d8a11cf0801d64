//! Taking a checkpoint.
//!
//! The names are a snapshot of one moment. Files are copied after that. A small file, or one that is not being written,
//! is copied as of one moment; any other file extent by extent. Programs may replace a file by renaming a new one over
//! it. If a file was deleted before it was copied, the names are stale: they are taken again, and such files are copied
//! first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::error::Error;
use crate::inode::Attributes;
use crate::layout::{PAGE_BYTES, attribute, state};
use crate::node::Node;
use crate::region::Region;
use crate::space::Place;
use crate::writer::Writer;

use super::archive::{Archive, Table};
use super::format::{
    EXTENT_BYTES, Extent, FOOTER_BYTES, Footer, GROUP_INODES, HEADER_BYTES, Header, Identity,
    LIST_EXTENTS, Locator, Name, Part, Record, SEQUENCE_UNKNOWN, encode_index, encode_list,
};
use super::snapshot::{CopiedFile, Names, Path, Snapshot};
use super::storage::{Storage, StorageError};
use super::{CheckpointError, Result};

/// Maximum number of times that the names are taken when files disappear during the copy.
const ROUNDS_MAX: u32 = 16;
/// From this round on, files in the same directories are also copied together with the names.
const NEIGHBOURS_AFTER: u32 = 3;
/// Maximum number of copies of a file that changes during the copy.
const TRIES_MAX: u32 = 4;
/// Larger files are copied once only.
const AGAIN_BYTES_MAX: u64 = 1 << 20;
/// The number of bytes passed to the storage at once.
const WRITE_BYTES: usize = 1 << 20;
/// Maximum number of generations whose files may hold pieces that the newest needs.
const FILES_MAX: usize = 24;
/// Maximum number of names in a report.
const NAMED_MAX: usize = 100;

/// How to take a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'o> {
    /// Prefix of the files in the storage: 1 to 40 letters, digits, dashes and underscores.
    pub name: &'o str,
    /// The current time, in nanoseconds since 1970.
    pub now_ns: u64,
    /// A number that is never used again.
    pub random: u64,
    /// Reads all reused pieces of the last generation, and writes again what cannot be read.
    pub verify: bool,
    /// Files that are left out, with their names: their content means nothing after a loss of power.
    pub left_out: &'o [Node],
}

/// The result of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaveReport {
    /// Its generation.
    pub generation: u64,
    /// Nothing had changed: the generation is the existing one.
    pub is_unchanged: bool,
    /// The number of files and other entries that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Bytes of all files, according to their sizes.
    pub bytes: u64,
    /// The number of files whose bytes were not read, because their sequence numbers are those of the last generation.
    pub files_skipped: u64,
    /// The number of bytes written to the storage.
    pub bytes_written: u64,
    /// The number of extents and parts of the table written to the storage.
    pub pieces_written: u64,
    /// The number of pieces that were in the storage already.
    pub pieces_kept: u64,
    /// The number of pieces of the last generation that could not be read, if all were verified.
    pub pieces_damaged: u64,
    /// The number of times that the names were taken.
    pub rounds: u32,
    /// Files that could not be read, as many as fit. The last generation's bytes of them are kept, if it has any.
    pub missed: Vec<String>,
    /// The number of such files.
    pub missed_count: u64,
    /// The previous generation was deleted to make room.
    pub gave_up_older: bool,
}

impl Region {
    /// The generation of the newest checkpoint of this region, or of the one that it was restored from. Also returns
    /// when it was begun, in nanoseconds since 1970: a loss of power would lose later changes.
    #[must_use]
    pub fn newest_checkpoint(&self) -> Option<(u64, u64)> {
        let generation = self.memory.load(state::CHECKPOINT_GENERATION);
        (generation != 0).then(|| (generation, self.memory.load(state::CHECKPOINT_NS)))
    }
}

/// Writes a new generation with what has changed since the newest one in the storage.
///
/// # Errors
/// Those of the storage. The existing generations then stay, except for the older one if the storage was full.
/// [`Error::Damaged`] when the names of the region are inconsistent.
pub fn save<S: Storage>(
    writer: &Writer<'_>,
    storage: &mut S,
    options: &SaveOptions<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SaveReport> {
    let mut archive = Archive::new(storage, options.name)?;
    let (mut tables, _) = archive.tables(2)?;
    // Remove an unfinished generation, which would be in the way.
    sweep(&mut archive, &tables)?;
    let mut gave_up_older = false;
    loop {
        let mut saver = Saver::new(writer, archive, tables.first(), options)?;
        let saved = saver.run(progress);
        let (generation, report) = (saver.generation, saver.report);
        archive = saver.archive;
        match saved {
            Ok(()) => {
                let kept: Vec<Table> = archive.tables(2)?.0;
                sweep(&mut archive, &kept)?;
                return Ok(SaveReport {
                    gave_up_older,
                    ..report
                });
            }
            Err(CheckpointError::Storage(StorageError::Full)) if tables.len() > 1 => {
                discard(&mut archive, generation)?;
                tables.truncate(1);
                sweep(&mut archive, &tables)?;
                gave_up_older = true;
            }
            Err(error) => {
                // The storage may have failed completely; the next checkpoint sweeps as well.
                let _ = discard(&mut archive, generation);
                return Err(error);
            }
        }
    }
}

fn discard<S: Storage>(archive: &mut Archive<'_, S>, generation: u64) -> Result<()> {
    let file = archive.file_of(generation);
    match archive.storage.delete(&file) {
        Err(StorageError::NotFound) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes the files of all generations that none of these tables needs.
fn sweep<S: Storage>(archive: &mut Archive<'_, S>, tables: &[Table]) -> Result<()> {
    let needed: BTreeSet<u64> = tables.iter().flat_map(Table::generations).collect();
    for generation in archive.files()?.into_keys() {
        if !needed.contains(&generation) {
            discard(archive, generation)?;
        }
    }
    Ok(())
}

struct Saver<'s, 'w, 'r, S> {
    region: &'r Region,
    writer: &'w Writer<'r>,
    left_out: &'w [Node],
    archive: Archive<'s, S>,
    key: u64,
    token: u64,
    generation: u64,
    taken_ns: u64,
    /// Pieces that need not be written.
    known: HashMap<Identity, Locator>,
    /// Inodes of the last generation, all of whose pieces are known.
    before: HashMap<u64, Record>,
    parts_before: Vec<(Part, Locator)>,
    generation_before: u64,
    /// Inodes that have been copied, without their names.
    copied: HashMap<u64, Record>,
    /// The files that were copied together with the names, and their generations. They belong to these names, even if
    /// they are deleted since.
    held: HashMap<u64, u64>,
    /// The bytes to write to the storage next, and their offset in the file.
    pending: Vec<u8>,
    pending_at: u64,
    is_begun: bool,
    report: SaveReport,
}

impl<'s, 'w, 'r, S: Storage> Saver<'s, 'w, 'r, S> {
    fn new(
        writer: &'w Writer<'r>,
        mut archive: Archive<'s, S>,
        last: Option<&Table>,
        options: &SaveOptions<'w>,
    ) -> Result<Self> {
        let region = writer.region;
        let files = archive.files()?;
        let generation = files.keys().next_back().map_or(1, |newest| newest + 1);
        // The region was never in a checkpoint, or is a different one since.
        let token = match region.memory.load(state::CHECKPOINT_TOKEN) {
            0 => options.random.max(1),
            token => token,
        };
        region.memory.store(state::CHECKPOINT_TOKEN, token);
        let mut saver = Self {
            region,
            writer,
            left_out: options.left_out,
            archive,
            key: last.map_or(options.random, |last| last.footer.key),
            token,
            generation,
            taken_ns: options.now_ns,
            known: HashMap::new(),
            before: HashMap::new(),
            parts_before: Vec::new(),
            generation_before: 0,
            copied: HashMap::new(),
            held: HashMap::new(),
            pending: Vec::new(),
            pending_at: 0,
            is_begun: false,
            report: SaveReport {
                generation,
                ..SaveReport::default()
            },
        };
        if let Some(last) = last {
            saver.learn(last, &files, options.verify);
        }
        Ok(saver)
    }

    /// Finds the pieces of the last generation that need not be written again.
    fn learn(&mut self, last: &Table, files: &BTreeMap<u64, u64>, verify: bool) {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        let mut known: HashMap<Identity, Locator> = HashMap::new();
        for locator in last.locators() {
            if known.insert(locator.identity, *locator).is_none() {
                *used.entry(locator.generation).or_default() += u64::from(locator.identity.bytes);
            }
        }
        let kept = worth_keeping(&used, files);
        known.retain(|_, locator| kept.contains(&locator.generation));
        if verify {
            let mut bytes = Vec::new();
            let before = known.len();
            let (archive, key) = (&mut self.archive, last.footer.key);
            known.retain(|_, locator| archive.read_piece(key, locator, &mut bytes));
            self.report.pieces_damaged = (before - known.len()) as u64;
        }
        if last.footer.token == self.token {
            let is_known = |(_, locator): &Extent| {
                known.get(&locator.identity).is_some_and(|it| it == locator)
            };
            let usable = last.records.values().filter(|record| {
                last.knows_extents(record.inode) && record.extents.iter().all(is_known)
            });
            self.before = usable
                .map(|record| (record.inode, record.clone()))
                .collect();
        }
        self.known = known;
        self.parts_before.clone_from(&last.parts);
        self.generation_before = last.footer.generation;
    }

    fn run(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut troubled: HashSet<Path> = HashSet::new();
        let (snapshot, names, missed) = loop {
            self.report.rounds += 1;
            let (snapshot, held) = Snapshot::take(self.writer, &troubled)?;
            self.held.clear();
            for file in held {
                self.copy_held(&file)?;
            }
            let mut names = snapshot.names()?;
            names.files.retain(|inode| {
                let (inode, generation) = (*inode, snapshot.generation(*inode));
                !self.left_out.contains(&Node { inode, generation })
            });
            let missed = self.copy_all(&snapshot, &names, progress)?;
            let is_last = self.report.rounds == ROUNDS_MAX;
            if is_last || !missed.iter().any(|(_, is_gone)| *is_gone) {
                break (snapshot, names, missed);
            }
            let gone: HashSet<u64> = missed
                .iter()
                .filter_map(|(inode, is_gone)| is_gone.then_some(*inode))
                .collect();
            let is_in =
                |directories: &HashSet<u64>, name: &&Name| directories.contains(&name.directory);
            let restless: HashSet<u64> = gone
                .iter()
                .flat_map(|inode| &names.of[inode])
                .map(|name| name.directory)
                .collect();
            for inode in &names.files {
                // In directories where files are often replaced, the neighbours will be next.
                let is_neighbour = self.report.rounds >= NEIGHBOURS_AFTER;
                let troubling = names.of[inode]
                    .iter()
                    .filter(|name| gone.contains(inode) || is_neighbour && is_in(&restless, name));
                troubled.extend(troubling.map(|name| (name.directory, name.name.clone())));
            }
        };
        let records = self.records(&snapshot, &names, &missed);
        self.finish(&records)
    }

    /// Copies all files. Returns those that could not be copied, and for each whether it is because it was deleted.
    fn copy_all(
        &mut self,
        snapshot: &Snapshot<'_>,
        names: &Names,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<(u64, bool)>> {
        let mut missed = Vec::new();
        for (done, inode) in names.files.iter().enumerate() {
            progress(done as u64, names.files.len() as u64);
            match self.copy(*inode, snapshot.generation(*inode)) {
                Ok(()) => {}
                Err(CheckpointError::Region(error)) => {
                    missed.push((*inode, matches!(error, Error::Stale)));
                }
                Err(error) => return Err(error),
            }
        }
        progress(names.files.len() as u64, names.files.len() as u64);
        Ok(missed)
    }

    fn copy_held(&mut self, file: &CopiedFile) -> Result<()> {
        let mut extents = Vec::new();
        for (number, extent) in file.bytes.chunks(EXTENT_BYTES as usize).enumerate() {
            if extent.iter().any(|byte| *byte != 0) {
                extents.push((number as u64, self.put(extent)?));
            }
        }
        let attributes = &file.attributes;
        let record = record_of(attributes, SEQUENCE_UNKNOWN, extents);
        self.copied.insert(attributes.inode, record);
        self.held.insert(attributes.inode, attributes.generation);
        Ok(())
    }

    /// Copies a file, unless the last generation or an earlier round has its current state.
    fn copy(&mut self, inode: u64, generation: u64) -> Result<()> {
        let at = self.region.inode_at(inode)?;
        if self.held.get(&inode) == Some(&generation) {
            return Ok(());
        }
        for tries_left in (0..TRIES_MAX).rev() {
            let (sequence, attributes) = self.state_of(inode, at)?;
            // The number may belong to another file since.
            if attributes.generation != generation {
                return Err(Error::Stale.into());
            }
            let is_same = |record: &&Record| {
                sequence != SEQUENCE_UNKNOWN
                    && record.sequence == sequence
                    && record.generation == attributes.generation
                    && record.size == attributes.size
                    && record.modified_ns == attributes.modified_ns
                    && record.changed_ns == attributes.changed_ns
            };
            if self.copied.get(&inode).is_some_and(|known| is_same(&known)) {
                return Ok(());
            }
            let known = self.before.get(&inode).filter(is_same);
            let record = match known.filter(|_| !self.may_change_unseen(at)) {
                Some(known) => {
                    self.report.files_skipped += 1;
                    record_of(&attributes, sequence, known.extents.clone())
                }
                None => {
                    let (extents, size) = self.extents_of(at, &attributes)?;
                    // A file that has lost its last name frees its memory before its inode, so the data read may be
                    // empty or zeros.
                    let now = self.region.attributes(inode)?;
                    if now.generation != generation || now.links == 0 {
                        return Err(Error::Stale.into());
                    }
                    let sequence = match self.region.memory.load(at + attribute::SEQUENCE) {
                        now if now == sequence => sequence,
                        _ if tries_left > 0 && attributes.size <= AGAIN_BYTES_MAX => continue,
                        _ => SEQUENCE_UNKNOWN,
                    };
                    record_of(&Attributes { size, ..attributes }, sequence, extents)
                }
            };
            // A file that has lost its last name may be freeing its bytes, before its inode is free. The copy may then
            // be a state that never existed.
            if self.region.memory.load(at + attribute::MODE_LINKS) >> 32 == 0 {
                return Err(Error::Stale.into());
            }
            self.copied.insert(inode, record);
            return Ok(());
        }
        Ok(())
    }

    /// An inode's attributes and the sequence number for which they are valid.
    fn state_of(&self, inode: u64, at: u64) -> Result<(u64, Attributes)> {
        for _ in 0..100 {
            let before = self.region.memory.load(at + attribute::SEQUENCE);
            let attributes = self.region.attributes(inode)?;
            if before.is_multiple_of(2)
                && self.region.memory.load(at + attribute::SEQUENCE) == before
            {
                return Ok((before, attributes));
            }
        }
        Ok((SEQUENCE_UNKNOWN, self.region.attributes(inode)?))
    }

    /// Whether the bytes of a file may change without its sequence number: through a mapping that it has or once had.
    fn may_change_unseen(&self, at: u64) -> bool {
        let place = self.region.memory.load(at + attribute::PLACE);
        let place = Place::decode(place, self.region);
        matches!(place, Some(Place::Slot { is_kept: true, .. }))
    }

    /// Writes the new extents of a file. Returns all its extents, and its size: less than in `attributes` if the file
    /// became shorter meanwhile. Zeros in place of bytes that are gone would be a state that never existed.
    fn extents_of(&mut self, at: u64, attributes: &Attributes) -> Result<(Vec<Extent>, u64)> {
        let region = self.region;
        let size_now = || region.memory.load(at + attribute::SIZE);
        let mut extents = Vec::new();
        let mut buffer = vec![0; EXTENT_BYTES.min(attributes.size) as usize];
        let place = self.region.memory.load(at + attribute::PLACE);
        let slot = match Place::decode(place, self.region) {
            Some(Place::Nowhere) => return Ok((extents, attributes.size.min(size_now()))),
            Some(Place::Slot { slot, .. }) => Some(slot),
            _ => None,
        };
        let (mut offset, mut end) = (0, attributes.size);
        while offset < end {
            let is_absent = slot.is_some_and(|slot| !region.is_present(slot, offset / PAGE_BYTES));
            if is_absent {
                // A hole, or memory behind the end: the size changes before memory is freed.
                end = end.min(size_now().max(offset));
                offset = (offset / PAGE_BYTES + 1) * PAGE_BYTES;
                continue;
            }
            let bytes = EXTENT_BYTES.min(end - offset) as usize;
            let (inode, generation) = (attributes.inode, attributes.generation);
            let read = &mut buffer[..bytes];
            let count = self.writer.read(inode, generation, offset, read)?;
            if buffer[..count].iter().any(|byte| *byte != 0) {
                let locator = self.put(&buffer[..count])?;
                extents.push((offset / EXTENT_BYTES, locator));
            }
            if count < bytes {
                end = offset + count as u64;
            }
            offset += EXTENT_BYTES;
        }
        Ok((extents, end))
    }

    /// The records of all inodes that have a name, for the table.
    fn records(
        &mut self,
        snapshot: &Snapshot<'_>,
        names: &Names,
        missed: &[(u64, bool)],
    ) -> BTreeMap<u64, Record> {
        let mut records = BTreeMap::new();
        for directory in &names.directories {
            let attributes = Attributes {
                inode: *directory,
                generation: snapshot.generation(*directory),
                mode: snapshot.mode(*directory),
                links: 0,
                user: snapshot.attribute(*directory, attribute::OWNER) as u32,
                group: (snapshot.attribute(*directory, attribute::OWNER) >> 32) as u32,
                size: 0,
                modified_ns: snapshot.attribute(*directory, attribute::MODIFIED_NS),
                changed_ns: snapshot.attribute(*directory, attribute::CHANGED_NS),
                accessed_ns: snapshot.attribute(*directory, attribute::ACCESSED_NS),
            };
            records.insert(*directory, record_of(&attributes, 0, Vec::new()));
        }
        self.report.directories = names.directories.len() as u64;
        for (inode, _) in missed {
            self.report.missed_count += 1;
            if self.report.missed.len() < NAMED_MAX {
                let name = names.of[inode].first();
                let name = name.map_or(&b""[..], |name| &name.name);
                self.report
                    .missed
                    .push(String::from_utf8_lossy(name).into_owned());
            }
            // The previous bytes are better than none.
            let generation = snapshot.generation(*inode);
            let before = self.before.get(inode);
            if let Some(before) = before.filter(|before| before.generation == generation) {
                let before = Record {
                    names: Vec::new(),
                    sequence: SEQUENCE_UNKNOWN,
                    ..before.clone()
                };
                records.insert(*inode, before);
            }
        }
        for inode in &names.files {
            if let Some(copied) = self.copied.get(inode) {
                records.entry(*inode).or_insert_with(|| copied.clone());
            }
            if let Some(record) = records.get(inode) {
                self.report.files += 1;
                self.report.bytes += record.size;
            }
        }
        for (inode, record) in &mut records {
            record.names = names.of.get(inode).cloned().unwrap_or_default();
        }
        records
    }

    /// Writes the table, and then the footer that makes the generation valid.
    fn finish(&mut self, records: &BTreeMap<u64, Record>) -> Result<()> {
        let mut parts = Vec::new();
        let mut group = Vec::new();
        let mut records_left = records.values().peekable();
        while let Some(record) = records_left.next() {
            record.encode(&mut group);
            let number = record.inode / GROUP_INODES;
            let goes_on = records_left
                .peek()
                .is_some_and(|next| next.inode / GROUP_INODES == number);
            if !goes_on {
                parts.push((Part::Inodes(number), self.put(&group)?));
                group.clear();
            }
        }
        for record in records.values().filter(|record| record.has_lists()) {
            let same_list =
                |one: &Extent, other: &Extent| one.0 / LIST_EXTENTS == other.0 / LIST_EXTENTS;
            for list in record.extents.chunk_by(same_list) {
                let number = list[0].0 / LIST_EXTENTS;
                let locator = self.put(&encode_list(list))?;
                parts.push((Part::Extents(record.inode, number), locator));
            }
        }
        if parts == self.parts_before && !self.is_begun && self.pending.is_empty() {
            self.report.is_unchanged = true;
            self.report.generation = self.generation_before;
        } else {
            self.begin_file();
            let index = encode_index(&parts);
            let index_at = self.pending_at + self.pending.len() as u64;
            let footer = Footer {
                key: self.key,
                generation: self.generation,
                index_at,
                index_bytes: index.len() as u64,
                index_checksum: crc32c::crc32c(&index),
                token: self.token,
                taken_ns: self.taken_ns,
                capacity_bytes: self.region.layout.capacity_bytes,
                files_max: self.region.layout.inode_count - 1,
                lanes: self.region.layout.lane_count as u32,
                files: self.report.files,
                directories: self.report.directories,
                bytes: self.report.bytes,
                missed: self.report.missed_count,
                flush: self.region.flush(),
            };
            self.pending.extend(&index);
            self.write_pending()?;
            // The data that the footer vouches for must be durable before it.
            self.archive.storage.sync()?;
            self.pending.extend(footer.encode());
            debug_assert_eq!(self.pending.len(), FOOTER_BYTES);
            self.write_pending()?;
            self.archive.storage.sync()?;
        }
        let memory = &self.region.memory;
        memory.store(state::CHECKPOINT_NS, self.taken_ns);
        memory.store(state::CHECKPOINT_GENERATION, self.report.generation);
        memory.persist([(state::CHECKPOINT_NS, 16)]);
        Ok(())
    }

    /// The place of a piece, which is written first if it is new.
    fn put(&mut self, bytes: &[u8]) -> Result<Locator> {
        let identity = Identity::of(self.key, bytes);
        if let Some(known) = self.known.get(&identity) {
            self.report.pieces_kept += 1;
            return Ok(*known);
        }
        self.begin_file();
        let locator = Locator {
            generation: self.generation,
            offset: self.pending_at + self.pending.len() as u64,
            identity,
        };
        self.pending.extend(bytes);
        self.known.insert(identity, locator);
        self.report.pieces_written += 1;
        if self.pending.len() >= WRITE_BYTES {
            self.write_pending()?;
        }
        Ok(locator)
    }

    fn begin_file(&mut self) {
        if self.pending_at == 0 && self.pending.is_empty() {
            let header = Header {
                key: self.key,
                generation: self.generation,
            };
            self.pending.extend(header.encode());
            debug_assert_eq!(self.pending.len(), HEADER_BYTES);
        }
    }

    fn write_pending(&mut self) -> Result<()> {
        let file = self.archive.file_of(self.generation);
        if !self.is_begun {
            self.archive.storage.create(&file)?;
            self.is_begun = true;
        }
        self.archive.storage.append(&file, &self.pending)?;
        self.pending_at += self.pending.len() as u64;
        self.report.bytes_written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

fn record_of(attributes: &Attributes, sequence: u64, extents: Vec<Extent>) -> Record {
    Record {
        inode: attributes.inode,
        generation: attributes.generation,
        sequence,
        mode: attributes.mode,
        user: attributes.user,
        group: attributes.group,
        size: attributes.size,
        modified_ns: attributes.modified_ns,
        changed_ns: attributes.changed_ns,
        accessed_ns: attributes.accessed_ns,
        names: Vec::new(),
        extents,
    }
}

/// The generations of whose files more than half is used, up to the maximum number. Pieces in other generations are
/// written again, so that their files can be deleted. So each byte is written at most twice as often as it changes. The
/// files take at most twice the size of a generation, plus the changes since the previous one.
fn worth_keeping(used: &BTreeMap<u64, u64>, files: &BTreeMap<u64, u64>) -> BTreeSet<u64> {
    let mut kept: Vec<(u64, u64)> = used
        .iter()
        .filter(|(generation, bytes)| {
            let length = files.get(generation).copied().unwrap_or(u64::MAX);
            // Header, index and footer count as used.
            bytes.saturating_mul(2).saturating_add(4096) > length
        })
        .map(|(generation, bytes)| (*bytes, *generation))
        .collect();
    kept.sort_unstable();
    if kept.len() > FILES_MAX {
        kept.drain(..kept.len() - FILES_MAX / 2);
    }
    kept.into_iter().map(|(_, generation)| generation).collect()
}
