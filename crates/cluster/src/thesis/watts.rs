//! The power of all hosts of a file during a benchmark: measured, or modelled, or the thesis's.

use crate::jobs::energy::that_count;
use crate::measure::ALL_BOARDS;
use crate::model::{BenchmarkPower, Fault};
use crate::results::{Benchmark, Origin, PowerRow, ResultFile, Row};

/// Files of the same kind of machine.
pub(super) struct Group<'a> {
    pub(super) files: &'a [ResultFile],
    pub(super) is_machine: bool,
    /// The thesis's power of such a machine.
    pub(super) table: &'a [BenchmarkPower],
}

/// Returns the names of a file's hosts, in order.
pub(super) fn names_of(file: &ResultFile) -> Vec<&str> {
    let mut names: Vec<&str> = file
        .header
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    names.sort_unstable();
    names
}

/// Returns the contradictions in a row, as one text without commas.
#[must_use]
pub fn faults(row: &BenchmarkPower) -> String {
    let texts: Vec<&str> = row.faults().into_iter().map(Fault::text).collect();
    texts.join("; ")
}

/// Which values of sensors are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Measured,
    /// Where a host has no measured value, a modelled one.
    Any,
}

/// The power of one host, and the sources of the formulas if it is not measured.
fn power_of_host(
    file: &ResultFile,
    benchmark: &str,
    host: &str,
    taken: Taken,
) -> Option<(f64, Vec<String>)> {
    let rows = || {
        file.rows.iter().filter_map(move |row| match row {
            Row::Power(row) if row.during == benchmark && row.host == host => Some(row),
            _ => None,
        })
    };
    let sum = |there: &[&PowerRow]| {
        let counted = that_count(there, |row| &row.source)?;
        let formulas = counted.iter().filter_map(|row| match &row.origin {
            Origin::Modelled(after) => Some(after.clone()),
            _ => None,
        });
        let formulas: Vec<String> = formulas.collect();
        let watts: f64 = counted.iter().map(|row| row.average_w).sum();
        Some((watts, formulas))
    };
    let measured: Vec<&PowerRow> = rows()
        .filter(|row| row.origin == Origin::Measured)
        .collect();
    let modelled: Vec<&PowerRow> = rows()
        .filter(|row| matches!(row.origin, Origin::Modelled(_)))
        .collect();
    let found = sum(&measured);
    match taken {
        Taken::Measured => found,
        Taken::Any => found.or_else(|| sum(&modelled)),
    }
}

/// Returns the power of all hosts together during a benchmark, from one file, and its origin. It is that of the meter
/// that covers all of them, or the sum over hosts if each has a figure. A sum with a modelled part is modelled.
pub(super) fn power_in(
    file: &ResultFile,
    benchmark: &str,
    hosts: &[&str],
    taken: Taken,
) -> Option<(f64, String)> {
    let of_host = |host: &str| power_of_host(file, benchmark, host, taken);
    let parts = match of_host(ALL_BOARDS) {
        Some(all) => vec![all],
        None => hosts
            .iter()
            .map(|host| of_host(host))
            .collect::<Option<Vec<_>>>()?,
    };
    if parts.is_empty() {
        return None;
    }
    let watts: f64 = parts.iter().map(|part| part.0).sum();
    let mut formulas: Vec<String> = parts.into_iter().flat_map(|part| part.1).collect();
    formulas.sort_unstable();
    formulas.dedup();
    let from = match formulas.is_empty() {
        true => "measured".to_owned(),
        false => format!("modelled: {}", formulas.join(" and ")),
    };
    Some((watts, from))
}

/// Returns the power of all hosts during an activity from one file, measured or else modelled, and its origin.
pub(super) fn measured_or_modelled(file: &ResultFile, during: &str) -> Option<(f64, String)> {
    let hosts = names_of(file);
    let of = |taken: Taken| power_in(file, during, &hosts, taken);
    of(Taken::Measured).or_else(|| of(Taken::Any))
}

/// Returns the power of all hosts during a benchmark. It is measured, in this file or another one with the same label
/// and hosts. Otherwise it is modelled there, or that of the thesis's table.
pub(super) fn watts(
    file: &ResultFile,
    group: &Group<'_>,
    benchmark: Benchmark,
    boards: u32,
) -> (Result<f64, String>, String) {
    let name = benchmark.name();
    let hosts: Vec<&str> = names_of(file);
    // The row's own file first; other numbers of boards are other measurements.
    let candidates = || {
        let others = group.files.iter().filter(|other| {
            other.header.label == file.header.label
                && (other.header.hosts.is_empty() || names_of(other) == hosts)
        });
        std::iter::once(file).chain(others)
    };
    let of = |taken: Taken| candidates().find_map(|file| power_in(file, name, &hosts, taken));
    if let Some((watts, from)) = of(Taken::Measured).or_else(|| of(Taken::Any)) {
        return (Ok(watts), from);
    }
    let is_measured = |row: &Row| match row {
        Row::Power(row) => row.during == name && row.origin == Origin::Measured,
        Row::Benchmark(_) => false,
    };
    let table = if group.is_machine { "5.7" } else { "5.6" };
    let mut from = format!("the thesis's table {table} for each host");
    if file.rows.iter().any(is_measured) {
        from.push_str(
            ": what was measured is not of every host, or of sensors that cannot be told apart",
        );
    }
    let Some(row) = group.table.iter().find(|row| row.benchmark == name) else {
        return (Err(format!("table {table} has no such row")), from);
    };
    if !row.faults().is_empty() {
        return (
            Err(format!(
                "its row in table {table} contradicts itself: {}",
                faults(row)
            )),
            from,
        );
    }
    (Ok(row.average_w * f64::from(boards)), from)
}
