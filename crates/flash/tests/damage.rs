//! Tests damage and failing devices. Damaged data is reported and never returned. Undamaged data is not affected. A
//! device that fails a write stops the store from writing, not from reading.

use crate::common;
use crate::common::{Model, Operation, options, read_all};
use crate::forge::entry_of;
use base::block::BlockDevice;
use base::error::Code;
use base::sim::{FaultPlan, Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Part, Store};

/// Returns a closed store with files of several lengths, after many changes.
fn sample(seed: u64) -> (SimDevice, Model) {
    let mut random = Random::new(seed);
    let mut store = Store::format(SimDevice::new(512, seed), &options(12)).unwrap();
    let mut model = Model::new();
    for _ in 0..120 {
        let operation = common::operation(&mut random, 12, 30_000);
        if operation != Operation::Reopen && operation.run(&mut store).is_ok() {
            operation.apply(&mut model);
        }
    }
    assert!(read_all(&mut store).unwrap() == model);
    (store.close().unwrap(), model)
}

/// Reads every file of the model. Returns the number of damaged files. Wrong bytes fail the test.
fn damaged_files(store: &mut Store<SimDevice>, model: &Model, context: &str) -> usize {
    let mut damaged = 0;
    for (name, content) in model {
        let file = match store.open_file(name) {
            Ok(file) => file,
            Err(Error::Damaged { .. }) => {
                damaged += 1;
                continue;
            }
            Err(error) => panic!("{context}: {name}: {error}"),
        };
        let mut bytes = vec![0; content.len()];
        match store.read(file, 0, &mut bytes) {
            Ok(count) => assert!(
                bytes[..count] == content[..],
                "{context}: {name}: wrong bytes"
            ),
            Err(error @ Error::Damaged { .. }) => {
                assert_eq!(error.code(), Code::Corrupt);
                damaged += 1;
            }
            Err(error) => panic!("{context}: {name}: {error}"),
        }
        store.close_file(file);
    }
    damaged
}

#[test]
fn one_rotten_bit_anywhere_is_noticed_and_harms_one_file_at_most() {
    let (mut noticed, mut harmed, mut harmless) = (0, 0, 0);
    for seed in 0..4 {
        let (device, model) = sample(seed);
        let mut random = Random::new(seed);
        for block in 0..device.geometry().block_count {
            let mut rotten = device.clone();
            rotten.inject_bit_rot(block, random.below(4096 * 8) as u32);
            let context = format!("seed {seed} block {block}");
            let mut store = Store::open(
                rotten,
                &OpenOptions {
                    read_only: true,
                    ..OpenOptions::default()
                },
            )
            .unwrap_or_else(|error| panic!("{context}: {error}"));
            let damaged = damaged_files(&mut store, &model, &context);
            assert!(damaged <= 1, "{context}: {damaged} files harmed by one bit");
            let report = store.check().unwrap();
            if damaged > 0 {
                assert!(!report.is_clean(), "{context}: the check does not see it");
                let names: Vec<_> = report
                    .problems
                    .iter()
                    .filter_map(|p| p.file.as_deref())
                    .collect();
                assert!(
                    names.iter().all(|name| *name == names[0]),
                    "{context}: {names:?}"
                );
                harmed += 1;
            }
            if report.is_clean() {
                harmless += 1;
            } else {
                noticed += 1;
            }
        }
    }
    println!(
        "one rotten bit: {noticed} noticed, {harmed} of them harmed a file, {harmless} in unused blocks"
    );
    assert!(harmed > 100 && noticed > harmed);
}

