//! Tests unreadable blocks of records, and of the free cluster for the next list. A store must open if the unreadable
//! blocks do not matter, and show all acknowledged data. Otherwise it must report the damage, and a repair must make it
//! open.

use std::collections::BTreeSet;

use crate::common::medium::{RecordKind, newest_record, record_areas};
use crate::common::records::{Settled, before_spilling, open, settled_stores};
use crate::common::worn::Worn;
use crate::common::{Model, Operation, read_all};
use base::sim::{Keep, SimDevice};
use flash::{Error, Part, Store};

#[derive(Debug, Default)]
struct Seen {
    opened: usize,
    refused: usize,
}

/// Opens the device, read-only and for writing. Returns the content if both opened; it must be the same both times.
fn opens(device: &SimDevice, bad: &BTreeSet<u64>, context: &str) -> Option<Model> {
    let worn = || Worn::new(device.clone(), bad.iter().copied());
    let results = [true, false].map(|read_only| {
        let mut worn = worn();
        let mut store = match open(&mut worn, read_only) {
            Ok(store) => store,
            Err(error) => return Err(error),
        };
        let found = read_all(&mut store).unwrap();
        if !read_only {
            // Recovery has rewritten the blocks it reads; the next opening needs no unreadable block.
            let mut again = Worn::new(
                store.device().inner.clone(),
                store.device().unreadable.iter().copied(),
            );
            let mut again =
                open(&mut again, false).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(read_all(&mut again).unwrap() == found, "{context}: again");
        }
        Ok(found)
    });
    match results {
        [Ok(read), Ok(written)] => {
            assert!(read == written, "{context}");
            Some(read)
        }
        [Err(read), Err(written)] => {
            for error in [read, written] {
                let part = match error {
                    Error::Damaged { part, .. } => part,
                    other => panic!("{context}: {other}"),
                };
                assert_eq!(part, Part::Record, "{context}");
            }
            None
        }
        [read, written] => panic!("{context}: {:?} {:?}", read.err(), written.err()),
    }
}

/// Repairs a store that did not open. It must then hold every file, with all acknowledged data.
fn repaired(device: &SimDevice, bad: &BTreeSet<u64>, context: &str) -> Model {
    let mut worn = Worn::new(device.clone(), bad.iter().copied());
    let (report, worn) =
        Store::repair(&mut worn, &mut |_| {}).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.findings_total > 0, "{context}");
    let mut store =
        open(worn, false).unwrap_or_else(|error| panic!("{context}: repaired: {error}"));
    let check = store.check().unwrap();
    assert!(check.is_clean(), "{context}: {:?}", check.problems);
    read_all(&mut store).unwrap()
}

/// Opens a store in which every call was acknowledged.
fn judge(settled: &Settled, bad: &BTreeSet<u64>, must_open: bool, seen: &mut Seen) {
    let context = format!(
        "{} ({:?}, record at {}), unreadable {bad:?}",
        settled.call, settled.kind, settled.newest
    );
    if let Some(found) = opens(&settled.device, bad, &context) {
        assert!(found == settled.model, "{context}: something is undone");
        seen.opened += 1;
        return;
    }
    assert!(!must_open, "{context}: does not open");
    seen.refused += 1;
    let found = repaired(&settled.device, bad, &context);
    assert!(found.keys().eq(settled.model.keys()), "{context}: names");
    for (name, bytes) in &found {
        // Without a record, bytes that were cut off a file may be back.
        assert!(
            bytes.starts_with(&settled.model[name]),
            "{context}: {name}, {} bytes",
            bytes.len()
        );
    }
}

/// Tests every pair of blocks, and all blocks of one place, in a store without a power cut.
#[test]
fn unreadable_blocks_of_records_undo_no_acknowledged_call() {
    let mut seen = Seen::default();
    let stores = settled_stores(1);
    for settled in stores.iter().filter(|settled| settled.calls_since == 0) {
        let areas = record_areas(&settled.device);
        let blocks: Vec<u64> = areas.iter().cloned().flatten().collect();
        let starts: Vec<u64> = areas.iter().map(|area| area.start).collect();
        for (index, first) in blocks.iter().enumerate() {
            for second in &blocks[index + 1..] {
                let bad = BTreeSet::from([*first, *second]);
                // The first block of each place tells the number of the last durable record there.
                let must_open =
                    !starts.contains(first) || area_of(&areas, *first) != area_of(&areas, *second);
                judge(settled, &bad, must_open, &mut seen);
            }
        }
        for area in &areas {
            let behind_first: BTreeSet<u64> = area.clone().skip(1).collect();
            judge(settled, &behind_first, true, &mut seen);
            judge(settled, &area.clone().collect(), false, &mut seen);
        }
    }
    println!("unreadable blocks of records, acknowledged: {seen:?}");
    assert!(seen.opened > 500 && seen.refused > 50, "{seen:?}");
}

