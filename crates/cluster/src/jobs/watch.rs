//! How far a job is, and which of its time could be shared out. Read from another thread, while the job goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Progress in parts of this.
const WHOLE: u64 = 10_000;

/// One rank's progress.
#[derive(Debug, Default)]
pub struct Watch {
    done: AtomicU64,
    shared_ns: AtomicU64,
}

impl Watch {
    /// Nothing done yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// So much of this rank's share is done.
    pub fn at(&self, done: usize, of: usize) {
        let part = done as u128 * u128::from(WHOLE) / of.max(1) as u128;
        self.done
            .store(part.min(u128::from(WHOLE)) as u64, Ordering::Relaxed);
    }

    /// The part that is done, 0 to 1.
    #[must_use]
    pub fn done(&self) -> f64 {
        self.done.load(Ordering::Relaxed) as f64 / WHOLE as f64
    }

    /// Does work that is shared out among the ranks: its time would be half with twice as many of them.
    pub fn share<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let length = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared_ns.fetch_add(length, Ordering::Relaxed);
        result
    }

    /// Seconds of shared work.
    #[must_use]
    pub fn shared_s(&self) -> f64 {
        self.shared_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}
