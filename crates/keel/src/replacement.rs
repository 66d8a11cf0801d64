//! A file that replaces another one once it is complete; until then it lies beside it.

use crate::error::CliError;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The new file. If dropped before [`finish`](Self::finish), it is removed and the old one stays.
pub(crate) struct Replacement {
    file: File,
    /// Its path until it is complete.
    path: PathBuf,
    target: PathBuf,
    shown: String,
}

impl Replacement {
    /// Begins a file for `target`, which errors call `to`. `old` is the metadata of the existing file, if there is one;
    /// its owner and permissions are kept. `by` is part of the temporary name of the new file.
    ///
    /// # Errors
    /// The folder does not accept a file.
    pub(crate) fn begin(
        to: &Path,
        target: &Path,
        old: Option<&Metadata>,
        by: &str,
    ) -> Result<Self, CliError> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let path = folder.join(format!(".keel-{by}-{}.tmp", std::process::id()));
        let failed = |error: io::Error| CliError::io(folder.display(), &error);
        // An existing one can only be left over from a killed process with the same number.
        std::fs::remove_file(&path).ok();
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(failed)?;
        let made = Self {
            file,
            path,
            target: target.to_path_buf(),
            shown: to.display().to_string(),
        };
        if let Some(old) = old {
            // Only root may change the owner; for other users the new file stays theirs.
            std::os::unix::fs::fchown(&made.file, Some(old.uid()), Some(old.gid())).ok();
            made.file
                .set_permissions(old.permissions())
                .map_err(failed)?;
        }
        Ok(made)
    }

    /// Returns its name in errors.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Writes more bytes.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| CliError::io(&self.shown, &error))
    }

    /// Waits until the written bytes are on the disk and their space is allocated.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn sync(&self) -> Result<(), CliError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| CliError::io(&self.shown, &error))
    }

    /// Moves it to its place.
    ///
    /// # Errors
    /// The error of the system; the old file then stays.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        // Sync the content before the rename: after a power cut there is the old file or the new one, never an empty
        // one.
        self.sync()?;
        let moved = std::fs::rename(&self.path, &self.target);
        moved.map_err(|error| CliError::io(&self.shown, &error))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After the rename there is no such file.
        std::fs::remove_file(&self.path).ok();
    }
}
