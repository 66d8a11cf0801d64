//! `keel mem checkpoint`: saves a region's files to a flash store, which survives power loss.

use super::entry::AT;
use crate::error::CliError;
use crate::flash_cmd::interruption::Interruption;
use crate::output::Output;
use clap::Args;
use command::progress::{Progress, bytes_text};
use mem::Attachment;
use mem::checkpoint::SaveReport;
use node::regions::{CHECKPOINT_NAME, newest, region_error, save};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash format plant.img --size 1G\n  \
    keel mem checkpoint /dev/hugepages/plant plant.img\n\n\
    Only changes since the last checkpoint are written. A power cut at any moment leaves the new checkpoint or\n\
    the one before. Programs continue meanwhile: all names are of one moment, and so is each file of up to\n\
    1 MiB; a larger file that is written meanwhile is so only in pieces of 16 KiB.")]
pub(crate) struct CheckpointArgs {
    /// File of the region
    region: PathBuf,
    /// Flash store: an image file or a block device
    image: PathBuf,
    /// Name of the checkpoint, for stores that hold those of several regions
    #[arg(long, default_value = CHECKPOINT_NAME)]
    name: String,
    /// Read the existing checkpoint completely, and write damaged data again
    #[arg(long)]
    verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CheckpointArgs) -> Result<u8, CliError> {
    let (region, image) = (&arguments.region, &arguments.image);
    let (name, verify) = (arguments.name.as_str(), arguments.verify);
    let attachment =
        Attachment::open(region, AT, true).map_err(|error| region_error(region, &error))?;
    let left = match newest(region, image, name)? {
        Some(_) => "the checkpoint before is there still",
        None => "nothing is saved yet",
    };
    let interruption = Interruption::report(image.display(), left);
    let progress = Progress::start(format!("saving {}", region.display()));
    let mut before = 0;
    let report = save(&attachment, image, (name, &[]), verify, &mut |done, _| {
        progress.add(done.saturating_sub(before) as usize);
        before = done;
    })?;
    drop(progress);
    drop(interruption);
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "generation": report.generation,
            "unchanged": report.is_unchanged,
            "files": report.files,
            "directories": report.directories,
            "bytes": report.bytes,
            "written_bytes": report.bytes_written,
            "pieces_written": report.pieces_written,
            "pieces_kept": report.pieces_kept,
            "pieces_damaged": report.pieces_damaged,
            "missed": report.missed,
            "missed_count": report.missed_count,
            "gave_up_older": report.gave_up_older,
        }))?;
    } else {
        out.line(saved_text(region, image, &report))?;
    }
    out.flush()?;
    for missed in &report.missed {
        let kept = match report.generation {
            0 | 1 => "it is not in the checkpoint",
            _ => "the checkpoint has what the one before had",
        };
        eprintln!("keel: {missed}: could not be read; {kept}");
    }
    Ok(u8::from(report.missed_count > 0))
}

/// Returns the result of a checkpoint, in one line.
pub(super) fn saved_text(region: &Path, image: &Path, report: &SaveReport) -> String {
    let (region, image) = (region.display(), image.display());
    if report.is_unchanged {
        return format!(
            "{region}: nothing has changed since checkpoint {} in {image}",
            report.generation
        );
    }
    format!(
        "{region}: checkpoint {} in {image}: {} files of {}, {} written{}",
        report.generation,
        report.files,
        bytes_text(report.bytes),
        bytes_text(report.bytes_written),
        if report.gave_up_older {
            "; for want of room it is the only one"
        } else {
            ""
        }
    )
}
