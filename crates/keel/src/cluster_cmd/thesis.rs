//! `keel cluster report --thesis`: power parity, the hypothesis, and result ÷ watts of files.

use super::result_file::carrier;
use crate::error::CliError;
use crate::output::{Output, counted};
use cluster::results::{ResultFile, Transport};
use cluster::thesis::{CONCLUSIONS, Thesis, faults, unit};
use serde_json::json;
use std::path::Path;

/// Numbers of boards for which the needed share is shown.
const SHOWN_BOARDS: [u32; 2] = [3, 4];

pub(super) fn run(
    plots: Option<&Path>,
    is_json: bool,
    files: &[ResultFile],
    machines: &[ResultFile],
) -> Result<u8, CliError> {
    let thesis = Thesis::new(files, machines)
        .map_err(|error| CliError::failure("keel cluster report", error, "measure again"))?;
    let mut written = Vec::new();
    if let Some(folder) = plots {
        std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder.display(), &error))?;
        let mut write = |name: String, text: &str| write_file(folder, &name, text, &mut written);
        write("parity.csv".to_owned(), &thesis.parity_csv())?;
        if !thesis.efficiency.is_empty() {
            write("efficiency.csv".to_owned(), &thesis.efficiency_csv())?;
        }
        for figure in &thesis.figures {
            write(format!("{}.csv", figure.name), &figure.csv)?;
            write(format!("{}.svg", figure.name), &figure.svg)?;
        }
    }
    let mut out = Output::new();
    if is_json {
        out.json(&as_json(&thesis, &written))?;
    } else {
        print(&thesis, &written, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

fn write_file(
    folder: &Path,
    name: &str,
    text: &str,
    written: &mut Vec<String>,
) -> Result<(), CliError> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|error| CliError::io(path.display(), &error))?;
    written.push(path.display().to_string());
    Ok(())
}

fn as_json(thesis: &Thesis, written: &[String]) -> serde_json::Value {
    let parity = thesis.parity.rows.iter().map(|row| {
        json!({
            "benchmark": row.benchmark,
            "board_w": row.board_w,
            "machine_w": row.machine_w,
            "idle_ratio": row.idle_ratio,
            "boards_at_parity": row.boards,
            "boards_at_85_percent": row.boards_at(0.85),
            "share_for_3": row.share_needed(3),
            "share_for_4": row.share_needed(4),
        })
    });
    let faulty = thesis.parity.faulty.iter().map(|(table, row, _)| {
        let table = if *table == 0 { "5.6" } else { "5.7" };
        json!({"benchmark": row.benchmark, "table": table, "average_w": row.average_w, "why": faults(row)})
    });
    let efficiency = thesis.efficiency.iter().map(|row| {
        json!({
            "label": row.label,
            "kind": if row.is_machine { "machine" } else { "boards" },
            "benchmark": row.benchmark.name(),
            "transport": carrier(row.transport),
            "boards": row.boards,
            "ranks": row.ranks,
            "bytes": row.bytes,
            "result": row.result,
            "unit": unit(row.benchmark),
            "watts": row.watts.as_ref().ok(),
            "watts_from": row.watts_from,
            "why_none": row.watts.as_ref().err(),
            "result_per_watt": row.per_watt(),
            "result_per_joule": row.per_joule(),
        })
    });
    let conclusions = CONCLUSIONS
        .iter()
        .map(|one| json!({"follows": one.follows, "text": one.text, "shown_by": one.shown_by}));
    json!({
        "conclusions": conclusions.collect::<Vec<_>>(),
        "parity": parity.collect::<Vec<_>>(),
        "not_used": faulty.collect::<Vec<_>>(),
        "efficiency": efficiency.collect::<Vec<_>>(),
        "written": written,
    })
}

/// Prints how many boards one machine stands for, and the rows that are not used.
fn print_parity(thesis: &Thesis, out: &mut Output) -> Result<(), CliError> {
    out.line(
        "benchmark     board W  NUC W    idle ÷ busy  boards at parity  at 85 %  % for 3  % for 4",
    )?;
    for row in &thesis.parity.rows {
        let [three, four] = SHOWN_BOARDS.map(|boards| 100.0 * row.share_needed(boards));
        out.line(format_args!(
            "{:<12}  {:<7.3}  {:<7.3}  {:<11.3}  {:<16.2}  {:<7.2}  {three:<7.0}  {four:.0}",
            row.benchmark,
            row.board_w,
            row.machine_w,
            row.idle_ratio,
            row.boards,
            row.boards_at(0.85)
        ))?;
    }
    for (table, row, _) in &thesis.parity.faulty {
        let table = if *table == 0 { "5.6" } else { "5.7" };
        out.line(format_args!(
            "not used: {} of table {table}, {} W: {}",
            row.benchmark,
            row.average_w,
            faults(row)
        ))?;
    }
    Ok(())
}

fn print(thesis: &Thesis, written: &[String], out: &mut Output) -> Result<(), CliError> {
    print_parity(thesis, out)?;
    out.line("\nconclusions: whether they follow from the tables, and the figure or table that shows it (--plots):")?;
    for one in CONCLUSIONS {
        let word = if one.follows { "yes" } else { "no" };
        out.line(format_args!("{word:<3}  {} [{}]", one.text, one.shown_by))?;
    }
    let mut kind = None;
    for row in &thesis.efficiency {
        let this = (row.is_machine, &row.label, row.benchmark, row.transport);
        if kind.replace(this) != Some(this) {
            let watts = match &row.watts {
                Ok(watts) => format!("{watts:.3} W ({})", row.watts_from),
                Err(why) => format!("no power: {why}"),
            };
            let (kind, host) = match row.is_machine {
                true => ("machine ", "host"),
                false => ("", "board"),
            };
            let through = match row.transport {
                Transport::Memory => ", through memory",
                Transport::Network => "",
            };
            out.line(format_args!(
                "\n{kind}{}, {}: {}, {}{through}, {watts}",
                row.label,
                row.benchmark.name(),
                counted(row.boards.into(), host),
                counted(row.ranks.into(), "rank")
            ))?;
        }
        let per_watt = row
            .per_watt()
            .map_or("-".to_owned(), |value| format!("{value:.1}"));
        out.line(format_args!(
            "{:<9}  {per_watt} {} per W",
            row.bytes,
            unit(row.benchmark)
        ))?;
    }
    for path in written {
        out.line(format_args!("written: {path}"))?;
    }
    Ok(())
}
