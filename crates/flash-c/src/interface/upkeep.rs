//! Checking, repairing and enlarging a store.

use super::store::{
    KEELFLASH_SPARSE, check_flags, device_options, keelflash_store, open_device, sized,
};
use crate::failure::{KEELFLASH_CORRUPT, guard, of_device, of_store};
use crate::handles::{refuse_visitor, visiting, with_store};
use crate::pointer::path;
use base::block::{BLOCK_BYTES, BlockDevice};
use c_interface::Failure;
use c_interface::pointer::{check_output, put};
use flash::{OpenOptions, RepairReport, Store};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

/// The block number that means: no block.
pub const KEELFLASH_NO_BLOCK: u64 = 0xffff_ffff_ffff_ffff;

/// One problem of a store.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct keelflash_problem {
    /// Name of the affected file; NULL if no file is known.
    pub file: *const c_char,
    /// Number of the block in which the problem was found, or KEELFLASH_NO_BLOCK.
    pub block: u64,
    /// What is wrong and what it means; after a repair also what was done about it.
    pub text: *const c_char,
    /// 1 if the problem is repaired, 0 if it is not.
    pub is_mended: u32,
    /// 1 if bytes or the name of a file are lost because of it, else 0.
    pub is_data_lost: u32,
}

/// A function that is called with each problem. A return value other than 0 ends the list. The function must not call
/// the library, and must return: no longjmp, no exception. `problem` and its strings are valid until it returns.
#[allow(non_camel_case_types)]
pub type keelflash_visit_problem =
    Option<unsafe extern "C" fn(context: *mut c_void, problem: *const keelflash_problem) -> c_int>;

/// The result of a check or a repair. A later version may have more fields at the end.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct keelflash_check_report {
    /// Number of files in the store.
    pub files: u64,
    /// Number of intact blocks of files.
    pub blocks_verified: u64,
    /// Number of blocks that no file owns.
    pub blocks_free: u64,
    /// Number of all problems found; the visitor function is called with the first 1000 of them, and
    /// after a repair also with each restored file.
    pub problems: u64,
    /// After a check: equal to `problems`. After a repair: number of problems that a check finds afterwards.
    pub problems_left: u64,
    /// Number of blocks that a repair wrote; 0 if there was nothing to repair.
    pub blocks_written: u64,
    /// Number of files that a repair restored as `lost-NUMBER-NAME`, because their names are lost.
    pub files_renamed: u64,
    /// 1 if bytes or names of files are lost, else 0. A check looks at the first 1000 problems for it.
    pub is_data_lost: u64,
}

/// A problem with its texts as C strings.
struct Shown {
    file: Option<CString>,
    block: Option<u64>,
    text: CString,
    is_mended: bool,
    is_data_lost: bool,
}

impl Shown {
    fn new(file: Option<&str>, text: impl Into<Vec<u8>>) -> Self {
        Self {
            // Names in a store contain no zeros.
            file: file.and_then(|name| CString::new(name).ok()),
            block: None,
            text: CString::new(text).unwrap_or_default(),
            is_mended: false,
            is_data_lost: false,
        }
    }
}

