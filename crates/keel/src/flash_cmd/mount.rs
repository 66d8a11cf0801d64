//! `keel flash mount`: a store as a directory, until it is unmounted or told to stop.

use super::{device_error, find_image, store_error};
use crate::cli::MountArgs;
use crate::error::CliError;
use crate::mounting::{self, Stops, unmount_command};
use crate::output::{Output, counted};
use crate::progress::bytes_text;
use base::block::{BLOCK_BYTES, FileDevice, FileDeviceOptions};
use base::clock::SystemClock;
use flash::{OpenOptions, Store};
use flash_mount::{Leftovers, MountError, MountOptions, Mounted, Presentation};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

/// Runs until the mount ends.
pub(super) fn mount(arguments: &MountArgs) -> Result<u8, CliError> {
    let (image, directory) = (&arguments.image, &arguments.directory);
    let wrong = |error: MountError| mount_error(image, directory, &error);
    // Cheap checks first: a mistyped directory should not open the store.
    base::mount::check_directory(directory).map_err(|error| wrong(error.into()))?;
    let store = open(arguments)?;
    let (uid, gid) = base::mount::effective_ids();
    let options = MountOptions {
        source: image.display().to_string(),
        is_read_only: arguments.read_only,
        allows_other_users: arguments.allow_other,
        is_always_durable: arguments.sync,
        open_files_max: usize::from(arguments.open_files),
        presentation: Presentation {
            mode: arguments.mode,
            uid: arguments.uid.unwrap_or(uid),
            gid: arguments.gid.unwrap_or(gid),
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("signals", &error))?;
    runtime.block_on(async {
        // Catch signals from here on: the parent may stop this process as soon as it is mounted.
        let mut stops = Stops::heed()?;
        let unmounted = Arc::new(Notify::new());
        let tell = Arc::clone(&unmounted);
        let clock = Box::new(SystemClock::new());
        let mounted = flash_mount::mount(store, directory, &options, clock, move || {
            tell.notify_one();
        })
        .map_err(wrong)?;
        tell_leftovers(image, mounted.leftovers());
        let (files, blocks_free) = mounted
            .statistics()
            .map_or((0, 0), |figures| (figures.files, figures.blocks_free));
        let mut out = Output::new();
        let free = bytes_text(blocks_free * BLOCK_BYTES as u64);
        let said = out
            .line(format_args!(
                "{} is mounted on {}: files {}, free {free}{}; `{} {}` or Ctrl-C ends it",
                image.display(),
                directory.display(),
                files,
                if arguments.read_only {
                    ", read-only"
                } else {
                    ""
                },
                unmount_command(),
                directory.display()
            ))
            .and_then(|()| out.flush());
        // The mount is valid even if its parent does not read the message.
        said.ok();
        let mut ticks = tokio::time::interval(Duration::from_secs(arguments.sync_seconds.into()));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failure_told = false;
        loop {
            tokio::select! {
                () = stops.come() => break,
                () = unmounted.notified() => break,
                _ = ticks.tick() => {
                    mounted.sync_if_unsynced();
                    tell_failure(image, &mounted, &mut is_failure_told);
                }
            }
        }
        tell_failure(image, &mounted, &mut is_failure_told);
        let ending = mounted.end().map_err(|error| store_error(image, &error))?;
        let state = "the store is closed in order";
        mounting::tell_end(directory, &ending, "on the device", state);
        Ok(u8::from(is_failure_told || ending.was_aborted))
    })
}

fn open(arguments: &MountArgs) -> Result<Store<FileDevice>, CliError> {
    let image = &arguments.image;
    find_image(image)?;
    let device_options = FileDeviceOptions {
        create_bytes: None,
        read_only: arguments.read_only,
        direct: true,
        // Also for reading: the data that the kernel caches must not change on the device.
        exclusive: true,
    };
    let device =
        FileDevice::open(image, &device_options).map_err(|error| device_error(image, &error))?;
    let options = OpenOptions {
        // One more than programs may have: a file is opened briefly when it is changed by name.
        open_files_max: usize::from(arguments.open_files) + 1,
        read_only: arguments.read_only,
        ..OpenOptions::default()
    };
    Store::open(device, &options).map_err(|error| store_error(image, &error))
}

/// Reports once that the device failed. Programs see EIO, which is less specific.
fn tell_failure(image: &Path, mounted: &Mounted<FileDevice>, is_told: &mut bool) {
    if let Some(failure) = mounted.failure().filter(|_| !*is_told) {
        eprintln!(
            "keel: {}: {failure}; the mount goes on for reading, mount again to write",
            image.display()
        );
        *is_told = true;
    }
}

fn tell_leftovers(image: &Path, found: Leftovers) {
    let image = image.display();
    if found.files_deleted > 0 {
        eprintln!(
            "keel: {image}: freed {}, open when the last mount ended",
            counted(found.files_deleted, "deleted file")
        );
    }
    if found.renames_finished > 0 {
        eprintln!("keel: {image}: a rename finished that had begun");
    }
    if found.is_damaged {
        eprintln!(
            "keel: {image}: what the mount before has left is damaged; look for names that begin with .deleted- by \
             `keel flash ls {image}`"
        );
    }
}

fn mount_error(image: &Path, directory: &Path, error: &MountError) -> CliError {
    match error {
        MountError::Mount(error) => mounting::mount_error(directory, error),
        MountError::Store(source) => store_error(image, source),
        other => CliError::failure(directory.display(), other, ""),
    }
}
