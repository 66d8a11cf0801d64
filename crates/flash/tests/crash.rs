//! Power cuts at every device write, with every subset of the unflushed writes, torn and whole, and a second
//! cut during recovery.
//!
//! The oracle: every call that had returned is there; the call that was running is wholly there or wholly
//! absent (a longer append: a prefix of it); nothing else has changed; every block is accounted for; no read
//! returns bytes that were not written.
//!
//! With `--features seeded-bug-swapped-barrier` these tests must fail.

mod common;

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use base::sim::{Keep, Random, SimDevice};
use common::{Model, Moment, Operation, Recorder, options, read_all};
use flash::{APPEND_ATOMIC_BYTES_MAX, OpenOptions, Store};

/// Up to this many unflushed writes every subset is tried.
const SUBSETS_ALL_MAX: usize = 8;

/// A scenario: calls that run unobserved to prepare a store, and calls during which the power is cut.
struct Scenario {
    name: &'static str,
    device_blocks: u64,
    files_max: u64,
    prepare: Vec<Operation>,
    observe: Vec<Operation>,
}

/// What a crash run has seen.
#[derive(Default)]
struct Tally {
    /// Distinct (scenario, device image) states on which recovery was run.
    states: HashSet<(usize, u64)>,
    /// Of these, states after a second cut during recovery.
    second_cuts: u64,
    cuts: u64,
}

struct Run<'a> {
    scenario: &'a Scenario,
    number: usize,
    /// Model before each observed call, and after the last.
    models: Vec<Model>,
    random: Random,
    /// Images sampled beyond the exhaustive ones, for each cut.
    samples: u64,
}

/// Runs the scenario once and explores every cut.
fn explore(scenario: &Scenario, number: usize, seed: u64, samples: u64, tally: &mut Tally) {
    let mut model = Model::new();
    let sim = SimDevice::new(scenario.device_blocks, seed);
    let mut store = Store::format(sim, &options(scenario.files_max)).unwrap();
    for operation in &scenario.prepare {
        if operation.run(&mut store).is_ok() {
            operation.apply(&mut model);
        }
    }
    let recorder = Recorder::new(store.close().unwrap());
    let moments = recorder.moments.clone();
    let calls = recorder.calls_returned.clone();
    let mut store = Store::open(recorder, &OpenOptions::default()).unwrap();
    let mut models = vec![model.clone()];
    for operation in &scenario.observe {
        if *operation == Operation::Reopen {
            store = Store::open(store.close().unwrap(), &OpenOptions::default()).unwrap();
        } else {
            let result = operation.run(&mut store);
            if result.is_ok() {
                operation.apply(&mut model);
            }
        }
        calls.fetch_add(1, Ordering::Relaxed);
        models.push(model.clone());
    }
    drop(store);
    let mut run = Run {
        scenario,
        number,
        models,
        random: Random::new(seed ^ 0x5eed),
        samples,
    };
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    for moment in moments {
        tally.cuts += 1;
        run.cut(&moment, tally);
    }
}

impl Run<'_> {
    /// The power goes at this moment: tries what may be left on the device.
    fn cut(&mut self, moment: &Moment, tally: &mut Tally) {
        let unflushed = moment.device.unflushed_count();
        if unflushed <= SUBSETS_ALL_MAX {
            for image in moment.device.crash_images_all_subsets() {
                self.recover(image, moment.calls_returned, tally);
            }
        }
        for torn in 0..unflushed {
            // Each write torn while the others are whole, and while they are lost.
            let mask = self.random.next_u64();
            for others in [Keep::Whole, Keep::Lost] {
                let keep = |index: usize| {
                    if index == torn {
                        Keep::Torn { sector_mask: mask }
                    } else {
                        others
                    }
                };
                self.recover(
                    moment.device.crash_image(&keep),
                    moment.calls_returned,
                    tally,
                );
            }
        }
        for _ in 0..self.samples {
            let image = moment.device.crash_image_random(self.random.next_u64());
            self.recover(image, moment.calls_returned, tally);
        }
    }

    /// Recovers one image and judges it; then cuts the power during recovery too.
    fn recover(&mut self, image: SimDevice, calls: usize, tally: &mut Tally) {
        if !tally.states.insert((self.number, image.image_hash())) {
            return;
        }
        let recorder = Recorder::new(image);
        let moments = recorder.moments.clone();
        self.judge(recorder, calls, "first cut");
        let moments = std::mem::take(&mut *moments.lock().unwrap());
        let which = self.random.index(moments.len().max(1));
        if let Some(moment) = moments.get(which) {
            // One random moment of recovery, one random image of it: over all states that is every kind.
            let image = moment.device.crash_image_random(self.random.next_u64());
            if tally.states.insert((self.number, image.image_hash())) {
                tally.second_cuts += 1;
                self.judge(Recorder::new(image), calls, "second cut");
            }
        }
    }

    fn judge(&self, device: Recorder, calls: usize, when: &str) {
        let context = || format!("{} {when}, after {calls} calls", self.scenario.name);
        let mut store = match Store::open(device, &OpenOptions::default()) {
            Ok(store) => store,
            Err(error) => panic!("{}: does not open: {error}", context()),
        };
        let report = store.check().expect("the device reads");
        assert!(report.is_clean(), "{}: {:?}", context(), report.problems);
        let found = read_all(&mut store).unwrap_or_else(|error| panic!("{}: {error}", context()));
        let before = &self.models[calls];
        let after = self.models.get(calls + 1).unwrap_or(before);
        assert!(
            is_allowed(&found, before, after, self.scenario.observe.get(calls)),
            "{}: running {:?}: {}",
            context(),
            self.scenario.observe.get(calls).map(Operation::file),
            differences(&found, before, after)
        );
    }
}

