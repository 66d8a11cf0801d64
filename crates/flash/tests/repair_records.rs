//! Tests repair of a store whose commit records are lost: the table and the blocks themselves tell the content.

use crate::common;
use crate::common::repaired::*;
use crate::common::{Weights, content, lend, medium, options};
use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, OpenOptions, PAYLOAD_BYTES, Store};

const READ_ONLY: OpenOptions = OpenOptions {
    open_files_max: 4,
    addresses_max: 0,
    read_only: true,
};

#[test]
fn without_any_record_files_are_found_by_the_table_and_the_blocks() {
    for seed in 0..24 {
        let weights = if seed % 2 == 0 {
            NO_TRUNCATE
        } else {
            Weights::ALL
        };
        let sample = Sample::new(seed, seed % 3 == 0, &weights);
        let context = format!("seed {seed}");
        let mut device = sample.device.clone();
        wipe_records(&mut device);
        let (report, device) = repair(device, &context);
        assert!(
            report.root_rebuilt && report.lost_files.is_empty(),
            "{context}"
        );
        assert_settled(&device, &context);
        let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
        let check = store.check().unwrap();
        assert!(check.is_clean(), "{context}: {:?}", check.problems);
        let found = common::read_all(&mut store).unwrap();
        if seed % 2 == 0 {
            assert!(found == sample.model, "{context}");
        }
        assert!(
            found.keys().eq(sample.model.keys()),
            "{context}: other names"
        );
        for (name, bytes) in &found {
            // Bytes that had been cut off may be back, but no others.
            assert!(bytes.starts_with(&sample.model[name]), "{context}: {name}");
        }
        live_on(store, seed, &context);
    }
}

#[test]
fn without_records_and_a_part_of_the_table_files_come_back_too() {
    let mut lost = 0;
    for seed in 0..16 {
        let sample = Sample::new(seed, seed % 2 == 0, &NO_TRUNCATE);
        let context = format!("seed {seed}");
        let mut device = sample.device.clone();
        wipe_records(&mut device);
        for bucket in 0..sample.buckets() / 2 {
            device.poke(TABLE_FIRST + 4 * bucket, &[1; 4096]);
            device.poke(TABLE_FIRST + 4 * bucket + 1, &[2; 4096]);
        }
        let (report, device) = repair(device, &context);
        assert!(report.lost_files.iter().all(|file| file.may_be_old));
        let found = judge_and_live(&device, &sample, &report, &context);
        assert_eq!(found.missing, 0, "{context}: {found:?}");
        lost += report.lost_files.len();
    }
    assert!(lost > 30, "{lost}");
}

#[test]
fn without_any_record_an_append_is_whole_or_not_there() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..120_u64 {
        let mut random = Random::new(seed);
        let mut store = Store::format(SimDevice::new(300, seed), &options(4)).unwrap();
        let log = store.create("log").unwrap();
        let mut written = Vec::new();
        for _ in 0..3 {
            let length = random.index(9000) + 1;
            let bytes = content(&mut random, length);
            store.append(log, &bytes).unwrap();
            written.extend_from_slice(&bytes);
        }
        let more = content(&mut random, APPEND_ATOMIC_BYTES_MAX);
        store
            .device_mut()
            .set_power_cut_after_writes(Some(seed % 2 + 1));
        let _ = store.append(log, &more);
        let mut device = store.device().crash_image_random(seed);
        wipe_records(&mut device);
        let context = format!("seed {seed}");
        let (_, device) = repair(device, &context);
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        let found = common::read_file(&mut store, "log").unwrap();
        let whole = [written.clone(), more].concat();
        assert!(
            found == written || found == whole,
            "{context}: {} bytes, neither {} nor {}",
            found.len(),
            written.len(),
            whole.len()
        );
        before += usize::from(found == written);
        after += usize::from(found == whole);
    }
    println!("appends without a record: {before} not there, {after} whole");
    assert!(before > 10 && after > 10);
}

