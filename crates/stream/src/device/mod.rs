//! The device side: requests the blocks that programs read from a server, receives prefetched blocks, verifies both and
//! caches what it may.
//!
//! **Holds:** the connections to a server, the pool of received blocks that are not yet read, the record of which task
//! has read which block, and the thread that stores blocks in the page cache.
//!
//! **Must not know:** FUSE. A mount passes a [`Pages`] to the device and reads blocks from it.
//!
//! **Invariants:** a block enters the pool only after its hash matches the one that the signed manifest leads to. A
//! reader gets its block or an error by its deadline. Memory is bounded by the settings.
//!
//! **Files:** `handle.rs` the public handle, `settings.rs`, `error.rs`, `task_plan.rs` what a task needs, `open.rs` the
//! start. Three parts do not know each other: `transport/` the connections, `prefetch/` the buffer and the tasks,
//! `disk/` what is known without the server, with `cache/`. `reader/` uses the three. `counters.rs`, `line.rs` and
//! `random.rs` serve all parts.

mod counters;
mod disk;
mod error;
mod handle;
mod line;
mod open;
mod prefetch;
mod random;
mod reader;
mod settings;
mod task_plan;
mod transport;

pub use counters::{Counters, Reason, Start};
pub use error::{DeviceError, ReadError};
pub use handle::Device;
pub use open::MANIFEST_DAMAGED;
pub use settings::{
    CONNECTIONS_MAX, HASHES_BYTES_MIN, PLAN_BLOCKS_MAX, Publisher, QUARANTINE_MAX, Settings,
};
pub use task_plan::{PlanAnswer, PlanOrigin, TaskPlan};
pub use transport::{FailureKind, ServerFailure};

pub mod cache;

use crate::block::{BlockHash, FileId};
use base::error::Code;
use std::sync::Arc;

/// The page cache, provided by the mount.
pub trait Pages: Send + Sync {
    /// Stores consecutive blocks of a file, starting at block `first`, in the page cache. `bytes` ends at the end of
    /// the file or of a block. Returns whether the blocks are there now. May block as long as the kernel does.
    fn store(&self, file: FileId, first: u32, bytes: &[u8]) -> bool;

    /// Returns which of a file's blocks are in the page cache; `None` if this cannot be determined.
    fn resident(&self, file: FileId, blocks: u32) -> Option<Vec<bool>>;
}

/// What the device keeps across restarts, bounded in bytes and addressed by content. An internal failure costs cached
/// content only and never fails a caller.
pub trait Cache: Send + Sync {
    /// Returns a block of `bytes` bytes whose hash is verified.
    fn get(&self, hash: &BlockHash, bytes: usize) -> Option<Arc<[u8]>>;

    /// Whether a block is kept, as far as is known without reading it.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Keeps a block whose hash the caller has verified. Returns before it is written.
    fn put(&self, hash: &BlockHash, bytes: &Arc<[u8]>);

    /// Announces blocks that will be requested soon: reads them ahead together, in the order in which they lie.
    fn expect(&self, hashes: &[BlockHash]);

    /// Returns the value of the note `name`.
    fn note(&self, name: &str) -> Option<Vec<u8>>;

    /// Whether there is a note `name`. This does not count as a use of the note.
    fn keeps_note(&self, name: &str) -> bool {
        self.note(name).is_some()
    }

    /// The largest number of lists of hashes that can be kept at the same time; `None` if unknown.
    fn lists_max(&self) -> Option<Lists> {
        None
    }

    /// Returns all values of the note `name`, the authoritative one first. There is more than one if the note is kept
    /// in two places that differ because one was damaged.
    fn notes(&self, name: &str) -> Vec<Vec<u8>> {
        self.note(name).into_iter().collect()
    }

    /// Keeps `bytes` under a name of letters, digits and `-`, and replaces the previous value. The note is on the disk
    /// when the call returns.
    ///
    /// # Errors
    /// It could not be written; the previous value is still there, or none if there was none.
    fn set_note(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError>;

    /// Returns the counters so far.
    fn counters(&self) -> CacheCounters;

    /// Returns the message of the last failure, if anything failed.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns when all blocks that were put are written.
    fn flush(&self);
}

/// Lists of hashes, each of the blocks of one MiB of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The number of lists.
    pub count: u64,
    /// The bytes that they take in a cache.
    pub bytes: u64,
}

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Blocks that were requested and found.
    pub hits: u64,
    /// Blocks that were requested and not found.
    pub misses: u64,
    /// Blocks that were found damaged and removed.
    pub damaged: u64,
    /// Blocks written.
    pub written: u64,
    /// Blocks that were put and not kept, because the writer was too slow for too long or because writing failed.
    pub dropped: u64,
    /// Blocks that were evicted to make room.
    pub evicted: u64,
    /// Failed reads and writes.
    pub failures: u64,
    /// Blocks kept now.
    pub blocks: u64,
    /// Bytes that these blocks take.
    pub bytes: u64,
    /// Bytes that they may take, at most.
    pub bytes_max: u64,
    /// How often the disk had no room although the cache was within its budget.
    pub disk_full: u64,
    /// The current maximum size of a log of blocks, in bytes.
    pub log_bytes_max: u64,
    /// Bytes of memory that the cache uses now.
    pub memory_bytes: u64,
}

/// Why an operation of a cache failed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The operating system or a device failed.
    #[error("{what}: {}", base::error::io_text(.source))]
    Io {
        /// The operation that failed, with the path.
        what: String,
        /// The failure.
        source: std::io::Error,
    },
    /// The cached content is damaged.
    #[error("{0}")]
    Damaged(String),
    /// No room.
    #[error("no room: {0}")]
    Full(String),
    /// Another process has the cache, or its settings are invalid.
    #[error("{0}")]
    Refused(String),
}

impl CacheError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Io { .. } => Code::Io,
            Self::Damaged(_) => Code::Corrupt,
            Self::Full(_) => Code::Full,
            Self::Refused(_) => Code::Denied,
        }
    }
}
