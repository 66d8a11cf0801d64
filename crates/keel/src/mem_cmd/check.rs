//! `keel mem check`: checks whether all tables of a region agree, and repairs them.

use crate::error::{CliError, STATUS_FAILURE};
use crate::flash_cmd::interruption::Interruption;
use crate::output::{Output, counted};
use clap::Args;
use command::progress::{Progress, bytes_text};
use mem::check::CheckReport;
use mem::{Error, PAGE_BYTES};
use node::regions::region_error;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem check /dev/hugepages/plant && echo whole\n  \
    keel mem check /dev/hugepages/plant --repair\n\n\
    Programs may continue, but wait when they change names or need memory. Unfinished work of a dead writer is\n\
    first completed or undone. --repair keeps every file and name that can be found in any way; it names what\n\
    it cannot keep, with exit status 1. It also repairs, where possible, a region that no other command can\n\
    open.")]
pub(crate) struct CheckArgs {
    /// File of the region
    region: PathBuf,
    /// Repair what is found
    #[arg(long)]
    repair: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CheckArgs) -> Result<u8, CliError> {
    let (region, repairs) = (&arguments.region, arguments.repair);
    let interruption = (!repairs)
        .then(|| Interruption::report(region.display(), "nothing was changed; check it again"));
    let failed = |error: Error| match error {
        // Other commands refer to this command for damage, so its own error must not.
        Error::Damaged { .. } => CliError::failure(
            region.display(),
            error,
            "restore it from a checkpoint with `keel mem restore`, or make it anew",
        ),
        Error::NotARegion { .. } => CliError::failure(
            region.display(),
            "is not a region",
            "check the path; if it was one, restore it from a checkpoint with `keel mem restore`, or make it anew",
        ),
        other => region_error(region, &other),
    };
    let progress = Progress::start(format!("checking {}", region.display()));
    let report = mem::check::check_file(region, repairs).map_err(failed)?;
    drop(progress);
    drop(interruption);
    let mut out = Output::new();
    if arguments.json {
        out.json(&as_value(&report))?;
    } else {
        tell(region, repairs, &report, &mut out)?;
    }
    out.flush()?;
    let is_well = report.is_clean() || report.is_mended && report.loss_count == 0;
    Ok(if is_well { 0 } else { STATUS_FAILURE })
}

fn as_value(report: &CheckReport) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|found| json!({"kind": found.kind.name(), "at": found.at, "text": found.text}))
        .collect();
    json!({
        "clean": report.is_clean(),
        "unreadable": report.is_unreadable,
        "files": report.files,
        "directories": report.directories,
        "names": report.names,
        "deleted_open_files": report.orphans,
        "pool_bytes": report.pages_pool * PAGE_BYTES,
        "packed_bytes": report.pages_packed * PAGE_BYTES,
        "slot_bytes": report.pages_slots * PAGE_BYTES,
        "dead_writers": report.settled,
        "interrupted_writers": report.interrupted,
        "findings": findings,
        "finding_count": report.finding_count,
        "mended": report.is_mended,
        "losses": report.losses,
        "loss_count": report.loss_count,
    })
}

fn tell(
    region: &Path,
    repairs: bool,
    report: &CheckReport,
    out: &mut Output,
) -> Result<(), CliError> {
    let shown = region.display();
    for found in &report.findings {
        out.line(format_args!("at byte {}: {}", found.at, found.text))?;
    }
    for loss in &report.losses {
        out.line(format_args!("lost: {loss}"))?;
    }
    // Threads that end while idle leave their places behind, which is harmless.
    if report.interrupted > 0 {
        out.line(format_args!(
            "{shown}: {} had died in the middle of a change, which is finished or undone",
            counted(report.interrupted, "writer")
        ))?;
    }
    let counts = format!(
        "{} files, {} directories, {} free",
        report.files,
        report.directories,
        bytes_text(report.pages_pool * PAGE_BYTES)
    );
    let wrong = counted(report.finding_count, "finding");
    if report.is_clean() {
        return out.line(format_args!("{shown}: whole; {counts}"));
    }
    if report.is_unreadable {
        return out.line(format_args!(
            "{shown}: {wrong}, and it cannot be read before they are mended; do so with \
             `keel mem check --repair {shown}`"
        ));
    }
    out.line(match (repairs, report.is_mended, report.loss_count) {
        (false, ..) => {
            format!("{shown}: {wrong}; {counts}; mend them with `keel mem check --repair {shown}`")
        }
        (true, true, 0) => format!("{shown}: mended {wrong}, nothing is lost; {counts}"),
        (true, true, lost) => format!(
            "{shown}: mended {wrong}, {} lost; {counts}",
            counted(lost, "thing")
        ),
        (true, false, _) => format!(
            "{shown}: {wrong}, and not all could be mended; end the programs that use it and try \
             again, or restore it from a checkpoint with `keel mem restore`"
        ),
    })
}