#[test]
fn a_damaged_block_costs_its_own_bytes_only() {
    let mut store = Store::format(SimDevice::new(1024, 1), &options(4)).unwrap();
    let log = store.create("log").unwrap();
    let mut content = Vec::new();
    for number in 0..300_u32 {
        let data: Vec<u8> = (0..500 + number * 11 % 3000)
            .map(|byte| (byte * 7 + number) as u8)
            .collect();
        store.append(log, &data).unwrap();
        content.extend_from_slice(&data);
    }
    let device = store.close().unwrap();
    let mut hit = 0;
    for block in 0..device.geometry().block_count {
        let mut rotten = device.clone();
        rotten.inject_bit_rot(block, 9999);
        let options = OpenOptions {
            read_only: true,
            addresses_max: 0,
            ..OpenOptions::default()
        };
        let mut store = Store::open(rotten, &options).unwrap();
        let log = store.open_file("log").unwrap();
        let mut lost = 0;
        for (piece, expected) in content.chunks(PAYLOAD_BYTES).enumerate() {
            let mut bytes = [0; PAYLOAD_BYTES];
            match store.read(log, (piece * PAYLOAD_BYTES) as u64, &mut bytes) {
                Ok(count) => assert!(bytes[..count] == *expected),
                Err(Error::Damaged { block: found, .. }) => {
                    assert_eq!(found, block);
                    lost += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost <= 1, "block {block}: {lost} pieces of the file lost");
        hit += lost;
    }
    assert_eq!(
        hit,
        content.chunks(PAYLOAD_BYTES).count(),
        "each piece was lost once"
    );
}

#[test]
fn the_check_names_file_and_block() {
    let (mut device, model) = sample(3);
    let (name, content) = model
        .iter()
        .max_by_key(|(_, content)| content.len())
        .unwrap();
    let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    // Rot all blocks until the file's first one is hit: the check must name the file each time.
    let file = store.open_file(name).unwrap();
    let mut hit = None;
    for block in 0..device.geometry().block_count {
        let clean = device.clone();
        device.inject_bit_rot(block, 20_000);
        let mut store = Store::open(
            device.clone(),
            &OpenOptions {
                read_only: true,
                ..OpenOptions::default()
            },
        )
        .unwrap();
        let file = store.open_file(name).unwrap();
        let mut bytes = vec![0; content.len()];
        if let Err(error) = store.read(file, 0, &mut bytes) {
            let Error::Damaged {
                part: Part::Data,
                block: found,
                offset: Some(_),
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(found, block);
            let report = store.check().unwrap();
            assert!(
                report
                    .problems
                    .iter()
                    .any(|p| p.file.as_ref() == Some(name) && p.block == Some(block)),
                "{:?}",
                report.problems
            );
            hit = Some(block);
            break;
        }
        device = clean;
    }
    store.close_file(file);
    assert!(hit.is_some());
}

#[test]
fn a_wrecked_table_block_costs_its_names_only() {
    let (mut device, model) = sample(1);
    // Both copies of the first table block.
    device.poke(12, &[0xff; 4096]);
    device.poke(13, &[0xff; 4096]);
    let mut store = Store::open(
        device,
        &OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        },
    )
    .unwrap();
    let damaged = damaged_files(&mut store, &model, "wrecked bucket");
    assert!(damaged < model.len());
    let report = store.check().unwrap();
    assert!(
        report
            .problems
            .iter()
            .any(|p| p.block == Some(12) && p.data_lost),
        "{:?}",
        report.problems
    );
    assert!(matches!(
        store.list(&mut |_, _| {}),
        Err(Error::Damaged {
            part: Part::Table,
            ..
        })
    ));
}

#[test]
fn either_end_of_the_device_may_be_lost_without_losing_a_file() {
    let (device, model) = sample(2);
    for end in [0..12, 500..512] {
        let mut rotten = device.clone();
        end.clone()
            .for_each(|block| rotten.poke(block, &[0xa5; 4096]));
        // The store was closed properly. So the record at the other end is at most one behind, and the newest one was
        // that of the close.
        let mut store = Store::open(rotten, &OpenOptions::default()).unwrap();
        assert!(read_all(&mut store).unwrap() == model, "{end:?}");
    }
}

#[test]
fn an_outdated_copy_of_a_table_block_does_not_hide_the_newer_one() {
    for copy in 0..2 {
        let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
        store.replace("settings", b"old").unwrap();
        let mut store = common::reopen(store);
        let before: Vec<_> = (12..500).map(|block| store.device().peek(block)).collect();
        store.replace("settings", b"new").unwrap();
        let mut store = common::reopen(store);
        let buckets = u64::from(store.layout().bucket_count);
        // Restore one copy of each changed table block to its old content.
        let mut put_back = 0;
        for bucket in 0..buckets {
            let block = 12 + 2 * bucket + copy;
            let old = before[(block - 12) as usize];
            if store.device().peek(block) != old {
                store.device_mut().poke(block, &old);
                put_back += 1;
            }
        }
        assert!(put_back > 0);
        assert!(!store.check().unwrap().is_clean(), "copy {copy}");
        let file = store.open_file("settings").unwrap();
        let mut bytes = [0; 3];
        store.read(file, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"new", "copy {copy}");
        store.replace("settings", b"newer").unwrap();
        assert_eq!(store.stat("settings").unwrap().length_bytes, 5);
    }
}

#[test]
fn a_damaged_copy_of_a_record_is_noticed_while_another_stands_in() {
    let (device, model) = sample(1);
    let mut noticed = 0;
    for block in (4..12).chain(500..508) {
        let mut rotten = device.clone();
        rotten.poke(block, &[0; 4096]);
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let mut store = Store::open(rotten, &read_only).unwrap();
        assert!(read_all(&mut store).unwrap() == model, "block {block}");
        let report = store.check().unwrap();
        noticed += usize::from(report.records_incomplete);
    }
    // Two records of two or three blocks each.
    assert!((4..=6).contains(&noticed), "{noticed}");
}

#[test]
fn a_truncated_image_is_called_that() {
    let (device, _) = sample(1);
    let mut short = SimDevice::new(300, 1);
    (0..300).for_each(|block| short.poke(block, &device.peek(block)));
    let error = Store::open(short, &OpenOptions::default()).err().unwrap();
    assert!(
        matches!(
            error,
            Error::Truncated {
                blocks_made: 512,
                blocks_found: 300
            }
        ),
        "{error}"
    );
    assert_eq!(error.code(), Code::Corrupt);
}

#[test]
fn a_device_without_a_store_is_refused() {
    let open = |device| Store::open(device, &OpenOptions::default()).err().unwrap();
    assert!(matches!(open(SimDevice::new(64, 1)), Error::NotAStore));
    assert!(matches!(open(SimDevice::new(1, 1)), Error::NotAStore));
    let (mut device, _) = sample(1);
    for copy in [0, 2, 508] {
        device.poke(copy, &[0xff; 4096]);
    }
    assert!(matches!(open(device), Error::NotAStore));
    let (mut device, _) = sample(1);
    for block in (4..12).chain(500..508) {
        device.poke(block, &[0; 4096]);
    }
    assert!(matches!(
        open(device),
        Error::Damaged {
            part: Part::Record,
            ..
        }
    ));
    let small = Store::format(SimDevice::new(32, 1), &options(1000))
        .err()
        .unwrap();
    assert!(matches!(small, Error::Format { .. }));
}

#[test]
fn arbitrary_blocks_never_panic() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let (mut device, model) = sample(seed % 4);
        for _ in 0..=random.index(40) {
            let block = if random.coin() {
                random.below(64)
            } else {
                random.below(512)
            };
            let other = random.below(512);
            let mut bytes = device.peek(if random.coin() { other } else { block });
            for _ in 0..random.index(6) {
                bytes[random.index(4096)] = random.next_u64() as u8;
            }
            device.poke(block, &bytes);
        }
        let Ok(mut store) = Store::open(device, &OpenOptions::default()) else {
            continue;
        };
        let _ = store.check().unwrap();
        let _ = damaged_or_missing(&mut store, &model);
        for number in 0..20 {
            let _ = common::operation(&mut random, 12, 20_000).run(&mut store);
            let _ = store.delete(&format!("file-{number}"));
        }
    }
}

