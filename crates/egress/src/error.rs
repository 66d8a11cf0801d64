//! Why forwarding could not begin.

use base::error::Code;

/// Errors of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option out of its range.
    #[error("{option}: {problem}")]
    OptionInvalid {
        /// Its name, as in the configuration.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A later version of the program wrote the cursor.
    #[error(
        "the cursor of upstream {upstream} has format {found}; this version knows 1: use the version that wrote it"
    )]
    CursorVersion {
        /// The upstream's name.
        upstream: String,
        /// Version in the file.
        found: u32,
    },
    /// The store cannot read or write the cursor.
    #[error("the cursor of upstream {upstream}: {problem}")]
    CursorStore {
        /// The upstream's name.
        upstream: String,
        /// What the store says.
        problem: String,
        /// Its code.
        code: Code,
    },
    /// The database is closed, or its log cannot be read.
    #[error("{0}")]
    Database(#[from] db::Error),
    /// A thread could not be created.
    #[error("no thread for forwarding: {0}")]
    Thread(String),
}

impl Error {
    /// Returns the error code of this error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::OptionInvalid { .. } => Code::Invalid,
            Self::CursorVersion { .. } => Code::Unsupported,
            Self::CursorStore { code, .. } => *code,
            Self::Database(error) => error.code(),
            Self::Thread(_) => Code::Io,
        }
    }
}
