//! What readers and the writer share: the storage, the index, the counters, and reading a record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zstd::bulk::Decompressor;

use super::format::{LogKind, log_name};
use super::index::{BlockPlace, Index, RecordAt};
use super::notes::NoteMap;
use super::record::Unpacked;
use super::storage::{Storage, StorageError};
use crate::block::BlockHash;

/// Records that stay unpacked after one of their blocks was read: the next blocks that are read are mostly theirs.
const RECENT_RECORDS: usize = 4;

/// Decompressors that are kept for the next reader.
const DECOMPRESSORS_MAX: usize = 4;

/// What somebody else has done to a file, as it is said.
pub(super) const REMOVED: &str = "was removed or emptied";
pub(super) const CUT: &str = "was cut";

/// What is said of a full disk.
const DISK_FULL: &str = "the disk is full, so that older blocks make room for newer ones";

/// Why a record cannot be had.
#[derive(Debug)]
pub(super) enum Unread {
    /// Its log was dropped meanwhile; what was worth keeping is elsewhere.
    Gone,
    /// It is damaged.
    Damaged,
    /// The storage failed; later it may work.
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
    /// What a log of blocks may have now.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.index)
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, NoteMap> {
        lock(&self.notes)
    }

    /// Counts a failure and keeps what it says.
    pub(super) fn fail(&self, what: &str, error: &StorageError) {
        count(&self.counts.failures, 1);
        // A place that was removed has no room, either.
        let gone = self.storage.check_is_there().err();
        let error = gone.as_ref().unwrap_or(error);
        *lock(&self.failure) = Some(format!("{what}: {error}"));
    }

    /// The disk has no room although the budget has: older blocks go for newer ones, which is worth saying.
    pub(super) fn disk_is_full(&self) {
        if let Err(error) = self.storage.check_is_there() {
            return self.fail("writing the cache", &error);
        }
        count(&self.counts.disk_full, 1);
        *lock(&self.failure) = Some(DISK_FULL.to_owned());
    }

    /// The disk has room again: that it was full is over.
    pub(super) fn disk_has_room(&self) {
        let full = StorageError::Full.to_string();
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_some_and(|text| text.contains(&full)) {
            *failure = None;
        }
    }

    /// Counts what a log has lost to somebody who cut or removed its file, and says it.
    pub(super) fn log_is_lost(&self, name: &str, how: &str, blocks: u64) {
        count(&self.counts.damaged, blocks);
        let what = match blocks {
            0 => String::new(),
            _ => format!(", and {blocks} blocks are lost with it"),
        };
        *lock(&self.failure) = Some(format!("the file {name} {how}{what}"));
    }

    /// Counts a log of which nothing can be read when the cache is opened, and says it. How many blocks it had is not
    /// known.
    pub(super) fn log_is_unreadable(&self, name: &str) {
        count(&self.counts.damaged, 1);
        let text = format!("the file {name} cannot be read, so that all that was in it is lost");
        *lock(&self.failure) = Some(text);
    }

    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// A record's blocks. `bytes` are those of the record, if they were read already.
    pub(super) fn unpack(&self, at: RecordAt, bytes: &[u8]) -> Result<Unpacked, Unread> {
        let salt = self.index().salt(at.log).ok_or(Unread::Gone)?;
        let kept = lock(&self.decompressors).pop();
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
        let mut kept = lock(&self.decompressors);
        if kept.len() < DECOMPRESSORS_MAX {
            kept.push(decompressor);
        }
        unpacked.ok_or(Unread::Damaged)
    }

    /// Bytes of a log of blocks.
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

    /// A record, read and unpacked.
    pub(super) fn read_record(&self, at: RecordAt) -> Result<Unpacked, Unread> {
        let mut bytes = vec![0; at.bytes as usize];
        self.read(at.log, u64::from(at.offset), &mut bytes)?;
        self.unpack(at, &bytes)
    }

    /// Forgets what a record that cannot be read held, and with it what is behind the end of its log by now.
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
            // Somebody else was told of it first.
            _ if lost == 0 => {}
            (true, 0) => self.log_is_lost(&name, REMOVED, lost),
            (true, _) => self.log_is_lost(&name, CUT, lost),
            (false, _) => count(&self.counts.damaged, lost),
        }
    }

    /// A block as it is stored, verified.
    pub(super) fn block(&self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        // Where its log is dropped meanwhile, it may have been kept elsewhere; once more is enough but for a storage
        // that is much too small.
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

    /// Whether a block is there and right; if it is not, it is forgotten.
    pub(super) fn holds(&self, hash: &BlockHash) -> bool {
        let is_there = self.index().has(hash);
        is_there && self.block(hash).is_some()
    }

    fn recent(&self, place: BlockPlace, hash: &BlockHash) -> Option<Arc<[u8]>> {
        let unpacked = lock(&self.recent)
            .iter()
            .find(|recent| recent.0 == place.record)
            .map(|recent| Arc::clone(&recent.1))?;
        unpacked.block(place.block, hash)
    }

    fn keep_recent(&self, at: RecordAt, unpacked: Unpacked) {
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT_RECORDS {
            recent.pop_front();
        }
        recent.push_back((at, Arc::new(unpacked)));
    }

    /// Bytes of memory, about.
    pub(super) fn memory_bytes(&self) -> u64 {
        let recent: u64 = lock(&self.recent)
            .iter()
            .map(|recent| recent.1.memory_bytes())
            .sum();
        let index = self.index().memory_bytes();
        recent + index + self.notes().memory_bytes()
    }
}
