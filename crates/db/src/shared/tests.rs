use super::*;
use crate::table::{SlotValue, TableMemory};
use mem::{Region, RegionOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary region, in memory where possible.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = PathBuf::from("/dev/shm");
        let folder = if shared.is_dir() {
            shared
        } else {
            std::env::temp_dir()
        };
        let path = folder.join(format!("keel-db-shared-{}-{number}", std::process::id()));
        let options = RegionOptions {
            capacity_bytes: 32 << 20,
            files_max: Some(100),
            lanes: 8,
        };
        let root = NewInode {
            mode: 0o040_755,
            user: 0,
            group: 0,
            now_ns: 1,
        };
        Region::create(&path, &options, &root).unwrap();
        Self(path)
    }

    fn attach(&self, writable: bool) -> Attachment {
        Attachment::open(&self.0, b"/keel", writable).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
        let mut stubs = self.0.clone().into_os_string();
        stubs.push(".stubs");
        std::fs::remove_dir_all(stubs).ok();
    }
}

const NAME: &str = "latest";
const RUN: [u8; 16] = *b"0123456789abcdef";
const SIZE: TableSize = TableSize {
    objects_max: 16,
    value_bytes_max: 20,
    key_bytes_mean: 16,
};

fn laid_out<'s>(shared: &'s SharedTable<'_>) -> Table<&'s [Line]> {
    Table::create_in(shared.lines(), SIZE, 7).unwrap()
}

fn value(value: &[u8]) -> SlotValue<'_> {
    SlotValue {
        time: crate::time::Time::from_ms(1000),
        arrival_ns: 5,
        boot_tag: 9,
        wall_trusted: true,
        node_time: false,
        retained: false,
        value,
    }
}

fn make<'a>(attachment: &'a Attachment, run: [u8; 16], text: &[u8]) -> SharedTable<'a> {
    let shared = SharedTable::make(attachment, NAME, SIZE, 0o644).unwrap();
    let table = laid_out(&shared);
    let (id, _) = table.insert("door", 1500, true).unwrap();
    table.write(id, &value(text)).unwrap();
    shared.publish(run).unwrap();
    shared
}

fn text(reader: &TableReader<'_>) -> Vec<u8> {
    let mut buffer = [0; 20];
    let id = reader.lookup("door").unwrap();
    let read = reader.read(id, &mut buffer).unwrap();
    let in_place = reader.with_value(id, |value| {
        let words: Vec<u8> = value.words().flat_map(u64::to_le_bytes).collect();
        (words, value.times())
    });
    let (words, times) = in_place.unwrap();
    assert_eq!(
        (&words[..read.value_bytes], times),
        (&buffer[..read.value_bytes], read)
    );
    buffer[..read.value_bytes].to_vec()
}

#[test]
fn readers_see_the_values_of_a_writer_until_it_ends() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.attach(true), scratch.attach(false));
    assert!(matches!(
        TableReader::open(&there, NAME),
        Err(SharedError::Region(mem::Error::NotFound))
    ));
    let shared = SharedTable::make(&here, NAME, SIZE, 0o644).unwrap();
    let table = laid_out(&shared);
    // No reader finds it before its values are there.
    assert!(TableReader::open(&there, NAME).is_err());
    let (id, _) = table.insert("door", 1500, true).unwrap();
    table.write(id, &value(b"open")).unwrap();
    shared.publish(RUN).unwrap();
    let reader = TableReader::open(&there, NAME).unwrap();
    assert_eq!((reader.run(), reader.is_live()), (Some(RUN), true));
    assert_eq!(reader.validity(id), (1500, true));
    assert_eq!(reader.key(id).as_str(), "door");
    assert_eq!(text(&reader), b"open");
    table.write(id, &value(b"closed by the wind")).unwrap();
    assert_eq!(text(&reader), b"closed by the wind");
    table.write(id, &value(&21.5_f64.to_le_bytes())).unwrap();
    assert_eq!(reader.with_value(id, |value| value.float()), Ok(Some(21.5)));
    shared.withdraw();
    assert!(!reader.is_live());
    shared.remove();
    assert!(TableReader::open(&there, NAME).is_err());
    drop(shared);
    assert_eq!(text(&reader).len(), 8);
}

