//! The interface to the storage of a cache: files that only grow.

use base::error::Code;

/// Why a storage failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No file has this name.
    #[error("no such file")]
    NotFound,
    /// There is no room; existing data stays readable.
    #[error("the disk is full")]
    Full,
    /// The requested bytes cannot be read; others may.
    #[error("damaged")]
    Damaged,
    /// The storage or its device failed.
    #[error("{message}")]
    Failed {
        /// The code of the underlying error.
        code: Code,
        /// What the underlying error says.
        message: String,
    },
}

impl StorageError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::Full => Code::Full,
            Self::Damaged => Code::Corrupt,
            Self::Failed { code, .. } => *code,
        }
    }
}

/// Named files that only grow, used by several threads of one process; no other process writes to them. A power cut
/// affects what changed since a file's last [`sync`](Self::sync). Appended bytes may be lost or wrong from some byte
/// on. A created file may be missing, and a deleted one may exist again.
///
/// Names are 1 to 20 lower-case letters, digits and dashes.
pub trait Storage: Send + Sync {
    /// Returns all files with their lengths in bytes, in any order.
    ///
    /// # Errors
    /// [`StorageError::Failed`]; damaged files are left out.
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError>;

    /// Returns the names of logs in whose place lies something that is no file. They are not in [`list`](Self::list)
    /// and cannot be created.
    fn list_irregular(&self) -> Vec<String> {
        Vec::new()
    }

    /// Creates an empty file, and replaces an existing file of that name.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::Failed`].
    fn create(&self, name: &str) -> Result<(), StorageError>;

    /// Appends bytes at the current end of a file.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::NotFound`], [`StorageError::Failed`]; some of the bytes may have been
    /// appended.
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Fills the buffer from `offset` on.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], also when the file ends before; [`StorageError::NotFound`],
    /// [`StorageError::Failed`].
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// Returns the current length of a file in bytes, including changes by other processes.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn length(&self, name: &str) -> Result<u64, StorageError>;

    /// Deletes a file.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn delete(&self, name: &str) -> Result<(), StorageError>;

    /// Makes a file's content and existence durable.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn sync(&self, name: &str) -> Result<(), StorageError>;

    /// Checks that the storage is still the one that was opened.
    ///
    /// # Errors
    /// [`StorageError::Failed`]: it was removed or replaced.
    fn check_is_there(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Announces that these bytes will be read soon. A storage that cannot use this does nothing.
    fn advise(&self, name: &str, offset: u64, bytes: u64) {
        let _ = (name, offset, bytes);
    }
}
