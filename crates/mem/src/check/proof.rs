//! Tests that "whole" is true: a few words of a region's tables are changed, and programs then read it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use base::sim::Random;

use super::tests::{FILE, Scratch, fill, inode_of, some_value, some_word};
use super::*;
use crate::layout::{INODE_BYTES, attribute};
use crate::{Attachment, Credentials, Last, NewInode, Node, PathBuffer, ROOT_INODE, Walked};

const USER: Credentials<'_> = Credentials {
    user: 0,
    group: 0,
    groups: &[],
};

/// The number of bytes of a file that are compared: a damaged size may have any value.
const COMPARED_MAX: u64 = 4 << 20;

#[derive(Clone, PartialEq, Eq)]
struct Seen {
    inode: u64,
    kind: u32,
    size: u64,
    bytes: Vec<u8>,
}

/// Everything that programs find: each name is looked up by its whole path, and each file is read as programs do it.
fn seen(path: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let attachment = Attachment::open(path, b"/keel", true).unwrap();
    let region = attachment.region();
    let mut buffer = PathBuffer::new();
    let mut seen = BTreeMap::new();
    let mut waiting = vec![(Node::ROOT.inode, b"".to_vec())];
    while let Some((directory, path)) = waiting.pop() {
        let listed = attachment.writer().unwrap().list(directory, 0, 10_000);
        for entry in listed.unwrap() {
            let mut path = path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&entry.name);
            let walked = attachment.walk(Node::ROOT, &path, Last::NoFollow, &USER, &mut buffer);
            let shown = String::from_utf8_lossy(&path).into_owned();
            let found = match walked.unwrap_or_else(|error| panic!("{shown}: {error}")) {
                Walked::Found { attributes, .. } => attributes,
                _ => panic!("{shown} is listed and not found"),
            };
            assert_eq!(found.inode, entry.inode, "{shown}");
            let mut bytes = Vec::new();
            if found.is_directory() {
                waiting.push((found.inode, path.clone()));
            } else {
                bytes = vec![0; found.size.min(COMPARED_MAX) as usize];
                let count = region.read(found.inode, found.generation, 0, &mut bytes);
                assert_eq!(count.unwrap(), bytes.len(), "{shown}");
            }
            let one = Seen {
                inode: found.inode,
                kind: found.mode & libc::S_IFMT,
                size: found.size,
                bytes,
            };
            seen.insert(path, one);
        }
    }
    seen
}

/// Values that only the inode holds: a changed word may have any value, and no check can detect it.
struct Unknown {
    sizes: Vec<u64>,
    kinds: Vec<u64>,
}

impl Unknown {
    fn new(region: &Region, changed: &[u64]) -> Self {
        let layout = region.layout();
        let inodes_with = |word: u64| {
            changed
                .iter()
                .filter(|at| (layout.inodes_at..layout.cells_at).contains(*at))
                .map(|at| at - layout.inodes_at)
                .filter(|offset| offset % INODE_BYTES == word)
                .map(|offset| offset / INODE_BYTES)
                .collect()
        };
        Self {
            sizes: inodes_with(attribute::SIZE),
            kinds: inodes_with(attribute::MODE_LINKS),
        }
    }

    #[track_caller]
    fn compare(&self, before: &Seen, after: &Seen, shown: &str) {
        assert_eq!(before.inode, after.inode, "{shown}: another file");
        if !self.kinds.contains(&before.inode) {
            assert_eq!(before.kind, after.kind, "{shown}: of another kind");
        }
        if before.kind == libc::S_IFDIR {
            return;
        }
        if !self.sizes.contains(&before.inode) {
            assert_eq!(before.size, after.size, "{shown}: of another size");
        }
        let both = before.bytes.len().min(after.bytes.len());
        assert!(
            before.bytes[..both] == after.bytes[..both],
            "{shown}: other bytes"
        );
    }
}

fn made(scratch: &Scratch) -> Region {
    let region = scratch.region();
    fill(&region);
    let writer = region.writer().unwrap();
    let link = NewInode {
        mode: libc::S_IFLNK | 0o777,
        ..FILE
    };
    writer
        .create_with(ROOT_INODE, b"link", &link, b"inner/linked")
        .unwrap();
    drop(writer);
    region
}

