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
//! **Files:** `report.rs` what a check found, `superblock.rs` the file as a whole, `names.rs` names and directories,
//! `space.rs` memory, `list.rs` walks of lists, `locks.rs` lanes, locks and open file descriptions, `mend.rs` the
//! rebuilding of tables.

mod list;
mod locks;
mod mend;
mod names;
#[cfg(test)]
mod proof;
mod report;
mod space;
mod superblock;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::layout::state;
use crate::region::Region;
use crate::run::InvalidLog;
use crate::writer::Writer;

pub use report::{CheckReport, Finding, Kind};

use names::NamesFound;
use space::SpaceFound;
use superblock::FileFound;

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
    let region = match Region::open_with(path, true, InvalidLog::Left) {
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

impl Writer<'_> {
    /// See [`check`].
    ///
    /// # Errors
    /// As [`check`].
    pub fn check(&self, mends: bool) -> Result<CheckReport> {
        check(self.region, mends)
    }
}
