//! Checks whether a file at a path outlives a reboot: a store in memory keeps no promise.

use crate::error::CliError;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder of devices. It is in memory, and so are the general file systems mounted in it.
const DEVICES: &str = "/dev";
const SHARED_MEMORY: &str = "/dev/shm";

/// The file systems that this process sees, one per line.
const TABLE: &str = "/proc/self/mountinfo";

/// The file system that contains only devices.
const DEVICES_KIND: &str = "devtmpfs";

/// `tmpfs`, `ramfs`.
const MEMORY_KINDS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// `proc`, `sysfs`, `debugfs`, `tracefs`, `securityfs`, `configfs`, both kinds of `cgroup`.
const KERNEL_KINDS: [u32; 8] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Files persist, as far as the system says.
    Persistent,
    /// Files are lost at the next boot.
    Memory,
    /// Files are lost at the next boot, and a new file there is a mistyped device name.
    Devices,
    /// The kernel generates the content; nothing can be stored.
    Kernel,
}

/// Returns whether a path leads to a device. Its folder has other devices.
#[must_use]
pub fn is_device(path: &Path) -> bool {
    path.starts_with(DEVICES) && !path.starts_with(SHARED_MEMORY)
}

/// Refuses a place where a store cannot be kept. An existing block device is always accepted.
///
/// # Errors
/// The place is below `/dev`, or its file system has no files of its own; exit status 1.
pub fn refuse_no_place(image: &Path) -> Result<(), CliError> {
    let (wrong, remedy) = match place(image) {
        Place::Persistent | Place::Memory => return Ok(()),
        Place::Devices => (
            "is no block device, and a file made there lies in memory and is gone at the next boot",
            "check the name of the device, or name a file on a disk",
        ),
        Place::Kernel => (
            "is no place for a store: what is there is made up by the kernel",
            "name a file on a disk, or a block device",
        ),
    };
    Err(CliError::failure(image.display(), wrong, remedy))
}

/// Returns the warning about a store at `image` that is lost at the next boot; `None` if it persists.
#[must_use]
pub fn memory_warning(image: &Path) -> Option<String> {
    matches!(place(image), Place::Memory | Place::Devices).then(|| {
        format!(
            "{}: this store lies in memory and is gone at the next boot; for data to keep, name a file on a disk",
            image.display()
        )
    })
}

fn place(image: &Path) -> Place {
    let found = std::fs::metadata(image);
    if found.is_ok_and(|found| found.file_type().is_block_device()) {
        return Place::Persistent;
    }
    let Some(folder) = folder(image) else {
        return Place::Persistent;
    };
    let is_below_devices = folder.starts_with(DEVICES) && !folder.starts_with(SHARED_MEMORY);
    if is_below_devices || is_among_devices(&folder) {
        Place::Devices
    } else {
        match kind(&folder) {
            Some(kind) if MEMORY_KINDS.contains(&kind) => Place::Memory,
            Some(kind) if KERNEL_KINDS.contains(&kind) => Place::Kernel,
            _ => Place::Persistent,
        }
    }
}

/// Returns the folder of the file, or its nearest existing ancestor, with links resolved.
fn folder(image: &Path) -> Option<PathBuf> {
    if let Ok(image) = image.canonicalize() {
        return image.parent().map(Path::to_path_buf);
    }
    let above = image.ancestors().skip(1);
    let mut above = above.map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    above.find_map(|folder| folder.canonicalize().ok())
}

/// Returns whether the folder is in the file system of devices, at any mount point. `statfs` cannot tell: it returns
/// the kind of the underlying memory file system.
fn is_among_devices(folder: &Path) -> bool {
    let Ok(found) = std::fs::metadata(folder) else {
        return false;
    };
    let number = format!("{}:{}", libc::major(found.dev()), libc::minor(found.dev()));
    let table = std::fs::read(TABLE).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    table.lines().any(|line| is_devices_line(line, &number))
}

/// Returns whether a line such as `24 27 0:6 / /dev rw - devtmpfs devtmpfs rw` describes the devices file system with
/// this number.
fn is_devices_line(line: &str, number: &str) -> bool {
    let mut fields = line.split(' ');
    fields.nth(2) == Some(number)
        && fields.any(|field| field == "-")
        && fields.next() == Some(DEVICES_KIND)
}

/// Returns the number of the kind of file system, as `statfs` gives it.
fn kind(folder: &Path) -> Option<u32> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros are a valid `statfs`.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a zero, and both live until the call returns.
    let asked = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    // The type of the field differs between systems; the numbers have 32 bits.
    (asked == 0).then_some(found.f_type as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_devices_is_told_from_others() {
        let line = "24 27 0:6 / /dev rw,relatime shared:2 - devtmpfs devtmpfs rw,size=1k";
        assert!(is_devices_line(line, "0:6"));
        assert!(!is_devices_line(line, "0:7"));
        let shared = "25 24 0:6 / /dev/shm rw,relatime - tmpfs devtmpfs rw";
        assert!(!is_devices_line(shared, "0:6"));
        for other in ["", "24 27 0:6", "24 27 0:6 / /dev rw -"] {
            assert!(!is_devices_line(other, "0:6"), "{other}");
        }
    }

    #[test]
    fn files_below_dev_are_refused_and_shared_memory_is_memory() {
        for path in ["/dev/nosuch", "/dev/no/such/folder", "/dev/../dev/nosuch"] {
            assert_eq!(place(Path::new(path)), Place::Devices, "{path}");
        }
        let disk = Path::new(env!("CARGO_MANIFEST_DIR")).join("nosuch.img");
        assert_ne!(place(&disk), Place::Devices);
        assert_eq!(place(Path::new("/proc/version")), Place::Kernel);
        assert_eq!(place(Path::new("/sys/nosuch/store.img")), Place::Kernel);
        if kind(Path::new(SHARED_MEMORY)).is_some_and(|kind| MEMORY_KINDS.contains(&kind)) {
            assert_eq!(place(Path::new("/dev/shm/store.img")), Place::Memory);
        } else {
            println!("skipped: no memory file system at {SHARED_MEMORY}");
        }
    }
}
