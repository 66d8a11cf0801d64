//! Reading files: bytes, mapped memory, errors, pages stored ahead.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stream::device::Pages;
use stream::manifest::ROOT;
use stream::{BLOCK_BYTES, BlockAt};
use stream_mount::COUNTERS_NAME;

use crate::names::attribute;
use crate::support::*;

/// A file that ends within a block, one of whole blocks, an empty one.
fn files() -> TreeBuilder {
    let mut tree = TreeBuilder::new();
    let inner = tree.directory(ROOT, "inner");
    tree.file(inner, "odd", 0o644, bytes(10 * BLOCK_BYTES + 77, 1));
    tree.file(ROOT, "even", 0o644, bytes(4 * BLOCK_BYTES, 2));
    tree.file(ROOT, "empty", 0o644, Vec::new());
    tree
}

#[test]
fn files_are_read_with_their_published_bytes() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    for name in ["inner/odd", "even", "empty"] {
        let content = &mount.source.contents[&mount.source.file(name)];
        assert!(
            std::fs::read(mount.path(name)).unwrap() == *content,
            "{name}"
        );
    }
    assert_eq!(mount.mounted().read_ahead_kib(), Some(0));
    let odd = mount.source.file("inner/odd");
    assert_eq!(mount.source.blocks_read(odd), (0..=10).collect::<Vec<_>>());
    // The second read is served from memory.
    let read = mount.source.seen().reads.len();
    std::fs::read(mount.path("inner/odd")).unwrap();
    assert_eq!(mount.source.seen().reads.len(), read);
    // At any offset, across borders of blocks, and beyond the end.
    let file = File::open(mount.path("inner/odd")).unwrap();
    let content = &mount.source.contents[&odd];
    for (offset, length) in [
        (1, 2),
        (4095, 2),
        (4096, 4096),
        (5000, 20_000),
        (40_960, 500),
    ] {
        let mut part = vec![0; length];
        let count = file.read_at(&mut part, offset as u64).unwrap();
        let end = content.len().min(offset + length);
        assert_eq!(part[..count], content[offset..end]);
    }
    assert_eq!(file.read_at(&mut [0; 10], 41_037).unwrap(), 0);
}

#[test]
fn blocks_of_one_read_past_the_page_cache_are_requested_together() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let odd = mount.source.file("inner/odd");
    let mut file = open_direct(&mount.path("inner/odd"));
    let mut all = vec![0; 12 * BLOCK_BYTES];
    let mut filled = 0;
    loop {
        match file.read(&mut all[filled..]).unwrap() {
            0 => break,
            count => filled += count,
        }
    }
    assert_eq!(all[..filled], mount.source.contents[&odd]);
    let block = |index| BlockAt { file: odd, index };
    let expected: Vec<_> = (0..=10).map(block).collect();
    assert_eq!(mount.source.seen().wanted[0], expected);
    file.seek(SeekFrom::Start(0)).unwrap();
}

fn open_direct(path: &std::path::Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

#[test]
fn a_block_that_fails_is_an_error_once_and_never_zeros() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let file = mount.source.file("inner/odd");
    let opened = File::open(mount.path("inner/odd")).unwrap();
    let mut block = [0; 100];
    for (index, is_short) in [(3, false), (4, true), (10, false), (10, true)] {
        let at = BlockAt { file, index };
        let offset = u64::from(index) * BLOCK_BYTES as u64;
        {
            let mut seen = mount.source.seen();
            match is_short {
                true => seen.short.insert(at),
                false => seen.failing.insert(at),
            };
        }
        for _ in 0..2 {
            refused(opened.read_at(&mut block[..50], offset), libc::EIO);
        }
        // Also in a longer read that begins before the failing block.
        let mut long = vec![0; 2 * BLOCK_BYTES];
        let read = open_direct(&mount.path("inner/odd")).read_at(&mut long, offset - 4096);
        refused(read, libc::EIO);
        {
            let mut seen = mount.source.seen();
            seen.short.clear();
            seen.failing.clear();
        }
    }
    let size = opened.metadata().unwrap().size();
    assert_eq!(
        size,
        10 * BLOCK_BYTES as u64 + 77,
        "no error has shortened the file"
    );
    assert!(std::fs::read(mount.path("inner/odd")).unwrap() == mount.source.contents[&file]);
}

#[test]
fn a_page_stored_ahead_is_read_without_a_request() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let source = &mount.source;
    let pages = mount.mounted().pages();
    let odd = source.file("inner/odd");
    let content = &source.contents[&odd];
    // No program has looked up the file so far.
    assert!(pages.store(odd, 2, &content[2 * 4096..4 * 4096]));
    assert!(pages.store(odd, 10, &content[10 * 4096..]));
    let expected: Vec<_> = (0..12).map(|index| [2, 3, 10].contains(&index)).collect();
    assert_eq!(pages.resident(odd, 12), Some(expected));
    assert!(std::fs::read(mount.path("inner/odd")).unwrap() == *content);
    assert_eq!(source.blocks_read(odd), [0, 1, 4, 5, 6, 7, 8, 9]);
    // Refused: data behind the end, and data that leaves a page partly filled.
    assert!(!pages.store(odd, 10, &content[..4096]));
    assert!(!pages.store(odd, 11, &content[..4096]));
    assert!(!pages.store(odd, 0, &content[..100]));
    assert!(!pages.store(odd, 0, &[]));
    assert!(!pages.store(ROOT, 0, &content[..4096]));
    let size = std::fs::metadata(mount.path("inner/odd")).unwrap().size();
    assert_eq!(size, content.len() as u64);
}

