//! Tests of checks of sound regions, and of regions with overwritten words.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use base::sim::Random;

use super::*;
use crate::checkpoint;
use crate::layout::{PAGE_BYTES, attribute};
use crate::{NewInode, ROOT_INODE, RegionOptions};

pub(super) const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o640,
    user: 7,
    group: 8,
    now_ns: 1,
};
const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o755,
    ..FILE
};

/// A region that is deleted at the end of the test.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-mem-check-{}-{number}", std::process::id());
        let memory = PathBuf::from("/dev/shm");
        let folder = match memory.is_dir() {
            true => memory,
            false => std::env::temp_dir(),
        };
        Self {
            path: folder.join(name),
        }
    }

    pub(super) fn region(&self) -> Region {
        let options = RegionOptions {
            capacity_bytes: 24 << 20,
            files_max: Some(100),
            lanes: 4,
        };
        Region::create(&self.path, &options, &DIRECTORY).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let mut stubs = self.path.clone().into_os_string();
        stubs.push(".stubs");
        let _ = std::fs::remove_dir_all(stubs);
    }
}

/// Content of all kinds: directories, pieces of many sizes, slots, links, long names, holes, free cells.
pub(super) fn fill(region: &Region) {
    let writer = region.writer().unwrap();
    let put = |directory, name: &[u8], offset, bytes: usize| {
        let made = writer.create(directory, name, &FILE).unwrap();
        let data = vec![name[0]; bytes];
        writer
            .write(made.inode, made.generation, offset, &data, 2)
            .unwrap();
        made
    };
    let inner = writer
        .create(ROOT_INODE, b"inner", &DIRECTORY)
        .unwrap()
        .inode;
    let deep = writer.create(inner, b"deep", &DIRECTORY).unwrap().inode;
    for number in 0..12_usize {
        let name = format!("{number}-{}", "n".repeat(number * 20));
        put(deep, name.as_bytes(), 0, 300 << (number % 5));
    }
    let linked = put(inner, b"linked", 0, 5000);
    writer.link(linked.inode, ROOT_INODE, b"also", 3).unwrap();
    put(ROOT_INODE, b"large", 0, 3_000_000);
    put(ROOT_INODE, b"holes", 5_000_000, 100);
    put(ROOT_INODE, b"empty", 0, 0);
    for name in [&b"gone"[..], &[b'x'; 200]] {
        put(ROOT_INODE, name, 0, 2000);
        writer.remove(ROOT_INODE, name, 4).unwrap();
    }
}

/// All files by path, with their bytes.
fn tree(region: &Region) -> std::collections::BTreeMap<String, Vec<u8>> {
    let writer = region.writer().unwrap();
    let mut tree = std::collections::BTreeMap::new();
    let mut waiting = vec![(ROOT_INODE, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for entry in writer.list(directory, 0, usize::MAX).unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let found = region.attributes(entry.inode).unwrap();
            let mut bytes = Vec::new();
            if found.is_directory() {
                waiting.push((entry.inode, path.clone()));
            } else {
                bytes = vec![0; found.size as usize];
                writer
                    .read(found.inode, found.generation, 0, &mut bytes)
                    .unwrap();
            }
            tree.insert(path, bytes);
        }
    }
    tree
}

pub(super) fn inode_of(region: &Region, name: &[u8]) -> u64 {
    region.look_up(ROOT_INODE, name).unwrap().inode
}

#[test]
fn a_sound_region_is_clean_and_counted() {
    let scratch = Scratch::new();
    let region = scratch.region();
    let empty = check(&region, true).unwrap();
    assert!(empty.is_clean(), "{:?}", empty.findings);
    assert_eq!((empty.files, empty.directories, empty.names), (0, 1, 0));
    fill(&region);
    let found = check(&region, false).unwrap();
    assert!(found.is_clean(), "{:?}", found.findings);
    assert_eq!((found.files, found.directories, found.names), (16, 3, 19));
    let pages = found.pages_pool + found.pages_packed + found.pages_slots;
    assert_eq!(pages, region.layout().data_pages());
    assert_eq!(found.pages_slots, 3);
    let reader = Region::open(&scratch.path, false).unwrap();
    assert_eq!(check(&reader, false).unwrap(), found);
    assert!(matches!(check(&reader, true), Err(crate::Error::ReadOnly)));
}

