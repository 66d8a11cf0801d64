//! `keel mem create`.

use super::backing::Ground;
use super::region_error;
use crate::error::CliError;
use crate::flash_cmd::interruption::Interruption;
use crate::output::Output;
use crate::progress::{Progress, bytes_text};
use mem::{Flush, NewInode, PAGE_BYTES, Region, RegionOptions};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The region to make.
pub(super) struct Wanted {
    pub(super) size: u64,
    pub(super) files: Option<u64>,
    /// `None`: the default of a region of this size.
    pub(super) lanes: Option<u32>,
    pub(super) mode: u16,
    /// `None`: the default of the file's memory.
    pub(super) flush: Option<Flush>,
}

pub(super) fn create(region: &Path, wanted: &Wanted, as_json: bool) -> Result<u8, CliError> {
    let capacity_bytes = wanted.size / PAGE_BYTES * PAGE_BYTES;
    let options = RegionOptions {
        capacity_bytes,
        files_max: wanted.files,
        lanes: (wanted.lanes).unwrap_or_else(|| RegionOptions::lanes_for(capacity_bytes)),
    };
    let smaller = "choose a smaller --size";
    let (made, ground) = make(region, &options, wanted.mode, wanted.flush, smaller)?;
    let layout = made.layout();
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "region": region.display().to_string(),
            "capacity_bytes": layout.capacity_bytes,
            "free_bytes": made.free_bytes(),
            "files_max": layout.inode_count - 2,
            "lanes": layout.lane_count,
            "backing": ground.name(),
            "huge_pages": ground.has_huge_pages(),
            "flush": made.flush().name(),
            "persistent_memory": made.is_persistent(),
            "format": made.format_version(),
        }))?;
    } else {
        out.line(format_args!(
            "{}: an empty region of {}, all of it taken: {} for files, the rest for tables for {} files and {} writers",
            region.display(),
            bytes_text(layout.capacity_bytes),
            bytes_text(made.free_bytes()),
            layout.inode_count - 2,
            layout.lane_count
        ))?;
        out.line(format_args!("memory: {}", meaning(&made, &ground)))?;
        if let Some(text) = flush_text(&made) {
            out.line(format_args!("flush: {text}"))?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn meaning(region: &Region, ground: &Ground) -> String {
    match region.is_persistent() {
        true => format!("persistent memory, {}", ground.short()),
        false => ground.meaning(),
    }
}

/// Returns how changes of a region are made durable, and whether that is possible.
pub(super) fn flush_text(region: &Region) -> Option<String> {
    let instruction = mem::instruction_name();
    match (region.flush(), region.is_persistent()) {
        (Flush::None, _) => None,
        (Flush::CacheLines, true) => Some(format!(
            "cache-lines ({instruction}): what a call has done outlives a loss of power"
        )),
        (Flush::CacheLines, false) => Some(format!(
            "cache-lines ({instruction}), but this is not persistent memory: it outlives a loss of power no better"
        )),
    }
}

/// Makes a region and allocates its memory; `smaller` says how to make a smaller one.
pub(super) fn make(
    region: &Path,
    options: &RegionOptions,
    mode: u16,
    flush: Option<Flush>,
    smaller: &str,
) -> Result<(Region, Ground), CliError> {
    // Report impossible options before checking the file system.
    let layout = mem::Layout::new(options).map_err(|error| CliError::usage("--size", error, ""))?;
    if region.is_dir() {
        return Err(CliError::failure(
            region.display(),
            "is a folder, and a region is a file",
            format!(
                "name a file in it, such as {}",
                region.join("plant").display()
            ),
        ));
    }
    if region.symlink_metadata().is_ok() {
        return Err(CliError::failure(
            region.display(),
            "exists already",
            "choose another path, or remove it first if nobody uses it",
        ));
    }
    let ground = Ground::of(region)?;
    ground.require(region, layout.capacity_bytes, smaller)?;
    let interruption = Interruption::remove(region);
    let made = fill(region, options, mode, flush, ground)?;
    drop(interruption);
    Ok(made)
}

/// Like [`make`], for callers that handle signals themselves.
pub(crate) fn make_plainly(
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

fn fill(
    region: &Path,
    options: &RegionOptions,
    mode: u16,
    flush: Option<Flush>,
    ground: Ground,
) -> Result<(Region, Ground), CliError> {
    let progress = Progress::start(format!("taking memory for {}", region.display()));
    let (user, group) = base::mount::effective_ids();
    let root = NewInode {
        // Users who may write to the region may make files in it.
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
    // Users who may read the region may enter the folder of its stubs; users who may write to it may create stubs.
    for (path, bits) in [
        (region, mode),
        (stubs.as_path(), mode | (mode & 0o444) >> 2),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits))
            .map_err(|error| CliError::io(path.display(), &error))?;
    }
    Ok((made, ground))
}