fn prove(seed: u64) {
    let mut random = Random::new(seed);
    let scratch = Scratch::new();
    drop(made(&scratch));
    let path = scratch.path.as_path();
    let before = seen(path);
    let region = Region::open(path, true).unwrap();
    let mut changed = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (inodes, cells) = (region.layout.inode(1), region.layout.cell(0));
        // Words that are in use, with more weight on the root's.
        let at = match random.below(20) {
            0 => random.below(8) * 8,
            1..4 => inodes + random.below(17) * 8,
            4..8 => inodes + random.below(20) * INODE_BYTES + random.below(17) * 8,
            8..13 => cells + random.below(60 * 8) * 8,
            _ => some_word(&region, &mut random),
        };
        let value = match random.coin() {
            true => region.memory.load(at) ^ 1 << random.below(64),
            false => some_value(&region, at, &mut random),
        };
        region.memory.store(at, value);
        changed.push(at);
    }
    let unknown = Unknown::new(&region, &changed);
    let in_superblock = changed.iter().filter(|at| **at < 64).count();
    drop(region);
    let found = match check_file(path, false) {
        Ok(found) => found,
        // The check reports that it can do nothing.
        Err(_) if in_superblock > 1 => return,
        Err(error) => panic!("{error}"),
    };
    let same = |after: &BTreeMap<Vec<u8>, Seen>| {
        for (path, before) in &before {
            let shown = String::from_utf8_lossy(path);
            let after = after.get(path).unwrap_or_else(|| panic!("{shown}: gone"));
            unknown.compare(before, after, &shown);
        }
    };
    if found.is_clean() {
        let after = seen(path);
        assert_eq!(after.len(), before.len(), "names have come or gone");
        return same(&after);
    }
    let mended = check_file(path, true).unwrap();
    // The state that dead lanes have left is removed when the lanes are next taken.
    let is_mended = mended.is_mended || mended.is_clean();
    assert!(is_mended, "changed {changed:x?}, {mended:?}");
    let again = check_file(path, false).unwrap();
    assert!(again.is_clean(), "mended {mended:?}, and then {again:?}");
    let after = catch_unwind(AssertUnwindSafe(|| {
        let after = seen(path);
        if mended.loss_count == 0 {
            same(&after);
        }
        for (path, before) in &before {
            let inode = before.inode;
            let is_named = |loss: &String| loss.contains(&format!("file {inode}:"));
            if mended.losses.iter().any(is_named) {
                continue;
            }
            let shown = String::from_utf8_lossy(path);
            let after = after.values().find(|after| after.inode == inode);
            let after = after.unwrap_or_else(|| panic!("{shown}: gone"));
            unknown.compare(before, after, &shown);
        }
    }));
    if after.is_err() {
        panic!("changed {changed:x?}; {mended:#?}");
    }
}

#[test]
fn a_region_that_check_calls_whole_is_read_by_programs() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|it| it.parse::<u64>().unwrap())
    };
    let seeds = match (number("KEEL_MEM_SEED"), number("KEEL_MEM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(300),
    };
    println!("seeds {seeds:?}");
    let bad: Vec<u64> = seeds
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| prove(*seed))).is_err())
        .collect();
    assert!(bad.is_empty(), "see each again with KEEL_MEM_SEED: {bad:?}");
}

/// Changes a word of a region, checks it, and mends it. Returns the reports of both.
fn mended(change: impl FnOnce(&Region)) -> (CheckReport, CheckReport) {
    let scratch = Scratch::new();
    drop(made(&scratch));
    let before = seen(&scratch.path);
    change(&Region::open(&scratch.path, true).unwrap());
    let found = check_file(&scratch.path, false).unwrap();
    let mended = check_file(&scratch.path, true).unwrap();
    assert!(mended.is_mended, "{mended:?}");
    if mended.loss_count == 0 {
        assert!(seen(&scratch.path) == before, "mending has changed a file");
    }
    (found, mended)
}

#[test]
fn a_root_with_any_generation_is_mended_without_loss() {
    for generation in [0, 2, 0xfa, u64::MAX] {
        let (found, mended) = mended(|region| {
            let at = region.layout.inode(ROOT_INODE) + attribute::GENERATION;
            region.memory.store(at, generation);
        });
        assert!(!found.is_clean(), "{generation}");
        assert_eq!(mended.losses, Vec::<String>::new(), "{generation}");
    }
    // All words of the root's inode, with random values.
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (found, _) = mended(|region| {
            let at = region.layout.inode(ROOT_INODE);
            for word in (0..INODE_BYTES).step_by(8) {
                region.memory.store(at + word, random.next_u64());
            }
        });
        assert!(!found.is_clean());
    }
}

#[test]
fn a_name_is_found_as_it_is_listed() {
    let cell_of = |region: &Region, name: &[u8]| {
        let inode = inode_of(region, name);
        let layout = region.layout();
        (0..layout.cell_count)
            .map(|cell| layout.cell(cell))
            .find(|at| {
                region.memory.load(at + crate::names::cell::LINK_INODE) >> 32 == inode
                    && region
                        .memory
                        .load(at + crate::names::cell::DIRECTORY_LENGTH)
                        as u32
                        == 1
            })
            .unwrap()
    };
    // After the end of the name, and in it.
    for byte in [7, 2] {
        let (found, mended) = mended(|region| {
            let at = cell_of(region, b"large") + crate::names::cell::BYTES;
            let old = region.memory.load(at);
            region.memory.store(at, old ^ 0xdd << (8 * byte));
        });
        assert_eq!(found.findings[0].kind, Kind::Name, "{:?}", found.findings);
        assert_eq!(mended.losses, Vec::<String>::new());
    }
}

