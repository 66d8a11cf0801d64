//! The thesis's efficiency figures, from its two tables and from result files: tables as comma-separated values, and
//! drawings. Unknown values are left out with the reason.
//!
//! Figures from the tables alone: power parity, the share of the machine's performance that n boards must reach, power
//! against n, and the hypothesis curve in both readings (performance per watt after equation 3.4, per joule). Figures
//! from result files: each benchmark's result ÷ watts against message size and against the number of boards. If a file
//! has no measured power, the board of table 5.6 is used for each of its hosts, and the row says so.

use crate::Error;
use crate::jobs::energy::that_count;
use crate::measure::ALL_BOARDS;
use crate::model::{BenchmarkPower, ParityTable, Scaling, measured_per_watt, thesis_tables};
use crate::plot::{COLORS, Curve, Kind, SIZES, Scale, draw};
use crate::results::{Benchmark, Origin, PowerRow, ResultFile, Row, Transport};
use std::fmt::Write as _;

/// Number of boards in the thesis.
const BOARDS_MAX: u32 = 6;

/// Idle power ÷ busy power of the hypothesis curve: the median of the usable rows is 0.54.
const IDLE_RATIO: f64 = 0.53;

/// Parallel fractions of the hypothesis curve.
const FRACTIONS: [f64; 4] = [0.5, 0.7, 0.8, 0.9];

/// Sizes of messages in the drawings against the number of boards.
const SIZES_BY_BOARDS: [u64; 4] = [64, 1_024, 16_384, 262_144];

const BOARDS: Scale<'static> = Scale {
    label: "boards",
    kind: Kind::Counts,
};

/// One figure: its values and its drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of its files, without the suffix.
    pub name: String,
    /// Its values, with a heading.
    pub csv: String,
    /// Its drawing.
    pub svg: String,
}

/// Result ÷ watts for one size of one benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Efficiency {
    /// The run.
    pub label: String,
    /// The benchmark.
    pub benchmark: Benchmark,
    /// What carried the messages.
    pub transport: Transport,
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
}

/// A conclusion about the thesis, as docs/results/cluster-thesis.md explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// Whether it follows from the tables.
    pub follows: bool,
    /// The conclusion.
    pub text: &'static str,
    /// The name of the figure or table that shows it.
    pub shown_by: &'static str,
}

const fn conclusion(follows: bool, text: &'static str, shown_by: &'static str) -> Conclusion {
    Conclusion {
        follows,
        text,
        shown_by,
    }
}

/// The conclusions that one of these figures or tables shows, in the order of the page, which has further ones.
pub const CONCLUSIONS: [Conclusion; 8] = [
    conclusion(true, "Three to four boards are power parity.", "power"),
    conclusion(
        true,
        "Three boards are as good per watt where they reach 66 to 82 % of the NUC; four where they reach 87 to 109 %.",
        "needed",
    ),
    conclusion(true, "The drop at five boards has the same cause", "power"),
    conclusion(
        true,
        "More boards save time, never energy",
        "hypothesis-per-watt",
    ),
    conclusion(
        false,
        "That performance per watt has a peak at some number of boards.",
        "hypothesis-per-watt",
    ),
    conclusion(
        false,
        "That more boards are faster in bandwidth, bidirectional bandwidth, round trip and latency.",
        "power",
    ),
    conclusion(false, "\"At least four or five boards\"", "parity"),
    conclusion(false, "Anything about reduce", "parity"),
];

/// All figures and tables.
#[derive(Clone, Debug)]
pub struct Thesis {
    /// Comparison of the tables, with the faults in them.
    pub parity: ParityTable,
    /// Result ÷ watts of the files.
    pub efficiency: Vec<Efficiency>,
    /// All figures.
    pub figures: Vec<Figure>,
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

impl Thesis {
    /// Computes everything from the tables and these files.
    ///
    /// # Errors
    /// None for files that were read.
    pub fn new(files: &[ResultFile]) -> Result<Self, Error> {
        let (board, machine) = thesis_tables()?;
        let parity = ParityTable::new(&board, &machine);
        let mut efficiency = Vec::new();
        for file in files {
            of_file(file, files, &board, &mut efficiency)?;
        }
        let mut figures = vec![power(&parity), needed(&parity)];
        figures.extend(hypothesis()?);
        figures.extend(by_size(&efficiency));
        figures.extend(by_boards(&efficiency));
        Ok(Self {
            parity,
            efficiency,
            figures,
        })
    }

