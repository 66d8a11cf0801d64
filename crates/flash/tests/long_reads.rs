//! Reads of long files: few requests where blocks lie side by side, right bytes where a guess meets what was there
//! before, and a way around damage.

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

/// Where pointers do not lead over damaged blocks, the runs do, unless a whole run is damaged. Then the error names
/// what was asked for, and not the blocks in between.
#[test]
fn the_runs_lead_where_pointers_do_not() {
    let (mut store, file) = open(formatted());
    let content = bytes(&mut Random::new(1), BLOCKS);
    store.append(file, &content).unwrap();
    let device = store.close().unwrap();
    // Written in one append, they lie in the order of the file.
    let own: Vec<u64> = (0..device.geometry().block_count)
        .filter(|block| device.peek(*block).starts_with(b"EKBD"))
        .collect();
    assert_eq!(own.len(), BLOCKS);
    let whole_run = 200..328;
    for bad in [256..263, 90..98, 1..9, 120..170, whole_run.clone()] {
        let mut expected: Vec<usize> = bad.clone().collect();
        if bad == whole_run {
            // But for the first block, to which each block has a pointer.
            expected.splice(0..0, 1..bad.start);
        }
        let blocks = || own[bad.clone()].iter().copied();
        let mut store = Store::open(Worn::new(device.clone(), blocks()), &OpenOptions::default());
        assert_eq!(lost(store.as_mut().unwrap(), &content, true), expected);

        let mut rotten = device.clone();
        blocks().for_each(|block| rotten.inject_bit_rot(block, 9_000));
        let mut store = Store::open(rotten, &OpenOptions::default()).unwrap();
        assert_eq!(lost(&mut store, &content, true), expected);
        let verified = store.check().unwrap().blocks_verified as usize;
        assert_eq!(verified, BLOCKS - expected.len());
        // A repair knows no less, and no more.
        let (report, device) = Store::repair(store.close().unwrap(), &mut |_| {}).unwrap();
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert_eq!(lost(&mut store, &content, true), expected, "{report:?}");
    }
}

/// The blocks that cannot be read, one by one, upwards or downwards. All others are right, and an error names what was
/// asked for.
fn lost<D: BlockDevice>(store: &mut Store<D>, content: &[u8], upwards: bool) -> Vec<usize> {
    let file = store.open_file("log").unwrap();
    let is_lost = |number: &usize| {
        let offset = number * PAYLOAD_BYTES;
        let expected = &content[offset..content.len().min(offset + PAYLOAD_BYTES)];
        let mut found = vec![0; expected.len()];
        match store.read(file, offset as u64, &mut found) {
            Ok(_) => assert!(found == expected, "{number}"),
            Err(Error::Damaged { offset: named, .. }) => {
                assert_eq!(named, Some(offset as u64));
                return true;
            }
            Err(error) => panic!("{number}: {error}"),
        }
        false
    };
    let blocks = content.len().div_ceil(PAYLOAD_BYTES);
    let mut lost: Vec<usize> = match upwards {
        true => (0..blocks).filter(is_lost).collect(),
        false => (0..blocks).rev().filter(is_lost).collect(),
    };
    lost.sort_unstable();
    store.close_file(file);
    lost
}

/// Appends of all lengths, so that both lanes are in use and runs are of all lengths.
fn with_two_lanes(random: &mut Random) -> (SimDevice, Vec<u8>) {
    let (mut store, file) = open(formatted());
    let mut content = Vec::new();
    let append_bytes_max = [900, 9_000, 70_000, 300_000][random.index(4)];
    while content.len() < 500 * PAYLOAD_BYTES {
        let mut more = vec![0; 1 + random.index(append_bytes_max)];
        random.fill(&mut more);
        store.append(file, &more).unwrap();
        content.extend_from_slice(&more);
        if random.below(40) == 0 {
            let cut = random.index(content.len().min(10 * append_bytes_max));
            content.truncate(content.len() - cut);
            store.truncate(file, content.len() as u64).unwrap();
        }
    }
    (store.close().unwrap(), content)
}

