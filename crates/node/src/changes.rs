//! Counts the puts of every object on their way into the database. Watchers find from the counts which objects have
//! changed, and how often, without reading any value. A put costs one addition.

use base::seeded_bug::SeededBug;
use db::Time;
use ingest::intake::{Destination, KeyOwner, LogGone, PutError, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Puts per object since the start; the counts wrap.
#[derive(Debug)]
pub(crate) struct Changes {
    counts: Box<[AtomicU32]>,
}

impl Changes {
    /// Creates counts for `objects_max` objects.
    pub(crate) fn new(objects_max: u32) -> Arc<Self> {
        let counts = (0..objects_max).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { counts })
    }

    /// Counts one more put.
    pub(crate) fn add(&self, object: u32) {
        if let Some(count) = self.counts.get(object as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of puts of this object, 0 for an unknown one.
    pub(crate) fn get(&self, object: u32) -> u32 {
        self.counts
            .get(object as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// A destination whose puts are counted.
#[derive(Debug)]
pub(crate) struct Counted<D> {
    inner: D,
    changes: Arc<Changes>,
    /// LSN of the latest put plus one, used only by [`SeededBug::AckWhenPut`].
    put_end: AtomicU64,
}

impl<D> Counted<D> {
    pub(crate) fn new(inner: D, changes: Arc<Changes>) -> Self {
        let put_end = AtomicU64::new(0);
        Self {
            inner,
            changes,
            put_end,
        }
    }

    pub(crate) fn inner(&self) -> &D {
        &self.inner
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    fn counted(&self, object: u32, put: Result<u64, PutError>) -> Result<u64, PutError> {
        let lsn = put?;
        self.changes.add(object);
        if SeededBug::AckWhenPut.is_on() {
            self.put_end.fetch_max(lsn + 1, Ordering::Relaxed);
        }
        Ok(lsn)
    }
}

impl<D: Destination> Destination for Counted<D> {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        self.inner.resolve(key)
    }
    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        self.inner.resolve_for(key, owner, first)
    }
    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let put = self.inner.put(object, value, time);
        self.counted(object, put)
    }
    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let put = self.inner.put_retained(object, value, time);
        self.counted(object, put)
    }
    fn durable_end(&self) -> u64 {
        let put_end = self.put_end.load(Ordering::Relaxed);
        self.inner.durable_end().max(put_end)
    }
    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
        if SeededBug::AckWhenPut.is_on() {
            // A short timeout is necessary: with a longer one, acknowledgements would still follow the pace of the
            // commits.
            let end = self
                .inner
                .wait_durable_past(seen, Duration::from_millis(1))?;
            return Ok(end.max(self.put_end.load(Ordering::Relaxed)));
        }
        self.inner.wait_durable_past(seen, timeout)
    }
    fn wall_ms(&self) -> i64 {
        self.inner.wall_ms()
    }
    fn wall_trusted(&self) -> bool {
        self.inner.wall_trusted()
    }
}
