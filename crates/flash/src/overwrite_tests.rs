//! Tests of several pieces in one call: compared with a plain array, with a power cut at every write, and with costs
//! counted.

use base::block::{BlockDevice, Counters};
use base::sim::{Random, SimDevice};

use crate::block::PAYLOAD_BYTES;
use crate::store::{FileHandle, OpenOptions, Store};
use crate::{Error, FormatOptions};

const PAGE: u64 = 4096;

fn formatted() -> SimDevice {
    let options = FormatOptions {
        files_max: 8,
        name_bytes_max: 32,
        uuid: [9; 16],
        hash_key: [4; 16],
    };
    let store = Store::format(SimDevice::new(512, 3), &options).unwrap();
    store.close().unwrap()
}

fn open(device: SimDevice) -> (Store<SimDevice>, FileHandle) {
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let file = match store.open_file("pages") {
        Err(Error::NotFound) => store.create("pages").unwrap(),
        opened => opened.unwrap(),
    };
    (store, file)
}

fn content(store: &mut Store<SimDevice>, file: FileHandle) -> Vec<u8> {
    let mut bytes = vec![0xee; store.length(file).unwrap() as usize];
    assert_eq!(store.read(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Pages with random bytes at random places, some behind the end, some identical to the present content.
fn pieces(random: &mut Random, expected: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let pages = expected.len() as u64 / PAGE;
    let mut pieces = Vec::new();
    for _ in 0..=random.index(4) {
        let offset = match random.below(8) {
            0 => random.below(expected.len() as u64 + 9000),
            1 => expected.len() as u64,
            _ => random.below(pages) * PAGE,
        };
        let mut data = vec![0; [PAGE as usize, 28, 9000][random.index(3).min(random.index(3))]];
        let known = expected.get(offset as usize..).unwrap_or_default();
        let known = &known[..known.len().min(data.len())];
        data[..known.len()].copy_from_slice(known);
        for _ in 0..random.below(3) {
            let place = random.index(data.len());
            data[place] ^= 1 << random.index(8);
        }
        pieces.push((offset, data));
    }
    pieces
}

fn apply(expected: &mut Vec<u8>, pieces: &[(u64, Vec<u8>)]) {
    for (offset, data) in pieces {
        let offset = *offset as usize;
        expected.resize(expected.len().max(offset + data.len()), 0);
        expected[offset..offset + data.len()].copy_from_slice(data);
    }
}

fn borrowed(pieces: &[(u64, Vec<u8>)]) -> Vec<(u64, &[u8])> {
    let each = pieces.iter().map(|(offset, data)| (*offset, &data[..]));
    each.collect()
}

/// Fails if a call has cost more than the pieces are allowed to cost one by one.
fn check_cost(store: &Store<SimDevice>, before: &Counters, length: u64, pieces: &[(u64, Vec<u8>)]) {
    let bounds = store.bounds();
    let mut bound = bounds.sync();
    let mut end = length;
    for (offset, data) in pieces {
        let bytes = data.len() as u64;
        bound = bound.plus(bounds.overwrite(bytes));
        if offset + bytes > end {
            bound = bound.plus(bounds.write_beyond(offset.saturating_sub(end), bytes));
            end = offset + bytes;
        }
    }
    let after = store.device().counters();
    let cost = [
        (after.writes - before.writes, bound.writes),
        (after.flushes - before.flushes, bound.flushes),
        (after.reads - before.reads, bound.reads),
        (
            after.blocks_written - before.blocks_written,
            bound.blocks_written,
        ),
        (after.blocks_read - before.blocks_read, bound.blocks_read),
    ];
    assert!(cost.iter().all(|(cost, bound)| cost <= bound), "{cost:?}");
}

/// Returns the number of the file's original blocks that differ.
fn changed_blocks(before: &[u8], after: &[u8]) -> usize {
    let blocks = before
        .chunks(PAYLOAD_BYTES)
        .zip(after.chunks(PAYLOAD_BYTES));
    blocks
        .filter(|(old, new)| *old != &new[..old.len()])
        .count()
}

#[test]
fn pieces_are_written_as_if_one_by_one() {
    let mut at_once = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (mut store, file) = open(formatted());
        let mut expected = vec![7; 6 * PAGE as usize + random.index(3000)];
        store.append(file, &expected).unwrap();
        for step in 0..40 {
            let pieces = pieces(&mut random, &expected);
            let before = expected.clone();
            apply(&mut expected, &pieces);
            let counters = store.device().counters();
            let length = before.len() as u64;
            if random.coin() {
                store.write_pieces_nosync(file, &borrowed(&pieces)).unwrap();
                check_cost(&store, &counters, length, &pieces);
            } else {
                let done = store
                    .write_pieces_at_once(file, &borrowed(&pieces))
                    .unwrap();
                check_cost(&store, &counters, length, &pieces);
                let few = changed_blocks(&before, &expected) <= 3;
                // One piece may change a block and the next one may change it back.
                assert!(
                    done == few || few && pieces.len() > 1,
                    "seed {seed}, step {step}"
                );
                at_once += u32::from(done);
                if !done {
                    expected = before;
                }
            }
            assert_eq!(
                content(&mut store, file),
                expected,
                "seed {seed}, step {step}"
            );
            if random.below(4) == 0 {
                store.append_nosync(file, &[step; 50]).unwrap();
                expected.extend_from_slice(&[step; 50]);
            }
            if expected.len() > 200_000 {
                store.truncate(file, 30_000).unwrap();
                expected.truncate(30_000);
            }
            if random.below(8) == 0 {
                let device = store.close().unwrap();
                let (reopened, _) = open(device);
                store = reopened;
                assert_eq!(
                    content(&mut store, file),
                    expected,
                    "seed {seed}, step {step}"
                );
            }
        }
        assert!(store.check().unwrap().is_clean());
    }
    assert!(at_once > 200, "only {at_once} changes at once");
}

#[test]
fn an_atomic_overwrite_is_all_or_nothing_at_any_power_cut() {
    let mut states = 0;
    for seed in 0..60 {
        let mut random = Random::new(1000 + seed);
        let (mut store, file) = open(formatted());
        let before = vec![5; 6 * PAGE as usize + random.index(3000)];
        store.append(file, &before).unwrap();
        if random.coin() {
            // The table block of another file still waits to be written in place.
            store.create("other").unwrap();
        }
        let pieces = pieces(&mut random, &before);
        let mut after = before.clone();
        apply(&mut after, &pieces);
        let changes = changed_blocks(&before, &after);
        // Each attempt borrows the device; everything flushed before is durable in all attempts.
        let ready = store.device_mut().clone();
        let ready = ready.crash_image(&|_| base::sim::Keep::Whole);
        for cut in 0.. {
            let (mut store, file) = open(ready.clone());
            store.device_mut().set_power_cut_after_writes(Some(cut));
            let done = store.write_pieces_at_once(file, &borrowed(&pieces));
            let device = store.device_mut().clone();
            let images = device
                .crash_images_all_subsets()
                .chain((0..4).map(|seed| device.crash_image_random(seed)));
            for image in images {
                let (mut store, file) = open(image);
                let found = content(&mut store, file);
                let old = &found[..before.len()];
                assert!(
                    old == before || old == &after[..before.len()],
                    "seed {seed}, cut at write {cut}: a part of it"
                );
                // Bytes that make the file longer are written first.
                let changed = changes > 0 && old != before;
                if changed || matches!(done, Ok(true)) && changes > 0 {
                    assert_eq!(found, after, "seed {seed}, cut at write {cut}");
                }
                states += 1;
            }
            match done {
                Ok(done) => {
                    assert!(!done || changes <= 3);
                    break;
                }
                Err(Error::Device(_)) => {}
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
    assert!(states > 1000, "only {states} states");
    println!("overwriting at once: {states} states after power cuts");
}

#[test]
fn a_few_bytes_in_each_of_three_pages_are_one_record() {
    let (mut store, file) = open(formatted());
    let bytes = vec![3; 40 * PAGE as usize];
    store.append(file, &bytes).unwrap();
    let page = |number: u64, place: usize| {
        let mut page = vec![3; PAGE as usize];
        page[place] = 9;
        (number * PAGE, page)
    };
    let pieces = [page(0, 24), page(7, 100), page(33, 200)];
    // Reading the content makes the addresses known.
    content(&mut store, file);
    let before = store.device().counters();
    assert!(
        store
            .write_pieces_at_once(file, &borrowed(&pieces))
            .unwrap()
    );
    let after = store.device().counters();
    let counts = (
        after.writes - before.writes,
        after.flushes - before.flushes,
        after.reads - before.reads,
    );
    // The record and three blocks in place; each page lies in two adjacent blocks.
    assert_eq!(counts, (4, 1, 3));
    // The content is unchanged.
    let before = store.device().counters();
    assert!(
        store
            .write_pieces_at_once(file, &borrowed(&pieces))
            .unwrap()
    );
    let after = store.device().counters();
    assert_eq!(
        (after.writes, after.flushes),
        (before.writes, before.flushes)
    );
    // The blocks of the last record are still in memory.
    let before = store.device().counters();
    let small = [(24, vec![7; 4]), (7 * PAGE + 100, vec![7; 4])];
    assert!(store.write_pieces_at_once(file, &borrowed(&small)).unwrap());
    let after = store.device().counters();
    assert_eq!(
        (after.writes - before.writes, after.reads - before.reads),
        (3, 0)
    );
    // Not after a flush: other data may be at these places since then.
    store.append(file, &[1]).unwrap();
    let before = store.device().counters();
    let small = [(24, vec![8; 4])];
    assert!(store.write_pieces_at_once(file, &borrowed(&small)).unwrap());
    assert_eq!(store.device().counters().reads - before.reads, 1);
    // A fourth block is one too many.
    let four: Vec<_> = (0..4).map(|number| page(number, 300)).collect();
    let before = store.device().counters();
    assert!(!store.write_pieces_at_once(file, &borrowed(&four)).unwrap());
    assert_eq!(store.device().counters().writes, before.writes);
    store.write_pieces_nosync(file, &borrowed(&four)).unwrap();
    let counts = store.device().counters();
    assert_eq!(counts.flushes - before.flushes, 2);
}

#[test]
fn overwriting_with_the_same_bytes_costs_no_write_and_known_neighbours_one_read() {
    let (mut store, file) = open(formatted());
    let bytes = vec![3; 40 * PAGE as usize];
    store.append(file, &bytes).unwrap();
    content(&mut store, file);
    let spent = |store: &Store<SimDevice>, before: &Counters| {
        let after = store.device().counters();
        (
            after.reads - before.reads,
            after.writes - before.writes,
            after.flushes - before.flushes,
        )
    };
    let before = store.device().counters();
    store.write_at(file, 5 * PAGE, &[3; PAGE as usize]).unwrap();
    assert_eq!(spent(&store, &before), (1, 0, 0));
    let before = store.device().counters();
    store.write_at(file, 5 * PAGE, &[4; PAGE as usize]).unwrap();
    assert_eq!(spent(&store, &before), (1, 2, 1));
    // Unflushed appends by other calls become durable as well, because the call promises it.
    store.append_nosync(file, &[1; 10]).unwrap();
    let end = bytes.len() as u64;
    let before = store.device().counters();
    store.write_at(file, end, &[1; 10]).unwrap();
    assert_eq!(spent(&store, &before).2, 1);
    let durable = store.device_mut().crash_image(&|_| base::sim::Keep::Lost);
    let (store, file) = open(durable);
    assert_eq!(store.length(file).unwrap(), end + 10);
}
