//! Tests of the bytes of the formats: an old region and an old checkpoint can be read, and the same calls make the same
//! bytes.
//!
//! `golden/region-N.bin` lists the words of a region that are not zero: offset (u64), value (u64). Words that depend on
//! the process that made it are left out: owners of lanes, the run of the machine. `golden/checkpoint-N.bin` holds the
//! files of a storage: bytes of the name (u64), name, bytes (u64), content. All numbers are little-endian. N is the
//! version of the format. `GOLDEN_UPDATE=1 cargo test -p mem --test it golden::` writes them again, which is right only
//! when a version changes, or while it is 0.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use mem::checkpoint::{MemoryStorage, SaveOptions, Storage, restore, save};
use mem::{Flush, NewInode, PAGE_BYTES, ROOT_INODE, Region, RegionOptions, Writer};

const OPTIONS: RegionOptions = RegionOptions {
    capacity_bytes: 20 << 20,
    files_max: Some(40),
    lanes: 2,
};
const FILE: NewInode = NewInode {
    mode: 0o100_640,
    user: 1000,
    group: 1001,
    now_ns: 1_700_000_000_000_000_000,
};
const DIRECTORY: NewInode = NewInode {
    mode: 0o040_755,
    ..FILE
};
/// Words of the superblock with the run of the machine and its namespace.
const RUN: std::ops::Range<u64> = 1296..1320;
/// Bytes of a lane.
const LANE_BYTES: u64 = 20 << 10;

struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("keel-mem-golden-{name}-{}", std::process::id());
        Self {
            path: std::env::temp_dir().join(name),
        }
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

fn golden(name: &str, version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}-{version}.bin"))
}

/// Calls that use every structure of the format.
fn make(writer: &Writer<'_>) -> mem::Result<()> {
    let now_ns = FILE.now_ns;
    let put = |directory, name: &[u8], offset, bytes: &[u8]| -> mem::Result<u64> {
        let made = writer.create(directory, name, &FILE)?;
        writer.write(made.inode, made.generation, offset, bytes, now_ns + 1)?;
        Ok(made.inode)
    };
    let inner = writer.create(ROOT_INODE, b"inner", &DIRECTORY)?.inode;
    let linked = put(ROOT_INODE, b"linked", 0, b"two names")?;
    writer.link(linked, inner, &[b'n'; 255], now_ns + 2)?;
    put(inner, b"piece", 0, &[0x55; 5000])?;
    put(inner, b"same page", 0, &[0x66; 6000])?;
    let large = put(ROOT_INODE, b"large", 1_100_000, b"far")?;
    let generation = writer.look_up(ROOT_INODE, b"large")?.generation;
    writer.write(
        large,
        generation,
        2 * PAGE_BYTES,
        b"behind a hole",
        now_ns + 3,
    )?;
    put(ROOT_INODE, b"gone", 0, b"gone")?;
    writer.remove(ROOT_INODE, b"gone", now_ns + 4)?;
    let link = NewInode {
        mode: 0o120_777,
        ..FILE
    };
    let link = writer.create(inner, b"link", &link)?;
    writer.write(link.inode, link.generation, 0, b"../linked", now_ns)
}

/// Every path with its size and the sum of its bytes.
fn tree(writer: &Writer<'_>) -> Vec<(String, u64, u64)> {
    let mut tree = Vec::new();
    let mut waiting = vec![(ROOT_INODE, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for entry in writer.list(directory, 0, 100).unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let found = writer.look_up(directory, &entry.name).unwrap();
            let mut bytes = vec![0; found.size as usize];
            if found.is_directory() {
                waiting.push((found.inode, path.clone()));
            } else {
                writer
                    .read(found.inode, found.generation, 0, &mut bytes)
                    .unwrap();
            }
            let sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
            tree.push((path, found.size, sum));
        }
    }
    tree.sort();
    tree
}

