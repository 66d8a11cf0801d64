//! The disk part: what is known of the published version without the server. That is its manifest, hashes in memory,
//! and what the cache on the device's disk keeps: blocks, hashes, and what tasks needed.
//!
//! **Must not know:** connections, the buffer.
//!
//! **Files:** `hashes.rs` the hashes in memory, `notes.rs` what the cache keeps beside blocks. The cache itself is
//! `device/cache`.

mod hashes;
pub(super) mod notes;

use crate::block::{BlockAt, BlockHash, FileId, block_bytes};
use crate::device::settings::{HASHES_BYTES_MIN, PLAN_BLOCKS_MAX};
use crate::device::{Cache, CacheError, Lists};
use crate::group::{Group, GroupAt};
use crate::manifest::{Kind, Manifest};
use crate::sync::locked;
use hashes::Groups;
use notes::Paths;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

/// The maximum number of tasks whose plans are kept in memory.
const PLANS_MAX: usize = 8;

/// The bits of a mode that let a file be executed.
const EXECUTABLE: u16 = 0o111;

/// The disk part.
pub(super) struct Disk {
    pub manifest: Arc<Manifest>,
    paths: Paths,
    cache: Option<Arc<dyn Cache>>,
    groups: Groups,
    plans: Mutex<VecDeque<Plan>>,
}

/// What a task needed, as far as it is known here.
#[derive(Clone)]
struct Plan {
    task: FileId,
    blocks: Arc<Vec<BlockAt>>,
    // A start in which no read failed, or a list of the server, has taught it. The cache keeps no other plans, so that
    // a note needs no mark.
    is_whole: bool,
}

impl Disk {
    pub fn new(manifest: Manifest, cache: Option<Arc<dyn Cache>>, hashes_bytes_max: usize) -> Self {
        Self {
            paths: Paths::of(&manifest),
            manifest: Arc::new(manifest),
            cache,
            groups: Groups::new(hashes_bytes_max.max(HASHES_BYTES_MIN)),
            plans: Mutex::default(),
        }
    }

    pub fn cache(&self) -> Option<&dyn Cache> {
        self.cache.as_deref()
    }

    /// Returns the path of a file from the root, without a leading slash.
    pub fn path(&self, file: FileId) -> Vec<u8> {
        self.paths.get(&self.manifest, file)
    }

    /// Returns the size of a block, in bytes. `None`: there is no such file.
    pub fn block_bytes(&self, at: BlockAt) -> Option<usize> {
        let (size_bytes, _) = self.manifest.file(at.file)?;
        Some(block_bytes(size_bytes, at.index))
    }

    /// Returns the hash that a block must have, from memory or from the cache.
    pub fn hash(&self, at: BlockAt) -> Option<BlockHash> {
        self.group(GroupAt::from(at))?.get(at.index)
    }

    /// Returns the hash that a block must have, if it is in memory.
    pub fn hash_in_memory(&self, at: BlockAt) -> Option<BlockHash> {
        self.groups.get(GroupAt::from(at))?.get(at.index)
    }

    /// Returns a group of hashes, from memory or from the cache.
    pub fn group(&self, at: GroupAt) -> Option<Arc<Group>> {
        if let Some(group) = self.groups.get(at) {
            return Some(group);
        }
        let cache = self.cache()?;
        let (_, content) = self.manifest.file(at.file)?;
        let blocks = self.manifest.blocks(at.file);
        let group = notes::group(cache, &content, blocks, at.group)?;
        self.groups.put(at, group, &content, blocks)
    }

    /// Keeps a group of hashes in memory. `None`: it does not belong to the content of this file.
    pub fn put_group(&self, at: GroupAt, group: Group) -> Option<()> {
        let (_, content) = self.manifest.file(at.file)?;
        let blocks = self.manifest.blocks(at.file);
        self.groups.put(at, group, &content, blocks).map(drop)
    }

    /// Keeps a group of hashes in the cache, if it is still in memory. If it was evicted, it is requested when it is
    /// needed again.
    pub fn keep_group(&self, at: GroupAt) -> Result<(), CacheError> {
        match (self.groups.get(at), self.cache()) {
            (Some(group), Some(cache)) => notes::set_group(cache, &self.manifest, at, &group),
            _ => Ok(()),
        }
    }

    /// Keeps a group of hashes in the cache, unless it is there. Returns false if the hashes are unknown.
    pub fn keep_list(&self, at: GroupAt) -> Result<bool, CacheError> {
        let (Some(cache), Some(group)) = (self.cache(), self.group(at)) else {
            return Ok(false);
        };
        if !self.has_list(at) {
            notes::set_group(cache, &self.manifest, at, &group)?;
        }
        Ok(true)
    }

