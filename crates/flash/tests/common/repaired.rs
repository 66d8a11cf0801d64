//! Stores to be damaged and repaired, and the judge of the result of a repair.

use std::collections::BTreeSet;

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{
    APPEND_ATOMIC_BYTES_MAX, CheckReport, Error, LostFile, OpenOptions, PAYLOAD_BYTES,
    RepairReport, Store,
};

use super::{Model, Operation, Weights, content, options};

pub const TABLE_FIRST: u64 = 12;

/// A store after some calls.
#[derive(Clone)]
pub struct Sample {
    pub device: SimDevice,
    pub model: Model,
    /// Every content that any file had after a call.
    pub history: BTreeSet<Vec<u8>>,
    /// Whether the store was closed. If not, damage after the last record is taken for a call that a power cut has
    /// interrupted.
    pub closed: bool,
}

impl Sample {
    /// Returns a store with many short files and some long ones. If not `closed`, it stays as it is after its last
    /// call.
    pub fn new(seed: u64, closed: bool, weights: &Weights) -> Self {
        Self::of_size(seed, closed, weights, 700, 24, 250)
    }

    pub fn of_size(
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
                store = super::reopen(store);
            } else if operation.run(&mut store).is_ok() {
                operation.apply(&mut model);
                if let Some(bytes) = operation.file().and_then(|name| model.get(name)) {
                    history.insert(bytes.clone());
                }
            }
        }
        // Include what a call that found the store full has added.
        model = super::read_all(&mut store).unwrap();
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

    pub fn buckets(&self) -> u64 {
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let store = Store::open(self.device.clone(), &read_only).unwrap();
        u64::from(store.layout().bucket_count)
    }
}

/// Calls without truncations: blocks never show an older, longer file.
pub const NO_TRUNCATE: Weights = Weights {
    truncate: 0,
    ..Weights::ALL
};

pub fn repair(device: SimDevice, context: &str) -> (RepairReport, SimDevice) {
    Store::repair(device, &mut |_| {}).unwrap_or_else(|error| panic!("{context}: {error}"))
}

/// Requires that a second repair finds nothing more to write.
pub fn assert_settled(device: &SimDevice, context: &str) {
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

/// Returns the pieces of a file, `None` for a damaged piece.
pub fn pieces(store: &mut Store<SimDevice>, name: &str) -> Vec<Option<Vec<u8>>> {
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

/// The content of a repaired store, compared with the written data.
#[derive(Debug, Default)]
pub struct Found {
    pub exact: usize,
    /// Number of files that miss the last calls on an open store.
    pub older: usize,
    pub shortened: usize,
    pub damaged: usize,
    pub lost_entries: usize,
    pub missing: usize,
}

/// Reads everything. All data read must have been written. A file with its name has its content up to its end. A lost
/// file has some earlier content. Files of which nothing is left are counted.
///
/// If a file may have been deleted before, its end may be gone, so that an earlier end shows. Each piece must have been
/// in a file at that place.
pub fn judge(
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
        // The longest prefix of a content is the content itself.
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

/// Requires that each piece was in some file at that place.
pub fn assert_pieces_were_written(pieces: &[Option<Vec<u8>>], sample: &Sample, context: &str) {
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

/// Returns whether the check finds only lost bytes of files.
pub fn only_data_is_damaged(report: &CheckReport) -> bool {
    report
        .problems
        .iter()
        .all(|problem| problem.data_lost && problem.file.is_some())
}

/// Opens a repaired store, judges its content, and uses it further.
pub fn judge_and_live(
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

/// Requires that every file can be appended to and deleted, that data read before stays, and that all of it is there
/// after a cut.
pub fn live_on(mut store: Store<SimDevice>, seed: u64, context: &str) {
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
    // Every append was durable, so all must be there after a cut.
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

pub fn wipe_records(device: &mut SimDevice) {
    let end = device.geometry().block_count / 4 * 4 - 12;
    for block in (4..TABLE_FIRST).chain(end..end + 8) {
        device.poke(block, &[0; 4096]);
    }
}

/// Returns a store whose free list is spilled.
pub fn spilled(seed: u64) -> Sample {
    let mut random = Random::new(seed);
    let mut store = Store::format(SimDevice::new(1600, seed), &options(200)).unwrap();
    let mut model = Model::new();
    super::lives::fill(&mut store, &mut model, 180, &mut random);
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

/// Returns the number of seeds: `usual` times `FLASH_REPAIR_SEEDS`.
pub fn seeds(usual: u64) -> u64 {
    let times = std::env::var("FLASH_REPAIR_SEEDS")
        .ok()
        .map_or(1, |text| text.parse().expect("a number"));
    usual * times
}

/// Spoils some blocks: with zeros, noise, a flipped bit, earlier content, or content of another block.
pub fn spoil(device: &mut SimDevice, early: &SimDevice, random: &mut Random) {
    let count = device.geometry().block_count;
    if random.below(6) == 0 {
        wipe_records(device);
    }
    for _ in 0..random.below(12) + 1 {
        // Mostly choose blocks that many others depend on.
        let block = match random.below(4) {
            0 => random.below(TABLE_FIRST),
            1 => TABLE_FIRST + random.below(40),
            2 => count - 1 - random.below(12),
            _ => random.below(count),
        };
        // One copy of the superblock stays intact.
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
