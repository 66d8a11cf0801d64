//! The page of `keel doctor --report`: the findings and the figures of the short benches, for other readers.
//!
//! **Invariants:** it contains only texts of this file and figures. From this machine it copies only the names of
//! processor, board, kernel, file system and card: no host, address, path or serial number.

use super::card::Card;
use super::{Finding, look};
use crate::bench_cmd;
use crate::error::CliError;
use crate::node::image::with_suffix;
use crate::progress::Progress;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The benches, all of them with `--quick`.
const BENCHES: [&str; 3] = ["flash", "mem", "node"];

/// Bytes read of a bench's output, at most.
const FIGURES_BYTES_MAX: u64 = 4 << 20;

/// Characters of a name in the figures, at most.
const NAME_LETTERS_MAX: usize = 60;

/// One bench: its figures, or why there are none.
struct Bench {
    name: &'static str,
    figures: Result<Value, String>,
}

/// Refuses in advance a page that could not be written at the end.
pub(super) fn refuse(report: &Path) -> Result<(), CliError> {
    let extension = report.extension().and_then(|extension| extension.to_str());
    if !matches!(extension, Some("md" | "html")) {
        let wrong = "is neither a .md nor a .html";
        return Err(CliError::usage(
            report.display(),
            wrong,
            "end its name in .md or .html",
        ));
    }
    if report.exists() {
        let wrong = "is there already";
        return Err(CliError::failure(
            report.display(),
            wrong,
            "choose another name, or remove it",
        ));
    }
    Ok(())
}

/// Runs the benches and writes the page.
pub(super) fn write(
    report: &Path,
    dir: &Path,
    findings: &[Finding],
    card: &Card,
) -> Result<(), CliError> {
    let benches = BENCHES.map(|name| Bench {
        name,
        figures: run(name, dir),
    });
    let page = Page {
        findings,
        card: card.json(),
        machine: look::machine(),
        benches: &benches,
    };
    let markdown = page.markdown();
    let text = match report.extension().and_then(|extension| extension.to_str()) {
        Some("html") => html(&markdown),
        _ => markdown,
    };
    let draft = with_suffix(report, ".part");
    let written = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, report));
    written.map_err(|error| {
        std::fs::remove_file(&draft).ok();
        CliError::io(report.display(), &error)
    })
}

fn run(name: &str, dir: &Path) -> Result<Value, String> {
    let progress = Progress::start(format!("keel bench {name} --quick"));
    let file = std::env::temp_dir().join(format!("keel-doctor-{}-{name}.json", std::process::id()));
    let ended = Command::new(bench_cmd::program())
        .args([name, "--quick", "--dir"])
        .arg(dir)
        .arg("--json")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    drop(progress);
    let read = std::fs::metadata(&file).is_ok_and(|found| found.len() <= FIGURES_BYTES_MAX);
    let text = read.then(|| std::fs::read_to_string(&file).ok()).flatten();
    std::fs::remove_file(&file).ok();
    match ended {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("keel-bench is neither beside keel nor in PATH".to_owned())
        }
        Err(error) => Err(crate::error::describe(&error)),
        Ok(status) => {
            let figures = text.and_then(|text| serde_json::from_str(&text).ok());
            // Omit the bench's messages: they may name paths. The user can run the bench to see them.
            figures.ok_or_else(|| {
                let code = status.code().map_or_else(
                    || "a signal".to_owned(),
                    |code| format!("exit status {code}"),
                );
                format!("it ended with {code}; `keel bench {name} --quick` says why")
            })
        }
    }
}

struct Page<'a> {
    findings: &'a [Finding],
    card: Value,
    machine: Value,
    benches: &'a [Bench],
}

/// Returns a name of the machine or of a figure as a table cell: one line, of limited length, without mark-up.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.3}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    let letters = text.chars().filter(|letter| !letter.is_control());
    let plain = letters.map(|letter| match letter {
        '|' | '<' | '>' | '&' | '`' | '[' | ']' | '\\' | '/' | '@' => ' ',
        letter => letter,
    });
    plain.take(NAME_LETTERS_MAX).collect()
}

