//! The log files: which exist, what they take of the budget, appending to them, and making room.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base::error::Code;
use ring::rand::{SecureRandom, SystemRandom};

use super::backoff::Backoff;
use super::core::{CUT, Core, REMOVED, count};
use super::format::{
    Draft, INDEX_HEAD_BYTES, LOG_HEADER_BYTES, LogHeader, LogKind, RECORD_BLOCKS_MAX,
    RECORD_HEADER_BYTES, RecordKind, TRAILER_BYTES, encode_trailer, log_name, parse_log_name,
};
use super::index::RecordAt;
use super::record::{Block, Packed};
use super::scan::{Chain, push_index_entry, read_chain_from, scan};
use super::storage::StorageError;
use super::twice::RESERVED_BYTES;

/// The maximum number of indexes of a log before they are merged into one.
const CHAIN_INDEXES: u32 = 16;

/// The maximum number of attempts, which are repeated when files changed under the writer or a full disk was given
/// room.
const ATTEMPTS_MAX: u32 = 64;

/// The minimum size limit of a log of blocks, in bytes, even with a small budget or little room on the disk.
pub(super) const LOG_BYTES_MIN: u64 = 256 << 10;

/// The maximum size limit of a log of blocks, in bytes.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// How the budget of a cache is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) bytes_max: u64,
    /// The size limit of a log of blocks. A small part, because a log is deleted as a whole.
    pub(super) log_bytes_max: u64,
    /// Bytes that blocks leave to notes.
    pub(super) notes_bytes: u64,
}

impl Budget {
    pub(super) fn of(bytes_max: u64) -> Self {
        Self {
            bytes_max: bytes_max.saturating_sub(RESERVED_BYTES),
            log_bytes_max: (bytes_max / 16).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX),
            // A third of it holds the hashes of all blocks that a large cache has room for, even if they compress well.
            notes_bytes: (bytes_max / 4).min((64 << 20).max(bytes_max / 16)),
        }
    }
}

/// A log that is appended to.
pub(super) struct Current {
    pub(super) header: LogHeader,
    chain: Chain,
    /// Entries that are not in an index yet.
    unindexed: Vec<u8>,
    /// Whether all appended bytes are durable.
    pub(super) is_synced: bool,
}

/// A log file.
#[derive(Clone, Copy)]
pub(super) struct LogFile {
    pub(super) kind: LogKind,
    pub(super) bytes: u64,
}

pub(super) struct Logs {
    pub(super) budget: Budget,
    pub(super) files: BTreeMap<u32, LogFile>,
    next_number: u32,
    pub(super) total_bytes: u64,
    /// The current size limit of a log of blocks: below the budget's limit while the disk is too full for that.
    log_bytes_max: u64,
    /// Whether the disk had room for everything since the last log was begun.
    had_room: bool,
    /// The bytes of all files when the disk was full last. `None`: it never was, or has room again.
    pub(super) disk_bytes_max: Option<u64>,
    /// Whether a write may be tried on a disk that had no room at all.
    pub(super) backoff: Backoff,
    /// Bytes of notes: those that existed at the start or were added, and those that were rewritten.
    pub(super) notes_given_bytes: u64,
    pub(super) notes_rewritten_bytes: u64,
    blocks: Option<Current>,
    pub(super) notes: Option<Current>,
}

/// Why nothing was appended to a log.
pub(super) enum NotAdded {
    /// The file was changed by another process.
    Changed,
    Storage(StorageError),
}

impl Logs {
    /// Opens the logs in the storage and indexes their content.
    pub(super) fn open(core: &Core, budget: Budget) -> Result<Self, StorageError> {
        let mut found: Vec<_> = core
            .storage
            .list()?
            .into_iter()
            .filter_map(|(name, bytes)| Some((parse_log_name(&name)?, bytes)))
            .collect();
        found.sort_by_key(|((_, number), _)| *number);
        let mut logs = Self {
            budget,
            files: BTreeMap::new(),
            next_number: 1,
            total_bytes: 0,
            log_bytes_max: budget.log_bytes_max,
            had_room: true,
            disk_bytes_max: None,
            backoff: Backoff::default(),
            notes_given_bytes: 0,
            notes_rewritten_bytes: 0,
            blocks: None,
            notes: None,
        };
        for ((kind, number), bytes) in found {
            logs.find(core, kind, number, bytes);
        }
        for name in core.storage.list_irregular() {
            core.log_is_unreadable(&name);
            // A log with the number of a directory cannot be created. The last number has no successor.
            if let Some(next) = parse_log_name(&name).and_then(|(_, number)| number.checked_add(1))
            {
                logs.next_number = logs.next_number.max(next);
            }
        }
        logs.notes_given_bytes = logs.notes_bytes();
        logs.note_total(core);
        logs.note_log_bytes_max(core);
        Ok(logs)
    }

