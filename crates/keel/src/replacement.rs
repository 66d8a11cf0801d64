//! A file that takes the place of another one when it is whole; until then it lies beside it.

use crate::error::CliError;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The new file; dropped before [`finish`](Self::finish), it is removed and the old one stays.
pub(crate) struct Replacement {
    file: File,
    /// Its path until it is whole.
    path: PathBuf,
    target: PathBuf,
    shown: String,
}

impl Replacement {
    /// Begins a file for `target`, which errors call `to`. `old` is what is known of the file that is there, if there
    /// is one; its owner and permissions stay. `by` is part of the name that the new file has meanwhile.
    ///
    /// # Errors
    /// The folder does not take a file.
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
        // One that is there can only be left over from a process of the same number that was killed.
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
            // Only root may give files away; for all others the new one is theirs.
            std::os::unix::fs::fchown(&made.file, Some(old.uid()), Some(old.gid())).ok();
            made.file
                .set_permissions(old.permissions())
                .map_err(failed)?;
        }
        Ok(made)
    }

    /// What errors call it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Writes further bytes.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| CliError::io(&self.shown, &error))
    }

    /// Waits until what was written is on the disk, whose room it then has.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sync(&self) -> Result<(), CliError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| CliError::io(&self.shown, &error))
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// What the system says; then the old file stays.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        // The content before the name: after a power cut the old file or the new one, never an empty one.
        self.sync()?;
        let moved = std::fs::rename(&self.path, &self.target);
        moved.map_err(|error| CliError::io(&self.shown, &error))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After the renaming there is none.
        std::fs::remove_file(&self.path).ok();
    }
}
