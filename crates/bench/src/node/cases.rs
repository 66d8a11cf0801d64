//! The cases that need a broker: a steady stream, the maximum rate, and the start after a kill.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::disk::LoopDisk;
use super::process::Process;
use super::system::{self, Place, Running, System};
use crate::figures::{Figures, Metric};
use crate::scratch::check_interrupted;
use crate::store::DeviceCounts;

/// The rate of the steady stream, in readings per second.
pub(crate) const STEADY_RATE: u32 = 260;

pub(crate) const STEADY: &str = "steady-260";
pub(crate) const RATE: &str = "acknowledged-rate";

pub(crate) const CPU_SHARE: Metric = Metric::compared("cpu_of_one_core", "%");
pub(crate) const RESIDENT: Metric = Metric::compared("resident", "MiB");
pub(crate) const RESIDENT_MAX: Metric = Metric::compared("resident_max", "MiB");
pub(crate) const RATE_ACKNOWLEDGED: Metric = Metric::compared("acknowledged_per_second", "1/s");
pub(crate) const CPU_PER_READING: Metric = Metric::compared("cpu_per_reading", "us");
pub(crate) const WRITTEN: Metric = Metric::compared("device_written_per_reading", "B");
pub(crate) const FLUSHES: Metric = Metric::compared("device_flushes_per_reading", "1");
pub(crate) const WRITES: Metric = Metric::compared("device_writes_per_reading", "1");
pub(crate) const FIRST_ACKNOWLEDGED: Metric = Metric::compared("first_acknowledged", "s");

/// What each case needs.
pub(crate) struct Course<'a> {
    pub(crate) figures: &'a mut Figures,
    pub(crate) place: Place,
    pub(crate) scratch: &'a Path,
    pub(crate) rounds: u32,
    /// Reports the progress of the run.
    pub(crate) progress: &'a mut dyn FnMut(&str),
}

/// Returns the order in which the systems are measured in a round.
pub(crate) fn turns<T>(systems: &mut [T], round: u32) -> impl Iterator<Item = usize> + use<T> {
    let count = systems.len();
    (0..count).map(move |turn| (turn + round as usize) % count)
}

/// Records the device operations that `readings` needed.
pub(crate) fn record_device(
    figures: &mut Figures,
    case: &'static str,
    system: &'static str,
    spent: (DeviceCounts, DeviceCounts),
    readings: u64,
) {
    let (before, after) = spent;
    let each = |count: u64| count as f64 / readings as f64;
    figures.record(
        case,
        system,
        WRITTEN,
        each(after.bytes_written - before.bytes_written),
    );
    figures.record(case, system, WRITES, each(after.writes - before.writes));
    if let (Some(after), Some(before)) = (after.flushes, before.flushes) {
        figures.record(case, system, FLUSHES, each(after - before));
    }
}

/// One system of the steady stream, with its own disk where that is possible.
struct Steady {
    running: Running,
    // Dropped after the process, which has files on this disk.
    disk: Option<LoopDisk>,
}

/// Sends a steady stream of 260 readings per second to each system in turn, for `time` in each round.
pub(crate) fn steady(
    course: &mut Course<'_>,
    systems: &[System],
    time: Duration,
) -> Result<(), String> {
    let Course {
        figures,
        place,
        scratch,
        rounds,
        progress,
    } = course;
    let mut started = Vec::new();
    for system in systems {
        let name = format!("steady-{}", system.name());
        let disk = LoopDisk::create(scratch, &name, (2 * place.image_mebibytes) << 20);
        let (folder, disk) = match disk {
            Ok(disk) => (disk.folder().to_path_buf(), Some(disk)),
            Err(error) => {
                figures.missing(format!(
                    "{STEADY}, bytes at the device of {}: {error}",
                    system.name()
                ));
                (folder(scratch, &format!("{name}-plain"))?, None)
            }
        };
        started.push(Steady {
            running: Running::start(*system, place, &folder)?,
            disk,
        });
    }
    let warm_up = time.min(Duration::from_secs(5));
    for round in 0..*rounds {
        for at in turns(&mut started, round) {
            check_interrupted()?;
            let Steady { running, disk } = &mut started[at];
            let name = running.system.name();
            progress(&format!("{STEADY}, round {}, {name}", round + 1));
            running.publisher.paced(STEADY_RATE, warm_up)?;
            running.drain()?;
            let before = disk.as_ref().map(LoopDisk::counts).transpose()?;
            let (cpu, begin) = (running.process.cpu_ns()?, Instant::now());
            let readings = running.publisher.paced(STEADY_RATE, time)?;
            let share =
                (running.process.cpu_ns()? - cpu) as f64 / begin.elapsed().as_nanos() as f64;
            running.drain()?;
            figures.record(STEADY, name, CPU_SHARE, 100.0 * share);
            let (now, _) = running.process.resident_mebibytes()?;
            figures.record(STEADY, name, RESIDENT, now);
            if let (Some(disk), Some(before)) = (disk, before) {
                record_device(figures, STEADY, name, (before, disk.counts()?), readings);
            }
        }
    }
    for Steady { running, disk } in started {
        // The most of all rounds: it cannot fall from one to the next.
        let (_, most) = running.process.resident_mebibytes()?;
        figures.record(STEADY, running.system.name(), RESIDENT_MAX, most);
        running.end(place)?;
        drop(disk);
    }
    Ok(())
}

