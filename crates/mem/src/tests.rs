//! Tests against a model, and with writers that die at each of their stores.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use base::sim::Random;

use crate::lane::word;
use crate::layout::{attribute, state};
use crate::memory::Killed;
use crate::{
    Error, Logging, NewInode, PAGE_BYTES, ROOT_INODE, Region, RegionOptions, Result, Writer,
};

mod damage;
mod directories;
mod images;
mod removal;
mod rescue;
mod room;

const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o644,
    user: 7,
    group: 8,
    now_ns: 1,
};

const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o755,
    ..FILE
};

/// A region that is deleted at the end of the test.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        // The tests make a thousand regions; on a disk each of them would be written.
        let shared = std::path::Path::new("/dev/shm");
        let folder = if shared.is_dir() {
            shared.to_owned()
        } else {
            std::env::temp_dir()
        };
        Self {
            path: folder.join(format!("keel-mem-{name}-{}", std::process::id())),
        }
    }

    fn region(&self, capacity_bytes: u64) -> Region {
        let options = RegionOptions {
            capacity_bytes,
            files_max: Some(500),
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

fn content(region: &Region, writer: &Writer<'_>, name: &[u8]) -> Result<Vec<u8>> {
    let found = writer.look_up(ROOT_INODE, name)?;
    let mut bytes = vec![0xee; found.size as usize + 10];
    let count = region.read(found.inode, found.generation, 0, &mut bytes)?;
    assert_eq!(count as u64, found.size);
    bytes.truncate(count);
    Ok(bytes)
}

fn names(writer: &Writer<'_>, directory: u64) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut position = 0;
    loop {
        let some = writer.list(directory, position, 3).unwrap();
        let Some(last) = some.last() else {
            names.sort_unstable();
            return names;
        };
        position = last.position;
        names.extend(some.into_iter().map(|entry| entry.name));
    }
}

#[test]
fn a_region_opened_again_has_its_content() {
    let scratch = Scratch::new("again");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"hello", &FILE).unwrap();
    writer
        .write(made.inode, made.generation, 0, b"world", 2)
        .unwrap();
    drop(writer);
    let layout = *region.layout();
    drop(region);
    assert!(matches!(
        Region::create(
            &scratch.path,
            &RegionOptions {
                capacity_bytes: 32 << 20,
                files_max: None,
                lanes: 4
            },
            &DIRECTORY
        ),
        Err(Error::System { .. })
    ));
    let region = Region::open(&scratch.path, true).unwrap();
    assert_eq!(*region.layout(), layout);
    let writer = region.writer().unwrap();
    assert_eq!(content(&region, &writer, b"hello").unwrap(), b"world");
    let reader = Region::open(&scratch.path, false).unwrap();
    let mut bytes = [0; 5];
    assert_eq!(
        reader
            .read(made.inode, made.generation, 0, &mut bytes)
            .unwrap(),
        5
    );
    assert_eq!(&bytes, b"world");
    assert!(matches!(reader.writer(), Err(Error::ReadOnly)));
}

#[test]
fn a_file_that_is_no_region_is_refused() {
    let scratch = Scratch::new("none");
    std::fs::write(&scratch.path, vec![0; 3 << 20]).unwrap();
    assert!(matches!(
        Region::open(&scratch.path, true),
        Err(Error::NotARegion { .. })
    ));
    std::fs::write(&scratch.path, b"short").unwrap();
    assert!(matches!(
        Region::open(&scratch.path, true),
        Err(Error::NotARegion { .. })
    ));
    std::fs::remove_file(&scratch.path).unwrap();
    assert!(matches!(
        Region::open(&scratch.path, true),
        Err(Error::System { .. })
    ));
    let region = scratch.region(32 << 20);
    drop(region);
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&scratch.path)
        .unwrap();
    file.write_all_at(&[9], 20).unwrap();
    assert!(matches!(
        Region::open(&scratch.path, true),
        Err(Error::Damaged { .. })
    ));
    file.write_all_at(&[3], 8).unwrap();
    assert!(matches!(
        Region::open(&scratch.path, true),
        Err(Error::Version { found: 3, .. })
    ));
}

