//! Checked access to the caller's memory through pointers.

use crate::failure::Failure;
use std::ffi::{CStr, c_char, c_void};

/// Returns the bytes of a text, without its final zero.
///
/// # Errors
/// `text` is NULL, or has `bytes_max` bytes or more.
///
/// # Safety
/// `text` is NULL or leads to bytes that end with a zero, or of which `bytes_max` can be read.
pub unsafe fn bytes<'a>(
    text: *const c_char,
    what: &str,
    bytes_max: usize,
) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: guaranteed by the caller; strnlen reads no further than the zero.
    let length = unsafe { libc::strnlen(text, bytes_max) };
    if length == bytes_max {
        return Err(Failure::invalid(format!("the {what} is too long")));
    }
    // SAFETY: strnlen has just read this number of bytes.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// Returns a text of UTF-8.
///
/// # Errors
/// As [`bytes`]; or it is not UTF-8.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn text<'a>(
    text: *const c_char,
    what: &str,
    bytes_max: usize,
) -> Result<&'a str, Failure> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(text, what, bytes_max)? };
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
/// # Errors
/// `data` is NULL although `count` is not 0, is not aligned, or would be longer than memory.
///
/// # Safety
/// `data` is NULL or leads to `count` items that can be read and that no thread changes meanwhile.
pub unsafe fn items<'a, T>(data: *const T, count: usize) -> Result<&'a [T], Failure> {
    let bytes = count.saturating_mul(size_of::<T>());
    check_length(data.is_null(), bytes)?;
    if count == 0 {
        return Ok(&[]);
    }
    if !data.is_aligned() {
        return Err(Failure::invalid("the data is not aligned"));
    }
    // SAFETY: not NULL, aligned, no longer than memory can be, and otherwise guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Returns a buffer to write to.
///
/// # Errors
/// `buffer` is NULL although `length` is not 0, or would be longer than memory.
///
/// # Safety
/// `buffer` is NULL or leads to `length` bytes that can be written and that no other thread uses meanwhile.
pub unsafe fn buffer<'a>(buffer: *mut c_void, length: usize) -> Result<&'a mut [u8], Failure> {
    check_length(buffer.is_null(), length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, no longer than memory can be, and otherwise guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) })
}

/// Refuses a call that has no valid place for its result, before it begins.
///
/// # Errors
/// `output` is NULL or not aligned.
pub fn check_output<T>(output: *mut T) -> Result<(), Failure> {
    if output.is_null() {
        return Err(Failure::invalid("the place for the result is NULL"));
    }
    check_optional(output)
}

/// The same for an optional result, whose place may be NULL.
///
/// # Errors
/// `output` is not aligned.
pub fn check_optional<T>(output: *mut T) -> Result<(), Failure> {
    if !output.is_aligned() {
        return Err(Failure::invalid("the place for the result is not aligned"));
    }
    Ok(())
}

/// Writes a result to the caller's memory; does nothing if `output` is NULL.
///
/// # Safety
/// `output` has passed [`check_output`] or [`check_optional`] and is NULL or leads to memory that can be written.
pub unsafe fn put<T>(output: *mut T, value: T) {
    if !output.is_null() {
        // SAFETY: not NULL, aligned, and otherwise guaranteed by the caller; the old value needs no drop.
        unsafe { output.write(value) }
    }
}

/// Returns a text that ends with a zero as a C string; an empty one if it does not.
#[must_use]
pub const fn constant(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
