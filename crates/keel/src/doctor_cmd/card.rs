//! Measures durable writes on the card: a small file is written and flushed like a node's log.

use super::finding::{Fact, Finding, as_object, text_of};
use crate::error::CliError;
use base::block::{BLOCK_BYTES, BlockDevice, FileDevice, FileDeviceOptions};
use base::histogram::Histogram;
use command::persistence;
use command::progress::Progress;
use node::stores::device_error;
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
    seconds: f64,
    is_direct: bool,
    in_memory: bool,
    file_system: String,
    kind: String,
    /// What the kernel says of the device.
    pub(super) device: Vec<Fact>,
}

/// Removes the file on drop, in any case.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Repeatedly writes a block and flushes, in a new file in this folder. The description of its device is below `root`.
pub(super) fn measure(root: &Path, folder: &Path) -> Result<Card, CliError> {
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
    let seconds = begun.elapsed().as_secs_f64();
    let file_system = file_system(folder).unwrap_or_else(|| "unknown".to_owned());
    let disk = disk(root, folder);
    let kind = disk.as_deref().map(|disk| kind(root, disk));
    let card = Card {
        histogram,
        seconds,
        is_direct: device.is_direct(),
        in_memory: persistence::memory_warning(&path).is_some(),
        file_system,
        kind: kind.unwrap_or_else(|| "unknown".to_owned()),
        device: facts(disk.as_deref()),
    };
    drop((device, removed));
    Ok(card)
}

/// Returns the number of the device that a folder lies on, as in `179:2`.
fn number(folder: &Path) -> Option<String> {
    let found = std::fs::metadata(folder).ok()?.dev();
    Some(format!("{}:{}", libc::major(found), libc::minor(found)))
}

/// Returns the name of a folder's file system.
fn file_system(folder: &Path) -> Option<String> {
    let wanted = number(folder)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut lines = table.lines();
    let line = lines.find(|line| line.split_whitespace().nth(2) == Some(&*wanted))?;
    let name = line.split(" - ").nth(1)?.split_whitespace().next()?;
    Some(name.to_owned())
}

/// Returns the kernel's folder of the disk that a folder lies on; `None` if the kernel
/// names none, as for a file system in memory.
fn disk(root: &Path, folder: &Path) -> Option<PathBuf> {
    let device = root.join("sys/dev/block").join(number(folder)?);
    let device = std::fs::canonicalize(device).ok()?;
    // A partition's folder is in that of its disk.
    match device.join("partition").exists() {
        true => device.parent().map(Path::to_path_buf),
        false => Some(device),
    }
}

/// Returns the kind of a disk, such as `mmc` with the card's product name. It contains no names of this machine's disks
/// and no serial numbers.
fn kind(root: &Path, disk: &Path) -> String {
    // The folders above the root may be named like a bus.
    let root = std::fs::canonicalize(root).unwrap_or_default();
    let parts = disk.strip_prefix(&root).unwrap_or(disk).components();
    let mut parts = parts.map(|part| part.as_os_str().to_string_lossy());
    let buses = ["mmc", "nvme", "ata", "usb", "virtio", "loop"];
    let bus = parts.find_map(|part| buses.into_iter().find(|bus| part.starts_with(bus)));
    let read = |name| text_of(disk.join(name));
    let product = read("device/name").or_else(|| read("device/model"));
    let bus = bus.unwrap_or("disk");
    product.map_or_else(|| bus.to_owned(), |product| format!("{bus} {product}"))
}

/// Returns what the kernel says of a disk. What tells one card from another, as `cid` and `serial`, is not read.
fn facts(disk: Option<&Path>) -> Vec<Fact> {
    let text = |file: &str| text_of(disk?.join(file));
    let why = match disk {
        Some(_) => "the kernel does not say",
        None => "the kernel names no disk of this file system",
    };
    let number = |file: &str| text(file)?.parse::<u64>().ok();
    let is_rotational = number("queue/rotational").map(|number| number != 0);
    // The chosen one is in brackets, or the only one.
    let scheduler = text("queue/scheduler").map(|text| {
        let chosen = text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        chosen.map_or_else(|| text.clone(), |(chosen, _)| chosen.to_owned())
    });
    let mut facts = vec![
        Fact::new("rotational", is_rotational, why),
        Fact::new("scheduler", scheduler, why),
        Fact::new("write_cache", text("queue/write_cache"), why),
    ];
    for (name, file) in [
        ("requests_max", "queue/nr_requests"),
        ("read_ahead_kibibytes", "queue/read_ahead_kb"),
        ("logical_block_bytes", "queue/logical_block_size"),
        ("physical_block_bytes", "queue/physical_block_size"),
        ("discard_bytes_max", "queue/discard_max_bytes"),
    ] {
        facts.push(Fact::new(name, number(file), why));
    }
    // Others have a file `type` of another meaning.
    let is_mmc = text("device/type").is_some_and(|text| matches!(&*text, "SD" | "MMC" | "SDcombo"));
    let why = match disk {
        Some(_) if !is_mmc => "the kernel does not drive it as an SD card or eMMC",
        _ => why,
    };
    let kind = text("device/type").filter(|_| is_mmc);
    let erased = number("device/preferred_erase_size").filter(|_| is_mmc);
    facts.push(Fact::new("mmc_type", kind, why));
    facts.push(Fact::new("mmc_erase_bytes", erased, why));
    facts
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
            "seconds": (self.seconds * 1e3).round() / 1e3,
            "latency_p50_us": p50 / 1000,
            "latency_p99_us": p99 / 1000,
            "latency_max_us": max / 1000,
            "direct": self.is_direct,
            "in_memory": self.in_memory,
            "file_system": self.file_system,
            "kind": self.kind,
            "device": as_object(&self.device),
        })
    }
}
