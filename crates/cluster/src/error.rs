//! The errors of this crate, each with one code.

use base::error::Code;

/// An error of this crate. Texts are one line and name the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An input is out of its range or does not fit the others.
    #[error("{what} {wrong}")]
    Invalid {
        /// The name of the input in its file or function.
        what: String,
        /// What is wrong with it.
        wrong: String,
    },
    /// A file does not have the specified format.
    #[error("line {line}: {wrong}")]
    Malformed {
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong there.
        wrong: String,
    },
    /// The program does not support the file's version.
    #[error("version {version} is not known here, only {known}")]
    Version {
        /// The version in the file.
        version: u64,
        /// The supported version.
        known: u64,
    },
    /// Inputs that an answer needs are missing.
    #[error("missing: {}", .names.join(", "))]
    Missing {
        /// Their names, in the order of the documentation.
        names: Vec<String>,
    },
    /// A limit is exceeded.
    #[error("{what}: {value}, at most {limit}")]
    Limit {
        /// What is limited, with its unit.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The value allowed.
        limit: u64,
    },
}

impl Error {
    /// Returns an error for an input out of its range.
    pub(crate) fn invalid(what: impl Into<String>, wrong: impl Into<String>) -> Self {
        Self::Invalid {
            what: what.into(),
            wrong: wrong.into(),
        }
    }

    /// Returns an error for a line with a wrong format.
    pub(crate) fn malformed(line: usize, wrong: impl Into<String>) -> Self {
        Self::Malformed {
            line,
            wrong: wrong.into(),
        }
    }

    /// Returns its code, which maps to an exit status.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Missing { .. } => Code::Invalid,
            Self::Malformed { .. } => Code::Corrupt,
            Self::Version { .. } => Code::Unsupported,
            Self::Limit { .. } => Code::Full,
        }
    }
}

/// Returns external text, shortened for a message and without control characters.
pub(crate) fn excerpt(text: &str) -> String {
    const LETTERS_MAX: usize = 60;
    let mut short: String = text
        .chars()
        .take(LETTERS_MAX)
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect();
    if text.chars().nth(LETTERS_MAX).is_some() {
        short.push('…');
    }
    short
}
