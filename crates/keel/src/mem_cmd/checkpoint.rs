//! `keel mem checkpoint` and `keel mem restore`: a region's files in a flash store, which outlives the power.

use super::backing::Ground;
use super::create;
use super::region_error;
use super::storage::FlashStorage;
use crate::error::CliError;
use crate::flash_cmd::interruption::Interruption;
use crate::flash_cmd::open_alone;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use crate::time_text::{age_text, format_ms};
use base::block::FileDevice;
use mem::checkpoint::{self, CheckpointError, RestoreReport, SaveOptions, SaveReport, Taken};
use mem::{Attachment, Node, RegionOptions};
use serde_json::json;
use std::path::Path;

/// Where the region appears, for these commands: links are kept as they are.
const AT: &[u8] = b"/keel";

/// Exit status of a restore after which there is a region, but not all that was in it; that of `keel status` for a node
/// that works with a reservation.
const STATUS_DEGRADED: u8 = 3;

/// Names of lost files that are printed.
const SHOWN_MAX: usize = 20;

fn open(image: &Path, writes: bool) -> Result<FlashStorage<FileDevice>, CliError> {
    open_alone(image, writes).map(FlashStorage::new)
}

fn close(image: &Path, storage: FlashStorage<FileDevice>) -> Result<(), CliError> {
    storage
        .close()
        .map_err(|error| crate::flash_cmd::store_error(image, &error))
}

