//! Tests reads of long files: few requests where blocks are contiguous, right bytes where a guess meets old data, and a
//! path around damage.

use std::collections::{BTreeMap, BTreeSet};

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{Error, FileHandle, OpenOptions, PAYLOAD_BYTES, Store};

use crate::common::options;
use crate::common::worn::Worn;

/// Maximum number of blocks of one request.
const READ_BLOCKS_MAX: usize = 16;
const BLOCKS: usize = 384;
const WALLED_FILES: u64 = 60;

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
    // The runs of a file grow with it: here they have at least 24 blocks.
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
    // At the start of a run, a request is shorter; by pointers alone requests would have at most seven blocks.
    assert!(
        reads <= (BLOCKS / 2 / (READ_BLOCKS_MAX / 2)) as u64,
        "{reads} requests"
    );
    let bound = store.bounds().read(found.len() as u64);
    assert!(reads <= bound.reads && after.blocks_read - before.blocks_read <= bound.blocks_read);
    assert_eq!(read(&mut store, file), content);
}

#[test]
fn a_guess_does_not_take_old_blocks() {
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
                // Intact blocks of the same file and number stay behind at their old places.
                content.truncate(random.index(content.len() / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES);
                store.truncate(file, content.len() as u64).unwrap();
                let between = 1 + random.index(5);
                let between = bytes(&mut random, between);
                store.append(other, &between).unwrap();
            }
            assert_eq!(read(&mut store, file), content, "seed {seed}");
        }
        // The same with no address known.
        let (mut store, file) = open(store.close().unwrap());
        assert_eq!(read(&mut store, file), content, "seed {seed}");
    }
}

