//! A record's blocks, which are compressed together: packing and unpacking.

use std::sync::Arc;

use zstd::bulk::{Compressor, Decompressor};

use super::format::{
    Draft, RECORD_HEADER_BYTES, RECORD_RAW_BYTES_MAX, RecordHeader, RecordKind, is_table_sound,
    push_table_entry, sum, table_entries,
};
use crate::block::BlockHash;

/// The zstd level of blocks: the best ratio of saving to cost on a small device.
const LEVEL: i32 = 3;

/// Compression must save at least one in this many bytes: less is not worth the work at reading.
const SAVED_PART: usize = 16;

/// A block with its hash, which was verified.
pub(super) type Block = (BlockHash, Arc<[u8]>);

/// Blocks packed for a log.
pub(super) struct Packed {
    pub(super) table: Vec<u8>,
    payload: Vec<u8>,
    count: u16,
    raw_bytes: u32,
}

impl Packed {
    /// Packs at most `RECORD_BLOCKS_MAX` blocks.
    pub(super) fn of(blocks: &[Block]) -> Self {
        let mut table = Vec::new();
        let mut raw = Vec::with_capacity(blocks.iter().map(|block| block.1.len()).sum());
        for (hash, bytes) in blocks {
            push_table_entry(&mut table, hash, bytes.len());
            raw.extend_from_slice(bytes);
        }
        let raw_bytes = raw.len() as u32;
        let compressed = Compressor::new(LEVEL)
            .and_then(|mut compressor| compressor.compress(&raw))
            .ok()
            .filter(|compressed| compressed.len() < raw.len() - raw.len() / SAVED_PART);
        Self {
            table,
            payload: compressed.unwrap_or(raw),
            count: blocks.len() as u16,
            raw_bytes,
        }
    }

    pub(super) fn draft(&self) -> Draft<'_> {
        Draft {
            kind: RecordKind::Blocks,
            is_compressed: self.payload.len() < self.raw_bytes as usize,
            count: self.count,
            table: &self.table,
            payload: &self.payload,
            raw_bytes: self.raw_bytes,
        }
    }
}

/// The blocks of a record. Its checksums are verified; the hashes of its blocks are not yet.
pub(super) struct Unpacked {
    entries: Vec<(BlockHash, usize)>,
    raw: Vec<u8>,
}

impl Unpacked {
    /// Unpacks a record that lies at `offset` of a log. `None`: it is damaged.
    pub(super) fn of(
        bytes: &[u8],
        salt: u64,
        offset: u64,
        decompressor: &mut Decompressor<'_>,
    ) -> Option<Self> {
        let header = RecordHeader::decode(bytes, salt, offset)?;
        if header.kind != RecordKind::Blocks || header.record_bytes() != bytes.len() as u64 {
            return None;
        }
        let (table, payload) = bytes[RECORD_HEADER_BYTES..].split_at(header.table_bytes as usize);
        let is_right = sum(salt, offset, table) == header.table_sum
            && sum(salt, offset, payload) == header.payload_sum
            && is_table_sound(table, header.raw_bytes);
        if !is_right {
            return None;
        }
        let raw_bytes = header.raw_bytes as usize;
        let raw = match header.is_compressed {
            true => decompressor
                .decompress(payload, raw_bytes.min(RECORD_RAW_BYTES_MAX))
                .ok()?,
            false => payload.to_vec(),
        };
        (raw.len() == raw_bytes).then(|| Self {
            entries: table_entries(table).collect(),
            raw,
        })
    }

    /// Returns the block at this position, if it has this hash.
    pub(super) fn block(&self, block: u8, hash: &BlockHash) -> Option<Arc<[u8]>> {
        let place = usize::from(block);
        let start = self.entries.get(..place)?.iter().map(|entry| entry.1).sum();
        let (named, bytes) = self.entries.get(place)?;
        let bytes = self.raw.get(start..start + bytes)?;
        (named == hash && BlockHash::of(bytes) == *hash).then(|| bytes.into())
    }

    /// Returns the hash of a block according to the table.
    pub(super) fn hash(&self, block: u8) -> Option<BlockHash> {
        self.entries.get(usize::from(block)).map(|entry| entry.0)
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.raw.capacity() + self.entries.capacity() * size_of::<(BlockHash, usize)>()) as u64
    }
}