pub(crate) fn checkpoint_error(region: &Path, image: &Path, error: &CheckpointError) -> CliError {
    match error {
        CheckpointError::Region(error) => region_error(region, error),
        CheckpointError::Storage(checkpoint::StorageError::Full) => CliError::failure(
            image.display(),
            "no room for the checkpoint; the one before is there still",
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ),
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

/// Takes a checkpoint without these files, and closes the store again.
pub(super) fn save(
    attachment: &Attachment,
    image: &Path,
    (name, left_out): (&str, &[Node]),
    verify: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SaveReport, CliError> {
    let region = attachment.region().path();
    let mut storage = open(image, true)?;
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
        .map_err(|error| checkpoint_error(region, image, &error));
    let closed = close(image, storage);
    let report = saved?;
    closed?;
    Ok(report)
}

/// Takes a checkpoint without these files, for who shows no progress.
pub(crate) fn checkpoint_now(
    attachment: &Attachment,
    image: &Path,
    name: &str,
    left_out: &[Node],
) -> Result<SaveReport, CliError> {
    save(attachment, image, (name, left_out), false, &mut |_, _| {})
}

pub(super) fn checkpoint(
    region: &Path,
    image: &Path,
    name: &str,
    verify: bool,
    as_json: bool,
) -> Result<u8, CliError> {
    let attachment =
        Attachment::open(region, AT, true).map_err(|error| region_error(region, &error))?;
    let interruption = Interruption::heed(image.display(), "the checkpoint before is there still");
    let progress = Progress::start(format!("saving {}", region.display()));
    let mut before = 0;
    let report = save(&attachment, image, (name, &[]), verify, &mut |done, _| {
        progress.add(done.saturating_sub(before) as usize);
        before = done;
    })?;
    drop(progress);
    drop(interruption);
    let mut out = Output::new();
    if as_json {
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
        eprintln!("keel: {missed}: could not be read; the checkpoint has what the one before had");
    }
    Ok(u8::from(report.missed_count > 0))
}

/// The newest checkpoint, which says what a power cut would take.
pub(super) fn newest(region: &Path, image: &Path, name: &str) -> Result<Option<Taken>, CliError> {
    let mut storage = open(image, false)?;
    checkpoint::newest(&mut storage, name).map_err(|error| checkpoint_error(region, image, &error))
}

/// What a checkpoint came to, in one line.
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

/// What is to be restored.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    /// Size of the region that is made where no checkpoint can be read.
    pub(super) size: Option<u64>,
    pub(super) mode: u16,
}

/// The region that is made where no checkpoint can be read.
fn empty_of(size: u64) -> RegionOptions {
    RegionOptions {
        capacity_bytes: size / mem::PAGE_BYTES * mem::PAGE_BYTES,
        files_max: None,
        lanes: RegionOptions::lanes_for(size),
    }
}

pub(super) fn restore(
    region: &Path,
    image: &Path,
    wanted: &Wanted<'_>,
    as_json: bool,
) -> Result<u8, CliError> {
    if let Some(size) = wanted.size {
        // Also where it is not needed today: it will be on the day on which the checkpoint cannot be read.
        mem::Layout::new(&empty_of(size)).map_err(|error| CliError::usage("--size", error, ""))?;
    }
    // A machine that boots shall go on without what cannot be had, if it was told how large the region is to be.
    let opened = open(image, false).and_then(|mut storage| {
        let shape = checkpoint::shape(&mut storage, wanted.name)
            .map_err(|error| checkpoint_error(region, image, &error))?;
        Ok((storage, shape))
    });
    let (mut storage, shape) = match (opened, wanted.size) {
        (Ok((storage, shape)), _) => (Some(storage), shape),
        (Err(error), Some(_)) => {
            eprintln!("keel: {error}");
            (None, None)
        }
        (Err(error), None) => return Err(error),
    };
    let options = match (shape, wanted.size) {
        (Some(shape), _) => shape,
        (None, Some(size)) => empty_of(size),
        (None, None) => {
            return Err(CliError::failure(
                image.display(),
                format!("holds no checkpoint named {}", wanted.name),
                "check the name; with --size an empty region is made all the same",
            ));
        }
    };
    if region.symlink_metadata().is_err() {
        create::make(region, &options, wanted.mode, None)?;
    }
    let attachment =
        Attachment::open(region, AT, true).map_err(|error| region_error(region, &error))?;
    let progress = Progress::start(format!("restoring {}", region.display()));
    let mut before = 0;
    let report = match storage.as_mut() {
        None => RestoreReport::default(),
        Some(storage) => attachment
            .writer()
            .map_err(CheckpointError::from)
            .and_then(|writer| {
                checkpoint::restore(&writer, storage, wanted.name, &mut |done, _| {
                    progress.add(done.saturating_sub(before) as usize);
                    before = done;
                })
            })
            .map_err(|error| checkpoint_error(region, image, &error))?,
    };
    drop(progress);
    let was_read = storage.is_some();
    if let Some(storage) = storage {
        // It was only read.
        close(image, storage).ok();
    }
    tell_restored(region, image, &report, as_json)?;
    // A store without a checkpoint, as at the first boot, has lost nothing.
    let was_never = was_read && report == RestoreReport::default();
    Ok(if report.is_whole() || was_never {
        0
    } else {
        STATUS_DEGRADED
    })
}

fn tell_restored(
    region: &Path,
    image: &Path,
    report: &RestoreReport,
    as_json: bool,
) -> Result<(), CliError> {
    let (region_shown, image) = (region.display(), image.display());
    let mut out = Output::new();
    let taken_ms = (report.taken_ns as i64).div_euclid(1_000_000);
    let age_ms = (mem::now_ns() as i64).div_euclid(1_000_000) - taken_ms;
    if as_json {
        let lost: Vec<_> = report
            .lost
            .iter()
            .map(|lost| json!({"path": lost.path, "because": lost.because.name()}))
            .collect();
        out.json(&json!({
            "generation": report.generation,
            "taken_ms": if report.generation == 0 { None } else { Some(taken_ms) },
            "whole": report.is_whole(),
            "backing": Ground::of(region)?.name(),
            "files": report.files,
            "directories": report.directories,
            "bytes": report.bytes,
            "generations_skipped": report.generations_skipped,
            "parts_damaged": report.parts_damaged,
            "missed": report.missed,
            "older": report.older,
            "older_count": report.older_count,
            "lost": lost,
            "lost_count": report.lost_count,
        }))?;
        return out.flush();
    }
    if report.generation == 0 {
        out.line(format_args!(
            "{region_shown}: an empty region: {image} holds no checkpoint that can be read"
        ))?;
    } else {
        out.line(format_args!(
            "{region_shown}: checkpoint {} of {} from {image}: {} files of {}; what was written in the {} since \
             is lost",
            report.generation,
            format_ms(taken_ms),
            report.files,
            bytes_text(report.bytes),
            age_text(age_ms),
        ))?;
    }
    for (count, what) in [
        (
            report.generations_skipped,
            "newer checkpoint(s) could not be taken",
        ),
        (
            report.parts_damaged,
            "part(s) of the list of files could not be read; their files are lost",
        ),
        (
            report.missed,
            "file(s) could not be read when the checkpoint was taken",
        ),
        (
            report.older_count,
            "file(s) are as the checkpoint before had them",
        ),
        (report.lost_count, "file(s) are lost"),
    ] {
        if count > 0 {
            eprintln!("keel: {region_shown}: {count} {what}");
        }
    }
    for path in report.older.iter().take(SHOWN_MAX) {
        eprintln!("keel: {path}: as the checkpoint before had it");
    }
    for lost in report.lost.iter().take(SHOWN_MAX) {
        eprintln!("keel: {}: lost: {}", lost.path, lost.because.name());
    }
    out.flush()
}
