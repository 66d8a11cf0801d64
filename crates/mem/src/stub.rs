//! Stubs: each file of a region that has been opened has an empty kernel file in a folder beside the region. So
//! descriptors, record locks and working directories are the kernel's own.
//!
//! A stub's name contains the inode and its generation: `f` or, for a directory, `d`, and both numbers in hexadecimal.
//! Each open file description has a byte of the stub, far behind all bytes that programs lock. A process that has the
//! description open holds a lock on that byte, and the kernel releases the lock when the process dies.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::{Result, system_error};
use crate::node::Node;

/// The first of the bytes for open file descriptions. Locks of programs end before it.
pub const LIVENESS_BASE: u64 = 1 << 61;

/// The folder of stubs beside a region.
#[must_use]
pub fn stubs_path(region: &Path) -> PathBuf {
    let mut path = region.as_os_str().to_owned();
    path.push(".stubs");
    path.into()
}

/// The folder of a region's stubs.
pub(crate) struct Stubs {
    folder: File,
    path: PathBuf,
    /// Permissions of a stub: those of the region.
    mode: u32,
    /// The kernel's number of their file system.
    pub(crate) device: u64,
    writable: bool,
}

/// Files on which this process may hold record locks of the old kind. The kernel releases these when the process closes
/// any descriptor of the file, so this process does not open their stubs. Another process's sweep handles them.
///
/// A generation is never used for another file, so it alone identifies the file.
pub(crate) struct RecordLocked {
    generations: [AtomicU64; RECORD_LOCKED_MAX],
    count: AtomicUsize,
}

/// Maximum number of remembered files; with more, this process opens no stub.
const RECORD_LOCKED_MAX: usize = 256;

impl Default for RecordLocked {
    fn default() -> Self {
        Self {
            generations: [const { AtomicU64::new(0) }; RECORD_LOCKED_MAX],
            count: AtomicUsize::new(0),
        }
    }
}

impl RecordLocked {
    /// Remembers a file.
    pub(crate) fn add(&self, generation: u64) {
        if self.has(generation) {
            return;
        }
        let place = self.count.fetch_add(1, Ordering::AcqRel);
        if let Some(free) = self.generations.get(place) {
            free.store(generation, Ordering::Release);
        }
    }

    /// Whether the file is one of them, or may be one.
    pub(crate) fn has(&self, generation: u64) -> bool {
        let count = self.count.load(Ordering::Acquire);
        count > RECORD_LOCKED_MAX
            || self.generations[..count]
                .iter()
                .any(|known| known.load(Ordering::Acquire) == generation)
    }
}

/// A name of a stub, without allocation.
pub(crate) struct StubName {
    bytes: [u8; 40],
    length: usize,
}

impl StubName {
    pub(crate) fn new(node: Node, is_directory: bool) -> Self {
        let mut name = Self {
            bytes: [0; 40],
            length: 0,
        };
        name.push(if is_directory { b'd' } else { b'f' });
        name.push_hexadecimal(node.inode);
        name.push(b'-');
        name.push_hexadecimal(node.generation);
        name
    }

    fn push(&mut self, byte: u8) {
        // Two letters and two numbers of up to 16 digits fit.
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn push_hexadecimal(&mut self, number: u64) {
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for place in (0..digits).rev() {
            self.push(b"0123456789abcdef"[(number >> (place * 4) & 15) as usize]);
        }
    }

    /// The name as a C string for the kernel.
    pub(crate) fn as_c_string(&self) -> &CStr {
        // One byte behind the name is always zero.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The file that a stub's name stands for, and whether it is a directory.
    pub(crate) fn parse(name: &[u8]) -> Option<(Node, bool)> {
        let (kind, numbers) = name.split_first()?;
        let text = std::str::from_utf8(numbers).ok()?;
        let (inode, generation) = text.split_once('-')?;
        let node = Node {
            inode: u64::from_str_radix(inode, 16).ok()?,
            generation: u64::from_str_radix(generation, 16).ok()?,
        };
        let is_directory = match kind {
            b'd' => true,
            b'f' => false,
            _ => return None,
        };
        // Accept only the canonical spelling: no signs, no leading zeros.
        (Self::new(node, is_directory).as_bytes() == name).then_some((node, is_directory))
    }
}

impl Stubs {
    /// Opens the folder beside the region at `path`. Makes it if the region can be changed.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub(crate) fn open(path: &Path, region: &File, writable: bool) -> Result<Self> {
        let folder_path = stubs_path(path);
        let system = |what| system_error(&folder_path, what);
        let mode = region
            .metadata()
            .map_err(system("the region beside it cannot be looked at"))?
            .mode()
            & 0o666;
        if writable {
            // Users that may read may also enter the folder.
            let made = std::fs::DirBuilder::new()
                .mode(mode | (mode & 0o444) >> 2)
                .create(&folder_path);
            match made {
                Ok(()) => set_mode(&folder_path, mode | (mode & 0o444) >> 2)
                    .map_err(system("cannot be given the permissions of the region"))?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(system("the folder of stubs cannot be made")(error)),
            }
        }
        let folder =
            File::open(&folder_path).map_err(system("the folder of stubs cannot be opened"))?;
        let found = folder
            .metadata()
            .map_err(system("the folder of stubs cannot be looked at"))?;
        if !found.is_dir() {
            return Err(system("the folder of stubs is something else")(
                std::io::Error::from_raw_os_error(libc::ENOTDIR),
            ));
        }
        let path = std::fs::canonicalize(&folder_path)
            .map_err(system("the folder of stubs has no path"))?;
        Ok(Self {
            device: found.dev(),
            folder,
            path,
            mode,
            writable,
        })
    }

    /// The folder's descriptor.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.folder.as_raw_fd()
    }