#[test]
fn calls_agree_with_a_map_of_names() {
    let scratch = Scratch::new("model");
    let region = scratch.region(48 << 20);
    let writer = region.writer().unwrap();
    let pool = region.free_bytes();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = Random::new(5);
    let mut full = 0;
    for step in 0..6000u64 {
        let name =
            format!("{}-{}", "n".repeat(random.index(4) * 60), random.below(12)).into_bytes();
        let known = model.contains_key(&name);
        match random.below(12) {
            0..=2 => match writer.create(ROOT_INODE, &name, &FILE) {
                Ok(_) => assert!(model.insert(name, Vec::new()).is_none()),
                Err(error) => assert!(known && matches!(error, Error::Exists), "{error}"),
            },
            3..=7 if known => {
                let found = writer.look_up(ROOT_INODE, &name).unwrap();
                let length =
                    [10, 1000, 5000, 70_000, 2_500_000][random.index(5).min(random.index(5))];
                let offset = match random.below(3) {
                    0 => found.size,
                    1 => random.below(found.size + 1),
                    _ => random.below(3_000_000),
                };
                let data: Vec<u8> = (0..length).map(|place| (place * 7 + step) as u8).collect();
                match writer.write(found.inode, found.generation, offset, &data, step) {
                    Ok(()) => {
                        let bytes = model.get_mut(&name).unwrap();
                        let end = offset as usize + data.len();
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[offset as usize..end].copy_from_slice(&data);
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Full), "{error}");
                        full += 1;
                    }
                }
            }
            8 if known => {
                let found = writer.look_up(ROOT_INODE, &name).unwrap();
                let bits = random.below(23);
                let size = random.below(1 << bits);
                match writer.set_size(found.inode, found.generation, size, step) {
                    Ok(()) => model.get_mut(&name).unwrap().resize(size as usize, 0),
                    Err(error) => assert!(matches!(error, Error::Full), "{error}"),
                }
            }
            9 | 10 => match writer.remove(ROOT_INODE, &name, step) {
                Ok(()) => assert!(model.remove(&name).is_some()),
                Err(error) => assert!(!known && matches!(error, Error::NotFound), "{error}"),
            },
            _ => {
                let other = format!("{}", random.below(12)).into_bytes();
                match writer.rename((ROOT_INODE, &name), (ROOT_INODE, &other), step) {
                    Ok(()) => {
                        let bytes = model.remove(&name).unwrap();
                        model.insert(other, bytes);
                    }
                    Err(error) => assert!(!known && matches!(error, Error::NotFound), "{error}"),
                }
            }
        }
        if step % 50 == 0 {
            for (name, bytes) in &model {
                assert!(
                    content(&region, &writer, name).unwrap() == *bytes,
                    "step {step}"
                );
            }
            let expected: Vec<_> = model.keys().cloned().collect();
            assert_eq!(names(&writer, ROOT_INODE), expected, "step {step}");
        }
    }
    assert!(full > 5, "the region was full {full} times only");
    for name in model.keys() {
        writer.remove(ROOT_INODE, name, 0).unwrap();
    }
    // A page may stay allocated for each piece size.
    let kept = (pool - region.free_bytes()) / PAGE_BYTES;
    assert!(kept <= 11, "{kept} pages are lost");
    assert_eq!(region.memory.load(state::INODES), 1);
    assert_eq!(region.memory.load(state::CELLS), 0);
}

