//! Blocks that were put are found, also by the next process, within the budget.

use super::*;

#[test]
fn a_put_block_is_found_at_once_and_after_opening_again() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    let blocks: Vec<_> = (0..100)
        .map(|number| sized_block(number, 1 + (number as usize * 977) % BLOCK_BYTES))
        .collect();
    for (hash, bytes) in &blocks {
        assert!(!cache.has(hash));
        cache.put(hash, bytes);
        assert!(cache.has(hash));
        assert_eq!(cache.get(hash, bytes.len()).as_ref(), Some(bytes));
    }
    cache.flush();
    for (hash, bytes) in &blocks {
        assert_eq!(cache.get(hash, bytes.len()).as_ref(), Some(bytes));
        assert_eq!(cache.get(hash, bytes.len() + 1), None);
    }
    cache.set_note("version", b"7").unwrap();
    drop(cache);
    let cache = open(&storage);
    let counters = cache.counters();
    assert_eq!((counters.blocks, counters.damaged), (100, 0));
    assert_eq!(cache.note("version").unwrap(), b"7");
    for (hash, bytes) in &blocks {
        assert_eq!(cache.get(hash, bytes.len()).as_ref(), Some(bytes));
    }
    assert_eq!(cache.get(&block(1000).0, BLOCK_BYTES), None);
    assert_eq!(cache.counters().hits, 100);
    assert_eq!(cache.counters().misses, 1);
}

#[test]
fn the_budget_is_never_exceeded_and_used_blocks_stay() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    let (favourite, bytes) = block(0);
    for number in 0..4000 {
        let (hash, bytes) = block(number);
        cache.put(&hash, &bytes);
        assert!(storage.used_bytes() <= OPTIONS.bytes_max);
        if number % 200 == 199 {
            cache.flush();
            assert!(cache.get(&favourite, BLOCK_BYTES).is_some(), "{number}");
        }
    }
    cache.flush();
    assert!(storage.used_bytes() <= OPTIONS.bytes_max);
    let counters = cache.counters();
    assert_eq!(counters.bytes, storage.used_bytes());
    assert_eq!((counters.dropped, counters.failures), (0, 0));
    assert!(
        counters.evicted > 1000 && counters.blocks > 500,
        "{counters:?}"
    );
    assert_eq!(cache.get(&favourite, BLOCK_BYTES), Some(bytes));
    let (newest, bytes) = block(3999);
    assert_eq!(cache.get(&newest, BLOCK_BYTES), Some(bytes));
    assert_eq!(cache.get(&block(1).0, BLOCK_BYTES), None);
}
