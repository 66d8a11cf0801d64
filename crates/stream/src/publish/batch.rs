//! What a publication adds to a store: new segments to a pack, new contents to an index.
//!
//! A segment that the store has already is taken only after it was read and its blocks have the right hashes. The tree
//! has the right bytes of each damaged one, which are then written again.

use super::PublishError;
use crate::block::{BLOCK_BYTES, BlockHash, ContentId, HashList, SEGMENT_BLOCKS};
use crate::regular::is_of_the_file;
use crate::store::files::{self, Layout, New};
use crate::store::index::IndexWriter;
use crate::store::{
    Location, PACK_FORMAT, PACK_HEADER_BYTES, PACK_MAGIC, PACKS_MAX, SEGMENT_HEADER_BYTES, State,
    StoreError, read_segment, unpack,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// The maximum number of segments that are recognised when they occur again: 64 MiB of memory. Further segments are
/// shared only as part of a whole file.
const SEGMENTS_KNOWN_MAX: usize = 1 << 20;

const BUFFER_BYTES: usize = 1 << 20;

/// What a publication added to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of contents of files that the store did not have.
    pub contents: u64,
    /// The number of segments that the store did not have.
    pub segments: u64,
    /// The size of these segments, in bytes.
    pub segment_bytes: u64,
    /// The compressed size of these segments, in bytes.
    pub compressed_bytes: u64,
    /// The number of segments that were in the store already.
    pub shared_segments: u64,
}

/// Returns the next number of a pack and its index. It is above all present numbers, because concurrent readers may
/// still have the last ones open.
pub(crate) fn next_number(layout: &Layout) -> Result<u32, PublishError> {
    let (packs, indexes) = layout.numbers()?;
    let last = packs.last().max(indexes.last()).copied().unwrap_or(0);
    last.checked_add(1).ok_or_else(|| PublishError::PacksFull {
        path: layout.folder.clone(),
    })
}

/// A pack that is being written.
pub(crate) struct PackWriter {
    number: u32,
    out: BufWriter<File>,
    new: New,
    at: u64,
}

impl PackWriter {
    pub(crate) fn begin(layout: &Layout, number: u32) -> Result<Self, StoreError> {
        let (file, new) = files::begin(&layout.pack(number), 0o644)?;
        let mut writer = Self {
            number,
            out: BufWriter::with_capacity(BUFFER_BYTES, file),
            new,
            at: PACK_HEADER_BYTES as u64,
        };
        let mut header = [0; PACK_HEADER_BYTES];
        header[..8].copy_from_slice(&PACK_MAGIC);
        header[8..12].copy_from_slice(&PACK_FORMAT.to_le_bytes());
        writer.write(&header)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.out
            .write_all(bytes)
            .map_err(|error| self.new.failed(error))
    }

    /// Appends a compressed segment of `blocks` blocks.
    pub(crate) fn add(&mut self, compressed: &[u8], blocks: u32) -> Result<Location, StoreError> {
        let bytes = compressed.len() as u32;
        self.write(&bytes.to_le_bytes())?;
        self.write(&crc32c::crc32c(compressed).to_le_bytes())?;
        self.write(compressed)?;
        let offset = self.at + SEGMENT_HEADER_BYTES as u64;
        self.at = offset + u64::from(bytes);
        Ok(Location {
            pack: self.number,
            offset,
            bytes,
            blocks,
        })
    }

    /// Flushes and syncs the file, for [`finish`].
    pub(crate) fn write_out(self) -> Result<(File, New), StoreError> {
        Ok((flushed(self.out, &self.new)?, self.new))
    }
}

/// An index that is being written.
pub(crate) struct IndexFile {
    writer: IndexWriter<BufWriter<File>>,
    new: New,
}

impl IndexFile {
    pub(crate) fn begin(layout: &Layout, number: u32, is_whole: bool) -> Result<Self, StoreError> {
        let (file, new) = files::begin(&layout.index(number), 0o644)?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let writer = IndexWriter::new(out, is_whole).map_err(|error| new.failed(error))?;
        Ok(Self { writer, new })
    }

    pub(crate) fn add(
        &mut self,
        content: ContentId,
        list: &[BlockHash],
        segments: &[Location],
    ) -> Result<(), StoreError> {
        self.writer
            .add(content, list, segments)
            .map_err(|error| self.new.failed(error))
    }

    /// Flushes and syncs the file, for [`finish`].
    pub(crate) fn write_out(self) -> Result<(File, New), StoreError> {
        let out = self.writer.finish();
        let out = out.map_err(|error| self.new.failed(error))?;
        Ok((flushed(out, &self.new)?, self.new))
    }
}

/// Renames a pack and an index to their final names, in this order. Both were written out before, so a full disk leaves
/// neither. A pack number that a reader may have seen is never reused.
pub(crate) fn finish(
    pack: Option<(File, New)>,
    index: Option<(File, New)>,
) -> Result<(), StoreError> {
    for (file, new) in pack.into_iter().chain(index) {
        new.finish(&file)?;
    }
    Ok(())
}