    fn find(&mut self, core: &Core, kind: LogKind, number: u32, bytes: u64) {
        // Numbers are unique. A file with a duplicate number, or with one that has no successor, was not made by this
        // cache.
        if self.files.contains_key(&number) || number == u32::MAX || bytes > u64::from(u32::MAX) {
            let _ = core.storage.delete(&log_name(kind, number));
            return;
        }
        self.next_number = number + 1;
        self.files.insert(number, LogFile { kind, bytes });
        self.total_bytes += bytes;
        let mut index = core.index();
        let mut notes = core.notes();
        let mut header = [0; LOG_HEADER_BYTES];
        let name = log_name(kind, number);
        if core.storage.read(&name, 0, &mut header).is_ok()
            && let Some(header) = LogHeader::decode(&header)
        {
            index.add_log(number, header.salt);
        }
        let scanned = scan(
            &*core.storage,
            (kind, number),
            bytes,
            &mut |offset, header, table| {
                let at = RecordAt {
                    log: number,
                    offset: offset as u32,
                    bytes: header.record_bytes() as u32,
                };
                match header.kind {
                    RecordKind::Blocks => index.add(at, table),
                    RecordKind::Note => notes.found(at, table, header.payload_bytes),
                    RecordKind::Index => {}
                }
            },
        );
        // A log with only a header, or a part of one, has lost nothing.
        if scanned.is_none() && bytes > LOG_HEADER_BYTES as u64 {
            core.log_is_unreadable(&name);
        }
        // Append only to the newest log, and only behind a record: newer data must lie behind older data.
        let current = scanned
            .filter(|scanned| scanned.is_whole)
            .map(|scanned| Current {
                header: scanned.header,
                chain: scanned.chain,
                unindexed: scanned.unindexed,
                is_synced: true,
            });
        match kind {
            LogKind::Blocks => self.blocks = current,
            LogKind::Notes => self.notes = current,
        }
    }

    fn note_total(&self, core: &Core) {
        core.counts.bytes.store(self.total_bytes, Ordering::Relaxed);
    }

    fn note_log_bytes_max(&self, core: &Core) {
        let counter = &core.counts.log_bytes_max;
        counter.store(self.log_bytes_max, Ordering::Relaxed);
    }

    /// Reduces the size limit of logs, because the disk is full. With smaller logs, the remaining room can be used
    /// completely, and deleting one evicts few blocks.
    pub(super) fn make_logs_smaller(&mut self, core: &Core) {
        self.had_room = false;
        self.log_bytes_max = (self.log_bytes_max / 2).max(LOG_BYTES_MIN);
        self.note_log_bytes_max(core);
    }

    /// Called when a log is full. If the disk had room for all of it, the next log may be larger again.
    fn make_logs_larger(&mut self, core: &Core) {
        if std::mem::replace(&mut self.had_room, true) {
            self.log_bytes_max = (self.log_bytes_max * 2).min(self.budget.log_bytes_max);
            self.note_log_bytes_max(core);
            let more = self.disk_bytes_max.map(|bytes| bytes.saturating_mul(2));
            self.disk_bytes_max = more.filter(|bytes| *bytes < self.budget.bytes_max);
            if self.disk_bytes_max.is_none() {
                core.disk_has_room();
            }
        }
    }

    /// Returns the known length of the log that is appended to.
    pub(super) fn length(&self, current: &Current) -> u64 {
        self.files
            .get(&current.header.number)
            .map_or(0, |file| file.bytes)
    }

    /// Returns the bytes of all note files.
    pub(super) fn notes_bytes(&self) -> u64 {
        self.files
            .values()
            .filter(|file| file.kind == LogKind::Notes)
            .map(|file| file.bytes)
            .sum()
    }

    /// Returns the limit of all files together up to which blocks may be written.
    fn blocks_limit(&self) -> u64 {
        let reserved = self.budget.notes_bytes.saturating_sub(self.notes_bytes());
        self.budget.bytes_max.saturating_sub(reserved)
    }

