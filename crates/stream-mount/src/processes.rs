//! What `/proc` knows of a process.
//!
//! A program that has made a request waits in the kernel, perhaps with its memory locked. Whatever needs that lock
//! (`cmdline`, `maps`) would wait for the program, and the program for us, so only `stat`, `status` and the link `exe`
//! are looked at; and that link's file without asking a file system, which might be this one.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use stream::FileId;

use crate::view::file_of;

/// Bytes of `/proc/N/stat` and of the beginning of `/proc/N/status`, at most.
const TEXT_BYTES_MAX: usize = 1024;

/// A process or thread; the kernel gives its number again when it has ended, so it is known by its start as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) number: u32,
    /// Ticks since the machine was started.
    pub(crate) started: u64,
}

/// A process or thread, with the process that has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) process: Process,
    pub(crate) parent: u32,
}

/// The number of a file system, as `stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    major: u32,
    minor: u32,
}

impl FileSystem {
    /// Of what is mounted on a directory.
    pub(crate) fn at(directory: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(directory)?.dev();
        Ok(Self {
            major: libc::major(device),
            minor: libc::minor(device),
        })
    }

    /// The kernel's number of its FUSE connection.
    pub(crate) fn connection(self) -> u32 {
        // Anonymous file systems have major 0, and a connection is named after the device: major << 20 | minor.
        self.major << 20 | self.minor
    }

    /// What the kernel reads ahead there, KiB.
    pub(crate) fn read_ahead_kib(self) -> Option<u32> {
        let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", self.major, self.minor);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The file that a path of `/proc` or an opened one leads to, if it is of this file system.
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

    /// The file that a descriptor leads to, if it is of this file system.
    pub(crate) fn file_of(self, descriptor: std::os::fd::BorrowedFd<'_>) -> Option<FileId> {
        use std::os::fd::AsRawFd;
        self.file_at(
            descriptor.as_raw_fd(),
            &CString::default(),
            libc::AT_EMPTY_PATH,
        )
    }

    /// The file that lies at a path, which is no link that is followed, if it is of this file system. Looking holds
    /// nothing of it.
    pub(crate) fn file_in(self, path: &Path) -> Option<FileId> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        self.file_at(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// The program that a process runs, if it is of this file system.
    pub(crate) fn program_of(self, number: u32) -> Option<FileId> {
        let path = CString::new(format!("/proc/{number}/exe")).ok()?;
        self.file_at(libc::AT_FDCWD, &path, 0)
    }
}

/// What is known of a process or thread; None: it is not there (any more), or cannot be seen from here.
pub(crate) fn look_at(number: u32) -> Option<Child> {
    let text = beginning(&format!("/proc/{number}/stat"))?;
    let (parent, started) = parse(&text)?;
    Some(Child {
        process: Process { number, started },
        parent,
    })
}

/// The process that a thread belongs to.
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

/// Parent and start. The name, which the process chooses, stands in brackets and may contain some.
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
    fn a_name_with_brackets_deceives_nobody() {
        let line = "7 (a) S 1 9 (b) R 42 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1";
        assert_eq!(parse(line), Some((42, 12345)));
        assert_eq!(parse("7 (a) R 42"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_and_its_threads_are_known() {
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
