//! The scan of a log: by the indexes at its end, or from header to header.

use super::format::{
    ALIGNMENT, INDEX_HEAD_BYTES, LOG_HEADER_BYTES, LogHeader, LogKind, RECORD_HEADER_BYTES,
    RecordHeader, RecordKind, TRAILER_BYTES, decode_trailer, is_table_sound, padded, sum, word,
};
use super::storage::{Storage, StorageError};

/// The maximum length of a chain of indexes, each of which points to the one before; a longer chain is not followed.
pub(super) const CHAIN_INDEXES_MAX: u32 = 64;

/// The maximum size of an index, in bytes.
const INDEX_BYTES_MAX: u32 = 16 << 20;

/// The number of bytes that are read at once in a scan from header to header.
const WINDOW_BYTES: u64 = 256 << 10;

/// The size of a piece, in bytes. A window that the storage cannot read is read piece by piece. What cannot be read is
/// skipped up to the end of its piece.
const PIECE_BYTES: u64 = 4096;

/// The scan stops after this many wrong bytes in a row, which is more than the size of a log of blocks. Another process
/// has extended the file then, and a start must not wait for its end.
const WRONG_BYTES_MAX: u64 = 32 << 20;

/// The written indexes of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The offset of the last one; 0: there is none.
    pub(super) last: u32,
    /// The number of indexes.
    pub(super) length: u32,
}

/// The result of a scan.
pub(super) struct Scanned {
    pub(super) header: LogHeader,
    /// Whether all of its bytes are records, so that more can be appended.
    pub(super) is_whole: bool,
    pub(super) chain: Chain,
    /// Entries of records that are not in an index.
    pub(super) unindexed: Vec<u8>,
}

/// Called for each record with its offset, its header and its table.
pub(super) type Visit<'v> = dyn FnMut(u64, &RecordHeader, &[u8]) + 'v;

/// Reads the headers of a log. `None`: it is not a log, or its header is lost.
pub(super) fn scan(
    storage: &dyn Storage,
    (kind, number): (LogKind, u32),
    length: u64,
    visit: &mut Visit<'_>,
) -> Option<Scanned> {
    let name = super::format::log_name(kind, number);
    let mut bytes = [0; LOG_HEADER_BYTES];
    storage.read(&name, 0, &mut bytes).ok()?;
    let header = LogHeader::decode(&bytes)?;
    if (header.kind, header.number) != (kind, number) {
        return None;
    }
    if let Some((chain, indexes)) = read_chain(storage, &header, length) {
        for index in indexes.iter().rev() {
            walk_index(index, &header, visit);
        }
        return Some(Scanned {
            header,
            is_whole: true,
            chain,
            unindexed: Vec::new(),
        });
    }
    Some(walk_headers(storage, header, length, visit))
}

/// Reads the indexes of a log that ends with one, the newest first.
fn read_chain(
    storage: &dyn Storage,
    header: &LogHeader,
    length: u64,
) -> Option<(Chain, Vec<Vec<u8>>)> {
    let name = header.name();
    let at = length.checked_sub(TRAILER_BYTES as u64)?;
    let mut trailer = [0; TRAILER_BYTES];
    storage.read(&name, at, &mut trailer).ok()?;
    let last = decode_trailer(&trailer, header.salt, at)?;
    let indexes = read_chain_from(storage, header, last)?;
    let chain = Chain {
        last,
        length: indexes.len() as u32,
    };
    Some((chain, indexes))
}

/// Reads an index and those before it, the newest first.
pub(super) fn read_chain_from(
    storage: &dyn Storage,
    header: &LogHeader,
    last: u32,
) -> Option<Vec<Vec<u8>>> {
    let (mut indexes, mut place) = (Vec::new(), last);
    while place != 0 {
        if indexes.len() as u32 == CHAIN_INDEXES_MAX {
            return None;
        }
        let index = read_index(storage, header, u64::from(place))?;
        place = word(&index, 0);
        indexes.push(index);
    }
    Some(indexes)
}

fn read_index(storage: &dyn Storage, log: &LogHeader, offset: u64) -> Option<Vec<u8>> {
    let name = log.name();
    let mut bytes = [0; RECORD_HEADER_BYTES];
    storage.read(&name, offset, &mut bytes).ok()?;
    let header = RecordHeader::decode(&bytes, log.salt, offset)?;
    let is_index = header.kind == RecordKind::Index
        && (INDEX_HEAD_BYTES as u32..=INDEX_BYTES_MAX).contains(&header.payload_bytes);
    if !is_index {
        return None;
    }
    let mut payload = vec![0; header.payload_bytes as usize];
    storage
        .read(&name, offset + RECORD_HEADER_BYTES as u64, &mut payload)
        .ok()?;
    let is_right = sum(log.salt, offset, &payload) == header.payload_sum
        && u64::from(word(&payload, 0)) < offset;
    is_right.then_some(payload)
}

