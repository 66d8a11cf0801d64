//! `keel mem stat`: figures of a region, or of one file.

use super::entry::{AT, Line, looking, outside, path_error, type_text, walk};
use super::flush::flush_text;
use super::text::{milliseconds, mode_text, shown};
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use command::progress::bytes_text;
use mem::{Attachment, Last};
use node::regions::{self, CHECKPOINT_NAME, Ground, region_error};
use node::time_text::{age_text, format_ms};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem stat /dev/hugepages/plant\n  \
    keel mem stat /dev/hugepages/plant --checkpoint plant.img\n  \
    keel mem stat /dev/hugepages/plant logs/today --json")]
pub(crate) struct StatArgs {
    /// File of the region
    region: PathBuf,
    /// File or directory in it
    path: Option<PathBuf>,
    /// Also print the age of its newest checkpoint in this flash store: what a power cut would take
    #[arg(long, value_name = "IMAGE", conflicts_with = "path")]
    checkpoint: Option<PathBuf>,
    /// Name of the checkpoint
    #[arg(long, default_value = CHECKPOINT_NAME, requires = "checkpoint")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &StatArgs) -> Result<u8, CliError> {
    let (region, as_json) = (&arguments.region, arguments.json);
    match &arguments.path {
        Some(path) => stat_file(region, path, as_json),
        None => stat_region(
            region,
            arguments.checkpoint.as_deref(),
            &arguments.name,
            as_json,
        ),
    }
}

fn stat_file(region: &Path, path: &Path, as_json: bool) -> Result<u8, CliError> {
    let found = looking(region, |attachment| {
        let Some(found) = walk(attachment, path, Last::NoFollow)? else {
            return Ok(None);
        };
        let name = path.as_os_str().as_bytes().to_vec();
        Line::new(attachment, name, found).map(Some)
    })?;
    let line = found
        .map_err(|error| path_error(region, path, &error))?
        .ok_or_else(|| outside(path))?;
    let mut out = Output::new();
    if as_json {
        out.json(&line.json())?;
    } else {
        let found = &line.attributes;
        let time = |time_ns| format_ms(milliseconds(time_ns));
        out.line(format_args!("name          {}", shown(&line.name)))?;
        out.line(format_args!("type          {}", type_text(found.mode)))?;
        if let Some(target) = &line.target {
            out.line(format_args!("leads to      {}", shown(target)))?;
        }
        out.line(format_args!(
            "length        {} bytes ({})",
            found.size,
            bytes_text(found.size)
        ))?;
        out.line(format_args!(
            "permissions   {:04o} ({})",
            found.mode & 0o7777,
            mode_text(found.mode)
        ))?;
        out.line(format_args!("owner         {}:{}", found.user, found.group))?;
        out.line(format_args!("names         {}", found.links))?;
        out.line(format_args!("inode         {}", found.inode))?;
        out.line(format_args!("modified      {}", time(found.modified_ns)))?;
        out.line(format_args!("changed       {}", time(found.changed_ns)))?;
        out.line(format_args!("read          {}", time(found.accessed_ns)))?;
    }
    out.flush()?;
    Ok(0)
}

fn stat_region(
    region: &Path,
    image: Option<&Path>,
    name: &str,
    as_json: bool,
) -> Result<u8, CliError> {
    let taken = image
        .map(|image| regions::newest(region, image, name))
        .transpose()?;
    let attachment =
        Attachment::open(region, AT, false).map_err(|error| region_error(region, &error))?;
    let ground = Ground::of(region)?;
    let seen = attachment.region();
    let layout = seen.layout();
    let data_bytes = layout.data_pages() * mem::PAGE_BYTES;
    let used_bytes = data_bytes.saturating_sub(seen.free_bytes());
    // Deleted files that are still open have inode numbers, too, and so has the root.
    let files = seen.inodes().saturating_sub(seen.orphans() + 1);
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "capacity_bytes": layout.capacity_bytes,
            "data_bytes": data_bytes,
            "free_bytes": seen.free_bytes(),
            "files": files,
            "files_max": layout.inode_count - 2,
            "deleted_open_files": seen.orphans(),
            "lanes_taken": seen.lanes_taken(),
            "lanes": layout.lane_count,
            "backing": ground.name(),
            "huge_pages": ground.has_huge_pages(),
            "flush": seen.flush().name(),
            "persistent_memory": seen.is_persistent(),
            "format": seen.format_version(),
            "checkpoint": taken.flatten().map(|taken| json!({
                "generation": taken.generation,
                "taken_ms": milliseconds(taken.taken_ns),
                "age_ms": milliseconds(mem::now_ns()) - milliseconds(taken.taken_ns),
            })),
        }))?;
    } else {
        out.line(format_args!(
            "memory        {}, {}",
            bytes_text(layout.capacity_bytes),
            ground.short()
        ))?;
        out.line(format_args!("for files     {}", bytes_text(data_bytes)))?;
        out.line(format_args!("used          {}", bytes_text(used_bytes)))?;
        out.line(format_args!(
            "free          {}",
            bytes_text(seen.free_bytes())
        ))?;
        out.line(format_args!(
            "files         {files}, directories included (room for {})",
            layout.inode_count - 2
        ))?;
        out.line(format_args!("deleted open  {}", seen.orphans()))?;
        out.line(format_args!(
            "writers       {} (room for {})",
            seen.lanes_taken(),
            layout.lane_count
        ))?;
        out.line(format_args!(
            "flush         {}",
            flush_text(seen).unwrap_or_else(|| seen.flush().name().to_owned())
        ))?;
        out.line(format_args!("format        {}", seen.format_version()))?;
        match taken {
            None => {}
            Some(None) => out.line("checkpoint    none: a power cut would take all")?,
            Some(Some(taken)) => {
                let taken_ms = milliseconds(taken.taken_ns);
                out.line(format_args!(
                    "checkpoint    {} of {}: a power cut would take what was written in the last {}",
                    taken.generation,
                    format_ms(taken_ms),
                    age_text(milliseconds(mem::now_ns()) - taken_ms)
                ))?;
            }
        }
    }
    out.flush()?;
    Ok(0)
}
