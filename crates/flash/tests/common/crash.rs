//! Cutting the power at every device write of a scenario, and judging the result of recovery.

use std::collections::HashMap;

use base::block::BlockDevice;
use base::sim::{Keep, Random, SimDevice};
use flash::{Error, OpenOptions, Store};

use super::lives::settle;
use super::medium::{list_in, newest_record};
use super::operation::{Files, Operation, Weights, outcome_is_right};
use super::oracle::Ledger;
use super::recorder::{Moment, Recorder};
use super::{options, read_files};

/// Up to this many unflushed writes, every subset is tried.
const SUBSETS_ALL_MAX: usize = 7;

/// The mask of all sectors of one block.
const BLOCK_SECTORS: u64 = 0xff;

/// Maximum number of power cuts in a row: in a call, in the recovery after it, in the recovery after that.
const CUTS_MAX: usize = 3;

/// One out of this many recovered stores is used for a few more calls.
const GO_ON_ONE_IN: u64 = 12;

/// A scenario: calls that run unobserved to prepare a store, and calls during which the power is cut.
pub struct Scenario {
    pub name: &'static str,
    pub device_blocks: u64,
    pub files_max: u64,
    pub prepare: Vec<Operation>,
    pub observe: Vec<Operation>,
    /// Whether each write is torn into every subset of its blocks, not into a random one.
    pub every_block_tear: bool,
}

/// Counts of a crash run.
#[derive(Default)]
pub struct Tally {
    /// Distinct device images, in each scenario, on which recovery was run and judged.
    pub states: u64,
    /// Of these, states after a second or third cut during recovery.
    pub later_cuts: u64,
    /// Of these, states in which such a cut changed the result of the previous one, within the allowed limits.
    pub resettled: u64,
    /// Of these, states in which a cut was allowed to undo calls that had returned (`nosync`).
    pub undoable: u64,
    /// Number of recovered stores that were used further and checked again.
    pub went_on: u64,
    pub cuts: u64,
    pub scenarios: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.later_cuts += other.later_cuts;
        self.resettled += other.resettled;
        self.undoable += other.undoable;
        self.went_on += other.went_on;
        self.cuts += other.cuts;
        self.scenarios += other.scenarios;
    }
}

struct Run<'a> {
    scenario: &'a Scenario,
    /// The allowed losses before each observed call and after the last.
    ledgers: Vec<Ledger>,
    random: Random,
    /// Images sampled beyond the exhaustive ones, for each cut.
    samples: u64,
    /// The content after recovery of each image seen so far. The same image may occur again at a later moment, when
    /// fewer losses are allowed.
    recovered: HashMap<u64, Files>,
    tally: Tally,
}

/// Runs the scenario once and explores every cut.
pub fn explore(scenario: &Scenario, seed: u64, samples: u64) -> Tally {
    let sim = SimDevice::new(scenario.device_blocks, seed);
    let mut store = Store::format(sim, &options(scenario.files_max)).unwrap();
    let mut ledger = Ledger::new(Files::new());
    for operation in &scenario.prepare {
        call(&mut store, operation, &mut ledger, scenario.name);
    }
    ledger.returned(&Operation::Reopen);
    let recorder = Recorder::new(store.close().unwrap());
    let moments = recorder.moments.clone();
    let mut store = Store::open(recorder, &OpenOptions::default()).unwrap();
    let mut ledgers = vec![ledger.clone()];
    for operation in &scenario.observe {
        if *operation == Operation::Reopen {
            store = Store::open(store.close().unwrap(), &OpenOptions::default()).unwrap();
            ledger.returned(operation);
        } else {
            call(&mut store, operation, &mut ledger, scenario.name);
        }
        store.device().call_has_returned();
        ledgers.push(ledger.clone());
    }
    drop(store);
    let mut run = Run {
        scenario,
        ledgers,
        random: Random::new(seed ^ 0x5eed),
        samples,
        recovered: HashMap::new(),
        tally: Tally::default(),
    };
    for moment in std::mem::take(&mut *moments.lock().unwrap()) {
        run.tally.cuts += 1;
        run.cut(&moment);
    }
    run.tally.scenarios = 1;
    run.tally
}

