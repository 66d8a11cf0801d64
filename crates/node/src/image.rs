//! The store's image: opened exclusively, or completed before it gets its final name, so that an interrupted start
//! leaves no partial store behind.

use crate::stores::{device_error, store_error};
use crate::write_cache::WriteCache;
use base::block::{BlockDevice, CountedDevice, Counts, DeviceError, FileDevice, FileDeviceOptions};
use command::error::CliError;
use command::persistence::{self, is_device};
use command::progress::Progress;
use config::StoreConfig;
use flash::{FormatOptions, OpenOptions, Store};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) type Device = CountedDevice<WriteCache<FileDevice>>;

/// Longest file name in the store.
const NAME_BYTES_MAX: u16 = 64;

/// Bytes of the image per file of the store, at most: log segments have 4 MiB.
const BYTES_PER_FILE: u64 = 512 << 10;

/// An open store.
pub(crate) struct Image {
    pub(crate) store: Store<Device>,
    pub(crate) counts: Arc<Counts>,
    /// Whether this start created the image.
    pub(crate) is_new: bool,
    /// Whether transfers bypass the page cache.
    pub(crate) is_direct: bool,
    /// The capacity of the store's files, in bytes.
    pub(crate) capacity_bytes: u64,
    /// Names the process that holds the image, while this value exists.
    pub(crate) holder: Holder,
}

/// Opens the store of a node, or makes it if it does not exist.
pub(crate) fn open(config: &StoreConfig) -> Result<Image, CliError> {
    let path = &config.image;
    let is_new = !exists(path)?;
    let (store, counts, is_direct) = if is_new {
        make_as(path, config.create_mebibytes, config.is_volatile)?
    } else {
        let device = open_device(path, None)?;
        let is_direct = device.is_direct();
        let (device, counts) = CountedDevice::new(WriteCache::new(device, config.is_volatile));
        let store = Store::open(device, &OpenOptions::default());
        (
            store.map_err(|error| store_error(path, &error))?,
            counts,
            is_direct,
        )
    };
    if let Some(warning) = persistence::memory_warning(path) {
        super::log::event("warning", warning);
    }
    let holder = Holder::announce(path);
    let capacity_bytes = store.statistics().blocks_total * flash::PAYLOAD_BYTES as u64;
    Ok(Image {
        store,
        counts,
        is_new,
        is_direct,
        capacity_bytes,
        holder,
    })
}

pub(crate) fn exists(path: &Path) -> Result<bool, CliError> {
    let exists = path
        .try_exists()
        .map_err(|error| CliError::io(path.display(), &error))?;
    if !exists && std::fs::symlink_metadata(path).is_ok() {
        // The link most likely points to a card that is not mounted. A new store would land on another disk.
        return Err(CliError::failure(
            path.display(),
            "is a symbolic link to nothing",
            "mount what it leads to, or remove the link",
        ));
    }
    Ok(exists)
}

fn open_device(path: &Path, create_bytes: Option<u64>) -> Result<FileDevice, CliError> {
    let options = FileDeviceOptions {
        create_bytes,
        read_only: false,
        direct: true,
        exclusive: true,
    };
    FileDevice::open(path, &options).map_err(|error| match error {
        DeviceError::InUse { .. } => in_use(path),
        other => device_error(path, &other),
    })
}

fn in_use(path: &Path) -> CliError {
    match Holder::of(path) {
        Some(pid) => CliError::failure(
            path.display(),
            format!("the node with process id {pid} holds this store"),
            format!("end it with `kill {pid}`, or give this node an image of its own"),
        ),
        None => CliError::failure(
            path.display(),
            "another program holds this store",
            "end it, then try again",
        ),
    }
}

pub(crate) type Made = (Store<Device>, Arc<Counts>, bool);

/// Makes a store of `create_mebibytes`.
pub(crate) fn make(path: &Path, create_mebibytes: u64) -> Result<Made, CliError> {
    make_as(path, create_mebibytes, false)
}

