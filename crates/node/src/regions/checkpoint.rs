//! Checkpoints of a region in a flash store, which survives power loss.

use super::error::region_error;
use super::storage::FlashStorage;
use crate::stores::{open_alone, store_error};
use base::block::FileDevice;
use command::error::CliError;
use mem::checkpoint::{self, CheckpointError, SaveOptions, SaveReport, StorageError, Taken};
use mem::{Attachment, Node};
use std::path::Path;

/// Default name of a checkpoint.
pub const CHECKPOINT_NAME: &str = "mem";

/// Opens a store for checkpoints. `writes`: they are saved or deleted, not only read.
///
/// # Errors
/// As [`open_alone`].
pub fn open(image: &Path, writes: bool) -> Result<FlashStorage<FileDevice>, CliError> {
    open_alone(image, writes).map(FlashStorage::new)
}

/// Closes the store of checkpoints.
///
/// # Errors
/// The device refuses the last writes.
pub fn close(image: &Path, storage: FlashStorage<FileDevice>) -> Result<(), CliError> {
    storage.close().map_err(|error| store_error(image, &error))
}

/// Returns the error of a checkpoint of `region` in the store `image`, in terms of the command line.
#[must_use]
pub fn checkpoint_error(region: &Path, image: &Path, error: &CheckpointError) -> CliError {
    match error {
        CheckpointError::Region(error) => region_error(region, error),
        CheckpointError::Storage(StorageError::Full) => {
            no_room(image, "the checkpoint before is there still")
        }
        CheckpointError::Storage(error) => CliError::failure(
            image.display(),
            error,
            format!("see all damage with `keel flash check {}`", image.display()),
        ),
        CheckpointError::NotEmpty => CliError::failure(
            region.display(),
            "has files already",
            "restore into a region that does not exist yet, or is empty",
        ),
        CheckpointError::Name => CliError::usage("--name", error, "choose another name"),
        other => CliError::failure(region.display(), other, ""),
    }
}

fn no_room(image: &Path, what_is_there: &str) -> CliError {
    CliError::failure(
        image.display(),
        format_args!("no room for the checkpoint; {what_is_there}"),
        "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
    )
}

/// Takes a checkpoint without these files, and closes the store. `verify`: the existing checkpoint is read completely,
/// and damaged data are written again. `progress` gets the bytes that are done, and all bytes.
///
/// # Errors
/// The region cannot be read, or the store takes no more; the checkpoint before then stays.
pub fn save(
    attachment: &Attachment,
    image: &Path,
    (name, left_out): (&str, &[Node]),
    verify: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SaveReport, CliError> {
    let region = attachment.region().path();
    let mut storage = open(image, true)?;
    let is_first = matches!(checkpoint::newest(&mut storage, name), Ok(None));
    let saved = attachment
        .writer()
        .map_err(CheckpointError::from)
        .and_then(|writer| {
            let options = SaveOptions {
                name,
                now_ns: mem::now_ns(),
                random: u64::from_le_bytes(
                    command::random::bytes().unwrap_or_else(|_| mem::now_ns().to_le_bytes()),
                ),
                verify,
                left_out,
            };
            checkpoint::save(&writer, &mut storage, &options, progress)
        })
        .map_err(|error| match error {
            CheckpointError::Storage(StorageError::Full) if is_first => {
                no_room(image, "nothing is saved yet")
            }
            error => checkpoint_error(region, image, &error),
        });
    let closed = close(image, storage);
    let report = saved?;
    closed?;
    Ok(report)
}

/// Takes a checkpoint without these files, for callers that show no progress.
///
/// # Errors
/// As [`save`].
pub fn checkpoint_now(
    attachment: &Attachment,
    image: &Path,
    name: &str,
    left_out: &[Node],
) -> Result<SaveReport, CliError> {
    save(attachment, image, (name, left_out), false, &mut |_, _| {})
}

/// Returns the newest checkpoint, which shows what a power cut would lose.
///
/// # Errors
/// The store cannot be opened or read.
pub fn newest(region: &Path, image: &Path, name: &str) -> Result<Option<Taken>, CliError> {
    let mut storage = open(image, false)?;
    checkpoint::newest(&mut storage, name).map_err(|error| checkpoint_error(region, image, &error))
}
