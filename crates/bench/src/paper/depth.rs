//! The paper's motivating experiment: opening files at random with cold caches, by the depth of their directory on
//! ext4, beside the store's flat namespace. Each file has its own chain of directories, so that each open is the first
//! access to all of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use base::sim::Random;
use flash::{OpenOptions, Store};

use super::scenarios::drop_caches;
use crate::machine::Disk;
use crate::report::Samples;
use crate::scratch::check_interrupted;
use crate::store::{Ext4Disk, LoopDevice, describe, format_options, many_name, open_direct, timed};

/// The case in reports.
pub(crate) const CASE: &str = "paper-open-by-depth";

/// Nesting depths on ext4 and their systems in reports.
const DEPTHS: [(usize, &str); 3] = [
    (0, "ext4-depth-0"),
    (4, "ext4-depth-4"),
    (16, "ext4-depth-16"),
];

/// Our system in reports: it has no depth, and no variant that reads differently.
pub(crate) const KEEL_FLAT: &str = "keel-sync";

fn file_path(folder: &Path, depth: usize, index: u32) -> PathBuf {
    let mut path = folder.join(format!("depth-{depth}"));
    if depth > 0 {
        path.push(format!("chain-{index}"));
        for level in 1..depth {
            path.push(format!("level-{level}"));
        }
    }
    path.join(format!("file-{index}"))
}

/// Opens each of `files` files once, in random order, at each depth and in the store.
///
/// # Errors
/// One line with the reason.
pub(crate) fn run(
    folder: &Path,
    files: u32,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<Samples>, String> {
    // Directories take a block and an inode each.
    let directories: u64 = DEPTHS.iter().map(|(depth, _)| *depth as u64).sum();
    let ext4_bytes = (128 << 20) + u64::from(files) * directories * 5 * 1024;
    let mut disks = Vec::new();
    for (depth, _) in DEPTHS {
        let share = (ext4_bytes - (96 << 20)) * depth as u64 / directories + (96 << 20);
        let mut disk = Ext4Disk::create(folder, &format!("depth-{depth}"), share)?;
        for index in 0..files {
            if index.is_multiple_of(500) {
                show(&format!(
                    "making files at depth {depth}: {index} of {files}"
                ));
                check_interrupted()?;
            }
            let path = file_path(disk.folder(), depth, index);
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            fs::write(&path, b"x").map_err(failed)?;
        }
        // The journal would otherwise keep blocks in memory that dropping the caches does not release.
        disk.remount()?;
        disks.push(disk);
    }
    let device = LoopDevice::create(folder, "flat", (64 << 20) + u64::from(files) * 4096)?;
    let options = format_options(u64::from(files));
    let formatted = Store::format(open_direct(device.path())?, &options);
    let mut store = formatted.map_err(describe)?;
    for index in 0..u64::from(files) {
        if index.is_multiple_of(500) {
            show(&format!("making files in the store: {index} of {files}"));
            check_interrupted()?;
        }
        let file = store.create(&many_name(index)).map_err(describe)?;
        store.close_file(file);
    }
    store.close().map_err(describe)?;
    let opened = Store::open(open_direct(device.path())?, &OpenOptions::default());
    let mut store = opened.map_err(describe)?;

    let mut counters: Vec<_> = disks
        .iter()
        .map(|disk| Disk::below(disk.folder()))
        .collect();
    counters.push(Disk::at(device.path()));
    let systems = DEPTHS.map(|(_, system)| system).into_iter();
    let mut samples: Vec<_> = systems
        .chain([KEEL_FLAT])
        .zip(&counters)
        .map(|(system, disk)| {
            Samples::new(CASE, system, disk.as_ref().map(|_| "own disk"), 1, files)
        })
        .collect();
    let mut random = Random::new(9);
    let mut orders: Vec<Vec<u32>> = Vec::new();
    for _ in 0..samples.len() {
        let mut order: Vec<u32> = (0..files).collect();
        random.shuffle(&mut order);
        orders.push(order);
    }
    drop_caches()?;
    let counts = |disk: &Option<Disk>| disk.as_ref().and_then(Disk::counts);
    let before: Vec<_> = counters.iter().map(counts).collect();
    for step in 0..files as usize {
        let indexes: Vec<u32> = orders.iter().map(|order| order[step]).collect();
        if step.is_multiple_of(100) {
            show(&format!("opening by depth: {step} of {files}"));
        }
        check_interrupted()?;
        for turn in 0..samples.len() {
            let which = (step + turn) % samples.len();
            let index = indexes[which];
            let elapsed_ns = match DEPTHS.get(which) {
                Some((depth, _)) => {
                    let path = file_path(disks[which].folder(), *depth, index);
                    let (opened, elapsed_ns) = timed(|| File::open(&path));
                    opened.map_err(|error| format!("{}: {error}", path.display()))?;
                    elapsed_ns
                }
                None => {
                    let name = many_name(u64::from(index));
                    let (opened, elapsed_ns) = timed(|| store.open_file(&name));
                    store.close_file(opened.map_err(describe)?);
                    elapsed_ns
                }
            };
            samples[which].record_latency(elapsed_ns);
        }
    }
    for (which, disk) in counters.iter().enumerate() {
        if let (Some(before), Some(after)) = (before[which], counts(disk)) {
            samples[which].set_totals(after.since(before));
        }
    }
    drop(store);
    Ok(samples)
}
