//! `keel flash`: a store in an image file or on a block device, from the command line.

mod files;
mod whole;

use crate::cli::FlashCommand;
use crate::error::CliError;
use base::block::{DeviceError, FileDevice, FileDeviceOptions};
use flash::{OpenOptions, Store};
use std::ffi::OsStr;
use std::path::Path;

/// Runs one command; the answer is the exit status.
pub(crate) fn run(command: &FlashCommand) -> Result<u8, CliError> {
    match command {
        FlashCommand::Format {
            image,
            size,
            files,
            name_bytes,
            force,
            sparse,
            json,
        } => whole::format(
            image,
            &whole::Format {
                size: *size,
                files: *files,
                name_bytes: *name_bytes,
                force: *force,
                sparse: *sparse,
            },
            *json,
        ),
        FlashCommand::Ls { image, json } => files::ls(image, *json),
        FlashCommand::Put { image, name, from } => files::put(image, name, from),
        FlashCommand::Get { image, name, to } => files::get(image, name, to),
        FlashCommand::Append { image, name, from } => files::append(image, name, from),
        FlashCommand::Rm { image, name } => files::rm(image, name),
        FlashCommand::Stat {
            image,
            name: Some(name),
            json,
        } => files::stat(image, name, *json),
        FlashCommand::Stat {
            image,
            name: None,
            json,
        } => whole::stat(image, *json),
        FlashCommand::Check { image, json } => whole::check(image, *json),
        FlashCommand::Bounds { image, json } => whole::bounds(image, *json),
        FlashCommand::Dump { image, json } => whole::dump(image, *json),
    }
}

/// Whether a command will change the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

fn open(image: &Path, access: Access) -> Result<Store<FileDevice>, CliError> {
    let device = open_device(image, access)?;
    let options = OpenOptions {
        read_only: access == Access::Read,
        ..OpenOptions::default()
    };
    Store::open(device, &options).map_err(|error| store_error(image, &error))
}

fn open_device(image: &Path, access: Access) -> Result<FileDevice, CliError> {
    let options = FileDeviceOptions {
        create_bytes: None,
        read_only: access == Access::Read,
        direct: true,
        // A reader takes no lock: it looks at the store as it is, as recovery would find it.
        exclusive: access == Access::Write,
    };
    FileDevice::open(image, &options).map_err(|error| device_error(image, &error))
}

/// An error of the device, in the words of the command line.
fn device_error(image: &Path, error: &DeviceError) -> CliError {
    match error {
        DeviceError::Open { source, .. } => CliError::io(image.display(), source),
        DeviceError::InUse { .. } => CliError::failure(
            image.display(),
            "in use by another program",
            "end that program, then try again",
        ),
        other => CliError::failure(image.display(), other, "check the device"),
    }
}

/// An error of the store as a whole.
fn store_error(image: &Path, error: &flash::Error) -> CliError {
    let image_shown = &image.display();
    match error {
        flash::Error::Device(device) => device_error(image, device),
        flash::Error::NotAStore => CliError::failure(
            image_shown,
            error,
            format!("make one with `keel flash format {image_shown}`"),
        ),
        flash::Error::Version { .. } => {
            CliError::failure(image_shown, error, "use the version of keel that made it")
        }
        flash::Error::Damaged { .. } => CliError::failure(
            image_shown,
            error,
            format!("see all damage with `keel flash check {image_shown}`"),
        ),
        flash::Error::Format { .. } => CliError::coded(error.code(), image_shown, error, ""),
        other => CliError::failure(image_shown, other, ""),
    }
}

/// An error about one file of the store.
fn file_error(image: &Path, name: &str, error: &flash::Error) -> CliError {
    match error {
        flash::Error::NotFound => CliError::failure(
            name,
            error,
            format!("list the files with `keel flash ls {}`", image.display()),
        ),
        flash::Error::NameInvalid { .. } => CliError::usage(name, error, "choose another name"),
        flash::Error::Damaged { .. } => CliError::failure(
            name,
            error,
            format!("see all damage with `keel flash check {}`", image.display()),
        ),
        flash::Error::Full => CliError::failure(
            image.display(),
            "no room",
            "delete files with `keel flash rm`, or format a larger store",
        ),
        flash::Error::Device(_) | flash::Error::NotAStore | flash::Error::Version { .. } => {
            store_error(image, error)
        }
        // The remedy stands in the store's own text.
        other => CliError::failure(name, other, ""),
    }
}

/// Names in a store are UTF-8; everything else about them the store itself judges.
fn name_text(name: &OsStr) -> Result<&str, CliError> {
    name.to_str().ok_or_else(|| {
        CliError::usage(
            name.display(),
            "the name is not UTF-8",
            "choose another name",
        )
    })
}

/// Whether the path stands for standard input or output.
fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
