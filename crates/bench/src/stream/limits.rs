//! Limits on the cost of a start: blocks that are not read, memory, and the delay by packet loss compared with a plain
//! copy.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::bed::{KEEL, Ours, Prepared, Running, Way};
use super::cases::{Course, PUSHED, RUN_TIME, named};
use super::copies::copy;
use super::groups::Group;
use super::needed::{Blocks, count_beyond, resident};
use super::net::Rate;
use crate::figures::Metric;

/// Names of the parts in cases.
pub(crate) const UNREAD: &str = "unread";
pub(crate) const UNREAD_VARIED: &str = "unread-varied";
pub(crate) const UNREAD_TOGETHER: &str = "unread-two-at-once";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const MEMORY_CAPPED: &str = "memory-64-mib";
pub(crate) const LOSS: &str = "loss";

/// Blocks that were pushed but not read, divided by those pushed.
pub(crate) const UNREAD_SHARE: Metric = Metric::shown("unread_of_pushed", "1");
/// Needed blocks that were not requested individually, divided by those needed.
pub(crate) const HIT_SHARE: Metric = Metric::shown("prefetched_of_needed", "1");
/// Maximum memory of the mount's processes, without file pages.
pub(crate) const MEMORY_MEBIBYTES: Metric = Metric::shown("memory_max", "MiB");
/// Maximum memory with the pages of its program.
const RESIDENT_MEBIBYTES: Metric = Metric::shown("resident_max", "MiB");
/// Maximum memory of the group, with the page cache.
pub(crate) const GROUP_MEBIBYTES: Metric = Metric::shown("group_memory_max", "MiB");
/// Time divided by the time without losses.
pub(crate) const SLOWDOWN: Metric = Metric::compared("slowdown", "1");

/// The milliseconds added by losses.
pub(crate) const ADDED: Metric = Metric::shown("added", "ms");
/// The time of each copy; those of a round are adjacent.
pub(crate) const COPY_TIME: Metric = Metric::shown("copy_time", "ms");

/// A copy of the same number of bytes over an existing connection.
pub(crate) const TCP_COPY: &str = "tcp-copy";

/// Memory limit of the group: the mount's memory, apart from the page cache, must fit into a device's share.
const CAP_BYTES: u64 = 64 << 20;

/// Packet loss in percent, in both directions.
pub(crate) const LOSSES_PERCENT: [f64; 6] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0];

/// Interval of the memory samples.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The path with packet loss.
const LOSS_WAY: Way = Way::new(Rate::SLOW, 2);

/// Number of copies beside each start: enough to see the variation among copies.
pub(crate) const COPIES: usize = 3;

