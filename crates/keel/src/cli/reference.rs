//! The pages of `docs/reference`, made from the tables that the program itself uses. These are the definition of the
//! command line, the example configuration, the error codes, the reasons of `keel status` and the metrics. `cargo xtask
//! reference` writes them anew; this test fails while they say something else than the code.

use super::Cli;
use super::pages::visible;
use base::error::Code;
use clap::{Command, CommandFactory};
use config::example;
use egress::http::{Kind, METRICS, Metric, metric_names};
use node::status::CODES;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Where `cargo xtask reference` wants the pages.
const FOLDER_VARIABLE: &str = "KEEL_REFERENCE_DIR";

/// What every page says of itself.
const MADE: &str =
    "This page is made from the code (`cargo xtask reference`); a test compares them.";

fn page(title: &str, words: &str, body: &str) -> String {
    format!("# {title}\n\n{words}\n\n{MADE}\n\n{}\n", body.trim_end())
}

/// Text of a cell: what would end the cell is escaped.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A line of a table.
fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// What `keel help` prints of a command.
fn help_of(words: &str) -> String {
    let (program, rest) = words.split_once(' ').unwrap_or((words, ""));
    let asked = [program, "help"].into_iter().chain(rest.split_whitespace());
    let answer = Cli::command().try_get_matches_from(asked).err();
    answer.map_or_else(String::new, |answer| answer.render().to_string())
}

/// Help of a command and of all below it, each under a heading that is its words.
fn write_help(command: &Command, words: &str, body: &mut String) {
    let heading = if words.split(' ').count() > 2 {
        "###"
    } else {
        "##"
    };
    let help = help_of(words);
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    let _ = write!(
        body,
        "{heading} {words}\n\n```text\n{}\n```\n\n",
        lines.join("\n")
    );
    for below in visible(command) {
        write_help(below, &format!("{words} {}", below.get_name()), body);
    }
}

fn commands() -> String {
    let mut body = String::new();
    write_help(&Cli::command(), "keel", &mut body);
    let words = "What `keel help COMMAND` prints, for every command. The man pages of the package say the same. \
         Exit status 0 is success, 1 failure, 2 wrong usage; the help of a command names any other. \
         An error is one line on standard error that names the thing and the remedy.";
    page("Commands", words, &body)
}

/// The table that a line of the example begins, without what stands behind a dot: `store`, `mqtt`.
fn table_of(line: &str) -> Option<&str> {
    let name = line
        .trim_start_matches('#')
        .strip_prefix('[')?
        .trim_start_matches('[');
    let name = name.split([']', '.']).next()?;
    (!name.is_empty()).then_some(name)
}

/// The example in pieces, one for each table: its name, none for what stands before all of them, and its lines. Words
/// right above a table belong to it.
fn tables(text: &str) -> Vec<(Option<&str>, Vec<&str>)> {
    let mut pieces: Vec<(Option<&str>, Vec<&str>)> = vec![(None, Vec::new())];
    for line in text.lines() {
        let begun = table_of(line)
            .filter(|name| pieces.last().is_some_and(|(last, _)| *last != Some(*name)));
        if let (Some(name), Some((_, above))) = (begun, pieces.last_mut()) {
            let words = above.iter().rev();
            let count = words
                .take_while(|line| **line == "#" || line.starts_with("# "))
                .count();
            let words = above.split_off(above.len() - count);
            pieces.push((Some(name), words));
        }
        if let Some((_, lines)) = pieces.last_mut() {
            lines.push(line);
        }
    }
    pieces
}

fn configuration() -> String {
    let mut body = String::new();
    for (name, lines) in tables(example()) {
        if let Some(name) = name {
            let _ = write!(body, "## {name}\n\n");
        }
        let _ = write!(body, "```toml\n{}\n```\n\n", lines.join("\n").trim_end());
    }
    let words = "What `keel config example` prints, by its tables: every key with its default, its range and its \
         meaning. [Operating a node](../operate.md#configuration) says how to begin.";
    page("Configuration", words, &body)
}

/// What the source says of each variant of an enumeration.
fn variants(source: &str, name: &str) -> Vec<(String, String)> {
    let begin = format!("pub enum {name} {{");
    let inside = source.lines().skip_while(|line| *line != begin).skip(1);
    let mut found = Vec::new();
    let mut words = Vec::new();
    for line in inside.take_while(|line| *line != "}").map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            words.push(text);
        } else if let Some(variant) = line.strip_suffix(',') {
            found.push((variant.to_owned(), words.join(" ")));
            words.clear();
        }
    }
    found
}