/// Returns how many observed calls of the scenario spill a list into a cluster that holds an intact list of an earlier
/// life.
pub fn spills_over_older_lists(scenario: &Scenario) -> usize {
    let sim = SimDevice::new(scenario.device_blocks, 7);
    let mut store = Store::format(sim, &options(scenario.files_max)).unwrap();
    let run = |store: &mut Store<SimDevice>, operation: &Operation| {
        let result = operation.run(store);
        assert!(matches!(result, Ok(()) | Err(Error::Full)), "{result:?}");
    };
    for operation in &scenario.prepare {
        run(&mut store, operation);
    }
    let mut store = Store::open(store.close().unwrap(), &OpenOptions::default()).unwrap();
    let mut count = 0;
    for operation in &scenario.observe {
        let before = store.device().clone();
        run(&mut store, operation);
        let newest = newest_record(store.device());
        let is_list = |device: &SimDevice| list_in(device, newest).is_some();
        let is_new = list_in(&before, newest) != list_in(store.device(), newest);
        count += usize::from(is_list(&before) && is_list(store.device()) && is_new);
    }
    count
}

/// Runs one call of a scenario and records its result.
fn call<D: BlockDevice>(
    store: &mut Store<D>,
    operation: &Operation,
    ledger: &mut Ledger,
    context: &str,
) {
    let result = operation.run(store);
    assert!(
        outcome_is_right(operation, ledger.now(), &result),
        "{context}: {}: {result:?}",
        operation.brief()
    );
    settle(store, ledger, operation, &result, context);
}

impl Run<'_> {
    /// Cuts the power at this moment and tries the possible remains on the device.
    fn cut(&mut self, moment: &Moment) {
        let unflushed = moment.device.unflushed_count();
        let few = unflushed <= SUBSETS_ALL_MAX;
        if few {
            for image in moment.device.crash_images_all_subsets() {
                self.recover(image, moment);
            }
        }
        for torn in 0..unflushed {
            // Tear each write while the others are complete, and while they are lost.
            let mut masks = vec![self.random.next_u64()];
            masks.extend(self.block_masks(moment, torn));
            for mask in masks {
                for others in [Keep::Whole, Keep::Lost] {
                    let keep = |index: usize| {
                        if index == torn {
                            Keep::Torn { sector_mask: mask }
                        } else {
                            others
                        }
                    };
                    self.recover(moment.device.crash_image(&keep), moment);
                }
            }
            if !few {
                // Only this one lost, only this one there, and everything up to it.
                for keeps in [
                    |index: usize, which: usize| index != which,
                    |index: usize, which: usize| index == which,
                    |index: usize, which: usize| index <= which,
                ] {
                    let keep = |index: usize| {
                        if keeps(index, torn) {
                            Keep::Whole
                        } else {
                            Keep::Lost
                        }
                    };
                    self.recover(moment.device.crash_image(&keep), moment);
                }
            }
        }
        for _ in 0..self.samples {
            let image = moment.device.crash_image_random(self.random.next_u64());
            self.recover(image, moment);
        }
    }

    /// Returns sector masks that tear unflushed write `write` between its blocks, so that each block is either old or
    /// new. Randomly torn sectors hardly ever give this.
    fn block_masks(&mut self, moment: &Moment, write: usize) -> Vec<u64> {
        let blocks = moment.device.unflushed().nth(write).unwrap().block_count;
        // In longer requests a bit of the mask covers several sectors; the store makes no such requests.
        assert!(blocks <= 8);
        let subsets = 1..(1_u64 << blocks) - 1;
        let subsets = if subsets.is_empty() || self.scenario.every_block_tear {
            subsets
        } else {
            let one = subsets.start + self.random.below(subsets.end - subsets.start);
            one..one + 1
        };
        let mask = |subset: u64| {
            let kept = (0..blocks).filter(|block| subset >> block & 1 == 1);
            kept.fold(0, |mask, block| mask | BLOCK_SECTORS << (8 * block))
        };
        subsets.map(mask).collect()
    }

    /// Recovers an image and judges it; then cuts the power during recovery too, and during the recovery after
    /// that.
    fn recover(&mut self, image: SimDevice, moment: &Moment) {
        let mut image = image;
        let mut before: Option<Files> = None;
        for cuts in 1..=CUTS_MAX {
            let hash = image.image_hash();
            if let Some(found) = self.recovered.get(&hash) {
                self.judge(found, moment, "known image");
                return;
            }
            let recorder = Recorder::new(image);
            let moments = recorder.moments.clone();
            let found = self.recover_and_judge(recorder, moment, &format!("cut {cuts}"));
            if let Some(before) = before {
                self.tally.later_cuts += 1;
                // Usually the first cut has settled the content. But a write may by chance complete one that was torn
                // earlier; then a call that had not returned has happened after all.
                self.tally.resettled += u64::from(found != before);
            }
            self.note(hash, found.clone(), moment);
            before = Some(found);
            let moments = std::mem::take(&mut *moments.lock().unwrap());
            // One random moment of recovery, and one random image of it: over all states this covers every kind.
            let Some(during) = moments.get(self.random.index(moments.len().max(1))) else {
                return;
            };
            image = during.device.crash_image_random(self.random.next_u64());
        }
    }

    fn note(&mut self, hash: u64, found: Files, moment: &Moment) {
        self.tally.states += 1;
        let undoable = self.ledgers[moment.calls_returned].pending_count() > 0;
        self.tally.undoable += u64::from(undoable);
        self.recovered.insert(hash, found);
    }

    fn judge(&self, found: &Files, moment: &Moment, when: &str) {
        let calls = moment.calls_returned;
        let running = self
            .scenario
            .observe
            .get(calls)
            .filter(|_| moment.is_inside);
        if let Err(differences) = self.ledgers[calls].judge(found, running) {
            panic!(
                "{} {when}, after {calls} calls: {differences}",
                self.scenario.name
            );
        }
    }

    /// Opens the image read-only, then for writing. Both must show the same content, and it must be allowed.
    fn recover_and_judge(&mut self, device: Recorder, moment: &Moment, when: &str) -> Files {
        let calls = moment.calls_returned;
        let name = self.scenario.name;
        let context = || format!("{name} {when}, after {calls} calls");
        let expected = self.ledgers[calls].now().clone();
        // Use small tables: creating large ones takes longer than recovery.
        let options = OpenOptions {
            open_files_max: 4,
            addresses_max: 256,
            read_only: true,
        };
        let writes = device.inner.counters().writes;
        let mut store = Store::open(device.inner.clone(), &options)
            .unwrap_or_else(|error| panic!("{}: read-only: {error}", context()));
        let found = read_files(&mut store, &expected)
            .unwrap_or_else(|error| panic!("{}: read-only: {error}", context()));
        assert_eq!(
            store.device().counters().writes,
            writes,
            "{}: a read-only store wrote",
            context()
        );
        self.judge(&found, moment, when);

        let options = OpenOptions {
            read_only: false,
            ..options
        };
        let mut store = match Store::open(device, &options) {
            Ok(store) => store,
            Err(error) => panic!("{}: does not open: {error}", context()),
        };
        let report = store.check().expect("the device reads");
        assert!(report.is_clean(), "{}: {:?}", context(), report.problems);
        let mended = read_files(&mut store, &expected)
            .unwrap_or_else(|error| panic!("{}: {error}", context()));
        assert!(
            mended == found,
            "{}: opened for writing it shows something else than read-only",
            context()
        );
        if self.random.below(GO_ON_ONE_IN) == 0 {
            self.tally.went_on += 1;
            go_on(&mut store, &found, &mut self.random, &context());
        }
        found
    }
}

