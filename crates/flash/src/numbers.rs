//! The numbers that grow over a store's life, of records, of groups and of files: how far an opening takes them, and
//! what happens where they end. No store gets there by itself; an image that somebody has made up does.

use crate::block::{GROUP_BLOCKS_MAX, PAYLOAD_BYTES};
use crate::layout::RUN_BLOCKS_MAX;
use crate::root::{COUNTER_END, FILE_ID_END, FileState, Root, SLOTS_MAX};

/// Added to group numbers at each opening, more than one record's life can use.
pub(crate) const SEQUENCE_STEP: u64 = 1 << 24;

// Before a file needs a record it can fill what is left of one run (too little for a group), another run and
// a reserve, with appends of a byte each; and so can every file that has a slot.
const _: () = assert!(
    SLOTS_MAX as u64
        * (GROUP_BLOCKS_MAX as u64 - 1 + 2 * RUN_BLOCKS_MAX as u64)
        * PAYLOAD_BYTES as u64
        <= SEQUENCE_STEP
);

/// Added to the identity of the next file at each opening, more than are given out between two. When damage has taken
/// the newest record, the one before it does not know which were given out since; and two files of one identity
/// would be read as each other.
pub(crate) const FILE_ID_STEP: u64 = 1 << 24;

/// How far the number of the record can grow at an opening for writing: 2 are left out, and one or two written.
const RECORDS_OF_OPENING_MAX: u64 = 4;

/// A store whose record or group numbers have come this far is changed no more: only damage or somebody else's hand
/// takes them there. What is left is more than one call can use, even one that fills the largest device; so nothing
/// that is written has a number that is not believed later.
const CHANGES_END: u64 = COUNTER_END - (1 << 31);

/// Where the numbers go on at most after a repair that finds greater ones. No store comes so far by itself; so what it
/// has given out is not given out again. And 2^56 numbers are left, for 2^32 openings: with no more than a few times
/// what lies between [`CHANGES_END`] and the end, a few hundred openings would use up the repaired store as well.
pub(crate) const REPAIRED_COUNTER_MAX: u64 = COUNTER_END - (1 << 56);

/// The same for identities of files; 2^31 openings are left.
pub(crate) const REPAIRED_FILE_ID_MAX: u64 = FILE_ID_END / 2;

const _: () = assert!((CHANGES_END - REPAIRED_COUNTER_MAX) / SEQUENCE_STEP > 1 << 31);
const _: () = assert!((FILE_ID_END - REPAIRED_FILE_ID_MAX) / FILE_ID_STEP > 1 << 30);

impl Root {
    /// Whether the numbers of records or groups are used up, `sequence` being that of the next group.
    pub(crate) fn is_worn_out(&self, sequence: u64) -> bool {
        self.record_sequence.max(sequence) >= CHANGES_END
    }

    /// Whether a store that is opened for writing with this root takes no change then, `sequence` being the number of
    /// the next group once it is open.
    pub(crate) fn has_no_changes_left(&self, sequence: u64) -> bool {
        self.record_sequence + RECORDS_OF_OPENING_MAX >= CHANGES_END || sequence >= CHANGES_END
    }

    /// Whether a store that is opened for writing with this root takes no new file then.
    pub(crate) fn has_no_file_ids_left(&self) -> bool {
        self.next_file_id + FILE_ID_STEP >= FILE_ID_END - 1
    }
}

impl FileState {
    /// Whether the file ends with a group whose number is not below that of the next group, `sequence`.
    pub(crate) fn is_ahead_of(&self, sequence: u64) -> bool {
        self.tail.address != 0 && self.tail.sequence >= sequence
    }
}