fn flushed(out: BufWriter<File>, new: &New) -> Result<File, StoreError> {
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)
        // Some file systems allocate space only now.
        .and_then(|file| file.sync_all().map(|()| file))
        .map_err(|error| new.failed(error))
}

/// The new segments and contents of a publication.
pub(crate) struct Batch<'s> {
    layout: &'s Layout,
    state: &'s State,
    number: u32,
    compressor: zstd::bulk::Compressor<'static>,
    /// Known segments by the hash of their blocks' hashes.
    segments: HashMap<ContentId, Known>,
    contents: HashSet<ContentId>,
    /// Contents whose record is damaged, or with a segment in a pack that is missing or too short: they are written
    /// again.
    broken: HashSet<ContentId>,
    /// Indexes with a damaged record.
    indexes_damaged: BTreeSet<u32>,
    packs_lacking: BTreeSet<u32>,
    /// Packs in which a segment of the tree is damaged.
    packs_damaged: BTreeSet<u32>,
    pack: Option<PackWriter>,
    index: Option<IndexFile>,
    written: Written,
    current: Current,
}

/// A segment that need not be written.
#[derive(Clone, Copy)]
struct Known {
    at: Location,
    /// It was read, or written, by this publication.
    is_checked: bool,
}

impl Known {
    fn of_store(at: Location) -> Self {
        let is_checked = false;
        Self { at, is_checked }
    }
}

/// The hashes and segments of the file that is being read.
#[derive(Default)]
struct Current {
    hashes: Vec<BlockHash>,
    places: Vec<Location>,
    /// The store has a damaged segment of it, which was written again.
    is_mended: bool,
}

