//! Commands about a store as a whole.

use super::interruption::Interruption;
use super::observed::Observed;
use super::{Access, check_error, open, open_device, shown_path, store_error};
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::{Output, counted};
use crate::progress::{Progress, bytes_text};
use base::block::BLOCK_BYTES;
use flash::{OpenOptions, Store};
use serde_json::{Value, json};
use std::path::Path;

/// Returns the usual text form of an identity.
pub(super) fn uuid_text(uuid: [u8; 16]) -> String {
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
    let interruption = Interruption::heed(image.display(), "nothing was changed; check it again");
    let device = open_device(image, Access::ReadAll)?;
    let progress = Progress::start(format!("checking {}", image.display()));
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let opened = Store::open(Observed::new(device, &progress), &options);
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

pub(super) fn bounds(image: &Path, as_json: bool) -> Result<u8, CliError> {
    let store = open(image, Access::Read)?;
    let bounds = store.bounds();
    let mut out = Output::new();
    if as_json {
        let row = |(call, bound): &(String, flash::Bound)| {
            json!({
                "call": call,
                "reads": bound.reads,
                "blocks_read": bound.blocks_read,
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
        out.line("At most, at any fill level and number of files; a read or write is one request of at most 20 KiB.")?;
        out.line("")?;
        out.line(format_args!(
            "{:width$}  {:>5}  {:>6}  {:>7}  {:>13}",
            "call", "reads", "writes", "flushes", "bytes written"
        ))?;
        for (call, bound) in rows {
            let written = bytes_text(bound.blocks_written * BLOCK_BYTES as u64);
            out.line(format_args!(
                "{call:width$}  {:>5}  {:>6}  {:>7}  {written:>13}",
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
                "blocks_replayed": recovery.blocks_replayed,
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
            recovery.blocks_replayed
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
