//! The seam to the place where a cache lies: files that only grow.

use base::error::Code;

/// Why a storage failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No file has this name.
    #[error("no such file")]
    NotFound,
    /// No room; what is there stays readable.
    #[error("the disk is full")]
    Full,
    /// Bytes of the file cannot be had; others can.
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

/// Named files that only grow, used by several threads of one process; nobody else writes to them. After a power cut
/// what was appended to a file since its last [`sync`](Self::sync) may be gone from some byte on, or be other bytes; a
/// file that was made since may be gone, and one that was deleted since may be there again.
///
/// Names are 1 to 20 small letters, digits and dashes.
pub trait Storage: Send + Sync {
    /// All files with their bytes, in any order.
    ///
    /// # Errors
    /// [`StorageError::Failed`]; what is damaged is left out.
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError>;

    /// Makes an empty file, in place of one of that name if there is one.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::Failed`].
    fn create(&self, name: &str) -> Result<(), StorageError>;

    /// Adds bytes at the end of a file, wherever that is now.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::NotFound`], [`StorageError::Failed`]; a part may then have been added.
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Fills the buffer from `offset` on.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], also when the file ends before; [`StorageError::NotFound`],
    /// [`StorageError::Failed`].
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// Bytes of a file as it is now, whatever somebody else has done to it.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn length(&self, name: &str) -> Result<u64, StorageError>;

    /// Deletes a file.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn delete(&self, name: &str) -> Result<(), StorageError>;

    /// Makes a file durable, and that it is there.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn sync(&self, name: &str) -> Result<(), StorageError>;

    /// Whether it is still the one that was opened.
    ///
    /// # Errors
    /// [`StorageError::Failed`]: somebody removed or replaced it.
    fn check_is_there(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// These bytes will be read soon. A storage that cannot use this does nothing.
    fn advise(&self, name: &str, offset: u64, bytes: u64) {
        let _ = (name, offset, bytes);
    }
}
