//! A storage in memory for tests, which can fill up, lose power and be damaged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use base::error::Code;

use super::storage::{Storage, StorageError};
use crate::sync::locked;

/// What a power cut leaves of the bytes appended since the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The first this many 256ths of them.
    Begins(u16),
    /// The full length, but zeros from this many 256ths on: the file system recorded the length before the bytes.
    ZerosFrom(u16),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MemoryFile {
    bytes: Vec<u8>,
    durable: usize,
}

#[derive(Clone, Debug, Default)]
struct State {
    files: BTreeMap<String, MemoryFile>,
    capacity_bytes: u64,
    changes: u64,
    cut_after: Option<(u64, Tail)>,
    is_dead: bool,
    is_read_only: bool,
}

/// Files in memory, shared by clones. The power cut happens before a call that changes something. Creating and deleting
/// files is immediately durable.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    state: Arc<Mutex<State>>,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl MemoryStorage {
    /// Returns an empty storage with room for `capacity_bytes` bytes.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let state = State {
            capacity_bytes,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn change(&self) -> Result<MutexGuard<'_, State>, StorageError> {
        let mut state = self.lock();
        if let Some((calls, tail)) = state.cut_after {
            if calls == 0 {
                state.cut(tail);
            } else {
                state.cut_after = Some((calls - 1, tail));
            }
        }
        state.check()?;
        if state.is_read_only {
            return Err(StorageError::Failed {
                code: Code::Denied,
                message: "it cannot be written to".to_owned(),
            });
        }
        state.changes += 1;
        Ok(state)
    }

    /// Cuts the power after `calls` calls that change something.
    pub fn cut_after(&self, calls: u64, tail: Tail) {
        self.lock().cut_after = Some((calls, tail));
    }

    /// Restores the power: returns what is left as a separate storage.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let mut state = self.lock().clone();
        state.cut_after = None;
        state.is_dead = false;
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Sets the capacity to `bytes` bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity_bytes = bytes;
    }

    /// Makes the storage read-only, or writable again.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.lock().is_read_only = is_read_only;
    }

    /// Returns the number of calls so far that changed something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Returns the names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().files.keys().cloned().collect()
    }

    /// Changes the bytes of a file without the cache's knowledge; creates the file if it does not exist.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let file = state.files.entry(name.to_owned()).or_default();
        change(&mut file.bytes);
        file.durable = file.durable.min(file.bytes.len());
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        self.files
            .values()
            .map(|file| file.bytes.len() as u64)
            .sum()
    }

    fn cut(&mut self, tail: Tail) {
        for file in self.files.values_mut() {
            let since = file.bytes.len() - file.durable;
            match tail {
                Tail::Begins(part) => file
                    .bytes
                    .truncate(file.durable + since * usize::from(part) / 256),
                Tail::ZerosFrom(part) => {
                    file.bytes[file.durable + since * usize::from(part) / 256..].fill(0);
                }
            }
            file.durable = file.bytes.len();
        }
        self.cut_after = None;
        self.is_dead = true;
    }

    fn check(&self) -> Result<(), StorageError> {
        if self.is_dead {
            return Err(StorageError::Failed {
                code: Code::Io,
                message: "the power is gone".to_owned(),
            });
        }
        Ok(())
    }

    fn file(&self, name: &str) -> Result<&MemoryFile, StorageError> {
        self.check()?;
        self.files.get(name).ok_or(StorageError::NotFound)
    }
}

impl Storage for MemoryStorage {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let state = self.lock();
        state.check()?;
        let length = |file: &MemoryFile| file.bytes.len() as u64;
        Ok(state
            .files
            .iter()
            .map(|(name, file)| (name.clone(), length(file)))
            .collect())
    }

    fn create(&self, name: &str) -> Result<(), StorageError> {
        let mut state = self.change()?;
        state.files.insert(name.to_owned(), MemoryFile::default());
        Ok(())
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let mut state = self.change()?;
        let room = state.capacity_bytes.saturating_sub(state.used_bytes());
        let file = state.files.get_mut(name).ok_or(StorageError::NotFound)?;
        let taken = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        file.bytes.extend_from_slice(&bytes[..taken]);
        if taken < bytes.len() {
            return Err(StorageError::Full);
        }
        Ok(())
    }

    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let state = self.lock();
        let from = usize::try_from(offset).map_err(|_| StorageError::Damaged)?;
        let bytes = state
            .file(name)?
            .bytes
            .get(from..from.saturating_add(into.len()))
            .ok_or(StorageError::Damaged)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        Ok(self.lock().file(name)?.bytes.len() as u64)
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        let mut state = self.change()?;
        state
            .files
            .remove(name)
            .map(drop)
            .ok_or(StorageError::NotFound)
    }

    fn sync(&self, name: &str) -> Result<(), StorageError> {
        let mut state = self.change()?;
        let file = state.files.get_mut(name).ok_or(StorageError::NotFound)?;
        file.durable = file.bytes.len();
        Ok(())
    }
}
