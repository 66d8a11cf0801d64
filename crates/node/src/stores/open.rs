//! Opening the store of an image, and its device: for one look, for reading all of it, or for writing.

use super::error::{device_error, store_error};
use super::image::find_image;
use base::block::{DeviceError, FileDevice, FileDeviceOptions};
use command::error::CliError;
use flash::{OpenOptions, Store};
use std::path::Path;

/// Turns a limit of this user on the size of files (`ulimit -f`) into an explained error instead of ending the process.
pub fn explain_file_limit() {
    // SAFETY: no handler is set, only a signal of this process is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// How a command uses the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look at its current state, even if another process writes to it.
    Read,
    /// Read all of it, which requires that it does not change.
    ReadAll,
    /// Change it, alone.
    Write,
}

/// Opens the store of an image.
///
/// # Errors
/// The image is none of a store, is damaged, or is in use in a way that this access does not permit.
pub fn open(image: &Path, access: Access) -> Result<Store<FileDevice>, CliError> {
    let device = open_device(image, access)?;
    let options = OpenOptions {
        read_only: access != Access::Write,
        ..OpenOptions::default()
    };
    let opened = Store::open(device, &options);
    opened.map_err(|error| match access {
        Access::Read => read_error(image, &error, store_error(image, &error)),
        Access::ReadAll | Access::Write => store_error(image, &error),
    })
}

/// Opens a store exclusively, for changing it if it `writes`, else for reading it.
///
/// # Errors
/// As [`open`].
pub fn open_alone(image: &Path, writes: bool) -> Result<Store<FileDevice>, CliError> {
    let access = if writes {
        Access::Write
    } else {
        Access::ReadAll
    };
    open(image, access)
}

/// Opens a store read-only that this process has already locked.
///
/// # Errors
/// As [`open`].
pub fn open_held(image: &Path) -> Result<Store<FileDevice>, CliError> {
    let device = open_device(image, Access::Read)?;
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    Store::open(device, &options).map_err(|error| store_error(image, &error))
}

/// Opens the device of an image.
///
/// # Errors
/// It is no file and no block device, or cannot be opened, or is in use.
pub fn open_device(image: &Path, access: Access) -> Result<FileDevice, CliError> {
    find_image(image)?;
    FileDevice::open(image, &device_options(access)).map_err(|error| device_error(image, &error))
}

/// Returns how the device of an image is opened for this access.
#[must_use]
pub fn device_options(access: Access) -> FileDeviceOptions {
    FileDeviceOptions {
        create_bytes: None,
        read_only: access != Access::Write,
        direct: true,
        // A single look takes no lock: it finds the store as recovery would.
        exclusive: access != Access::Read,
    }
}

/// Returns the error of reading the store without a lock: while another program writes, a transitional state may look
/// damaged.
#[must_use]
pub fn read_error(image: &Path, error: &flash::Error, otherwise: CliError) -> CliError {
    let is_doubtful = matches!(
        error,
        flash::Error::Damaged { .. } | flash::Error::NotAStore | flash::Error::Truncated { .. }
    );
    if is_doubtful && is_held(image) {
        return CliError::failure(
            image.display(),
            "another program is changing the store while it is read",
            "try again; should it stay, when that program has ended",
        );
    }
    otherwise
}

/// Returns whether another program has the store open for writing. A caller that has it open for writing itself must
/// not call this.
#[must_use]
pub fn is_held(image: &Path) -> bool {
    let device = FileDevice::open(image, &device_options(Access::ReadAll));
    matches!(device, Err(DeviceError::InUse { .. }))
}
