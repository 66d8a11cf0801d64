//! `keel flash copy`: all files of a store into a new one.

use super::deferred_superblock::DeferredSuperblock;
use super::prepare::{StoreOptions, prepare, warn_of_memory};
use super::text::shown_path;
use super::transfer::{compare, fill, list, stop_error};
use crate::argument::size;
use crate::error::CliError;
use crate::output::{Output, counted};
use crate::signals;
use base::block::{BLOCK_BYTES, BlockDevice};
use clap::Args;
use command::progress::{Progress, bytes_text};
use flash::{FormatOptions, Store};
use node::stores::{Access, device_error, find_image, open, refuse_the_image, store_error};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel flash copy store.img larger.img --size 1G --files 100000\n  \
    keel flash copy store.img /dev/mmcblk0p3\n\n\
    The copy has its own identity. DST becomes a store only when every byte in it has been compared with SRC;\n\
    every command refuses what an interrupted copy leaves. No program may write to SRC meanwhile.")]
pub(crate) struct CopyArgs {
    /// Store to copy: file or block device
    #[arg(value_name = "SRC")]
    from: PathBuf,
    /// Destination of the new store: file or block device
    #[arg(value_name = "DST")]
    to: PathBuf,
    /// Size of the new image file, in bytes or with K, M, G or T [default: size of SRC]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Number of files to size the name table for [default: as SRC]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    files: Option<u64>,
    /// Maximum length of a file name, in bytes [default: as SRC]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=255))]
    name_bytes: Option<u16>,
    /// Overwrite existing content of DST
    #[arg(long)]
    force: bool,
    /// Do not write the whole image file now
    #[arg(long)]
    sparse: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CopyArgs) -> Result<u8, CliError> {
    let (from, to) = (&arguments.from, &arguments.to);
    let target = find_image(to)?;
    refuse_the_image(from, target.as_ref(), &to.display().to_string())?;
    let mut source = open(from, Access::ReadAll)?;
    let files = list(&mut source).map_err(|error| store_error(from, &error))?;
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let layout = source.layout().clone();
    let is_device = target.is_some_and(|found| !found.is_file());
    let made = StoreOptions {
        size: arguments
            .size
            .or_else(|| (!is_device).then_some(layout.block_count * BLOCK_BYTES as u64)),
        files: arguments.files.unwrap_or(layout.files_max),
        name_bytes: arguments.name_bytes.unwrap_or(layout.name_bytes_max),
        force: arguments.force,
        sparse: arguments.sparse,
        is_private: false,
    };
    let progress = Progress::start(format!("formatting {}", to.display()));
    let prepared = prepare(to, &made, bytes, &progress)?;
    drop(progress);
    // From here on the loops below poll for a signal.
    drop(prepared.interruption);
    let progress = Progress::start(format!("copying and comparing {}", from.display()));
    let device = DeferredSuperblock::new(prepared.device);
    // Keep the key: a higher layer may have bound its bytes to it, like a node's log.
    let options = FormatOptions {
        hash_key: layout.hash_key,
        ..prepared.options
    };
    let failed = |stop| stop_error(from, to, stop);
    let store = Store::format(device, &options).map_err(|error| store_error(to, &error))?;
    let mut note = |bytes| {
        progress.add(bytes);
        !signals::stop_requested()
    };
    let device = fill(&mut source, store, &files, &mut note).map_err(failed)?;
    // Open the copy again, so that the comparison reads from the device.
    let store = compare(&mut source, device, &files, &mut note).map_err(failed)?;
    drop(progress);
    let statistics = store.statistics();
    let size_bytes = store.device().geometry().block_count * BLOCK_BYTES as u64;
    let device = store.close().map_err(|error| store_error(to, &error))?;
    let released = device.release();
    released.map_err(|error| device_error(to, &error))?;
    prepared.created.keep();
    let free_bytes = statistics.blocks_free * BLOCK_BYTES as u64;
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "image": to.display().to_string(),
            "files": files.len(),
            "bytes": bytes,
            "size_bytes": size_bytes,
            "free_bytes": free_bytes,
            "files_max": statistics.files_max,
            "name_bytes_max": made.name_bytes,
        }))?;
    } else {
        out.line(format_args!(
            "{}: {}, {} copied and compared; a store of {}, its table sized for {}, {} free",
            shown_path(to),
            counted(files.len() as u64, "file"),
            bytes_text(bytes),
            bytes_text(size_bytes),
            counted(statistics.files_max, "file"),
            bytes_text(free_bytes)
        ))?;
    }
    out.flush()?;
    warn_of_memory(to);
    Ok(0)
}
