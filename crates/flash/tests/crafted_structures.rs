//! Tests one forged structure at a time: whether the store accepts it, and what it does to the others.

use crate::forge;
use std::collections::BTreeMap;

use crate::common::{content, lend, options, read_file};
use crate::forge::format::{Block, Kind};
use crate::forge::{
    BUCKET_ENTRIES, DATA_BEFORE_START, DATA_BEFORE_USED, DATA_LANE, DATA_RUN_BLOCKS,
    DATA_RUN_START, ENTRY_NAME, ENTRY_STATE, Limited, Piece, ROOT_ANNOUNCED, ROOT_FRONTIER,
    ROOT_SLOTS, SLOT_BYTES, SLOT_STATE, STATE_CLOSED_BLOCKS, STATE_FILE, STATE_LANE_BLOCKS,
    STATE_LANE_START, change, data_end, entry_of, exercise, field, file_id, newest_root, put_list,
    put_run, runs_of, seal, set_field, set_free_list, settled, slot_of, small,
};
use base::block::{BLOCK_BYTES, BlockDevice};
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Store};

#[test]
fn a_check_walks_each_circle_once() {
    let mut device = small();
    put_run(&mut device, 400, 99, 404);
    put_run(&mut device, 404, 99, 400);
    put_list(&mut device, 408, 408, &[(400, 4, 99); 36]);
    set_free_list(&mut device, &[(400, 4, 99); 50], 408);
    let blocks = device.geometry().block_count;
    let mut worn = Limited::new(device, 20 * blocks);
    let mut store = Store::open(lend(&mut worn), &OpenOptions::default()).unwrap();
    let report = store.check().unwrap();
    assert!(!report.is_clean());
    assert_eq!(report.files, 2);
}

#[test]
fn a_root_with_the_most_pieces_blocks_no_call() {
    let mut device = small();
    put_run(&mut device, 400, 99, 404);
    put_run(&mut device, 404, 99, 408);
    set_free_list(&mut device, &[(400, 4, 99); 63], 0);
    exercise(device, &mut Random::new(1));
}

// ---- blocks with two owners ----

/// Number of files, more than the root has slots: only the table knows the first ones.
const CROWD: usize = 40;

fn crowded() -> SimDevice {
    let mut store = Store::format(SimDevice::new(900, 1), &options(60)).unwrap();
    for number in 0..CROWD {
        let file = store.create(&format!("old-{number}")).unwrap();
        for piece in 0..3 {
            store
                .append(file, &[number as u8 + 1; 2000 + 500 * 3][piece..])
                .unwrap();
        }
        store.close_file(file);
    }
    settled(store)
}

/// Writes files until nothing fits any more, with calls that spill and take back lists, and reads everything back. All
/// acknowledged data, old or new, must be there, regardless of what the root lists as free.
fn fill_and_compare(device: SimDevice, context: &str) {
    let mut worn = Limited::new(device.clone(), 400 * device.geometry().block_count);
    let mut store = Store::open(lend(&mut worn), &OpenOptions::default()).unwrap();
    let mut files = BTreeMap::new();
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    for name in names {
        let bytes = read_file(&mut store, &name).unwrap();
        files.insert(name, bytes);
    }
    let mut random = Random::new(9);
    let mut failures = 0;
    for number in 0..90 {
        let name = format!("new-{number}");
        let length = random.index(12 * PAYLOAD_BYTES) + 1;
        let data = content(&mut random, length);
        match store.replace(&name, &data) {
            Ok(()) => {
                files.insert(name, data);
            }
            Err(_) => failures += 1,
        }
    }
    assert!(failures > 0, "{context}: the store is not full");
    for _ in 0..2 {
        for (name, bytes) in &files {
            let found = read_file(&mut store, name)
                .unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
            assert!(found == *bytes, "{context}: {name} has other bytes");
        }
        drop(store);
        store = Store::open(lend(&mut worn), &OpenOptions::default()).unwrap();
    }
}

/// Returns the start of the run that a file in a slot is filling, in lane 0 or else in lane 1.
fn run_of_slot(device: &SimDevice, slot: usize) -> u32 {
    let root = device.peek(newest_root(device));
    let state = slot + SLOT_STATE;
    let lane = usize::from(root[state + STATE_LANE_BLOCKS[0]] == 0);
    field(&root, state + STATE_LANE_START[lane], 4) as u32
}

fn set_root(device: &mut SimDevice, offset: usize, bytes: usize, value: u64) {
    let root = newest_root(device);
    change(device, root, |block| set_field(block, offset, bytes, value));
}

