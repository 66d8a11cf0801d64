//! The bytes of an index: the hashes of contents, and the locations of their segments in the packs. `SPEC.md` defines
//! each byte.

use super::error::{StoreError, system};
use crate::block::{BlockHash, ContentId, HashList, SEGMENT_BLOCKS, blocks_of};
use crate::group::{GROUP_BLOCKS, Outline, Outlining, group_blocks, groups_of};
use crate::manifest::FILE_BYTES_MAX;
use crate::regular;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: [u8; 8] = *b"keelindx";
const FORMAT: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 16;
const ROW_BYTES: usize = 48;
const FOOTER_BYTES: usize = 48;
const HASH_BYTES: usize = 32;
const PLACE_BYTES: usize = 16;

/// The size of one read of a long record, in bytes.
const PIECE_BYTES: usize = 256 << 10;

const _: () = assert!(PIECE_BYTES.is_multiple_of(GROUP_BLOCKS as usize * HASH_BYTES));

/// Flag: all indexes with a lower number are void.
const FLAG_WHOLE: u32 = 1;

/// The maximum number of contents of an index.
const ROWS_MAX: u32 = crate::manifest::NODES_MAX;

/// The maximum compressed size of a segment, in bytes: more than zstd produces for incompressible data.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 160 << 10;

/// The location of a compressed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The number of the pack.
    pub pack: u32,
    /// The offset in the pack, in bytes.
    pub offset: u64,
    /// The compressed size, in bytes.
    pub bytes: u32,
    /// The number of its blocks, 1 to [`SEGMENT_BLOCKS`].
    pub blocks: u32,
}

/// The location of a content's record in an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) content: ContentId,
    pub(crate) offset: u64,
    pub(crate) blocks: u32,
    crc: u32,
}

/// The number of segments of a group of hashes.
pub(crate) const GROUP_SEGMENTS: u32 = GROUP_BLOCKS / SEGMENT_BLOCKS;

/// The number of locations per read when all of a content are needed.
const PLACES_AT_ONCE: u32 = 4096;

/// The hashes of a group of blocks of a content, and the locations of its segments.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) hashes: Box<[BlockHash]>,
    pub(crate) segments: Box<[Location]>,
}

/// The hashes and segment locations of a whole content, of any length. For publishing and checking.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) list: HashList,
    pub(crate) segments: Box<[Location]>,
}

/// Returns the size of a record of `blocks` blocks, in bytes.
pub(crate) fn record_bytes(blocks: u32) -> usize {
    blocks as usize * HASH_BYTES + blocks.div_ceil(SEGMENT_BLOCKS) as usize * PLACE_BYTES
}

/// An open index.
pub(crate) struct Index {
    pub(crate) file: File,
    pub(crate) is_whole: bool,
    pub(crate) rows: Vec<Row>,
}

