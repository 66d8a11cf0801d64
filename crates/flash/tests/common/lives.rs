//! Lives of a store, one after the other: calls, an end without warning, recovery, judgement.

use std::collections::BTreeMap;

use base::block::{BlockDevice, Counters};
use base::sim::{FaultPlan, Keep, Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, Bound, Error, OpenOptions, PAYLOAD_BYTES, Store};

use super::bounds_of::bound_with_open;
use super::machine::{Ending, Machine};
use super::medium::free_list;
use super::meter::{self, REQUEST_BLOCKS_MAX};
use super::operation::{Files, Model, Operation, Weights, content, outcome_is_right};
use super::oracle::{Ledger, is_between, is_refused_half_way, shared};
use super::totals::assert_nothing_leaked;
use super::{options, read_file, read_files};

/// The most frequent calls of a life.
#[derive(Clone, Copy, Debug)]
pub enum Mood {
    Filling,
    Emptying,
    Churning,
    /// Many small appends to one or two files.
    Logging,
    /// Changing existing content: overwrites, truncations, renames.
    Editing,
    /// Hardly any call is durable by itself.
    Unsynced,
}

const MOODS: [Mood; 6] = [
    Mood::Filling,
    Mood::Emptying,
    Mood::Churning,
    Mood::Logging,
    Mood::Editing,
    Mood::Unsynced,
];

impl Mood {
    fn weights(self) -> Weights {
        let none = Weights {
            create: 1,
            append: 1,
            replace: 1,
            delete: 1,
            rename: 1,
            write_at: 1,
            truncate: 1,
            append_nosync: 1,
            write_at_nosync: 1,
            sync: 1,
            reopen: 0,
            write_pieces_nosync: 0,
            write_pieces_at_once: 0,
        };
        match self {
            Self::Filling => Weights {
                create: 2,
                append: 12,
                replace: 6,
                delete: 0,
                truncate: 0,
                append_nosync: 3,
                write_at: 3,
                ..none
            },
            Self::Emptying => Weights {
                append: 2,
                delete: 16,
                truncate: 5,
                write_at_nosync: 0,
                sync: 0,
                ..none
            },
            Self::Churning => Weights {
                create: 3,
                append: 8,
                replace: 4,
                delete: 5,
                rename: 2,
                write_at: 4,
                truncate: 4,
                append_nosync: 2,
                ..none
            },
            Self::Logging => Weights {
                create: 2,
                append: 12,
                append_nosync: 4,
                ..none
            },
            Self::Editing => Weights {
                create: 2,
                append: 4,
                rename: 4,
                write_at: 12,
                truncate: 10,
                ..none
            },
            Self::Unsynced => Weights {
                append_nosync: 20,
                write_at_nosync: 8,
                ..none
            },
        }
    }
}

/// The state of the store at the first life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Empty,
    Full,
    /// Nearly full, the free list spilled, and almost none of it left in the root.
    Spilled,
}

pub struct Setting {
    pub device_blocks: u64,
    pub files: usize,
    pub long_max: usize,
    pub start: Start,
    pub lives: usize,
    pub calls_max: usize,
    pub seeds: u64,
}

/// Events of all lives together, so that the test can check its own coverage.
#[derive(Default)]
struct Seen {
    lives: u64,
    calls: u64,
    second_cuts: u64,
    tails_advanced: u64,
    replacements_undone: u64,
    blocks_replayed: u64,
    undoable: u64,
    full: u64,
    pieces_max: u64,
    spilled_lives: u64,
    spills_loaded: u64,
    worst: BTreeMap<&'static str, Bound>,
}

/// Returns a call that suits the mood, given the content of the store.
pub fn random_call(random: &mut Random, setting: &Setting, mood: Mood, files: &Files) -> Operation {
    let is_logging = matches!(mood, Mood::Logging);
    let names = if is_logging { 2 } else { setting.files };
    let call = mood.weights().draw(random, files, names, setting.long_max);
    match call {
        Operation::Append(name, data) if is_logging && random.below(4) != 0 => {
            let length = data.len().min(random.index(2000) + 1);
            Operation::Append(name, data[..length].to_vec())
        }
        call => call,
    }
}

/// Returns an image after a power cut. In half of the cases each write is complete or lost, which random tearing seldom
/// gives. Otherwise anything is possible.
fn image_after_cut(device: &SimDevice, random: &mut Random) -> SimDevice {
    let choices = random.next_u64();
    if random.coin() {
        device.crash_image(&|index| {
            if choices >> (index % 64) & 1 == 1 {
                Keep::Whole
            } else {
                Keep::Lost
            }
        })
    } else {
        device.crash_image_random(choices)
    }
}

