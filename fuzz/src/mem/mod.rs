//! The bodies of the fuzz targets of the in-memory file system. One overwrites the tables of a region and uses it, one
//! damages a checkpoint and restores it.
//!
//! **Holds:** the region, the damage, the calls, and the conditions that must hold for any tables: no panic, every call
//! ends, a repaired region is sound and stays so in use, a restored region is sound.
//!
//! **Must not know:** the fuzzer. A test of `mem` includes this file and runs the committed corpora through it on the
//! stable toolchain.
//!
//! **Invariants:** a function depends on its input alone, except for the memory that the machine has.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use mem::check::check;
use mem::checkpoint::{MemoryStorage, SaveOptions, Storage, restore, save, shape};
use mem::{NewInode, PAGE_BYTES, ROOT_INODE, Region, RegionOptions, Writer};

const CAPACITY_BYTES: u64 = 20 << 20;
const CHANGES_MAX: usize = 16;
const CALLS_MAX: usize = 32;
const NAME: &str = "fuzzed";
const FOOTER_BYTES: usize = 128;

const FILE: NewInode = NewInode {
    mode: 0o100_640,
    user: 1,
    group: 1,
    now_ns: 1,
};
const DIRECTORY: NewInode = NewInode {
    mode: 0o040_755,
    ..FILE
};

/// A region that is removed after the input.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let shared = PathBuf::from("/dev/shm");
        let folder = if shared.is_dir() {
            shared
        } else {
            std::env::temp_dir()
        };
        let name = format!("keel-fuzz-mem-{}-{number}", std::process::id());
        Self {
            path: folder.join(name),
        }
    }

    fn region(&self) -> Region {
        let options = RegionOptions {
            capacity_bytes: CAPACITY_BYTES,
            files_max: Some(100),
            lanes: 4,
        };
        Region::create(&self.path, &options, &DIRECTORY)
            .unwrap_or_else(|error| panic!("no memory for the region: {error}"))
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

struct Input<'d> {
    rest: &'d [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.rest.split_first().unwrap_or((&0, &[]));
        self.rest = rest;
        *byte
    }

    fn number(&mut self, bytes: u32) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}

fn fill(writer: &Writer<'_>) -> mem::Result<()> {
    let inner = writer.create(ROOT_INODE, b"inner", &DIRECTORY)?.inode;
    let long = [b'l'; 100];
    for (directory, name, bytes) in [
        (ROOT_INODE, &b"small"[..], 100),
        (ROOT_INODE, b"large", 3_000_000),
        (inner, &long, 70_000),
        (inner, b"gone", 5000),
    ] {
        let made = writer.create(directory, name, &FILE)?;
        writer.write(made.inode, made.generation, 0, &vec![name[0]; bytes], 2)?;
        if name == b"gone" {
            writer.remove(directory, name, 3)?;
        } else if bytes == 100 {
            writer.link(made.inode, inner, b"link", 3)?;
        }
    }
    Ok(())
}

/// Overwrites words of the tables, and makes calls. The input is the number of words, then each word, then calls of
/// four bytes. A word is its table (one byte), its number there (two), the kind of change (one) and the value (one or
/// eight).
pub(crate) fn mem_region(data: &[u8]) {
    let mut input = Input { rest: data };
    let scratch = Scratch::new();
    let region = scratch.region();
    let writer = region.writer().unwrap_or_else(|error| panic!("{error}"));
    fill(&writer).unwrap_or_else(|error| panic!("{error}"));
    drop(writer);
    let tables = region.layout().tables();
    for _ in 0..usize::from(input.byte()) % CHANGES_MAX {
        let (name, first, bytes) = tables[usize::from(input.byte()) % tables.len()];
        // The constant part is checked when a region is opened.
        let (first, bytes) = match name {
            "superblock" => (1024, bytes - 1024),
            _ => (first, bytes),
        };
        let at = first + input.number(2) * 8 % bytes;
        let mut word = [0; 8];
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&scratch.path)
            .unwrap_or_else(|error| panic!("{error}"));
        file.read_exact_at(&mut word, at)
            .unwrap_or_else(|error| panic!("{error}"));
        let old = u64::from_ne_bytes(word);
        let new = match input.byte() % 4 {
            0 => u64::from(input.byte()),
            1 => old ^ 1 << (input.byte() % 64),
            2 => old.wrapping_add_signed(i64::from(input.byte().cast_signed())),
            _ => input.number(8),
        };
        file.write_all_at(&new.to_ne_bytes(), at)
            .unwrap_or_else(|error| panic!("{error}"));
    }
    let calls = input.rest;
    let _ = check(&region, false);
    use_region(&region, &mut Input { rest: calls });
    let Ok(mended) = check(&region, true) else {
        return;
    };
    if mended.is_clean() || mended.is_mended {
        use_region(&region, &mut Input { rest: calls });
        let found = check(&region, false).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.is_clean(), "mended {mended:?}, then {found:?}");
    }
}

