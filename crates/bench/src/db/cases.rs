//! The cases of the bench.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice};
use base::sim::Random;

use super::copy::{self, BareCopy};
use super::extent::Extent;
use super::hog::Hog;
use crate::engine::kind::Kind;
use crate::engine::{Engine, Key, OpenError, Session, Size, fill};
use crate::figures::{Figures, Metric, OURS};
use crate::paper::chart::{Series, distributions};
use crate::progress::Progress;
use crate::qos::COLORS;
use crate::realtime::{cores, measured, stay_awake};
use crate::report::percentile;
use crate::scratch::{check_interrupted, write_back};

/// The number of objects and the size of their values in bytes, with the names of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) objects: u32,
    pub(crate) value_bytes: usize,
    pub(crate) get: &'static str,
    pub(crate) put: &'static str,
}

/// The sizes, the smallest first.
pub(crate) const SIZES: [Sizes; 4] = [
    Sizes {
        objects: 100_000,
        value_bytes: 64,
        get: "get-100k-64",
        put: "put-100k-64",
    },
    Sizes {
        objects: 1_000_000,
        value_bytes: 64,
        get: "get-1m-64",
        put: "put-1m-64",
    },
    Sizes {
        objects: 100_000,
        value_bytes: 1024,
        get: "get-100k-1024",
        put: "put-100k-1024",
    },
    Sizes {
        objects: 1_000_000,
        value_bytes: 1024,
        get: "get-1m-1024",
        put: "put-1m-1024",
    },
];

pub(crate) const DURABLE: &str = "durable-lone";
pub(crate) const WRITERS_CASE: &str = "durable-64-writers";
pub(crate) const DATA: &str = "data-time";

/// One write and one flush of the disk, bypassing the page cache.
pub(crate) const FLOOR: &str = "write-and-flush";

/// The number of threads that put durably at the same time.
pub(crate) const WRITERS: u32 = 64;

/// The number of objects in the durable cases and of the periodic task.
const FEW_OBJECTS: u32 = 10_000;

/// Time between two instances of the periodic task.
const PERIOD: Duration = Duration::from_millis(20);

pub(crate) const P50: Metric = Metric::compared("latency_p50", "us");
const P99: Metric = Metric::compared("latency_p99", "us");
pub(crate) const P999: Metric = Metric::compared("latency_p999", "us");
pub(crate) const WORST: Metric = Metric::compared("latency_max", "us");
const RATE: Metric = Metric::compared("puts_per_second", "1/s");
pub(crate) const RATE_TO_LONE: Metric = Metric::shown("rate_to_lone", "1");
const DATA_ALONE: Metric = Metric::compared("data_time_alone", "us");
const DATA_BESIDE: Metric = Metric::compared("data_time_beside", "us");
pub(crate) const DATA_RATIO: Metric = Metric::shown("data_time_ratio", "1");
/// Puts of the other processor, and those of them that the store refused.
pub(crate) const OTHER_PUTS: Metric = Metric::shown("puts_of_the_other", "1");
pub(crate) const OTHER_REFUSED: Metric = Metric::shown("refused_puts_of_the_other", "1");

/// One run of the bench.
pub(crate) struct Course {
    pub(crate) figures: Figures,
    pub(crate) folder: PathBuf,
    pub(crate) out: Option<PathBuf>,
    pub(crate) extent: Extent,
    pub(crate) progress: Progress,
    /// The setup of each system, recorded once.
    pub(crate) setups: Vec<(&'static str, String)>,
    pub(crate) random: Random,
}

/// An open system.
struct Open {
    kind: Kind,
    engine: Box<dyn Engine>,
}

impl Course {
    /// Opens and fills systems, all in one new folder.
    fn open(
        &mut self,
        case: &str,
        kinds: &[Kind],
        size: &Size,
    ) -> Result<(PathBuf, Vec<Open>), String> {
        let folder = self.folder.join(case);
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut open = Vec::new();
        for kind in kinds.iter().copied() {
            self.progress
                .show(&format!("{case}: filling {}", kind.name()));
            match kind.open(&folder, size) {
                Ok(engine) => {
                    fill(&*engine, size)?;
                    if !self.setups.iter().any(|(name, _)| *name == kind.name()) {
                        self.setups.push((kind.name(), engine.setup()));
                    }
                    open.push(Open { kind, engine });
                }
                Err(OpenError::Missing(what)) => {
                    let missing = format!("{}: {what}", kind.name());
                    if !self.setups.iter().any(|(name, _)| *name == kind.name()) {
                        self.setups.push((kind.name(), "missing".to_owned()));
                        self.figures.missing(missing);
                    }
                }
                Err(OpenError::Failed(what)) => return Err(what),
            }
        }
        // Data still in memory would otherwise be written while other systems are measured.
        self.progress.show(&format!("{case}: writing back"));
        write_back(&folder)?;
        Ok((folder, open))
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        self.random.shuffle(&mut order);
        order
    }

