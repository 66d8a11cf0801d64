//! The result page of messages between boards. The text between its marks is made from the reports of
//! `keel-bench cluster`, its plots from the same figures. The text around the marks stays.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use cluster::link::SEGMENTS;
use cluster::measure::SIZES;
use cluster::model::{Curve as Line, Point};
use cluster::results::Benchmark;
use serde_json::{Value, json};

use super::advisor::{self, REGRET, VIOLATIONS};
use super::agreement::{AGREE, STARTS, WIDTH};
use super::bed::Way;
use super::cores::{CORE_TO_CORE, ONE_CORE, ROUNDTRIP, rank_correlation};
use super::fit::{ERROR, MEASURED};
use super::mpi::Mpi;
use super::pairs::{ABOVE, AWAY, C, HIGH, LOW, MEAN, RATIO_MAX, TIME, case_of, case_of_all};
use crate::figures::OURS;
use crate::page::{Run, cell, fill, head, list, number, side, text, verdict};
use crate::paper::render;
use crate::qos::plot::{COLORS, Curve, Horizontal, Panel, panels};
use crate::report::median;

/// `keel-bench cluster-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder with the reports of `keel-bench cluster --json`, which are put together; plots go there, too.
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Each MPI with each path, in the order of the page.
const SERIES: [(Mpi, Way); 4] = [
    (Mpi::Mpich, Way::Memory),
    (Mpi::Openmpi, Way::Memory),
    (Mpi::Mpich, Way::Link),
    (Mpi::Openmpi, Way::Link),
];

/// What the page says if no report has times of cache lines.
const NO_TIMES: &str = "The figures on this page are from runs that did not measure this.\n";

/// Sizes in the table of times, in bytes.
const SHOWN: [u64; 5] = [4, 1 << 10, 16 << 10, 256 << 10, 4 << 20];

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let run = together(&options.results)?;
    let machine = &run.report["machine"];
    let machine = format!(
        "{}, {} cores, Linux {}",
        text(&machine["cpu"]),
        machine["cores"],
        text(&machine["kernel"])
    );
    let drawn = plots(&run, &machine, &options.results)?;
    let folder = options
        .results
        .file_name()
        .map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let drawn: Vec<String> = drawn
        .iter()
        .map(|name| format!("[![{name}]({folder}/{name}.png)]({folder}/{name}.svg)\n\n"))
        .collect();
    let parts = [
        ("run", run_text(&run, &machine)),
        ("goals", goals(&run)),
        ("cores", cores(&run)),
        ("means", means(&run)),
        ("above", above(&run)),
        ("times", times(&run)),
        ("lines", lines(&run)?),
        ("plots", drawn.concat()),
        ("missing", run.missing()),
    ];
    fill(&options.page, &parts)
}

/// Combines the reports of a folder into one: the figures of all, and the method of each in `methods`. The methods of
/// the advisor, which do not depend on the machine, are in `advisor`.
fn together(folder: &Path) -> Result<Run, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let runs = paths
        .iter()
        .map(|path| Run::read(path))
        .collect::<Result<Vec<_>, _>>()?;
    let is_of_advisor = |run: &&Run| {
        let rows = run.list("rows");
        !rows.is_empty() && rows.iter().all(|row| row["case"] == advisor::CASE)
    };
    let (of_advisor, measured): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(is_of_advisor);
    let Some(first) = measured.first() else {
        return Err(failed(
            &"has no report of keel-bench cluster that measures the machine",
        ));
    };
    let mut machines: Vec<String> = Vec::new();
    for run in &measured {
        let machine = &run.report["machine"];
        machines.push(format!("{} {}", text(&machine["cpu"]), machine["cores"]));
    }
    if machines.iter().any(|machine| *machine != machines[0]) {
        return Err(failed(&"has reports of different machines"));
    }
    let all = |name: &str| -> Vec<Value> {
        let lists = runs.iter().flat_map(|run| run.list(name));
        lists.cloned().collect()
    };
    let methods = |runs: &[&Run]| -> Vec<Value> {
        let methods = runs.iter().map(|run| run.report["method"].clone());
        methods.collect()
    };
    Ok(Run {
        report: json!({
            "machine": first.report["machine"],
            "methods": methods(&measured),
            "advisor": methods(&of_advisor),
            "rows": all("rows"),
            "ratios": all("ratios"),
            "missing": all("missing"),
        }),
    })
}

