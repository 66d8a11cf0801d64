//! Tests the check and repair of numbers at their ends. A check tells why such a store refuses changes. After a repair
//! it takes as many changes as any other. (The results of calls are tested in `crafted_counters.rs`.)

use crate::common::repaired::assert_settled;
use crate::common::{lend, options, read_all, read_file};
use crate::forge;
use crate::forge::format::Kind;
use crate::forge::{
    DATA_GROUP, ROOT_NEXT_FILE, ROOT_NEXT_GROUP, ROOT_RECORD, change, field, newest_root,
    places_of, seal, set_field, small,
};
use base::error::Code;
use base::sim::{Keep, SimDevice};
use flash::{Error, OpenOptions, Part, RepairReport, Store};

const COUNTER_END: u64 = 1 << 63;
const FILE_END: u64 = 1 << 56;
const CHANGES_END: u64 = COUNTER_END - (1 << 31);
/// Added at each opening.
const STEP: u64 = 1 << 24;
/// More openings than would be possible if a repair limited the numbers too close to the end.
const OPENINGS: usize = 300;

const READ_ONLY: OpenOptions = OpenOptions {
    open_files_max: 4,
    addresses_max: 0,
    read_only: true,
};

fn set_root(device: &mut SimDevice, offset: usize, value: u64) {
    let root = newest_root(device);
    change(device, root, |block| set_field(block, offset, 8, value));
}

fn with_root_field(offset: usize, value: u64) -> SimDevice {
    let mut device = small();
    set_root(&mut device, offset, value);
    device
}

