//! Errors and versions.

use crate::failure::{last_text, name_of};
use std::ffi::{CStr, c_char};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// What was wrong with the last call of this thread that failed, and what to do about it: one line of UTF-8, empty
/// when none has failed. Valid until the next call of this thread that fails, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_last_error() -> *const c_char {
    last_text()
}

/// The name of a code: "not-found", "full", ...; "unknown" for a number that is no code. Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_error_name(code: i32) -> *const c_char {
    name_of(code).as_ptr()
}

/// The version of the library: "1.2.3". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The format of the stores that the library makes and reads.
#[unsafe(no_mangle)]
pub extern "C" fn keelflash_format_version() -> u32 {
    flash::FORMAT_VERSION
}
