//! What a full disk teaches: how much it has room for, what goes to make some, and when it is of use to try again.
//!
//! A disk without any room is written to in vain: each attempt leaves the beginning of a record on it, which wears
//! flash and keeps nothing. So attempts become rare, and nothing is written anew that wins no room.

use super::core::Core;
use super::logs::{LOG_BYTES_MIN, Logs};
use super::storage::StorageError;

/// Writes that may fail one behind the other for want of room before the next ones are spared.
const FAILED_FREE: u32 = 4;

/// Writes that are spared behind a failed one, at most.
const SPARED_MAX: u32 = 256;

/// Bytes that are written anew for each byte of notes that was added, at most.
const REWRITTEN_MAX: u64 = 3;

/// Bytes of notes that may be written anew at any time.
const REWRITTEN_FREE: u64 = 256 << 10;

/// Whether it is of use to write.
#[derive(Default)]
pub(super) struct Patience {
    failed: u32,
    spared: u32,
}

impl Patience {
    /// Whether the next write is to be tried; false spares it.
    pub(super) fn may_try(&mut self) -> bool {
        let may_try = self.spared == 0;
        self.spared = self.spared.saturating_sub(1);
        may_try
    }

    /// There was no room, and nothing that could go.
    pub(super) fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
        let doubled = self.failed.saturating_sub(FAILED_FREE).min(16);
        self.spared = ((1 << doubled) - 1).min(SPARED_MAX);
    }

    /// There was room.
    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }
}

impl Logs {
    /// Bytes that all files together may have, as far as is known.
    pub(super) fn bytes_max_found(&self) -> u64 {
        let found = self.disk_bytes_max.unwrap_or(u64::MAX).max(LOG_BYTES_MIN);
        self.budget.bytes_max.min(found)
    }

    /// The part of them that blocks leave to notes: as much less as the disk has less room than the budget.
    pub(super) fn notes_share(&self) -> u64 {
        match self.disk_bytes_max {
            Some(_) => self.budget.notes_bytes.min(self.bytes_max_found() / 4),
            None => self.budget.notes_bytes,
        }
    }

    /// The part of that for lists.
    pub(super) fn lists_bytes_max(&self) -> u64 {
        self.notes_share() / 3
    }

    /// Whether notes may be written anew: no more in all than a small multiple of what was added.
    pub(super) fn may_rewrite(&self) -> bool {
        let given = self.notes_given_bytes.saturating_mul(REWRITTEN_MAX);
        self.notes_rewritten_bytes <= given + REWRITTEN_FREE
    }

    /// The disk is full: the oldest blocks go, and where there are none, lists that take what blocks could have.
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