impl Course<'_> {
    /// Measures pushed but unread blocks: with the arguments that were learned, with others in turn, and with two
    /// starts at once.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn unread(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            let name = self.prepared[place].name();
            let bed = self.bed;
            let case = named(format!("{UNREAD}-{name}"));
            show(case);
            self.unless_failed(case, KEEL, |course| {
                let prepared = &course.prepared[place];
                let running = bed.run_ours(prepared, Way::new(Rate::FAST, 2), &Ours::learned())?;
                bed.start_at(prepared, 0, &running.at, &[])?;
                let wasted = Wasted::of(&running, &[needed(prepared, 0)?])?;
                running.end()?;
                wasted.record(course, case);
                Ok(())
            })?;
            let case = named(format!("{UNREAD_VARIED}-{name}"));
            show(case);
            self.unless_failed(case, KEEL, |course| course.varied(place, case))?;
            let case = named(format!("{UNREAD_TOGETHER}-{name}"));
            show(case);
            self.unless_failed(case, KEEL, |course| course.together(place, case))?;
        }
        Ok(())
    }

    /// Runs a server that continues to learn, and starts with each of the other arguments, twice.
    fn varied(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let others = self.prepared[place].task.varied.len();
        for number in 1..=others {
            bed.ask_needed(&mut self.prepared[place], number)?;
        }
        let prepared = &self.prepared[place];
        let mut sum = Wasted::default();
        for turn in 0..2 * others {
            let way = Way::new(Rate::FAST, 2);
            let ours = Ours::learned();
            // The server has learned the usual arguments at first; what it learns later is kept.
            let running = if turn == 0 {
                bed.run_ours(prepared, way, &ours)?
            } else {
                bed.go(prepared, way, &ours)?
            };
            let number = turn % others + 1;
            bed.start_at(prepared, number, &running.at, &[])?;
            sum.add(Wasted::of(&running, &[needed(prepared, number)?])?);
            running.end()?;
        }
        sum.record(self, case);
        Ok(())
    }

    /// Runs two starts with different arguments at the same time.
    fn together(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        bed.ask_needed(&mut self.prepared[place], 1)?;
        let prepared = &self.prepared[place];
        let running = bed.run_ours(prepared, Way::new(Rate::FAST, 2), &Ours::learned())?;
        let folders = ["one", "other"].map(|name| bed.folder().join(name));
        for folder in &folders {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let root = &running.at;
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> = folders
                .iter()
                .enumerate()
                .map(|(number, folder)| {
                    scope.spawn(move || bed.start_saying(prepared, number, root, &[], folder))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join())
                .collect::<Vec<_>>()
        });
        for outcome in done {
            outcome.map_err(|_| "a start has ended early")??;
        }
        let wasted = Wasted::of(&running, &[needed(prepared, 0)?, needed(prepared, 1)?])?;
        running.end()?;
        wasted.record(self, case);
        Ok(())
    }

    /// Measures the mount's memory during a start, and a start in a group with little memory.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn memory(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            let name = self.prepared[place].name();
            let bed = self.bed;
            let case = named(format!("{MEMORY}-{name}"));
            show(case);
            self.unless_failed(case, KEEL, |course| {
                let prepared = &course.prepared[place];
                let running = bed.run_ours(prepared, Way::new(Rate::SLOW, 10), &Ours::learned())?;
                let mount = running.mounted.id().ok_or("the mount has ended")?;
                let (outcome, memory) =
                    watched(mount, || bed.start_at(prepared, 0, &running.at, &[]));
                outcome?;
                running.end()?;
                course.figures.record(
                    case,
                    KEEL,
                    MEMORY_MEBIBYTES,
                    memory.anonymous_kib as f64 / 1024.0,
                );
                course.figures.record(
                    case,
                    KEEL,
                    RESIDENT_MEBIBYTES,
                    memory.resident_kib as f64 / 1024.0,
                );
                Ok(())
            })?;
            let case = named(format!("{MEMORY_CAPPED}-{name}"));
            show(case);
            self.unless_failed(case, KEEL, |course| {
                let prepared = &course.prepared[place];
                let group = Group::of_memory("mount", CAP_BYTES)?;
                let mut ours = Ours::learned();
                ours.mounting.join = vec![group.members()];
                let running = bed.run_ours(prepared, Way::new(Rate::SLOW, 10), &ours)?;
                let outcome = bed.start_at(prepared, 0, &running.at, &[])?;
                let most = group.memory_max_bytes();
                running.end()?;
                course
                    .figures
                    .record(case, KEEL, RUN_TIME, outcome.wall_ms());
                if let Some(bytes) = most {
                    course.figures.record(
                        case,
                        KEEL,
                        GROUP_MEBIBYTES,
                        bytes as f64 / f64::from(1 << 20),
                    );
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Measures starts with packet loss, and plain copies of the same number of bytes.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn losses(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            // The first start, without losses, determines how many bytes a start sends.
            let (mut bytes, mut without) = (None, [None; 2]);
            let mut percents = LOSSES_PERCENT.to_vec();
            self.random.shuffle(&mut percents);
            for percent in std::iter::once(0.0).chain(percents) {
                let case = named(format!("{LOSS}-{}-{percent}", self.prepared[place].name()));
                show(case);
                self.losing(place, case, percent, &mut bytes, &mut without)?;
            }
        }
        Ok(())
    }

    /// Runs one start and the copies at one loss rate, in a new random order.
    fn losing(
        &mut self,
        place: usize,
        case: &'static str,
        percent: f64,
        bytes: &mut Option<u64>,
        without: &mut [Option<f64>; 2],
    ) -> Result<(), String> {
        let bed = self.bed;
        let mut order: Vec<bool> = (0..=COPIES).map(|number| number == 0).collect();
        if bytes.is_some() {
            self.random.shuffle(&mut order);
        }
        let mut times_ms = [Vec::new(), Vec::new()];
        for is_ours in order {
            let system = if is_ours { KEEL } else { TCP_COPY };
            let wall_ms = self.unless_failed(case, system, |course| {
                bed.line().lose(percent)?;
                let wall_ms = if is_ours {
                    let ours = Ours::learned();
                    let started = bed.start_ours(&course.prepared[place], LOSS_WAY, &ours);
                    started.map(|started| {
                        bytes.get_or_insert(started.sent_bytes());
                        started.outcome.wall_ms()
                    })
                } else {
                    let bytes = bytes.ok_or("it is not known how many bytes a start sends");
                    bytes
                        .map_err(str::to_owned)
                        .and_then(|bytes| copy(bed, LOSS_WAY, bytes))
                };
                bed.line().lose(0.0)?;
                wall_ms
            })?;
            if let Some(wall_ms) = wall_ms {
                times_ms[usize::from(!is_ours)].push(wall_ms);
                if !is_ours {
                    self.figures.record(case, TCP_COPY, COPY_TIME, wall_ms);
                }
            }
        }
        for (number, system) in [KEEL, TCP_COPY].into_iter().enumerate() {
            if times_ms[number].is_empty() {
                continue;
            }
            let wall_ms = crate::report::median(&mut times_ms[number]);
            self.figures.record(case, system, RUN_TIME, wall_ms);
            if percent == 0.0 {
                without[number] = Some(wall_ms);
            } else if let Some(without) = without[number] {
                let slowdown = wall_ms / without;
                self.figures.record(case, system, SLOWDOWN, slowdown);
                self.figures.record(case, system, ADDED, wall_ms - without);
            }
        }
        Ok(())
    }
}

fn needed(prepared: &Prepared, number: usize) -> Result<&Blocks, String> {
    let needed = prepared.needed[number]
        .as_ref()
        .ok_or("it is not known what it needs")?;
    Ok(&needed.blocks)
}

/// The use of the pushed blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Wasted {
    pushed: f64,
    unread: f64,
    needed: f64,
    requests: f64,
}

