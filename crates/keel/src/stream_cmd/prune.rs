//! `keel stream prune`: drops old versions.

use super::store_error::publish_error;
use crate::cli::StreamPruneArgs;
use crate::error::CliError;
use crate::output::{Output, counted};
use crate::progress::{Progress, bytes_text};
use serde_json::json;
use stream::publish;

pub(super) fn run(arguments: &StreamPruneArgs) -> Result<u8, CliError> {
    let store = &arguments.store;
    let progress = Progress::start(format!("pruning {}", store.display()));
    let keep = usize::try_from(arguments.keep).unwrap_or(usize::MAX);
    let report = publish::prune(store, keep, &mut |bytes| progress.add(bytes))
        .map_err(|error| publish_error(store, &error))?;
    drop(progress);
    let freed_bytes = report.pack_bytes_before.saturating_sub(report.pack_bytes);
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "removed": report.removed,
            "kept": report.kept,
            "contents_removed": report.contents_removed,
            "pack_bytes_before": report.pack_bytes_before,
            "pack_bytes": report.pack_bytes,
            "leftovers_removed": report.leftovers,
        }))?;
    } else {
        out.line(format_args!(
            "{}: {} dropped, {} kept; {} freed, {} left",
            store.display(),
            counted(report.removed.len() as u64, "version"),
            report.kept.len(),
            bytes_text(freed_bytes),
            bytes_text(report.pack_bytes)
        ))?;
    }
    out.flush()?;
    Ok(0)
}
