//! Synthetic programs on simulated devices: measures the benefit of prefetching, in blocks. Deterministic, without a
//! clock.

use super::*;
use crate::predict::Predictor;
use std::collections::{HashSet, VecDeque};

/// The number of blocks of the stream that arrive between two reads of a program.
const ARRIVE_PER_READ: usize = 4;

/// A random number generator (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn block(file: u32, index: u32) -> BlockAt {
    BlockAt {
        file: FileId(file),
        index,
    }
}

/// Returns a part of a program: runs of blocks scattered over its files.
fn part(random: &mut Random, files: std::ops::Range<u32>, blocks: usize) -> Vec<BlockAt> {
    let (mut part, mut seen) = (Vec::new(), HashSet::new());
    while part.len() < blocks {
        let file = files.start + random.below(files.len()) as u32;
        let first = random.below(4_000) as u32;
        for index in first..first + 1 + random.below(4) as u32 {
            let at = block(file, index);
            if part.len() < blocks && seen.insert(at) {
                part.push(at);
            }
        }
    }
    part
}

/// A program that always reads its core, and within it a part for each of its arguments.
struct Program {
    core: Vec<BlockAt>,
    parts: Vec<Vec<BlockAt>>,
}

impl Program {
    fn new(seed: u64, core: usize, parts: usize, blocks: usize) -> Self {
        let mut random = Random(seed);
        Self {
            core: part(&mut random, 1..12, core),
            parts: (0..parts as u32)
                .map(|number| part(&mut random, 100 + number..101 + number, blocks))
                .collect(),
        }
    }

    /// Returns the blocks that it reads with these arguments.
    fn reads(&self, arguments: &[usize]) -> Vec<BlockAt> {
        let (before, after) = self.core.split_at(self.core.len() * 3 / 4);
        let parts = arguments.iter().flat_map(|number| &self.parts[*number]);
        before.iter().chain(parts).chain(after).copied().collect()
    }

    /// Returns random arguments: some of the parts.
    fn arguments(&self, random: &mut Random, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.parts.len()).collect();
        (0..count)
            .map(|_| all.swap_remove(random.below(all.len())))
            .collect()
    }
}

/// A program that runs on a device with nothing in its memory.
struct Running {
    token: Token,
    reads: Vec<BlockAt>,
    at: usize,
    stream: VecDeque<BlockAt>,
    arrived: HashSet<BlockAt>,
    pushed: HashSet<BlockAt>,
    /// The first prefetched block of each file: not handed out before it is read.
    probes: HashSet<BlockAt>,
    probed: HashSet<FileId>,
    /// Reads that the device has seen.
    seen: Vec<BlockAt>,
    is_audit: bool,
    is_exact: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    reads: usize,
    /// Blocks that were read and were sent without a request.
    hits: usize,
    pushed: usize,
    unread: usize,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.pushed += other.pushed;
        self.unread += other.unread;
    }
}

impl Figures {
    fn hit_share(&self) -> f64 {
        self.hits as f64 / self.reads as f64
    }

    fn unread_share(&self) -> f64 {
        self.unread as f64 / self.pushed.max(1) as f64
    }

    fn print(&self, what: &str) {
        println!(
            "{what}: hit {:.2} %, pushed and not read {:.2} %",
            self.hit_share() * 100.0,
            self.unread_share() * 100.0
        );
    }
}

/// Devices of one tenant.
struct World {
    predictor: TaskPredictor,
    tokens: u128,
    now_ms: u64,
}

const TASK: FileId = FileId(1);

impl World {
    fn new() -> Self {
        Self {
            predictor: TaskPredictor::new(TaskSettings::default()),
            tokens: 0,
            now_ms: 0,
        }
    }

    fn begin(&mut self, reads: Vec<BlockAt>) -> Running {
        self.tokens += 1;
        self.now_ms += 100_000;
        let token = Token(self.tokens.to_le_bytes());
        let begun = self
            .predictor
            .begin(token, TASK, &HeldBlocks::default(), self.now_ms);
        let mut running = Running {
            token,
            reads,
            at: 0,
            stream: VecDeque::new(),
            arrived: HashSet::new(),
            pushed: HashSet::new(),
            probes: HashSet::new(),
            probed: HashSet::new(),
            seen: Vec::new(),
            is_audit: begun.is_audit,
            is_exact: begun.is_audit || begun.push == Push::Nothing,
        };
        running.take(begun.push, None);
        running
    }

    /// Does one read of a program. Returns whether it continues.
    fn step(&mut self, running: &mut Running) -> bool {
        let Some(at) = running.reads.get(running.at).copied() else {
            return false;
        };
        running.at += 1;
        running.receive();
        if !running.arrived.contains(&at) {
            let push = self.predictor.request(running.token, at, self.now_ms);
            running.take(push, Some(at));
            if let Some(place) = running.stream.iter().position(|other| *other == at) {
                running.stream.remove(place);
                running.pushed.insert(at);
            }
            running.arrived.insert(at);
            running.seen.push(at);
        } else if running.probes.remove(&at) {
            running.seen.push(at);
        }
        true
    }

