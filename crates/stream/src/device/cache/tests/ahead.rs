//! Expected blocks are read in few pieces and in bounded memory.

use super::*;
use crate::device::cache::{Storage, StorageError};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts reads of a storage.
struct Counted(MemoryStorage, Arc<AtomicU64>);

impl Storage for Counted {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        self.0.list()
    }
    fn create(&self, name: &str) -> Result<(), StorageError> {
        self.0.create(name)
    }
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.0.append(name, bytes)
    }
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(name, offset, into)
    }
    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.0.length(name)
    }
    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.0.delete(name)
    }
    fn sync(&self, name: &str) -> Result<(), StorageError> {
        self.0.sync(name)
    }
}

fn reopened(storage: &MemoryStorage) -> (BlockCache, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Counted(storage.clone(), Arc::clone(&reads));
    let options = CacheOptions {
        bytes_max: 16 << 20,
        ..OPTIONS
    };
    let cache = BlockCache::open(Box::new(counted), &options).unwrap();
    reads.store(0, Ordering::Relaxed);
    (cache, reads)
}

#[test]
fn many_blocks_cost_few_reads() {
    let storage = MemoryStorage::default();
    let (cache, _) = reopened(&storage);
    let blocks: Vec<_> = (0..1800).map(block).collect();
    put_all(&cache, &blocks);
    drop(cache);
    let (cache, reads) = reopened(&storage);
    let hashes: Vec<_> = blocks.iter().map(|block| block.0).collect();
    cache.expect(&hashes);
    // Also if they are expected in another order than they lie.
    assert_eq!(there(&cache, &blocks), 1800);
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads < 40, "{reads}");
    assert!(cache.counters().memory_bytes < 8 << 20);
}

#[test]
fn a_read_of_an_unexpected_block_gets_it() {
    let storage = MemoryStorage::default();
    let (cache, _) = reopened(&storage);
    let blocks: Vec<_> = (0..3000).map(block).collect();
    put_all(&cache, &blocks);
    drop(cache);
    let (cache, _) = reopened(&storage);
    let mut hashes: Vec<_> = blocks.iter().map(|block| block.0).collect();
    hashes.push(block(100_000).0);
    for _ in 0..3 {
        cache.expect(&hashes);
    }
    // The first half is never requested.
    assert_eq!(there(&cache, &blocks[1500..]), 1500);
    assert_eq!(there(&cache, &blocks[..10]), 10);
    assert!(cache.counters().memory_bytes < 8 << 20);
    drop(cache);
}

#[test]
fn several_threads_get_their_blocks_at_once() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    let blocks: Vec<_> = (0..600).map(block).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, blocks) = (&cache, &blocks);
            scope.spawn(move || {
                for (number, (hash, bytes)) in blocks.iter().enumerate() {
                    if number % 4 == thread {
                        cache.put(hash, bytes);
                    } else if let Some(found) = cache.get(hash, bytes.len()) {
                        assert_eq!(&found, bytes);
                    }
                    if number % 100 == thread {
                        cache.expect(&[*hash]);
                        cache
                            .set_note(&format!("plan-{thread}"), &[1; 500])
                            .unwrap();
                    }
                }
            });
        }
    });
    cache.flush();
    assert_eq!(there(&cache, &blocks), 600);
}
