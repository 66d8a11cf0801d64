//! The error of a region as a whole, in terms of the command line.

use command::error::{CliError, describe};
use mem::Error;
use std::path::Path;

/// Returns the error of the region as a whole.
#[must_use]
pub fn region_error(region: &Path, error: &Error) -> CliError {
    let shown = region.display();
    match error {
        Error::System { source, .. } if source.raw_os_error() == Some(libc::EMFILE) => {
            limit_of_descriptors(source)
        }
        // This is about address space, not about memory, which the region has already.
        Error::System { source, what, .. }
            if source.raw_os_error() == Some(libc::ENOMEM) && *what == "cannot be mapped" =>
        {
            limit_of_address_space(region, source)
        }
        Error::System { path, what, source } => CliError::failure(
            path.display(),
            format_args!("{what}: {}", describe(source)),
            match source.raw_os_error() {
                Some(libc::ENOENT) => "check the path; `keel mem create` makes a region",
                Some(libc::EACCES | libc::EPERM) => {
                    "check the permissions, or run as a user with access"
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
            &shown,
            "is not a region",
            format!(
                "check the path, or, if it was one, mend it with `keel mem check --repair {shown}`"
            ),
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
        // The error's own text holds the remedy, too: the line needs the two apart.
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
            "run as a user with write access to the region's file",
        ),
        other => CliError::failure(shown, other, ""),
    }
}

/// Widens a number of the C library, which has 32 bits on some boards.
fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

/// Returns the limit of this process, as the kernel counts it; `None` if there is none.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut found = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid structure for the result.
    let answer = unsafe { libc::getrlimit(resource, &raw mut found) };
    let is_limited = answer == 0 && found.rlim_cur != libc::RLIM_INFINITY;
    is_limited.then(|| wide(found.rlim_cur))
}

/// Returns the error of a too low limit of descriptors.
#[must_use]
pub fn limit_of_descriptors(error: &std::io::Error) -> CliError {
    match limit(libc::RLIMIT_NOFILE) {
        Some(allowed) => CliError::failure(
            "open files",
            format_args!("a limit (`ulimit -n`) allows this program {allowed}, which are too few"),
            "raise it with `ulimit -n 1024`, then try again",
        ),
        None => CliError::io("open files", error),
    }
}

/// Returns the error of a region that does not fit into the permitted address space.
fn limit_of_address_space(region: &Path, error: &std::io::Error) -> CliError {
    let wanted = region.metadata().map_or(0, |metadata| metadata.len());
    match limit(libc::RLIMIT_AS) {
        Some(allowed) => CliError::failure(
            region.display(),
            format_args!(
                "takes {} KiB of address space, of which little is memory, and a limit (`ulimit -v`) allows {} KiB",
                wanted.div_ceil(1024),
                allowed / 1024
            ),
            "lift it with `ulimit -v unlimited`, then try again",
        ),
        None => CliError::failure(
            region.display(),
            format_args!("cannot be mapped: {}", describe(error)),
            "end other programs that take address space, or allow more (`sysctl vm.max_map_count`)",
        ),
    }
}
