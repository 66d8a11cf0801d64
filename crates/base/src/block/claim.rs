//! Exclusive use of a file or device under all its names: its path, its links, and the loop devices that show the file.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::call::retry;

/// How a device is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// By this opening alone.
    Alone,
    /// Together with others that only read.
    WithReaders,
}

/// Locks and claims, given back on drop.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// Descriptors of other names of the same bytes.
    others: Vec<File>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        for file in &self.others {
            unlock(file);
        }
    }
}

impl Claim {
    /// Locks `file` and claims the other names that lead to its bytes.
    ///
    /// The lock is always taken. A name that this user may not examine stays unguarded. Examples are a loop device that
    /// only root may open, and one whose file is in another namespace.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WouldBlock`] if another process holds it.
    pub(super) fn take(file: &File, hold: Hold) -> Result<Self, Error> {
        lock(file, hold)?;
        let mut claim = Self::default();
        let found = file.metadata()?;
        let done = if found.file_type().is_block_device() {
            claim.take_file_below(found.rdev(), hold)
        } else if hold == Hold::Alone {
            claim.take_devices_above((found.dev(), found.ino()))
        } else {
            // A process that writes through a loop device has locked this file as well.
            Ok(())
        };
        if done.is_err() {
            unlock(file);
        }
        done.map(|()| claim)
    }

    /// For a loop device: locks the file that it shows.
    fn take_file_below(&mut self, device: u64, hold: Hold) -> Result<(), Error> {
        let Some((path, is_part)) = file_below(device) else {
            return Ok(());
        };
        let Ok(file) = File::open(path) else {
            return Ok(());
        };
        if file.metadata().is_ok_and(|found| found.is_file()) {
            // Partitions do not overlap: stores in two of them can be held at the same time.
            lock(&file, if is_part { Hold::WithReaders } else { hold })?;
            self.others.push(file);
        }
        Ok(())
    }

