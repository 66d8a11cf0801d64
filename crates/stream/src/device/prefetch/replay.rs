//! Replays first starts in modelled time: what programs read, block by block, over a line with a bandwidth and a delay.
//! The pool and the choice of requests are the real code. The line, the server and the kernel are arithmetic, so that
//! each run gives the same figures.
//!
//! The peer is the kernel's readahead of 128 KiB over the same line. A missing page brings the 32 pages around it, all
//! of them before the program continues. One of the last of them requests the next 32 without waiting, the first of
//! these requests the next, and so on. Nothing is evicted.
//!
//! The traces (`tests/traces/`) are of real programs. Each has the pages that were read from a file system without
//! readahead, in order, as the kernel's tracepoint `mm_filemap_add_to_page_cache` reports it. A trace lists the number
//! of blocks of each file, then steps. A step is a file, a block and a count, and after `@` the microseconds that the
//! program took before the next.

use super::buffer::Message;
use super::monitor::{Fault, Prefetch, RequestPlan, Runs};
use super::readahead::blocks_of;
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS};
use crate::device::line::Line;
use crate::device::settings::POOL_PAGES_DEFAULT;
use crate::wire::pack_blocks;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BANDWIDTH_BYTES_S: u64 = 12_500_000;

/// Microseconds of a read through FUSE of a page in the buffer, and of a read of a page in the page cache. The cost of
/// a request on both ends, without the line.
const READ_US: u64 = 35;
const CACHED_US: u64 = 1;
const REQUEST_US: u64 = 120;

/// Bytes of a message without its blocks, and of each hash of a list, which is sent before a file's first block.
const MESSAGE_BYTES: u64 = 60;
const HASH_BYTES: u64 = 32;

/// Blocks of the kernel's window, and how many blocks before the end of the first one it requests the next.
const WINDOW_BLOCKS: u32 = 32;
const WINDOW_REST: u32 = 8;

struct Trace {
    /// Blocks of each file.
    files: Vec<u32>,
    /// Blocks, and the microseconds after each.
    steps: Vec<(BlockAt, u64)>,
    /// The compressed size of a block, in percent.
    packed_percent: u64,
}

impl Trace {
    fn of(text: &str, packed_percent: u64) -> Self {
        let (files, rest) = text.split_once("\n\n").unwrap();
        let files = files
            .split_whitespace()
            .map(|blocks| blocks.parse().unwrap());
        let mut steps = Vec::new();
        for step in rest.split_whitespace() {
            let (step, think_us) = step.split_once('@').unwrap_or((step, "0"));
            let (file, blocks) = step.split_once(':').unwrap();
            let (first, count) = blocks.split_once('+').unwrap();
            let (first, count): (u32, u32) = (first.parse().unwrap(), count.parse().unwrap());
            let file = FileId(file.parse().unwrap());
            for index in first..first + count {
                steps.push((BlockAt { file, index }, 0));
            }
            steps.last_mut().unwrap().1 = think_us.parse().unwrap();
        }
        let files = files.collect();
        Self {
            files,
            steps,
            packed_percent,
        }
    }

    /// One file, read in this order, each block once.
    fn of_file(blocks: u32, think_us: u64, order: impl Iterator<Item = u32>) -> Self {
        let mut seen = HashSet::new();
        let file = FileId(0);
        let once = order.filter(|index| seen.insert(*index));
        Self {
            files: vec![blocks],
            steps: once
                .map(|index| (BlockAt { file, index }, think_us))
                .collect(),
            packed_percent: 40,
        }
    }

    fn blocks(&self, file: FileId) -> u32 {
        self.files[file.0 as usize]
    }
}

/// The line and the server: answers arrive in the order of the requests.
struct Wire {
    round_trip_us: u64,
    free_us: u64,
    proved: HashSet<FileId>,
    packed_percent: u64,
    requests: u64,
    blocks: u64,
}

impl Wire {
    fn new(trace: &Trace, round_trip_ms: u64) -> Self {
        Self {
            round_trip_us: round_trip_ms * 1000,
            free_us: 0,
            proved: HashSet::new(),
            packed_percent: trace.packed_percent,
            requests: 0,
            blocks: 0,
        }
    }

