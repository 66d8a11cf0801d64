//! Checkpoints: what a region holds, kept in a place that survives the power.
//!
//! **Holds:** the seam to that place, the format (SPEC.md, "Checkpoints"), taking a checkpoint, restoring one.
//!
//! **Must not know:** what the place is. A program hands over a [`Storage`].
//!
//! **Invariants:** a generation counts when its last bytes are there, which are written when all others are durable;
//! nothing that one of the two newest generations needs is deleted, but where the storage is full: then the older one
//! makes room. A power cut at any moment leaves the newest
//! generation or the one that was being written. Each extent and each part of the table has its checksum, and no byte
//! is restored whose checksum does not agree.
//!
//! **Files:** `storage.rs` the seam and a storage in memory, `format.rs` every byte, `archive.rs` generations as they
//! lie in a storage, `snapshot.rs` the names of a region at one moment, `save.rs`, `restore.rs`.

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
    /// The region refused a call.
    #[error(transparent)]
    Region(#[from] crate::Error),
    /// The place for checkpoints did.
    #[error("the place for checkpoints: {0}")]
    Storage(#[from] StorageError),
    /// A checkpoint is restored into an empty region only.
    #[error("the region has files already; restore into a new one")]
    NotEmpty,
    /// The name that the files of a checkpoint begin with is not one.
    #[error("a checkpoint's name has 1 to 40 letters, digits, dashes and underscores")]
    Name,
}

impl CheckpointError {
    /// The code, of which the house knows what to make outside.
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