    /// For a regular file: claims the loop devices that show it, so that none can be mounted.
    fn take_devices_above(&mut self, identity: (u64, u64)) -> Result<(), Error> {
        for device in loop_devices_of(identity) {
            let opened = File::options()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(&device);
            match opened {
                Ok(device) => self.others.push(device),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(ErrorKind::WouldBlock.into());
                }
                Err(_) if device_number(&device).and_then(mount_point).is_some() => {
                    return Err(ErrorKind::WouldBlock.into());
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Locks without waiting.
fn lock(file: &File, hold: Hold) -> Result<(), Error> {
    let kind = match hold {
        Hold::Alone => libc::LOCK_EX,
        Hold::WithReaders => libc::LOCK_SH,
    };
    // SAFETY: the descriptor is open; no memory is passed.
    retry(|| unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
}

/// Unlocks the file. Closing it is not enough: between fork and exec, a child of another thread still has the
/// descriptor, and with it the lock.
pub(super) fn unlock(file: &File) {
    // SAFETY: the descriptor is open; no memory is passed.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// Returns what holds the file or device at `path`, for a message: `mounted on /mnt`. `None` if the system does not
/// say; another program may still hold it.
#[must_use]
pub fn find_holder(path: impl AsRef<Path>) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    if found.file_type().is_block_device() {
        return device_holder(found.rdev());
    }
    let identity = (found.dev(), found.ino());
    if swaps().any(|swap| std::fs::metadata(swap).is_ok_and(|at| (at.dev(), at.ino()) == identity))
    {
        return Some("in use as swap space".to_owned());
    }
    loop_devices_of(identity).into_iter().find_map(|device| {
        let holder = device_holder(device_number(&device)?)?;
        Some(format!(
            "attached as {}, which is {holder}",
            device.display()
        ))
    })
}

fn device_holder(device: u64) -> Option<String> {
    if let Some(place) = mount_point(device) {
        return Some(format!("mounted on {place}"));
    }
    let same = |swap: &PathBuf| {
        std::fs::metadata(swap)
            .is_ok_and(|at| at.file_type().is_block_device() && at.rdev() == device)
    };
    if swaps().any(|swap| same(&swap)) {
        return Some("in use as swap space".to_owned());
    }
    let folder = system_folder(device);
    let holder = std::fs::read_dir(folder.join("holders"))
        .ok()?
        .flatten()
        .next();
    if let Some(holder) = holder {
        return Some(format!(
            "a part of {}",
            Path::new("/dev").join(holder.file_name()).display()
        ));
    }
    // A partition of it.
    std::fs::read_dir(&folder)
        .ok()?
        .flatten()
        .find_map(|entry| {
            let number = parse_number(
                std::fs::read_to_string(entry.path().join("dev"))
                    .ok()?
                    .trim(),
            )?;
            if !entry.path().join("partition").exists() {
                return None;
            }
            let part = Path::new("/dev").join(entry.file_name());
            device_holder(number)
                .map(|holder| format!("divided, and {} is {holder}", part.display()))
        })
}

/// Where the kernel describes a block device.
fn system_folder(device: u64) -> PathBuf {
    let (major, minor) = (libc::major(device), libc::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// The file that a loop device, or the device of a partition on one (then `true`), shows.
fn file_below(device: u64) -> Option<(PathBuf, bool)> {
    let folder = system_folder(device).canonicalize().ok()?;
    let of = |folder: &Path| std::fs::read(folder.join("loop/backing_file")).ok();
    let (path, is_part) = match of(&folder) {
        Some(path) => (path, false),
        None => (of(folder.parent()?)?, true),
    };
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some((PathBuf::from(std::ffi::OsStr::from_bytes(path)), is_part))
}

/// Device files of the loop devices that show the file with this device and inode number.
fn loop_devices_of(identity: (u64, u64)) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let mut devices = Vec::new();
    for entry in entries.flatten() {
        // Most block devices have no such file, and detached loop devices have none either.
        let Ok(path) = std::fs::read(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        let shown = std::fs::metadata(std::ffi::OsStr::from_bytes(path));
        if shown.is_ok_and(|shown| (shown.dev(), shown.ino()) == identity) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    devices
}

fn device_number(device: &Path) -> Option<u64> {
    let name = device.file_name()?;
    let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).ok()?;
    parse_number(text.trim())
}

/// `7:0`
fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Where a block device is mounted in this namespace.
fn mount_point(device: u64) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| mount_in(line, device))
}

/// The mount point in a line of `mountinfo`, if the line is about this device. Some file systems (Btrfs) have a
/// number of their own there; they name the device as their source.
fn mount_in(line: &str, device: u64) -> Option<String> {
    let (fields, source) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(2);
    let number = parse_number(fields.next()?)?;
    let place = fields.nth(1)?;
    let named = || {
        let source = unescape(source.split(' ').nth(1)?);
        let found = std::fs::metadata(source).ok()?;
        found.file_type().is_block_device().then(|| found.rdev())
    };
    (number == device || named() == Some(device)).then(|| unescape(place))
}

/// The paths in `/proc/swaps`, whose first line is a heading.
fn swaps() -> impl Iterator<Item = PathBuf> {
    let text = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let path = |line: &str| {
        line.split_whitespace()
            .next()
            .map(|path| unescape(path).into())
    };
    let paths: Vec<PathBuf> = text.lines().skip(1).filter_map(path).collect();
    paths.into_iter()
}

/// Both tables write blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let digits = more
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        rest = match byte {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                &more[3..]
            }
            _ => {
                bytes.push(*first);
                more
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_understood() {
        let line = r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/absent rw";
        assert_eq!(
            mount_in(line, libc::makedev(98, 0)).as_deref(),
            Some("/mnt two")
        );
        assert_eq!(mount_in(line, libc::makedev(98, 1)), None);
        for broken in ["", " - ", "36 35", "36 35 x / /mnt - a b c", "1 2 3:4 /"] {
            assert_eq!(mount_in(broken, 0), None, "{broken}");
        }
    }

    #[test]
    fn octal_escapes_in_paths_are_undone() {
        assert_eq!(unescape(r"a\040b\134c"), r"a b\c");
        assert_eq!(unescape(r"a\04"), r"a\04");
        assert_eq!(unescape(r"\999"), r"\999");
        assert_eq!(unescape(""), "");
    }

    #[test]
    fn the_root_of_this_system_is_found_mounted_where_it_is_a_device() {
        let Ok(root) = std::fs::metadata("/") else {
            return;
        };
        match mount_point(root.dev()) {
            Some(place) => assert!(place.starts_with('/'), "{place}"),
            None => println!("skipped: the root of this system is not on a device of its own"),
        }
    }
}
