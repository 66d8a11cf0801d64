//! What a device is told at its start, and what can go wrong.

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

/// Connections of one device, at most.
pub const CONNECTIONS_MAX: u32 = 64;

/// The longest that a server is left alone at a time.
pub const QUARANTINE_MAX: Duration = Duration::from_secs(60);

/// Bytes of groups of hashes that a device needs in memory: the blocks of one message may lie in as many groups.
pub const HASHES_BYTES_MIN: usize = 512 << 10;

/// Whose manifests are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publisher {
    /// Those that this key has signed.
    Key(PublicKey),
    /// Those of the first publisher that this server was seen with, as noted in the state.
    FirstSeen,
}

/// How a device works.
#[derive(Clone)]
pub struct Settings {
    /// The server: `HOST:PORT`.
    pub server: String,
    /// The folder with this device's identity; None: no TLS.
    pub tls: Option<PathBuf>,
    /// Whose manifests are believed.
    pub publisher: Publisher,
    /// Connections that stay, 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// Blocks that wait to be read or stored, at most; 0: as many as by default, each in a page of its own.
    pub pool_pages: usize,
    /// After this time a read that was not answered fails.
    pub deadline: Duration,
    /// How long the start waits for a server before it uses the manifest that the cache has, or fails.
    pub start_wait: Duration,
    /// What is kept over the device's end.
    pub cache: Option<Arc<dyn Cache>>,
    /// The folder of notes: publisher, highest version seen and hash of its manifest, of each server. The cache has
    /// them too, if there is one.
    pub state: Option<PathBuf>,
    /// Whether neighbours are asked for with what nobody predicted.
    pub around: bool,
    /// Whether a connection is kept from one request to the next. Without, each demand makes its own: what SYSFLOW
    /// compares persistent connections with.
    pub is_persistent: bool,
    /// How long a server that has sent wrong things is left alone; doubled each time, up to [`QUARANTINE_MAX`].
    pub quarantine: Duration,
    /// Bytes of groups of hashes in memory, at most; fewer than [`HASHES_BYTES_MIN`] are as many.
    pub hashes_bytes_max: usize,
}

impl Settings {
    /// The usual ones for a server.
    #[must_use]
    pub fn new(server: &str, publisher: Publisher) -> Self {
        Self {
            server: server.to_owned(),
            tls: None,
            publisher,
            connections: 1,
            pool_pages: STAGED_MAX_DEFAULT,
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

/// A device could not start, or not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The settings make no sense.
    #[error("{0}")]
    Settings(String),
    /// No server answers, and the cache has no manifest.
    #[error("no manifest: {0}")]
    NoServer(ServerFailure),
    /// No server answers, and the manifest that the cache has, or the cache itself, cannot be used.
    #[error("no manifest: {server}; in the cache: {cache}")]
    NoServerNorCache {
        /// Why there is no server.
        server: ServerFailure,
        /// Why the cache is of no help.
        cache: String,
    },
    /// What the server sent is not a manifest of the publisher.
    #[error("the manifest of {server} is refused: {source}")]
    Manifest {
        /// The server.
        server: String,
        /// Why.
        source: ManifestError,
    },
    /// An older manifest than one that was seen before.
    #[error("version {found} is older than {highest}, which was seen before: refused")]
    Older {
        /// The version that was offered.
        found: u64,
        /// The highest version seen.
        highest: u64,
    },
    /// A version that was seen before, and then was another tree.
    #[error(
        "version {version} is another tree than the version {version} that was seen before: refused"
    )]
    OtherTree {
        /// The version of both.
        version: u64,
    },
    /// The identity cannot be used.
    #[error("identity: {0}")]
    Identity(String),
    /// A note could not be read or written.
    #[error("{what}: {}", super::failure::said(.source))]
    State {
        /// What was to be done, with the path.
        what: String,
        /// The failure.
        source: std::io::Error,
    },
    /// The cache could not keep a note.
    #[error("cache: {0}")]
    Cache(#[from] CacheError),
    /// It was not answered in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// No server has answered since the start, and the cache has not all.
    #[error("no server, and {missing} blocks of it are not in the cache")]
    Offline {
        /// Blocks that are not there, or damaged.
        missing: u64,
    },
    /// The server refused.
    #[error("{}", super::failure::said_of(*.0))]
    Refused(Refusal),
    /// Blocks that the server should have are damaged there; all others came.
    #[error("{blocks} blocks are damaged in the server's store, and all others are here")]
    Damaged {
        /// How many.
        blocks: u64,
    },
    /// Nothing is known of the task.
    #[error("nothing is known of this task")]
    NoPlan,
    /// There is no such block in the tree.
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

/// A block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such block in this version of the tree.
    #[error("no such block")]
    NoSuchBlock,
    /// The deadline has passed.
    #[error("not answered within the deadline")]
    Late,
    /// What the server holds of it is damaged.
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
