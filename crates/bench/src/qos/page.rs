//! The result page of the experiments: regenerates the text between its marks from their reports; the text around the
//! marks stays.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use control::design::{Design, Weights};
use control::identify::Model;
use serde_json::Value;

use super::approach::Approach;
use super::averages::APPROACHES;
use super::scenario::Mix;
use crate::figures::Bound;
use crate::page::{Run, cell, fill, head, list, number, text};

/// `keel-bench qos-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder with a folder for each experiment: `real-workloads`, `sim-workloads` and so on.
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Plants and experiments, as in the names of folders.
const PLANTS: [(&str, &str); 2] = [("sim", "simulated"), ("real", "this machine")];
const EXPERIMENTS: [&str; 5] = [
    "interference",
    "identification",
    "workloads",
    "cores",
    "transient",
];

/// The text for an experiment without a report. A page that a document calls measured must have a reason instead.
const NOT_MEASURED: &str = "Not measured.\n";

/// An experiment that has no report on purpose, and the text for it.
const LEFT_OUT: (&str, &str) = (
    "real-cores",
    "Not measured: with two processors, it measures what `workloads` has measured.\n",
);

/// Figures of the averages, and their headings.
const AVERAGES: [(&str, &str); 7] = [
    ("tardiness", "mean tardiness"),
    ("tardiness_p95", "p95"),
    ("data_ratio", "data response ratio"),
    ("admitted", "admitted"),
    ("fresh", "fresh"),
    ("speed", "speed"),
    ("energy_proxy", "energy proxy"),
];

/// Figures of the transients.
const TRANSIENT: [(&str, &str); 9] = [
    ("speed", "speed before"),
    ("speed_loaded", "under load"),
    ("data_ratio", "data response ratio before"),
    ("data_ratio_loaded", "under load"),
    ("admitted_loaded", "admitted under load"),
    ("settling_on", "settling, on"),
    ("settling_off", "off"),
    ("overshoot_on", "overshoot, on"),
    ("overshoot_off", "off"),
];

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut found = Vec::new();
    for (plant, words) in PLANTS {
        for experiment in EXPERIMENTS {
            let folder = format!("{plant}-{experiment}");
            let report = options
                .results
                .join(&folder)
                .join(format!("qos-{experiment}.json"));
            let run = report.is_file().then(|| Run::read(&report)).transpose()?;
            found.push((folder, words, experiment, run));
        }
    }
    let measured: Vec<_> = found
        .iter()
        .filter_map(|(folder, words, _, run)| Some((folder.as_str(), *words, run.as_ref()?)))
        .collect();
    let mut parts = vec![
        ("runs", runs(&measured)),
        ("goals", goals(&measured)),
        ("missing", missing(&measured)),
    ];
    for (folder, _, experiment, run) in &found {
        let text = run.as_ref().map_or_else(
            || {
                let is_left_out = *folder == LEFT_OUT.0;
                (if is_left_out {
                    LEFT_OUT.1
                } else {
                    NOT_MEASURED
                })
                .to_owned()
            },
            |run| part(run, experiment, folder, &options.results.join(folder)),
        );
        parts.push((folder, text));
    }
    fill(&options.page, &parts)
}

fn runs(measured: &[(&str, &str, &Run)]) -> String {
    let mut out = head("experiment | plant | date | machine | runs | store | speed by");
    for (folder, words, run) in measured {
        let (machine, method) = (&run.report["machine"], &run.report["method"]);
        let origin = &method["origin"];
        let experiment = folder.split_once('-').map_or(*folder, |(_, name)| name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {experiment} | {words} | {} | {}, {} cores, kernel {} | {} | {} | {} |",
            text(&method["date"]),
            text(&machine["cpu"]),
            machine["cores"],
            text(&machine["kernel"]),
            method["runs"],
            text(&origin["engine"]),
            text(&origin["actuator"]),
        );
    }
    out
}

