//! Repair: what is damaged is mended where that needs no invention; every file whose blocks are intact has its bytes
//! again, by its name or as a lost entry; nothing is ever returned that was not written; a repair that is cut
//! anywhere is finished by the next one.

mod common;

use std::collections::BTreeSet;

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use common::{Model, Operation, Weights, content, medium, options};
use flash::{
    APPEND_ATOMIC_BYTES_MAX, CheckReport, Error, LostFile, OpenOptions, PAYLOAD_BYTES,
    RepairReport, Store,
};

const TABLE_FIRST: u64 = 12;

/// A store after some life.
#[derive(Clone)]
struct Sample {
    device: SimDevice,
    model: Model,
    /// Every content that any file had after a call.
    history: BTreeSet<Vec<u8>>,
    /// Not closed: damage in what came after the last record passes for a call that a cut has ended.
    closed: bool,
}

impl Sample {
    /// A store with many short files and some long ones; left as it is after its last call when not `closed`.
    fn new(seed: u64, closed: bool, weights: &Weights) -> Self {
        Self::of_size(seed, closed, weights, 700, 24, 250)
    }

    fn of_size(
        seed: u64,
        closed: bool,
        weights: &Weights,
        blocks: u64,
        files: usize,
        calls: usize,
    ) -> Self {
        let mut random = Random::new(seed);
        let device = SimDevice::new(blocks, seed);
        let mut store = Store::format(device, &options(files as u64)).unwrap();
        let mut model = Model::new();
        let mut history = BTreeSet::new();
        for _ in 0..calls {
            let operation = weights.draw(&mut random, &model, files, 40_000);
            if operation == Operation::Reopen {
                store = common::reopen(store);
            } else if operation.run(&mut store).is_ok() {
                operation.apply(&mut model);
                if let Some(bytes) = operation.file().and_then(|name| model.get(name)) {
                    history.insert(bytes.clone());
                }
            }
        }
        // What a call that found the store full has added.
        model = common::read_all(&mut store).unwrap();
        history.extend(model.values().cloned());
        store.sync().unwrap();
        let device = if closed {
            store.close().unwrap()
        } else {
            store.device().clone()
        };
        Self {
            device,
            model,
            history,
            closed,
        }
    }

    fn buckets(&self) -> u64 {
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let store = Store::open(self.device.clone(), &read_only).unwrap();
        u64::from(store.layout().bucket_count)
    }
}

/// Calls that cut off nothing: blocks never show an older, longer file.
const NO_TRUNCATE: Weights = Weights {
    truncate: 0,
    ..Weights::ALL
};

fn repair(device: SimDevice, context: &str) -> (RepairReport, SimDevice) {
    Store::repair(device, &mut |_| {}).unwrap_or_else(|error| panic!("{context}: {error}"))
}

/// A second repair finds nothing more to write.
fn assert_settled(device: &SimDevice, context: &str) {
    let hash = device.image_hash();
    let (report, after) = repair(device.clone(), context);
    assert_eq!(
        report.blocks_written, 0,
        "{context}: the second repair writes: {:?}",
        report.findings
    );
    assert_eq!(after.image_hash(), hash, "{context}");
    assert!(
        report.findings.iter().all(|finding| !finding.mended),
        "{context}: {:?}",
        report.findings
    );
}

/// What a file holds, `None` for a piece that is damaged.
fn pieces(store: &mut Store<SimDevice>, name: &str) -> Vec<Option<Vec<u8>>> {
    let file = store.open_file(name).unwrap();
    let length = store.length(file).unwrap() as usize;
    let mut found = Vec::new();
    for start in (0..length).step_by(PAYLOAD_BYTES) {
        let mut bytes = vec![0; PAYLOAD_BYTES.min(length - start)];
        found.push(match store.read(file, start as u64, &mut bytes) {
            Ok(count) => {
                assert_eq!(count, bytes.len());
                Some(bytes)
            }
            Err(Error::Damaged { .. }) => None,
            Err(error) => panic!("{name}: {error}"),
        });
    }
    store.close_file(file);
    found
}

/// What a repaired store holds, compared with what was written.
#[derive(Debug, Default)]
struct Found {
    exact: usize,
    /// The last calls on an open store are gone.
    older: usize,
    shortened: usize,
    damaged: usize,
    lost_entries: usize,
    missing: usize,
}

