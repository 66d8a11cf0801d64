//! `keel doctor`: what this machine permits a node to do, and what to change.
//!
//! **Files:** `look.rs` findings without writing anything, `card.rs` the duration of writes on the card, `page.rs` the
//! page for sending to others, with the short benches.

mod card;
mod look;
mod page;

use crate::cli::DoctorArgs;
use crate::client;
use crate::config::Config;
use crate::error::CliError;
use crate::output::Output;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Exit status if something is limited or missing.
const STATUS_LIMITED: u8 = 3;

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
    let mut findings = look::all();
    let card = match card::measure(&dir) {
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
            "machine": look::machine(),
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
    if let (Some(report), Some(card)) = (&arguments.report, &card) {
        page::write(report, &dir, &findings, card)?;
        if !arguments.json {
            output.line(format_args!(
                "{}: written; it names no host, address, path or serial number",
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
