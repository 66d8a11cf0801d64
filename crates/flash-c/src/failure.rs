//! The codes of the C interface.

use base::block::DeviceError;
use base::error::Code;
use c_interface::{Failure, failure};
use std::ffi::CStr;

/// The call succeeded.
pub const KEELFLASH_OK: i32 = 0;
/// A device or the operating system failed; trying again may help.
pub const KEELFLASH_IO: i32 = -1;
/// Stored bytes are damaged; none of the damaged bytes was returned.
pub const KEELFLASH_CORRUPT: i32 = -2;
/// No space: there are no free blocks, or the name table has no room for the name.
pub const KEELFLASH_FULL: i32 = -3;
/// The store is in use elsewhere or by the calling visitor, or the maximum number of files or stores is open.
pub const KEELFLASH_BUSY: i32 = -6;
/// The call is invalid: NULL, an impossible name or size, a value that is not a handle, or a handle from before fork().
pub const KEELFLASH_INVALID: i32 = -7;
/// Not permitted: the store is open read-only, or the operating system denies access.
pub const KEELFLASH_DENIED: i32 = -8;
/// The handle has been closed, or its file was deleted or replaced.
pub const KEELFLASH_GONE: i32 = -9;
/// Not a store, or a store in a format that this library does not know.
pub const KEELFLASH_UNSUPPORTED: i32 = -10;
/// The file does not exist.
pub const KEELFLASH_NOT_FOUND: i32 = -11;
/// The file exists already, or existing content would be overwritten.
pub const KEELFLASH_EXISTS: i32 = -12;
/// A defect of the library. The affected store refuses every further call except closing.
pub const KEELFLASH_INTERNAL: i32 = -100;

const _: () = assert!(KEELFLASH_OK == failure::OK && KEELFLASH_INTERNAL == failure::INTERNAL);

/// Makes an error of the store a failure.
pub(crate) fn of_store(error: flash::Error) -> Failure {
    Failure::of(error.code(), error)
}

/// Makes an error of the device a failure.
pub(crate) fn of_device(error: DeviceError) -> Failure {
    Failure::of(error.code(), error)
}

/// Runs the body of a function of the interface and always returns a code, even after a panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // A panic can leave only a store inconsistent. Its lock is then poisoned: every call except closing is refused.
    failure::guard(
        "a defect of libkeelflash; close the store, and please report what was on standard error",
        body,
    )
}

/// Returns the name of a code.
pub(crate) fn name_of(code: i32) -> &'static CStr {
    match Code::from_c_value(code) {
        _ if code == KEELFLASH_OK => c"ok",
        _ if code == KEELFLASH_INTERNAL => c"internal",
        // No call returns these.
        None | Some(Code::Late | Code::Stale | Code::Shed) => c"unknown",
        Some(code) => failure::name_of(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_the_table() {
        for (value, code) in [
            (KEELFLASH_IO, Code::Io),
            (KEELFLASH_CORRUPT, Code::Corrupt),
            (KEELFLASH_FULL, Code::Full),
            (KEELFLASH_BUSY, Code::Busy),
            (KEELFLASH_INVALID, Code::Invalid),
            (KEELFLASH_DENIED, Code::Denied),
            (KEELFLASH_GONE, Code::Gone),
            (KEELFLASH_UNSUPPORTED, Code::Unsupported),
            (KEELFLASH_NOT_FOUND, Code::NotFound),
            (KEELFLASH_EXISTS, Code::Exists),
        ] {
            assert_eq!(value, code.c_value());
            assert_eq!(name_of(value).to_str().unwrap(), code.name());
        }
        assert_eq!(Code::from_c_value(KEELFLASH_INTERNAL), None);
        assert_eq!(name_of(12345), c"unknown");
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        let code = guard(|| panic!("this panic belongs to the test"));
        assert_eq!(code, KEELFLASH_INTERNAL);
        // SAFETY: the text of this thread ends with a zero and stays until the next failure.
        let text = unsafe { CStr::from_ptr(failure::last_text()) };
        assert!(text.to_str().unwrap().contains("defect"));
    }
}
