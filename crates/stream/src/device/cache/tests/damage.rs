//! Damage costs only the damaged data, is detected, and the data can be written again.

use super::*;

fn blocks(numbers: std::ops::Range<u64>) -> Vec<(BlockHash, Arc<[u8]>)> {
    numbers.map(block).collect()
}

#[test]
fn a_damaged_record_costs_only_its_blocks_and_is_written_anew() {
    let storage = MemoryStorage::default();
    let blocks = blocks(0..320);
    let cache = open(&storage);
    put_all(&cache, &blocks);
    drop(cache);
    let name = storage.names()[0].clone();
    storage.damage(&name, |bytes| bytes[100_000] ^= 1);
    let cache = open(&storage);
    assert_eq!(cache.counters().blocks, 320);
    assert_eq!(there(&cache, &blocks), 288);
    assert_eq!(cache.counters().damaged, 32);
    let lost: Vec<_> = blocks
        .iter()
        .filter(|(hash, _)| !cache.has(hash))
        .cloned()
        .collect();
    assert_eq!(lost.len(), 32);
    put_all(&cache, &lost);
    assert_eq!(there(&cache, &blocks), 320);
    drop(cache);
    let cache = open(&storage);
    assert_eq!(there(&cache, &blocks), 320);
    assert_eq!(cache.counters().damaged, 0);
}

#[test]
fn a_block_damaged_unread_is_written_again_when_it_arrives_again() {
    let storage = MemoryStorage::default();
    let blocks = blocks(0..320);
    let cache = open(&storage);
    put_all(&cache, &blocks);
    drop(cache);
    let name = storage.names()[0].clone();
    storage.damage(&name, |bytes| bytes[100_000] ^= 1);
    let cache = open(&storage);
    put_all(&cache, &blocks);
    let counters = cache.counters();
    assert_eq!((counters.damaged, counters.written), (32, 32));
    drop(cache);
    let cache = open(&storage);
    assert_eq!(there(&cache, &blocks), 320);
    assert_eq!(cache.counters().damaged, 0);
}

#[test]
fn a_log_without_its_index_is_found_by_its_headers_around_damage() {
    let storage = MemoryStorage::default();
    let blocks = blocks(0..320);
    let cache = open(&storage);
    put_all(&cache, &blocks);
    drop(cache);
    let name = storage.names()[0].clone();
    storage.damage(&name, |bytes| {
        // Damage the trailer and the first half of the file's header.
        let end = bytes.len();
        bytes[end - 1] ^= 1;
        bytes[3] ^= 1;
        // Damage a record header in the middle.
        let header = bytes
            .windows(4)
            .enumerate()
            .filter(|(_, four)| *four == b"KSrc")
            .nth(1)
            .unwrap()
            .0;
        bytes[header + 9] ^= 1;
    });
    let cache = open(&storage);
    assert_eq!(there(&cache, &blocks), 288);
    put_all(&cache, &blocks);
    assert_eq!(there(&cache, &blocks), 320);
    drop(cache);
    assert_eq!(there(&open(&storage), &blocks), 320);
}

#[test]
fn blocks_of_a_cut_log_count_as_lost_once() {
    let storage = MemoryStorage::default();
    let (before, after) = (blocks(0..160), blocks(160..320));
    let cache = open(&storage);
    put_all(&cache, &before);
    let name = storage.names()[0].clone();
    // Cut the file in the middle of a record, while the cache runs.
    storage.damage(&name, |bytes| bytes.truncate(bytes.len() / 2 + 5));
    put_all(&cache, &after);
    assert_eq!(there(&cache, &after), 160);
    let left = there(&cache, &before);
    assert!(left > 32 && left < 128, "{left}");
    assert_eq!(cache.counters().damaged as usize, 160 - left);
    drop(cache);
    let cache = open(&storage);
    assert_eq!(there(&cache, &after), 160);
    assert_eq!(there(&cache, &before), left);
    put_all(&cache, &before);
    drop(cache);
    let cache = open(&storage);
    assert_eq!(there(&cache, &before) + there(&cache, &after), 320);
    assert_eq!(cache.counters().damaged, 0);
}

#[test]
fn a_file_that_vanishes_costs_only_its_blocks() {
    let storage = MemoryStorage::default();
    let (before, after) = (blocks(0..64), blocks(64..128));
    let cache = open(&storage);
    put_all(&cache, &before);
    let name = storage.names()[0].clone();
    crate::device::cache::Storage::delete(&storage, &name).unwrap();
    put_all(&cache, &after);
    assert_eq!(cache.counters().damaged, 64);
    assert!(cache.failure().unwrap().contains(&name));
    assert_eq!(there(&cache, &before), 0);
    assert_eq!(there(&cache, &after), 64);
    assert_eq!(cache.counters().damaged, 64);
    assert_eq!(cache.counters().bytes, storage.used_bytes());
    drop(cache);
    assert_eq!(there(&open(&storage), &after), 64);
}

