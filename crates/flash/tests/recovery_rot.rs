//! Tests rot in the newest record. Acknowledged changes must not be undone by it. No store may stay closed while the
//! content of the record is also available elsewhere.

use std::collections::BTreeSet;

use crate::common::medium::{RecordKind, free_list, newest_record};
use crate::common::records::{before_spilling, open, settled_stores};
use crate::common::{Model, Operation, options, read_all, read_file};
use base::block::DeviceError;
use base::sim::{Keep, SimDevice};
use flash::{Error, Part, Store};

/// Damages a few bits of a block, or all of it.
fn rotten(device: &SimDevice, block: u64, way: u64) -> SimDevice {
    let mut rotten = device.clone();
    match way {
        0 => rotten.inject_bit_rot(block, (block as u32 * 7919 + 200) % 32_768),
        _ => rotten.poke(block, &[0xb7; 4096]),
    }
    rotten
}

#[test]
fn a_rotten_block_of_the_newest_record_undoes_nothing() {
    let mut kinds = BTreeSet::new();
    let (mut opened, mut lists_lost) = (0, 0);
    for settled in settled_stores(3) {
        for block in 0..settled.kind.blocks() {
            for way in 0..2 {
                let context = format!(
                    "{} ({:?}, {} calls before), block {block} of the record",
                    settled.call, settled.kind, settled.calls_since
                );
                let device = rotten(&settled.device, settled.newest + block, way);
                let mut store =
                    open(device.clone(), true).unwrap_or_else(|error| panic!("{context}: {error}"));
                assert!(read_all(&mut store).unwrap() == settled.model, "{context}");
                let mut store =
                    open(device, false).unwrap_or_else(|error| panic!("{context}: {error}"));
                assert!(read_all(&mut store).unwrap() == settled.model, "{context}");
                let report = store.check().unwrap();
                // The only structure with one copy: the list beside an image.
                let is_list = settled.kind.spilled && settled.kind.tables.len() == 1 && block == 2;
                assert_eq!(
                    report.is_clean(),
                    !is_list,
                    "{context}: {:?}",
                    report.problems
                );
                assert!(report.problems.iter().all(|problem| !problem.data_lost));
                // The root of the previous record must not be combined with this record's table.
                let files = settled.model.len() as u64;
                assert_eq!(store.statistics().files, files, "{context}");
                lists_lost += u64::from(is_list);
                opened += 1;
                let mut store = open(store.device().clone(), false).unwrap();
                assert!(
                    read_all(&mut store).unwrap() == settled.model,
                    "{context}: again"
                );
            }
        }
        kinds.insert((
            settled.kind.spilled,
            settled.kind.tables,
            settled.calls_since.min(4),
        ));
    }
    println!(
        "rot in the newest record: {opened} stores opened, {lists_lost} lists lost; records {kinds:?}"
    );
    for (spilled, tables) in [
        (false, vec![]),
        (false, vec![true]),
        (false, vec![false]),
        (false, vec![false, true]),
        (false, vec![true, true]),
        (false, vec![false, false]),
        (false, vec![false, false, false]),
        (true, vec![]),
        (true, vec![true]),
    ] {
        let kind = (spilled, tables.clone(), 0);
        assert!(kinds.contains(&kind), "no record of this kind: {kind:?}");
    }
    // The last block of a file has moved twice since the record that changed it, and its place was overwritten.
    assert!(kinds.contains(&(false, vec![false], 2)));
}

/// A rotten list must not undo the call. A data block of a file does not prove that its record was durable. So a record
/// that carries one must not spill a list, even when a spill is due.
#[test]
fn a_rotten_block_of_a_record_with_a_block_of_a_file_undoes_nothing() {
    let (device, mut model, deleted_next) = before_spilling();
    let mut store = open(device, false).unwrap();
    // Records with two images spill no list: replaced files add waiting pieces, separate from the existing ones.
    let first: usize = deleted_next.strip_prefix("file-").unwrap().parse().unwrap();
    for (number, target) in (1..).step_by(2).zip((first + 3..88).step_by(4)) {
        let rename = Operation::Rename(format!("file-{number}"), format!("file-{target}"));
        rename.run(&mut store).unwrap();
        rename.apply(&mut model);
    }
    let (_, pieces) = free_list(store.device());
    assert!(pieces >= 40, "{pieces}");
    let device = store.device().crash_image(&|_| Keep::Whole);
    // This file was written last: it has a slot, so its calls need no table block.
    let name = "file-89".to_owned();
    let bytes = &model[&name];
    let calls = [
        Operation::WriteAt(name.clone(), 10, vec![7; 100]),
        Operation::Truncate(name.clone(), 2000),
    ];
    for call in calls {
        let mut changed = bytes.clone();
        call.change(&mut changed);
        let mut store = open(device.clone(), false).unwrap();
        call.run(&mut store).unwrap();
        let newest = newest_record(store.device());
        let kind = RecordKind::of(store.device(), newest);
        assert_eq!(kind.tables, [false]);
        let device = store.device().crash_image(&|_| Keep::Whole);
        for block in 0..kind.blocks() {
            let mut store = open(rotten(&device, newest + block, 0), false).unwrap();
            let found = read_file(&mut store, &name).unwrap();
            assert!(found == changed, "{} {kind:?} block {block}", call.brief());
            assert!(store.check().unwrap().is_clean());
        }
    }
}

// ---- a rename, a cut before its blocks were flushed in place, and rot ----

