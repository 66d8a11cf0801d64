//! What a server counts. Only numbers; `metrics.rs` writes them for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why something was refused or a connection given up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// Its name in the metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// TLS and Hello were not there by the deadline.
    HandshakeDeadline = "handshake_deadline",
    /// Too many connections without Hello: the oldest one had to go.
    HalfOpen = "half_open",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The certificate is good, and its device is not in the list.
    UnknownDevice = "unknown_device",
    /// The list of devices could not be read, or has a tenant that cannot be a file's name.
    BadDevices = "bad_devices",
    /// As many devices are connected as may be.
    Clients = "clients",
    /// As many devices are connected with one certificate as may be.
    ClientsOfCertificate = "clients_of_certificate",
    /// The device has as many connections as it may have.
    Connections = "connections",
    /// As many tenants are in memory as may be.
    Tenants = "tenants",
    /// A frame is damaged, too long, or no frame.
    BadFrame = "bad_frame",
    /// A message is not as it must be.
    BadMessage = "bad_message",
    /// The first message was not Hello, or a later one was.
    OutOfOrder = "out_of_order",
    /// Another protocol.
    Protocol = "protocol",
    /// A version that the store does not have.
    NoSuchVersion = "no_such_version",
    /// A file or block that the version does not have.
    NoSuchBlock = "no_such_block",
    /// A token that is in use or was.
    TokenReused = "token_reused",
    /// A token that this device has not begun.
    NoSuchToken = "no_such_token",
    /// More tasks at the same time than a device may have.
    Tokens = "tokens",
    /// More blocks in `Fetch`, or more hash lists, than may wait.
    Waiting = "waiting",
    /// A frame that did not end by its deadline.
    SlowSender = "slow_sender",
    /// Nothing of what was sent was taken by the deadline.
    SlowReader = "slow_reader",
    /// Nothing was said for too long.
    Idle = "idle",
    /// What the store holds is damaged or cannot be read.
    Damaged = "damaged",
    /// The connection broke within a message.
    Broken = "broken",
}

/// The numbers of a server.
#[derive(Debug, Default)]
pub struct Counters {
    reasons: [AtomicU64; Reason::ALL.len()],
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Tasks that began.
    pub tasks_begun: AtomicU64,
    /// Starts of which something was known.
    pub tasks_predicted: AtomicU64,
    /// Blocks that programs waited for.
    pub blocks_demand: AtomicU64,
    /// Their neighbours.
    pub blocks_around: AtomicU64,
    /// Blocks that were prefetched.
    pub blocks_prefetched: AtomicU64,
    /// Blocks that nobody waited for.
    pub blocks_fetched: AtomicU64,
    /// Prefetched blocks that were left out because the device holds them.
    pub blocks_held: AtomicU64,
    /// Blocks that were sent ahead and that an exact run did not read.
    pub blocks_unread: AtomicU64,
    /// Bytes of messages sent, before TLS.
    pub sent_bytes: AtomicU64,
    /// Bytes of messages received, after TLS.
    pub received_bytes: AtomicU64,
    /// Pieces sent as they were kept compressed.
    pub bundles_hits: AtomicU64,
    /// Whole pieces that had to be compressed.
    pub bundles_misses: AtomicU64,
    /// Pieces compressed anew at the higher level.
    pub bundles_improved: AtomicU64,
    /// Versions that are damaged and newer than the one that is served.
    pub versions_damaged: AtomicU64,
    /// Greetings that asked for the newest version and were given an older one, as the newest is damaged.
    pub greetings_older: AtomicU64,
    /// Files of learned actions that were damaged and set aside.
    pub actions_damaged: AtomicU64,
    /// Files of learned actions written.
    pub actions_saved: AtomicU64,
    /// Files of learned actions that could not be written.
    pub actions_unsaved: AtomicU64,
}

impl Counters {
    /// Counts a refusal.
    pub fn refuse(&self, reason: Reason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