/// As `damaged_files`, but files may be missing.
fn damaged_or_missing(store: &mut Store<SimDevice>, model: &Model) -> usize {
    let present: Model = model
        .iter()
        .filter(|(name, _)| !matches!(store.stat(name), Err(Error::NotFound)))
        .map(|(name, content)| (name.clone(), content.clone()))
        .collect();
    let mut damaged = model.len() - present.len();
    for (name, content) in &present {
        if let Ok(file) = store.open_file(name) {
            let mut bytes = vec![0; content.len()];
            damaged += usize::from(store.read(file, 0, &mut bytes).is_err());
            store.close_file(file);
        }
    }
    damaged
}

#[test]
fn the_store_reads_and_refuses_to_write_after_a_failed_write_or_flush() {
    for seed in 0..60 {
        let (mut device, mut model) = sample(seed % 4);
        let plan = if seed % 2 == 0 {
            FaultPlan {
                write_error_ppm: 100_000,
                ..FaultPlan::default()
            }
        } else {
            FaultPlan {
                flush_error_ppm: 100_000,
                ..FaultPlan::default()
            }
        };
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        store.device_mut().set_fault_plan(plan);
        let mut random = Random::new(seed);
        let running = loop {
            let operation = common::operation(&mut random, 12, 20_000);
            if operation == Operation::Reopen {
                continue;
            }
            match operation.run(&mut store) {
                Ok(()) => operation.apply(&mut model),
                Err(Error::Device(_)) => break operation,
                Err(_) => {}
            }
        };
        assert!(store.has_failed());
        assert!(matches!(store.create("another"), Err(Error::Failed)));
        assert!(matches!(store.delete("file-1"), Err(Error::Failed)));
        let mut after = model.clone();
        running.apply(&mut after);
        let untouched = |model: &Model| {
            let mut model = model.clone();
            model.remove(running.file().unwrap());
            model
        };
        // Reads still work: all files except the one whose call failed are unchanged.
        let found = read_all(&mut store).unwrap();
        if !found.is_empty() {
            assert!(untouched(&found) == untouched(&model), "seed {seed}");
        }
        // After opening again, no acknowledged data is missing.
        device = store.close().unwrap();
        device.set_fault_plan(FaultPlan::default());
        let mut store =
            Store::open(device.crash_image_random(seed), &OpenOptions::default()).unwrap();
        assert!(store.check().unwrap().is_clean(), "seed {seed}");
        let found = read_all(&mut store).unwrap();
        assert!(untouched(&found) == untouched(&model), "seed {seed}");
        let name = running.file().unwrap();
        let is_prefix = match (model.get(name), found.get(name), after.get(name)) {
            (before, found, after) if found == before || found == after => true,
            (Some(before), Some(found), Some(after)) => {
                found.starts_with(before) && after.starts_with(found)
            }
            _ => false,
        };
        assert!(is_prefix, "seed {seed}: {name}");
    }
}