#[test]
fn an_unreadable_file_is_reported_at_the_start() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    put_all(&cache, &blocks(0..64));
    drop(cache);
    assert!(open(&storage).failure().is_none());
    let name = storage.names()[0].clone();
    storage.damage(&name, |bytes| bytes[..64].fill(0));
    let cache = open(&storage);
    let counters = cache.counters();
    assert_eq!((counters.blocks, counters.damaged), (0, 1));
    assert!(cache.failure().unwrap().contains(&name));
    put_all(&cache, &blocks(0..64));
    assert_eq!(there(&cache, &blocks(0..64)), 64);
    drop(cache);
    // A log that was begun and not written to has lost nothing.
    storage.damage(&name, |bytes| bytes.truncate(20));
    let cache = open(&storage);
    assert_eq!(cache.counters().damaged, 0);
    assert!(cache.failure().is_none());
    assert_eq!(there(&cache, &blocks(0..64)), 64);
}

#[test]
fn a_full_disk_makes_the_cache_smaller_and_stops_no_note() {
    let storage = MemoryStorage::new(1 << 20);
    let cache = open(&storage);
    let all = blocks(0..1500);
    for part in all.chunks(100) {
        put_all(&cache, part);
        assert_eq!(
            cache.get(&part[99].0, BLOCK_BYTES).as_ref(),
            Some(&part[99].1)
        );
    }
    assert!(storage.used_bytes() <= 1 << 20);
    cache.set_note("manifest-a", &[1; 300_000]).unwrap();
    cache.set_note("manifest-a", &[2; 300_000]).unwrap();
    drop(cache);
    let cache = open(&storage);
    assert_eq!(cache.note("manifest-a").unwrap(), [2; 300_000]);
    there(&cache, &all);
    // Nothing can be written.
    storage.set_capacity(0);
    for name in storage.names() {
        storage.damage(&name, Vec::clear);
    }
    put_all(&cache, &blocks(5000..5064));
    assert_eq!(there(&cache, &blocks(5000..5064)), 0);
    let counters = cache.counters();
    assert_eq!(counters.dropped, 64);
    assert!(counters.failures > 0);
    assert!(cache.failure().unwrap().contains("full"));
    assert!(cache.set_note("version", b"1").is_err());
    // Then writes work again.
    storage.set_capacity(1 << 20);
    put_all(&cache, &blocks(6000..6064));
    assert_eq!(there(&cache, &blocks(6000..6064)), 64);
    cache.set_note("version", b"1").unwrap();
}

#[test]
fn logs_on_a_full_disk_are_smaller_until_it_has_room_again() {
    let options = CacheOptions {
        bytes_max: 32 << 20,
        ..OPTIONS
    };
    let open =
        |storage: &MemoryStorage| BlockCache::open(Box::new(storage.clone()), &options).unwrap();
    let log_bytes_max = |cache: &BlockCache| cache.counters().log_bytes_max;
    let longest = |storage: &MemoryStorage| {
        let files = crate::device::cache::Storage::list(storage).unwrap();
        files.into_iter().map(|(_, bytes)| bytes).max().unwrap()
    };
    let storage = MemoryStorage::new(3 << 20);
    let cache = open(&storage);
    assert_eq!(log_bytes_max(&cache), 2 << 20);
    // The first log is full, the second one reaches the end of the disk.
    let mut number = 0;
    while cache.counters().disk_full == 0 {
        put_all(&cache, &blocks(number..number + 32));
        number += 32;
    }
    assert_eq!(log_bytes_max(&cache), 1 << 20);
    put_all(&cache, &blocks(number..number + 4000));
    number += 4000;
    let counters = cache.counters();
    assert!(counters.log_bytes_max <= 512 << 10, "{counters:?}");
    assert!(longest(&storage) <= 1 << 20);
    // Most of the disk is used, and the last blocks are there.
    assert!(counters.bytes > 2 << 20, "{counters:?}");
    assert_eq!(there(&cache, &blocks(number - 600..number)), 600);
    // The limit never falls below the minimum, even with hardly any room.
    storage.set_capacity(300 << 10);
    put_all(&cache, &blocks(number..number + 1000));
    number += 1000;
    assert_eq!(log_bytes_max(&cache), 256 << 10);
    assert_eq!(there(&cache, &blocks(number - 32..number)), 32);
    // There is room again: the logs grow to the budget's limit, and logs of every size are read.
    storage.set_capacity(u64::MAX);
    put_all(&cache, &blocks(number..number + 4000));
    assert_eq!(log_bytes_max(&cache), 2 << 20);
    let kept = cache.counters().blocks;
    assert!(kept > 4000, "{kept}");
    drop(cache);
    let cache = open(&storage);
    assert_eq!(cache.counters().blocks, kept);
    assert_eq!(there(&cache, &blocks(number..number + 4000)), 4000);
    assert_eq!(cache.counters().damaged, 0);
}

#[test]
fn a_cache_that_cannot_be_written_is_read() {
    let storage = MemoryStorage::default();
    let (before, after) = (blocks(0..64), blocks(64..128));
    let cache = open(&storage);
    put_all(&cache, &before);
    drop(cache);
    storage.set_read_only(true);
    let cache = open(&storage);
    put_all(&cache, &after);
    assert_eq!(there(&cache, &before), 64);
    assert_eq!(there(&cache, &after), 0);
    assert_eq!(cache.counters().dropped, 64);
    assert!(cache.failure().unwrap().contains("written"));
}
