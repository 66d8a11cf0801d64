//! A store in memory for tests and simulations. It can fill up, fail, rot, and lose power in an append.
//!
//! **Fault model.** Appends are durable on return. A power cut strikes before or in the n-th call that changes the
//! store. A create or delete is wholly done or not, and an append leaves any prefix of its bytes. After the cut every
//! call fails until [`MemoryStore::restart`]. A damaged piece answers every read that touches it with
//! [`StoreError::Damaged`]. Nothing else goes wrong.

use std::collections::BTreeMap;

use base::error::Code;

use super::{SegmentStore, StoreError};

/// When and how the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut {
    /// Changing calls that still succeed.
    pub after_calls: u64,
    /// Bytes of the cut append (at most all) that reach the file.
    pub bytes_kept: usize,
}

/// Named byte vectors behind the [`SegmentStore`] trait.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    files: BTreeMap<String, Vec<u8>>,
    handles: Vec<Option<String>>,
    damaged: BTreeMap<String, Vec<u64>>,
    payload_bytes: u64,
    capacity_bytes: u64,
    cut: Option<PowerCut>,
    dead: bool,
    appends: u64,
    secret: u64,
}

/// Secret of a store that was not given one; no test depends on its value.
const SECRET: u64 = 0x9b1f_6c55_03d8_e72a;

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            handles: Vec::new(),
            damaged: BTreeMap::new(),
            payload_bytes: 4000,
            capacity_bytes: u64::MAX,
            cut: None,
            dead: false,
            appends: 0,
            secret: SECRET,
        }
    }

    /// An empty store with this [`secret`](SegmentStore::secret).
    #[must_use]
    pub fn with_secret(secret: u64) -> Self {
        Self {
            secret,
            ..Self::new()
        }
    }

    /// Refuses to hold more than this many bytes in all files together.
    pub fn set_capacity_bytes(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
    }

    /// Plans the loss of power.
    pub fn set_power_cut(&mut self, cut: PowerCut) {
        self.cut = Some(cut);
    }

    /// Fails every further call, as a dead device does.
    pub fn kill(&mut self) {
        self.dead = true;
    }

    /// Power is back: files as they are, no open handles.
    pub fn restart(&mut self) {
        self.dead = false;
        self.cut = None;
        self.handles.clear();
    }

    /// Makes the piece that holds `offset` unreadable.
    pub fn damage(&mut self, name: &str, offset: u64) {
        self.damaged
            .entry(name.to_owned())
            .or_default()
            .push(offset);
    }

    /// A file's bytes.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&Vec<u8>> {
        self.files.get(name)
    }

    /// A file's bytes, to be changed by a test; the file is made when absent.
    pub fn file_mut(&mut self, name: &str) -> &mut Vec<u8> {
        self.files.entry(name.to_owned()).or_default()
    }

    /// Every name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Appends that returned `Ok`.
    #[must_use]
    pub fn appends(&self) -> u64 {
        self.appends
    }

    fn used_bytes(&self) -> u64 {
        self.files.values().map(|file| file.len() as u64).sum()
    }

    fn failed() -> StoreError {
        StoreError::Failed {
            code: Code::Io,
            message: "the store lost power".to_owned(),
        }
    }

    fn name_of(&self, file: usize) -> Result<&String, StoreError> {
        if self.dead {
            return Err(Self::failed());
        }
        self.handles
            .get(file)
            .and_then(Option::as_ref)
            .ok_or(StoreError::NotFound)
    }

    /// Counts a changing call; `Err(bytes_kept)` if the power fails in it.
    fn step(&mut self) -> Result<(), usize> {
        let Some(cut) = &mut self.cut else {
            return Ok(());
        };
        if cut.after_calls > 0 {
            cut.after_calls -= 1;
            return Ok(());
        }
        self.dead = true;
        Err(cut.bytes_kept)
    }

    fn add_handle(&mut self, name: &str) -> usize {
        self.handles.push(Some(name.to_owned()));
        self.handles.len() - 1
    }
}

impl SegmentStore for MemoryStore {
    type File = usize;

