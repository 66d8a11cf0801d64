//! Checkpoints: the content of a region, kept in a place that survives a loss of power.
//!
//! **Holds:** the interface to that place, the format (SPEC.md, "Checkpoints"), taking a checkpoint, restoring one.
//!
//! **Must not know:** what kind of place it is. A program passes a [`Storage`].
//!
//! **Invariants:** a generation is valid when its last bytes are there; they are written after all others are durable.
//! Nothing that one of the two newest generations needs is deleted, except if the storage is full: then the older one
//! makes room. A power cut at any moment leaves the newest generation or the one that was being written. Each extent
//! and each part of the table has its checksum, and no byte is restored if its checksum does not match.
//!
//! **Files:** `storage.rs` the interface and a storage in memory, `format.rs` every byte, `archive.rs` generations in a
//! storage, `snapshot.rs` the names of a region at one moment, `save.rs`, `restore.rs`.

mod archive;
mod format;
mod restore;
mod save;
mod snapshot;
mod storage;
#[cfg(test)]
mod tests;

pub use format::FORMAT_VERSION;
pub use restore::{Lost, LostBecause, RestoreReport, Taken, newest, restore, shape};
pub use save::{SaveOptions, SaveReport, save};
pub use storage::{Cut, MemoryStorage, Storage, StorageError};

use base::error::Code;

/// Why a checkpoint could not be taken or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A call on the region failed.
    #[error(transparent)]
    Region(#[from] crate::Error),
    /// A call on the storage failed.
    #[error("the place for checkpoints: {0}")]
    Storage(#[from] StorageError),
    /// The region is not empty: a checkpoint is restored into an empty region only.
    #[error("the region has files already; restore into a new one")]
    NotEmpty,
    /// The name for the files of a checkpoint is invalid.
    #[error("a checkpoint's name has 1 to 40 letters, digits, dashes and underscores")]
    Name,
}

impl CheckpointError {
    /// The project-wide code of this error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Region(error) => error.code(),
            Self::Storage(error) => error.code(),
            Self::NotEmpty => Code::Exists,
            Self::Name => Code::Invalid,
        }
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, CheckpointError>;