    /// Returns the time at which the answer to a request has arrived.
    fn ask(&mut self, now_us: u64, file: FileId, file_blocks: u32, blocks: usize) -> u64 {
        self.requests += 1;
        self.blocks += blocks as u64;
        let mut bytes = blocks as u64 * BLOCK_BYTES as u64 * self.packed_percent / 100;
        bytes += MESSAGE_BYTES;
        if self.proved.insert(file) {
            bytes += HASH_BYTES * u64::from(file_blocks);
        }
        let begins_us = self.free_us.max(now_us + self.round_trip_us / 2);
        self.free_us = begins_us + bytes * 1_000_000 / BANDWIDTH_BYTES_S;
        self.free_us + self.round_trip_us / 2
    }
}

#[derive(Debug)]
struct Figures {
    time_us: u64,
    requests: u64,
    /// How often the program waited for its own request.
    round_trips: u64,
    blocks: u64,
    used_max: usize,
}

/// The kernel's readahead.
fn readahead(trace: &Trace, round_trip_ms: u64) -> Figures {
    let mut wire = Wire::new(trace, round_trip_ms);
    let mut come_us: HashMap<BlockAt, u64> = HashMap::new();
    let mut marks = HashMap::new();
    let (mut now_us, mut round_trips) = (0, 0);
    for (at, think_us) in &trace.steps {
        let is_there = come_us.contains_key(at);
        // The start of the next window, and which of its pages requests the one behind it.
        let window = match (is_there, marks.remove(at)) {
            (false, _) => {
                let first = at.index.saturating_sub(WINDOW_BLOCKS / 2);
                Some((first, first + WINDOW_BLOCKS - WINDOW_REST))
            }
            (true, Some(first)) => Some((first, first)),
            (true, None) => None,
        };
        if let Some((first, mark)) = window {
            let file_blocks = trace.blocks(at.file);
            let end = first + WINDOW_BLOCKS;
            let blocks = (first..end.min(file_blocks)).map(|index| BlockAt { index, ..*at });
            let missing: Vec<BlockAt> = blocks.filter(|at| !come_us.contains_key(at)).collect();
            if !missing.is_empty() {
                let there_us = wire.ask(now_us, at.file, file_blocks, missing.len());
                come_us.extend(missing.iter().map(|at| (*at, there_us)));
            }
            marks.insert(BlockAt { index: mark, ..*at }, end);
        }
        now_us = now_us.max(come_us[at]) + if is_there { CACHED_US } else { REQUEST_US };
        round_trips += u64::from(!is_there);
        now_us += think_us;
    }
    Figures {
        time_us: now_us,
        requests: wire.requests,
        round_trips,
        blocks: wire.blocks,
        used_max: 0,
    }
}

/// A device in its first start.
struct First<'a> {
    trace: &'a Trace,
    prefetch: Prefetch,
    line: Line,
    started: Instant,
    wire: Wire,
    now_us: u64,
    /// Messages in flight, in order, and the blocks that they bring.
    messages: VecDeque<(u64, Vec<BlockAt>)>,
    coming: HashSet<BlockAt>,
}

