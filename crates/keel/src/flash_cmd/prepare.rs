//! Prepares a file or device for a new store, and decides what may be overwritten.

use super::draft::sync_folder;
use super::interruption::Interruption;
use super::new_image::NewImage;
use crate::error::CliError;
use crate::output::counted;
use crate::signals;
use base::block::{
    BLOCK_BYTES, BlockDevice, Content, DeviceError, FileDevice, FileDeviceOptions, Geometry,
    find_content,
};
use command::persistence;
use command::progress::{Progress, bytes_text};
use flash::{FormatOptions, OpenOptions, Store};
use node::stores::{Access, device_error, device_options, find_image, open_device, store_error};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Default size of a new image.
const IMAGE_BYTES: u64 = 256 << 20;

/// The state after an interruption if there was something before.
const LEFT_IN_PARTS: &str =
    "what it held may be gone, and it holds no new store; begin again with --force";

/// The store to make.
pub(super) struct StoreOptions {
    pub(super) size: Option<u64>,
    pub(super) files: u64,
    pub(super) name_bytes: u16,
    pub(super) force: bool,
    pub(super) sparse: bool,
    /// Whether only the owner may access a new file: a store contains the key by which it recognizes its own bytes.
    pub(super) is_private: bool,
}

/// Warns on standard error if the new store does not outlive a reboot.
pub(super) fn warn_of_memory(image: &Path) {
    if let Some(warning) = persistence::memory_warning(image) {
        eprintln!("keel: {warning}");
    }
}

/// A file or device that may be formatted, opened exclusively.
pub(super) struct Prepared {
    pub(super) device: FileDevice,
    pub(super) options: FormatOptions,
    pub(super) created: NewImage,
    /// The handling of a signal until the store is made.
    pub(super) interruption: Interruption,
    /// The lock of a file: held from before its check until the store is made.
    pub(super) held: Option<FileDevice>,
}

/// Prepares `image` for formatting as `wanted`; the store needs room for at least `bytes_min`. If it cannot or must not
/// become such a store, this fails and leaves it unchanged.
pub(super) fn prepare(
    image: &Path,
    wanted: &StoreOptions,
    bytes_min: u64,
    progress: &Progress,
) -> Result<Prepared, CliError> {
    let shown = image.display();
    let found = find_image(image)?;
    if found.is_none() && image.symlink_metadata().is_ok() {
        return Err(CliError::failure(
            shown,
            "is a symbolic link to nothing",
            "remove it, or name the file itself",
        ));
    }
    let is_device = found
        .as_ref()
        .is_some_and(|found| found.file_type().is_block_device());
    if is_device && wanted.size.is_some() {
        return Err(CliError::usage(
            shown,
            "a block device has the size that it has",
            "leave --size away",
        ));
    }
    persistence::refuse_no_place(image)?;
    // Even --force does not override another holder. A mounted device has content that --force is not meant for.
    let held = found.as_ref().map(|_| open_device(image, Access::Write));
    let held = held.transpose()?;
    if !wanted.force && held.is_some() {
        refuse_content(image)?;
    }
    let file_bytes = match &held {
        Some(device) if !device.is_block_device() => file_length(image)?,
        _ => 0,
    };
    let bytes = wanted.size.unwrap_or(if file_bytes > 0 {
        file_bytes
    } else {
        IMAGE_BYTES
    });
    let options = FormatOptions {
        files_max: wanted.files,
        name_bytes_max: wanted.name_bytes,
        uuid: crate::random::bytes()?,
        hash_key: crate::random::bytes()?,
    };
    // Check before any change: an impossible new store must not destroy the old one.
    let geometry = match &held {
        Some(device) if is_device => device.geometry(),
        _ => Geometry {
            block_count: bytes / BLOCK_BYTES as u64,
        },
    };
    options
        .check(geometry)
        .map_err(|error| shape_error(image, &options, geometry, is_device, &error))?;
    let bytes = geometry.block_count * BLOCK_BYTES as u64;
    if bytes < bytes_min {
        return Err(CliError::failure(
            shown,
            format!(
                "{} are to be stored, {} is the size",
                bytes_text(bytes_min),
                bytes_text(bytes)
            ),
            if is_device {
                "name a larger device"
            } else {
                "choose a larger --size"
            },
        ));
    }
    let mut created = NewImage::nothing();
    let interruption;
    let (mut device, held) = match held {
        Some(device) if is_device => {
            interruption = Interruption::report(shown, LEFT_IN_PARTS);
            (device, None)
        }
        Some(held) => {
            interruption = interruption_of_old(image, file_bytes)?;
            (resize(image, bytes, file_bytes)?, Some(held))
        }
        None => {
            // Catch signals from here on: otherwise a signal between the next two lines would leave the file behind.
            signals::catch_stop();
            let held = create(image, wanted.is_private)?;
            (created, interruption) = NewImage::new(image);
            if signals::stop_requested() {
                return Err(CliError::failure(shown, "interrupted", "nothing was made"));
            }
            (resize(image, bytes, 0)?, Some(held))
        }
    };
    fill(image, &mut device, wanted, file_bytes, progress)?;
    if device.is_block_device() || (wanted.sparse && file_bytes > 0) {
        device
            .clear_ends()
            .map_err(|error| device_error(image, &error))?;
    }
    Ok(Prepared {
        device,
        options,
        created,
        interruption,
        held,
    })
}

