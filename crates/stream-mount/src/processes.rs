//! Reads the state of processes from `/proc`.
//!
//! A program that made a request waits in the kernel, perhaps with its memory locked. Reading a file that needs that
//! lock (`cmdline`, `maps`) would wait for the program, and the program waits for this process. So this module only
//! reads `stat`, `status` and the link `exe`. It looks at that link's file without a request to its file system, which
//! might be this one.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use stream::FileId;

use crate::view::file_of;

/// The maximum number of bytes read of `/proc/N/stat` and `/proc/N/status`.
const TEXT_BYTES_MAX: usize = 1024;

/// A process or thread. The kernel reuses its number after its end, so the start time identifies it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) number: u32,
    /// The start of the process, in clock ticks since boot.
    pub(crate) started: u64,
}

/// A process or thread, and its parent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) process: Process,
    pub(crate) parent: u32,
}

/// The device number of a file system, as in `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    major: u32,
    minor: u32,
}

impl FileSystem {
    /// Returns the file system that is mounted on a directory.
    pub(crate) fn at(directory: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(directory)?.dev();
        Ok(Self {
            major: libc::major(device),
            minor: libc::minor(device),
        })
    }

    /// Returns the kernel's number of its FUSE connection.
    pub(crate) fn connection(self) -> u32 {
        // Anonymous file systems have major 0, and a connection is named after the device: major << 20 | minor.
        self.major << 20 | self.minor
    }

    /// Returns the kernel's read-ahead of this file system, in KiB.
    pub(crate) fn read_ahead_kib(self) -> Option<u32> {
        let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", self.major, self.minor);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Returns the file of a path or of an open descriptor, if it is on this file system.
    fn file_at(self, descriptor: i32, path: &CString, flags: i32) -> Option<FileId> {
        // SAFETY: all zero is a valid `statx`.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let flags = flags | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        // SAFETY: a C string and a structure of the right type, both alive until the call returns.
        let asked = unsafe {
            libc::statx(
                descriptor,
                path.as_ptr(),
                flags,
                libc::STATX_INO,
                &raw mut found,
            )
        };
        let file_system = Self {
            major: found.stx_dev_major,
            minor: found.stx_dev_minor,
        };
        (asked == 0 && file_system == self).then(|| file_of(found.stx_ino))?
    }

    /// Returns the file of a descriptor, if it is on this file system.
    pub(crate) fn file_of(self, descriptor: std::os::fd::BorrowedFd<'_>) -> Option<FileId> {
        use std::os::fd::AsRawFd;
        self.file_at(
            descriptor.as_raw_fd(),
            &CString::default(),
            libc::AT_EMPTY_PATH,
        )
    }

    /// Returns the file at a path, without following a link at its end, if it is on this file system. The look-up keeps
    /// no reference to it.
    pub(crate) fn file_in(self, path: &Path) -> Option<FileId> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        self.file_at(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Returns the program of a process, if it is on this file system.
    pub(crate) fn program_of(self, number: u32) -> Option<FileId> {
        let path = CString::new(format!("/proc/{number}/exe")).ok()?;
        self.file_at(libc::AT_FDCWD, &path, 0)
    }
}

/// Returns the state of a process or thread; `None` if it does not exist (any more), or is not visible from here.
pub(crate) fn look_at(number: u32) -> Option<Child> {
    let text = beginning(&format!("/proc/{number}/stat"))?;
    let (parent, started) = parse(&text)?;
    Some(Child {
        process: Process { number, started },
        parent,
    })
}

/// Returns the process that a thread belongs to.
pub(crate) fn leader_of(thread: u32) -> Option<u32> {
    let text = beginning(&format!("/proc/{thread}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

fn beginning(path: &str) -> Option<String> {
    let mut bytes = [0; TEXT_BYTES_MAX];
    let mut file = std::fs::File::open(path).ok()?;
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(String::from_utf8_lossy(&bytes[..filled]).into_owned())
}

/// Parses parent and start time. The name, which the process chooses, is in brackets and may contain brackets.
fn parse(stat: &str) -> Option<(u32, u64)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_is_parsed() {
        let line = "7 (a) S 1 9 (b) R 42 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1";
        assert_eq!(parse(line), Some((42, 12345)));
        assert_eq!(parse("7 (a) R 42"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn own_process_and_its_threads_are_found() {
        let own = std::process::id();
        let found = look_at(own).unwrap();
        assert_eq!(found.parent, std::os::unix::process::parent_id());
        let thread = std::thread::spawn(|| {
            // SAFETY: no arguments, and it cannot fail.
            let number = unsafe { libc::gettid() } as u32;
            (number, leader_of(number))
        });
        let (number, leader) = thread.join().unwrap();
        assert_ne!(number, own);
        assert_eq!(leader, Some(own));
        assert_eq!(look_at(0), None);
    }
}
