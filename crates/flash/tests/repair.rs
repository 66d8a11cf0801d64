//! Tests repair. Damage is repaired if that needs no invented data. Every file whose blocks are intact has its bytes
//! again, by its name or as a lost entry. Nothing is returned that was never written. A repair that is cut at any point
//! is completed by the next one.

use crate::common;
use crate::common::repaired::*;
use crate::common::{Operation, Weights, content, lend, medium, options};
use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, Error, OpenOptions, PAYLOAD_BYTES, Store};

#[test]
fn a_repair_of_a_sound_store_writes_nothing() {
    for seed in 0..4 {
        for closed in [true, false] {
            let sample = Sample::new(seed, closed, &Weights::ALL);
            let context = format!("seed {seed} closed {closed}");
            let hash = sample.device.image_hash();
            let (report, device) = repair(sample.device.clone(), &context);
            assert!(report.is_clean(), "{context}: {:?}", report.findings);
            assert_eq!(report.blocks_written, 0);
            assert_eq!(report.files, sample.model.len() as u64);
            assert!(device.image_hash() == hash, "{context}");
        }
    }
}

#[test]
fn one_rotten_block_anywhere_is_mended_or_costs_its_own_bytes() {
    let (mut cases, mut written, mut shortened, mut damaged, mut older) = (0, 0, 0, 0, 0);
    for seed in 0..3 {
        let sample = Sample::new(seed, seed % 2 == 0, &Weights::ALL);
        let mut random = Random::new(seed);
        for block in 0..sample.device.geometry().block_count {
            let mut device = sample.device.clone();
            device.inject_bit_rot(block, random.below(4096 * 8) as u32);
            let context = format!("seed {seed} block {block}");
            let (report, device) = repair(device, &context);
            let found = judge_and_live(&device, &sample, &report, &context);
            assert!(report.findings_total > 0 || found.exact + found.older == sample.model.len());
            assert_eq!(found.missing + found.lost_entries, 0, "{context}");
            let harmed = found.damaged + found.shortened + found.older;
            assert!(harmed <= 1, "{context}: {found:?}");
            older += found.older;
            assert_eq!(
                report.data_lost,
                found.damaged + found.shortened > 0,
                "{context}: {:?}",
                report.findings
            );
            cases += 1;
            written += usize::from(report.blocks_written > 0);
            shortened += found.shortened;
            damaged += found.damaged;
        }
    }
    println!(
        "one rotten block: {cases} cases, {written} repairs wrote, {shortened} files shortened, {damaged} with a \
         damaged block inside; {older} damaged after the last record"
    );
    assert!(written > 50 && shortened > 10 && damaged > 50);
}

#[test]
fn two_rotten_neighbours_lose_names_at_most_and_never_a_file() {
    let (mut back, mut damaged) = (0, 0);
    for seed in 10..12 {
        let sample = Sample::new(seed, seed % 2 == 0, &Weights::ALL);
        let table_end = TABLE_FIRST + 2 * sample.buckets();
        for block in 0..sample.device.geometry().block_count - 1 {
            let mut device = sample.device.clone();
            device.poke(block, &[0x5a; 4096]);
            device.poke(block + 1, &[0xa5; 4096]);
            let context = format!("seed {seed} blocks {block} and the next");
            let (report, device) = repair(device, &context);
            let found = judge_and_live(&device, &sample, &report, &context);
            if block + 1 < table_end {
                assert_eq!(found.missing + found.damaged, 0, "{context}: {found:?}");
                assert_eq!(found.shortened + found.older, 0, "{context}: {found:?}");
                back += found.lost_entries;
            } else {
                assert_eq!(
                    found.lost_entries + found.missing,
                    0,
                    "{context}: {found:?}"
                );
                damaged += found.damaged;
            }
        }
    }
    println!(
        "two rotten neighbours: {back} files came back without their names, {damaged} damaged inside"
    );
    assert!(back >= 10 && damaged > 30);
}

