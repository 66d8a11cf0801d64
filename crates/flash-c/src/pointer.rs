//! Checks of the caller's pointers.

use crate::failure::Failure;
use std::ffi::{c_char, c_void};
use std::path::Path;

/// Longest path that the system allows; longer than any name.
const TEXT_BYTES_MAX: usize = 4096;

/// Returns the bytes of a text, without its final zero.
///
/// # Safety
/// `text` is NULL or points to bytes that end with a zero, or of which [`TEXT_BYTES_MAX`] can be read.
unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: guaranteed by the caller; strnlen reads no further than the zero.
    let length = unsafe { libc::strnlen(text, TEXT_BYTES_MAX) };
    if length == TEXT_BYTES_MAX {
        return Err(Failure::invalid(format!("the {what} is too long")));
    }
    // SAFETY: strnlen has just read this number of bytes.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// Returns a file name of the store.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(name, "name")? };
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid("the name is not UTF-8"))
}

/// Returns a path.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(path, "path")? };
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

fn check_length(is_null: bool, length: usize) -> Result<(), Failure> {
    if isize::try_from(length).is_err() {
        return Err(Failure::invalid("more bytes than memory can have"));
    }
    if is_null && length > 0 {
        return Err(Failure::invalid("the data is NULL"));
    }
    Ok(())
}

/// Returns the bytes to be written.
///
/// # Safety
/// `data` is NULL or points to `length` bytes that can be read and do not change meanwhile.
pub(crate) unsafe fn data<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    check_length(data.is_null(), length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, no longer than memory can be, and otherwise guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Returns the buffer for bytes to be read.
///
/// # Safety
/// `buffer` is NULL or points to `length` bytes that can be written and that no other thread uses meanwhile.
pub(crate) unsafe fn buffer<'a>(
    buffer: *mut c_void,
    length: usize,
) -> Result<&'a mut [u8], Failure> {
    check_length(buffer.is_null(), length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, no longer than memory can be, and otherwise guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) })
}

/// Refuses a call that has no valid place for its result, before it begins.
pub(crate) fn check_output<T>(output: *mut T) -> Result<(), Failure> {
    if output.is_null() {
        return Err(Failure::invalid("the place for the result is NULL"));
    }
    if !output.is_aligned() {
        return Err(Failure::invalid("the place for the result is not aligned"));
    }
    Ok(())
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `output` has passed [`check_output`] and points to memory that can be written.
pub(crate) unsafe fn put<T>(output: *mut T, value: T) {
    // SAFETY: not NULL, aligned, and otherwise guaranteed by the caller; the old value needs no drop.
    unsafe { output.write(value) }
}
