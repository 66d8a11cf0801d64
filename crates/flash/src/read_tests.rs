//! Long reads: few requests where blocks lie side by side, and right bytes where a guess meets what was there before.

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};

use crate::block::PAYLOAD_BYTES;
use crate::read::READ_BLOCKS_MAX;
use crate::store::{FileHandle, OpenOptions, Store};
use crate::{Error, FormatOptions};

const BLOCKS: usize = 384;

fn formatted() -> SimDevice {
    let options = FormatOptions {
        files_max: 8,
        name_bytes_max: 32,
        uuid: [9; 16],
        hash_key: [4; 16],
    };
    let store = Store::format(SimDevice::new(1024, 3), &options).unwrap();
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
