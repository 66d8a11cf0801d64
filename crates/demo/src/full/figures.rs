//! Figures of a run: numbers of a status, the comparison of the store with the sensors' record, and a shell's cost of a
//! read.

use super::feed::{Known, Record};
use super::processes::{self, AT};
use command::error::CliError;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use trace::Sensors;

/// Timed reads of a file.
const READS: u32 = 3_000;

/// Returns the number below these names; 0 if there is none.
pub(super) fn number(value: &Value, names: &[&str]) -> u64 {
    let found = names.iter().fold(value, |value, name| &value[*name]);
    found.as_u64().unwrap_or(0)
}

/// Returns the instances of tasks, and the late ones, of a node's whole life.
pub(super) fn instances(status: &Value) -> (u64, u64) {
    let ended = &status["qos"]["tasks_ended"];
    let of = |task: &Value| {
        (
            number(task, &["instances"]),
            number(task, &["deadline_misses"]),
        )
    };
    let tasks = status["qos"]["tasks"].as_array();
    let all = tasks.into_iter().flatten().map(of);
    all.fold(of(ended), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// The outcome of the readings.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) stored: u64,
    /// Acknowledged, but not stored.
    pub(super) missing: u64,
    /// Stored more often than sent, which includes altered readings.
    pub(super) unexpected: u64,
    /// Stored twice, because they were sent again for lack of an answer.
    pub(super) twice: u64,
}

/// Compares the store, which no node has open, with the sensors' record.
pub(super) fn compare(
    folder: &Path,
    image: &str,
    sensors: &Sensors,
    record: &Record,
) -> Result<Found, CliError> {
    let csv = processes::demand(folder, &["export", "--format", "csv", "--image", image])?;
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().unwrap_or("").split(',').collect();
    let column = |name: &str| header.iter().position(|one| *one == name);
    let columns = [column("key"), column("time_ms"), column("value")];
    let [Some(key), Some(time), Some(value)] = columns else {
        let wrong = format!("export has other columns: {}", header.join(","));
        return Err(CliError::failure("demo", wrong, "use one version of keel"));
    };
    let mut stored: HashMap<Known, u32> = HashMap::new();
    let mut found = Found::default();
    for line in lines {
        // Sensor names and numbers need no quotes.
        let fields: Vec<&str> = line.split(',').collect();
        let of = |at: usize| fields.get(at).copied().unwrap_or("").trim_matches('"');
        let Some(sensor) = sensors.index_of(of(key)) else {
            continue;
        };
        let (Ok(time_ms), Ok(number)) = (of(time).parse(), of(value).parse::<f64>()) else {
            found.unexpected += 1;
            continue;
        };
        found.stored += 1;
        *stored
            .entry((sensor, time_ms, number.to_bits()))
            .or_default() += 1;
    }
    for (reading, (acknowledged, sent)) in &record.readings {
        let count = stored.remove(reading).unwrap_or(0);
        found.missing += u64::from(acknowledged.saturating_sub(count));
        found.unexpected += u64::from(count.saturating_sub(*sent));
        found.twice += u64::from(count.min(*sent).saturating_sub(*acknowledged));
    }
    found.unexpected += stored.values().map(|count| u64::from(*count)).sum::<u64>();
    Ok(found)
}

/// Returns how long a shell takes to read the first line of a file, in µs, without the start of the shell. `region`:
/// the file is in this region.
pub(super) fn shell_read_us(folder: &Path, region: Option<&Path>, file: &str) -> Option<f64> {
    // A file that is being replaced may not be found for a moment.
    const SCRIPT: &str = "i=0; while [ $i -lt $1 ]; do read -r line < $2 && i=$((i+1)); done";
    let time = |reads: u32| {
        let count = reads.to_string();
        let shell = ["sh", "-c", SCRIPT, "sh", &count, file];
        let mut command = match region {
            None => Command::new(shell[0]),
            Some(region) => {
                let mut command = Command::new(std::env::current_exe().ok()?);
                command
                    .args(["mem", "run"])
                    .arg(region)
                    .args(["--at", AT, "--", shell[0]]);
                command
            }
        };
        command
            .args(&shell[1..])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let begun = Instant::now();
        command
            .status()
            .ok()?
            .success()
            .then(|| begun.elapsed().as_secs_f64())
    };
    let (start, all) = (time(0)?, time(READS)?);
    Some(((all - start) * 1e6 / f64::from(READS)).max(0.0))
}