    fn create(&mut self, name: &str) -> Result<usize, StoreError> {
        if self.dead || self.step().is_err() {
            return Err(Self::failed());
        }
        if self.files.contains_key(name) {
            return Err(StoreError::Exists);
        }
        self.files.insert(name.to_owned(), Vec::new());
        Ok(self.add_handle(name))
    }

    fn open(&mut self, name: &str) -> Result<usize, StoreError> {
        if self.dead {
            return Err(Self::failed());
        }
        if !self.files.contains_key(name) {
            return Err(StoreError::NotFound);
        }
        Ok(self.add_handle(name))
    }

    fn close(&mut self, file: usize) {
        if let Some(handle) = self.handles.get_mut(file) {
            *handle = None;
        }
    }

    fn append(&mut self, file: usize, data: &[u8]) -> Result<(), StoreError> {
        let name = self.name_of(file)?.clone();
        if self.used_bytes().saturating_add(data.len() as u64) > self.capacity_bytes {
            return Err(StoreError::Full);
        }
        let kept = self.step().err();
        let content = self.files.get_mut(&name).ok_or(StoreError::NotFound)?;
        if let Some(kept) = kept {
            content.extend_from_slice(&data[..kept.min(data.len())]);
            return Err(Self::failed());
        }
        content.extend_from_slice(data);
        self.appends += 1;
        Ok(())
    }

    fn read(&mut self, file: usize, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let name = self.name_of(file)?;
        let content = self.files.get(name).ok_or(StoreError::NotFound)?;
        let start = (offset as usize).min(content.len());
        let count = buffer.len().min(content.len() - start);
        if let Some(damaged) = self.damaged.get(name) {
            let piece = self.payload_bytes;
            let hit = |at: &&u64| {
                **at / piece * piece < (start + count) as u64 && (**at / piece + 1) * piece > offset
            };
            if count > 0
                && let Some(at) = damaged.iter().filter(hit).max()
            {
                return Err(StoreError::Damaged { offset: *at });
            }
        }
        buffer[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn length(&mut self, file: usize) -> Result<u64, StoreError> {
        let name = self.name_of(file)?;
        self.files
            .get(name)
            .map(|content| content.len() as u64)
            .ok_or(StoreError::NotFound)
    }

    fn delete(&mut self, name: &str) -> Result<(), StoreError> {
        if self.dead || self.step().is_err() {
            return Err(Self::failed());
        }
        self.files
            .remove(name)
            .map(|_| ())
            .ok_or(StoreError::NotFound)
    }

    fn list(&mut self, visit: &mut dyn FnMut(&str)) -> Result<(), StoreError> {
        if self.dead {
            return Err(Self::failed());
        }
        self.files.keys().for_each(|name| visit(name));
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    fn secret(&self) -> u64 {
        self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_append_leaves_a_prefix_and_a_dead_store() {
        let mut store = MemoryStore::new();
        let file = store.create("a").unwrap();
        store.append(file, b"one").unwrap();
        store.set_power_cut(PowerCut {
            after_calls: 0,
            bytes_kept: 2,
        });
        assert!(store.append(file, b"two").is_err());
        assert!(store.open("a").is_err());
        store.restart();
        assert_eq!(store.file("a").unwrap(), b"onetw");
    }

    #[test]
    fn a_damaged_or_full_store_returns_its_error() {
        let mut store = MemoryStore::new();
        let file = store.create("a").unwrap();
        store.append(file, &[7; 9000]).unwrap();
        store.damage("a", 4100);
        let mut buffer = [0; 4000];
        assert_eq!(store.read(file, 0, &mut buffer), Ok(4000));
        assert_eq!(
            store.read(file, 1, &mut buffer),
            Err(StoreError::Damaged { offset: 4100 })
        );
        assert_eq!(store.read(file, 8000, &mut buffer), Ok(1000));
        store.set_capacity_bytes(9001);
        assert_eq!(store.append(file, b"12"), Err(StoreError::Full));
        assert_eq!(store.append(file, b"1"), Ok(()));
    }
}
