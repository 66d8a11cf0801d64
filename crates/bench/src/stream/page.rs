//! The result page of executable streaming: regenerates the text between its marks from the reports of `keel-bench
//! stream` and `keel-bench stream --paper`; the text around the marks stays.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bed::{CARD, EXT4, KEEL, READAHEAD, SSHFS, UNPREPARED};
use super::cases::{
    BOUNDS, COMPRESSED_BYTES, FIRST, NEEDED_BLOCKS, NEEDED_BYTES, OFFLINE, PAGE_TIME, READS,
    RUN_TIME, START, WARM,
};
use super::cold_server::{WHY, judged};
use super::limits::{
    ADDED, GROUP_MEBIBYTES, HIT_SHARE, LOSS, LOSSES_PERCENT, MEMORY_CAPPED, SLOWDOWN, TCP_COPY,
    UNREAD, UNREAD_SHARE, UNREAD_TOGETHER, UNREAD_VARIED,
};
use super::paper::{
    ARMS, FIGURE_7A, FIGURE_7C, FIGURE_8, MODES, PATHS, PRE_READ_BLOCKS, TABLE_1, TABLE_2,
    TOTAL_BLOCKS, WAYS_OF_OURS, WIRED,
};
use super::promises::summary;
use super::table_1::{PART_TIME, PARTS};
use super::tasks::Program;
use crate::figures::Metric;
use crate::page::{Run, cell, fill, head, list, number, text, verdict};

/// `keel-bench stream-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder with the reports: `goals*.json` of `stream`, whose pieces are put together, and `paper.json`.
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let found = [
        pieces(&options.results, "goals")?,
        pieces(&options.results, "paper")?,
    ];
    if found.iter().all(Option::is_none) {
        let folder = options.results.display();
        return Err(format!("{folder}: no goals-*.json and no paper.json"));
    }
    super::plots::write_again(&options.results)?;
    // Parts without a report are left out.
    let [goals_run, paper] = found.map(|run| run.unwrap_or_else(|| Run { report: json!({}) }));
    let has_figure = |run: &Run| {
        let mut rows = run.list("rows").iter();
        rows.any(|row| text(&row["case"]).starts_with(FIGURE_7C))
    };
    // That of the paper's run, unless it was measured by itself.
    let of_arms = match has_figure(&goals_run) {
        true => &goals_run,
        false => &paper,
    };
    let cold = judged(&goals_run, goals_run.list(PIECES));
    let missing = [&goals_run, &paper].map(|run| run.list("missing"));
    let missing = missing.into_iter().flatten().map(text);
    let parts = [
        ("run", run_text(&goals_run, &paper)),
        ("summary", summary(&goals_run, &cold)),
        ("goals", goals(&goals_run, &cold)),
        ("need", need(&goals_run)),
        ("starts", starts(&goals_run)),
        ("unread", unread(&goals_run)),
        ("again", again(&goals_run)),
        ("losses", losses(&goals_run)),
        ("table-1", table_1(&paper)),
        ("table-2", table_2(&paper)),
        (
            "paths",
            by_program(
                &paper,
                FIGURE_7A,
                &PATHS.map(|(system, _)| system),
                PAGE_TIME,
            ),
        ),
        (
            "arms",
            by_program(
                of_arms,
                FIGURE_7C,
                &ARMS.map(|(system, _)| system),
                PAGE_TIME,
            ),
        ),
        ("wired", wired(&paper)),
        (
            "modes",
            by_program(&paper, MODES, &WAYS_OF_OURS.map(|way| way.system), RUN_TIME),
        ),
        ("drawings", drawings(&options.results, has_figure(of_arms))),
        ("missing", list(missing)),
    ];
    fill(&options.page, &parts)
}