    /// Whether the cache has a group of hashes.
    pub fn has_list(&self, at: GroupAt) -> bool {
        let has = |cache: &dyn Cache| notes::keeps_group(cache, &self.manifest, at);
        self.cache().is_some_and(has)
    }

    /// Returns what a task needed last time.
    pub fn plan(&self, task: FileId) -> Arc<Vec<BlockAt>> {
        self.known_plan(task).blocks
    }

    /// Returns what a task needed, unless only starts that failed have taught it.
    pub fn whole_plan(&self, task: FileId) -> Arc<Vec<BlockAt>> {
        let plan = self.known_plan(task);
        match plan.is_whole {
            true => plan.blocks,
            false => Arc::default(),
        }
    }

    // From memory or from the cache.
    fn known_plan(&self, task: FileId) -> Plan {
        let plans = locked(&self.plans);
        if let Some(plan) = plans.iter().find(|plan| plan.task == task) {
            return plan.clone();
        }
        drop(plans);
        let note = self
            .cache()
            .and_then(|cache| notes::plan(cache, &self.path(task)));
        let blocks = note.map(|note| notes::plan_blocks(&self.manifest, &note, PLAN_BLOCKS_MAX));
        let blocks = blocks.unwrap_or_default();
        Plan {
            task,
            is_whole: !blocks.is_empty(),
            blocks: Arc::new(blocks),
        }
    }

    /// Returns the paths of noted programs, each with whether the cache has all that it needed and this version has.
    /// Reads each of these notes.
    pub fn programs(&self) -> Vec<(Vec<u8>, bool)> {
        let Some(cache) = self.cache() else {
            return Vec::new();
        };
        let nodes = (0..).zip(&self.manifest.nodes);
        let programs = nodes.filter(|(_, node)| {
            matches!(node.kind, Kind::File { .. }) && node.mode & EXECUTABLE != 0
        });
        let noted = programs.filter_map(|(node, _)| {
            let path = self.path(FileId(node));
            let note = notes::plan(cache, &path)?;
            let blocks = notes::plan_blocks(&self.manifest, &note, PLAN_BLOCKS_MAX);
            let is_whole = blocks.iter().all(|at| self.has_with_list(*at));
            Some((path, is_whole))
        });
        noted.collect()
    }

    /// Keeps in memory what a task needed. Returns it if the cache must keep it, too. A start that failed
    /// (`is_whole` is false) only adds to a whole plan. Without one, what it has read stays in memory.
    pub fn set_plan(
        &self,
        task: FileId,
        blocks: Vec<BlockAt>,
        mut is_whole: bool,
    ) -> Option<Arc<Vec<BlockAt>>> {
        if blocks.is_empty() {
            return None;
        }
        let whole = match is_whole {
            true => Arc::default(),
            false => self.whole_plan(task),
        };
        if !whole.is_empty() {
            let known: HashSet<BlockAt> = blocks.iter().copied().collect();
            if !whole.iter().all(|at| known.contains(at)) {
                return None;
            }
            is_whole = true;
        }
        let blocks = Arc::new(blocks);
        let mut plans = locked(&self.plans);
        let before = plans.iter().position(|plan| plan.task == task);
        let is_new = match before.and_then(|at| plans.remove(at)) {
            Some(before) => before.blocks != blocks || !before.is_whole,
            None => true,
        };
        plans.truncate(PLANS_MAX - 1);
        plans.push_front(Plan {
            task,
            blocks: Arc::clone(&blocks),
            is_whole,
        });
        (is_new && is_whole && self.cache.is_some()).then_some(blocks)
    }

    /// Keeps in the cache what a task needed.
    pub fn keep_plan(&self, task: FileId, plan: &[BlockAt]) -> Result<(), CacheError> {
        let Some(cache) = self.cache() else {
            return Ok(());
        };
        let bytes = notes::plan_bytes(&self.manifest, &self.paths, plan);
        notes::set_plan(cache, &self.path(task), &bytes)
    }

    /// Returns a block from the cache.
    pub fn get(&self, at: BlockAt) -> Option<Arc<[u8]>> {
        let cache = self.cache()?;
        cache.get(&self.hash(at)?, self.block_bytes(at)?)
    }

    /// Keeps verified blocks in the cache.
    pub fn put(&self, hashes: &[BlockHash], pages: &[Arc<[u8]>]) {
        if let Some(cache) = self.cache() {
            for (hash, page) in hashes.iter().zip(pages) {
                cache.put(hash, page);
            }
        }
    }

