//! When to try a write again on a full disk.
//!
//! Writes to a disk without any room have no result: each attempt leaves a partial record, which wears flash and keeps
//! nothing. So attempts become rare.

/// The number of consecutive writes that may fail for lack of room before further writes are skipped.
const FAILED_FREE: u32 = 4;

/// The maximum number of writes that are skipped after a failed one.
const SPARED_MAX: u32 = 256;

/// Decides whether to try a write.
#[derive(Default)]
pub(super) struct Backoff {
    failed: u32,
    spared: u32,
}

impl Backoff {
    /// Whether to try the next write; if false, the caller must skip it.
    pub(super) fn may_try(&mut self) -> bool {
        let may_try = self.spared == 0;
        self.spared = self.spared.saturating_sub(1);
        may_try
    }

    /// Records a write that failed: there was no room, and nothing to evict.
    pub(super) fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
        let doubled = self.failed.saturating_sub(FAILED_FREE).min(16);
        self.spared = ((1 << doubled) - 1).min(SPARED_MAX);
    }

    /// Records a write that succeeded.
    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_writes_become_rare_and_one_that_works_ends_that() {
        let mut backoff = Backoff::default();
        let mut tried = 0;
        for _ in 0..10_000 {
            if backoff.may_try() {
                tried += 1;
                backoff.failed();
            }
        }
        assert!((30..100).contains(&tried), "{tried}");
        while !backoff.may_try() {}
        backoff.worked();
        assert!(backoff.may_try() && backoff.may_try());
    }
}
