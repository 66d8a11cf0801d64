//! Checking a region, and mending it.
//!
//! **Holds:** what the tables of a region must say so that they agree, what of it does not, and how to make it so.
//!
//! **Must not know:** how they came to disagree. No content of a region makes it panic or go in circles.
//!
//! **Invariants:** nothing is changed without being asked to. Mending keeps every file and every name that can be
//! found by any way, and says of each what it has lost. What is derived from names and files (lists, chains, counts,
//! maps, the pool) is made anew from those; where two say that something is theirs, the table that decides between
//! them does, and where there is none each gets a copy.
//!
//! **Files:** `superblock.rs` the file as a whole, `names.rs` names and directories, `space.rs`
//! memory, `locks.rs` lanes, locks
//! and open file descriptions, `mend.rs` making the tables anew.

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

/// Findings in a report.
const FINDINGS_MAX: usize = 200;

/// What is wrong, as programs tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A lane says what no writer does, or a dead writer's log could not be carried out.
    Lane,
    /// A lock is held by nobody.
    Lock,
    /// A file is being changed by nobody.
    Change,
    /// A name cannot be read, or names what is not there; or two names of a directory are the same.
    Name,
    /// A list of a directory or a chain of names does not agree with the names.
    List,
    /// An inode says something that its names do not: how many there are, where it is, what it is.
    Links,
    /// A file or directory that no name leads to.
    Lost,
    /// A list of free things does not agree with what is used, or a count with what it counts.
    Free,
    /// A file's bytes are where none can be, or it says that it is longer than they are.
    Place,
    /// Two files say that the same memory is theirs.
    Shared,
    /// A map of memory does not agree with the files.
    Map,
    /// Pages that nobody has, or that are more than there are.
    Pages,
    /// The first bytes of the file, or its length.
    Superblock,
    /// An open file description that describes nothing.
    Description,
}

impl Kind {
    /// For reports that programs read.
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

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Where, in bytes from the beginning of the region's file.
    pub at: u64,
    /// In words.
    pub text: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Files and whatever else is no directory and has a name.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Deleted files that somebody may still have open.
    pub orphans: u64,
    /// Pages of memory in the pool, in the packed zone and in slots.
    pub pages_pool: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_packed: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_slots: u64,
    /// Places of dead writers that were given back, before anything was looked at.
    pub settled: u64,
    /// Of these, writers that died in the middle of a change, which was finished or undone.
    pub interrupted: u64,
    /// The region cannot be opened as it is, and only that was looked at: nothing is known of its files.
    pub is_unreadable: bool,
    /// What is wrong, as much as fits.
    pub findings: Vec<Finding>,
    /// How much is.
    pub finding_count: u64,
    /// It was mended: a check that follows finds nothing, unless somebody goes on damaging it.
    pub is_mended: bool,
    /// What mending could not keep: names, bytes. As much as fits.
    pub losses: Vec<String>,
    /// How much that is.
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

/// Checks a region by its file, also one that cannot be opened. Without the right to write to it, what changes
/// meanwhile may be found.
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

/// Checks a region, and mends it where that is wanted. Others may use it meanwhile, but for as long as it takes nobody
/// changes names or takes memory; of a region that is attached for reading only, what changes meanwhile may be found.
///
/// # Errors
/// [`Error::ReadOnly`](crate::Error::ReadOnly) when it is to be mended and may not be written to;
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

/// Whether an inode is in use; its number is one that an inode can have.
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
