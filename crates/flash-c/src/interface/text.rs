//! Errors and versions.

use crate::failure::name_of;
use c_interface::failure::last_text;
use c_interface::pointer::constant;
use std::ffi::{CStr, c_char};

const VERSION: &CStr = constant(concat!(env!("CARGO_PKG_VERSION"), "\0"));

/// Returns the reason of the last failed call of this thread, and the remedy: one line of UTF-8, empty if no call has
/// failed. The pointer is valid until the next call of this thread fails, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_last_error() -> *const c_char {
    last_text()
}

/// Returns the name of a code: "not-found", "full", ...; "unknown" if the number is not a code. The pointer is always
/// valid.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_error_name(code: i32) -> *const c_char {
    name_of(code).as_ptr()
}

/// Returns the version of the library: "1.2.3". The pointer is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the version of the format of the stores that the library creates and reads.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_format_version() -> u32 {
    flash::FORMAT_VERSION
}
