//! Cutting the power at every device write of a scenario, and judging what recovery makes of it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use base::block::BlockDevice;
use base::sim::{Keep, Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, OpenOptions, Store};

use super::{Model, Moment, Operation, Recorder, operation, options, read_all};

/// Up to this many unflushed writes every subset is tried.
const SUBSETS_ALL_MAX: usize = 8;

/// A scenario: calls that run unobserved to prepare a store, and calls during which the power is cut.
pub struct Scenario {
    pub name: &'static str,
    pub device_blocks: u64,
    pub files_max: u64,
    pub prepare: Vec<Operation>,
    pub observe: Vec<Operation>,
}

/// What a crash run has seen.
#[derive(Default)]
pub struct Tally {
    /// Distinct (scenario, device image) states on which recovery was run.
    pub states: HashSet<(usize, u64)>,
    /// Of these, states after a second cut during recovery.
    pub second_cuts: u64,
    pub cuts: u64,
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
pub fn explore(scenario: &Scenario, number: usize, seed: u64, samples: u64, tally: &mut Tally) {
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

    /// A store opened without writing anything shows the same.
    fn judge_read_only(&self, device: &SimDevice, calls: usize, when: &str) {
        let context = || {
            format!(
                "{} {when}, after {calls} calls, read-only",
                self.scenario.name
            )
        };
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let mut store = Store::open(device.clone(), &read_only)
            .unwrap_or_else(|error| panic!("{}: {error}", context()));
        let found = read_all(&mut store).unwrap_or_else(|error| panic!("{}: {error}", context()));
        let before = &self.models[calls];
        let after = self.models.get(calls + 1).unwrap_or(before);
        assert!(
            is_allowed(&found, before, after, self.scenario.observe.get(calls)),
            "{}",
            context()
        );
        assert_eq!(
            store.device().counters().writes,
            device.counters().writes,
            "{}: wrote",
            context()
        );
    }

    fn judge(&self, device: Recorder, calls: usize, when: &str) {
        let context = || format!("{} {when}, after {calls} calls", self.scenario.name);
        self.judge_read_only(&device.inner, calls, when);
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

pub fn random_scenario(seed: u64) -> Scenario {
    let mut random = Random::new(seed);
    let files = random.index(6) + 1;
    let blocks = [192, 256, 512][random.index(3)];
    let mut calls = |count: usize, long_max: usize| {
        (0..count)
            .map(|_| operation(&mut random, files, long_max))
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

pub fn report(name: &str, tally: &Tally) {
    println!(
        "crash suite, {name}: {} distinct (scenario, device image) states recovered and judged \
         ({} power cuts, {} states of a second cut during recovery)",
        tally.states.len(),
        tally.cuts,
        tally.second_cuts
    );
}
