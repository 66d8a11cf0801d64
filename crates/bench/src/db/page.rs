//! The result page of the data path: regenerates the text between its marks from a report of `keel-bench db`; the text
//! around the marks stays.

use std::fmt::Write;
use std::path::PathBuf;

use super::cases::{DATA, DURABLE, FLOOR, OTHER_PUTS, OTHER_REFUSED, SIZES, WRITERS_CASE};
use super::copy;
use crate::engine::kind::Kind;
use crate::page::{Run, cell, fill, goals_of_rounds, head, list, number, text};

/// `keel-bench db-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Report of `keel-bench db --json`.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Metrics, and their headings.
const METRICS: [(&str, &str); 4] = [
    ("latency_p50", "p50"),
    ("latency_p99", "p99"),
    ("latency_p999", "p99.9"),
    ("latency_max", "worst"),
];

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let run = Run::read(&options.json)?;
    let gets: Vec<&str> = SIZES.iter().map(|size| size.get).collect();
    let puts: Vec<&str> = SIZES.iter().map(|size| size.put).collect();
    let parts = [
        ("run", run_text(&run)),
        ("goals", goals(&run)),
        ("gets", latencies(&run, &gets)),
        ("puts", latencies(&run, &puts)),
        ("durable", latencies(&run, &[DURABLE])),
        ("writers", writers(&run)),
        ("data", data(&run)),
        ("systems", systems(&run)),
        (
            "drawings",
            drawings(&[gets, puts, vec![DURABLE]].concat(), &run),
        ),
        ("notes", list(run.notes().iter().map(text))),
        ("missing", run.missing()),
    ];
    fill(&options.page, &parts)
}

/// Describes a case for a reader.
fn words(case: &str) -> String {
    for size in &SIZES {
        let what = if size.get == case {
            "get"
        } else if size.put == case {
            "put"
        } else {
            continue;
        };
        return format!(
            "{what}, {} values of {} B",
            number(f64::from(size.objects)),
            number(size.value_bytes as f64)
        );
    }
    match case {
        DURABLE => "lone durable put".to_owned(),
        WRITERS_CASE => "durable puts, 64 writers".to_owned(),
        DATA => "data time of a periodic task".to_owned(),
        other => other.to_owned(),
    }
}

fn metric_words(metric: &str) -> String {
    let known = METRICS.iter().find(|(name, _)| *name == metric);
    match (metric, known) {
        (_, Some((_, words))) => format!("{words}, µs"),
        ("rate_to_lone", _) => "rate, divided by that of one writer".to_owned(),
        ("data_time_ratio", _) => {
            "beside a processor on other values of the store, divided by beside one that only computes"
                .to_owned()
        }
        (other, _) => other.replace('_', " "),
    }
}

fn run_text(run: &Run) -> String {
    let method = &run.report["method"];
    format!(
        "{}; on {}. {} rounds; {} gets and {} puts of each case and system, {} durable puts.{}\n",
        run.origin(),
        text(&method["file_system"]),
        method["rounds_each"],
        method["gets"],
        method["puts"],
        method["durable_puts"],
        run.load(),
    )
}

fn goals(run: &Run) -> String {
    goals_of_rounds(run, words, metric_words, |_| String::new())
}

/// Returns the systems of a case, always in the same order.
fn systems_of<'a>(run: &Run, case: &str, metric: &str) -> Vec<&'a str> {
    let all = Kind::ALL
        .into_iter()
        .map(Kind::name)
        .chain([FLOOR, copy::NAME]);
    all.filter(|system| run.value(case, system, metric).is_some())
        .collect()
}

fn latencies(run: &Run, cases: &[&str]) -> String {
    let mut out = head("case | system | p50, µs | p99 | p99.9 | worst");
    for case in cases {
        for system in systems_of(run, case, METRICS[0].0) {
            let _ = write!(out, "| {} | {system} |", words(case));
            for (metric, _) in METRICS {
                let _ = write!(out, " {} |", cell(run.value(case, system, metric)));
            }
            out.push('\n');
        }
    }
    out
}

fn writers(run: &Run) -> String {
    let mut out = head("system | puts in a second | divided by one writer");
    for system in systems_of(run, WRITERS_CASE, "puts_per_second") {
        let value = |metric| cell(run.value(WRITERS_CASE, system, metric));
        let _ = writeln!(
            out,
            "| {system} | {} | {} |",
            value("puts_per_second"),
            value("rate_to_lone")
        );
    }
    out
}