#[test]
fn lost_and_misdirected_writes_never_yield_foreign_bytes() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut store = Store::format(SimDevice::new(512, seed), &options(12)).unwrap();
        store.device_mut().set_fault_plan(FaultPlan {
            write_lost_ppm: 10_000,
            write_misdirected_ppm: 10_000,
            write_rot_ppm: 10_000,
            ..FaultPlan::default()
        });
        // Every byte of a file is the number of the file, so a foreign byte is detected.
        for _ in 0..200 {
            let number = random.index(12);
            let name = format!("file-{number}");
            let data = vec![number as u8 + 1; common::length(&mut random, 20_000)];
            let _ = match random.below(4) {
                0 => store.create(&name).map(|file| store.close_file(file)),
                1 => store.replace(&name, &data),
                2 => store.delete(&name),
                _ => Operation::Append(name, data).run(&mut store),
            };
        }
        for number in 0..12_usize {
            let Ok(file) = store.open_file(&format!("file-{number}")) else {
                continue;
            };
            let mut bytes = vec![0; store.length(file).unwrap() as usize];
            match store.read(file, 0, &mut bytes) {
                Ok(count) => assert!(
                    bytes[..count]
                        .iter()
                        .all(|byte| usize::from(*byte) == number + 1)
                ),
                Err(_) => refused += 1,
            }
            store.close_file(file);
        }
    }
    assert!(refused > 0, "the faults hit nothing");
}

