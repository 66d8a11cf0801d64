//! `keel mem checkpoint`: saves a region's files to a flash store, which survives power loss.

use super::error::region_error;
use super::storage::FlashStorage;
use crate::error::CliError;
use crate::flash_cmd::interruption::Interruption;
use crate::flash_cmd::open_alone;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use base::block::FileDevice;
use clap::Args;
use mem::checkpoint::{self, CheckpointError, SaveOptions, SaveReport, StorageError, Taken};
use mem::{Attachment, Node};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Name of a checkpoint; the default of --name.
pub(crate) const CHECKPOINT_NAME: &str = "mem";

/// Where the region appears for these commands; links are kept unchanged.
pub(super) const AT: &[u8] = b"/keel";

pub(super) fn open(image: &Path, writes: bool) -> Result<FlashStorage<FileDevice>, CliError> {
    open_alone(image, writes).map(FlashStorage::new)
}

pub(super) fn close(image: &Path, storage: FlashStorage<FileDevice>) -> Result<(), CliError> {
    storage
        .close()
        .map_err(|error| crate::flash_cmd::store_error(image, &error))
}

pub(crate) fn checkpoint_error(region: &Path, image: &Path, error: &CheckpointError) -> CliError {
    match error {
        CheckpointError::Region(error) => region_error(region, error),
        CheckpointError::Storage(StorageError::Full) => {
            no_room(image, "the checkpoint before is there still")
        }
        CheckpointError::Storage(error) => CliError::failure(
            image.display(),
            error,
            format!("see all damage with `keel flash check {}`", image.display()),
        ),
        CheckpointError::NotEmpty => CliError::failure(
            region.display(),
            "has files already",
            "restore into a region that does not exist yet, or is empty",
        ),
        CheckpointError::Name => CliError::usage("--name", error, "choose another name"),
        other => CliError::failure(region.display(), other, ""),
    }
}

fn no_room(image: &Path, what_is_there: &str) -> CliError {
    CliError::failure(
        image.display(),
        format_args!("no room for the checkpoint; {what_is_there}"),
        "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
    )
}

/// Takes a checkpoint without these files, and closes the store.
pub(super) fn save(
    attachment: &Attachment,
    image: &Path,
    (name, left_out): (&str, &[Node]),
    verify: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SaveReport, CliError> {
    let region = attachment.region().path();
    let mut storage = open(image, true)?;
    let is_first = matches!(checkpoint::newest(&mut storage, name), Ok(None));
    let saved = attachment
        .writer()
        .map_err(CheckpointError::from)
        .and_then(|writer| {
            let options = SaveOptions {
                name,
                now_ns: mem::now_ns(),
                random: u64::from_le_bytes(
                    crate::random::bytes().unwrap_or_else(|_| mem::now_ns().to_le_bytes()),
                ),
                verify,
                left_out,
            };
            checkpoint::save(&writer, &mut storage, &options, progress)
        })
        .map_err(|error| match error {
            CheckpointError::Storage(StorageError::Full) if is_first => {
                no_room(image, "nothing is saved yet")
            }
            error => checkpoint_error(region, image, &error),
        });
    let closed = close(image, storage);
    let report = saved?;
    closed?;
    Ok(report)
}

/// Takes a checkpoint without these files, for callers that show no progress.
pub(crate) fn checkpoint_now(
    attachment: &Attachment,
    image: &Path,
    name: &str,
    left_out: &[Node],
) -> Result<SaveReport, CliError> {
    save(attachment, image, (name, left_out), false, &mut |_, _| {})
}

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

/// Returns the newest checkpoint, which shows what a power cut would lose.
pub(super) fn newest(region: &Path, image: &Path, name: &str) -> Result<Option<Taken>, CliError> {
    let mut storage = open(image, false)?;
    checkpoint::newest(&mut storage, name).map_err(|error| checkpoint_error(region, image, &error))
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
