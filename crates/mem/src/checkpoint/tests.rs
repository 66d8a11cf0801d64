//! Tests of checkpoints against the region's content, with power cuts and damaged bytes at any place.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::sim::Random;

use super::snapshot::Snapshot;
use super::*;
use crate::{NewInode, ROOT_INODE, Region, RegionOptions, Writer};

const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o640,
    user: 7,
    group: 8,
    now_ns: 1,
};
const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o755,
    ..FILE
};
const NAME: &str = "region";

/// A region that is deleted at the end of the test.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-mem-checkpoint-{}-{number}", std::process::id());
        Self {
            path: std::env::temp_dir().join(name),
        }
    }

    fn region(&self, capacity_bytes: u64) -> Region {
        let options = RegionOptions {
            capacity_bytes,
            files_max: Some(600),
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

/// Mode, owner, time and bytes of a file; a directory has no bytes.
type Seen = (u32, u32, u64, Vec<u8>);

/// All paths of a region with their content.
fn tree(region: &Region, writer: &Writer<'_>) -> BTreeMap<String, Seen> {
    let mut tree = BTreeMap::new();
    let mut waiting = vec![(ROOT_INODE, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for entry in writer.list(directory, 0, usize::MAX).unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let found = region.attributes(entry.inode).unwrap();
            let mut bytes = Vec::new();
            if found.mode & libc::S_IFMT == libc::S_IFDIR {
                waiting.push((entry.inode, path.clone()));
            } else {
                bytes = vec![0xee; found.size as usize];
                let count = region.read(found.inode, found.generation, 0, &mut bytes);
                assert_eq!(count.unwrap() as u64, found.size);
            }
            let seen = (found.mode, found.links, found.modified_ns, bytes);
            tree.insert(path, seen);
        }
    }
    tree
}

fn options() -> SaveOptions<'static> {
    SaveOptions {
        name: NAME,
        now_ns: 1_000,
        random: 0x1234_5678_9abc_def0,
        verify: false,
        left_out: &[],
    }
}

fn save_now(writer: &Writer<'_>, storage: &mut MemoryStorage) -> SaveReport {
    save(writer, storage, &options(), &mut |_, _| {}).unwrap()
}

/// Restores into a new region. Returns its tree and the report.
fn restored(storage: &mut MemoryStorage) -> (BTreeMap<String, Seen>, RestoreReport) {
    let scratch = Scratch::new();
    let region = scratch.region(48 << 20);
    let writer = region.writer().unwrap();
    let report = restore(&writer, storage, NAME, &mut |_, _| {}).unwrap();
    (tree(&region, &writer), report)
}

#[test]
fn a_file_left_out_is_not_restored_and_its_changes_cost_nothing() {
    let scratch = Scratch::new();
    let region = scratch.region(48 << 20);
    let writer = region.writer().unwrap();
    put(&writer, ROOT_INODE, b"kept", &noise(1, 20_000), 1);
    let inode = put(&writer, ROOT_INODE, b"not", &noise(2, 20_000), 1);
    let left_out = [region.attributes(inode).unwrap().node()];
    let options = SaveOptions {
        left_out: &left_out,
        ..options()
    };
    let mut storage = MemoryStorage::default();
    let mut save = || save(&writer, &mut storage, &options, &mut |_, _| {}).unwrap();
    let report = save();
    assert_eq!((report.files, report.bytes), (1, 20_000));
    put(&writer, ROOT_INODE, b"not", &noise(3, 20_000), 2);
    assert_eq!(save().bytes_written, 0);
    let (tree, report) = restored(&mut storage);
    assert!(report.is_whole());
    assert_eq!(tree.into_keys().collect::<Vec<_>>(), ["/kept"]);
}

fn put(writer: &Writer<'_>, directory: u64, name: &[u8], bytes: &[u8], now_ns: u64) -> u64 {
    let made = match writer.look_up(directory, name) {
        Ok(found) => found,
        Err(_) => writer.create(directory, name, &FILE).unwrap(),
    };
    writer
        .write(made.inode, made.generation, 0, bytes, now_ns)
        .unwrap();
    made.inode
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Random::new(seed).fill(&mut noise);
    noise
}

#[test]
fn a_region_comes_back_with_names_links_holes_and_times() {
    let scratch = Scratch::new();
    let region = scratch.region(64 << 20);
    let writer = region.writer().unwrap();
    let inner = writer
        .create(ROOT_INODE, b"inner", &DIRECTORY)
        .unwrap()
        .inode;
    let deep = writer.create(inner, b"deep", &DIRECTORY).unwrap().inode;
    for number in 0..300 {
        let name = format!("{number}-{}", "x".repeat(number % 200));
        put(&writer, deep, name.as_bytes(), &noise(7, number * 40), 50);
    }
    put(&writer, ROOT_INODE, b"empty", b"", 60);
    let linked = put(&writer, inner, b"linked", &noise(8, 70_000), 70);
    writer.link(linked, ROOT_INODE, b"also", 80).unwrap();
    let link = NewInode {
        mode: libc::S_IFLNK | 0o777,
        ..FILE
    };
    let link = writer.create(inner, b"symbolic", &link).unwrap();
    writer
        .write(link.inode, link.generation, 0, b"linked", 85)
        .unwrap();
    let large = writer.create(ROOT_INODE, b"large", &FILE).unwrap();
    for (offset, bytes) in [(0, 10), (5 << 20, 3 << 20), (20 << 20, 100)] {
        writer
            .write(
                large.inode,
                large.generation,
                offset,
                &noise(offset, bytes),
                90,
            )
            .unwrap();
    }
    let before = tree(&region, &writer);
    let mut storage = MemoryStorage::default();
    assert_eq!(region.newest_checkpoint(), None);
    let report = save_now(&writer, &mut storage);
    assert_eq!(region.newest_checkpoint(), Some((1, options().now_ns)));
    assert_eq!((report.files, report.directories), (304, 3));
    assert_eq!((report.missed_count, report.rounds), (0, 1));
    // Holes are not written either.
    assert!(report.bytes_written < 6 << 20 && report.bytes > 20 << 20);
    let (after, report) = restored(&mut storage);
    assert!(before == after, "what came back is something else");
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.files, report.directories), (304, 3));
    let shape = shape(&mut storage, NAME).unwrap().unwrap();
    assert_eq!(shape.capacity_bytes, 64 << 20);
    assert_eq!((shape.files_max, shape.lanes), (Some(600), 4));
    // A checkpoint is not restored into a region that is not empty.
    let refused = restore(&writer, &mut storage, NAME, &mut |_, _| {});
    assert!(matches!(refused, Err(CheckpointError::NotEmpty)));
    let other = restored(&mut MemoryStorage::default());
    assert_eq!((other.0.len(), other.1), (0, RestoreReport::default()));
}