#[test]
fn a_full_store_says_so_stays_readable_and_deletes() {
    for file_bytes in [1000, 50_000, 400_000] {
        let mut store = Store::format(SimDevice::new(600, 1), &options(600)).unwrap();
        let mut names = Vec::new();
        loop {
            let name = format!("file-{}", names.len());
            match store.replace(&name, &vec![names.len() as u8; file_bytes]) {
                Ok(()) => names.push(name),
                Err(Error::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!names.is_empty());
        // Until not even one more block fits.
        let file = store.create("rest").unwrap();
        let error = loop {
            if let Err(error) = store.append(file, &[1; 3000]) {
                break error;
            }
        };
        assert!(matches!(error, Error::Full));
        assert_eq!(error.code(), Code::Full);
        assert!(store.check().unwrap().is_clean());
        let expected: Model = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.clone(), vec![n as u8; file_bytes]))
            .collect();
        let mut found = read_all(&mut store).unwrap();
        found.remove("rest");
        assert!(found == expected);
        for name in &names {
            store.delete(name).unwrap();
        }
        store.delete("rest").unwrap();
        let statistics = store.statistics();
        assert_eq!(statistics.blocks_free, statistics.blocks_total);
        assert!(store.check().unwrap().is_clean());
        store.replace("again", &vec![5; file_bytes]).unwrap();
    }
}

#[test]
fn handles_of_deleted_replaced_and_closed_files_are_refused() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(12)).unwrap();
    let first = store.create("a").unwrap();
    store.append(first, b"one").unwrap();
    store.replace("a", b"two").unwrap();
    assert!(matches!(store.append(first, b"x"), Err(Error::StaleHandle)));
    assert!(matches!(
        store.read(first, 0, &mut [0]),
        Err(Error::StaleHandle)
    ));
    let second = store.open_file("a").unwrap();
    let third = store.open_file("a").unwrap();
    store.close_file(second);
    store.append(third, b"three").unwrap();
    store.close_file(third);
    assert!(matches!(store.length(third), Err(Error::StaleHandle)));
    let fourth = store.open_file("a").unwrap();
    store.delete("a").unwrap();
    assert!(matches!(store.length(fourth), Err(Error::StaleHandle)));
    let options = OpenOptions {
        open_files_max: 1,
        ..OpenOptions::default()
    };
    let mut store = Store::open(store.close().unwrap(), &options).unwrap();
    let _held = store.create("b").unwrap();
    assert!(matches!(store.create("c"), Err(Error::TooManyOpenFiles)));
    assert!(
        matches!(store.stat("c"), Err(Error::NotFound)),
        "a refused create leaves nothing"
    );
}

/// The two files that would be written back next are in damaged table blocks; another one must be evicted.
#[test]
fn two_damaged_table_blocks_do_not_stop_appends_to_other_files() {
    let mut store = Store::format(SimDevice::new(1024, 1), &options(100)).unwrap();
    let name = |number: u32| format!("file-{number:02}");
    for number in 0..40 {
        let file = store.create(&name(number)).unwrap();
        store.append(file, &[1; 100]).unwrap();
        store.close_file(file);
    }
    // Files 8 to 39 are active; 8 and 9 are the least recently used.
    let wrecked = [8, 9].map(|number| entry_of(store.device(), &name(number)).0);
    let spared = (0..8)
        .find(|number| !wrecked.contains(&entry_of(store.device(), &name(*number)).0))
        .unwrap();
    let file = store.open_file(&name(spared)).unwrap();
    for place in wrecked {
        store.device_mut().poke(place, &[0xff; 4096]);
        store.device_mut().poke(place + 1, &[0xff; 4096]);
    }
    let result = (0..3).find_map(|_| store.append(file, b"more").ok());
    assert!(result.is_some(), "no append to an inactive file any more");
}

/// A file has room left in one of its own runs: a full store must not refuse the append.
#[test]
fn a_file_uses_its_own_room_on_a_full_store() {
    let mut store = Store::format(SimDevice::new(128, 1), &options(4)).unwrap();
    let file = store.create("log").unwrap();
    for bytes in [100, 100, 100, PAYLOAD_BYTES - 300, 3 * PAYLOAD_BYTES] {
        store.append(file, &vec![1; bytes]).unwrap();
    }
    let ballast = store.create("ballast").unwrap();
    while store.append(ballast, &[2; PAYLOAD_BYTES]).is_ok() {}
    assert_eq!(store.statistics().blocks_free, 0);
    let stat = store.stat("log").unwrap();
    assert!(stat.blocks_owned - stat.blocks >= 4);
    store.append(file, b"fits").unwrap();
}