fn make_as(path: &Path, create_mebibytes: u64, is_volatile: bool) -> Result<Made, CliError> {
    persistence::refuse_no_place(path)?;
    make_parent(path)?;
    let draft = with_suffix(path, ".new");
    let bytes = create_mebibytes << 20;
    super::log::event(
        "store",
        format!("making {}, {create_mebibytes} MiB", path.display()),
    );
    let mut device = open_device(&draft, Some(bytes))?;
    if device.geometry().block_count * base::block::BLOCK_BYTES as u64 > bytes {
        // This draft is left over from an interrupted start with a larger configured size.
        drop(device);
        remove(&draft)?;
        device = open_device(&draft, Some(bytes))?;
    }
    // Another node may have made the store since the check above; from here on the draft is locked.
    if exists(path)? {
        remove(&draft)?;
        return Err(in_use(path));
    }
    let result = fill(device, &draft, path, is_volatile);
    if result.is_err() {
        // A partial draft would only occupy the disk.
        std::fs::remove_file(&draft).ok();
    }
    result
}

fn fill(
    mut device: FileDevice,
    draft: &Path,
    path: &Path,
    is_volatile: bool,
) -> Result<Made, CliError> {
    let progress = Progress::start(format!("making {}", path.display()));
    device
        .write_zeros(&mut |bytes| progress.add(bytes))
        .map_err(|error| device_error(path, &error))?;
    drop(progress);
    let is_direct = device.is_direct();
    let bytes = device.geometry().block_count * base::block::BLOCK_BYTES as u64;
    let (device, counts) = CountedDevice::new(WriteCache::new(device, is_volatile));
    let options = FormatOptions {
        files_max: files_max(bytes),
        name_bytes_max: NAME_BYTES_MAX,
        uuid: command::random::bytes()?,
        hash_key: command::random::bytes()?,
    };
    let store = Store::format(device, &options).map_err(|error| store_error(path, &error))?;
    let named = std::fs::rename(draft, path).and_then(|()| sync_directory(path));
    named.map_err(|error| CliError::io(path.display(), &error))?;
    Ok((store, counts, is_direct))
}

/// Returns the number of files that a node's store has room for in its table.
#[must_use]
pub fn files_max(image_bytes: u64) -> u64 {
    (image_bytes / BYTES_PER_FILE).max(64)
}

/// Creates the parent directories of a file and logs it.
pub(crate) fn make_parent(path: &Path) -> Result<(), CliError> {
    match path.parent() {
        Some(parent) if parent != Path::new("") && !parent.is_dir() => {
            std::fs::create_dir_all(parent)
                .map_err(|error| CliError::io(parent.display(), &error))?;
            // Log it: this reveals a mistyped path or a file system that is not mounted.
            let text = format!("{} is new, for {}", parent.display(), path.display());
            super::log::event("folder", text);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::File::open(parent)?.sync_all()
}

fn remove(path: &Path) -> Result<(), CliError> {
    std::fs::remove_file(path).map_err(|error| CliError::io(path.display(), &error))
}

/// Returns the path of a file beside the image.
#[must_use]
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// A file beside the image with the process id of the node that holds it. The lock on the image decides which node
/// holds it; this file is only informative. A device has none beside it: the user of a node could not remove it from
/// `/dev`.
#[derive(Debug)]
pub(crate) struct Holder {
    path: Option<PathBuf>,
}

impl Holder {
    fn announce(image: &Path) -> Self {
        if is_device(image) {
            return Self { path: None };
        }
        let path = with_suffix(image, ".lock");
        // Create a new file: an existing one may be a link to another file, or a pipe without a reader.
        std::fs::remove_file(&path).ok();
        let write = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|mut file| writeln!(file, "{}", std::process::id()));
        if write.is_err() {
            // A second node is refused in any case, only with a less detailed message.
            std::fs::remove_file(&path).ok();
        }
        Self { path: Some(path) }
    }

    /// Returns the process id of the node that holds the image, if the file names a live process.
    fn of(image: &Path) -> Option<u32> {
        let text = std::fs::read_to_string(with_suffix(image, ".lock")).ok()?;
        let pid: u32 = text.trim().parse().ok()?;
        // The file may be left over from a killed node.
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let own = std::fs::read_to_string("/proc/self/comm").ok()?;
        (name == own).then_some(pid)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            std::fs::remove_file(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_no_stale_lock_beside_it() {
        let image = Path::new("/dev/keel-of-a-test");
        let holder = Holder::announce(image);
        assert_eq!(holder.path, None);
        assert!(!with_suffix(image, ".lock").exists());
    }
}
