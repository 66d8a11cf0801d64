//! `keel flash grow`.

use super::{Access, find_image, make, open, open_device, open_held, shown_path, store_error};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use base::block::BLOCK_BYTES;
use flash::{DEVICE_BLOCKS_MAX, Store};
use serde_json::json;
use std::fs::Metadata;
use std::path::Path;

pub(super) fn grow(
    image: &Path,
    size: Option<u64>,
    sparse: bool,
    as_json: bool,
) -> Result<u8, CliError> {
    let found = find_image(image)?;
    let file_bytes = found.filter(Metadata::is_file).map(|found| found.len());
    let shown = image.display();
    let held = open_device(image, Access::Write)?;
    // Only a store is made larger: whatever else this file may be keeps its length.
    drop(open_held(image)?);
    let (device, held) = match (size, file_bytes) {
        (Some(_), None) => {
            return Err(CliError::usage(
                shown,
                "a block device has the size that it has",
                "leave --size away",
            ));
        }
        (Some(size), Some(file_bytes)) if size < file_bytes => {
            return Err(CliError::usage(
                shown,
                format!(
                    "has {} already, and no store shrinks",
                    bytes_text(file_bytes)
                ),
                "choose a larger --size, or copy it into a smaller one with `keel flash copy`",
            ));
        }
        // Before the file is made as large as that.
        (Some(size), Some(_)) if size / BLOCK_BYTES as u64 > DEVICE_BLOCKS_MAX => {
            return Err(CliError::failure(
                shown,
                "no store is larger than 16 TiB",
                "choose a smaller --size",
            ));
        }
        (Some(size), Some(file_bytes)) => {
            let progress = Progress::start(format!("enlarging {shown}"));
            let blocks_before = file_bytes / BLOCK_BYTES as u64;
            let bytes = size / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            let mut device = make::resize(image, bytes.max(file_bytes), file_bytes)?;
            if !sparse {
                make::fill_from(image, &mut device, blocks_before, file_bytes, &progress)?;
            }
            (device, Some(held))
        }
        (None, _) => (held, None),
    };
    let (report, device) = Store::grow(device).map_err(|error| store_error(image, &error))?;
    // The lock goes with them.
    drop((device, held));
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let free_bytes = bytes(open(image, Access::Read)?.statistics().blocks_free);
    let (before, after) = (bytes(report.blocks_before), bytes(report.blocks_after));
    let mut out = Output::new();
    if as_json {
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
