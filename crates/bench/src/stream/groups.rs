//! Control groups with a limit on the reads from a disk, or on memory. They end with the run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::leftovers::{ALL_GROUPS, DISK_GROUPS, MEMORY_GROUPS, named};

/// A group. It is removed when this is dropped; its processes must have ended before.
pub(crate) struct Group {
    folder: PathBuf,
    is_unified: bool,
}

impl Group {
    /// Creates a group whose processes read at most this many times, and this many bytes, per second from a disk.
    ///
    /// # Errors
    /// One line: the kernel does not allow it.
    pub(crate) fn of_disk(
        name: &str,
        disk: &Path,
        reads_per_s: u32,
        bytes_per_s: u32,
    ) -> Result<Self, String> {
        let number = number_of(disk)?;
        let group = Self::create(DISK_GROUPS, "+io", name)?;
        if group.is_unified {
            group.set(
                "io.max",
                &format!("{number} riops={reads_per_s} rbps={bytes_per_s}"),
            )?;
        } else {
            group.set(
                "blkio.throttle.read_iops_device",
                &format!("{number} {reads_per_s}"),
            )?;
            group.set(
                "blkio.throttle.read_bps_device",
                &format!("{number} {bytes_per_s}"),
            )?;
        }
        Ok(group)
    }

    /// Creates a group with this memory limit, which includes what the kernel caches for its processes.
    ///
    /// # Errors
    /// One line: the kernel does not allow it.
    pub(crate) fn of_memory(name: &str, bytes: u64) -> Result<Self, String> {
        let group = Self::create(MEMORY_GROUPS, "+memory", name)?;
        let limit = if group.is_unified {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        group.set(limit, &bytes.to_string())?;
        Ok(group)
    }

    /// Returns the file to which a process writes its ID to join the group.
    pub(crate) fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns the maximum memory of the group so far, if the kernel reports it.
    pub(crate) fn memory_max_bytes(&self) -> Option<u64> {
        let name = if self.is_unified {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.trim().parse().ok()
    }

    fn create(first_generation: &str, controller: &str, name: &str) -> Result<Self, String> {
        let is_unified = !Path::new(first_generation).is_dir();
        let parent = Path::new(if is_unified {
            ALL_GROUPS
        } else {
            first_generation
        });
        let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        if is_unified {
            let control = parent.join("cgroup.subtree_control");
            fs::write(&control, controller).map_err(|error| failed(&control, error))?;
        }
        let folder = parent.join(named(name));
        fs::create_dir(&folder).map_err(|error| failed(&folder, error))?;
        Ok(Self { folder, is_unified })
    }

    fn set(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended is still in the group for a moment.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Ok(()) => return,
                Err(error) => {
                    eprintln!(
                        "keel-bench: {}: {error}; remove it by hand",
                        self.folder.display()
                    );
                    return;
                }
            }
        }
    }
}

/// Returns the major and minor number of a block device.
fn number_of(disk: &Path) -> Result<String, String> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(disk).map_err(|error| format!("{}: {error}", disk.display()))?;
    Ok(format!(
        "{}:{}",
        libc::major(data.rdev()),
        libc::minor(data.rdev())
    ))
}
