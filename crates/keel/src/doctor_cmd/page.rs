//! The page of `keel doctor --report`: the findings, the figures of the short benches, and frequencies and power
//! meanwhile, for other readers.
//!
//! **Invariants:** it contains only texts of this file and figures. From this machine it copies only the names of
//! processor, board, kernel, file system and card. It has no host, no address, no serial number, and no path but the
//! kernel's own.

use super::card::Card;
use super::finding::{Fact, Finding};
use super::observer::{Observed, Observer};
use super::speed::{self, Policy, Speeds};
use crate::bench_cmd;
use crate::error::CliError;
use cluster::power::Summary;
use cluster::results::Origin;
use command::progress::Progress;
use node::with_suffix;
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

/// Characters of a reason or of what a sensor covers, at most.
const WORDS_LETTERS_MAX: usize = 300;

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
    machine: &[Fact],
    card: &Card,
    mut observer: Observer,
) -> Result<(), CliError> {
    let benches = BENCHES.map(|name| Bench {
        name,
        figures: observer.during(&format!("keel bench {name} --quick"), || run(name, dir)),
    });
    let page = Page {
        findings,
        card: card.json(),
        device: &card.device,
        machine,
        benches: &benches,
        policies: &observer.policies,
        why_no_power: &observer.why_no_power,
        observed: &observer.observed,
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
    device: &'a [Fact],
    machine: &'a [Fact],
    benches: &'a [Bench],
    policies: &'a [Policy],
    /// Why there is no sensor of power, if there is none.
    why_no_power: &'a str,
    observed: &'a [Observed],
}

/// What the page says of all its figures.
const INDICATIVE: &str = "Every figure is from one short run: \"How long it was measured\" has the time of each. Short \
                          runs are indicative only. They show what to expect, and no rare event: a card's slowest \
                          writes, heat and lower clock rates come later. Other programs may have run beside them. \
                          `keel bench NAME` without `--quick` takes figures that can be compared.";

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
    let plain = words(&text).replace(['/', '@'], " ");
    plain.chars().take(NAME_LETTERS_MAX).collect()
}

/// Returns a reason in the same form; it may name a file of the kernel.
fn words(text: &str) -> String {
    let letters = text.chars().filter(|letter| !letter.is_control());
    let plain = letters.map(|letter| match letter {
        '|' | '<' | '>' | '&' | '`' | '[' | ']' | '\\' => ' ',
        letter => letter,
    });
    plain.take(WORDS_LETTERS_MAX).collect()
}

/// Returns rows with what is known, and why the rest is not.
fn rows(facts: &[Fact], before: &str) -> String {
    let row = |fact: &Fact| match &fact.value {
        Ok(value) => format!("| {before}{} | {} |\n", fact.name, cell(value)),
        Err(why) => format!("| {before}{} | unavailable: {} |\n", fact.name, words(why)),
    };
    facts.iter().map(row).collect()
}

