//! The cases of the table of goals, measured round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::sim::Random;

use super::bed::{
    Bed, CARD, EXT4, KEEL, Ours, Prepared, READAHEAD, Running, SSHFS, Started, UNPREPARED, Way,
};
use super::needed::{LEVELS, Needed};
use super::net::Rate;
use crate::figures::{Figures, Metric};
use crate::scratch::check_interrupted;

/// Time from before the start of a program until its end.
pub(crate) const RUN_TIME: Metric = Metric::compared("run_time", "ms");
/// Time of a start beyond a warm start, divided by the number of needed blocks.
pub(crate) const PAGE_TIME: Metric = Metric::compared("page_time", "us");
/// Number of times that the program waited for the network.
pub(crate) const ROUND_TRIPS: Metric = Metric::shown("round_trips", "1");
/// Bytes on the line in both directions, with all headers, from before the mount.
pub(crate) const WIRE_BYTES: Metric = Metric::shown("wire_bytes", "B");
/// The part of these bytes until the tree is mounted: the manifest.
pub(crate) const MOUNT_BYTES: Metric = Metric::shown("mount_bytes", "B");
/// Bytes on the line divided by the bytes needed.
pub(crate) const WIRE_SHARE: Metric = Metric::shown("wire_of_needed", "1");
/// Bytes that a program needs.
pub(crate) const NEEDED_BYTES: Metric = Metric::shown("needed_bytes", "B");
pub(crate) const NEEDED_BLOCKS: Metric = Metric::shown("needed_blocks", "1");
/// Bytes that a program needs, compressed.
pub(crate) const COMPRESSED_BYTES: Metric = Metric::shown("compressed_bytes", "B");
/// Requests that a reader waited for.
pub(crate) const REQUESTS: Metric = Metric::shown("requests", "1");
/// Blocks that were prefetched and arrived.
pub(crate) const PUSHED: Metric = Metric::shown("pushed_blocks", "1");
/// Mean time of a read at the mount.
pub(crate) const READ_TIME: Metric = Metric::shown("read_time", "us");
/// Number of reads at the mount.
pub(crate) const READS: Metric = Metric::shown("reads", "1");

/// The minimum time of a start is a sum. It consists of one round trip, the transfer time of the compressed needed
/// blocks, and the run with everything in memory on a local disk. The goal refers to content compressed as it is
/// published (zstd 3, in segments), not to the bytes sent. Otherwise sending fewer bytes would make the goal harder.
/// The second bound is only shown: it assumes the best compression.
pub(crate) const BOUNDS: [&str; LEVELS.len()] = ["bound", "bound-zstd-19"];

impl Needed {
    /// Returns the compressed sizes, each with the name of its bound.
    fn compressed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = BOUNDS.into_iter().zip(self.compressed_bytes);
        all.filter(|(_, bytes)| *bytes > 0)
    }
}

/// Leaks a name, because names of cases must be static; there are few.
pub(crate) fn named(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// The rounds of a run.
pub(crate) struct Course<'a> {
    pub(crate) bed: &'a Bed<'a>,
    pub(crate) prepared: Vec<Prepared>,
    pub(crate) random: Random,
    /// Case and system of each failure; it is not tried again.
    pub(crate) failed: BTreeSet<(&'static str, &'static str)>,
    pub(crate) figures: Figures,
    /// The observed readahead of the kernel for each system, in KiB.
    pub(crate) readahead_kib: BTreeMap<&'static str, BTreeSet<u32>>,
    pub(crate) is_quick: bool,
}

