//! A cache of segments in memory: bounded in bytes, evicts the least recently used segment first.

use crate::block::ContentId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The size of an entry beside its content, in bytes: keys, places in the two maps, the counts of the `Arc`.
const ENTRY_BYTES: u64 = 192;

/// Identifies a segment of a content.
pub(super) type Key = (ContentId, u32);

/// Counts how read-ahead segments were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    /// The number of read-ahead segments that were requested.
    pub(super) used: u64,
    /// The number of read-ahead segments that were evicted before a request.
    pub(super) unused: u64,
}

struct Entry {
    bytes: Arc<[u8]>,
    used_at: u64,
    is_ahead: bool,
}

/// The cached segments.
pub(super) struct Memory {
    entries: HashMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: u64,
    bytes_max: u64,
    ahead: Ahead,
}

impl Memory {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            bytes_max,
            ahead: Ahead::default(),
        }
    }

    /// Returns a segment and marks it as the most recently used one.
    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<[u8]>> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used_at);
        self.uses += 1;
        entry.used_at = self.uses;
        self.by_use.insert(self.uses, *key);
        if std::mem::take(&mut entry.is_ahead) {
            self.ahead.used += 1;
        }
        Some(Arc::clone(&entry.bytes))
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// Stores a segment and evicts others if there is no room. Does not store a segment that exceeds the whole cache.
    pub(super) fn put(&mut self, key: Key, bytes: Arc<[u8]>, is_ahead: bool) {
        let cost = ENTRY_BYTES + bytes.len() as u64;
        if cost > self.bytes_max || self.entries.contains_key(&key) {
            return;
        }
        while self.bytes + cost > self.bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.drop_entry(&oldest);
        }
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.bytes += cost;
        let entry = Entry {
            bytes,
            used_at: self.uses,
            is_ahead,
        };
        self.entries.insert(key, entry);
    }

    fn drop_entry(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= ENTRY_BYTES + entry.bytes.len() as u64;
            self.ahead.unused += u64::from(entry.is_ahead);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn ahead(&self) -> Ahead {
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        (ContentId([7; 32]), number)
    }

    fn segment() -> Arc<[u8]> {
        vec![1; 1000].into()
    }

    #[test]
    fn the_least_recently_used_one_goes_and_room_is_never_exceeded() {
        let mut memory = Memory::new(3 * (ENTRY_BYTES + 1000));
        for number in 0..3 {
            memory.put(key(number), segment(), false);
        }
        assert!(memory.get(&key(0)).is_some());
        memory.put(key(3), segment(), false);
        assert!(memory.has(&key(0)) && !memory.has(&key(1)) && memory.has(&key(2)));
        for number in 0..100 {
            memory.put(key(number), segment(), true);
            assert!(memory.bytes() <= 3 * (ENTRY_BYTES + 1000));
        }
        memory.put(key(1000), vec![0; 4000].into(), false);
        assert!(!memory.has(&key(1000)));
        assert_eq!(memory.bytes(), 3 * (ENTRY_BYTES + 1000));
    }

    #[test]
    fn a_segment_read_ahead_counts_once_as_used_or_unused() {
        let mut memory = Memory::new(ENTRY_BYTES + 1000);
        memory.put(key(0), segment(), true);
        memory.get(&key(0));
        memory.get(&key(0));
        memory.put(key(1), segment(), true);
        memory.put(key(2), segment(), false);
        assert_eq!(memory.ahead(), Ahead { used: 1, unused: 1 });
    }
}