#[test]
fn blocks_that_are_free_twice_are_handed_out_once() {
    let cases: [(&str, &[Piece]); 5] = [
        (
            "the same piece twice",
            &[(240, 16, 0), (240, 16, 0), (300, 64, 0)],
        ),
        (
            "pieces that overlap",
            &[(240, 64, 0), (252, 8, 0), (300, 64, 0)],
        ),
        (
            "a piece within a larger one",
            &[(252, 8, 0), (240, 64, 0), (320, 64, 0)],
        ),
        (
            "a chain over a piece",
            &[(400, 4, 99), (400, 16, 0), (320, 64, 0)],
        ),
        (
            "chains that go in a circle",
            &[(400, 4, 99), (404, 4, 99), (320, 16, 0)],
        ),
    ];
    for (context, pieces) in cases {
        let mut device = small();
        put_run(&mut device, 400, 99, 404);
        put_run(&mut device, 404, 99, 400);
        set_free_list(&mut device, pieces, 0);
        fill_and_compare(device, context);
    }
    // The piece reaches into the never-used blocks.
    let mut device = small();
    set_free_list(&mut device, &[(240, 64, 0)], 0);
    set_root(&mut device, ROOT_FRONTIER, 4, 280);
    fill_and_compare(device, "a piece beyond the frontier");
    // The spilled list of free pieces is itself listed as free.
    let mut device = small();
    put_list(&mut device, 408, 0, &[(408, 4, 0), (320, 16, 0)]);
    set_free_list(&mut device, &[(240, 4, 0)], 408);
    fill_and_compare(device, "a list that lists itself");
    // Lists in a circle: the store takes back as many as the root counts.
    let mut device = small();
    let pieces: Vec<Piece> = (0..8).map(|number| (240 + 8 * number, 4, 0)).collect();
    put_list(&mut device, 408, 412, &pieces);
    put_list(&mut device, 412, 408, &[(320, 4, 0), (328, 4, 0)]);
    set_free_list(&mut device, &[(340, 4, 0)], 408);
    fill_and_compare(device, "lists that go in a circle");
}

#[test]
fn blocks_of_a_file_that_are_listed_as_free_are_not_handed_out() {
    // For a file in a slot the root detects this if the blocks are a piece, announced for a list, or never used.
    let device = small();
    let slot = slot_of(&device, file_id(&device, "a"));
    let run = run_of_slot(&device, slot);
    let mut forged = device.clone();
    set_free_list(&mut forged, &[(run, 4, 0), (300, 64, 0)], 0);
    fill_and_compare(forged, "a piece of a file's run");
    let mut forged = device.clone();
    set_root(&mut forged, ROOT_FRONTIER, 4, u64::from(run));
    fill_and_compare(forged, "a frontier below a file's run");
    let mut forged = device.clone();
    let pieces: Vec<Piece> = (0..50).map(|number| (100 + 8 * number, 4, 0)).collect();
    set_free_list(&mut forged, &pieces, 0);
    set_root(&mut forged, ROOT_ANNOUNCED, 4, u64::from(run));
    fill_and_compare(forged, "a file's run announced for the next list");
    // For another file its blocks tell this, when they are unlinked from a list of runs.
    let device = crowded();
    let (place, offset) = entry_of(&device, "old-3");
    let state = offset + ENTRY_STATE;
    let entry = device.peek(place);
    let lane = usize::from(entry[state + STATE_LANE_BLOCKS[0]] == 0);
    let run = field(&entry, state + STATE_LANE_START[lane], 4) as u32;
    let mut forged = device;
    set_free_list(&mut forged, &[(run, 4, 9999), (800, 16, 0)], 0);
    fill_and_compare(forged, "a list of runs that begins in a file");
}

