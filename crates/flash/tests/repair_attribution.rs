//! Tests repair file by file, using the identities of files. For any rotten blocks, a file whose own blocks and name
//! are intact has its bytes. No byte appears under a name, or in a lost entry, whose file never held it at that place.
//! Lost data is counted and reported, and a repair that reports no loss has lost nothing.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};

use crate::common::repaired::*;
use crate::common::{Operation, Weights, content, lend, options};
use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, RepairReport, Store};

const FILES: usize = 20;
/// Bytes of an entry of the table for names of up to 255 bytes (SPEC.md, "Regions").
const ENTRY_BYTES: usize = 328;

/// The contents of every file over time, by identity.
#[derive(Clone, Default)]
struct Past {
    /// The files that exist.
    names: BTreeMap<String, u64>,
    /// Every content that a file had after a call; the present one is the last.
    versions: BTreeMap<u64, Vec<Vec<u8>>>,
    /// New contents that found no room: the blocks of their beginnings may still be on the device.
    drafts: Vec<Vec<u8>>,
}

impl Past {
    fn note(&mut self, store: &mut Store<SimDevice>, operation: &Operation) {
        let other = match operation {
            Operation::Rename(_, to) => Some(to.as_str()),
            _ => None,
        };
        for name in operation.file().into_iter().chain(other) {
            match store.stat(name) {
                Ok(stat) => {
                    let bytes = common::read_file(store, name).unwrap();
                    self.names.insert(name.to_owned(), stat.file_id);
                    let versions = self.versions.entry(stat.file_id).or_default();
                    if versions.last() != Some(&bytes) {
                        versions.push(bytes);
                    }
                }
                Err(Error::NotFound) => {
                    self.names.remove(name);
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }

    fn content(&self, id: u64) -> &[u8] {
        self.versions[&id].last().unwrap()
    }

    /// Returns whether `piece` was ever at this place of the file.
    fn was_there(&self, id: u64, number: usize, piece: &[u8]) -> bool {
        let holds = |content: &Vec<u8>| {
            let rest = content.get(number * PAYLOAD_BYTES..);
            rest.is_some_and(|rest| rest.starts_with(piece))
        };
        match self.versions.get(&id) {
            Some(versions) => versions.iter().any(holds),
            None => self.drafts.iter().any(holds),
        }
    }
}

/// A store after some life, with the meaning of its blocks.
#[derive(Clone)]
struct Life {
    device: SimDevice,
    past: Past,
    closed: bool,
    /// For each data block, the file that owns or owned it.
    owners: BTreeMap<u64, u64>,
    /// First block of the bucket of each name.
    buckets: BTreeMap<String, u64>,
    lists: Vec<u64>,
    table_blocks: u64,
}

impl Life {
    fn new(seed: u64, closed: bool) -> Self {
        let mut random = Random::new(seed);
        let blocks = 450 + random.below(300);
        let mut store =
            Store::format(SimDevice::new(blocks, seed), &options(FILES as u64)).unwrap();
        let mut past = Past::default();
        let mut model = common::Model::new();
        let long_max = [6_000, 40_000, 150_000][random.index(3)];
        for _ in 0..60 + random.below(200) {
            let operation = Weights::ALL.draw(&mut random, &model, FILES, long_max);
            if operation == Operation::Reopen {
                store = common::reopen(store);
                continue;
            }
            let result = operation.run(&mut store);
            if let (Err(_), Operation::Replace(_, data)) = (&result, &operation) {
                past.drafts.push(data.clone());
            }
            past.note(&mut store, &operation);
            if let Some(name) = operation.file() {
                match past.names.get(name) {
                    Some(id) => model.insert(name.to_owned(), past.content(*id).to_vec()),
                    None => model.remove(name),
                };
            }
            if result.is_ok() && matches!(operation, Operation::Rename(..)) {
                operation.apply(&mut model);
            }
        }
        store.sync().unwrap();
        let table_blocks = 2 * u64::from(store.layout().bucket_count);
        let device = if closed {
            store.close().unwrap()
        } else {
            store.device().clone()
        };
        let mut life = Self {
            past,
            closed,
            owners: BTreeMap::new(),
            buckets: BTreeMap::new(),
            lists: Vec::new(),
            table_blocks,
            device,
        };
        life.find_blocks();
        life
    }

    fn find_blocks(&mut self) {
        for block in 0..self.device.geometry().block_count {
            let bytes = self.device.peek(block);
            if bytes.starts_with(b"EKBD") {
                let id = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                self.owners.insert(block, id);
            } else if bytes.starts_with(b"EKTR") {
                self.lists.push(block);
            } else if self.table().contains(&block) {
                for entry in bytes[32..]
                    .chunks_exact(ENTRY_BYTES)
                    .filter(|entry| entry[0] == 1)
                {
                    let name = &entry[68..68 + usize::from(entry[1])];
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    let first = block - (block - TABLE_FIRST) % 2;
                    self.buckets.insert(name, first);
                }
            }
        }
    }

    fn table(&self) -> std::ops::Range<u64> {
        TABLE_FIRST..TABLE_FIRST + self.table_blocks
    }

    fn records_end(&self) -> u64 {
        self.device.geometry().block_count / 4 * 4 - 12
    }

    /// Returns some important blocks, and their neighbours; one superblock stays intact.
    fn choose(&self, random: &mut Random) -> BTreeSet<u64> {
        let superblocks = [0, 2, self.records_end() + 8];
        let left = superblocks[random.index(3)];
        let data = self.table().end..self.records_end();
        let mut chosen = BTreeSet::new();
        for _ in 0..random.below(4) + 1 {
            match random.below(9) {
                0 => chosen.extend([superblocks[random.index(3)]]),
                1 => {
                    let first = if random.coin() { 4 } else { self.records_end() };
                    chosen.extend([first + random.below(5)]);
                }
                2 if random.below(3) == 0 => {
                    let first = if random.coin() { 4 } else { self.records_end() };
                    chosen.extend(first..first + 8);
                }
                2 if random.below(4) == 0 => {
                    chosen.extend((4..12).chain(self.records_end()..self.records_end() + 8));
                }
                2 | 3 => chosen.extend([TABLE_FIRST + random.below(self.table_blocks)]),
                4 | 5 => {
                    let used: Vec<u64> = self.buckets.values().copied().collect();
                    let first = if used.is_empty() || random.below(4) == 0 {
                        TABLE_FIRST + random.below(self.table_blocks / 2) * 2
                    } else {
                        used[random.index(used.len())]
                    };
                    chosen.extend([first, first + 1]);
                }
                6 if !self.lists.is_empty() => {
                    chosen.extend([self.lists[random.index(self.lists.len())]]);
                }
                _ => {
                    let owned: Vec<u64> = self.owners.keys().copied().collect();
                    let first = if owned.is_empty() || random.below(4) == 0 {
                        data.start + random.below(data.end - data.start)
                    } else {
                        owned[random.index(owned.len())]
                    };
                    chosen.extend(first..data.end.min(first + random.below(3) + 1));
                }
            }
        }
        chosen.remove(&left);
        chosen
    }

    fn spoil(&self, chosen: &BTreeSet<u64>, random: &mut Random) -> SimDevice {
        let mut device = self.device.clone();
        for block in chosen {
            match random.below(4) {
                0 => device.poke(*block, &[0; 4096]),
                1 => device.poke(*block, &content(random, 4096)),
                _ => device.inject_bit_rot(*block, random.below(4096 * 8) as u32),
            }
        }
        device
    }
}

#[derive(Debug, Default)]
struct Tally {
    repairs: u64,
    rebuilt: u64,
    exact: u64,
    back: u64,
    harmed: u64,
    nameless: u64,
    old: u64,
}

/// Judges the state after a repair of `life` with the blocks `chosen` spoilt. `report` is that of a repair that was not
/// interrupted.
fn judge(
    store: &mut Store<SimDevice>,
    life: &Life,
    chosen: &BTreeSet<u64>,
    rebuilt: bool,
    report: Option<&RepairReport>,
    tally: &mut Tally,
    context: &str,
) {
    let past = &life.past;
    let mut names = BTreeMap::new();
    store
        .list(&mut |name, stat| {
            let twice = names.insert(name.to_owned(), stat.file_id).is_some();
            assert!(!twice, "{context}: {name} is there twice");
        })
        .unwrap();
    let by_id: BTreeMap<u64, &String> = names.iter().map(|(name, id)| (*id, name)).collect();
    assert_eq!(by_id.len(), names.len(), "{context}: one file, two names");
    let mut is_all_there = true;
    for (name, id) in &past.names {
        let context = format!("{context}: {name}, file {id}");
        let content = past.content(*id);
        let own_intact = chosen
            .iter()
            .all(|block| life.owners.get(block) != Some(id));
        let bucket = life.buckets[name];
        let name_intact = !(chosen.contains(&bucket) && chosen.contains(&(bucket + 1)));
        if name_intact {
            assert_eq!(names.get(name), Some(id), "{context}: its name is gone");
        }
        let Some(now) = by_id.get(id) else {
            assert!(content.is_empty() || !own_intact, "{context}: it is gone");
            is_all_there = false;
            tally.nameless += 1;
            continue;
        };
        is_all_there &= *now == name;
        let pieces = pieces(store, now);
        for (number, piece) in pieces.iter().enumerate() {
            let Some(piece) = piece else { continue };
            assert!(
                past.was_there(*id, number, piece),
                "{context}: piece {number} is not of it"
            );
        }
        let is_whole = pieces.iter().all(Option::is_some);
        let bytes: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| piece.clone().unwrap_or(vec![0; PAYLOAD_BYTES]))
            .collect();
        if own_intact {
            assert!(
                is_whole && bytes.starts_with(content),
                "{context}: {} bytes",
                bytes.len()
            );
            // If a file is restored from its blocks without its state, bytes that were cut off may be back.
            assert!(
                bytes.len() == content.len() || rebuilt || *now != name,
                "{context}"
            );
        } else if !rebuilt && *now == name && life.closed {
            assert!(bytes.len() <= content.len(), "{context}: it grew");
            for (number, piece) in pieces.iter().enumerate() {
                let Some(piece) = piece else { continue };
                let rest = &content[number * PAYLOAD_BYTES..];
                assert!(
                    rest.starts_with(piece),
                    "{context}: piece {number} is older"
                );
            }
        }
        if is_whole && bytes.len() >= content.len() {
            tally.exact += u64::from(*now == name);
            tally.back += u64::from(*now != name);
            continue;
        }
        is_all_there = false;
        tally.harmed += 1;
        let is_named = |report: &RepairReport| {
            let is_its = |finding: &flash::Finding| finding.file.as_ref() == Some(now);
            report
                .findings
                .iter()
                .any(|finding| is_its(finding) && finding.data_lost)
        };
        // Damage after the last record is taken for a call that a power cut has interrupted; without a record nothing
        // tells the length.
        if life.closed && !rebuilt {
            assert!(
                report.is_none_or(is_named),
                "{context}: its loss is not named"
            );
        }
    }
    for (name, id) in names
        .iter()
        .filter(|(name, _)| !past.names.contains_key(*name))
    {
        let context = format!("{context}: {name}, file {id}");
        assert!(name.starts_with("lost-"), "{context}");
        if past.names.values().any(|known| known == id) {
            continue;
        }
        // The file had been deleted, and nothing shows that.
        tally.old += 1;
        let lost = report.map(|report| {
            let found = report.lost_files.iter().find(|lost| lost.name == *name);
            found.unwrap_or_else(|| panic!("{context}: it is not reported"))
        });
        assert!(
            lost.is_none_or(|lost| lost.may_be_old),
            "{context}: it was deleted"
        );
        for (number, piece) in pieces(store, name).iter().enumerate() {
            let Some(piece) = piece else { continue };
            assert!(
                past.was_there(*id, number, piece),
                "{context}: piece {number} is not of it"
            );
        }
    }
    if let Some(report) = report {
        assert_eq!(report.files, names.len() as u64, "{context}");
        assert_eq!(
            report.blocks_free,
            store.statistics().blocks_free,
            "{context}"
        );
        // Only the root tells whether names were lost with a part of the table.
        let is_alarm = report.data_lost && is_all_there && !rebuilt;
        let is_silence = !report.data_lost && !is_all_there && life.closed && !rebuilt;
        assert!(!is_alarm && !is_silence, "{context}: {:?}", report.findings);
    }
    tally.repairs += 1;
    tally.rebuilt += u64::from(rebuilt);
}

/// Returns whether the repair reports that bytes cut off by the last calls may be back.
fn is_older(report: &RepairReport) -> bool {
    let says_so = |finding: &flash::Finding| finding.text.contains("if the newest stood there");
    report.root_rebuilt || report.findings.iter().any(says_so)
}

/// Opens the repaired store. It must be in order, except for lost bytes of files and the problems that the report says
/// are left.
fn open_repaired(device: &SimDevice, report: &RepairReport, context: &str) -> Store<SimDevice> {
    assert_settled(device, context);
    let mut store = Store::open(device.clone(), &OpenOptions::default())
        .unwrap_or_else(|error| panic!("{context}: does not open: {error}"));
    let check = store.check().unwrap();
    let is_said = |problem: &flash::Problem| {
        report
            .findings
            .iter()
            .any(|finding| !finding.mended && !finding.data_lost && finding.file == problem.file)
    };
    for problem in &check.problems {
        let is_data = problem.data_lost && problem.file.is_some();
        assert!(is_data || is_said(problem), "{context}: {problem}");
    }
    store
}

fn judge_random_damage(first_seed: u64, seeds: u64, closed: bool) -> Tally {
    let mut tally = Tally::default();
    for seed in first_seed..first_seed + seeds {
        let life = Life::new(seed, closed);
        let mut random = Random::new(seed);
        for number in 0..24 {
            let chosen = life.choose(&mut random);
            let device = life.spoil(&chosen, &mut random);
            let context = format!("seed {seed} damage {number} {chosen:?}");
            let (report, repaired) = repair(device.clone(), &context);
            let mut store = open_repaired(&repaired, &report, &context);
            let rebuilt = is_older(&report);
            judge(
                &mut store,
                &life,
                &chosen,
                rebuilt,
                Some(&report),
                &mut tally,
                &context,
            );
            let is_left = |finding: &flash::Finding| !finding.mended && !finding.data_lost;
            if number % 4 == 0 && !report.findings.iter().any(is_left) {
                live_on(store, seed, &context);
            }
            // The same must hold if the power fails during the repair.
            let mut cut = device;
            cut.set_power_cut_after_writes(Some(random.below(24) + 1));
            if Store::repair(lend(&mut cut), &mut |_| {}).is_ok() {
                continue;
            }
            let image = cut.crash_image_random(seed * 100 + number);
            let context = format!("{context} cut");
            let (again, repaired) = repair(image, &context);
            let mut store = open_repaired(&repaired, &again, &context);
            let rebuilt = rebuilt || is_older(&again);
            judge(
                &mut store, &life, &chosen, rebuilt, None, &mut tally, &context,
            );
        }
    }
    println!("closed {closed}: {tally:?}");
    tally
}

#[test]
fn every_file_with_intact_blocks_of_a_closed_store_is_recovered_and_every_loss_named() {
    let tally = judge_random_damage(0, seeds(12), true);
    assert!(tally.exact > 1000 && tally.back > 20 && tally.harmed > 50 && tally.rebuilt > 5);
}

#[test]
fn every_file_with_intact_blocks_of_an_open_store_is_recovered() {
    let tally = judge_random_damage(1000, seeds(12), false);
    assert!(tally.exact > 1000 && tally.back > 20 && tally.harmed > 50 && tally.rebuilt > 5);
}
