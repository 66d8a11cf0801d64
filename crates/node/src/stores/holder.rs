//! Finds the process that has a store open, for a message, in the system's table of locks.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Returns the process that has locked the image: `keel, process 4711`. `None` if the system does not tell. The process
/// is then in another container, or its lock is on another name of the same bytes.
pub(super) fn holder(image: &Path) -> Option<String> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let process = locker(&locks, image).or_else(|| locker(&locks, &file_below(image)?))?;
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(format!("{}, process {process}", name.trim_end()))
}

fn locker(locks: &str, path: &Path) -> Option<u32> {
    let found = std::fs::metadata(path).ok()?;
    let of = |line| locker_in(line, found.dev(), found.ino());
    locks.lines().find_map(of)
}

/// Returns the process in a line such as `1: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF`, if the lock is on this file.
fn locker_in(line: &str, device: u64, inode: u64) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    // In the line of a waiting process, this field is `->`.
    if fields.next() != Some("FLOCK") {
        return None;
    }
    let process = fields.nth(2)?.parse().ok()?;
    let mut file = fields.next()?.split(':');
    let mut hex = || u32::from_str_radix(file.next()?, 16).ok();
    let number = libc::makedev(hex()?, hex()?);
    (number == device && file.next()? == inode.to_string() && process != 0).then_some(process)
}

/// Returns the file behind a loop device.
fn file_below(image: &Path) -> Option<PathBuf> {
    let found = std::fs::metadata(image).ok()?;
    if !found.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (libc::major(found.rdev()), libc::minor(found.rdev()));
    let path = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let path = std::fs::read_to_string(path).ok()?;
    Some(path.trim_end_matches('\n').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_of_locks_are_understood() {
        let device = libc::makedev(0xfe, 1);
        let line = "1: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF";
        assert_eq!(locker_in(line, device, 131), Some(4711));
        assert_eq!(locker_in(line, device, 132), None);
        assert_eq!(locker_in(line, libc::makedev(0xfe, 2), 131), None);
        for other in [
            "",
            "1:",
            "1: -> FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF",
            "1: POSIX  ADVISORY  WRITE 4711 fe:01:131 0 EOF",
            "1: FLOCK  ADVISORY  WRITE x fe:01:131 0 EOF",
            // A process that is not visible from here.
            "1: FLOCK  ADVISORY  WRITE 0 fe:01:131 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 4711 <none>:0",
            "1: FLOCK  ADVISORY  WRITE 4711 fe:01",
        ] {
            assert_eq!(locker_in(other, device, 131), None, "{other}");
        }
    }
}