    /// Returns the parity table as comma-separated values; the faulty row appears without figures.
    #[must_use]
    pub fn parity_csv(&self) -> String {
        let mut csv =
            "benchmark,board_w,machine_w,idle_ratio,boards_at_parity,boards_at_85_percent,why_not_used\n".to_owned();
        for row in &self.parity.rows {
            put(
                &mut csv,
                format_args!(
                    "{},{},{},{:.3},{:.2},{:.2},",
                    row.benchmark,
                    row.board_w,
                    row.machine_w,
                    row.idle_ratio,
                    row.boards,
                    row.boards_at(0.85)
                ),
            );
        }
        for (_, row, _) in &self.parity.faulty {
            put(
                &mut csv,
                format_args!("{},{},,,,,{}", row.benchmark, row.average_w, faults(row)),
            );
        }
        csv
    }

    /// Returns result ÷ watts as comma-separated values.
    #[must_use]
    pub fn efficiency_csv(&self) -> String {
        let mut csv =
            "label,benchmark,transport,boards,ranks,bytes,result,unit,watts,watts_from,result_per_watt,\
             result_per_joule\n"
                .to_owned();
        for row in &self.efficiency {
            let watts = row.watts.as_ref().map_or(String::new(), f64::to_string);
            let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let (per_watt, per_joule) = (text(row.per_watt()), text(row.per_joule()));
            put(
                &mut csv,
                format_args!(
                    "{},{},{},{},{},{},{},{},{watts},{},{per_watt},{per_joule}",
                    plain(&row.label),
                    row.benchmark.name(),
                    carrier(row.transport),
                    row.boards,
                    row.ranks,
                    row.bytes,
                    row.result,
                    unit(row.benchmark),
                    plain(&row.watts_from),
                ),
            );
        }
        csv
    }
}

/// Returns the contradictions in a row, as one text without commas.
#[must_use]
pub fn faults(row: &BenchmarkPower) -> String {
    let texts: Vec<&str> = row
        .faults()
        .into_iter()
        .map(crate::model::Fault::text)
        .collect();
    texts.join("; ")
}

/// Writing to a string does not fail.
fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").unwrap_or_default();
}

/// Returns a text as one column.
fn plain(text: &str) -> String {
    text.replace([',', '"'], " ")
}

fn carrier(transport: Transport) -> &'static str {
    match transport {
        Transport::Memory => "memory",
        Transport::Network => "network",
    }
}

/// Returns result ÷ watts for each benchmark row of a file.
fn of_file(
    file: &ResultFile,
    files: &[ResultFile],
    board: &[BenchmarkPower],
    into: &mut Vec<Efficiency>,
) -> Result<(), Error> {
    let boards = file.header.hosts.len() as u32;
    for row in &file.rows {
        let Row::Benchmark(row) = row else {
            continue;
        };
        let us = row.median_us()?.value;
        let result = match row.benchmark {
            Benchmark::Latency => 1e6 / us,
            other => other.result(row.bytes, us),
        };
        let (watts, watts_from) = watts(file, files, row.benchmark, boards, board);
        into.push(Efficiency {
            label: file.header.label.clone(),
            benchmark: row.benchmark,
            transport: row.transport,
            boards,
            ranks: row.ranks,
            bytes: row.bytes,
            seconds: us * 1e-6,
            result,
            watts,
            watts_from,
        });
    }
    Ok(())
}

/// Returns the names of a file's hosts, in order.
fn names_of(file: &ResultFile) -> Vec<&str> {
    let mut names: Vec<&str> = file
        .header
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    names.sort_unstable();
    names
}

/// Returns the power of all hosts together during a benchmark, from one file: of the meter that covers all of them, or
/// the sum over hosts if each has a figure.
fn measured_w(file: &ResultFile, benchmark: &str, hosts: &[&str]) -> Option<f64> {
    let of_host = |host: &str| {
        let rows = file.rows.iter().filter_map(|row| match row {
            Row::Power(row) if row.during == benchmark && row.host == host => Some(row),
            _ => None,
        });
        let there: Vec<&PowerRow> = rows
            .filter(|row| matches!(row.origin, Origin::Measured))
            .collect();
        let counted = that_count(&there, |row| &row.source)?;
        Some(counted.iter().map(|row| row.average_w).sum::<f64>())
    };
    if let Some(watts) = of_host(ALL_BOARDS) {
        return Some(watts);
    }
    if hosts.is_empty() {
        return None;
    }
    hosts.iter().map(|host| of_host(host)).sum()
}

