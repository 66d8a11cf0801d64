//! Repair of a store whose commit records are lost: the table and the blocks themselves say what there is.

mod common;

use base::sim::{Random, SimDevice};
use common::repaired::*;
use common::{Weights, content, medium, options};
use flash::{APPEND_ATOMIC_BYTES_MAX, OpenOptions, PAYLOAD_BYTES, Store};

#[test]
fn without_any_record_the_table_and_the_blocks_tell_what_there_is() {
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
            // What had been cut off may be back, and nothing else.
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
        // The barrier after the record lets the shortened block be written.
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
        let (report, device) = repair(device, &context);
        assert!(report.root_rebuilt, "{context}: {:?}", report.findings);
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert!(store.check().unwrap().is_clean(), "{context}");
        assert!(common::read_all(&mut store).unwrap() == model, "{context}");
        live_on(store, seed, &context);
    }
}