/// Appends to `name` on an image that gives its file blocks of another file. All previous data must still be there.
fn append_and_compare(device: SimDevice, name: &str, context: &str) {
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let mut before = BTreeMap::new();
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    for other in names {
        before.insert(other.clone(), read_file(&mut store, &other).unwrap());
    }
    let file = store.open_file(name).unwrap();
    for length in [100, 5000, 3000] {
        let refused = store.append(file, &vec![0x55; length]);
        assert!(
            matches!(refused, Err(Error::Damaged { .. })),
            "{context}: {refused:?}"
        );
    }
    for (other, bytes) in &before {
        assert!(
            read_file(&mut store, other).unwrap() == *bytes,
            "{context}: {other}"
        );
    }
    assert!(!store.check().unwrap().is_clean(), "{context}: check");
    // Other files can still be written, and deleting the file must not free the blocks of another one.
    store.replace("other", &[3; 9000]).unwrap();
    store.delete(name).unwrap();
    let mut number = 0;
    while store
        .replace(&format!("new-{number}"), &[4; 30_000])
        .is_ok()
    {
        number += 1;
    }
    assert!(number > 5, "{context}: {number} files");
    before.remove(name);
    for (other, bytes) in &before {
        let found = read_file(&mut store, other)
            .unwrap_or_else(|error| panic!("{context}, afterwards: {other}: {error}"));
        assert!(found == *bytes, "{context}, afterwards: {other}");
    }
}

#[test]
fn a_file_that_is_given_blocks_of_another_is_not_appended_to() {
    let device = small();
    let (slot_a, slot_b) = (
        slot_of(&device, file_id(&device, "a")),
        slot_of(&device, file_id(&device, "b")),
    );
    let run_b = run_of_slot(&device, slot_b);
    let root = newest_root(&device);
    let state = slot_a + SLOT_STATE;
    // Find the lane that does not hold the last block: an append would go there.
    let filled = device.peek(root);
    let other = (0..2)
        .find(|lane| {
            let start = field(&filled, state + STATE_LANE_START[*lane], 4);
            let tail = field(&filled, state + 8, 4);
            let blocks = u64::from(filled[state + STATE_LANE_BLOCKS[*lane]]);
            tail < start || tail >= start + blocks
        })
        .unwrap();
    let own = field(&filled, state + STATE_LANE_START[1 - other], 4);
    for (start, context) in [
        (u64::from(run_b), "the run of another file"),
        (own, "its own other run"),
        (data_end(&device) - 4, "blocks that were never used"),
    ] {
        let mut forged = device.clone();
        change(&mut forged, root, |block| {
            block[state + STATE_LANE_BLOCKS[other]] = 4;
            block[state + STATE_LANE_BLOCKS[other] + 1] = 0;
            set_field(block, state + STATE_LANE_START[other], 4, start);
        });
        append_and_compare(forged, "a", context);
    }
    // The same in the table, with the state of a file that has no slot: the run of an active file.
    let device = crowded();
    let slot = slot_of(&device, file_id(&device, &format!("old-{}", CROWD - 1)));
    let run = run_of_slot(&device, slot);
    let (place, offset) = entry_of(&device, "old-3");
    let state = offset + ENTRY_STATE;
    for lane in 0..2 {
        let mut forged = device.clone();
        change(&mut forged, place, |block| {
            block[state + STATE_LANE_BLOCKS[lane]] = 4;
            block[state + STATE_LANE_BLOCKS[lane] + 1] = 0;
            set_field(block, state + STATE_LANE_START[lane], 4, u64::from(run));
        });
        append_and_compare(forged, "old-3", "an active file's run");
    }
}

/// The cluster announced for the next list holds a root of a longer record than the cluster has room for.
#[test]
fn a_long_record_in_the_announced_cluster_is_passed_over() {
    let original = small();
    let root = original.peek(newest_root(&original));
    let announced = field(&root, ROOT_ANNOUNCED, 4);
    for number in [0, 1] {
        let mut device = original.clone();
        let mut long = root;
        long[25] = 3;
        for image in 0..3 {
            set_field(&mut long, 80 + 8 * image, 4, forge::TABLE_FIRST);
        }
        set_field(
            &mut long,
            forge::ROOT_RECORD,
            8,
            field(&root, forge::ROOT_RECORD, 8) + number,
        );
        seal(&mut long, Kind::Root);
        (announced..announced + 4).for_each(|place| device.poke(place, &long));
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert!(read_file(&mut store, "a").unwrap() == [1; 5000]);
    }
}

// ---- the table ----

