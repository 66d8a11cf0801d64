//! Restoring a checkpoint: as much of it as can be read, however damaged it is.
//!
//! The newest generation with a whole table is restored. If a file of it cannot be read, it is taken from the previous
//! generation, if that has a file of this name. Otherwise the file is lost, and reported. If no generation has a whole
//! table, the remains of the newest are restored, and files that have lost their directory go to `lost+found`.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::Error;
use crate::flush::Flush;
use crate::inode::NewInode;
use crate::layout::{RegionOptions, attribute, state};
use crate::node::ROOT_INODE;
use crate::writer::Writer;

use super::archive::{Archive, Table};
use super::format::{EXTENT_BYTES, Record};
use super::storage::Storage;
use super::{CheckpointError, Result};

/// Maximum number of names in a report.
const NAMED_MAX: usize = 1000;
/// Maximum number of generations that are examined: two are kept, and an unfinished one may be there as well.
const TABLES_MAX: usize = 4;
/// Maximum nesting of directories.
const DEPTH_MAX: usize = 4096;

/// The reason why a file is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostBecause {
    /// Its bytes, or the table entries that locate them, could not be read.
    Damaged,
    /// The region is too small for it.
    NoRoom,
    /// No file can have this name.
    BadName,
}

impl LostBecause {
    /// Its name in reports that programs read.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::NoRoom => "no-room",
            Self::BadName => "bad-name",
        }
    }
}

/// A file that was not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its path from the root of the region.
    pub path: String,
    /// The reason.
    pub because: LostBecause,
}

/// What was restored, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// The generation that was restored; 0: none could be restored.
    pub generation: u64,
    /// When it was begun, in nanoseconds since 1970. Later changes are lost.
    pub taken_ns: u64,
    /// The number of newer generations that could not be restored, or were never finished.
    pub generations_skipped: u64,
    /// The number of files and other entries that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Bytes of all files, according to their records.
    pub bytes: u64,
    /// The number of parts of the table that could not be read. The names of their files are unknown.
    pub parts_damaged: u64,
    /// The number of files that were already missing when the checkpoint was taken.
    pub missed: u64,
    /// Paths of files that were taken from the previous generation, as many as fit.
    pub older: Vec<String>,
    /// The number of such files.
    pub older_count: u64,
    /// Files that are lost, as many as fit.
    pub lost: Vec<Lost>,
    /// The number of such files.
    pub lost_count: u64,
}

impl RestoreReport {
    /// Whether everything of the newest generation was restored.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.generation != 0
            && self.generations_skipped + self.parts_damaged + self.missed == 0
            && self.older_count + self.lost_count == 0
    }
}

/// The options of the region whose checkpoint is in the storage; `None` if no checkpoint can be read.
///
/// # Errors
/// Those of the storage's list, [`CheckpointError::Name`].
pub fn shape<S: Storage>(storage: &mut S, name: &str) -> Result<Option<RegionOptions>> {
    let mut archive = Archive::new(storage, name)?;
    let files = archive.files()?;
    let newest = files
        .into_iter()
        .rev()
        .find_map(|(generation, bytes)| archive.footer(generation, bytes));
    Ok(newest.map(|footer| RegionOptions {
        capacity_bytes: footer.capacity_bytes,
        files_max: Some(footer.files_max),
        lanes: footer.lanes,
    }))
}

/// A checkpoint that is in a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its generation.
    pub generation: u64,
    /// When it was begun, in nanoseconds since 1970. A restore would lose later changes.
    pub taken_ns: u64,
    /// How the saved region made its changes survive a crash of the machine.
    pub flush: Flush,
}

/// The newest checkpoint in the storage that can be read.
///
/// # Errors
/// Those of the storage's list, [`CheckpointError::Name`].
pub fn newest<S: Storage>(storage: &mut S, name: &str) -> Result<Option<Taken>> {
    let mut archive = Archive::new(storage, name)?;
    let files = archive.files()?;
    let newest = files
        .into_iter()
        .rev()
        .find_map(|(generation, bytes)| archive.footer(generation, bytes));
    Ok(newest.map(|footer| Taken {
        generation: footer.generation,
        taken_ns: footer.taken_ns,
        flush: footer.flush,
    }))
}

