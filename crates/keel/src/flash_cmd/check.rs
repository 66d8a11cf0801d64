//! `keel flash check`: reads every block, and reports all damage.

use super::interruption::Interruption;
use super::read_progress::ReadProgress;
use super::repair;
use super::text::shown_path;
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::{Output, counted};
use clap::Args;
use command::progress::Progress;
use flash::{OpenOptions, Store};
use node::stores::{Access, check_error, open_device, store_error};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash check store.img && echo whole\n  \
    keel flash check store.img --repair\n\n\
    --repair repairs what it can without inventing data: it uses second copies, and rebuilds the name table and\n\
    the list of free blocks from the blocks of the files. A file whose name is lost gets the name\n\
    lost-NUMBER-NAME. A damaged block of a file stays damaged: save the rest of the file with\n\
    `keel flash get --salvage`. If nothing is wrong, nothing is written. Exit status 1 if any data is lost or\n\
    something is still wrong. Copy the image first if you can.")]
pub(crate) struct CheckArgs {
    /// File or block device
    image: PathBuf,
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CheckArgs) -> Result<u8, CliError> {
    match arguments.repair {
        true => repair::repair(&arguments.image, arguments.json),
        false => check(&arguments.image, arguments.json),
    }
}

fn check(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let interruption = Interruption::report(image.display(), "nothing was changed; check it again");
    let device = open_device(image, Access::ReadAll)?;
    let progress = Progress::start(format!("checking {}", image.display()));
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let opened = Store::open(ReadProgress::new(device, &progress), &options);
    let mut store = opened.map_err(|error| store_error(image, &error))?;
    let report = store.check();
    drop(store);
    drop(progress);
    drop(interruption);
    let report = report.map_err(|error| check_error(image, &error))?;
    let mut out = Output::new();
    if as_json {
        let problem = |problem: &flash::Problem| {
            json!({
                "file": problem.file,
                "block": problem.block,
                "text": problem.text,
                "data_lost": problem.data_lost,
            })
        };
        out.json(&json!({
            "clean": report.is_clean(),
            "files": report.files,
            "blocks_verified": report.blocks_verified,
            "blocks_owned": report.blocks_owned,
            "blocks_free": report.blocks_free,
            "problems_total": report.problems_total,
            "records_incomplete": report.records_incomplete,
            "problems": report.problems.iter().map(problem).collect::<Vec<Value>>(),
        }))?;
    } else {
        for problem in &report.problems {
            let lost = if problem.data_lost {
                " (data lost)"
            } else {
                ""
            };
            out.line(format_args!("{problem}{lost}"))?;
        }
        if report.records_incomplete {
            out.line(format_args!(
                "note: a copy of a commit record is incomplete. After a power cut that is normal; otherwise the \
                 medium is damaged there. The next write to the store completes it"
            ))?;
        }
        let unlisted = report.problems_total - report.problems.len() as u64;
        if unlisted > 0 {
            out.line(format_args!("and {unlisted} more"))?;
        }
        let verdict = match report.problems_total {
            0 => "whole".to_owned(),
            count => counted(count, "problem"),
        };
        out.line(format_args!(
            "{}: {verdict}; {}, {} verified, {} free",
            shown_path(image),
            counted(report.files, "file"),
            counted(report.blocks_verified, "data block"),
            counted(report.blocks_free, "block")
        ))?;
    }
    out.flush()?;
    Ok(if report.is_clean() { 0 } else { STATUS_FAILURE })
}
