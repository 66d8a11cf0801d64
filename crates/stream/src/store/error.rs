//! The errors of a store, as a caller can distinguish them.

use crate::block::ContentId;
use base::error::Code;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why a call on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("{}: {what}: {}", path.display(), base::error::io_text(.source))]
    System {
        /// The file or folder.
        path: PathBuf,
        /// What was not possible.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The folder is not a store.
    #[error("{}: not a store", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
    },
    /// The store has an unknown format.
    #[error("{}: a store of format {found}, and only format 1 is known", path.display())]
    Format {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Nothing has been published yet.
    #[error("{}: nothing is published in it", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Another process writes to the store.
    #[error("{}: another process publishes or prunes", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The store has no such version.
    #[error("version {version} is not in the store")]
    NoSuchVersion {
        /// The version.
        version: u64,
    },
    /// The store has no such content or segment.
    #[error("content {content} is not in the store")]
    NoSuchContent {
        /// The content.
        content: ContentId,
    },
    /// A file of the store is damaged.
    #[error("{}: damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl StoreError {
    pub(crate) fn damaged(path: &Path, what: impl Display) -> Self {
        Self::Damaged {
            path: path.to_path_buf(),
            what: what.to_string(),
        }
    }

    pub(crate) fn system(path: &Path, what: &'static str, source: io::Error) -> Self {
        Self::System {
            path: path.to_path_buf(),
            what,
            source,
        }
    }

    /// Returns the error code of the failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::System { source, .. } => Code::from_io(source),
            Self::NotAStore { .. } => Code::Invalid,
            Self::Format { .. } => Code::Unsupported,
            Self::Empty { .. } | Self::NoSuchVersion { .. } | Self::NoSuchContent { .. } => {
                Code::NotFound
            }
            Self::Busy { .. } => Code::Busy,
            Self::Damaged { .. } => Code::Corrupt,
        }
    }
}

/// Converts an error of the operating system. A file that is too short counts as damaged.
pub(crate) fn system(path: &Path, what: &'static str, source: io::Error) -> StoreError {
    if source.kind() == io::ErrorKind::UnexpectedEof {
        StoreError::damaged(path, "it is too short")
    } else {
        StoreError::system(path, what, source)
    }
}
