//! Lives of a store, one after the other: calls, an end without warning, recovery, judgement.

use std::collections::BTreeMap;

use super::{Model, Operation, content, length, options, outcome_is_right, read_all};
use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::sim::{FaultPlan, Keep, Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, Bound, Bounds, Error, OpenOptions, PAYLOAD_BYTES, Store};

/// A machine whose process may be killed: the device then keeps its power and its unflushed writes.
pub struct Machine {
    pub device: SimDevice,
    /// Writes until the process is killed; the one that finds 1 here does not reach the device any more.
    pub writes_until_kill: Option<u64>,
}

impl Machine {
    pub fn new(device: SimDevice) -> Self {
        Self {
            device,
            writes_until_kill: None,
        }
    }

    fn require_life(&self) -> Result<(), DeviceError> {
        if self.writes_until_kill == Some(0) {
            Err(DeviceError::PowerLost)
        } else {
            Ok(())
        }
    }
}

impl BlockDevice for Machine {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        if let Some(left) = &mut self.writes_until_kill {
            *left = left.saturating_sub(1);
        }
        self.require_life()?;
        self.device.write(first_block, data)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.device.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.device.reset_write_blocks_max();
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power goes at a write, or between two calls.
    PowerCut,
    /// The process goes; whatever the device has in its cache stays there.
    Killed,
    /// A write or a flush fails and the store is opened again without a power cut.
    Failed,
    Closed,
}

/// What a life is mostly busy with.
#[derive(Clone, Copy, Debug)]
pub enum Mood {
    Filling,
    Emptying,
    Churning,
    /// Many small appends to one or two files.
    Logging,
}

const MOODS: [Mood; 4] = [Mood::Filling, Mood::Emptying, Mood::Churning, Mood::Logging];

/// What the first life finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Empty,
    Full,
    /// Nearly full, the free list spilled, and almost nothing of it left in the root.
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

/// What all lives together went through, so that the test can show that it tests what it says.
#[derive(Default)]
struct Seen {
    lives: u64,
    calls: u64,
    second_cuts: u64,
    tails_advanced: u64,
    replacements_undone: u64,
    table_blocks_replayed: u64,
    full: u64,
    pieces_max: u64,
    spilled_lives: u64,
    spills_loaded: u64,
    worst: BTreeMap<&'static str, Bound>,
}

pub fn random_call(random: &mut Random, setting: &Setting, mood: Mood) -> Operation {
    let files = if matches!(mood, Mood::Logging) {
        2
    } else {
        setting.files
    };
    let name = format!("file-{}", random.index(files));
    // Weights of create, append, replace, delete.
    let weights = match mood {
        Mood::Filling => [2, 12, 6, 0],
        Mood::Emptying => [1, 2, 1, 16],
        Mood::Churning => [3, 8, 4, 5],
        Mood::Logging => [2, 16, 1, 1],
    };
    let data = |random: &mut Random, empty_too: bool| {
        let length = if empty_too && random.below(6) == 0 {
            0
        } else if matches!(mood, Mood::Logging) && random.below(4) != 0 {
            random.index(2000) + 1
        } else {
            length(random, setting.long_max)
        };
        content(random, length)
    };
    let mut ticket = random.below(20);
    for (kind, weight) in weights.into_iter().enumerate() {
        if ticket < weight {
            return match kind {
                0 => Operation::Create(name),
                1 => Operation::Append(name, data(random, false)),
                2 => Operation::Replace(name, data(random, true)),
                _ => Operation::Delete(name),
            };
        }
        ticket -= weight;
    }
    Operation::Delete(name)
}

/// What a power cut leaves: as often as not each write wholly or not at all, which random tearing seldom
/// gives, else anything.
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

pub fn brief(operation: &Operation) -> String {
    match operation {
        Operation::Append(name, data) => format!("append {name} {}", data.len()),
        Operation::Replace(name, data) => format!("replace {name} {}", data.len()),
        other => format!("{other:?}"),
    }
}

/// Whether a store may hold `found` when `running` was interrupted on `before`.
fn is_allowed(found: &Model, before: &Model, running: Option<&Operation>) -> bool {
    let Some(running) = running else {
        return found == before;
    };
    let mut after = before.clone();
    running.apply(&mut after);
    if found == before || *found == after {
        return true;
    }
    let Operation::Append(name, data) = running else {
        return false;
    };
    let (Some(old), Some(new)) = (before.get(name), found.get(name)) else {
        return false;
    };
    let mut rest = found.clone();
    rest.insert(name.clone(), old.clone());
    data.len() > APPEND_ATOMIC_BYTES_MAX
        && rest == *before
        && new.starts_with(old)
        && data.starts_with(&new[old.len()..])
}