#[test]
fn a_lost_file_is_called_after_its_identity_and_its_first_name() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
    store.replace("draft", b"first").unwrap();
    store.rename("draft", "report").unwrap();
    // Otherwise the records still hold the buckets, and nothing is lost.
    let mut store = common::reopen(store);
    let id = store.stat("report").unwrap().file_id;
    let buckets = u64::from(store.layout().bucket_count);
    let mut device = store.close().unwrap();
    for block in TABLE_FIRST..TABLE_FIRST + 2 * buckets {
        device.poke(block, &[0; 4096]);
    }
    let (report, device) = repair(device, "whole table");
    let name = format!("lost-{id}-draft");
    assert_eq!(report.lost_files.len(), 1);
    assert_eq!(report.lost_files[0].name, name);
    assert_eq!(report.lost_files[0].length_bytes, 5);
    assert!(report.data_lost && !report.lost_files[0].may_be_old);
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    assert_eq!(common::read_file(&mut store, &name).unwrap(), b"first");
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn a_damaged_free_list_is_made_anew() {
    let (mut trunks, mut chains) = (0, 0);
    for seed in 0..3 {
        let sample = spilled(seed);
        assert!(medium::free_list(&sample.device).0 > 1);
        for block in 0..sample.device.geometry().block_count {
            let bytes = sample.device.peek(block);
            let is_trunk = bytes.starts_with(b"EKTR");
            // Damage blocks of deleted files: some of them hold links.
            let is_freed = !is_trunk && (block * 7 + seed) % 5 == 0;
            let is_data = block >= TABLE_FIRST + 2 * sample.buckets();
            if !is_data || (!is_trunk && !is_freed) {
                continue;
            }
            let mut device = sample.device.clone();
            for number in 0..4 {
                if is_trunk == (number == 0) {
                    device.poke(block + number, &[0x33; 4096]);
                }
                if block + number + 1 >= sample.device.geometry().block_count {
                    break;
                }
            }
            let context = format!("seed {seed} block {block}");
            let (report, device) = repair(device, &context);
            if report.blocks_written == 0 {
                continue;
            }
            let found = judge_and_live(&device, &sample, &report, &context);
            assert_eq!(
                found.lost_entries + found.missing,
                0,
                "{context}: {found:?}"
            );
            trunks += usize::from(is_trunk);
            chains += usize::from(is_freed);
        }
    }
    println!("damaged free lists: {trunks} with a spilled list, {chains} with other blocks");
    assert!(trunks >= 3 && chains > 20, "{trunks} {chains}");
}

#[test]
fn a_bucket_given_back_old_leaves_no_block_with_two_owners() {
    let mut repaired = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let early = Sample::of_size(seed, true, &Weights::ALL, 500, 12, 120);
        let mut store = Store::open(early.device.clone(), &OpenOptions::default()).unwrap();
        let mut sample = early.clone();
        for _ in 0..80 {
            let operation = Weights::ALL.draw(&mut random, &sample.model, 12, 40_000);
            if operation != Operation::Reopen && operation.run(&mut store).is_ok() {
                operation.apply(&mut sample.model);
                if let Some(bytes) = operation.file().and_then(|name| sample.model.get(name)) {
                    sample.history.insert(bytes.clone());
                }
            }
        }
        sample.model = common::read_all(&mut store).unwrap();
        sample.history.extend(sample.model.values().cloned());
        let mut device = store.close().unwrap();
        let bucket = random.below(sample.buckets());
        let first = TABLE_FIRST + 2 * bucket;
        let is_old = device.peek(first) != early.device.peek(first);
        for copy in 0..2 {
            device.poke(first + copy, &early.device.peek(first + copy));
        }
        if !is_old {
            continue;
        }
        repaired += 1;
        let context = format!("seed {seed}");
        let (_, device) = repair(device, &context);
        assert_settled(&device, &context);
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        let report = store.check().unwrap();
        assert!(
            only_data_is_damaged(&report),
            "{context}: {:?}",
            report.problems
        );
        // A file may mix blocks of two versions: each piece must have been in some file at that place.
        let mut names = Vec::new();
        store
            .list(&mut |name, _| names.push(name.to_owned()))
            .unwrap();
        for name in names {
            let context = format!("{context}: {name}");
            assert_pieces_were_written(&pieces(&mut store, &name), &sample, &context);
        }
        live_on(store, seed, &context);
    }
    assert!(repaired > 10, "{repaired}");
}

