//! `keel mem`: commands on regions. `create.rs` makes one, `run.rs` runs programs with it, `mount.rs` shows it to all
//! others, `look.rs` says what is in it, `check.rs` whether it is whole, `checkpoint.rs` saves and restores it;
//! `backing.rs` what its memory is, `program.rs` whether a program can be served, `storage.rs` a flash store as the
//! place for checkpoints.

mod backing;
mod check;
mod checkpoint;
mod create;
mod look;
mod mount;
mod program;
mod run;
mod storage;

pub(crate) use checkpoint::{checkpoint_error, checkpoint_now};
pub(crate) use create::make_plainly;
pub(crate) use storage::FlashStorage;

pub(crate) use crate::cli::CHECKPOINT_NAME;
use crate::cli::{MemCommand, MemFlush};
use crate::error::{CliError, describe};
use mem::{Error, Flush};
use std::path::Path;

/// Runs one command; the answer is the exit status.
pub(crate) fn run(command: &MemCommand) -> Result<u8, CliError> {
    match command {
        MemCommand::Create {
            region,
            size,
            files,
            lanes,
            mode,
            flush,
            json,
        } => create::create(
            region,
            &create::Wanted {
                size: *size,
                files: *files,
                lanes: *lanes,
                mode: *mode,
                flush: flush.map(|flush| match flush {
                    MemFlush::None => Flush::None,
                    MemFlush::CacheLines => Flush::CacheLines,
                }),
            },
            *json,
        ),
        MemCommand::Check {
            region,
            repair,
            json,
        } => check::check(region, *repair, *json),
        MemCommand::Checkpoint {
            region,
            image,
            name,
            verify,
            json,
        } => checkpoint::checkpoint(region, image, name, *verify, *json),
        MemCommand::Restore {
            region,
            image,
            name,
            size,
            mode,
            json,
        } => checkpoint::restore(
            region,
            image,
            &checkpoint::Wanted {
                name,
                size: *size,
                mode: *mode,
            },
            *json,
        ),
        MemCommand::Run(arguments) => run::run(arguments),
        MemCommand::Mount {
            region,
            directory,
            read_only,
            allow_other,
        } => mount::mount(region, directory, *read_only, *allow_other),
        MemCommand::Ls {
            region,
            path,
            long,
            json,
        } => look::ls(region, path, *long, *json),
        MemCommand::Stat {
            region,
            path: None,
            checkpoint,
            name,
            json,
        } => look::stat_region(region, checkpoint.as_deref(), name, *json),
        MemCommand::Stat {
            region,
            path: Some(path),
            json,
            ..
        } => look::stat(region, path, *json),
    }
}

/// An error of the region as a whole.
pub(crate) fn region_error(region: &Path, error: &Error) -> CliError {
    let shown = region.display();
    match error {
        Error::System { path, what, source } => CliError::failure(
            path.display(),
            format_args!("{what}: {}", describe(source)),
            match source.raw_os_error() {
                Some(libc::ENOENT) => "check the path; `keel mem create` makes a region",
                Some(libc::EACCES | libc::EPERM) => {
                    "check the permissions, or run as a user who may"
                }
                Some(libc::ENOSPC | libc::ENOMEM) => {
                    "another program was faster: free some memory, then try again"
                }
                Some(libc::EFBIG) => {
                    "this file system has no room for files of that address space: choose tmpfs or hugetlbfs"
                }
                Some(libc::EISDIR) => "name a file",
                _ => "try again, and check the file system if it stays",
            },
        ),
        Error::NotARegion { .. } => CliError::failure(
            shown,
            "is not a region",
            "check the path; `keel mem create` makes a region",
        ),
        Error::Version { .. } => CliError::failure(
            shown,
            "was made by another version of keel",
            "use that version, or make a new region",
        ),
        Error::LanesFull => CliError::failure(
            shown,
            error,
            "end some of them, or make a region with more --lanes",
        ),
        // The remedy stands in its own text.
        Error::Namespace { .. } => CliError::failure(
            shown,
            "used in another namespace of processes",
            "mount it there with `keel mem mount`, and use the mount here",
        ),
        Error::Damaged { .. } => CliError::failure(
            &shown,
            error,
            format!("see all damage with `keel mem check {shown}`"),
        ),
        Error::ReadOnly => CliError::failure(
            shown,
            error,
            "run as a user who may write to the region's file",
        ),
        other => CliError::failure(shown, other, ""),
    }
}
