//! The hash lists of files, as far as they fit: each was found to make the content that the signed manifest names.

use crate::block::{BlockHash, ContentId, FileId, HashList};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Hash lists in memory; those that were not used for longest go first.
pub(super) struct Lists {
    state: Mutex<State>,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    lists: HashMap<FileId, (Arc<HashList>, u64)>,
    uses: u64,
    bytes: usize,
}

fn bytes_of(list: &HashList) -> usize {
    // What the table takes for an entry is counted with it.
    list.0.len() * size_of::<BlockHash>() + 64
}

impl Lists {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list of a file.
    pub fn get(&self, file: FileId) -> Option<Arc<HashList>> {
        let mut state = self.lock();
        state.uses += 1;
        let uses = state.uses;
        let (list, last) = state.lists.get_mut(&file)?;
        *last = uses;
        Some(Arc::clone(list))
    }

    /// Keeps the list of a file, if it makes this content; whether it does.
    pub fn put(&self, file: FileId, list: HashList, content: &ContentId) -> Option<Arc<HashList>> {
        if list.content() != *content {
            return None;
        }
        let list = Arc::new(list);
        let mut state = self.lock();
        let state = &mut *state;
        state.uses += 1;
        state.bytes += bytes_of(&list);
        let before = state.lists.insert(file, (Arc::clone(&list), state.uses));
        state.bytes -= before.map_or(0, |(list, _)| bytes_of(&list));
        while state.bytes > self.bytes_max && state.lists.len() > 1 {
            let Some(oldest) = state.lists.iter().min_by_key(|(_, (_, last))| *last) else {
                break;
            };
            let oldest = *oldest.0;
            if let Some((list, _)) = state.lists.remove(&oldest) {
                state.bytes -= bytes_of(&list);
            }
        }
        Some(list)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(seed: u8, blocks: usize) -> HashList {
        HashList(
            (0..blocks)
                .map(|at| BlockHash([seed ^ at as u8; 32]))
                .collect(),
        )
    }

    #[test]
    fn only_a_list_that_makes_the_content_is_kept() {
        let lists = Lists::new(1 << 20);
        let (good, bad) = (list(1, 3), list(2, 3));
        assert!(lists.put(FileId(1), bad, &good.content()).is_none());
        assert!(lists.get(FileId(1)).is_none());
        assert!(
            lists
                .put(FileId(1), good.clone(), &good.content())
                .is_some()
        );
        assert_eq!(*lists.get(FileId(1)).unwrap(), good);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let lists = Lists::new(10 * (32 * 10 + 64));
        for file in 0..100 {
            let list = list(file as u8, 10);
            let content = list.content();
            assert!(lists.put(FileId(file), list, &content).is_some());
            assert!(lists.get(FileId(0)).is_some(), "used all the time");
            assert!(lists.bytes() <= 10 * (32 * 10 + 64));
        }
        assert!(lists.get(FileId(1)).is_none());
    }
}