/// Overwrites a word, and expects a finding of the kind. After mending, the region is clean and has all its files.
#[track_caller]
fn mends(kind: Kind, damage: impl Fn(&Region)) -> CheckReport {
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    let before = tree(&region);
    damage(&region);
    let found = check(&region, false).unwrap();
    let kinds: Vec<_> = found.findings.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&kind), "{:?}", found.findings);
    let mended = check(&region, true).unwrap();
    assert!(mended.is_mended, "{mended:?}");
    let again = check(&region, false).unwrap();
    assert!(again.is_clean(), "{:?}", again.findings);
    if mended.loss_count == 0 {
        assert!(tree(&region) == before, "mending has changed a file");
    }
    mended
}

fn set(region: &Region, at: u64, value: u64) {
    region.memory.store(at, value);
}

#[test]
fn each_kind_of_damage_is_found_and_mended() {
    let intact = |report: CheckReport| assert_eq!(report.losses, Vec::<String>::new());
    intact(mends(Kind::Free, |region| set(region, state::INODES, 3)));
    intact(mends(Kind::Free, |region| set(region, state::FREE_CELL, 1)));
    intact(mends(Kind::Free, |region| {
        set(region, state::FRESH_INODE, 2)
    }));
    intact(mends(Kind::Free, |region| {
        set(region, state::GENERATION, 2)
    }));
    intact(mends(Kind::Free, |region| set(region, state::ORPHANS, 2)));
    intact(mends(Kind::Free, |region| {
        set(region, state::CLASS_PAGE, 0)
    }));
    intact(mends(Kind::Pages, |region| {
        set(region, state::POOL_PAGES, 1)
    }));
    intact(mends(Kind::Pages, |region| {
        set(region, state::POOL_PAGES, 999)
    }));
    intact(mends(Kind::List, |region| {
        let at = region.layout.inode(inode_of(region, b"inner"));
        set(region, at + attribute::FIRST_CELL, 0);
    }));
    intact(mends(Kind::List, |region| {
        for bucket in 0..region.layout.bucket_count {
            set(region, region.layout.buckets_at + bucket * 8, 0);
        }
    }));
    intact(mends(Kind::Links, |region| {
        let at = region.layout.inode(inode_of(region, b"also")) + attribute::MODE_LINKS;
        set(region, at, region.memory.load(at) + (5 << 32));
    }));
    intact(mends(Kind::Links, |region| {
        let at = region.layout.inode(inode_of(region, b"inner")) + attribute::PARENT;
        set(region, at, 9);
    }));
    intact(mends(Kind::Links, |region| {
        // A directory that is marked as a file.
        let at = region.layout.inode(inode_of(region, b"inner")) + attribute::MODE_LINKS;
        let mode = u64::from(libc::S_IFREG | 0o755);
        set(region, at, region.memory.load(at) >> 32 << 32 | mode);
    }));
    intact(mends(Kind::Map, |region| {
        let slot = (0..region.layout.slot_count)
            .find(|slot| region.memory.load(region.layout.slot_owners_at + slot * 8) != 0);
        set(region, region.layout.slot_owners_at + slot.unwrap() * 8, 0);
    }));
    intact(mends(Kind::Map, |region| {
        let page = (0..region.layout.packed_pages)
            .find(|page| region.memory.load(region.layout.packed_map(*page)) != 0);
        set(region, region.layout.packed_map(page.unwrap()), 0);
    }));
    intact(mends(Kind::Lock, |region| {
        let at = region.layout.inode(inode_of(region, b"large"));
        set(region, at + attribute::LOCK, 3);
    }));
    intact(mends(Kind::Lock, |region| set(region, state::LOCK, 3)));
    intact(mends(Kind::Change, |region| {
        let at = region.layout.inode(inode_of(region, b"large"));
        set(region, at + attribute::SEQUENCE, 77);
    }));
    intact(mends(Kind::Lane, |region| {
        let at = region.layout.lane(2);
        set(region, at + crate::lane::word::STATE, 99);
    }));
    intact(mends(Kind::Lane, |region| {
        // A dead writer with an invalid log.
        let at = region.layout.lane(2);
        set(region, at + crate::lane::word::STATE, 2);
        set(region, at + crate::lane::word::INODE, 1 << 40);
        set(region, at + crate::lane::word::OWNER, 0x7f_ffff << 40 | 1);
    }));
}

