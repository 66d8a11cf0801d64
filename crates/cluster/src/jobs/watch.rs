//! The progress of a job, and the part of its time that could be shared out. Read from another thread while the job
//! runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Unit of the progress: this many parts are the whole.
const WHOLE: u64 = 10_000;

/// One rank's progress.
#[derive(Debug, Default)]
pub struct Watch {
    done: AtomicU64,
    shared_ns: AtomicU64,
}

impl Watch {
    /// Creates a watch without progress.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the progress: `done` of `of` parts of this rank's share.
    pub fn at(&self, done: usize, of: usize) {
        let part = done as u128 * u128::from(WHOLE) / of.max(1) as u128;
        self.done
            .store(part.min(u128::from(WHOLE)) as u64, Ordering::Relaxed);
    }

    /// Returns the completed fraction, 0 to 1.
    #[must_use]
    pub fn done(&self) -> f64 {
        self.done.load(Ordering::Relaxed) as f64 / WHOLE as f64
    }

    /// Does work that is shared out among the ranks: with twice as many ranks its time would be half.
    pub fn share<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let length = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared_ns.fetch_add(length, Ordering::Relaxed);
        result
    }

    /// Returns the seconds of shared work.
    #[must_use]
    pub fn shared_s(&self) -> f64 {
        self.shared_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}
