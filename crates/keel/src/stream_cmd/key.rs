//! `keel stream key`: makes a key for signing manifests.

use super::store_error::publish_error;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use stream::publish::key;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream key plant.key\n  \
    keel stream pack /opt/plant plant.store --key plant.key\n\n\
    The key itself stays where trees are published; devices get the public half (--publisher). Without this\n\
    command, the first `keel stream pack` makes a key for the store.")]
pub(crate) struct KeyArgs {
    /// File to create; the public half is written beside it, with .pub after its name
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &KeyArgs) -> Result<u8, CliError> {
    let file = &arguments.file;
    let mut beside = file.clone().into_os_string();
    beside.push(".pub");
    let beside = PathBuf::from(beside);
    if beside.exists() {
        let exists = std::io::Error::from_raw_os_error(libc::EEXIST);
        return Err(CliError::io(beside.display(), &exists));
    }
    let public = key::create(file).map_err(|error| publish_error(file, &error))?;
    write(&beside, &format!("{public}\n")).map_err(|error| {
        // Half a pair would block the next attempt.
        std::fs::remove_file(file).ok();
        CliError::io(beside.display(), &error)
    })?;
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "key": file.to_string_lossy(),
            "public_file": beside.to_string_lossy(),
            "public_key": public.to_string(),
        }))?;
    } else {
        out.line(public)?;
    }
    out.flush()?;
    Ok(0)
}

/// Creates a new file, completely or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        std::fs::remove_file(path).ok();
    })
}