/// Returns why a store of this shape is impossible; for a too small one, also the required size.
fn shape_error(
    image: &Path,
    options: &FormatOptions,
    geometry: Geometry,
    is_device: bool,
    error: &flash::Error,
) -> CliError {
    let fits = |block_count| options.check(Geometry { block_count }).is_ok();
    let (mut too_few, mut enough) = (geometry.block_count, u64::from(u32::MAX));
    if too_few >= enough || !fits(enough) {
        return store_error(image, error);
    }
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        *(if fits(middle) {
            &mut enough
        } else {
            &mut too_few
        }) = middle;
    }
    let kibibytes = enough * BLOCK_BYTES as u64 / 1024;
    let larger = if is_device {
        format!("name a device of at least {kibibytes}K")
    } else {
        format!("choose a --size of at least {kibibytes}K")
    };
    let fewer = if options.files_max > 1 {
        ", or a lower number of --files"
    } else {
        ""
    };
    let wrong = format!(
        "{} is too small for a store with a table for {}",
        bytes_text(geometry.block_count * BLOCK_BYTES as u64),
        counted(options.files_max, "file")
    );
    CliError::coded(
        error.code(),
        image.display(),
        wrong,
        format!("{larger}{fewer}"),
    )
}

/// Returns the handling of an interruption for an existing file.
fn interruption_of_old(image: &Path, file_bytes: u64) -> Result<Interruption, CliError> {
    if file_bytes > 0 {
        return Ok(Interruption::report(image.display(), LEFT_IN_PARTS));
    }
    let file = File::options().write(true).open(image);
    let file = file.map_err(|error| CliError::io(image.display(), &error))?;
    let left = "the file is empty, as it was";
    Ok(Interruption::cut_back(image, file, 0, left))
}

/// Creates an empty file and opens it exclusively; its name is durable.
fn create(image: &Path, is_private: bool) -> Result<FileDevice, CliError> {
    create_empty(image, is_private).map_err(|error| CliError::io(image.display(), &error))?;
    let held = FileDevice::open(image, &device_options(Access::Write)).map_err(|error| {
        // If another process locked it first, that process may keep it.
        if !matches!(error, DeviceError::InUse { .. }) {
            std::fs::remove_file(image).ok();
        }
        device_error(image, &error)
    })?;
    if file_length(image)? > 0 {
        // Between the two calls above, another process locked it and made a store in it.
        refuse_content(image)?;
    }
    Ok(held)
}

