//! Handling of a full disk: how much room it has, what is evicted to make some, and when to try again.
//!
//! Writes to a disk without any room have no result: each attempt leaves a partial record, which wears flash and keeps
//! nothing. So attempts become rare, and a rewrite happens only if it frees room.

use super::core::Core;
use super::logs::{LOG_BYTES_MIN, Logs};
use super::storage::StorageError;

/// The number of consecutive writes that may fail for lack of room before further writes are skipped.
const FAILED_FREE: u32 = 4;

/// The maximum number of writes that are skipped after a failed one.
const SPARED_MAX: u32 = 256;

/// The maximum number of bytes that are rewritten per byte of added notes.
const REWRITTEN_MAX: u64 = 3;

/// Bytes of notes that may be rewritten in addition to that.
const REWRITTEN_FREE: u64 = 256 << 10;

/// Decides whether to try a write.
#[derive(Default)]
pub(super) struct Patience {
    failed: u32,
    spared: u32,
}

impl Patience {
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

impl Logs {
    /// Returns the bytes that all files together may have, as far as is known.
    pub(super) fn bytes_max_found(&self) -> u64 {
        let found = self.disk_bytes_max.unwrap_or(u64::MAX).max(LOG_BYTES_MIN);
        self.budget.bytes_max.min(found)
    }

    /// Returns the part of them that blocks leave to notes; it is smaller if the disk has less room than the budget.
    pub(super) fn notes_share(&self) -> u64 {
        match self.disk_bytes_max {
            Some(_) => self.budget.notes_bytes.min(self.bytes_max_found() / 4),
            None => self.budget.notes_bytes,
        }
    }

    /// Returns the part of that for lists.
    pub(super) fn lists_bytes_max(&self) -> u64 {
        self.notes_share() / 3
    }

    /// Whether notes may be rewritten: in total at most a small multiple of the added bytes.
    pub(super) fn may_rewrite(&self) -> bool {
        let given = self.notes_given_bytes.saturating_mul(REWRITTEN_MAX);
        self.notes_rewritten_bytes <= given + REWRITTEN_FREE
    }

    /// Makes room on a full disk: evicts the oldest blocks; if there are none, the lists that take the blocks' room.
    pub(super) fn make_room_on_disk(&mut self, core: &Core) -> Result<(), StorageError> {
        core.disk_is_full();
        self.make_logs_smaller(core);
        self.disk_bytes_max = Some(self.total_bytes);
        match self.drop_oldest(core) {
            Err(StorageError::Full) if self.give_up_lists(core) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_in_vain_become_rare_and_one_that_works_ends_that() {
        let mut patience = Patience::default();
        let mut tried = 0;
        for _ in 0..10_000 {
            if patience.may_try() {
                tried += 1;
                patience.failed();
            }
        }
        assert!((30..100).contains(&tried), "{tried}");
        while !patience.may_try() {}
        patience.worked();
        assert!(patience.may_try() && patience.may_try());
    }
}
