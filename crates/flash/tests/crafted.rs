//! Images that somebody made up: every checksum is right and what it protects makes no sense. Opening,
//! checking, reading and writing such a store may fail, and may lose what it holds; they must not panic, not
//! go on for ever, and not leave a store behind that no longer opens.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use base::sim::{Random, SimDevice};
use common::{Operation, content, length, options};
use flash::{APPEND_ATOMIC_BYTES_MAX, OpenOptions, PAYLOAD_BYTES, Store};

type Block = [u8; BLOCK_BYTES];

// ---- the format, as SPEC.md has it and independent of the crate's code ----

/// First block of the name table.
const TABLE_FIRST: u64 = 12;
/// Of the root: offsets of fields and arrays.
const ROOT_FRONTIER: usize = 32;
const ROOT_FIRST_LIST: usize = 36;
const ROOT_LISTS: usize = 72;
const ROOT_PIECE_COUNT: usize = 76;
const ROOT_PIECES: usize = 128;
const ROOT_SLOTS: usize = 1152;
const SLOT_BYTES: usize = 72;
/// Of a piece: its blocks are a run of this file.
const PIECE_FILE_SHIFT: u32 = 8;

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
        }
    }
    !crc
}

/// What a block says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Superblock,
    Root,
    Bucket,
    Data,
    SpilledList,
}

fn kind_of(block: &Block) -> Option<Kind> {
    match &block[..8] {
        b"KEELFLSH" => Some(Kind::Superblock),
        b"KEELROOT" => Some(Kind::Root),
        magic => match &magic[..4] {
            b"EKTB" => Some(Kind::Bucket),
            b"EKBD" => Some(Kind::Data),
            b"EKTR" => Some(Kind::SpilledList),
            _ => None,
        },
    }
}

