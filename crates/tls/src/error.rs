//! What cannot be used, why, and what helps.

use base::error::Code;
use std::fmt::Display;

/// A file or a peer that cannot be used, in one line. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{thing}: {wrong}; {remedy}")]
pub struct Error {
    /// The file, or the address of the peer.
    pub thing: String,
    /// What is wrong with it.
    pub wrong: String,
    /// What to do.
    pub remedy: String,
    pub(crate) code: Code,
}

impl Error {
    pub(crate) fn new(
        code: Code,
        thing: impl Display,
        wrong: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            thing: thing.to_string(),
            wrong: wrong.into(),
            remedy: remedy.into(),
            code,
        }
    }

    /// The library refuses options that are the same on every machine.
    pub(crate) fn library(error: &rustls::Error) -> Self {
        Self::new(
            Code::Unsupported,
            "TLS",
            error.to_string(),
            "report it: the settings of the program do not fit its library",
        )
    }

    /// Returns the error code of this error.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }
}