fn create_empty(image: &Path, is_private: bool) -> std::io::Result<()> {
    let mode = if is_private { 0o600 } else { 0o666 };
    let mut options = File::options();
    options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(image)?;
    sync_folder(image).inspect_err(|_| {
        std::fs::remove_file(image).ok();
    })
}

fn file_length(image: &Path) -> Result<u64, CliError> {
    let found = std::fs::metadata(image);
    let found = found.map_err(|error| CliError::io(image.display(), &error))?;
    Ok(found.len())
}

pub(super) fn set_length(image: &Path, bytes: u64) -> std::io::Result<()> {
    let file = File::options().write(true).open(image);
    file.and_then(|file| file.set_len(bytes))
}

/// Opens the file with the length `bytes`; the caller holds its lock.
pub(super) fn resize(image: &Path, bytes: u64, file_bytes: u64) -> Result<FileDevice, CliError> {
    if file_bytes > bytes {
        // Opening a device only ever extends it.
        set_length(image, bytes).map_err(|error| CliError::io(image.display(), &error))?;
    }
    let options = FileDeviceOptions {
        create_bytes: Some(bytes),
        read_only: false,
        direct: true,
        exclusive: false,
    };
    FileDevice::open(image, &options).map_err(|error| device_error(image, &error))
}

/// Allocates every block of a file on the disk below.
fn fill(
    image: &Path,
    device: &mut FileDevice,
    wanted: &StoreOptions,
    file_bytes: u64,
    progress: &Progress,
) -> Result<(), CliError> {
    if wanted.sparse {
        return Ok(());
    }
    fill_from(image, device, 0, file_bytes, progress)
}

/// Allocates the blocks from `first_block` on. If there is no room, a file that had `file_bytes` gets this length
/// again.
pub(super) fn fill_from(
    image: &Path,
    device: &mut FileDevice,
    first_block: u64,
    file_bytes: u64,
    progress: &Progress,
) -> Result<(), CliError> {
    let bytes = device.geometry().block_count * BLOCK_BYTES as u64;
    let written = device.write_zeros_from(first_block, &mut |bytes| progress.add(bytes));
    let Err(error) = written else { return Ok(()) };
    if error.code() != base::error::Code::Full {
        return Err(device_error(image, &error));
    }
    if file_bytes > 0 && file_bytes < bytes {
        // Nothing was overwritten: restoring the length restores the old content.
        set_length(image, file_bytes).ok();
    }
    Err(CliError::failure(
        image.display(),
        format!("the disk has no room for {}", bytes_text(bytes)),
        "choose a smaller --size, or free some space",
    ))
}

/// Refuses content unless the file is missing or empty, or the device begins with zeros. `--force` skips this check.
fn refuse_content(image: &Path) -> Result<(), CliError> {
    let content = find_content(image).map_err(|error| CliError::io(image.display(), &error))?;
    let found = find_store(image);
    let holds_store = found.is_some();
    let version = match found {
        Some(Found::Other(format)) => format!(" of format {format}"),
        _ => String::new(),
    };
    let wrong = match content {
        Content::Missing | Content::Empty => return Ok(()),
        // The rest of a store that was overwritten, or a store with a file that looks like one.
        Content::Known(known) if holds_store => {
            format!("holds {} and a store{version}", known.join(" and "))
        }
        Content::Known(known) => format!("holds {}", known.join(" and ")),
        Content::Unknown if holds_store => format!("holds a store{version} already"),
        Content::Unknown => "is not empty".to_owned(),
    };
    Err(CliError::failure(
        image.display(),
        wrong,
        "add --force to erase what it holds",
    ))
}

/// An existing store.
enum Found {
    /// It has the format of this program, even if it is damaged.
    Known,
    /// It has another format, with this number.
    Other(u32),
}

fn find_store(image: &Path) -> Option<Found> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = open_device(image, Access::Read).ok()?;
    match Store::open(device, &options) {
        Err(flash::Error::NotAStore) => None,
        Err(flash::Error::Version { found, .. }) => Some(Found::Other(found)),
        _ => Some(Found::Known),
    }
}
