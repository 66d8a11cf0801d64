//! Tests numbers that grow over a store's life, at their ends. Only a forged image reaches them. The store must neither
//! accept such an image nor write it once and then not open any more.

use crate::common::{options, read_file};
use crate::forge;
use crate::forge::format::Kind;
use crate::forge::{
    DATA_GROUP, ROOT_NEXT_FILE, ROOT_NEXT_GROUP, ROOT_RECORD, SLOT_STATE, STATE_GROUP, change,
    field, newest_root, places_of, seal, set_field, slot_of, small,
};
use base::error::Code;
use base::sim::SimDevice;
use flash::{Error, OpenOptions, Store};

/// Upper limits of the numbers of records and groups, and of the identities of files (SPEC.md).
const COUNTER_END: u64 = 1 << 63;
const FILE_END: u64 = 1 << 56;
/// From this number on, a store refuses changes.
const CHANGES_END: u64 = COUNTER_END - (1 << 31);
/// Added at each opening.
const STEP: u64 = 1 << 24;

/// Returns values around a limit, and around the values one or two openings before it.
fn around(limit: u64) -> Vec<u64> {
    let mut values: Vec<u64> = [1, 2, 3, 4, 5, 6, 7, STEP, STEP + 1, 2 * STEP + 3]
        .iter()
        .flat_map(|distance| [limit - distance, limit + distance - 1])
        .collect();
    values.sort_unstable();
    values
}