/// Returns whether a segment of a store has blocks of these hashes.
fn is_sound(
    layout: &Layout,
    state: &State,
    at: &Location,
    hashes: &[BlockHash],
) -> Result<bool, StoreError> {
    let Some(pack) = state.packs.get(&at.pack) else {
        return Ok(false);
    };
    match read_segment(pack, &layout.pack(at.pack), at) {
        Ok(compressed) => Ok(unpack(&compressed, at, hashes).is_some()),
        Err(StoreError::Damaged { .. }) => Ok(false),
        Err(StoreError::System { source, .. }) if is_of_the_file(&source) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether an index has a damaged record of a content.
fn is_record_damaged(
    layout: &Layout,
    state: &State,
    content: &ContentId,
) -> Result<bool, StoreError> {
    match state.record(layout, content) {
        Ok(_) => Ok(false),
        Err(StoreError::Damaged { .. }) => Ok(true),
        Err(StoreError::System { source, .. }) if is_of_the_file(&source) => Ok(true),
        Err(error) => Err(error),
    }
}

impl<'s> Batch<'s> {
    pub(crate) fn begin(
        layout: &'s Layout,
        state: &'s State,
        level: i32,
    ) -> Result<Self, PublishError> {
        let memory = |error| StoreError::system(&layout.folder, "memory to compress in", error);
        if state.packs.len() >= PACKS_MAX {
            return Err(PublishError::PacksFull {
                path: layout.folder.clone(),
            });
        }
        let mut batch = Self {
            layout,
            state,
            number: next_number(layout)?,
            compressor: zstd::bulk::Compressor::new(level).map_err(memory)?,
            segments: HashMap::new(),
            contents: HashSet::new(),
            broken: HashSet::new(),
            indexes_damaged: BTreeSet::new(),
            packs_lacking: BTreeSet::new(),
            packs_damaged: BTreeSet::new(),
            pack: None,
            index: None,
            written: Written::default(),
            current: Current::default(),
        };
        batch.find_broken()?;
        let is_whole = |content: &&ContentId| !batch.broken.contains(*content);
        let whole: Vec<&ContentId> = state.contents.keys().filter(is_whole).collect();
        for content in whole {
            if batch.segments.len() >= SEGMENTS_KNOWN_MAX {
                break;
            }
            let Some(record) = state.record(layout, content)? else {
                continue;
            };
            let runs = record.list.0.chunks(SEGMENT_BLOCKS as usize);
            for (hashes, at) in runs.zip(&record.segments) {
                let segment = HashList(hashes.into()).content();
                batch.segments.insert(segment, Known::of_store(*at));
            }
        }
        Ok(batch)
    }

    /// Finds the contents that cannot be taken from the store.
    fn find_broken(&mut self) -> Result<(), PublishError> {
        let (layout, state) = (self.layout, self.state);
        let mut lengths = state.pack_lengths(layout)?;
        let mut sound = Vec::with_capacity(state.contents.len());
        for (content, (place, _)) in &state.contents {
            // The locations of a damaged record say nothing about packs.
            if is_record_damaged(layout, state, content)? {
                self.broken.insert(*content);
                self.indexes_damaged.insert(state.numbers[*place as usize]);
                continue;
            }
            sound.push(content);
            if let Some(pack) = state.pack_lacking(layout, content, &lengths)? {
                self.packs_lacking.insert(pack);
            }
        }
        if self.packs_lacking.is_empty() {
            return Ok(());
        }
        // Do not rely on what is left of such a pack, so that it can be removed.
        lengths.retain(|number, _| !self.packs_lacking.contains(number));
        for content in sound {
            if state.pack_lacking(layout, content, &lengths)?.is_some() {
                self.broken.insert(*content);
            }
        }
        Ok(())
    }

    /// Begins a file, or begins it again.
    pub(crate) fn begin_file(&mut self) {
        self.current.hashes.clear();
        self.current.places.clear();
        self.current.is_mended = false;
    }

    /// Adds the next [`SEGMENT_BLOCKS`] blocks of the file, or fewer at its end.
    pub(crate) fn add_segment(&mut self, bytes: &[u8]) -> Result<(), PublishError> {
        let from = self.current.hashes.len();
        let hashes = bytes.chunks(BLOCK_BYTES).map(BlockHash::of);
        self.current.hashes.extend(hashes);
        let own = &self.current.hashes[from..];
        let (segment, blocks) = (HashList(own.into()).content(), own.len() as u32);
        if let Some(known) = self.segments.get_mut(&segment) {
            let at = known.at;
            if known.is_checked || is_sound(self.layout, self.state, &at, own)? {
                known.is_checked = true;
                self.written.shared_segments += 1;
                self.current.places.push(at);
                return Ok(());
            }
            self.segments.remove(&segment);
            self.packs_damaged.insert(at.pack);
            self.current.is_mended = true;
        }
        let compressed = self.compressor.compress(bytes).map_err(|error| {
            StoreError::system(&self.layout.folder, "memory to compress in", error)
        })?;
        let pack = match &mut self.pack {
            Some(pack) => pack,
            none => none.insert(PackWriter::begin(self.layout, self.number)?),
        };
        let at = pack.add(&compressed, blocks)?;
        self.written.segments += 1;
        self.written.segment_bytes += bytes.len() as u64;
        self.written.compressed_bytes += compressed.len() as u64;
        if self.segments.len() < SEGMENTS_KNOWN_MAX {
            let is_checked = true;
            self.segments.insert(segment, Known { at, is_checked });
        }
        self.current.places.push(at);
        Ok(())
    }

    /// Ends a file that did not change while it was read.
    pub(crate) fn end_file(&mut self) -> Result<ContentId, PublishError> {
        let hashes = std::mem::take(&mut self.current.hashes);
        let list = HashList(hashes.into());
        let content = list.content();
        let is_known = list.0.is_empty()
            || self.contents.contains(&content)
            || self.is_whole_in_store(&content, &list)?;
        if !is_known {
            let index = match &mut self.index {
                Some(index) => index,
                none => none.insert(IndexFile::begin(self.layout, self.number, false)?),
            };
            index.add(content, &list.0, &self.current.places)?;
            self.contents.insert(content);
            self.written.contents += 1;
        }
        self.begin_file();
        Ok(content)
    }

    /// Returns whether the store has a content, and each of its segments is where its record says. The current file has
    /// this content.
    fn is_whole_in_store(
        &mut self,
        content: &ContentId,
        list: &HashList,
    ) -> Result<bool, PublishError> {
        if self.current.is_mended || self.broken.contains(content) {
            return Ok(false);
        }
        let Some(record) = self.state.record(self.layout, content)? else {
            return Ok(false);
        };
        // Its record may name another copy of a segment than the one that was checked.
        let runs = list.0.chunks(SEGMENT_BLOCKS as usize);
        let copies = record.segments.iter().zip(&self.current.places).zip(runs);
        for ((at, checked), hashes) in copies {
            if at != checked && !is_sound(self.layout, self.state, at, hashes)? {
                self.packs_damaged.insert(at.pack);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the packs of the store in which a segment of the tree is damaged.
    pub(crate) fn packs_damaged(&self) -> Vec<PathBuf> {
        let packs = self.packs_damaged.iter();
        packs.map(|number| self.layout.pack(*number)).collect()
    }

    /// Returns the indexes of the store that have a damaged record.
    pub(crate) fn indexes_damaged(&self) -> Vec<PathBuf> {
        let indexes = self.indexes_damaged.iter();
        indexes.map(|number| self.layout.index(*number)).collect()
    }

    /// Returns the packs that are missing in the store or too short.
    pub(crate) fn packs_lacking(&self) -> Vec<PathBuf> {
        let packs = self.packs_lacking.iter();
        packs.map(|number| self.layout.pack(*number)).collect()
    }

    /// Returns whether the tree has a content that the store lacks.
    pub(crate) fn has_new(&self) -> bool {
        !self.contents.is_empty()
    }

    /// Makes all of it durable. A batch that is dropped before is discarded.
    pub(crate) fn finish(self) -> Result<Written, PublishError> {
        let pack = self.pack.map(PackWriter::write_out).transpose()?;
        let index = self.index.map(IndexFile::write_out).transpose()?;
        finish(pack, index)?;
        Ok(self.written)
    }
}
