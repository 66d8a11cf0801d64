//! `keel flash mount`: a store as a directory, until it is unmounted or told to stop.

use crate::argument::{identity, permission_bits};
use crate::error::CliError;
use crate::mounting::{self, StopSignals, unmount_command};
use crate::output::{Output, counted};
use base::block::{BLOCK_BYTES, FileDevice, FileDeviceOptions};
use base::clock::SystemClock;
use clap::Args;
use command::progress::bytes_text;
use flash::{OpenOptions, Store};
use flash_mount::{Leftovers, MountError, MountOptions, Mounted, Presentation};
use node::stores::{device_error, find_image, store_error};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        keel flash mount store.img /mnt/plant\n  \
        keel flash mount /dev/mmcblk0p3 /mnt/plant --allow-other --uid 1000 --mode 640\n\n\
        The mount runs until `umount DIR`, Ctrl-C or SIGTERM. Any user can mount if the package fuse3 is\n\
        installed; root needs no package. docs/semantics-flash.md lists what programs can do there, and the\n\
        error for what they cannot do: one directory, no links, data durable after fsync.")]
pub(crate) struct MountArgs {
    /// File or block device
    image: PathBuf,
    /// Empty directory to mount the store on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Change nothing, not even what recovery would repair
    #[arg(long)]
    read_only: bool,
    /// Give other users access, according to the permission bits
    #[arg(long)]
    allow_other: bool,
    /// Make every write durable before it returns, as with O_SYNC
    #[arg(long)]
    sync: bool,
    /// Maximum delay until a write without fsync is durable, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    sync_seconds: u16,
    /// Maximum number of open files; their memory is allocated at the start
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=flash_mount::OPEN_FILES_MAX as i64))]
    open_files: u16,
    /// Permission bits of every file, octal
    #[arg(long, value_name = "BITS", default_value = "644", value_parser = permission_bits)]
    mode: u16,
    /// Owner of every file (user ID) [default: the user that mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    uid: Option<u32>,
    /// Group of every file (group ID) [default: the group of the user that mounts]
    #[arg(long, value_name = "N", value_parser = identity)]
    gid: Option<u32>,
}

/// Runs until the mount ends.
pub(super) fn run(arguments: &MountArgs) -> Result<u8, CliError> {
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
    mounting::runtime()?.block_on(async {
        // Catch signals from here on: the parent may stop this process as soon as it is mounted.
        let mut stops = StopSignals::catch()?;
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
                () = stops.wait() => break,
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
