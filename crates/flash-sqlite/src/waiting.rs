//! Writes that are not in the store yet.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::node::Node;

/// Maximum number of bytes of a journal, and of a database, that wait in memory.
pub(crate) const WAITS_BYTES_MAX: usize = 64 << 10;

/// One piece of a journal or a log, or all of a journal.
pub(crate) struct PendingWrite {
    pub(crate) node: Arc<Node>,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    /// Whether SQLite has asked for these bytes to be durable before the following writes.
    pub(crate) is_synced: bool,
    /// Whether this is a journal from its first byte on, and the store holds no valid journal under its name.
    pub(crate) is_whole_journal: bool,
    /// Whether the store had no room for it. SQLite knows this, and has not continued the transaction since.
    pub(crate) was_refused: bool,
    /// Whether SQLite was told at a point where it can only roll the transaction back.
    pub(crate) is_given_up: bool,
}

impl PendingWrite {
    pub(crate) fn new(node: Arc<Node>, offset: u64, data: &[u8]) -> Self {
        Self {
            node,
            offset,
            bytes: data.to_vec(),
            is_synced: false,
            is_whole_journal: false,
            was_refused: false,
            is_given_up: false,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Takes bytes that follow the pending ones, or replace some. Returns false if they do neither, or if there are too
    /// many.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some(start) = offset.checked_sub(self.offset) else {
            return false;
        };
        let end = start.saturating_add(data.len() as u64);
        if start > self.bytes.len() as u64 || end > WAITS_BYTES_MAX as u64 {
            return false;
        }
        let (start, end) = (start as usize, end as usize);
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(data);
        self.is_synced = false;
        self.was_refused = false;
        self.is_given_up = false;
        true
    }

    /// Returns the rest when the file is truncated to `length` bytes.
    pub(crate) fn cut(mut self, length: u64) -> Option<Self> {
        let kept = length.saturating_sub(self.offset);
        self.bytes
            .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        (!self.bytes.is_empty()).then_some(self)
    }

    /// Copies the waiting part of a buffer into it. Returns where that part ends.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        copy_part(self.offset, &self.bytes, offset, buffer)
    }
}

/// Writes to one database.
pub(crate) struct Batch {
    pub(crate) node: Arc<Node>,
    /// By offset; they do not overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    /// Whether SQLite has asked for them to be durable.
    pub(crate) is_synced: bool,
}

impl Batch {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            pieces: BTreeMap::new(),
            bytes: 0,
            is_synced: false,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(offset, data)| offset + data.len() as u64)
    }

    /// Takes a piece, possibly instead of one at the same offset with the same length. Returns false if it overlaps
    /// with another piece, or the total would be too large.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8]) -> bool {
        if let Some(known) = self.pieces.get_mut(&offset)
            && known.len() == data.len()
        {
            known.copy_from_slice(data);
            self.is_synced = false;
            return true;
        }
        let Some(end) = offset.checked_add(data.len() as u64) else {
            return false;
        };
        let before = self.pieces.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, piece)| start + piece.len() as u64 > offset);
        if overlaps || self.bytes + data.len() > WAITS_BYTES_MAX {
            return false;
        }
        self.bytes += data.len();
        self.pieces.insert(offset, data.to_vec());
        self.is_synced = false;
        true
    }

    /// Returns the rest when the file is truncated to `length` bytes.
    pub(crate) fn cut(mut self, length: u64) -> Option<Self> {
        self.pieces.split_off(&length);
        if let Some((start, last)) = self.pieces.iter_mut().next_back() {
            let kept = usize::try_from(length - start).unwrap_or(usize::MAX);
            last.truncate(kept);
        }
        self.bytes = self.pieces.values().map(Vec::len).sum();
        (!self.pieces.is_empty()).then_some(self)
    }

    /// Copies the waiting parts of a buffer into it. Returns where the last of them ends.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let end = offset.saturating_add(buffer.len() as u64);
        let ends = self
            .pieces
            .range(..end)
            .map(|(start, piece)| copy_part(*start, piece, offset, buffer));
        ends.max().unwrap_or(0)
    }

    /// The pieces by offset.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let pieces = self.pieces.iter();
        pieces.map(|(offset, data)| (*offset, data.as_slice()))
    }

    /// Returns the pieces, with adjacent pieces joined. If the file already holds a piece, according to the `last`
    /// batch, returns only the changed part of it.
    pub(crate) fn joined(&self, last: Option<&Self>) -> Vec<(u64, Vec<u8>)> {
        let mut joined: Vec<(u64, Vec<u8>)> = Vec::new();
        for (offset, data) in self.pieces() {
            let known = last.and_then(|last| last.pieces.get(&offset));
            let changed = match known.filter(|known| known.len() == data.len()) {
                Some(known) => changed_part(known, data),
                None => 0..data.len(),
            };
            if changed.is_empty() {
                continue;
            }
            let offset = offset + changed.start as u64;
            let data = &data[changed];
            match joined.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == offset => {
                    bytes.extend_from_slice(data);
                }
                _ => joined.push((offset, data.to_vec())),
            }
        }
        joined
    }
}

/// Returns the range from the first byte that differs to the last; both slices have the same length.
fn changed_part(before: &[u8], after: &[u8]) -> Range<usize> {
    let differs = |(before, after): (&u8, &u8)| before != after;
    let Some(first) = before.iter().zip(after).position(differs) else {
        return 0..0;
    };
    let last = before.iter().zip(after).rposition(differs);
    first..last.map_or(first, |last| last + 1)
}

/// Copies the overlap of `bytes`, which begin at `start`, and a buffer at `offset` into the buffer. Returns where the
/// overlap ends in the buffer.
fn copy_part(start: u64, bytes: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let from = start.max(offset);
    let to = (start + bytes.len() as u64).min(offset.saturating_add(buffer.len() as u64));
    if from >= to {
        return 0;
    }
    let source = &bytes[(from - start) as usize..(to - start) as usize];
    buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
    (to - offset) as usize
}