/// The blocks of a store's files, by what their headers say: number, sequence, address.
fn data_blocks(device: &SimDevice) -> Vec<(u32, u64, u64)> {
    let mut found = Vec::new();
    for block in 0..device.geometry().block_count {
        let content = device.peek(block);
        if content.starts_with(b"EKBD") {
            let number = u32::from_le_bytes(content[28..32].try_into().unwrap());
            let sequence = u64::from_le_bytes(content[16..24].try_into().unwrap());
            found.push((number, sequence, block));
        }
    }
    found
}

/// Walls of damage by address, as an erase block is lost, and by number. What a read does not find no check finds, and
/// what it finds is right.
#[test]
fn walls_in_two_lanes() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let (mut device, content) = with_two_lanes(&mut random);
        let mut blocks = data_blocks(&device);
        if random.below(2) == 0 {
            blocks.sort_by_key(|(_, _, address)| *address);
        } else {
            blocks.sort_unstable();
        }
        let length = [2, 7, 8, 20, 32, 64][random.index(6)];
        let first = match random.below(4) {
            0 => blocks.len() - length,
            _ => random.index(blocks.len() - length),
        };
        for (_, _, address) in &blocks[first..first + length] {
            device.inject_bit_rot(*address, 9_000);
        }
        let addresses_max = [0, 8192][random.index(2)];
        let options = OpenOptions {
            addresses_max,
            ..OpenOptions::default()
        };
        let mut store = Store::open(device, &options).unwrap();
        let upwards = random.below(2) == 0;
        let lost = lost(&mut store, &content, upwards);
        let blocks = content.len().div_ceil(PAYLOAD_BYTES);
        let report = store.check().unwrap();
        let verified = report.blocks_verified as usize;
        println!(
            "{seed}: {length} damaged from {first}, {} of {blocks} lost",
            lost.len()
        );
        assert_eq!(blocks - lost.len(), verified, "seed {seed}: {lost:?}");
    }
}

/// The last blocks of a file are those of its youngest run, and can be all of it.
#[test]
fn damage_at_the_end_costs_itself() {
    for more in 1..12 {
        let (mut store, file) = open(formatted());
        let content = bytes(&mut Random::new(1), 320 + more);
        store.append(file, &content).unwrap();
        let device = store.close().unwrap();
        let mut blocks = data_blocks(&device);
        blocks.sort_unstable();
        for damaged in 1..16 {
            let mut device = device.clone();
            for (_, _, address) in blocks.iter().rev().take(damaged) {
                device.inject_bit_rot(*address, 9_000);
            }
            let mut store = Store::open(device, &OpenOptions::default()).unwrap();
            let expected: Vec<usize> = (blocks.len() - damaged..blocks.len()).collect();
            assert_eq!(
                lost(&mut store, &content, false),
                expected,
                "{more} {damaged}"
            );
        }
    }
}

/// An erase block that goes back to what it held in an earlier life of the file is damage, and nothing of it is
/// returned. (What had the same number at the same address passes for the file's own, also where pointers lead.)
#[test]
fn what_a_device_has_gone_back_to_is_not_believed() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (mut store, file) = open(formatted());
        store
            .append(file, &bytes(&mut random, 300 + seed as usize))
            .unwrap();
        let before = store.device().clone();
        store.truncate(file, 0).unwrap();
        let other = store.create("other").unwrap();
        let between = 1 + random.index(30);
        store.append(other, &bytes(&mut random, between)).unwrap();
        let content = bytes(&mut random, BLOCKS);
        store.append(file, &content).unwrap();
        let mut device = store.close().unwrap();
        let mut blocks = data_blocks(&device);
        blocks.sort_by_key(|(_, _, address)| *address);
        let first = random.index(blocks.len() - 64);
        for (_, _, address) in &blocks[first..first + 8 + random.index(56)] {
            let old = before.peek_durable(*address);
            if old[28..32] != device.peek(*address)[28..32] {
                device.poke(*address, &old);
            }
        }
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        println!("{seed}: {} lost", lost(&mut store, &content, false).len());
    }
}
