//! A cache of the most recently used values, limited in bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The approximate size of an entry beside its value, in bytes, in both tables.
const ENTRY_BYTES: usize = 160;

/// Values by key. When there is no room, the least recently used ones are evicted.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    kept: HashMap<K, (u64, usize, V)>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
    now: u64,
    bytes: usize,
    bytes_max: usize,
}

impl<K: Copy + Eq + Hash, V: Clone> Recent<K, V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            kept: HashMap::new(),
            order: BTreeMap::new(),
            now: 0,
            bytes: 0,
            bytes_max,
        }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let (used, _, value) = self.kept.get_mut(key)?;
        self.order.remove(used);
        self.now += 1;
        *used = self.now;
        self.order.insert(self.now, *key);
        Some(value.clone())
    }

    /// Stores a value of `bytes` bytes, unless it alone exceeds the limit.
    pub(crate) fn put(&mut self, key: K, value: V, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES;
        self.remove(&key);
        if bytes > self.bytes_max {
            return;
        }
        while self.bytes + bytes > self.bytes_max
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
        }
        self.now += 1;
        self.bytes += bytes;
        self.order.insert(self.now, key);
        self.kept.insert(key, (self.now, bytes, value));
    }

    fn remove(&mut self, key: &K) {
        if let Some((used, bytes, _)) = self.kept.remove(key) {
            self.order.remove(&used);
            self.bytes -= bytes;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.kept = HashMap::new();
        self.order = BTreeMap::new();
        self.bytes = 0;
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_used_values_are_kept_within_the_limit() {
        let mut recent = Recent::new(4 * (1000 + ENTRY_BYTES));
        for key in 0..4 {
            recent.put(key, key, 1000);
        }
        assert_eq!(recent.get(&0), Some(0));
        recent.put(4, 4, 1000);
        let kept = [0, 1, 2, 3, 4].map(|key| recent.get(&key).is_some());
        assert_eq!(kept, [true, false, true, true, true]);
        // First replaces a value, then tries one that exceeds the limit.
        recent.put(2, 7, 1000);
        assert_eq!((recent.get(&2), recent.get(&0)), (Some(7), Some(0)));
        recent.put(9, 9, 1 << 20);
        assert_eq!((recent.get(&9), recent.get(&0)), (None, Some(0)));
        assert!(recent.bytes() <= 4 * (1000 + ENTRY_BYTES));
        recent.clear();
        assert_eq!((recent.bytes(), recent.get(&0)), (0, None));
    }
}
