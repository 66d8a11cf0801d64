//! Errors and versions.

use crate::failure::{last_text, name_of};
use crate::pointer::constant;
use std::ffi::{CStr, c_char};

const VERSION: &CStr = constant(concat!(env!("CARGO_PKG_VERSION"), "\0"));

/// What was wrong with the last call of this thread that failed, and what to do about it: one line of UTF-8, empty
/// when none has failed. Valid until the next call of this thread that fails, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn keel_last_error() -> *const c_char {
    last_text()
}

/// The name of a code: "not-found", "busy", ...; "unknown" for a number that is no code. Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn keel_error_name(code: i32) -> *const c_char {
    name_of(code).as_ptr()
}

/// The version of the library: "1.2.3". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn keel_version() -> *const c_char {
    VERSION.as_ptr()
}