#[test]
fn directories_nest_and_refuse_invalid_changes() {
    let scratch = Scratch::new("directories");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let a = writer.create(ROOT_INODE, b"a", &DIRECTORY).unwrap().inode;
    let b = writer.create(a, b"b", &DIRECTORY).unwrap().inode;
    let file = writer.create(b, b"file", &FILE).unwrap();
    let links = |inode| region.attributes(inode).unwrap().links;
    assert_eq!(
        (links(ROOT_INODE), links(a), links(b), links(file.inode)),
        (3, 3, 2, 1)
    );
    assert!(matches!(
        writer.rename((ROOT_INODE, b"a"), (b, b"c"), 3),
        Err(Error::IntoItself)
    ));
    assert!(matches!(
        writer.remove_directory(a, b"b", 3),
        Err(Error::NotEmpty)
    ));
    assert!(matches!(
        writer.remove(a, b"b", 3),
        Err(Error::IsADirectory)
    ));
    assert!(matches!(
        writer.remove_directory(b, b"file", 3),
        Err(Error::NotADirectory)
    ));
    assert!(matches!(
        writer.create(file.inode, b"x", &FILE),
        Err(Error::NotADirectory)
    ));
    assert!(matches!(
        writer.create(b, &[b'x'; 256], &FILE),
        Err(Error::NameTooLong)
    ));
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert!(matches!(
            writer.create(b, name, &FILE),
            Err(Error::Invalid { .. })
        ));
    }
    writer.link(file.inode, ROOT_INODE, b"second", 4).unwrap();
    assert_eq!(links(file.inode), 2);
    writer.remove(b, b"file", 5).unwrap();
    assert_eq!(links(file.inode), 1);
    writer.rename((a, b"b"), (ROOT_INODE, b"b"), 6).unwrap();
    assert_eq!((links(ROOT_INODE), links(a)), (4, 2));
    writer
        .rename((ROOT_INODE, b"b"), (ROOT_INODE, b"a"), 7)
        .unwrap();
    assert_eq!(
        names(&writer, ROOT_INODE),
        [b"a".to_vec(), b"second".to_vec()]
    );
    writer.remove(ROOT_INODE, b"second", 8).unwrap();
    let read = region.read(file.inode, file.generation, 0, &mut [0; 4]);
    assert!(matches!(read, Err(Error::Stale)));
    writer.remove_directory(ROOT_INODE, b"a", 9).unwrap();
    assert_eq!(links(ROOT_INODE), 2);
}

/// The owner word of a process that never existed: real process numbers are smaller.
const DEAD: u64 = 0x7f_ffff << 40 | 1;

/// Makes all owners of lanes dead.
fn bury(region: &Region) {
    for lane in 0..region.layout.lane_count {
        let at = region.layout.lane(lane) + word::OWNER;
        if region.memory.load(at) != 0 {
            region.memory.store(at, DEAD);
        }
    }
}

/// Small, because it is created again for each death.
const REGION_BYTES: u64 = 18 << 20;

/// What other processes see of a region.
type View = Vec<(Vec<u8>, Vec<u8>)>;

fn view(region: &Region, writer: &Writer<'_>) -> View {
    let names = names(writer, ROOT_INODE);
    let each = names.into_iter().map(|name| {
        let bytes = content(region, writer, &name).unwrap();
        (name, bytes)
    });
    each.collect()
}

/// Lets the writer of a call die at each of its stores, and its rescuer at some of its stores, too. The next process
/// must see the state before the call or after it.
fn die_everywhere(name: &str, prepare: &dyn Fn(&Writer<'_>), call: &dyn Fn(&Writer<'_>)) {
    let scratch = Scratch::new(name);
    let twin = Scratch::new(&format!("{name}-twin"));
    // Each region below is made in the same way as this one: what it holds before and after the call is read here once.
    let ((before, pool), expected) = {
        let region = twin.region(REGION_BYTES);
        let writer = region.writer().unwrap();
        let state = || (view(&region, &writer), region.free_bytes());
        prepare(&writer);
        let before = state();
        call(&writer);
        (before, state())
    };
    for stores in 0.. {
        let region = scratch.region(REGION_BYTES);
        let writer = region.writer().unwrap();
        prepare(&writer);
        region
            .memory
            .stores_left
            .store(stores, std::sync::atomic::Ordering::Relaxed);
        let died = catch_unwind(AssertUnwindSafe(|| call(&writer)));
        region
            .memory
            .stores_left
            .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        let Err(reason) = died else {
            assert!(stores > 8, "{name}: only {stores} stores");
            let after = view(&region, &writer);
            assert!(before != after && after == expected.0, "{name}");
            println!("{name}: a writer died at each of {stores} stores");
            return;
        };
        assert!(
            reason.is::<Killed>(),
            "{name}: something else than the death panicked"
        );
        // The process of that writer has died.
        std::mem::forget(writer);
        bury(&region);
        if stores % 3 == 0 {
            // The first rescuer dies as well.
            let rescuer = region.writer().unwrap();
            region
                .memory
                .stores_left
                .store(stores / 3 % 40, std::sync::atomic::Ordering::Relaxed);
            let _ = catch_unwind(AssertUnwindSafe(|| view(&region, &rescuer)));
            region
                .memory
                .stores_left
                .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
            std::mem::forget(rescuer);
            bury(&region);
        }
        let next = region.writer().unwrap();
        next.reclaim_orphans().unwrap();
        let found = view(&region, &next);
        assert!(
            found == before || found == expected.0,
            "{name}: killed before store {stores}: neither before nor after"
        );
        // All locks are free, and unfinished changes are undone or completed.
        for inode in 1..10 {
            let lock = region
                .memory
                .load(region.layout.inode(inode) + attribute::LOCK);
            if lock != 0 {
                let locked = next.set_size(inode, u64::MAX, 0, 0);
                assert!(matches!(locked, Err(Error::Stale)), "{name}: {locked:?}");
            }
        }
        let free = region.free_bytes();
        let spread = pool.max(expected.1) - pool.min(expected.1);
        assert!(
            free.abs_diff(pool) <= spread + PAGE_BYTES,
            "{name}: killed before store {stores}: {pool} bytes free before, {free} now"
        );
        drop(next);
        drop(region);
        std::fs::remove_file(&scratch.path).unwrap();
    }
}

