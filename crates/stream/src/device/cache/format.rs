//! The byte format of a log, as `CACHE.md` specifies it.

use crate::block::{BLOCK_BYTES, BlockHash};

/// The version of the format that is written and read.
pub const FORMAT_VERSION: u16 = 1;

/// The maximum number of blocks of one record.
pub(super) const RECORD_BLOCKS_MAX: usize = 32;

/// The maximum number of bytes of the blocks of one record, uncompressed.
pub(super) const RECORD_RAW_BYTES_MAX: usize = RECORD_BLOCKS_MAX * BLOCK_BYTES;

/// The maximum length of a note's name, in characters.
pub(super) const NOTE_NAME_BYTES_MAX: usize = 100;

/// Bytes of a file's header: two identical halves.
pub(super) const LOG_HEADER_BYTES: usize = 64;

/// Records begin at multiples of this.
pub(super) const ALIGNMENT: usize = 16;

/// Bytes of a record's header.
pub(super) const RECORD_HEADER_BYTES: usize = 32;

/// Bytes of one block in the table of a record.
pub(super) const TABLE_ENTRY_BYTES: usize = 34;

/// Bytes of the trailer behind an index, by which the index is found.
pub(super) const TRAILER_BYTES: usize = 16;

/// Bytes of an index before its entries.
pub(super) const INDEX_HEAD_BYTES: usize = 4;

const HALF_BYTES: usize = LOG_HEADER_BYTES / 2;
const LOG_MAGIC: [u8; 8] = *b"KEELSTC\0";
const RECORD_MAGIC: [u8; 4] = *b"KSrc";
const TRAILER_MAGIC: [u8; 4] = *b"KSix";
const COMPRESSED: u8 = 1;

/// What a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogKind {
    Blocks = 1,
    Notes = 2,
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogHeader {
    pub(super) kind: LogKind,
    pub(super) number: u32,
    /// Part of every checksum behind the header, so that bytes that only look like a record are rejected.
    pub(super) salt: u64,
}

impl LogHeader {
    pub(super) fn name(self) -> String {
        log_name(self.kind, self.number)
    }

    pub(super) fn encode(self) -> [u8; LOG_HEADER_BYTES] {
        let mut half = [0; HALF_BYTES];
        half[..8].copy_from_slice(&LOG_MAGIC);
        half[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        half[10] = self.kind as u8;
        half[12..16].copy_from_slice(&self.number.to_le_bytes());
        half[16..24].copy_from_slice(&self.salt.to_le_bytes());
        let sum = crc32c::crc32c(&half[..28]);
        half[28..].copy_from_slice(&sum.to_le_bytes());
        let mut bytes = [0; LOG_HEADER_BYTES];
        bytes[..HALF_BYTES].copy_from_slice(&half);
        bytes[HALF_BYTES..].copy_from_slice(&half);
        bytes
    }

    /// Decodes a header from either half.
    pub(super) fn decode(bytes: &[u8; LOG_HEADER_BYTES]) -> Option<Self> {
        bytes.chunks_exact(HALF_BYTES).find_map(|half| {
            let is_one = half[..8] == LOG_MAGIC
                && u16::from_le_bytes([half[8], half[9]]) == FORMAT_VERSION
                && word(half, 28) == crc32c::crc32c(&half[..28]);
            let kind = match half[10] {
                1 => LogKind::Blocks,
                2 => LogKind::Notes,
                _ => return None,
            };
            is_one.then(|| Self {
                kind,
                number: word(half, 12),
                salt: u64::from(word(half, 16)) | u64::from(word(half, 20)) << 32,
            })
        })
    }
}

/// Returns the name of a log's file.
pub(super) fn log_name(kind: LogKind, number: u32) -> String {
    let kind = match kind {
        LogKind::Blocks => "blocks",
        LogKind::Notes => "notes",
    };
    format!("{kind}-{number:010}")
}

/// Parses a file's name; `None` if it is no log.
pub(super) fn parse_log_name(name: &str) -> Option<(LogKind, u32)> {
    let (kind, number) = name.split_once('-')?;
    let kind = match kind {
        "blocks" => LogKind::Blocks,
        "notes" => LogKind::Notes,
        _ => return None,
    };
    let is_number = number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit());
    Some((kind, number.parse().ok().filter(|_| is_number)?))
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    Blocks = 1,
    Index = 2,
    Note = 3,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) kind: RecordKind,
    pub(super) is_compressed: bool,
    pub(super) count: u16,
    pub(super) table_bytes: u32,
    pub(super) payload_bytes: u32,
    pub(super) raw_bytes: u32,
    pub(super) payload_sum: u32,
    pub(super) table_sum: u32,
}

impl RecordHeader {
    /// Decodes a header; `None` if it is not one at this offset of a log with this salt.
    pub(super) fn decode(bytes: &[u8], salt: u64, offset: u64) -> Option<Self> {
        let bytes: &[u8; RECORD_HEADER_BYTES] =
            bytes.get(..RECORD_HEADER_BYTES)?.try_into().ok()?;
        if bytes[..4] != RECORD_MAGIC || word(bytes, 28) != sum(salt, offset, &bytes[..28]) {
            return None;
        }
        let header = Self {
            kind: match bytes[4] {
                1 => RecordKind::Blocks,
                2 => RecordKind::Index,
                3 => RecordKind::Note,
                _ => return None,
            },
            is_compressed: bytes[5] & COMPRESSED != 0,
            count: u16::from_le_bytes([bytes[6], bytes[7]]),
            table_bytes: word(bytes, 8),
            payload_bytes: word(bytes, 12),
            raw_bytes: word(bytes, 16),
            payload_sum: word(bytes, 20),
            table_sum: word(bytes, 24),
        };
        header.is_sound().then_some(header)
    }

