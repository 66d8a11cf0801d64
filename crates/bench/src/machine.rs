//! Properties of the measured machine: processor, kernel, file system, and the disk's own counters.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::store::DeviceCounts;

/// The machine as described in the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    pub(crate) cores: usize,
}

impl Machine {
    /// Queries the kernel; values that it does not provide are `unknown`.
    pub(crate) fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let cpu = read("/proc/cpuinfo")
            .and_then(|text| cpu_name(&text))
            .or_else(|| read("/proc/device-tree/model"))
            .unwrap_or_else(|| "unknown".to_owned());
        let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
        Self {
            cpu: cpu.trim_matches(['\0', '\n', ' ']).to_owned(),
            kernel: kernel.trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Returns the load average of the last minute; a value above the number of cores distorts latencies.
pub(crate) fn load_1min() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Returns the current date in UTC, as year-month-day.
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date_of(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// Returns the date `days` days after 1 January 1970.
fn date_of(days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

/// Returns the model in `/proc/cpuinfo` if the architecture provides one there.
fn cpu_name(cpuinfo: &str) -> Option<String> {
    let value = |key: &str| {
        let line = cpuinfo
            .lines()
            .find(|line| line.split(':').next().map(str::trim) == Some(key))?;
        line.split_once(':')
            .map(|(_, value)| value.trim().to_owned())
    };
    value("model name")
        .or_else(|| value("Model"))
        .filter(|name| !name.is_empty())
}

/// Returns the type of the file system that holds the folder `path`, as named in `/proc` (`ext4`, `xfs`, …).
pub(crate) fn file_system_type(path: &Path) -> Result<String, String> {
    let path = path
        .canonicalize()
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("mountinfo: {error}"))?;
    type_in_mounts(&mounts, &path).ok_or_else(|| format!("{}: no mount holds it", path.display()))
}

/// Whether the ext4 that holds `path` runs without its journal, as far as the kernel shows.
pub(crate) fn is_ext4_without_journal(path: &Path) -> bool {
    let device = fs::metadata(path).map_or(0, |data| data.dev());
    let link = format!(
        "/sys/dev/block/{}:{}",
        libc::major(device),
        libc::minor(device)
    );
    let Ok(disk) = fs::canonicalize(link) else {
        return false;
    };
    let Some(name) = disk.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    // The kernel lists the mounted file system here, and its journal there only if it has one.
    let is_listed = Path::new("/proc/fs/ext4").join(name).exists();
    let journal = fs::read_dir("/proc/fs/jbd2")
        .into_iter()
        .flatten()
        .flatten();
    is_listed
        && !journal
            .map(|entry| entry.file_name())
            .any(|entry| is_journal_of(&entry.to_string_lossy(), name))
}

/// Whether `entry` is the journal of `disk`: journals are listed as `disk-inode`.
fn is_journal_of(entry: &str, disk: &str) -> bool {
    entry.rsplit_once('-').is_some_and(|(of, _)| of == disk)
}

/// Returns the type of the longest mount point that contains `path`. Of equal ones the last counts: later mounts cover
/// earlier ones.
fn type_in_mounts(mounts: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let (front, back) = line.split_once(" - ")?;
        let point = front.split(' ').nth(4)?.replace("\\040", " ");
        let length = Path::new(&point).components().count();
        if path.starts_with(&point) && best.as_ref().is_none_or(|(longest, _)| length >= *longest) {
            best = Some((length, back.split(' ').next()?.to_owned()));
        }
    }
    best.map(|(_, kind)| kind)
}

/// The disk below a folder. Its counters include the work of all programs.
pub(crate) struct Disk {
    stat: PathBuf,
}

impl Disk {
    /// Returns the disk that holds `path` if the kernel shows its counters.
    pub(crate) fn below(path: &Path) -> Option<Self> {
        Self::numbered(fs::metadata(path).ok()?.dev())
    }

    /// Returns the block device `path` itself if the kernel shows its counters.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let data = fs::metadata(path).ok()?;
        data.file_type()
            .is_block_device()
            .then(|| Self::numbered(data.rdev()))?
    }

    fn numbered(device: u64) -> Option<Self> {
        let stat = PathBuf::from(format!(
            "/sys/dev/block/{}:{}/stat",
            libc::major(device),
            libc::minor(device)
        ));
        let disk = Self { stat };
        disk.counts().map(|_| disk)
    }

    /// Returns the requests completed since boot.
    pub(crate) fn counts(&self) -> Option<DeviceCounts> {
        counts_in_stat(&fs::read_to_string(&self.stat).ok()?)
    }
}

/// Parses a block device's `stat`: reads are field 1, sectors read 3, writes 5, sectors written 7, flushes 16.
fn counts_in_stat(stat: &str) -> Option<DeviceCounts> {
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    Some(DeviceCounts {
        reads: *fields.first()?,
        bytes_read: fields.get(2)? * 512,
        writes: *fields.get(4)?,
        // A partition does not count flushes, nor does a kernel before 5.5.
        flushes: fields.get(15).copied(),
        bytes_written: fields.get(6)? * 512,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_on_both_architectures() {
        assert_eq!(
            cpu_name("processor\t: 0\nmodel name\t: Fast 1\n").as_deref(),
            Some("Fast 1")
        );
        assert_eq!(
            cpu_name("processor\t: 0\nModel\t\t: Board 4 B\n").as_deref(),
            Some("Board 4 B")
        );
        assert_eq!(cpu_name("processor\t: 0\n"), None);
    }

    #[test]
    fn days_since_1970_are_converted_to_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_453, "2025-12-31"),
        ] {
            assert_eq!(date_of(days), date);
        }
    }

    #[test]
    fn the_innermost_and_latest_mount_counts() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/a\\040b rw shared:1 - xfs /dev/b rw\n\
                      3 1 0:6 / /mnt/a\\040b rw - tmpfs none rw\n";
        assert_eq!(
            type_in_mounts(mounts, Path::new("/mnt/a b/c")).as_deref(),
            Some("tmpfs")
        );
        assert_eq!(
            type_in_mounts(mounts, Path::new("/mnt/a")).as_deref(),
            Some("ext4")
        );
        assert_eq!(type_in_mounts("", Path::new("/")), None);
    }

    #[test]
    fn a_journal_belongs_to_its_disk_alone() {
        assert!(is_journal_of("vda1-8", "vda1"));
        assert!(!is_journal_of("vda1-8", "vda"));
        assert!(!is_journal_of("options", "vda"));
    }

    #[test]
    fn stat_fields_are_taken_from_their_places() {
        let counts = counts_in_stat("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17").unwrap();
        assert_eq!(
            (
                counts.reads,
                counts.bytes_read,
                counts.writes,
                counts.bytes_written,
                counts.flushes
            ),
            (1, 3 * 512, 5, 7 * 512, Some(16))
        );
        assert_eq!(
            counts_in_stat("1 2 3 4 5 6 7 8 9 10 11").unwrap().flushes,
            None
        );
        assert!(counts_in_stat("").is_none());
    }
}