impl Page<'_> {
    fn markdown(&self) -> String {
        let mut page = String::from("# What a machine permits a node, and what it measures\n\n");
        page.push_str(
            "Written by `keel doctor --report`. It names no host, no address, no serial number, and no path but the \
             kernel's own.\n\n",
        );
        writeln!(page, "{INDICATIVE}\n").ok();
        page.push_str("| machine | |\n|---|---|\n");
        page.push_str(&rows(self.machine, ""));
        for (name, value) in self.card.as_object().into_iter().flatten() {
            if !value.is_object() {
                writeln!(page, "| card: {name} | {} |", cell(value)).ok();
            }
        }
        page.push_str(&rows(self.device, "card: "));
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
        page.push_str("\n## How long it was measured\n\n| what | seconds |\n|---|---:|\n");
        for observed in self.observed {
            writeln!(page, "| {} | {:.1} |", observed.what, observed.seconds).ok();
        }
        page.push_str("\nAt rest, this command runs nothing itself.\n\n## Processor frequency\n\n");
        page.push_str(&self.frequencies());
        page.push_str("\n## Power\n\n");
        page.push_str(&self.power());
        for bench in self.benches {
            writeln!(page, "\n## keel bench {} --quick\n", bench.name).ok();
            match &bench.figures {
                Err(why) => writeln!(page, "Not measured: {why}."),
                Ok(figures) => writeln!(page, "{}\n\n{}", extent(figures), table(figures)),
            }
            .ok();
        }
        page
    }

    /// Returns what each policy permits, and its frequencies while something ran.
    fn frequencies(&self) -> String {
        if self.policies.is_empty() {
            return format!("Unavailable: {}.\n", speed::WHY_NONE);
        }
        let mut text = String::from(
            "| policy | processors | driver | governor | steps, MHz | hardware, MHz | permitted, MHz |\n\
             |---|---|---|---|---|---|---|\n",
        );
        let range = |range: Option<(u64, u64)>| match range {
            Some((least, most)) => format!("{} to {}", mhz(least), mhz(most)),
            None => "unavailable: the driver does not say".to_owned(),
        };
        for policy in self.policies {
            let cores: Vec<String> = policy.cores.iter().map(u32::to_string).collect();
            let steps: Vec<String> = policy.steps_khz.iter().map(|khz| mhz(*khz)).collect();
            let named = |name: &Option<String>| match name {
                Some(name) => cell(&Value::from(name.as_str())),
                None => "unavailable: the kernel does not say".to_owned(),
            };
            let cells = [
                words(&policy.name),
                cores.join(" "),
                named(&policy.driver),
                named(&policy.governor),
                match steps.is_empty() {
                    true => "unavailable: the driver lists none".to_owned(),
                    false => steps.join(" "),
                },
                range(policy.range_khz),
                range(policy.permitted_khz),
            ];
            writeln!(text, "| {} |", cells.join(" | ")).ok();
        }
        text.push_str(
            "\n| during | policy | before, MHz | least to most, MHz | reads | after, MHz | time at each, MHz |\n\
             |---|---|---:|---|---:|---:|---|\n",
        );
        for observed in self.observed {
            for speeds in &observed.speeds {
                let cells = [words(&speeds.policy), speeds_text(speeds)].join(" | ");
                writeln!(text, "| {} | {cells} |", observed.what).ok();
            }
        }
        text
    }

    /// Returns the power of each sensor while something ran.
    fn power(&self) -> String {
        if !self.why_no_power.is_empty() {
            return format!("Unavailable: {}.\n", words(self.why_no_power));
        }
        let mut text = String::from(
            "| during | sensor | covers | origin | average, W | least, W | most, W | energy, J | seconds | values |\n\
             |---|---|---|---|---:|---:|---:|---:|---:|---:|\n",
        );
        for observed in self.observed {
            for summary in &observed.power {
                writeln!(text, "| {} | {} |", observed.what, power_text(summary)).ok();
            }
        }
        text
    }
}

/// Returns a frequency in MHz.
fn mhz(khz: u64) -> String {
    match khz % 1000 {
        0 => (khz / 1000).to_string(),
        _ => format!("{:.3}", khz as f64 / 1e3),
    }
}

/// Returns the cells of frequencies while something ran.
fn speeds_text(speeds: &Speeds) -> String {
    let one = |khz: Option<u64>| khz.map_or_else(|| "unavailable".to_owned(), mhz);
    let range = match speeds.least_most {
        Some((least, most)) => format!("{} to {}", mhz(least), mhz(most)),
        None => "unavailable: scaling_cur_freq has no number".to_owned(),
    };
    let times = match &speeds.times {
        Ok(times) => {
            let time = |(khz, part): &(u64, f64)| format!("{}: {part:.1} %", mhz(*khz));
            times.iter().map(time).collect::<Vec<_>>().join(", ")
        }
        Err(why) => format!("unavailable: {why}"),
    };
    let (before, after) = (one(speeds.before), one(speeds.after));
    format!("{before} | {range} | {} | {after} | {times}", speeds.reads)
}

/// Returns the cells of one sensor while something ran. Without a value there are no figures: a zero would be taken for
/// one.
fn power_text(summary: &Summary) -> String {
    let (name, covers) = (words(&summary.source), words(&summary.covers));
    let origin = match &summary.origin {
        Origin::Measured => "measured".to_owned(),
        Origin::Modelled(after) => format!("modelled ({})", words(after)),
        Origin::Unavailable(why) => {
            return format!(
                "{name} | {covers} | unavailable: {} | | | | | |",
                words(why)
            );
        }
    };
    format!(
        "{name} | {covers} | {origin} | {:.3} | {:.3} | {:.3} | {:.3} | {:.1} | {}",
        summary.average_w,
        summary.minimum_w,
        summary.maximum_w,
        summary.energy_j,
        summary.seconds,
        summary.samples
    )
}

