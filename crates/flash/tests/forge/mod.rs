//! Helpers of the tests that forge images.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) use crate::fuzz_corpus::entries::format;

use std::collections::BTreeMap;

use base::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry};
use base::sim::{Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, Error, OpenOptions, PAYLOAD_BYTES, Store};

use crate::common::operation::{truncate_length, write_place};
use crate::common::{Operation, content, lend, length, options, reopen};
use format::{Block, Kind, kind_of};

/// First block of the name table.
pub const TABLE_FIRST: u64 = 12;
/// Offsets of fields and arrays in the root.
pub const ROOT_RECORD: usize = 16;
pub const ROOT_ANNOUNCED: usize = 28;
pub const ROOT_FRONTIER: usize = 32;
pub const ROOT_FIRST_LIST: usize = 36;
pub const ROOT_NEXT_FILE: usize = 40;
pub const ROOT_NEXT_GROUP: usize = 48;
pub const ROOT_FREE_BLOCKS: usize = 64;
pub const ROOT_LISTS: usize = 72;
pub const ROOT_PIECE_COUNT: usize = 76;
pub const ROOT_PIECES: usize = 128;
pub const ROOT_SLOTS: usize = 1152;
pub const SLOT_BYTES: usize = 72;
/// Offset of the file's state in a slot.
pub const SLOT_STATE: usize = 8;
/// Offset of the entries in a bucket, and of the file's state and the name in an entry.
pub const BUCKET_ENTRIES: usize = 32;
pub const ENTRY_BYTES: usize = 328;
pub const ENTRY_STATE: usize = 4;
pub const ENTRY_NAME: usize = 68;
/// Offsets in a file's state.
pub const STATE_FILE: usize = 0;
pub const STATE_GROUP: usize = 16;
pub const STATE_LANE_BLOCKS: [usize; 2] = [26, 28];
pub const STATE_LANE_START: [usize; 2] = [36, 44];
pub const STATE_CLOSED_BLOCKS: usize = 60;
/// Offsets in a data block.
pub const DATA_FILE: usize = 8;
pub const DATA_GROUP: usize = 16;
pub const DATA_RUN_START: usize = 36;
pub const DATA_BEFORE_START: usize = 40;
pub const DATA_RUN_BLOCKS: usize = 44;
pub const DATA_BEFORE_USED: usize = 45;
pub const DATA_LANE: usize = 46;
/// Bit position of the file's identity in a piece that is a run of that file.
const PIECE_FILE_SHIFT: u32 = 8;

/// Corrects the checksum, in a store of `common::options`.
pub fn seal(block: &mut Block, kind: Kind) {
    format::seal(block, kind, &options(1).uuid);
}

pub fn field(block: &Block, offset: usize, bytes: usize) -> u64 {
    format::field(block, (offset, bytes))
}

pub fn set_field(block: &mut Block, offset: usize, bytes: usize, value: u64) {
    format::set_field(block, (offset, bytes), value);
}

