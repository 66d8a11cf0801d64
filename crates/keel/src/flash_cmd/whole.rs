//! Commands about a store as a whole.

use super::{Access, check_error, device_error, find_image, open, open_device, store_error};
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use base::block::{BLOCK_BYTES, BlockDevice, FileDevice, FileDeviceOptions, Geometry};
use flash::{FormatOptions, OpenOptions, Store};
use serde_json::{Value, json};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Size of a new image when none is given.
const IMAGE_BYTES: u64 = 256 << 20;

/// Bytes at the start of a block device that must be zero for it to count as empty.
const EMPTY_PROBE_BYTES: u64 = 1 << 20;

/// What `format` was asked for.
pub(super) struct Format {
    pub(super) size: Option<u64>,
    pub(super) files: u64,
    pub(super) name_bytes: u16,
    pub(super) force: bool,
    pub(super) sparse: bool,
}

pub(super) fn format(image: &Path, wanted: &Format, as_json: bool) -> Result<u8, CliError> {
    let shown = image.display();
    let found = find_image(image)?;
    if found.is_none() && image.symlink_metadata().is_ok() {
        return Err(CliError::failure(
            shown,
            "is a symbolic link to nothing",
            "remove it, or name the file itself",
        ));
    }
    let is_device = found
        .as_ref()
        .is_some_and(|found| found.file_type().is_block_device());
    if is_device && wanted.size.is_some() {
        return Err(CliError::usage(
            shown,
            "a block device has the size that it has",
            "leave --size away",
        ));
    }
    if !wanted.force
        && let Some(found) = &found
    {
        refuse_content(image, found)?;
    }
    let file_bytes = found
        .as_ref()
        .filter(|found| found.is_file())
        .map_or(0, Metadata::len);
    let bytes = wanted.size.unwrap_or(if file_bytes > 0 {
        file_bytes
    } else {
        IMAGE_BYTES
    });
    let block_count = bytes / BLOCK_BYTES as u64;
    let bytes = block_count * BLOCK_BYTES as u64;
    let options = FormatOptions {
        files_max: wanted.files,
        name_bytes_max: wanted.name_bytes,
        uuid: crate::random::bytes()?,
        hash_key: crate::random::bytes()?,
    };
    if !is_device {
        // What cannot become a store must not cost the old one, so this comes before anything is changed.
        // (A block device's size is known once it is open; nothing is written to it before the same check.)
        let checked = options.check(Geometry { block_count });
        checked.map_err(|error| store_error(image, &error))?;
    }
    if found.is_none() {
        create(image).map_err(|error| CliError::io(image.display(), &error))?;
    }
    let progress = Progress::start(format!("formatting {shown}"));
    let made = make(image, wanted, &options, bytes, file_bytes, &progress);
    drop(progress);
    if found.is_none() && made.is_err() {
        // This call has created it, for this store alone.
        std::fs::remove_file(image).ok();
    }
    let store = made?;
    let statistics = store.statistics();
    let blocks = store.device().geometry().block_count;
    let uuid = uuid_text(store.layout().uuid);
    store.close().map_err(|error| store_error(image, &error))?;
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "image": shown.to_string(),
            "size_bytes": blocks * BLOCK_BYTES as u64,
            "free_bytes": statistics.blocks_free * BLOCK_BYTES as u64,
            "files_max": statistics.files_max,
            "name_bytes_max": wanted.name_bytes,
            "format": flash::FORMAT_VERSION,
            "uuid": uuid,
        }))?;
    } else {
        out.line(format_args!(
            "{shown}: an empty store of {}, its table sized for {} files, {} free",
            bytes_text(blocks * BLOCK_BYTES as u64),
            statistics.files_max,
            bytes_text(statistics.blocks_free * BLOCK_BYTES as u64)
        ))?;
    }
    out.flush()?;
    Ok(0)
}