    /// Creates a new log, to which the next records are appended.
    pub(super) fn begin(&mut self, core: &Core, kind: LogKind) -> Result<Current, StorageError> {
        let mut salt = [0; 8];
        SystemRandom::new()
            .fill(&mut salt)
            .map_err(|_| StorageError::Failed {
                code: Code::Io,
                message: "no random numbers".to_owned(),
            })?;
        let header = LogHeader {
            kind,
            number: self.next_number,
            salt: u64::from_le_bytes(salt),
        };
        // Not tried again if it fails: another process may have made a directory of this name.
        self.next_number = self.next_number.saturating_add(1);
        core.storage.create(&header.name())?;
        self.files.insert(header.number, LogFile { kind, bytes: 0 });
        let current = Current {
            header,
            chain: Chain::default(),
            unindexed: Vec::new(),
            is_synced: false,
        };
        match self.add(core, &current, &header.encode()) {
            Ok(_) => {}
            Err(NotAdded::Storage(error)) => return Err(error),
            Err(NotAdded::Changed) => {
                return Err(StorageError::Failed {
                    code: Code::Stale,
                    message: "another process changed a new file".to_owned(),
                });
            }
        }
        core.index().add_log(header.number, header.salt);
        Ok(current)
    }

    /// Appends bytes to a log. Returns the offset at which they begin.
    pub(super) fn add(
        &mut self,
        core: &Core,
        current: &Current,
        bytes: &[u8],
    ) -> Result<u64, NotAdded> {
        let number = current.header.number;
        let start = self.files.get(&number).ok_or(NotAdded::Changed)?.bytes;
        let added = core.storage.append(&current.header.name(), bytes);
        self.measure(core, number);
        if let Err(error) = added {
            // A partial first record is useless and takes scarce room.
            if start <= LOG_HEADER_BYTES as u64 {
                let _ = self.delete(core, number);
            }
            return Err(NotAdded::Storage(error));
        }
        match self.files.get(&number) {
            Some(file) if file.bytes == start + bytes.len() as u64 => {
                if let Some(found) = &mut self.disk_bytes_max {
                    *found = self.total_bytes.max(*found);
                }
                Ok(start)
            }
            _ => Err(NotAdded::Changed),
        }
    }

    /// Measures a file. Returns whether its length is as expected. Blocks behind a shorter end are removed from the
    /// index.
    pub(super) fn measure(&mut self, core: &Core, number: u32) -> bool {
        let Some(file) = self.files.get_mut(&number) else {
            return false;
        };
        let before = file.bytes;
        let name = log_name(file.kind, number);
        let now = match core.storage.length(&name) {
            Ok(now) => now,
            Err(StorageError::NotFound) => 0,
            // The length is unknown: count at least what was appended.
            Err(_) => return false,
        };
        file.bytes = now;
        self.total_bytes = self.total_bytes - before + now;
        if now < before {
            let lost = core.index().forget_behind(number, now);
            let how = if now == 0 { REMOVED } else { CUT };
            core.log_is_lost(&name, how, lost);
        }
        self.note_total(core);
        now == before
    }

    /// Deletes a file and removes its content from the index.
    pub(super) fn delete(&mut self, core: &Core, number: u32) -> Result<(), StorageError> {
        let Some(file) = self.files.get(&number).copied() else {
            return Ok(());
        };
        match core.storage.delete(&log_name(file.kind, number)) {
            Ok(()) | Err(StorageError::NotFound) => {}
            Err(error) => return Err(error),
        }
        for current in [&mut self.blocks, &mut self.notes] {
            if current
                .as_ref()
                .is_some_and(|current| current.header.number == number)
            {
                *current = None;
            }
        }
        self.files.remove(&number);
        self.total_bytes -= file.bytes;
        self.note_total(core);
        let evicted = core.index().forget_log(number);
        count(&core.counts.evicted, evicted);
        Ok(())
    }

    /// Writes blocks in one record, at most `RECORD_BLOCKS_MAX`.
    pub(super) fn write_blocks(
        &mut self,
        core: &Core,
        blocks: &[Block],
    ) -> Result<(), StorageError> {
        let packed = Packed::of(blocks);
        let bytes = packed.draft().padded_bytes();
        if !self.backoff.may_try() {
            return Err(StorageError::Full);
        }
        for _ in 0..ATTEMPTS_MAX {
            self.make_room(core, bytes + LOG_HEADER_BYTES as u64)?;
            match self.write_packed(core, &packed) {
                Err(NotAdded::Storage(StorageError::Full)) => {
                    if let Err(error) = self.make_room_on_disk(core) {
                        self.backoff.failed();
                        return Err(error);
                    }
                }
                Err(NotAdded::Storage(error)) => return Err(error),
                Err(NotAdded::Changed) => {}
                Ok(()) => {
                    self.backoff.worked();
                    count(&core.counts.written, blocks.len() as u64);
                    return Ok(());
                }
            }
        }
        Err(StorageError::Failed {
            code: Code::Busy,
            message: "another process changes the files".to_owned(),
        })
    }

