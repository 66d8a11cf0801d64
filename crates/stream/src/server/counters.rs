//! The counters of a server. Only numbers; `metrics.rs` writes them for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why something was refused or a connection was closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// All reasons.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// Returns its name in the metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// TLS and `Hello` were not complete by the deadline.
    HandshakeDeadline = "handshake_deadline",
    /// Too many connections without `Hello`: the oldest one was closed.
    HalfOpen = "half_open",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The certificate is valid, but its device is not on the list.
    UnknownDevice = "unknown_device",
    /// The list of devices could not be read, or has a tenant that is not a valid file name.
    BadDevices = "bad_devices",
    /// The maximum number of devices is connected.
    Clients = "clients",
    /// The maximum number of devices with one certificate is connected.
    ClientsOfCertificate = "clients_of_certificate",
    /// The device has the maximum number of connections.
    Connections = "connections",
    /// The maximum number of tenants is in memory.
    Tenants = "tenants",
    /// A frame is damaged, too long, or not a frame.
    BadFrame = "bad_frame",
    /// A message is malformed.
    BadMessage = "bad_message",
    /// The first message was not `Hello`, or a later one was.
    OutOfOrder = "out_of_order",
    /// The protocol version does not match or is not supported.
    Protocol = "protocol",
    /// A version that the store does not have.
    NoSuchVersion = "no_such_version",
    /// A file or block that the version does not have.
    NoSuchBlock = "no_such_block",
    /// A token that is in use or was used before.
    TokenReused = "token_reused",
    /// A token that this device has not begun.
    NoSuchToken = "no_such_token",
    /// More tasks at the same time than a device may have.
    Tokens = "tokens",
    /// More blocks in `Fetch`, or more hash lists, than may wait.
    Waiting = "waiting",
    /// A frame was not complete by its deadline.
    SlowSender = "slow_sender",
    /// The device read nothing of what was sent by the deadline.
    SlowReader = "slow_reader",
    /// The device sent nothing for too long.
    Idle = "idle",
    /// What the store holds is damaged or cannot be read.
    Damaged = "damaged",
    /// The connection broke, for example within a message.
    Broken = "broken",
}

/// The numbers of a server.
#[derive(Debug, Default)]
pub struct Counters {
    reasons: [AtomicU64; Reason::ALL.len()],
    /// The number of accepted connections.
    pub accepted: AtomicU64,
    /// The number of tasks that began.
    pub tasks_begun: AtomicU64,
    /// The number of starts with a prediction.
    pub tasks_predicted: AtomicU64,
    /// The number of blocks sent on demand.
    pub blocks_demand: AtomicU64,
    /// The number of neighbours of demanded blocks that were sent.
    pub blocks_around: AtomicU64,
    /// The number of prefetched blocks that were sent.
    pub blocks_prefetched: AtomicU64,
    /// The number of blocks sent for `Fetch`, which no program waited for.
    pub blocks_fetched: AtomicU64,
    /// The number of predicted blocks that were not sent because the device holds them.
    pub blocks_held: AtomicU64,
    /// The number of prefetched blocks that an exact run did not read.
    pub blocks_unread: AtomicU64,
    /// The size of messages sent, in bytes, without the overhead of TLS.
    pub sent_bytes: AtomicU64,
    /// The size of messages received, in bytes, without the overhead of TLS.
    pub received_bytes: AtomicU64,
    /// The number of pieces sent from the cache of compressed pieces.
    pub bundles_hits: AtomicU64,
    /// The number of whole pieces that had to be compressed.
    pub bundles_misses: AtomicU64,
    /// The number of pieces that the background thread put into the cache at the higher level.
    pub bundles_improved: AtomicU64,
    /// The number of damaged versions that are newer than the one that is served.
    pub versions_damaged: AtomicU64,
    /// The number of `Hello` messages for the newest version that were answered with an older one, because the newest
    /// is damaged.
    pub greetings_older: AtomicU64,
    /// The number of files of learned actions that could not be loaded. Damaged ones are set aside.
    pub actions_damaged: AtomicU64,
    /// The number of files of learned actions written.
    pub actions_saved: AtomicU64,
    /// The number of failed or skipped writes of files of learned actions.
    pub actions_unsaved: AtomicU64,
}

impl Counters {
    /// Counts a refusal.
    pub fn refuse(&self, reason: Reason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of refusals for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