/// Combines the reports whose names begin with `name`; each figure comes from the piece that has it. Returns `None` if
/// there are no such reports.
fn pieces(folder: &Path, name: &str) -> Result<Option<Run>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_one = path.file_name().and_then(|file| file.to_str());
        if is_one.is_some_and(|file| file.starts_with(name) && file.ends_with(".json")) {
            paths.push(path);
        }
    }
    paths.sort();
    // Needs are in each piece. Those of the starts are shown, because the bound is made of them.
    paths.sort_by_key(|path| !path.ends_with("goals-start.json"));
    let mut paths = paths.into_iter();
    let Some(first) = paths.next() else {
        return Ok(None);
    };
    let mut whole = Run::read(&first)?;
    let mut known = vec![about(&first, &whole)];
    for path in paths {
        let piece = Run::read(&path)?;
        known.push(about(&path, &piece));
        for part in ["rows", "ratios", "missing"] {
            let more = piece.list(part).to_vec();
            if let Some(all) = whole.report[part].as_array_mut() {
                for row in more {
                    // Each piece repeats some rows, such as its needs; they are added only once.
                    if !all.iter().any(|known| is_same(known, &row)) {
                        all.push(row);
                    }
                }
            }
        }
    }
    whole.report[PIECES] = Value::Array(known);
    Ok(Some(whole))
}

/// The key of the descriptions of the pieces in the combined report.
const PIECES: &str = "pieces";

fn about(path: &Path, piece: &Run) -> Value {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let report = &piece.report;
    json!({"name": name, "machine": report["machine"], "method": report["method"]})
}

fn is_same(one: &Value, other: &Value) -> bool {
    if one.is_string() {
        return one == other;
    }
    ["case", "system", "peer", "metric"]
        .iter()
        .all(|key| one[key] == other[key])
}

fn run_text(goals: &Run, paper: &Run) -> String {
    let machine_of = |machine: &Value| {
        let [cpu, kernel] = [text(&machine["cpu"]), text(&machine["kernel"])];
        format!("{cpu}, {} cores, Linux {kernel}", machine["cores"])
    };
    let pieces = || goals.list(PIECES).iter().chain(paper.list(PIECES));
    let machine = pieces()
        .next()
        .map_or_else(String::new, |piece| machine_of(&piece["machine"]));
    let mut out = format!("{machine}.");
    let cards = pieces().map(|piece| &piece["method"]["card_measured"]);
    let mut figures = cards
        .filter_map(|card| Some((card["reads_per_s"].as_f64()?, card["bytes_per_s"].as_f64()?)));
    if let Some((reads, bytes)) = figures.next_back() {
        let _ = write!(
            out,
            " The disk that is as slow as a card did {} reads and {} MB in a second.",
            number(reads.round()),
            number((bytes / 1e4).round() / 100.0)
        );
    }
    out.push_str(
        "\n\n| piece | command | rounds | commit | date | minutes | load before |\n|---|---|---|---|---|---|---|\n",
    );
    for piece in pieces() {
        let method = &piece["method"];
        let other = Some(machine_of(&piece["machine"])).filter(|other| *other != machine);
        let _ = writeln!(
            out,
            "| {}{} | `{}` | {} | {} | {} | {} | {} |",
            text(&piece["name"]),
            other.map_or_else(String::new, |other| format!(" (on {other})")),
            text(&method["command"]),
            method["rounds_of_each"]
                .as_u64()
                .unwrap_or_else(|| rounds_of(method)),
            text(&method["commit"]),
            text(&method["date"]),
            cell(
                method["minutes"]
                    .as_f64()
                    .map(|minutes| (minutes * 10.0).round() / 10.0)
            ),
            cell(method["load_1min"].as_f64()),
        );
    }
    out
}

/// Returns the number of rounds, derived from the values of the rounds.
fn rounds_of(method: &Value) -> u64 {
    let figures = method["rounds"].as_array().map_or(&[][..], Vec::as_slice);
    let counts = figures
        .iter()
        .filter(|figure| figure["metric"] == RUN_TIME.name);
    counts
        .filter_map(|figure| figure["values"].as_array())
        .map(|values| values.len() as u64)
        .max()
        .unwrap_or(0)
}

