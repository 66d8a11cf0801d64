//! The thesis's efficiency figures, from its two tables and from result files: tables as comma-separated values, and
//! drawings. Unknown values are left out with the reason.
//!
//! Figures from the tables alone: power parity, the share of the machine's performance that n boards must reach, and
//! power against n. The hypothesis curve has two readings: performance per watt after equation 3.4, and per joule. With
//! the advisor's assumptions: the input above which a board needs less energy than a data centre.
//!
//! Figures from result files: each benchmark's result ÷ watts against message size and against the number of boards.
//! Power against the number of boards where it was measured. Files are of boards, or of a larger machine to compare
//! them with. A file may have neither measured nor modelled power. The board of table 5.6 or the machine of table 5.7
//! then stands for each host, and the row says so. `thesis/watts.rs` has the power of a file, and
//! `thesis/efficiency.rs` its results ÷ watts.

mod efficiency;
mod watts;

use crate::Error;
use crate::advisor::Input;
use crate::model::{BoardPower, DataCentre, ParityTable, Scaling, thesis_tables};
use crate::plot::{COLORS, Curve, Kind, SIZES, Scale, draw};
use crate::results::{Benchmark, ResultFile, Transport};
use efficiency::of_file;
use std::fmt::Write as _;
use watts::{Group, Taken, names_of, power_in};

pub use efficiency::{Efficiency, best_of, unit};
pub use watts::faults;

/// Number of boards in the thesis.
const BOARDS_MAX: u32 = 6;

/// Idle power ÷ busy power of the hypothesis curve: the median of the usable rows is 0.54.
const IDLE_RATIO: f64 = 0.53;

/// Parallel fractions of the hypothesis curve.
const FRACTIONS: [f64; 4] = [0.5, 0.7, 0.8, 0.9];