/// Reads every block of the store and reports all damage; changes nothing. Calls `visit` for each problem and passes
/// `context` to it; `visit` may be NULL. `report` may be NULL too. If it is not, `report_bytes` is
/// sizeof(keelflash_check_report) in the caller's header.
///
/// KEELFLASH_OK means that the store is intact. KEELFLASH_CORRUPT means that it is damaged: everything has been read,
/// `visit` has been called for the problems, and the report is written. The call takes as long as reading the whole
/// store. It needs two bytes of memory for each block of the store, and more for a long file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_check(
    store: *mut keelflash_store,
    visit: keelflash_visit_problem,
    context: *mut c_void,
    report: *mut keelflash_check_report,
    report_bytes: usize,
) -> i32 {
    guard(|| {
        check_report(report, report_bytes)?;
        let found = with_store(store.addr(), |store| store.check().map_err(of_store))?;
        let figures = keelflash_check_report {
            files: found.files,
            blocks_verified: found.blocks_verified,
            blocks_free: found.blocks_free,
            problems: found.problems_total,
            problems_left: found.problems_total,
            is_data_lost: found
                .problems
                .iter()
                .any(|problem| problem.data_lost)
                .into(),
            ..keelflash_check_report::default()
        };
        let problems: Vec<Shown> = (found.problems.iter())
            .map(|problem| Shown {
                block: problem.block,
                is_data_lost: problem.data_lost,
                ..Shown::new(problem.file.as_deref(), problem.text.clone())
            })
            .collect();
        // SAFETY: checked above, and otherwise the header's rules for pointers.
        unsafe { tell(report, figures, &problems, visit, context) };
        match found.problems.first() {
            None if found.is_clean() => Ok(()),
            first => Err(Failure::new(
                KEELFLASH_CORRUPT,
                format!(
                    "problems found: {}; the first: {}",
                    found.problems_total,
                    first.map(ToString::to_string).unwrap_or_default()
                ),
            )),
        }
    })
}

/// Repairs the store at `path` as far as that is possible without inventing data. No process may have the store open.
/// The repair uses second copies, and rebuilds the name table and the list of free blocks from the blocks of the files.
/// A file whose name is lost is restored as lost-NUMBER-NAME. Reading damaged bytes of a file still fails. If nothing
/// is wrong, nothing is written. Copy the image first if you can. `visit`, `context`, `report` and `report_bytes` are
/// as for keelflash_check.
///
/// KEELFLASH_OK means that the store is intact and that nothing is lost. KEELFLASH_CORRUPT means one of two things.
/// Either something is lost or still wrong. All that could be repaired is then repaired, `visit` has been called for
/// the problems, and the report is written. Or all copies of the superblock are damaged. The repair could then not
/// start, and the report is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_repair(
    path: *const c_char,
    visit: keelflash_visit_problem,
    context: *mut c_void,
    report: *mut keelflash_check_report,
    report_bytes: usize,
) -> i32 {
    guard(|| {
        check_report(report, report_bytes)?;
        refuse_visitor()?;
        // SAFETY: the header's rules for pointers.
        let path = unsafe { self::path(path)? };
        let about = |failure: Failure| failure.about(&path.display().to_string());
        let (found, problems_left) = repair(path).map_err(about)?;
        let figures = keelflash_check_report {
            files: found.files,
            blocks_verified: found.blocks_verified,
            blocks_free: found.blocks_free,
            problems: found.findings_total,
            problems_left,
            blocks_written: found.blocks_written,
            files_renamed: found.lost_files.len() as u64,
            is_data_lost: found.data_lost.into(),
        };
        // SAFETY: checked above, and otherwise the header's rules for pointers.
        unsafe { tell(report, figures, &shown(&found), visit, context) };
        if problems_left == 0 && !found.data_lost {
            return Ok(());
        }
        let lost = if found.data_lost { ", data lost" } else { "" };
        let text = format!(
            "problems found: {}, left: {problems_left}{lost}",
            found.findings_total
        );
        Err(about(Failure::new(KEELFLASH_CORRUPT, text)))
    })
}

/// Repairs a store. Returns the report, and the number of problems that a check finds afterwards.
fn repair(path: &Path) -> Result<(RepairReport, u64), Failure> {
    let device = open_device(path, &device_options(false))?;
    let (found, device) = Store::repair(device, &mut |_| {}).map_err(of_store)?;
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let left = Store::open(device, &options).and_then(|mut store| store.check());
    Ok((found, left.map_err(of_store)?.problems_total))
}

fn shown(found: &RepairReport) -> Vec<Shown> {
    let findings = found.findings.iter().map(|finding| Shown {
        block: finding.block,
        is_mended: finding.mended,
        is_data_lost: finding.data_lost,
        ..Shown::new(finding.file.as_deref(), finding.text.clone())
    });
    let files = found.lost_files.iter().map(|file| {
        let doubt = if file.may_be_old {
            "; it may have been deleted before"
        } else {
            ""
        };
        let text = format!(
            "came back under this name: {} bytes, of which {} are damaged{doubt}",
            file.length_bytes, file.damaged_bytes
        );
        Shown {
            is_mended: true,
            ..Shown::new(Some(&file.name), text)
        }
    });
    findings.chain(files).collect()
}

