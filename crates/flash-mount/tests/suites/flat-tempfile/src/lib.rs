//! The part of `tempfile` that pjdfstest uses, without creating a directory.
//!
//! **Holds:** a "temporary directory" that is the requested directory itself.
//!
//! **Must not know:** the subject of the tests.
//!
//! **Invariants:** when one is dropped, the directory is emptied.
//!
//! **Files:** only this one.

use std::io;
use std::path::{Path, PathBuf};

/// The given directory; it is emptied, not removed, when this is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Returns the system's directory for temporary files.
    pub fn new() -> io::Result<Self> {
        tempdir()
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.0) else {
            return;
        };
        for entry in entries.flatten() {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

/// As [`TempDir::new`].
pub fn tempdir() -> io::Result<TempDir> {
    tempdir_in(std::env::temp_dir().join("flat-tempfile"))
}

/// Returns `directory` itself.
pub fn tempdir_in<P: AsRef<Path>>(directory: P) -> io::Result<TempDir> {
    Ok(TempDir(directory.as_ref().to_path_buf()))
}
