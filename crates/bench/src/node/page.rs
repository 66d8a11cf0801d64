//! The result page of the node: regenerates the text between its marks from a report of `keel-bench node`; the text
//! around the marks stays.

use std::fmt::Write;
use std::path::PathBuf;

use super::cases::{
    CPU_PER_READING, CPU_SHARE, FIRST_ACKNOWLEDGED, FLUSHES, RATE, RATE_ACKNOWLEDGED, RESIDENT_MAX,
    STEADY, WRITTEN,
};
use super::forward::{FOLLOWED, FORWARD_HTTP, FORWARD_MQTT, FORWARDED, PLAIN};
use super::live::{self, CPU_OF_PAGE, LIVE};
use super::offline;
use super::times;
use super::wear::WEAR;
use super::whole::{CPU_OF, MEMORY_OF, WHOLE_NODE};
use crate::figures::OURS;
use crate::page::{Run, cell, fill, head, list, number, side, text, verdict};

/// `keel-bench node-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Report of `keel-bench node --json`.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Systems in the table of figures.
const SYSTEMS: [&str; 4] = ["keel", "sqlite", "sqlite-indexed", "sqlite-stock"];

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let run = Run::read(&options.json)?;
    let parts = [
        ("run", run_text(&run)),
        ("goals", goals(&run)),
        ("figures", figures(&run)),
        ("ratios", ratios(&run)),
        ("outwards", outwards(&run)),
        ("notes", list(run.notes().iter().map(text))),
        ("missing", run.missing()),
    ];
    fill(&options.page, &parts)
}

fn run_text(run: &Run) -> String {
    let method = &run.report["method"];
    format!(
        "{}; on {}. {} rounds, the systems taking turns.{}\n",
        run.origin(),
        text(&method["file_system"]),
        method["rounds_each"],
        run.load(),
    )
}

fn case_words(case: &str) -> &str {
    match case {
        STEADY => "260 readings/s",
        RATE => "as fast as acknowledged",
        WEAR => "storage alone, every 65 readings",
        times::NODE => "storage alone, times by the node's clock",
        times::MS => "storage alone, times of whole ms",
        times::US => "storage alone, times of whole µs",
        times::NS => "storage alone, times in ns",
        FORWARD_MQTT => "forwarding over MQTT",
        FORWARD_HTTP => "forwarding over HTTP",
        LIVE => "live page, 1,024 sensors",
        WHOLE_NODE => "whole node with page open, 1,024 sensors",
        other if other.starts_with("offline") => "a day offline",
        other if other.starts_with("restart") => "start after SIGKILL, 10 million readings",
        other => other,
    }
}

fn metric_words(metric: &str) -> String {
    let known = [
        (CPU_SHARE.name, "CPU, % of one core"),
        (RESIDENT_MAX.name, "most resident, MiB"),
        (RATE_ACKNOWLEDGED.name, "acknowledged readings per second"),
        (CPU_PER_READING.name, "CPU per reading, µs"),
        (WRITTEN.name, "bytes at the device per reading"),
        (FLUSHES.name, "flushes per reading"),
        (FIRST_ACKNOWLEDGED.name, "first acknowledged, s"),
        (times::LOG_BYTES.name, "bytes of log per reading"),
        (times::CPU.name, "CPU of the storage per reading, µs"),
        (FORWARDED.name, "readings acknowledged per second"),
        (
            FOLLOWED.name,
            "readings of the log followed per second, without sending them",
        ),
        (offline::LOST.name, "readings lost"),
        (offline::TWICE.name, "readings sent twice"),
        (offline::DRAINED.name, "backlog, readings per second"),
        (
            offline::MEDIAN.name,
            "put to flash while offline, median, ms",
        ),
        (
            offline::MEDIAN_RATIO.name,
            "put to flash while the backlog goes, median, divided by that while offline",
        ),
        (offline::P99.name, "put to flash while offline, p99, ms"),
        (
            offline::P99_RATIO.name,
            "put to flash while the backlog goes, p99, divided by that while offline",
        ),
        (CPU_OF_PAGE.name, "CPU that the page adds, % of one core"),
        (live::MESSAGES.name, "messages of the stream per second"),
        (live::STREAM_BYTES.name, "bytes of the stream per second"),
        (CPU_OF[0].name, "CPU of the node's process, %"),
        (CPU_OF[1].name, "CPU of its mount, %"),
        (CPU_OF[2].name, "CPU of its task, %"),
        (CPU_OF[3].name, "CPU of its jobs, %"),
        (MEMORY_OF[0].name, "most resident, the node's process, MiB"),
        (MEMORY_OF[1].name, "most resident, its mount, MiB"),
        (MEMORY_OF[2].name, "most resident, its task, MiB"),
        (MEMORY_OF[3].name, "most resident, its jobs, MiB"),
    ];
    let found = known.iter().find(|(name, _)| *name == metric);
    found.map_or_else(
        || metric.replace('_', " "),
        |(_, words)| (*words).to_owned(),
    )
}