    /// The folder's descriptor, to be moved to another number.
    pub(crate) fn folder_mut(&mut self) -> &mut File {
        &mut self.folder
    }

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the stub of a file or directory. Makes it if there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open_stub(
        &self,
        node: Node,
        is_directory: bool,
        cloexec: bool,
    ) -> std::io::Result<OwnedFd> {
        let name = StubName::new(node, is_directory);
        match self.open_existing(&name, is_directory, cloexec) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && self.writable => {
                self.make(&name, is_directory)?;
                self.open_existing(&name, is_directory, cloexec)
            }
            other => other,
        }
    }

    /// Opens the stub of a file or directory if there is one.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open_existing(
        &self,
        name: &StubName,
        is_directory: bool,
        cloexec: bool,
    ) -> std::io::Result<OwnedFd> {
        let kind = if is_directory {
            libc::O_RDONLY | libc::O_DIRECTORY
        } else if self.writable {
            // Always open for writing: record locks need it, and this crate checks permissions, not the kernel.
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
        let flags = kind | cloexec | libc::O_NOFOLLOW | libc::O_NOCTTY;
        // SAFETY: an open descriptor, and a name that ends in zero and lives as long as the call.
        let opened =
            unsafe { libc::openat(self.folder.as_raw_fd(), name.as_c_string().as_ptr(), flags) };
        if opened < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: it was opened just now, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) })
    }

    fn make(&self, name: &StubName, is_directory: bool) -> std::io::Result<()> {
        let folder = self.folder.as_raw_fd();
        let text = name.as_c_string().as_ptr();
        let mode = if is_directory {
            self.mode | (self.mode & 0o444) >> 2
        } else {
            self.mode
        };
        // SAFETY: an open descriptor, and a name that ends in zero and lives as long as the calls.
        let made = unsafe {
            if is_directory {
                libc::mkdirat(folder, text, mode)
            } else {
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                libc::openat(folder, text, flags, mode)
            }
        };
        if made < 0 {
            let error = std::io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::EEXIST) {
                Ok(())
            } else {
                Err(error)
            };
        }
        // The program's umask is meant for its own files.
        // SAFETY: as above.
        unsafe { libc::fchmodat(folder, text, mode, 0) };
        if !is_directory {
            // SAFETY: opened above, and no other code knows it.
            drop(unsafe { OwnedFd::from_raw_fd(made) });
        }
        Ok(())
    }

    /// Removes a stub, if there is one.
    pub(crate) fn remove(&self, name: &StubName, is_directory: bool) {
        let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
        // SAFETY: an open descriptor, and a name that ends in zero and lives as long as the call.
        unsafe { libc::unlinkat(self.folder.as_raw_fd(), name.as_c_string().as_ptr(), flags) };
    }

    /// Removes the stub of a directory that was removed, unless one of the `count` descriptions has it open, which the
    /// locks on the stub show. A process that opens it after this check finds the directory removed. Returns whether
    /// the stub is gone.
    pub(crate) fn remove_closed_directory(&self, node: Node, count: u64) -> bool {
        let name = StubName::new(node, true);
        let is_open = self
            .open_existing(&name, true, true)
            .and_then(|stub| is_description_locked(stub.as_raw_fd(), 0, count));
        let is_closed = matches!(is_open, Ok(false));
        if is_closed {
            self.remove(&name, true);
        }
        is_closed
    }

    /// Names in the folder.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn names(&self) -> std::io::Result<impl Iterator<Item = Vec<u8>>> {
        let entries = std::fs::read_dir(&self.path)?;
        Ok(entries
            .flatten()
            .map(|entry| entry.file_name().as_bytes().to_vec()))
    }
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// The kernel's data of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) device: u64,
    pub(crate) number: u64,
    pub(crate) links: u64,
}