/// Fills an empty region with the newest checkpoint. Damage of the checkpoint is reported, not returned as an error.
///
/// # Errors
/// [`CheckpointError::NotEmpty`], those of the storage's list, and those of the region except that it is full.
pub fn restore<S: Storage>(
    writer: &Writer<'_>,
    storage: &mut S,
    name: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RestoreReport> {
    let archive = Archive::new(storage, name)?;
    if !writer.list(ROOT_INODE, 0, 1)?.is_empty() {
        return Err(CheckpointError::NotEmpty);
    }
    let mut restorer = Restorer {
        writer,
        archive,
        older: None,
        made: HashMap::new(),
        entered: HashSet::new(),
        buffer: Vec::new(),
        report: RestoreReport::default(),
    };
    let Some(table) = restorer.choose()? else {
        return Ok(restorer.report);
    };
    restorer.run(&table, progress)?;
    Ok(restorer.report)
}

/// The names of each directory with their inodes and records, in the directory's order.
type Children<'t> = BTreeMap<u64, Vec<(u64, &'t [u8], &'t Record)>>;

fn children(table: &Table) -> Children<'_> {
    let mut children = Children::new();
    for record in table.records.values() {
        for name in &record.names {
            let entry = (name.position, name.name.as_slice(), record);
            children.entry(name.directory).or_default().push(entry);
        }
    }
    for entries in children.values_mut() {
        entries.sort_by_key(|(position, _, _)| *position);
    }
    children
}

fn is_directory(record: &Record) -> bool {
    record.mode & libc::S_IFMT == libc::S_IFDIR
}

/// The previous generation, with the inodes of its paths.
struct Older {
    table: Table,
    inodes: HashMap<Vec<u8>, u64>,
}

struct Restorer<'s, 'w, 'r, S> {
    writer: &'w Writer<'r>,
    archive: Archive<'s, S>,
    older: Option<Older>,
    /// Maps inodes of the table to inodes of the region; `None`: the file is lost.
    made: HashMap<u64, Option<u64>>,
    /// Directories that have been entered.
    entered: HashSet<u64>,
    buffer: Vec<u8>,
    report: RestoreReport,
}