impl Index {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |error| system(path, "cannot be read", error);
        let file = regular::open(path).map_err(failed)?;
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
            return Err(damaged("its header is damaged"));
        }
        let (table_at, rows) = (long(&footer, 0), word(&footer, 8));
        let table_bytes = rows as usize * ROW_BYTES;
        if rows > ROWS_MAX
            || table_at < HEADER_BYTES as u64
            || table_at.checked_add(table_bytes as u64) != Some(footer_at)
        {
            return Err(damaged("its end is damaged or cut off"));
        }
        let mut table = vec![0; table_bytes];
        file.read_exact_at(&mut table, table_at).map_err(failed)?;
        if seal(&header, &table, &footer) != footer[16..] {
            return Err(damaged("its table is damaged"));
        }
        let rows = table
            .as_chunks::<ROW_BYTES>()
            .0
            .iter()
            .map(|row| {
                Row::read(row, table_at).ok_or_else(|| damaged("a row of its table is damaged"))
            })
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

    /// Reads and checks the record of the row.
    pub(crate) fn record(&self, file: &File, path: &Path) -> Result<Record, StoreError> {
        let mut bytes = vec![0; record_bytes(self.blocks)];
        file.read_exact_at(&mut bytes, self.offset)
            .map_err(|error| system(path, "cannot be read", error))?;
        let damaged = || self.damaged(path);
        if crc32c::crc32c(&bytes) != self.crc {
            return Err(damaged());
        }
        let (hashes, places) = bytes.split_at(self.blocks as usize * HASH_BYTES);
        let hashes = hashes.as_chunks::<HASH_BYTES>().0;
        let list = HashList(hashes.iter().map(|hash| BlockHash(*hash)).collect());
        if list.content() != self.content {
            return Err(damaged());
        }
        let segments = self.located(0, places).ok_or_else(damaged)?;
        Ok(Record { list, segments })
    }

    fn segments(&self) -> u32 {
        self.blocks.div_ceil(SEGMENT_BLOCKS)
    }

    /// Decodes locations, beginning with that of segment `first`.
    fn located(&self, first: u32, places: &[u8]) -> Option<Box<[Location]>> {
        let located = |(segment, place): (u32, &[u8; PLACE_BYTES])| {
            let blocks = (self.blocks - segment * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
            let at = Location {
                pack: word(place, 0),
                bytes: word(place, 4),
                offset: long(place, 8),
                blocks,
            };
            (1..=SEGMENT_BYTES_MAX).contains(&at.bytes).then_some(at)
        };
        let places = places.as_chunks::<PLACE_BYTES>().0.iter();
        (first..).zip(places).map(located).collect()
    }

    /// Reads the locations of segments.
    fn places(
        &self,
        file: &File,
        path: &Path,
        segments: Range<u32>,
    ) -> Result<Box<[Location]>, StoreError> {
        let hashes_bytes = u64::from(self.blocks) * HASH_BYTES as u64;
        let from = self.offset + hashes_bytes + u64::from(segments.start) * PLACE_BYTES as u64;
        let mut places = vec![0; segments.len() * PLACE_BYTES];
        file.read_exact_at(&mut places, from)
            .map_err(|error| system(path, "cannot be read", error))?;
        self.located(segments.start, &places)
            .ok_or_else(|| self.damaged(path))
    }

    /// Returns the packs that hold its segments.
    pub(crate) fn packs(&self, file: &File, path: &Path) -> Result<BTreeSet<u32>, StoreError> {
        let mut packs = BTreeSet::new();
        let mut first = 0;
        while first < self.segments() {
            let end = self.segments().min(first + PLACES_AT_ONCE);
            let places = self.places(file, path, first..end)?;
            packs.extend(places.iter().map(|at| at.pack));
            first = end;
        }
        Ok(packs)
    }

    /// Returns the first pack that is missing, or too short for a segment of this content. `packs` holds the lengths,
    /// in bytes.
    pub(crate) fn pack_lacking(
        &self,
        file: &File,
        path: &Path,
        packs: &HashMap<u32, u64>,
    ) -> Result<Option<u32>, StoreError> {
        let is_lacking = |at: &&Location| {
            let end = at.offset.saturating_add(u64::from(at.bytes));
            packs.get(&at.pack).is_none_or(|length| *length < end)
        };
        let mut first = 0;
        while first < self.segments() {
            let end = self.segments().min(first + PLACES_AT_ONCE);
            let places = self.places(file, path, first..end)?;
            if let Some(at) = places.iter().find(is_lacking) {
                return Ok(Some(at.pack));
            }
            first = end;
        }
        Ok(None)
    }

    fn damaged(&self, path: &Path) -> StoreError {
        StoreError::damaged(path, format!("the record of {}", self.content))
    }

    /// Reads and checks the whole record piece by piece, and returns an outline that proves each group; `None` if there
    /// is only one group, which needs no proof.
    pub(crate) fn outline(&self, file: &File, path: &Path) -> Result<Option<Outline>, StoreError> {
        if groups_of(self.blocks) == 1 {
            return Ok(None);
        }
        let hashes_end = self.offset + u64::from(self.blocks) * HASH_BYTES as u64;
        let end = self.offset + record_bytes(self.blocks) as u64;
        let mut outlining = Outlining::new(self.blocks);
        let (mut at, mut crc) = (self.offset, 0);
        let mut piece = vec![0; PIECE_BYTES];
        while at < end {
            let part_end = if at < hashes_end { hashes_end } else { end };
            let length = (part_end - at).min(PIECE_BYTES as u64) as usize;
            let piece = &mut piece[..length];
            file.read_exact_at(piece, at)
                .map_err(|error| system(path, "cannot be read", error))?;
            crc = crc32c::crc32c_append(crc, piece);
            if at < hashes_end {
                let groups = piece.chunks(GROUP_BLOCKS as usize * HASH_BYTES);
                groups.for_each(|group| outlining.add(group));
            }
            at += length as u64;
        }
        let outline = outlining.finish(&self.content);
        match outline.filter(|_| crc == self.crc) {
            Some(outline) => Ok(Some(outline)),
            None => Err(self.damaged(path)),
        }
    }

    /// Reads a group, and verifies it with the outline if there is one.
    pub(crate) fn part(
        &self,
        file: &File,
        path: &Path,
        outline: Option<&Outline>,
        group: u32,
    ) -> Result<Part, StoreError> {
        let (Some(outline), Some(blocks)) = (outline, group_blocks(self.blocks, group)) else {
            let Record { list, segments } = self.record(file, path)?;
            let hashes = list.0;
            return Ok(Part { hashes, segments });
        };
        let mut bytes = vec![0; blocks.len() * HASH_BYTES];
        let from = self.offset + u64::from(blocks.start) * HASH_BYTES as u64;
        file.read_exact_at(&mut bytes, from)
            .map_err(|error| system(path, "cannot be read", error))?;
        if !outline.has(group, &bytes) {
            return Err(self.damaged(path));
        }
        let first = group * GROUP_SEGMENTS;
        let end = self.segments().min(first + GROUP_SEGMENTS);
        let hashes = bytes.as_chunks::<HASH_BYTES>().0;
        Ok(Part {
            hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
            segments: self.places(file, path, first..end)?,
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

    /// Writes the table and the footer, and returns the underlying writer.
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

/// Returns the hash of an index without its records, which have checksums in the table.
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