/// Measures the maximum rate that each system acknowledges, with `count` readings in each round.
pub(crate) fn rate(course: &mut Course<'_>, systems: &[System], count: u64) -> Result<(), String> {
    let Course {
        figures,
        place,
        scratch,
        rounds,
        progress,
    } = course;
    let mut started = Vec::new();
    for system in systems {
        let mut running = Running::start(
            *system,
            place,
            &folder(scratch, &format!("rate-{}", system.name()))?,
        )?;
        // Creates all keys and warms all caches before the first round.
        running.burst(count.min(20_000))?;
        started.push(running);
    }
    for round in 0..*rounds {
        for at in turns(&mut started, round) {
            let running = &mut started[at];
            let name = running.system.name();
            progress(&format!("{RATE}, round {}, {name}", round + 1));
            let (cpu, begin) = (running.process.cpu_ns()?, Instant::now());
            running.burst(count)?;
            let elapsed = begin.elapsed();
            let cpu_ns = running.process.cpu_ns()? - cpu;
            figures.record(
                RATE,
                name,
                RATE_ACKNOWLEDGED,
                count as f64 / elapsed.as_secs_f64(),
            );
            figures.record(
                RATE,
                name,
                CPU_PER_READING,
                cpu_ns as f64 / 1000.0 / count as f64,
            );
        }
    }
    for running in started {
        running.end(place)?;
    }
    Ok(())
}

/// Measures the time from the start after a SIGKILL under load to the first acknowledgement. `prepare` fills the store
/// of a system that has been started once and ended.
pub(crate) fn restart(
    course: &mut Course<'_>,
    case: &'static str,
    systems: &[System],
    prepare: &mut dyn FnMut(System, &Path) -> Result<(), String>,
) -> Result<(), String> {
    let Course {
        figures,
        place,
        scratch,
        rounds,
        progress,
    } = course;
    let mut folders = Vec::new();
    for system in systems {
        progress(&format!("{case}, filling {}", system.name()));
        let folder = folder(scratch, &format!("restart-{}", system.name()))?;
        Running::start(*system, place, &folder)?.end(place)?;
        prepare(*system, &folder)?;
        folders.push((*system, folder));
    }
    for round in 0..*rounds {
        for at in turns(&mut folders, round) {
            check_interrupted()?;
            let (system, folder) = &folders[at];
            progress(&format!("{case}, round {}, {}", round + 1, system.name()));
            let elapsed = kill_and_start(*system, place, folder)?;
            figures.record(
                case,
                system.name(),
                FIRST_ACKNOWLEDGED,
                elapsed.as_secs_f64(),
            );
        }
    }
    Ok(())
}

fn kill_and_start(system: System, place: &Place, folder: &Path) -> Result<Duration, String> {
    let Running {
        process,
        mut publisher,
        mut watch,
        ..
    } = Running::start(system, place, folder)?;
    publisher.paced(LOAD_RATE, Duration::from_secs(1))?;
    if watch.acknowledged()? == 0 {
        return Err(format!(
            "{}: nothing was acknowledged before the kill",
            system.name()
        ));
    }
    let greeting_bytes = watch.greeting_bytes;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The load continues during the kill and the start. Its steps are short, so that it ends soon after it is told
        // to stop.
        let load = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                publisher.paced(LOAD_RATE, Duration::from_millis(50))?;
            }
            Ok::<_, String>(())
        });
        let elapsed = kill_under_load(system, place, folder, process, greeting_bytes);
        is_over.store(true, Ordering::Relaxed);
        load.join().map_err(|_| "the publisher panicked")??;
        elapsed
    })
}

fn kill_under_load(
    system: System,
    place: &Place,
    folder: &Path,
    process: Process,
    greeting_bytes: u64,
) -> Result<Duration, String> {
    std::thread::sleep(Duration::from_millis(100));
    process.kill()?;
    let begin = Instant::now();
    let mut process = system::spawn(system, place, folder)?;
    system::first_acknowledgement(&mut process, place.broker.port(), greeting_bytes)
        .map_err(|error| format!("{}: {error}", system.name()))?;
    let elapsed = begin.elapsed();
    process.end()?;
    Ok(elapsed)
}

/// The load around a kill, in readings per second.
const LOAD_RATE: u32 = 2000;

pub(super) fn folder(scratch: &Path, name: &str) -> Result<PathBuf, String> {
    let path = scratch.join(name);
    std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
