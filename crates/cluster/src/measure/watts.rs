//! The power of a machine during each benchmark: a thread reads the sensors while ranks poll for messages, and is told
//! which benchmark runs.

use crate::host::printable;
use crate::power::{Phase, Root, Sampler, Source, Summary, sensors};
use crate::results::{Known, Origin, PowerRow};
use base::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of the reads. Each read takes time from a rank's core, so they are rare.
const INTERVAL: Duration = Duration::from_millis(100);

/// Which sensors of boards are read, and for how long without load first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerPlan {
    /// The folder that stands for `/`.
    pub root: PathBuf,
    /// Whether the power chip of a Raspberry Pi 5 is read, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pmic: bool,
    /// Only sensors with this text in their name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensor: Option<String>,
    /// Time in ms during which all ranks sleep before they begin.
    pub idle_ms: u64,
}

impl PowerPlan {
    /// Returns the sensors of this machine.
    ///
    /// # Errors
    /// Why there are none.
    pub fn sensors(&self) -> Result<Vec<Box<dyn Source>>, String> {
        sensors(&Root::new(&self.root), self.pmic, self.sensor.as_deref())
    }
}

/// Host name in rows of a meter that covers all boards.
pub const ALL_BOARDS: &str = "all boards";

enum Request {
    /// From now on this benchmark runs; `None`: something irrelevant.
    During(Option<String>),
    /// The measurement is over.
    Finish(SyncSender<Vec<PowerRow>>),
}