impl Page<'_> {
    fn markdown(&self) -> String {
        let mut page = String::from("# What a machine permits a node, and what it measures\n\n");
        page.push_str("Written by `keel doctor --report`. It names no host, address, path or serial number.\n\n");
        page.push_str("| machine | |\n|---|---|\n");
        for (name, value) in self.machine.as_object().into_iter().flatten() {
            writeln!(page, "| {name} | {} |", cell(value)).ok();
        }
        for (name, value) in self.card.as_object().into_iter().flatten() {
            writeln!(page, "| card: {name} | {} |", cell(value)).ok();
        }
        page.push_str("\n## Permitted\n\n| verdict | subject | what is so |\n|---|---|---|\n");
        for finding in self.findings {
            let text = finding.text.replace('|', " ");
            writeln!(
                page,
                "| {} | {} | {text} |",
                finding.verdict.name(),
                finding.subject
            )
            .ok();
        }
        for bench in self.benches {
            writeln!(page, "\n## keel bench {} --quick\n", bench.name).ok();
            match &bench.figures {
                Err(why) => writeln!(page, "Not measured: {why}."),
                Ok(figures) => writeln!(page, "{}", table(figures)),
            }
            .ok();
        }
        page
    }
}

/// Returns the rows and ratios of one bench.
fn table(figures: &Value) -> String {
    let list = |name: &str| figures[name].as_array().cloned().unwrap_or_default();
    let mut text =
        String::from("| case | system | metric | value | unit |\n|---|---|---|---:|---|\n");
    for row in list("rows") {
        let [case, system, metric, value, unit] =
            ["case", "system", "metric", "value", "unit"].map(|name| cell(&row[name]));
        writeln!(text, "| {case} | {system} | {metric} | {value} | {unit} |").ok();
    }
    text.push_str("\n| case | metric | peer | ours / peer |\n|---|---|---|---:|\n");
    for row in list("ratios") {
        let [case, metric, peer, ratio] =
            ["case", "metric", "peer", "ratio"].map(|name| cell(&row[name]));
        writeln!(text, "| {case} | {metric} | {peer} | {ratio} |").ok();
    }
    text
}

/// Returns the page for browsers; it converts only the mark-up that is used above.
fn html(markdown: &str) -> String {
    let escaped = |text: &str| {
        let text = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        text.replace('`', "")
    };
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>keel doctor</title>\n<style>body{font:15px \
         sans-serif;max-width:60em;margin:2em auto}table{border-collapse:collapse}td,th{border:1px solid #999;padding:\
         .2em .6em;text-align:left}</style>\n",
    );
    let mut in_table = false;
    for line in markdown.lines() {
        let is_row = line.starts_with('|');
        if in_table && !is_row {
            page.push_str("</table>\n");
        }
        if is_row && !in_table {
            page.push_str("<table>\n");
        }
        in_table = is_row;
        if line.starts_with("|---") || line.is_empty() {
        } else if is_row {
            let cells = line.trim_matches('|').split('|');
            let cells: String = cells
                .map(|cell| format!("<td>{}</td>", escaped(cell.trim())))
                .collect();
            writeln!(page, "<tr>{cells}</tr>").ok();
        } else if let Some(title) = line.strip_prefix("## ") {
            writeln!(page, "<h2>{}</h2>", escaped(title)).ok();
        } else if let Some(title) = line.strip_prefix("# ") {
            writeln!(page, "<h1>{}</h1>", escaped(title)).ok();
        } else {
            writeln!(page, "<p>{}</p>", escaped(line)).ok();
        }
    }
    if in_table {
        page.push_str("</table>\n");
    }
    page.push_str("</html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page() -> String {
        let findings = [Finding::missing("clock trust", "is a|b", "set it")];
        let figures = json!({"rows": [{"case": "append <b>", "system": "keel", "metric": "latency_p50", "unit": "us",
            "value": 12.5}],
            "ratios": [{"case": "append", "metric": "latency_p50", "peer": "/home/me/x", "ratio": 0.5}],
            "machine": {"cpu": "secret"}, "missing": ["/srv/there"], "method": {"dir": "/mnt/card"}});
        let benches = [
            Bench {
                name: "flash",
                figures: Ok(figures),
            },
            Bench {
                name: "mem",
                figures: Err("it ended with exit status 1".to_owned()),
            },
        ];
        Page {
            findings: &findings,
            card: json!({"kind": "mmc SC32G"}),
            machine: json!({"cpu": "ARM", "board": null}),
            benches: &benches,
        }
        .markdown()
    }

    #[test]
    fn the_page_has_figures_and_no_paths() {
        let page = page();
        for there in [
            "| cpu | ARM |",
            "| board | unknown |",
            "| card: kind | mmc SC32G |",
            "| missing | clock trust | is a b |",
            "| keel | latency_p50 | 12.500 | us |",
            "Not measured: it ended with exit status 1.",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        for absent in ["/home", "/srv", "/mnt", "secret", "<b>"] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
    }

    #[test]
    fn the_html_is_balanced() {
        let text = html(&page());
        for tag in ["table", "tr", "td", "h2", "html"] {
            let count = |what: &str| text.matches(what).count();
            let begun = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(begun, count(&format!("</{tag}>")), "{tag}: {text}");
        }
        assert!(!text.contains("|---"));
    }
}