fn is_allowed(found: &Model, before: &Model, after: &Model, running: Option<&Operation>) -> bool {
    if found == before || found == after {
        return true;
    }
    let Some(Operation::Append(name, data)) = running else {
        return false;
    };
    if data.len() <= APPEND_ATOMIC_BYTES_MAX {
        return false;
    }
    // A longer append: some prefix of it.
    let (Some(old), Some(new)) = (before.get(name), found.get(name)) else {
        return false;
    };
    let mut rest = found.clone();
    rest.insert(name.clone(), old.clone());
    rest == *before && new.starts_with(old) && data.starts_with(&new[old.len()..])
}

fn differences(found: &Model, before: &Model, after: &Model) -> String {
    let mut text = String::new();
    let names: std::collections::BTreeSet<_> = found
        .keys()
        .chain(before.keys())
        .chain(after.keys())
        .collect();
    for name in names {
        let length = |model: &Model| model.get(name).map(Vec::len);
        if found.get(name) != before.get(name) || found.get(name) != after.get(name) {
            text += &format!(
                "{name}: found {:?}, before {:?}, after {:?} bytes; ",
                length(found),
                length(before),
                length(after)
            );
        }
    }
    text
}

fn append(name: &str, length: usize, tag: u8) -> Operation {
    let data = (0..length)
        .map(|index| tag ^ (index as u8).wrapping_mul(31))
        .collect();
    Operation::Append(name.to_owned(), data)
}

fn replace(name: &str, length: usize, tag: u8) -> Operation {
    let data = (0..length)
        .map(|index| tag ^ (index as u8).wrapping_mul(17))
        .collect();
    Operation::Replace(name.to_owned(), data)
}

