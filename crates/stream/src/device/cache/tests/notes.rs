//! Values by name: they are replaced, bounded, and blocks are evicted for them.

use super::*;
use crate::device::CacheError;

#[test]
fn notes_are_replaced_removed_and_refused() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    for round in 0..200_u32 {
        let value = vec![round as u8; 20_000];
        cache.set_note("manifest-1", &value).unwrap();
        assert_eq!(cache.note("manifest-1").unwrap(), value);
        cache.set_note("seen-1", &round.to_le_bytes()).unwrap();
    }
    // Outdated values do not pile up.
    assert!(storage.used_bytes() < 1 << 20, "{}", storage.used_bytes());
    let changes = storage.changes();
    cache.set_note("seen-1", &199_u32.to_le_bytes()).unwrap();
    assert_eq!(storage.changes(), changes);
    cache.set_note("gone", b"x").unwrap();
    cache.set_note("gone", b"").unwrap();
    for name in ["", "a/b", "A", "\u{e9}", &"n".repeat(101)] {
        let refused = cache.set_note(name, b"x");
        assert!(matches!(refused, Err(CacheError::Refused(_))), "{name}");
    }
    let large = cache.set_note("manifest-2", &vec![0; 2 << 20]);
    assert!(matches!(large, Err(CacheError::Full(_))));
    drop(cache);
    let cache = open(&storage);
    assert_eq!(cache.note("manifest-1").unwrap(), [199; 20_000]);
    assert_eq!(cache.note("seen-1").unwrap(), 199_u32.to_le_bytes());
    assert_eq!(cache.note("gone"), None);
}

#[test]
fn lists_go_when_they_are_many_and_manifests_stay() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    cache.set_note("manifest-1", &[7; 50_000]).unwrap();
    for number in 0..300_u32 {
        let name = format!("hashes-{number}");
        cache.set_note(&name, &vec![number as u8; 3000]).unwrap();
        assert!(cache.note("hashes-0").is_some(), "it is used all the time");
    }
    assert_eq!(cache.note("manifest-1").unwrap(), [7; 50_000]);
    assert!(cache.note("hashes-299").is_some());
    assert!(cache.note("hashes-1").is_none());
    assert!(storage.used_bytes() < 2 << 20);
}

#[test]
fn blocks_give_way_to_notes() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    let blocks: Vec<_> = (0..3000).map(block).collect();
    put_all(&cache, &blocks);
    for round in 0..5 {
        cache
            .set_note("manifest-1", &vec![round; 1_000_000])
            .unwrap();
        assert!(storage.used_bytes() <= OPTIONS.bytes_max);
    }
    assert_eq!(cache.note("manifest-1").unwrap(), vec![4; 1_000_000]);
    assert!(there(&cache, &blocks) > 100);
}

#[test]
fn small_notes_outlive_the_file_under_them_and_a_damaged_one_its_newest_value() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    cache.set_note("seen-1", b"7").unwrap();
    cache.set_note("manifest-1", &[1; 5000]).unwrap();
    let name = storage.names()[0].clone();
    storage.damage(&name, |bytes| bytes.truncate(70));
    cache.set_note("other", b"8").unwrap();
    drop(cache);
    let cache = open(&storage);
    assert_eq!(cache.note("seen-1").unwrap(), b"7");
    assert_eq!(cache.note("other").unwrap(), b"8");
    assert_eq!(cache.note("manifest-1"), None);
    cache.set_note("manifest-1", &[1; 5000]).unwrap();
    cache.set_note("manifest-1", &[2; 5000]).unwrap();
    drop(cache);
    let is_log = |name: &&String| name.starts_with("notes");
    let name = storage.names().iter().rfind(is_log).cloned().unwrap();
    storage.damage(&name, |bytes| {
        let end = bytes.len();
        bytes[end - 100] ^= 1;
    });
    assert_eq!(open(&storage).note("manifest-1").unwrap(), [1; 5000]);
}

#[test]
fn a_version_is_kept_in_two_places_of_which_each_is_enough() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    // Written more often than the file of the second place can hold.
    for version in 0..1000_u32 {
        let value = format!("version {version}");
        cache.set_note("seen-1", value.as_bytes()).unwrap();
        assert!(storage.names().len() < 4);
    }
    cache.set_note("seen-2", b"version 5").unwrap();
    assert!(storage.used_bytes() < 1 << 20);
    drop(cache);
    let last: [&[u8]; 1] = [b"version 999"];
    for lost in storage.names() {
        let left = storage.restarted();
        crate::device::cache::Storage::delete(&left, &lost).unwrap();
        let cache = open(&left);
        assert_eq!(cache.notes("seen-1"), last, "without {lost}");
        assert_eq!(cache.notes("seen-2").len(), 1);
        // After another `set_note`, both places have it again.
        for (name, value) in [("seen-1", last[0]), ("seen-2", b"version 5")] {
            cache.set_note(name, value).unwrap();
        }
        drop(cache);
        for lost in left.names() {
            let left = left.restarted();
            crate::device::cache::Storage::delete(&left, &lost).unwrap();
            assert_eq!(open(&left).notes("seen-1"), last);
        }
    }
    // Damage at every byte: a damaged value is not read, and never turns into another value.
    let name = "versions";
    let mut length = 0;
    storage.damage(name, |bytes| length = bytes.len());
    for at in (0..length).step_by(length / 61) {
        let left = storage.restarted();
        left.damage(name, |bytes| bytes[at] ^= 1);
        let cache = open(&left);
        assert_eq!(cache.notes("seen-1")[0], last[0]);
        cache.set_note("seen-1", b"version 1000").unwrap();
        drop(cache);
        for name in left.names().iter().filter(|name| name.starts_with("notes")) {
            crate::device::cache::Storage::delete(&left, name).unwrap();
        }
        assert_eq!(open(&left).notes("seen-1"), [b"version 1000"], "{at}");
    }
}

#[test]
fn a_version_note_fits_on_a_full_disk_into_the_last_block() {
    let storage = MemoryStorage::default();
    let cache = open(&storage);
    cache.set_note("seen-1", b"version 1").unwrap();
    // The existing file can still grow a little.
    storage.set_capacity(storage.used_bytes() + 150);
    cache.set_note("seen-1", &[b'v'; 60]).unwrap();
    drop(cache);
    let cache = open(&storage);
    assert!(cache.notes("seen-1").contains(&vec![b'v'; 60]));
    // No room at all: the error is reported, and the previous value is still there.
    storage.set_capacity(0);
    assert!(cache.set_note("seen-1", &[b'w'; 200]).is_err());
    assert!(cache.failure().unwrap().contains("full"));
    assert!(cache.notes("seen-1").contains(&vec![b'v'; 60]));
}