fn made_tree() -> Vec<(String, u64, u64)> {
    let sum = |byte: u64, count: u64| byte * count;
    let of = |text: &[u8]| text.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let mut tree = vec![
        ("/inner".to_owned(), 0, 0),
        ("/inner/link".to_owned(), 9, of(b"../linked")),
        (format!("/inner/{}", "n".repeat(255)), 9, of(b"two names")),
        ("/inner/piece".to_owned(), 5000, sum(0x55, 5000)),
        ("/inner/same page".to_owned(), 6000, sum(0x66, 6000)),
        (
            "/large".to_owned(),
            2 * PAGE_BYTES + 13,
            of(b"far") + of(b"behind a hole"),
        ),
        ("/linked".to_owned(), 9, of(b"two names")),
    ];
    tree.sort();
    tree
}

/// The words of a region's file that are not zero, up to the end of the packed pages and of the first slot's pages.
fn words(path: &Path, region: &Region) -> BTreeMap<u64, u64> {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let tables = region.layout().tables();
    let lanes_at = tables[1].1;
    let lanes_end = tables[2].1;
    let mut words = BTreeMap::new();
    let mut at = 0;
    let mut buffer = vec![0; 1 << 16];
    while at < length {
        // SAFETY: a descriptor that is open, and plain integers.
        let data = unsafe { libc::lseek64(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        if data < 0 {
            break;
        }
        at = data as u64 / 8 * 8;
        let count = file.read_at(&mut buffer, at).unwrap() / 8 * 8;
        for (place, word) in buffer[..count].chunks_exact(8).enumerate() {
            let word_at = at + place as u64 * 8;
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            let is_owner = (lanes_at..lanes_end).contains(&word_at)
                && (word_at - lanes_at).is_multiple_of(LANE_BYTES);
            if word != 0 && !is_owner && !RUN.contains(&word_at) {
                words.insert(word_at, word);
            }
        }
        at += count.max(8) as u64;
    }
    words
}

fn is_updated() -> bool {
    std::env::var_os("GOLDEN_UPDATE").is_some()
}

#[test]
fn a_region_of_these_formats_is_the_same_word_for_word_and_can_be_read() {
    for (version, flush) in [(1, Flush::None), (mem::FORMAT_VERSION, Flush::CacheLines)] {
        a_region_is_the_same(version, flush);
    }
}

fn a_region_is_the_same(version: u32, flush: Flush) {
    let scratch = Scratch::new("region");
    let region =
        Region::create_with_flush(&scratch.path, &OPTIONS, &DIRECTORY, Some(flush)).unwrap();
    assert_eq!(region.format_version(), version);
    let writer = region.writer().unwrap();
    make(&writer).unwrap();
    assert_eq!(tree(&writer), made_tree());
    drop(writer);
    let made = words(&scratch.path, &region);
    let path = golden("region", version);
    if is_updated() {
        let pairs = made.iter().flat_map(|(at, word)| [*at, *word]);
        let bytes: Vec<u8> = pairs.flat_map(u64::to_le_bytes).collect();
        std::fs::write(&path, bytes).unwrap();
    }
    let bytes = std::fs::read(&path).unwrap();
    let numbers: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let old: BTreeMap<u64, u64> = numbers.chunks_exact(2).map(|it| (it[0], it[1])).collect();
    let differing: Vec<_> = old
        .iter()
        .filter(|(at, word)| made.get(at) != Some(word))
        .map(|(at, _)| *at)
        .chain(made.keys().filter(|at| !old.contains_key(at)).copied())
        .take(10)
        .collect();
    assert!(
        differing.is_empty(),
        "words differ at {differing:?}: that is another version, for which GOLDEN_UPDATE=1 makes the file"
    );
    // Load the words into another region of the same shape, whose memory lies at the same offsets.
    drop(region);
    let file = std::fs::File::options()
        .write(true)
        .open(&scratch.path)
        .unwrap();
    for at in made.keys() {
        file.write_all_at(&[0; 8], *at).unwrap();
    }
    assert!(Region::open(&scratch.path, true).is_err());
    for (at, word) in &old {
        file.write_all_at(&word.to_ne_bytes(), *at).unwrap();
    }
    let region = Region::open(&scratch.path, true).unwrap();
    assert_eq!(region.flush(), flush);
    assert_eq!(tree(&region.writer().unwrap()), made_tree());
    let found = mem::check::check(&region, false).unwrap();
    assert!(found.is_clean(), "{:?}", found.findings);
}

fn encode(storage: &mut MemoryStorage) -> Vec<u8> {
    let mut names = Vec::new();
    storage
        .list(&mut |name, bytes| names.push((name.to_owned(), bytes)))
        .unwrap();
    let mut encoded = Vec::new();
    for (name, bytes) in names {
        encoded.extend((name.len() as u64).to_le_bytes());
        encoded.extend(name.as_bytes());
        encoded.extend(bytes.to_le_bytes());
        let mut content = vec![0; bytes as usize];
        storage.read(&name, 0, &mut content).unwrap();
        encoded.extend(content);
    }
    encoded
}

fn decode(mut bytes: &[u8]) -> MemoryStorage {
    let mut take = |count: usize| {
        let (taken, rest) = bytes.split_at(count);
        bytes = rest;
        (taken, rest.is_empty())
    };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let mut storage = MemoryStorage::default();
    loop {
        let length = word(take(8).0);
        let name = String::from_utf8(take(length).0.to_vec()).unwrap();
        let length = word(take(8).0);
        storage.create(&name).unwrap();
        let (content, is_last) = take(length);
        storage.append(&name, content).unwrap();
        if is_last {
            return storage;
        }
    }
}

#[test]
fn a_checkpoint_of_this_format_is_the_same_byte_for_byte_and_can_be_restored() {
    let scratch = Scratch::new("checkpoint");
    let region = Region::create(&scratch.path, &OPTIONS, &DIRECTORY).unwrap();
    let writer = region.writer().unwrap();
    let mut storage = MemoryStorage::default();
    make(&writer).unwrap();
    // The large file would make the golden file large, so keep only a few bytes of it.
    let large = writer.look_up(ROOT_INODE, b"large").unwrap();
    writer
        .set_size(large.inode, large.generation, 100, FILE.now_ns)
        .unwrap();
    let many = writer.create(ROOT_INODE, b"many", &FILE).unwrap();
    for extent in 0..18_u64 {
        // One byte in each extent: enough extents for a list of their own.
        writer
            .write(many.inode, many.generation, extent << 14, &[1], FILE.now_ns)
            .unwrap();
    }
    writer
        .set_size(many.inode, many.generation, 17 << 14 | 1, FILE.now_ns)
        .unwrap();
    for (now_ns, name) in [(1, &b"first"[..]), (2, b"second")] {
        let made = writer.create(ROOT_INODE, name, &FILE).unwrap();
        writer
            .write(made.inode, made.generation, 0, name, FILE.now_ns)
            .unwrap();
        let options = SaveOptions {
            name: "golden",
            now_ns,
            random: 0x0123_4567_89ab_cdef,
            verify: false,
            left_out: &[],
        };
        save(&writer, &mut storage, &options, &mut |_, _| {}).unwrap();
    }
    let expected = tree(&writer);
    drop(writer);
    drop(region);
    std::fs::remove_file(&scratch.path).unwrap();
    let made = encode(&mut storage);
    let path = golden("checkpoint", mem::checkpoint::FORMAT_VERSION);
    if is_updated() {
        std::fs::write(&path, &made).unwrap();
    }
    let old = std::fs::read(&path).unwrap();
    let differs = made.iter().zip(&old).position(|(new, old)| new != old);
    assert!(
        differs.is_none() && made.len() == old.len(),
        "byte {differs:?} differs, of {} and {}",
        made.len(),
        old.len()
    );
    let region = Region::create(&scratch.path, &OPTIONS, &DIRECTORY).unwrap();
    let writer = region.writer().unwrap();
    let mut storage = decode(&old);
    let report = restore(&writer, &mut storage, "golden", &mut |_, _| {}).unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(tree(&writer), expected);
}