fn data(run: &Run) -> String {
    let systems = systems_of(run, DATA, "data_time_alone");
    let refused = |system: &str| {
        let [tried, refused] =
            [OTHER_PUTS, OTHER_REFUSED].map(|metric| run.value(DATA, system, metric.name));
        Some(format!(" {} of {} |", number(refused?), number(tried?)))
    };
    // Reports before these were counted have none.
    let is_counted = systems.iter().any(|system| refused(system).is_some());
    let mut out =
        "| system | the other computes, µs | the other works on other values of the store, µs | divided |"
            .to_owned();
    out.push_str(if is_counted {
        " puts of the other, refused |\n|---|---|---|---|---|\n"
    } else {
        "\n|---|---|---|---|\n"
    });
    for system in systems {
        let value = |metric| cell(run.value(DATA, system, metric));
        let refused = match refused(system) {
            _ if !is_counted => String::new(),
            Some(refused) => refused,
            None => " – |".to_owned(),
        };
        let _ = writeln!(
            out,
            "| {system} | {} | {} | {} |{refused}",
            value("data_time_alone"),
            value("data_time_beside"),
            value("data_time_ratio")
        );
    }
    out
}

fn systems(run: &Run) -> String {
    let mut out = String::new();
    for system in run.report["method"]["systems"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
    {
        let _ = writeln!(
            out,
            "- **{}**: {}.",
            text(&system["name"]),
            text(&system["setup"])
        );
    }
    out
}

fn drawings(cases: &[&str], run: &Run) -> String {
    let mut out = String::new();
    for case in cases {
        if run
            .value(case, crate::figures::OURS, METRICS[0].0)
            .is_some()
        {
            let _ = writeln!(out, "![{}](db/{case}.svg)\n", words(case));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn tables_show_the_figures_and_goals_their_verdicts() {
        let row = |case: &str, system: &str, metric: &str, value: f64| -> Value {
            json!({"case": case, "system": system, "metric": metric, "value": value})
        };
        let run = Run {
            report: json!({
                "rows": [
                    row("get-100k-64", "keel", "latency_p50", 0.2),
                    row("get-100k-64", "lmdb", "latency_p50", 0.4),
                    row("durable-64-writers", "keel", "puts_per_second", 90_000.0),
                    {"case": "durable-64-writers", "system": "keel", "metric": "rate_to_lone", "value": 22.0,
                     "goal": 20.0, "better": "higher", "met": true},
                ],
                "ratios": [{"case": "get-100k-64", "metric": "latency_p50", "peer": "lmdb", "ratio": 0.6,
                            "better": "lower", "goal": 0.5, "met": false, "of_rounds": [0.5, 0.7]}],
                "missing": ["rocksdb"],
                "method": {"systems": [{"name": "keel", "setup": "a"}], "rounds": [
                    {"case": "durable-64-writers", "system": "keel", "metric": "rate_to_lone",
                     "values": [22.0, 19.5, 23.0]},
                ]},
            }),
        };
        let goals = goals(&run);
        assert!(
            goals.contains(
                "| p50, µs, divided by lmdb | 0.60 | 0.50 to 0.70 | at most 0.50 | **missed** |"
            ),
            "{goals}"
        );
        assert!(
            goals.contains("| 22 | 19.50 to 23 | at least 20 | met |"),
            "{goals}"
        );
        assert!(latencies(&run, &["get-100k-64"]).contains("| keel | 0.20 | – | – | – |"));
        assert!(writers(&run).contains("| keel | 90,000 | 22 |"));
        assert_eq!(
            drawings(&["get-100k-64", "put-100k-64"], &run)
                .matches("svg")
                .count(),
            1
        );
        assert_eq!(run.missing(), "- rocksdb\n");
        assert!(systems(&run).contains("**keel**: a."));
    }

    #[test]
    fn refused_puts_of_the_other_processor_are_shown_if_they_were_counted() {
        let row = |metric: &str, value: f64| -> Value {
            json!({"case": DATA, "system": "keel", "metric": metric, "value": value})
        };
        let mut rows = vec![row("data_time_alone", 400.0), row("data_time_ratio", 1.1)];
        let page = |rows: &[Value]| {
            data(&Run {
                report: json!({"rows": rows}),
            })
        };
        let not_counted = page(&rows);
        let end = "| divided |\n|---|---|---|---|\n| keel | 400 | – | 1.10 |\n";
        assert!(not_counted.ends_with(end), "{not_counted}");
        rows.push(row(OTHER_PUTS.name, 5000.0));
        rows.push(row(OTHER_REFUSED.name, 12.0));
        let counted = page(&rows);
        let line = "refused |\n|---|---|---|---|---|\n| keel | 400 | – | 1.10 | 12 of 5,000 |\n";
        assert!(counted.ends_with(line), "{counted}");
    }
}
