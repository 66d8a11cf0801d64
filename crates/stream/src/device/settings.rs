//! The settings of a device, and its errors.

use super::failure::ServerFailure;
use super::stage::STAGED_MAX_DEFAULT;
use super::{Cache, CacheError};
use crate::block::BlockAt;
use crate::manifest::{ManifestError, PublicKey};
use crate::wire::Refusal;
use base::error::Code;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of connections of one device.
pub const CONNECTIONS_MAX: u32 = 64;

/// The maximum length of one quarantine of a server.
pub const QUARANTINE_MAX: Duration = Duration::from_secs(60);

/// Bytes of groups of hashes that a device needs in memory: each block of one message may lie in another group.
pub const HASHES_BYTES_MIN: usize = 512 << 10;

/// Whose manifests the device trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publisher {
    /// Manifests that this key has signed.
    Key(PublicKey),
    /// Manifests of the first publisher that was seen at this server, as noted in the state.
    FirstSeen,
}

/// The settings of a device.
#[derive(Clone)]
pub struct Settings {
    /// The server: `HOST:PORT`.
    pub server: String,
    /// The folder with this device's identity; `None`: no TLS.
    pub tls: Option<PathBuf>,
    /// Whose manifests the device trusts.
    pub publisher: Publisher,
    /// The number of persistent connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// The maximum number of blocks that wait to be read or stored. 0: the default number, and each block gets a new
    /// page.
    pub pool_pages: usize,
    /// Whether a thread allocates free pages ahead, as in SYSFLOW: as many as `pool_pages`, beside the waiting blocks.
    /// If not, pages that were used are taken again.
    pub pool_is_filled: bool,
    /// A read that is not answered within this time fails.
    pub deadline: Duration,
    /// How long the start waits for a server before it uses the manifest in the cache, or fails.
    pub start_wait: Duration,
    /// The cache, which outlives the device.
    pub cache: Option<Arc<dyn Cache>>,
    /// The folder of notes. A note holds a server's publisher, the highest version seen and the hash of its manifest.
    /// The cache holds these notes too, if there is one.
    pub state: Option<PathBuf>,
    /// Whether the device requests neighbours together with a block that no plan predicted.
    pub around: bool,
    /// Whether a connection is kept from one request to the next. If not, each demand opens its own connection: this is
    /// what SYSFLOW compares persistent connections with.
    pub is_persistent: bool,
    /// The length of the first quarantine of a server that has sent wrong data. It doubles each time, up to
    /// [`QUARANTINE_MAX`].
    pub quarantine: Duration,
    /// The maximum number of bytes of groups of hashes in memory; values below [`HASHES_BYTES_MIN`] count as that
    /// minimum.
    pub hashes_bytes_max: usize,
}

impl Settings {
    /// Returns the default settings for a server.
    #[must_use]
    pub fn new(server: &str, publisher: Publisher) -> Self {
        Self {
            server: server.to_owned(),
            tls: None,
            publisher,
            connections: 1,
            pool_pages: STAGED_MAX_DEFAULT,
            pool_is_filled: false,
            deadline: Duration::from_secs(30),
            start_wait: Duration::from_secs(5),
            cache: None,
            state: None,
            around: true,
            is_persistent: true,
            quarantine: Duration::from_secs(1),
            hashes_bytes_max: 6 << 20,
        }
    }
}

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
    #[error("{}", super::failure::said_of(*.0))]
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