#[test]
fn without_any_record_a_file_cut_off_inside_a_block_ends_there() {
    for blocks in [2, 3, 5, 6, 7, 9] {
        let mut store = Store::format(SimDevice::new(300, 1), &options(4)).unwrap();
        let log = store.create("log").unwrap();
        let written = content(&mut Random::new(blocks), blocks as usize * PAYLOAD_BYTES);
        for part in written.chunks(4 * PAYLOAD_BYTES) {
            store.append(log, part).unwrap();
        }
        let length = written.len() - PAYLOAD_BYTES - 1000;
        store.truncate(log, length as u64).unwrap();
        store.sync().unwrap();
        // The barrier after the record allows writing the shortened block in place.
        store.create("another").unwrap();
        let mut device = store.device().clone();
        wipe_records(&mut device);
        let (_, device) = repair(device, "cut off");
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        let found = common::read_file(&mut store, "log").unwrap();
        assert!(
            found == written[..length],
            "{blocks}: {} bytes",
            found.len()
        );
    }
}

#[test]
fn a_table_that_is_younger_than_every_record_counts() {
    for seed in 0..8 {
        let sample = Sample::new(seed, true, &NO_TRUNCATE);
        let mut model = sample.model.clone();
        let mut store = Store::open(sample.device, &OpenOptions::default()).unwrap();
        for name in ["one more", "and another"] {
            if store.replace(name, b"new").is_ok() {
                model.insert(name.to_owned(), b"new".to_vec());
            }
        }
        if let Some(name) = model.keys().next().cloned() {
            store.delete(&name).unwrap();
            model.remove(&name);
        }
        store.sync().unwrap();
        let mut device = store.device().clone();
        let newest = medium::newest_record(&device);
        for block in newest..newest + 5 {
            device.poke(block, &[0; 4096]);
        }
        let context = format!("seed {seed}");
        let mut older = Store::open(device.clone(), &READ_ONLY).unwrap();
        let problems = older.check().unwrap().problems;
        let is_younger =
            |problem: &flash::Problem| problem.text.contains("younger than the newest");
        assert!(problems.iter().any(is_younger), "{context}: {problems:?}");
        let (report, device) = repair(device, &context);
        assert!(report.root_rebuilt, "{context}: {:?}", report.findings);
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert!(store.check().unwrap().is_clean(), "{context}");
        assert!(common::read_all(&mut store).unwrap() == model, "{context}");
        live_on(store, seed, &context);
    }
}

#[test]
fn appends_after_a_lost_record_come_back() {
    let (mut less, mut cut) = (0, 0);
    for blocks_at_once in [1, 2, 3] {
        let mut store = Store::format(SimDevice::new(600, 1), &options(4)).unwrap();
        let mut random = Random::new(blocks_at_once);
        store.replace("other", b"other").unwrap();
        let log = store.create("log").unwrap();
        let mut written = Vec::new();
        for number in 0..60 {
            let bytes = content(&mut random, blocks_at_once as usize * PAYLOAD_BYTES - 100);
            store.append(log, &bytes).unwrap();
            written.extend_from_slice(&bytes);
            let mut device = store.device().clone();
            let newest = medium::newest_record(&device);
            for block in newest..newest + 8 {
                device.poke(block, &[0x77; 4096]);
            }
            let context = format!("{blocks_at_once} blocks at once, append {number}");
            let mut older = Store::open(device.clone(), &READ_ONLY).unwrap();
            let shown = older.stat("log").map_or(0, |stat| stat.length_bytes);
            less += u32::from(shown < written.len() as u64);
            let (report, repaired) = repair(device.clone(), &context);
            assert!(!report.data_lost, "{context}: {:?}", report.findings);
            assert_settled(&repaired, &context);
            let mut store = Store::open(repaired, &OpenOptions::default()).unwrap();
            assert!(store.check().unwrap().is_clean(), "{context}");
            let found = common::read_file(&mut store, "log").unwrap();
            assert!(found == written, "{context}: {} bytes", found.len());
            if number % 8 == 0 {
                live_on(store, number, &context);
            }
            for write in 1.. {
                let mut half = device.clone();
                half.set_power_cut_after_writes(Some(write));
                if shown == written.len() as u64
                    || Store::repair(lend(&mut half), &mut |_| {}).is_ok()
                {
                    break;
                }
                let context = format!("{context}, cut at write {write}");
                let (_, repaired) = repair(half.crash_image_random(write), &context);
                let mut store = Store::open(repaired, &OpenOptions::default()).unwrap();
                let found = common::read_file(&mut store, "log").unwrap();
                assert!(found == written, "{context}: {} bytes", found.len());
                assert!(store.check().unwrap().is_clean(), "{context}");
                cut += 1;
            }
        }
    }
    println!("{less} times the record that is left knew less; {cut} repairs cut");
    assert!(less > 20 && cut > 100, "{less} {cut}");
}