#[test]
fn only_changed_content_is_written() {
    let scratch = Scratch::new();
    let region = scratch.region(64 << 20);
    let writer = region.writer().unwrap();
    for number in 0..100_u64 {
        let name = format!("{number}");
        put(
            &writer,
            ROOT_INODE,
            name.as_bytes(),
            &noise(number, 1000),
            50,
        );
    }
    let large = put(&writer, ROOT_INODE, b"large", &noise(1, 8 << 20), 50);
    let mut storage = MemoryStorage::default();
    let first = save_now(&writer, &mut storage);
    assert!(first.bytes_written > 8 << 20);
    let used = storage.used_bytes();
    let again = save_now(&writer, &mut storage);
    assert!(again.is_unchanged && again.generation == 1, "{again:?}");
    assert_eq!((again.files_skipped, again.bytes_written), (101, 0));
    assert_eq!(storage.used_bytes(), used);
    // One byte in the middle: one extent, one list of extents, one group of inodes.
    let generation = region.attributes(large).unwrap().generation;
    writer
        .write(large, generation, 5_000_000, b"!", 51)
        .unwrap();
    let third = save_now(&writer, &mut storage);
    assert_eq!(third.pieces_written, 3, "{third:?}");
    assert!(third.bytes_written < 100_000, "{third:?}");
    // A new name for the same bytes writes no extents.
    writer
        .rename((ROOT_INODE, b"large"), (ROOT_INODE, b"grand"), 52)
        .unwrap();
    let fourth = save_now(&writer, &mut storage);
    assert!(fourth.bytes_written < 50_000, "{fourth:?}");
    let before = tree(&region, &writer);
    assert!(before == restored(&mut storage).0);
}

