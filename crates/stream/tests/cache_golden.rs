//! A cache that an earlier device wrote must be readable by this one. Its salts are random, so its bytes are not
//! compared with new ones. `KEEL_GOLDEN_WRITE=1 cargo test -p stream --test it cache_golden::` writes new files, in the
//! format of `CACHE.md`.

use crate::common;
use crate::common::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stream::BlockHash;
use stream::device::Cache;
use stream::device::cache::{BlockCache, CacheOptions};

/// The files, in the order of their names.
const FILES: [&str; 3] = ["blocks-0000000001", "notes-0000000002", "versions"];

const NOTES: [(&str, &[u8]); 3] = [
    ("seen-0123456789abcdef", b"publisher 00\nversion 7\n"),
    ("manifest-0123456789abcdef", &[9; 2000]),
    ("hashes-0123456789abcdef", &[8; 64]),
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cache-1")
}

/// Ten blocks that compress well, then a short one that does not.
fn blocks() -> Vec<(BlockHash, Arc<[u8]>)> {
    let filled = (0..10).map(|number| vec![number; 4096]);
    let short = common::bytes(333, 5);
    filled
        .chain([short])
        .map(|bytes| (BlockHash::of(&bytes), Arc::from(bytes)))
        .collect()
}

fn open(place: &Path) -> BlockCache {
    BlockCache::in_directory(place, &CacheOptions::default()).unwrap()
}

/// Blocks in two records with an index behind each, a note that was replaced, and one that was removed.
fn make(place: &Path) {
    let cache = open(place);
    let all = blocks();
    for part in [&all[..10], &all[10..]] {
        for (hash, bytes) in part {
            cache.put(hash, bytes);
        }
        cache.flush();
    }
    cache
        .set_note(NOTES[0].0, b"publisher 00\nversion 6\n")
        .unwrap();
    cache.set_note("removed", b"1").unwrap();
    cache.set_note("removed", b"").unwrap();
    for (name, value) in NOTES {
        cache.set_note(name, value).unwrap();
    }
    cache.flush();
}

#[test]
fn a_cache_of_format_1_is_read() {
    let golden = golden();
    if std::env::var_os("KEEL_GOLDEN_WRITE").is_some() {
        fs::remove_dir_all(&golden).ok();
        make(&golden);
    }
    let scratch = Scratch::new("cache-golden");
    let place = scratch.path("cache");
    fs::create_dir_all(&place).unwrap();
    let mut names: Vec<_> = fs::read_dir(&golden)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, FILES);
    for name in FILES {
        fs::copy(golden.join(name), place.join(name)).unwrap();
    }
    let cache = open(&place);
    assert_eq!(cache.counters().blocks, 11);
    for (hash, bytes) in blocks() {
        assert_eq!(cache.get(&hash, bytes.len()), Some(bytes));
    }
    for (name, value) in NOTES {
        assert_eq!(cache.note(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(cache.note("removed"), None);
    assert_eq!(cache.counters().damaged, 0);
    drop(cache);
    for name in FILES {
        let (before, after) = (fs::read(golden.join(name)), fs::read(place.join(name)));
        assert_eq!(before.unwrap(), after.unwrap(), "reading changes nothing");
    }
    // The version is stored in each of the places.
    fs::remove_file(place.join(FILES[1])).unwrap();
    let cache = open(&place);
    assert_eq!(cache.note(NOTES[0].0), None);
    assert_eq!(cache.notes(NOTES[0].0), [NOTES[0].1]);
}
