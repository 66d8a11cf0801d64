//! What comes in through pointers, checked.

use crate::failure::Failure;
use std::ffi::{c_char, c_void};
use std::path::Path;

/// Longest path, as the system has it, and more than any name.
const TEXT_BYTES_MAX: usize = 4096;

/// The bytes of a text, without its zero.
///
/// # Safety
/// `text` is NULL or leads to bytes that end with a zero, or of which [`TEXT_BYTES_MAX`] can be read.
unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise; strnlen reads no further than the zero.
    let length = unsafe { libc::strnlen(text, TEXT_BYTES_MAX) };
    if length == TEXT_BYTES_MAX {
        return Err(Failure::invalid(format!("the {what} is too long")));
    }
    // SAFETY: strnlen has just read so many bytes.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// A file name of the store.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(name, "name")? };
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid("the name is not UTF-8"))
}

/// A path.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller's promise.
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

/// Bytes to be written.
///
/// # Safety
/// `data` is NULL or leads to `length` bytes that can be read and that nobody changes meanwhile.
pub(crate) unsafe fn data<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    check_length(data.is_null(), length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, no longer than memory can be, and else the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Place for bytes to be read.
///
/// # Safety
/// `buffer` is NULL or leads to `length` bytes that can be written and that nobody else uses meanwhile.
pub(crate) unsafe fn buffer<'a>(
    buffer: *mut c_void,
    length: usize,
) -> Result<&'a mut [u8], Failure> {
    check_length(buffer.is_null(), length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, no longer than memory can be, and else the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) })
}

/// Refuses to begin what has nowhere to put its result.
pub(crate) fn check_output<T>(output: *mut T) -> Result<(), Failure> {
    if output.is_null() {
        return Err(Failure::invalid("the place for the result is NULL"));
    }
    if !output.is_aligned() {
        return Err(Failure::invalid("the place for the result is not aligned"));
    }
    Ok(())
}

/// Puts a result where the caller wants it.
///
/// # Safety
/// `output` has passed [`check_output`] and leads to memory that can be written.
pub(crate) unsafe fn put<T>(output: *mut T, value: T) {
    // SAFETY: not NULL, aligned, and else the caller's promise; nothing that is there needs to be dropped.
    unsafe { output.write(value) }
}
