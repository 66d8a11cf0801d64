//! `keel doctor`: what this machine permits a node to do, and what to change.
//!
//! **Files:** `look.rs` findings without writing anything, `card.rs` the duration of writes on the card, `speed.rs` the
//! processors' frequencies, `observed.rs` frequencies and power while something runs, `page.rs` the page for sending to
//! others, with the short benches.

mod card;
mod look;
mod observed;
mod page;
mod speed;

use crate::cli::{DoctorArgs, PowerSourceArgs};
use crate::client;
use crate::config::Config;
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Progress;
use observed::Observer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit status if something is limited or missing.
const STATUS_LIMITED: u8 = 3;

/// How long the machine is observed at rest, for the page.
const REST: Duration = Duration::from_secs(5);

/// A property of this machine.
#[derive(Clone, Debug)]
struct Fact {
    /// Names are stable.
    name: &'static str,
    /// The value, or why it is unknown. It names no host, address, path of this machine or serial number.
    value: Result<Value, String>,
}

impl Fact {
    fn known(name: &'static str, value: impl Into<Value>) -> Self {
        let value = Ok(value.into());
        Self { name, value }
    }

    fn new(name: &'static str, value: Option<impl Into<Value>>, why_none: &str) -> Self {
        let value = value.map(Into::into).ok_or_else(|| why_none.to_owned());
        Self { name, value }
    }
}

/// Returns facts as one JSON object; what is unknown is null.
fn as_object(facts: &[Fact]) -> Value {
    let entry = |fact: &Fact| {
        (
            fact.name.to_owned(),
            fact.value.clone().unwrap_or(Value::Null),
        )
    };
    Value::Object(facts.iter().map(entry).collect())
}

/// Returns the text of a file of the kernel without what surrounds it; `None` if it is empty or cannot be read.
fn text_of(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    // Texts of a device tree end with a NUL.
    let text = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// It is available, but limited.
    Limited,
    Missing,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// One finding.
#[derive(Clone, Debug)]
struct Finding {
    /// Its subject; names are stable.
    subject: &'static str,
    verdict: Verdict,
    /// The condition. It names no host, address, path of this machine or serial number.
    text: String,
    /// The remedy; empty if none is needed.
    remedy: String,
}

impl Finding {
    fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self {
            subject,
            verdict: Verdict::Ok,
            text: text.into(),
            remedy: String::new(),
        }
    }

    fn limited(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            subject,
            verdict: Verdict::Limited,
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    fn missing(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Missing,
            ..Self::limited(subject, text, remedy)
        }
    }
}

/// Checks everything, prints the findings, and writes the page if requested.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<u8, CliError> {
    if let Some(report) = &arguments.report {
        page::refuse(report)?;
    }
    let dir = folder(arguments)?;
    let sensors = PowerSourceArgs {
        meter: arguments.meter.clone(),
        pmic: arguments.pmic,
        sensor: None,
        root: arguments.root.clone(),
    };
    let mut findings = look::all(&sensors);
    let mut observer = arguments.report.as_ref().map(|_| Observer::new(&sensors));
    let measure = || card::measure(&arguments.root, &dir);
    let measured = match &mut observer {
        Some(observer) => {
            let progress = Progress::start("at rest".to_owned());
            observer.during("rest", || std::thread::sleep(REST));
            drop(progress);
            observer.during(card::SUBJECT, measure)
        }
        None => measure(),
    };
    let card = match measured {
        Ok(card) => Some(card),
        // A page without the card's figures would not describe the board.
        Err(error) if arguments.report.is_some() => return Err(error),
        Err(error) => {
            let remedy = "name a folder on the card that you may write to with --dir, or run it as the node's user";
            findings.push(Finding::missing(card::SUBJECT, error.to_string(), remedy));
            None
        }
    };
    findings.extend(card.as_ref().map(card::Card::finding));
    let mut output = Output::new();
    if arguments.json {
        let rows = findings.iter().map(|finding| {
            json!({
                "subject": finding.subject,
                "verdict": finding.verdict.name(),
                "text": finding.text,
                "remedy": finding.remedy,
            })
        });
        output.json(&json!({
            "findings": rows.collect::<Vec<_>>(),
            "card": card.as_ref().map(card::Card::json),
            "machine": as_object(&look::machine(&arguments.root)),
        }))?;
    } else {
        for finding in &findings {
            output.line(format_args!(
                "{:<8} {:<20} {}",
                finding.verdict.name(),
                finding.subject,
                finding.text
            ))?;
            if !finding.remedy.is_empty() {
                output.line(format_args!("{:<30}{}", "", finding.remedy))?;
            }
        }
    }
    output.flush()?;
    if let (Some(report), Some(card), Some(observer)) = (&arguments.report, &card, observer) {
        let machine = look::machine(&arguments.root);
        page::write(report, &dir, &findings, &machine, card, observer)?;
        if !arguments.json {
            output.line(format_args!(
                "{}: written; it names no host, no address, no serial number, and no path but the kernel's own",
                report.display()
            ))?;
            output.flush()?;
        }
    }
    let is_ok = findings
        .iter()
        .all(|finding| finding.verdict == Verdict::Ok);
    Ok(if is_ok { 0 } else { STATUS_LIMITED })
}

/// Returns the folder in which the card is measured.
fn folder(arguments: &DoctorArgs) -> Result<PathBuf, CliError> {
    if let Some(dir) = &arguments.dir {
        if !dir.is_dir() {
            let wrong = "is no folder that can be looked into";
            return Err(CliError::failure(
                dir.display(),
                wrong,
                "name a folder on the card",
            ));
        }
        return Ok(dir.clone());
    }
    let here = PathBuf::from(".");
    let Some(config) = client::config_in_place() else {
        return Ok(here);
    };
    // Ignore a configuration with a mistake: `keel config check` reports it.
    let image = Config::load(config).map(|config| config.store.image);
    let folder = image
        .ok()
        .and_then(|image| image.parent().map(Path::to_path_buf));
    Ok(folder
        .filter(|folder| folder.is_dir() && !folder.starts_with("/dev"))
        .unwrap_or(here))
}