    /// Whether the cache has a block, as far as is known without reading it.
    pub fn has(&self, at: BlockAt) -> bool {
        let Some(cache) = self.cache() else {
            return false;
        };
        self.hash(at).is_some_and(|hash| cache.has(&hash))
    }

    /// Whether the cache has a block and its list of hashes: hashes that are only in memory are useless to the next
    /// start.
    pub fn has_with_list(&self, at: BlockAt) -> bool {
        self.has(at) && self.has_list(at.into())
    }

    /// Returns those of these blocks that the cache has, with their hashes. Adjacent blocks share one lookup of their
    /// group, and only one group is held at a time.
    pub fn cached(&self, blocks: &[BlockAt]) -> Vec<(BlockAt, BlockHash)> {
        let Some(cache) = self.cache() else {
            return Vec::new();
        };
        let mut last: Option<(GroupAt, Option<Arc<Group>>)> = None;
        let mut hash_of = |at: BlockAt| {
            let group = GroupAt::from(at);
            if last.as_ref().is_none_or(|(found, _)| *found != group) {
                last = Some((group, self.group(group)));
            }
            last.as_ref()?.1.as_ref()?.get(at.index)
        };
        let with_hash = |at: &BlockAt| Some((*at, hash_of(*at)?));
        let known = blocks.iter().filter_map(with_hash);
        known.filter(|(_, hash)| cache.has(hash)).collect()
    }

    /// Returns the lists of hashes that a cache needs for blocks.
    pub fn lists_of(&self, blocks: &[BlockAt]) -> Lists {
        notes::lists_of(&self.manifest, blocks)
    }

    /// Returns the bytes of memory that the hashes take.
    pub fn hashes_bytes(&self) -> usize {
        self.groups.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::ContentId;
    use crate::device::cache::{BlockCache, CacheOptions, MemoryStorage};
    use crate::manifest::{Name, Node};

    const TASK: FileId = FileId(1);

    fn manifest() -> Manifest {
        let node = |kind| Node {
            kind,
            mode: 0o755,
            user: 0,
            group: 0,
            modified_s: 0,
            modified_ns: 0,
        };
        let task = Kind::File {
            size_bytes: 40_000,
            content: ContentId([0; 32]),
        };
        Manifest {
            version: 1,
            nodes: vec![node(Kind::Directory), node(task)],
            names: vec![Name {
                directory: FileId(0),
                name: b"task".as_slice().into(),
                node: TASK,
            }],
        }
    }

    fn blocks(indexes: &[u32]) -> Vec<BlockAt> {
        let at = |index: &u32| BlockAt {
            file: TASK,
            index: *index,
        };
        indexes.iter().map(at).collect()
    }

    /// Teaches a plan, and returns whether the cache keeps it from now on.
    fn is_noted(disk: &Disk, indexes: &[u32], is_whole: bool) -> bool {
        let kept = disk.set_plan(TASK, blocks(indexes), is_whole);
        if let Some(kept) = &kept {
            disk.keep_plan(TASK, kept).unwrap();
        }
        kept.is_some()
    }

    #[test]
    fn blocks_of_only_a_failed_start_are_not_noted() {
        let storage = Box::new(MemoryStorage::default());
        let cache = BlockCache::open(storage, &CacheOptions::default()).unwrap();
        let cache: Arc<dyn Cache> = Arc::new(cache);
        let open = || Disk::new(manifest(), Some(Arc::clone(&cache)), 0);
        let disk = open();
        assert!(!is_noted(&disk, &[0, 1], false));
        assert_eq!(*disk.plan(TASK), blocks(&[0, 1]), "the next start uses it");
        assert!(disk.whole_plan(TASK).is_empty());
        assert!(open().plan(TASK).is_empty());
        // The same blocks, from a whole start.
        assert!(is_noted(&disk, &[0, 1], true));
        assert_eq!(*open().whole_plan(TASK), blocks(&[0, 1]));
        // A start that fails adds to it, also as the first one of a device.
        assert!(is_noted(&disk, &[0, 1, 2], false));
        let disk = open();
        assert!(is_noted(&disk, &[0, 1, 2, 3], false));
        assert_eq!(*open().whole_plan(TASK), blocks(&[0, 1, 2, 3]));
        // It takes nothing away.
        assert!(!is_noted(&disk, &[0, 4], false));
        assert_eq!(*disk.whole_plan(TASK), blocks(&[0, 1, 2, 3]));
    }
}
