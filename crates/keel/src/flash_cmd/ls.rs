//! `keel flash ls`: the files of a store.

use super::text::shown_name;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use node::stores::{Access, open, read_error, store_error};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash ls store.img\n  \
    keel flash ls store.img --json | jq -r '.[].name'")]
pub(crate) struct LsArgs {
    /// File or block device
    image: PathBuf,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LsArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let mut store = open(image, Access::Read)?;
    let mut out = Output::new();
    let mut list = Vec::new();
    let mut written = Ok(());
    let visited = store.list(&mut |name, stat| {
        if arguments.json {
            list.push(
                json!({"name": name, "length_bytes": stat.length_bytes, "blocks": stat.blocks}),
            );
        } else if written.is_ok() {
            written = out.line(format_args!(
                "{:>12}  {}",
                stat.length_bytes,
                shown_name(name)
            ));
        }
    });
    written?;
    if arguments.json {
        out.json(&json!(list))?;
    }
    out.flush()?;
    // The readable files have been listed; now report that some were not.
    visited.map_err(|error| read_error(image, &error, store_error(image, &error)))?;
    Ok(0)
}
