//! The codes of the C interface.

use base::error::Code;
use c_interface::{Failure, failure};
use std::ffi::CStr;

/// The call succeeded.
pub const KEEL_OK: i32 = 0;
/// The operating system, or the node's device, failed; trying again may help.
pub const KEEL_IO: i32 = -1;
/// Bytes are damaged.
pub const KEEL_CORRUPT: i32 = -2;
/// No space: in the node's store, or for another key.
pub const KEEL_FULL: i32 = -3;
/// Not in time: the node has not answered, or the reading of a ticket is not durable yet. Or an instance of a firm task
/// was late, or its puts reached the node too late.
pub const KEEL_LATE: i32 = -4;
/// The handle belongs to the parent of this process.
pub const KEEL_STALE: i32 = -5;
/// A limit is reached, such as that of open handles or of puts in flight; or another thread runs the task.
pub const KEEL_BUSY: i32 = -6;
/// The call is invalid: NULL, an impossible name or number, or a value that is not a handle.
pub const KEEL_INVALID: i32 = -7;
/// Not permitted.
pub const KEEL_DENIED: i32 = -8;
/// The handle has been closed, or the node has ended or closed the connection.
pub const KEEL_GONE: i32 = -9;
/// The value has another type, or the node does not know the request.
pub const KEEL_UNSUPPORTED: i32 = -10;
/// The key does not exist or has no value yet, or there is no node.
pub const KEEL_NOT_FOUND: i32 = -11;
/// The node dropped the reading and did not store it: the configuration demands this for its key while fewer updates
/// are admitted.
pub const KEEL_SHED: i32 = -13;
/// A signal interrupted the wait; call again.
pub const KEEL_INTERRUPTED: i32 = -99;
/// A defect of the library.
pub const KEEL_INTERNAL: i32 = -100;

const _: () = assert!(KEEL_OK == failure::OK && KEEL_INTERNAL == failure::INTERNAL);

/// Makes an error of the client a failure.
pub(crate) fn of_client(error: libkeel::Error) -> Failure {
    Failure::of(error.code(), error)
}

/// Runs the body of an interface function, and always returns a code, even after a panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // Data that a panic leaves inconsistent is dropped with its handle. Poisoned locks are taken nevertheless.
    failure::guard(
        "a defect of libkeel; please report what was on standard error",
        body,
    )
}

/// Returns the name of a code.
pub(crate) fn name_of(code: i32) -> &'static CStr {
    match Code::from_c_value(code) {
        _ if code == KEEL_OK => c"ok",
        _ if code == KEEL_INTERRUPTED => c"interrupted",
        _ if code == KEEL_INTERNAL => c"internal",
        // No call returns this.
        None | Some(Code::Exists) => c"unknown",
        Some(code) => failure::name_of(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_the_table() {
        for (value, code) in [
            (KEEL_IO, Code::Io),
            (KEEL_CORRUPT, Code::Corrupt),
            (KEEL_FULL, Code::Full),
            (KEEL_LATE, Code::Late),
            (KEEL_STALE, Code::Stale),
            (KEEL_BUSY, Code::Busy),
            (KEEL_INVALID, Code::Invalid),
            (KEEL_DENIED, Code::Denied),
            (KEEL_GONE, Code::Gone),
            (KEEL_UNSUPPORTED, Code::Unsupported),
            (KEEL_NOT_FOUND, Code::NotFound),
            (KEEL_SHED, Code::Shed),
        ] {
            assert_eq!(value, code.c_value());
            assert_eq!(name_of(value).to_str().unwrap(), code.name());
        }
        for own in [KEEL_INTERRUPTED, KEEL_INTERNAL] {
            assert_eq!(Code::from_c_value(own), None);
        }
        assert_eq!(name_of(12345), c"unknown");
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        let code = guard(|| panic!("this panic belongs to the test"));
        assert_eq!(code, KEEL_INTERNAL);
        // SAFETY: the text of this thread ends with a zero and stays until the next failure.
        let text = unsafe { CStr::from_ptr(failure::last_text()) };
        assert!(text.to_str().unwrap().contains("defect"));
    }
}
