//! `keel flash check --repair`.

use super::interruption::Interruption;
use super::text::{shown_name, shown_path};
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::{Output, counted};
use base::block::{BLOCK_BYTES, FileDevice};
use command::progress::{Progress, bytes_text};
use flash::{CheckReport, Finding, LostFile, OpenOptions, RepairReport, Store};
use node::stores::{Access, check_error, open_device, store_error};
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn repair(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let device = open_device(image, Access::Write)?;
    let interruption = Interruption::report(
        image.display(),
        "it is perhaps mended in part; repair it again",
    );
    let progress = Progress::start(format!("repairing {}", image.display()));
    let mut note = |blocks| progress.add(blocks as usize * BLOCK_BYTES);
    let (report, device) =
        Store::repair(device, &mut note).map_err(|error| store_error(image, &error))?;
    let left = check_again(device).map_err(|error| check_error(image, &error))?;
    drop(progress);
    drop(interruption);
    let mut out = Output::new();
    if as_json {
        out.json(&object(&report, &left))?;
    } else {
        print(&mut out, image, &report, &left)?;
    }
    out.flush()?;
    let is_well = left.is_clean() && !report.data_lost;
    Ok(if is_well { 0 } else { STATUS_FAILURE })
}

/// Returns the findings of a check afterwards, without writing.
fn check_again(device: FileDevice) -> flash::Result<CheckReport> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    Store::open(device, &options)?.check()
}

fn object(report: &RepairReport, left: &CheckReport) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "file": finding.file,
            "block": finding.block,
            "text": finding.text,
            "mended": finding.mended,
            "data_lost": finding.data_lost,
        })
    };
    let lost = |file: &LostFile| {
        json!({
            "name": file.name,
            "file_id": file.file_id,
            "length_bytes": file.length_bytes,
            "damaged_bytes": file.damaged_bytes,
            "may_be_old": file.may_be_old,
        })
    };
    json!({
        "was_clean": report.is_clean(),
        "clean": left.is_clean(),
        "data_lost": report.data_lost,
        "files": report.files,
        "blocks_verified": report.blocks_verified,
        "blocks_written": report.blocks_written,
        "blocks_free": report.blocks_free,
        "root_rebuilt": report.root_rebuilt,
        "findings_total": report.findings_total,
        "findings": report.findings.iter().map(finding).collect::<Vec<Value>>(),
        "lost_files": report.lost_files.iter().map(lost).collect::<Vec<Value>>(),
        "files_unnamed": report.files_unnamed,
        "problems_left": left.problems_total,
    })
}

fn print(
    out: &mut Output,
    image: &Path,
    report: &RepairReport,
    left: &CheckReport,
) -> Result<(), CliError> {
    for finding in &report.findings {
        let state = match (finding.mended, finding.data_lost) {
            (true, false) => "",
            (true, true) => " (data lost)",
            (false, false) => " (not mended)",
            (false, true) => " (not mended, data lost)",
        };
        out.line(format_args!("{finding}{state}"))?;
    }
    let unlisted = report.findings_total - report.findings.len() as u64;
    if unlisted > 0 {
        out.line(format_args!("and {unlisted} more"))?;
    }
    for file in &report.lost_files {
        let damaged = match file.damaged_bytes {
            0 => String::new(),
            bytes => format!(", {} of them damaged", bytes_text(bytes)),
        };
        let doubt = if file.may_be_old {
            "; it may have been deleted before"
        } else {
            ""
        };
        out.line(format_args!(
            "came back: {}, {}{damaged}{doubt}",
            shown_name(&file.name),
            bytes_text(file.length_bytes)
        ))?;
    }
    if report.files_unnamed > 0 {
        out.line(format_args!(
            "note: the table of names has no room for {} that came to light. Delete files, then repair again",
            counted(report.files_unnamed, "file")
        ))?;
    }
    if report.root_rebuilt {
        out.line(
            "note: the newest commit record told nothing. Files may have back what the last calls cut off their end",
        )?;
    }
    let verdict = match (report.findings_total, left.problems_total) {
        (0, 0) => "whole; nothing was written".to_owned(),
        (found, 0) => format!("whole again after {}", counted(found, "problem")),
        (found, left) => format!(
            "{} found, {} left",
            counted(found, "problem"),
            counted(left, "problem")
        ),
    };
    out.line(format_args!(
        "{}: {verdict}; {}, {} free",
        shown_path(image),
        counted(report.files, "file"),
        counted(report.blocks_free, "block")
    ))
}
