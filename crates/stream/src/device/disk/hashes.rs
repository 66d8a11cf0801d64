//! The groups of file hashes that fit into memory. Each is verified against the content that the signed manifest names.

use crate::block::ContentId;
use crate::group::{Group, GroupAt};
use crate::recent::Recent;
use crate::sync::locked;
use std::sync::{Arc, Mutex};

/// Groups in memory; the least recently used are evicted first.
pub(crate) struct Groups(Mutex<Recent<GroupAt, Arc<Group>>>);

impl Groups {
    pub fn new(bytes_max: usize) -> Self {
        Self(Mutex::new(Recent::new(bytes_max)))
    }

    /// Returns a group.
    pub fn get(&self, at: GroupAt) -> Option<Arc<Group>> {
        locked(&self.0).get(&at)
    }

    /// Keeps a group if its proof shows that it belongs to this content with `blocks` blocks. `None`: it does not.
    pub fn put(
        &self,
        at: GroupAt,
        group: Group,
        content: &ContentId,
        blocks: u32,
    ) -> Option<Arc<Group>> {
        if !group.is_of(content, blocks, at.group) {
            return None;
        }
        let group = Arc::new(group);
        let bytes = group.bytes();
        locked(&self.0).put(at, Arc::clone(&group), bytes);
        Some(group)
    }

    /// Returns the bytes of memory that the groups take.
    pub fn bytes(&self) -> usize {
        locked(&self.0).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockHash, FileId, HashList};
    use crate::group::{GROUP_BLOCKS, groups_of, split};

    fn list(seed: u8, blocks: u32) -> HashList {
        HashList(
            (0..blocks)
                .map(|at| BlockHash([seed ^ at as u8; 32]))
                .collect(),
        )
    }

    fn at(file: u32, group: u32) -> GroupAt {
        let file = FileId(file);
        GroupAt { file, group }
    }

    #[test]
    fn only_hashes_of_the_content_are_kept() {
        let groups = Groups::new(1 << 20);
        let (good, bad) = (list(1, 300), list(2, 300));
        let content = good.content();
        let [good, bad] = [good, bad].map(|list| split(&list, &list.content()).unwrap());
        let put = |place, group: &Group| groups.put(at(1, place), group.clone(), &content, 300);
        assert!(put(0, &bad[0]).is_none() && put(1, &good[0]).is_none());
        assert!(groups.get(at(1, 0)).is_none() && groups.get(at(1, 1)).is_none());
        assert!(put(1, &good[1]).is_some());
        assert_eq!(*groups.get(at(1, 1)).unwrap(), good[1]);
        assert!(groups.get(at(1, 0)).is_none());
    }

    #[test]
    fn a_long_file_takes_no_more_memory_than_may_be() {
        let bytes_max = 10 * 9000;
        let groups = Groups::new(bytes_max);
        let blocks = 100 * GROUP_BLOCKS;
        let all = list(5, blocks);
        let content = all.content();
        for (number, group) in (0..).zip(split(&all, &content).unwrap()) {
            assert!(groups.put(at(1, number), group, &content, blocks).is_some());
            assert!(groups.get(at(1, 0)).is_some(), "used all the time");
            assert!(groups.bytes() <= bytes_max);
        }
        assert!(groups.get(at(1, groups_of(blocks) - 1)).is_some());
        assert!(groups.get(at(1, 1)).is_none());
    }
}
