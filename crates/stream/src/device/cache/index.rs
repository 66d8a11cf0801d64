//! The index in memory: where each block lies.

use std::collections::{BTreeMap, HashMap};

use super::format::table_entries;
use crate::block::BlockHash;

/// A block is identified by half of its hash. Finding two blocks with the same half takes 2^64 work and loses one of
/// them from the finder's own cache only. A block that is read is compared with the whole hash.
type Key = [u8; 16];

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordAt {
    /// The log's number.
    pub(super) log: u32,
    /// The offset in the log.
    pub(super) offset: u32,
    /// The length in bytes, without padding.
    pub(super) bytes: u32,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockPlace {
    pub(super) record: RecordAt,
    /// The position in the record.
    pub(super) block: u8,
}

/// 28 bytes with its key, and up to the same again that the table keeps free.
#[derive(Clone, Copy)]
struct Entry {
    log: u32,
    record: u32,
    block: u8,
    /// It was read since it was written.
    is_used: bool,
}

struct Log {
    salt: u64,
    records: Vec<(u32, u32)>,
}

#[derive(Default)]
pub(super) struct Index {
    blocks: HashMap<Key, Entry>,
    logs: BTreeMap<u32, Log>,
}

fn key(hash: &BlockHash) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(&hash.0[..16]);
    key
}

impl Index {
    pub(super) fn add_log(&mut self, number: u32, salt: u64) {
        let records = Vec::new();
        self.logs.insert(number, Log { salt, records });
    }

    /// Returns the salt of a log; `None` if the log was deleted.
    pub(super) fn salt(&self, log: u32) -> Option<u64> {
        self.logs.get(&log).map(|log| log.salt)
    }

    /// Records that the blocks of a table lie in this record from now on.
    pub(super) fn add(&mut self, at: RecordAt, table: &[u8]) {
        let Some(log) = self.logs.get_mut(&at.log) else {
            return;
        };
        let record = log.records.len() as u32;
        log.records.push((at.offset, at.bytes));
        for (block, (hash, _)) in table_entries(table).enumerate() {
            let entry = Entry {
                log: at.log,
                record,
                block: block as u8,
                is_used: false,
            };
            self.blocks.insert(key(&hash), entry);
        }
    }

    pub(super) fn has(&self, hash: &BlockHash) -> bool {
        self.blocks.contains_key(&key(hash))
    }

    /// Returns where a block lies, and marks it as used.
    pub(super) fn use_block(&mut self, hash: &BlockHash) -> Option<BlockPlace> {
        let entry = self.blocks.get_mut(&key(hash))?;
        entry.is_used = true;
        let entry = *entry;
        self.place(entry)
    }

    /// Returns where a block lies.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<BlockPlace> {
        self.place(*self.blocks.get(&key(hash))?)
    }

    fn place(&self, entry: Entry) -> Option<BlockPlace> {
        let log = self.logs.get(&entry.log)?;
        let (offset, bytes) = *log.records.get(entry.record as usize)?;
        Some(BlockPlace {
            record: RecordAt {
                log: entry.log,
                offset,
                bytes,
            },
            block: entry.block,
        })
    }

    /// Removes a block if it lies at this place. Returns whether it did.
    pub(super) fn forget(&mut self, hash: &BlockHash, place: BlockPlace) -> bool {
        let is_there = self.find(hash) == Some(place);
        if is_there {
            self.blocks.remove(&key(hash));
        }
        is_there
    }

    /// Removes all blocks that lie in a record. Returns their number.
    pub(super) fn forget_record(&mut self, at: RecordAt) -> u64 {
        let Some(log) = self.logs.get(&at.log) else {
            return 0;
        };
        let Ok(record) = log
            .records
            .binary_search_by_key(&at.offset, |record| record.0)
        else {
            return 0;
        };
        self.retain(|entry| entry.log != at.log || entry.record != record as u32)
    }

    /// Removes the blocks of a log behind its first `bytes` bytes. Returns their number.
    pub(super) fn forget_behind(&mut self, number: u32, bytes: u64) -> u64 {
        let Some(log) = self.logs.get(&number) else {
            return 0;
        };
        let kept = log
            .records
            .partition_point(|record| u64::from(record.0) + u64::from(record.1) <= bytes);
        self.retain(|entry| entry.log != number || (entry.record as usize) < kept)
    }

    /// Removes a log and its blocks. Returns the number of blocks.
    pub(super) fn forget_log(&mut self, number: u32) -> u64 {
        let forgotten = self.retain(|entry| entry.log != number);
        self.logs.remove(&number);
        forgotten
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) -> u64 {
        let before = self.blocks.len();
        self.blocks.retain(|_, entry| keep(entry));
        (before - self.blocks.len()) as u64
    }

    /// Returns the records of a log with used blocks, with a bit for each such block, in the order in which they lie.
    pub(super) fn used(&self, number: u32) -> Vec<(RecordAt, u32)> {
        let mut used: BTreeMap<u32, u32> = BTreeMap::new();
        for entry in self.blocks.values() {
            if entry.log == number && entry.is_used {
                *used.entry(entry.record).or_default() |= 1 << entry.block;
            }
        }
        let Some(log) = self.logs.get(&number) else {
            return Vec::new();
        };
        used.into_iter()
            .filter_map(|(record, blocks)| {
                let (offset, bytes) = *log.records.get(record as usize)?;
                let at = RecordAt {
                    log: number,
                    offset,
                    bytes,
                };
                Some((at, blocks))
            })
            .collect()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns the approximate bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let entry_bytes = size_of::<(Key, Entry)>() as u64 + 1;
        let records: u64 = self
            .logs
            .values()
            .map(|log| (log.records.capacity() * size_of::<(u32, u32)>()) as u64)
            .sum();
        self.blocks.capacity() as u64 * 8 / 7 * entry_bytes + records
    }
}