/// Makes the checksum right again.
fn seal(block: &mut Block, kind: Kind) {
    let identity = [0x42; 16]; // that of `common::options`
    let (place, checksum) = match kind {
        Kind::Superblock => (12, crc32c(&[&block[16..]])),
        Kind::Root => (12, crc32c(&[&identity, &block[16..]])),
        Kind::Bucket | Kind::Data | Kind::SpilledList => (4, crc32c(&[&identity, &block[8..]])),
    };
    block[place..place + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn field(block: &Block, offset: usize, bytes: usize) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

fn set_field(block: &mut Block, offset: usize, bytes: usize, value: u64) {
    block[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
}

/// Changes the block and, of a structure that is kept twice, the equal copy next to it.
fn change(device: &mut SimDevice, place: u64, change: impl Fn(&mut Block)) {
    let old = device.peek(place);
    let Some(kind) = kind_of(&old) else { return };
    let mut new = old;
    change(&mut new);
    seal(&mut new, kind);
    let near = place.saturating_sub(2)..place + 3;
    for copy in near
        .filter(|copy| device.peek(*copy) == old)
        .collect::<Vec<_>>()
    {
        device.poke(copy, &new);
    }
}

/// Where the root of the newest record stands.
fn newest_root(device: &SimDevice) -> u64 {
    let end = field(&device.peek(0), 76, 4);
    (4..12)
        .chain(end..end + 8)
        .filter(|place| kind_of(&device.peek(*place)) == Some(Kind::Root))
        .max_by_key(|place| {
            (
                field(&device.peek(*place), 16, 8),
                std::cmp::Reverse(*place),
            )
        })
        .unwrap()
}

#[test]
fn the_checksums_are_those_of_the_specification() {
    assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
    let device = sample(1);
    let mut kinds = BTreeMap::new();
    for place in 0..device.geometry().block_count {
        let block = device.peek(place);
        if let Some(kind) = kind_of(&block) {
            let mut sealed = block;
            seal(&mut sealed, kind);
            assert!(sealed == block, "block {place}, {kind:?}");
            *kinds.entry(format!("{kind:?}")).or_insert(0) += 1;
        }
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

// ---- images to start from ----

/// A store with everything in it: long and short files, chains, a spilled list, slots, an unfinished
/// replacement.
fn sample(seed: u64) -> SimDevice {
    let mut random = Random::new(seed);
    let files = 300;
    let mut store = Store::format(SimDevice::new(3000, seed), &options(files)).unwrap();
    let mut names = Vec::new();
    for number in 0..files {
        let name = format!("file-{number}");
        let length = random.index(5 * PAYLOAD_BYTES) + 1;
        if store.replace(&name, &content(&mut random, length)).is_err() {
            break;
        }
        let more = content(&mut random, APPEND_ATOMIC_BYTES_MAX);
        let _ = Operation::Append(name.clone(), more).run(&mut store);
        names.push(name);
    }
    random.shuffle(&mut names);
    // So many that the free list is spilled.
    for name in names.split_off(names.len() / 3) {
        store.delete(&name).unwrap();
    }
    for _ in 0..20 {
        let name = &names[random.index(names.len())];
        let length = length(&mut random, APPEND_ATOMIC_BYTES_MAX);
        let _ = Operation::Append(name.clone(), content(&mut random, length)).run(&mut store);
    }
    store.device_mut().set_power_cut_after_writes(Some(3));
    let _ = store.replace("unfinished", &content(&mut random, 30_000));
    store.device().crash_image(&|_| base::sim::Keep::Whole)
}

// ---- a device that counts, and that has a bad spot ----

struct Worn {
    inner: SimDevice,
    reads_left: u64,
    unreadable: std::ops::Range<u64>,
}

impl Worn {
    fn new(inner: SimDevice, reads_max: u64) -> Self {
        Self {
            inner,
            reads_left: reads_max,
            unreadable: 0..0,
        }
    }
}

impl BlockDevice for Worn {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = (buffer.len() / BLOCK_BYTES) as u64;
        assert!(self.reads_left >= blocks, "reads without an end");
        self.reads_left -= blocks;
        let mut range = first_block..first_block + blocks;
        if let Some(bad) = range.find(|block| self.unreadable.contains(block)) {
            return Err(DeviceError::Io {
                operation: "read",
                first_block: bad,
                source: std::io::Error::other("medium error"),
            });
        }
        self.inner.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(first_block, data)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.inner.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.inner.reset_write_blocks_max();
    }
}

/// Does everything with a store that can be done.
fn exercise(device: SimDevice, random: &mut Random) {
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let reads_max = 200 * device.geometry().block_count;
    if let Ok(mut store) = Store::open(Worn::new(device.clone(), reads_max), &read_only) {
        let _ = store.check();
    }
    let mut worn = Worn::new(device, reads_max);
    let Ok(mut store) = Store::open(&mut worn, &OpenOptions::default()) else {
        return;
    };
    let _ = store.check();
    let mut names = Vec::new();
    let _ = store.list(&mut |name, stat| names.push((name.to_owned(), stat.length_bytes)));
    names.push(("new".to_owned(), 0));
    let mut buffer = vec![0; 5 * PAYLOAD_BYTES];
    for (name, length) in &names {
        let Ok(file) = store.open_file(name) else {
            continue;
        };
        for offset in [0, length / 2, length.saturating_sub(1)] {
            let _ = store.read(file, offset, &mut buffer);
        }
        store.close_file(file);
    }
    for _ in 0..30 {
        let (name, _) = &names[random.index(names.len())];
        let length = length(random, 40_000);
        let operation = match random.below(6) {
            0 => Operation::Create(name.clone()),
            1..=3 => Operation::Append(name.clone(), content(random, length)),
            4 => Operation::Replace(name.clone(), content(random, length)),
            _ => Operation::Delete(name.clone()),
        };
        let _ = operation.run(&mut store);
    }
    for (name, _) in &names {
        let _ = store.delete(name);
    }
    let _ = store.check();
    drop(store.close());
    // What could be opened and written can be opened again.
    if let Err(error) = Store::open(&mut worn, &OpenOptions::default()) {
        panic!("opens no more: {error}");
    }
}

/// Fields worth changing of a block of this kind: offset and width.
fn fields(kind: Kind, random: &mut Random) -> (usize, usize) {
    let state = |start: usize, random: &mut Random| {
        let fields = [
            (0, 8),
            (8, 4),
            (12, 4),
            (16, 8),
            (24, 2),
            (28, 4),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 2),
            (46, 2),
            (48, 4),
            (52, 2),
            (54, 2),
            (56, 4),
            (60, 2),
            (62, 2),
            (64, 4),
        ];
        let (offset, bytes) = fields[random.index(fields.len())];
        (start + offset, bytes)
    };
    match kind {
        Kind::Superblock => {
            let fields = [
                (48, 8),
                (56, 8),
                (64, 4),
                (68, 2),
                (70, 2),
                (72, 4),
                (76, 4),
            ];
            fields[random.index(fields.len())]
        }
        Kind::Root => match random.below(4) {
            0 => {
                let fields = [
                    (16, 8),
                    (28, 4),
                    (32, 4),
                    (36, 4),
                    (40, 8),
                    (48, 8),
                    (56, 8),
                    (64, 8),
                    (72, 4),
                    (76, 4),
                    (80, 2),
                    (88, 8),
                ];
                fields[random.index(fields.len())]
            }
            1 => {
                let piece = ROOT_PIECES + 16 * random.index(64);
                [(piece, 4), (piece + 4, 4), (piece + 8, 8)][random.index(3)]
            }
            _ => {
                let slot = ROOT_SLOTS + SLOT_BYTES * random.index(32);
                match random.below(8) {
                    0 => [(slot, 2), (slot + 2, 2), (slot + 4, 4)][random.index(3)],
                    _ => state(slot + 8, random),
                }
            }
        },
        Kind::Bucket => {
            let entry = 32 + 328 * random.index(12);
            match random.below(6) {
                0 => [(entry, 1), (entry + 1, 1), (24, 2), (16, 8)][random.index(4)],
                _ => state(entry + 4, random),
            }
        }
        Kind::Data => {
            let fields = [
                (8, 8),
                (16, 8),
                (24, 4),
                (28, 4),
                (32, 2),
                (34, 1),
                (35, 1),
                (36, 4),
                (40, 4),
            ];
            match random.below(3) {
                0 => (48 + 4 * random.index(36), 4),
                _ => fields[random.index(fields.len())],
            }
        }
        Kind::SpilledList => match random.below(3) {
            0 => [(8, 4), (12, 4), (16, 4)][random.index(3)],
            _ => {
                let piece = 32 + 16 * random.index(40);
                [(piece, 4), (piece + 4, 4), (piece + 8, 8)][random.index(3)]
            }
        },
    }
}

fn value(old: u64, blocks: u64, random: &mut Random) -> u64 {
    match random.below(12) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => u64::MAX - random.below(300),
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_add(4),
        7 => old.wrapping_mul(2),
        8 => random.below(blocks) & !3,
        9 => random.below(blocks),
        10 => random.below(64) * 4,
        _ => random.next_u64(),
    }
}

/// One image with a few fields changed.
fn mutated(original: &SimDevice, places: &[(u64, Kind)], random: &mut Random) -> SimDevice {
    let mut device = original.clone();
    let blocks = device.geometry().block_count;
    let kinds = [
        Kind::Superblock,
        Kind::Root,
        Kind::Root,
        Kind::Root,
        Kind::Bucket,
        Kind::Bucket,
        Kind::Data,
        Kind::SpilledList,
    ];
    let kind = kinds[random.index(kinds.len())];
    for _ in 0..=random.index(3) {
        let these: Vec<u64> = places
            .iter()
            .filter(|(_, other)| *other == kind)
            .map(|(place, _)| *place)
            .collect();
        let place = match kind {
            Kind::Root if random.below(4) != 0 => newest_root(&device),
            _ => these[random.index(these.len())],
        };
        let (offset, bytes) = fields(kind, random);
        let new = value(field(&device.peek(place), offset, bytes), blocks, random);
        change(&mut device, place, |block| {
            set_field(block, offset, bytes, new);
        });
    }
    device
}

#[test]
fn mutated_images_neither_panic_nor_hang_nor_wreck_the_store() {
    let rounds = std::env::var("FLASH_CRAFTED_ROUNDS").map_or(500, |text| text.parse().unwrap());
    let mut failures = BTreeMap::new();
    for sample_seed in 0..3 {
        let original = sample(sample_seed);
        let places: Vec<(u64, Kind)> = (0..original.geometry().block_count)
            .filter_map(|place| kind_of(&original.peek(place)).map(|kind| (place, kind)))
            .collect();
        for round in 0..rounds {
            let mut random = Random::new(sample_seed << 32 | round);
            let device = mutated(&original, &places, &mut random);
            let result = catch_unwind(AssertUnwindSafe(|| exercise(device, &mut random)));
            if let Err(panic) = result {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default();
                let entry = failures.entry(text).or_insert((0, (sample_seed, round)));
                entry.0 += 1;
            }
        }
    }
    for (text, (count, first)) in &failures {
        println!("{count} x {text} (first: sample and round {first:?})");
    }
    assert!(failures.is_empty(), "{} kinds of failure", failures.len());
}

// ---- one structure at a time ----

/// A store with two short files, closed.
fn small() -> SimDevice {
    let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
    store.replace("a", &[1; 5000]).unwrap();
    store.replace("b", &[2; 5000]).unwrap();
    store.close().unwrap()
}

/// Makes the newest root list `pieces` (start, blocks, file identity) and nothing else as free.
fn set_free_list(device: &mut SimDevice, pieces: &[(u32, u32, u64)], first_list: u32) {
    let data_end = field(&device.peek(0), 76, 4);
    let root = newest_root(device);
    change(device, root, |block| {
        set_field(block, ROOT_FRONTIER, 4, data_end);
        set_field(block, ROOT_PIECE_COUNT, 2, pieces.len() as u64);
        set_field(block, ROOT_FIRST_LIST, 4, u64::from(first_list));
        set_field(block, ROOT_LISTS, 4, u64::from(first_list != 0));
        for (place, (start, blocks, file)) in pieces.iter().enumerate() {
            let offset = ROOT_PIECES + 16 * place;
            put_piece(block, offset, (*start, *blocks, *file));
        }
    });
}

/// Writes a piece of the free list: start, blocks, file (0: just these blocks).
fn put_piece(block: &mut Block, offset: usize, (start, blocks, file): (u32, u32, u64)) {
    set_field(block, offset, 4, u64::from(start));
    if file == 0 {
        set_field(block, offset + 4, 4, u64::from(blocks));
        set_field(block, offset + 8, 8, 0);
    } else {
        set_field(block, offset + 4, 4, 0);
        let tagged = file << PIECE_FILE_SHIFT | u64::from(blocks);
        set_field(block, offset + 8, 8, tagged);
    }
}

/// Makes the four blocks at `start` a full run of file `file` whose link leads to the run at `before`.
fn put_run(device: &mut SimDevice, start: u32, file: u64, before: u32) {
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(b"EKBD");
    set_field(&mut block, 8, 8, file);
    set_field(&mut block, 16, 8, 1);
    set_field(&mut block, 24, 4, u64::from(start));
    set_field(&mut block, 28, 4, 3);
    set_field(&mut block, 32, 2, PAYLOAD_BYTES as u64);
    block[34] = 1;
    set_field(&mut block, 36, 4, u64::from(start));
    set_field(&mut block, 40, 4, u64::from(before));
    block[44] = 4;
    block[45] = 4;
    seal(&mut block, Kind::Data);
    device.poke(u64::from(start), &block);
}

/// Makes the cluster at `place` that of a spilled list.
fn put_list(device: &mut SimDevice, place: u32, next: u32, pieces: &[(u32, u32, u64)]) {
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(b"EKTR");
    set_field(&mut block, 8, 4, u64::from(place));
    set_field(&mut block, 12, 4, u64::from(next));
    set_field(&mut block, 16, 4, pieces.len() as u64);
    for (number, (start, blocks, file)) in pieces.iter().enumerate() {
        let offset = 32 + 16 * number;
        put_piece(&mut block, offset, (*start, *blocks, *file));
    }
    seal(&mut block, Kind::SpilledList);
    device.poke(u64::from(place) + 2, &block);
}

#[test]
fn a_check_walks_each_circle_once() {
    let mut device = small();
    put_run(&mut device, 400, 99, 404);
    put_run(&mut device, 404, 99, 400);
    put_list(&mut device, 408, 408, &[(400, 4, 99); 36]);
    set_free_list(&mut device, &[(400, 4, 99); 50], 408);
    let blocks = device.geometry().block_count;
    let mut store = Store::open(Worn::new(device, 20 * blocks), &OpenOptions::default()).unwrap();
    let report = store.check().unwrap();
    assert!(!report.is_clean());
    assert_eq!(report.files, 2);
}

#[test]
fn a_root_that_lists_as_many_pieces_as_it_can_is_no_trap() {
    let mut device = small();
    put_run(&mut device, 400, 99, 404);
    put_run(&mut device, 404, 99, 408);
    set_free_list(&mut device, &[(400, 4, 99); 63], 0);
    exercise(device, &mut Random::new(1));
}

// ---- a spot that cannot be read ----

fn worn(device: SimDevice, unreadable: std::ops::Range<u64>) -> Worn {
    Worn {
        unreadable,
        ..Worn::new(device, u64::MAX)
    }
}

/// A sector that the device itself gives up on is the usual form of decay: what is kept twice is then read
/// from the other place, as if the bytes had been wrong.
#[test]
fn what_is_kept_twice_is_read_in_spite_of_a_bad_sector() {
    let device = small();
    let superblock = device.peek(0);
    let (table_end, data_end) = (field(&superblock, 72, 4), field(&superblock, 76, 4));
    let mut failures = Vec::new();
    for bad in (0..table_end).chain(data_end..data_end + 9) {
        for read_only in [false, true] {
            let chosen = OpenOptions {
                read_only,
                ..OpenOptions::default()
            };
            let result = Store::open(worn(device.clone(), bad..bad + 1), &chosen)
                .and_then(|mut store| Ok((store.stat("a")?, store.stat("b")?)));
            if let Err(error) = result {
                failures.push(format!("block {bad} unreadable: {error}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The free list is long and holds nothing but chains, whose links cannot be read for a while. Calls that
/// need space fail, again and again; the store must stay what it is.
#[test]
fn bad_sectors_in_the_free_list_do_not_wreck_the_store() {
    let mut device = small();
    let pieces: Vec<_> = (0..56).map(|number| (240 + 4 * number, 4, 99)).collect();
    set_free_list(&mut device, &pieces, 0);
    let mut bad = worn(device, 240..464);
    let mut failures = 0;
    let mut store = Store::open(&mut bad, &OpenOptions::default()).unwrap();
    for number in 0..3 {
        failures += u32::from(store.replace("c", &[3; 5000]).is_err());
        if let Ok(file) = store.create(&format!("d{number}")) {
            store.close_file(file);
        }
    }
    assert!(failures > 0, "no bad sector is met");
    drop(store);
    bad.unreadable = 0..0;
    let mut store = Store::open(&mut bad, &OpenOptions::default()).unwrap();
    assert_eq!(store.stat("a").unwrap().length_bytes, 5000);
    assert_eq!(store.stat("b").unwrap().length_bytes, 5000);
}

// ---- damage that must not spread ----

/// Block of the name table that holds `name`.
fn table_block(device: &SimDevice, name: &str) -> u64 {
    let end = field(&device.peek(0), 72, 4);
    (TABLE_FIRST..end)
        .step_by(2)
        .find(|place| {
            let block = device.peek(*place);
            block
                .windows(name.len())
                .any(|bytes| bytes == name.as_bytes())
        })
        .unwrap()
}

/// The two files that would be written back next are in damaged table blocks; another one has to go.
#[test]
fn two_damaged_table_blocks_do_not_stop_appends_to_other_files() {
    let mut store = Store::format(SimDevice::new(1024, 1), &options(100)).unwrap();
    let name = |number: u32| format!("file-{number:02}");
    for number in 0..40 {
        let file = store.create(&name(number)).unwrap();
        store.append(file, &[1; 100]).unwrap();
        store.close_file(file);
    }
    // Files 8 to 39 are active; 8 and 9 longest so.
    let wrecked = [8, 9].map(|number| table_block(store.device(), &name(number)));
    let spared = (0..8)
        .find(|number| !wrecked.contains(&table_block(store.device(), &name(*number))))
        .unwrap();
    let file = store.open_file(&name(spared)).unwrap();
    for place in wrecked {
        store.device_mut().poke(place, &[0xff; BLOCK_BYTES]);
        store.device_mut().poke(place + 1, &[0xff; BLOCK_BYTES]);
    }
    let result = (0..3).find_map(|_| store.append(file, b"more").ok());
    assert!(result.is_some(), "no append to an inactive file any more");
}

/// A file has room left in one of its own runs: a full store is no reason to refuse the append.
#[test]
fn a_file_uses_its_own_room_on_a_full_store() {
    let mut store = Store::format(SimDevice::new(128, 1), &options(4)).unwrap();
    let file = store.create("log").unwrap();
    for bytes in [100, 100, 100, PAYLOAD_BYTES - 300, 3 * PAYLOAD_BYTES] {
        store.append(file, &vec![1; bytes]).unwrap();
    }
    let ballast = store.create("ballast").unwrap();
    while store.append(ballast, &[2; PAYLOAD_BYTES]).is_ok() {}
    assert_eq!(store.statistics().blocks_free, 0);
    let stat = store.stat("log").unwrap();
    assert!(stat.blocks_owned - stat.blocks >= 4);
    store.append(file, b"fits").unwrap();
}
