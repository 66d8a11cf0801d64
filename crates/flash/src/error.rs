//! The errors of a store, and the one error code of each.

use base::block::DeviceError;
use base::error::Code;

/// The structure that was found damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Every copy of the superblock.
    Superblock,
    /// Every commit record.
    Record,
    /// Both copies of a block of the name table.
    Table,
    /// A data block of a file.
    Data,
    /// A block of the free list.
    FreeList,
}

impl std::fmt::Display for Part {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Superblock => "superblock",
            Self::Record => "commit record",
            Self::Table => "name table",
            Self::Data => "file data",
            Self::FreeList => "free list",
        })
    }
}

/// The reason why an operation on a store was not done. Unless the text says otherwise the store is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No file has this name.
    #[error("no such file in the store")]
    NotFound,
    /// A file of this name exists already.
    #[error("a file of this name exists already")]
    Exists,
    /// No free blocks are left. Reads and deletes still work.
    #[error("the store is full; delete files to free blocks")]
    Full,
    /// Both table blocks that may hold this name are full.
    #[error(
        "name-table-full: no room for this name; delete files, or format with a larger --files"
    )]
    NameTableFull,
    /// The name is empty, too long for this store, contains a NUL or a slash, or is `.` or `..`.
    #[error("invalid file name: {reason}")]
    NameInvalid {
        /// Why the name is refused.
        reason: &'static str,
    },
    /// A block failed its checksum or does not belong where it was found. None of its data was returned.
    #[error("{part} is damaged at block {block}{}", offset.map(|o| format!(" (file offset {o})")).unwrap_or_default())]
    Damaged {
        /// The expected content of the block.
        part: Part,
        /// The block number on the device.
        block: u64,
        /// For [`Part::Data`]: offset in the file of the first byte that cannot be read because of it. Usually this is
        /// the content that the block should hold. If no path leads around damaged blocks, it is the earlier offset
        /// that the read looked for beyond them.
        offset: Option<u64>,
    },
    /// The device holds no Evenkeel flash store.
    #[error("not an Evenkeel flash store")]
    NotAStore,
    /// The device holds fewer blocks than the store was made for.
    #[error(
        "the store was made for {blocks_made} blocks but {blocks_found} are there; the image was cut short"
    )]
    Truncated {
        /// Blocks that the store was made for.
        blocks_made: u64,
        /// Blocks on the device.
        blocks_found: u64,
    },
    /// The new content of a file could not be read from its source.
    #[error("reading the new content failed: {0}")]
    Source(#[source] std::io::Error),
    /// The device that the store must grow to is larger than a store can use.
    #[error(
        "the device has {blocks_found} blocks, but a store uses {blocks_max} (16 TiB) at most; give it a smaller one"
    )]
    DeviceTooLarge {
        /// Blocks on the device.
        blocks_found: u64,
        /// Blocks that a store can use.
        blocks_max: u64,
    },
    /// The store has a format that this program does not support.
    #[error("store format {found} is not supported (this program reads format {supported})")]
    Version {
        /// Format found on the device.
        found: u32,
        /// Format that this program reads and writes.
        supported: u32,
    },
    /// The device or the requested parameters do not allow a store.
    #[error("cannot format: {reason}")]
    Format {
        /// The reason.
        reason: String,
    },
    /// The device failed. After a failed write or flush the store takes no more writes until it is reopened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An earlier device write or flush failed; the store stays readable, reopen it to write again.
    #[error("the store takes no more writes since a device write failed; reopen it")]
    Failed,
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
    /// The handle's file was deleted, replaced or closed.
    #[error("the file of this handle was deleted, replaced or closed")]
    StaleHandle,
    /// [`crate::OpenOptions::open_files_max`] files are open already.
    #[error("too many open files; close some, or raise open_files_max")]
    TooManyOpenFiles,
    /// The file would exceed the largest length that the format can hold.
    #[error("the file would exceed the largest size of this format")]
    TooLarge,
}

impl Error {
    /// Returns the one code this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::Exists => Code::Exists,
            Self::Full | Self::NameTableFull => Code::Full,
            Self::NameInvalid { .. }
            | Self::TooLarge
            | Self::DeviceTooLarge { .. }
            | Self::Format { .. } => Code::Invalid,
            Self::Damaged { .. } | Self::Truncated { .. } => Code::Corrupt,
            Self::Source(error) => Code::from_io(error),
            Self::NotAStore | Self::Version { .. } => Code::Unsupported,
            Self::Device(error) => error.code(),
            Self::Failed => Code::Io,
            Self::ReadOnly => Code::Denied,
            Self::StaleHandle => Code::Gone,
            Self::TooManyOpenFiles => Code::Busy,
        }
    }
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;