/// Opens the store repeatedly and changes it each time. Acknowledged data must stay, and refusals must give the reason.
/// Returns the number of changes made.
fn live(mut device: SimDevice, context: &str) -> usize {
    let mut done = 0;
    let mut acknowledged: Vec<(String, Vec<u8>)> = Vec::new();
    for life in 0..6 {
        let mut store = Store::open(device, &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{context}, life {life}: {error}"));
        for (name, bytes) in &acknowledged {
            let found = read_file(&mut store, name)
                .unwrap_or_else(|error| panic!("{context}, life {life}: {name}: {error}"));
            assert!(found == *bytes, "{context}, life {life}: {name}");
        }
        assert!(
            read_file(&mut store, "a").unwrap() == [1; 5000],
            "{context}"
        );
        let refused = std::cell::Cell::new(false);
        let accept = |result: Result<(), Error>| match result {
            Ok(()) => true,
            Err(error) => {
                refused.set(true);
                assert!(matches!(error, Error::Damaged { .. }), "{context}: {error}");
                assert_eq!(error.code(), Code::Corrupt);
                false
            }
        };
        let name = format!("made-{life}");
        let bytes = vec![life as u8; 9000];
        if accept(store.replace(&name, &bytes)) {
            acknowledged.push((name, bytes));
            done += 1;
        }
        let name = format!("grown-{life}");
        let created = store.create(&name);
        if let Ok(file) = created {
            acknowledged.push((name.clone(), Vec::new()));
            for piece in [100, 5000] {
                let bytes = vec![life as u8 + 1; piece];
                if accept(store.append(file, &bytes)) {
                    acknowledged.last_mut().unwrap().1.extend(bytes);
                    done += 1;
                }
            }
            store.close_file(file);
        } else {
            accept(created.map(|_| ()));
        }
        accept(store.replace("empty", b""));
        let file = store.open_file("b").unwrap();
        accept(store.append(file, b"more"));
        accept(store.write_at(file, 10, b"inside"));
        accept(store.truncate(file, 4999));
        store.sync().unwrap();
        accept(store.rename("b", "c"));
        accept(store.rename("c", "b"));
        let report = store.check().unwrap();
        let is_said = |what: &str| {
            let mut texts = report.problems.iter();
            texts.any(|problem| problem.text.contains(what))
        };
        // Nothing is wrong except numbers at their ends, and the check explains each refusal.
        let ends = ["numbers for", "identities for", "not come to"];
        let said = ends.iter().filter(|what| is_said(what)).count();
        assert!(
            report.problems_total == said as u64,
            "{context}: {:?}",
            report.problems
        );
        assert!(!refused.get() || is_said("used up"), "{context}: not said");
        device = if life % 2 == 0 {
            store.close().unwrap()
        } else {
            store.device().crash_image(&|_| base::sim::Keep::Whole)
        };
    }
    done
}

fn with_root_field(offset: usize, value: u64) -> SimDevice {
    let mut device = small();
    let root = newest_root(&device);
    change(&mut device, root, |block| {
        set_field(block, offset, 8, value);
    });
    device
}

#[test]
fn a_store_whose_numbers_are_nearly_used_up_opens_every_time() {
    for (offset, name) in [(ROOT_RECORD, "record"), (ROOT_NEXT_GROUP, "group")] {
        for limit in [CHANGES_END, COUNTER_END] {
            for value in around(limit) {
                let done = live(
                    with_root_field(offset, value),
                    &format!("next {name} {value:#x}"),
                );
                // If the number is rejected, the previous record is used, which is an ordinary one.
                let is_believed = value < COUNTER_END;
                if value >= CHANGES_END && is_believed {
                    assert_eq!(done, 0, "{name} {value:#x}: changed");
                } else if !is_believed || value < CHANGES_END - 2 * STEP {
                    assert!(done > 0, "{name} {value:#x}: not changed");
                }
            }
        }
    }
}

#[test]
fn a_store_whose_identities_are_nearly_used_up_opens_every_time() {
    for value in around(FILE_END) {
        let done = live(
            with_root_field(ROOT_NEXT_FILE, value),
            &format!("next file {value:#x}"),
        );
        assert_eq!(
            done > 0,
            !(FILE_END - STEP - 1..FILE_END).contains(&value),
            "{value:#x}: {done}"
        );
    }
}

/// The number is in the last block of a file, and in the state that leads to it.
#[test]
fn a_file_whose_last_group_has_the_last_number_does_not_end_the_store() {
    for value in [
        CHANGES_END - 1,
        CHANGES_END,
        COUNTER_END - STEP,
        COUNTER_END - 1,
    ] {
        let mut device = small();
        let root = newest_root(&device);
        let id = {
            let (place, offset) = forge::entry_of(&device, "a");
            let entry = device.peek(place);
            field(&entry, offset + forge::ENTRY_STATE, 8)
        };
        let slot = slot_of(&device, id);
        let tail = field(&device.peek(root), slot + SLOT_STATE + 8, 4);
        change(&mut device, root, |block| {
            set_field(block, slot + SLOT_STATE + STATE_GROUP, 8, value);
        });
        let mut block = device.peek(tail);
        set_field(&mut block, DATA_GROUP, 8, value);
        seal(&mut block, Kind::Data);
        device.poke(tail, &block);
        let done = live(device, &format!("last group {value:#x}"));
        assert!(done > 0, "{value:#x}");
    }
}

/// A group with the last number is at a place where recovery looks for appends that the record does not know.
#[test]
fn a_found_group_with_the_last_number_does_not_end_the_store() {
    for value in [
        CHANGES_END - STEP - 1,
        CHANGES_END - 1,
        COUNTER_END - STEP,
        COUNTER_END - 1,
    ] {
        let mut store = Store::open(small(), &OpenOptions::default()).unwrap();
        let file = store.open_file("b").unwrap();
        store.append(file, &[2; 100]).unwrap();
        let mut device = store.device().crash_image(&|_| base::sim::Keep::Whole);
        let newest = places_of(&device, Kind::Data)
            .into_iter()
            .max_by_key(|place| field(&device.peek(*place), DATA_GROUP, 8))
            .unwrap();
        let number = field(&device.peek(newest), DATA_GROUP, 8);
        for place in places_of(&device, Kind::Data) {
            let mut block = device.peek(place);
            if field(&block, DATA_GROUP, 8) == number {
                set_field(&mut block, DATA_GROUP, 8, value);
                seal(&mut block, Kind::Data);
                device.poke(place, &block);
            }
        }
        live(device, &format!("found group {value:#x}"));
    }
}

#[test]
fn the_limits_are_far_above_an_ordinary_life() {
    let device = Store::format(SimDevice::new(512, 1), &options(4))
        .unwrap()
        .close()
        .unwrap();
    let root = device.peek(newest_root(&device));
    assert!(field(&root, ROOT_NEXT_GROUP, 8) < 3 * STEP);
    assert!(field(&root, ROOT_NEXT_FILE, 8) < 3 * STEP);
    assert!(field(&root, ROOT_RECORD, 8) < 100);
}