    fn write_packed(&mut self, core: &Core, packed: &Packed) -> Result<(), NotAdded> {
        let draft = packed.draft();
        let mut current = self.current_for(core, draft.padded_bytes())?;
        let offset = self.files[&current.header.number].bytes;
        let mut bytes = Vec::with_capacity(draft.padded_bytes() as usize);
        draft.encode(current.header.salt, offset, &mut bytes);
        // A log to which an append failed is never appended to again, because its end is unknown.
        self.add(core, &current, &bytes)?;
        let head = RECORD_HEADER_BYTES + packed.table.len();
        push_index_entry(&mut current.unindexed, offset, &bytes[..head]);
        current.is_synced = false;
        let at = RecordAt {
            log: current.header.number,
            offset: offset as u32,
            bytes: (head + draft.payload.len()) as u32,
        };
        self.blocks = Some(current);
        core.index().add(at, &packed.table);
        Ok(())
    }

    /// Takes the log of blocks to which `bytes` bytes are to be appended.
    fn current_for(&mut self, core: &Core, bytes: u64) -> Result<Current, NotAdded> {
        if let Some(current) = self.blocks.take() {
            let number = current.header.number;
            if self.measure(core, number) {
                let indexed = current.unindexed.len() as u64 + bytes;
                if self.files[&number].bytes + indexed <= self.log_bytes_max {
                    return Ok(current);
                }
                self.blocks = Some(current);
                self.settle(core);
                self.blocks = None;
                self.make_logs_larger(core);
            }
        }
        self.begin(core, LogKind::Blocks).map_err(NotAdded::Storage)
    }

    /// Evicts the oldest blocks until there is room for `bytes` bytes; used ones among them are kept.
    fn make_room(&mut self, core: &Core, bytes: u64) -> Result<(), StorageError> {
        // Kept blocks are written before their old log is deleted, so the room of one log stays free for them.
        while self.total_bytes + bytes + self.budget.log_bytes_max > self.blocks_limit() {
            let number = self.oldest().ok_or(StorageError::Full)?;
            let is_current = |current: &Current| current.header.number == number;
            if !self.blocks.as_ref().is_some_and(is_current) {
                self.copy_used(core, number);
            }
            self.delete(core, number)?;
        }
        Ok(())
    }

    /// Evicts blocks that exceed a reduced budget.
    pub(super) fn shrink(&mut self, core: &Core) {
        while self.total_bytes > self.blocks_limit() {
            if let Err(error) = self.drop_oldest(core) {
                if error != StorageError::Full {
                    core.fail("making the cache smaller", &error);
                }
                return;
            }
        }
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        self.files
            .iter()
            .find(|(_, file)| file.kind == LogKind::Blocks)
            .map(|(number, _)| *number)
    }

    /// Deletes the oldest log of blocks.
    pub(super) fn drop_oldest(&mut self, core: &Core) -> Result<(), StorageError> {
        let number = self.oldest().ok_or(StorageError::Full)?;
        self.delete(core, number)
    }

    /// Copies the used blocks of a log to the newest one, up to half of the bytes that deleting the old log frees.
    fn copy_used(&mut self, core: &Core, number: u32) {
        let mut left = self.files.get(&number).map_or(0, |file| file.bytes / 2);
        let used = core.index().used(number);
        let mut kept: Vec<Block> = Vec::new();
        let last = used.len().saturating_sub(1);
        for (turn, (at, blocks)) in used.into_iter().enumerate() {
            if let Ok(unpacked) = core.read_record(at) {
                let wanted = (0..RECORD_BLOCKS_MAX as u8).filter(|block| blocks >> block & 1 != 0);
                kept.extend(wanted.filter_map(|block| {
                    let hash = unpacked.hash(block)?;
                    Some((hash, unpacked.block(block, &hash)?))
                }));
            }
            while kept.len() >= RECORD_BLOCKS_MAX || turn == last && !kept.is_empty() {
                let rest = kept.split_off(kept.len().min(RECORD_BLOCKS_MAX));
                let packed = Packed::of(&std::mem::replace(&mut kept, rest));
                let bytes = packed.draft().padded_bytes();
                let total = self.total_bytes + bytes + LOG_HEADER_BYTES as u64;
                if bytes > left || total > self.blocks_limit() {
                    return;
                }
                left -= bytes;
                if self.write_packed(core, &packed).is_err() {
                    return;
                }
            }
        }
    }

