//! What a device keeps across restarts: blocks by their hashes and small values by their names, in logs of bounded
//! size.
//!
//! **Holds:** the interface to the storage of the logs, their format (`CACHE.md`), the scan for existing content, the
//! budget.
//!
//! **Must not know:** files of a tree, servers, where the logs are stored.
//!
//! **Invariants:** a block that is returned has the hash that it was requested by. All files together never exceed the
//! budget. Blocks never take the room that notes may need. A log is appended to only behind a complete record, and only
//! while it has the length of the last write. Damage costs only the damaged record. Queue, blocks read ahead, index and
//! notes are bounded.
//!
//! **Files:** `storage.rs` the storage interface, `directory.rs` and `memory.rs` its two implementations, `format.rs`
//! the byte format, `record.rs` blocks of one record, `scan.rs` the scan of a log, `index.rs` where a block lies,
//! `core.rs` reading, `logs.rs` writing and making room, `room.rs` full disks, `backoff.rs` when to try again,
//! `note_map.rs` where values lie by name, `notes.rs` reading and writing them, `twice.rs` notes that are kept twice,
//! `queue.rs` blocks that wait for the writer, `ahead.rs` reading ahead, `unusable.rs` the substitute for a cache that
//! cannot be opened.

mod ahead;
mod backoff;
mod core;
mod directory;
mod format;
mod index;
mod logs;
mod memory;
mod note_map;
mod notes;
mod queue;
mod record;
mod room;
mod scan;
mod storage;
#[cfg(test)]
mod tests;
mod twice;
mod unusable;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use self::ahead::Ahead;
use self::core::{Core, count};
use self::logs::{Budget, Logs};
use self::queue::{Queue, Work};
use self::record::Block;
use super::{Cache, CacheCounters, CacheError, Lists};
use crate::block::{BLOCK_BYTES, BlockHash};
use crate::sync::locked;

pub use directory::DirectoryStorage;
pub use format::FORMAT_VERSION;
pub use memory::{MemoryStorage, Tail};
pub use storage::{Storage, StorageError};
pub use unusable::UnusableCache;

/// The minimum budget: a smaller one would evict blocks as fast as they arrive.
pub const CACHE_BYTES_MIN: u64 = 4 << 20;

/// Returns the minimum budget of a cache that can keep `bytes` bytes of lists of hashes, as a device counts them. It is
/// a whole number of MiB.
#[must_use]
pub fn cache_bytes_for_lists(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let is_enough = |budget: &u64| Budget::of(*budget).notes_bytes / 3 >= bytes;
    // Lists get a twelfth of a small cache, and a forty-eighth of a large one.
    let guesses = [12, 48].map(|part| bytes.saturating_add(16).saturating_mul(part));
    let rounded = guesses.map(|guess| guess.div_ceil(MIB).saturating_mul(MIB).max(CACHE_BYTES_MIN));
    rounded.into_iter().find(is_enough).unwrap_or(u64::MAX)
}

/// Returns a budget with which a cache keeps `bytes` bytes of blocks without an eviction, even if they do not compress.
/// It is a whole number of MiB.
#[must_use]
pub fn cache_bytes_for_blocks(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    // A sixteenth covers the headers, tables and indexes of records, also of records with few blocks.
    let needed = bytes.saturating_add(bytes / 16);
    let is_enough = |size: &u64| {
        let budget = Budget::of(*size);
        // One log is kept free for the next one, and another one may be half empty.
        let kept_free = budget.notes_bytes + 2 * budget.log_bytes_max + MIB;
        size.saturating_sub(kept_free) >= needed
    };
    // The parts of notes and logs are shares of a small cache, fixed sizes up to 1 GiB, and a share of a large one.
    let guesses = [
        needed.saturating_add(MIB).saturating_mul(8) / 5,
        needed.saturating_add(97 * MIB),
        needed.saturating_add(33 * MIB).saturating_mul(16) / 15,
    ];
    let rounded = guesses.map(|guess| guess.div_ceil(MIB).saturating_add(1).saturating_mul(MIB));
    let found = rounded.into_iter().filter(is_enough).min();
    found.unwrap_or(u64::MAX).max(CACHE_BYTES_MIN)
}

