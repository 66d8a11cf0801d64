//! `keel flash grow`.

use super::interruption::Interruption;
use super::prepare;
use super::text::shown_path;
use crate::argument::size;
use crate::error::CliError;
use crate::output::Output;
use base::block::{BLOCK_BYTES, FileDevice};
use clap::Args;
use command::progress::{Progress, bytes_text};
use flash::{DEVICE_BLOCKS_MAX, Store};
use node::stores::{Access, find_image, open, open_device, open_held, store_error};
use serde_json::json;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash grow store.img --size 1G\n  \
    keel flash grow /dev/mmcblk0p3\n\n\
    The command takes no longer for a full store than for an empty one. An interruption leaves the old or the\n\
    new size. If the file is already longer than its store, omit --size: the store then uses the whole file.\n\
    The name table does not change: for more files, or for a smaller store, use `keel flash copy`.")]
pub(crate) struct GrowArgs {
    /// File or block device
    image: PathBuf,
    /// New size of the image file, in bytes or with K, M, G or T [default: its current size]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Do not write the added part of the image file now
    #[arg(long)]
    sparse: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &GrowArgs) -> Result<u8, CliError> {
    let (image, size) = (&arguments.image, arguments.size);
    let found = find_image(image)?;
    let file_bytes = found.filter(Metadata::is_file).map(|found| found.len());
    let shown = image.display();
    let held = open_device(image, Access::Write)?;
    // Only a store is enlarged: any other file keeps its length.
    let store_bytes = open_held(image)?.layout().block_count * BLOCK_BYTES as u64;
    let (device, held) = match (size, file_bytes) {
        (Some(_), None) => {
            return Err(CliError::usage(
                shown,
                "a block device has the size that it has",
                "leave --size away",
            ));
        }
        // Check before the file is enlarged.
        (Some(size), Some(_)) if size / BLOCK_BYTES as u64 > DEVICE_BLOCKS_MAX => {
            return Err(CliError::failure(
                shown,
                "no store is larger than 16 TiB",
                "choose a smaller --size",
            ));
        }
        (Some(size), Some(file_bytes)) => {
            refuse_smaller(image, size, store_bytes, file_bytes)?;
            let bytes = size / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            let device = enlarge(
                image,
                bytes.max(file_bytes),
                store_bytes,
                file_bytes,
                arguments.sparse,
            )?;
            (device, Some(held))
        }
        (None, _) => (held, None),
    };
    let (report, device) = Store::grow(device).map_err(|error| store_error(image, &error))?;
    // This releases the lock.
    drop((device, held));
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let free_bytes = bytes(open(image, Access::Read)?.statistics().blocks_free);
    let (before, after) = (bytes(report.blocks_before), bytes(report.blocks_after));
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "image": shown.to_string(),
            "size_bytes_before": before,
            "size_bytes": after,
            "data_bytes": bytes(report.data_blocks),
            "free_bytes": free_bytes,
        }))?;
    } else if before == after {
        out.line(format_args!(
            "{}: uses all of its {} already, {} free; {}",
            shown_path(image),
            bytes_text(after),
            bytes_text(free_bytes),
            if file_bytes.is_some() {
                "add --size to make the image larger"
            } else {
                "make the device larger first"
            }
        ))?;
    } else {
        out.line(format_args!(
            "{}: a store of {}, was {}; {} free",
            shown_path(image),
            bytes_text(after),
            bytes_text(before),
            bytes_text(free_bytes)
        ))?;
    }
    out.flush()?;
    Ok(0)
}

/// Refuses a size that would make the store or its file smaller.
fn refuse_smaller(
    image: &Path,
    size: u64,
    store_bytes: u64,
    file_bytes: u64,
) -> Result<(), CliError> {
    if size >= file_bytes {
        return Ok(());
    }
    let (wrong, remedy) = if size < store_bytes {
        (
            format!(
                "the store has {} already, and no store shrinks",
                bytes_text(store_bytes)
            ),
            "choose a larger --size, or copy it into a smaller one with `keel flash copy`",
        )
    } else {
        (
            format!(
                "the store has {}, but its file {} already, and no file is cut",
                bytes_text(store_bytes),
                bytes_text(file_bytes)
            ),
            "leave --size away: then the store uses the whole file",
        )
    };
    Err(CliError::usage(image.display(), wrong, remedy))
}

/// Enlarges the file. Restores its former length on failure or interruption.
fn enlarge(
    image: &Path,
    bytes: u64,
    store_bytes: u64,
    file_bytes: u64,
    sparse: bool,
) -> Result<FileDevice, CliError> {
    let shown = image.display();
    let file = File::options().write(true).open(image);
    let file = file.map_err(|error| CliError::io(&shown, &error))?;
    let left = "the store and its file are as they were";
    let interruption = Interruption::cut_back(image, file, file_bytes, left);
    let progress = Progress::start(format!("enlarging {shown}"));
    let done = prepare::resize(image, bytes, file_bytes).and_then(|mut device| {
        if !sparse {
            // Write also the blocks behind the store in its file: they are unused, and may not be allocated on the
            // disk.
            let first_block = store_bytes.min(file_bytes) / BLOCK_BYTES as u64;
            prepare::fill_from(image, &mut device, first_block, file_bytes, &progress)?;
        }
        Ok(device)
    });
    if done.is_err() {
        prepare::set_length(image, file_bytes).ok();
    }
    // The remaining steps take no time. If they were interrupted, the next opening would have to clear up.
    drop(interruption);
    done
}