#[test]
fn a_superblock_that_was_written_over_is_worked_out() {
    for (at, value) in [
        (0, 0),
        (0, 0x1122_3344_5566_7788),
        (8, 1 << 40 | 1),
        (8, 7),
        (16, 0),
        (16, u64::MAX),
        (24, 1 << 33),
        (24, 101),
        (32, 0xffff_ffff),
        (48, 3),
        (56, 0),
        (56, 5 << 32),
    ] {
        let scratch = Scratch::new();
        let region = made(&scratch);
        drop(region);
        let before = seen(&scratch.path);
        let region = Region::open(&scratch.path, true).unwrap();
        let old = region.memory.load(at);
        region.memory.store(at, value);
        drop(region);
        let found = check_file(&scratch.path, false).unwrap();
        assert!(found.is_unreadable, "{at} {value:x}");
        assert_eq!(found.findings[0].kind, Kind::Superblock);
        let mended = check_file(&scratch.path, true).unwrap();
        assert!(mended.is_mended && mended.loss_count == 0, "{mended:?}");
        assert!(seen(&scratch.path) == before);
        let region = Region::open(&scratch.path, true).unwrap();
        assert_eq!(region.memory.load(at), old, "{at}");
    }
}

#[test]
fn a_region_of_another_format_is_not_mended() {
    let scratch = Scratch::new();
    let region = made(&scratch);
    let mut bytes = crate::superblock::encode(region.layout(), crate::Flush::None);
    bytes[8] = 9;
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    region.memory.write(0, &bytes);
    let error = check_file(&scratch.path, true).unwrap_err();
    assert!(matches!(error, Error::Version { found: 9, .. }), "{error}");
}

#[test]
fn a_file_of_another_length_gets_its_own_again() {
    let scratch = Scratch::new();
    drop(made(&scratch));
    let before = seen(&scratch.path);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&scratch.path)
        .unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length + (2 << 20)).unwrap();
    let found = check_file(&scratch.path, false).unwrap();
    assert!(found.is_unreadable);
    let text = &found.findings[0].text;
    assert!(
        text.contains("2097152 bytes longer") && text.contains(&format!("truncate -s {length}")),
        "{text}"
    );
    let mended = check_file(&scratch.path, true).unwrap();
    assert!(mended.is_mended && mended.loss_count == 0, "{mended:?}");
    assert!(seen(&scratch.path) == before);
    // The file is made shorter: the report names the files whose bytes are gone.
    let region = Region::open(&scratch.path, false).unwrap();
    let (slots_at, large) = (region.layout().slots_at, inode_of(&region, b"large"));
    drop(region);
    file.set_len(slots_at).unwrap();
    let mended = check_file(&scratch.path, true).unwrap();
    let is_large = |loss: &String| loss.starts_with(&format!("file {large}:"));
    assert!(mended.is_mended, "{mended:?}");
    assert!(mended.losses.iter().any(is_large), "{:?}", mended.losses);
    let after = seen(&scratch.path);
    assert_eq!(after.len(), before.len());
    assert!(after[&b"also"[..]].bytes == before[&b"also"[..]].bytes);
    // Without tables nothing can be repaired.
    file.set_len(2 << 20).unwrap();
    let error = check_file(&scratch.path, true).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn lanes_that_make_no_sense_do_not_keep_a_region_shut() {
    let (found, mended) = mended(|region| {
        // The run of the machine, and the states of its dead writers.
        region.memory.store(state::BOOT, 0);
        for (lane, inode) in [(1, 3), (2, 1 << 40)] {
            let at = region.layout.lane(lane);
            region.memory.store(at + crate::lane::word::STATE, 99);
            region.memory.store(at + crate::lane::word::INODE, inode);
            region
                .memory
                .store(at + crate::lane::word::OWNER, 0x7f_ffff << 40 | 1);
        }
    });
    assert_eq!(found.finding_count, 2, "{:?}", found.findings);
    // The loss is reported for the lane that names a file.
    assert_eq!(mended.loss_count, 1, "{:?}", mended.losses);
    assert!(mended.losses[0].contains("file 3:"), "{:?}", mended.losses);
}

#[test]
fn a_description_without_a_file_is_given_back() {
    let (found, mended) = mended(|region| {
        let at = region.layout.description(5);
        region
            .memory
            .store(at + crate::open::entry::CLAIM, 1 << 31 | 7);
        region.memory.store(at + crate::open::entry::INODE, 1 << 33);
    });
    assert_eq!(found.findings[0].kind, Kind::Description);
    assert_eq!(mended.loss_count, 0);
}