#[test]
fn old_checkpoint_files_are_removed_when_no_longer_needed() {
    let scratch = Scratch::new();
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let mut storage = MemoryStorage::default();
    let mut random = Random::new(3);
    for round in 0..120 {
        for _ in 0..4 {
            let name = format!("{}", random.below(60));
            let bytes = noise(random.next_u64(), 50_000);
            put(&writer, ROOT_INODE, name.as_bytes(), &bytes, round);
        }
        save_now(&writer, &mut storage);
        let mut files = 0;
        storage.list(&mut |_, _| files += 1).unwrap();
        assert!(files <= 2 * 24 + 2, "{files} files");
        let live: u64 = tree(&region, &writer)
            .values()
            .map(|seen| seen.3.len() as u64)
            .sum();
        let used = storage.used_bytes();
        assert!(
            used <= 2 * live + 2_000_000,
            "{used} bytes for {live} in round {round}"
        );
    }
    let before = tree(&region, &writer);
    let (after, report) = restored(&mut storage);
    assert!(before == after && report.is_whole());
}

/// Calls on a small region between two checkpoints.
fn change(writer: &Writer<'_>, step: u64) {
    for number in 0..3 {
        let name = format!("{}", (step + number) % 5);
        let bytes = noise(step * 10 + number, 3000 + 40_000 * number as usize);
        put(writer, ROOT_INODE, name.as_bytes(), &bytes, step);
    }
    let directory = format!("d{step}");
    let made = writer.create(ROOT_INODE, directory.as_bytes(), &DIRECTORY);
    put(
        writer,
        made.unwrap().inode,
        b"inside",
        &noise(step, 10),
        step,
    );
    if step > 1 {
        writer.remove(ROOT_INODE, b"gone", step).unwrap();
    }
    put(writer, ROOT_INODE, b"gone", &noise(step, 5000), step);
}