impl Course<'_> {
    /// Measures starts with cold caches, on all systems.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn cold(
        &mut self,
        part: &str,
        way: Way,
        systems: &[&'static str],
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let all: Vec<usize> = (0..self.prepared.len()).collect();
        self.cold_of(&all, part, way, systems, show)
    }

    /// As [`cold`](Self::cold), for some programs.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn cold_of(
        &mut self,
        places: &[usize],
        part: &str,
        way: Way,
        systems: &[&'static str],
        show: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let mut order: Vec<(usize, &'static str)> = places
            .iter()
            .flat_map(|place| systems.iter().map(move |system| (*place, *system)))
            .collect();
        self.random.shuffle(&mut order);
        // Measure the warm start in the same round as the starts that are compared with it.
        for place in places {
            let bed = self.bed;
            bed.measure_warm(&mut self.prepared[*place])?;
        }
        for (place, system) in order {
            let case = named(format!(
                "{part}-{}-{}",
                self.prepared[place].name(),
                way.name()
            ));
            show(&format!("{case} on {system}"));
            let bed = self.bed;
            let started = self.unless_failed(case, system, |course| {
                bed.start(&mut course.prepared[place], way, system)
            })?;
            if let Some(started) = started {
                self.record_start(case, system, place, &started);
            }
        }
        // The bound is the same in each round; record it in the round that it is compared with.
        for place in places {
            self.record_bound(part, *place, way);
        }
        Ok(())
    }

    pub(crate) fn record_start(
        &mut self,
        case: &'static str,
        system: &'static str,
        place: usize,
        started: &Started,
    ) {
        let prepared = &self.prepared[place];
        let wall_ms = started.outcome.wall_ms();
        let figures = &mut self.figures;
        if let Some(kib) = started.readahead_kib {
            self.readahead_kib.entry(system).or_default().insert(kib);
        }
        figures.record(case, system, RUN_TIME, wall_ms);
        if let Some(needed) = &prepared.needed[0] {
            let beyond_us = (wall_ms - prepared.warm_ms).max(0.0) * 1e3;
            figures.record(
                case,
                system,
                PAGE_TIME,
                beyond_us / needed.count.max(1) as f64,
            );
            if started.traffic.bytes() > 0 {
                let bytes = started.traffic.bytes() as f64;
                figures.record(case, system, WIRE_BYTES, bytes);
                if started.to_mount.bytes() > 0 {
                    let bytes = started.to_mount.bytes() as f64;
                    figures.record(case, system, MOUNT_BYTES, bytes);
                }
                figures.record(case, system, WIRE_SHARE, bytes / needed.bytes as f64);
            }
        }
        for (metric, counter) in [
            (ROUND_TRIPS, "round_trips"),
            (REQUESTS, "requests"),
            (PUSHED, "pushed"),
            (READS, "reads"),
        ] {
            if let Some(value) = started.counter(counter) {
                figures.record(case, system, metric, value);
            }
        }
        if let (Some(us), Some(reads)) = (started.counter("read_us"), started.counter("reads"))
            && reads > 0.0
        {
            figures.record(case, system, READ_TIME, us / reads);
        }
    }

    fn record_bound(&mut self, part: &str, place: usize, way: Way) {
        let prepared = &self.prepared[place];
        let Some(needed) = &prepared.needed[0] else {
            return;
        };
        let case = named(format!("{part}-{}-{}", prepared.name(), way.name()));
        for (bound, bytes) in needed.compressed() {
            let line_ms = bytes as f64 / way.rate.bytes_per_s() * 1e3;
            let bound_ms = way.round_trip_ms as f64 + line_ms + prepared.warm_ms;
            self.figures.record(case, bound, RUN_TIME, bound_ms);
        }
    }

    /// Records the needs of the programs once.
    pub(crate) fn record_needed(&mut self) {
        for prepared in &self.prepared {
            let case = named(format!("need-{}", prepared.name()));
            self.figures.record(case, EXT4, RUN_TIME, prepared.warm_ms);
            if let Some(needed) = &prepared.needed[0] {
                self.figures
                    .record(case, KEEL, NEEDED_BLOCKS, needed.count as f64);
                self.figures
                    .record(case, KEEL, NEEDED_BYTES, needed.bytes as f64);
                for (bound, bytes) in needed.compressed() {
                    self.figures
                        .record(case, bound, COMPRESSED_BYTES, bytes as f64);
                }
            }
        }
    }

    /// Measures learned starts, and those of the peers, at 100 Mbit/s.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn starts(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        if self.is_quick {
            let systems = &[KEEL, READAHEAD, SSHFS, EXT4];
            return self.cold(START, Way::new(Rate::SLOW, 10), systems, show);
        }
        for round_trip_ms in [2, 10] {
            let way = Way::new(Rate::SLOW, round_trip_ms);
            self.cold(START, way, &[KEEL, UNPREPARED, READAHEAD, SSHFS], show)?;
        }
        Ok(())
    }

    /// Measures learned starts at 1 Gbit/s, and on a disk as slow as a card.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn cards(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        let systems: &[&str] = match self.is_quick {
            true => &[KEEL, CARD, EXT4],
            false => &[KEEL, UNPREPARED, READAHEAD, SSHFS, CARD, EXT4],
        };
        self.cold(START, Way::new(Rate::FAST, 0), systems, show)
    }

    /// Measures learned starts, and those of the peers, on the other paths.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn others(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for (rate, round_trip_ms) in [(Rate::SLOW, 0), (Rate::FAST, 2), (Rate::FAST, 10)] {
            let way = Way::new(rate, round_trip_ms);
            self.cold(START, way, &[KEEL, READAHEAD, SSHFS], show)?;
        }
        Ok(())
    }

    /// Measures the very first start, before anything is known.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn first(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        let trips_ms: &[u64] = if self.is_quick { &[10] } else { &[2, 10] };
        for round_trip_ms in trips_ms {
            let way = Way::new(Rate::SLOW, *round_trip_ms);
            for place in 0..self.prepared.len() {
                let case = named(format!(
                    "{FIRST}-{}-{}",
                    self.prepared[place].name(),
                    way.name()
                ));
                let mut order = [(KEEL, Ours::default()), (READAHEAD, Ours::readahead())];
                self.random.shuffle(&mut order);
                for (system, ours) in order {
                    show(&format!("{case} on {system}"));
                    let bed = self.bed;
                    let started = self.unless_failed(case, system, |course| {
                        bed.start_ours(&course.prepared[place], way, &ours)
                    })?;
                    if let Some(started) = started {
                        self.record_start(case, system, place, &started);
                    }
                }
            }
        }
        Ok(())
    }

    /// Measures the second start, and one without a network from the device's cache.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn again(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in 0..self.prepared.len() {
            let name = self.prepared[place].name();
            let warm = named(format!("{WARM}-{name}"));
            show(warm);
            let bed = self.bed;
            self.unless_failed(warm, KEEL, |course| warm_starts(bed, course, place, warm))?;
            let offline = named(format!("{OFFLINE}-{name}"));
            let mut order = [KEEL, EXT4];
            self.random.shuffle(&mut order);
            for system in order {
                show(&format!("{offline} on {system}"));
                let wall_ms = self.unless_failed(offline, system, |course| {
                    if system == KEEL {
                        offline_start(bed, &course.prepared[place])
                    } else {
                        let started = bed.start_local(&mut course.prepared[place], EXT4)?;
                        Ok(started.outcome.wall_ms())
                    }
                })?;
                if let Some(wall_ms) = wall_ms {
                    self.figures.record(offline, system, RUN_TIME, wall_ms);
                }
            }
        }
        Ok(())
    }

    /// Measures, unless this case has failed before. A failure is listed as missing and does not end the run.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn unless_failed<T>(
        &mut self,
        case: &'static str,
        system: &'static str,
        measure: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        check_interrupted()?;
        if self.failed.contains(&(case, system)) {
            return Ok(None);
        }
        match measure(self) {
            Ok(measured) => Ok(Some(measured)),
            Err(reason) => {
                check_interrupted()?;
                self.figures
                    .missing(format!("{system} in {case} ({reason})"));
                self.failed.insert((case, system));
                Ok(None)
            }
        }
    }
}

