//! What a device has done so far, counted.

use super::CacheCounters;
use crate::block::FileId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why something that a server sent was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Reason {
    /// Not a frame: too long, or its checksum is wrong.
    Frame,
    /// Not a message of this protocol.
    Message,
    /// Hashes that are not proven to belong to the content of the manifest.
    Hashes,
    /// A block whose bytes have another hash.
    Hash,
    /// Bytes that are not exactly the blocks that the message names, decompressed.
    Length,
    /// A block that the file does not have, or that is not in the answer's place.
    Place,
    /// What nobody asked for.
    Unrequested,
    /// A block whose hash had not come before.
    Unproven,
    /// A greeting with another version or manifest.
    Greeting,
}

impl Reason {
    /// All of them.
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

    /// Its name in counters.
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
        /// What a device has done so far. Blocks, unless said otherwise.
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
            /// All of them with their names.
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
    /// Blocks that programs asked for.
    reads,
    /// Of these, found on the stage.
    reads_staged,
    /// Of these, found in the cache.
    reads_cached,
    /// Of these, waited for until a plan brought them, without a request.
    reads_expected,
    /// Of these, waited for until a request was answered.
    reads_requested,
    /// Reads that failed at their deadline.
    reads_late,
    /// Of these, those that were asked again at once, as the kernel does, and failed without another wait.
    reads_late_again,
    /// Reads that failed otherwise.
    reads_failed,
    /// Microseconds that reads have taken together.
    read_us,
    /// Requests for a block that somebody waits for.
    requests,
    /// Of these, second ones for the same block.
    requests_repeated,
    /// Requests for neighbours and for runs ahead of a reader.
    requests_ahead,
    /// Times that programs waited for a round trip: requests, without those made while another was under way.
    round_trips,
    /// Blocks that came because they were prefetched.
    pushed,
    /// Prefetched blocks that a read was answered with.
    pushed_read,
    /// Prefetched blocks that the page cache took before they were read.
    pushed_stored,
    /// Prefetched blocks that the page cache did not take.
    pushed_not_stored,
    /// Prefetched blocks of starts in which all reads were seen.
    audited_pushed,
    /// Of these, those that nobody read.
    audited_unread,
    /// Prefetched blocks that had been read or had come before.
    pushed_repeated,
    /// Blocks that the cache had of what a task needed last time, and that were put onto the stage.
    fed,
    /// Blocks that came as neighbours of requested ones.
    neighbours,
    /// Of these, those that a read was answered with.
    neighbours_read,
    /// Blocks that came for `fetch`.
    fetched,
    /// Blocks that left the stage unread to make room.
    gone_blocks,
    /// Of these, those that were asked for later.
    asked_anew,
    /// Times that the network waited for room on the stage.
    waits_for_room,
    /// Pages that the blocks on the stage take; neighbours wait compressed.
    staged,
    /// Messages that were rejected, all reasons together.
    rejected_all,
    /// Requests that the server refused.
    refused,
    /// Of these, those for what is damaged at the server.
    refused_damaged,
    /// Times that a server was left alone for a while because of what it had sent.
    quarantines,
    /// Connections made.
    connects,
    /// Attempts to make one that failed.
    connects_failed,
    /// Connections that ended.
    disconnects,
    /// Connections that were given up because nothing came.
    connections_dead,
    /// Connections now.
    connected,
    /// Round-trip time as measured last, microseconds.
    round_trip_us,
    /// Bandwidth as measured, bytes in a second.
    bandwidth_bytes_s,
    /// Bytes sent, with everything that this device wraps around them but IP and TCP.
    bytes_sent,
    /// Bytes received, likewise.
    bytes_received,
    /// Tasks begun.
    tasks,
    /// Tasks running.
    tasks_now,
    /// Of the tasks begun, those of which something was prefetched.
    tasks_predicted,
    /// The same under its earlier name, which goes with the next release.
    tasks_foretold,
    /// Of these, those of which all reads were to be seen.
    audits,
    /// Starts that had ended while no server could be reached, and were told later.
    told_late,
    /// Blocks that traces could not hold.
    trace_overflow,
    /// Notes that could not be kept.
    notes_failed,
    /// Bytes of memory of the stage, hashes, traces, plans, and buffers.
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
    /// Blocks that its programs read and that was seen.
    pub read: u64,
    /// Blocks that were prefetched and came.
    pub pushed: u64,
    /// Of these, those that were not seen being read; exact only if `is_exact`.
    pub unread: u64,
    /// Requests that its programs waited for, those made at the same time counted once.
    pub round_trips: u64,
    /// Requests.
    pub requests: u64,
    /// All reads were to be seen.
    pub is_audit: bool,
    /// All reads were seen.
    pub is_exact: bool,
}
