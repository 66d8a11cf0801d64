//! Opens files that must be regular. Opening a FIFO blocks until a writer opens it, and reading a device may never end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. Fails at once if it is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path)
}

/// Opens a regular file for writing and truncates it. Creates the file if it does not exist.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    open_with(
        File::options().write(true).create(true).truncate(true),
        path,
    )
}

/// Opens a regular file with the given options.
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // A socket, a FIFO without a reader, or a device without a driver.
            Some(libc::ENXIO | libc::ENODEV) => is_none(),
            _ => error,
        })?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        // The same error as from reading a directory, which has a readable message.
        false if kind.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        false => Err(is_none()),
    }
}

fn is_none() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

/// Returns whether the error comes from the file itself, and not from this process or its permissions.
pub(crate) fn is_of_the_file(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(number) => [libc::EIO, libc::EISDIR, libc::ELOOP, libc::EUCLEAN].contains(&number),
        None => matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge
        ),
    }
}

/// Opens a folder, to lock or to sync it.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    File::options().read(true).custom_flags(flags).open(path)
}
