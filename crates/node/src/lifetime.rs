//! The totals that outlive a run: read at the start, counted on, and saved in the store.

use super::database::Db;
use super::log;
use crate::status::{TOTALS_NAME, Totals};
use base::block::{BLOCK_BYTES, BlockDevice, Counts, CountsNow};
use flash::Store;
use ingest::intake::IntakeCounters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The largest size of the totals file, in bytes; a longer file is ignored.
pub(super) const TOTALS_BYTES_MAX: usize = 4096;

/// What this run adds to the totals; the maintenance thread reads it, too.
pub(crate) struct Lifetime {
    /// The totals before this start.
    before: Totals,
    db: Arc<Db>,
    pub(super) counts: Arc<Counts>,
    /// The device counters when the node began to serve.
    pub(super) counts_first: CountsNow,
    pub(super) intake: Arc<IntakeCounters>,
    begun: Instant,
    /// Free bytes in the store at the last check of the maintenance thread.
    pub(super) free_bytes: AtomicU64,
    /// Why index and retention do not advance; `None` while they do.
    history_failing: Mutex<Option<String>>,
}

/// Reads the totals from a store. Damaged totals start again at zero, and the log says so.
pub(crate) fn read_totals<D: BlockDevice>(store: &mut Store<D>) -> Totals {
    let Ok(file) = store.open_file(TOTALS_NAME) else {
        return Totals::default();
    };
    let mut bytes = [0; TOTALS_BYTES_MAX];
    let length = store.read(file, 0, &mut bytes);
    store.close_file(file);
    let found = bytes.get(..length.unwrap_or(0)).unwrap_or_default();
    Totals::decode(found).unwrap_or_else(|error| {
        log::event("totals", error);
        Totals::default()
    })
}

/// Returns the bytes that files of a store can still take.
pub(crate) fn free_bytes<D: BlockDevice>(store: &Store<D>) -> u64 {
    store.statistics().blocks_free * flash::PAYLOAD_BYTES as u64
}

impl Lifetime {
    pub(crate) fn new(
        before: Totals,
        db: Arc<Db>,
        counts: Arc<Counts>,
        intake: Arc<IntakeCounters>,
        begun: Instant,
        free_bytes: u64,
    ) -> Self {
        Self {
            before,
            db,
            counts_first: counts.now(),
            counts,
            intake,
            begun,
            free_bytes: AtomicU64::new(free_bytes),
            history_failing: Mutex::new(None),
        }
    }

    pub(super) fn bytes_written(&self) -> u64 {
        self.counts.now().blocks_written * BLOCK_BYTES as u64
    }

    pub(super) fn uptime_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the totals now, including this run.
    pub(super) fn now(&self, stats: &db::Stats) -> Totals {
        self.before.plus(&Totals {
            starts: 1,
            run_ms: self.uptime_ms(),
            bytes_written: self.bytes_written(),
            flushes: self.counts.now().flushes,
            readings: stats.readings,
            readings_expired: stats.readings_expired,
            readings_dropped: stats.readings_dropped,
            refused_full: stats.refused_full,
            refused_input: self.intake.refused_total(),
            clock_steps: stats.clock_steps,
        })
    }

    /// Writes the totals to the store.
    pub(crate) fn save(&self) {
        let bytes = self.now(&self.db.stats()).encode();
        let saved = self
            .db
            .with_store(|store| store.replace(TOTALS_NAME, &bytes));
        if let Some(Err(error)) = saved {
            log::event("totals", format!("cannot be written: {error}"));
        }
    }

    /// Updates the free bytes; waits while the commit thread works.
    pub(crate) fn look(&self) {
        if let Some(bytes) = self.db.with_store(|store| free_bytes(store)) {
            self.free_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Sets why index and retention do not advance; `None` if they do.
    pub(crate) fn set_history_failing(&self, why: Option<String>) {
        *self.lock_failing() = why;
    }

    pub(super) fn lock_failing(&self) -> MutexGuard<'_, Option<String>> {
        self.history_failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
