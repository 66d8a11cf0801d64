//! The durable cursor of one upstream: its record, and the file of records in the store. `SPEC.md` defines every byte.
//!
//! **Invariants:** decoding trusts no number in the file. Of several records, the intact one with the highest sequence
//! number counts. So an append torn by a power cut leaves the previous record valid. A record has exactly one encoding.

use super::figures::{COUNTERS, Counters};

/// Largest number of parts of the log in a cursor.
pub const PARTS_MAX: usize = 8;
/// File size in bytes above which the file is rewritten with its last record alone.
pub const FILE_BYTES_MAX: usize = 32 << 10;
/// Largest number of bytes read of a file: one record more than it can have.
pub(crate) const READ_BYTES_MAX: usize = FILE_BYTES_MAX + RECORD_BYTES_MAX;
/// Largest number of counters in a record of a later version.
const COUNTERS_MAX: usize = 64;
/// Size of the longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES + PARTS_MAX * PART_BYTES + COUNTERS_MAX * 8 + 4;

const MAGIC: [u8; 8] = *b"keelfwd\0";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 40;
const PART_BYTES: usize = 16;
const CLEAN: u32 = 1;

/// What is still to be acknowledged in a part of the log: the readings numbered from `next` up to, but not including,
/// `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first reading that has not been acknowledged.
    pub next: u64,
    /// `u64::MAX` for the part that still grows.
    pub end: u64,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorRecord {
    /// Sequence number: higher than that of the previous record.
    pub sequence: u64,
    /// Whether nothing had been sent beyond the spans, because forwarding had stopped cleanly.
    pub clean: bool,
    /// The largest number of readings that may have been sent beyond the spans.
    pub window_readings_max: u32,
    /// Ascending, without overlap, the last one open-ended: 1 to [`PARTS_MAX`].
    pub spans: Vec<Span>,
    /// What has been counted since the cursor was made.
    pub counters: Counters,
}

/// What a file of records holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The latest record, and whether anything after it was damaged or cut.
    Record(CursorRecord, bool),
    /// A later version of the program wrote it.
    Version(u32),
    /// No usable record.
    Nothing,
}

impl CursorRecord {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let counters = self.counters.values();
        let bytes = HEAD_BYTES + self.spans.len() * PART_BYTES + counters.len() * 8 + 4;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(bytes as u32).to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&(if self.clean { CLEAN } else { 0 }).to_le_bytes());
        out.extend_from_slice(&self.window_readings_max.to_le_bytes());
        out.extend_from_slice(&(self.spans.len() as u32).to_le_bytes());
        out.extend_from_slice(&(counters.len() as u32).to_le_bytes());
        for span in &self.spans {
            out.extend_from_slice(&span.next.to_le_bytes());
            out.extend_from_slice(&span.end.to_le_bytes());
        }
        for counter in counters {
            out.extend_from_slice(&counter.to_le_bytes());
        }
        let check = crc32c::crc32c(&out[begin..]);
        out.extend_from_slice(&check.to_le_bytes());
    }

    /// Decodes the record that begins at the first byte. Returns it and its length. `None` if there is none, or if a
    /// later version wrote it.
    fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (version, length) = head(bytes)?;
        if version != VERSION {
            return None;
        }
        let mut fields = Fields(bytes.get(16..length - 4)?);
        let sequence = fields.u64()?;
        let flags = fields.u32()?;
        let window_readings_max = fields.u32()?;
        let (parts, counts) = (fields.u32()? as usize, fields.u32()? as usize);
        if !(1..=PARTS_MAX).contains(&parts) || counts > COUNTERS_MAX || flags & !CLEAN != 0 {
            return None;
        }
        let mut spans = Vec::with_capacity(parts);
        let mut before = 0;
        for part in 0..parts {
            let span = Span {
                next: fields.u64()?,
                end: fields.u64()?,
            };
            let is_last = part + 1 == parts;
            if span.next < before || span.next > span.end || is_last != (span.end == u64::MAX) {
                return None;
            }
            before = span.end;
            spans.push(span);
        }
        let mut counters = [0; COUNTERS];
        for count in 0..counts {
            let value = fields.u64()?;
            if let Some(place) = counters.get_mut(count) {
                *place = value;
            }
        }
        fields.0.is_empty().then_some((
            Self {
                sequence,
                clean: flags & CLEAN != 0,
                window_readings_max,
                spans,
                counters: Counters::of_values(counters),
            },
            length,
        ))
    }

    /// Finds the latest record in a file's content.
    #[must_use]
    pub fn find(content: &[u8]) -> Found {
        let mut latest: Option<Self> = None;
        let mut version = None;
        let mut is_damaged = false;
        let mut at = 0;
        while at < content.len() {
            let rest = &content[at..];
            match (Self::decode(rest), head(rest)) {
                (Some((record, length)), _) => {
                    if latest
                        .as_ref()
                        .is_none_or(|latest| latest.sequence < record.sequence)
                    {
                        latest = Some(record);
                    }
                    at += length;
                }
                (None, Some((found, length))) if found > VERSION => {
                    version = Some(found);
                    at += length;
                }
                _ => {
                    is_damaged = true;
                    at += 1;
                }
            }
        }
        match (latest, version) {
            (_, Some(found)) => Found::Version(found),
            (Some(record), None) => Found::Record(record, is_damaged),
            (None, None) => Found::Nothing,
        }
    }
}

/// Returns version and length of the intact record that begins here.
fn head(bytes: &[u8]) -> Option<(u32, usize)> {
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let mut fields = Fields(bytes.get(8..16)?);
    let version = fields.u32()?;
    let length = fields.u32()? as usize;
    if !(HEAD_BYTES + 4..=READ_BYTES_MAX).contains(&length) {
        return None;
    }
    let (body, check) = bytes.get(..length)?.split_at(length - 4);
    let check = u32::from_le_bytes(check.try_into().ok()?);
    (crc32c::crc32c(body) == check).then_some((version, length))
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_at_checked(N)?;
        self.0 = rest;
        taken.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
