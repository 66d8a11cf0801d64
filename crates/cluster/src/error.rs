//! What can go wrong, each with one code.

use base::error::Code;

/// A failure of this room. Texts are one line and name the thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An input is outside its range or does not fit the others.
    #[error("{what} {wrong}")]
    Invalid {
        /// The input, by the name that its file or function has for it.
        what: String,
        /// What is wrong with it.
        wrong: String,
    },
    /// A file has another shape than its format says.
    #[error("line {line}: {wrong}")]
    Malformed {
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong there.
        wrong: String,
    },
    /// A file is of a version that this program does not read.
    #[error("version {version} is not known here, only {known}")]
    Version {
        /// What the file says.
        version: u64,
        /// What is read.
        known: u64,
    },
    /// Inputs that an answer needs are not there.
    #[error("missing: {}", .names.join(", "))]
    Missing {
        /// Their names, in the order of the documentation.
        names: Vec<String>,
    },
    /// A limit is passed.
    #[error("{what}: {value}, at most {limit}")]
    Limit {
        /// What is limited, with its unit.
        what: &'static str,
        /// What was found.
        value: u64,
        /// What is allowed.
        limit: u64,
    },
}

impl Error {
    /// An input is outside its range.
    pub(crate) fn invalid(what: impl Into<String>, wrong: impl Into<String>) -> Self {
        Self::Invalid {
            what: what.into(),
            wrong: wrong.into(),
        }
    }

    /// A line is not what the format says.
    pub(crate) fn malformed(line: usize, wrong: impl Into<String>) -> Self {
        Self::Malformed {
            line,
            wrong: wrong.into(),
        }
    }

    /// Its code, which maps to an exit status.
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

/// Text from outside, short enough for a message and without control characters.
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
