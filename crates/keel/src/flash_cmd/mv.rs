//! `keel flash mv`: renames a file of the store atomically.

use super::text::name_text;
use crate::error::CliError;
use clap::Args;
use node::stores::{Access, file_error, open, store_error};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  keel flash mv store.img new.conf active.conf")]
pub(crate) struct MvArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    old: OsString,
    /// New name
    new: OsString,
}

pub(super) fn run(arguments: &MvArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let (old, new) = (name_text(&arguments.old)?, name_text(&arguments.new)?);
    let mut store = open(image, Access::Write)?;
    // Check it separately, so that the error names the right one of the two files.
    store
        .stat(old)
        .map_err(|error| file_error(image, old, &error))?;
    store
        .rename(old, new)
        .map_err(|error| file_error(image, new, &error))?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}