/// Returns the table of all goals with their results, those of a cold server after the others.
fn goals(run: &Run, cold: &Run) -> String {
    let mut out = head("case | figure | value | rounds | goal |");
    let mut met = [0; 2];
    for run in [run, cold] {
        for row in run.judged("rows") {
            met[usize::from(row["met"] == true)] += 1;
            let _ = writeln!(
                out,
                "| {} | {} | {} | | at most {} | {} |",
                case_cell(row),
                text(&row["metric"]).replace('_', " "),
                cell(row["value"].as_f64()),
                cell(row["goal"].as_f64()),
                verdict_cell(row)
            );
        }
        for row in run.judged("ratios") {
            met[usize::from(row["met"] == true)] += 1;
            let range = row["of_rounds"]
                .as_array()
                .map_or_else(String::new, |range| {
                    let ends: Vec<String> = range.iter().map(|end| cell(end.as_f64())).collect();
                    ends.join(" to ")
                });
            let _ = writeln!(
                out,
                "| {} | {} ÷ {} | {} | {range} | at most {} | {} |",
                case_cell(row),
                text(&row["metric"]).replace('_', " "),
                text(&row["peer"]),
                cell(row["ratio"].as_f64()),
                cell(row["goal"].as_f64()),
                verdict_cell(row)
            );
        }
    }
    let _ = writeln!(out, "\n{} of {} met.", met[1], met[0] + met[1]);
    out
}

/// Returns the case of a judged figure. The cold server has the same cases as ours.
fn case_cell(row: &Value) -> String {
    let case = text(&row["case"]);
    if row["system"] == UNPREPARED {
        format!("{case}, cold server")
    } else {
        case.to_owned()
    }
}

/// Returns whether the goal of a row is met, and why not if the row says so.
fn verdict_cell(row: &Value) -> String {
    match text(&row[WHY]) {
        "" => verdict(row).to_owned(),
        why => format!("{}: {why}", verdict(row)),
    }
}

/// Returns a table with a row for each label that has a figure, without the columns that have none. A report from
/// before something was measured has no figures of it.
fn without_empty(corner: &str, columns: &[&str], rows: Vec<(String, Vec<Option<f64>>)>) -> String {
    let has_figure = |column: &usize| rows.iter().any(|(_, values)| values[*column].is_some());
    let kept: Vec<usize> = (0..columns.len()).filter(has_figure).collect();
    let mut out = format!("| {corner} |");
    for column in &kept {
        let _ = write!(out, " {} |", columns[*column]);
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(kept.len()));
    for (label, values) in rows {
        if values.iter().all(Option::is_none) {
            continue;
        }
        let cells: Vec<String> = kept.iter().map(|column| cell(values[*column])).collect();
        let _ = writeln!(out, "| {label} | {} |", cells.join(" | "));
    }
    out
}

fn need(run: &Run) -> String {
    let columns = [
        "blocks",
        "bytes",
        "compressed, zstd 3",
        "zstd 19",
        "warm run, ms",
        "memory of the mount's group of 64 MiB, MiB",
    ];
    let rows = Program::ALL.map(Program::name).map(|name| {
        let case = format!("need-{name}");
        let value = |system, metric: Metric| run.value(&case, system, metric.name);
        let capped = format!("{MEMORY_CAPPED}-{name}");
        let values = vec![
            value(KEEL, NEEDED_BLOCKS),
            value(KEEL, NEEDED_BYTES),
            value(BOUNDS[0], COMPRESSED_BYTES),
            value(BOUNDS[1], COMPRESSED_BYTES),
            value(EXT4, RUN_TIME),
            run.value(&capped, KEEL, GROUP_MEBIBYTES.name),
        ];
        (name.to_owned(), values)
    });
    without_empty("program", &columns, rows.into())
}

