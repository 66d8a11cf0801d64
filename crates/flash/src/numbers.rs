//! The numbers of records, groups and files, which grow over a store's life: how far each opening advances them, and
//! what happens at their end. No store reaches the end by normal use; only a forged image does.

use crate::block::{GROUP_BLOCKS_MAX, PAYLOAD_BYTES};
use crate::layout::{COUNTER_END, FILE_ID_END, RUN_BLOCKS_MAX};
use crate::root::{FileState, Root, SLOTS_MAX};

/// Added to group numbers at each opening, more than one record's life can use.
pub(crate) const SEQUENCE_STEP: u64 = 1 << 24;

// Before a file needs a record it can fill the rest of one run (too little for a group), another run and a reserve.
// Each append may be one byte. Every file that has a slot can do so.
const _: () = assert!(
    SLOTS_MAX as u64
        * (GROUP_BLOCKS_MAX as u64 - 1 + 2 * RUN_BLOCKS_MAX as u64)
        * PAYLOAD_BYTES as u64
        <= SEQUENCE_STEP
);

/// Added to the identity of the next file at each opening; more than the identities given out between two openings. If
/// damage has destroyed the newest record, the previous one does not know which identities were given out since. Two
/// files with the same identity would be mistaken for each other.
pub(crate) const FILE_ID_STEP: u64 = 1 << 24;

/// Maximum growth of the record number at an opening for writing: 2 numbers are skipped, and one or two records are
/// written.
const RECORDS_OF_OPENING_MAX: u64 = 4;

/// From this record or group number on, the store refuses changes: only damage or a forged image takes the numbers
/// there. The remaining numbers are more than one call can use, even a call that fills the largest device. So nothing
/// is written with a number that is rejected later.
const CHANGES_END: u64 = COUNTER_END - (1 << 31);

/// Maximum number to continue from after a repair that finds greater numbers. No store gets this far by itself, so no
/// number is given out twice. 2^56 numbers are left, for 2^32 openings. With only a few times the numbers between
/// [`CHANGES_END`] and the end, a few hundred openings would use up the repaired store as well.
pub(crate) const REPAIRED_COUNTER_MAX: u64 = COUNTER_END - (1 << 56);

/// The same for identities of files; 2^31 openings are left.
pub(crate) const REPAIRED_FILE_ID_MAX: u64 = FILE_ID_END / 2;

const _: () = assert!((CHANGES_END - REPAIRED_COUNTER_MAX) / SEQUENCE_STEP > 1 << 31);
const _: () = assert!((FILE_ID_END - REPAIRED_FILE_ID_MAX) / FILE_ID_STEP > 1 << 30);

impl Root {
    /// Returns whether the numbers of records or groups are used up. `sequence` is the number of the next group.
    pub(crate) fn is_worn_out(&self, sequence: u64) -> bool {
        self.record_sequence.max(sequence) >= CHANGES_END
    }

    /// Returns whether a store that is opened for writing with this root then refuses all changes. `sequence` is the
    /// number of the next group once the store is open.
    pub(crate) fn has_no_changes_left(&self, sequence: u64) -> bool {
        self.record_sequence + RECORDS_OF_OPENING_MAX >= CHANGES_END || sequence >= CHANGES_END
    }

    /// Returns whether a store that is opened for writing with this root then refuses new files.
    pub(crate) fn has_no_file_ids_left(&self) -> bool {
        self.next_file_id + FILE_ID_STEP >= FILE_ID_END - 1
    }
}

impl FileState {
    /// Returns whether the file ends with a group whose number is not below `sequence`, the number of the next group.
    pub(crate) fn is_ahead_of(&self, sequence: u64) -> bool {
        self.tail.address != 0 && self.tail.sequence >= sequence
    }
}