#[test]
fn a_file_that_lost_its_name_is_in_lost_and_found() {
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    let before = tree(&region);
    // The cell of `inner`, which contains all directories: it names nothing any more.
    let first = region
        .memory
        .load(region.layout.inode(ROOT_INODE) + attribute::FIRST_CELL);
    let at = region.layout.cell(first - 1);
    set(&region, at, 0);
    let mended = check(&region, true).unwrap();
    assert!(mended.is_mended && mended.loss_count == 2, "{mended:?}");
    assert!(mended.losses[0].contains("the name inner"), "{mended:?}");
    let after = tree(&region);
    let inner = after
        .keys()
        .find(|path| path.starts_with("/lost+found/file-"))
        .unwrap();
    for (path, bytes) in &before {
        let path = match path.strip_prefix("/inner") {
            Some(rest) => format!("{inner}{rest}"),
            None => path.clone(),
        };
        assert!(after.get(&path) == Some(bytes), "{path}");
    }
    assert!(check(&region, false).unwrap().is_clean());
}

#[test]
fn two_files_with_one_piece_get_one_each() {
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    let place_of = |name: &[u8]| {
        let deep = region
            .look_up(inode_of(&region, b"inner"), b"deep")
            .unwrap()
            .inode;
        let inode = region.look_up(deep, name).unwrap().inode;
        region.layout.inode(inode) + attribute::PLACE
    };
    // Both have 300 bytes.
    let (one, other) = (
        place_of(b"0-"),
        place_of(format!("5-{}", "n".repeat(100)).as_bytes()),
    );
    set(&region, other, region.memory.load(one));
    let mended = check(&region, true).unwrap();
    // One of the two files has lost its own bytes.
    assert!(mended.is_mended && mended.loss_count == 2, "{mended:?}");
    assert_eq!(mended.findings[0].kind, Kind::Shared);
    assert_ne!(region.memory.load(one), region.memory.load(other));
    let found = tree(&region);
    let same = &found[&format!("/inner/deep/5-{}", "n".repeat(100))];
    assert_eq!(*same, vec![b'0'; 300]);
    // The owner table decides which file a slot belongs to.
    let large = region.layout.inode(inode_of(&region, b"large")) + attribute::PLACE;
    let holes = region.layout.inode(inode_of(&region, b"holes")) + attribute::PLACE;
    set(&region, holes, region.memory.load(large));
    let mended = check(&region, true).unwrap();
    assert!(mended.is_mended && mended.loss_count == 1, "{mended:?}");
    let found = tree(&region);
    assert_eq!(found["/large"], vec![b'l'; 3_000_000]);
    assert_eq!(found["/holes"], b"");
}

/// Makes every call, on a region with any content. No call may panic or loop forever.
fn use_all(region: &Region, random: &mut Random) -> crate::Result<()> {
    let writer = region.writer()?;
    let mut directories = vec![ROOT_INODE];
    let mut names = Vec::new();
    let mut next = 0;
    while let Some(directory) = directories.get(next).copied().filter(|_| next < 40) {
        next += 1;
        let Ok(entries) = writer.list(directory, 0, 50) else {
            continue;
        };
        for entry in entries {
            let found = writer.look_up(directory, &entry.name);
            let _ = region.look_up(directory, &entry.name);
            let Ok(found) = found else { continue };
            if found.is_directory() {
                directories.push(found.inode);
            }
            names.push((directory, entry.name, found));
        }
    }
    let mut bytes = vec![0; 100_000];
    for step in 0..30 {
        if names.is_empty() {
            break;
        }
        let (directory, name, found) = names[random.index(names.len())].clone();
        let bits = random.below(24);
        let offset = random.below(1 << bits);
        let data = &bytes[..random.index(40_000)];
        let (inode, generation) = (found.inode, found.generation);
        // A higher layer refuses reads and writes of directories.
        let what = match found.is_directory() {
            true => random.below(5),
            false => random.below(12),
        };
        let _ = match what {
            5 => writer.write(inode, generation, offset, data, step),
            6 => writer.write(inode, generation, found.size, data, step),
            7 => writer.set_size(inode, generation, offset, step),
            3 => writer.remove(directory, &name, step),
            4 => writer.remove_directory(directory, &name, step),
            0 => writer.rename((directory, &name), (ROOT_INODE, b"other"), step),
            1 => writer.link(inode, ROOT_INODE, b"link", step),
            2 => writer.create(directory, b"new", &FILE).map(drop),
            8 => writer.map_range(inode, generation, 0, 5000).map(drop),
            9 => writer.allocate(inode, generation, (0, 100_000), true, step),
            10 => writer.reclaim_orphans().map(drop),
            _ => region.read(inode, generation, offset, &mut bytes).map(drop),
        };
        let _ = writer.read(inode, generation, 0, &mut bytes);
    }
    Ok(())
}