/// Visits the records that an index names. Its statements are checked again when the records are read.
fn walk_index(index: &[u8], log: &LogHeader, visit: &mut Visit<'_>) {
    let mut rest = &index[INDEX_HEAD_BYTES..];
    while rest.len() >= 4 + RECORD_HEADER_BYTES {
        let offset = u64::from(word(rest, 0));
        let Some(header) = RecordHeader::decode(&rest[4..], log.salt, offset) else {
            return;
        };
        let table_at = 4 + RECORD_HEADER_BYTES;
        let Some(table) = rest.get(table_at..table_at + header.table_bytes as usize) else {
            return;
        };
        if is_record_sound(&header, log, offset, table) {
            visit(offset, &header, table);
        }
        rest = &rest[table_at + table.len()..];
    }
}

fn is_record_sound(header: &RecordHeader, log: &LogHeader, offset: u64, table: &[u8]) -> bool {
    let is_of_this_kind = match header.kind {
        RecordKind::Blocks => log.kind == LogKind::Blocks,
        RecordKind::Note => log.kind == LogKind::Notes,
        RecordKind::Index => true,
    };
    is_of_this_kind
        && sum(log.salt, offset, table) == header.table_sum
        && (header.kind != RecordKind::Blocks || is_table_sound(table, header.raw_bytes))
}

fn walk_headers(
    storage: &dyn Storage,
    log: LogHeader,
    length: u64,
    visit: &mut Visit<'_>,
) -> Scanned {
    let mut window = Window {
        storage,
        name: log.name(),
        length,
        start: 0,
        bytes: Vec::new(),
        failed_until: [0; 2],
    };
    let mut found = Scanned {
        header: log,
        is_whole: true,
        chain: Chain::default(),
        unindexed: Vec::new(),
    };
    let (mut offset, mut wrong) = (LOG_HEADER_BYTES as u64, 0);
    while offset < length && wrong < WRONG_BYTES_MAX {
        let (step, is_right) = match window.get(offset, RECORD_HEADER_BYTES as u64) {
            Ok(bytes) => {
                let header = RecordHeader::decode(bytes, log.salt, offset)
                    .filter(|header| offset + header.record_bytes() <= length);
                let is_trailer = decode_trailer(bytes, log.salt, offset).is_some();
                let step = match header {
                    Some(header) => take_record(&mut window, &mut found, offset, &header, visit),
                    None => is_trailer.then_some(TRAILER_BYTES as u64),
                };
                (step.unwrap_or(ALIGNMENT as u64), step.is_some())
            }
            Err(_) => (piece_end(offset) - offset, false),
        };
        found.is_whole &= is_right;
        wrong = if is_right { 0 } else { wrong + step };
        offset += step;
    }
    found.is_whole &= offset == length;
    found
}

/// Takes a record. Returns its padded length in bytes; `None` if its table is damaged.
fn take_record(
    window: &mut Window<'_>,
    found: &mut Scanned,
    offset: u64,
    header: &RecordHeader,
    visit: &mut Visit<'_>,
) -> Option<u64> {
    let head_bytes = RECORD_HEADER_BYTES + header.table_bytes as usize;
    let head = window.get(offset, head_bytes as u64).ok()?;
    let table = head.get(RECORD_HEADER_BYTES..head_bytes)?;
    if !is_record_sound(header, &found.header, offset, table) {
        return None;
    }
    if header.kind != RecordKind::Index {
        visit(offset, header, table);
    }
    if header.kind == RecordKind::Blocks {
        push_index_entry(&mut found.unindexed, offset, head);
    }
    Some(padded(header.record_bytes()))
}

/// Adds a record to the entries of the next index; `head` is its header and its table.
pub(super) fn push_index_entry(entries: &mut Vec<u8>, offset: u64, head: &[u8]) {
    entries.extend_from_slice(&(offset as u32).to_le_bytes());
    entries.extend_from_slice(head);
}

/// Returns the end of the piece that a byte lies in.
fn piece_end(offset: u64) -> u64 {
    (offset / PIECE_BYTES + 1) * PIECE_BYTES
}

/// A part of a file in memory.
struct Window<'s> {
    storage: &'s dyn Storage,
    name: String,
    length: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Where the last failed read of a whole window ended, and that of a whole piece. Such a read is not tried again
    /// before: on damaged storage each attempt may take long.
    failed_until: [u64; 2],
}