    fn is_sound(&self) -> bool {
        let count = usize::from(self.count);
        let table = self.table_bytes as usize;
        let is_plain = !self.is_compressed && self.payload_bytes == self.raw_bytes;
        match self.kind {
            RecordKind::Blocks => {
                (1..=RECORD_BLOCKS_MAX).contains(&count)
                    && table == count * TABLE_ENTRY_BYTES
                    && self.raw_bytes as usize <= RECORD_RAW_BYTES_MAX
                    && (is_plain || self.is_compressed && self.payload_bytes < self.raw_bytes)
            }
            RecordKind::Index => count == 0 && table == 0 && is_plain,
            RecordKind::Note => {
                (1..=NOTE_NAME_BYTES_MAX).contains(&count) && table == count && is_plain
            }
        }
    }

    /// Returns the bytes of the record without its padding.
    pub(super) fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.table_bytes) + u64::from(self.payload_bytes)
    }
}

/// The content of a record that is to be written.
pub(super) struct Draft<'d> {
    pub(super) kind: RecordKind,
    pub(super) is_compressed: bool,
    pub(super) count: u16,
    pub(super) table: &'d [u8],
    pub(super) payload: &'d [u8],
    pub(super) raw_bytes: u32,
}

impl Draft<'_> {
    /// Returns the bytes that it will take, with padding.
    pub(super) fn padded_bytes(&self) -> u64 {
        padded((RECORD_HEADER_BYTES + self.table.len() + self.payload.len()) as u64)
    }

    /// Encodes the record, which will be written at `offset`, and appends it to `into`.
    pub(super) fn encode(&self, salt: u64, offset: u64, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&RECORD_MAGIC);
        into.push(self.kind as u8);
        into.push(u8::from(self.is_compressed) * COMPRESSED);
        into.extend_from_slice(&self.count.to_le_bytes());
        for length in [self.table.len(), self.payload.len()] {
            into.extend_from_slice(&(length as u32).to_le_bytes());
        }
        into.extend_from_slice(&self.raw_bytes.to_le_bytes());
        for part in [self.payload, self.table] {
            into.extend_from_slice(&sum(salt, offset, part).to_le_bytes());
        }
        let header_sum = sum(salt, offset, &into[start..]);
        into.extend_from_slice(&header_sum.to_le_bytes());
        into.extend_from_slice(self.table);
        into.extend_from_slice(self.payload);
        let end = start + padded((into.len() - start) as u64) as usize;
        into.resize(end, 0);
    }
}

/// Appends the trailer of an index, which holds the offset of the index.
pub(super) fn encode_trailer(salt: u64, offset: u64, index: u32, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&TRAILER_MAGIC);
    into.extend_from_slice(&index.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    let trailer_sum = sum(salt, offset, &into[start..]);
    into.extend_from_slice(&trailer_sum.to_le_bytes());
}

/// Returns the offset of the index before this trailer; `None` if it is no trailer.
pub(super) fn decode_trailer(bytes: &[u8], salt: u64, offset: u64) -> Option<u32> {
    let bytes = bytes.get(..TRAILER_BYTES)?;
    let is_one = bytes[..4] == TRAILER_MAGIC && word(bytes, 12) == sum(salt, offset, &bytes[..12]);
    is_one.then(|| word(bytes, 4))
}

/// Adds a block to the table of a record.
pub(super) fn push_table_entry(table: &mut Vec<u8>, hash: &BlockHash, bytes: usize) {
    table.extend_from_slice(&hash.0);
    table.extend_from_slice(&(bytes as u16).to_le_bytes());
}

/// Returns the hashes and lengths of a table.
pub(super) fn table_entries(table: &[u8]) -> impl Iterator<Item = (BlockHash, usize)> + '_ {
    table.chunks_exact(TABLE_ENTRY_BYTES).map(|entry| {
        let mut hash = [0; 32];
        hash.copy_from_slice(&entry[..32]);
        let bytes = u16::from_le_bytes([entry[32], entry[33]]);
        (BlockHash(hash), usize::from(bytes))
    })
}

/// Whether the lengths in a table are valid for blocks and add up.
pub(super) fn is_table_sound(table: &[u8], raw_bytes: u32) -> bool {
    let mut total = 0;
    table_entries(table).all(|(_, bytes)| {
        total += bytes;
        (1..=BLOCK_BYTES).contains(&bytes)
    }) && total == raw_bytes as usize
}

/// Returns the checksum of bytes that belong to the record at `offset`.
pub(super) fn sum(salt: u64, offset: u64, bytes: &[u8]) -> u32 {
    let place = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &offset.to_le_bytes());
    crc32c::crc32c_append(place, bytes)
}

/// Rounds up to the next offset where a record can begin.
pub(super) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT as u64)
}

/// Reads four bytes as a number.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
