//! The codes of the C interface, and the text of the last failure.

use base::error::Code;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The call succeeded.
pub const KEEL_OK: i32 = 0;
/// The operating system, or the node's device, failed; trying again may help.
pub const KEEL_IO: i32 = -1;
/// Bytes are damaged.
pub const KEEL_CORRUPT: i32 = -2;
/// No space: in the node's store, or for another key.
pub const KEEL_FULL: i32 = -3;
/// Not in time: the node has not answered, the reading of a ticket is not durable yet, an instance of a firm task was
/// late, or its puts reached the node too late.
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

/// Why a call failed: a code and one line of text.
#[derive(Debug)]
pub(crate) struct Failure {
    code: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(KEEL_INVALID, text)
    }
}

impl From<libkeel::Error> for Failure {
    fn from(error: libkeel::Error) -> Self {
        Self::new(error.code().c_value(), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the text for [`last_text`] and escapes control characters. Names may contain any character: a zero byte would
/// end the text, a line break would split it, and other control characters could control a terminal.
fn remember(text: &str) {
    let escape = |letter: char| match letter {
        '\0' => "\\0".to_owned(),
        letter if letter.is_control() => letter.escape_default().to_string(),
        letter => letter.to_string(),
    };
    let text: String = text.chars().map(escape).collect();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending no longer has a text.
    LAST.try_with(|last| last.replace(text)).ok();
}

/// Returns the text of the last failure in this thread; the pointer remains valid until the next failure.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

/// Runs the body of an interface function, and always returns a code, even after a panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // Data that a panic leaves inconsistent is dropped with its handle. Poisoned locks are taken nevertheless.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return KEEL_OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            KEEL_INTERNAL,
            "a defect of libkeel; please report what was on standard error",
        ),
    };
    remember(&failure.text);
    failure.code
}

/// Returns the name of a code.
pub(crate) fn name_of(code: i32) -> &'static CStr {
    match Code::from_c_value(code) {
        _ if code == KEEL_OK => c"ok",
        _ if code == KEEL_INTERRUPTED => c"interrupted",
        _ if code == KEEL_INTERNAL => c"internal",
        Some(Code::Io) => c"io",
        Some(Code::Corrupt) => c"corrupt",
        Some(Code::Full) => c"full",
        Some(Code::Late) => c"late",
        Some(Code::Stale) => c"stale",
        Some(Code::Busy) => c"busy",
        Some(Code::Invalid) => c"invalid",
        Some(Code::Denied) => c"denied",
        Some(Code::Gone) => c"gone",
        Some(Code::Unsupported) => c"unsupported",
        Some(Code::NotFound) => c"not-found",
        Some(Code::Shed) => c"shed",
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_table() {
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
        let text = unsafe { CStr::from_ptr(last_text()) };
        assert!(text.to_str().unwrap().contains("defect"));
    }

    #[test]
    fn the_text_is_one_line_and_belongs_to_the_thread() {
        // SAFETY: as above.
        let text = || unsafe { CStr::from_ptr(last_text()) }.to_owned();
        assert_eq!(
            guard(|| Err(Failure::invalid("a\0b\r\n\x1b[1m"))),
            KEEL_INVALID
        );
        let expected = c"a\\0b\\r\\n\\u{1b}[1m";
        assert_eq!(text().as_c_str(), expected);
        assert_eq!(guard(|| Ok(())), KEEL_OK);
        assert_eq!(text().as_c_str(), expected, "a success leaves it");
        std::thread::spawn(move || assert_eq!(text().as_c_str(), c""))
            .join()
            .unwrap();
    }
}
