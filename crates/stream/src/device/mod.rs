//! The other end: asks a server for what programs read, takes what is prefetched, verifies both and keeps what it may.
//!
//! **Holds:** the connections to a server, the pool of blocks that were sent and not yet read, what has been read by
//! whom, and what hands blocks to the page cache.
//!
//! **Must not know:** FUSE. A mount gives it a [`Pages`] and asks it for blocks.
//!
//! **Invariants:** a block is in the pool only after its hash was found to be the one that the signed manifest leads
//! to. A reader gets its block or an error by its deadline. Memory is bounded by the settings.
//!
//! **Files:** `handle.rs` what others have of it, `settings.rs`, `open.rs` the start, `greet.rs` the beginning of a
//! connection, `failure.rs` why there is none, `slot.rs` and `network.rs` connections, `receive.rs` what the server
//! says, `stage.rs` the pool (and `model.rs` in drawn orders), `shelf.rs` the part of it for neighbours, `read.rs`
//! reading a block, `ahead.rs` what is asked for beside it (and `replay.rs` against the kernel in a model), `tasks.rs`
//! who has read what, `keeper.rs` what is done beside, `fetch.rs` what no program waits for, `hashes.rs`, `notes.rs`,
//! `counters.rs`.

mod ahead;
mod counters;
mod failure;
mod fetch;
mod greet;
mod handle;
mod hashes;
mod inner;
mod keeper;
#[cfg(test)]
mod model;
mod network;
mod notes;
mod open;
mod read;
mod receive;
#[cfg(test)]
mod replay;
mod settings;
mod shelf;
mod slot;
mod stage;
mod tasks;

mod sync {
    //! The locks of the stage, in a place of their own so that its model can have others.
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

pub use counters::{Counters, Reason, Start};
pub use failure::{FailureKind, ServerFailure};
pub use handle::Device;
pub use settings::{
    CONNECTIONS_MAX, DeviceError, HASHES_BYTES_MIN, Publisher, QUARANTINE_MAX, ReadError, Settings,
};

pub mod cache;

use crate::block::{BlockHash, FileId};
use base::error::Code;
use std::sync::Arc;

/// The page cache, given by the mount.
pub trait Pages: Send + Sync {
    /// Puts blocks of a file, one behind the other from `first` on, into the page cache. `bytes` ends with the file or
    /// with a block. Whether they are there now; may take as long as the kernel wants.
    fn store(&self, file: FileId, first: u32, bytes: &[u8]) -> bool;

    /// Which of a file's blocks are in the page cache; None: cannot be known.
    fn resident(&self, file: FileId, blocks: u32) -> Option<Vec<bool>>;
}

/// What the device keeps over its own end, bounded in bytes and addressed by content. Whatever goes wrong inside costs
/// what is kept, never a caller.
pub trait Cache: Send + Sync {
    /// A block of so many bytes, its hash verified.
    fn get(&self, hash: &BlockHash, bytes: usize) -> Option<Arc<[u8]>>;

    /// Whether a block is kept, as far as is known without reading it.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Keeps a block whose hash the caller has verified. Returns before it is written.
    fn put(&self, hash: &BlockHash, bytes: &Arc<[u8]>);

    /// These will be wanted soon: reads them ahead together, in the order in which they lie.
    fn expect(&self, hashes: &[BlockHash]);

    /// What was kept under a name.
    fn note(&self, name: &str) -> Option<Vec<u8>>;

    /// Whether something is kept under a name; nothing is used by that.
    fn keeps_note(&self, name: &str) -> bool {
        self.note(name).is_some()
    }

    /// How many lists of hashes are kept at the same time, at most. None: nobody knows.
    fn lists_max(&self) -> Option<Lists> {
        None
    }

    /// All that is kept under a name, the value that counts first: more than one where it is kept in two places, and
    /// they differ because one was damaged.
    fn notes(&self, name: &str) -> Vec<Vec<u8>> {
        self.note(name).into_iter().collect()
    }

    /// Keeps bytes under a name of letters, digits and `-`, in place of what was there; on the disk when it returns.
    ///
    /// # Errors
    /// It could not be written; what was there before is there still, or nothing.
    fn set_note(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError>;

    /// What happened so far.
    fn counters(&self) -> CacheCounters;

    /// What the last failure said, if anything failed.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns when all that was put is written.
    fn flush(&self);
}

/// Lists of hashes, each of the blocks of one MiB of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// How many.
    pub count: u64,
    /// What they take in a cache.
    pub bytes: u64,
}

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Blocks that were asked for and given.
    pub hits: u64,
    /// Blocks that were asked for and not there.
    pub misses: u64,
    /// Blocks that were there and damaged: forgotten.
    pub damaged: u64,
    /// Blocks written.
    pub written: u64,
    /// Blocks that were put and not kept, because the writer was too slow for too long or writing failed.
    pub dropped: u64,
    /// Blocks that went to make room.
    pub evicted: u64,
    /// Failed reads and writes.
    pub failures: u64,
    /// Blocks kept now.
    pub blocks: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub bytes_max: u64,
    /// Times that the disk had no room for what the cache was still allowed to take.
    pub disk_full: u64,
    /// Bytes that a log of blocks may have now.
    pub log_bytes_max: u64,
    /// Bytes of memory that the cache takes now.
    pub memory_bytes: u64,
}

/// A cache could not do something.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The operating system or a device failed.
    #[error("{what}: {}", failure::said(.source))]
    Io {
        /// What was to be done, with the path.
        what: String,
        /// The failure.
        source: std::io::Error,
    },
    /// What is kept is damaged.
    #[error("{0}")]
    Damaged(String),
    /// No room.
    #[error("no room: {0}")]
    Full(String),
    /// Another process has the cache, or its settings make no sense.
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