fn check_report(report: *mut keelflash_check_report, report_bytes: usize) -> Result<(), Failure> {
    if report.is_null() {
        return Ok(());
    }
    check_output(report)?;
    if report_bytes < size_of::<keelflash_check_report>() {
        return Err(Failure::invalid(format!(
            "report_bytes is {report_bytes}, less than sizeof(keelflash_check_report)"
        )));
    }
    Ok(())
}

/// Writes the report and calls `visit` for each problem. No store is locked during these calls.
///
/// # Safety
/// `report` has passed [`check_report`] and is NULL or points to memory that can be written; `visit` is a function of
/// its type.
unsafe fn tell(
    report: *mut keelflash_check_report,
    figures: keelflash_check_report,
    problems: &[Shown],
    visit: keelflash_visit_problem,
    context: *mut c_void,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { put(report, figures) };
    let Some(visit) = visit else { return };
    for shown in problems {
        let problem = keelflash_problem {
            file: shown
                .file
                .as_ref()
                .map_or(std::ptr::null(), |name| name.as_ptr()),
            block: shown.block.unwrap_or(KEELFLASH_NO_BLOCK),
            text: shown.text.as_ptr(),
            is_mended: shown.is_mended.into(),
            is_data_lost: shown.is_data_lost.into(),
        };
        // SAFETY: the caller's function, with pointers that are valid until it returns.
        if visiting(|| unsafe { visit(context, &raw const problem) }) != 0 {
            break;
        }
    }
}

/// Enlarges the store at `path` to the whole of an image file or device that has become larger. No process may have the
/// store open.
///
/// `size_bytes`: new size of the image file; 0 for a device, and for an image file that keeps its current size.
/// `flags`: KEELFLASH_SPARSE or 0. The call takes no longer for a full store than for an empty one. If it is
/// interrupted, the store has the old size or the new one. The size of the name table does not change. A store cannot
/// shrink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_grow(path: *const c_char, size_bytes: u64, flags: u32) -> i32 {
    guard(|| {
        refuse_visitor()?;
        // SAFETY: the header's rules for pointers.
        let path = unsafe { self::path(path)? };
        check_flags(flags, KEELFLASH_SPARSE)?;
        let is_sparse = flags & KEELFLASH_SPARSE != 0;
        grow(path, size_bytes, is_sparse)
            .map_err(|failure| failure.about(&path.display().to_string()))
    })
}

fn grow(path: &Path, size_bytes: u64, is_sparse: bool) -> Result<(), Failure> {
    let held = open_device(path, &device_options(false))?;
    if size_bytes == 0 {
        return Store::grow(held).map(drop).map_err(of_store);
    }
    if held.is_block_device() {
        let text = "a block device has the size that it has; pass 0 as size_bytes";
        return Err(Failure::invalid(text));
    }
    let blocks_before = held.geometry().block_count;
    let bytes_before = blocks_before * BLOCK_BYTES as u64;
    if size_bytes < bytes_before {
        let text = format!("has {bytes_before} bytes already, and no store shrinks");
        return Err(Failure::invalid(text));
    }
    // Enlarge the file only if it is a store: any other file keeps its length.
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    drop(Store::open(sized(path, 0)?, &options).map_err(of_store)?);
    let mut device = sized(path, size_bytes)?;
    if !is_sparse {
        let filled = device.write_zeros_from(blocks_before, &mut |_| {});
        filled.map_err(|error| {
            shorten(path, bytes_before);
            of_device(error)
        })?;
    }
    Store::grow(device).map_err(of_store)?;
    drop(held);
    Ok(())
}

/// Restores the former length of a file; beyond it the file holds nothing that is needed.
fn shorten(path: &Path, bytes: u64) {
    let file = std::fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(bytes)).ok();
}
