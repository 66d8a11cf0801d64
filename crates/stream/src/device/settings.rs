//! The settings of a device.

use super::Cache;
use crate::manifest::PublicKey;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of connections of one device.
pub const CONNECTIONS_MAX: u32 = 64;

/// The maximum length of one quarantine of a server.
pub const QUARANTINE_MAX: Duration = Duration::from_secs(60);

/// Bytes of groups of hashes that a device needs in memory: each block of one message may lie in another group.
pub const HASHES_BYTES_MIN: usize = 512 << 10;

/// The default number of blocks that wait to be read or stored.
pub(crate) const POOL_PAGES_DEFAULT: usize = 2048;

/// The maximum number of blocks of a plan; further blocks are ignored. A server learns at most as many of a task.
pub const PLAN_BLOCKS_MAX: usize = 32 << 10;

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
            pool_pages: POOL_PAGES_DEFAULT,
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
