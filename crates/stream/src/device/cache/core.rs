//! The state that readers and the writer share: the storage, the index, the counters, and reading a record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use zstd::bulk::Decompressor;

use super::format::{LogKind, log_name};
use super::index::{BlockPlace, Index, RecordAt};
use super::note_map::NoteMap;
use super::record::Unpacked;
use super::storage::{Storage, StorageError};
use crate::block::BlockHash;
use crate::sync::locked;

/// The number of records that stay unpacked after one of their blocks was read: the next reads are mostly of their
/// blocks.
const RECENT_RECORDS: usize = 4;

/// The maximum number of decompressors that are kept for the next reader.
const DECOMPRESSORS_MAX: usize = 4;

/// What another process has done to a file, as messages name it.
pub(super) const REMOVED: &str = "was removed or emptied";
pub(super) const CUT: &str = "was cut";

/// The message for a full disk.
const DISK_FULL: &str = "the disk is full, so that older blocks make room for newer ones";

/// Why a record cannot be read.
#[derive(Debug)]
pub(super) enum Unread {
    /// Its log was deleted meanwhile; its used blocks may lie in another log.
    Gone,
    /// It is damaged.
    Damaged,
    /// The storage failed; a later attempt may work.
    Failed(StorageError),
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) disk_full: AtomicU64,
    /// The current maximum size of a log of blocks, in bytes.
    pub(super) log_bytes_max: AtomicU64,
    /// Bytes of all files.
    pub(super) bytes: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(super) struct Core {
    pub(super) storage: Box<dyn Storage>,
    pub(super) counts: Counts,
    index: Mutex<Index>,
    notes: Mutex<NoteMap>,
    failure: Mutex<Option<String>>,
    recent: Mutex<VecDeque<(RecordAt, Arc<Unpacked>)>>,
    decompressors: Mutex<Vec<Decompressor<'static>>>,
}

