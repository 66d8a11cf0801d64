//! `keel flash put`: stores a whole file atomically.

use super::interruption::Interruption;
use super::source::Source;
use super::text::name_text;
use crate::error::CliError;
use base::block::BLOCK_BYTES;
use clap::Args;
use command::progress::{Progress, bytes_text};
use node::stores::{Access, file_error, open, store_error};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        keel flash put store.img notes.txt ./notes.txt\n  \
        date | keel flash put store.img today\n\n\
        Until the input ends, the store is locked: no other program can change it.")]
pub(crate) struct PutArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: OsString,
    /// Source of the bytes; - is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    from: PathBuf,
}

pub(super) fn run(arguments: &PutArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let name = name_text(&arguments.name)?;
    // Do this first: opening a FIFO already waits for its other end.
    let mut interruption = Some(Interruption::report(name, "nothing was stored"));
    let mut source = Source::open(image, &arguments.from)?;
    let mut store = open(image, Access::Write)?;
    let progress = Progress::start(format!("storing {name}"));
    // The new content is stored beside the old one until the replacement, so it must fit into the free blocks.
    let bytes_max = store
        .statistics()
        .blocks_free
        .saturating_mul(BLOCK_BYTES as u64);
    if source.length.is_some_and(|length| length > bytes_max) {
        return Err(CliError::failure(
            image.display(),
            format!(
                "{} is larger than the free space of {}",
                source.shown,
                bytes_text(bytes_max)
            ),
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ));
    }
    let stored = store.replace_from(name, &mut |buffer| {
        let bytes = source.read(buffer)?;
        if bytes == 0 {
            // The input is complete: the next step makes it the file, and must not be interrupted.
            drop(interruption.take());
        }
        progress.add(bytes);
        Ok(bytes)
    });
    stored.map_err(|error| match error {
        flash::Error::Source(error) => CliError::io(&source.shown, &error),
        error => file_error(image, name, &error),
    })?;
    store.close().map_err(|error| store_error(image, &error))?;
    Ok(0)
}