    fn end(&mut self, mut running: Running) -> Figures {
        while !running.stream.is_empty() {
            running.receive();
        }
        let told = if running.is_exact {
            &running.reads
        } else {
            &running.seen
        };
        for blocks in told.chunks(100) {
            self.predictor.trace(running.token, blocks, self.now_ms);
        }
        self.predictor
            .end(running.token, running.is_exact, true, self.now_ms);
        let read: HashSet<BlockAt> = running.reads.iter().copied().collect();
        let hits = running.pushed.intersection(&read).count();
        Figures {
            reads: read.len(),
            hits,
            pushed: running.pushed.len(),
            unread: running.pushed.len() - hits,
        }
    }

    fn run(&mut self, reads: Vec<BlockAt>) -> Figures {
        let mut running = self.begin(reads);
        while self.step(&mut running) {}
        self.end(running)
    }
}

impl Running {
    fn take(&mut self, push: Push, asked: Option<BlockAt>) {
        match push {
            Push::Nothing => {}
            Push::Blocks(blocks) => {
                assert!((1..=SEGMENT_BLOCKS as usize).contains(&blocks.len()));
                self.is_exact &= self.is_audit;
                for at in blocks.into_iter().rev() {
                    assert!(Some(at) != asked && self.arrived.insert(at), "sent twice");
                    self.push(at);
                }
            }
            Push::Plan(plan) => {
                assert!(
                    plan.pieces
                        .iter()
                        .all(|piece| (1..=32).contains(&piece.len()))
                );
                self.stream = plan.blocks().filter(|at| Some(*at) != asked).collect();
            }
            Push::Stop => self.stream.clear(),
        }
    }

    fn receive(&mut self) {
        for _ in 0..ARRIVE_PER_READ {
            if let Some(at) = self.stream.pop_front()
                && self.arrived.insert(at)
            {
                self.push(at);
            }
        }
    }

    fn push(&mut self, at: BlockAt) {
        self.pushed.insert(at);
        if self.probed.insert(at.file) {
            self.probes.insert(at);
        }
    }
}

#[test]
fn the_same_arguments_hit_all_and_waste_nothing() {
    let (program, mut world) = (Program::new(1, 1_500, 4, 100), World::new());
    let first = world.run(program.reads(&[0, 1]));
    assert_eq!((first.hits, first.pushed), (0, 0));
    let plan = world.predictor.plan(TASK).unwrap();
    let mut sum = Figures::default();
    for _ in 0..20 {
        let figures = world.run(program.reads(&[0, 1]));
        assert_eq!((figures.hits, figures.unread), (figures.reads, 0));
        sum += figures;
    }
    assert_eq!(world.predictor.plan(TASK).unwrap().number, plan.number);
    sum.print("same arguments, 20 runs");
}

#[test]
fn the_same_arguments_with_a_little_chance_waste_little() {
    // Like a Java virtual machine: some blocks are read only in some runs, and their order varies a little.
    let (program, mut world) = (Program::new(2, 1_500, 1, 100), World::new());
    let mut random = Random(77);
    let mut sum = Figures::default();
    for run in 0..60 {
        let mut reads = program.reads(&[]);
        reads.extend(
            program.parts[0]
                .iter()
                .filter(|_| random.below(2) == 0)
                .copied()
                .collect::<Vec<_>>(),
        );
        for _ in 0..40 {
            let place = random.below(reads.len() - 1);
            reads.swap(place, place + 1);
        }
        let figures = world.run(reads);
        if run >= 10 {
            sum += figures;
        }
    }
    sum.print("same arguments with chance, runs 11 to 60");
    assert!(
        sum.hit_share() > 0.95 && sum.unread_share() < 0.02,
        "{sum:?}"
    );
}

fn varied(program: &Program, seed: u64, count: usize, warm: usize) -> Figures {
    let (mut world, mut random) = (World::new(), Random(seed));
    let mut sum = Figures::default();
    for run in 0..warm + 60 {
        let arguments = program.arguments(&mut random, count);
        let figures = world.run(program.reads(&arguments));
        if run >= warm {
            sum += figures;
        }
    }
    sum
}

#[test]
fn varied_arguments_hit_most_and_waste_little() {
    // A core of 600 blocks; 8 parts of 60, of which each run reads 2 at random.
    let program = Program::new(3, 600, 8, 60);
    let early = varied(&program, 5, 2, 1);
    early.print("varied arguments, runs 2 to 61");
    let late = varied(&program, 5, 2, 10);
    late.print("varied arguments, runs 11 to 70");
    assert!(
        early.unread_share() < 0.05 && early.hit_share() > 0.9,
        "{early:?}"
    );
    assert!(
        late.unread_share() < 0.03 && late.hit_share() > 0.95,
        "{late:?}"
    );
}