impl Core {
    pub(super) fn new(storage: Box<dyn Storage>) -> Self {
        Self {
            storage,
            counts: Counts::default(),
            index: Mutex::default(),
            notes: Mutex::default(),
            failure: Mutex::default(),
            recent: Mutex::default(),
            decompressors: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        locked(&self.index)
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, NoteMap> {
        locked(&self.notes)
    }

    /// Counts a failure and keeps its message.
    pub(super) fn fail(&self, what: &str, error: &StorageError) {
        count(&self.counts.failures, 1);
        // A removed directory also reports missing room, so check for it first.
        let gone = self.storage.check_is_there().err();
        let error = gone.as_ref().unwrap_or(error);
        *locked(&self.failure) = Some(format!("{what}: {error}"));
    }

    /// Records that the disk is full although the budget is not: older blocks make room for newer ones, which users
    /// must be told.
    pub(super) fn disk_is_full(&self) {
        if let Err(error) = self.storage.check_is_there() {
            return self.fail("writing the cache", &error);
        }
        count(&self.counts.disk_full, 1);
        *locked(&self.failure) = Some(DISK_FULL.to_owned());
    }

    /// Clears the message of a full disk, because there is room again.
    pub(super) fn disk_has_room(&self) {
        let full = StorageError::Full.to_string();
        let mut failure = locked(&self.failure);
        if failure.as_ref().is_some_and(|text| text.contains(&full)) {
            *failure = None;
        }
    }

    /// Counts the blocks that a log lost because its file was cut or removed by another process, and keeps a message.
    pub(super) fn log_is_lost(&self, name: &str, how: &str, blocks: u64) {
        count(&self.counts.damaged, blocks);
        let what = match blocks {
            0 => String::new(),
            _ => format!(", and {blocks} blocks are lost with it"),
        };
        *locked(&self.failure) = Some(format!("the file {name} {how}{what}"));
    }

    /// Counts a log that is completely unreadable when the cache is opened, and keeps a message. The number of its
    /// blocks is unknown, so it counts as one.
    pub(super) fn log_is_unreadable(&self, name: &str) {
        count(&self.counts.damaged, 1);
        let text = format!("the file {name} cannot be read, so that all that was in it is lost");
        *locked(&self.failure) = Some(text);
    }

    pub(super) fn failure(&self) -> Option<String> {
        locked(&self.failure).clone()
    }

    /// Unpacks a record's blocks from `bytes`, the bytes of the record.
    pub(super) fn unpack(&self, at: RecordAt, bytes: &[u8]) -> Result<Unpacked, Unread> {
        let salt = self.index().salt(at.log).ok_or(Unread::Gone)?;
        let kept = locked(&self.decompressors).pop();
        let mut decompressor = match kept {
            Some(decompressor) => decompressor,
            None => Decompressor::new().map_err(|error| {
                Unread::Failed(StorageError::Failed {
                    code: base::error::Code::Io,
                    message: error.to_string(),
                })
            })?,
        };
        let unpacked = Unpacked::of(bytes, salt, u64::from(at.offset), &mut decompressor);
        let mut kept = locked(&self.decompressors);
        if kept.len() < DECOMPRESSORS_MAX {
            kept.push(decompressor);
        }
        unpacked.ok_or(Unread::Damaged)
    }

    /// Reads bytes of a log of blocks.
    pub(super) fn read(&self, log: u32, offset: u64, into: &mut [u8]) -> Result<(), Unread> {
        let name = log_name(LogKind::Blocks, log);
        self.storage
            .read(&name, offset, into)
            .map_err(|error| match error {
                _ if self.index().salt(log).is_none() => Unread::Gone,
                StorageError::NotFound | StorageError::Damaged => Unread::Damaged,
                other => Unread::Failed(other),
            })
    }

    /// Reads and unpacks a record.
    pub(super) fn read_record(&self, at: RecordAt) -> Result<Unpacked, Unread> {
        let mut bytes = vec![0; at.bytes as usize];
        self.read(at.log, u64::from(at.offset), &mut bytes)?;
        self.unpack(at, &bytes)
    }

    /// Removes the blocks of an unreadable record from the index, and all blocks behind the current end of its log.
    pub(super) fn lose(&self, at: RecordAt) {
        let name = log_name(LogKind::Blocks, at.log);
        let length = match self.storage.length(&name) {
            Ok(length) => length,
            Err(StorageError::NotFound) => 0,
            Err(_) => u64::MAX,
        };
        let lost = {
            let mut index = self.index();
            index.forget_record(at) + index.forget_behind(at.log, length)
        };
        let is_cut = length < u64::from(at.offset) + u64::from(at.bytes);
        match (is_cut, length) {
            // Another thread has reported the loss already.
            _ if lost == 0 => {}
            (true, 0) => self.log_is_lost(&name, REMOVED, lost),
            (true, _) => self.log_is_lost(&name, CUT, lost),
            (false, _) => count(&self.counts.damaged, lost),
        }
    }

    /// Returns a stored block, verified.
    pub(super) fn block(&self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        // If its log is deleted meanwhile, the block may lie in another log. One retry is enough, unless the storage is
        // much too small.
        for _ in 0..3 {
            let place = self.index().use_block(hash)?;
            if let Some(found) = self.recent(place, hash) {
                return Some(found);
            }
            match self.read_record(place.record) {
                Ok(unpacked) => match unpacked.block(place.block, hash) {
                    Some(bytes) => {
                        self.keep_recent(place.record, unpacked);
                        return Some(bytes);
                    }
                    None => {
                        let is_lost = self.index().forget(hash, place);
                        count(&self.counts.damaged, u64::from(is_lost));
                        return None;
                    }
                },
                Err(Unread::Gone) => {}
                Err(Unread::Damaged) => {
                    self.lose(place.record);
                    return None;
                }
                Err(Unread::Failed(error)) => {
                    self.fail("reading the cache", &error);
                    return None;
                }
            }
        }
        None
    }

    /// Whether a block is there and intact; a damaged block is removed from the index.
    pub(super) fn holds(&self, hash: &BlockHash) -> bool {
        let is_there = self.index().has(hash);
        is_there && self.block(hash).is_some()
    }

    fn recent(&self, place: BlockPlace, hash: &BlockHash) -> Option<Arc<[u8]>> {
        let unpacked = locked(&self.recent)
            .iter()
            .find(|recent| recent.0 == place.record)
            .map(|recent| Arc::clone(&recent.1))?;
        unpacked.block(place.block, hash)
    }

    fn keep_recent(&self, at: RecordAt, unpacked: Unpacked) {
        let mut recent = locked(&self.recent);
        if recent.len() == RECENT_RECORDS {
            recent.pop_front();
        }
        recent.push_back((at, Arc::new(unpacked)));
    }

    /// Returns the approximate bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let recent: u64 = locked(&self.recent)
            .iter()
            .map(|recent| recent.1.memory_bytes())
            .sum();
        let index = self.index().memory_bytes();
        recent + index + self.notes().memory_bytes()
    }
}
