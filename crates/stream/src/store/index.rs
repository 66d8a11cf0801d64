//! The bytes of an index: what files are made of, and where in the packs their segments lie. `SPEC.md` says each byte.

use super::{Location, StoreError, system};
use crate::block::{BlockHash, ContentId, HashList, SEGMENT_BLOCKS, blocks_of};
use crate::manifest::FILE_BYTES_MAX;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"keelindx";
const FORMAT: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 16;
const ROW_BYTES: usize = 48;
const FOOTER_BYTES: usize = 48;
const HASH_BYTES: usize = 32;
const PLACE_BYTES: usize = 16;

/// All indexes of a lower number are void.
const FLAG_WHOLE: u32 = 1;

/// Contents of an index, at most.
const ROWS_MAX: u32 = crate::manifest::NODES_MAX;

/// Compressed bytes of a segment, at most: what zstd makes of the least compressible one, and some.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 160 << 10;

/// Where the record of a content lies in an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) content: ContentId,
    pub(crate) offset: u64,
    pub(crate) blocks: u32,
    crc: u32,
}

/// What a content is made of, and where.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) list: Arc<HashList>,
    pub(crate) segments: Box<[Location]>,
}

/// Bytes of a record of so many blocks.
pub(crate) fn record_bytes(blocks: u32) -> usize {
    blocks as usize * HASH_BYTES + blocks.div_ceil(SEGMENT_BLOCKS) as usize * PLACE_BYTES
}

/// An index that was opened.
pub(crate) struct Index {
    pub(crate) file: File,
    pub(crate) is_whole: bool,
    pub(crate) rows: Vec<Row>,
}

impl Index {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |error| system(path, "cannot be read", error);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let damaged = |what: &str| StoreError::damaged(path, what);
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(damaged("it is too short"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(failed)?;
        let mut footer = [0; FOOTER_BYTES];
        let footer_at = length - FOOTER_BYTES as u64;
        file.read_exact_at(&mut footer, footer_at).map_err(failed)?;
        let flags = word(&header, 12);
        if header[..8] != MAGIC || word(&header, 8) != FORMAT || flags & !FLAG_WHOLE != 0 {
            return Err(damaged("its header"));
        }
        let (table_at, rows) = (long(&footer, 0), word(&footer, 8));
        let table_bytes = rows as usize * ROW_BYTES;
        if rows > ROWS_MAX
            || table_at < HEADER_BYTES as u64
            || table_at.checked_add(table_bytes as u64) != Some(footer_at)
        {
            return Err(damaged("its end"));
        }
        let mut table = vec![0; table_bytes];
        file.read_exact_at(&mut table, table_at).map_err(failed)?;
        if seal(&header, &table, &footer) != footer[16..] {
            return Err(damaged("its table"));
        }
        let rows = table
            .as_chunks::<ROW_BYTES>()
            .0
            .iter()
            .map(|row| Row::read(row, table_at).ok_or_else(|| damaged("a row of its table")))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            file,
            is_whole: flags & FLAG_WHOLE != 0,
            rows,
        })
    }
}

impl Row {
    fn read(bytes: &[u8; ROW_BYTES], table_at: u64) -> Option<Self> {
        let row = Self {
            content: ContentId(*bytes.first_chunk()?),
            offset: long(bytes, 32),
            blocks: word(bytes, 40),
            crc: word(bytes, 44),
        };
        let end = row.offset.checked_add(record_bytes(row.blocks) as u64)?;
        let is_right = row.blocks <= blocks_of(FILE_BYTES_MAX)
            && row.offset >= HEADER_BYTES as u64
            && end <= table_at;
        is_right.then_some(row)
    }

    /// Reads what the row leads to, and checks it.
    pub(crate) fn record(&self, file: &File, path: &Path) -> Result<Record, StoreError> {
        let mut bytes = vec![0; record_bytes(self.blocks)];
        file.read_exact_at(&mut bytes, self.offset)
            .map_err(|error| system(path, "cannot be read", error))?;
        let damaged = || StoreError::damaged(path, format!("the record of {}", self.content));
        if crc32c::crc32c(&bytes) != self.crc {
            return Err(damaged());
        }
        let (hashes, places) = bytes.split_at(self.blocks as usize * HASH_BYTES);
        let hashes = hashes.as_chunks::<HASH_BYTES>().0;
        let list = HashList(hashes.iter().map(|hash| BlockHash(*hash)).collect());
        if list.content() != self.content {
            return Err(damaged());
        }
        let mut left = self.blocks;
        let mut segments = Vec::with_capacity(places.len() / PLACE_BYTES);
        for place in places.as_chunks::<PLACE_BYTES>().0 {
            let blocks = left.min(SEGMENT_BLOCKS);
            left -= blocks;
            let at = Location {
                pack: word(place, 0),
                bytes: word(place, 4),
                offset: long(place, 8),
                blocks,
            };
            if at.bytes == 0 || at.bytes > SEGMENT_BYTES_MAX {
                return Err(damaged());
            }
            segments.push(at);
        }
        Ok(Record {
            list: Arc::new(list),
            segments: segments.into(),
        })
    }
}

/// Writes an index, record by record.
pub(crate) struct IndexWriter<W: Write> {
    out: W,
    header: [u8; HEADER_BYTES],
    at: u64,
    rows: Vec<Row>,
}

impl<W: Write> IndexWriter<W> {
    pub(crate) fn new(mut out: W, is_whole: bool) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..].copy_from_slice(&(if is_whole { FLAG_WHOLE } else { 0 }).to_le_bytes());
        out.write_all(&header)?;
        Ok(Self {
            out,
            header,
            at: HEADER_BYTES as u64,
            rows: Vec::new(),
        })
    }

    pub(crate) fn add(
        &mut self,
        content: ContentId,
        list: &[BlockHash],
        segments: &[Location],
    ) -> io::Result<()> {
        let mut crc = 0;
        let mut write = |bytes: &[u8]| {
            crc = crc32c::crc32c_append(crc, bytes);
            self.out.write_all(bytes)
        };
        for hash in list {
            write(&hash.0)?;
        }
        for place in segments {
            write(&place.pack.to_le_bytes())?;
            write(&place.bytes.to_le_bytes())?;
            write(&place.offset.to_le_bytes())?;
        }
        let blocks = list.len() as u32;
        self.rows.push(Row {
            content,
            offset: self.at,
            blocks,
            crc,
        });
        self.at += record_bytes(blocks) as u64;
        Ok(())
    }

    /// Writes table and end, and gives back what was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.rows.sort_unstable_by_key(|row| row.content);
        let mut table = Vec::with_capacity(self.rows.len() * ROW_BYTES);
        for row in &self.rows {
            table.extend_from_slice(&row.content.0);
            table.extend_from_slice(&row.offset.to_le_bytes());
            table.extend_from_slice(&row.blocks.to_le_bytes());
            table.extend_from_slice(&row.crc.to_le_bytes());
        }
        let mut footer = [0; FOOTER_BYTES];
        footer[..8].copy_from_slice(&self.at.to_le_bytes());
        footer[8..12].copy_from_slice(&(self.rows.len() as u32).to_le_bytes());
        let hash = seal(&self.header, &table, &footer);
        footer[16..].copy_from_slice(&hash);
        self.out.write_all(&table)?;
        self.out.write_all(&footer)?;
        Ok(self.out)
    }
}

/// The hash of all of an index but its records, which have checksums in the table.
fn seal(header: &[u8], table: &[u8], footer: &[u8; FOOTER_BYTES]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(table).update(&footer[..16]);
    *hasher.finalize().as_bytes()
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
