//! Drafts: a file that is written under another name, and gets its own name when it is complete.

use crate::error::CliError;
use node::stores::{Access, open_device};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Removes the draft of a killed run, so that the next one can be made. Refuses anything but a regular file, in
/// particular a link: it may not be a draft of this program.
pub(super) fn remove_old_draft(draft: &Path) -> Result<(), CliError> {
    let failed = |error: &std::io::Error| CliError::io(draft.display(), error);
    match draft.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(&error)),
        Ok(found) if found.is_file() => {
            // Another run may be using it.
            let held = open_device(draft, Access::Write)?;
            std::fs::remove_file(draft).map_err(|error| failed(&error))?;
            drop(held);
            Ok(())
        }
        Ok(_) => Err(CliError::failure(
            draft.display(),
            "is no file, and a draft must be made there",
            "move it away",
        )),
    }
}

/// Gives a draft its final name. If it must not replace a file, it fails if one exists: a node may have made a store
/// meanwhile.
pub(super) fn put_in_place(draft: &Path, to: &Path, replaces: bool) -> std::io::Result<()> {
    if replaces {
        std::fs::rename(draft, to)?;
    } else {
        rename_to_nothing(draft, to)?;
    }
    sync_folder(to)
}

fn rename_to_nothing(from: &Path, to: &Path) -> std::io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (old, new) = (text(from)?, text(to)?);
    // SAFETY: both paths end with a zero and outlive the call.
    let done = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // Some file systems do not support this flag.
    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) && !to.exists() {
        return std::fs::rename(from, to);
    }
    Err(error)
}

/// Returns the target of a path, with links resolved: a draft lies beside it and replaces it. A dangling link is
/// refused, because its intention is unknown.
pub(super) fn behind_links(path: &Path) -> Result<PathBuf, CliError> {
    let is_link = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_symlink());
    if !is_link {
        return Ok(path.to_path_buf());
    }
    match std::fs::canonicalize(path) {
        Ok(real) => Ok(real),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(CliError::failure(
            path.display(),
            "is a symbolic link to nothing",
            "remove it, or name the file itself",
        )),
        Err(error) => Err(CliError::io(path.display(), &error)),
    }
}

/// Makes the names in this file's folder durable.
pub(super) fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync directories, and do not need it.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}