#[test]
fn a_file_that_an_old_bucket_gives_the_blocks_of_another_ends_before_them() {
    let mut store = Store::format(SimDevice::new(1200, 1), &options(60)).unwrap();
    let mut random = Random::new(1);
    let long = content(&mut random, 90 * PAYLOAD_BYTES + 10);
    store.replace("long", &long).unwrap();
    // Use more files than the root has slots: the table holds the state of the long one.
    for number in 0..33 {
        store.replace(&format!("file-{number}"), b"short").unwrap();
    }
    let mut store = common::reopen(common::reopen(store));
    let table = TABLE_FIRST..TABLE_FIRST + 2 * u64::from(store.layout().bucket_count);
    let before: Vec<_> = table
        .clone()
        .map(|block| store.device().peek(block))
        .collect();
    let file = store.open_file("long").unwrap();
    store.truncate(file, 10 * PAYLOAD_BYTES as u64).unwrap();
    let mut store = common::reopen(common::reopen(store));
    let changed: Vec<u64> = table
        .clone()
        .filter(|block| store.device().peek(*block) != before[(block - TABLE_FIRST) as usize])
        .collect();
    assert_eq!(changed.len(), 2, "the long file's bucket");
    // Other files get all the blocks it has given up, except for its end.
    let mut others = Vec::new();
    let file = store.open_file("file-5").unwrap();
    for _ in 0..60 {
        let bytes = content(&mut random, APPEND_ATOMIC_BYTES_MAX);
        store.append(file, &bytes).unwrap();
        others.extend_from_slice(&bytes);
    }
    let mut device = common::reopen(store).close().unwrap();
    for block in changed {
        device.poke(block, &before[(block - TABLE_FIRST) as usize]);
    }
    let (report, device) = repair(device, "shared");
    let shared = |finding: &flash::Finding| finding.text.contains("shared blocks");
    assert!(report.findings.iter().any(shared), "{:?}", report.findings);
    assert_settled(&device, "shared");
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let check = store.check().unwrap();
    assert!(check.is_clean(), "{:?}", check.problems);
    let found = common::read_file(&mut store, "file-5").unwrap();
    assert!(found[5..] == others[..], "the owner has lost something");
    let found = common::read_file(&mut store, "long").unwrap();
    assert!(found.len() >= 10 * PAYLOAD_BYTES && long.starts_with(&found));
    live_on(store, 1, "shared");
}

