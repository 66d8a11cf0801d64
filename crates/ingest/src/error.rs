//! Errors of a source as a whole. A bad line is not an error: it is counted by its reason.

use base::error::Code;

/// Why a source cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pattern of names is invalid.
    #[error("the pattern `{pattern}` does not fit: {reason}")]
    Pattern {
        /// Its beginning, escaped.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A template for keys is invalid.
    #[error("the key template `{template}` does not fit: {reason}")]
    Template {
        /// Its beginning, escaped.
        template: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A socket cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// Address or path.
        address: String,
        /// What is wrong, and the remedy where there is one.
        reason: String,
        /// What kind of failure it is.
        code: Code,
    },
    /// A number lies outside its range.
    #[error("{name} must lie between {low} and {high}, it is {value}")]
    OptionRange {
        /// Its name.
        name: &'static str,
        /// The refused value.
        value: u64,
        /// Least value allowed.
        low: u64,
        /// Greatest value allowed.
        high: u64,
    },
}

impl Error {
    /// Returns the error code of this error; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Pattern { .. } | Self::Template { .. } | Self::OptionRange { .. } => {
                Code::Invalid
            }
            Self::Listen { code, .. } => *code,
        }
    }
}
