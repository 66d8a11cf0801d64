//! Files and devices before they are opened: what they are, and whether two of them are the same.

use command::error::CliError;
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns the metadata of `image`, if it exists. Refuses what cannot be a store before it is opened: opening a FIFO
/// waits for its other end.
///
/// # Errors
/// The path leads to something else, such as a directory, or the error of the system.
pub fn find_image(image: &Path) -> Result<Option<Metadata>, CliError> {
    let found = match std::fs::metadata(image) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CliError::io(image.display(), &error)),
    };
    let kind = found.file_type();
    let wrong = if kind.is_file() || kind.is_block_device() {
        return Ok(Some(found));
    } else if kind.is_dir() {
        "is a directory"
    } else if kind.is_fifo() {
        "is a FIFO"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a character device"
    };
    Err(CliError::failure(
        image.display(),
        wrong,
        "name an image file or a block device",
    ))
}

/// Returns the metadata of standard input or output.
#[must_use]
pub fn standard_metadata(stream: &impl AsFd) -> Option<Metadata> {
    let same = stream.as_fd().try_clone_to_owned().ok()?;
    File::from(same).metadata().ok()
}

/// Refuses to copy between a store and the image that it is in. `other` is the other file, and errors call it `shown`.
///
/// # Errors
/// Both are one file or one device; exit status 2.
pub fn refuse_the_image(
    image: &Path,
    other: Option<&Metadata>,
    shown: &str,
) -> Result<(), CliError> {
    let (Some(image_found), Some(other)) = (find_image(image)?, other) else {
        return Ok(());
    };
    let both_devices =
        image_found.file_type().is_block_device() && other.file_type().is_block_device();
    let is_same = (image_found.dev(), image_found.ino()) == (other.dev(), other.ino())
        || (both_devices && image_found.rdev() == other.rdev());
    if is_same {
        return Err(CliError::usage(
            shown,
            format!("is the image {} itself", image.display()),
            "name another file",
        ));
    }
    Ok(())
}
