//! `keel stream prune`: drops old versions.

use super::store_error::publish_error;
use crate::error::CliError;
use crate::output::{Output, counted};
use clap::Args;
use command::progress::{Progress, bytes_text};
use serde_json::json;
use std::path::PathBuf;
use stream::publish;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream prune plant.store --keep 3\n\n\
    Mounts of a dropped version read on while their server runs. After its restart they get errors for blocks\n    \
    that they do not have.")]
pub(crate) struct PruneArgs {
    /// Store
    store: PathBuf,
    /// Number of newest versions to keep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &PruneArgs) -> Result<u8, CliError> {
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