fn differences(found: &Model, before: &Model) -> String {
    let mut names: Vec<_> = found.keys().chain(before.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .filter(|name| found.get(*name) != before.get(*name))
        .map(|name| {
            let length = |model: &Model| model.get(name).map(Vec::len);
            format!(
                "{name}: found {:?}, before {:?} bytes; ",
                length(found),
                length(before)
            )
        })
        .collect()
}

fn field(device: &SimDevice, block: u64, offset: usize, bytes: usize) -> u64 {
    let block = device.peek(block);
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

/// First block of the record with the highest number (SPEC.md, "Record").
pub fn newest_record(device: &SimDevice) -> u64 {
    let places = [4, field(device, 0, 76, 4)];
    places
        .into_iter()
        .max_by_key(|place| field(device, *place, 16, 8))
        .unwrap()
}

/// Number of spilled lists and of pieces in the newest root (SPEC.md, "Root").
fn free_list(device: &SimDevice) -> (u64, u64) {
    let newest = newest_record(device);
    (field(device, newest, 76, 4), field(device, newest, 80, 2))
}

fn bound_of(operation: &Operation, bounds: &Bounds) -> (&'static str, Bound) {
    let sum = |left: Bound, right: Bound| Bound {
        reads: left.reads + right.reads,
        writes: left.writes + right.writes,
        flushes: left.flushes + right.flushes,
        blocks_written: left.blocks_written + right.blocks_written,
    };
    match operation {
        Operation::Create(_) => ("create", bounds.create()),
        // `Operation::run` opens the file first.
        Operation::Append(_, data) => (
            "append",
            sum(bounds.open(), bounds.append(data.len() as u64)),
        ),
        Operation::Replace(_, data) => ("replace", bounds.replace(data.len() as u64)),
        Operation::Delete(_) => ("delete", bounds.delete()),
        Operation::Reopen => ("reopen", Bound::default()),
    }
}

/// Fails when the device has done more since `before` than `bound` allows.
fn assert_within(before: Counters, now: Counters, bound: Bound, context: &str) -> Bound {
    let cost = Bound {
        reads: now.blocks_read - before.blocks_read,
        writes: now.writes - before.writes,
        flushes: now.flushes - before.flushes,
        blocks_written: now.blocks_written - before.blocks_written,
    };
    assert!(
        cost.reads <= bound.reads
            && cost.writes <= bound.writes
            && cost.flushes <= bound.flushes
            && cost.blocks_written <= bound.blocks_written
            && now.write_blocks_max <= 4,
        "{context}: {cost:?} exceeds {bound:?}"
    );
    cost
}

struct Life<'a> {
    setting: &'a Setting,
    random: Random,
    machine: Machine,
    model: Model,
    mood: Mood,
    seen: &'a mut Seen,
    context: String,
}

impl Life<'_> {
    /// Runs calls until the life ends; returns the call that was running then.
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
            Ending::Killed => machine.writes_until_kill = Some(writes),
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
            let operation = random_call(&mut self.random, self.setting, mood);
            let context = format!(
                "{} {ending:?} {mood:?} call {number} {}",
                self.context,
                brief(&operation)
            );
            let lists_before = free_list(&store.device().device).0;
            let before = store.device().counters();
            store.device_mut().reset_write_blocks_max();
            let result = operation.run(&mut store);
            let (call, bound) = bound_of(&operation, &bounds);
            let cost = assert_within(before, store.device().counters(), bound, &context);
            let worst = self.seen.worst.entry(call).or_default();
            worst.reads = worst.reads.max(cost.reads);
            worst.writes = worst.writes.max(cost.writes);
            worst.flushes = worst.flushes.max(cost.flushes);
            worst.blocks_written = worst.blocks_written.max(cost.blocks_written);
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
                outcome_is_right(&operation, &self.model, &result),
                "{context}: {result:?}"
            );
            self.seen.full += u64::from(matches!(result, Err(Error::Full)));
            match (&operation, &result) {
                (_, Ok(())) => operation.apply(&mut self.model),
                (Operation::Append(name, data), Err(Error::Full)) => {
                    let length = store.stat(name).unwrap().length_bytes as usize;
                    let content = self.model.get_mut(name).unwrap();
                    let added = length - content.len();
                    assert!(
                        added == 0 || data.len() > APPEND_ATOMIC_BYTES_MAX,
                        "{context}"
                    );
                    content.extend_from_slice(&data[..added]);
                }
                _ => {}
            }
        }
        if store.has_failed() {
            if ending == Ending::Failed {
                judge_failed(&mut store, &self.model, running.as_ref(), &self.context);
            }
        } else if ending == Ending::Closed {
            store
                .close()
                .unwrap_or_else(|error| panic!("{}: close: {error}", self.context));
        }
        running
    }

    /// Recovers, with cuts in between, and takes what is there as the model.
    fn recover(&mut self, ending: Ending, running: Option<&Operation>) {
        self.machine.writes_until_kill = None;
        self.machine.device.set_fault_plan(FaultPlan::default());
        if ending == Ending::PowerCut {
            self.machine.device = image_after_cut(&self.machine.device, &mut self.random);
        }
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
        let context = format!(
            "{} {ending:?} in {}",
            self.context,
            running.map_or(String::new(), brief)
        );
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
        self.seen.table_blocks_replayed += recovery.table_blocks_replayed;
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{context}: {:?}", report.problems);
        assert_eq!(store.statistics().free_chains_broken, 0, "{context}");
        let found = read_all(&mut store).unwrap_or_else(|error| panic!("{context}: {error}"));
        drop(store);
        assert!(
            found == seen_read_only,
            "{context}: read-only showed something else: {}",
            differences(&found, &seen_read_only)
        );
        self.model = found;
        let (lists, _) = free_list(&self.machine.device);
        self.seen.spilled_lives += u64::from(lists > 0);
    }

    fn judge_read_only(&self, context: &str, running: Option<&Operation>) -> Model {
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
        let found =
            read_all(&mut store).unwrap_or_else(|error| panic!("{context} read-only: {error}"));
        assert!(
            is_allowed(&found, &self.model, running),
            "{context}: {}",
            differences(&found, &self.model)
        );
        found
    }
}