/// Hand-made scenarios: one for each mechanism.
fn scenarios() -> Vec<Scenario> {
    let create = |name: &str| Operation::Create(name.to_owned());
    let delete = |name: &str| Operation::Delete(name.to_owned());
    let mut all = Vec::new();
    all.push(Scenario {
        name: "create and delete",
        device_blocks: 256,
        files_max: 4,
        prepare: vec![create("a"), append("a", 5000, 1)],
        observe: vec![
            create("b"),
            create("c"),
            delete("a"),
            create("a"),
            delete("b"),
            Operation::Reopen,
            delete("c"),
        ],
    });
    all.push(Scenario {
        name: "small appends take lanes in turn",
        device_blocks: 256,
        files_max: 4,
        prepare: vec![create("log")],
        observe: (0..60)
            .map(|tag| append("log", 100 + usize::from(tag) * 37 % 900, tag))
            .collect(),
    });
    all.push(Scenario {
        name: "block appends",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("log"), append("log", 100, 9)],
        observe: (0..40).map(|tag| append("log", 4096, tag)).collect(),
    });
    all.push(Scenario {
        name: "largest atomic appends over run ends",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("log"), append("log", 1, 9)],
        observe: (0..24)
            .map(|tag| append("log", APPEND_ATOMIC_BYTES_MAX - usize::from(tag % 3), tag))
            .collect(),
    });
    all.push(Scenario {
        name: "long appends",
        device_blocks: 1024,
        files_max: 4,
        prepare: vec![create("log"), append("log", 4000, 9)],
        observe: vec![
            append("log", 70_000, 1),
            append("log", 10, 2),
            append("log", 150_000, 3),
            append("log", 3904 * 16, 4),
            append("log", 99_999, 5),
        ],
    });
    all.push(Scenario {
        name: "replace",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![replace("a", 20_000, 1), create("b"), append("b", 30_000, 2)],
        observe: vec![
            replace("a", 500, 3),
            replace("a", 40_000, 4),
            replace("b", 0, 5),
            replace("c", 12_000, 6),
            replace("b", 9000, 7),
            append("b", 5000, 8),
            replace("b", 100, 9),
        ],
    });
    all.push(Scenario {
        name: "two files in turn",
        device_blocks: 512,
        files_max: 4,
        prepare: vec![create("a"), create("b")],
        observe: (0..30)
            .map(|tag| {
                append(
                    if tag % 2 == 0 { "a" } else { "b" },
                    700 + usize::from(tag) * 150,
                    tag,
                )
            })
            .collect(),
    });
    // More files than the root has slots: each append evicts another file.
    let names: Vec<String> = (0..36).map(|number| format!("f{number}")).collect();
    all.push(Scenario {
        name: "eviction",
        device_blocks: 2048,
        files_max: 40,
        prepare: names
            .iter()
            .flat_map(|name| [create(name), append(name, 300, 7)])
            .collect(),
        observe: (0..10)
            .map(|tag: u8| append(&names[usize::from(tag) * 3 % 36], 4096, tag))
            .collect(),
    });
    // Fragmented free space: deletions that spill the free list, then allocations that load it again.
    let names: Vec<String> = (0..160).map(|number| format!("f{number}")).collect();
    let mut prepare: Vec<Operation> = names
        .iter()
        .map(|name| replace(name, 3000 + name.len() * 900, 3))
        .collect();
    prepare.extend(names.iter().step_by(2).take(50).map(|name| delete(name)));
    all.push(Scenario {
        name: "spilling the free list",
        device_blocks: 2048,
        files_max: 160,
        prepare: prepare.clone(),
        observe: names
            .iter()
            .step_by(2)
            .skip(50)
            .take(16)
            .map(|name| delete(name))
            .collect(),
    });
    prepare.extend(names.iter().step_by(2).skip(50).map(|name| delete(name)));
    prepare.push(append("f1", 4_900_000, 4));
    all.push(Scenario {
        name: "allocating from spilled pieces on a nearly full store",
        device_blocks: 1600,
        files_max: 160,
        prepare: prepare.clone(),
        observe: vec![
            append("f3", 30_000, 1),
            append("f5", 60_000, 2),
            append("f7", 90_000, 3),
            delete("f1"),
            append("f9", 50_000, 4),
            append("f11", 4096, 5),
        ],
    });
    all
}

fn random_scenario(seed: u64) -> Scenario {
    let mut random = Random::new(seed);
    let files = random.index(6) + 1;
    let blocks = [192, 256, 512][random.index(3)];
    let mut calls = |count: usize, long_max: usize| {
        (0..count)
            .map(|_| common::operation(&mut random, files, long_max))
            .collect::<Vec<_>>()
    };
    Scenario {
        name: "random",
        device_blocks: blocks,
        files_max: 6,
        prepare: calls(30, 60_000)
            .into_iter()
            .filter(|call| *call != Operation::Reopen)
            .collect(),
        observe: calls(14, 50_000),
    }
}

fn report(name: &str, tally: &Tally) {
    println!(
        "crash suite, {name}: {} distinct (scenario, device image) states recovered and judged \
         ({} power cuts, {} states of a second cut during recovery)",
        tally.states.len(),
        tally.cuts,
        tally.second_cuts
    );
}

#[test]
fn every_scenario_survives_a_cut_at_every_write() {
    let mut tally = Tally::default();
    for (number, scenario) in scenarios().iter().enumerate() {
        explore(scenario, number, 7, 80, &mut tally);
    }
    report("hand-made scenarios", &tally);
    assert!(
        tally.states.len() >= 10_000,
        "the suite explores too little: {}",
        tally.states.len()
    );
}

/// Explores the random scenarios of a range of seeds.
fn random_scenarios(seeds: std::ops::Range<u64>) {
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        explore(&random_scenario(seed), seed as usize, seed, 24, &mut tally);
    }
    report(
        &format!("random scenarios {} to {}", seeds.start, seeds.end - 1),
        &tally,
    );
    assert!(
        tally.states.len() >= 20_000,
        "the suite explores too little: {}",
        tally.states.len()
    );
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_first_half() {
    random_scenarios(0..110);
}

#[test]
fn random_scenarios_survive_a_cut_at_every_write_second_half() {
    random_scenarios(1000..1110);
}
