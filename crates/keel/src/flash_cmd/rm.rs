//! `keel flash rm`: deletes a file of the store.

use super::text::name_text;
use crate::error::CliError;
use clap::Args;
use node::stores::{Access, file_error, open, store_error};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  keel flash rm store.img notes.txt")]
pub(crate) struct RmArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: OsString,
}

pub(super) fn run(arguments: &RmArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let name = name_text(&arguments.name)?;
    let mut store = open(image, Access::Write)?;
    store
        .delete(name)
        .map_err(|error| file_error(image, name, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}
