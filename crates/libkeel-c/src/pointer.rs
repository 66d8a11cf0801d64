//! Checked access to the caller's memory through pointers.

use crate::failure::Failure;
use std::ffi::{CStr, c_char, c_void};

/// Size of the longest text in bytes, as the system has it for paths; more than any key or value.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Returns the bytes of a text, without its zero.
///
/// # Safety
/// `text` is NULL or leads to bytes that end with a zero, or of which [`TEXT_BYTES_MAX`] can be read.
pub(crate) unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise; strnlen reads no further than the zero.
    let length = unsafe { libc::strnlen(text, TEXT_BYTES_MAX) };
    if length == TEXT_BYTES_MAX {
        return Err(Failure::invalid(format!("the {what} is too long")));
    }
    // SAFETY: strnlen has just read this number of bytes.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// Returns a text of UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(text, what)? };
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid(format!("the {what} is not UTF-8")))
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

/// Returns an array of items to read.
///
/// # Safety
/// `data` is NULL or leads to `count` items that can be read and that no thread changes meanwhile.
pub(crate) unsafe fn items<'a, T>(data: *const T, count: usize) -> Result<&'a [T], Failure> {
    let bytes = count.saturating_mul(size_of::<T>());
    check_length(data.is_null(), bytes)?;
    if count == 0 {
        return Ok(&[]);
    }
    if !data.is_aligned() {
        return Err(Failure::invalid("the data is not aligned"));
    }
    // SAFETY: not NULL, aligned, no longer than memory can be, and else the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Returns a buffer to write to.
///
/// # Safety
/// `buffer` is NULL or leads to `length` bytes that can be written and that are not used otherwise meanwhile.
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

/// Refuses a call that has no place for its result.
pub(crate) fn check_output<T>(output: *mut T) -> Result<(), Failure> {
    if output.is_null() {
        return Err(Failure::invalid("the place for the result is NULL"));
    }
    check_optional(output)
}

/// The same for an optional result.
pub(crate) fn check_optional<T>(output: *mut T) -> Result<(), Failure> {
    if !output.is_aligned() {
        return Err(Failure::invalid("the place for the result is not aligned"));
    }
    Ok(())
}

/// Writes a result to the caller's memory; does nothing if `output` is NULL.
///
/// # Safety
/// `output` has passed [`check_output`] or [`check_optional`] and is NULL or leads to memory that can be written.
pub(crate) unsafe fn put<T>(output: *mut T, value: T) {
    if !output.is_null() {
        // SAFETY: not NULL, aligned, and else the caller's promise; nothing that is there needs to be dropped.
        unsafe { output.write(value) }
    }
}

/// Returns a text of this library that never moves.
pub(crate) const fn constant(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
