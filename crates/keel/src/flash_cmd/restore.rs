//! `keel restore`: restores the store of a node from a backup.

use super::deferred_superblock::DeferredSuperblock;
use super::draft::{behind_links, put_in_place, remove_old_draft};
use super::prepare::{Prepared, StoreOptions, prepare, warn_of_memory};
use super::text::shown_path;
use super::transfer::{self, Stop};
use crate::argument::size;
use crate::error::CliError;
use crate::output::{Output, counted};
use crate::signals;
use base::block::{BLOCK_BYTES, BlockDevice};
use clap::Args;
use command::progress::{Progress, bytes_text};
use config::Config;
use flash::{PAYLOAD_BYTES, Store};
use node::stores::{
    Access, device_error, explain_file_limit, find_image, open, open_device, refuse_the_image,
    store_error,
};
use node::{files_max, with_suffix};
use serde_json::json;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Default size of a store, in bytes.
const IMAGE_BYTES: u64 = 256 << 20;

/// Prefixes of the names of a node's log files; a node's store contains at least one of them.
const LOG_PREFIXES: [&str; 2] = [db::log::SEGMENT_PREFIX, db::log::CHECKPOINT_PREFIX];

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel restore plant.backup -c /etc/keel/keel.toml\n  \
    keel restore plant.backup --image /dev/mmcblk0p3 --force\n  \
    keel restore plant.backup --image other.img --size 1G && keel flash check other.img\n\n\
    The command creates store.image of the configuration, with the size store.create_mebibytes. Every byte is\n\
    compared before the new store becomes valid. A store that a node has open is refused, even with --force.\n\
    Existing content is replaced only with --force, and a file only when the new one is complete.\n\n\
    --json: image, size_bytes, free_bytes, files, bytes.")]
pub(crate) struct RestoreArgs {
    /// Backup, or the image of another node
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Configuration of the node [default: ./keel.toml, else /etc/keel/keel.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "image")]
    config: Option<PathBuf>,
    /// Image file or block device, instead of the configured one
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// Size of the store, in bytes or with K, M or G [default: from the configuration; with --image 256M]
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Replace existing content
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &RestoreArgs) -> Result<u8, CliError> {
    explain_file_limit();
    let (image, size) = target(arguments)?;
    let image = behind_links(&image)?;
    let backup = &arguments.backup;
    let shown = image.display();
    let found = find_image(&image)?;
    refuse_the_image(backup, found.as_ref(), &shown.to_string())?;
    let is_device = found.as_ref().is_some_and(|found| !found.is_file());
    // Held to the end, so that no node can start with the store that is being replaced.
    let held = found.as_ref().map(|_| open_device(&image, Access::Write));
    let held = held.transpose()?;
    if held.is_some() && !arguments.force {
        return Err(CliError::failure(
            shown,
            "is there already",
            "add --force to replace it with the backup",
        ));
    }
    let mut source = open(backup, Access::ReadAll)?;
    let files = transfer::list(&mut source).map_err(|error| store_error(backup, &error))?;
    let is_nodes = |name: &str| {
        let number = |prefix| db::log::number_in(name, prefix);
        LOG_PREFIXES
            .into_iter()
            .any(|prefix| number(prefix).is_some())
    };
    if !files.iter().any(|file| is_nodes(&file.name)) {
        return Err(CliError::failure(
            backup.display(),
            "is a store, and holds no log of a node",
            "name a file that `keel backup` made; `keel flash copy` copies any store",
        ));
    }
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let layout = source.layout().clone();
    let place_bytes = match &held {
        Some(device) if is_device => device.geometry().block_count * BLOCK_BYTES as u64,
        _ => size,
    };
    let files_max = files_max(place_bytes)
        .max(layout.files_max)
        .max(files.len() as u64 + 16);
    let wanted = StoreOptions {
        size: (!is_device).then_some(size),
        files: files_max,
        name_bytes: layout.name_bytes_max,
        force: is_device,
        sparse: false,
        is_private: !is_device,
    };
    // A file is replaced when the new one is complete. A device is overwritten in place.
    let draft = if is_device {
        image.clone()
    } else {
        with_suffix(&image, ".restore")
    };
    if !is_device {
        remove_old_draft(&draft)?;
    }
    // `prepare` locks a device itself.
    let held = held.filter(|_| !is_device);
    let needed = bytes / PAYLOAD_BYTES as u64 * BLOCK_BYTES as u64;
    let progress = Progress::start(format!("making {shown}"));
    let Prepared {
        device,
        mut options,
        created,
        interruption,
        held: draft_held,
    } = prepare(&draft, &wanted, needed, &progress)?;
    drop(progress);
    // Names and seals of the log are bound to this key.
    options.hash_key = layout.hash_key;
    // From here on the loops below poll for a signal.
    drop(interruption);
    let progress = Progress::start(format!("restoring and comparing {}", backup.display()));
    let failed = |stop: Stop| transfer::stop_error(backup, &image, stop);
    let store = Store::format(DeferredSuperblock::new(device), &options)
        .map_err(|error| store_error(&draft, &error))?;
    let mut note = |bytes| {
        progress.add(bytes);
        !signals::stop_requested()
    };
    let device = transfer::fill(&mut source, store, &files, &mut note).map_err(failed)?;
    let store = transfer::compare(&mut source, device, &files, &mut note).map_err(failed)?;
    drop(progress);
    let statistics = store.statistics();
    let size_bytes = store.device().geometry().block_count * BLOCK_BYTES as u64;
    let device = store.close().map_err(|error| store_error(&draft, &error))?;
    let released = device.release();
    released.map_err(|error| device_error(&draft, &error))?;
    if !is_device {
        give_away(&draft, &image, found.as_ref())?;
        put_in_place(&draft, &image, found.is_some())
            .map_err(|error| CliError::io(image.display(), &error))?;
    }
    created.keep();
    drop((held, draft_held));
    let free_bytes = statistics.blocks_free * BLOCK_BYTES as u64;
    let mut out = Output::new();
    if arguments.json {
        out.json(&json!({
            "image": image.display().to_string(),
            "size_bytes": size_bytes,
            "free_bytes": free_bytes,
            "files": files.len(),
            "bytes": bytes,
        }))?;
    } else {
        out.line(format_args!(
            "{}: restored, {}, {} copied and compared; a store of {}, {} free",
            shown_path(&image),
            counted(files.len() as u64, "file"),
            bytes_text(bytes),
            bytes_text(size_bytes),
            bytes_text(free_bytes)
        ))?;
    }
    out.flush()?;
    warn_of_memory(&image);
    Ok(0)
}