/// The table of the goals, with the failed ones at its head.
fn goals(measured: &[(&str, &str, &Run)]) -> String {
    let mut failed = String::new();
    let mut out = head("experiment | plant | figure | measured | goal |");
    for (folder, words, run) in measured {
        let experiment = folder.split_once('-').map_or(*folder, |(_, name)| name);
        let mut line = |row: &Value, figure: String, value: &Value| {
            let goal = row["goal"].as_f64().unwrap_or(f64::NAN);
            let (side, bound) = match row["better"] == "higher" {
                true => ("at least", Bound::AtLeast(goal)),
                false => ("at most", Bound::AtMost(goal)),
            };
            let (shown, goal) = (cell(value.as_f64()), cell(Some(goal)));
            let verdict = match value.as_f64().is_some_and(|value| bound.is_met(value)) {
                true => "met",
                false => {
                    let claim = failed_claim(text(&row["metric"]), &goal);
                    let _ = writeln!(
                        failed,
                        "- **Failed**: {experiment}, {words}: {figure} is {shown}, not {side} {goal}.{claim}"
                    );
                    "**missed**"
                }
            };
            let _ = writeln!(
                out,
                "| {experiment} | {words} | {figure} | {shown} | {side} {goal} | {verdict} |",
            );
        };
        for row in run.judged("rows") {
            let metric = text(&row["metric"]).replace('_', " ");
            line(
                row,
                format!("{}, {}: {metric}", text(&row["case"]), text(&row["system"])),
                &row["value"],
            );
        }
        for row in run.judged("ratios") {
            let metric = text(&row["metric"]);
            let figure = format!(
                "{}: {metric} of mimo, divided by {}",
                text(&row["case"]),
                text(&row["peer"])
            );
            line(row, figure, &row["ratio"]);
        }
    }
    if !failed.is_empty() {
        failed.push('\n');
    }
    failed + &out
}

/// Returns the claim of the paper that fails with a goal, as a sentence after a space; empty if there is none.
fn failed_claim(metric: &str, goal: &str) -> String {
    let when = match metric {
        "settling_on" => "comes",
        "settling_off" => "goes",
        _ => return String::new(),
    };
    format!(" The claim “within {goal} periods” fails when the load {when}.")
}

/// The tables and drawings of one experiment.
fn part(run: &Run, experiment: &str, folder: &str, results: &Path) -> String {
    let mut out = match experiment {
        "workloads" | "cores" => grid(run, &AVERAGES),
        "transient" => grid(run, &TRANSIENT),
        "identification" => rows(run) + &gains(run),
        _ => rows(run),
    };
    let mut drawings: Vec<String> = std::fs::read_dir(results)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    drawings.sort();
    for drawing in drawings {
        let name = drawing.trim_end_matches(".svg");
        let _ = write!(out, "\n![{name}](qos/{folder}/{drawing})\n");
    }
    let notes = run.notes();
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        let _ = writeln!(out, "- {}", text(note));
    }
    out
}

/// Returns a table with a row for each case and system, and a column for each figure that one of them has.
fn grid(run: &Run, columns: &[(&str, &str)]) -> String {
    let mut lines: Vec<(&str, &str)> = Vec::new();
    for (metric, _) in columns {
        for line in run.with(metric) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    let place = |case: &str| Mix::of_name(case).map_or(usize::MAX, |mix| mix as usize);
    lines.sort_by_key(|(case, _)| place(case));
    let has = |metric: &str| {
        lines
            .iter()
            .any(|(case, system)| run.value(case, system, metric).is_some())
    };
    let columns: Vec<_> = columns.iter().filter(|(metric, _)| has(metric)).collect();
    let mut out = "| case | approach |".to_owned();
    for (_, heading) in &columns {
        let _ = write!(out, " {heading} |");
    }
    let _ = writeln!(out, "\n|---|---|{}", "---|".repeat(columns.len()));
    for (case, system) in &lines {
        let _ = write!(out, "| {case} | {system} |");
        for (metric, _) in &columns {
            let value = run.value(case, system, metric);
            let shown = value.map_or_else(|| "–".to_owned(), |value| figure(metric, value));
            let _ = write!(out, " {shown} |");
        }
        out.push('\n');
    }
    out
}

fn figure(metric: &str, value: f64) -> String {
    if metric.starts_with("settling") {
        number(value)
    } else {
        format!("{value:.3}")
    }
}

fn rows(run: &Run) -> String {
    let mut out = head("case | of | figure |");
    for row in run.list("rows") {
        let value = row["value"].as_f64().unwrap_or(f64::NAN);
        let unit = text(&row["unit"]);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {value:.4}{} |",
            text(&row["case"]),
            text(&row["system"]),
            text(&row["metric"]).replace('_', " "),
            if unit == "1" {
                String::new()
            } else {
                format!(" {unit}")
            }
        );
    }
    out
}

