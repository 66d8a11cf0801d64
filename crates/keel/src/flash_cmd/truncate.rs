//! `keel flash truncate`: sets the length of a file of the store.

use super::text::name_text;
use crate::argument::size;
use crate::error::CliError;
use base::block::BLOCK_BYTES;
use clap::Args;
use command::progress::bytes_text;
use node::stores::{Access, file_error, open, store_error};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash truncate store.img log.txt 0\n  \
    keel flash truncate store.img table.bin 64K")]
pub(crate) struct TruncateArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: OsString,
    /// New length, in bytes or with K, M, G or T
    #[arg(value_parser = size)]
    size: u64,
}

pub(super) fn run(arguments: &TruncateArgs) -> Result<u8, CliError> {
    let (image, size) = (&arguments.image, arguments.size);
    let name = name_text(&arguments.name)?;
    let mut store = open(image, Access::Write)?;
    let failed = |error| file_error(image, name, &error);
    let file = store.open_file(name).map_err(failed)?;
    let length = store.length(file).map_err(failed)?;
    let bytes_free = store
        .statistics()
        .blocks_free
        .saturating_mul(BLOCK_BYTES as u64);
    if size > length.saturating_add(bytes_free) {
        return Err(CliError::failure(
            image.display(),
            format!(
                "{} are more than the free space of {}",
                bytes_text(size),
                bytes_text(bytes_free)
            ),
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ));
    }
    store.truncate(file, size).map_err(failed)?;
    store.close_file(file);
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}
