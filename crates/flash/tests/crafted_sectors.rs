//! Tests unreadable or rotten blocks in the store's own structures. Structures that are stored twice are read from the
//! other place. Damage to the others affects nothing else.

use crate::forge;
use std::collections::BTreeMap;

use crate::common::worn::Worn;
use crate::common::{content, options, read_file};
use crate::forge::{
    ROOT_FRONTIER, SLOT_STATE, STATE_LANE_START, data_end, field, file_id, newest_root, pieces,
    put_run, runs_of, set_free_list, slot_of, small, temporaries,
};
use base::block::DeviceError;
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Part, Store};

/// The usual form of decay is a sector that the device cannot read. The other copy is then read, as if the bytes had
/// been wrong.
#[test]
fn structures_with_two_copies_are_read_despite_a_bad_block() {
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
            let mut worn = Worn::new(device.clone(), bad..bad + 1);
            let result = Store::open(&mut worn, &chosen)
                .and_then(|mut store| Ok((store.stat("a")?, store.stat("b")?)));
            if let Err(error) = result {
                failures.push(format!("block {bad} unreadable: {error}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// If both copies of a bucket cannot be read, its names are damaged, as with wrong bytes; the others can be used.
#[test]
fn a_bucket_that_cannot_be_read_costs_its_names_only() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(64)).unwrap();
    store.replace("a", &[1; 5000]).unwrap();
    // Both copies of the first bucket.
    let mut bad = Worn::new(forge::settled(store), 12..14);
    let mut store = Store::open(&mut bad, &OpenOptions::default()).unwrap();
    let is_of_table = |error: &Error| {
        matches!(
            error,
            Error::Damaged {
                part: Part::Table,
                ..
            }
        )
    };
    let listed = store.list(&mut |_, _| {}).unwrap_err();
    assert!(is_of_table(&listed), "{listed}");
    let (mut made, mut refused) = (0, 0);
    for number in 0..64 {
        match store.create(&format!("n{number}")) {
            Ok(file) => {
                store.close_file(file);
                made += 1;
            }
            Err(error) => {
                assert!(is_of_table(&error), "{error}");
                refused += 1;
            }
        }
    }
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
}

/// The free list is long and holds only chains, whose links cannot be read for some time. Calls that need space fail
/// repeatedly; the store must not change.
#[test]
fn bad_sectors_in_the_free_list_do_not_wreck_the_store() {
    let mut device = small();
    let pieces: Vec<_> = (0..56).map(|number| (240 + 4 * number, 4, 99)).collect();
    set_free_list(&mut device, &pieces, 0);
    let mut bad = Worn::new(device, 240..464);
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
    bad.unreadable.clear();
    let mut store = Store::open(&mut bad, &OpenOptions::default()).unwrap();
    assert_eq!(store.stat("a").unwrap().length_bytes, 5000);
    assert_eq!(store.stat("b").unwrap().length_bytes, 5000);
}

// ---- the first block of a run in a list of freed runs ----

/// Returns a store without never-used blocks, whose free blocks are in lists of runs of deleted files, and the contents
/// of its files.
fn freed_chains(seed: u64) -> (SimDevice, BTreeMap<String, Vec<u8>>) {
    let mut random = Random::new(seed);
    let mut store = Store::format(SimDevice::new(700, seed), &options(20)).unwrap();
    let mut files = BTreeMap::new();
    for number in 0..10 {
        let name = format!("file-{number}");
        store.replace(&name, b"").unwrap();
        files.insert(name, Vec::new());
    }
    // Append in turn, so that the runs are apart, until nothing fits any more.
    'full: loop {
        for (name, bytes) in &mut files {
            let file = store.open_file(name).unwrap();
            let length = random.index(2 * PAYLOAD_BYTES) + 1;
            let data = content(&mut random, length);
            let appended = store.append(file, &data);
            store.close_file(file);
            match appended {
                Ok(()) => bytes.extend(data),
                Err(Error::Full) => break 'full,
                Err(error) => panic!("{error}"),
            }
        }
    }
    for number in 0..6 {
        let name = format!("file-{number}");
        store.delete(&name).unwrap();
        files.remove(&name);
    }
    let device = store.close().unwrap();
    let root = device.peek(newest_root(&device));
    assert_eq!(field(&root, ROOT_FRONTIER, 4), data_end(&device));
    (device, files)
}

/// Appends, deletes and replaces, and checks the roots on the device after each call.
fn use_space(store: &mut Store<&mut Worn>, files: &mut BTreeMap<String, Vec<u8>>, context: &str) {
    let mut random = Random::new(7);
    for round in 0..24 {
        let name = format!("file-{}", 6 + round % 3);
        let data = content(&mut random, 4096 + 3000 * (round % 4));
        match round % 8 {
            3 => {
                store
                    .replace(&name, &data)
                    .unwrap_or_else(|error| panic!("{context}: replace {round}: {error}"));
                files.insert(name, data);
            }
            7 => {
                store
                    .delete(&name)
                    .unwrap_or_else(|error| panic!("{context}: delete {round}: {error}"));
                store.replace(&name, b"").unwrap();
                files.insert(name, Vec::new());
            }
            _ => {
                let file = store.open_file(&name).unwrap();
                store
                    .append(file, &data)
                    .unwrap_or_else(|error| panic!("{context}: append {round}: {error}"));
                store.close_file(file);
                files.get_mut(&name).unwrap().extend(data);
            }
        }
        let left = temporaries(&store.device().inner);
        assert!(left <= 1, "{context}: {left} unfinished replacements");
    }
}

fn compare(store: &mut Store<&mut Worn>, files: &BTreeMap<String, Vec<u8>>, context: &str) {
    for (name, bytes) in files {
        let found =
            read_file(store, name).unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
        assert!(found == *bytes, "{context}: {name}");
    }
}

#[test]
fn one_bad_run_among_the_freed_ones_stops_nothing() {
    let mut chains = 0;
    for seed in 0..2 {
        let (original, files) = freed_chains(seed);
        for (start, _, _) in pieces(&original).into_iter().filter(|piece| piece.2 != 0) {
            chains += 1;
            let start = u64::from(start);
            for rots in [false, true] {
                let context = format!("seed {seed}, run {start}, rots: {rots}");
                let mut device = original.clone();
                let mut files = files.clone();
                if rots {
                    device.inject_bit_rot(start, 999);
                }
                let bad = (!rots).then_some(start);
                let mut worn = Worn::new(device, bad);
                let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
                use_space(&mut store, &mut files, &context);
                compare(&mut store, &files, &context);
                store.close().unwrap();
                let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
                compare(&mut store, &files, &context);
            }
        }
    }
    assert!(chains >= 8, "{chains} lists of runs are free");
}

/// None of the runs can be read for some time: calls that need space fail, calls that free space work.
#[test]
fn bad_runs_stop_only_the_calls_that_need_space() {
    let (original, files) = freed_chains(3);
    let spots: Vec<u64> = pieces(&original)
        .into_iter()
        .filter(|piece| piece.2 != 0)
        .map(|piece| u64::from(piece.0))
        .collect();
    let mut device = original;
    let chains: Vec<_> = pieces(&device)
        .into_iter()
        .filter(|piece| piece.2 != 0)
        .collect();
    set_free_list(&mut device, &chains, 0);
    let mut worn = Worn::new(device, spots);
    let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
    let mut refused = 0;
    for number in 0..4 {
        match store.replace(&format!("new-{number}"), &[1; 60_000]) {
            Err(Error::Device(DeviceError::Io { .. })) => refused += 1,
            other => assert!(matches!(other, Ok(()) | Err(Error::Full)), "{other:?}"),
        }
        assert!(temporaries(&store.device().inner) <= 1);
    }
    assert!(refused > 0, "no bad spot is met");
    store.delete("file-6").unwrap();
    store.rename("file-7", "file-6").unwrap();
    drop(store);
    worn.unreadable.clear();
    let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
    assert!(read_file(&mut store, "file-6").unwrap() == files["file-7"]);
    assert!(read_file(&mut store, "file-8").unwrap() == files["file-8"]);
}

/// The file deleted from a full store has bad blocks itself, where its runs begin.
#[test]
fn a_deleted_file_with_bad_spots_gives_room_at_once() {
    let mut store = Store::format(SimDevice::new(400, 1), &options(4)).unwrap();
    let names = ["victim", "one", "two"];
    let files = names.map(|name| store.create(name).unwrap());
    for round in 0.. {
        let data = vec![round as u8; 5000 + 700 * (round % 5)];
        if store.append(files[round % 3], &data).is_err() {
            break;
        }
    }
    for file in [files[1], files[2]] {
        while store.append(file, &[9; 3000]).is_ok() {}
    }
    assert_eq!(store.statistics().blocks_free, 0);
    let original = store.close().unwrap();
    let victim = file_id(&original, "victim");
    let starts: Vec<u64> = runs_of(&original, victim).into_keys().collect();
    let slot = slot_of(&original, victim) + SLOT_STATE;
    let root = original.peek(newest_root(&original));
    let filled: Vec<u64> = STATE_LANE_START
        .iter()
        .map(|offset| field(&root, slot + offset, 4))
        .filter(|start| *start != 0)
        .collect();
    let mut cases: Vec<Vec<u64>> = starts.iter().map(|start| vec![*start]).collect();
    assert!(
        cases.len() >= 6 && !filled.is_empty(),
        "{starts:?} {filled:?}"
    );
    cases.push(filled);
    for bad in cases {
        let context = format!("{bad:?}");
        let mut worn = Worn::new(original.clone(), bad);
        let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
        let before = read_file(&mut store, "two").unwrap();
        store
            .delete("victim")
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let file = store.open_file("two").unwrap();
        store
            .append(file, &[7; 4096])
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        store.close_file(file);
        assert_eq!(temporaries(&store.device().inner), 0);
        drop(store);
        let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
        let after = read_file(&mut store, "two").unwrap();
        assert!(after == [before, vec![7; 4096]].concat(), "{context}");
    }
}

/// With this many pieces, not even an unfinished replacement can be undone. There must never be more than one, and the
/// store must open again.
#[test]
fn a_replacement_that_cannot_be_undone_is_the_only_one() {
    let mut device = small();
    let chains: Vec<_> = (0..61).map(|number| (240 + 4 * number, 4, 99)).collect();
    set_free_list(&mut device, &chains, 0);
    let root = newest_root(&device);
    forge::change(&mut device, root, |block| {
        forge::set_field(block, forge::ROOT_ANNOUNCED, 4, 0);
    });
    let mut worn = Worn::new(device, 240..484);
    let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
    let mut failures = 0;
    for number in 0..4 {
        failures += u32::from(store.replace("c", &[3; 5000]).is_err());
        if let Ok(file) = store.create(&format!("d{number}")) {
            store.close_file(file);
        }
        let left = temporaries(&store.device().inner);
        assert!(left <= 1, "{left} unfinished replacements");
    }
    assert_eq!(failures, 4);
    assert_eq!(temporaries(&store.device().inner), 1, "it could be undone");
    drop(store);
    worn.unreadable.clear();
    for number in 0..61 {
        put_run(&mut worn.inner, 240 + 4 * number, 99, 0);
    }
    let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
    assert_eq!(store.stat("a").unwrap().length_bytes, 5000);
    store.replace("c", &[3; 5000]).unwrap();
}