/// Speeds of a machine in a data centre ÷ speed of a board.
const SPEEDS: [f64; 11] = [
    1.0, 2.0, 4.0, 8.0, 10.0, 12.0, 16.0, 20.0, 30.0, 50.0, 100.0,
];

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
pub const CONCLUSIONS: [Conclusion; 9] = [
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
    conclusion(
        false,
        "\"Better to process their own data instead of sending it to data centers\"",
        "data-centre",
    ),
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

impl Thesis {
    /// Computes everything from the tables, these files of boards, and these of larger machines.
    ///
    /// # Errors
    /// None for files that were read.
    pub fn new(files: &[ResultFile], machines: &[ResultFile]) -> Result<Self, Error> {
        let (board, machine) = thesis_tables()?;
        let parity = ParityTable::new(&board, &machine);
        let of_boards = Group {
            files,
            is_machine: false,
            table: &board,
        };
        let of_machines = Group {
            files: machines,
            is_machine: true,
            table: &machine,
        };
        let mut efficiency = Vec::new();
        for group in [&of_boards, &of_machines] {
            for file in group.files {
                of_file(file, group, &mut efficiency)?;
            }
        }
        let mut figures = vec![power(&parity), needed(&parity)];
        figures.extend(hypothesis()?);
        figures.push(data_centre()?);
        figures.extend(power_measured(&of_boards, &of_machines));
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
             result_per_joule,kind\n"
                .to_owned();
        for row in &self.efficiency {
            let watts = row.watts.as_ref().map_or(String::new(), f64::to_string);
            let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let (per_watt, per_joule) = (text(row.per_watt()), text(row.per_joule()));
            put(
                &mut csv,
                format_args!(
                    "{},{},{},{},{},{},{},{},{watts},{},{per_watt},{per_joule},{}",
                    plain(&row.label),
                    row.benchmark.name(),
                    carrier(row.transport),
                    row.boards,
                    row.ranks,
                    row.bytes,
                    row.result,
                    unit(row.benchmark),
                    plain(&row.watts_from),
                    if row.is_machine { "machine" } else { "boards" },
                ),
            );
        }
        csv
    }
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

/// A level as a reference for other curves, over the thesis's numbers of boards.
fn level(label: &str, value: f64) -> Curve {
    Curve {
        is_reference: true,
        ..level_over(label, [1, BOARDS_MAX], value)
    }
}

/// A level between two numbers of boards.
fn level_over(label: &str, ends: [u32; 2], value: f64) -> Curve {
    let points = ends.map(|boards| (f64::from(boards), value));
    Curve {
        is_marked: false,
        ..curve(label, points.into())
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

/// Power against boards as it was measured, a curve for each benchmark of each label. With the least and greatest power
/// of larger machines. `None` without two numbers of boards.
fn power_measured(boards: &Group<'_>, machines: &Group<'_>) -> Option<Figure> {
    let of = |file: &ResultFile, benchmark: Benchmark| {
        let found = power_in(file, benchmark.name(), &names_of(file), Taken::Measured);
        found.map(|(watts, _)| watts)
    };
    let first = boards.files.first().map(|file| &file.header.label);
    let is_one_label = boards
        .files
        .iter()
        .map(|file| &file.header.label)
        .all(|label| Some(label) == first);
    let mut curves: Vec<Curve> = Vec::new();
    for benchmark in Benchmark::ALL {
        for file in boards.files {
            let Some(watts) = of(file, benchmark) else {
                continue;
            };
            let name = match is_one_label {
                true => benchmark.name().to_owned(),
                false => format!("{}, {}", benchmark.name(), file.header.label),
            };
            let point = (file.header.hosts.len() as f64, watts);
            match curves.iter_mut().find(|curve| curve.label == name) {
                // The same boards may have been measured again, as by `keel power record`; the first file counts.
                Some(curve) if curve.points.iter().any(|known| known.0 == point.0) => {}
                Some(curve) => curve.points.push(point),
                None => curves.push(curve(name, vec![point])),
            }
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let ends = ends_of(&curves)?;
    let of_machines = machines.files.iter();
    let machine_w: Vec<f64> = of_machines
        .flat_map(|file| {
            Benchmark::ALL
                .into_iter()
                .filter_map(move |one| of(file, one))
        })
        .collect();
    if !machine_w.is_empty() {
        let least = machine_w.iter().copied().fold(f64::INFINITY, f64::min);
        let most = machine_w.iter().copied().fold(0.0, f64::max);
        for (name, watts) in [("machine, least", least), ("machine, greatest", most)] {
            curves.push(Curve {
                is_reference: true,
                ..level_over(name, ends, watts)
            });
        }
    }
    let up = Scale {
        label: "W",
        kind: Kind::Steps,
    };
    Some(figure(
        "power-measured",
        "Power of boards, measured",
        [BOARDS, up],
        ("boards", "watts"),
        &curves,
    ))
}

/// Returns the least and the greatest number of boards of curves; `None` if there is only one number.
fn ends_of(curves: &[Curve]) -> Option<[u32; 2]> {
    let numbers = || {
        let points = curves.iter().flat_map(|curve| &curve.points);
        points.map(|point| point.0 as u32)
    };
    let ends = [numbers().min()?, numbers().max()?];
    (ends[0] < ends[1]).then_some(ends)
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

/// The input for each second of computing on a board above which the board needs less energy than a data centre. It
/// uses the advisor's assumptions: boards and machine run anyway, and a job is charged with what it adds.
fn data_centre() -> Result<Figure, Error> {
    let assumed = |input: Input| input.assumed().map_or(0.0, |(value, _)| value);
    let board = BoardPower::new(
        assumed(Input::BoardActiveW),
        assumed(Input::BoardIdleW),
        assumed(Input::BoardCommunicatingW),
    )?;
    let of = |label: &str, network_j_per_byte: f64| {
        let point = |speed: f64| {
            let centre = DataCentre {
                speed,
                machine_w: assumed(Input::MachineActiveW) - assumed(Input::MachineIdleW),
                pue: assumed(Input::Pue),
                // They decide on time, not on energy.
                up_bytes_per_s: 1.0,
                down_bytes_per_s: 1.0,
                round_trip_s: 0.0,
                radio_j_per_byte: assumed(Input::RadioJPerByte),
                network_j_per_byte,
            };
            Some((speed, centre.input_rate_break_even(&board)? / 1e3))
        };
        curve(label, SPEEDS.into_iter().filter_map(point).collect())
    };
    let along = Scale {
        label: "speed of a machine in the data centre ÷ speed of a board",
        kind: Kind::Decades,
    };
    let up = Scale {
        label: "kB of input per s of computing",
        kind: Kind::Steps,
    };
    Ok(figure(
        "data-centre",
        "Input above which a board needs less energy than a data centre",
        [along, up],
        ("speed", "kilobytes_per_s"),
        &[
            of("LTE, core network", assumed(Input::NetworkJPerByte)),
            of("LTE alone", 0.0),
        ],
    ))
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
            let mut of_label = rows
                .iter()
                .filter(|other| (other.is_machine, &other.label) == (row.is_machine, &row.label));
            let (kind, hosts) = match row.is_machine {
                true => ("machine ", "hosts"),
                false => ("", "boards"),
            };
            let label = if of_label.all(|other| is_alike(&other)) {
                format!("{kind}{}", row.label)
            } else {
                format!(
                    "{kind}{}, {} {hosts}, {}",
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

/// Returns the labels that tell the boards' runs on a carrier apart, in the order of the runs. Where no two labels have
/// the same number of boards, one curve goes through all runs, and the list is `None` alone.
fn labels_on(rows: &[Efficiency], transport: Transport) -> Vec<Option<&str>> {
    let mut runs: Vec<(u32, &str)> = Vec::new();
    for row in rows {
        let run = (row.boards, row.label.as_str());
        if !row.is_machine && row.transport == transport && !runs.contains(&run) {
            runs.push(run);
        }
    }
    let is_twice = |at: usize| runs[..at].iter().any(|run| run.0 == runs[at].0);
    if !(0..runs.len()).any(is_twice) {
        return vec![None];
    }
    let mut labels: Vec<Option<&str>> = Vec::new();
    for (_, label) in runs {
        if !labels.contains(&Some(label)) {
            labels.push(Some(label));
        }
    }
    labels
}

/// Returns result ÷ watts of a benchmark against the number of boards, a curve for each size. Where two labels of
/// a carrier have the same number of boards, each label has curves of its own, with its name.
fn curves_by_boards(rows: &[Efficiency], benchmark: Benchmark) -> Vec<Curve> {
    let mut curves = Vec::new();
    for transport in [Transport::Network, Transport::Memory] {
        let carrier = transport_name(transport);
        // The marks of memory are hollow.
        let hollow = match transport {
            Transport::Network => 0,
            Transport::Memory => COLORS.len(),
        };
        let labels = labels_on(rows, transport);
        for (run, label) in labels.into_iter().enumerate() {
            for (size, bytes) in SIZES_BY_BOARDS.into_iter().enumerate() {
                let of_it = rows.iter().filter(|row| {
                    (row.benchmark, row.transport, row.bytes) == (benchmark, transport, bytes)
                        && !row.is_machine
                        && label.is_none_or(|label| row.label == label)
                });
                let mut points: Vec<(f64, f64)> = of_it
                    .filter_map(|row| Some((f64::from(row.boards), row.per_watt()?)))
                    .collect();
                if points.is_empty() {
                    continue;
                }
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                // The label comes before the carrier, since a legend shows the beginning of a long name.
                let name = match label {
                    Some(label) => format!("{bytes} B, {label}, {carrier}"),
                    None => format!("{bytes} B, {carrier}"),
                };
                // A size has the same colour for each carrier. Further labels take the next colours.
                let color = (size + run * SIZES_BY_BOARDS.len()) % COLORS.len();
                curves.push(Curve {
                    color: Some(color + hollow),
                    ..curve(name, points)
                });
            }
        }
    }
    curves
}

/// For each benchmark, result ÷ watts against the number of boards. A value measured within one board's memory is no
/// point of a curve over a network, and is drawn separately. A larger machine is a level.
fn by_boards(rows: &[Efficiency]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for benchmark in Benchmark::ALL {
        let mut curves = curves_by_boards(rows, benchmark);
        let Some(ends) = ends_of(&curves) else {
            continue;
        };
        let machines = rows
            .iter()
            .filter(|row| row.is_machine && row.benchmark == benchmark);
        for row in machines {
            let size = SIZES_BY_BOARDS.iter().position(|bytes| *bytes == row.bytes);
            let (Some(size), Some(per_watt)) = (size, row.per_watt()) else {
                continue;
            };
            // In the size's colour, dashed.
            let color = Some(size + COLORS.len());
            curves.push(Curve {
                color,
                ..level_over(
                    &format!(
                        "{} B, machine {}, {}",
                        row.bytes,
                        row.label,
                        transport_name(row.transport)
                    ),
                    ends,
                    per_watt,
                )
            });
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