/// Reads everything. Whatever is read must have been written: a file with its name has its content up to where it
/// ends; a lost one is some content that there was. Files of which nothing is left are counted.
///
/// Of a file that may have been deleted before, the end may be gone, so that an earlier end shows; each piece must
/// have been in a file at that place.
fn judge(
    store: &mut Store<SimDevice>,
    sample: &Sample,
    report: &RepairReport,
    context: &str,
) -> Found {
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    let mut found = Found::default();
    let mut back: Vec<Vec<u8>> = Vec::new();
    for name in &names {
        let pieces = pieces(store, name);
        let is_whole = pieces.iter().all(Option::is_some);
        let candidates: Vec<&Vec<u8>> = match sample.model.get(name) {
            Some(content) if sample.closed => vec![content],
            Some(content) => std::iter::once(content)
                .chain(sample.history.iter().filter(|old| content.starts_with(old)))
                .collect(),
            None => sample.history.iter().collect(),
        };
        let fits = |content: &&&Vec<u8>| {
            let mut chunks = content.chunks(PAYLOAD_BYTES);
            pieces.iter().all(|piece| {
                let chunk = chunks.next();
                match piece {
                    Some(bytes) => chunk == Some(&bytes[..]),
                    None => chunk.is_some(),
                }
            })
        };
        // The longest prefix of a content is that content.
        let is_old = |lost: &LostFile| lost.may_be_old && lost.name == *name;
        if report.lost_files.iter().any(is_old) {
            assert_pieces_were_written(&pieces, sample, &format!("{context}: {name}"));
        }
        let fitting = candidates
            .iter()
            .filter(fits)
            .min_by_key(|content| content.len());
        let is_now = sample.model.get(name).map(Vec::len) == fitting.map(|content| content.len());
        let Some(content) = fitting else {
            if report.lost_files.iter().any(is_old) {
                found.lost_entries += 1;
                continue;
            }
            panic!("{context}: {name} holds what was never written");
        };
        let is_complete = pieces.len() == content.len().div_ceil(PAYLOAD_BYTES);
        let is_named = sample.model.contains_key(name);
        found.lost_entries += usize::from(!is_named);
        if !is_named {
            assert!(name.starts_with("lost-"), "{context}: {name}");
        }
        if !is_whole {
            found.damaged += 1;
        } else if is_complete && is_named && !is_now {
            found.older += 1;
        } else if is_complete {
            found.exact += 1;
        } else {
            found.shortened += 1;
        }
        if !is_named && is_whole {
            back.push((*content).clone());
        }
    }
    for (name, content) in &sample.model {
        if names.contains(name) || content.is_empty() {
            continue;
        }
        match back.iter().position(|other| other == content) {
            Some(place) => {
                back.swap_remove(place);
            }
            None => found.missing += 1,
        }
    }
    found
}

/// Each piece was in some file at that place.
fn assert_pieces_were_written(pieces: &[Option<Vec<u8>>], sample: &Sample, context: &str) {
    for (number, piece) in pieces.iter().enumerate() {
        let Some(piece) = piece else { continue };
        let was_there = |content: &Vec<u8>| {
            let rest = content.get(number * PAYLOAD_BYTES..);
            rest.is_some_and(|rest| rest.starts_with(piece))
        };
        assert!(
            sample.history.iter().any(was_there),
            "{context}: piece {number} was never written"
        );
    }
}

/// Whether all that the check still finds is bytes of files that are gone.
fn only_data_is_damaged(report: &CheckReport) -> bool {
    report
        .problems
        .iter()
        .all(|problem| problem.data_lost && problem.file.is_some())
}

/// Opens a repaired store, judges what it holds, and lives on in it.
fn judge_and_live(
    device: &SimDevice,
    sample: &Sample,
    report: &RepairReport,
    context: &str,
) -> Found {
    assert_settled(device, context);
    let mut store = Store::open(device.clone(), &OpenOptions::default())
        .unwrap_or_else(|error| panic!("{context}: does not open: {error}"));
    let check = store.check().unwrap();
    assert!(
        only_data_is_damaged(&check),
        "{context}: {:?}",
        check.problems
    );
    let found = judge(&mut store, sample, report, context);
    assert_eq!(found.damaged > 0, !check.is_clean(), "{context}: {found:?}");
    live_on(store, report.findings_total, context);
    found
}

/// Every file can be appended to and deleted; nothing that was read before changes; after a cut it is all there.
fn live_on(mut store: Store<SimDevice>, seed: u64, context: &str) {
    let mut random = Random::new(seed);
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    let mut expected: Vec<(String, Vec<Option<Vec<u8>>>)> = Vec::new();
    for name in &names {
        expected.push((name.clone(), pieces(&mut store, name)));
    }
    let mut appended = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let file = store.open_file(name).unwrap();
        let bytes = content(&mut random, (number * 517) % APPEND_ATOMIC_BYTES_MAX + 1);
        match store.append(file, &bytes) {
            Ok(()) => appended.push(bytes),
            Err(Error::Full) => appended.push(Vec::new()),
            Err(error) => panic!("{context}: {name} cannot be appended to: {error}"),
        }
        store.close_file(file);
    }
    // As after a cut: every append was durable.
    let device = store.device().crash_image_random(seed);
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let check = store.check().unwrap();
    assert!(
        only_data_is_damaged(&check),
        "{context}: {:?}",
        check.problems
    );
    for ((name, old), new) in expected.iter().zip(&appended) {
        let now = pieces(&mut store, name);
        let length: usize = store.stat(name).unwrap().length_bytes as usize;
        let old_length = length - new.len();
        for (number, piece) in old.iter().enumerate() {
            let end = old_length.min((number + 1) * PAYLOAD_BYTES) - number * PAYLOAD_BYTES;
            match (piece, &now[number]) {
                (Some(old), Some(now)) => assert!(old[..] == now[..end], "{context}: {name}"),
                (None, None) => {}
                other => panic!("{context}: {name}: {other:?}"),
            }
        }
        let tail: Vec<u8> = now
            .iter()
            .flat_map(|piece| piece.clone().unwrap_or(vec![0; PAYLOAD_BYTES]))
            .collect();
        assert!(tail[old_length..] == new[..], "{context}: {name}");
    }
    for name in &names {
        store.delete(name).unwrap();
    }
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.problems);
    let statistics = store.statistics();
    assert_eq!(
        statistics.blocks_free, statistics.blocks_total,
        "{context}: blocks are lost"
    );
}