/// Creates an empty file; its name is durable.
fn create(image: &Path) -> std::io::Result<()> {
    File::options().write(true).create_new(true).open(image)?;
    let folder = match image.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match File::open(folder)?.sync_all() {
        // Some file systems have directories that cannot be synchronised; they then need no such thing.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

fn make(
    image: &Path,
    wanted: &Format,
    options: &FormatOptions,
    bytes: u64,
    file_bytes: u64,
    progress: &Progress,
) -> Result<Store<FileDevice>, CliError> {
    let device_options = FileDeviceOptions {
        create_bytes: Some(bytes),
        read_only: false,
        direct: true,
        exclusive: true,
    };
    let set_length = |bytes| {
        let file = File::options().write(true).open(image);
        file.and_then(|file| file.set_len(bytes))
    };
    let mut device =
        FileDevice::open(image, &device_options).map_err(|error| device_error(image, &error))?;
    if !device.is_block_device() && file_bytes > bytes {
        // Only now that nobody else holds the file; a device is only ever extended.
        drop(device);
        set_length(bytes).map_err(|error| CliError::io(image.display(), &error))?;
        device = open_device(image, Access::Write)?;
    }
    if !wanted.sparse {
        let written = device.write_zeros(&mut |bytes| progress.add(bytes));
        if let Err(error) = written {
            if error.code() != base::error::Code::Full {
                return Err(device_error(image, &error));
            }
            if file_bytes > 0 && file_bytes < bytes {
                // Nothing was written: the old content is as it was, once its length is.
                set_length(file_bytes).ok();
            }
            return Err(CliError::failure(
                image.display(),
                format!("the disk has no room for {}", bytes_text(bytes)),
                "choose a smaller --size, or free some space",
            ));
        }
    }
    Store::format(device, options).map_err(|error| store_error(image, &error))
}

/// Without `--force` only a missing or an empty file is formatted, or a device that begins with zeros.
fn refuse_content(image: &Path, found: &Metadata) -> Result<(), CliError> {
    let shown = image.display();
    let is_empty = if found.file_type().is_block_device() {
        begins_with_zeros(image)?
    } else {
        found.len() == 0
    };
    if is_empty {
        return Ok(());
    }
    let device = open_device(image, Access::Read);
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let holds_store = device.is_ok_and(|device| {
        // Damage or another version: a store all the same.
        !matches!(Store::open(device, &options), Err(flash::Error::NotAStore))
    });
    let wrong = if holds_store {
        "holds a store already"
    } else {
        "is not empty"
    };
    Err(CliError::failure(
        shown,
        wrong,
        "add --force to erase what it holds",
    ))
}

fn begins_with_zeros(image: &Path) -> Result<bool, CliError> {
    let mut bytes = Vec::new();
    let read =
        File::open(image).and_then(|file| file.take(EMPTY_PROBE_BYTES).read_to_end(&mut bytes));
    read.map_err(|error| CliError::io(image.display(), &error))?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// The usual text of an identity.
fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

pub(super) fn stat(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let store = open(image, Access::Read)?;
    let statistics = store.statistics();
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "size_bytes": bytes(store.layout().block_count),
            "data_bytes": bytes(statistics.blocks_total),
            "free_bytes": bytes(statistics.blocks_free),
            "files": statistics.files,
            "files_max": statistics.files_max,
            "name_bytes_max": store.layout().name_bytes_max,
            "opened_for_writing": statistics.mounts,
            "format": flash::FORMAT_VERSION,
        }))?;
    } else {
        let used = statistics.blocks_total - statistics.blocks_free.min(statistics.blocks_total);
        out.line(format_args!(
            "size          {}",
            bytes_text(bytes(store.layout().block_count))
        ))?;
        out.line(format_args!(
            "for data      {}",
            bytes_text(bytes(statistics.blocks_total))
        ))?;
        out.line(format_args!("used          {}", bytes_text(bytes(used))))?;
        out.line(format_args!(
            "free          {}",
            bytes_text(bytes(statistics.blocks_free))
        ))?;
        out.line(format_args!(
            "files         {} (table sized for {})",
            statistics.files, statistics.files_max
        ))?;
        out.line(format_args!(
            "longest name  {} bytes",
            store.layout().name_bytes_max
        ))?;
        out.line(format_args!(
            "opened        {} times for writing",
            statistics.mounts
        ))?;
    }
    out.flush()?;
    Ok(0)
}

pub(super) fn check(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let mut store = open(image, Access::Read)?;
    let progress = Progress::start(format!("checking {}", image.display()));
    let report = store.check();
    drop(progress);
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
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        out.line(format_args!(
            "{}: {verdict}; {} files, {} data blocks verified, {} blocks free",
            image.display(),
            report.files,
            report.blocks_verified,
            report.blocks_free
        ))?;
    }
    out.flush()?;
    Ok(if report.is_clean() { 0 } else { STATUS_FAILURE })
}