/// Checks that a recovered store can be used further.
fn go_on(store: &mut Store<Recorder>, found: &Files, random: &mut Random, context: &str) {
    let mut ledger = Ledger::new(found.clone());
    let kept_moments = std::mem::take(&mut *store.device().moments.lock().unwrap());
    for _ in 0..4 {
        let operation = Weights {
            reopen: 0,
            ..Weights::ALL
        }
        .draw(random, ledger.now(), 6, 20_000);
        call(store, &operation, &mut ledger, context);
    }
    let report = store.check().expect("the device reads");
    assert!(
        report.is_clean(),
        "{context}, going on: {:?}",
        report.problems
    );
    let after = read_files(store, ledger.now())
        .unwrap_or_else(|error| panic!("{context}, going on: {error}"));
    assert!(
        after == *ledger.now(),
        "{context}, going on: content differs"
    );
    *store.device().moments.lock().unwrap() = kept_moments;
}

pub fn report(name: &str, tally: &Tally) {
    println!(
        "crash suite, {name}: {} distinct (scenario, device image) states recovered and judged in {} \
         scenarios ({} power cuts, {} states of later cuts during recovery of which {} changed what was there, \
         {} with calls that a cut may undo, {} stores worked on afterwards)",
        tally.states,
        tally.scenarios,
        tally.cuts,
        tally.later_cuts,
        tally.resettled,
        tally.undoable,
        tally.went_on
    );
}
