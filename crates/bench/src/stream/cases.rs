//! What the table of goals asks for, measured round after round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::sim::Random;

use super::bed::{Bed, CARD, EXT4, KEEL, Ours, Prepared, READAHEAD, Running, SSHFS, Started, Way};
use super::needed::{LEVELS, Needed};
use super::net::Rate;
use crate::figures::{Figures, Metric};
use crate::scratch::check_interrupted;

/// From before a program is started until it has ended.
pub(crate) const RUN_TIME: Metric = Metric::compared("run_time", "ms");
/// What a start takes beyond one with everything in memory, for each block that it needs.
pub(crate) const PAGE_TIME: Metric = Metric::compared("page_time", "us");
/// Times that the program waited for the network.
pub(crate) const ROUND_TRIPS: Metric = Metric::shown("round_trips", "1");
/// Bytes on the line, both ways, with everything, from before the tree was mounted.
pub(crate) const WIRE_BYTES: Metric = Metric::shown("wire_bytes", "B");
/// Of these, until the tree is mounted: the manifest.
pub(crate) const MOUNT_BYTES: Metric = Metric::shown("mount_bytes", "B");
/// The same, divided by the bytes needed.
pub(crate) const WIRE_SHARE: Metric = Metric::shown("wire_of_needed", "1");
/// Bytes that a program needs.
pub(crate) const NEEDED_BYTES: Metric = Metric::shown("needed_bytes", "B");
pub(crate) const NEEDED_BLOCKS: Metric = Metric::shown("needed_blocks", "1");
/// The same, compressed.
pub(crate) const COMPRESSED_BYTES: Metric = Metric::shown("compressed_bytes", "B");
/// Requests that somebody waited for.
pub(crate) const REQUESTS: Metric = Metric::shown("requests", "1");
/// Blocks that were prefetched and came.
pub(crate) const PUSHED: Metric = Metric::shown("pushed_blocks", "1");
/// Mean time of a read that came to the mount.
pub(crate) const READ_TIME: Metric = Metric::shown("read_time", "us");
/// Such reads.
pub(crate) const READS: Metric = Metric::shown("reads", "1");

/// What a start takes at least: one round trip, the needed blocks compressed over the rate of the line, and the run
/// with everything in memory on a local disk, one after the other. The goal is about content compressed as it is
/// published (zstd 3, in segments), whatever is sent: else to send fewer bytes would make it harder. The second one,
/// shown beside, is what is left when it is compressed as well as it can be.
pub(crate) const BOUNDS: [&str; LEVELS.len()] = ["bound", "bound-zstd-19"];

impl Needed {
    /// What was compressed, with the name of its bound.
    fn compressed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = BOUNDS.into_iter().zip(self.compressed_bytes);
        all.filter(|(_, bytes)| *bytes > 0)
    }
}

/// A name for good: cases are few.
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
    /// Case and system of what has failed, which is not tried again.
    pub(crate) failed: BTreeSet<(&'static str, &'static str)>,
    pub(crate) figures: Figures,
    /// What the kernel was seen to read ahead of each system, in KiB.
    pub(crate) readahead_kib: BTreeMap<&'static str, BTreeSet<u32>>,
    pub(crate) is_quick: bool,
}

impl Course<'_> {
    /// Starts with nothing in any cache, on all systems.
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

    /// The same of some programs.
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
        // What a start takes with everything in memory is measured in the same round as what is compared with it.
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
        // The bound is the same in each round; it stands beside the round that it is compared with.
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

    /// What the programs need, once.
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

    /// Learned starts, and those of the peers, at 100 Mbit/s.
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
            self.cold(START, way, &[KEEL, READAHEAD, SSHFS], show)?;
        }
        Ok(())
    }

    /// Learned starts at 1 Gbit/s, and on a disk as slow as a card.
    ///
    /// # Errors
    /// The user has asked to stop.
    pub(crate) fn cards(&mut self, show: &mut dyn FnMut(&str)) -> Result<(), String> {
        let systems: &[&str] = match self.is_quick {
            true => &[KEEL, CARD, EXT4],
            false => &[KEEL, READAHEAD, SSHFS, CARD, EXT4],
        };
        self.cold(START, Way::new(Rate::FAST, 0), systems, show)
    }

    /// Learned starts, and those of the peers, on the other ways.
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

    /// The first start of all, of which nothing is known.
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

    /// The start after, and one without a network from the device's cache.
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

    /// Measures, unless it has failed before. What fails is listed as missing and ends nothing else.
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

/// Names of parts in cases.
pub(crate) const START: &str = "start";
pub(crate) const FIRST: &str = "first";
pub(crate) const WARM: &str = "warm";
pub(crate) const OFFLINE: &str = "offline";

/// Starts of each system in one round of warm ones: single ones differ by more than what is asked.
const WARM_STARTS: usize = 5;

/// Starts with everything in memory, ours and ext4 in turns: the medians of a few.
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
    // One more than is counted: what the first finds cold is warm for the others.
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

/// A cache in which nothing is written for so long has what the device fetches by itself behind a start, which it looks
/// for once a second.
const SETTLE: Duration = Duration::from_secs(2);

/// How long that may take.
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

/// A start from the device's cache, without a network: fills the cache by a start, as long as it takes, cuts, and
/// starts anew.
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