/// The results of the renamings.
#[derive(Default, Debug)]
struct Renamings {
    done: usize,
    /// Neither table block is in place and one is rotten in the record: this looks like a torn record.
    undone: usize,
    refused: usize,
}

/// Returns a store in which renaming `file-0` changes two table blocks, its model, and the new name.
fn before_renaming(files: usize, over: bool) -> (SimDevice, Model, String) {
    let mut store = Store::format(SimDevice::new(600, 1), &options(40)).unwrap();
    let mut model = Model::new();
    for number in 0..files {
        let replace = Operation::Replace(format!("file-{number}"), vec![number as u8; 5000]);
        replace.run(&mut store).unwrap();
        replace.apply(&mut model);
    }
    let device = store.device().crash_image(&|_| Keep::Whole);
    let target = (0..files).map(|number| {
        if over {
            format!("file-{}", files - 1 - number)
        } else {
            format!("new-{number}")
        }
    });
    let changes_two = |name: &String| {
        let mut store = open(device.clone(), false).unwrap();
        store.rename("file-0", name).unwrap();
        let newest = newest_record(store.device());
        RecordKind::of(store.device(), newest).tables == [true, true]
    };
    let target = target.into_iter().find(changes_two).unwrap();
    (device, model, target)
}

/// Opens the store after the cut and the rot. The renaming must never be done by half, or be undone while anything
/// shows that it was done. A store that reports damage must hold every file after a repair.
fn judge_renaming(
    device: &SimDevice,
    before: &Model,
    after: &Model,
    is_in_place: bool,
    context: &str,
    seen: &mut Renamings,
) {
    match open(device.clone(), false) {
        Ok(mut store) => {
            let found = read_all(&mut store).unwrap();
            assert!(
                found == *after || (found == *before && !is_in_place),
                "{context}: {:?}",
                found.keys()
            );
            assert!(store.check().unwrap().is_clean(), "{context}");
            seen.done += usize::from(found == *after);
            seen.undone += usize::from(found != *after);
        }
        Err(Error::Damaged {
            part: Part::Record, ..
        }) => {
            assert!(is_in_place, "{context}: refused");
            let check = open(device.clone(), true).unwrap().check().unwrap();
            assert!(!check.is_clean(), "{context}: the check does not see it");
            let (_, device) = Store::repair(device.clone(), &mut |_| {}).unwrap();
            let mut store =
                open(device, false).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(store.check().unwrap().is_clean(), "{context}");
            let mut found = read_all(&mut store).unwrap();
            for (name, bytes) in after {
                if found.get(name) == Some(bytes) {
                    found.remove(name);
                    continue;
                }
                let lost = found
                    .iter()
                    .find(|(other, there)| other.starts_with("lost-") && *there == bytes);
                let lost = lost.map(|(name, _)| name.clone());
                let lost = lost.unwrap_or_else(|| panic!("{context}: {name} is gone"));
                found.remove(&lost);
            }
            // If the new table block is lost, the old one may contain a file that was replaced.
            for (name, bytes) in found {
                let is_replaced = before.get(&name) == Some(&bytes) && after.contains_key(&name);
                assert!(is_replaced, "{context}: {name}");
            }
            seen.refused += 1;
        }
        Err(error) => panic!("{context}: {error}"),
    }
}

/// The possible remains after a cut of a table block that is written twice, side by side.
const KEPT: [Keep; 4] = [
    Keep::Lost,
    Keep::Torn {
        sector_mask: 0x00ff,
    },
    Keep::Torn {
        sector_mask: 0xff00,
    },
    Keep::Whole,
];

#[test]
fn a_renaming_is_not_undone_by_half_when_a_cut_and_rot_meet() {
    let mut seen = Renamings::default();
    for (files, over, more) in [
        (5, false, false),
        (5, true, false),
        (36, false, false),
        (36, true, false),
        (5, false, true),
        (5, true, true),
    ] {
        let (device, before, target) = before_renaming(files, over);
        let mut store = open(device, false).unwrap();
        let mut after = before.clone();
        store.rename("file-0", &target).unwrap();
        Operation::Rename("file-0".to_owned(), target.clone()).apply(&mut after);
        let record = newest_record(store.device());
        if more {
            // The record of the next call is complete, but the call was not acknowledged.
            store.device_mut().set_power_cut_after_writes(Some(1));
            let cut = store.create("more").map(|_| ());
            assert!(matches!(cut, Err(Error::Device(DeviceError::PowerLost))));
            after.insert("more".to_owned(), Vec::new());
        }
        let device = store.device();
        assert_eq!(device.unflushed_count(), if more { 3 } else { 2 });
        for (kept, other_kept) in KEPT
            .iter()
            .flat_map(|kept| KEPT.map(|other| (*kept, other)))
        {
            let image = device.crash_image(&|index| match index {
                0 => kept,
                1 => other_kept,
                _ => Keep::Whole,
            });
            for block in 0..4 {
                let mut image = image.clone();
                image.inject_bit_rot(record + block, 12_345);
                let context = format!(
                    "{files} files, to {target}, more {more}; {kept:?} {other_kept:?}, block {block} rotten"
                );
                let is_in_place =
                    more || kept != Keep::Lost || other_kept != Keep::Lost || block % 3 == 0;
                judge_renaming(&image, &before, &after, is_in_place, &context, &mut seen);
            }
        }
    }
    println!("a renaming, a cut and rot: {seen:?}");
    assert!(
        seen.done > 250 && seen.refused > 20 && seen.undone == 8,
        "{seen:?}"
    );
}