/// Returns the distinct values that methods give for something.
fn said(methods: &[Value], of: &dyn Fn(&Value) -> Option<String>) -> String {
    let mut found: Vec<String> = Vec::new();
    for one in methods.iter().filter_map(of) {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found.join("; ")
}

fn run_text(run: &Run, machine: &str) -> String {
    let methods = run.list("methods");
    // The fit and the comparison of two runs have no pairs.
    let sum = methods
        .iter()
        .filter(|method| method["has_pairs"] == true)
        .filter_map(|method| method["minutes"].as_f64());
    let minutes = sum.sum::<f64>().round();
    let loads = methods
        .iter()
        .filter_map(|method| method["load_1min"].as_f64());
    let load = loads.fold(0.0, f64::max);
    let libraries = |method: &Value| {
        let libraries = method["libraries"].as_array()?.iter();
        let names: Vec<&str> = libraries.map(|one| text(&one["library"])).collect();
        Some(names.join("; ")).filter(|names| !names.is_empty())
    };
    // The method of a comparison of two runs has no rounds.
    let rounds = |method: &Value| {
        let is_paired = method["has_pairs"] == true;
        is_paired.then(|| method["rounds_of_each"].to_string())
    };
    let date = |method: &Value| Some(text(&method["date"]).to_owned());
    let commit = |method: &Value| Some(method["commit"].as_str().unwrap_or("not said").to_owned());
    let mut out = format!(
        "{machine}. {}. {}, commit {}, {} rounds, {} minutes for the pairs, load at most {} when a piece began. \
         The line: {}.",
        said(methods, &libraries),
        said(methods, &date),
        said(methods, &commit),
        said(methods, &rounds),
        number(minutes),
        number(load),
        said(methods, &|method| Some(text(&method["line"]).to_owned())),
    );
    let of_advisor = run.list("advisor");
    if !of_advisor.is_empty() {
        let _ = write!(
            out,
            " The advisor: {}, commit {}.",
            said(of_advisor, &date),
            said(of_advisor, &commit)
        );
    }
    out + "\n"
}

fn goals(run: &Run) -> String {
    let mut out = head("figure | value | goal |");
    for row in run.judged("rows") {
        let (case, metric) = (text(&row["case"]), text(&row["metric"]));
        let what = match metric {
            metric if metric == AWAY.name => {
                format!(
                    "{case}: geometric mean of ours ÷ C over all sizes of all eight, away from 1"
                )
            }
            metric if metric == ABOVE.name => {
                format!("{case}: sizes whose 95 % interval lies wholly above {RATIO_MAX}")
            }
            metric if metric == AGREE.name => {
                format!("{case}: sizes of which each median is in the other's interval")
            }
            metric if metric == ERROR.name => {
                format!(
                    "{case}: greatest error of the line over the work, on sizes that it was not fitted to{}",
                    fitted_from(run, case)
                )
            }
            metric if metric == REGRET.name => {
                format!("{case}: mean of (true cost of the choice ÷ true cost of the best − 1)")
            }
            metric if metric == VIOLATIONS.name => {
                format!("{case}: scenarios in which the advised place is late in truth")
            }
            metric => format!("{case}: {}", metric.replace('_', " ")),
        };
        let unit = if text(&row["unit"]) == "%" { " %" } else { "" };
        let _ = writeln!(
            out,
            "| {what} | {}{unit} | {} {}{unit} | {} |",
            cell(row["value"].as_f64()),
            side(row),
            cell(row["goal"].as_f64()),
            verdict(row),
        );
    }
    for mpi in [Mpi::Mpich, Mpi::Openmpi] {
        let case = format!("two-runs-{}", mpi.name());
        let of = |metric: &str| run.value(&case, OURS, metric);
        if let (Some(width), Some(starts)) = (of(WIDTH.name), of(STARTS.name)) {
            let _ = writeln!(
                out,
                "| {case}: half of the interval's width ÷ median, median of the sizes; starts of a run | \
                 {} %; {} | | |",
                number(width),
                number(starts)
            );
        }
    }
    out
}

/// Returns for each piece and program how closely the round trips of its starts follow the time of a cache line
/// measured before them.
fn cores(run: &Run) -> String {
    let mut lines = String::new();
    for method in run.list("methods") {
        let rounds: &[Value] = method["rounds"].as_array().map_or(&[], Vec::as_slice);
        for line in rounds
            .iter()
            .filter(|one| one["metric"] == CORE_TO_CORE.name)
        {
            let is_of_it = |one: &&Value| {
                one["metric"] == ROUNDTRIP.name
                    && one["case"] == line["case"]
                    && one["system"] == line["system"]
            };
            let values = |one: &Value| -> Vec<f64> {
                let values = one["values"].as_array().into_iter().flatten();
                values.filter_map(Value::as_f64).collect()
            };
            let times = values(line);
            let roundtrips = rounds.iter().find(is_of_it).map_or(Vec::new(), values);
            let _ = writeln!(
                lines,
                "| {} | {} | {} | {} | {} | {} |",
                text(&line["case"]),
                if line["system"] == OURS { "ours" } else { "C" },
                times.len(),
                middle_and_ends(times.clone()),
                middle_and_ends(roundtrips.clone()),
                rank_correlation(&times, &roundtrips)
                    .map_or_else(|| "–".to_owned(), |found| format!("{found:.2}")),
            );
        }
    }
    if !lines.is_empty() {
        let head = "| piece | program | starts | cache line, ns: median (least to most) \
                    | round trip, µs: median (least to most) | rank correlation |\n|---|---|---|---|---|---|\n";
        return format!("{head}{lines}");
    }
    let has_one_core = run.list("methods").iter().any(|method| {
        let notes = method["notes"].as_array();
        notes.is_some_and(|notes| notes.iter().any(|note| note == ONE_CORE))
    });
    if has_one_core {
        format!("{ONE_CORE}.\n")
    } else {
        NO_TIMES.to_owned()
    }
}

/// Returns the median of values, with the least and the greatest.
fn middle_and_ends(mut values: Vec<f64>) -> String {
    let middle = median(&mut values);
    match values.as_slice() {
        [] => cell(None),
        [only] => number(*only),
        [low, .., high] => format!("{} ({} to {})", number(middle), number(*low), number(*high)),
    }
}

/// Returns from which size on a fit was made; its goal says nothing of smaller ones. Empty if no size was measured.
fn fitted_from(run: &Run, case: &str) -> String {
    let sizes = run.list("rows").iter().filter_map(|row| {
        let size = text(&row["case"]).strip_prefix(case)?.strip_prefix('-')?;
        (row["metric"] == MEASURED.name).then_some(size.parse::<u32>().ok()?)
    });
    let least = sizes.min().map(f64::from);
    least.map_or_else(String::new, |least| {
        format!(", from {} readings on", number(least))
    })
}

/// Returns the geometric mean of each benchmark.
fn means(run: &Run) -> String {
    let mut out = "| ours ÷ C, geometric mean over sizes |".to_owned();
    for (mpi, way) in SERIES {
        let _ = write!(out, " {}, {} |", way.name(), mpi.name());
    }
    out += "\n|---|---|---|---|---|\n";
    let mut line = |title: &str, case: &dyn Fn(Mpi, Way) -> String| {
        let cells = SERIES.map(|(mpi, way)| cell3(run.value(&case(mpi, way), OURS, MEAN.name)));
        let _ = writeln!(out, "| {title} | {} |", cells.join(" | "));
    };
    for benchmark in Benchmark::ALL {
        line(benchmark.name(), &|mpi, way| {
            format!("{}-{}", benchmark.name(), case_of_all(mpi, way))
        });
    }
    line("all", &case_of_all);
    out
}

fn cell3(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// Lists the sizes whose whole interval is above the bound, or above one.
fn above(run: &Run) -> String {
    let mut lines = Vec::new();
    let mut slower = 0;
    for (mpi, way) in SERIES {
        for benchmark in Benchmark::ALL {
            for bytes in SIZES {
                let case = case_of(benchmark, bytes, mpi, way);
                let of = |metric: &str| run.value(&case, OURS, metric);
                let Some((low, high)) = of(LOW.name).zip(of(HIGH.name)) else {
                    continue;
                };
                slower += u32::from(low > 1.0);
                if low > RATIO_MAX {
                    let ratio = run.ratio(&case, C, TIME.name);
                    lines.push(format!(
                        "{}, {bytes} bytes, {}, {}: {} ({low:.3} to {high:.3})",
                        benchmark.name(),
                        way.name(),
                        mpi.name(),
                        cell3(ratio)
                    ));
                }
            }
        }
    }
    format!(
        "{}\nSizes whose interval lies wholly above 1: {slower}.\n",
        list(lines)
    )
}

/// Returns the medians of ours in microseconds.
fn times(run: &Run) -> String {
    let mut out = "| µs, ours (C) |".to_owned();
    for bytes in SHOWN {
        let _ = write!(out, " {} B |", number(bytes as f64));
    }
    out += "\n|---|---|---|---|---|---|\n";
    for (mpi, way) in SERIES {
        for benchmark in Benchmark::ALL {
            let cells = SHOWN.map(|bytes| {
                let case = case_of(benchmark, bytes, mpi, way);
                let of = |system: &str| run.value(&case, system, TIME.name);
                match of(OURS).zip(of(C)) {
                    Some((ours, c)) => format!("{} ({})", number(ours), number(c)),
                    None => cell(None),
                }
            });
            if cells.iter().any(|one| *one != cell(None)) {
                let _ = writeln!(
                    out,
                    "| {}, {}, {} | {} |",
                    benchmark.name(),
                    way.name(),
                    mpi.name(),
                    cells.join(" | ")
                );
            }
        }
    }
    out
}

/// Returns the lines of messages, fitted to the round trips on the line as the advisor's are.
fn lines(run: &Run) -> Result<String, String> {
    let mut out = head("| from bytes | α, µs | rate, MB/s | error, median | greatest | sizes");
    for mpi in [Mpi::Mpich, Mpi::Openmpi] {
        let points: Vec<Point> = SIZES
            .into_iter()
            .filter_map(|bytes| {
                let case = case_of(Benchmark::Roundtrip, bytes, mpi, Way::Link);
                Some(Point {
                    bytes: bytes as f64,
                    seconds: run.value(&case, OURS, TIME.name)? / 2.0 * 1e-6,
                })
            })
            .collect();
        if points.is_empty() {
            continue;
        }
        let curve = Line::fit(&points, SEGMENTS).map_err(|error| error.to_string())?;
        for segment in curve.segments() {
            let rate = match segment.beta_s_per_byte {
                0.0 => "-".to_owned(),
                beta => number(1e-6 / beta),
            };
            let _ = writeln!(
                out,
                "| {} | {} | {:.2} | {rate} | {:.1} % | {:.1} % | {} |",
                mpi.name(),
                number(segment.from_bytes),
                segment.alpha_s * 1e6,
                segment.error_median * 100.0,
                segment.error_max * 100.0,
                segment.points
            );
        }
    }
    Ok(out)
}

/// Plots ratios by size, four benchmarks per drawing. Returns the names of the drawings.
fn plots(run: &Run, machine: &str, folder: &Path) -> Result<Vec<String>, String> {
    let mut drawn = Vec::new();
    for way in [Way::Memory, Way::Link] {
        for (kind, is_between_two) in [("two", true), ("all", false)] {
            let benchmarks = Benchmark::ALL
                .into_iter()
                .filter(|one| one.is_between_two() == is_between_two);
            let shown: Vec<Panel> = benchmarks
                .map(|benchmark| panel(run, benchmark, way))
                .collect();
            if shown
                .iter()
                .all(|panel| panel.curves.iter().all(|curve| curve.points.is_empty()))
            {
                continue;
            }
            let name = format!("ratios-{}-{kind}", way.name());
            let through = match way {
                Way::Memory => "through memory",
                Way::Link => "on a line of 1 Gbit/s",
            };
            let title = format!("Time of ours ÷ time of the same loop in C, two ranks {through}");
            let marks = [(0.0, "4"), (6.0, "256"), (12.0, "16K"), (20.0, "4M")];
            let horizontal = Horizontal {
                label: "bytes of a message; dashed: ends of the 95 % intervals".to_owned(),
                from: -0.5,
                to: 20.5,
                marks: marks.map(|(at, name)| (at, name.to_owned())).into(),
            };
            render::write(folder, &name, &panels(&title, machine, &horizontal, &shown))?;
            drawn.push(name);
        }
    }
    Ok(drawn)
}

fn panel(run: &Run, benchmark: Benchmark, way: Way) -> Panel {
    let mut curves = Vec::new();
    for (mpi, color) in [(Mpi::Mpich, COLORS[1]), (Mpi::Openmpi, COLORS[4])] {
        let of = |value: &dyn Fn(&str) -> Option<f64>| -> Vec<(f64, f64)> {
            let points = (0..).zip(SIZES).filter_map(|(at, bytes)| {
                Some((f64::from(at), value(&case_of(benchmark, bytes, mpi, way))?))
            });
            points.collect()
        };
        let middle = of(&|case| run.ratio(case, C, TIME.name));
        let ends = [LOW, HIGH].map(|metric| of(&|case| run.value(case, OURS, metric.name)));
        let curve = |points, dashed| Curve {
            label: mpi.name().to_owned(),
            color,
            dashed,
            marked: !dashed,
            points,
        };
        if middle.is_empty() {
            continue;
        }
        curves.push(curve(middle, false));
        curves.extend(ends.map(|points| curve(points, true)));
    }
    Panel {
        title: benchmark.name().to_owned(),
        curves,
        goal: Some(1.0),
        least: 0.9,
        most: 1.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let case = case_of(Benchmark::Reduce, 4, Mpi::Mpich, Way::Memory);
        let row = |case: &str, system: &str, metric: &str, value: f64| {
            json!({"case": case, "system": system, "metric": metric, "unit": "us",
                "value": value})
        };
        let mut judged = row("memory-mpich", OURS, AWAY.name, 1.5);
        for (key, value) in [
            ("goal", json!(5.0)),
            ("better", json!("lower")),
            ("met", json!(true)),
            ("unit", json!("%")),
        ] {
            judged[key] = value;
        }
        Run {
            report: json!({
                "machine": {"cpu": "c", "cores": 2, "kernel": "k"},
                "methods": [
                    {"libraries": [{"library": "MPICH 4"}], "rounds_of_each": 9, "has_pairs": true,
                     "line": "l", "date": "d", "minutes": 2},
                    {"libraries": [{"library": "MPICH 4"}], "rounds_of_each": 1,
                     "line": "l", "date": "d", "minutes": 3},
                ],
                "rows": [
                    row(&case, OURS, TIME.name, 0.25), row(&case, C, TIME.name, 0.2), row(&case, OURS, LOW.name, 1.1),
                    row(&case, OURS, HIGH.name, 1.3), judged,
                ],
                "ratios": [{"case": case, "peer": C, "metric": TIME.name, "ratio": 1.25}],
                "missing": [],
            }),
        }
    }

    #[test]
    fn each_piece_says_how_closely_its_starts_follow_the_cores() {
        let of = |case: &str, system: &str, metric: &str, values: &[f64]| {
            json!({"case": case, "system": system, "metric": metric,
                "values": values})
        };
        let mut run = Run {
            report: json!({"methods": [
                {"rounds": [
                    of("memory-mpich", OURS, CORE_TO_CORE.name, &[50.0, 210.0, 60.0, 55.5]),
                    of("memory-mpich", C, ROUNDTRIP.name, &[4.0, 3.0, 2.0, 1.0]),
                    of("memory-mpich", OURS, ROUNDTRIP.name, &[0.25, 1.5, 0.75, 0.45]),
                    of("memory-mpich", C, CORE_TO_CORE.name, &[1.0, 2.0, 3.0, 4.0]),
                ]},
                {"rounds": [
                    of("two-runs-mpich-1", OURS, CORE_TO_CORE.name, &[50.0, 60.0]),
                    of("two-runs-mpich-1", OURS, ROUNDTRIP.name, &[0.25, 0.45]),
                ]},
                {"rounds": [of("fit-vibration", OURS, "job_time", &[1.0])]},
            ]}),
        };
        let found = cores(&run);
        let lines: Vec<&str> = found.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| memory-mpich | ours | 4 | 57.75 (50 to 210) | 0.60 (0.25 to 1.50) | 1.00 |",
                "| memory-mpich | C | 4 | 2.50 (1 to 4) | 2.50 (1 to 4) | -1.00 |",
                "| two-runs-mpich-1 | ours | 2 | 55 (50 to 60) | 0.35 (0.25 to 0.45) | – |",
            ]
        );
        run.report = json!({"methods": [{"rounds": [], "notes": ["quick"]}, {}]});
        assert_eq!(cores(&run), NO_TIMES);
        run.report["methods"][0]["notes"][0] = json!(ONE_CORE);
        assert_eq!(cores(&run), format!("{ONE_CORE}.\n"));
    }

    #[test]
    fn reports_of_a_folder_are_put_together() {
        let folder = std::env::temp_dir().join(format!("keel-bench-pieces-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        assert!(together(&folder).is_err(), "none");
        let write = |name: &str, cores: u32, case: &str| {
            let report = json!({
                "machine": {"cpu": "c", "cores": cores, "kernel": "k"}, "method": {"commit": case},
                "rows": [{"case": case, "system": OURS, "metric": "time", "value": 2.0}],
            });
            std::fs::write(folder.join(name), report.to_string()).expect("a file");
        };
        write("link-mpich.json", 2, "a");
        write("memory-mpich.json", 2, "b");
        std::fs::write(folder.join("libraries.csv"), "other").expect("a file");
        let run = together(&folder).expect("two reports");
        assert!(
            ["a", "b"]
                .iter()
                .all(|case| run.value(case, OURS, "time") == Some(2.0))
        );
        assert_eq!(run.list("methods").len(), 2);
        // The advisor's report says nothing of the machine, and its method is none of a measurement.
        write("advisor.json", 4, advisor::CASE);
        let run = together(&folder).expect("three reports");
        assert_eq!(run.report["machine"]["cores"], 2);
        assert_eq!(run.list("methods").len(), 2);
        let said = run_text(&run, "m");
        assert!(said.contains(", commit a; b, "), "{said}");
        assert!(said.ends_with(", commit advisor.\n"), "{said}");
        assert_eq!(run.value(advisor::CASE, OURS, "time"), Some(2.0));
        write("memory-openmpi.json", 4, "c");
        assert!(together(&folder).is_err(), "of another machine");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn lines_are_fitted_to_half_of_the_round_trips_on_the_line() {
        let rows = [4, 8, 1_024, 65_536].map(|bytes: u64| {
            let case = case_of(Benchmark::Roundtrip, bytes, Mpi::Openmpi, Way::Link);
            let us = 2.0 * (10.0 + bytes as f64 / 100.0);
            json!({"case": case, "system": OURS, "metric": TIME.name, "unit": "us", "value": us})
        });
        let run = Run {
            report: json!({"rows": rows}),
        };
        let said = lines(&run).expect("a line");
        assert!(
            said.ends_with("|\n| openmpi | 0 | 10.00 | 100.0 | 0.0 % | 0.0 % | 4 |\n"),
            "{said}"
        );
        // A flat line has no rate.
        let rows = [4, 8, 16].map(|bytes: u64| {
            let case = case_of(Benchmark::Roundtrip, bytes, Mpi::Openmpi, Way::Link);
            json!({"case": case, "system": OURS, "metric": TIME.name, "unit": "us", "value": 20.0})
        });
        let run = Run {
            report: json!({"rows": rows}),
        };
        let said = lines(&run).expect("a line");
        assert!(said.contains("| openmpi | 0 | 10.00 | - |"), "{said}");
    }

    #[test]
    fn the_goal_of_a_fit_says_from_which_size_on() {
        let time = |case: &str| json!({"case": case, "system": OURS, "metric": MEASURED.name, "value": 0.1});
        let error = json!({"case": "fit-a", "system": OURS, "metric": ERROR.name, "unit": "%", "value": 2.0,
                           "goal": 15.0, "better": "lower", "met": true});
        let run = Run {
            report: json!({"rows": [time("fit-a-2048"), time("fit-a-1024"), time("fit-ab-512"), error]}),
        };
        let goals = goals(&run);
        let line = "not fitted to, from 1,024 readings on | 2 % | at most 15 % | met |";
        assert!(goals.contains(line), "{goals}");
    }

    #[test]
    fn goals_and_sizes_that_miss_them_are_listed() {
        let run = run();
        assert!(
            goals(&run).contains("away from 1 | 1.50 % | at most 5 % | met |"),
            "{}",
            goals(&run)
        );
        assert!(
            above(&run).contains("- reduce, 4 bytes, memory, mpich: 1.250 (1.100 to 1.300)"),
            "{}",
            above(&run)
        );
        assert!(
            above(&run).contains("wholly above 1: 1."),
            "{}",
            above(&run)
        );
        assert!(
            times(&run).contains("| reduce, memory, mpich | 0.25 (0.20) | – |"),
            "{}",
            times(&run)
        );
        let said = run_text(&run, "m");
        assert!(
            said.starts_with("m. MPICH 4. d, commit not said, 9 rounds, 2 minutes"),
            "{said}"
        );
    }
}