fn codes() -> String {
    let mut body = String::from(
        "## Errors\n\nThe same code everywhere: an exit status, an errno of a mount or of \
        a preloaded program, a status of HTTP, a value of the C interfaces, a name in JSON.\n\n\
        | code | what is so | exit status | errno | HTTP | C |\n|---|---|---|---|---|---|\n",
    );
    let meanings = variants(include_str!("../../../base/src/error.rs"), "Code");
    for error in Code::ALL {
        let variant = format!("{error:?}");
        let meaning = meanings.iter().find(|(name, _)| *name == variant);
        let (_, meaning) = meaning.unwrap_or_else(|| panic!("{variant} is not explained"));
        let number = error.errno();
        let system = base::error::io_text(&std::io::Error::from_raw_os_error(number));
        body += &row(&[
            code(error),
            cell(meaning),
            error.exit_status().to_string(),
            format!("{number}, {system}"),
            error.http_status().to_string(),
            error.c_value().to_string(),
        ]);
    }
    body += "\n## Exit status of `keel status`\n\n0 `ok`, 3 `degraded`, 1 `failed` or no answer, 2 wrong usage. \
        Reasons, each with what to do in [Operating a node](../operate.md#status):\n\n\
        | reason | what is so |\n|---|---|\n";
    for (name, meaning) in CODES {
        body += &row(&[code(name), cell(meaning)]);
    }
    body += "\n## Bad input\n\nReasons why a reading is refused, as `keel status` counts them:\n\n\
        | reason | what is so |\n|---|---|\n";
    let meanings = variants(
        include_str!("../../../ingest/src/intake/reason.rs"),
        "Reason",
    );
    for reason in ingest::intake::Reason::ALL {
        let variant = format!("{reason:?}");
        let meaning = meanings.iter().find(|(name, _)| *name == variant);
        let (_, meaning) = meaning.unwrap_or_else(|| panic!("{variant} is not explained"));
        body += &row(&[code(reason.name()), cell(meaning)]);
    }
    page(
        "Codes",
        "Errors, states and reasons, by the names that programs see.",
        &body,
    )
}

/// Type in OpenMetrics, and labels.
fn kind_of(metric: &Metric) -> (&'static str, String) {
    match metric.kind {
        Kind::Counter => ("counter", String::new()),
        Kind::Gauge | Kind::Flag => ("gauge", String::new()),
        Kind::CounterEach(label) | Kind::CounterOf(label, ..) => ("counter", code(label)),
        Kind::GaugeOf(label, ..) => ("gauge", code(label)),
        Kind::Summary => ("summary", code("quantile")),
        Kind::Info(label) => ("info", code(label)),
        Kind::Reasons => ("gauge", code("code")),
        Kind::States => ("stateset", code(metric.name)),
        Kind::StatesOf(label, ..) => (
            "stateset",
            format!("{}, {}", code(label), code(metric.name)),
        ),
    }
}

fn metrics() -> String {
    let mut body = String::from(
        "| metric | type | labels | what it is | in `keel status --json` |\n|---|---|---|---|---|\n",
    );
    for metric in METRICS {
        let (kind, labels) = kind_of(metric);
        let names: Vec<String> = metric_names(metric).into_iter().map(code).collect();
        let place = match metric.kind {
            Kind::CounterOf(_, _, member)
            | Kind::GaugeOf(_, _, member)
            | Kind::StatesOf(_, _, member, _) => {
                format!("{}[].{member}", metric.path)
            }
            _ => metric.path.to_owned(),
        };
        body += &row(&[
            names.join(", "),
            kind.to_owned(),
            labels,
            cell(metric.help),
            code(place),
        ]);
    }
    let words = "What `/metrics` of a node says, in OpenMetrics; [how to switch it on](../http.md#health-and-metrics), \
         alert rules and a dashboard. What a node does not know is left out, never shown as 0.";
    page("Metrics", words, &body)
}

fn all() -> [(&'static str, String); 4] {
    [
        ("commands.md", commands()),
        ("configuration.md", configuration()),
        ("codes.md", codes()),
        ("metrics.md", metrics()),
    ]
}

#[test]
fn are_made() {
    let asked = std::env::var_os(FOLDER_VARIABLE);
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, made) in all() {
        if let Some(folder) = &asked {
            std::fs::write(Path::new(folder).join(name), &made).unwrap();
            continue;
        }
        let is = std::fs::read_to_string(kept.join(name)).unwrap_or_default();
        let differs = made.lines().zip(is.lines()).find(|(made, is)| made != is);
        assert!(
            made == is,
            "docs/reference/{name} is not what the code says; `cargo xtask reference` makes it anew. The first \
             line that differs: {differs:?}"
        );
    }
    println!("{} pages of the reference", all().len());
}

#[test]
fn every_command_and_every_table_has_its_heading() {
    let mut words = BTreeSet::new();
    let program = Cli::command();
    super::pages::commands(&program, "keel", &mut words);
    let page = commands();
    for words in &words {
        let heading = format!("# {words}\n");
        assert_eq!(page.matches(&heading).count(), 1, "{words}");
    }
    assert!(!page.contains("demo-writer"));
    assert_eq!(page.matches("\nUsage: keel").count(), words.len());
    let all: Vec<&str> = tables(example())
        .into_iter()
        .flat_map(|(_, lines)| lines)
        .collect();
    assert_eq!(all, example().lines().collect::<Vec<_>>());
    let names: Vec<&str> = tables(example())
        .into_iter()
        .filter_map(|(name, _)| name)
        .collect();
    let distinct: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
    for name in ["node", "store", "mqtt", "line", "http", "qos", "upstream"] {
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn words_above_a_table_belong_to_it() {
    let text =
        "# All\n\n[a]\nb = 1\n#c = 2\n# Of d.\n#[[d]]\n#[[d.e]]\n\n[[d]]\n# f\nf = 1\n\n[g]\n";
    let pieces = tables(text);
    let names: Vec<_> = pieces.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [None, Some("a"), Some("d"), Some("g")]);
    assert_eq!(pieces[1].1, ["[a]", "b = 1", "#c = 2"]);
    assert_eq!(pieces[2].1[0], "# Of d.");
}