impl<S: Storage> Restorer<'_, '_, '_, S> {
    fn choose(&mut self) -> Result<Option<Table>> {
        let files = self.archive.files()?.len() as u64;
        let mut tables = self.archive.tables(TABLES_MAX)?.0;
        let whole = tables.iter().position(Table::is_whole);
        if tables.is_empty() {
            self.report.generations_skipped = files;
            return Ok(None);
        }
        let table = tables.remove(whole.unwrap_or(0));
        let footer = table.footer;
        let newer = self.archive.files()?;
        let newer = newer.range(footer.generation + 1..).count();
        self.report = RestoreReport {
            generation: footer.generation,
            taken_ns: footer.taken_ns,
            generations_skipped: newer as u64,
            parts_damaged: table.damaged.len() as u64,
            missed: footer.missed,
            ..RestoreReport::default()
        };
        let older = tables
            .into_iter()
            .filter(|older| older.footer.generation < footer.generation)
            .find(Table::is_whole);
        self.older = older.map(|table| Older {
            inodes: paths(&table),
            table,
        });
        Ok(Some(table))
    }

    fn run(&mut self, table: &Table, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut children = children(table);
        let all = table.records.len() as u64;
        self.made.insert(ROOT_INODE, Some(ROOT_INODE));
        self.fill(table, &children, ROOT_INODE, ROOT_INODE, &mut |done| {
            progress(done, all);
        })?;
        if !table.is_whole() {
            // Entries of unknown directories are not reachable, with everything below them.
            children.retain(|directory, _| !table.records.contains_key(directory));
            let homeless: Vec<_> = children.into_values().flatten().collect();
            if !homeless.is_empty() {
                self.adopt(table, &homeless)?;
            }
        }
        if let Some(root) = table.records.get(&ROOT_INODE) {
            self.set_attributes(ROOT_INODE, root)?;
        }
        self.report.directories += 1;
        progress(all, all);
        let memory = &self.writer.region.memory;
        memory.store(state::CHECKPOINT_NS, self.report.taken_ns);
        memory.store(state::CHECKPOINT_GENERATION, self.report.generation);
        memory.persist([(state::CHECKPOINT_NS, 16)]);
        Ok(())
    }

    /// Makes the entries of a directory of the table, and everything below them.
    fn fill(
        &mut self,
        table: &Table,
        children: &Children<'_>,
        top: u64,
        target: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut waiting = vec![(top, target, Vec::new(), 0)];
        let mut filled = Vec::new();
        while let Some((directory, target, path, depth)) = waiting.pop() {
            // In a damaged table, directories may form a cycle.
            if depth > DEPTH_MAX || !self.entered.insert(directory) {
                continue;
            }
            filled.push((directory, target));
            for (_, name, record) in children.get(&directory).into_iter().flatten() {
                let mut path: Vec<u8> = path.clone();
                path.push(b'/');
                path.extend(*name);
                progress(self.made.len() as u64);
                let made = self.make(table, record, target, name, &path)?;
                if let Some(made) = made.filter(|_| is_directory(record)) {
                    waiting.push((record.inode, made, path, depth + 1));
                }
            }
        }
        // Making entries has changed the times of the directories.
        for (directory, target) in filled {
            if let Some(record) = table.records.get(&directory) {
                self.set_attributes(target, record)?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, table: &Table, homeless: &[(u64, &[u8], &Record)]) -> Result<()> {
        let children = children(table);
        let new = NewInode {
            mode: libc::S_IFDIR | 0o700,
            user: 0,
            group: 0,
            now_ns: self.report.taken_ns,
        };
        let home = match self.writer.create(ROOT_INODE, b"lost+found", &new) {
            Ok(made) => made.inode,
            // The checkpoint had a `lost+found`, which is restored already.
            Err(Error::Exists) => self.writer.look_up(ROOT_INODE, b"lost+found")?.inode,
            Err(error) => return self.lose(b"/lost+found", error).map(drop),
        };
        for (_, name, record) in homeless {
            let mut unique = format!("{}-", record.inode).into_bytes();
            unique.extend(&name[..name.len().min(200)]);
            let mut path = b"/lost+found/".to_vec();
            path.extend(&unique);
            let made = self.make(table, record, home, &unique, &path)?;
            if let Some(made) = made.filter(|_| is_directory(record)) {
                self.fill(table, &children, record.inode, made, &mut |_| {})?;
            }
        }
        Ok(())
    }

    /// Makes one file or directory, or one more name of a file. Returns the inode, unless the file is lost.
    fn make(
        &mut self,
        table: &Table,
        record: &Record,
        directory: u64,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<u64>> {
        if let Some(known) = self.made.get(&record.inode).copied() {
            if is_directory(record) {
                return Ok(None);
            }
            let Some(inode) = known else {
                return self.note_lost(path, LostBecause::Damaged);
            };
            let linked = self.writer.link(inode, directory, name, record.changed_ns);
            return match linked {
                Ok(()) => {
                    self.set_attributes(inode, record)?;
                    Ok(Some(inode))
                }
                Err(error) => self.lose(path, error),
            };
        }
        let mut made = self.make_from(table, record, directory, name)?;
        let mut record = record;
        let older = self.older.take();
        if let (Err(LostBecause::Damaged), Some(older)) = (&made, &older) {
            let instead = older.inodes.get(path).and_then(|inode| {
                let found = older.table.records.get(inode);
                found.filter(|found| !is_directory(found))
            });
            if let Some(instead) = instead {
                let from_older = self.make_from(&older.table, instead, directory, name)?;
                if from_older.is_ok() {
                    self.report.older_count += 1;
                    if self.report.older.len() < NAMED_MAX {
                        let path = String::from_utf8_lossy(path).into_owned();
                        self.report.older.push(path);
                    }
                    record = instead;
                    made = from_older;
                }
            }
        }
        let made_inode = made.as_ref().ok().copied();
        self.made.insert(record.inode, made_inode);
        if let Some(inode) = made_inode {
            if is_directory(record) {
                self.report.directories += 1;
            } else {
                self.report.files += 1;
                self.report.bytes += record.size;
                self.set_attributes(inode, record)?;
            }
        }
        self.older = older;
        match made {
            Ok(inode) => Ok(Some(inode)),
            Err(because) => self.note_lost(path, because),
        }
    }

    fn make_from(
        &mut self,
        table: &Table,
        record: &Record,
        directory: u64,
        name: &[u8],
    ) -> Result<std::result::Result<u64, LostBecause>> {
        if !table.knows_extents(record.inode) {
            return Ok(Err(LostBecause::Damaged));
        }
        let new = NewInode {
            mode: record.mode,
            user: record.user,
            group: record.group,
            now_ns: record.modified_ns,
        };
        let made = match self.writer.create(directory, name, &new) {
            Ok(made) => made,
            Err(error) => return because(error).map(Err),
        };
        if is_directory(record) {
            return Ok(Ok(made.inode));
        }
        let filled = self.fill_file(table, record, made.inode, made.generation)?;
        if filled.is_err() {
            self.writer.remove(directory, name, record.modified_ns)?;
        }
        Ok(filled.map(|()| made.inode))
    }

    fn fill_file(
        &mut self,
        table: &Table,
        record: &Record,
        inode: u64,
        generation: u64,
    ) -> Result<std::result::Result<(), LostBecause>> {
        let now_ns = record.modified_ns;
        // Set the size first, so that the bytes are written directly to their final place.
        let sized = self.writer.set_size(inode, generation, record.size, now_ns);
        if let Err(error) = sized {
            return because(error).map(Err);
        }
        for (number, locator) in &record.extents {
            let is_whole = self
                .archive
                .read_piece(table.footer.key, locator, &mut self.buffer);
            let offset = number.saturating_mul(EXTENT_BYTES);
            let end = offset.saturating_add(self.buffer.len() as u64);
            if !is_whole || end > record.size {
                return Ok(Err(LostBecause::Damaged));
            }
            let written = self
                .writer
                .write(inode, generation, offset, &self.buffer, now_ns);
            if let Err(error) = written {
                return because(error).map(Err);
            }
        }
        Ok(Ok(()))
    }

    fn set_attributes(&self, inode: u64, record: &Record) -> Result<()> {
        let region = self.writer.region;
        let at = region.inode_at(inode)?;
        let mut words = region.begin_words(self.writer.lane)?;
        words.change(at + attribute::MODE_LINKS, |word| {
            word & !0xffff_ffff | u64::from(record.mode)
        })?;
        let owner = u64::from(record.group) << 32 | u64::from(record.user);
        words.set(at + attribute::OWNER, owner)?;
        words.set(at + attribute::MODIFIED_NS, record.modified_ns)?;
        words.set(at + attribute::CHANGED_NS, record.changed_ns)?;
        words.set(at + attribute::ACCESSED_NS, record.accessed_ns)?;
        words.commit()?;
        Ok(())
    }

    fn lose(&mut self, path: &[u8], error: Error) -> Result<Option<u64>> {
        let because = because(error)?;
        self.note_lost(path, because)
    }

    fn note_lost(&mut self, path: &[u8], because: LostBecause) -> Result<Option<u64>> {
        self.report.lost_count += 1;
        if self.report.lost.len() < NAMED_MAX {
            self.report.lost.push(Lost {
                path: String::from_utf8_lossy(path).into_owned(),
                because,
            });
        }
        Ok(None)
    }
}

/// The reason for which a file is lost by an error of the region; other errors are the region's own.
fn because(error: Error) -> Result<LostBecause> {
    match error {
        Error::Full | Error::TablesFull | Error::TooLarge => Ok(LostBecause::NoRoom),
        Error::Invalid { .. } | Error::NameTooLong | Error::Exists => Ok(LostBecause::BadName),
        error => Err(error.into()),
    }
}

/// Maps all paths of a table to their inodes.
fn paths(table: &Table) -> HashMap<Vec<u8>, u64> {
    let children = children(table);
    let mut paths = HashMap::new();
    let mut entered = HashSet::new();
    let mut waiting = vec![(ROOT_INODE, Vec::new())];
    while let Some((directory, path)) = waiting.pop() {
        if !entered.insert(directory) {
            continue;
        }
        for (_, name, record) in children.get(&directory).into_iter().flatten() {
            let mut path: Vec<u8> = path.clone();
            path.push(b'/');
            path.extend(*name);
            if is_directory(record) {
                waiting.push((record.inode, path.clone()));
            }
            paths.insert(path, record.inode);
        }
    }
    paths
}