/// Changes the block and, for a structure stored twice, the equal copy next to it.
pub fn change(device: &mut SimDevice, place: u64, change: impl Fn(&mut Block)) {
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

/// Returns the places of the blocks of one kind.
pub fn places_of(device: &SimDevice, kind: Kind) -> Vec<u64> {
    (0..device.geometry().block_count)
        .filter(|place| kind_of(&device.peek(*place)) == Some(kind))
        .collect()
}

/// Returns the place of the root of the newest record.
pub fn newest_root(device: &SimDevice) -> u64 {
    let end = data_end(device);
    (4..12)
        .chain(end..end + 8)
        .filter(|place| kind_of(&device.peek(*place)) == Some(Kind::Root))
        .max_by_key(|place| {
            (
                field(&device.peek(*place), ROOT_RECORD, 8),
                std::cmp::Reverse(*place),
            )
        })
        .unwrap()
}

/// Returns the first block after those that files may own.
pub fn data_end(device: &SimDevice) -> u64 {
    field(&device.peek(0), 76, 4)
}

/// Returns the maximum number of slots, in any root on the device, that hold an unfinished replacement.
pub fn temporaries(device: &SimDevice) -> usize {
    let count = |place: u64| {
        let root = device.peek(place);
        (ROOT_SLOTS..)
            .step_by(SLOT_BYTES)
            .take(32)
            .filter(|slot| field(&root, *slot, 2) == 2)
            .count()
    };
    let roots = places_of(device, Kind::Root);
    roots.into_iter().map(count).max().unwrap_or(0)
}

// ---- images to start from ----

/// Returns a store with every structure: long and short files, chains, a spilled list, slots, an unfinished
/// replacement.
pub fn sample(seed: u64) -> SimDevice {
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
    // Enough that the free list is spilled.
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

/// Returns a closed store with two short files.
pub fn small() -> SimDevice {
    let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
    store.replace("a", &[1; 5000]).unwrap();
    store.replace("b", &[2; 5000]).unwrap();
    settled(store)
}

/// Returns the device of a store whose records carry no image any more, so that recovery overwrites no forged block.
pub fn settled(store: Store<SimDevice>) -> SimDevice {
    reopen(reopen(store)).close().unwrap()
}

// ---- structures ----

/// Start, blocks, file (0: not the run of a file).
pub type Piece = (u32, u32, u64);

/// Makes the newest root list only these pieces as free.
pub fn set_free_list(device: &mut SimDevice, pieces: &[Piece], first_list: u32) {
    let data_end = data_end(device);
    let root = newest_root(device);
    change(device, root, |block| {
        set_field(block, ROOT_FRONTIER, 4, data_end);
        set_field(block, ROOT_PIECE_COUNT, 2, pieces.len() as u64);
        set_field(block, ROOT_FIRST_LIST, 4, u64::from(first_list));
        set_field(block, ROOT_LISTS, 4, u64::from(first_list != 0));
        for (place, piece) in pieces.iter().enumerate() {
            put_piece(block, ROOT_PIECES + 16 * place, *piece);
        }
    });
}

/// Writes a piece of the free list.
pub fn put_piece(block: &mut Block, offset: usize, (start, blocks, file): Piece) {
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

/// Returns the pieces that the newest root lists.
pub fn pieces(device: &SimDevice) -> Vec<Piece> {
    let root = device.peek(newest_root(device));
    (0..field(&root, ROOT_PIECE_COUNT, 2) as usize)
        .map(|number| {
            let offset = ROOT_PIECES + 16 * number;
            let start = field(&root, offset, 4) as u32;
            match field(&root, offset + 8, 8) {
                0 => (start, field(&root, offset + 4, 4) as u32, 0),
                tagged => (start, (tagged & 0xff) as u32, tagged >> PIECE_FILE_SHIFT),
            }
        })
        .collect()
}

/// Makes the four blocks at `start` a full run of file `file` whose link leads to the run at `before`.
pub fn put_run(device: &mut SimDevice, start: u32, file: u64, before: u32) {
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(b"EKBD");
    set_field(&mut block, DATA_FILE, 8, file);
    set_field(&mut block, DATA_GROUP, 8, 1);
    set_field(&mut block, 24, 4, u64::from(start));
    set_field(&mut block, 28, 4, 3);
    set_field(&mut block, 32, 2, PAYLOAD_BYTES as u64);
    block[34] = 1;
    set_field(&mut block, DATA_RUN_START, 4, u64::from(start));
    set_field(&mut block, DATA_BEFORE_START, 4, u64::from(before));
    block[DATA_RUN_BLOCKS] = 4;
    block[DATA_BEFORE_USED] = 4;
    seal(&mut block, Kind::Data);
    device.poke(u64::from(start), &block);
}

/// Makes the cluster at `place` hold a spilled list.
pub fn put_list(device: &mut SimDevice, place: u32, next: u32, pieces: &[Piece]) {
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(b"EKTR");
    set_field(&mut block, 8, 4, u64::from(place));
    set_field(&mut block, 12, 4, u64::from(next));
    set_field(&mut block, 16, 4, pieces.len() as u64);
    for (number, piece) in pieces.iter().enumerate() {
        put_piece(&mut block, 32 + 16 * number, *piece);
    }
    seal(&mut block, Kind::SpilledList);
    device.poke(u64::from(place) + 2, &block);
}

/// Returns the block of the name table, and the offset in it, of the entry called `name`.
pub fn entry_of(device: &SimDevice, name: &str) -> (u64, usize) {
    let end = field(&device.peek(0), 72, 4);
    let is_entry = |block: &Block, offset: usize| {
        let bytes = &block[offset + ENTRY_NAME..offset + ENTRY_NAME + name.len()];
        block[offset] == 1
            && usize::from(block[offset + 1]) == name.len()
            && bytes == name.as_bytes()
    };
    (TABLE_FIRST..end)
        .step_by(2)
        .find_map(|place| {
            let block = device.peek(place);
            let mut offsets = (BUCKET_ENTRIES..BLOCK_BYTES - ENTRY_BYTES).step_by(ENTRY_BYTES);
            let offset = offsets.find(|offset| is_entry(&block, *offset))?;
            Some((place, offset))
        })
        .unwrap()
}

/// Returns the offset in the newest root of the slot of a file.
pub fn slot_of(device: &SimDevice, file: u64) -> usize {
    let root = device.peek(newest_root(device));
    (ROOT_SLOTS..)
        .step_by(SLOT_BYTES)
        .take(32)
        .find(|slot| {
            field(&root, *slot, 2) == 1 && field(&root, slot + SLOT_STATE + STATE_FILE, 8) == file
        })
        .unwrap()
}

/// Returns the identity of the file called `name` from the table.
pub fn file_id(device: &SimDevice, name: &str) -> u64 {
    let (place, offset) = entry_of(device, name);
    field(&device.peek(place), offset + ENTRY_STATE + STATE_FILE, 8)
}

/// Returns the runs of a file, according to its data blocks: start, and the places of the blocks.
pub fn runs_of(device: &SimDevice, file: u64) -> BTreeMap<u64, Vec<u64>> {
    let mut runs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for place in places_of(device, Kind::Data) {
        let block = device.peek(place);
        if field(&block, DATA_FILE, 8) == file {
            let start = field(&block, DATA_RUN_START, 4);
            runs.entry(start).or_default().push(place);
        }
    }
    runs
}

// ---- a device that ends endless loops ----

/// A device that panics if more blocks are read than the given limit, so that an endless loop ends.
pub struct Limited {
    pub inner: SimDevice,
    reads_left: u64,
}

impl Limited {
    pub fn new(inner: SimDevice, reads_max: u64) -> Self {
        Self {
            inner,
            reads_left: reads_max,
        }
    }
}

impl BlockDevice for Limited {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = (buffer.len() / BLOCK_BYTES) as u64;
        assert!(self.reads_left >= blocks, "reads without an end");
        self.reads_left -= blocks;
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

// ---- using an image ----

/// Makes every possible kind of call on a store.
pub fn exercise(device: SimDevice, random: &mut Random) {
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let reads_max = 400 * device.geometry().block_count;
    let mut worn = Limited::new(device.clone(), reads_max);
    if let Ok(mut store) = Store::open(lend(&mut worn), &read_only) {
        let _ = store.check();
        for (name, _) in list(&mut store) {
            let _ = read_whole(&mut store, &name);
        }
    }
    let mut worn = Limited::new(device, reads_max);
    let Ok(mut store) = Store::open(lend(&mut worn), &OpenOptions::default()) else {
        return;
    };
    let _ = store.check();
    let mut names = list(&mut store);
    names.push(("new".to_owned(), 0));
    for (name, _) in &names {
        let _ = read_whole(&mut store, name);
    }
    for _ in 0..40 {
        let _ = call(&names, random).run(&mut store);
    }
    for (name, _) in list(&mut store) {
        let _ = read_whole(&mut store, &name);
    }
    for (name, _) in &names {
        let _ = store.delete(name);
    }
    let _ = store.check();
    drop(store.close());
    // A store that could be opened and written must open again.
    match Store::open(lend(&mut worn), &OpenOptions::default()) {
        Ok(mut store) => {
            let _ = store.replace("again", &[1; 5000]);
        }
        Err(error) => panic!("opens no more: {error}"),
    }
}

fn list<D: BlockDevice>(store: &mut Store<D>) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    let _ = store.list(&mut |name, stat| names.push((name.to_owned(), stat.length_bytes)));
    names
}

/// Returns a random call on one of these files, whose lengths are roughly known.
fn call(names: &[(String, u64)], random: &mut Random) -> Operation {
    let (name, long) = names[random.index(names.len())].clone();
    let long = long.min(1 << 20) as usize;
    let data = |random: &mut Random| {
        let count = length(random, 40_000);
        content(random, count)
    };
    match random.below(16) {
        0 => Operation::Create(name),
        1..=3 => Operation::Append(name, data(random)),
        4 => Operation::AppendNosync(name, data(random)),
        5 | 6 => Operation::Replace(name, data(random)),
        7 => Operation::Delete(name),
        8 => Operation::Rename(name, names[random.index(names.len())].0.clone()),
        9 | 10 => Operation::Truncate(name, truncate_length(random, long, 40_000)),
        11 => Operation::Sync,
        kind => {
            let (offset, count) = write_place(random, long, 40_000);
            let data = content(random, count);
            if kind < 14 {
                Operation::WriteAt(name, offset, data)
            } else {
                Operation::WriteAtNosync(name, offset, data)
            }
        }
    }
}

/// Reads a file piece by piece, as a copy program does; at most one mebibyte.
fn read_whole<D: BlockDevice>(store: &mut Store<D>, name: &str) -> Result<(), Error> {
    let file = store.open_file(name)?;
    let end = store.length(file)?.min(1 << 20);
    let mut buffer = vec![0; 5 * PAYLOAD_BYTES];
    for offset in (0..end).step_by(buffer.len()) {
        // Skip a damaged piece.
        if let Ok(count) = store.read(file, offset, &mut buffer) {
            assert!(count as u64 >= (end - offset).min(buffer.len() as u64));
        }
    }
    store.close_file(file);
    Ok(())
}