#[test]
fn a_power_cut_at_any_moment_leaves_one_whole_generation() {
    let mut cuts = 0;
    for kept_256ths in [0, 100, 256] {
        for after_calls in 0.. {
            let scratch = Scratch::new();
            let region = scratch.region(24 << 20);
            let writer = region.writer().unwrap();
            let mut storage = MemoryStorage::default();
            let mut states = vec![BTreeMap::new()];
            storage.set_cut(Cut {
                after_calls,
                kept_256ths,
            });
            let mut is_cut = false;
            for step in 1..5 {
                change(&writer, step);
                states.push(tree(&region, &writer));
                if save(&writer, &mut storage, &options(), &mut |_, _| {}).is_err() {
                    is_cut = true;
                    break;
                }
            }
            storage.restart();
            let (found, report) = restored(&mut storage);
            let newest = &states[states.len() - 1];
            let before = &states[states.len() - 2];
            assert!(
                found == *newest || is_cut && found == *before,
                "cut before change {after_calls}: {report:?}"
            );
            assert_eq!((report.lost_count, report.older_count), (0, 0));
            // A region that continues has all changes in its next checkpoint.
            let next = save_now(&writer, &mut storage);
            assert!(restored(&mut storage).0 == *newest, "{next:?}");
            if !is_cut {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts > 30, "only {cuts} cuts");
}

#[test]
fn damage_costs_the_damaged_files_by_name_and_never_the_start() {
    let scratch = Scratch::new();
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    let mut storage = MemoryStorage::default();
    change(&writer, 1);
    save_now(&writer, &mut storage);
    let old = tree(&region, &writer);
    change(&writer, 2);
    save_now(&writer, &mut storage);
    let new = tree(&region, &writer);
    let mut files = Vec::new();
    storage
        .list(&mut |name, bytes| files.push((name.to_owned(), bytes)))
        .unwrap();
    let mut random = Random::new(9);
    let (mut lost, mut older, mut fell_back, mut whole) = (0, 0, 0, 0);
    for round in 0..400 {
        let mut storage = storage.clone();
        for _ in 0..1 + round % 3 {
            let (name, bytes) = &files[random.index(files.len())];
            // The tables lie at the end of the file.
            let at = match random.coin() {
                true => random.below(*bytes),
                false => bytes - 1 - random.below(1200.min(*bytes)),
            };
            storage.bytes_mut(name).unwrap()[at as usize] ^= 1 << random.below(8);
        }
        let (found, report) = restored(&mut storage);
        for (path, seen) in &found {
            let is_right = [&old, &new]
                .iter()
                .any(|tree| tree.get(path).is_some_and(|it| it.3 == seen.3));
            assert!(
                is_right || path.starts_with("/lost+found"),
                "round {round}: {path} was never so"
            );
        }
        let known = |path: &String| {
            found.contains_key(path) || report.lost.iter().any(|lost| lost.path == *path)
        };
        if report.generation == 2 && report.parts_damaged == 0 {
            assert!(new.keys().all(known), "round {round}: {report:?}");
        }
        lost += report.lost_count;
        older += report.older_count;
        fell_back += u64::from(report.generation == 1);
        whole += u64::from(report.is_whole());
    }
    assert!(
        lost > 10 && older > 10 && fell_back > 10 && whole > 10,
        "{lost} lost, {older} older, {fell_back} fell back, {whole} whole"
    );
}

#[test]
fn damaged_pieces_are_written_anew_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    let mut storage = MemoryStorage::default();
    change(&writer, 1);
    save_now(&writer, &mut storage);
    storage.bytes_mut("region.1.checkpoint").unwrap()[1000] ^= 1;
    assert_eq!(restored(&mut storage).1.lost_count, 1);
    let unaware = save_now(&writer, &mut storage);
    assert!(unaware.is_unchanged);
    let verify = SaveOptions {
        verify: true,
        ..options()
    };
    let report = save(&writer, &mut storage, &verify, &mut |_, _| {}).unwrap();
    assert_eq!(report.pieces_damaged, 1);
    let (found, report) = restored(&mut storage);
    assert!(found == tree(&region, &writer) && report.is_whole());
}

#[test]
fn a_full_storage_gives_up_the_older_generation_and_never_the_newest() {
    let scratch = Scratch::new();
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    let mut storage = MemoryStorage::new(450_000);
    let mut given_up = 0;
    for step in 1..5 {
        let before = tree(&region, &writer);
        put(&writer, ROOT_INODE, b"a", &noise(step, 200_000), step);
        match save(&writer, &mut storage, &options(), &mut |_, _| {}) {
            Ok(report) => {
                given_up += u64::from(report.gave_up_older);
                assert!(restored(&mut storage).0 == tree(&region, &writer));
            }
            Err(error) => {
                assert_eq!(error.code(), Code::Full);
                assert!(restored(&mut storage).0 == before);
            }
        }
    }
    assert!(given_up > 0);
    put(&writer, ROOT_INODE, b"b", &noise(9, 400_000), 9);
    let refused = save(&writer, &mut storage, &options(), &mut |_, _| {});
    assert_eq!(refused.unwrap_err().code(), Code::Full);
    assert_eq!(restored(&mut storage).0.len(), 1);
}

#[test]
fn files_that_are_replaced_meanwhile_are_there_whole() {
    let scratch = Scratch::new();
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    for number in 0..50 {
        put(
            &writer,
            ROOT_INODE,
            format!("f{number}").as_bytes(),
            &[1; 3000],
            1,
        );
    }
    /// Stops the other thread also when this one fails.
    struct Ends<'e>(&'e AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (is_over, mut rounds) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            let writer = region.writer().unwrap();
            let mut step = 0_u8;
            while !is_over.load(Ordering::Relaxed) {
                step = step.wrapping_add(1);
                put(&writer, ROOT_INODE, b"new", &[step; 5000], 2);
                let name = format!("f{}", step % 50);
                writer
                    .rename((ROOT_INODE, b"new"), (ROOT_INODE, name.as_bytes()), 2)
                    .unwrap();
            }
        });
        for _ in 0..60 {
            let mut storage = MemoryStorage::default();
            let report = save_now(&writer, &mut storage);
            assert_eq!(report.missed_count, 0, "{report:?}");
            rounds += report.rounds;
            let (found, report) = restored(&mut storage);
            assert!(report.is_whole(), "{report:?}");
            for number in 0..50 {
                let seen = &found[&format!("/f{number}")];
                assert_eq!(seen.1, 1, "two names for one file");
                let bytes = &seen.3;
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                assert!(
                    matches!(bytes.len(), 3000 | 5000),
                    "{number}: {} bytes",
                    bytes.len()
                );
            }
        }
    });
    assert!(rounds >= 60);
}

#[test]
fn holes_that_are_made_while_the_tables_are_copied_block_no_call() {
    let scratch = Scratch::new();
    let region = scratch.region(64 << 20);
    let writer = region.writer().unwrap();
    let bytes = noise(3, 4 << 20);
    let inode = put(&writer, ROOT_INODE, b"log", &bytes, 1);
    let generation = region.attributes(inode).unwrap().generation;
    let wanted = HashSet::from([(ROOT_INODE, b"log".to_vec())]);
    let (is_over, mut taken) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let holes = scope.spawn(|| {
            let writer = region.writer().unwrap();
            for now_ns in 0..100 {
                put(&writer, ROOT_INODE, b"log", &bytes, now_ns);
                let all = (0, bytes.len() as u64);
                writer.punch(inode, generation, all, now_ns).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) && !holes.is_finished() {
            let (_, held) = Snapshot::take(&writer, &wanted).unwrap();
            assert_eq!(held.len(), 1);
            taken += 1;
        }
    });
    assert!(taken > 0);
}

