//! The reason of a failed call, as SQLite expects it and as text for people.

use std::ffi::c_int;
use std::path::Path;

use base::block::{DeviceError, find_holder};
use base::error::Code;
use flash::{Error, Part};

use crate::abi::code;

/// A failed call: the result code for SQLite, one line of text for people, and the errno of this kind of failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) text: String,
    pub(crate) errno: i32,
}

impl Failure {
    pub(crate) fn new(code: c_int, kind: Code, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            errno: kind.errno(),
        }
    }

    /// An operation on `file` that the store refused; `otherwise` is the code for errors without their own code.
    pub(crate) fn of_store(error: &Error, otherwise: c_int, file: &str) -> Self {
        let code = match error {
            Error::Full | Error::NameTableFull | Error::TooLarge => code::FULL,
            Error::ReadOnly => code::READONLY,
            // The content is known to be wrong, and reading again will not help.
            Error::Damaged {
                part: Part::Data, ..
            } => code::IOERR_DATA,
            _ => otherwise,
        };
        // The store's own text names no command, and a full store refuses many SQL `DELETE` statements too.
        let text = match error {
            Error::Full => format!(
                "{file}: the store is full; enlarge the image and `keel flash grow` it, or `keel flash rm` files"
            ),
            Error::NameTableFull => format!(
                "{file}: the store has no room for another name; `keel flash rm` files that are not needed"
            ),
            _ => format!("{file}: {error}"),
        };
        Self::new(code, error.code(), text)
    }

    /// An image that holds no usable store.
    pub(crate) fn of_image(error: &Error, image: &str) -> Self {
        let code = match error {
            Error::NotAStore
            | Error::Version { .. }
            | Error::Truncated { .. }
            | Error::Damaged { .. } => code::NOTADB,
            _ => code::CANTOPEN,
        };
        let remedy = match error {
            Error::NotAStore => "; make one with `keel flash format`",
            Error::Damaged { .. } => "; see `keel flash check`",
            _ => "",
        };
        Self::new(
            code,
            error.code(),
            format!("image {image}: {error}{remedy}"),
        )
    }

    /// An image that could not be opened at all.
    pub(crate) fn of_device(error: &DeviceError, image: &Path) -> Self {
        let (code, text) = match error {
            DeviceError::InUse { .. } => {
                let text = match find_holder(image) {
                    Some(holder) => format!("{holder}; take it out of use there, then try again"),
                    None => {
                        "in use by another process; end that process, then try again".to_owned()
                    }
                };
                (code::BUSY, text)
            }
            DeviceError::Open { source, .. } => (code::CANTOPEN, source.to_string()),
            other => (code::CANTOPEN, other.to_string()),
        };
        Self::new(
            code,
            error.code(),
            format!("image {}: {text}", image.display()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_names_remedies_that_work_without_room() {
        for (error, remedy) in [
            (Error::Full, "`keel flash grow`"),
            (Error::NameTableFull, "`keel flash rm`"),
        ] {
            let failure = Failure::of_store(&error, code::IOERR, "plant.db");
            assert_eq!(failure.code, code::FULL);
            assert!(
                failure.text.starts_with("plant.db: the store "),
                "{}",
                failure.text
            );
            assert!(failure.text.contains(remedy), "{}", failure.text);
        }
    }
}