/// Fails if the device has done more since `before` than `bound` allows.
fn assert_within(before: Counters, now: Counters, bound: Bound, context: &str) -> Bound {
    let cost = meter::cost(before, now);
    assert!(
        meter::is_within(cost, bound) && now.write_blocks_max <= REQUEST_BLOCKS_MAX,
        "{context}: {cost:?} exceeds {bound:?}"
    );
    cost
}

struct Life<'a> {
    setting: &'a Setting,
    random: Random,
    machine: Machine,
    ledger: Ledger,
    mood: Mood,
    seen: &'a mut Seen,
    context: String,
}

impl Life<'_> {
    /// Runs calls until the life ends. Returns the call that was running then.
    fn live(&mut self, ending: Ending) -> Option<Operation> {
        if self.random.below(5) == 0 {
            self.mood = MOODS[self.random.index(MOODS.len())];
        }
        let mood = self.mood;
        let calls_max = self.random.index(self.setting.calls_max) + 1;
        let writes = self.random.below(3 * calls_max as u64) + 1;
        let mut store = match Store::open(&mut self.machine, &OpenOptions::default()) {
            Ok(store) => store,
            Err(error) => panic!("{}: opens once, then: {error}", self.context),
        };
        let machine = &mut **store.device_mut();
        match ending {
            Ending::PowerCut => machine.device.set_power_cut_after_writes(Some(writes)),
            Ending::Killed => {
                machine.writes_until_kill = Some(writes);
                machine.last_write_arrives = self.random.coin();
            }
            Ending::Failed => machine.device.set_fault_plan(FaultPlan {
                write_error_ppm: 30_000,
                flush_error_ppm: 30_000,
                ..FaultPlan::default()
            }),
            Ending::Closed => {}
        }
        let bounds = store.bounds();
        let mut running = None;
        for number in 0..calls_max {
            let operation = random_call(&mut self.random, self.setting, mood, self.ledger.now());
            let context = format!(
                "{} {ending:?} {mood:?} call {number} {}",
                self.context,
                operation.brief()
            );
            let lists_before = free_list(&store.device().device).0;
            let before = store.device().counters();
            store.device_mut().reset_write_blocks_max();
            let result = operation.run(&mut store);
            let (call, bound) = bound_with_open(&operation, self.ledger.now(), &bounds);
            let cost = assert_within(before, store.device().counters(), bound, &context);
            let worst = self.seen.worst.entry(call).or_default();
            *worst = meter::most(*worst, cost);
            self.seen.calls += 1;
            let (lists, pieces) = free_list(&store.device().device);
            self.seen.pieces_max = self.seen.pieces_max.max(pieces);
            self.seen.spills_loaded += u64::from(lists < lists_before);
            if let Err(Error::Device(_)) = result {
                assert!(store.has_failed(), "{context}");
                running = Some(operation);
                break;
            }
            assert!(
                outcome_is_right(&operation, self.ledger.now(), &result),
                "{context}: {result:?}"
            );
            self.seen.full += u64::from(matches!(result, Err(Error::Full)));
            settle(&mut store, &mut self.ledger, &operation, &result, &context);
        }
        self.seen.undoable += u64::from(self.ledger.pending_count() > 0);
        if store.has_failed() {
            if ending == Ending::Failed {
                judge_failed(&mut store, &self.ledger, running.as_ref(), &self.context);
            }
        } else if ending == Ending::Closed {
            store
                .close()
                .unwrap_or_else(|error| panic!("{}: close: {error}", self.context));
            self.ledger.returned(&Operation::Reopen);
        }
        running
    }

    /// Recovers, with cuts in between, and takes the result as the state of the next life.
    fn recover(&mut self, ending: Ending, running: Option<&Operation>) {
        self.machine.writes_until_kill = None;
        self.machine.device.set_fault_plan(FaultPlan::default());
        if ending == Ending::PowerCut {
            self.machine.device = image_after_cut(&self.machine.device, &mut self.random);
        }
        let context = format!(
            "{} {ending:?} in {}",
            self.context,
            running.map_or(String::new(), Operation::brief)
        );
        for _ in 0..self.random.index(3) {
            let writes = self.random.below(4) + 1;
            self.machine.device.set_power_cut_after_writes(Some(writes));
            let opened = Store::open(&mut self.machine, &OpenOptions::default());
            match opened {
                Ok(store) => drop(store),
                Err(Error::Device(_)) => self.seen.second_cuts += 1,
                Err(error) => panic!("{} {ending:?}: second opening: {error}", self.context),
            }
            self.machine.device = image_after_cut(&self.machine.device, &mut self.random);
        }
        self.machine.device.set_power_cut_after_writes(None);
        let seen_read_only = self.judge_read_only(&context, running);
        let before = self.machine.counters();
        let mut store = Store::open(&mut self.machine, &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{context}: does not open: {error}"));
        assert_within(
            before,
            store.device().counters(),
            store.bounds().mount(),
            &context,
        );
        let recovery = store.recovery();
        self.seen.tails_advanced += recovery.tails_advanced;
        self.seen.replacements_undone += recovery.replacements_undone;
        self.seen.blocks_replayed += recovery.blocks_replayed;
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{context}: {:?}", report.problems);
        assert_eq!(store.statistics().free_chains_broken, 0, "{context}");
        let found = read_files(&mut store, &seen_read_only)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        drop(store);
        assert!(
            found == seen_read_only,
            "{context}: read-only showed something else"
        );
        self.ledger = Ledger::new(found);
        let (lists, _) = free_list(&self.machine.device);
        self.seen.spilled_lives += u64::from(lists > 0);
    }

    fn judge_read_only(&self, context: &str, running: Option<&Operation>) -> Files {
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let mut store = Store::open(self.machine.device.clone(), &read_only)
            .unwrap_or_else(|error| panic!("{context}: does not open read-only: {error}"));
        let report = store.check().unwrap();
        assert!(
            report.is_clean(),
            "{context} read-only: {:?}",
            report.problems
        );
        let found = read_files(&mut store, self.ledger.now())
            .unwrap_or_else(|error| panic!("{context} read-only: {error}"));
        if let Err(differences) = self.ledger.judge(&found, running) {
            panic!("{context}: {differences}");
        }
        found
    }
}