    /// Measures gets and puts of one size.
    pub(crate) fn values(
        &mut self,
        sizes: &Sizes,
        is_get: bool,
        is_put: bool,
    ) -> Result<(), String> {
        let extent = self.extent;
        let size = Size {
            objects: (sizes.objects / extent.objects_divisor).max(1000),
            value_bytes: sizes.value_bytes,
            burst: extent.puts,
            is_log_in_memory: false,
        };
        let one_bytes = u64::from(size.objects) * (size.value_bytes + 160) as u64 * 3 / 2;
        let mut kinds = Kind::ALL.to_vec();
        // All systems are open at the same time. If memory does not suffice, those without a goal for this size are
        // left out first.
        while kinds.len() as u64 * one_bytes > extent.memory_bytes_max {
            let Some(left_out) = kinds.pop() else {
                return Ok(());
            };
            self.figures.missing(format!(
                "{}: {} objects of {} B of all systems at once do not fit into this machine's memory",
                left_out.name(),
                size.objects,
                size.value_bytes
            ));
        }
        let (folder, open) = self.open(sizes.get, &kinds, &size)?;
        let mut last = Vec::new();
        let floor = is_get.then(|| BareCopy::new(&size));
        for round in 0..extent.rounds {
            // One place more than the systems: the floor.
            for place in self.shuffled(open.len() + 1).into_iter().filter(|_| is_get) {
                let seed = self.random.next_u64();
                let Some(Open { kind, engine }) = open.get(place) else {
                    if let Some(floor) = &floor {
                        let latencies =
                            measured(cores()[0], || gets(floor, &size, extent.gets, seed))?;
                        self.record(sizes.get, copy::NAME, &latencies);
                    }
                    continue;
                };
                self.say(sizes.get, *kind, round);
                let latencies = measured(cores()[0], || gets(&**engine, &size, extent.gets, seed))?;
                self.record(sizes.get, kind.name(), &latencies);
                keep(&mut last, place, latencies);
            }
        }
        drop(floor);
        self.draw(sizes.get, &open, std::mem::take(&mut last))?;
        for round in 0..extent.rounds {
            for place in self.shuffled(open.len()).into_iter().filter(|_| is_put) {
                let Open { kind, engine } = &open[place];
                self.say(sizes.put, *kind, round);
                let seed = self.random.next_u64();
                engine.set_durable(false)?;
                let (hog, refused) = (
                    Hog::start(other_core(), extent.hog_bytes)?,
                    AtomicU64::new(0),
                );
                let latencies = measured(cores()[0], || {
                    puts(&**engine, &size, extent.puts, seed, &refused)
                })?;
                drop(hog);
                engine.settle()?;
                write_back(&folder)?;
                let refused = refused.into_inner();
                if refused > 0 {
                    self.figures.note(format!(
                        "{}: {} refused {refused} puts",
                        sizes.put,
                        kind.name()
                    ));
                }
                self.record(sizes.put, kind.name(), &latencies);
                keep(&mut last, place, latencies);
            }
        }
        self.draw(sizes.put, &open, last)?;
        drop(open);
        remove(&folder)
    }