/// A random word of the tables; words in use are more likely.
pub(super) fn some_word(region: &Region, random: &mut Random) -> u64 {
    let layout = region.layout();
    let (at, words) = match random.below(10) {
        0 | 1 => (1024, 100),
        2 => (layout.lane(random.below(4)), 60),
        3 => (layout.descriptions_at, 64),
        4 | 5 => (layout.inode(1), 32 * 24),
        6 => (layout.cell(0), 8 * 60),
        7 => (layout.buckets_at, layout.bucket_count),
        8 => {
            let slot = random.below(3);
            match random.coin() {
                true => (layout.slot_map(slot), 8),
                false => (layout.slot_owners_at, 4),
            }
        }
        _ => (layout.packed_map(random.below(8)), 12),
    };
    at + random.below(words) * 8
}

pub(super) fn some_value(region: &Region, at: u64, random: &mut Random) -> u64 {
    let old = region.memory.load(at);
    match random.below(7) {
        0 => 0,
        1 => u64::MAX,
        2 => random.next_u64(),
        3 => random.below(200),
        4 => old ^ 1 << random.below(64),
        5 => old.wrapping_add(random.below(5)).wrapping_sub(2),
        _ => {
            let other = some_word(region, random);
            region.memory.load(other)
        }
    }
}

/// Overwrites words of a region, uses it, checks it, saves a checkpoint, mends it. The region must be sound then.
fn survive(seed: u64) {
    let mut random = Random::new(seed);
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    for _ in 0..1 + random.below(4) {
        let at = some_word(&region, &mut random);
        let value = some_value(&region, at, &mut random);
        set(&region, at, value);
    }
    let is_used_first = random.coin();
    if is_used_first {
        let _ = use_all(&region, &mut random);
    }
    let found = check(&region, false);
    if let Ok(writer) = region.writer() {
        let options = checkpoint::SaveOptions {
            name: "r",
            now_ns: 1,
            random: 1,
            verify: false,
            left_out: &[],
        };
        let mut storage = checkpoint::MemoryStorage::default();
        let _ = checkpoint::save(&writer, &mut storage, &options, &mut |_, _| {});
    }
    let Ok(mended) = check(&region, true) else {
        return;
    };
    if found.is_ok_and(|found| found.is_clean()) {
        assert!(mended.is_clean(), "found when mending only: {mended:?}");
    }
    let again = check(&region, false).unwrap();
    assert!(
        again.is_clean() || !mended.is_mended,
        "mended {mended:?}, and then {again:?}"
    );
    if mended.is_clean() || mended.is_mended {
        use_all(&region, &mut random).unwrap();
        let used = check(&region, false).unwrap();
        assert!(used.is_clean(), "after {mended:?}: {used:?}");
    }
}

#[test]
fn any_region_bytes_let_every_call_end_and_mending_makes_them_sound() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|it| it.parse::<u64>().unwrap())
    };
    let seeds = match (number("KEEL_MEM_SEED"), number("KEEL_MEM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(120),
    };
    let bad: Vec<u64> = seeds
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| survive(*seed))).is_err())
        .collect();
    assert!(bad.is_empty(), "see each again with KEEL_MEM_SEED: {bad:?}");
}

#[test]
fn calls_of_any_kind_leave_a_region_sound() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let scratch = Scratch::new();
        let region = scratch.region();
        fill(&region);
        for _ in 0..3 {
            use_all(&region, &mut random).unwrap();
            let used = check(&region, false).unwrap();
            assert!(used.is_clean(), "seed {seed}: {:?}", used.findings);
        }
    }
}

#[test]
fn a_region_in_use_is_sound_at_every_moment() {
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..60 {
                        use_all(region, &mut random).unwrap();
                    }
                })
            })
            .collect();
        let mut checks = 0;
        while checks < 20 || writers.iter().any(|writer| !writer.is_finished()) {
            checks += 1;
            let found = check(&region, false).unwrap();
            assert!(found.is_clean(), "{:?}", found.findings);
        }
    });
}

#[test]
fn pages_are_counted_in_the_kernels_books_too() {
    let scratch = Scratch::new();
    let region = scratch.region();
    fill(&region);
    if region.backing() == crate::Backing::File {
        println!("skipped: no tmpfs here");
        return;
    }
    let at = region.layout.pool_at;
    crate::memory::give_back_pages(&region.file, at, 1).unwrap();
    let found = check(&region, false).unwrap();
    assert_eq!(found.finding_count, 1, "{found:?}");
    assert!(check(&region, true).unwrap().is_mended);
    let far = region.layout.file_bytes - PAGE_BYTES;
    crate::memory::take_pages(&region.file, far, 1).unwrap();
    assert_eq!(check(&region, false).unwrap().finding_count, 1);
    assert!(check(&region, true).unwrap().is_mended);
}
