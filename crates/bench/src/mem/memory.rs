//! Memory for the systems under measurement: in-memory file systems that are mounted for the run, and huge pages. All
//! of it is released on drop, also when the run is interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::store::tool;

const HUGE_PAGES_WANTED: &str = "/proc/sys/vm/nr_hugepages";

/// Size of a huge page used by regions, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A file system that is mounted while this lives.
pub(crate) struct Mount {
    folder: PathBuf,
}

impl Mount {
    /// Mounts a file system of `kind`, which needs no device, at a new folder.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn new(kind: &str, options: &str, folder: &Path) -> Result<Self, String> {
        Self::of(kind.as_ref(), &["-t", kind, "-o", options], folder)
    }

    /// Mounts `device` at a new folder.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of(device: &Path, arguments: &[&str], folder: &Path) -> Result<Self, String> {
        fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut mount = Command::new("mount");
        tool(mount.args(arguments).arg(device).arg(folder))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Maximum number of unmount attempts (2 s in all) before the mount is left to the user.
const UNMOUNTS_MAX: u32 = 100;

impl Drop for Mount {
    fn drop(&mut self) {
        // The kernel may free the memory of a killed program only shortly after it has been waited for.
        let mut left = UNMOUNTS_MAX;
        let ended = loop {
            let ended = tool(Command::new("umount").arg(&self.folder));
            left -= 1;
            if ended.is_ok() || left == 0 {
                break ended;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        match ended {
            // A folder that cannot be removed does not matter: the next mount uses a new folder.
            Ok(_) => fs::remove_dir(&self.folder).unwrap_or(()),
            Err(error) => {
                let folder = self.folder.display();
                eprintln!("keel-bench: {error}; unmount it by hand: umount {folder}");
            }
        }
    }
}

/// Additional huge pages of the system while this lives.
pub(crate) struct HugePages {
    added: u64,
}

impl HugePages {
    /// Adds `bytes` bytes of huge pages to the system, for this run alone.
    ///
    /// # Errors
    /// One line that gives the reason: no permission, or no contiguous memory.
    pub(crate) fn add(bytes: u64) -> Result<Self, String> {
        let wanted = bytes.div_ceil(HUGE_PAGE_BYTES);
        let before = read_wanted()?;
        fs::write(HUGE_PAGES_WANTED, (before + wanted).to_string())
            .map_err(|error| format!("{HUGE_PAGES_WANTED}: {error}; that takes root"))?;
        // The kernel may add fewer pages than requested.
        let pages = Self {
            added: read_wanted()?.saturating_sub(before),
        };
        if pages.added < wanted {
            return Err(format!(
                "{} of {wanted} huge pages of 2 MiB could be had; what is free is in smaller pieces",
                pages.added
            ));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Another process may have changed the number meanwhile, so only the added pages are subtracted.
        let restored = read_wanted().and_then(|now| {
            let rest = now.saturating_sub(self.added);
            fs::write(HUGE_PAGES_WANTED, rest.to_string()).map_err(|error| error.to_string())
        });
        if let Err(error) = restored {
            let added = self.added;
            eprintln!("keel-bench: {HUGE_PAGES_WANTED}: {error}; lower it by {added} by hand");
        }
    }
}

fn read_wanted() -> Result<u64, String> {
    let text = fs::read_to_string(HUGE_PAGES_WANTED)
        .map_err(|error| format!("{HUGE_PAGES_WANTED}: {error}"))?;
    text.trim()
        .parse()
        .map_err(|error| format!("{HUGE_PAGES_WANTED}: {error}"))
}

/// Returns the memory that programs can allocate, in bytes.
///
/// # Errors
/// One line if the kernel does not report it.
pub(crate) fn available_bytes() -> Result<u64, String> {
    let text =
        fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    available_in(&text).ok_or_else(|| "/proc/meminfo: it does not say what is available".to_owned())
}

fn available_in(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// A block device over a file in memory, while this lives.
pub(crate) struct MemoryDisk {
    device: PathBuf,
    // Dropped after the device.
    _memory: Mount,
}

impl MemoryDisk {
    /// Creates a disk of `bytes` bytes; its file system in memory is mounted at `folder`.
    ///
    /// # Errors
    /// One line that says what is missing: permission, a tool, memory.
    pub(crate) fn new(folder: &Path, bytes: u64) -> Result<Self, String> {
        let size = bytes + (16 << 20);
        let memory = Mount::new("tmpfs", &format!("size={size}"), folder)?;
        let image = folder.join("disk");
        let failed = |error: std::io::Error| format!("{}: {error}", image.display());
        let file = fs::File::create(&image).map_err(failed)?;
        // Allocate before the first write, because a real disk has its space from the start.
        allocate(&file, bytes).map_err(failed)?;
        drop(file);
        let mut losetup = Command::new("losetup");
        let device = tool(losetup.args(["--show", "-f"]).arg(&image))?;
        Ok(Self {
            device: PathBuf::from(device.trim()),
            _memory: memory,
        })
    }

    pub(crate) fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if let Err(error) = tool(Command::new("losetup").arg("-d").arg(&self.device)) {
            let device = self.device.display();
            eprintln!("keel-bench: {device}: {error}; detach it by hand: losetup -d {device}");
        }
    }
}

/// Allocates memory for the first `bytes` bytes of a file, which then has at least that length.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn allocate(file: &fs::File, bytes: u64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: an open descriptor and plain numbers.
    if unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, bytes as libc::off64_t) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_among_the_rest() {
        let text = "MemTotal:  9 kB\nMemFree:  8 kB\nMemAvailable:    1024 kB\nBuffers: 7 kB\n";
        assert_eq!(available_in(text), Some(1 << 20));
        assert_eq!(available_in("MemTotal:  9 kB\n"), None);
        assert_eq!(available_in("MemAvailable: many\n"), None);
    }
}