#[test]
fn two_entries_with_one_identity_do_not_change_each_other() {
    let mut device = small();
    let id = file_id(&device, "a");
    let (place, offset) = entry_of(&device, "b");
    change(&mut device, place, |block| {
        set_field(block, offset + ENTRY_STATE + STATE_FILE, 8, id);
    });
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    for kept_open in [false, true] {
        let other = kept_open.then(|| store.open_file("a").unwrap());
        let file = store.open_file("b").unwrap();
        let damaged = |result: Result<(), Error>| {
            assert!(
                matches!(result, Err(Error::Damaged { .. })),
                "{kept_open}: {result:?}"
            );
        };
        damaged(store.append(file, b"more"));
        damaged(store.write_at(file, 10, b"inside"));
        damaged(store.write_pieces_nosync(file, &[(10, b"inside")]));
        damaged(store.truncate(file, 10));
        damaged(store.delete("b"));
        damaged(store.replace("b", b"new"));
        damaged(store.rename("b", "c"));
        damaged(store.rename("a", "b"));
        store.close_file(file);
        other.into_iter().for_each(|file| store.close_file(file));
        assert!(read_file(&mut store, "a").unwrap() == [1; 5000]);
    }
    assert!(!store.check().unwrap().is_clean());
    let file = store.open_file("a").unwrap();
    store.append(file, b"more").unwrap();
    store.close_file(file);
    assert_eq!(store.stat("a").unwrap().length_bytes, 5004);
}

#[test]
fn entries_with_names_that_no_file_can_have_are_not_listed() {
    let original = small();
    let (place, offset) = entry_of(&original, "b");
    let names: [&[u8]; 8] = [
        b"",
        b".",
        b"..",
        b"../../etc/passwd",
        b"b\0",
        b"\xff\xfe",
        b"b\xc3",
        &[b'/'; 255],
    ];
    for name in names {
        for length in [name.len(), 255] {
            let mut device = original.clone();
            change(&mut device, place, |block| {
                block[offset + 1] = length as u8;
                block[offset + ENTRY_NAME..offset + ENTRY_NAME + name.len()].copy_from_slice(name);
            });
            let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
            let mut listed = Vec::new();
            store
                .list(&mut |name, _| listed.push(name.to_owned()))
                .unwrap();
            assert_eq!(listed, ["a"], "{name:?}");
            assert!(matches!(store.stat("b"), Err(Error::NotFound)), "{name:?}");
            assert!(read_file(&mut store, "a").unwrap() == [1; 5000]);
            exercise(device, &mut Random::new(length as u64));
        }
    }
}

#[test]
fn a_wrong_count_of_full_runs_is_named_and_frees_no_more_than_there_is() {
    let original = crowded();
    let slot = slot_of(&original, file_id(&original, "old-39")) + SLOT_STATE;
    let (bucket, entry) = entry_of(&original, "old-3");
    let targets = [
        ("old-39", newest_root(&original), slot),
        ("old-3", bucket, entry + ENTRY_STATE),
    ];
    for (name, place, state) in targets {
        let offset = state + STATE_CLOSED_BLOCKS;
        let right = field(&original.peek(place), offset, 4);
        for wrong in [0, 1, 4, right + 4, 896, u64::from(u32::MAX)] {
            if wrong == right {
                continue;
            }
            let mut device = original.clone();
            change(&mut device, place, |block| {
                set_field(block, offset, 4, wrong)
            });
            let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
            assert!(!store.check().unwrap().is_clean(), "{name}: {wrong}");
            let file = store.open_file(name).unwrap();
            store.truncate(file, 4000).unwrap();
            store.delete(name).unwrap();
            let statistics = store.statistics();
            assert!(statistics.blocks_free <= statistics.blocks_total);
            exercise(device, &mut Random::new(wrong));
        }
    }
}

// ---- lists of runs ----

/// Returns a store with two files that have grown in turn: each lane has a list of runs.
fn many_runs() -> SimDevice {
    let mut store = Store::format(SimDevice::new(900, 1), &options(8)).unwrap();
    let files = ["a", "b"].map(|name| store.create(name).unwrap());
    for round in 0..60 {
        for file in files {
            store
                .append(file, &vec![round as u8 + 1; 9000 + 500 * (round % 7)])
                .unwrap();
        }
    }
    settled(store)
}

