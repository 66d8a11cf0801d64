//! What comes in through pointers, checked.

use crate::failure::Failure;
use std::ffi::{CStr, c_char, c_void};

/// Longest text, as the system has it for paths; more than any key or value.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// The bytes of a text, without its zero.
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
    // SAFETY: strnlen has just read so many bytes.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// A text of UTF-8.
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

/// Things to be read.
///
/// # Safety
/// `data` is NULL or leads to `count` things that can be read and that nobody changes meanwhile.
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
    check_optional(output)
}

/// The same for a result that need not be wanted.
pub(crate) fn check_optional<T>(output: *mut T) -> Result<(), Failure> {
    if !output.is_aligned() {
        return Err(Failure::invalid("the place for the result is not aligned"));
    }
    Ok(())
}

/// Puts a result where the caller wants it; nowhere if that is NULL.
///
/// # Safety
/// `output` has passed [`check_output`] or [`check_optional`] and is NULL or leads to memory that can be written.
pub(crate) unsafe fn put<T>(output: *mut T, value: T) {
    if !output.is_null() {
        // SAFETY: not NULL, aligned, and else the caller's promise; nothing that is there needs to be dropped.
        unsafe { output.write(value) }
    }
}

/// A text of this library's that never moves.
pub(crate) const fn constant(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