#[test]
fn a_file_that_goes_before_its_turn_is_not_taken_for_an_empty_one() {
    let scratch = Scratch::new();
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    put(&writer, ROOT_INODE, b"a", &[1; 3000], 1);
    let inode = put(&writer, ROOT_INODE, b"b", &[2; 3000], 1);
    let old = region.attributes(inode).unwrap();
    // A process has it open, so it stays a file without a name, as other files do briefly while their memory is freed.
    let attachment = crate::Attachment::open(region.path(), b"/keel", true).unwrap();
    let (descriptor, _) = attachment.open_description(&old, libc::O_RDONLY).unwrap();
    let mut storage = MemoryStorage::default();
    let mut is_replaced = false;
    let report = save(&writer, &mut storage, &options(), &mut |_, _| {
        if !std::mem::replace(&mut is_replaced, true) {
            put(&writer, ROOT_INODE, b"new", &[3; 5000], 2);
            let (from, to) = ((ROOT_INODE, &b"new"[..]), (ROOT_INODE, &b"b"[..]));
            writer.rename(from, to, 2).unwrap();
            let size = writer.set_size(inode, old.generation, 0, 3);
            size.unwrap();
        }
    });
    assert_eq!(report.unwrap().rounds, 2);
    let (found, report) = restored(&mut storage);
    assert!(report.is_whole());
    assert_eq!(found["/b"].3, [3; 5000]);
    // SAFETY: opened above, and no other code knows it.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) });
}

#[test]
fn bad_names_are_refused() {
    let long = "x".repeat(41);
    for name in ["", "a/b", "a.b", "ü", &long] {
        let refused = shape(&mut MemoryStorage::default(), name);
        assert!(matches!(refused, Err(CheckpointError::Name)), "{name}");
    }
}

/// A storage that calls a function before it appends for the first time.
struct Interrupted<'a> {
    storage: MemoryStorage,
    before: Option<Box<dyn FnOnce() + 'a>>,
}

impl Storage for Interrupted<'_> {
    fn list(&mut self, visit: &mut dyn FnMut(&str, u64)) -> std::result::Result<(), StorageError> {
        self.storage.list(visit)
    }

    fn create(&mut self, name: &str) -> std::result::Result<(), StorageError> {
        self.storage.create(name)
    }

    fn append(&mut self, name: &str, data: &[u8]) -> std::result::Result<(), StorageError> {
        if let Some(before) = self.before.take() {
            before();
        }
        self.storage.append(name, data)
    }

    fn sync(&mut self) -> std::result::Result<(), StorageError> {
        self.storage.sync()
    }

    fn read(
        &mut self,
        name: &str,
        offset: u64,
        into: &mut [u8],
    ) -> std::result::Result<(), StorageError> {
        self.storage.read(name, offset, into)
    }

    fn delete(&mut self, name: &str) -> std::result::Result<(), StorageError> {
        self.storage.delete(name)
    }
}

#[test]
fn a_file_that_becomes_shorter_meanwhile_has_no_zeros_in_place_of_its_bytes() {
    // To a part of its memory, to a part of its first page, and to nothing.
    for size in [5 << 20, 100_000, 0] {
        let scratch = Scratch::new();
        let region = scratch.region(32 << 20);
        let (writer, other) = (region.writer().unwrap(), region.writer().unwrap());
        let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..9 << 20).map(|_| 1 + random.below(255) as u8).collect();
        writer
            .write(made.inode, made.generation, 0, &bytes, 1)
            .unwrap();
        let shorten = || {
            other
                .set_size(made.inode, made.generation, size, 2)
                .unwrap();
        };
        let mut storage = Interrupted {
            storage: MemoryStorage::default(),
            before: Some(Box::new(shorten)),
        };
        save(&writer, &mut storage, &options(), &mut |_, _| {}).unwrap();
        let mut storage = storage.storage;
        let (seen, report) = restored(&mut storage);
        assert!(report.lost.is_empty(), "{:?}", report.lost);
        let found = &seen["/file"].3;
        assert!(found.len() >= size as usize, "{} bytes", found.len());
        assert!(bytes.starts_with(found), "{} bytes", found.len());
    }
}