/// Records the result of a call that has returned.
pub fn settle<D: BlockDevice>(
    store: &mut Store<D>,
    ledger: &mut Ledger,
    operation: &Operation,
    result: &Result<(), Error>,
    context: &str,
) {
    match (result, operation.changed_file()) {
        (Ok(()), _) => ledger.returned(operation),
        (Err(error @ (Error::Full | Error::Device(_) | Error::Damaged { .. })), Some(name))
            if ledger.now().contains_key(name) =>
        {
            let content = read_file(store, name)
                .unwrap_or_else(|error| panic!("{context}: after a refusal: {error}"));
            let old = &ledger.now()[name];
            let is_right = match error {
                Error::Full => is_refused_half_way(operation, old, &content),
                // The failed read may have been one that only looked ahead.
                _ => is_between(operation, old, &content),
            };
            assert!(
                is_right,
                "{context}: {error}, but {} bytes became {}",
                old.len(),
                content.len()
            );
            ledger.refused(operation, content);
        }
        _ => {}
    }
}

/// Requires that after a failed write or flush all acknowledged data can still be read.
fn judge_failed(
    store: &mut Store<&mut Machine>,
    ledger: &Ledger,
    running: Option<&Operation>,
    context: &str,
) {
    store
        .device_mut()
        .device
        .set_fault_plan(FaultPlan::default());
    let context = format!(
        "{context}, failed in {}",
        running.map_or(String::new(), Operation::brief)
    );
    let found =
        read_files(store, ledger.now()).unwrap_or_else(|error| panic!("{context}: {error}"));
    if let Err(differences) = ledger.judge(&found, running) {
        panic!("{context}: {differences}");
    }
}