#[test]
fn a_killed_writer_is_not_live_and_the_next_run_replaces_it() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.attach(true), scratch.attach(false));
    // Dropped silently, as the kernel drops what a killed process had.
    let first = make(&here, RUN, b"old");
    let reader = TableReader::open(&there, NAME).unwrap();
    assert!(reader.is_live());
    // While it lives, no other process gets the name.
    let other = scratch.attach(true);
    assert!(matches!(
        SharedTable::make(&other, NAME, SIZE, 0o644),
        Err(SharedError::InUse)
    ));
    drop(first);
    assert!(!reader.is_live());
    let dead = TableReader::open(&there, NAME).unwrap();
    assert_eq!((dead.run(), dead.is_live()), (Some(RUN), false));
    // A process that is killed while it makes its table leaves a draft.
    drop(SharedTable::make(&other, NAME, SIZE, 0o644).unwrap());
    let second = make(&other, [1; 16], b"new");
    let now = TableReader::open(&there, NAME).unwrap();
    assert_eq!((now.run(), now.is_live()), (Some([1; 16]), true));
    assert_eq!(text(&now), b"new");
    // A reader of the old table can still read it, and is told.
    assert_eq!(text(&reader), b"old");
    assert!(!reader.is_live() && !dead.is_live());
    drop((reader, dead));
    here.sweep().unwrap();
    assert_eq!(here.region().orphans(), 0);
    drop(second);
}

#[test]
fn a_file_that_is_no_table_is_neither_replaced_nor_read() {
    let scratch = Scratch::new();
    let here = scratch.attach(true);
    let mut file = NewInode {
        mode: FILE | 0o644,
        user: 0,
        group: 0,
        now_ns: 1,
    };
    let writer = here.writer().unwrap();
    for content in [&b""[..], b"EVK", b"a file of another program"] {
        let made = writer.create_with(ROOT_INODE, NAME.as_bytes(), &file, content);
        made.unwrap();
        assert!(matches!(
            SharedTable::make(&here, NAME, SIZE, 0o644),
            Err(SharedError::NotATable)
        ));
        assert!(TableReader::open(&here, NAME).is_err());
        writer.remove(ROOT_INODE, NAME.as_bytes(), 2).unwrap();
    }
    file.mode = 0o040_755;
    writer.create(ROOT_INODE, NAME.as_bytes(), &file).unwrap();
    for refused in [
        SharedTable::make(&here, NAME, SIZE, 0o644).err(),
        TableReader::open(&here, NAME).err(),
    ] {
        assert!(
            matches!(refused, Some(SharedError::NotATable)),
            "{refused:?}"
        );
    }
    // A table that does not fit leaves nothing.
    let free = here.region().free_bytes();
    let large = TableSize {
        objects_max: 100_000,
        value_bytes_max: 8192,
        ..SIZE
    };
    let refused = SharedTable::make(&here, "large", large, 0o644).err();
    assert!(matches!(
        refused,
        Some(SharedError::Region(mem::Error::Full))
    ));
    here.sweep().unwrap();
    assert_eq!(here.region().free_bytes(), free);
}

/// Makes and claims a table of an earlier format, as a run of that version does.
fn make_earlier<'a>(attachment: &'a Attachment, table: &[u8]) -> Lent<'a> {
    let file = NewInode {
        mode: FILE | 0o644,
        user: 0,
        group: 0,
        now_ns: 1,
    };
    let writer = attachment.writer().unwrap();
    let made = writer.create(ROOT_INODE, NAME.as_bytes(), &file).unwrap();
    let length = table.len() as u64;
    writer
        .set_size(made.inode, made.generation, length, 1)
        .unwrap();
    let lent = attachment.lend(&made, 0, length).unwrap();
    assert!(lent.claim().unwrap());
    let words = lent.lines().iter().flat_map(|line| &line.0);
    for (word, bytes) in words.zip(table.chunks(8)) {
        let bytes = bytes.try_into().unwrap();
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    lent
}

#[test]
fn a_table_of_an_earlier_format_is_not_read_and_is_replaced_once_its_run_is_over() {
    let earlier: [(&[u8], u64); 2] = [
        (include_bytes!("../../tests/golden/table-3"), 3),
        (include_bytes!("../../tests/golden/table-4"), 4),
    ];
    for (table, version) in earlier {
        let scratch = Scratch::new();
        let (before, there) = (scratch.attach(true), scratch.attach(false));
        let lent = make_earlier(&before, table);
        let words: Vec<u64> = lent.lines()[0].0[..2]
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        assert_eq!(words, [u64::from_le_bytes(*MAGIC), version]);
        let refused = TableReader::open(&there, NAME).err();
        let is_version = matches!(
            refused,
            Some(SharedError::Table(Error::RegionInvalid {
                reason: "version"
            }))
        );
        assert!(is_version, "{version}: {refused:?}");
        // A run of the version before still serves it.
        let here = scratch.attach(true);
        assert!(matches!(
            SharedTable::make(&here, NAME, SIZE, 0o644),
            Err(SharedError::InUse)
        ));
        drop(lent);
        let shared = make(&here, RUN, b"new");
        let now = TableReader::open(&there, NAME).unwrap();
        assert_eq!((now.run(), now.is_live()), (Some(RUN), true), "{version}");
        assert_eq!(text(&now), b"new");
        drop(shared);
    }
}