fn area_of(areas: &[std::ops::Range<u64>], block: u64) -> Option<usize> {
    areas.iter().position(|area| area.contains(&block))
}

/// The state of one block of a write that the power cut interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Old,
    New,
    Unreadable,
}

fn fates(blocks: u64) -> impl Iterator<Item = Vec<Fate>> {
    (0..3_u64.pow(blocks as u32)).map(move |number| {
        (0..blocks)
            .map(|block| match number / 3_u64.pow(block as u32) % 3 {
                0 => Fate::Old,
                1 => Fate::New,
                _ => Fate::Unreadable,
            })
            .collect()
    })
}

/// Calls that write a record of each kind. Each block of the record's own write may arrive, not arrive or be
/// unreadable, and everything written after it is lost.
#[test]
fn a_record_that_a_cut_made_unreadable_is_there_or_not() {
    let (mut running, mut returned) = (Seen::default(), Seen::default());
    let mut kinds = BTreeSet::new();
    let (device, model, name) = before_spilling();
    let mut cases = vec![(device, model, vec![Operation::Delete(name)])];
    for settled in settled_stores(1) {
        let calls = calls_after(&settled);
        cases.push((settled.device, settled.model, calls));
    }
    for (device, before, calls) in &cases {
        for call in calls {
            let mut store = open(device.clone(), false).unwrap();
            let mut after = before.clone();
            let start = store.device().crash_image(&|_| Keep::Whole);
            if call.run(&mut store).is_err() {
                continue;
            }
            call.apply(&mut after);
            let record = newest_record(store.device());
            let kind = RecordKind::of(store.device(), record);
            // Take one record of each kind, and only if the call wrote one record.
            let one_later = |device: &SimDevice| {
                let number = |block: u64| device.peek(block)[16..24].to_vec();
                let number = |block| u64::from_le_bytes(number(block).try_into().unwrap());
                number(record)
                    == 1 + u64::from_le_bytes(
                        start.peek(newest_record(&start))[16..24]
                            .try_into()
                            .unwrap(),
                    )
            };
            if !one_later(store.device()) || !kinds.insert(kind.clone()) {
                continue;
            }
            for fates in fates(kind.blocks()) {
                // Keep everything the call wrote, except for the blocks of the record.
                let mut image = start.clone();
                let mut bad = BTreeSet::new();
                for (fate, block) in fates.iter().zip(record..) {
                    match fate {
                        Fate::Old => {}
                        Fate::New => image.poke(block, &store.device().peek(block)),
                        Fate::Unreadable => drop(bad.insert(block)),
                    }
                }
                let context = format!("{} {kind:?} {fates:?}", call.brief());
                let was_durable = !fates.contains(&Fate::Old);
                let seen = if was_durable {
                    &mut returned
                } else {
                    &mut running
                };
                match opens(&image, &bad, &context) {
                    Some(found) => {
                        seen.opened += 1;
                        // A durable record may have been acknowledged.
                        assert!(
                            found == after || (!was_durable && found == *before),
                            "{context}: {}",
                            if found == *before {
                                "undone"
                            } else {
                                "half done"
                            }
                        );
                    }
                    None => {
                        seen.refused += 1;
                        let found = repaired(&image, &bad, &context);
                        assert!(
                            found.keys().eq(before.keys()) || found.keys().eq(after.keys()),
                            "{context}: names"
                        );
                    }
                }
            }
        }
    }
    println!(
        "unreadable blocks of one record: running {running:?}, returned {returned:?}; {kinds:?}"
    );
    assert!(kinds.len() >= 7, "{kinds:?}");
    assert!(
        running.opened > 300 && returned.opened > 15,
        "{running:?} {returned:?}"
    );
}

/// Durable calls on the store's files.
fn calls_after(settled: &Settled) -> Vec<Operation> {
    let mut calls = vec![Operation::Create("another".to_owned())];
    if let Some((name, bytes)) = settled.model.iter().max_by_key(|(_, bytes)| bytes.len()) {
        let (name, end) = (name.clone(), bytes.len() as u64);
        let write = |length: u64| {
            let bytes = vec![9; length as usize];
            Operation::WriteAt(name.clone(), end - length, bytes)
        };
        if end > 9000 {
            calls.extend([write(100), write(5000), write(7800)]);
        }
        calls.push(Operation::Truncate(name.clone(), end.saturating_sub(100)));
        calls.push(Operation::Delete(name.clone()));
        calls.push(Operation::Rename(name, "renamed".to_owned()));
    }
    calls
}