fn put(writer: &Writer<'_>, name: &[u8], bytes: &[u8]) {
    let made = writer.create(ROOT_INODE, name, &FILE).unwrap();
    writer
        .write(made.inode, made.generation, 0, bytes, 2)
        .unwrap();
}

fn write(writer: &Writer<'_>, name: &[u8], offset: u64, bytes: &[u8]) {
    let found = writer.look_up(ROOT_INODE, name).unwrap();
    writer
        .write(found.inode, found.generation, offset, bytes, 3)
        .unwrap();
}

/// Two pages, the second one not full: each death writes and reads them again.
const LARGE_BYTES: usize = PAGE_BYTES as usize + 300_000;

/// The files that the calls under test need.
fn prepare(writer: &Writer<'_>) {
    put(writer, b"one", &[1; 3000]);
    put(writer, &[b'l'; 200], &[2; 900]);
    put(writer, b"large", &vec![3; LARGE_BYTES]);
}

#[test]
fn a_killed_write_is_done_or_not_done() {
    die_everywhere("append", &prepare, &|writer| {
        write(writer, b"one", 3000, &[9; 500])
    });
    die_everywhere("outgrow", &prepare, &|writer| {
        write(writer, b"one", 3000, &[9; 16_000])
    });
    die_everywhere("gap", &prepare, &|writer| {
        write(writer, b"large", 2 * PAGE_BYTES + 800_000, &[9; 10])
    });
    die_everywhere("small", &prepare, &|writer| {
        write(writer, b"large", 1_000_000, &[9; 8])
    });
}

#[test]
fn a_killed_overwrite_is_done_or_not_done_however_it_is_logged() {
    for logging in [
        Logging::BySize,
        Logging::Redo,
        Logging::Undo,
        Logging::CopyOnWrite,
    ] {
        let name = |what| format!("{what}-{logging:?}");
        die_everywhere(&name("overwrite"), &prepare, &|writer| {
            writer.region.set_logging(logging);
            write(writer, b"one", 100, &[9; 2000]);
        });
        die_everywhere(&name("across-the-end"), &prepare, &|writer| {
            writer.region.set_logging(logging);
            write(writer, b"one", 1000, &[9; 3000]);
        });
        die_everywhere(&name("large"), &prepare, &|writer| {
            writer.region.set_logging(logging);
            write(writer, b"large", PAGE_BYTES - 5000, &[9; 16_384]);
        });
        die_everywhere(&name("behind-another"), &prepare, &|writer| {
            writer.region.set_logging(logging);
            write(writer, b"large", 5000, &[3; 5000]);
            write(writer, b"large", 10_000, &[9; 5000]);
        });
    }
}

