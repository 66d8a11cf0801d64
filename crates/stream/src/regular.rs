//! Opening files that must be files: a FIFO in place of one would hold up whoever opens it until somebody writes to it,
//! and a device may give bytes for ever.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to be read. What is no regular file is an error, at once.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path)
}

/// Opens a regular file to be written from its beginning, which is made where none is.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    open_with(
        File::options().write(true).create(true).truncate(true),
        path,
    )
}

/// Opens a regular file in another way.
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // A socket, a FIFO that nobody reads, or a device without a driver.
            Some(libc::ENXIO | libc::ENODEV) => is_none(),
            _ => error,
        })?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        // As it says when it is read: there are words for that.
        false if kind.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        false => Err(is_none()),
    }
}

fn is_none() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

/// Whether it is the file that fails, and not this process or its permissions.
pub(crate) fn is_of_the_file(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(number) => [libc::EIO, libc::EISDIR, libc::ELOOP, libc::EUCLEAN].contains(&number),
        None => matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge
        ),
    }
}

/// Opens a folder, to be locked or made lasting.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    File::options().read(true).custom_flags(flags).open(path)
}
