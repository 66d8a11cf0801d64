//! Measures durable writes on the card: a small file is written and flushed like a node's log.

use super::Finding;
use crate::error::CliError;
use crate::flash_cmd::device_error;
use crate::lasting;
use crate::progress::Progress;
use base::block::{BLOCK_BYTES, BlockDevice, FileDevice, FileDeviceOptions};
use base::histogram::Histogram;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size of the file, in bytes.
const FILE_BYTES: u64 = 4 << 20;

/// The most writes, and the longest time for them.
const WRITES_MAX: u32 = 500;
const TIME_MAX: Duration = Duration::from_secs(10);

/// A slower write and flush delays commits at the default interval of 250 ms, in ns.
const SLOW_NS: u64 = 250_000_000;

/// The subject of the finding.
pub(super) const SUBJECT: &str = "write latency";

/// The result of the measurement.
pub(super) struct Card {
    histogram: Histogram,
    is_direct: bool,
    in_memory: bool,
    file_system: String,
    kind: String,
}

/// Removes the file on drop, in any case.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Repeatedly writes a block and flushes, in a new file in this folder.
pub(super) fn measure(folder: &Path) -> Result<Card, CliError> {
    let path = folder.join(format!(".keel-doctor-{}.tmp", std::process::id()));
    let progress = Progress::start("measuring the card".to_owned());
    let options = FileDeviceOptions {
        create_bytes: Some(FILE_BYTES),
        read_only: false,
        direct: true,
        exclusive: true,
    };
    let removed = Removed(path.clone());
    let failed = |error| device_error(&path, &error);
    let mut device = FileDevice::open(&path, &options).map_err(failed)?;
    device
        .write_zeros(&mut |bytes| progress.add(bytes))
        .map_err(failed)?;
    let blocks = FILE_BYTES / BLOCK_BYTES as u64;
    let content = [0x5a; BLOCK_BYTES];
    let mut histogram = Histogram::new();
    let begun = Instant::now();
    for number in 0..WRITES_MAX {
        let start = Instant::now();
        device
            .write(u64::from(number) % blocks, &content)
            .map_err(failed)?;
        device.flush().map_err(failed)?;
        histogram.record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if begun.elapsed() > TIME_MAX {
            break;
        }
    }
    let (file_system, kind) = below(folder);
    let card = Card {
        histogram,
        is_direct: device.is_direct(),
        in_memory: lasting::memory_warning(&path).is_some(),
        file_system,
        kind,
    };
    drop((device, removed));
    Ok(card)
}

/// Returns the file system of a folder, and the kind of device below it, such as `mmcblk` with the card's product name.
/// It contains no names of this machine's disks and no serial numbers.
fn below(folder: &Path) -> (String, String) {
    let unknown = || "unknown".to_owned();
    let Ok(found) = std::fs::metadata(folder) else {
        return (unknown(), unknown());
    };
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = format!("{major}:{minor}");
    let mut lines = table.lines();
    let line = lines.find(|line| line.split_whitespace().nth(2) == Some(&*wanted));
    let file_system = line.and_then(|line| line.split(" - ").nth(1)?.split_whitespace().next());
    let device = Path::new("/sys/dev/block").join(&wanted);
    let kind = std::fs::canonicalize(device).ok().map(|device| {
        let parts = device
            .components()
            .map(|part| part.as_os_str().to_string_lossy());
        let bus = ["mmc", "nvme", "ata", "usb", "virtio", "loop"]
            .into_iter()
            .find(|bus| parts.clone().any(|part| part.starts_with(bus)));
        // For a partition, the disk is the parent folder.
        let product = [device.as_path(), device.parent().unwrap_or(&device)]
            .into_iter()
            .find_map(|disk| {
                let read = |name| std::fs::read_to_string(disk.join(name)).ok();
                read("device/name").or_else(|| read("device/model"))
            });
        let product = product.unwrap_or_default();
        format!("{} {}", bus.unwrap_or("disk"), product.trim())
            .trim()
            .to_owned()
    });
    (
        file_system.map_or_else(unknown, str::to_owned),
        kind.unwrap_or_else(unknown),
    )
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Card {
    fn quantiles(&self) -> [u64; 3] {
        [
            self.histogram.percentile(50.0),
            self.histogram.percentile(99.0),
            self.histogram.max(),
        ]
    }

    pub(super) fn finding(&self) -> Finding {
        let [p50, p99, max] = self.quantiles();
        let text = format!(
            "{:.2} ms in the middle, {:.2} ms of 99 %, {:.2} ms at worst, of {} writes of 4 KiB with a flush, {} \
             ({}, {})",
            milliseconds(p50),
            milliseconds(p99),
            milliseconds(max),
            self.histogram.count(),
            if self.is_direct {
                "direct"
            } else {
                "through the page cache"
            },
            self.file_system,
            self.kind,
        );
        if self.in_memory {
            let remedy = "name a folder on the card with --dir";
            return Finding::missing(
                SUBJECT,
                format!("this folder lies in memory; {text}"),
                remedy,
            );
        }
        if !self.is_direct {
            let remedy = "put the store on ext4, xfs or f2fs, or on a block device of its own";
            return Finding::limited(SUBJECT, text, remedy);
        }
        if p99 > SLOW_NS {
            let remedy = "another card (class A2), or a longer store.commit_interval_ms; a node absorbs it and says \
                          `lagging`";
            return Finding::limited(SUBJECT, text, remedy);
        }
        Finding::ok(SUBJECT, text)
    }

    pub(super) fn json(&self) -> Value {
        let [p50, p99, max] = self.quantiles();
        json!({
            "writes": self.histogram.count(),
            "latency_p50_us": p50 / 1000,
            "latency_p99_us": p99 / 1000,
            "latency_max_us": max / 1000,
            "direct": self.is_direct,
            "in_memory": self.in_memory,
            "file_system": self.file_system,
            "kind": self.kind,
        })
    }
}
