//! A full disk: what is written to it, evicted and kept. The tests count written bytes, because these wear flash.

use super::*;
use crate::device::CacheError;
use crate::device::cache::{
    CACHE_BYTES_MIN, Storage, StorageError, cache_bytes_for_blocks, cache_bytes_for_lists,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts written bytes.
#[derive(Clone)]
struct Counting {
    storage: MemoryStorage,
    appends: Arc<AtomicU64>,
    appended_bytes: Arc<AtomicU64>,
}

impl Counting {
    fn new(capacity_bytes: u64) -> Self {
        Self {
            storage: MemoryStorage::new(capacity_bytes),
            appends: Arc::default(),
            appended_bytes: Arc::default(),
        }
    }

    /// Opens a cache whose budget is far above the size of the disk.
    fn open(&self) -> BlockCache {
        let options = CacheOptions {
            bytes_max: 256 << 20,
            ..OPTIONS
        };
        BlockCache::open(Box::new(self.clone()), &options).unwrap()
    }

    fn appends(&self) -> u64 {
        self.appends.load(Ordering::Relaxed)
    }

    fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }
}

impl Storage for Counting {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        self.storage.list()
    }
    fn create(&self, name: &str) -> Result<(), StorageError> {
        self.storage.create(name)
    }
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let before = self.storage.length(name).unwrap_or(0);
        let appended = self.storage.append(name, bytes);
        let added = self.storage.length(name).unwrap_or(0) - before;
        self.appended_bytes.fetch_add(added, Ordering::Relaxed);
        self.appends.fetch_add(1, Ordering::Relaxed);
        appended
    }
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.storage.read(name, offset, into)
    }
    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.storage.length(name)
    }
    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.storage.delete(name)
    }
    fn sync(&self, name: &str) -> Result<(), StorageError> {
        self.storage.sync(name)
    }
}

const LIST_BYTES: usize = 8600;

fn set_list(cache: &BlockCache, number: u32) -> Result<(), CacheError> {
    let name = format!("hashes-c-{number}");
    cache.set_note(&name, &vec![number as u8; LIST_BYTES])
}

#[test]
fn writes_to_a_full_disk_are_a_small_multiple_of_the_arrived_bytes() {
    let disk = Counting::new(4 << 20);
    let cache = disk.open();
    cache.set_note("manifest-a", &[7; 20_000]).unwrap();
    cache.set_note("seen-a", b"version 3").unwrap();
    put_all(&cache, &[block(1)]);
    let lists = 2000;
    for number in 0..lists {
        set_list(&cache, number).ok();
    }
    let given = u64::from(lists) * LIST_BYTES as u64;
    let appended = disk.appended_bytes();
    assert!(appended < 4 * given, "{appended} of {given}");
    // The last list is there, and so are the notes that must stay.
    assert!(cache.note(&format!("hashes-c-{}", lists - 1)).is_some());
    for _ in 0..2 {
        let cache = disk.open();
        assert_eq!(cache.note("manifest-a").unwrap(), [7; 20_000]);
        assert_eq!(cache.notes("seen-a"), [b"version 3"]);
        assert_eq!(cache.counters().damaged, 0);
    }
}

#[test]
fn lists_that_have_filled_a_disk_make_room_for_blocks() {
    let disk = Counting::new(3 << 20);
    let cache = disk.open();
    cache.set_note("manifest-a", &[7; 50_000]).unwrap();
    let mut number = 0;
    while set_list(&cache, number).is_ok() && cache.counters().disk_full == 0 {
        number += 1;
    }
    let blocks: Vec<_> = (0..400).map(block).collect();
    put_all(&cache, &blocks);
    assert_eq!(there(&cache, &blocks), 400);
    assert_eq!(cache.note("manifest-a").unwrap(), [7; 50_000]);
    let failure = cache.failure().unwrap();
    assert!(failure.contains("the disk is full"), "{failure}");
    drop(cache);
    let cache = disk.open();
    assert_eq!(there(&cache, &blocks), 400);
    assert_eq!(cache.note("manifest-a").unwrap(), [7; 50_000]);
}