/// Returns the bytes that a note takes in a cache.
pub(super) fn note_bytes(name_bytes: usize, value_bytes: usize) -> u64 {
    format::padded((format::RECORD_HEADER_BYTES + name_bytes + value_bytes) as u64)
}

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The maximum number of bytes of all its files, at least [`CACHE_BYTES_MIN`].
    pub bytes_max: u64,
    /// The maximum number of bytes of blocks in memory that were read ahead, at least 2 MiB.
    pub ahead_bytes_max: usize,
    /// The maximum number of bytes of blocks in memory that are not written yet.
    pub queue_bytes_max: usize,
    /// How long `put` waits for room in the queue.
    pub put_wait: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            bytes_max: 256 << 20,
            ahead_bytes_max: 8 << 20,
            queue_bytes_max: 2 << 20,
            put_wait: Duration::from_millis(200),
        }
    }
}

/// A cache in logs. Dropping it writes the blocks that were put.
pub struct BlockCache {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    core: Core,
    logs: Mutex<Logs>,
    queue: Queue,
    ahead: Ahead,
    bytes_max: u64,
    /// Blocks that were put and not kept.
    dropped: AtomicU64,
}

impl BlockCache {
    /// Opens a cache in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`DirectoryStorage::open`].
    pub fn in_directory(path: &Path, options: &CacheOptions) -> Result<Self, CacheError> {
        Self::open(Box::new(DirectoryStorage::open(path)?), options)
    }

    /// Opens a cache in a storage that is not used elsewhere.
    ///
    /// # Errors
    /// [`CacheError::Refused`]: the budget is too small. [`CacheError::Io`]: the storage cannot be read, or a thread
    /// cannot be started.
    pub fn open(storage: Box<dyn Storage>, options: &CacheOptions) -> Result<Self, CacheError> {
        if options.bytes_max < CACHE_BYTES_MIN {
            return Err(CacheError::Refused(format!(
                "a cache has at least {} MiB",
                CACHE_BYTES_MIN >> 20
            )));
        }
        let core = Core::new(storage);
        let logs =
            Logs::open(&core, Budget::of(options.bytes_max)).map_err(|error| CacheError::Io {
                what: "opening the cache".to_owned(),
                source: std::io::Error::other(error.to_string()),
            })?;
        let shared = Arc::new(Shared {
            core,
            logs: Mutex::new(logs),
            queue: Queue::new(options.queue_bytes_max, options.put_wait),
            ahead: Ahead::new(options.ahead_bytes_max),
            bytes_max: options.bytes_max,
            dropped: AtomicU64::new(0),
        });
        let mut cache = Self {
            shared,
            threads: Vec::new(),
        };
        cache.start("cache-writer", |shared| shared.write())?;
        cache.start("cache-ahead", |shared| shared.ahead.run(&shared.core))?;
        Ok(cache)
    }

    fn start(&mut self, name: &str, run: fn(&Shared)) -> Result<(), CacheError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&shared))
            .map_err(|source| CacheError::Io {
                what: "starting a thread of the cache".to_owned(),
                source,
            })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.shared.ahead.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn logs(&self) -> MutexGuard<'_, Logs> {
        locked(&self.logs)
    }

    /// The writer's thread, until the queue is closed.
    fn write(&self) {
        {
            // The opened logs may exceed the budget, if it was reduced.
            let mut logs = self.logs();
            logs.shrink(&self.core);
        }
        loop {
            match self.queue.next() {
                Work::Blocks(blocks) => {
                    let is_missing = |block: &&Block| !self.core.holds(&block.0);
                    let missing: Vec<Block> = blocks.iter().filter(is_missing).cloned().collect();
                    if !missing.is_empty() {
                        let written = self.logs().write_blocks(&self.core, &missing);
                        if let Err(error) = written {
                            self.core.fail("writing the cache", &error);
                            count(&self.dropped, missing.len() as u64);
                        }
                    }
                    self.queue.done(&blocks);
                }
                Work::Settle(flush) => {
                    // Both under the lock: a note that is added in between would not be made durable.
                    let mut logs = self.logs();
                    logs.settle(&self.core);
                    self.queue.settled(flush);
                }
                Work::End => return,
            }
        }
    }

    fn find(&self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        self.queue
            .get(hash)
            .or_else(|| self.ahead.take(hash))
            .or_else(|| self.core.block(hash))
    }
}

