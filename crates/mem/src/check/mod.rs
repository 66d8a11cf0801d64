//! Checking a region, and mending it.
//!
//! **Holds:** the conditions under which the tables of a region agree, the search for violations, and the repair.
//!
//! **Must not know:** how the damage happened. No content of a region makes the check panic or loop forever.
//!
//! **Invariants:** the check changes nothing unless it is asked to. Mending keeps every file and every name that can be
//! found in any way, and reports what each has lost. Data derived from names and files (lists, chains, counts, maps,
//! the pool) is rebuilt from them. If two files claim the same memory, the table that records the owner decides; if
//! there is no such table, each file gets a copy.
//!
//! **Files:** `superblock.rs` the file as a whole, `names.rs` names and directories, `space.rs` memory, `locks.rs`
//! lanes, locks and open file descriptions, `mend.rs` rebuilding the tables.

mod locks;
mod mend;
mod names;
#[cfg(test)]
mod proof;
mod space;
mod superblock;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::error::{Error, Result};
use crate::inode::attribute;
use crate::lane::Lane;
use crate::layout::state;
use crate::region::{Region, Senseless};
use crate::writer::Writer;

use names::NamesFound;
use space::SpaceFound;
use superblock::FileFound;

/// Maximum number of findings in a report.
const FINDINGS_MAX: usize = 200;

/// The kind of damage, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A lane has an invalid state, or a dead writer's log could not be replayed.
    Lane,
    /// A lock has no holder.
    Lock,
    /// A file is marked as being changed, but no writer changes it.
    Change,
    /// A name cannot be read, or names an invalid inode; or two names of a directory are the same.
    Name,
    /// A list of a directory or a chain of names does not agree with the names.
    List,
    /// An inode does not agree with its names: their number, its parent, its type.
    Links,
    /// A file or directory that no name leads to.
    Lost,
    /// A free list does not agree with what is in use, or a count is wrong.
    Free,
    /// A file's place is invalid, or its size is larger than its place.
    Place,
    /// Two files claim the same memory.
    Shared,
    /// A map of memory does not agree with the files.
    Map,
    /// Pages that no file or pool has, or more pages than exist.
    Pages,
    /// The superblock, or the length of the file.
    Superblock,
    /// An open file description of an invalid file.
    Description,
}

impl Kind {
    /// Its name in reports that programs read.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Lock => "lock",
            Self::Change => "change",
            Self::Name => "name",
            Self::List => "list",
            Self::Links => "links",
            Self::Lost => "lost",
            Self::Free => "free",
            Self::Place => "place",
            Self::Shared => "shared",
            Self::Map => "map",
            Self::Pages => "pages",
            Self::Superblock => "superblock",
            Self::Description => "description",
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Offset from the beginning of the region's file, in bytes.
    pub at: u64,
    /// A description for people.
    pub text: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of named files and other entries that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// The number of names.
    pub names: u64,
    /// The number of deleted files that a process may still have open.
    pub orphans: u64,
    /// Pages of memory in the pool, in the packed zone and in slots.
    pub pages_pool: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_packed: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_slots: u64,
    /// The number of lanes of dead writers that were freed before the check.
    pub settled: u64,
    /// Of these, the number of writers that died in the middle of a change, which was finished or undone.
    pub interrupted: u64,
    /// The region cannot be opened as it is, and only that was checked: nothing is known of its files.
    pub is_unreadable: bool,
    /// The violations, as many as fit.
    pub findings: Vec<Finding>,
    /// The number of violations.
    pub finding_count: u64,
    /// The region was mended: a later check finds nothing, unless damage continues.
    pub is_mended: bool,
    /// Names and bytes that mending could not keep, as many as fit.
    pub losses: Vec<String>,
    /// The number of losses.
    pub loss_count: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.finding_count == 0
    }

    fn find(&mut self, kind: Kind, at: u64, text: impl Into<String>) {
        self.finding_count += 1;
        if self.findings.len() < FINDINGS_MAX {
            let text = text.into();
            self.findings.push(Finding { kind, at, text });
        }
    }

    fn lose(&mut self, text: impl Into<String>) {
        self.loss_count += 1;
        if self.losses.len() < FINDINGS_MAX {
            self.losses.push(text.into());
        }
    }
}