/// The gains and poles that follow from the model of an identification (Kang and Chung, section 4.3.2).
fn gains(run: &Run) -> String {
    let entry = |name: &str| run.value("identification", "model", name);
    let matrix = |letter: &str| -> Option<[[f64; 2]; 2]> {
        let row = |row: u8| {
            let entry = |column: u8| entry(&format!("{letter}{row}{column}"));
            Some([entry(1)?, entry(2)?])
        };
        Some([row(1)?, row(2)?])
    };
    let (Some(a), Some(b)) = (matrix("a"), matrix("b")) else {
        return String::new();
    };
    // Gains depend only on the two matrices.
    let model = Model {
        a,
        b,
        inputs: [0.0; 2],
        outputs: [0.0; 2],
        r2: [1.0; 2],
        residual: [0.0; 2],
        condition: 1.0,
        samples: 0,
    };
    let design = match Design::robust(&model, &Weights::default()) {
        Ok(design) => design,
        Err(error) => return format!("\nNo gains: {error}.\n"),
    };
    let mut out = "\n| gains | tardiness | data response ratio | sum of tardiness | sum of data response ratio |\n\
                   |---|---|---|---|---|\n"
        .to_owned();
    for (name, proportional, integral) in [
        ("speed", design.proportional[0], design.integral[0]),
        ("admitted", design.proportional[1], design.integral[1]),
    ] {
        let [p1, p2] = proportional;
        let [i1, i2] = integral;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {name} | {p1:.4} | {p2:.4} | {i1:.4} | {i2:.4} |");
    }
    let poles = design.poles.map(|[re, im]| match im == 0.0 {
        true => format!("{re:.3}"),
        false => format!(
            "{re:.3} {} {:.3}i",
            if im < 0.0 { '-' } else { '+' },
            im.abs()
        ),
    });
    let _ = writeln!(out, "\nPoles of the closed loop: {}.", poles.join(", "));
    out
}

fn missing(measured: &[(&str, &str, &Run)]) -> String {
    list(measured.iter().flat_map(|(folder, _, run)| {
        let named = move |what| format!("{folder}: {}", text(what));
        let said = run.list("missing").iter().map(named);
        let named =
            move |name| format!("{folder}: the approach `{name}`: this run did not have it");
        said.chain(approaches_left_out(folder, run).into_iter().map(named))
    }))
}