/// Systems of the table of starts, with their columns.
const STARTED: [(&str, &str); 8] = [
    (KEEL, "keel"),
    (BOUNDS[0], "bound"),
    (BOUNDS[1], "bound, zstd 19"),
    (READAHEAD, "readahead"),
    (SSHFS, "sshfs"),
    (EXT4, "ext4"),
    (CARD, "card"),
    (UNPREPARED, "keel, cold server"),
];

fn starts(run: &Run) -> String {
    let mut rows = Vec::new();
    for way in [
        "100-mbit-0-ms",
        "100-mbit-2-ms",
        "100-mbit-10-ms",
        "1000-mbit-0-ms",
        "1000-mbit-2-ms",
        "1000-mbit-10-ms",
    ] {
        for name in Program::ALL.map(Program::name) {
            let case = format!("{START}-{name}-{way}");
            let first = format!("{FIRST}-{name}-{way}");
            let values = STARTED.map(|(system, _)| run.value(&case, system, RUN_TIME.name));
            let first = run.value(&first, KEEL, RUN_TIME.name);
            let values: Vec<Option<f64>> = values.into_iter().chain([first]).collect();
            rows.push((format!("{name}, {}", way.replace('-', " ")), values));
        }
    }
    let columns = STARTED.map(|(_, column)| column);
    let columns = [&columns[..], &["keel, unlearned"]].concat();
    without_empty("start, ms", &columns, rows)
}

fn unread(run: &Run) -> String {
    let mut out = head(
        "program | same: unread | prefetched | varied: unread | prefetched | two at once: unread | \
         prefetched",
    );
    for name in Program::ALL.map(Program::name) {
        let shares = [UNREAD, UNREAD_VARIED, UNREAD_TOGETHER].map(|part| {
            let case = format!("{part}-{name}");
            [UNREAD_SHARE, HIT_SHARE].map(|metric| run.value(&case, KEEL, metric.name))
        });
        let shares = shares.as_flattened();
        if shares.iter().any(Option::is_some) {
            let cells: Vec<String> = shares
                .iter()
                .map(|share| share.map_or_else(|| cell(None), |share| format!("{share:.3}")))
                .collect();
            let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
        }
    }
    out
}

fn again(run: &Run) -> String {
    let mut out = head("program, ms | warm: keel | ext4 | offline: keel | ext4");
    for name in Program::ALL.map(Program::name) {
        let value = |part, system| run.value(&format!("{part}-{name}"), system, RUN_TIME.name);
        let values = [
            value(WARM, KEEL),
            value(WARM, EXT4),
            value(OFFLINE, KEEL),
            value(OFFLINE, EXT4),
        ];
        if values.iter().any(Option::is_some) {
            let _ = writeln!(out, "| {name} | {} |", values.map(cell).join(" | "));
        }
    }
    out
}

fn losses(run: &Run) -> String {
    let mut out = head(
        "packets lost | program | keel, times | a copy, times | keel ÷ copy | copies ÷ copies, 95 % | \
         keel, ms more | a copy, ms more",
    );
    for percent in LOSSES_PERCENT {
        for name in Program::ALL.map(Program::name) {
            let case = format!("{LOSS}-{name}-{percent}");
            let of_both = |metric: Metric| {
                [KEEL, TCP_COPY].map(|system| run.value(&case, system, metric.name))
            };
            let times = of_both(SLOWDOWN);
            if times.iter().all(Option::is_none) {
                continue;
            }
            let ratio = run.list("ratios").iter().find(|row| {
                row["case"] == case.as_str()
                    && row["peer"] == TCP_COPY
                    && row["metric"] == SLOWDOWN.name
            });
            let judged = ["ratio", "goal"].map(|key| ratio.and_then(|row| row[key].as_f64()));
            let cells: Vec<String> = times
                .into_iter()
                .chain(judged)
                .chain(of_both(ADDED))
                .map(cell)
                .collect();
            let _ = writeln!(out, "| {percent} % | {name} | {} |", cells.join(" | "));
        }
    }
    out
}

