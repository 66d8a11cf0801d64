//! Handling of a full disk: how much room it has, and what is evicted to make some. A rewrite happens only if it frees
//! room.

use super::core::Core;
use super::logs::{LOG_BYTES_MIN, Logs};
use super::storage::StorageError;

/// The maximum number of bytes that are rewritten per byte of added notes.
const REWRITTEN_MAX: u64 = 3;

/// Bytes of notes that may be rewritten in addition to that.
const REWRITTEN_FREE: u64 = 256 << 10;

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
