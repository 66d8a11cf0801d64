//! A cache of the addresses of blocks already seen, so that a walk need not start at the end of the file each time.
//!
//! Invariant: an entry is true as long as the file exists, because a full block never moves. A block found through the
//! cache is verified like any other block.

/// The address of block `index` of a file.
#[derive(Clone, Copy, Default)]
struct Entry {
    file_id: u64,
    index: u32,
    address: u32,
}

/// A fixed-size table in which each block has exactly one place.
pub(crate) struct AddressCache {
    entries: Vec<Entry>,
}

impl AddressCache {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            entries: vec![Entry::default(); entries_max],
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }

    fn place(&self, file_id: u64, index: u32) -> Option<usize> {
        // Neighbouring blocks map to neighbouring places, different files to unrelated places.
        let start = file_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let length = self.entries.len() as u64;
        (length > 0).then(|| ((start + u64::from(index)) % length) as usize)
    }

    pub(crate) fn get(&self, file_id: u64, index: u32) -> Option<u32> {
        let entry = &self.entries[self.place(file_id, index)?];
        (entry.file_id == file_id && entry.index == index).then_some(entry.address)
    }

    /// Remembers the address of a full block. A block from which longer walks can start is not replaced by a lesser
    /// one.
    pub(crate) fn put(&mut self, file_id: u64, index: u32, address: u32) {
        let Some(place) = self.place(file_id, index) else {
            return;
        };
        let entry = &mut self.entries[place];
        let lesser = entry.file_id == file_id
            && entry.index.trailing_zeros() > index.trailing_zeros().max(5);
        if !lesser {
            *entry = Entry {
                file_id,
                index,
                address,
            };
        }
    }

    /// Forgets the blocks of a file from number `index` on, because the file has been truncated there.
    pub(crate) fn forget_from(&mut self, file_id: u64, index: u32) {
        for entry in &mut self.entries {
            if entry.file_id == file_id && entry.index >= index {
                *entry = Entry::default();
            }
        }
    }

    /// Returns the block nearest above `index` from which a short walk leads to `index`.
    pub(crate) fn above(&self, file_id: u64, index: u32, last: u32) -> Option<(u32, u32)> {
        (0..u32::BITS)
            .map(|level| ((u64::from(index) >> level) + 1) << level)
            .take_while(|start| *start < u64::from(last))
            .find_map(|start| {
                let start = start as u32;
                self.get(file_id, start).map(|address| (start, address))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_finds_its_entries_and_the_nearest_start_above() {
        let mut cache = AddressCache::new(256);
        cache.put(7, 64, 1000);
        assert_eq!(cache.get(7, 64), Some(1000));
        assert_eq!(cache.get(8, 64), None);
        assert_eq!(cache.above(7, 50, 200), Some((64, 1000)));
        assert_eq!(cache.above(7, 64, 200), None);
        assert_eq!(cache.above(7, 50, 60), None, "beyond the last block");
        // The same place, but worth less.
        cache.put(7, 64 + 256 + 1 - 1, 5);
        assert_eq!(
            cache.get(7, 320),
            Some(5),
            "equally useful: the newer one stays"
        );
        cache.put(7, 321, 6);
        assert_eq!(cache.get(7, 321), Some(6));
        assert_eq!(AddressCache::new(0).get(1, 1), None);
    }
}