fn check(device: &SimDevice, options: &OpenOptions) -> Vec<String> {
    let mut store = Store::open(device.clone(), options).unwrap();
    let report = store.check().unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

fn repair(device: SimDevice, context: &str) -> (RepairReport, SimDevice) {
    let (report, device) = Store::repair(device, &mut |_| {}).unwrap();
    assert!(!report.is_clean(), "{context}");
    assert!(!report.data_lost, "{context}: {:?}", report.findings);
    (report, device)
}

/// Opens the store repeatedly, after a close or a cut, and changes it each time. No change may be refused, and all of
/// them must stay.
fn live_long(mut device: SimDevice, context: &str) {
    let mut grown = Vec::new();
    for life in 0..OPENINGS {
        let context = format!("{context}, life {life}");
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        let bytes = vec![life as u8; 5000];
        store
            .replace("made anew", &bytes)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let file = store
            .open_file("log")
            .or_else(|_| store.create("log"))
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        store.append(file, &bytes[..100]).unwrap();
        grown.extend_from_slice(&bytes[..100]);
        store.close_file(file);
        assert!(
            read_file(&mut store, "made anew").unwrap() == bytes,
            "{context}"
        );
        assert!(read_file(&mut store, "log").unwrap() == grown, "{context}");
        device = if life % 3 == 0 {
            store.close().unwrap()
        } else {
            store.device().crash_image_random(life as u64)
        };
    }
    let root = device.peek(newest_root(&device));
    for (offset, end) in [
        (ROOT_RECORD, CHANGES_END),
        (ROOT_NEXT_GROUP, CHANGES_END),
        (ROOT_NEXT_FILE, FILE_END),
    ] {
        let left = end.saturating_sub(field(&root, offset, 8)) / STEP;
        assert!(left > 1 << 30, "{context}: {left} openings left");
    }
    let found = check(&device, &READ_ONLY);
    assert!(found.is_empty(), "{context}: {found:?}");
}

/// Fields of the root, the end of their range, the last value from which an opening leaves some numbers, and the word
/// for them.
const ENDS: [(usize, u64, u64, &str); 3] = [
    (ROOT_RECORD, CHANGES_END, CHANGES_END - 5, "numbers"),
    (
        ROOT_NEXT_GROUP,
        CHANGES_END,
        CHANGES_END - STEP - 1,
        "numbers",
    ),
    (
        ROOT_NEXT_FILE,
        FILE_END - 1,
        FILE_END - STEP - 2,
        "identities",
    ),
];

#[test]
fn a_check_says_that_a_store_s_numbers_are_used_up() {
    for (offset, end, left, what) in ENDS {
        for value in [left + 1, end - 1, end, end + (1 << 30)] {
            // If the number is rejected, the previous record is used.
            if offset == ROOT_NEXT_FILE && value >= FILE_END {
                continue;
            }
            let device = with_root_field(offset, value);
            let found = check(&device, &READ_ONLY);
            assert!(
                found.len() == 1 && found[0].contains(what) && found[0].contains("used up"),
                "{offset} {value:#x}: {found:?}"
            );
            assert_eq!(check(&device, &OpenOptions::default()).len(), 1);
        }
        let device = with_root_field(offset, left);
        let found = check(&device, &READ_ONLY);
        assert!(found.is_empty(), "{offset} {left:#x}: {found:?}");
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        store
            .create("one more")
            .unwrap_or_else(|error| panic!("{offset} {left:#x}: {error}"));
    }
}

#[test]
fn a_repaired_store_has_as_many_changes_left_as_any_other() {
    for (offset, end, ..) in ENDS {
        for value in [end - 1, end] {
            let context = format!("{offset} {value:#x}");
            let device = with_root_field(offset, value);
            let model = read_all(&mut Store::open(device.clone(), &READ_ONLY).unwrap()).unwrap();
            let (_, device) = repair(device, &context);
            assert_settled(&device, &context);
            let found = check(&device, &READ_ONLY);
            assert!(found.is_empty(), "{context}: {found:?}");
            let mut store = Store::open(device.clone(), &READ_ONLY).unwrap();
            assert!(read_all(&mut store).unwrap() == model, "{context}");
            live_long(device, &context);
        }
    }
}

fn is_of_records(error: &Error) -> bool {
    matches!(error, Error::Damaged { part, .. } if *part == Part::Record)
}

/// Growing writes records as well, so it is refused.
#[test]
fn a_store_whose_numbers_are_used_up_does_not_grow() {
    for offset in [ROOT_RECORD, ROOT_NEXT_GROUP] {
        for value in [CHANGES_END, COUNTER_END - 1] {
            let context = format!("{offset} {value:#x}");
            let device = with_root_field(offset, value);
            let model = read_all(&mut Store::open(device.clone(), &READ_ONLY).unwrap()).unwrap();
            let mut larger = SimDevice::new(1024, 1);
            (0..512).for_each(|block| larger.poke(block, &device.peek(block)));
            let Err(error) = Store::grow(lend(&mut larger)) else {
                panic!("{context}: it grows");
            };
            assert!(is_of_records(&error), "{context}: {error}");
            assert_eq!(error.code(), Code::Corrupt);
            let mut store = Store::open(larger, &OpenOptions::default()).unwrap();
            assert_eq!(store.layout().block_count, 512, "{context}");
            assert!(read_all(&mut store).unwrap() == model, "{context}");
            let Err(refused) = store.create("new") else {
                panic!("{context}: a new file");
            };
            assert!(is_of_records(&refused), "{context}: {refused}");
            // After a repair it grows.
            let (_, device) = repair(store.close().unwrap(), &context);
            let (report, device) = Store::grow(device).unwrap();
            assert_eq!(report.blocks_after, 1024, "{context}");
            live_long(device, &context);
        }
    }
}

/// With all records damaged, a repair uses the greatest numbers that are found anywhere; these may be forged.
#[test]
fn numbers_found_in_the_table_and_in_torn_records_do_not_use_a_repaired_store_up() {
    for number in [CHANGES_END - 1, COUNTER_END - 1] {
        let context = format!("{number:#x}");
        let mut device = with_root_field(ROOT_NEXT_GROUP, number);
        let (bucket, _) = forge::entry_of(&device, "a");
        change(&mut device, bucket, |block| set_field(block, 16, 8, number));
        let found = check(&device, &READ_ONLY);
        assert!(
            found.iter().any(|text| text.contains("younger")),
            "{found:?}"
        );
        let (report, device) = repair(device, &context);
        assert!(report.root_rebuilt, "{context}");
        assert_settled(&device, &context);
        let found = check(&device, &READ_ONLY);
        assert!(found.is_empty(), "{context}: {found:?}");
        live_long(device, &context);
    }
}

/// The newest record carries a table block that is not in place yet.
#[test]
fn a_repair_of_used_up_numbers_keeps_the_changes_of_the_newest_record() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
    store.replace("early", b"early").unwrap();
    let file = store.create("late").unwrap();
    store.close_file(file);
    let mut device = store.device().crash_image(&|_| Keep::Lost);
    set_root(&mut device, ROOT_RECORD, CHANGES_END);
    let (_, device) = repair(device, "late");
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    assert_eq!(read_file(&mut store, "early").unwrap(), b"early");
    assert_eq!(read_file(&mut store, "late").unwrap(), b"");
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn a_cut_repair_of_used_up_numbers_is_finished_by_the_next_one() {
    let device = with_root_field(ROOT_RECORD, COUNTER_END - 1);
    let model = read_all(&mut Store::open(device.clone(), &READ_ONLY).unwrap()).unwrap();
    let mut cuts = 0;
    for write in 1.. {
        let mut cut = device.clone();
        cut.set_power_cut_after_writes(Some(write));
        if Store::repair(lend(&mut cut), &mut |_| {}).is_ok() {
            break;
        }
        for image in 0..8 {
            let context = format!("write {write} image {image}");
            let image = cut.crash_image_random(write * 100 + image);
            let (_, device) = Store::repair(image, &mut |_| {}).unwrap();
            assert_settled(&device, &context);
            let mut store = Store::open(device, &OpenOptions::default()).unwrap();
            assert!(read_all(&mut store).unwrap() == model, "{context}");
            store.replace("more", &[3; 9000]).unwrap();
            let report = store.check().unwrap();
            assert!(report.is_clean(), "{context}: {:?}", report.problems);
            cuts += 1;
        }
    }
    assert!(cuts > 20, "{cuts}");
}

/// The blocks of a file have numbers that the store has not reached. Recovery would take an older end of the file for a
/// newer one.
#[test]
fn a_file_that_is_ahead_of_its_store_is_named_until_a_copy_replaces_it() {
    let mut device = small();
    let id = forge::file_id(&device, "a");
    let slot = forge::slot_of(&device, id);
    let tail = field(&device.peek(newest_root(&device)), slot + 16, 4);
    let number = COUNTER_END - 1;
    set_root(
        &mut device,
        slot + forge::SLOT_STATE + forge::STATE_GROUP,
        number,
    );
    assert!(places_of(&device, Kind::Data).contains(&tail));
    let mut block = device.peek(tail);
    set_field(&mut block, DATA_GROUP, 8, number);
    seal(&mut block, Kind::Data);
    device.poke(tail, &block);
    let found = check(&device, &READ_ONLY);
    assert!(
        found
            .iter()
            .any(|text| text.starts_with("file \"a\"") && text.contains("not come to")),
        "{found:?}"
    );
    let (report, device) = Store::repair(device, &mut |_| {}).unwrap();
    assert!(
        report.findings.iter().any(|finding| !finding.mended),
        "{report:?}"
    );
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let bytes = read_file(&mut store, "a").unwrap();
    assert!(bytes == [1; 5000]);
    store.replace("a", &bytes).unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    live_long(store.close().unwrap(), "replaced");
}
