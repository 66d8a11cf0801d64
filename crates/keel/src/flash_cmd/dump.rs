//! `keel flash dump`: the layout of the store.

use super::text::uuid_text;
use crate::error::CliError;
use crate::output::Output;
use base::block::BLOCK_BYTES;
use clap::Args;
use node::stores::{Access, open};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  keel flash dump store.img --json")]
pub(crate) struct DumpArgs {
    /// File or block device
    image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &DumpArgs) -> Result<u8, CliError> {
    let store = open(&arguments.image, Access::Read)?;
    let layout = store.layout();
    let statistics = store.statistics();
    let recovery = store.recovery();
    let entries = u64::from(layout.bucket_count) * u64::from(layout.entries_per_bucket);
    let mut out = Output::new();
    if arguments.json {
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