#[test]
fn memory_behind_the_end_of_a_mapped_file_is_zero() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let odd = mount.source.file("inner/odd");
    let content = &mount.source.contents[&odd];
    for is_stored in [false, true] {
        if is_stored {
            let mapped = File::open(mount.path("inner/odd")).unwrap();
            drop_pages(&mapped);
            let pages = mount.mounted().pages();
            assert!(pages.store(odd, 10, &content[10 * 4096..]));
        }
        let mapped = Mapped::of(&File::open(mount.path("inner/odd")).unwrap(), 11 * 4096);
        assert!(mapped.bytes()[..content.len()] == content[..]);
        assert!(
            mapped.bytes()[content.len()..]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}

#[test]
fn waiting_readers_delay_no_others() {
    if cannot_mount() {
        return;
    }
    let mut tree = TreeBuilder::new();
    let file = tree.file(ROOT, "slow", 0o644, bytes(64 * BLOCK_BYTES, 3));
    let quick = tree.file(ROOT, "quick", 0o644, bytes(3 * BLOCK_BYTES, 4));
    let mount = Mount::new(tree);
    {
        let mut seen = mount.source.seen();
        seen.held = (0..64).map(|index| BlockAt { file, index }).collect();
        let at_hand = BlockAt {
            file: quick,
            index: 1,
        };
        seen.at_hand.insert(at_hand);
    }
    let readers: Vec<_> = (0..64)
        .map(|index| {
            let path = mount.path("slow");
            std::thread::spawn(move || {
                let mut block = [0; BLOCK_BYTES];
                let file = File::open(path).unwrap();
                file.read_exact_at(&mut block, index * BLOCK_BYTES as u64)
                    .map(|()| block)
            })
        })
        .collect();
    drop(mount.source.wait_until(|seen| seen.waiting == 64));
    // Other reads still work: a block in memory, one that arrives at once, names, stored pages.
    assert!(std::fs::read(mount.path("quick")).unwrap() == mount.source.contents[&quick]);
    assert_eq!(std::fs::read_dir(mount.path("")).unwrap().count(), 2);
    drop(mount.source.wait_until(|seen| seen.waiting == 64));
    mount.source.release();
    for (index, reader) in readers.into_iter().enumerate() {
        let block = reader.join().unwrap().unwrap();
        assert_eq!(
            block[..],
            mount.source.contents[&file][index * BLOCK_BYTES..][..BLOCK_BYTES]
        );
    }
}

#[test]
fn a_program_that_is_killed_while_it_reads_is_gone_at_once() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let file = mount.source.file("even");
    mount.source.seen().held.insert(BlockAt { file, index: 2 });
    let mut reader = Command::new("cat")
        .arg(mount.path("even"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(mount.source.wait_until(|seen| seen.waiting == 1));
    reader.kill().unwrap();
    assert!(!reader.wait().unwrap().success());
    mount.source.release();
    assert!(std::fs::read(mount.path("even")).unwrap() == mount.source.contents[&file]);
}

#[test]
fn all_blocks_of_one_request_have_one_deadline() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(files());
    let file = mount.source.file("inner/odd");
    let held = BlockAt { file, index: 3 };
    mount.source.seen().held.insert(held);
    let path = mount.path("inner/odd");
    let reader = std::thread::spawn(move || {
        let mut eight = vec![0; 8 * BLOCK_BYTES];
        open_direct(&path).read_at(&mut eight, 0)
    });
    drop(mount.source.wait_until(|seen| seen.waiting == 1));
    let waits = Instant::now();
    mount.source.release();
    assert_eq!(reader.join().unwrap().unwrap(), 8 * BLOCK_BYTES);
    let requests = mount.source.seen().wanted.len();
    assert_eq!(requests, 1);
    let since = mount.source.seen().since.clone();
    assert_eq!(since, [since[0]; 8]);
    assert!(since[0] < waits);
}

/// A request without a thread waits in a queue, and its deadline passes there, too.
#[test]
fn the_deadline_of_a_request_begins_before_a_thread_takes_it() {
    if cannot_mount() {
        return;
    }
    // One more than there are threads.
    let readers_max = 257;
    let mut tree = TreeBuilder::new();
    let file = tree.file(ROOT, "slow", 0o644, bytes(readers_max * BLOCK_BYTES, 3));
    let mount = Mount::new(tree);
    let all = 0..readers_max as u32;
    mount.source.seen().held = all.map(|index| BlockAt { file, index }).collect();
    let readers: Vec<_> = (0..readers_max)
        .map(|index| {
            let path = mount.path("slow");
            std::thread::spawn(move || {
                let mut block = [0; BLOCK_BYTES];
                let file = File::open(path).unwrap();
                file.read_exact_at(&mut block, (index * BLOCK_BYTES) as u64)
                    .unwrap();
            })
        })
        .collect();
    drop(
        mount
            .source
            .wait_until(|seen| seen.waiting == readers_max - 1),
    );
    let root = mount.folder.directory();
    let all = format!("{{\"fuse_reads\":{readers_max},").into_bytes();
    while !attribute(&root, COUNTERS_NAME, 100)
        .unwrap()
        .starts_with(&all)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let all_came = Instant::now();
    mount.source.release();
    for reader in readers {
        reader.join().unwrap();
    }
    let since = mount.source.seen().since.clone();
    assert_eq!(since.len(), readers_max);
    assert!(since.iter().all(|since| *since < all_came));
}