/// Returns how much a bench did: the numbers of its method.
fn extent(figures: &Value) -> String {
    let mut parts = Vec::new();
    for (name, value) in figures["method"].as_object().into_iter().flatten() {
        let rounds = value.as_array().filter(|_| name == "rounds");
        let rounds = rounds.map(|rounds| {
            let values = rounds.iter().filter_map(|round| round["values"].as_array());
            Value::from(values.map(Vec::len).max().unwrap_or(0))
        });
        // Texts may name a folder.
        let number = rounds.or_else(|| value.is_number().then(|| value.clone()));
        if let Some(number) = number {
            parts.push(format!(
                "{} {}",
                cell(&Value::from(name.as_str())),
                cell(&number)
            ));
        }
    }
    let parts = match parts.is_empty() {
        true => "it does not say".to_owned(),
        false => parts.join(", "),
    };
    format!("One short run of the bench, which is indicative only. How much it did: {parts}.")
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
    use cluster::results::Known;
    use serde_json::json;

    fn summary(source: &str, origin: Origin) -> Summary {
        Summary {
            source: source.to_owned(),
            covers: "the rail".to_owned(),
            origin,
            seconds: 5.0,
            samples: 11,
            gap_s_max: 0.5,
            without_s: 0.0,
            reasons: Vec::new(),
            remark: None,
            average_w: 4.5,
            maximum_w: 6.0,
            minimum_w: 3.0,
            energy_j: 22.5,
            idle_w: Known::Unavailable("no other phase".to_owned()),
        }
    }

    fn page() -> String {
        let findings = [Finding::missing("clock trust", "is a|b", "set it")];
        let figures = json!({"rows": [{"case": "append <b>", "system": "keel", "metric": "latency_p50", "unit": "us",
            "value": 12.5}],
            "ratios": [{"case": "append", "metric": "latency_p50", "peer": "/home/me/x", "ratio": 0.5}],
            "machine": {"cpu": "secret"}, "missing": ["/srv/there"],
            "method": {"dir": "/mnt/card", "operations_in_round": 50, "quick": true,
                "rounds": [{"values": [1, 2, 3]}]}});
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
        let machine = [
            Fact::known("cpu", "ARM"),
            Fact::new("board", None::<String>, "nothing names it"),
        ];
        let observed = [Observed {
            what: "rest".to_owned(),
            seconds: 5.04,
            speeds: Vec::new(),
            power: vec![
                summary("ina219 5-0040", Origin::Measured),
                summary("a model", Origin::Modelled("a formula".to_owned())),
                summary(
                    "rapl psys",
                    Origin::Unavailable("may not|be read".to_owned()),
                ),
            ],
        }];
        Page {
            findings: &findings,
            card: json!({"kind": "mmc SC32G", "device": {"rotational": null}}),
            device: &[Fact::known("rotational", false)],
            machine: &machine,
            benches: &benches,
            policies: &[],
            why_no_power: "",
            observed: &observed,
        }
        .markdown()
    }

    #[test]
    fn the_page_has_figures_and_no_paths() {
        let page = page();
        for there in [
            "| cpu | ARM |",
            "| board | unavailable: nothing names it |",
            "| card: kind | mmc SC32G |",
            "| card: rotational | false |",
            "| rest | 5.0 |",
            "indicative only",
            "operations_in_round 50, rounds 3.",
            "Unavailable: the kernel offers none (no policy of cpufreq).",
            "| rest | ina219 5-0040 | the rail | measured | 4.500 | 3.000 | 6.000 | 22.500 | 5.0 | 11 |",
            "| rest | a model | the rail | modelled (a formula) | 4.500 |",
            "| rest | rapl psys | the rail | unavailable: may not be read | | | | | | |",
            "| missing | clock trust | is a b |",
            "| keel | latency_p50 | 12.500 | us |",
            "Not measured: it ended with exit status 1.",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        for absent in ["/home", "/srv", "/mnt", "secret", "<b>", "card: device"] {
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
