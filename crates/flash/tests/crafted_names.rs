//! Tests names in the table that no store gives a file. A check must report them, because nothing else tells why such a
//! file is not listed; a repair must give the file a valid name.

use crate::common::{options, read_all};
use crate::forge::format::{Block, Kind};
use crate::forge::{change, places_of, settled};
use base::block::BLOCK_BYTES;
use base::sim::SimDevice;
use flash::{FormatOptions, OpenOptions, Store};

const READ_ONLY: OpenOptions = OpenOptions {
    open_files_max: 4,
    addresses_max: 0,
    read_only: true,
};
const FILES: usize = 60;
/// Offsets in an entry: the length of the name, and the name.
const NAME_BYTES: usize = 1;
const NAME: usize = 68;

/// Returns a store with many files with names of `name_bytes_max` bytes; each file holds its name.
fn sample(name_bytes_max: u16) -> SimDevice {
    let options = FormatOptions {
        name_bytes_max,
        ..options(60)
    };
    let mut store = Store::format(SimDevice::new(1024, 1), &options).unwrap();
    for number in 0..FILES {
        let name = format!("{number:0width$}", width = usize::from(name_bytes_max));
        store.replace(&name, name.as_bytes()).unwrap();
    }
    settled(store)
}

/// Returns every used entry: its block of the table, and its offset there.
fn entries(device: &SimDevice, name_bytes_max: u16) -> Vec<(u64, usize)> {
    let entry_bytes = (NAME + usize::from(name_bytes_max)).next_multiple_of(8);
    let firsts = places_of(device, Kind::Bucket).into_iter().step_by(2);
    firsts
        .flat_map(|place| {
            let block = device.peek(place);
            (32..=BLOCK_BYTES - entry_bytes)
                .step_by(entry_bytes)
                .filter(move |offset| block[*offset] == 1)
                .map(move |offset| (place, offset))
        })
        .collect()
}

/// Returns the problems that a check of the image reports, one line for each.
fn problems(device: &SimDevice) -> Vec<String> {
    let mut store = Store::open(device.clone(), &READ_ONLY).unwrap();
    let report = store.check().unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

/// Returns images with one entry changed by `forge`, without those in which the entry is also in the wrong place.
fn forged(name_bytes_max: u16, forge: &dyn Fn(&mut Block, usize)) -> Vec<SimDevice> {
    let device = sample(name_bytes_max);
    let all = entries(&device, name_bytes_max).into_iter();
    let changed = all.map(|(place, offset)| {
        let mut device = device.clone();
        change(&mut device, place, |block| forge(block, offset));
        device
    });
    let is_in_place = |device: &SimDevice| {
        let found = problems(device);
        found.iter().all(|text| !text.contains("wrong place"))
    };
    changed.filter(is_in_place).collect()
}

fn rename(block: &mut Block, offset: usize, name: &[u8]) {
    block[offset + NAME_BYTES] = name.len() as u8;
    block[offset + NAME..offset + NAME + name.len()].copy_from_slice(name);
}

/// Requires that after a repair every file is there again, the changed one under a new name.
fn assert_repaired(device: SimDevice, context: &str) {
    let (report, device) = Store::repair(device, &mut |_| {}).unwrap();
    assert!(!report.is_clean(), "{context}");
    assert_eq!(problems(&device), Vec::<String>::new(), "{context}");
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let found = read_all(&mut store).unwrap();
    assert_eq!(found.len(), FILES, "{context}");
    let is_lost = |(name, bytes): &(&String, &Vec<u8>)| name.as_bytes() != bytes.as_slice();
    let lost: Vec<_> = found.iter().filter(is_lost).collect();
    assert!(
        lost.len() == 1 && lost[0].0.starts_with("lost-"),
        "{context}: {lost:?}"
    );
}

#[test]
fn a_check_reports_invalid_file_names() {
    let cases: [(&[u8], &str); 6] = [
        (b"", "it is empty"),
        (b".", "are not names"),
        (b"..", "are not names"),
        (b"a/b", "a slash or a NUL"),
        (b"/", "a slash or a NUL"),
        (b"a\0", "a slash or a NUL"),
    ];
    for (name, reason) in cases {
        let context = format!("{:?}", name.escape_ascii().to_string());
        let images = forged(255, &|block, offset| rename(block, offset, name));
        assert!(
            !images.is_empty(),
            "{context}: no image has it in its place"
        );
        for device in images {
            let found = problems(&device);
            assert!(
                found.len() == 1 && found[0].contains("no file can be called this"),
                "{context}: {found:?}"
            );
            assert!(found[0].contains(reason), "{context}: {found:?}");
            assert_repaired(device, &context);
        }
    }
}

/// The bytes that follow are not part of the name: they may belong to another entry.
#[test]
fn a_name_that_is_longer_than_the_store_s_names_may_be_is_none() {
    for longer in [1, 4, 200] {
        let images = forged(20, &|block, offset| block[offset + NAME_BYTES] += longer);
        assert_eq!(images.len(), FILES, "{longer} longer");
        for device in images {
            let found = problems(&device);
            let is_named = |text: &String| text.contains("makes no sense");
            assert!(found.iter().any(is_named), "{longer} longer: {found:?}");
            assert_repaired(device, &format!("{longer} longer"));
        }
    }
}

#[test]
fn a_name_that_is_no_utf_8_is_none() {
    let images = forged(255, &|block, offset| rename(block, offset, b"\xff\xfe"));
    assert_eq!(images.len(), FILES);
    for device in images {
        let found = problems(&device);
        let is_named = |text: &String| text.contains("makes no sense");
        assert!(found.iter().any(is_named), "{found:?}");
        assert_repaired(device, "no UTF-8");
    }
}