impl First<'_> {
    /// Places the messages that have arrived by now, as the network does.
    fn receive(&mut self) {
        while let Some((_, blocks)) = self
            .messages
            .pop_front_if(|(there_us, _)| *there_us <= self.now_us)
        {
            let bytes: Vec<Vec<u8>> = blocks.iter().map(|at| self.bytes(*at)).collect();
            let slices: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
            let packed = pack_blocks(&slices, 1).unwrap();
            let prefetch = &self.prefetch;
            let pages: Vec<Arc<[u8]>> = bytes.iter().map(|bytes| prefetch.page(bytes)).collect();
            let lengths = vec![BLOCK_BYTES; blocks.len()];
            let message = Message {
                blocks: &blocks,
                pages: &pages,
                lengths: &lengths,
                packed: &packed,
            };
            self.prefetch.place(&message, None);
            for at in &blocks {
                self.coming.remove(at);
            }
        }
    }

    /// Returns bytes that compress as much as the trace says.
    fn bytes(&self, at: BlockAt) -> Vec<u8> {
        let mut word = u64::from(at.file.0) << 32 | u64::from(at.index) | 1 << 63;
        let noise = BLOCK_BYTES * self.trace.packed_percent as usize / 100;
        let byte = |place| {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if place < noise { (word >> 56) as u8 } else { 0 }
        };
        (0..BLOCK_BYTES).map(byte).collect()
    }

    /// Requests the blocks of runs that are not in flight. `own`: the block that is requested by itself.
    fn fetch(&mut self, file: FileId, runs: Runs, own: Option<BlockAt>) {
        for (run, mask) in runs {
            let is_own = own.filter(|at| at.index / SEGMENT_BLOCKS == run);
            let from = is_own.map_or(0, |at| at.index % SEGMENT_BLOCKS + 1);
            let mut blocks = blocks_of(file, run, mask, from);
            blocks.retain(|at| !self.coming.contains(at));
            if !blocks.is_empty() {
                let file_blocks = self.trace.blocks(file);
                let there_us = self.wire.ask(self.now_us, file, file_blocks, blocks.len());
                self.coming.extend(&blocks);
                self.messages.push_back((there_us, blocks));
            }
        }
    }

    /// Reads a block. Returns whether the program had to wait for its own request.
    fn read(&mut self, at: BlockAt) -> bool {
        self.receive();
        let file_blocks = self.trace.blocks(at.file);
        let mut fault = Fault {
            token: None,
            at,
            file_blocks,
            line: Some(self.line),
            now: self.started,
        };
        let is_in_flight = self.coming.contains(&at);
        match self.prefetch.request_plan(&fault, is_in_flight) {
            RequestPlan::WithRuns(runs) => {
                let there_us = self.wire.ask(self.now_us, at.file, file_blocks, 1);
                self.fetch(at.file, runs, Some(at));
                self.now_us = there_us + REQUEST_US;
                self.prefetch.delivered(at);
                return true;
            }
            RequestPlan::Ahead(runs) => self.fetch(at.file, runs, None),
            RequestPlan::Alone | RequestPlan::WithNeighbours { .. } => {
                panic!("nothing is prefetched, and the server sends blocks ahead")
            }
        }
        if is_in_flight {
            let mut messages = self.messages.iter();
            let (there_us, _) = messages.find(|(_, blocks)| blocks.contains(&at)).unwrap();
            self.now_us = self.now_us.max(*there_us);
            self.receive();
        }
        self.now_us += READ_US;
        // The runs ahead are requested already.
        fault.line = None;
        let (found, _) = self.prefetch.take(&fault, true).unwrap();
        assert_eq!(found[..], self.bytes(at), "{at:?}");
        false
    }
}

fn first_start(trace: &Trace, round_trip_ms: u64) -> Figures {
    let mut first = First {
        trace,
        prefetch: Prefetch::new(POOL_PAGES_DEFAULT, false, Duration::from_secs(1)),
        line: Line {
            round_trip: Duration::from_millis(round_trip_ms),
            bandwidth_bytes_s: BANDWIDTH_BYTES_S,
        },
        started: Instant::now(),
        wire: Wire::new(trace, round_trip_ms),
        now_us: 0,
        messages: VecDeque::new(),
        coming: HashSet::new(),
    };
    let (mut round_trips, mut used_max) = (0, 0);
    for (at, think_us) in &trace.steps {
        round_trips += u64::from(first.read(*at));
        first.now_us += think_us;
        let counts = first.prefetch.counts();
        used_max = used_max.max(counts.used + counts.spare);
    }
    Figures {
        time_us: first.now_us,
        requests: first.wire.requests,
        round_trips,
        blocks: first.wire.blocks,
        used_max,
    }
}

/// The limits of a first start over a line.
struct Limits {
    round_trip_ms: u64,
    requests: u64,
    round_trips: u64,
    blocks: u64,
}