impl Cache for BlockCache {
    fn get(&self, hash: &BlockHash, bytes: usize) -> Option<Arc<[u8]>> {
        let found = self.shared.find(hash).filter(|found| found.len() == bytes);
        let counts = &self.shared.core.counts;
        match found {
            Some(_) => count(&counts.hits, 1),
            None => count(&counts.misses, 1),
        }
        found
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.shared.core.index().has(hash) || self.shared.queue.get(hash).is_some()
    }

    fn put(&self, hash: &BlockHash, bytes: &Arc<[u8]>) {
        let is_block = (1..=BLOCK_BYTES).contains(&bytes.len());
        if !is_block {
            return;
        }
        // Queue blocks that are cached already, too: the writer checks whether the copy is intact. It may not be read
        // before it is needed without a server.
        if !self.shared.queue.put(hash, bytes) {
            count(&self.shared.dropped, 1);
        }
    }

    fn expect(&self, hashes: &[BlockHash]) {
        self.shared.ahead.expect(hashes);
    }

    fn note(&self, name: &str) -> Option<Vec<u8>> {
        notes::read_note(&self.shared.core, name)
    }

    fn keeps_note(&self, name: &str) -> bool {
        self.shared.core.notes().has(name)
    }

    fn lists_max(&self) -> Option<Lists> {
        Some(Lists {
            count: note_map::LISTS_MAX as u64,
            bytes: self.shared.logs().lists_bytes_max(),
        })
    }

    fn set_note(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        let core = &self.shared.core;
        let mut logs = self.shared.logs();
        // Write first to the place that needs the least room. One place is enough; a failure of the other one is
        // counted.
        let is_kept = twice::is_twice(name)
            && match twice::write(&*core.storage, name, bytes) {
                Ok(()) => true,
                Err(error) => {
                    core.fail("writing a note a second time", &error);
                    false
                }
            };
        let set = logs.set_note(core, name, bytes);
        if !logs.is_settled() {
            self.shared.queue.set_unsettled();
        }
        match set {
            Err(_) if is_kept => Ok(()),
            set => set,
        }
    }

    fn notes(&self, name: &str) -> Vec<Vec<u8>> {
        let mut found: Vec<_> = self.note(name).into_iter().collect();
        if twice::is_twice(name) {
            // The lock keeps writers out.
            let _logs = self.shared.logs();
            let second = twice::read(&*self.shared.core.storage, name);
            found.extend(second.filter(|second| found.first() != Some(second)));
        }
        found
    }

    fn counters(&self) -> CacheCounters {
        let core = &self.shared.core;
        let counts = &core.counts;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let blocks = core.index().blocks();
        CacheCounters {
            hits: value(&counts.hits),
            misses: value(&counts.misses),
            damaged: value(&counts.damaged),
            written: value(&counts.written),
            dropped: value(&self.shared.dropped),
            evicted: value(&counts.evicted),
            failures: value(&counts.failures),
            blocks,
            bytes: value(&counts.bytes),
            bytes_max: self.shared.bytes_max,
            disk_full: value(&counts.disk_full),
            log_bytes_max: value(&counts.log_bytes_max),
            memory_bytes: core.memory_bytes()
                + self.shared.ahead.memory_bytes()
                + self.shared.queue.memory_bytes(),
        }
    }

    fn failure(&self) -> Option<String> {
        self.shared.core.failure()
    }

    fn flush(&self) {
        self.shared.queue.flush();
    }
}