#[test]
fn where_nothing_is_wrong_nothing_is_written() {
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
    // Otherwise the records still have the buckets, and nothing is lost.
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

fn wipe_records(device: &mut SimDevice) {
    let end = device.geometry().block_count / 4 * 4 - 12;
    for block in (4..TABLE_FIRST).chain(end..end + 8) {
        device.poke(block, &[0; 4096]);
    }
}

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

/// A store whose free list is spilled.
fn spilled(seed: u64) -> Sample {
    let mut random = Random::new(seed);
    let mut store = Store::format(SimDevice::new(1600, seed), &options(200)).unwrap();
    let mut model = Model::new();
    common::lives::fill(&mut store, &mut model, 180, &mut random);
    let history: BTreeSet<Vec<u8>> = model.values().cloned().collect();
    let mut names: Vec<String> = model.keys().cloned().collect();
    random.shuffle(&mut names);
    for name in names.iter().take(names.len() * 2 / 3) {
        store.delete(name).unwrap();
        model.remove(name);
    }
    Sample {
        device: store.close().unwrap(),
        model,
        history,
        closed: true,
    }
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
            // A block of a deleted file: those that hold links are among them.
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
        // The blocks of two versions of a file in one: each piece was in some file at that place.
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
fn a_repair_that_is_cut_anywhere_is_finished_by_the_next() {
    let (mut cuts, mut back) = (0, 0);
    for seed in 0..12_u64 {
        let mut sample = if seed % 4 == 3 {
            spilled(seed)
        } else {
            Sample::new(seed, seed % 2 == 0, &NO_TRUNCATE)
        };
        let mut random = Random::new(seed);
        // Always a part of the table, and something else.
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
            let Err(error) = Store::repair(&mut device, &mut |_| {}) else {
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
fn damage_after_a_power_cut_is_mended_with_what_was_acknowledged() {
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

/// How many times as many seeds as usual: `FLASH_REPAIR_SEEDS`.
fn seeds(usual: u64) -> u64 {
    let times = std::env::var("FLASH_REPAIR_SEEDS")
        .ok()
        .map_or(1, |text| text.parse().expect("a number"));
    usual * times
}

/// Spoils some blocks: with nothing, noise, a flipped bit, what was there earlier, or what belongs elsewhere.
fn spoil(device: &mut SimDevice, early: &SimDevice, random: &mut Random) {
    let count = device.geometry().block_count;
    if random.below(6) == 0 {
        wipe_records(device);
    }
    for _ in 0..random.below(12) + 1 {
        // Mostly where one block matters for many.
        let block = match random.below(4) {
            0 => random.below(TABLE_FIRST),
            1 => TABLE_FIRST + random.below(40),
            2 => count - 1 - random.below(12),
            _ => random.below(count),
        };
        // One copy of the superblock is left.
        if block == 0 {
            continue;
        }
        let kind = random.below(6);
        for neighbour in 0..random.below(3) + 1 {
            let block = (block + neighbour).min(count - 1);
            match kind {
                0 => device.poke(block, &[0; 4096]),
                1 => device.poke(block, &[0xa7; 4096]),
                2 | 3 => device.inject_bit_rot(block, random.below(4096 * 8) as u32),
                4 => device.poke(block, &early.peek(block)),
                _ => device.poke(block, &device.peek(random.below(count - 1) + 1)),
            }
        }
    }
}

#[test]
fn whatever_is_damaged_what_comes_back_was_written() {
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
            // Or it has got to its end before.
            let _ = Store::repair(&mut cut, &mut |_| {});
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
            // What no list led to is free when the files are gone.
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
        rebuilt > 10 && lost > 10 && left > 3,
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
fn progress_is_told() {
    let mut device = Sample::new(1, true, &Weights::ALL).device;
    wipe_records(&mut device);
    let mut blocks = 0;
    let (_, device) = Store::repair(device, &mut |more| blocks += more).unwrap();
    let counters = device.counters();
    assert!(blocks > 0 && blocks <= counters.blocks_read + counters.blocks_written);
}
