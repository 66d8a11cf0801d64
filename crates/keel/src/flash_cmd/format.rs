//! `keel flash format`: makes an empty store.

use super::prepare::{StoreOptions, prepare, warn_of_memory};
use super::text::{shown_path, uuid_text};
use crate::argument::size;
use crate::error::CliError;
use crate::output::{Output, counted};
use base::block::{BLOCK_BYTES, BlockDevice};
use clap::Args;
use command::progress::{Progress, bytes_text};
use flash::Store;
use node::stores::store_error;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash format store.img --size 256M\n  \
    keel flash format /dev/mmcblk0p3 --files 100000 --force\n\n\
    Without --force the command overwrites neither a store nor a file or device that contains anything. It\n\
    always refuses a file or device that is in use or mounted.\n\
    The smallest store is 304K with --files 1; the default --files needs 5760K. An image that cannot become a\n\
    store is refused before anything is changed.")]
pub(crate) struct FormatArgs {
    /// File or block device
    image: PathBuf,
    /// Size of the image file, in bytes or with K, M, G or T. It is rounded down to whole 4 KiB [default: 256M for a
    /// new file, else its current size]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Number of files to size the name table for, at most 4294967295. Not a limit: more files may fit, until the
    /// table has no room for a name
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    files: u64,
    /// Maximum length of a file name, in bytes
    #[arg(long, value_name = "N", default_value_t = 255, value_parser = clap::value_parser!(u16).range(1..=255))]
    name_bytes: u16,
    /// Overwrite existing content
    #[arg(long)]
    force: bool,
    /// Do not write the whole image file now; later, the disk may be full or slower when the store needs it
    #[arg(long)]
    sparse: bool,
    #[arg(long, help = "Print one JSON object")]
    json: bool,
}

pub(super) fn run(arguments: &FormatArgs) -> Result<u8, CliError> {
    let image = &arguments.image;
    let wanted = StoreOptions {
        size: arguments.size,
        files: arguments.files,
        name_bytes: arguments.name_bytes,
        force: arguments.force,
        sparse: arguments.sparse,
        is_private: false,
    };
    let shown = image.display();
    let progress = Progress::start(format!("formatting {shown}"));
    let prepared = prepare(image, &wanted, 0, &progress)?;
    let store = Store::format(prepared.device, &prepared.options)
        .map_err(|error| store_error(image, &error))?;
    drop(progress);
    let statistics = store.statistics();
    let blocks = store.device().geometry().block_count;
    let uuid = uuid_text(store.layout().uuid);
    store.close().map_err(|error| store_error(image, &error))?;
    prepared.created.keep();
    drop(prepared.interruption);
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "image": shown.to_string(),
            "size_bytes": blocks * BLOCK_BYTES as u64,
            "free_bytes": statistics.blocks_free * BLOCK_BYTES as u64,
            "files_max": statistics.files_max,
            "name_bytes_max": wanted.name_bytes,
            "format": flash::FORMAT_VERSION,
            "uuid": uuid,
        }))?;
    } else {
        out.line(format_args!(
            "{}: an empty store of {}, its table sized for {}, {} free",
            shown_path(image),
            bytes_text(blocks * BLOCK_BYTES as u64),
            counted(statistics.files_max, "file"),
            bytes_text(statistics.blocks_free * BLOCK_BYTES as u64)
        ))?;
    }
    out.flush()?;
    warn_of_memory(image);
    Ok(0)
}