/// Checks a region by its file, also one that cannot be opened. Without write access, changes by other processes during
/// the check may be reported.
///
/// # Errors
/// As [`check`], and those of [`Region::open`]; [`Error::Damaged`](crate::Error::Damaged) when it can neither be read
/// nor mended.
pub fn check_file(path: &Path, mends: bool) -> Result<CheckReport> {
    let found = superblock::look(path, mends)?;
    if !mends && !found.findings.is_empty() {
        return Ok(CheckReport {
            finding_count: found.findings.len() as u64,
            findings: found.findings,
            is_unreadable: true,
            ..CheckReport::default()
        });
    }
    let region = match Region::open_with(path, true, Senseless::Left) {
        Err(Error::System { source, .. })
            if !mends
                && matches!(
                    source.raw_os_error(),
                    Some(libc::EACCES | libc::EPERM | libc::EROFS)
                ) =>
        {
            Region::open(path, false)
        }
        other => other,
    }?;
    check_found(&region, mends, found)
}

/// Checks a region, and mends it if `mends` is set. Other processes may use it meanwhile, but cannot change names or
/// take memory until the check ends. If the region is attached for reading only, changes during the check may be
/// reported.
///
/// # Errors
/// [`Error::ReadOnly`](crate::Error::ReadOnly) when it must be mended and is not writable;
/// [`Error::LanesFull`](crate::Error::LanesFull); [`Error::System`](crate::Error::System).
pub fn check(region: &Region, mends: bool) -> Result<CheckReport> {
    check_found(region, mends, FileFound::default())
}

fn check_found(region: &Region, mends: bool, file: FileFound) -> Result<CheckReport> {
    let mut report = CheckReport {
        finding_count: file.findings.len() as u64,
        findings: file.findings,
        ..CheckReport::default()
    };
    if !region.is_writable() {
        if mends {
            return Err(Error::ReadOnly);
        }
        look(region, None, &mut report);
        return Ok(report);
    }
    locks::settle(region, mends, &mut report)?;
    let writer = region.writer()?;
    let words = match region.begin_words(writer.lane) {
        Ok(words) => Some(words),
        Err(error) => {
            report.find(Kind::Lock, state::LOCK, error.to_string());
            if mends {
                locks::free(region, state::LOCK);
                Some(region.begin_words(writer.lane)?)
            } else {
                None
            }
        }
    };
    let found = look(region, Some(writer.lane), &mut report);
    if !mends || report.is_clean() {
        return Ok(report);
    }
    locks::free_all(region);
    locks::free_descriptions(region);
    if let Some(cut_at) = file.cut_at {
        space::lose_behind(region, cut_at, &found.0, &mut report);
    }
    let copies = mend::mend(region, &found.0, &found.1, &mut report)?;
    drop(words);
    mend::give_copies(&writer, copies, &mut report);
    drop(writer);
    let mut again = CheckReport::default();
    let words = region.writer()?;
    look(region, Some(words.lane), &mut again);
    report.is_mended = again.is_clean();
    Ok(report)
}

fn look(region: &Region, lane: Option<Lane>, report: &mut CheckReport) -> (NamesFound, SpaceFound) {
    locks::look(region, lane, report);
    locks::descriptions(region, report);
    let names = names::look(region, report);
    let space = space::look(region, &names, report);
    (names, space)
}

/// Whether an inode is in use. The number must be valid.
fn is_live(region: &Region, inode: u64) -> bool {
    region
        .memory
        .load(region.layout.inode(inode) + attribute::GENERATION)
        != 0
}

impl Writer<'_> {
    /// See [`check`].
    ///
    /// # Errors
    /// As [`check`].
    pub fn check(&self, mends: bool) -> Result<CheckReport> {
        check(self.region, mends)
    }
}