impl Wasted {
    /// Counts after starts that needed these blocks: other blocks that the kernel holds, and blocks that still wait to
    /// be read.
    fn of(running: &Running, needed: &[&Blocks]) -> Result<Self, String> {
        let figures = running.mounted.figures()?;
        let figure = |name: &str| {
            super::bed::counter(&figures, name).ok_or(format!("the mount counts no {name}"))
        };
        let mut all = Blocks::new();
        for (path, indexes) in needed.iter().flat_map(|blocks| blocks.iter()) {
            let known = all.entry(path.clone()).or_default();
            known.extend(indexes);
            known.sort_unstable();
            known.dedup();
        }
        let held = resident(&running.at)?;
        Ok(Self {
            pushed: figure("pushed")?,
            unread: count_beyond(&held, &all) as f64 + figure("staged")?,
            needed: super::needed::count(&all) as f64,
            requests: figure("requests")?,
        })
    }

    fn add(&mut self, other: Self) {
        self.pushed += other.pushed;
        self.unread += other.unread;
        self.needed += other.needed;
        self.requests += other.requests;
    }

    fn record(self, course: &mut Course<'_>, case: &'static str) {
        let figures = &mut course.figures;
        figures.record(case, KEEL, PUSHED, self.pushed);
        figures.record(case, KEEL, UNREAD_SHARE, self.unread / self.pushed.max(1.0));
        let hits = (self.needed - self.requests).max(0.0);
        figures.record(case, KEEL, HIT_SHARE, hits / self.needed.max(1.0));
    }
}

/// Maximum memory of a process and its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MemoryMax {
    anonymous_kib: u64,
    resident_kib: u64,
}

/// Samples the memory of a process while `work` runs.
fn watched<T>(process: u32, work: impl FnOnce() -> T) -> (T, MemoryMax) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = MemoryMax::default();
            loop {
                let is_last = is_over.load(Ordering::Relaxed);
                let now = memory_of(process);
                most.anonymous_kib = most.anonymous_kib.max(now.anonymous_kib);
                most.resident_kib = most.resident_kib.max(now.resident_kib);
                if is_last {
                    return most;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        (done, watch.join().unwrap_or_default())
    })
}

fn memory_of(process: u32) -> MemoryMax {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut memory = MemoryMax {
        anonymous_kib: kibibytes(&text, "RssAnon:") + kibibytes(&text, "RssShmem:"),
        resident_kib: kibibytes(&text, "VmHWM:"),
    };
    let children =
        fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    for child in children
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
    {
        let of_child = memory_of(child);
        memory.anonymous_kib += of_child.anonymous_kib;
        memory.resident_kib += of_child.resident_kib;
    }
    memory
}

fn kibibytes(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_program_is_seen_to_grow() {
        let (length, memory) = watched(std::process::id(), || {
            let block = vec![1_u8; 64 << 20];
            std::thread::sleep(Duration::from_millis(30));
            std::hint::black_box(&block).len()
        });
        assert_eq!(length, 64 << 20);
        assert!(memory.anonymous_kib > 60 << 10, "{memory:?}");
        assert!(memory.resident_kib >= memory.anonymous_kib);
    }
}
