//! Small files of text beside the result of a job.

use crate::error::CliError;
use config::beside;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// The largest file of figures, overhead or boards, in bytes.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Reads a file; what is beyond the limit is left out.
pub(super) fn read(path: &Path) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::io(path.display(), &error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// Writes a file, and waits until it is on the disk.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::io(path.display(), &error);
    let mut file = File::create(path).map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

/// Replaces a file atomically.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), CliError> {
    let new = beside(path, "new");
    write(&new, text)?;
    std::fs::rename(&new, path).map_err(|error| CliError::io(path.display(), &error))
}