#[test]
fn a_repair_that_is_cut_anywhere_is_finished_by_the_next() {
    let (mut cuts, mut back) = (0, 0);
    for seed in 0..12_u64 {
        let mut sample = if seed % 4 == 3 {
            spilled(seed)
        } else {
            Sample::new(seed, seed % 2 == 0, &NO_TRUNCATE)
        };
        let mut random = Random::new(seed);
        // Always damage a part of the table, and something else.
        let buckets = sample.buckets();
        for _ in 0..3 {
            let bucket = TABLE_FIRST + 2 * random.below(buckets);
            sample.device.poke(bucket, &[1; 4096]);
            sample.device.poke(bucket + 1, &[2; 4096]);
        }
        match seed % 3 {
            0 => wipe_records(&mut sample.device),
            1 => sample.device.poke(2, &[0; 4096]),
            _ => sample
                .device
                .inject_bit_rot(TABLE_FIRST + random.below(2 * buckets), 77),
        }
        let context = format!("seed {seed}");
        let (report, once) = repair(sample.device.clone(), &context);
        let expected = judge_and_live(&once, &sample, &report, &context);
        assert_eq!(expected.missing, 0, "{context}: {expected:?}");
        back += report.lost_files.len();
        for write in 1.. {
            let mut device = sample.device.clone();
            device.set_power_cut_after_writes(Some(write));
            let Err(error) = Store::repair(lend(&mut device), &mut |_| {}) else {
                break;
            };
            assert!(
                matches!(error, Error::Device(_)),
                "{context} write {write}: {error}"
            );
            for image in 0..3 {
                let context = format!("{context} write {write} image {image}");
                let image = device.crash_image_random(write * 3 + image);
                let (_, device) = repair(image, &context);
                assert_settled(&device, &context);
                let mut store = Store::open(device, &OpenOptions::default()).unwrap();
                let check = store.check().unwrap();
                assert!(check.is_clean(), "{context}: {:?}", check.problems);
                let found = judge(&mut store, &sample, &report, &context);
                assert_eq!(found.missing, 0, "{context}: {found:?}");
                assert_eq!(
                    found.lost_entries, expected.lost_entries,
                    "{context}: {found:?}"
                );
                cuts += 1;
            }
        }
    }
    println!("repairs cut: {cuts}, {back} files came back without their names");
    assert!(cuts > 500 && back > 40, "{cuts} {back}");
}

#[test]
fn damage_after_a_power_cut_is_mended_with_the_acknowledged_content() {
    let mut cases = 0;
    for seed in 0..60_u64 {
        let mut sample = Sample::new(seed, false, &NO_TRUNCATE);
        let mut random = Random::new(seed);
        let mut store = Store::open(sample.device.clone(), &OpenOptions::default()).unwrap();
        store
            .device_mut()
            .set_power_cut_after_writes(Some(random.below(40) + 1));
        let mut running = None;
        for _ in 0..60 {
            let operation = NO_TRUNCATE.draw(&mut random, &sample.model, 24, 40_000);
            let is_durable = operation.makes_durable();
            if matches!(operation, Operation::Reopen) || !is_durable {
                continue;
            }
            match operation.run(&mut store) {
                Ok(()) => operation.apply(&mut sample.model),
                Err(Error::Device(_)) => {
                    running = Some(operation);
                    break;
                }
                Err(_) => {}
            }
        }
        let Some(running) = running else { continue };
        let mut device = store.device().crash_image_random(seed);
        let buckets = sample.buckets();
        let bucket = random.below(buckets);
        device.inject_bit_rot(TABLE_FIRST + 2 * bucket + random.below(2), 4000);
        device.inject_bit_rot(2, 5);
        let context = format!("seed {seed} cut in {}", running.brief());
        let (_, device) = repair(device, &context);
        assert_settled(&device, &context);
        let mut store = Store::open(device, &OpenOptions::default()).unwrap();
        assert!(store.check().unwrap().is_clean(), "{context}");
        let found = common::read_all(&mut store).unwrap();
        let touched = [
            running.file().unwrap_or(""),
            match &running {
                Operation::Rename(_, to) => to,
                _ => "",
            },
        ];
        for (name, bytes) in sample.model.iter() {
            if !touched.contains(&name.as_str()) {
                assert!(found.get(name) == Some(bytes), "{context}: {name}");
            }
        }
        live_on(store, seed, &context);
        cases += 1;
    }
    assert!(cases > 20, "{cases}");
}