/// Returns the power of all hosts during a benchmark: measured, in this file or another one with the same label and
/// boards; otherwise that of the thesis's boards.
fn watts(
    file: &ResultFile,
    files: &[ResultFile],
    benchmark: Benchmark,
    boards: u32,
    table: &[BenchmarkPower],
) -> (Result<f64, String>, String) {
    let name = benchmark.name();
    let hosts: Vec<&str> = names_of(file);
    // The row's own file first; other numbers of boards are other measurements.
    let others = files.iter().filter(|other| {
        other.header.label == file.header.label
            && (other.header.hosts.is_empty() || names_of(other) == hosts)
    });
    let measured = std::iter::once(file)
        .chain(others)
        .find_map(|file| measured_w(file, name, &hosts));
    if let Some(watts) = measured {
        return (Ok(watts), "measured".to_owned());
    }
    let is_measured = |row: &Row| match row {
        Row::Power(row) => row.during == name && row.origin == Origin::Measured,
        Row::Benchmark(_) => false,
    };
    let mut from = "the thesis's table 5.6 for each host".to_owned();
    if file.rows.iter().any(is_measured) {
        from.push_str(
            ": what was measured is not of every host, or of sensors that cannot be told apart",
        );
    }
    let Some(row) = table.iter().find(|row| row.benchmark == name) else {
        return (Err("table 5.6 has no such row".to_owned()), from);
    };
    if !row.faults().is_empty() {
        return (
            Err(format!(
                "its row in table 5.6 contradicts itself: {}",
                faults(row)
            )),
            from,
        );
    }
    (Ok(row.average_w * f64::from(boards)), from)
}

fn curve(label: impl Into<String>, points: Vec<(f64, f64)>) -> Curve {
    Curve {
        label: label.into(),
        points,
        ends: Vec::new(),
        is_marked: true,
        is_reference: false,
        color: None,
    }
}

/// A level as a reference for other curves.
fn level(label: &str, value: f64) -> Curve {
    let ends = [1.0, f64::from(BOARDS_MAX)].map(|boards| (boards, value));
    Curve {
        is_marked: false,
        is_reference: true,
        ..curve(label, ends.into())
    }
}

fn over_boards(of: impl Fn(u32) -> f64) -> Vec<(f64, f64)> {
    (1..=BOARDS_MAX)
        .map(|boards| (f64::from(boards), of(boards)))
        .collect()
}

/// Returns curves as comma-separated values.
fn csv(x: &str, y: &str, curves: &[Curve]) -> String {
    let mut csv = format!("curve,{x},{y}\n");
    for curve in curves {
        for (along, up) in &curve.points {
            put(
                &mut csv,
                format_args!("{},{along},{up}", plain(&curve.label)),
            );
        }
    }
    csv
}

fn figure(
    name: &str,
    title: &str,
    scales: [Scale<'_>; 2],
    heading: (&str, &str),
    curves: &[Curve],
) -> Figure {
    Figure {
        name: name.to_owned(),
        csv: csv(heading.0, heading.1, curves),
        svg: draw(title, scales, curves),
    }
}

/// Power against boards. All boards with ranks are busy, as MPBench keeps them: boards that do not take part poll in a
/// barrier.
fn power(parity: &ParityTable) -> Figure {
    let mut curves: Vec<Curve> = parity
        .rows
        .iter()
        .map(|row| {
            curve(
                &row.benchmark,
                over_boards(|boards| f64::from(boards) * row.board_w),
            )
        })
        .collect();
    let machine = parity.rows.iter().map(|row| row.machine_w);
    let least = machine.clone().fold(f64::INFINITY, f64::min);
    let most = machine.fold(0.0, f64::max);
    curves.push(level("NUC, least", least));
    curves.push(level("NUC, greatest", most));
    let up = Scale {
        label: "W",
        kind: Kind::Steps,
    };
    figure(
        "power",
        "Power of n boards (table 5.6 times n) and of a NUC",
        [BOARDS, up],
        ("boards", "watts"),
        &curves,
    )
}

/// The part of the machine's performance that n boards must reach for the same performance per watt.
fn needed(parity: &ParityTable) -> Figure {
    let mut curves: Vec<Curve> = parity
        .rows
        .iter()
        .map(|row| {
            curve(
                &row.benchmark,
                over_boards(|boards| 100.0 * row.share_needed(boards)),
            )
        })
        .collect();
    curves.push(level("all of the NUC's", 100.0));
    curves.push(level("85 %, as reached", 85.0));
    let up = Scale {
        label: "% of the NUC's performance",
        kind: Kind::Steps,
    };
    let title = "Performance that n boards must reach to match the NUC's per watt";
    figure(
        "needed",
        title,
        [BOARDS, up],
        ("boards", "percent"),
        &curves,
    )
}

/// Equation 3.4, which falls, and performance per joule, which can have a maximum.
fn hypothesis() -> Result<[Figure; 2], Error> {
    let of = |value: fn(&Scaling, u32) -> f64| -> Result<Vec<Curve>, Error> {
        let curves = FRACTIONS.into_iter().map(|fraction| {
            let scaling = Scaling::new(fraction, IDLE_RATIO)?;
            Ok(curve(
                format!("f = {fraction}"),
                over_boards(|boards| value(&scaling, boards)),
            ))
        });
        curves.collect()
    };
    let up = |label| Scale {
        label,
        kind: Kind::Steps,
    };
    let per_watt = of(Scaling::performance_per_watt)?;
    let per_joule = of(Scaling::performance_per_joule)?;
    Ok([
        figure(
            "hypothesis-per-watt",
            "Performance per watt after equation 3.4, k = 0.53",
            [BOARDS, up("Perf/W of n boards ÷ that of one")],
            ("boards", "relative"),
            &per_watt,
        ),
        figure(
            "hypothesis-per-joule",
            "Performance per joule (1 ÷ energy ÷ time), k = 0.53",
            [BOARDS, up("Perf/J of n boards ÷ that of one")],
            ("boards", "relative"),
            &per_joule,
        ),
    ])
}

fn up_label(benchmark: Benchmark) -> String {
    format!("{} per watt", unit(benchmark))
}

fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Memory => "memory",
        Transport::Network => "network",
    }
}

