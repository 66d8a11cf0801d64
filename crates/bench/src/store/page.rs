//! The result page of the store: regenerates the text between its marks from the reports of `keel-bench flash` and
//! `keel-bench flash --paper`; the text around the marks stays.

use std::fmt::Write;
use std::path::PathBuf;

use crate::page::{Run, cell, fill, head, list, number, text, verdict};

/// `keel-bench flash-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Report of `keel-bench flash --json`.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// Report of `keel-bench flash --paper --json`.
    #[arg(long, value_name = "FILE")]
    paper: PathBuf,
    /// Report of `keel-bench flash --appends --json`.
    #[arg(long, value_name = "FILE")]
    appends: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Ratios above this are listed as not faster; smaller differences count as equal.
const SAME_RATIO: f64 = 1.02;

/// Names of cases, and their descriptions for a reader.
const CASES: [(&str, &str); 28] = [
    ("append-4096-sync", "append 4,096 B, durable"),
    ("record-100-sync", "append a record of 100 B, durable"),
    ("read-4096-random", "read 4,096 B at random, of 16 MiB"),
    (
        "overwrite-4096-sync",
        "overwrite 4,096 B at random, of 16 MiB, durable",
    ),
    ("truncate-4096-sync", "cut 4,096 B off the end, durable"),
    ("create-sync", "create, durable"),
    ("rename-sync", "rename, durable"),
    ("delete-sync", "delete (4,096 B), durable"),
    (
        "sqlite-commit-wal",
        "SQLite commit of 100 B, write-ahead log",
    ),
    (
        "sqlite-commit-rollback",
        "SQLite commit of 100 B, rollback journal",
    ),
    ("open-by-name", "open by name, many files"),
    ("open-by-name-disk", "open by name, many files"),
    ("create-many-files-disk", "create among many files"),
    ("delete-many-files-disk", "delete among many files"),
    (
        "read-4096-large-file",
        "read 4,096 B at random, large file, default memory",
    ),
    (
        "read-4096-large-file-index",
        "read 4,096 B at random, large file, all its addresses in memory",
    ),
    (
        "append-4096-varied",
        "append 4,096 B, varied run, nearly full",
    ),
    ("overwrite-4096-varied", "overwrite 4,096 B, varied run"),
    ("truncate-varied", "cut off any length, varied run"),
    ("create-varied", "create, varied run"),
    ("rename-varied", "rename, varied run"),
    ("delete-varied", "delete, any length, varied run"),
    ("append-4096-many-files", "append 4,096 B, many files"),
    ("create-many-files", "create, many files"),
    ("rename-many-files", "rename, many files"),
    ("delete-many-files", "delete, many files"),
    (
        "mount-after-cut-16gib",
        "open a store of 16 GiB after a cut",
    ),
    ("memory-16gib-32-open", "memory, 16 GiB, 32 open files"),
];

/// Names of metrics, and their descriptions for a reader.
const METRICS: [(&str, &str); 14] = [
    ("latency_p50", "p50"),
    ("latency_p99", "p99"),
    ("latency_p999", "p99.9"),
    ("latency_max", "slowest"),
    ("device_writes_per_op", "writes, mean"),
    ("device_flushes_per_op", "flushes, mean"),
    ("device_written_per_op", "KiB written, mean"),
    ("device_writes_max", "writes, most in a call"),
    ("device_flushes_max", "flushes, most in a call"),
    ("device_reads_max", "reads, most in a call"),
    ("device_blocks_read_max", "blocks read, most in a call"),
    ("device_blocks_read_p99", "blocks read, p99"),
    ("device_reads_p50", "reads, p50"),
    ("memory", "bytes"),
];

fn case_text(case: &str) -> String {
    let (base, place) = match case.strip_suffix("-loop") {
        Some(base) => (base, ", on a loop device"),
        None => (case, ""),
    };
    match base {
        "counts-agree" => "our counts less the kernel's of the same device".to_owned(),
        base => format!("{}{place}", told(&CASES, base)),
    }
}

/// Returns the description of `name`, or `name` itself.
fn told<'a>(table: &[(&str, &'a str)], name: &'a str) -> &'a str {
    let found = table.iter().find(|(known, _)| *known == name);
    found.map_or(name, |(_, words)| words)
}

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let flash = Run::read(&options.json)?;
    let paper = Run::read(&options.paper)?;
    let appends = Run::read(&options.appends)?;
    let missing = [&flash, &paper].map(|run| run.list("missing"));
    let missing = missing.into_iter().flatten().map(text);
    let parts = [
        ("run", run_text(&flash, &paper)),
        ("goals", goals(&flash)),
        ("loops", latencies(&flash, &|case| case.ends_with("-loop"))),
        ("files", latencies(&flash, &|case| !case.ends_with("-loop"))),
        ("ratios", ratios(&flash)),
        ("appends-run", rounds_text(&appends)),
        ("appends", slowest(&appends)),
        ("most", most(&flash)),
        ("slower", slower(&flash)),
        ("paper", paper_tables(&paper)),
        ("paper-slower", slower(&paper)),
        ("missing", list(missing)),
    ];
    fill(&options.page, &parts)
}

