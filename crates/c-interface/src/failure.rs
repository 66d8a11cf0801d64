//! Why a call failed, and the text of the last failure in each thread.

use base::error::Code;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of a success.
pub const OK: i32 = 0;

/// The number of a defect of the library.
pub const INTERNAL: i32 = -100;

/// Why a call failed: a number and one line of text.
#[derive(Debug)]
pub struct Failure {
    number: i32,
    text: String,
}

impl Failure {
    /// Creates a failure with a number of the library's own.
    #[must_use]
    pub fn new(number: i32, text: impl Into<String>) -> Self {
        Self {
            number,
            text: text.into(),
        }
    }

    /// Creates the failure of an error with this code.
    #[must_use]
    pub fn of(code: Code, error: impl fmt::Display) -> Self {
        Self::new(code.c_value(), error.to_string())
    }

    /// Creates the failure of an invalid call.
    #[must_use]
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Code::Invalid.c_value(), text)
    }

    /// Puts what failed in front of the reason.
    #[must_use]
    pub fn about(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the text for [`last_text`] and escapes control characters. Paths and names may contain any character. A zero
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
#[must_use]
pub fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

/// Runs the body of a function of an interface, and always returns a number, even after a panic. `defect` is the text
/// of a panic. Data that a panic leaves inconsistent must be behind a lock that is then poisoned, or be dropped.
pub fn guard(defect: &str, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(INTERNAL, defect),
    };
    remember(&failure.text);
    failure.number
}

/// Returns the name of a code.
#[must_use]
pub const fn name_of(code: Code) -> &'static CStr {
    match code {
        Code::Io => c"io",
        Code::Corrupt => c"corrupt",
        Code::Full => c"full",
        Code::Late => c"late",
        Code::Stale => c"stale",
        Code::Busy => c"busy",
        Code::Invalid => c"invalid",
        Code::Denied => c"denied",
        Code::Gone => c"gone",
        Code::Unsupported => c"unsupported",
        Code::NotFound => c"not-found",
        Code::Exists => c"exists",
        Code::Shed => c"shed",
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> CString {
        // SAFETY: the text of this thread ends with a zero and stays until the next failure.
        unsafe { CStr::from_ptr(last_text()) }.to_owned()
    }

    #[test]
    fn names_match_the_table() {
        for code in Code::ALL {
            assert_eq!(name_of(code).to_str(), Ok(code.name()));
        }
        for number in [OK, INTERNAL] {
            assert_eq!(Code::from_c_value(number), None);
        }
    }

    #[test]
    fn a_panic_becomes_a_number_and_a_text() {
        let number = guard("a defect", || panic!("this panic belongs to the test"));
        assert_eq!(number, INTERNAL);
        assert_eq!(text().as_c_str(), c"a defect");
    }

    #[test]
    fn the_text_is_one_line_and_belongs_to_the_thread() {
        let fails = || Err(Failure::invalid("a\0b\r\n\x1b[1m").about("x"));
        assert_eq!(text().as_c_str(), c"");
        assert_eq!(guard("", fails), Code::Invalid.c_value());
        let expected = c"x: a\\0b\\r\\n\\u{1b}[1m";
        assert_eq!(text().as_c_str(), expected);
        assert_eq!(guard("", || Ok(())), OK);
        assert_eq!(text().as_c_str(), expected, "a success leaves it");
        std::thread::spawn(|| assert_eq!(text().as_c_str(), c""))
            .join()
            .unwrap();
    }
}
