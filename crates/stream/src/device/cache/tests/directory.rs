//! A cache in a directory.

use super::*;
use crate::device::CacheError;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-cache-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_outlives_its_process_and_one_process_has_it_at_a_time() {
    let scratch = Scratch::new();
    let blocks: Vec<_> = (0..200).map(block).collect();
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    fs::write(scratch.0.join("mine.txt"), "not the cache's").unwrap();
    put_all(&cache, &blocks);
    cache.set_note("seen-1", b"3").unwrap();
    let second = BlockCache::in_directory(&scratch.0, &OPTIONS);
    let Err(CacheError::Refused(text)) = second else {
        panic!("two have the same cache")
    };
    assert!(text.contains("another process"));
    drop(cache);
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    let hashes: Vec<_> = blocks.iter().map(|block| block.0).collect();
    cache.expect(&hashes);
    assert_eq!(there(&cache, &blocks), 200);
    assert_eq!(cache.note("seen-1").unwrap(), b"3");
    assert!(scratch.0.join("mine.txt").exists());
}

#[test]
fn a_log_cut_replaced_or_removed_under_the_process_is_survived() {
    let scratch = Scratch::new();
    let (first, second, third) = (
        (0..100).map(block).collect::<Vec<_>>(),
        (100..200).map(block).collect::<Vec<_>>(),
        (200..300).map(block).collect::<Vec<_>>(),
    );
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    put_all(&cache, &first);
    let log = scratch.0.join("blocks-0000000001");
    fs::File::options()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(1000)
        .unwrap();
    put_all(&cache, &second);
    assert_eq!(there(&cache, &second), 100);
    drop(cache);
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    assert_eq!(there(&cache, &second), 100);
    assert_eq!(there(&cache, &first), 0);
    // The current log has another name now; it is removed while it is still open here.
    let log = scratch.0.join("blocks-0000000002");
    fs::remove_file(&log).unwrap();
    put_all(&cache, &third);
    drop(cache);
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    assert_eq!(there(&cache, &third), 100);
    fs::remove_dir_all(&scratch.0).unwrap();
    put_all(&cache, &first);
    assert_eq!(there(&cache, &first), 0);
    assert_eq!(cache.counters().dropped, 100);
    assert!(cache.failure().is_some());
    assert!(cache.set_note("seen-1", b"4").is_err());
    // A new directory of that name does not belong to this process.
    fs::create_dir(&scratch.0).unwrap();
    put_all(&cache, &second);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn a_log_that_is_no_file_at_a_start_is_named_and_costs_only_itself() {
    let replace: [fn(&std::path::Path); 3] = [
        |log| fs::create_dir(log).unwrap(),
        |log| {
            let log = std::ffi::CString::new(log.to_str().unwrap()).unwrap();
            // SAFETY: a plain system call on a string that lives for the call.
            assert_eq!(unsafe { libc::mkfifo(log.as_ptr(), 0o600) }, 0);
        },
        |log| std::os::unix::fs::symlink("/dev/zero", log).unwrap(),
    ];
    for replace in replace {
        let scratch = Scratch::new();
        let blocks: Vec<_> = (0..100).map(block).collect();
        let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
        put_all(&cache, &blocks);
        drop(cache);
        let log = scratch.0.join("blocks-0000000001");
        fs::remove_file(&log).unwrap();
        replace(&log);
        let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
        let failure = cache.failure().unwrap();
        assert!(failure.contains("blocks-0000000001"), "{failure}");
        assert_eq!(cache.counters().damaged, 1);
        // It has the highest number; the next log gets another one.
        put_all(&cache, &blocks);
        assert_eq!(cache.counters().failures, 0);
        drop(cache);
        let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
        assert_eq!(there(&cache, &blocks), 100);
    }
}

#[test]
fn a_directory_with_the_name_of_the_next_log_is_passed_over() {
    let scratch = Scratch::new();
    let blocks: Vec<_> = (0..100).map(block).collect();
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    fs::create_dir(scratch.0.join("blocks-0000000001")).unwrap();
    put_all(&cache, &blocks[..50]);
    assert!(cache.failure().is_some());
    put_all(&cache, &blocks[50..]);
    drop(cache);
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    assert_eq!(there(&cache, &blocks[50..]), 50);
}

#[test]
fn a_directory_that_is_removed_is_called_that() {
    let scratch = Scratch::new();
    let blocks: Vec<_> = (0..100).map(block).collect();
    let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
    put_all(&cache, &blocks[..50]);
    fs::remove_dir_all(&scratch.0).unwrap();
    put_all(&cache, &blocks[50..]);
    let removed = "the directory was removed";
    assert!(cache.failure().unwrap().contains(removed));
    // This also holds for all steps that a full disk would need, with blocks and notes.
    for number in 100..3_000 {
        put_all(&cache, &[block(number)]);
        cache.set_note("plan-1", &[number as u8; 9_000]).ok();
    }
    let failure = cache.failure().unwrap();
    assert!(failure.contains(removed), "{failure}");
    assert!(cache.counters().failures > 0);
    assert_eq!(cache.counters().disk_full, 0);
}

#[test]
fn a_log_that_is_removed_while_it_is_open_is_noticed_and_written_again() {
    let replace: [fn(&std::path::Path); 2] = [
        |_| {},
        |log| std::os::unix::fs::symlink("/dev/zero", log).unwrap(),
    ];
    for replace in replace {
        let scratch = Scratch::new();
        let blocks: Vec<_> = (0..400).map(block).collect();
        let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
        put_all(&cache, &blocks);
        assert_eq!(there(&cache, &blocks), 400);
        assert!(scratch.0.join("blocks-0000000003").exists());
        let log = scratch.0.join("blocks-0000000001");
        fs::remove_file(&log).unwrap();
        replace(&log);
        // No read touches the content of the file.
        put_all(&cache, &[block(1000)]);
        let damaged = cache.counters().damaged;
        assert!(damaged > 32, "{damaged}");
        assert_eq!(cache.counters().blocks, 401 - damaged);
        assert!(
            cache
                .failure()
                .unwrap()
                .contains("blocks-0000000001 was removed")
        );
        put_all(&cache, &blocks);
        drop(cache);
        let cache = BlockCache::in_directory(&scratch.0, &OPTIONS).unwrap();
        assert_eq!(there(&cache, &blocks), 400);
        // A link stays, and each start reports it.
        assert_eq!(cache.counters().damaged, u64::from(log.is_symlink()));
    }
}