#[test]
fn varied_arguments_of_a_program_with_a_small_core_hit_most() {
    // A core of 100 blocks; 20 parts of 100, of which each run reads 3 at random: most of what it reads varies.
    let program = Program::new(4, 100, 20, 100);
    let early = varied(&program, 6, 3, 1);
    early.print("small core, runs 2 to 61");
    let late = varied(&program, 6, 3, 20);
    late.print("small core, runs 21 to 80");
    assert!(early.unread_share() < 0.15, "{early:?}");
    assert!(
        late.unread_share() < 0.10 && late.hit_share() > 0.8,
        "{late:?}"
    );
}

#[test]
fn blocks_read_by_chance_are_not_pushed() {
    // Each of 400 blocks beside the core is read in 3 of 10 runs, independently of everything else: they cannot be
    // predicted.
    let (mut world, mut random) = (World::new(), Random(9));
    let program = Program::new(8, 600, 1, 400);
    let mut sum = Figures::default();
    for run in 0..70 {
        let mut reads = program.core.clone();
        let chance: Vec<BlockAt> = program.parts[0]
            .iter()
            .filter(|_| random.below(10) < 3)
            .copied()
            .collect();
        reads.extend(chance);
        let figures = world.run(reads);
        if run >= 1 {
            sum += figures;
        }
    }
    sum.print("blocks read by chance, runs 2 to 70");
    assert!(
        sum.unread_share() < 0.15 && sum.hit_share() > 0.8,
        "{sum:?}"
    );
}

#[test]
fn concurrent_runs_do_not_spoil_the_action() {
    let (program, mut world) = (Program::new(5, 800, 4, 80), World::new());
    // The first two runs, with different arguments, interleaved step by step; then pairs of the same kind.
    let mut sum = Figures::default();
    for pair in 0..12 {
        let mut left = world.begin(program.reads(&[pair % 2]));
        let mut right = world.begin(program.reads(&[2 + pair % 2]));
        loop {
            let (a, b) = (world.step(&mut left), world.step(&mut right));
            if !a && !b {
                break;
            }
        }
        let (left, right) = (world.end(left), world.end(right));
        if pair > 0 {
            sum += left;
            sum += right;
        }
    }
    sum.print("concurrent pairs, pairs 2 to 12");
    assert!(
        sum.unread_share() < 0.05 && sum.hit_share() > 0.9,
        "{sum:?}"
    );
    // The core keeps its own order, with nothing of one run between the blocks of the other one.
    let plan = world.predictor.plan(TASK).unwrap();
    let core: HashSet<BlockAt> = program.core.iter().copied().collect();
    assert!(
        plan.blocks()
            .filter(|at| core.contains(at))
            .eq(program.core.iter().copied())
    );
}

#[test]
fn a_program_that_has_changed_its_ways_is_learned_anew() {
    let (old, new) = (Program::new(6, 500, 0, 0), Program::new(60, 500, 0, 0));
    let mut world = World::new();
    for _ in 0..12 {
        world.run(old.reads(&[]));
    }
    let runs: Vec<Figures> = (0..12).map(|_| world.run(new.reads(&[]))).collect();
    let plan = world.predictor.plan(TASK).unwrap();
    let planned: HashSet<BlockAt> = plan.blocks().collect();
    let core: HashSet<BlockAt> = new.core.iter().copied().collect();
    let (more, less) = (
        planned.difference(&core).count(),
        core.difference(&planned).count(),
    );
    assert_eq!((more, less), (0, 0), "{runs:?}");
    assert_eq!((runs[11].hits, runs[11].unread), (500, 0));
    // A wrong plan is stopped before its end.
    assert!(world.predictor.counters().plans_stopped > 0);
    let mut sum = Figures::default();
    for run in &runs {
        sum += *run;
    }
    sum.print("changed ways, the first 12 runs");
    assert!(
        sum.hit_share() > 0.9 && sum.unread_share() < 0.15,
        "{runs:?}"
    );
}

#[test]
fn a_message_of_one_tenant_changes_nothing_of_another() {
    let program = Program::new(7, 300, 0, 0);
    let (mut good, mut bad) = (World::new(), World::new());
    good.run(program.reads(&[]));
    let before = good.predictor.plan(TASK).unwrap();
    for seed in 1..20 {
        bad.run(Program::new(seed * 1_000, 300, 0, 0).reads(&[]));
    }
    assert_eq!(good.predictor.plan(TASK).unwrap(), before);
    let figures = good.run(program.reads(&[]));
    assert_eq!((figures.hits, figures.unread), (300, 0));
}

#[test]
fn a_flood_of_strange_traces_within_a_tenant_is_forgotten_again() {
    let (program, mut world) = (Program::new(7, 300, 0, 0), World::new());
    for _ in 0..4 {
        world.run(program.reads(&[]));
    }
    for seed in 1..4 {
        world.run(Program::new(seed * 1_000, 300, 0, 0).reads(&[]));
    }
    // At first it is sent piece by piece, as it is recognised; in the end as before.
    let figures: Vec<Figures> = (0..40).map(|_| world.run(program.reads(&[]))).collect();
    assert!(figures.iter().all(|run| run.unread == 0), "{figures:?}");
    assert!(figures[1].hits >= 280, "{figures:?}");
    assert_eq!(figures[39].hits, 300);
}