/// Returns the approaches that are not in a run of the workloads on a machine. The simulated plant knows no freshness,
/// so that it has fewer.
fn approaches_left_out(folder: &str, run: &Run) -> Vec<String> {
    let has = |name: &str| run.list("rows").iter().any(|row| row["system"] == name);
    let all = APPROACHES
        .into_iter()
        .filter(|_| folder == "real-workloads");
    let names = all.map(Approach::name);
    names.filter(|name| !has(name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Run {
        let row = |case: &str, system: &str, metric: &str, value: f64| -> Value {
            json!({"case": case, "system": system, "metric": metric, "unit": "1", "value": value})
        };
        Run {
            report: json!({
                "machine": {"cpu": "c", "cores": 2, "kernel": "k"},
                "method": {"date": "2026-01-01", "runs": 5, "origin": {"engine": "e", "actuator": "a"}, "notes": ["n"]},
                "rows": [
                    row("C10-D90", "mimo", "tardiness", 1.01),
                    row("none", "mimo", "tardiness", 0.99),
                    row("none", "mimo", "speed", 0.5),
                    {"case": "none", "system": "mimo", "metric": "tardiness_error", "unit": "1", "value": 0.01,
                     "goal": 0.05, "better": "lower", "met": true},
                ],
                "ratios": [{"case": "C10-D90", "metric": "speed", "peer": "dvfs-only", "ratio": 0.9, "goal": 0.85,
                            "better": "lower", "met": false}],
                "missing": ["m"],
            }),
        }
    }

    #[test]
    fn tables_are_in_the_order_of_the_mixes_and_goals_have_their_verdicts() {
        let run = report();
        let table = grid(&run, &AVERAGES);
        assert!(
            table.starts_with("| case | approach | mean tardiness | speed |\n"),
            "{table}"
        );
        let (none, most) = (
            table.find("| none |"),
            table.find("| C10-D90 | mimo | 1.010 | – |"),
        );
        assert!(none.is_some() && none < most, "{table}");
        let measured = [("sim-workloads", "simulated", &run)];
        let goals = goals(&measured);
        assert!(
            goals.contains("| workloads | simulated | none, mimo: tardiness error | 0.01 | at most 0.05 | met |"),
            "{goals}"
        );
        assert!(
            goals.contains(
                "C10-D90: speed of mimo, divided by dvfs-only | 0.90 | at most 0.85 | **missed** |"
            ),
            "{goals}"
        );
        let failed = "- **Failed**: workloads, simulated: C10-D90: speed of mimo, divided by dvfs-only is 0.90, \
                      not at most 0.85.\n\n| experiment |";
        assert!(goals.starts_with(failed), "{goals}");
        let claim = " The claim “within 3 periods” fails when the load comes.";
        assert_eq!(failed_claim("settling_on", "3"), claim);
        assert!(
            runs(&measured).contains(
                "| workloads | simulated | 2026-01-01 | c, 2 cores, kernel k | 5 | e | a |"
            )
        );
        assert_eq!(missing(&measured), "- sim-workloads: m\n");
        let measured = [("real-workloads", "this machine", &run)];
        let missing = missing(&measured);
        let line = "- real-workloads: the approach `mimo-fresh`: this run did not have it\n";
        assert!(missing.ends_with(line), "{missing}");
        assert!(!missing.contains("`mimo`"), "{missing}");
        assert!(rows(&run).contains("| none | mimo | speed | 0.5000 |"));
    }

    #[test]
    fn an_identification_shows_the_gains_and_poles_that_follow() {
        let row = |metric: &str, value: f64| {
            let (case, system) = ("identification", "model");
            json!({"case": case, "system": system, "metric": metric, "unit": "1", "value": value})
        };
        let entries = [
            ("a11", 0.39),
            ("a12", -0.006),
            ("a21", 0.09),
            ("a22", 0.04),
            ("b11", -0.88),
            ("b12", 0.26),
            ("b21", 0.04),
            ("b22", 0.22),
        ];
        let rows: Vec<Value> = entries
            .iter()
            .map(|(name, value)| row(name, *value))
            .collect();
        let shown = gains(&Run {
            report: json!({"rows": rows}),
        });
        let lines: Vec<&str> = shown.lines().collect();
        // A task that is too slow gets more speed: tardiness above its target is an error below 0.
        let speed: Vec<f64> = lines[3]
            .split('|')
            .filter_map(|cell| cell.trim().parse().ok())
            .collect();
        assert!(
            speed.len() == 4 && speed[0] > 0.1 && speed[2] > 0.1,
            "{shown}"
        );
        let poles = lines
            .last()
            .unwrap()
            .strip_prefix("Poles of the closed loop: ")
            .unwrap();
        assert_eq!(poles.split(", ").count(), 4, "{poles}");
        assert_eq!(
            gains(&Run {
                report: json!({"rows": []})
            }),
            ""
        );
    }

    #[test]
    fn a_page_is_made_from_the_present_figures() {
        let folder = std::env::temp_dir().join(format!("keel-qos-page-{}", std::process::id()));
        let results = folder.join("sim-workloads");
        std::fs::create_dir_all(&results).unwrap();
        let written = serde_json::to_string(&report().report).unwrap();
        std::fs::write(results.join("qos-workloads.json"), written).unwrap();
        std::fs::write(results.join("workloads.svg"), "").unwrap();
        let marks = |name: &str| format!("<!-- begin {name} -->\n<!-- end {name} -->\n");
        let mut page = ["runs", "goals", "missing"].map(marks).concat();
        for (plant, _) in PLANTS {
            for experiment in EXPERIMENTS {
                page.push_str(&marks(&format!("{plant}-{experiment}")));
            }
        }
        let path = folder.join("page.md");
        std::fs::write(&path, &page).unwrap();
        let options = Options {
            results: folder.clone(),
            page: path.clone(),
        };
        run(&options).unwrap();
        let made = std::fs::read_to_string(&path).unwrap();
        assert!(
            made.contains("![workloads](qos/sim-workloads/workloads.svg)"),
            "{made}"
        );
        assert_eq!(made.matches(NOT_MEASURED).count(), 8, "{made}");
        assert!(made.contains("Not measured: with two processors"), "{made}");
        std::fs::write(&path, "no marks").unwrap();
        assert!(run(&options).unwrap_err().contains("no place for"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