/// After a failed write or flush everything that was acknowledged is still read.
fn judge_failed(
    store: &mut Store<&mut Machine>,
    model: &Model,
    running: Option<&Operation>,
    context: &str,
) {
    store
        .device_mut()
        .device
        .set_fault_plan(FaultPlan::default());
    let context = format!(
        "{context}, failed in {}",
        running.map_or(String::new(), brief)
    );
    let found = read_all(store).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(
        is_allowed(&found, model, running),
        "{context}: {}",
        differences(&found, model)
    );
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

/// Deletes files until the free list has been spilled; then takes what the root still lists.
fn spill(store: &mut Store<SimDevice>, model: &mut Model, random: &mut Random) {
    let mut names: Vec<String> = model.keys().cloned().collect();
    random.shuffle(&mut names);
    while free_list(store.device()).0 == 0 {
        let operation = Operation::Delete(names.pop().unwrap());
        operation.run(store).unwrap();
        operation.apply(model);
    }
    while free_list(store.device()).1 > 0 {
        let name = names[random.index(names.len())].clone();
        let operation = Operation::Append(name, content(random, APPEND_ATOMIC_BYTES_MAX));
        operation.run(store).unwrap();
        operation.apply(model);
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
        model,
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
    // Nothing was lost on the way: an emptied store has all its blocks again.
    let mut store = Store::open(&mut life.machine, &OpenOptions::default()).unwrap();
    for name in life.model.keys() {
        store.delete(name).unwrap();
    }
    let statistics = store.statistics();
    assert_eq!(
        statistics.blocks_free, statistics.blocks_total,
        "seed {seed}"
    );
    assert!(store.check().unwrap().is_clean(), "seed {seed}");
}

fn report(name: &str, seen: &Seen) {
    println!(
        "cycles, {name}: {} lives, {} calls, {} cuts during recovery; {} tails advanced, {} replacements \
         undone, {} table blocks replayed; {} calls found the store full; at most {} pieces, {} lives \
         ended with a spilled list, {} calls loaded one",
        seen.lives,
        seen.calls,
        seen.second_cuts,
        seen.tails_advanced,
        seen.replacements_undone,
        seen.table_blocks_replayed,
        seen.full,
        seen.pieces_max,
        seen.spilled_lives,
        seen.spills_loaded,
    );
    for (call, worst) in &seen.worst {
        println!("  {call:8} {worst:?}");
    }
}

pub const SETTINGS: [Setting; 5] = [
    // Lives so short that one ends in what the one before it had begun.
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

/// How many times as many seeds as usual: `FLASH_CYCLES_SEEDS`.
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