    /// Measures puts that wait for the disk.
    pub(crate) fn durable(&mut self, is_lone: bool, is_many: bool) -> Result<(), String> {
        let extent = self.extent;
        let size = Size {
            objects: FEW_OBJECTS / extent.objects_divisor.min(10),
            value_bytes: 64,
            burst: 10_000,
            is_log_in_memory: false,
        };
        let kinds: Vec<Kind> = Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_durable())
            .collect();
        let (folder, open) = self.open(DURABLE, &kinds, &size)?;
        for system in &open {
            system.engine.set_durable(true)?;
        }
        let floor_file = folder.join("floor");
        crate::store::write_through(&floor_file, FLOOR_BYTES, |_, chunk| chunk.fill(1))?;
        let mut last = Vec::new();
        for round in 0..extent.rounds {
            // One place more than the systems: the floor.
            for place in self
                .shuffled(open.len() + 1)
                .into_iter()
                .filter(|_| is_lone)
            {
                let seed = self.random.next_u64();
                let Some(Open { kind, engine }) = open.get(place) else {
                    let latencies =
                        measured(cores()[0], || floor(&floor_file, extent.durable_puts))?;
                    self.record(DURABLE, FLOOR, &latencies);
                    continue;
                };
                self.say(DURABLE, *kind, round);
                let refused = AtomicU64::new(0);
                let latencies = measured(cores()[0], || {
                    puts(&**engine, &size, extent.durable_puts, seed, &refused)
                })?;
                self.record(DURABLE, kind.name(), &latencies);
                keep(&mut last, place, latencies);
            }
            for place in self.shuffled(open.len()).into_iter().filter(|_| is_many) {
                let Open { kind, engine } = &open[place];
                self.say(WRITERS_CASE, *kind, round);
                // Both rates come from threads started alike, one measurement after the other.
                let window = Duration::from_millis(extent.writers_ms);
                let seed = self.random.next_u64();
                let lone = rate(&**engine, &size, 1, window, seed)?;
                let many = rate(&**engine, &size, WRITERS, window, !seed)?;
                self.figures.record(WRITERS_CASE, kind.name(), RATE, many);
                self.figures
                    .record(WRITERS_CASE, kind.name(), RATE_TO_LONE, many / lone);
            }
        }
        self.draw(DURABLE, &open, last)?;
        drop(open);
        remove(&folder)
    }

    /// Measures the data access time of a periodic task, beside another processor that only computes, and beside one
    /// that uses other values of the store. With the same values, the other processor would keep them in the shared
    /// cache and make the task faster. An idle one would change the speed of the first processor, most of all on a
    /// virtual machine.
    pub(crate) fn data_time(&mut self) -> Result<(), String> {
        let extent = self.extent;
        let size = Size {
            objects: FEW_OBJECTS,
            value_bytes: 64,
            burst: 200_000,
            is_log_in_memory: false,
        };
        if cores().len() < 2 {
            self.figures
                .missing(format!("{DATA}: it takes two processors"));
            return Ok(());
        }
        let (folder, open) = self.open(DATA, &Kind::ALL, &size)?;
        for system in &open {
            system.engine.set_durable(false)?;
        }
        for round in 0..extent.rounds {
            for place in self.shuffled(open.len()) {
                let Open { kind, engine } = &open[place];
                self.say(DATA, *kind, round);
                let is_beside_first = self.random.coin();
                let mut means = [0.0; 2];
                for is_beside in [is_beside_first, !is_beside_first] {
                    let (mean, puts) = task(&**engine, &size, &extent, is_beside)?;
                    means[usize::from(is_beside)] = mean;
                    engine.settle()?;
                    write_back(&folder)?;
                    if is_beside {
                        let name = kind.name();
                        let [tried, refused] = [puts.tried, puts.refused].map(|count| count as f64);
                        self.figures.record(DATA, name, OTHER_PUTS, tried);
                        self.figures.record(DATA, name, OTHER_REFUSED, refused);
                    }
                }
                self.figures.record(DATA, kind.name(), DATA_ALONE, means[0]);
                self.figures
                    .record(DATA, kind.name(), DATA_BESIDE, means[1]);
                self.figures
                    .record(DATA, kind.name(), DATA_RATIO, means[1] / means[0]);
            }
        }
        for kind in open.iter().map(|system| system.kind) {
            note_refused(&mut self.figures, kind.name());
        }
        drop(open);
        remove(&folder)
    }

    fn say(&self, case: &str, kind: Kind, round: u32) {
        let rounds = self.extent.rounds;
        self.progress.show(&format!(
            "{case}: {}, round {} of {rounds}",
            kind.name(),
            round + 1
        ));
    }

    fn record(&mut self, case: &'static str, system: &'static str, latencies_ns: &[u64]) {
        let mut sorted = latencies_ns.to_vec();
        for (metric, per_mille) in [(P50, 500), (P99, 990), (P999, 999), (WORST, 1000)] {
            let value = percentile(&mut sorted, per_mille) as f64 / 1000.0;
            self.figures.record(case, system, metric, value);
        }
    }

    /// Draws the distributions of the last round.
    fn draw(&self, case: &str, open: &[Open], last: Vec<(usize, Vec<u64>)>) -> Result<(), String> {
        let Some(out) = self.out.as_ref().filter(|_| !last.is_empty()) else {
            return Ok(());
        };
        let mut last = last;
        last.sort_unstable_by_key(|(place, _)| *place);
        let series = last.into_iter().map(|(place, latencies_ns)| {
            let name = open[place].kind.name();
            Series {
                label: name.to_owned(),
                color: COLORS[if name == OURS {
                    4
                } else {
                    (place + 4) % COLORS.len()
                }],
                dashed: name == Kind::DashMap.name(),
                latencies_ns,
            }
        });
        let shapes = distributions(
            case,
            "the last round; each operation timed alone",
            series.collect(),
        );
        crate::paper::render::write(out, case, &shapes)
    }
}