fn table_1(run: &Run) -> String {
    let mut out = head(
        "one page, µs | card: kernel | its limit | all | sshfs: network | all else | all | \
         keel: kernel, FUSE | programs, TLS | server's store | network | all",
    );
    for name in Program::ALL.map(Program::name) {
        let case = format!("{TABLE_1}-{name}");
        let mut cells = Vec::new();
        for (system, parts) in PARTS {
            let all = run.value(&case, system, PART_TIME.name);
            for part in &parts[1..] {
                let us = run.value(&case, part, PART_TIME.name);
                // Medians of rounds do not add up exactly.
                let share = us.zip(all).map(|(us, all)| us / all * 100.0);
                cells.push(match us.zip(share) {
                    Some((us, share)) => format!("{} ({share:.0} %)", number(us)),
                    None => cell(None),
                });
            }
            cells.push(cell(all));
        }
        if run.value(&case, KEEL, PART_TIME.name).is_some() {
            let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
        }
    }
    out
}

fn table_2(run: &Run) -> String {
    let mut out =
        head("program | total | needed | pre-read | N/T | N/P | P/T | requests | blocks each");
    for name in Program::ALL.map(Program::name) {
        let case = format!("{TABLE_2}-{name}");
        let value = |metric: Metric| run.value(&case, READAHEAD, metric.name);
        if let (Some(total), Some(needed), Some(read)) = (
            value(TOTAL_BLOCKS),
            value(NEEDED_BLOCKS),
            value(PRE_READ_BLOCKS),
        ) {
            let share = |part: f64, of: f64| format!("{:.0} %", part / of * 100.0);
            let requests = value(READS);
            let _ = writeln!(
                out,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                number(total),
                number(needed),
                number(read),
                share(needed, total),
                share(needed, read),
                share(read, total),
                cell(requests),
                cell(requests.map(|requests| read / requests)),
            );
        }
    }
    out
}

fn by_program(run: &Run, part: &str, systems: &[&str], metric: Metric) -> String {
    let corner = format!("{}, {}", metric.name.replace('_', " "), metric.unit);
    let rows = Program::ALL.map(Program::name).map(|name| {
        let case = format!("{part}-{name}");
        let value = |system: &&str| run.value(&case, system, metric.name);
        let values: Vec<Option<f64>> = systems.iter().map(value).collect();
        (name.to_owned(), values)
    });
    without_empty(&corner, systems, rows.into())
}

fn wired(run: &Run) -> String {
    let systems = [KEEL, READAHEAD, SSHFS, CARD, EXT4];
    let mut out = String::new();
    for metric in [PAGE_TIME, RUN_TIME] {
        let corner = format!("{}, {}", metric.name.replace('_', " "), metric.unit);
        let rows = Program::ALL.map(Program::name).map(|name| {
            let case = format!("{FIGURE_8}-{name}-{}", WIRED.name());
            let values = systems.map(|system| run.value(&case, system, metric.name));
            (name.to_owned(), values.to_vec())
        });
        let table = without_empty(&corner, &systems, rows.into());
        let _ = writeln!(out, "{table}");
    }
    out
}

