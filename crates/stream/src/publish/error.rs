//! The errors of publishing a tree.

use crate::manifest::{DEPTH_MAX, FILE_BYTES_MAX, ManifestError, NODES_MAX, PublicKey};
use crate::store::{PACKS_MAX, StoreError};
use base::error::Code;
use std::io;
use std::path::{Path, PathBuf};

/// Why a tree was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A part of the tree cannot be read.
    #[error("{}: {what}: {}", path.display(), base::error::io_text(.source))]
    Tree {
        /// The file or directory.
        path: PathBuf,
        /// What was not possible.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file changed during each attempt to read it.
    #[error("{}: changes while it is read", path.display())]
    Changing {
        /// The file.
        path: PathBuf,
    },
    /// A file exceeds the maximum length.
    #[error("{}: has {bytes} bytes, and files of at most {FILE_BYTES_MAX} are published", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length, in bytes.
        bytes: u64,
    },
    /// The tree has more files than a version may have.
    #[error("{}: more than {NODES_MAX} files and directories", path.display())]
    TooMany {
        /// The file or directory at which the limit was reached.
        path: PathBuf,
    },
    /// Directories are nested too deeply.
    #[error("{}: more than {DEPTH_MAX} directories in each other", path.display())]
    TooDeep {
        /// The directory.
        path: PathBuf,
    },
    /// The store is part of the tree.
    #[error("{}: lies in {}, which is to be published into it", store.display(), tree.display())]
    StoreInTree {
        /// The store.
        store: PathBuf,
        /// The tree.
        tree: PathBuf,
    },
    /// zstd has no such level.
    #[error("level {level} is not 1 to 22")]
    Level {
        /// The requested level.
        level: i32,
    },
    /// The key file does not hold a key.
    #[error("{}: not an ed25519 key in PKCS#8", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// There is no key to sign with.
    #[error("{}: the key of this store is not in it", path.display())]
    NoKey {
        /// The expected path of the key.
        path: PathBuf,
    },
    /// The key is not the one that the store was published with before.
    #[error("{}: is published by {expected}, not by {found}", path.display())]
    OtherKey {
        /// The store.
        path: PathBuf,
        /// The publisher of the store.
        expected: PublicKey,
        /// The public key of the given key.
        found: PublicKey,
    },
    /// The store has the maximum number of packs.
    #[error("{}: has {PACKS_MAX} packs", path.display())]
    PacksFull {
        /// The store.
        path: PathBuf,
    },
    /// The newest version has the highest number there is.
    #[error("{}: its newest version has the highest number that there is", path.display())]
    NoVersionLeft {
        /// The store.
        path: PathBuf,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tree cannot be expressed as a manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl PublishError {
    pub(crate) fn tree(path: &Path, what: &'static str, source: io::Error) -> Self {
        Self::Tree {
            path: path.to_path_buf(),
            what,
            source,
        }
    }

    /// Returns the error code of the failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Tree { source, .. } => Code::from_io(source),
            Self::Changing { .. } => Code::Busy,
            Self::TooLong { .. }
            | Self::TooMany { .. }
            | Self::PacksFull { .. }
            | Self::NoVersionLeft { .. } => Code::Full,
            Self::TooDeep { .. } | Self::StoreInTree { .. } | Self::Level { .. } => Code::Invalid,
            Self::NotAKey { .. } => Code::Invalid,
            Self::NoKey { .. } => Code::NotFound,
            Self::OtherKey { .. } => Code::Denied,
            Self::Store(error) => error.code(),
            Self::Manifest(error) => error.code(),
        }
    }
}
