//! The substitute for a cache that could not be opened: the device continues without a cache and reports why.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::core::count;
use crate::block::BlockHash;
use crate::device::{Cache, CacheCounters, CacheError};

/// A cache that keeps nothing.
pub struct UnusableCache {
    failure: String,
    dropped: AtomicU64,
    misses: AtomicU64,
}

impl UnusableCache {
    /// Returns the substitute for a cache that could not be opened because of this failure.
    #[must_use]
    pub fn new(failure: String) -> Self {
        Self {
            failure,
            dropped: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }
}

impl Cache for UnusableCache {
    fn get(&self, _: &BlockHash, _: usize) -> Option<Arc<[u8]>> {
        count(&self.misses, 1);
        None
    }

    fn has(&self, _: &BlockHash) -> bool {
        false
    }

    fn put(&self, _: &BlockHash, _: &Arc<[u8]>) {
        count(&self.dropped, 1);
    }

    fn expect(&self, _: &[BlockHash]) {}

    fn note(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn set_note(&self, _: &str, _: &[u8]) -> Result<(), CacheError> {
        Err(CacheError::Refused(self.failure.clone()))
    }

    fn counters(&self) -> CacheCounters {
        CacheCounters {
            misses: self.misses.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failures: 1,
            ..CacheCounters::default()
        }
    }

    fn failure(&self) -> Option<String> {
        Some(self.failure.clone())
    }

    fn flush(&self) {}
}
