//! The last blocks of the files that are being appended to, kept in memory.

use crate::block::{NAME_HINT_BYTES, NameHint, PAYLOAD_BYTES, POINTERS, Pointers};
use crate::root::FileState;

/// The epoch of blocks that were not written since the store was opened.
pub(crate) const EPOCH_LONG_AGO: u64 = u64::MAX;

/// The last block of an active file, kept in memory because the next append rewrites it.
pub(crate) struct TailCache {
    pub(crate) file_id: u64,
    pub(crate) sequence: u64,
    pub(crate) pointers: Pointers,
    pub(crate) payload: Box<[u8; PAYLOAD_BYTES]>,
    /// The lane that the last append went to.
    pub(crate) lane: usize,
    /// Epoch of the last append. If it is the current epoch, the append is not durable yet.
    pub(crate) epoch: u64,
    /// The name hint in the first block of the file.
    pub(crate) name_hint: NameHint,
}

impl TailCache {
    pub(crate) fn new() -> Self {
        Self {
            file_id: 0,
            sequence: 0,
            pointers: [0; POINTERS],
            payload: Box::new([0; PAYLOAD_BYTES]),
            lane: 0,
            epoch: EPOCH_LONG_AGO,
            name_hint: [0; NAME_HINT_BYTES],
        }
    }

    pub(crate) fn holds(&self, state: &FileState) -> bool {
        self.file_id == state.file_id
            && self.sequence == state.tail.sequence
            && state.tail.address != 0
    }

    pub(crate) fn forget(&mut self) {
        self.file_id = 0;
        self.lane = 0;
        self.epoch = EPOCH_LONG_AGO;
    }
}
