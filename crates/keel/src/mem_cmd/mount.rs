//! `keel mem mount`: a region as a directory, until it is unmounted or told to stop.

use crate::error::CliError;
use crate::mounting::{self, StopSignals, unmount_command};
use crate::output::{Output, counted};
use clap::Args;
use command::progress::bytes_text;
use mem::{Attachment, Swept};
use mem_mount::{MountError, MountOptions};
use node::regions::region_error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Poll interval for failures.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem mount /dev/hugepages/plant /mnt/plant\n  \
    keel mem mount /dev/hugepages/plant /mnt/plant --read-only --allow-other\n\n\
    The mount runs until `umount DIR`, Ctrl-C or SIGTERM. It shows the same files as `keel mem run`, at the\n\
    same time, and is for programs that `keel mem run` cannot serve: static ones, Go, setuid. Every call goes\n\
    through the kernel twice, so it is slower. docs/semantics-mem-mount.md lists what programs can do there.")]
pub(crate) struct MountArgs {
    /// File of the region
    region: PathBuf,
    /// Empty directory to mount the region on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Change nothing; do not even open the region for writing
    #[arg(long)]
    read_only: bool,
    /// Give other users access, according to the permission bits
    #[arg(long)]
    allow_other: bool,
}

/// Runs until the mount ends.
pub(super) fn run(arguments: &MountArgs) -> Result<u8, CliError> {
    let (region, directory) = (&arguments.region, &arguments.directory);
    let is_read_only = arguments.read_only;
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
                "mount it with --read-only, or run as a user with write access",
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
        allows_other_users: arguments.allow_other,
    };
    mounting::runtime()?.block_on(async {
        // Catch signals from here on: the parent may stop this process as soon as it is mounted.
        let mut stops = StopSignals::catch()?;
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
                () = stops.wait() => break,
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