    /// Finds the logs of blocks that another process has removed or cut. Open ones can still be read here, so the loss
    /// would only show at the next start, which finds nothing of them. (The log of notes is measured before each note.)
    fn look_for_lost(&mut self, core: &Core) {
        let known: Vec<(u32, u64)> = self
            .files
            .iter()
            .filter(|(_, file)| file.kind == LogKind::Blocks)
            .map(|(number, file)| (*number, file.bytes))
            .collect();
        for (number, before) in known {
            self.measure(core, number);
            let is_same = |file: &LogFile| file.bytes == before;
            let is_current = |current: &Current| current.header.number == number;
            // A changed log is never appended to again.
            if !self.files.get(&number).is_some_and(is_same)
                && self.blocks.as_ref().is_some_and(is_current)
            {
                self.blocks = None;
            }
        }
    }

    /// Makes all written data durable, with an index behind it.
    pub(super) fn settle(&mut self, core: &Core) {
        self.look_for_lost(core);
        if let Some(current) = self.blocks.take() {
            self.blocks = self.write_index(core, current);
        }
        for current in [&mut self.blocks, &mut self.notes] {
            let Some(open) = current.as_mut().filter(|open| !open.is_synced) else {
                continue;
            };
            match core.storage.sync(&open.header.name()) {
                Ok(()) => open.is_synced = true,
                // After a failed sync, the state of the file is unknown.
                Err(error) => {
                    core.fail("writing the cache", &error);
                    *current = None;
                }
            }
        }
    }

    /// Whether everything that was written is settled.
    pub(super) fn is_settled(&self) -> bool {
        [&self.blocks, &self.notes]
            .into_iter()
            .flatten()
            .all(|current| current.is_synced)
    }

    fn write_index(&mut self, core: &Core, mut current: Current) -> Option<Current> {
        if current.unindexed.is_empty() {
            return Some(current);
        }
        let number = current.header.number;
        if !self.measure(core, number) {
            return None;
        }
        let offset = self.files[&number].bytes;
        let (mut prior, mut length) = (current.chain.last, current.chain.length);
        let mut payload = vec![0; INDEX_HEAD_BYTES];
        if length >= CHAIN_INDEXES
            && let Some(indexes) = read_chain_from(&*core.storage, &current.header, prior)
        {
            for index in indexes.iter().rev() {
                payload.extend_from_slice(&index[INDEX_HEAD_BYTES..]);
            }
            (prior, length) = (0, 0);
        }
        payload.extend_from_slice(&current.unindexed);
        payload[..INDEX_HEAD_BYTES].copy_from_slice(&prior.to_le_bytes());
        let draft = Draft {
            kind: RecordKind::Index,
            is_compressed: false,
            count: 0,
            table: &[],
            payload: &payload,
            raw_bytes: payload.len() as u32,
        };
        let bytes = draft.padded_bytes() + TRAILER_BYTES as u64;
        // A log without an index is still read by its record headers.
        if self.total_bytes + bytes > self.blocks_limit() {
            return Some(current);
        }
        let salt = current.header.salt;
        let mut written = Vec::with_capacity(bytes as usize);
        draft.encode(salt, offset, &mut written);
        let trailer_at = offset + written.len() as u64;
        encode_trailer(salt, trailer_at, offset as u32, &mut written);
        match self.add(core, &current, &written) {
            Ok(_) => {
                current.unindexed.clear();
                current.chain = Chain {
                    last: offset as u32,
                    length: length + 1,
                };
                current.is_synced = false;
                Some(current)
            }
            Err(NotAdded::Changed) => None,
            Err(NotAdded::Storage(error)) => {
                if error == StorageError::Full {
                    self.make_logs_smaller(core);
                }
                core.fail("writing the cache", &error);
                None
            }
        }
    }

    /// Evicts blocks until `bytes` more bytes fit into the budget.
    pub(super) fn make_room_for_notes(
        &mut self,
        core: &Core,
        bytes: u64,
    ) -> Result<(), StorageError> {
        // The room on a full disk is only known from the last time: it may be larger by now.
        while self.total_bytes + bytes > self.bytes_max_found() && self.oldest().is_some() {
            self.drop_oldest(core)?;
        }
        match self.total_bytes + bytes > self.budget.bytes_max {
            true => Err(StorageError::Full),
            false => Ok(()),
        }
    }
}
