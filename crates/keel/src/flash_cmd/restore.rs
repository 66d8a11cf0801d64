//! `keel restore`: the store of a node from a backup.

use super::copy::{self, Stop};
use super::withheld::Withheld;
use super::{
    Access, counted, device_error, find_image, make, open, open_device, refuse_the_image,
    shown_path, store_error,
};
use crate::cli::RestoreArgs;
use crate::config::Config;
use crate::error::CliError;
use crate::node::image::{files_max, with_suffix};
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use crate::signals;
use base::block::{BLOCK_BYTES, BlockDevice};
use flash::{PAYLOAD_BYTES, Store};
use serde_json::json;
use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a store where nothing says how many.
const IMAGE_BYTES: u64 = 256 << 20;

/// What begins the name of a file that a node has in its store, one of which there must be.
const LOG_PREFIXES: [&str; 2] = [db::log::SEGMENT_PREFIX, db::log::CHECKPOINT_PREFIX];

pub(crate) fn restore(arguments: &RestoreArgs) -> Result<u8, CliError> {
    let (image, size) = target(arguments)?;
    let backup = &arguments.backup;
    let shown = image.display();
    let found = find_image(&image)?;
    refuse_the_image(backup, found.as_ref(), &shown.to_string())?;
    let is_device = found.as_ref().is_some_and(|found| !found.is_file());
    // Held to the end, so that no node can begin with what is replaced.
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
    let files = copy::list(&mut source).map_err(|error| store_error(backup, &error))?;
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
    let wanted = make::Wanted {
        size: (!is_device).then_some(size),
        files: files_max(size).max(files.len() as u64 + 16),
        name_bytes: layout.name_bytes_max,
        force: true,
        sparse: false,
    };
    // A file takes the place of the old one when it is whole. A device is its own place.
    let draft = if is_device {
        image.clone()
    } else {
        with_suffix(&image, ".restore")
    };
    // The preparation of a device holds it by itself.
    let held = held.filter(|_| !is_device);
    let needed = bytes / PAYLOAD_BYTES as u64 * BLOCK_BYTES as u64;
    let progress = Progress::start(format!("making {shown}"));
    let make::Prepared {
        device,
        mut options,
        created,
        interruption,
        held: draft_held,
    } = make::prepare(&draft, &wanted, needed, &progress)?;
    drop(progress);
    // Names and seals of the log are bound to it.
    options.hash_key = layout.hash_key;
    // From here on the loops below look whether a signal has come.
    drop(interruption);
    let progress = Progress::start(format!("restoring and comparing {}", backup.display()));
    let failed = |stop: Stop| copy::stop_error(backup, &image, stop);
    let store = Store::format(Withheld::new(device), &options)
        .map_err(|error| store_error(&draft, &error))?;
    let mut note = |bytes| {
        progress.add(bytes);
        !signals::stop_requested()
    };
    let device = copy::fill(&mut source, store, &files, &mut note).map_err(failed)?;
    let store = copy::compare(&mut source, device, &files, &mut note).map_err(failed)?;
    drop(progress);
    let statistics = store.statistics();
    let size_bytes = store.device().geometry().block_count * BLOCK_BYTES as u64;
    let device = store.close().map_err(|error| store_error(&draft, &error))?;
    let released = device.release();
    released.map_err(|error| device_error(&draft, &error))?;
    if !is_device {
        give_away(&draft, &image, found.as_ref());
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
    make::warn_of_memory(&image);
    Ok(0)
}

/// The image and its size, as the arguments or the configuration say.
fn target(arguments: &RestoreArgs) -> Result<(PathBuf, u64), CliError> {
    if let Some(image) = &arguments.image {
        return Ok((image.clone(), arguments.size.unwrap_or(IMAGE_BYTES)));
    }
    let path = crate::client::find_config(arguments.config.as_deref())?;
    let config = Config::load(&path)?;
    // As a node does that makes its store.
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

/// A store that root restores belongs to whom the old one belonged to, else to the owner of its folder: a node that is
/// a user of its own must be able to open it.
fn give_away(draft: &Path, image: &Path, old: Option<&Metadata>) {
    if base::mount::effective_ids().0 != 0 {
        return;
    }
    let folder = match image.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = std::fs::metadata(folder).ok();
    if let Some(like) = old.or(folder.as_ref()) {
        std::os::unix::fs::chown(draft, Some(like.uid()), Some(like.gid())).ok();
    }
    if let Some(old) = old {
        std::fs::set_permissions(draft, old.permissions()).ok();
    }
}

/// Renames; where nothing was to be replaced, nothing is: a node may have made a store meanwhile.
fn put_in_place(draft: &Path, image: &Path, replaces: bool) -> io::Result<()> {
    if replaces {
        std::fs::rename(draft, image)?;
    } else {
        rename_to_nothing(draft, image)?;
    }
    super::sync_folder(image)
}

fn rename_to_nothing(from: &Path, to: &Path) -> io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (old, new) = (text(from)?, text(to)?);
    // SAFETY: both paths end with a zero and outlive the call.
    let done = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // Some file systems cannot.
    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) && !to.exists() {
        return std::fs::rename(from, to);
    }
    Err(error)
}