/// Returns the image and its size from the arguments or the configuration.
fn target(arguments: &RestoreArgs) -> Result<(PathBuf, u64), CliError> {
    if let Some(image) = &arguments.image {
        return Ok((image.clone(), arguments.size.unwrap_or(IMAGE_BYTES)));
    }
    let path = crate::client::find_config(arguments.config.as_deref())?;
    let config = Config::load(&path)?;
    // Create the folder, as a node does when it makes its store.
    if let Some(folder) = config.store.image.parent()
        && folder != Path::new("")
    {
        std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder.display(), &error))?;
    }
    let size = arguments
        .size
        .unwrap_or(config.store.create_mebibytes << 20);
    Ok((config.store.image, size))
}

/// Sets the owner of a store that root restores: the owner of the old one, else the owner of the folder. A node that
/// runs as its own user must be able to open it. The permissions are those of the old one, else those of a new file.
fn give_away(draft: &Path, image: &Path, old: Option<&Metadata>) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::io(draft.display(), &error);
    if base::mount::effective_ids().0 == 0 {
        let folder = match image.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = std::fs::metadata(folder).ok();
        if let Some(like) = old.or(folder.as_ref()) {
            let owner = (Some(like.uid()), Some(like.gid()));
            std::os::unix::fs::chown(draft, owner.0, owner.1).map_err(failed)?;
        }
    }
    let mode = old.map_or_else(|| 0o666 & !umask(), |old| old.permissions().mode() & 0o7777);
    std::fs::set_permissions(draft, std::fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Returns the umask of this process.
fn umask() -> u32 {
    // SAFETY: no memory is involved. The second call puts back the mask that the first has changed. This program has
    // no other thread that makes files meanwhile.
    unsafe {
        let mask = libc::umask(0o077);
        libc::umask(mask);
        mask
    }
}