#[test]
fn a_repair_returns_only_bytes_that_were_written() {
    let (mut rebuilt, mut lost, mut left) = (0, 0, 0);
    for seed in 0..seeds(150) {
        let context = format!("seed {seed}");
        let mut random = Random::new(seed);
        let mut sample = Sample::of_size(seed, false, &Weights::ALL, 500, 16, 60);
        let early = sample.device.clone();
        let mut store = Store::open(early.clone(), &OpenOptions::default()).unwrap();
        for _ in 0..60 {
            let operation = Weights::ALL.draw(&mut random, &sample.model, 16, 40_000);
            let ran = operation != Operation::Reopen && operation.run(&mut store).is_ok();
            if ran {
                operation.apply(&mut sample.model);
            } else if operation == Operation::Reopen {
                store = common::reopen(store);
            }
            let content = operation.file().and_then(|name| {
                let known = sample.model.get(name).filter(|_| ran).cloned();
                known.or_else(|| common::read_file(&mut store, name).ok())
            });
            sample.history.extend(content);
        }
        sample
            .history
            .extend(common::read_all(&mut store).unwrap().into_values());
        let mut device = if random.coin() {
            store.close().unwrap()
        } else {
            store.device().crash_image_random(seed)
        };
        spoil(&mut device, &early, &mut random);
        if random.coin() {
            let mut cut = device.clone();
            cut.set_power_cut_after_writes(Some(random.below(30) + 1));
            // The repair may also have finished before the cut.
            let _ = Store::repair(lend(&mut cut), &mut |_| {});
            device = cut.crash_image_random(seed);
        }
        let (report, mut device) = repair(device, &context);
        assert_settled(&device, &context);
        rebuilt += usize::from(report.root_rebuilt);
        lost += report.lost_files.len();
        let is_linked = report
            .findings
            .iter()
            .all(|finding| finding.mended || finding.data_lost);
        for turn in 0..2 {
            let mut store = Store::open(device.clone(), &OpenOptions::default())
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let check = store.check().unwrap();
            assert!(
                only_data_is_damaged(&check) || (!is_linked && turn == 0),
                "{context}: {:?}",
                check.problems
            );
            left += usize::from(!check.is_clean());
            let mut names = Vec::new();
            store
                .list(&mut |name, _| names.push(name.to_owned()))
                .unwrap();
            for name in &names {
                let context = format!("{context}: {name}");
                assert_pieces_were_written(&pieces(&mut store, name), &sample, &context);
                let file = store.open_file(name).unwrap();
                match store.append(file, b"more") {
                    Ok(()) | Err(Error::Full) => {}
                    Err(error) => panic!("{context}: {error}"),
                }
                store.close_file(file);
                store.delete(name).unwrap();
            }
            // Blocks that no list led to are free when the files are deleted.
            (_, device) = repair(store.close().unwrap(), &context);
            let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
            assert!(store.check().unwrap().is_clean(), "{context}: emptied");
            let statistics = store.statistics();
            assert_eq!(statistics.blocks_free, statistics.blocks_total, "{context}");
        }
    }
    println!(
        "any damage: {rebuilt} without a root, {lost} files without names, {left} with damaged bytes"
    );
    assert!(
        rebuilt > 5 && lost > 5 && left > 0,
        "{rebuilt} {lost} {left}"
    );
}

#[test]
fn without_a_superblock_there_is_a_clear_error() {
    let mut device = Sample::new(1, true, &Weights::ALL).device;
    let far = device.geometry().block_count / 4 * 4 - 4;
    for block in [0, 2] {
        device.poke(block, &[0; 4096]);
    }
    let (report, mut device) = repair(device, "one copy left");
    assert_eq!((report.blocks_written > 0, report.data_lost), (true, false));
    for block in [0, 2, far] {
        device.inject_bit_rot(block, 20 * 8);
    }
    let error = Store::repair(device, &mut |_| {}).err().unwrap();
    assert!(
        error.to_string().contains("superblock is damaged"),
        "{error}"
    );
}

#[test]
fn a_repair_reports_its_progress() {
    let mut device = Sample::new(1, true, &Weights::ALL).device;
    wipe_records(&mut device);
    let mut blocks = 0;
    let (_, device) = Store::repair(device, &mut |more| blocks += more).unwrap();
    let counters = device.counters();
    assert!(blocks > 0 && blocks <= counters.blocks_read + counters.blocks_written);
}