/// A bad block costs only its own data. A bad block of another file is never requested, and one of its own only a few
/// times.
#[test]
fn a_bad_block_in_a_guess_costs_only_its_data() {
    let (mut store, file) = open(formatted());
    let content = bytes(&mut Random::new(1), BLOCKS);
    for piece in content.chunks(3 * PAYLOAD_BYTES) {
        store.append(file, piece).unwrap();
    }
    let device = store.close().unwrap();
    let mut own = Vec::new();
    for block in 0..device.geometry().block_count {
        let is_own = device.peek(block).starts_with(b"EKBD");
        let mut worn = Worn::new(device.clone(), [block]);
        let Ok(mut store) = Store::open(&mut worn, &OpenOptions::default()) else {
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
        // One request with guessed blocks, then the known blocks, then each by itself.
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

/// Where pointers do not lead over damaged blocks, the runs do, unless a whole run is damaged. Then the error names the
/// wanted position, and not the blocks in between.
#[test]
fn the_runs_lead_where_pointers_do_not() {
    let (mut store, file) = open(formatted());
    let content = bytes(&mut Random::new(1), BLOCKS);
    store.append(file, &content).unwrap();
    let device = store.close().unwrap();
    // They were written in one append, so they lie in the order of the file.
    let own: Vec<u64> = (0..device.geometry().block_count)
        .filter(|block| device.peek(*block).starts_with(b"EKBD"))
        .collect();
    assert_eq!(own.len(), BLOCKS);
    let whole_run = 200..328;
    for bad in [256..263, 90..98, 1..9, 120..170, whole_run.clone()] {
        let mut expected: Vec<usize> = bad.clone().collect();
        if bad == whole_run {
            // Except for the first block, to which each block has a pointer.
            expected.splice(0..0, 1..bad.start);
        }
        let blocks = || own[bad.clone()].iter().copied();
        let mut worn = Worn::new(device.clone(), blocks());
        let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
        assert_eq!(lost(&mut store, &content, true), expected);

        let mut rotten = device.clone();
        blocks().for_each(|block| rotten.inject_bit_rot(block, 9_000));
        let mut store = Store::open(rotten, &OpenOptions::default()).unwrap();
        assert_eq!(lost(&mut store, &content, true), expected);
        let verified = store.check().unwrap().blocks_verified as usize;
        assert_eq!(verified, BLOCKS - expected.len());
        // A repair finds exactly the same blocks.
        let (report, device) = Store::repair(store.close().unwrap(), &mut |_| {}).unwrap();
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert_eq!(lost(&mut store, &content, true), expected, "{report:?}");
    }
}

/// Returns the blocks that cannot be read, one by one, upwards or downwards. All others must be right, and an error
/// must name the wanted position.
fn lost<D: BlockDevice>(store: &mut Store<D>, content: &[u8], upwards: bool) -> Vec<usize> {
    lost_or(store, content, upwards, &mut |_, _| false)
}

/// As [`lost`]; `may_hold` decides whether wrong content at an offset is allowed.
fn lost_or<D: BlockDevice>(
    store: &mut Store<D>,
    content: &[u8],
    upwards: bool,
    may_hold: &mut dyn FnMut(usize, &[u8]) -> bool,
) -> Vec<usize> {
    let file = store.open_file("log").unwrap();
    let is_lost = |number: &usize| {
        let offset = number * PAYLOAD_BYTES;
        let expected = &content[offset..content.len().min(offset + PAYLOAD_BYTES)];
        let mut found = vec![0; expected.len()];
        match store.read(file, offset as u64, &mut found) {
            Ok(_) => assert!(found == expected || may_hold(offset, &found), "{number}"),
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

/// Makes appends of all lengths, so that both lanes are in use and runs have all lengths.
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

/// A block of a store's files, according to its header.
#[derive(Clone, Copy)]
struct Found {
    number: usize,
    sequence: u64,
    address: u64,
    run: u32,
}

fn data_blocks(device: &SimDevice) -> Vec<Found> {
    let mut found = Vec::new();
    for address in 0..device.geometry().block_count {
        let content = device.peek(address);
        if content.starts_with(b"EKBD") {
            let word = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
            found.push(Found {
                number: word(28) as usize,
                sequence: u64::from_le_bytes(content[16..24].try_into().unwrap()),
                address,
                run: word(36),
            });
        }
    }
    found
}

/// Returns the blocks of a file's current life: the youngest block of each number.
fn live_blocks(device: &SimDevice) -> Vec<Found> {
    let mut live = BTreeMap::new();
    for found in data_blocks(device) {
        let youngest = live.entry(found.number).or_insert(found);
        if found.sequence > youngest.sequence {
            *youngest = found;
        }
    }
    live.into_values().collect()
}

/// Returns the blocks that a check reports as lost.
fn lost_by_check<D: BlockDevice>(store: &mut Store<D>) -> Vec<usize> {
    let report = store.check().unwrap();
    assert_eq!(report.problems.len() as u64, report.problems_total);
    let mut lost = Vec::new();
    for problem in report.problems.iter().filter(|problem| problem.data_lost) {
        let (_, offset) = problem.text.split_once("at file offset ").unwrap();
        let (offset, _) = offset.split_once(' ').unwrap();
        lost.push(offset.parse::<usize>().unwrap() / PAYLOAD_BYTES);
    }
    lost.sort_unstable();
    lost
}

/// Damages neighbours by address, like a lost erase block, or by number. Returns their addresses.
fn build_wall(random: &mut Random, device: &mut SimDevice) -> BTreeSet<u64> {
    let mut blocks = data_blocks(device);
    if random.below(2) == 0 {
        blocks.sort_by_key(|found| found.address);
    } else {
        blocks.sort_by_key(|found| (found.number, found.sequence));
    }
    let length = [2, 7, 8, 20, 32, 64][random.index(6)];
    let first = match random.below(4) {
        0 => blocks.len() - length,
        _ => random.index(blocks.len() - length),
    };
    let wall = &blocks[first..first + length];
    for found in wall {
        device.inject_bit_rot(found.address, 9_000);
    }
    wall.iter().map(|found| found.address).collect()
}

/// Blocks behind a wall that a read does not find are not found by a check either. Found data is right, and only
/// damaged blocks are lost. The exception is a list of runs that ends in a completely damaged run.
#[test]
fn reads_go_around_walls_in_two_lanes() {
    let mut exact = 0_u64;
    for seed in 0..WALLED_FILES {
        let mut random = Random::new(seed);
        let (mut device, content) = with_two_lanes(&mut random);
        let live = live_blocks(&device);
        let wall = build_wall(&mut random, &mut device);
        let is_damaged = |found: &&Found| wall.contains(&found.address);
        let damaged: Vec<usize> = live
            .iter()
            .filter(is_damaged)
            .map(|found| found.number)
            .collect();
        let intact_runs: BTreeSet<u32> = live
            .iter()
            .filter(|found| !is_damaged(found))
            .map(|found| found.run)
            .collect();
        let is_run_dead = live.iter().any(|found| !intact_runs.contains(&found.run));
        let options = OpenOptions {
            addresses_max: [0, 8192][random.index(2)],
            ..OpenOptions::default()
        };
        let mut store = Store::open(device, &options).unwrap();
        let upwards = random.below(2) == 0;
        let lost = lost(&mut store, &content, upwards);
        println!(
            "{seed}: {} damaged, {} of {} live; {} lost; a run dead: {is_run_dead}",
            wall.len(),
            damaged.len(),
            live.len(),
            lost.len()
        );
        assert_eq!(lost, lost_by_check(&mut store), "seed {seed}");
        if is_run_dead {
            assert!(damaged.iter().all(|number| lost.contains(number)));
        } else {
            assert_eq!(lost, damaged, "seed {seed}");
        }
        exact += u64::from(lost == damaged);
    }
    println!("{exact} of {WALLED_FILES} lost what was damaged");
    // In one file a whole run is damaged, so the blocks before it in its lane are lost.
    assert!(exact >= WALLED_FILES - 1);
}

/// A repair puts blocks without data into the places of damaged ones. Behind the next wall a read must still find
/// everything that a check finds.
#[test]
fn reads_go_around_walls_in_a_repaired_file() {
    for seed in 0..WALLED_FILES {
        let mut random = Random::new(seed);
        let (mut device, mut content) = with_two_lanes(&mut random);
        for turn in 0..3 {
            build_wall(&mut random, &mut device);
            let mut store = Store::open(device, &OpenOptions::default()).unwrap();
            let file = store.open_file("log").unwrap();
            // A repair cuts off a damaged end.
            content.truncate(store.length(file).unwrap() as usize);
            store.close_file(file);
            let lost = lost(&mut store, &content, turn == 0);
            println!("{seed}: {} lost", lost.len());
            assert_eq!(lost, lost_by_check(&mut store), "seed {seed}, {turn}");
            (_, device) = Store::repair(store.close().unwrap(), &mut |_| {}).unwrap();
        }
    }
}

/// The last blocks of a file are those of its youngest run, and can be the whole run.
#[test]
fn damage_at_the_end_of_a_file_costs_only_its_data() {
    for more in 1..12 {
        let (mut store, file) = open(formatted());
        let content = bytes(&mut Random::new(1), 320 + more);
        store.append(file, &content).unwrap();
        let device = store.close().unwrap();
        let blocks = live_blocks(&device);
        for damaged in 1..16 {
            let mut device = device.clone();
            for found in blocks.iter().rev().take(damaged) {
                device.inject_bit_rot(found.address, 9_000);
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

/// An erase block that returns to the content of an earlier life of the file is damage, and none of it may be returned.
/// An old block with the same number at the same address is accepted as the file's own, also where pointers lead. If
/// the file was truncated within, both lives have their first blocks in common, and only a pointer to a later block
/// tells them apart. There a read returns either the current or the former content of that place.
#[test]
fn blocks_that_a_device_brings_back_are_not_accepted() {
    let mut old_ones = 0;
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let (mut store, file) = open(formatted());
        let blocks = 300 + random.index(100);
        let old = bytes(&mut random, blocks);
        store.append(file, &old).unwrap();
        let before = store.device().clone();
        let kept = [0, random.index(old.len())][random.index(2)];
        let mut content = old[..kept].to_vec();
        store.truncate(file, kept as u64).unwrap();
        let other = store.create("other").unwrap();
        let between = 1 + random.index(30);
        store.append(other, &bytes(&mut random, between)).unwrap();
        while content.len() < BLOCKS * PAYLOAD_BYTES {
            let more = 1 + random.index(BLOCKS);
            let more = bytes(&mut random, more);
            store.append(file, &more).unwrap();
            content.extend_from_slice(&more);
        }
        let mut device = store.close().unwrap();
        let mut blocks = data_blocks(&device);
        blocks.sort_by_key(|found| found.address);
        let first = random.index(blocks.len() - 64);
        for found in &blocks[first..first + 8 + random.index(56)] {
            let old = before.peek_durable(found.address);
            if old[28..32] != device.peek(found.address)[28..32] {
                device.poke(found.address, &old);
            }
        }
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        let mut old_here = 0;
        let lost = lost_or(&mut store, &content, false, &mut |offset, found| {
            old_here += 1;
            kept > 0 && old.get(offset..offset + found.len()) == Some(found)
        });
        println!("{seed}: {} lost, {old_here} old", lost.len());
        old_ones += old_here;
    }
    println!("{old_ones} old");
    // It would be 28 if pointers were not compared.
    assert!(old_ones <= 15);
}

/// If appends alternate between the lanes, a run's places do not hold the guessed blocks. The guess is wrong, costs
/// only its transfer, and returns no wrong data.
#[test]
fn a_wrong_guess_costs_only_its_transfer() {
    for blocks in 8..24 {
        let (mut store, file) = open(formatted());
        let mut content = Vec::new();
        let mut random = Random::new(blocks as u64);
        while content.len() < BLOCKS * PAYLOAD_BYTES {
            // Each append ends within a block, so the next one goes to the other lane.
            let mut more = vec![0; blocks * PAYLOAD_BYTES + 1 + random.index(PAYLOAD_BYTES - 1)];
            random.fill(&mut more);
            store.append(file, &more).unwrap();
            content.extend_from_slice(&more);
        }
        let options = OpenOptions {
            addresses_max: 0,
            ..OpenOptions::default()
        };
        let mut store = Store::open(store.close().unwrap(), &options).unwrap();
        let file = store.open_file("log").unwrap();
        let before = store.device().counters();
        assert_eq!(read(&mut store, file), content);
        let after = store.device().counters();
        let number = content.len().div_ceil(PAYLOAD_BYTES) as u64;
        let for_nothing = after.blocks_read - before.blocks_read - number;
        let requests = after.reads - before.reads;
        println!("{blocks}: {requests} requests, {for_nothing} blocks for nothing");
        assert!(for_nothing > 0);
        // Wrong guesses are included in the bound of a read.
        let bound = store.bounds().read(content.len() as u64);
        assert!(requests <= bound.reads);
        assert!(after.blocks_read - before.blocks_read <= bound.blocks_read);
    }
}