/// Names of the parts in cases.
pub(crate) const START: &str = "start";
pub(crate) const FIRST: &str = "first";
pub(crate) const WARM: &str = "warm";
pub(crate) const OFFLINE: &str = "offline";

/// Number of starts of each system in one round of warm starts: single ones vary by more than the goal allows.
const WARM_STARTS: usize = 5;

/// Measures starts with everything in memory, ours and ext4 in turns. Records the medians of a few.
fn warm_starts(
    bed: &Bed<'_>,
    course: &mut Course<'_>,
    place: usize,
    case: &'static str,
) -> Result<(), String> {
    let prepared = &course.prepared[place];
    let running = bed.run_ours(prepared, Way::new(Rate::FAST, 0), &Ours::learned())?;
    bed.start_at(prepared, 0, &running.at, &[])?;
    let mut times = [Vec::new(), Vec::new()];
    let roots = [running.at.clone(), prepared.disk.folder().to_owned()];
    // One more than counted: the first start brings cold data into memory for the others.
    for count in 0..=WARM_STARTS {
        for (times, root) in times.iter_mut().zip(&roots) {
            let wall_ms = bed.start_at(prepared, 0, root, &[])?.wall_ms();
            if count > 0 {
                times.push(wall_ms);
            }
        }
    }
    running.end()?;
    for (system, mut times) in [KEEL, EXT4].into_iter().zip(times) {
        let median = crate::report::median(&mut times);
        course.figures.record(case, system, RUN_TIME, median);
    }
    Ok(())
}

/// If nothing is written to a cache for this time, the device has fetched all that it fetches by itself after a start.
/// It looks for such work once per second.
const SETTLE: Duration = Duration::from_secs(2);

/// Timeout for the cache to settle.
const SETTLE_MAX: Duration = Duration::from_secs(60);

fn settle(running: &Running) -> Result<(), String> {
    let begun = Instant::now();
    let (mut before, mut since) = (None, Instant::now());
    while since.elapsed() < SETTLE {
        if begun.elapsed() > SETTLE_MAX {
            return Err("the device's cache does not come to rest".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
        let figures = running.mounted.figures()?;
        let now = ["fetched", "cache_written"].map(|name| figures[name].as_u64());
        if before.replace(now) != Some(now) {
            since = Instant::now();
        }
    }
    Ok(())
}

/// A start from the device's cache, without a network. First fills the cache by a start and waits until it settles,
/// then disconnects and starts again.
fn offline_start(bed: &Bed<'_>, prepared: &Prepared) -> Result<f64, String> {
    let cache: PathBuf = bed.folder().join("cache");
    let _ = std::fs::remove_dir_all(&cache);
    let mut ours = Ours::learned();
    ours.mounting.cache = Some(cache.clone());
    let way = Way::new(Rate::FAST, 0);
    let running = bed.run_ours(prepared, way, &ours)?;
    bed.start_at(prepared, 0, &running.at, &[])?;
    settle(&running)?;
    running.end()?;
    let wall_ms = bed.start_offline(prepared, &ours.mounting)?;
    std::fs::remove_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    Ok(wall_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let one = named("a-case".to_owned());
        assert!(std::ptr::eq(one, named(format!("a-{}", "case"))));
    }
}