/// Returns links to the drawings in the folder of the reports. A drawing of figure 7c may be left over from other rows.
fn drawings(folder: &Path, has_arms: bool) -> String {
    let mut out = String::new();
    for name in [
        "figure-1a",
        "figure-1b",
        "figure-7a",
        "figure-7b",
        FIGURE_7C,
        "figure-8",
        "figure-9",
        "figure-10",
        "figure-11",
        "modes",
    ] {
        let is_shown = name != FIGURE_7C || has_arms;
        if is_shown && folder.join(format!("{name}.png")).is_file() {
            let _ = writeln!(out, "[![{name}](stream/{name}.png)](stream/{name}.svg)\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_one_and_goals_are_counted() {
        let folder =
            std::env::temp_dir().join(format!("keel-bench-stream-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let row = |case: &str, met: bool| {
            json!({"case": case, "system": "keel", "metric": "round_trips", "value": 3.0,
                   "goal": 5.0, "met": met})
        };
        for (name, rows) in [
            ("goals-1", json!([row("a", true)])),
            ("goals-2", json!([row("a", false), row("b", false)])),
        ] {
            let report = json!({"rows": rows, "ratios": [], "missing": ["x"]});
            std::fs::write(folder.join(format!("{name}.json")), report.to_string()).unwrap();
        }
        let run = pieces(&folder, "goals").unwrap().unwrap();
        let mut cold = row("start-a", false);
        cold["system"] = json!(UNPREPARED);
        cold[WHY] = json!("It is cold.");
        let cold = Run {
            report: json!({"rows": [cold]}),
        };
        let table = goals(&run, &cold);
        assert!(
            table.contains("| a | round trips | 3 | | at most 5 | met |"),
            "{table}"
        );
        assert!(
            table.contains("| b | round trips | 3 | | at most 5 | **missed** |"),
            "{table}"
        );
        assert!(
            table.contains(
                "| start-a, cold server | round trips | 3 | | at most 5 | **missed**: It is cold. |"
            ),
            "{table}"
        );
        assert!(table.ends_with("1 of 3 met.\n"), "{table}");
        assert_eq!(run.list("missing").len(), 1);
        assert!(pieces(&folder, "paper").unwrap().is_none());
        for name in [FIGURE_7C, FIGURE_8] {
            std::fs::write(folder.join(format!("{name}.png")), "").unwrap();
        }
        assert!(drawings(&folder, true).contains(FIGURE_7C));
        let without = drawings(&folder, false);
        assert!(without.contains(FIGURE_8) && !without.contains(FIGURE_7C));
        let promises = summary(&run, &cold);
        assert!(
            promises.contains("| round trips in a learned start | | | | | not measured |"),
            "{promises}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_column_is_shown_when_a_report_has_a_figure_of_it() {
        let row = |case: &str, system: &str, metric: Metric, value: f64| {
            let metric = metric.name;
            json!({"case": case, "system": system, "metric": metric, "value": value})
        };
        let run = |rows: &[Value]| Run {
            report: json!({"rows": rows}),
        };
        let start = "start-perl-100-mbit-2-ms";
        let mut rows = vec![
            row(start, KEEL, RUN_TIME, 119.0),
            row("need-perl", EXT4, RUN_TIME, 12.0),
            row("modes-perl", "keel-pool-256", RUN_TIME, 128.0),
        ];
        let modes = WAYS_OF_OURS.map(|way| way.system);
        let tables = |rows: &[Value]| {
            let run = run(rows);
            [
                starts(&run),
                need(&run),
                by_program(&run, MODES, &modes, RUN_TIME),
            ]
        };
        let [starts, need, modes] = tables(&rows);
        assert_eq!(
            starts,
            "| start, ms | keel |\n|---|---|\n| perl, 100 mbit 2 ms | 119 |\n"
        );
        assert_eq!(
            need,
            "| program | warm run, ms |\n|---|---|\n| perl | 12 |\n"
        );
        assert_eq!(
            modes,
            "| run time, ms | keel-pool-256 |\n|---|---|\n| perl | 128 |\n"
        );
        rows.extend([
            row(start, UNPREPARED, RUN_TIME, 150.0),
            row("memory-64-mib-perl", KEEL, GROUP_MEBIBYTES, 6.0),
            row("modes-perl", "keel-pool-filled", RUN_TIME, 127.0),
        ]);
        let [starts, need, modes] = tables(&rows);
        assert!(
            starts.contains("| keel | keel, cold server |") && starts.contains("| 119 | 150 |"),
            "{starts}"
        );
        assert!(
            need.contains("64 MiB") && need.contains("| perl | 12 | 6 |"),
            "{need}"
        );
        assert!(
            modes.contains("| keel-pool-filled |") && modes.contains("| 128 | 127 |"),
            "{modes}"
        );
    }
}
