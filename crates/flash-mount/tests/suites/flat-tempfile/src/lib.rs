//! The part of `tempfile` that pjdfstest uses, without making a directory.
//!
//! **Holds:** a "temporary directory" that is the directory it was asked to be made in.
//!
//! **Must not know:** what is tested.
//!
//! **Invariants:** when one is dropped, the directory is empty.
//!
//! **Files:** this one.

use std::io;
use std::path::{Path, PathBuf};

/// The given directory; emptied, not removed, when this is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// The directory for temporary files of the system.
    pub fn new() -> io::Result<Self> {
        tempdir()
    }

    /// Where it is.
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

/// `directory` itself.
pub fn tempdir_in<P: AsRef<Path>>(directory: P) -> io::Result<TempDir> {
    Ok(TempDir(directory.as_ref().to_path_buf()))
}
