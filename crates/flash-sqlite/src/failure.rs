//! Why a call failed, as SQLite wants to hear it and as a person does.

use std::ffi::c_int;

use base::block::DeviceError;
use base::error::Code;
use flash::{Error, Part};

use crate::abi::code;

/// A failed call: the result code for SQLite, one line for a person, and the errno of the kind of failure.
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

    /// An operation on `file` that the store refused; `otherwise` is the code for what has none of its own.
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
        Self::new(code, error.code(), format!("{file}: {error}"))
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
    pub(crate) fn of_device(error: &DeviceError) -> Self {
        let code = match error {
            DeviceError::InUse { .. } => code::BUSY,
            _ => code::CANTOPEN,
        };
        Self::new(code, error.code(), format!("image: {error}"))
    }
}