const fn limits(round_trip_ms: u64, requests: u64, round_trips: u64, blocks: u64) -> Limits {
    Limits {
        round_trip_ms,
        requests,
        round_trips,
        blocks,
    }
}

/// Replays a trace in both models: the first start must take no longer than the peer, and stay within these limits.
fn compare(name: &str, trace: &Trace, all: [Limits; 2]) {
    for limits in all {
        let ms = limits.round_trip_ms;
        let peer = readahead(trace, ms);
        let ours = first_start(trace, ms);
        let percent = ours.time_us as f64 * 100.0 / peer.time_us as f64;
        let needed = trace.steps.len();
        println!(
            "{name}, {ms} ms, {needed} blocks needed: {percent:.1} % of the peer's time\n{ours:?}\n{peer:?}"
        );
        // Rounded to a whole percent: if only the line counts, both take equally long.
        assert!(percent.round() <= 100.0, "{name}, {ms} ms: {percent:.1} %");
        let is_within = ours.requests <= limits.requests
            && ours.round_trips <= limits.round_trips
            && ours.blocks <= limits.blocks;
        assert!(is_within, "{name}, {ms} ms: {ours:?}");
        assert!(
            ours.used_max <= POOL_PAGES_DEFAULT,
            "{name}, {ms} ms: {ours:?}"
        );
    }
}

/// Pseudo-random numbers, the same in each run.
fn drawn(below: u32) -> impl FnMut() -> u32 {
    let mut word = 1_u64;
    move || {
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((word >> 33) % u64::from(below)) as u32
    }
}

#[test]
fn python_starts_as_fast_as_with_readahead_of_the_kernel() {
    let trace = Trace::of(include_str!("../../../tests/traces/python3.txt"), 39);
    let limits = [limits(2, 370, 190, 4100), limits(10, 340, 150, 4300)];
    compare("python3", &trace, limits);
}

#[test]
fn gcc_starts_as_fast_as_with_readahead_of_the_kernel() {
    let trace = Trace::of(include_str!("../../../tests/traces/gcc.txt"), 49);
    let limits = [limits(2, 700, 370, 7800), limits(10, 740, 335, 9900)];
    compare("gcc", &trace, limits);
}

#[test]
fn java_starts_as_fast_as_with_readahead_of_the_kernel() {
    let trace = Trace::of(include_str!("../../../tests/traces/java.txt"), 33);
    let limits = [limits(2, 500, 200, 9200), limits(10, 450, 135, 9700)];
    compare("java", &trace, limits);
}

#[test]
fn a_file_read_from_beginning_to_end_is_as_fast_as_with_readahead_of_the_kernel() {
    let trace = Trace::of_file(25_600, 10, 0..25_600);
    let limits = [limits(2, 830, 2, 25600), limits(10, 830, 2, 25600)];
    compare("sequence", &trace, limits);
}

#[test]
fn a_reader_that_jumps_is_as_fast_as_with_readahead_of_the_kernel() {
    let mut next = drawn(25_600);
    let trace = Trace::of_file(25_600, 300, (0..600).map(|_| next()));
    let limits = [limits(2, 1050, 520, 10500), limits(10, 1500, 520, 29500)];
    compare("jumps", &trace, limits);
}

/// As a Java virtual machine reads its modules: classes of a few blocks, most of them near the previous one.
#[test]
fn a_reader_of_scattered_classes_is_as_fast_as_with_readahead_of_the_kernel() {
    const BLOCKS: u32 = 30_000;
    let mut next = drawn(1 << 30);
    let mut centre = 0;
    let mut order = Vec::new();
    for _ in 0..900 {
        if next() % 10 < 3 {
            centre = next() % BLOCKS;
        }
        // The sum of three random numbers is near the middle more often.
        let offset = (0..3).map(|_| next() % 80).sum::<u32>();
        let first = (centre + offset).saturating_sub(120).min(BLOCKS - 4);
        order.extend(first..first + 1 + next() % 3);
    }
    let trace = Trace::of_file(BLOCKS, 80, order.into_iter());
    let limits = [limits(2, 1200, 600, 11900), limits(10, 1200, 440, 22300)];
    compare("classes", &trace, limits);
}