#[test]
fn a_killed_change_of_names_or_size_is_done_or_not_done() {
    die_everywhere("create", &prepare, &|writer| {
        writer
            .create(ROOT_INODE, &[b'x'; 100], &FILE)
            .map(drop)
            .unwrap();
    });
    die_everywhere("remove", &prepare, &|writer| {
        writer.remove(ROOT_INODE, &[b'l'; 200], 3).unwrap()
    });
    die_everywhere("rename", &prepare, &|writer| {
        writer
            .rename((ROOT_INODE, b"one"), (ROOT_INODE, &[b'l'; 200]), 3)
            .unwrap();
    });
    let three_pages = |writer: &Writer<'_>| {
        prepare(writer);
        write(
            writer,
            b"large",
            LARGE_BYTES as u64,
            &vec![3; PAGE_BYTES as usize],
        );
    };
    die_everywhere("shorten", &three_pages, &|writer| {
        let found = writer.look_up(ROOT_INODE, b"large").unwrap();
        writer
            .set_size(found.inode, found.generation, 10, 3)
            .unwrap();
    });
}

#[test]
fn two_threads_see_each_others_writes_whole() {
    let scratch = Scratch::new("threads");
    let region = scratch.region(32 << 20);
    let made = {
        let writer = region.writer().unwrap();
        let made = writer.create(ROOT_INODE, b"shared", &FILE).unwrap();
        writer
            .write(made.inode, made.generation, 0, &[0; 8192], 1)
            .unwrap();
        made
    };
    std::thread::scope(|scope| {
        for seed in 1..3u8 {
            let region = &region;
            scope.spawn(move || {
                let writer = region.writer().unwrap();
                for step in 0..3000u64 {
                    let data = [seed.wrapping_mul(100).wrapping_add(step as u8); 8192];
                    writer
                        .write(made.inode, made.generation, 0, &data, step)
                        .unwrap();
                }
            });
        }
        let region = &region;
        scope.spawn(move || {
            let mut bytes = [0; 8192];
            for _ in 0..3000 {
                assert_eq!(
                    region
                        .read(made.inode, made.generation, 0, &mut bytes)
                        .unwrap(),
                    8192
                );
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn read");
            }
        });
    });
}

#[test]
fn files_left_in_a_change_are_waited_for_once() {
    let scratch = Scratch::new("stuck");
    let region = scratch.region(24 << 20);
    let writer = region.writer().unwrap();
    let files: Vec<_> = (0..6)
        .map(|number| {
            let name = format!("file{number}");
            writer.create(ROOT_INODE, name.as_bytes(), &FILE).unwrap()
        })
        .collect();
    let looks = || {
        region
            .patience
            .looks
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    let sequence_at = |inode| region.layout.inode(inode) + attribute::SEQUENCE;
    for file in &files {
        region.memory.store(sequence_at(file.inode), 77);
    }
    let fails = |count: u64| {
        let before = looks();
        for file in &files {
            let found = region.attributes(file.inode);
            assert!(matches!(found, Err(Error::Damaged { .. })), "{found:?}");
        }
        let more = looks() - before;
        assert!(more <= count, "{more} looks");
    };
    // The first file takes all looks; each further file takes as few as are needed to detect the state.
    fails(30 + 5 * 3);
    fails(6 * 3);
    // The same for a dead writer that a read-only reader may not recover.
    let reader = Region::open(&scratch.path, false).unwrap();
    let lane = region.layout.lane(3);
    region.memory.store(lane + word::OWNER, 0x7f_ffff << 40 | 1);
    let lock_at = region.layout.inode(files[0].inode) + attribute::LOCK;
    region.memory.store(lock_at, 4);
    let before = reader
        .patience
        .looks
        .load(std::sync::atomic::Ordering::Relaxed);
    for _ in 0..2 {
        let found = reader.attributes(files[0].inode);
        assert!(matches!(found, Err(Error::ReadOnly)), "{found:?}");
    }
    let after = reader
        .patience
        .looks
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(after - before <= 505, "{} looks", after - before);
    region.memory.store(lock_at, 0);
    for file in &files {
        region.memory.store(sequence_at(file.inode), 78);
        assert_eq!(region.attributes(file.inode).unwrap().size, 0);
    }
}
