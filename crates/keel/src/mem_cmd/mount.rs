//! `keel mem mount`: a region as a directory, until it is unmounted or told to stop.

use super::region_error;
use crate::error::CliError;
use crate::mounting::{self, Stops, unmount_command};
use crate::output::{Output, counted};
use crate::progress::bytes_text;
use mem::{Attachment, Swept};
use mem_mount::{MountError, MountOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Poll interval for failures.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until the mount ends.
pub(super) fn mount(
    region: &Path,
    directory: &Path,
    is_read_only: bool,
    allows_other_users: bool,
) -> Result<u8, CliError> {
    let wrong = |error: MountError| match &error {
        MountError::Mount(error) => mounting::mount_error(directory, error),
        MountError::Region(error) => region_error(region, error),
        _ => CliError::failure(directory.display(), &error, ""),
    };
    // Cheap checks first: a mistyped directory should not open the region.
    base::mount::check_directory(directory).map_err(|error| wrong(error.into()))?;
    let shown_at = directory
        .canonicalize()
        .map_err(|error| CliError::io(directory.display(), &error))?;
    let open = |writes| Attachment::open(region, shown_at.as_os_str().as_bytes(), writes);
    let attachment = open(!is_read_only).map_err(|error| match &error {
        mem::Error::System { source, .. }
            if is_denied(source) && !is_read_only && open(false).is_ok() =>
        {
            CliError::failure(
                region.display(),
                "may be read, but not written",
                "mount it with --read-only, or run as a user who may write to it",
            )
        }
        _ => region_error(region, &error),
    })?;
    let (files, free_bytes) = (
        attachment.region().inodes().saturating_sub(1),
        attachment.region().free_bytes(),
    );
    // Each file that a program opens through the mount takes one descriptor here.
    crate::descriptors::raise_limit();
    let options = MountOptions {
        source: region.display().to_string(),
        allows_other_users,
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
        let mounted = mem_mount::mount(attachment, directory, &options, move || {
            tell.notify_one();
        })
        .map_err(wrong)?;
        tell_leftovers(region, mounted.leftovers());
        let mut out = Output::new();
        let said = out
            .line(format_args!(
                "{} is mounted on {}: {} files and directories, {} free{}; `{} {}` or Ctrl-C ends it",
                region.display(),
                directory.display(),
                files,
                bytes_text(free_bytes),
                if is_read_only { ", read-only" } else { "" },
                unmount_command(),
                directory.display()
            ))
            .and_then(|()| out.flush());
        // The mount is valid even if its parent does not read the message.
        said.ok();
        let mut ticks = tokio::time::interval(LOOK_INTERVAL);
        let mut told = None;
        loop {
            tokio::select! {
                () = stops.come() => break,
                () = unmounted.notified() => break,
                _ = ticks.tick() => {
                    let failure = mounted.failure();
                    if let Some(failure) = failure.as_ref().filter(|_| failure != told) {
                        eprintln!("keel: {}: {failure}", region.display());
                    }
                    told = failure;
                }
            }
        }
        let ending = mounted.end();
        let kept_in = "in the region";
        mounting::tell_end(directory, &ending, kept_in, "the region is whole");
        Ok(u8::from(ending.was_aborted))
    })
}

fn is_denied(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS)
    )
}

fn tell_leftovers(region: &Path, found: Swept) {
    let region = region.display();
    // Every program that ends leaves writer places behind, which is harmless.
    if found.files > 0 {
        eprintln!(
            "keel: {region}: freed {} that programs had open when they died",
            counted(found.files, "deleted file")
        );
    }
}