pub(super) fn bounds(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let store = open(image, Access::Read)?;
    let bounds = store.bounds();
    let mut out = Output::new();
    if as_json {
        let row = |(call, bound): &(String, flash::Bound)| {
            json!({
                "call": call,
                "blocks_read": bound.reads,
                "writes": bound.writes,
                "flushes": bound.flushes,
                "blocks_written": bound.blocks_written,
            })
        };
        out.json(&json!({
            "memory_bytes": bounds.memory_bytes(),
            "calls": bounds.rows().iter().map(row).collect::<Vec<Value>>(),
        }))?;
    } else {
        let rows = bounds.rows();
        let width = rows
            .iter()
            .map(|(call, _)| call.chars().count())
            .max()
            .unwrap_or(0);
        out.line("At most, at any fill level and number of files; a write is one request of at most 16 KiB.")?;
        out.line("")?;
        out.line(format_args!(
            "{:width$}  {:>11}  {:>6}  {:>7}  {:>13}",
            "call", "blocks read", "writes", "flushes", "bytes written"
        ))?;
        for (call, bound) in rows {
            let written = bytes_text(bound.blocks_written * BLOCK_BYTES as u64);
            out.line(format_args!(
                "{call:width$}  {:>11}  {:>6}  {:>7}  {written:>13}",
                bound.reads, bound.writes, bound.flushes
            ))?;
        }
        out.line("")?;
        out.line(format_args!(
            "memory of an open store: {}",
            bytes_text(bounds.memory_bytes())
        ))?;
    }
    out.flush()?;
    Ok(0)
}

pub(super) fn dump(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let store = open(image, Access::Read)?;
    let layout = store.layout();
    let statistics = store.statistics();
    let recovery = store.recovery();
    let entries = u64::from(layout.bucket_count) * u64::from(layout.entries_per_bucket);
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "superblock": {
                "format": flash::FORMAT_VERSION,
                "uuid": uuid_text(layout.uuid),
                "block_bytes": BLOCK_BYTES,
                "block_count": layout.block_count,
                "files_max": layout.files_max,
                "name_bytes_max": layout.name_bytes_max,
                "table_blocks": layout.bucket_count,
                "names_per_table_block": layout.entries_per_bucket,
                "data_first_block": layout.data_first,
                "data_end_block": layout.data_end,
            },
            "root": {
                "files": statistics.files,
                "blocks_free": statistics.blocks_free,
                "mounts": statistics.mounts,
            },
            "table": { "names": statistics.files, "places": entries },
            "recovery": {
                "table_blocks_replayed": recovery.table_blocks_replayed,
                "tails_advanced": recovery.tails_advanced,
                "replacements_undone": recovery.replacements_undone,
            },
            "table_blocks_healed": statistics.table_blocks_healed,
            "free_chains_broken": statistics.free_chains_broken,
        }))?;
    } else {
        let share = 100.0 * statistics.files as f64 / entries.max(1) as f64;
        out.line("superblock")?;
        out.line(format_args!("  format        {}", flash::FORMAT_VERSION))?;
        out.line(format_args!("  uuid          {}", uuid_text(layout.uuid)))?;
        out.line(format_args!(
            "  blocks        {} of {BLOCK_BYTES} bytes",
            layout.block_count
        ))?;
        out.line(format_args!(
            "  files         table sized for {}, names of at most {} bytes",
            layout.files_max, layout.name_bytes_max
        ))?;
        out.line("regions")?;
        out.line(format_args!(
            "  name table    {} blocks kept twice, {} names each, before block {}",
            layout.bucket_count, layout.entries_per_bucket, layout.data_first
        ))?;
        out.line(format_args!(
            "  data          blocks {} to {}",
            layout.data_first,
            layout.data_end.saturating_sub(1)
        ))?;
        out.line("last commit record")?;
        out.line(format_args!("  files         {}", statistics.files))?;
        out.line(format_args!(
            "  free blocks   {} of {}",
            statistics.blocks_free, statistics.blocks_total
        ))?;
        out.line(format_args!(
            "  opened        {} times for writing",
            statistics.mounts
        ))?;
        out.line("name table")?;
        out.line(format_args!(
            "  occupied      {} of {entries} places ({share:.2} %)",
            statistics.files
        ))?;
        out.line(format_args!(
            "  healed        {} blocks from their second copy",
            statistics.table_blocks_healed
        ))?;
        out.line("recovery at this opening (nothing was written)")?;
        out.line(format_args!(
            "  table blocks  {} from a commit record",
            recovery.table_blocks_replayed
        ))?;
        out.line(format_args!(
            "  tails         {} found further than recorded",
            recovery.tails_advanced
        ))?;
        out.line(format_args!(
            "  replacements  {} undone",
            recovery.replacements_undone
        ))?;
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_identity_has_the_usual_text() {
        let text = super::uuid_text(*b"0123456789abcdef");
        assert_eq!(text, "30313233-3435-3637-3839-616263646566");
    }
}
