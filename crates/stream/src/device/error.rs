//! The errors of a device.

use super::CacheError;
use super::transport::ServerFailure;
use crate::block::BlockAt;
use crate::manifest::ManifestError;
use crate::wire::Refusal;
use base::error::Code;
use std::time::Duration;

/// Why a device could not start, or could not do what the caller requested.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// No server answers, and the cache has no manifest.
    #[error("no manifest: {0}")]
    NoServer(ServerFailure),
    /// No server answers, and the cached manifest or the cache itself cannot be used.
    #[error("no manifest: {server}; in the cache: {cache}")]
    NoServerNorCache {
        /// Why there is no server.
        server: ServerFailure,
        /// Why the cache cannot be used.
        cache: String,
    },
    /// What the server sent is not a manifest of the trusted publisher.
    #[error("the manifest of {server} is refused: {source}")]
    Manifest {
        /// The server.
        server: String,
        /// Why.
        source: ManifestError,
    },
    /// The manifest is older than one that was seen before.
    #[error("version {found} is older than {highest}, which was seen before: refused")]
    Older {
        /// The version that was offered.
        found: u64,
        /// The highest version seen.
        highest: u64,
    },
    /// The version was seen before, with another tree.
    #[error(
        "version {version} is another tree than the version {version} that was seen before: refused"
    )]
    OtherTree {
        /// The version of both trees.
        version: u64,
    },
    /// The identity cannot be used.
    #[error("identity: {0}")]
    Identity(String),
    /// A note could not be read or written.
    #[error("{what}: {}", base::error::io_text(.source))]
    State {
        /// The operation that failed, with the path.
        what: String,
        /// The failure.
        source: std::io::Error,
    },
    /// The cache could not keep a note.
    #[error("cache: {0}")]
    Cache(#[from] CacheError),
    /// The request was not answered in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// No server has answered since the start, and some of the blocks are not in the cache.
    #[error("no server, and {missing} blocks of it are not in the cache")]
    Offline {
        /// The number of blocks that are missing or damaged in the cache.
        missing: u64,
    },
    /// The server refused the request.
    #[error("{}", super::transport::said_of(*.0))]
    Refused(Refusal),
    /// Some blocks are damaged in the server's store; all others were received.
    #[error("{blocks} blocks are damaged in the server's store, and all others are here")]
    Damaged {
        /// The number of damaged blocks.
        blocks: u64,
    },
    /// Nothing is known of the task.
    #[error("nothing is known of this task")]
    NoPlan,
    /// The tree has no such block.
    #[error("no block {} in file {}", .0.index, .0.file.0)]
    NoSuchBlock(BlockAt),
    /// A thread could not be started.
    #[error("thread: {0}")]
    Thread(std::io::Error),
    /// The device was stopped.
    #[error("stopped")]
    Stopped,
}

impl DeviceError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Settings(_) | Self::NoSuchBlock(_) => Code::Invalid,
            Self::NoServer(_)
            | Self::NoServerNorCache { .. }
            | Self::Offline { .. }
            | Self::State { .. }
            | Self::Thread(_) => Code::Io,
            Self::Manifest { .. } | Self::Identity(_) => Code::Denied,
            Self::Older { .. } | Self::OtherTree { .. } => Code::Stale,
            Self::Cache(error) => error.code(),
            Self::Late(_) => Code::Late,
            Self::Refused(Refusal::Limit) => Code::Busy,
            Self::Refused(_) => Code::Denied,
            Self::Damaged { .. } => Code::Corrupt,
            Self::NoPlan => Code::NotFound,
            Self::Stopped => Code::Gone,
        }
    }
}

/// Why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This version of the tree has no such block.
    #[error("no such block")]
    NoSuchBlock,
    /// The deadline has passed.
    #[error("not answered within the deadline")]
    Late,
    /// The block is damaged in the server's store.
    #[error("damaged at the server")]
    Damaged,
    /// The device was stopped.
    #[error("stopped")]
    Stopped,
}

impl ReadError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NoSuchBlock => Code::NotFound,
            Self::Late => Code::Late,
            Self::Damaged => Code::Corrupt,
            Self::Stopped => Code::Gone,
        }
    }
}
