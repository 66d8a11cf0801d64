//! The interface to the place where log and checkpoint live: append-only files, durable on return.
//!
//! The crate accesses flash only through this trait, so that every crash test can replace it.

mod flash;
mod memory;

pub use memory::{MemoryStore, PowerCut};

use base::error::Code;

/// Why a store call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No file has this name.
    #[error("no such file")]
    NotFound,
    /// A file has this name already.
    #[error("the file exists")]
    Exists,
    /// No room for the call; the store stays readable.
    #[error("the store is full")]
    Full,
    /// The file's content at this offset cannot be read; the rest can.
    #[error("damaged at byte {offset}")]
    Damaged {
        /// An offset inside the piece of the file that is damaged or unreachable.
        offset: u64,
    },
    /// The store or its device failed.
    #[error("{message}")]
    Failed {
        /// The code of the underlying error.
        code: Code,
        /// What the underlying error says.
        message: String,
    },
}

impl StoreError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::Exists => Code::Exists,
            Self::Full => Code::Full,
            Self::Damaged { .. } => Code::Corrupt,
            Self::Failed { code, .. } => *code,
        }
    }
}

/// Append-only named files. A call that returned `Ok` is durable; one cut by power left a prefix of its bytes.
pub trait SegmentStore: Send + 'static {
    /// An open file.
    type File: Copy + Send + 'static;

    /// Makes an empty file and opens it.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Full`], [`StoreError::Failed`].
    fn create(&mut self, name: &str) -> Result<Self::File, StoreError>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Damaged`], [`StoreError::Failed`].
    fn open(&mut self, name: &str) -> Result<Self::File, StoreError>;

    /// Gives the handle back.
    fn close(&mut self, file: Self::File);

    /// Adds bytes at the end; durable on return.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Failed`]; a prefix of `data` may then be in the file.
    fn append(&mut self, file: Self::File, data: &[u8]) -> Result<(), StoreError>;

    /// Adds bytes at the end; durable once a later [`append`](Self::append), to any file, has returned. Until then a
    /// power cut may leave any prefix of what was added since the last one. A store may treat both calls alike.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    fn append_unsynced(&mut self, file: Self::File, data: &[u8]) -> Result<(), StoreError> {
        self.append(file, data)
    }

    /// Reads from `offset`; short only at the end of the file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] names a damaged byte of the range; [`StoreError::Failed`].
    fn read(
        &mut self,
        file: Self::File,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError>;

    /// Bytes in the file.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn length(&mut self, file: Self::File) -> Result<u64, StoreError>;

    /// Removes a file that is not open.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Failed`].
    fn delete(&mut self, name: &str) -> Result<(), StoreError>;

    /// Names every file, in any order.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] after the visit when part of the directory could not be read;
    /// [`StoreError::Failed`].
    fn list(&mut self, visit: &mut dyn FnMut(&str)) -> Result<(), StoreError>;

    /// Returns the bytes that appends can certainly still take, beside all their overhead.
    fn free_bytes(&self) -> u64;

    /// Returns the approximate bytes that all files together can take in an empty store.
    fn capacity_bytes(&self) -> u64;

    /// File bytes that one damaged device block can cost: damage is skipped in pieces aligned to this.
    fn payload_bytes(&self) -> u64;

    /// Returns a number unique to this store, the same at every opening, unknown to a client that only sends readings.
    /// It seals the records, so that bytes inside a value are never taken for one.
    fn secret(&self) -> u64;
}
