//! Whether a store has room for checkpoints of a table.
//!
//! A checkpoint is written beside the previous one, which is deleted when the new one is complete. So a store holds two
//! checkpoints, and the log that a start from the older one reads. Only the room that the log leaves is certain. The
//! log takes no reading while less than a checkpoint of all values would be left. But it never leaves more than a
//! quarter of the store for that.

/// The log leaves at most one part in this many of the store to the next checkpoint.
const SURE_PART: u64 = 4;

/// How the checkpoints of a table fit a store. Ordered from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFit {
    /// A checkpoint takes at most a quarter of the store: its room is kept free, no matter how the log grows.
    Sure,
    /// A checkpoint takes more than a quarter. One that begins while the log is short finds room; later ones may not.
    /// Then the log fills the store, and nothing can be deleted any more, because a start would read it.
    Perhaps,
    /// A checkpoint takes more than half: none ever has room beside the previous one.
    Never,
}

impl TableFit {
    /// Returns the fit of a table whose checkpoint takes `checkpoint_bytes` ([`crate::checkpoint_bytes_max`]), in a
    /// store that can hold `store_bytes` ([`crate::SegmentStore::capacity_bytes`]).
    #[must_use]
    pub fn of(checkpoint_bytes: u64, store_bytes: u64) -> Self {
        if checkpoint_bytes <= store_bytes / SURE_PART {
            Self::Sure
        } else if checkpoint_bytes <= store_bytes / 2 {
            Self::Perhaps
        } else {
            Self::Never
        }
    }
}

/// Bytes that the log leaves free in a store for a checkpoint of `checkpoint_bytes`.
pub(crate) fn reserve_bytes(checkpoint_bytes: u64, store_bytes: u64) -> u64 {
    checkpoint_bytes.min(store_bytes / SURE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_surely_fits_if_its_checkpoint_is_kept_free() {
        for store_bytes in [0, 7, 4096, 1 << 24, u64::MAX] {
            for checkpoint_bytes in [0, 1, 1024, 1025, 1 << 22, (1 << 22) + 1, u64::MAX] {
                let is_kept = reserve_bytes(checkpoint_bytes, store_bytes) == checkpoint_bytes;
                let fit = TableFit::of(checkpoint_bytes, store_bytes);
                assert_eq!(
                    fit == TableFit::Sure,
                    is_kept,
                    "{checkpoint_bytes} in {store_bytes}"
                );
                let are_two = checkpoint_bytes <= store_bytes / 2;
                assert_eq!(fit == TableFit::Never, !are_two);
            }
        }
    }
}