/// Bytes of the floor's file.
const FLOOR_BYTES: u64 = 16 << 20;

fn keep(last: &mut Vec<(usize, Vec<u64>)>, place: usize, latencies: Vec<u64>) {
    last.retain(|(known, _)| *known != place);
    last.push((place, latencies));
}

fn remove(folder: &std::path::Path) -> Result<(), String> {
    std::fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// The processor that disturbs the first one.
fn other_core() -> usize {
    cores().last().copied().unwrap_or(0)
}

/// Returns the latency of each get.
fn gets(engine: &dyn Engine, size: &Size, count: u32, seed: u64) -> Result<Vec<u64>, String> {
    let mut session = engine.session()?;
    let mut random = Random::new(seed);
    let mut value = vec![0; size.value_bytes];
    let mut latencies = Vec::with_capacity(count as usize);
    for number in 0..count + count / 10 {
        let key = Key::new(random.below(u64::from(size.objects)) as u32);
        let begin = Instant::now();
        let got = session.get(&key, &mut value);
        let elapsed_ns = begin.elapsed().as_nanos() as u64;
        if got? != size.value_bytes {
            return Err(format!("{}: a value of another length", engine.name()));
        }
        // The first tenth is warm-up.
        if number >= count / 10 {
            latencies.push(elapsed_ns);
        }
    }
    check_interrupted()?;
    Ok(latencies)
}

/// Returns the latency of each put.
fn puts(
    engine: &dyn Engine,
    size: &Size,
    count: u32,
    seed: u64,
    refused: &AtomicU64,
) -> Result<Vec<u64>, String> {
    let mut session = engine.session()?;
    let mut random = Random::new(seed);
    let mut value = vec![0; size.value_bytes];
    let mut latencies = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let key = Key::new(random.below(u64::from(size.objects)) as u32);
        random.fill(&mut value[..8]);
        let begin = Instant::now();
        let put = session.put(&key, &value);
        let elapsed_ns = begin.elapsed().as_nanos() as u64;
        if put? {
            latencies.push(elapsed_ns);
        } else {
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }
    check_interrupted()?;
    Ok(latencies)
}

/// Returns the latencies of one aligned write plus one flush each, bypassing the page cache.
fn floor(file: &std::path::Path, count: u32) -> Result<Vec<u64>, String> {
    let mut device = crate::store::open_direct(file)?;
    let buffer = BlockBuffer::zeroed(1);
    let blocks = FLOOR_BYTES / BLOCK_BYTES as u64;
    let mut latencies = Vec::new();
    for number in 0..u64::from(count) {
        let begin = Instant::now();
        let done = device
            .write(number % blocks, &buffer)
            .and_then(|()| device.flush());
        latencies.push(begin.elapsed().as_nanos() as u64);
        done.map_err(|error| error.to_string())?;
    }
    Ok(latencies)
}

/// Returns the rate of durable puts from `threads` threads, per second. A call with a new seed puts no value of another
/// call.
fn rate(
    engine: &dyn Engine,
    size: &Size,
    threads: u32,
    window: Duration,
    seed: u64,
) -> Result<f64, String> {
    let (barrier, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let one = |thread: u32| -> Result<u64, String> {
        let session = engine.session();
        // All other threads wait for this one.
        barrier.wait();
        let (mut session, mut random) = (session?, Random::new(seed ^ u64::from(thread)));
        let (mut value, mut count) = (vec![3; size.value_bytes], 0);
        while !stop.load(Ordering::Relaxed) {
            let key = Key::new(random.below(u64::from(size.objects)) as u32);
            // SQLite writes nothing if the value is the one that the key has.
            random.fill(&mut value[..8]);
            count += u64::from(session.put(&key, &value)?);
        }
        Ok(count)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        barrier.wait();
        let begin = Instant::now();
        std::thread::sleep(window);
        stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for thread in running {
            total += thread
                .join()
                .map_err(|_| "a writer has panicked".to_owned())??;
        }
        check_interrupted()?;
        // The elapsed time includes the last put of each thread.
        Ok(total as f64 / begin.elapsed().as_secs_f64())
    })
}

/// Puts of the other processor beside the periodic task.
#[derive(Clone, Copy, Debug, Default)]
struct OtherPuts {
    tried: u64,
    refused: u64,
}

/// Notes in how many rounds a store refused puts of the other processor, which then writes less than it tries to.
fn note_refused(figures: &mut Figures, system: &str) {
    let rounds = figures.rounds(DATA, system, OTHER_REFUSED);
    let with_refused = rounds.iter().filter(|refused| **refused > 0.0).count();
    if with_refused > 0 {
        let text = format!(
            "{DATA}: {system} refused {} puts of the other processor, which went on with gets, in {with_refused} of {} \
             rounds",
            rounds.iter().sum::<f64>(),
            rounds.len()
        );
        figures.note(text);
    }
}

/// Returns the mean data access time of an instance in µs, and the puts of the other processor.
fn task(
    engine: &dyn Engine,
    size: &Size,
    extent: &Extent,
    is_beside: bool,
) -> Result<(f64, OtherPuts), String> {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    // The task uses the objects before these.
    let others = size.objects / 2..size.objects;
    let beside = || -> Result<OtherPuts, String> {
        let pinned = crate::realtime::pin(other_core());
        let session = engine.session();
        ready.wait();
        pinned?;
        let mut session = session?;
        let mut puts = OtherPuts::default();
        let (mut random, mut value) = (Random::new(5), vec![9; size.value_bytes]);
        while !stop.load(Ordering::Relaxed) {
            if is_beside {
                let is_taken = one_pair(&mut *session, &mut random, others.clone(), &mut value)?;
                puts.tried += 1;
                puts.refused += u64::from(!is_taken);
            } else {
                std::hint::black_box(random.below(u64::from(others.end)));
            }
        }
        Ok(puts)
    };
    std::thread::scope(|scope| {
        // Otherwise the task's processor would halt between two instances, and the task alone would pay for the
        // wake-up.
        let awake = scope.spawn(|| stay_awake(cores()[0], || stop.load(Ordering::Relaxed)));
        let other = scope.spawn(beside);
        ready.wait();
        let mean = measured(cores()[0], || {
            let mut session = engine.session()?;
            let (mut random, mut value) = (Random::new(6), vec![0; size.value_bytes]);
            let mut total = Duration::ZERO;
            let begin = Instant::now();
            for instance in 0..extent.instances {
                let release = begin + PERIOD * instance;
                std::thread::sleep(release.saturating_duration_since(Instant::now()));
                let keys: Vec<Key> = (0..extent.instance_gets)
                    .map(|_| Key::new(random.below(u64::from(others.start)) as u32))
                    .collect();
                let begin = Instant::now();
                for key in &keys {
                    session.get(key, &mut value)?;
                }
                total += begin.elapsed();
            }
            Ok(total.as_secs_f64() * 1e6 / f64::from(extent.instances))
        });
        stop.store(true, Ordering::Relaxed);
        let kept_awake = awake.join();
        kept_awake.map_err(|_| "the thread of no work has panicked".to_owned())??;
        let puts = other
            .join()
            .map_err(|_| "the other processor's thread has panicked".to_owned())??;
        check_interrupted()?;
        Ok((mean?, puts))
    })
}

/// Does one get and one put of the other processor, on these objects. The value put is new: SQLite would write nothing
/// for an equal one. Returns whether the store took the put.
fn one_pair(
    session: &mut dyn Session,
    random: &mut Random,
    objects: Range<u32>,
    value: &mut [u8],
) -> Result<bool, String> {
    let count = u64::from(objects.end - objects.start);
    let mut draw = || Key::new(objects.start + random.below(count) as u32);
    let (read, written) = (draw(), draw());
    session.get(&read, value)?;
    random.fill(&mut value[..8]);
    session.put(&written, value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn refused_puts_of_every_round_are_noted() {
        let mut figures = Figures::new(Vec::new());
        for (refused_of_keel, refused_of_peer) in [(0.0, 0.0), (7.0, 0.0), (5.0, 0.0)] {
            figures.record(DATA, OURS, OTHER_REFUSED, refused_of_keel);
            figures.record(DATA, "lmdb", OTHER_REFUSED, refused_of_peer);
        }
        note_refused(&mut figures, OURS);
        note_refused(&mut figures, "lmdb");
        let report = figures.json("db", &Machine::detect(), json!({}));
        let report = serde_json::to_value(report).unwrap();
        let note = "data-time: keel refused 12 puts of the other processor, which went on with gets, in 2 of 3 rounds";
        assert_eq!(report["method"]["notes"], json!([note]));
    }
}
