//! Files and folders of one run. A killed run leaves them behind; the next run removes or reuses them.
//!
//! **Invariants:** a folder or an empty file that a living process still uses is left alone: its maker holds a lock on
//! it.

use crate::error::CliError;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folders of one name per process, at most.
const FOLDERS_MAX: u32 = 100;

/// A younger folder may not be locked yet by its maker.
const AGE_MIN: Duration = Duration::from_secs(60);

/// A folder that only this process's user can write to. It is removed on drop.
pub(crate) struct Folder {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Folder {
    /// Creates `keel-NAME-PROCESS-NUMBER` in the folder for temporary files, and removes the folders of killed runs.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(name: &str) -> Result<Self, CliError> {
        Self::create_in(&std::env::temp_dir(), name)
    }

    fn create_in(parent: &Path, name: &str) -> Result<Self, CliError> {
        sweep(parent, name);
        for number in 0..FOLDERS_MAX {
            let path = parent.join(format!("keel-{name}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let failed = |error: io::Error| CliError::io(path.display(), &error);
                    let file = File::open(&path).map_err(failed)?;
                    lock(&file).map_err(failed)?;
                    return Ok(Self { path, _file: file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(CliError::io(parent.display(), &error)),
            }
        }
        Err(CliError::failure(
            parent.display(),
            format_args!("is full of folders keel-{name}-*"),
            "remove them",
        ))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).ok();
    }
}

/// Removes this user's folders that no process holds. A folder that cannot be removed stays: it costs a few bytes.
fn sweep(parent: &Path, name: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    let begin = format!("keel-{name}-");
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|found| {
            let rest = found.strip_prefix(&begin).unwrap_or_default();
            rest.split('-').count() == 2 && rest.split('-').all(|part| part.parse::<u32>().is_ok())
        });
        // Use the metadata of the entry itself: a link was not made by this program.
        let Some(data) = is_ours.then(|| entry.metadata().ok()).flatten() else {
            continue;
        };
        let is_old = data
            .modified()
            .is_ok_and(|then| then.elapsed().is_ok_and(|age| age >= AGE_MIN));
        if data.is_dir()
            && data.uid() == base::mount::effective_ids().0
            && is_old
            && let Ok(file) = File::open(entry.path())
            && lock(&file).is_ok()
        {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Creates a new file for results; an existing one is not overwritten. An empty file that no process holds was left by
/// a killed run and is reused.
///
/// # Errors
/// A file of this name exists, or it cannot be created.
pub(crate) fn new_file(path: &Path) -> Result<File, CliError> {
    let failed = |error: &io::Error| CliError::io(path.display(), error);
    let made = File::options().write(true).create_new(true).open(path);
    let exists = match made {
        Ok(file) => {
            lock(&file).map_err(|error| failed(&error))?;
            return Ok(file);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => error,
        Err(error) => return Err(failed(&error)),
    };
    let is_empty = |data: &std::fs::Metadata| data.is_file() && data.len() == 0;
    if !std::fs::symlink_metadata(path).is_ok_and(|data| is_empty(&data)) {
        return Err(failed(&exists));
    }
    let file = File::options().write(true).open(path);
    let file = file.map_err(|error| failed(&error))?;
    match lock(&file) {
        // It may have been written to meanwhile.
        Ok(()) if file.metadata().is_ok_and(|data| is_empty(&data)) => Ok(file),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(failed(&error)),
        _ => Err(failed(&exists)),
    }
}

/// A new file, written completely or not at all.
pub(crate) struct Written<'a> {
    file: File,
    path: &'a Path,
    is_whole: bool,
}

impl<'a> Written<'a> {
    /// Creates the file; an existing one is not overwritten. It is removed on drop, unless it is finished.
    ///
    /// # Errors
    /// As [`new_file`].
    pub(crate) fn create(path: &'a Path) -> Result<Self, CliError> {
        Ok(Self {
            file: new_file(path)?,
            path,
            is_whole: false,
        })
    }

    /// Writes the whole text.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(mut self, text: &str) -> Result<(), CliError> {
        let written = io::Write::write_all(&mut self.file, text.as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        written.map_err(|error| CliError::io(self.path.display(), &error))?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            std::fs::remove_file(self.path).ok();
        }
    }
}

/// Locks a file until it is closed, if no other process holds the lock.
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor that is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn scratch(name: &str) -> Folder {
        Folder::create(&format!("test.{name}")).unwrap()
    }

    fn make_old(path: &Path) {
        let then = SystemTime::now() - 2 * AGE_MIN;
        File::open(path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn folders_of_killed_runs_are_deleted_and_locked_ones_stay() {
        let scratch = scratch("folders");
        let parent = scratch.path();
        let held = Folder::create_in(parent, "job").unwrap();
        let of = |name: &str| {
            let path = parent.join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("hosts"), "b1\n").unwrap();
            path
        };
        let killed = of("keel-job-4000000-0");
        let young = of("keel-job-4000001-0");
        let others = [
            of("keel-cluster-4000000-0"),
            of("keel-job-notes"),
            of("keel-job-1-2-3"),
        ];
        let link = parent.join("keel-job-4000002-0");
        std::os::unix::fs::symlink(&others[1], &link).unwrap();
        for path in [held.path(), &killed]
            .into_iter()
            .chain(others.iter().map(PathBuf::as_path))
        {
            make_old(path);
        }
        drop(Folder::create_in(parent, "job").unwrap());
        assert!(!killed.exists());
        assert!(held.path().exists() && young.exists() && link.exists());
        assert!(others.iter().all(|path| path.join("hosts").exists()));
    }

    #[test]
    fn a_file_that_is_not_finished_is_not_there() {
        let scratch = scratch("written");
        let path = scratch.path().join("out.json");
        drop(Written::create(&path).unwrap());
        assert!(!path.exists());
        Written::create(&path).unwrap().finish("{}").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
        assert!(Written::create(&path).is_err());
        assert!(path.exists(), "an existing file was removed");
    }

    #[test]
    fn an_empty_file_is_taken_over_once_it_is_unlocked() {
        let scratch = scratch("files");
        let path = scratch.path().join("out.jsonl");
        let first = new_file(&path).unwrap();
        assert!(new_file(&path).is_err());
        drop(first);
        let second = new_file(&path).unwrap();
        std::io::Write::write_all(&mut &second, b"{}").unwrap();
        drop(second);
        assert!(new_file(&path).is_err());
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(new_file(&link).is_err());
        assert!(new_file(scratch.path()).is_err());
    }
}
