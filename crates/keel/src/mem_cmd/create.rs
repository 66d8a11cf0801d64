//! `keel mem create`.

use super::flush::{MemFlush, flush_text};
use crate::argument::{permission_bits, size};
use crate::error::CliError;
use crate::flash_cmd::interruption::Interruption;
use crate::output::Output;
use clap::Args;
use command::progress::bytes_text;
use mem::{Flush, PAGE_BYTES, Region, RegionOptions};
use node::regions::{Ground, fill};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem create /dev/hugepages/plant --size 1G\n  \
    keel mem create /dev/shm/plant --size 256M --files 10000 --mode 660\n\n\
    Huge pages are the fastest: `sysctl vm.nr_hugepages=N` reserves N pages of 2 MiB each, best right after the\n\
    boot. They are used on /dev/hugepages, or where `mount -t hugetlbfs none DIR` puts them. The next fastest\n\
    is tmpfs mounted with huge=always, then ordinary tmpfs, such as /dev/shm.")]
pub(crate) struct CreateArgs {
    /// File to create; its folder determines the kind of memory
    region: PathBuf,
    /// Memory of the region, in bytes or with K, M, G or T, rounded down to whole 2 MiB
    #[arg(long, value_parser = size)]
    size: u64,
    /// Maximum number of files and directories, from 16 to 16777216 [default: one for each 32 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    files: Option<u64>,
    /// Number of threads that can write at the same time, in all programs together [default: one for each 4 MiB, 64
    /// to 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
    lanes: Option<u32>,
    /// Permission bits of the region, octal; they apply to everything in it
    #[arg(long, value_name = "BITS", default_value = "600", value_parser = permission_bits)]
    mode: u16,
    /// How a call becomes durable on memory that keeps its content without power [default: cache-lines on
    /// persistent memory (a DAX file system), else none]
    #[arg(long, value_enum, value_name = "HOW")]
    flush: Option<MemFlush>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CreateArgs) -> Result<u8, CliError> {
    let region = &arguments.region;
    let capacity_bytes = arguments.size / PAGE_BYTES * PAGE_BYTES;
    let options = RegionOptions {
        capacity_bytes,
        files_max: arguments.files,
        lanes: (arguments.lanes).unwrap_or_else(|| RegionOptions::lanes_for(capacity_bytes)),
    };
    let flush = arguments.flush.map(MemFlush::setting);
    let smaller = "choose a smaller --size";
    let (made, ground) = make(region, &options, arguments.mode, flush, smaller)?;
    let layout = made.layout();
    let mut out = Output::new();
    if arguments.json {
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
            "choose another path, or remove it first if no program uses it",
        ));
    }
    let ground = Ground::of(region)?;
    ground.require(region, layout.capacity_bytes, smaller)?;
    let interruption = Interruption::remove(region);
    let made = fill(region, options, mode, flush, ground)?;
    drop(interruption);
    Ok(made)
}