#[test]
fn a_file_that_a_lost_record_shortened_ends_where_it_was_cut_off() {
    for length in [5 * PAYLOAD_BYTES + 1, 9 * PAYLOAD_BYTES - 1, 300] {
        let mut store = Store::format(SimDevice::new(300, 1), &options(4)).unwrap();
        let written = content(&mut Random::new(1), 12 * PAYLOAD_BYTES);
        store.replace("log", &written).unwrap();
        let log = store.open_file("log").unwrap();
        store.truncate(log, length as u64).unwrap();
        let mut device = store.device().clone();
        let newest = medium::newest_record(&device);
        for block in newest..newest + 8 {
            device.poke(block, &[0x77; 4096]);
        }
        let (report, device) = repair(device, "shortened");
        assert!(!report.data_lost, "{:?}", report.findings);
        assert_settled(&device, "shortened");
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert!(store.check().unwrap().is_clean());
        let found = common::read_file(&mut store, "log").unwrap();
        assert!(
            found == written[..length],
            "{} bytes, not {length}",
            found.len()
        );
        live_on(store, 1, "shortened");
    }
}

#[test]
fn a_long_file_that_was_cut_off_is_found_by_reading_it_a_few_times() {
    let mut store = Store::format(SimDevice::new(5_400, 1), &options(4)).unwrap();
    let log = store.create("log").unwrap();
    let mut written = content(&mut Random::new(1), PAYLOAD_BYTES);
    // More groups than the number of last blocks that are tried.
    for number in 0..5_000_u32 {
        written[..4].copy_from_slice(&number.to_le_bytes());
        store.append_nosync(log, &written).unwrap();
    }
    let length = 12 * PAYLOAD_BYTES + 100;
    store.truncate(log, length as u64).unwrap();
    store.create("another").unwrap();
    let mut device = store.close().unwrap();
    wipe_records(&mut device);
    let before = device.counters().blocks_read;
    let (_, device) = repair(device, "cut off");
    let blocks_read = device.counters().blocks_read - before;
    assert!(blocks_read < 8 * 5_400, "{blocks_read} blocks read");
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let found = common::read_file(&mut store, "log").unwrap();
    assert_eq!(found.len(), length);
    assert_eq!(found[11 * PAYLOAD_BYTES..][..4], 11_u32.to_le_bytes());
}

#[test]
fn the_end_of_another_store_does_not_pass_for_this_one() {
    // A large store, and a smaller one written over its beginning.
    let mut large = options(40);
    large.uuid = [7; 16];
    let mut store = Store::format(SimDevice::new(600, 1), &large).unwrap();
    store.replace("of the large one", b"old").unwrap();
    let mut device = store.close().unwrap();
    let sample = Sample::of_size(1, true, &Weights::ALL, 300, 8, 60);
    for block in 0..300 {
        device.poke(block, &sample.device.peek(block));
    }
    let (report, mut device) = repair(device, "whole");
    assert!(report.is_clean(), "{:?}", report.findings);
    for block in [0, 2] {
        device.poke(block, &[0; 4096]);
    }
    let hash = device.image_hash();
    let error = Store::repair(lend(&mut device), &mut |_| {}).err().unwrap();
    assert!(
        error.to_string().contains("superblock is damaged"),
        "{error}"
    );
    assert!(device.image_hash() == hash, "something was written");
    // If the beginning holds no store, the remains of the large one are restored.
    for block in 0..300 {
        device.poke(block, &[0; 4096]);
    }
    let (report, device) = repair(device, "wiped");
    assert!(report.data_lost);
    Store::open(device, &OpenOptions::default()).unwrap();
}
