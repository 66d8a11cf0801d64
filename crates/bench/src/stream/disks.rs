//! Trees on local disks: ext4 on a loop device over a file of this machine's disk, and a disk as slow as an SD card.
//! The latter is a file in memory, with a limit on the reads of the processes that use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::groups::Group;
use super::leftovers::{self, DISK_KIND};
use super::sys;
use super::tree;
use crate::mem::memory::Mount;
use crate::scratch::check_interrupted;
use crate::store::tool;

/// Limits of an SD card per second: reads, and bytes.
pub(crate) const CARD_READS_PER_S: u32 = 1600;
pub(crate) const CARD_BYTES_PER_S: u32 = 20_000_000;

/// Readahead of the kernel for a card, in KiB; a loop device has more by default.
const READAHEAD_KIB: u32 = 128;

/// Bytes of a file system in addition to those of files.
const TABLES_BYTES: u64 = 48 << 20;

/// Duration of the check of the limit.
const CHECK: Duration = Duration::from_millis(1500);

/// Size of a sequential read in bytes, equal to the readahead.
const CHECK_BYTES: usize = 128 << 10;

/// A tree on its own read-only ext4.
pub(crate) struct Disk {
    image: PathBuf,
    device: PathBuf,
    mounted: Option<Mount>,
    folder: PathBuf,
}

impl Disk {
    /// Creates a disk that contains `from`. Its image lies in `parent`; the loop device reads the image with direct I/O
    /// if possible.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn create(parent: &Path, name: &str, from: &Path) -> Result<Self, String> {
        let image = parent.join(format!("{name}.{DISK_KIND}"));
        let (bytes, files) = tree::extent(from)?;
        let bytes = bytes + bytes / 8 + files * 8192 + TABLES_BYTES;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args([
            "-q",
            "-F",
            "-b",
            "4096",
            "-m",
            "0",
            "-O",
            "^has_journal",
            "-d",
        ]);
        mkfs.arg(from).arg(&image).arg(format!("{}k", bytes >> 10));
        tool(&mut mkfs)?;
        let attach = |direct: &str| {
            let mut command = Command::new("losetup");
            tool(
                command
                    .args(["--show", "--read-only", direct, "-f"])
                    .arg(&image),
            )
        };
        let device = attach("--direct-io=on").or_else(|_| attach("--direct-io=off"))?;
        let mut disk = Self {
            image,
            device: PathBuf::from(device.trim()),
            mounted: None,
            folder: parent.join(name),
        };
        let ahead = format!(
            "/sys/block/{}/queue/read_ahead_kb",
            disk.device
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
        );
        fs::write(&ahead, READAHEAD_KIB.to_string())
            .map_err(|error| format!("{ahead}: {error}"))?;
        disk.mount()?;
        Ok(disk)
    }

    /// Unmounts and mounts the disk again, so that the kernel has nothing of it in its caches.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn remount(&mut self) -> Result<(), String> {
        self.mounted = None;
        let _ = fs::remove_dir(&self.folder);
        self.mount()
    }

    /// Returns the folder of the tree.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the block device.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    fn mount(&mut self) -> Result<(), String> {
        let options = ["-t", "ext4", "-o", "ro,noatime"];
        self.mounted = Some(Mount::of(&self.device, &options, &self.folder)?);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.mounted = None;
        if let Err(error) = tool(Command::new("losetup").arg("-d").arg(&self.device)) {
            eprintln!(
                "keel-bench: {}: {error}; detach it by hand",
                self.device.display()
            );
        }
        let _ = fs::remove_file(&self.image);
    }
}

/// A disk that is as slow as a card for the processes of a group.
pub(crate) struct Card {
    pub(crate) disk: Disk,
    pub(crate) group: Group,
}

impl Card {
    /// Creates a disk that contains `from`; `memory` is a folder whose files are in memory.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn create(memory: &Path, name: &str, from: &Path) -> Result<Self, String> {
        let disk = Disk::create(memory, &leftovers::named(name), from)?;
        let group = Group::of_disk(name, disk.device(), CARD_READS_PER_S, CARD_BYTES_PER_S)?;
        Ok(Self { disk, group })
    }

    /// Returns its rates per second, measured by a process of its group: single blocks at random places, and sequential
    /// bytes.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn check(&self) -> Result<(f64, f64), String> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        sys::in_network(&mut command, None);
        command
            .arg("stream-reads")
            .arg("--disk")
            .arg(self.disk.device());
        let text = tool(command.arg("--join").arg(self.group.members()))?;
        let mut figures = text
            .split_whitespace()
            .map(|figure| figure.parse().unwrap_or(f64::NAN));
        Ok((
            figures.next().unwrap_or(f64::NAN),
            figures.next().unwrap_or(f64::NAN),
        ))
    }
}

/// `keel-bench stream-reads`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReadsOptions {
    /// Block device.
    #[arg(long, value_name = "FILE")]
    disk: PathBuf,
    /// File in which the number of this process is written first.
    #[arg(long, value_name = "FILE")]
    join: PathBuf,
}

/// Prints the reads per second at random places, and the bytes per second in order.
///
/// # Errors
/// One line with the path.
pub(crate) fn reads(options: &ReadsOptions) -> Result<(), String> {
    use std::io::{Seek, SeekFrom};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let failed = |error: std::io::Error| format!("{}: {error}", options.disk.display());
    fs::write(&options.join, std::process::id().to_string()).map_err(failed)?;
    let mut open = fs::File::options();
    let mut disk = open
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&options.disk)
        .map_err(failed)?;
    let end = disk.seek(SeekFrom::End(0)).map_err(failed)?;
    // Direct reads need a page-aligned buffer.
    let mut memory = vec![0; CHECK_BYTES + 4096];
    let from = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[from..];
    let mut random = base::sim::Random::new(7);
    let mut per_second = |bytes: usize, places: &mut dyn FnMut() -> u64| -> Result<f64, String> {
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < CHECK {
            disk.read_exact_at(&mut buffer[..bytes], places())
                .map_err(failed)?;
            count += 1;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    };
    let reads_per_s = per_second(4096, &mut || random.below(end / 4096) * 4096)?;
    let mut next = 0;
    let in_order_per_s = per_second(CHECK_BYTES, &mut || {
        let bytes = CHECK_BYTES as u64;
        next = if next + 2 * bytes > end {
            0
        } else {
            next + bytes
        };
        next
    })?;
    println!("{reads_per_s} {}", in_order_per_s * CHECK_BYTES as f64);
    Ok(())
}

/// Drops all caches of previously read data.
///
/// # Errors
/// One line; only root may do so.
pub(crate) fn forget_all() -> Result<(), String> {
    check_interrupted()?;
    sys::drop_caches()
}