/// Changes the link in all blocks of a run; then the file is truncated at many places, grows, and is deleted.
#[test]
fn forged_lists_of_runs_lead_nowhere() {
    let original = many_runs();
    let runs = runs_of(&original, file_id(&original, "a"));
    let starts: Vec<u64> = runs.keys().copied().collect();
    assert!(starts.len() >= 8, "{starts:?}");
    let chosen = [0, 1, starts.len() / 2, starts.len() - 2, starts.len() - 1];
    let mut random = Random::new(5);
    for number in chosen {
        let start = starts[number];
        let mut values: Vec<(usize, usize, u64)> = Vec::new();
        // The run itself, a younger run, the youngest, a block inside the run, the edges of the data.
        for before in [
            start,
            starts[(number + 2) % starts.len()],
            starts[starts.len() - 1],
            start + 1,
            4,
            data_end(&original) - 4,
            u64::from(u32::MAX) - 3,
        ] {
            values.push((DATA_BEFORE_START, 4, before));
        }
        for blocks in [0, 1, 3, 5, 60, 63, 64, 65, 255] {
            values.push((DATA_RUN_BLOCKS, 1, blocks));
            values.push((DATA_BEFORE_USED, 1, blocks));
        }
        for run_start in [start - 4, start + 1, start + 4] {
            values.push((DATA_RUN_START, 4, run_start));
        }
        for lane in [0, 1, 2, 255] {
            values.push((DATA_LANE, 1, lane));
        }
        for (offset, bytes, value) in values {
            let mut device = original.clone();
            for place in &runs[&start] {
                let mut block: Block = device.peek(*place);
                set_field(&mut block, offset, bytes, value);
                seal(&mut block, Kind::Data);
                device.poke(*place, &block);
            }
            let context = format!("run {start}, field {offset}: {value}");
            cut_off_and_delete(device, &mut random, &context);
        }
    }
}

fn cut_off_and_delete(device: SimDevice, random: &mut Random, context: &str) {
    let reads_max = 100 * device.geometry().block_count;
    let mut worn = Limited::new(device, reads_max);
    let mut store = Store::open(lend(&mut worn), &OpenOptions::default()).unwrap();
    let other = read_file(&mut store, "b").unwrap();
    let file = store.open_file("a").unwrap();
    for part in (1..8).rev() {
        let length = store.length(file).unwrap();
        let _ = store.truncate(file, length * part / 8);
        let _ = store.append(file, &content(random, 3000));
    }
    let _ = store.truncate(file, 1);
    let _ = store.delete("a");
    let _ = store.check().unwrap();
    for number in 0..12 {
        let _ = store.replace(&format!("new-{number}"), &[1; 100_000]);
    }
    // A list that leads into another file must not take its blocks.
    assert!(read_file(&mut store, "b").unwrap() == other, "{context}");
    drop(store.close());
    Store::open(lend(&mut worn), &OpenOptions::default()).unwrap();
}

#[test]
fn spilled_lists_that_lead_nowhere_are_given_up() {
    let pieces: Vec<Piece> = (0..36).map(|number| (200 + 4 * number, 4, 0)).collect();
    let next_of = [408_u32, 412, 409, 4, 500, u32::MAX, u32::MAX - 3];
    for next in next_of {
        for lists in [0, 1, 2, 3, 1000, u64::from(u32::MAX)] {
            let mut device = small();
            put_list(&mut device, 408, next, &pieces);
            put_list(&mut device, 412, 408, &pieces);
            set_free_list(&mut device, &[(400, 4, 0)], 408);
            set_root(&mut device, forge::ROOT_LISTS, 4, lists);
            exercise(device, &mut Random::new(u64::from(next)));
        }
    }
    // More pieces than a list can hold.
    for count in [37, 254, u64::from(u32::MAX)] {
        let mut device = small();
        put_list(&mut device, 408, 0, &pieces);
        let mut block = device.peek(410);
        set_field(&mut block, 16, 4, count);
        seal(&mut block, Kind::SpilledList);
        device.poke(410, &block);
        set_free_list(&mut device, &[], 408);
        exercise(device, &mut Random::new(count));
    }
}

/// The root has two slots of one file, or a file's slot is also that of an unfinished replacement.
#[test]
fn a_root_with_two_slots_of_one_file_is_not_believed() {
    let original = small();
    let root = newest_root(&original);
    let slots: Vec<usize> = (ROOT_SLOTS..)
        .step_by(SLOT_BYTES)
        .take(32)
        .filter(|slot| field(&original.peek(root), *slot, 2) == 1)
        .collect();
    for kind in [1, 2] {
        let mut device = original.clone();
        change(&mut device, root, |block| {
            let free = slots[slots.len() - 1] + SLOT_BYTES;
            block.copy_within(slots[0]..slots[0] + SLOT_BYTES, free);
            set_field(block, free, 2, kind);
        });
        // The previous record is used, which is the same in other respects.
        let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
        assert!(read_file(&mut store, "a").unwrap() == [1; 5000]);
        assert_eq!(store.recovery().replacements_undone, 0);
        exercise(device, &mut Random::new(kind));
    }
}

const _: () = assert!(BUCKET_ENTRIES + 12 * forge::ENTRY_BYTES <= BLOCK_BYTES);
