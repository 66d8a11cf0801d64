//! System calls that the standard library does not have.

// Each test uses only some of them.
#![allow(dead_code)]

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes without a pattern that could hide a fault.
pub fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// Asserts that a call failed with this errno.
pub fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => {}
        other => panic!(
            "expected {}, got {other:?}",
            io::Error::from_raw_os_error(errno)
        ),
    }
}

pub fn is_root() -> bool {
    base::mount::effective_ids().0 == 0
}

pub fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts an empty tmpfs.
pub fn mount_memory(directory: &Path) -> io::Result<i64> {
    mount_kind(directory, c"tmpfs")
}

/// Mounts fusectl, the kernel's list of FUSE connections.
pub fn mount_control(directory: &Path) -> io::Result<i64> {
    mount_kind(directory, c"fusectl")
}

fn mount_kind(directory: &Path, kind: &CStr) -> io::Result<i64> {
    let path = c_path(directory);
    let kind = kind.as_ptr();
    // SAFETY: C strings that live until the call returns; there are no options.
    check(unsafe { libc::mount(kind, path.as_ptr(), kind, 0, std::ptr::null()) })
}

pub fn unmount(directory: &Path, flags: i32) -> io::Result<i64> {
    let path = c_path(directory);
    // SAFETY: a C string that lives until the call returns.
    check(unsafe { libc::umount2(path.as_ptr(), flags) })
}

/// Whether this directory is a mount point.
pub fn sees_file_system(directory: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).unwrap().dev();
    of(directory) != of(directory.parent().unwrap())
}

/// The result of a call that returns -1 and sets errno on failure.
pub fn check(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

pub fn mknod(path: &Path, mode: u32) -> io::Result<i64> {
    let path = c_path(path);
    // SAFETY: a C string that lives until the call returns.
    check(unsafe { libc::mknod(path.as_ptr(), mode, libc::makedev(1, 3)) })
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<i64> {
    let (from, to) = (c_path(from), c_path(to));
    let at = libc::AT_FDCWD;
    // SAFETY: two C strings that live until the call returns.
    check(unsafe { libc::renameat2(at, from.as_ptr(), at, to.as_ptr(), flags) })
}

pub fn statvfs(path: &Path) -> libc::statvfs {
    let path = c_path(path);
    // SAFETY: plain data, for which all zero is a valid value.
    let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a structure of the right type, both alive until the call returns.
    check(unsafe { libc::statvfs(path.as_ptr(), &raw mut figures) }).unwrap();
    figures
}

pub fn fallocate(file: &File, mode: i32, length: i64) -> io::Result<i64> {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, length) })
}

pub fn posix_fallocate(file: &File, length: i64) -> i32 {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) }
}

pub fn seek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

pub fn copy_range(from: &File, to: &File, length: usize) -> io::Result<i64> {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open; null offsets stand for the positions of the files.
    let copied =
        unsafe { libc::copy_file_range(from.as_raw_fd(), null, to.as_raw_fd(), null, length, 0) };
    check(copied as i64)
}

pub fn send(from: &File, to: &File, length: usize) -> io::Result<i64> {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open; a null offset stands for the position of the file.
    check(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), null, length) } as i64)
}

pub fn write_with(file: &File, data: &[u8], offset: usize, flags: i32) -> io::Result<i64> {
    let piece = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: one piece of memory that is only read and lives until the call returns.
    check(
        unsafe { libc::pwritev2(file.as_raw_fd(), &raw const piece, 1, offset as i64, flags) }
            as i64,
    )
}

pub fn lock_file(file: &File) -> io::Result<i64> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
}

/// Locks the first byte, for the open file description: a process lock would not conflict with another lock of the same
/// process.
pub fn lock_record(file: &File) -> io::Result<i64> {
    // SAFETY: plain data, for which all zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the lock lives until the call returns.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

pub fn sync_file_system(file: &File) -> io::Result<i64> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

pub fn get_flags(file: &File) -> io::Result<i64> {
    let mut flags: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives until the call returns.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) })
}

/// The four calls about extended attributes, in turn.
pub fn attribute_calls(path: &Path) -> [io::Result<i64>; 4] {
    let path = c_path(path);
    let name = c"user.test";
    let mut buffer = [0_u8; 64];
    let space = buffer.as_mut_ptr();
    // SAFETY: C strings and a buffer of the given length, alive until the calls return.
    unsafe {
        [
            check(libc::getxattr(path.as_ptr(), name.as_ptr(), space.cast(), 64) as i64),
            check(libc::setxattr(
                path.as_ptr(),
                name.as_ptr(),
                space.cast(),
                1,
                0,
            )),
            check(libc::listxattr(path.as_ptr(), space.cast(), 64) as i64),
            check(libc::removexattr(path.as_ptr(), name.as_ptr())),
        ]
    }
}