/// For each benchmark, result ÷ watts against message size, a curve for each run.
fn by_size(rows: &[Efficiency]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for benchmark in Benchmark::ALL {
        let mut curves: Vec<Curve> = Vec::new();
        for row in rows.iter().filter(|row| row.benchmark == benchmark) {
            let Some(per_watt) = row.per_watt() else {
                continue;
            };
            let point = (row.bytes as f64, per_watt);
            // Runs with the same label are distinguished by their other differences.
            let is_alike = |other: &&Efficiency| {
                (other.boards, other.transport) == (row.boards, row.transport)
            };
            let mut of_label = rows.iter().filter(|other| other.label == row.label);
            let label = if of_label.all(|other| is_alike(&other)) {
                row.label.clone()
            } else {
                format!(
                    "{}, {} boards, {}",
                    row.label,
                    row.boards,
                    transport_name(row.transport)
                )
            };
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => curves.push(curve(label, vec![point])),
            }
        }
        for curve in &mut curves {
            curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        if curves.iter().all(|curve| curve.points.len() < 2) {
            continue;
        }
        let label = up_label(benchmark);
        let up = Scale {
            label: &label,
            kind: Kind::Decades,
        };
        let name = format!("per-watt-{}", benchmark.name());
        let title = format!("{}: result ÷ watts against message size", benchmark.name());
        figures.push(figure(
            &name,
            &title,
            [SIZES, up],
            ("bytes", "result_per_watt"),
            &curves,
        ));
    }
    figures
}

/// For each benchmark, result ÷ watts against the number of boards, a curve for each size. A value measured within one
/// board's memory is no point of a curve over a network, and is drawn separately.
fn by_boards(rows: &[Efficiency]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for benchmark in Benchmark::ALL {
        let mut curves = Vec::new();
        let mut boards: Vec<u32> = Vec::new();
        for (transport, name) in [
            (Transport::Network, "network"),
            (Transport::Memory, "memory"),
        ] {
            for (color, bytes) in SIZES_BY_BOARDS.into_iter().enumerate() {
                let of_it = rows.iter().filter(|row| {
                    (row.benchmark, row.transport, row.bytes) == (benchmark, transport, bytes)
                });
                let mut points: Vec<(f64, f64)> = of_it
                    .filter_map(|row| Some((f64::from(row.boards), row.per_watt()?)))
                    .collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                boards.extend(points.iter().map(|point| point.0 as u32));
                if !points.is_empty() {
                    // A size keeps its colour, whatever the carrier; the marks of memory are hollow.
                    let hollow = match transport {
                        Transport::Network => 0,
                        Transport::Memory => COLORS.len(),
                    };
                    let color = Some(color + hollow);
                    curves.push(Curve {
                        color,
                        ..curve(format!("{bytes} B, {name}"), points)
                    });
                }
            }
        }
        boards.sort_unstable();
        boards.dedup();
        if boards.len() < 2 {
            continue;
        }
        let label = up_label(benchmark);
        let up = Scale {
            label: &label,
            kind: Kind::Decades,
        };
        let name = format!("by-boards-{}", benchmark.name());
        let kind = if benchmark.is_between_two() {
            ", two of them at work"
        } else {
            ""
        };
        let title = format!("{}: result ÷ watts against boards{kind}", benchmark.name());
        figures.push(figure(
            &name,
            &title,
            [BOARDS, up],
            ("boards", "result_per_watt"),
            &curves,
        ));
    }
    figures
}

#[cfg(test)]
#[path = "thesis_tests.rs"]
mod tests;