fn run_text(flash: &Run, paper: &Run) -> String {
    let method = &flash.report["method"];
    format!(
        "{}; the disk below has {}. {} rounds, {} operations of each case in a round, of appends {}; the paper's \
         experiments {} calls each.{}\n",
        flash.origin(),
        text(&method["file_system"]),
        method["rounds"],
        method["operations_in_round"],
        method["appends_in_round"],
        paper.report["method"]["repetitions"],
        flash.load(),
    )
}

fn goals(run: &Run) -> String {
    let mut out = head("case | figure | measured | at most | | the device's floor");
    for row in run.judged("ratios") {
        let (case, metric) = (text(&row["case"]), text(&row["metric"]));
        let (ratio, goal) = (cell(row["ratio"].as_f64()), cell(row["goal"].as_f64()));
        let (peer, met) = (text(&row["peer"]), verdict(row));
        let (case, metric) = (case_text(case), told(&METRICS, metric));
        let floor = row["floor_ratio"].as_f64();
        let floor = floor.map_or(String::new(), |floor| cell(Some(floor)));
        let _ = writeln!(
            out,
            "| {case} | {metric}, divided by {peer} | {ratio} | {goal} | {met} | {floor} |"
        );
    }
    for row in run.judged("rows") {
        let (case, metric) = (text(&row["case"]), text(&row["metric"]));
        let value = cell(row["value"].as_f64());
        let goal = cell(row["goal"].as_f64());
        let unit = if row["unit"] == "us" { " µs" } else { "" };
        let (case, metric, met) = (case_text(case), told(&METRICS, metric), verdict(row));
        let _ = writeln!(
            out,
            "| {case} | {metric} | {value}{unit} | {goal}{unit} | {met} | |"
        );
    }
    out
}

fn latencies(run: &Run, belongs: &dyn Fn(&str) -> bool) -> String {
    let mut out = head("case | system | p50 | p99 | p99.9 | max | R/op | W/op | F/op | KiB/op");
    let mut last = "";
    for (case, system) in run.with("latency_p50") {
        if !belongs(case) {
            continue;
        }
        let base = case.strip_suffix("-loop").unwrap_or(case);
        let words = if case == last { "" } else { told(&CASES, base) };
        last = case;
        let _ = write!(out, "| {words} | {system} |");
        for metric in [
            "latency_p50",
            "latency_p99",
            "latency_p999",
            "latency_max",
            "device_reads_per_op",
            "device_writes_per_op",
            "device_flushes_per_op",
            "device_written_per_op",
        ] {
            let _ = write!(out, " {} |", cell(run.value(case, system, metric)));
        }
        out.push('\n');
    }
    out
}

fn rounds_text(run: &Run) -> String {
    let method = &run.report["method"];
    format!(
        "{}: {} rounds of {} operations on each system.\n",
        text(&method["date"]),
        method["rounds"],
        number(method["appends_in_round"].as_f64().unwrap_or(f64::NAN)),
    )
}

/// Returns the table of the 99.9th percentile over many rounds. The range of the single rounds shows how reliable a
/// single value is.
fn slowest(run: &Run) -> String {
    let mut out = head(
        "case | peer | p50 | p99.9 | p99.9 of a round, lowest to highest | at most | the device's floor",
    );
    let metric = "latency_p999";
    let mut last = "";
    for row in run
        .list("ratios")
        .iter()
        .filter(|row| row["metric"] == metric)
    {
        let (case, peer) = (text(&row["case"]), text(&row["peer"]));
        let words = if case == last {
            String::new()
        } else {
            case_text(case)
        };
        last = case;
        let of_rounds = |place: usize| cell(row["of_rounds"][place].as_f64());
        let stated = |name: &str| row[name].as_f64().map_or_else(String::new, number);
        let goal = match row["met"].as_bool() {
            Some(true) => format!("{}, met", stated("goal")),
            Some(false) => format!("{}, **missed**", stated("goal")),
            None => String::new(),
        };
        let _ = writeln!(
            out,
            "| {words} | {peer} | {} | {} | {} to {} | {goal} | {} |",
            cell(run.ratio(case, peer, "latency_p50")),
            cell(row["ratio"].as_f64()),
            of_rounds(0),
            of_rounds(1),
            stated("floor_ratio"),
        );
    }
    out
}

fn ratios(run: &Run) -> String {
    let mut out = head("case | peer | p50 | p99 | p99.9 | KiB written");
    let mut last = "";
    for row in run
        .list("ratios")
        .iter()
        .filter(|row| row["metric"] == "latency_p50")
    {
        let (case, peer) = (text(&row["case"]), text(&row["peer"]));
        let words = if case == last {
            String::new()
        } else {
            case_text(case)
        };
        last = case;
        let _ = write!(out, "| {words} | {peer} |");
        for metric in [
            "latency_p50",
            "latency_p99",
            "latency_p999",
            "device_written_per_op",
        ] {
            let _ = write!(out, " {} |", cell(run.ratio(case, peer, metric)));
        }
        out.push('\n');
    }
    out
}

