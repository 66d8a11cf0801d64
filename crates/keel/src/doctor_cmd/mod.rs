//! `keel doctor`: what this machine permits a node to do, and what to change.
//!
//! **Files:** `checks.rs` findings without writing anything, `card.rs` the duration of writes on the card, `speed.rs`
//! the processors' frequencies, `observer.rs` frequencies and power while something runs, `page.rs` the page for
//! sending to others, with the short benches, `finding.rs` the form of facts and findings.

mod card;
mod checks;
mod finding;
mod observer;
mod page;
mod speed;

use crate::client;
use crate::error::CliError;
use crate::output::Output;
use crate::power_cmd::sources::PowerSourceArgs;
use clap::Args;
use command::progress::Progress;
use config::Config;
use finding::{Finding, Verdict, as_object};
use observer::Observer;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit status if something is limited or missing.
const STATUS_LIMITED: u8 = 3;

/// How long the machine is observed at rest, for the page.
const REST: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel doctor\n  \
    keel doctor --dir /mnt/card --json\n  \
    keel doctor --dir /mnt/card --report card.md       also runs the short benches: some minutes\n  \
    keel doctor --dir /mnt/card --report card.html --meter watts.csv\n\n\
    Each line reports ok, limited or missing, and what to change. A node runs even if all of them are missing; the\n\
    line says what the node then does without. The command writes, measures and removes a file of 4 MiB in --dir.\n\
    The page of --report (Markdown; HTML if FILE ends in .html) names processor, kernel, card and figures, but no\n\
    host, address, path or serial number: you can send it to others. It has the processor's frequencies and the power\n\
    at rest and during each bench, and how long each was measured. Its benches need keel-bench beside keel or in\n\
    PATH.\n\n\
    Exit status: 0 all is ok; 3 something is limited or missing; 1 the state could not be determined.")]
pub(crate) struct DoctorArgs {
    /// Folder on the card to measure [default: folder of the store in ./keel.toml or /etc/keel/keel.toml, else the
    /// current folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Run the short benches, and write a page to share
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// CSV file that the program of a power meter keeps writing, as for `keel power`
    #[arg(long, value_name = "FILE")]
    meter: Option<PathBuf>,
    /// Read the power chip of a Raspberry Pi 5 with vcgencmd
    #[arg(long)]
    pmic: bool,
    /// Folder to use instead of / for frequencies, sensors of power, and the descriptions of board and card
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
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
    let mut findings = checks::all(&sensors);
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
        output.json(&json!({
            "findings": findings,
            "card": card.as_ref().map(card::Card::json),
            "machine": as_object(&checks::machine(&arguments.root)),
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
        let machine = checks::machine(&arguments.root);
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
