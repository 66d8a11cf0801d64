//! Tests repair when the name table has no room. A file that needs another name keeps its blocks and is counted, and
//! gets a name when there is room.

use std::collections::BTreeMap;

use crate::common::repaired::{assert_settled, repair};
use crate::common::{options, read_all};
use crate::forge::{ENTRY_NAME, change, entry_of, settled};
use base::sim::SimDevice;
use flash::{Error, OpenOptions, Store};

const FILES_MAX: u64 = 600;
const NAMES_PER_BUCKET: usize = 12;

/// Returns a store with a name in each place of its table; every file holds its name.
fn full_table() -> (SimDevice, Vec<String>) {
    let mut store = Store::format(SimDevice::new(7000, 1), &options(FILES_MAX)).unwrap();
    let places = store.layout().bucket_count as usize * NAMES_PER_BUCKET;
    let mut names = Vec::new();
    for number in 0.. {
        let name = format!("name-{number}");
        match store.replace(&name, name.as_bytes()) {
            Ok(()) => names.push(name),
            Err(Error::NameTableFull) => {}
            Err(error) => panic!("{error}"),
        }
        if names.len() == places {
            break;
        }
    }
    (settled(store), names)
}

/// Returns the files by their content, which is their original name.
fn by_content(device: &SimDevice) -> BTreeMap<Vec<u8>, String> {
    let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    let found = read_all(&mut store).unwrap();
    found
        .into_iter()
        .map(|(name, bytes)| (bytes, name))
        .collect()
}

/// Requires that after other files are deleted, every file without a name gets one.
fn assert_comes_back(device: SimDevice, names: &[String], context: &str) {
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let mut left: Vec<Vec<u8>> = Vec::new();
    for (number, name) in names.iter().enumerate() {
        if number % 2 == 0 || store.delete(name).is_err() {
            left.push(name.as_bytes().to_vec());
        }
    }
    let (report, device) = repair(store.close().unwrap(), context);
    assert_eq!(report.files_unnamed, 0, "{context}");
    let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    let check = store.check().unwrap();
    assert!(check.is_clean(), "{context}: {:?}", check.problems);
    let found = by_content(&device);
    for bytes in left {
        assert!(
            found.contains_key(&bytes),
            "{context}: {}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn a_file_that_cannot_be_moved_keeps_its_entry_and_its_blocks() {
    let (original, names) = full_table();
    let mut unnamed = 0;
    for name in names.iter().step_by(40) {
        let context = format!("{name} forged");
        let mut device = original.clone();
        let (bucket, entry) = entry_of(&device, name);
        change(&mut device, bucket, |block| {
            block[entry + ENTRY_NAME] = b'/'
        });
        let (report, device) = repair(device, &context);
        assert_settled(&device, &context);
        let found = by_content(&device);
        if report.files_unnamed == 0 {
            assert_eq!(found.len(), names.len(), "{context}");
            continue;
        }
        unnamed += 1;
        assert_eq!(report.files_unnamed, 1, "{context}");
        let is_said = report
            .findings
            .iter()
            .any(|finding| !finding.mended && finding.data_lost);
        assert!(
            is_said && report.data_lost,
            "{context}: {:?}",
            report.findings
        );
        assert_eq!(found.len(), names.len() - 1, "{context}");
        assert_comes_back(device, &names, &context);
    }
    println!("{unnamed} files that could not be moved");
    assert!(unnamed >= 5, "{unnamed}");
}

#[test]
fn files_that_lost_their_names_and_get_none_keep_their_blocks_and_are_counted() {
    let (original, names) = full_table();
    let mut unnamed = 0;
    for name in names.iter().step_by(400) {
        let context = format!("the part of the table with {name}");
        let mut device = original.clone();
        let (bucket, _) = entry_of(&device, name);
        for copy in 0..2 {
            device.poke(bucket + copy, &[0x5a; 4096]);
        }
        let (report, device) = repair(device, &context);
        assert_settled(&device, &context);
        let named = report.lost_files.len() as u64;
        assert_eq!(
            named + report.files_unnamed,
            NAMES_PER_BUCKET as u64,
            "{context}"
        );
        let found = by_content(&device);
        assert_eq!(
            found.len() as u64 + report.files_unnamed,
            names.len() as u64,
            "{context}"
        );
        unnamed += report.files_unnamed;
        assert_comes_back(device, &names, &context);
    }
    println!("{unnamed} files without a name");
    assert!(unnamed >= 5, "{unnamed}");
}
