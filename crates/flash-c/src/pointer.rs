//! Names, paths and data behind the caller's pointers.

use c_interface::{Failure, pointer};
use std::ffi::{OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest path that the system allows; longer than any name.
const TEXT_BYTES_MAX: usize = 4096;

/// Returns a file name of the store.
///
/// # Safety
/// `name` is NULL or points to bytes that end with a zero, or of which [`TEXT_BYTES_MAX`] can be read.
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::text(name, "name", TEXT_BYTES_MAX) }
}

/// Returns a path.
///
/// # Safety
/// As [`name`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { pointer::bytes(path, "path", TEXT_BYTES_MAX)? };
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Returns the bytes to be written.
///
/// # Safety
/// `data` is NULL or points to `length` bytes that can be read and do not change meanwhile.
pub(crate) unsafe fn data<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::items(data.cast(), length) }
}
