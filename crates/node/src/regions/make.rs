//! Makes a region and takes its memory.

use super::backing::Ground;
use super::error::region_error;
use command::error::CliError;
use command::progress::Progress;
use mem::{Flush, NewInode, Region, RegionOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes a region and allocates its memory, with these permission bits; `smaller` says how to make a smaller one. The
/// caller handles signals: an interrupted call leaves a part of the region behind.
///
/// # Errors
/// The options make no region, or the place has too little memory or refuses the file.
pub fn make_plainly(
    region: &Path,
    options: &RegionOptions,
    mode: u16,
    smaller: &str,
) -> Result<(Region, Ground), CliError> {
    let layout = mem::Layout::new(options)
        .map_err(|error| CliError::failure(region.display(), error, smaller))?;
    let ground = Ground::of(region)?;
    ground.require(region, layout.capacity_bytes, smaller)?;
    fill(region, options, mode, None, ground)
}

/// Allocates the memory of a region on `ground`, which has been found large enough, and fills its tables.
///
/// # Errors
/// The file cannot be made, or its memory was taken meanwhile.
pub fn fill(
    region: &Path,
    options: &RegionOptions,
    mode: u16,
    flush: Option<Flush>,
    ground: Ground,
) -> Result<(Region, Ground), CliError> {
    let progress = Progress::start(format!("taking memory for {}", region.display()));
    let (user, group) = base::mount::effective_ids();
    let root = NewInode {
        // Users with write permission for the region may make files in it.
        mode: libc::S_IFDIR | 0o755 | u32::from(mode) & 0o022,
        user,
        group,
        now_ns: mem::now_ns(),
    };
    let made = Region::create_with_flush(region, options, &root, flush);
    drop(progress);
    let made = made.map_err(|error| match &error {
        // The folder exists; otherwise `Ground::of` would have failed.
        mem::Error::System { source, .. }
            if ground.is_of_the_kernel()
                && matches!(
                    source.raw_os_error(),
                    Some(libc::ENOENT | libc::EACCES | libc::EPERM | libc::EROFS)
                ) =>
        {
            CliError::failure(
                region.display(),
                format!("{} holds no files of users", ground.point().display()),
                "choose a folder on hugetlbfs, on tmpfs such as /dev/shm, or on a disk",
            )
        }
        _ => region_error(region, &error),
    })?;
    let mode = u32::from(mode);
    let stubs = mem::stubs_path(region);
    // Read permission for the region permits entering the folder of its stubs, write permission making stubs.
    for (path, bits) in [
        (region, mode),
        (stubs.as_path(), mode | (mode & 0o444) >> 2),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits))
            .map_err(|error| CliError::io(path.display(), &error))?;
    }
    Ok((made, ground))
}