fn use_region(region: &Region, input: &mut Input<'_>) {
    let Ok(writer) = region.writer() else {
        return;
    };
    let mut buffer = vec![7; 50_000];
    for now_ns in 0..CALLS_MAX as u64 {
        if input.rest.is_empty() {
            break;
        }
        let (call, which, amount) = (input.byte(), input.byte(), input.number(2));
        let entries = writer.list(ROOT_INODE, 0, 100).unwrap_or_default();
        let inner = writer
            .look_up(ROOT_INODE, b"inner")
            .map_or(1, |it| it.inode);
        let below = writer.list(inner, 0, 100).unwrap_or_default();
        let all: Vec<_> = entries
            .into_iter()
            .map(|entry| (ROOT_INODE, entry))
            .chain(below.into_iter().map(|entry| (inner, entry)))
            .collect();
        if all.is_empty() {
            break;
        }
        let (directory, entry) = &all[usize::from(which) % all.len()];
        let Ok(found) = region.attributes(entry.inode) else {
            continue;
        };
        let (name, inode, generation) = (&entry.name, found.inode, found.generation);
        let offset = amount * 400;
        let _ = match (call % 10, found.is_directory()) {
            (0, _) => writer.remove(*directory, name, now_ns),
            (1, _) => writer.remove_directory(*directory, name, now_ns),
            (2, _) => writer.rename((*directory, name), (ROOT_INODE, b"other"), now_ns),
            (3, _) => writer.create(*directory, b"new", &FILE).map(drop),
            (4, _) => writer.link(inode, inner, b"second", now_ns),
            (5, false) => writer.write(inode, generation, offset, &buffer, now_ns),
            (6, false) => writer.write(inode, generation, found.size, &buffer[..9], now_ns),
            (7, false) => writer.set_size(inode, generation, offset, now_ns),
            (8, false) => writer.map_range(inode, generation, 0, PAGE_BYTES).map(drop),
            _ => writer.reclaim_orphans().map(drop),
        };
        let _ = writer.read(inode, generation, offset, &mut buffer);
        let _ = writer.look_up(*directory, name);
    }
    let options = SaveOptions {
        name: NAME,
        now_ns: 1,
        random: 1,
        verify: false,
        left_out: &[],
    };
    let _ = save(
        &writer,
        &mut MemoryStorage::default(),
        &options,
        &mut |_, _| {},
    );
}

/// Returns two generations of a small region.
fn saved() -> &'static MemoryStorage {
    static SAVED: OnceLock<MemoryStorage> = OnceLock::new();
    SAVED.get_or_init(|| {
        let scratch = Scratch::new();
        let region = scratch.region();
        let writer = region.writer().unwrap_or_else(|error| panic!("{error}"));
        let mut storage = MemoryStorage::default();
        for now_ns in 1..3 {
            if now_ns == 1 {
                fill(&writer).unwrap_or_else(|error| panic!("{error}"));
            } else {
                let made = writer.create(ROOT_INODE, b"second", &FILE);
                let made = made.unwrap_or_else(|error| panic!("{error}"));
                let written = writer.write(made.inode, made.generation, 0, &[7; 9000], 2);
                written.unwrap_or_else(|error| panic!("{error}"));
            }
            let options = SaveOptions {
                name: NAME,
                now_ns,
                random: 5,
                verify: false,
                left_out: &[],
            };
            let report = save(&writer, &mut storage, &options, &mut |_, _| {});
            report.unwrap_or_else(|error| panic!("{error}"));
        }
        storage
    })
}

/// Damages a checkpoint and restores it. The input: for each change which file and how (one byte), the distance from
/// the end (three), with what (one). After half of the changes the checksums of index and footer are made valid.
pub(crate) fn mem_checkpoint(data: &[u8]) {
    let mut input = Input { rest: data };
    let mut storage = saved().clone();
    let mut files = Vec::new();
    let listed = storage.list(&mut |name, _| files.push(name.to_owned()));
    listed.unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..CHANGES_MAX {
        if input.rest.is_empty() {
            break;
        }
        let how = input.byte();
        let file = &files[usize::from(how & 1) % files.len()];
        let at = input.number(3) as usize;
        let value = input.byte();
        let Some(bytes) = storage.bytes_mut(file) else {
            continue;
        };
        let length = bytes.len();
        match how >> 1 & 3 {
            0 | 1 => {
                let at = length.wrapping_sub(1 + at % 8192.min(length.max(1)));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= value;
                }
            }
            2 => bytes.truncate(length.saturating_sub(at)),
            _ => bytes.extend(std::iter::repeat_n(value, at % 300)),
        }
        if how & 8 != 0 {
            seal(bytes);
        }
    }
    let _ = shape(&mut storage, NAME);
    let scratch = Scratch::new();
    let region = scratch.region();
    let writer = region.writer().unwrap_or_else(|error| panic!("{error}"));
    let report = restore(&writer, &mut storage, NAME, &mut |_, _| {});
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    drop(writer);
    let found = check(&region, false).unwrap_or_else(|error| panic!("{error}"));
    assert!(found.is_clean(), "{report:?}, then {found:?}");
    assert_eq!(found.files, report.files);
}

/// Sets the valid checksums of the index and of the footer.
fn seal(bytes: &mut [u8]) {
    let Some(footer_at) = bytes.len().checked_sub(FOOTER_BYTES) else {
        return;
    };
    let word = |place: usize| {
        let at = footer_at + 16 + place * 8;
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])) as usize
    };
    let end = word(2).checked_add(word(3));
    if let Some(index) = end.and_then(|end| bytes.get(word(2)..end)) {
        let checksum = crc32c::crc32c(index);
        bytes[footer_at + 48..footer_at + 52].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[footer_at + 16..]);
    bytes[footer_at + 12..footer_at + 16].copy_from_slice(&checksum.to_le_bytes());
}
