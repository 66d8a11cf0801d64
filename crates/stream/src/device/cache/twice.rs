//! Notes that are kept twice, because losing them would mean to accept an older version again. Besides the logs of
//! notes, they lie in a separate file.
//!
//! The file is a log of notes with the number 0, which no other log has. Notes are appended in the free part of its
//! last block on the disk, so that a full disk has room for a version. The file is rewritten when it is long.

use std::collections::BTreeMap;

use ring::rand::{SecureRandom, SystemRandom};

use super::format::{
    LOG_HEADER_BYTES, LogHeader, LogKind, RECORD_HEADER_BYTES, RecordHeader, RecordKind, padded,
    sum,
};
use super::note_map::{draft, is_name};
use super::storage::{Storage, StorageError};
use base::error::Code;

/// The name of the file.
pub(super) const FILE_NAME: &str = "versions";

/// The prefix of the names of such notes.
const PREFIX: &str = "seen-";

/// The maximum number of such notes; further ones are kept once.
const NOTES_MAX: usize = 64;

/// The maximum size of the value of such a note, in bytes.
const VALUE_BYTES_MAX: usize = 256;

/// The file is rewritten before it is longer than this.
const FILE_BYTES_MAX: u64 = 32 << 10;

/// The bytes of the budget that are reserved for the file.
pub(super) const RESERVED_BYTES: u64 = FILE_BYTES_MAX;

// All notes fit into a new file, and one more value behind them.
const _: () = assert!(
    LOG_HEADER_BYTES + (NOTES_MAX + 1) * (RECORD_HEADER_BYTES + 112 + VALUE_BYTES_MAX)
        <= FILE_BYTES_MAX as usize
);

/// Whether a note is kept twice.
pub(super) fn is_twice(name: &str) -> bool {
    name.starts_with(PREFIX) && is_name(name)
}

struct Found {
    header: LogHeader,
    notes: BTreeMap<String, Vec<u8>>,
    bytes: u64,
    /// Whether all of its bytes are records, so that more can be appended.
    is_whole: bool,
}

/// Returns the second value of a note.
pub(super) fn read(storage: &dyn Storage, name: &str) -> Option<Vec<u8>> {
    find(storage)?.notes.remove(name)
}

/// Keeps a value a second time. It is on the disk when the call returns.
///
/// # Errors
/// The storage failed, there are too many such notes, or the value is too long.
pub(super) fn write(storage: &dyn Storage, name: &str, value: &[u8]) -> Result<(), StorageError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(StorageError::Full);
    }
    let found = find(storage);
    if let Some(found) = &found {
        if found.notes.get(name).is_some_and(|before| before == value) {
            return Ok(());
        }
        let draft = draft(name, value);
        if found.is_whole && found.bytes + draft.padded_bytes() <= FILE_BYTES_MAX {
            let mut bytes = Vec::new();
            draft.encode(found.header.salt, found.bytes, &mut bytes);
            storage.append(FILE_NAME, &bytes)?;
            return storage.sync(FILE_NAME);
        }
    }
    let mut notes = found.map_or_else(BTreeMap::new, |found| found.notes);
    notes.insert(name.to_owned(), value.to_vec());
    if notes.len() > NOTES_MAX {
        return Err(StorageError::Full);
    }
    let mut salt = [0; 8];
    let no_random = |_| StorageError::Failed {
        code: Code::Io,
        message: "no random numbers".to_owned(),
    };
    SystemRandom::new().fill(&mut salt).map_err(no_random)?;
    let header = LogHeader {
        kind: LogKind::Notes,
        number: 0,
        salt: u64::from_le_bytes(salt),
    };
    let mut bytes = header.encode().to_vec();
    for (name, value) in &notes {
        let offset = bytes.len() as u64;
        draft(name, value).encode(header.salt, offset, &mut bytes);
    }
    // If the power fails here, the notes are still in the logs.
    storage.create(FILE_NAME)?;
    storage.append(FILE_NAME, &bytes)?;
    storage.sync(FILE_NAME)
}

/// Reads the file up to the first damage. `None`: there is no such file, or its header is lost.
fn find(storage: &dyn Storage) -> Option<Found> {
    let length = storage.length(FILE_NAME).ok()?;
    // Bytes behind this limit were never written by this code.
    let mut bytes = vec![0; length.min(FILE_BYTES_MAX) as usize];
    storage.read(FILE_NAME, 0, &mut bytes).ok()?;
    let header = LogHeader::decode(bytes.first_chunk::<LOG_HEADER_BYTES>()?)?;
    if (header.kind, header.number) != (LogKind::Notes, 0) {
        return None;
    }
    let mut notes = BTreeMap::new();
    let mut at = LOG_HEADER_BYTES;
    while let Some((name, value, next)) = record(&bytes, header.salt, at) {
        notes.insert(name, value);
        at = next;
    }
    Some(Found {
        header,
        notes,
        bytes: length,
        is_whole: at as u64 == length,
    })
}

/// Returns the note at an offset, and the offset of the next one.
fn record(bytes: &[u8], salt: u64, at: usize) -> Option<(String, Vec<u8>, usize)> {
    let record = bytes.get(at..)?;
    let offset = at as u64;
    let header = RecordHeader::decode(record, salt, offset)?;
    let table =
        record.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.table_bytes as usize)?;
    let value = record.get(RECORD_HEADER_BYTES + table.len()..header.record_bytes() as usize)?;
    let is_right = header.kind == RecordKind::Note
        && sum(salt, offset, table) == header.table_sum
        && sum(salt, offset, value) == header.payload_sum;
    let name = str::from_utf8(table).ok().filter(|_| is_right)?;
    let next = at + padded(header.record_bytes()) as usize;
    Some((name.to_owned(), value.to_vec(), next))
}