/// Returns the kernel's data of a descriptor.
///
/// # Errors
/// The kernel's error.
#[allow(clippy::unnecessary_cast, reason = "the types depend on the system")]
pub(crate) fn look_at(descriptor: RawFd) -> std::io::Result<Seen> {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut found: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: a structure that lives as long as the call; the kernel checks the descriptor.
    if unsafe { libc::fstat64(descriptor, &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Seen {
        device: found.st_dev as u64,
        number: found.st_ino as u64,
        links: found.st_nlink as u64,
    })
}

fn lock_of(kind: libc::c_int, at: u64, bytes: u64) -> libc::flock64 {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at as i64;
    lock.l_len = bytes as i64;
    lock
}

/// Takes a lock of the bytes of `count` descriptions from `first` on, or returns the kernel's error.
fn lock(descriptor: RawFd, kind: libc::c_int, first: u64, count: u64) -> std::io::Result<()> {
    let lock = lock_of(kind, LIVENESS_BASE + first, count);
    // SAFETY: a structure that lives as long as the call; the kernel checks the descriptor.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const lock) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Takes the lock that shows that the description is in use.
///
/// # Errors
/// The kernel's error.
pub(crate) fn lock_description(descriptor: RawFd, description: u64) -> std::io::Result<()> {
    lock(descriptor, libc::F_RDLCK, description, 1)
}

/// Bytes from here on, behind the bytes of open descriptions, show that the file is lent.
const LENT: u64 = 1 << 32;

/// Takes the lock that shows that the file is lent to the description.
///
/// # Errors
/// The kernel's error.
pub(crate) fn lock_lent(descriptor: RawFd, description: u64) -> std::io::Result<()> {
    lock_description(descriptor, LENT + description)
}

/// Whether the file is lent.
///
/// # Errors
/// The kernel's error.
pub(crate) fn is_lent(descriptor: RawFd, count: u64) -> std::io::Result<bool> {
    is_description_locked(descriptor, LENT, count)
}

/// The byte whose lock shows that a process is responsible for the file's content.
const CLAIM: u64 = 1 << 33;

/// Takes the lock that shows that this process is responsible for the file's content.
///
/// # Errors
/// The kernel's error: `EAGAIN` when another process is responsible.
pub(crate) fn lock_claim(descriptor: RawFd) -> std::io::Result<()> {
    lock(descriptor, libc::F_WRLCK, CLAIM, 1)
}

/// Whether another process is responsible for the file's content.
///
/// # Errors
/// The kernel's error.
pub(crate) fn is_claimed(descriptor: RawFd) -> std::io::Result<bool> {
    is_description_locked(descriptor, CLAIM, 1)
}

/// Takes the locks of all descriptions, for as long as the descriptor is open. Success shows that no description is
/// open.
///
/// # Errors
/// The kernel's error: `EAGAIN` when another process has one.
pub(crate) fn lock_all_descriptions(descriptor: RawFd, count: u64) -> std::io::Result<()> {
    lock(descriptor, libc::F_WRLCK, 0, count)
}

/// Whether an open file description other than this descriptor's holds a lock of `count` descriptions from `first` on.
///
/// # Errors
/// The kernel's error.
pub(crate) fn is_description_locked(
    descriptor: RawFd,
    first: u64,
    count: u64,
) -> std::io::Result<bool> {
    let mut lock = lock_of(libc::F_WRLCK, LIVENESS_BASE + first, count);
    // SAFETY: a structure that lives as long as the call; the kernel checks the descriptor.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_record_locks_are_remembered_and_too_many_are_all() {
        let locked = RecordLocked::default();
        for generation in 1..=RECORD_LOCKED_MAX as u64 {
            assert!(!locked.has(generation));
            locked.add(generation);
            locked.add(generation);
            assert!(locked.has(generation) && locked.has(1));
        }
        assert!(!locked.has(9999));
        locked.add(1000);
        assert!(locked.has(9999));
    }

    #[test]
    fn names_of_stubs_encode_their_inodes() {
        for (inode, generation, is_directory) in [
            (1, 1, true),
            (0, 0, false),
            (0xabc, 0x10, false),
            (u64::MAX, u64::MAX, true),
        ] {
            let node = Node { inode, generation };
            let name = StubName::new(node, is_directory);
            assert_eq!(StubName::parse(name.as_bytes()), Some((node, is_directory)));
            assert_eq!(name.as_c_string().to_bytes(), name.as_bytes());
        }
        for name in [
            &b""[..],
            b"f",
            b"f1",
            b"f1-",
            b"f-1",
            b"x1-1",
            b"f01-1",
            b"f+1-1",
            b"fA-1",
            b"f1-1 ",
            b"f11111111111111111-1",
        ] {
            assert_eq!(StubName::parse(name), None, "{name:?}");
        }
    }
}
