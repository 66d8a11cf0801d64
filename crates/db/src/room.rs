//! Whether checkpoints of a table have room in a store.
//!
//! A checkpoint is written beside the one before, which goes when the new one is whole: a store holds two of them, and
//! the log that a start from the older one reads. Certain is only the room that the log leaves: it takes no reading
//! while less than a checkpoint of all values would be left, but never leaves more than a quarter of the store.

/// Part of the store that the log leaves to the next checkpoint, at most.
const SURE_PART: u64 = 4;

/// What the checkpoints of a table find in a store. Ordered from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFit {
    /// One takes at most a quarter of the store: its room is left free, whatever the log does.
    Sure,
    /// It takes more than that: one that begins while the log is short finds its room, later ones may not; then the log
    /// fills the store, and nothing can be deleted any more, because a start would read it.
    Perhaps,
    /// It takes more than half: none ever has room beside the one before.
    Never,
}

impl TableFit {
    /// Of a table whose checkpoint takes `checkpoint_bytes` ([`crate::checkpoint_bytes_max`]), in a store that can hold
    /// `store_bytes` ([`crate::SegmentStore::capacity_bytes`]).
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
    fn what_is_sure_is_what_is_kept_free() {
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
