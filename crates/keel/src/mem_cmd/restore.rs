//! `keel mem restore`: restores a region from a checkpoint in a flash store.

use super::create;
use super::entry::AT;
use super::flush::{MemFlush, flush_text};
use crate::argument::{permission_bits, size};
use crate::error::CliError;
use crate::output::{Output, counted};
use clap::Args;
use command::progress::{Progress, bytes_text};
use mem::checkpoint::{self, CheckpointError, RestoreReport};
use mem::{Attachment, Flush, Region, RegionOptions};
use node::regions::{CHECKPOINT_NAME, Ground, checkpoint_error, close, open, region_error};
use node::time_text::{age_text, format_ms};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Exit status of a restore that made a region without all of its content; the same as that of `keel status` for a
/// degraded node.
const STATUS_DEGRADED: u8 = 3;

/// Names of lost files that are printed, at most.
const SHOWN_MAX: usize = 20;

/// Returns the options of the region that is made if no checkpoint can be read.
fn empty_of(size: u64) -> RegionOptions {
    RegionOptions {
        capacity_bytes: size / mem::PAGE_BYTES * mem::PAGE_BYTES,
        files_max: None,
        lanes: RegionOptions::lanes_for(size),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem restore /dev/hugepages/plant plant.img\n  \
    keel mem restore /dev/hugepages/plant plant.img --size 1G    at boot\n\n\
    Unreadable data costs only its own content. With --size there is a region afterwards, also if the\n\
    checkpoint is lost; the command reports what was restored and what was not. Exit status 3: there is a region,\n\
    but a part of its content is missing. The region gets the size of the saved one. For another size, first\n\
    create it with `keel mem create`, and restore into it while it is empty.")]
pub(crate) struct RestoreArgs {
    /// File of the region; it must not exist yet, or the region must be empty
    region: PathBuf,
    /// Flash store: an image file or a block device
    image: PathBuf,
    /// Name of the checkpoint
    #[arg(long, default_value = CHECKPOINT_NAME)]
    name: String,
    /// Size of the empty region to create if no checkpoint can be read, in bytes or with K, M, G or T
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Permission bits of the region, octal
    #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
    mode: u16,
    /// How a call becomes durable on memory that keeps its content without power. The saved region's setting is not
    /// used [default: as `create`: cache-lines on persistent memory, else none]
    #[arg(long, value_enum, value_name = "HOW")]
    flush: Option<MemFlush>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &RestoreArgs) -> Result<u8, CliError> {
    let (region, image) = (&arguments.region, &arguments.image);
    let name = arguments.name.as_str();
    let wanted_flush = arguments.flush.map(MemFlush::setting);
    if let Some(size) = arguments.size {
        // Check it even if it is not needed today: it will be when the checkpoint cannot be read.
        mem::Layout::new(&empty_of(size)).map_err(|error| CliError::usage("--size", error, ""))?;
    }
    // If the size of the region is given, a booting machine must continue without a checkpoint that cannot be restored.
    let opened = open(image, false).and_then(|mut storage| {
        let failed = |error| checkpoint_error(region, image, &error);
        let shape = checkpoint::shape(&mut storage, name).map_err(failed)?;
        let taken = checkpoint::newest(&mut storage, name).map_err(failed)?;
        Ok((storage, shape, taken.map(|taken| taken.flush)))
    });
    let (mut storage, shape, saved_flush) = match (opened, arguments.size) {
        (Ok((storage, shape, flush)), _) => (Some(storage), shape, flush),
        (Err(error), Some(_)) => {
            eprintln!("keel: {error}");
            (None, None, None)
        }
        (Err(error), None) => return Err(error),
    };
    let options = match (shape, arguments.size) {
        (Some(shape), _) => shape,
        (None, Some(size)) => empty_of(size),
        (None, None) => {
            return Err(CliError::failure(
                image.display(),
                format!("holds no checkpoint named {name}"),
                "check the name; with --size an empty region is made all the same",
            ));
        }
    };
    if region.symlink_metadata().is_err() {
        let smaller = "make a smaller one with `keel mem create`, and restore into that";
        create::make(region, &options, arguments.mode, wanted_flush, smaller)?;
    }
    let attachment =
        Attachment::open(region, AT, true).map_err(|error| region_error(region, &error))?;
    refuse_other_flush(region, attachment.region(), wanted_flush)?;
    let progress = Progress::start(format!("restoring {}", region.display()));
    let mut before = 0;
    let report = match storage.as_mut() {
        None => RestoreReport::default(),
        Some(storage) => attachment
            .writer()
            .map_err(CheckpointError::from)
            .and_then(|writer| {
                checkpoint::restore(&writer, storage, name, &mut |done, _| {
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
    let flush = Flushes {
        made: attachment.region(),
        saved: saved_flush,
        is_as_wanted: wanted_flush.is_some(),
    };
    tell_restored(region, image, &report, &flush, arguments.json)?;
    // A store without a checkpoint, as at the first boot, has lost nothing.
    let was_never = was_read && report == RestoreReport::default();
    Ok(if report.is_whole() || was_never {
        0
    } else {
        STATUS_DEGRADED
    })
}

/// Refuses to change whether a region flushes: this is fixed when it is made.
fn refuse_other_flush(path: &Path, region: &Region, wanted: Option<Flush>) -> Result<(), CliError> {
    match wanted {
        Some(wanted) if wanted != region.flush() => Err(CliError::failure(
            path.display(),
            format_args!("was made with flush {}, which stays", region.flush().name()),
            "leave --flush out, or remove the region and let `restore` make it",
        )),
        _ => Ok(()),
    }
}

/// How the region makes its changes durable, and how the saved one did.
struct Flushes<'a> {
    made: &'a Region,
    saved: Option<Flush>,
    /// Whether the user has chosen it.
    is_as_wanted: bool,
}

impl Flushes<'_> {
    /// Returns a message that they differ, unless the user has chosen that.
    fn difference(&self) -> Option<String> {
        let (made, saved) = (self.made.flush(), self.saved?);
        (made != saved && !self.is_as_wanted).then(|| {
            format!(
                "flush is {} here, and was {} when it was saved; to have it so again, remove this region and restore \
                 it with --flush {}",
                made.name(),
                saved.name(),
                saved.name()
            )
        })
    }
}

fn tell_restored(
    region: &Path,
    image: &Path,
    report: &RestoreReport,
    flush: &Flushes<'_>,
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
            "flush": flush.made.flush().name(),
            "saved_flush": flush.saved.map(Flush::name),
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
            "{region_shown}: checkpoint {} of {} from {image}: {} files of {}; what was written in the {} since, \
             if anything, is lost",
            report.generation,
            format_ms(taken_ms),
            report.files,
            bytes_text(report.bytes),
            age_text(age_ms),
        ))?;
    }
    if let Some(text) = flush_text(flush.made) {
        out.line(format_args!("flush: {text}"))?;
    }
    if let Some(difference) = flush.difference() {
        eprintln!("keel: {region_shown}: {difference}");
    }
    for (count, [thing, what]) in [
        (
            report.generations_skipped,
            ["newer checkpoint", "cannot be used"],
        ),
        (
            report.parts_damaged,
            [
                "unreadable part",
                "of the list of files; their files are lost",
            ],
        ),
        (
            report.missed,
            [
                "file",
                "not in the checkpoint: unreadable when it was taken",
            ],
        ),
        (
            report.older_count,
            ["file", "restored as the checkpoint before had them"],
        ),
        (report.lost_count, ["file", "lost"]),
    ] {
        if count > 0 {
            eprintln!("keel: {region_shown}: {} {what}", counted(count, thing));
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
