//! Long reads: few requests where blocks lie side by side, and right bytes where a guess meets what was there before.

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{Error, FileHandle, OpenOptions, PAYLOAD_BYTES, Store};

use crate::common::options;
use crate::common::worn::Worn;

/// Blocks of one request at most.
const READ_BLOCKS_MAX: usize = 16;
const BLOCKS: usize = 384;

fn formatted() -> SimDevice {
    let store = Store::format(SimDevice::new(1024, 3), &options(8)).unwrap();
    store.close().unwrap()
}

fn open(device: SimDevice) -> (Store<SimDevice>, FileHandle) {
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let file = match store.open_file("log") {
        Err(Error::NotFound) => store.create("log").unwrap(),
        opened => opened.unwrap(),
    };
    (store, file)
}

fn bytes(random: &mut Random, blocks: usize) -> Vec<u8> {
    (0..blocks * PAYLOAD_BYTES)
        .map(|_| random.below(256) as u8)
        .collect()
}

fn read(store: &mut Store<SimDevice>, file: FileHandle) -> Vec<u8> {
    let mut found = vec![0xee; store.length(file).unwrap() as usize];
    assert_eq!(store.read(file, 0, &mut found).unwrap(), found.len());
    found
}

#[test]
fn blocks_side_by_side_are_read_in_long_requests() {
    let (mut store, file) = open(formatted());
    let content = bytes(&mut Random::new(1), BLOCKS);
    for piece in content.chunks(3 * PAYLOAD_BYTES) {
        store.append(file, piece).unwrap();
    }
    // The runs of a file grow with it: here they have 24 blocks at least.
    let half = content.len() / 2;
    let mut found = vec![0xee; content.len() - half];
    let before = store.device().counters();
    assert_eq!(
        store.read(file, half as u64, &mut found).unwrap(),
        found.len()
    );
    let after = store.device().counters();
    assert_eq!(found, content[half..]);
    let reads = after.reads - before.reads;
    // Where a run begins, a request is shorter; by pointers alone they would have seven blocks at most.
    assert!(
        reads <= (BLOCKS / 2 / (READ_BLOCKS_MAX / 2)) as u64,
        "{reads} requests"
    );
    let bound = store.bounds().read(found.len() as u64);
    assert!(reads <= bound.reads && after.blocks_read - before.blocks_read <= bound.blocks_read);
    assert_eq!(read(&mut store, file), content);
}

#[test]
fn a_guess_does_not_take_what_was_there_before() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (mut store, file) = open(formatted());
        let other = store.create("other").unwrap();
        let mut content = Vec::new();
        for _ in 0..12 {
            let more = 1 + random.index(24);
            let more = bytes(&mut random, more);
            store.append(file, &more).unwrap();
            content.extend_from_slice(&more);
            if random.below(2) == 0 {
                // Blocks of the same file and number stay behind, whole, where they were.
                content.truncate(random.index(content.len() / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES);
                store.truncate(file, content.len() as u64).unwrap();
                let between = 1 + random.index(5);
                let between = bytes(&mut random, between);
                store.append(other, &between).unwrap();
            }
            assert_eq!(read(&mut store, file), content, "seed {seed}");
        }
        // Also with no address known.
        let (mut store, file) = open(store.close().unwrap());
        assert_eq!(read(&mut store, file), content, "seed {seed}");
    }
}

/// A bad block costs what it held. One that is not the file's is never asked for, and one of its own a few times.
#[test]
fn a_bad_block_in_a_guess_costs_itself() {
    let (mut store, file) = open(formatted());
    let content = bytes(&mut Random::new(1), BLOCKS);
    for piece in content.chunks(3 * PAYLOAD_BYTES) {
        store.append(file, piece).unwrap();
    }
    let device = store.close().unwrap();
    let mut own = Vec::new();
    for block in 0..device.geometry().block_count {
        let is_own = device.peek(block).starts_with(b"EKBD");
        let worn = Worn::new(device.clone(), [block]);
        let Ok(mut store) = Store::open(worn, &OpenOptions::default()) else {
            continue;
        };
        let Ok(file) = store.open_file("log") else {
            continue;
        };
        let opened = store.device().reads_failed;
        let mut found = vec![0xee; content.len()];
        let result = store.read(file, 0, &mut found);
        let failed = store.device().reads_failed - opened;
        if !is_own {
            assert!(
                result.is_ok() && found == content,
                "block {block}: {result:?}"
            );
            assert_eq!(failed, 0, "block {block}");
            continue;
        }
        let Err(Error::Damaged {
            block: named,
            offset: Some(offset),
            ..
        }) = result
        else {
            panic!("block {block}: {result:?}");
        };
        assert_eq!(named, block);
        // One request with guessed blocks, then those that are known, then each by itself.
        assert!(failed <= 3, "block {block}: {failed} requests");
        let number = offset as usize / PAYLOAD_BYTES;
        own.push(number);
        for (from, to) in [(0, number), (number + 1, BLOCKS)] {
            let (from, to) = (from * PAYLOAD_BYTES, to * PAYLOAD_BYTES);
            let mut found = vec![0xee; to - from];
            let result = store.read(file, from as u64, &mut found);
            assert!(
                result.is_ok() && found == content[from..to],
                "block {block}: {result:?}"
            );
        }
    }
    own.sort_unstable();
    assert_eq!(own, (0..BLOCKS).collect::<Vec<_>>());
}

/// Behind eight damaged blocks the walk gives up: what it says cannot be read is what was asked for, not they.
#[test]
fn where_no_way_leads_the_error_names_what_was_asked_for() {
    let (mut store, file) = open(formatted());
    store
        .append(file, &bytes(&mut Random::new(1), BLOCKS))
        .unwrap();
    let mut device = store.close().unwrap();
    // By number: written in one append, they lie in the order of the file.
    let own: Vec<u64> = (0..device.geometry().block_count)
        .filter(|block| device.peek(*block).starts_with(b"EKBD"))
        .collect();
    assert_eq!(own.len(), BLOCKS);
    for block in &own[256..264] {
        device.inject_bit_rot(*block, 9_000);
    }
    let (mut store, file) = open(device);
    for number in [100, 255, 256, 263] {
        let offset = (number * PAYLOAD_BYTES) as u64;
        let result = store.read(file, offset, &mut [0; 10]);
        let Err(Error::Damaged {
            offset: Some(named),
            ..
        }) = result
        else {
            panic!("{number}: {result:?}");
        };
        assert_eq!(named, offset, "{number}");
    }
}
