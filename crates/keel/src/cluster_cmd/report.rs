//! `keel cluster report`: labelled results side by side, in tables, comma-separated values and drawings.

use super::power_table::{self, power_json};
use super::result_file::{carrier, read};
use super::thesis;
use crate::error::CliError;
use crate::output::Output;
use crate::temporary::Written;
use clap::Args;
use cluster::compare::{Cell, Comparison, Key, LabelledPower, Verdict, power_csv, power_rows};
use cluster::link::LinkCurve;
use cluster::plot::drawings;
use cluster::results::{Benchmark, Known, ResultFile, Row, Transport};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel cluster report fedora.jsonl clear.jsonl yocto.jsonl\n  \
    keel cluster report one.jsonl --json\n  \
    keel cluster report a.jsonl b.jsonl --csv out.csv --plots plots\n  \
    keel cluster report --thesis b1.jsonl b2.jsonl --machine nuc.jsonl --plots thesis\n\n\
    Ratios are times ÷ those of the first file. `better` and `worse` mean that the whole interval lies on that\n\
    side of 1.")]
pub(crate) struct ReportArgs {
    /// Result files; the others are compared with the first
    #[arg(value_name = "FILE", required_unless_present = "thesis")]
    files: Vec<PathBuf>,
    /// Print the thesis's efficiency figures, from its power tables and from the files
    #[arg(long)]
    thesis: bool,
    /// Result file of a larger machine to compare the boards with; may be repeated. Unmeasured watts are those of the
    /// thesis's NUC
    #[arg(long, value_name = "FILE", requires = "thesis")]
    machine: Vec<PathBuf>,
    /// File for the cells, as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "thesis")]
    csv: Option<PathBuf>,
    /// File for the power of each benchmark, as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "thesis")]
    power_csv: Option<PathBuf>,
    /// Folder for a plot of each benchmark, as SVG; with --thesis for each figure, as SVG and CSV. Plots that are there
    /// are replaced
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &ReportArgs) -> Result<u8, CliError> {
    let read_all = |paths: &[PathBuf]| {
        paths
            .iter()
            .map(|path| read(path))
            .collect::<Result<Vec<_>, _>>()
    };
    let files = read_all(&arguments.files)?;
    if arguments.thesis {
        return thesis::run(
            arguments.plots.as_deref(),
            arguments.json,
            &files,
            &read_all(&arguments.machine)?,
        );
    }
    let comparison = Comparison::new(&files)
        .map_err(|error| CliError::failure("keel cluster report", error, "name each run once"))?;
    let power = power_rows(&files);
    let tables = [
        (&arguments.csv, comparison.csv()),
        (&arguments.power_csv, power_csv(&power)),
    ];
    // An existing file is not overwritten: it may be one of the results. If anything fails, no table is left behind.
    let mut files_of_tables = Vec::new();
    for (path, text) in &tables {
        if let Some(path) = path {
            files_of_tables.push((Written::create(path)?, text));
        }
    }
    let (drawn, replaced) = match &arguments.plots {
        Some(folder) => draw(folder, &comparison)?,
        None => (Vec::new(), 0),
    };
    for (file, text) in files_of_tables {
        file.finish(text)?;
    }
    let mut out = Output::new();
    if arguments.json {
        let drawn = (drawn.as_slice(), replaced);
        out.json(&report_json(&files, &comparison, &power, drawn))?;
    } else {
        print_forks(&files, &mut out)?;
        print(&comparison, power.is_empty(), &mut out)?;
        print_power(&power, &mut out)?;
        for file in &files {
            print_link(file, &mut out)?;
        }
        print_written(arguments, drawn, replaced, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

/// Returns the whole report. `drawn`: the drawings, and how many of them were there before.
fn report_json(
    files: &[ResultFile],
    comparison: &Comparison,
    power: &[LabelledPower<'_>],
    (drawn, replaced): (&[String], usize),
) -> serde_json::Value {
    let rows: Vec<_> = comparison
        .rows
        .iter()
        .map(|(key, cells)| row_json(key, &comparison.labels, cells))
        .collect();
    json!({
        "labels": comparison.labels,
        "hosts": files.iter().flat_map(hosts_json).collect::<Vec<_>>(),
        "remarks": comparison.remarks,
        "rows": rows,
        "power": power.iter().map(labelled_json).collect::<Vec<_>>(),
        "links": files.iter().filter_map(link_json).collect::<Vec<_>>(),
        "plots": drawn,
        "plots_replaced": replaced,
    })
}

/// Prints the names of the tables and drawings that were written.
fn print_written(
    arguments: &ReportArgs,
    drawn: Vec<String>,
    replaced: usize,
    out: &mut Output,
) -> Result<(), CliError> {
    let tables = arguments.csv.iter().chain(&arguments.power_csv);
    let tables = tables.map(|path| path.display().to_string());
    for path in tables.chain(drawn) {
        out.line(format_args!("written: {path}"))?;
    }
    if replaced > 0 {
        out.line(format_args!(
            "replaced: {replaced} of the drawings were there before"
        ))?;
    }
    Ok(())
}

/// Draws into a folder. Returns the drawings, and how many of them were there before.
fn draw(folder: &Path, comparison: &Comparison) -> Result<(Vec<String>, usize), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder.display(), &error))?;
    let (mut drawn, mut replaced) = (Vec::new(), 0);
    for drawing in drawings(comparison) {
        let path = folder.join(format!("{}.svg", drawing.name));
        replaced += usize::from(path.exists());
        std::fs::write(&path, drawing.svg).map_err(|error| CliError::io(path.display(), &error))?;
        drawn.push(path.display().to_string());
    }
    Ok((drawn, replaced))
}

/// Returns the fit of a file that has round trips over a network.
fn fitted(file: &ResultFile) -> Option<Result<LinkCurve, cluster::Error>> {
    let has_link = file.rows.iter().any(|row| match row {
        Row::Benchmark(row) => {
            row.benchmark == Benchmark::Roundtrip && row.transport == Transport::Network
        }
        Row::Power(_) => false,
    });
    has_link.then(|| LinkCurve::fit(file))
}

fn link_json(file: &ResultFile) -> Option<serde_json::Value> {
    let label = &file.header.label;
    Some(match fitted(file)? {
        Ok(link) => {
            let segments = link.curve().segments().iter().map(|segment| {
                json!({
                    "from_bytes": segment.from_bytes,
                    "alpha_s": segment.alpha_s,
                    "beta_s_per_byte": segment.beta_s_per_byte,
                    "sizes": segment.points,
                    "error_median": segment.error_median,
                    "error_max": segment.error_max,
                })
            });
            json!({"label": label, "segments": segments.collect::<Vec<_>>()})
        }
        Err(error) => json!({"label": label, "why_none": error.to_string()}),
    })
}

fn print_link(file: &ResultFile, out: &mut Output) -> Result<(), CliError> {
    match fitted(file) {
        None => Ok(()),
        Some(Err(error)) => out.line(format_args!("\nno line of messages: {error}")),
        Some(Ok(link)) => {
            out.line(format_args!(
                "\n{}: time of a message, half of a round trip, fitted as alpha + bytes ÷ rate",
                file.header.label
            ))?;
            out.line("from bytes  alpha us     rate MB/s    error %, median and greatest")?;
            for segment in link.curve().segments() {
                let rate = match segment.beta_s_per_byte {
                    0.0 => "-".to_owned(),
                    beta => format!("{:.1}", 1e-6 / beta),
                };
                out.line(format_args!(
                    "{:<10}  {:<11.3}  {rate:<11}  {:.1}, {:.1} of {} sizes",
                    segment.from_bytes,
                    segment.alpha_s * 1e6,
                    segment.error_median * 100.0,
                    segment.error_max * 100.0,
                    segment.points
                ))?;
            }
            Ok(())
        }
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Alike => "alike",
    }
}

fn row_json(key: &Key, labels: &[String], cells: &[Option<Cell>]) -> serde_json::Value {
    let cells: Vec<_> = labels
        .iter()
        .zip(cells)
        .filter_map(|(label, cell)| {
            let cell = cell.as_ref()?;
            Some(json!({
                "label": label,
                "median_us": cell.median_us.value,
                "low_us": cell.median_us.interval.low,
                "high_us": cell.median_us.interval.high,
                "samples": cell.median_us.samples,
                "wide": cell.is_wide,
                "result": cell.result,
                "ratio": cell.ratio.map(|ratio| ratio.value),
                "ratio_low": cell.ratio.map(|ratio| ratio.interval.low),
                "ratio_high": cell.ratio.map(|ratio| ratio.interval.high),
                "verdict": cell.verdict.map(word),
            }))
        })
        .collect();
    json!({
        "benchmark": key.benchmark.name(),
        "transport": carrier(key.transport),
        "ranks": key.ranks,
        "bytes": key.bytes,
        "unit": key.benchmark.unit(),
        "cells": cells,
    })
}

/// Returns what else ran on each host of a run; the thesis compares systems by it.
fn hosts_json(file: &ResultFile) -> Vec<serde_json::Value> {
    let hosts = file.header.hosts.iter().map(|host| {
        json!({
            "label": file.header.label,
            "host": host.name,
            "system": host.system.value(),
            "forks_since_boot": host.forks_since_boot.value(),
        })
    });
    hosts.collect()
}

fn print_forks(files: &[ResultFile], out: &mut Output) -> Result<(), CliError> {
    out.line("processes that each host had started since its boot:")?;
    for file in files {
        let label: String = file.header.label.chars().take(24).collect();
        for host in &file.header.hosts {
            let forks = match &host.forks_since_boot {
                Known::Value(forks) => forks.to_string(),
                Known::Unavailable(why) => format!("not known: {why}"),
            };
            out.line(format_args!("  {label:<24}  {:<24}  {forks}", host.name))?;
        }
    }
    Ok(())
}

fn labelled_json(row: &LabelledPower<'_>) -> serde_json::Value {
    let mut value = power_json(row.power, row.best.as_ref());
    value["label"] = json!(row.label);
    value
}

fn print_power(rows: &[LabelledPower<'_>], out: &mut Output) -> Result<(), CliError> {
    if rows.is_empty() {
        return Ok(());
    }
    out.line(format_args!(
        "\n{:<11}  {:<16}  {:<12}  {:<24}  {}",
        "during",
        "label",
        "host",
        "source",
        power_table::HEADINGS
    ))?;
    for LabelledPower { label, power, best } in rows {
        let first = format!(
            "{:<11}  {label:<16}  {:<12}  {:<24}",
            power.during, power.host, power.source
        );
        power_table::print_row(&first, power, best.as_ref(), out)?;
    }
    power_table::print_note(rows.iter().map(|row| row.best.as_ref()), out)
}

fn print(comparison: &Comparison, has_no_power: bool, out: &mut Output) -> Result<(), CliError> {
    for remark in &comparison.remarks {
        let kind = match remark.contains(" is unknown in both, ") {
            true => "not known to be alike",
            false => "unlike",
        };
        out.line(format_args!("{kind}: {remark}"))?;
    }
    if comparison.rows.is_empty() {
        out.line(match has_no_power {
            true => "no benchmark has rows here",
            false => "no benchmark has rows here; the power is below",
        })?;
    }
    let mut kind = None;
    for (key, cells) in &comparison.rows {
        let this = (key.benchmark, key.transport, key.ranks);
        if kind.replace(this) != Some(this) {
            out.line(format_args!(
                "\n{}, {} ranks, {} [{}]",
                key.benchmark.name(),
                key.ranks,
                carrier(key.transport),
                key.benchmark.unit()
            ))?;
            let mut heading = format!("{:<9}", "bytes");
            for label in &comparison.labels {
                let label: String = label.chars().take(24).collect();
                heading += &format!("  {label:<36}");
            }
            out.line(heading.trim_end())?;
        }
        let mut line = format!("{:<9}", key.bytes);
        for cell in cells {
            line += &format!("  {:<36}", cell.as_ref().map_or("-".to_owned(), cell_text));
        }
        out.line(line.trim_end())?;
    }
    Ok(())
}

/// Returns the result and, in a comparison, the ratio of times with its interval.
fn cell_text(cell: &Cell) -> String {
    let result = format!(
        "{:.*}",
        if cell.result < 100.0 { 3 } else { 0 },
        cell.result
    );
    let wide = if cell.is_wide { " wide" } else { "" };
    match (cell.ratio, cell.verdict) {
        (Some(ratio), Some(verdict)) => format!(
            "{result} ({:.2}, {:.2} to {:.2}: {}){wide}",
            ratio.value,
            ratio.interval.low,
            ratio.interval.high,
            word(verdict)
        ),
        _ => result + wide,
    }
}