/// Returns the table of the maximum of any single call, for cases that are counted and not timed.
fn most(run: &Run) -> String {
    let mut out = head("call | calls | reads | blocks read | writes | flushes | KiB written");
    for (case, system) in run.with("calls") {
        let name = if system == "keel" {
            case_text(case)
        } else {
            format!("{} ({system})", case_text(case))
        };
        let _ = write!(out, "| {name} |");
        for metric in [
            "calls",
            "device_reads_max",
            "device_blocks_read_max",
            "device_writes_max",
            "device_flushes_max",
            "device_written_max",
        ] {
            let _ = write!(out, " {} |", cell(run.value(case, system, metric)));
        }
        out.push('\n');
    }
    out
}

/// Lists where a peer was faster. The floor is excluded, since nothing is faster than the floor.
fn slower(run: &Run) -> String {
    let mut out = String::new();
    for row in run
        .list("ratios")
        .iter()
        .filter(|row| row["metric"] == "latency_p50")
    {
        let (case, peer) = (text(&row["case"]), text(&row["peer"]));
        if peer.starts_with("floor") || peer.starts_with("keel") {
            continue;
        }
        let ratio = |metric| run.ratio(case, peer, metric).unwrap_or(f64::NAN);
        let (p50, p999) = (ratio("latency_p50"), ratio("latency_p999"));
        if p50 > SAME_RATIO || p999 > SAME_RATIO {
            let words = told(&PAPER, case).to_owned();
            let words = if words == case {
                case_text(case)
            } else {
                words
            };
            let (p50, p999) = (number(p50), number(p999));
            let _ = writeln!(
                out,
                "- {words}: p50 {p50}, p99.9 {p999} times that of {peer}"
            );
        }
    }
    if out.is_empty() {
        out.push_str("Nothing in this run.\n");
    }
    out
}

/// The paper's experiments: case, description, name of the plot.
const PAPER: [(&str, &str); 5] = [
    ("paper-append", "append"),
    ("paper-read", "read"),
    ("paper-open-new", "open-new"),
    ("paper-unlink-empty", "unlink-empty"),
    ("paper-open-by-depth", "open-by-depth"),
];

fn paper_tables(run: &Run) -> String {
    let mut out = String::new();
    for (case, name) in PAPER {
        let _ = writeln!(
            out,
            "### {name}\n\n[![{name}](flash/{name}.png)](flash/{name}.svg)\n"
        );
        out.push_str(
            "| system | p50 | p99 | p99.9 | max | R/op | W/op | F/op | KiB read | KiB written |\n\
             |---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (_, system) in run
            .with("latency_p50")
            .into_iter()
            .filter(|(of, _)| *of == case)
        {
            let shown = match (name, system) {
                ("open-by-depth", "keel-sync") => "keel, flat",
                ("open-new" | "unlink-empty", "keel-sync") => "keel (always durable)",
                (_, system) => system,
            };
            let _ = write!(out, "| {shown} |");
            for metric in [
                "latency_p50",
                "latency_p99",
                "latency_p999",
                "latency_max",
                "device_reads_per_op",
                "device_writes_per_op",
                "device_flushes_per_op",
                "device_read_per_op",
                "device_written_per_op",
            ] {
                let _ = write!(out, " {} |", cell(run.value(case, system, metric)));
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Run {
        let case = "append-4096-sync-loop";
        let row = |system: &str, metric: &str, value: f64| {
            json!({"case": case, "system": system, "metric": metric, "unit": "us",
                   "value": value})
        };
        let ratio = |metric: &str, ratio: f64| {
            json!({"case": case, "metric": metric, "peer": "ext4-sync", "ratio": ratio,
                   "goal": 0.55, "met": ratio <= 0.55, "of_rounds": [0.4, 0.7]})
        };
        Run {
            report: json!({
                "rows": [row("keel", "latency_p50", 1234.5), row("ext4-sync", "latency_p50", 600.0)],
                "ratios": [ratio("latency_p50", 2.0), ratio("latency_p999", 0.5)],
                "missing": ["xfs"],
            }),
        }
    }

    #[test]
    fn tables_show_verdicts_and_slower_cases() {
        let run = run();
        let goals = goals(&run);
        let missed = "on a loop device | p50, divided by ext4-sync | 2 | 0.55 | **missed** |";
        assert!(goals.contains(missed), "{goals}");
        let met = "p99.9, divided by ext4-sync | 0.50 | 0.55 | met |";
        assert!(goals.contains(met), "{goals}");
        let slower = slower(&run);
        let expected = "append 4,096 B, durable, on a loop device: p50 2, p99.9 0.50 times";
        assert!(slower.contains(expected), "{slower}");
        let table = latencies(&run, &|_| true);
        assert!(
            table.contains("| append 4,096 B, durable | keel | 1,234 | – |"),
            "{table}"
        );
        assert_eq!(list(run.list("missing").iter().map(text)), "- xfs\n");
        assert_eq!(list([""; 0]), "Nothing.\n");
        let slowest = slowest(&run);
        let expected = "| ext4-sync | 2 | 0.50 | 0.40 to 0.70 | 0.55, met |  |";
        assert!(slowest.contains(expected), "{slowest}");
    }
}