/// Gives every file several runs, until nothing fits any more.
pub fn fill(store: &mut Store<SimDevice>, model: &mut Model, files: usize, random: &mut Random) {
    for number in (0..files).cycle() {
        let name = format!("file-{number}");
        let length = random.index(9 * PAYLOAD_BYTES) + 1;
        let operation = if model.contains_key(&name) {
            Operation::Append(name, content(random, length.min(APPEND_ATOMIC_BYTES_MAX)))
        } else {
            Operation::Replace(name, content(random, length))
        };
        match operation.run(store) {
            Ok(()) => operation.apply(model),
            Err(Error::Full) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Deletes files until the free list has been spilled; then allocates the space that the root still lists.
fn spill(store: &mut Store<SimDevice>, model: &mut Model, random: &mut Random) {
    let mut names: Vec<String> = model.keys().cloned().collect();
    random.shuffle(&mut names);
    while free_list(store.device()).0 == 0
        && let Some(name) = names.pop()
    {
        let operation = Operation::Delete(name);
        operation.run(store).unwrap();
        operation.apply(model);
    }
    while free_list(store.device()).1 > 0 && !names.is_empty() {
        let name = names[random.index(names.len())].clone();
        let operation = Operation::Append(name, content(random, APPEND_ATOMIC_BYTES_MAX));
        match operation.run(store) {
            Ok(()) => operation.apply(model),
            Err(Error::Full) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn lives(setting: &Setting, endings: &[Ending], seed: u64, seen: &mut Seen) {
    let sim = SimDevice::new(setting.device_blocks, seed);
    let mut store = Store::format(sim, &options(setting.files as u64)).unwrap();
    let mut random = Random::new(seed);
    let mut model = Model::new();
    if setting.start != Start::Empty {
        fill(&mut store, &mut model, setting.files, &mut random);
    }
    if setting.start == Start::Spilled {
        spill(&mut store, &mut model, &mut random);
    }
    let mut life = Life {
        setting,
        mood: match setting.start {
            Start::Spilled => Mood::Filling,
            _ => MOODS[seed as usize % MOODS.len()],
        },
        random,
        machine: Machine::new(store.close().unwrap()),
        ledger: Ledger::new(shared(&model)),
        seen,
        context: String::new(),
    };
    for number in 0..setting.lives {
        life.context = format!("seed {seed} life {number}");
        let ending = endings[life.random.index(endings.len())];
        let running = life.live(ending);
        life.recover(ending, running.as_ref());
        life.seen.lives += 1;
    }
    // No block was lost on the way: an emptied store has all its blocks again.
    let mut store = Store::open(&mut life.machine, &OpenOptions::default()).unwrap();
    let context = format!("seed {seed}, emptied");
    assert_nothing_leaked(&mut store, life.ledger.now(), &context);
}

fn report(name: &str, seen: &Seen) {
    println!(
        "cycles, {name}: {} lives, {} calls, {} lives ended with calls that a cut may undo, {} cuts during \
         recovery; {} tails advanced, {} replacements undone, {} blocks replayed; {} calls found the \
         store full; at most {} pieces, {} lives ended with a spilled list, {} calls loaded one",
        seen.lives,
        seen.calls,
        seen.undoable,
        seen.second_cuts,
        seen.tails_advanced,
        seen.replacements_undone,
        seen.blocks_replayed,
        seen.full,
        seen.pieces_max,
        seen.spilled_lives,
        seen.spills_loaded,
    );
    for (call, worst) in &seen.worst {
        println!("  {call:14} {worst:?}");
    }
}

pub const SETTINGS: [Setting; 5] = [
    // Lives so short that one ends during work that the previous one began.
    Setting {
        device_blocks: 120,
        files: 3,
        long_max: 60_000,
        start: Start::Empty,
        lives: 40,
        calls_max: 3,
        seeds: 80,
    },
    Setting {
        device_blocks: 160,
        files: 6,
        long_max: 60_000,
        start: Start::Empty,
        lives: 25,
        calls_max: 20,
        seeds: 20,
    },
    // More files than slots.
    Setting {
        device_blocks: 420,
        files: 50,
        long_max: 60_000,
        start: Start::Full,
        lives: 20,
        calls_max: 80,
        seeds: 5,
    },
    // More free pieces than the root lists.
    Setting {
        device_blocks: 1700,
        files: 170,
        long_max: 60_000,
        start: Start::Full,
        lives: 20,
        calls_max: 120,
        seeds: 3,
    },
    Setting {
        device_blocks: 1700,
        files: 170,
        long_max: 60_000,
        start: Start::Spilled,
        lives: 6,
        calls_max: 12,
        seeds: 20,
    },
];

/// Runs the lives of one store. The seed determines everything: the store, the ends of its lives, and the calls in
/// them.
pub fn run_seed(seed: u64) {
    let mut random = Random::new(seed);
    // Settings with many files take long, so they are rare.
    let setting = &SETTINGS[[0, 0, 0, 0, 0, 1, 1, 2, 3, 4][random.index(10)]];
    let endings: &[Ending] = match random.index(4) {
        0 => &[Ending::PowerCut],
        1 => &[Ending::Killed, Ending::PowerCut],
        2 => &[Ending::Failed, Ending::PowerCut],
        _ => &[
            Ending::PowerCut,
            Ending::Killed,
            Ending::Failed,
            Ending::Closed,
        ],
    };
    lives(setting, endings, random.next_u64(), &mut Seen::default());
}

/// Returns the factor for the usual number of seeds: `FLASH_CYCLES_SEEDS`.
fn seeds() -> u64 {
    std::env::var("FLASH_CYCLES_SEEDS")
        .ok()
        .map_or(1, |text| text.parse().expect("a number"))
}

pub fn run(name: &str, endings: &[Ending]) {
    for setting in &SETTINGS {
        let started = std::time::Instant::now();
        let mut seen = Seen::default();
        for seed in 0..setting.seeds * seeds() {
            lives(setting, endings, seed, &mut seen);
        }
        report(name, &seen);
        println!("  {:?}", started.elapsed());
    }
}
