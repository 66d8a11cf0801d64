//! The codes of the C interface, and the text of the last failure.

use base::error::Code;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// The reason for a failed call: a code and a line of text.
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
        Self::new(KEELFLASH_INVALID, text)
    }

    /// Puts what failed in front of the reason.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl From<flash::Error> for Failure {
    fn from(error: flash::Error) -> Self {
        Self::new(error.code().c_value(), error.to_string())
    }
}

impl From<base::block::DeviceError> for Failure {
    fn from(error: base::block::DeviceError) -> Self {
        Self::new(error.code().c_value(), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the text for [`last_text`] and escapes control characters. Paths and names may contain any character: a zero
/// byte would end the text, a line break would split it, and other control characters could control a terminal.
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

/// Returns the text of the last failure in this thread; the pointer stays valid until the next failure.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

/// Runs the body of a function of the interface and always returns a code, even after a panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // A panic can leave only a store inconsistent. Its lock is then poisoned: every call except closing is refused.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return KEELFLASH_OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            KEELFLASH_INTERNAL,
            "a defect of libkeelflash; close the store, and please report what was on standard error",
        ),
    };
    remember(&failure.text);
    failure.code
}

/// Returns the name of a code.
pub(crate) fn name_of(code: i32) -> &'static CStr {
    match Code::from_c_value(code) {
        _ if code == KEELFLASH_OK => c"ok",
        _ if code == KEELFLASH_INTERNAL => c"internal",
        Some(Code::Io) => c"io",
        Some(Code::Corrupt) => c"corrupt",
        Some(Code::Full) => c"full",
        Some(Code::Busy) => c"busy",
        Some(Code::Invalid) => c"invalid",
        Some(Code::Denied) => c"denied",
        Some(Code::Gone) => c"gone",
        Some(Code::Unsupported) => c"unsupported",
        Some(Code::NotFound) => c"not-found",
        Some(Code::Exists) => c"exists",
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_table() {
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
        let text = unsafe { CStr::from_ptr(last_text()) };
        assert!(text.to_str().unwrap().contains("defect"));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        // SAFETY: as above.
        let text = || unsafe { CStr::from_ptr(last_text()) }.to_owned();
        assert_eq!(text().as_c_str(), c"");
        assert_eq!(
            guard(|| Err(Failure::invalid("a\0b\r\n\x1b[1m").about("x"))),
            KEELFLASH_INVALID
        );
        let expected = c"x: a\\0b\\r\\n\\u{1b}[1m";
        assert_eq!(text().as_c_str(), expected);
        assert_eq!(guard(|| Ok(())), KEELFLASH_OK);
        assert_eq!(text().as_c_str(), expected, "a success leaves it");
        std::thread::spawn(move || assert_eq!(text().as_c_str(), c""))
            .join()
            .unwrap();
    }
}
