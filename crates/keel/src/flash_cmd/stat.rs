//! `keel flash stat`: figures of the store, or of one file.

use super::text::{name_text, shown_name};
use crate::error::CliError;
use crate::output::Output;
use base::block::BLOCK_BYTES;
use clap::Args;
use command::progress::bytes_text;
use node::stores::{Access, file_error, open, read_error};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash stat store.img\n  \
    keel flash stat store.img notes.txt --json")]
pub(crate) struct StatArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: Option<OsString>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &StatArgs) -> Result<u8, CliError> {
    match &arguments.name {
        Some(name) => stat_file(&arguments.image, name, arguments.json),
        None => stat_store(&arguments.image, arguments.json),
    }
}

fn stat_store(image: &Path, as_json: bool) -> Result<u8, CliError> {
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

fn stat_file(image: &Path, name: &OsStr, as_json: bool) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let mut store = open(image, Access::Read)?;
    let stat = store
        .stat(name)
        .map_err(|error| read_error(image, &error, file_error(image, name, &error)))?;
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "name": name,
            "length_bytes": stat.length_bytes,
            "blocks": stat.blocks,
            "blocks_owned": stat.blocks_owned,
            "file_id": stat.file_id,
        }))?;
    } else {
        out.line(format_args!("name          {}", shown_name(name)))?;
        out.line(format_args!(
            "length        {} bytes ({})",
            stat.length_bytes,
            bytes_text(stat.length_bytes)
        ))?;
        out.line(format_args!(
            "blocks        {} of 4 KiB, {} owned",
            stat.blocks, stat.blocks_owned
        ))?;
        out.line(format_args!("file id       {}", stat.file_id))?;
    }
    out.flush()?;
    Ok(0)
}