#[test]
fn a_writer_that_died_in_the_middle_of_a_value_is_not_waited_for() {
    let scratch = Scratch::new();
    let here = scratch.attach(true);
    let shared = make(&here, RUN, b"half");
    let table = Table::attach(shared.lines()).unwrap();
    let reader = TableReader::open(&here, NAME).unwrap();
    let id = reader.lookup("door").unwrap();
    table.stop_in_the_middle(id);
    assert_eq!(reader.read(id, &mut [0; 20]), Err(Error::Stalled));
    assert_eq!(reader.with_value(id, |_| ()), Err(Error::Stalled));
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A key of three units.
const LONG: &str = "hall/temperature/of the north wall";

fn read_all<M: AsRef<[Line]>>(table: &Table<M>) {
    let mut buffer = [0; 8192];
    for key in ["door", LONG, "", &"k".repeat(64), &"k".repeat(255)] {
        let _ = table.lookup(key);
    }
    let objects = table.objects();
    for id in (0..objects.min(40))
        .chain([objects, u32::MAX])
        .map(ObjectId)
    {
        let _ = (table.key(id).as_str().len(), table.validity(id));
        let _ = table.sane_key(id);
        let copied = table.read_within(id, &mut buffer, 0);
        let seen = table.with_value(id, 0, |value| value.words().count());
        assert_eq!(copied.is_ok(), seen.is_ok());
    }
    let _ = table.served_by();
}

#[test]
fn a_table_with_random_content_is_read_within_its_bounds() {
    let mut random = Random(5);
    let lines = Table::lines_needed(SIZE).unwrap();
    for round in 0..3000_u32 {
        let memory = TableMemory::own(lines);
        let table = Table::create_in(memory, SIZE, 7).unwrap();
        let (id, _) = table.insert("door", 1500, true).unwrap();
        table.write(id, &value(b"open")).unwrap();
        let (long, _) = table.insert(LONG, 1500, true).unwrap();
        if round.is_multiple_of(3) {
            // Any place for a key, mostly beyond the pool; or one that only just ends in it, or beyond it.
            let near = (12 + random.next() % 5) << 32 | (random.next() % 5) << 58;
            let place = [random.next(), near][random.next() as usize % 2];
            let id = [id, long][random.next() as usize % 2];
            table.set_validity_word(id, place | 1 << 62);
        }
        let TableMemory::Own(lines) = table.into_memory() else {
            unreachable!()
        };
        let words: Vec<_> = lines.iter().flat_map(|line| &line.0).collect();
        // A few words, of the header or of all; or all of them.
        let count = [1, 1, 4, 40, words.len()][round as usize % 5];
        for at in 0..count {
            let place = match (count == words.len(), random.next() % 2) {
                (true, _) => at,
                (false, 0) => random.next() as usize % 16,
                (false, _) => random.next() as usize % words.len(),
            };
            let drawn = random.next();
            let word = match random.next() % 4 {
                0 => drawn,
                1 => drawn % 64,
                2 => words[place].load(Ordering::Relaxed) ^ 1 << (drawn % 64),
                _ => u64::MAX - drawn % 4,
            };
            words[place].store(word, Ordering::Relaxed);
        }
        let cut = match random.next() % 3 {
            0 => random.next() as usize % lines.len(),
            _ => lines.len(),
        };
        if let Ok(table) = Table::attach(&lines[..cut]) {
            read_all(&table);
        }
    }
}

#[test]
fn a_table_of_a_region_that_changes_under_its_reader_is_read_within_its_bounds() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.attach(true), scratch.attach(false));
    let shared = make(&here, RUN, b"here");
    let reader = TableReader::open(&there, NAME).unwrap();
    let mut random = Random(9);
    for _ in 0..300 {
        for line in shared.lines() {
            for word in &line.0 {
                if random.next().is_multiple_of(3) {
                    word.store(random.next(), Ordering::Relaxed);
                }
            }
        }
        read_all(&reader.table);
        let _ = reader.is_live();
    }
}