/// The thread that reads the sensors; it ends when this is dropped.
pub struct Watts {
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Watts {
    /// Starts, without load.
    #[must_use]
    pub fn start(sources: Result<Vec<Box<dyn Source>>, String>, host: &str) -> Self {
        let (requests, receiver) = sync_channel(16);
        let clock = SystemClock::new();
        let mut log = Log::new(sources, host, clock.monotonic_ns());
        let watch = move || {
            let interval_ns = INTERVAL.as_nanos() as u64;
            let mut due_ns = clock.monotonic_ns() + interval_ns;
            loop {
                // Requests that arrive more often than reads must not delay the reads.
                let left_ns = due_ns.saturating_sub(clock.monotonic_ns());
                if left_ns == 0 {
                    log.sample(clock.monotonic_ns());
                    due_ns = clock.monotonic_ns() + interval_ns;
                    continue;
                }
                match receiver.recv_timeout(Duration::from_nanos(left_ns)) {
                    Ok(Request::During(what)) => log.switch(what, clock.monotonic_ns()),
                    Ok(Request::Finish(reply)) => {
                        // The requester may be gone.
                        reply.send(log.finish(clock.monotonic_ns())).ok();
                        break;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        // Without the thread there are no values, and `finish` returns no rows.
        let thread = std::thread::Builder::new().name("watts".to_owned());
        Self {
            requests: Some(requests),
            thread: thread.spawn(watch).ok(),
        }
    }

    /// Tells the thread what runs from now on.
    pub fn during(&self, what: Option<&str>) {
        let request = Request::During(what.map(str::to_owned));
        self.requests
            .as_ref()
            .map(|requests| requests.send(request));
    }

    /// Returns a row for each activity and each sensor.
    #[must_use]
    pub fn finish(self) -> Vec<PowerRow> {
        let (sender, receiver) = sync_channel(1);
        let asked = self
            .requests
            .as_ref()
            .map(|all| all.send(Request::Finish(sender)));
        match asked {
            Some(Ok(())) => receiver.recv().unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

impl Drop for Watts {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The sensors' values, by activity.
struct Log {
    sampler: Result<Sampler, String>,
    host: String,
    during: Option<String>,
    found: Vec<(String, Vec<Summary>)>,
    /// Whether the log is before the first load, which ends the idle measurement.
    is_idle: bool,
}

impl Log {
    fn new(sources: Result<Vec<Box<dyn Source>>, String>, host: &str, now_ns: u64) -> Self {
        let sampler = sources.and_then(|sources| {
            Sampler::new(sources, Phase::Idle, now_ns).map_err(|error| error.to_string())
        });
        Self {
            sampler,
            host: host.to_owned(),
            during: None,
            found: Vec::new(),
            is_idle: true,
        }
    }

    fn sample(&mut self, now_ns: u64) {
        if let Ok(sampler) = &mut self.sampler {
            sampler.sample(now_ns);
        }
    }

    fn switch(&mut self, what: Option<String>, now_ns: u64) {
        if !self.is_idle && self.during == what {
            return;
        }
        let summaries = match &mut self.sampler {
            Ok(sampler) => {
                let summaries = sampler.take_load(now_ns);
                if self.is_idle {
                    sampler.switch(Phase::Load, now_ns);
                }
                summaries
            }
            Err(_) => Vec::new(),
        };
        if let Some(before) = std::mem::replace(&mut self.during, what) {
            self.found.push((before, summaries));
        }
        self.is_idle = false;
    }

    fn finish(&mut self, now_ns: u64) -> Vec<PowerRow> {
        self.switch(None, now_ns);
        let mut rows = Vec::new();
        for (during, summaries) in &self.found {
            match &self.sampler {
                Ok(_) => rows.extend(summaries.iter().map(|one| one.row(during, &self.host))),
                Err(why) => rows.push(none(during, &self.host, why)),
            }
        }
        merge_power(rows)
    }
}

/// Returns the row of a machine without a sensor.
fn none(during: &str, host: &str, why: &str) -> PowerRow {
    let why = printable(why);
    PowerRow {
        during: during.to_owned(),
        host: host.to_owned(),
        source: "none".to_owned(),
        covers: "nothing".to_owned(),
        origin: Origin::Unavailable(why.clone()),
        seconds: 0.0,
        samples: 0,
        gap_s_max: 0.0,
        average_w: 0.0,
        maximum_w: 0.0,
        minimum_w: 0.0,
        energy_j: 0.0,
        idle_w: Known::Unavailable(why),
    }
}

/// Combines rows of several starts into one for each benchmark, machine and sensor, in the order of their first
/// appearance.
#[must_use]
pub fn merge_power(rows: Vec<PowerRow>) -> Vec<PowerRow> {
    let mut merged: Vec<(PowerRow, u32)> = Vec::new();
    for row in rows {
        let same = merged.iter_mut().find(|(one, _)| {
            (&one.during, &one.host, &one.source) == (&row.during, &row.host, &row.source)
        });
        match same {
            Some((one, idles)) => add(one, idles, row),
            None => {
                let idles = u32::from(row.idle_w.value().is_some());
                merged.push((row, idles));
            }
        }
    }
    merged.into_iter().map(|(row, _)| row).collect()
}

/// `idles`: number of idle powers in the mean so far.
fn add(one: &mut PowerRow, idles: &mut u32, row: PowerRow) {
    if let Some(&watts) = row.idle_w.value() {
        let before = one.idle_w.value().copied().unwrap_or(0.0);
        let sum = before * f64::from(*idles) + watts;
        *idles += 1;
        one.idle_w = Known::Value(sum / f64::from(*idles));
    }
    one.gap_s_max = one.gap_s_max.max(row.gap_s_max);
    let is_there = |row: &PowerRow| !matches!(row.origin, Origin::Unavailable(_));
    match (is_there(one), is_there(&row)) {
        (_, false) => {}
        (false, true) => {
            let (idle_w, gap_s_max) = (one.idle_w.clone(), one.gap_s_max);
            *one = PowerRow {
                idle_w,
                gap_s_max,
                ..row
            };
        }
        (true, true) => {
            // A sum with a modelled part is no measurement.
            if one.origin == Origin::Measured {
                one.origin = row.origin;
            }
            one.seconds += row.seconds;
            one.samples += row.samples;
            one.energy_j += row.energy_j;
            one.average_w = one.energy_j / one.seconds.max(f64::MIN_POSITIVE);
            one.maximum_w = one.maximum_w.max(row.maximum_w);
            one.minimum_w = one.minimum_w.min(row.minimum_w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::fake::Tree;

    const SECOND: u64 = 1_000_000_000;
    const CHIP: &str = "sys/class/hwmon/hwmon0";

    fn log(tree: &Tree, sensor: Option<&str>) -> Log {
        let plan = PowerPlan {
            root: tree.path(""),
            pmic: false,
            sensor: sensor.map(str::to_owned),
            idle_ms: 0,
        };
        Log::new(plan.sensors(), "b1", 0)
    }

    #[test]
    fn requests_that_come_without_a_pause_do_not_put_readings_off() {
        let tree = Tree::new();
        tree.write(&format!("{CHIP}/name"), "ina226\n");
        tree.write(&format!("{CHIP}/in1_input"), "5000\n");
        tree.write(&format!("{CHIP}/curr1_input"), "400\n");
        tree.write(&format!("{CHIP}/power1_input"), "2000000\n");
        let plan = PowerPlan {
            root: tree.path(""),
            pmic: false,
            sensor: None,
            idle_ms: 0,
        };
        let watts = Watts::start(plan.sensors(), "b1");
        let begun = std::time::Instant::now();
        // Without a pause that is as long as the read interval.
        while begun.elapsed() < 6 * INTERVAL {
            watts.during(Some("reduce"));
        }
        let rows = watts.finish();
        // One at each end, and some between.
        assert!(rows[0].samples >= 4, "{rows:?}");
    }

    #[test]
    fn each_benchmark_has_its_own_power_and_idle_is_that_before() {
        let tree = Tree::new();
        let watts = |watts: u64| {
            tree.write(
                &format!("{CHIP}/power1_input"),
                format!("{}\n", watts * 1_000_000),
            )
        };
        tree.write(&format!("{CHIP}/name"), "ina226\n");
        tree.write(&format!("{CHIP}/in1_input"), "5000\n");
        tree.write(&format!("{CHIP}/curr1_input"), "400\n");
        watts(2);
        let mut log = log(&tree, None);
        log.sample(SECOND);
        log.switch(Some("reduce".to_owned()), 2 * SECOND);
        watts(4);
        log.sample(3 * SECOND);
        log.sample(5 * SECOND);
        // Switching to the same activity changes nothing.
        log.switch(Some("reduce".to_owned()), 6 * SECOND);
        log.switch(None, 7 * SECOND);
        watts(50);
        log.sample(8 * SECOND);
        watts(6);
        log.switch(Some("latency".to_owned()), 9 * SECOND);
        log.sample(11 * SECOND);
        log.switch(Some("reduce".to_owned()), 12 * SECOND);
        watts(8);
        log.sample(14 * SECOND);
        let rows = log.finish(15 * SECOND);
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.during.as_str(),
                    row.seconds,
                    row.minimum_w,
                    row.maximum_w,
                )
            })
            .collect();
        // At a switch the value counts for both sides.
        assert_eq!(
            found,
            [("reduce", 8.0, 2.0, 8.0), ("latency", 3.0, 6.0, 6.0)],
            "{rows:?}"
        );
        assert!(rows.iter().all(|row| row.idle_w == Known::Value(2.0)));
        assert_eq!(rows[1].energy_j, 18.0);
        assert!((rows[0].average_w * 8.0 - rows[0].energy_j).abs() < 1e-9);
    }

    #[test]
    fn a_machine_without_sensors_says_so_for_each_benchmark() {
        let tree = Tree::new();
        let mut log = log(&tree, None);
        log.switch(Some("reduce".to_owned()), SECOND);
        log.switch(Some("latency".to_owned()), 2 * SECOND);
        let rows = log.finish(3 * SECOND);
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(matches!(row.origin, Origin::Unavailable(_)), "{row:?}");
            assert_eq!((row.average_w, row.idle_w.value()), (0.0, None));
        }
        tree.write(&format!("{CHIP}/name"), "ina226\n");
        tree.write(&format!("{CHIP}/power1_input"), "1000000\n");
        tree.write(&format!("{CHIP}/in1_input"), "5000\n");
        tree.write(&format!("{CHIP}/curr1_input"), "400\n");
        let plan = |sensor: &str| PowerPlan {
            root: tree.path(""),
            pmic: false,
            sensor: Some(sensor.to_owned()),
            idle_ms: 0,
        };
        assert_eq!(plan("ina").sensors().map(|all| all.len()), Ok(1));
        assert!(
            plan("rapl")
                .sensors()
                .is_err_and(|why| why.contains("`rapl`"))
        );
        // The power chip is read only on request, because it cannot be found below a folder.
        let with_chip = PowerPlan {
            pmic: true,
            ..plan("pmic")
        };
        let names = with_chip.sensors().map(|all| {
            let names = all.iter().map(|one| one.name().to_owned());
            names.collect::<Vec<_>>()
        });
        assert_eq!(names, Ok(vec!["pi5 pmic".to_owned()]));
    }

    #[test]
    fn starts_are_put_together_by_their_lengths() {
        let row = |seconds: f64, watts: f64, idle: Option<f64>| PowerRow {
            origin: Origin::Measured,
            seconds,
            samples: 3,
            average_w: watts,
            maximum_w: watts + 1.0,
            minimum_w: watts - 1.0,
            energy_j: seconds * watts,
            source: "ina".to_owned(),
            idle_w: idle.map_or(Known::Unavailable("none".to_owned()), Known::Value),
            ..none("reduce", "b1", "x")
        };
        let gone = PowerRow {
            source: "ina".to_owned(),
            gap_s_max: 5.0,
            ..none("reduce", "b1", "gone")
        };
        let rows = vec![
            gone.clone(),
            row(1.0, 4.0, Some(1.0)),
            gone,
            row(3.0, 8.0, Some(3.0)),
            none("latency", "b1", "gone"),
        ];
        let merged = merge_power(rows);
        assert_eq!(merged.len(), 2);
        let one = &merged[0];
        assert_eq!((one.seconds, one.average_w, one.samples), (4.0, 7.0, 6));
        assert_eq!((one.minimum_w, one.maximum_w), (3.0, 9.0));
        assert_eq!((one.gap_s_max, &one.idle_w), (5.0, &Known::Value(2.0)));
        let modelled = PowerRow {
            origin: Origin::Modelled("a fit".to_owned()),
            ..row(1.0, 4.0, None)
        };
        let merged = merge_power(vec![row(1.0, 4.0, None), modelled]);
        assert_eq!(merged[0].origin, Origin::Modelled("a fit".to_owned()));
    }
}
