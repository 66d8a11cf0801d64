//! Texts behind the caller's pointers.

use c_interface::{Failure, pointer};
use std::ffi::c_char;

/// Size of the longest text in bytes, as the system has it for paths; more than any key or value.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Returns the bytes of a text, without its zero.
///
/// # Safety
/// `text` is NULL or leads to bytes that end with a zero, or of which [`TEXT_BYTES_MAX`] can be read.
pub(crate) unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer::bytes(text, what, TEXT_BYTES_MAX) }
}

/// Returns a text of UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer::text(text, what, TEXT_BYTES_MAX) }
}
