//! Files of identities: small, replaced atomically, private keys readable only by their owner.

use super::TlsError;
use crate::regular;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The maximum size of a list of devices, in bytes: the maximum number of the longest lines.
pub(super) const LIST_BYTES_MAX: u64 = 16 << 20;

/// The maximum size of a file with a certificate or a key, in bytes.
pub(super) const PEM_BYTES_MAX: u64 = 64 << 10;

/// Permissions of a file with a private key.
pub(super) const PRIVATE: u32 = 0o600;
/// Permissions of all others.
pub(super) const PUBLIC: u32 = 0o644;

/// Reads a whole file up to a limit.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, TlsError> {
    let file = regular::open(path).map_err(TlsError::file(path))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(TlsError::file(path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(TlsError::damaged(path, "too long"));
    }
    Ok(bytes)
}

/// Creates a folder that only its owner can enter, unless it exists.
pub(super) fn make_folder(path: &Path) -> Result<(), TlsError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(TlsError::file(path))
}

/// Creates or replaces a file atomically. It is durable when this returns.
pub(super) fn replace(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let path = folder.join(name);
    let beside = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let write = || -> io::Result<()> {
        // An existing one is left over from a killed process with the same process id.
        if let Err(error) = std::fs::remove_file(&beside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        regular::open_folder(folder)?.sync_all()
    };
    write().map_err(|error| {
        // It does not exist if the error came after the rename.
        let _ = std::fs::remove_file(&beside);
        TlsError::file(&path)(error)
    })
}

/// Prevents other processes from changing a folder until it is dropped.
pub(super) fn lock(folder: &Path) -> Result<File, TlsError> {
    let file = regular::open_folder(folder).map_err(TlsError::file(folder))?;
    // SAFETY: flock has no memory arguments, and the descriptor is open as long as `file` is.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Err(TlsError::Busy(folder.to_path_buf()))
    } else {
        Err(TlsError::file(folder)(error))
    }
}
