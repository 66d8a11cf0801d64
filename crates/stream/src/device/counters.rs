//! The counters of a device.

use super::CacheCounters;
use crate::block::FileId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why something that a server sent was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Reason {
    /// Not a valid frame: too long, or its checksum is wrong.
    Frame,
    /// Not a message of this protocol.
    Message,
    /// Hashes without a valid proof that they belong to the content of the manifest.
    Hashes,
    /// A block whose bytes do not match its hash.
    Hash,
    /// Bytes that do not decompress to exactly the blocks that the message names.
    Length,
    /// A block that the file does not have, or that does not belong to the answered request.
    Place,
    /// Data that was not requested.
    Unrequested,
    /// A block whose hash was not received before.
    Unproven,
    /// A greeting with another version or manifest.
    Greeting,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Frame,
        Self::Message,
        Self::Hashes,
        Self::Hash,
        Self::Length,
        Self::Place,
        Self::Unrequested,
        Self::Unproven,
        Self::Greeting,
    ];

    /// Returns its name in the counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Frame => "rejected_frame",
            Self::Message => "rejected_message",
            Self::Hashes => "rejected_hashes",
            Self::Hash => "rejected_hash",
            Self::Length => "rejected_length",
            Self::Place => "rejected_place",
            Self::Unrequested => "rejected_unrequested",
            Self::Unproven => "rejected_unproven",
            Self::Greeting => "rejected_greeting",
        }
    }
}

macro_rules! counters {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// What a device has done so far. The unit is blocks, unless stated otherwise.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$what])* pub $name: u64,)*
            /// Messages and blocks that were rejected, by [`Reason`].
            pub rejected: [u64; Reason::ALL.len()],
            /// The cache's own.
            pub cache: Option<CacheCounters>,
        }

        #[derive(Default)]
        pub(super) struct Counts {
            $(pub $name: AtomicU64,)*
            pub rejected: [AtomicU64; Reason::ALL.len()],
        }

        impl Counts {
            pub fn snapshot(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    rejected: std::array::from_fn(|at| self.rejected[at].load(Ordering::Relaxed)),
                    cache: None,
                }
            }
        }

        impl Counters {
            /// Returns all counters with their names.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$((stringify!($name), self.$name),)*];
                all.extend(Reason::ALL.map(|reason| (reason.name(), self.rejected[reason as usize])));
                if let Some(cache) = &self.cache {
                    all.extend([
                        ("cache_hits", cache.hits),
                        ("cache_misses", cache.misses),
                        ("cache_damaged", cache.damaged),
                        ("cache_written", cache.written),
                        ("cache_dropped", cache.dropped),
                        ("cache_evicted", cache.evicted),
                        ("cache_failures", cache.failures),
                        ("cache_blocks", cache.blocks),
                        ("cache_bytes", cache.bytes),
                        ("cache_bytes_max", cache.bytes_max),
                        ("cache_disk_full", cache.disk_full),
                        ("cache_log_bytes_max", cache.log_bytes_max),
                        ("cache_memory_bytes", cache.memory_bytes),
                    ]);
                }
                all
            }
        }
    };
}

counters! {
    /// Blocks that programs read.
    reads,
    /// Of these, found in the buffer.
    reads_staged,
    /// Of these, found in the cache.
    reads_cached,
    /// Of these, those for which a reader waited until a plan brought them, without a request.
    reads_expected,
    /// Of these, those for which a reader waited until a request was answered.
    reads_requested,
    /// Reads that failed at their deadline.
    reads_late,
    /// Of these, those that the kernel retried at once and that failed without another wait.
    reads_late_again,
    /// Reads that failed for another reason.
    reads_failed,
    /// The total time of all reads, in microseconds.
    read_us,
    /// Requests for a block that a reader waits for.
    requests,
    /// Of these, repeated requests for the same block.
    requests_repeated,
    /// Requests for neighbours and for runs ahead of a reader.
    requests_ahead,
    /// How often programs waited for a round trip; requests that were made while another was in flight are not counted.
    round_trips,
    /// Prefetched blocks that arrived.
    pushed,
    /// Prefetched blocks that answered a read.
    pushed_read,
    /// Prefetched blocks that were stored in the page cache before they were read.
    pushed_stored,
    /// Prefetched blocks that could not be stored in the page cache.
    pushed_not_stored,
    /// Prefetched blocks of audited starts, in which all reads are to be observed.
    audited_pushed,
    /// Of these, those that were not read.
    audited_unread,
    /// Prefetched blocks that had been read or received before.
    pushed_repeated,
    /// Cached blocks that a task needed last time and that were put into the buffer.
    fed,
    /// Blocks that arrived as neighbours of requested ones.
    neighbours,
    /// Of these, those that answered a read.
    neighbours_read,
    /// Blocks that arrived for `fetch`.
    fetched,
    /// Blocks that were evicted from the buffer unread to make room.
    gone_blocks,
    /// Of these, those that were requested again later.
    asked_anew,
    /// How often the network waited for room in the buffer.
    waits_for_room,
    /// Pages that the blocks in the buffer take; neighbours are kept compressed.
    staged,
    /// Messages and blocks that were rejected, for all reasons together.
    rejected_all,
    /// Requests that the server refused.
    refused,
    /// Of these, those for data that is damaged at the server.
    refused_damaged,
    /// How often the server was quarantined because of what it had sent.
    quarantines,
    /// Connections made.
    connects,
    /// Failed attempts to connect.
    connects_failed,
    /// Connections that ended.
    disconnects,
    /// Connections that were given up because nothing was received.
    connections_dead,
    /// Connections that are up now.
    connected,
    /// The measured round-trip time, in microseconds.
    round_trip_us,
    /// The measured bandwidth, in bytes per second.
    bandwidth_bytes_s,
    /// Bytes sent, including everything that this device adds to them, without IP and TCP.
    bytes_sent,
    /// Bytes received, likewise.
    bytes_received,
    /// Tasks begun.
    tasks,
    /// Tasks running.
    tasks_now,
    /// Of the tasks begun, those for which blocks were prefetched.
    tasks_predicted,
    /// The same counter under its earlier name, which is removed in the next release.
    tasks_foretold,
    /// Of these, the audited ones, of which all reads are to be observed.
    audits,
    /// Starts that ended while no server was reachable, and were reported later.
    told_late,
    /// Blocks that did not fit into the traces.
    trace_overflow,
    /// Notes that could not be written.
    notes_failed,
    /// Bytes of memory of the buffer, hashes, traces, plans, and buffers.
    memory_bytes,
}

impl Counts {
    pub fn reject(&self, reason: Reason) {
        self.rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.rejected_all.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// A start of a task, from its begin to the end of its first action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The executable.
    pub task: FileId,
    /// Blocks that its programs were observed to read.
    pub read: u64,
    /// Prefetched blocks that arrived.
    pub pushed: u64,
    /// Of these, those that were not observed being read; exact only if `is_exact`.
    pub unread: u64,
    /// Round trips that its programs waited for; concurrent requests count once.
    pub round_trips: u64,
    /// The number of requests.
    pub requests: u64,
    /// Whether all reads were to be observed.
    pub is_audit: bool,
    /// Whether all reads were observed.
    pub is_exact: bool,
}
