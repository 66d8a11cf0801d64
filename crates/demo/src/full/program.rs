//! The program of the task: the demo's analysis as a process of its own, with libkeel. It reads the latest values where
//! the node writes them, and replaces files of results ten times per second, by ordinary calls.

use crate::analysis::{Analysis, Verdict, WayOut};
use crate::building::{self, Room};
use command::error::CliError;
use libkeel::{Node, TaskSpec, Value};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) const PERIOD: Duration = Duration::from_millis(100);
pub(super) const DEADLINE: Duration = Duration::from_millis(50);

/// The file of one line, and the file with a line per room.
pub(super) const SUMMARY: &str = "summary";
pub(super) const ROOMS: &str = "rooms";

/// Key of the result that goes upstream.
pub(super) const KEY: &str = "analysis/hottest-c";

/// Timeout for attaching to a node that does not exist yet.
const ATTACH_MAX: Duration = Duration::from_secs(30);

/// Runs until it is killed or asked to end.
pub(crate) fn run(results: &Path) -> Result<u8, CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::failure("analysis", error, "it is started by `keel demo --full`")
    };
    let variable =
        |name: &str| std::env::var(name).map_err(|_| failed(&format!("{name} is not set")));
    let (socket, name) = (variable("KEEL_NODE")?, variable("KEEL_TASK")?);
    let until = Instant::now() + ATTACH_MAX;
    let node = loop {
        match Node::attach(&socket) {
            Ok(node) => break node,
            Err(error) if Instant::now() >= until => return Err(failed(&error)),
            Err(_) => std::thread::sleep(PERIOD),
        }
    };
    let sensors = trace::bundled_sensors().map_err(|error| failed(&error))?;
    let keys: Result<Vec<_>, _> = sensors
        .as_slice()
        .iter()
        .map(|sensor| node.key(&sensor.name))
        .collect();
    let keys = keys.map_err(|error| failed(&error))?;
    let result = node.key(KEY).map_err(|error| failed(&error))?;
    let mut values: Vec<Option<f64>> = vec![None; keys.len()];
    let mut analysis = Analysis::new(building::assign(&sensors));
    let spec = TaskSpec::new(&name, PERIOD, DEADLINE);
    let mut task = node.periodic_task(spec).map_err(|error| failed(&error))?;
    let begun = Instant::now();
    let mut number = 0_u64;
    let mut wrong = None;
    task.run(|task| {
        number += 1;
        task.data(|| {
            for (value, key) in values.iter_mut().zip(&keys) {
                if let Ok((found, _)) = key.float() {
                    *value = Some(found);
                }
            }
        });
        let known = values.iter().filter(|value| value.is_some()).count();
        let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let picture =
            *analysis.step(now_ms, |sensor| values.get(usize::from(sensor)).copied().flatten());
        let hottest_c =
            picture.hottest.map_or(0.0, |room| picture.rooms[room.index()].hottest_c);
        let mut rooms = String::new();
        let mut lost = 0;
        for room in Room::all() {
            let here = &picture.rooms[room.index()];
            lost += u32::from(matches!(here.verdict, Verdict::Lost(_)));
            // Writing to a string never fails.
            writeln!(rooms, "{room}: {:?}, {:.1} °C", here.verdict, here.hottest_c).ok();
        }
        let open = picture.ways_out.iter().filter(|way| **way == WayOut::Open).count();
        let hottest = picture.hottest.map_or("none".to_owned(), |room| room.to_string());
        let summary = format!(
            "{number} {known} sensors known, hottest {hottest} at {hottest_c:.1} °C, {lost} rooms lost, {open} ways \
             out open {number}\n"
        );
        let written = replace(results, SUMMARY, &summary).and_then(|()| replace(results, ROOMS, &rooms));
        task.put(&result, Value::Float(hottest_c), None).ok();
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                wrong = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    match wrong {
        Some(error) => Err(CliError::io(results.display(), &error)),
        None => Ok(0),
    }
}

/// Replaces a file atomically: readers find the old content or the new one.
fn replace(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let draft = folder.join(format!("{name}.new"));
    std::fs::write(&draft, text)?;
    std::fs::rename(&draft, folder.join(name))
}