impl Window<'_> {
    /// Returns `bytes` bytes from `offset` on, fewer at the end of the file.
    fn get(&mut self, offset: u64, bytes: u64) -> Result<&[u8], StorageError> {
        let end = (offset + bytes).min(self.length);
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&offset) && end <= held.end) {
            let window = (offset + WINDOW_BYTES).max(end).min(self.length);
            let piece = piece_end(end - 1).min(self.length);
            if !self.try_fill(offset, window, 0) && !self.try_fill(offset, piece, 1) {
                self.fill(offset, end)?;
            }
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + (end - offset) as usize])
    }

    /// Reads a whole window (0) or piece (1). Returns `false` if that fails, or has failed up to a later place.
    fn try_fill(&mut self, start: u64, end: u64, size: usize) -> bool {
        if start < self.failed_until[size] {
            return false;
        }
        let is_read = self.fill(start, end).is_ok();
        if !is_read {
            self.failed_until[size] = end;
        }
        is_read
    }

    fn fill(&mut self, start: u64, end: u64) -> Result<(), StorageError> {
        self.start = start;
        self.bytes.resize((end - start) as usize, 0);
        let read = self.storage.read(&self.name, start, &mut self.bytes);
        if read.is_err() {
            self.bytes.clear();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A file of zeros without an end, of which one part cannot be read.
    #[derive(Default)]
    struct Zeros {
        unreadable: Range<u64>,
        reads: AtomicU64,
        reads_failed: AtomicU64,
        read_bytes: AtomicU64,
    }

    impl Storage for Zeros {
        fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
            Ok(Vec::new())
        }
        fn create(&self, _: &str) -> Result<(), StorageError> {
            Err(StorageError::Full)
        }
        fn append(&self, _: &str, _: &[u8]) -> Result<(), StorageError> {
            Err(StorageError::Full)
        }
        fn read(&self, _: &str, from: u64, into: &mut [u8]) -> Result<(), StorageError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if from < self.unreadable.end && from + into.len() as u64 > self.unreadable.start {
                self.reads_failed.fetch_add(1, Ordering::Relaxed);
                return Err(StorageError::Damaged);
            }
            self.read_bytes
                .fetch_add(into.len() as u64, Ordering::Relaxed);
            into.fill(0);
            Ok(())
        }
        fn length(&self, _: &str) -> Result<u64, StorageError> {
            Ok(u64::MAX)
        }
        fn delete(&self, _: &str) -> Result<(), StorageError> {
            Ok(())
        }
        fn sync(&self, _: &str) -> Result<(), StorageError> {
            Ok(())
        }
    }

    #[test]
    fn a_file_with_zeros_appended_is_not_read_to_its_end() {
        let header = LogHeader {
            kind: LogKind::Blocks,
            number: 1,
            salt: 7,
        };
        let zeros = Zeros::default();
        let found = walk_headers(&zeros, header, 2 << 30, &mut |_, _, _| {
            panic!("there is no record")
        });
        assert!(!found.is_whole);
        let read_bytes = zeros.read_bytes.load(Ordering::Relaxed);
        assert!(read_bytes < 2 * WRONG_BYTES_MAX, "{read_bytes}");
        let found = walk_headers(&zeros, header, 1 << 20, &mut |_, _, _| {});
        assert!(!found.is_whole);
    }

    /// The number of reads is bounded by the pieces around the damage, wherever the damage begins in a piece.
    #[test]
    fn a_part_that_cannot_be_read_is_tried_a_few_times_only() {
        let header = LogHeader {
            kind: LogKind::Blocks,
            number: 1,
            salt: 7,
        };
        for begin in [300 << 10, (300 << 10) + 2000] {
            let zeros = Zeros {
                unreadable: begin..begin + 4096,
                ..Zeros::default()
            };
            let found = walk_headers(&zeros, header, 1 << 20, &mut |_, _, _| {
                panic!("there is no record")
            });
            assert!(!found.is_whole);
            // The window, and for each of at most two pieces the piece and the bytes of one header.
            let failed = zeros.reads_failed.load(Ordering::Relaxed);
            assert!(failed <= 5, "{failed}");
            // Windows, 64 pieces of one window, and the headers at each 16 bytes of two pieces.
            let reads = zeros.reads.load(Ordering::Relaxed);
            assert!(reads <= 64 + 2 * PIECE_BYTES / ALIGNMENT as u64, "{reads}");
        }
    }
}
