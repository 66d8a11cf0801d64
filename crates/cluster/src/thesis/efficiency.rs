//! Results of a file's benchmarks ÷ watts, and ÷ joules of one operation.

use super::watts::{Group, measured_or_modelled, watts};
use crate::Error;
use crate::model::measured_per_watt;
use crate::results::{Benchmark, BenchmarkRow, ResultFile, Row, Transport};

/// Why a file's own power gives no watts of all hosts.
const NO_WATTS: &str =
    "the power in the file is not of every host, or of sensors that cannot be told apart";

/// Result ÷ watts for one size of one benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    /// The run.
    pub label: String,
    /// The benchmark.
    pub benchmark: Benchmark,
    /// What carried the messages.
    pub transport: Transport,
    /// Whether it is of a larger machine, and not of boards.
    pub is_machine: bool,
    /// Hosts.
    pub boards: u32,
    /// Processes.
    pub ranks: u32,
    /// Size of the message.
    pub bytes: u64,
    /// Time of one operation.
    pub seconds: f64,
    /// Result in its unit; for latency messages per second, since more must be better.
    pub result: f64,
    /// Watts of all boards, or why they are unknown.
    pub watts: Result<f64, String>,
    /// Origin of the watts.
    pub watts_from: String,
}

impl Efficiency {
    /// Returns result ÷ watts, which is not equation 3.4.
    #[must_use]
    pub fn per_watt(&self) -> Option<f64> {
        measured_per_watt(self.result, *self.watts.as_ref().ok()?)
    }

    /// Returns result ÷ joules of one operation, which can rise and fall with the number of boards.
    #[must_use]
    pub fn per_joule(&self) -> Option<f64> {
        measured_per_watt(self.result, *self.watts.as_ref().ok()? * self.seconds)
    }

    /// Returns whether a part of the watts is from a formula.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        self.watts_from.starts_with("modelled")
    }
}

/// Returns the unit of a result, in the form in which more is better.
#[must_use]
pub fn unit(benchmark: Benchmark) -> &'static str {
    if benchmark == Benchmark::Latency {
        "messages/s"
    } else {
        benchmark.unit()
    }
}

/// Returns result ÷ watts for each benchmark row of a file.
pub(super) fn of_file(
    file: &ResultFile,
    group: &Group<'_>,
    into: &mut Vec<Efficiency>,
) -> Result<(), Error> {
    let boards = file.header.hosts.len() as u32;
    for row in &file.rows {
        let Row::Benchmark(row) = row else {
            continue;
        };
        let power = watts(file, group, row.benchmark, boards);
        into.push(of_row(file, row, group.is_machine, power)?);
    }
    Ok(())
}

/// Returns what a file's power table says of an activity's efficiency: that of the size with the greatest result, in
/// the form of [`unit`]. The watts are of all hosts, from this file alone. `None` if the file has no result of it.
#[must_use]
pub fn best_of(file: &ResultFile, during: &str) -> Option<Efficiency> {
    let power = match measured_or_modelled(file, during) {
        Some((watts, from)) if watts > 0.0 => (Ok(watts), from),
        Some(_) => (
            Err("the power of all hosts is not above 0 W".to_owned()),
            String::new(),
        ),
        None => (Err(NO_WATTS.to_owned()), String::new()),
    };
    let rows = file.rows.iter().filter_map(|row| match row {
        Row::Benchmark(row) if row.benchmark.name() == during => Some(row),
        _ => None,
    });
    // Each row of a file that was read or checked has a median.
    let found = rows.filter_map(|row| of_row(file, row, false, power.clone()).ok());
    found.max_by(|a, b| a.result.total_cmp(&b.result))
}

/// Returns result ÷ watts of one row. `power`: the watts of all hosts, and their origin.
fn of_row(
    file: &ResultFile,
    row: &BenchmarkRow,
    is_machine: bool,
    (watts, watts_from): (Result<f64, String>, String),
) -> Result<Efficiency, Error> {
    let us = row.median_us()?.value;
    let result = match row.benchmark {
        Benchmark::Latency => 1e6 / us,
        other => other.result(row.bytes, us),
    };
    Ok(Efficiency {
        label: file.header.label.clone(),
        benchmark: row.benchmark,
        transport: row.transport,
        is_machine,
        boards: file.header.hosts.len() as u32,
        ranks: row.ranks,
        bytes: row.bytes,
        seconds: us * 1e-6,
        result,
        watts,
        watts_from,
    })
}
