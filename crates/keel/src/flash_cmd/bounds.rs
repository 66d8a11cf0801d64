//! `keel flash bounds`: the maximum number of device operations of each call.

use crate::error::CliError;
use crate::output::Output;
use base::block::BLOCK_BYTES;
use clap::Args;
use command::progress::bytes_text;
use node::stores::{Access, open};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  keel flash bounds store.img")]
pub(crate) struct BoundsArgs {
    /// File or block device
    image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &BoundsArgs) -> Result<u8, CliError> {
    let store = open(&arguments.image, Access::Read)?;
    let bounds = store.bounds();
    let mut out = Output::new();
    if arguments.json {
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