/// Formats a figure; small ones, such as flushes per reading, get enough significant digits.
fn figure(value: f64) -> String {
    if value.abs() < 0.1 && value != 0.0 {
        format!("{value:.4}")
    } else {
        number(value)
    }
}

fn goals(run: &Run) -> String {
    let mut out = head("case | figure | keel | goal |");
    let rows = run.list("rows").iter().map(|row| (row, "value", None));
    let ratios = run.list("ratios").iter();
    let ratios = ratios.map(|row| (row, "ratio", Some(text(&row["peer"]))));
    for (row, value, peer) in rows.chain(ratios) {
        let (Some(goal), Some(value)) = (row["goal"].as_f64(), row[value].as_f64()) else {
            continue;
        };
        let divided = peer.map_or_else(String::new, |peer| format!(", divided by {peer}'s"));
        let _ = writeln!(
            out,
            "| {} | {}{divided} | {} | {} {} | {} |",
            case_words(text(&row["case"])),
            metric_words(text(&row["metric"])),
            figure(value),
            side(row),
            number(goal),
            verdict(row),
        );
    }
    out
}

fn figures(run: &Run) -> String {
    let mut out = format!(
        "| case | figure | {} |\n|---|---|---|---|---|---|\n",
        SYSTEMS.join(" | ")
    );
    let restart = run.with(FIRST_ACKNOWLEDGED.name);
    let restart = restart.first().map_or("restart", |(case, _)| case);
    let rows = [
        (
            STEADY,
            &[
                CPU_SHARE.name,
                RESIDENT_MAX.name,
                WRITTEN.name,
                FLUSHES.name,
            ][..],
        ),
        (RATE, &[RATE_ACKNOWLEDGED.name, CPU_PER_READING.name]),
        (WEAR, &[WRITTEN.name, FLUSHES.name]),
        (times::NODE, &[times::LOG_BYTES.name, times::CPU.name]),
        (times::MS, &[times::LOG_BYTES.name, times::CPU.name]),
        (times::US, &[times::LOG_BYTES.name, times::CPU.name]),
        (times::NS, &[times::LOG_BYTES.name, times::CPU.name]),
        (restart, &[FIRST_ACKNOWLEDGED.name]),
    ];
    figure_lines(run, &rows, &SYSTEMS, &mut out);
    out
}

/// Writes a line for each case and metric, with a cell for each system.
fn figure_lines(run: &Run, rows: &[(&str, &[&str])], systems: &[&str], out: &mut String) {
    for (case, metrics) in rows {
        for metric in *metrics {
            let shown = |system: &&str| {
                let value = run.value(case, system, metric);
                value.map_or_else(|| "–".to_owned(), figure)
            };
            let cells: Vec<String> = systems.iter().map(shown).collect();
            let (case, metric) = (case_words(case), metric_words(metric));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "| {case} | {metric} | {} |", cells.join(" | "));
        }
    }
}

fn ratios(run: &Run) -> String {
    let peers = &SYSTEMS[1..];
    let mut out = format!(
        "| keel divided by | {} |\n|---|---|---|---|\n",
        peers.join(" | ")
    );
    for (case, metric) in [
        (RATE, CPU_PER_READING.name),
        (WEAR, WRITTEN.name),
        (WEAR, FLUSHES.name),
    ] {
        let cells: Vec<String> = peers
            .iter()
            .map(|peer| cell(run.ratio(case, peer, metric)))
            .collect();
        let _ = writeln!(out, "| {} | {} |", metric_words(metric), cells.join(" | "));
    }
    out
}

/// Outgoing data of a node: to the upstream, and to a live page.
fn outwards(run: &Run) -> String {
    let mut out = format!("| case | figure | keel | {PLAIN} |\n|---|---|---|---|\n");
    let offline = run.with(offline::LOST.name);
    let offline = offline.first().map_or("offline", |(case, _)| case);
    let rows = [
        (FORWARD_MQTT, &[FORWARDED.name][..]),
        (FORWARD_HTTP, &[FORWARDED.name, FOLLOWED.name]),
        (
            offline,
            &[
                offline::LOST.name,
                offline::TWICE.name,
                offline::DRAINED.name,
                offline::MEDIAN.name,
                offline::MEDIAN_RATIO.name,
                offline::P99.name,
                offline::P99_RATIO.name,
            ],
        ),
        (
            LIVE,
            &[
                CPU_SHARE.name,
                CPU_OF_PAGE.name,
                RESIDENT_MAX.name,
                live::MESSAGES.name,
                live::STREAM_BYTES.name,
            ],
        ),
        (
            WHOLE_NODE,
            &[
                CPU_SHARE.name,
                CPU_OF[0].name,
                CPU_OF[1].name,
                CPU_OF[2].name,
                CPU_OF[3].name,
                RESIDENT_MAX.name,
                MEMORY_OF[0].name,
                MEMORY_OF[1].name,
                MEMORY_OF[2].name,
                MEMORY_OF[3].name,
                live::MESSAGES.name,
                live::STREAM_BYTES.name,
            ],
        ),
    ];
    figure_lines(run, &rows, &[OURS, PLAIN], &mut out);
    out
}