/// A temporary file without a name, as `O_TMPFILE` makes it.
pub fn open_unnamed(directory: &Path) -> io::Result<File> {
    let path = c_path(directory);
    // SAFETY: a C string that lives until the call returns.
    let opened = check(unsafe {
        libc::open(
            path.as_ptr(),
            libc::O_TMPFILE | libc::O_RDWR,
            libc::c_uint::from(0o600_u16),
        )
    })?;
    // SAFETY: the descriptor was opened just now, and no other code has it.
    Ok(unsafe { File::from_raw_fd(opened as i32) })
}

/// A memory map of a file.
pub struct Map {
    start: *mut libc::c_void,
    length: usize,
}

impl Map {
    /// Whether a shared mapping of a file is possible. FUSE does not always allow it.
    pub fn is_possible(file: &File) -> bool {
        // SAFETY: a new mapping of an open file at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                1,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: exactly the mapping, whose address no other code has.
        unsafe { libc::munmap(start, 1) };
        true
    }

    pub fn new(file: &File, length: usize, is_writable: bool) -> Self {
        let protection = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping of an open file at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { start, length }
    }

    pub fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.length);
        // SAFETY: within the mapping, which lives as long as `self`; volatile, because the file may change.
        unsafe { self.start.cast::<u8>().add(offset).read_volatile() }
    }

    pub fn set(&self, offset: usize, value: u8) {
        assert!(offset < self.length);
        // SAFETY: within the mapping, made writable by the caller, and no reference to it exists.
        unsafe { self.start.cast::<u8>().add(offset).write_volatile(value) };
    }

    pub fn sync(&self) -> io::Result<i64> {
        // SAFETY: exactly the mapping.
        check(unsafe { libc::msync(self.start, self.length, libc::MS_SYNC) })
    }

    /// Lets a child process map the file, change a byte and unmap it, to test whether the change reaches the file
    /// system. In this process, which also serves the mount, that could wait forever. The kernel writes changed pages
    /// of a FUSE file while it holds the process's memory map, and the server's own threads need that map.
    pub fn set_in_child(file: &File, length: usize, offset: usize, value: u8) {
        assert!(offset < length);
        // SAFETY: the child makes system calls only, on memory of its own, until it ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", io::Error::last_os_error());
        if child == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of an open file at an address of the kernel's choice. One byte within it is
            // written, and then exactly that mapping is removed.
            unsafe {
                let start = libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    protection,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                );
                if start == libc::MAP_FAILED {
                    libc::_exit(1);
                }
                start.cast::<u8>().add(offset).write_volatile(value);
                libc::_exit(libc::munmap(start, length));
            }
        }
        let mut status = 0;
        // SAFETY: the child made above, which no other code waits for; `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // Changed pages must not be left to `munmap`; see `set_in_child`.
        let _ = self.sync();
        // SAFETY: exactly the mapping; `self` is dropped, and no other code has its address.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// An open directory with the positions that `telldir` gives.
pub struct Directory(*mut libc::DIR);

impl Directory {
    pub fn open(path: &Path) -> Self {
        let path = c_path(path);
        // SAFETY: a C string that lives until the call returns.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null(), "{}", io::Error::last_os_error());
        Self(stream)
    }

    /// Returns the next name and its inode, `None` at the end, or the error of the read.
    pub fn next(&mut self) -> io::Result<Option<(String, u64)>> {
        // SAFETY: the stream is open; errno is this thread's own.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir(self.0)
        };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        // SAFETY: the entry is valid until the next call on this stream; its name ends with a NUL.
        let (name, inode) = unsafe {
            let name = std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast());
            (name.to_str().unwrap().to_owned(), (*entry).d_ino)
        };
        Ok(Some((name, inode)))
    }

    pub fn position(&mut self) -> i64 {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    pub fn go_to(&mut self, position: i64) {
        // SAFETY: the stream is open, and the position came from it.
        unsafe { libc::seekdir(self.0, position) };
    }

    pub fn rewind(&mut self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) };
    }

    /// All further names but `.` and `..`.
    pub fn rest(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some((name, _)) = self.next().unwrap() {
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used any more.
        unsafe { libc::closedir(self.0) };
    }
}