#[test]
fn a_disk_without_any_room_is_tried_now_and_then_and_used_when_it_has_some() {
    let disk = Counting::new(u64::MAX);
    let cache = disk.open();
    cache.set_note("manifest-a", &[7; 500_000]).unwrap();
    disk.storage.set_capacity(disk.storage.used_bytes() + 3000);
    let (appends, bytes) = (disk.appends(), disk.appended_bytes());
    for number in 0..3000 {
        set_list(&cache, number).unwrap_err();
        if number % 10 == 0 {
            put_all(&cache, &[block(number.into())]);
        }
    }
    let (appends, bytes) = (disk.appends() - appends, disk.appended_bytes() - bytes);
    assert!(appends < 300 && bytes < 1 << 20, "{appends}, {bytes}");
    assert!(cache.counters().failures >= 3000);
    assert_eq!(cache.note("manifest-a").unwrap(), [7; 500_000]);
    disk.storage.set_capacity(u64::MAX);
    let kept = (0..600).filter(|number| set_list(&cache, 9000 + number).is_ok());
    assert!(kept.count() > 300, "soon all is kept again");
}

#[test]
fn the_budget_for_blocks_keeps_them_all() {
    // Blocks that do not compress, so that they take as much room as they have bytes.
    let random = |number: u64| {
        let mut content = vec![0; BLOCK_BYTES];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&number.to_le_bytes());
        hasher.finalize_xof().fill(&mut content);
        (BlockHash::of(&content), Arc::from(content))
    };
    let blocks: Vec<(BlockHash, Arc<[u8]>)> = (0..3000).map(random).collect();
    let options = CacheOptions {
        bytes_max: cache_bytes_for_blocks((blocks.len() * BLOCK_BYTES) as u64),
        ..OPTIONS
    };
    let cache = BlockCache::open(Box::new(MemoryStorage::default()), &options).unwrap();
    put_all(&cache, &blocks);
    assert_eq!(there(&cache, &blocks), blocks.len());
    assert_eq!(cache.counters().evicted, 0);
    let sizes = [0, 1 << 20, 500 << 20, 900 << 20, 5 << 30].map(cache_bytes_for_blocks);
    assert_eq!(sizes[0], CACHE_BYTES_MIN);
    assert!(sizes.is_sorted(), "{sizes:?}");
    assert!(
        sizes.iter().all(|size| size.is_multiple_of(1 << 20)),
        "{sizes:?}"
    );
}

#[test]
fn the_budget_for_lists_is_the_smallest_that_keeps_them() {
    for lists in [1, 86, 800, 2500, 3000, 10_240, 900_000_u64] {
        let bytes = lists * 8784;
        let budget = cache_bytes_for_lists(bytes);
        let share = |budget| super::super::Budget::of(budget).notes_bytes / 3;
        assert!(share(budget) >= bytes, "{lists}");
        let is_least = budget == 4 << 20 || share(budget - (1 << 20)) < bytes;
        assert!(is_least, "{lists}: {}M", budget >> 20);
    }
    // As many lists fit as `lists_max` says.
    let cache = open(&MemoryStorage::default());
    let max = crate::device::Cache::lists_max(&cache).unwrap().bytes;
    let bytes = crate::device::cache::note_bytes("hashes-c-0".len(), LIST_BYTES);
    let count = (max / bytes) as u32;
    for number in 0..count.min(10) {
        set_list(&cache, number).unwrap();
    }
    let name = |number| format!("hashes-c-{number}");
    let is_there = |number: &u32| crate::device::Cache::keeps_note(&cache, &name(*number));
    assert_eq!(
        (0..count.min(10)).filter(is_there).count() as u32,
        count.min(10)
    );
}
