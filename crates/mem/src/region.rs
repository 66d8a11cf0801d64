//! Regions: what a process has of one, the namespace of processes that uses it, and its figures.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::error::{Error, Result};
use crate::file_lock::{FileLock, identity};
use crate::flush::Flush;
use crate::layout::{Layout, PAGE_BYTES, state};
use crate::logging::Setting;
use crate::memory::Memory;
use crate::node::Node;
use crate::owner::Owner;
use crate::patience::Patience;
use crate::stub::{RecordLocked, Stubs};
use crate::superblock::format_version;

/// The kind of memory of a region, which decides its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages of hugetlbfs: fastest, never swapped.
    HugePages,
    /// tmpfs.
    SharedMemory,
    /// A file of any other file system: as slow as its write-back.
    File,
}

/// A region, mapped into this process.
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) layout: Layout,
    pub(crate) file: File,
    /// Device and inode of the file.
    pub(crate) identity: (u64, u64),
    pub(crate) path: PathBuf,
    /// As [`Owner`] stores it; a forked child has another one.
    pub(crate) owner: AtomicU64,
    /// The least that a process has mapped while it has this region; 0 if the kernel does not say how much that is.
    pub(crate) owner_bytes_min: u64,
    /// The namespace of process numbers in which this process entered the region.
    pub(crate) namespace: AtomicU64,
    pub(crate) writable: bool,
    /// `None` only if a region is attached for reading and its folder of stubs does not exist.
    pub(crate) stubs: Option<Stubs>,
    pub(crate) logging: Setting,
    pub(crate) record_locked: RecordLocked,
    pub(crate) patience: Patience,
    pub(crate) backing: Backing,
}

/// The inode of no namespace: of a region that is only read.
pub(crate) const NO_NAMESPACE: u64 = 0;

/// Flag beside the inode of a namespace: a process of another one is entering. The kernel's inodes are smaller.
pub(crate) const LEFT: u64 = 1 << 63;

impl Region {
    /// Requires that the region belongs to the namespace of this process. Only then may it use a lane that it has just
    /// taken, or check the owner of a lane.
    ///
    /// # Errors
    /// [`Error::Namespace`].
    pub(crate) fn require_own_namespace(&self) -> Result<()> {
        if self.is_own_namespace() || self.is_own_namespace_again(true) {
            return Ok(());
        }
        Err(self.namespace_error())
    }

    /// As [`require_own_namespace`](Self::require_own_namespace), but does not wait for a process that enters.
    ///
    /// # Errors
    /// [`Error::Namespace`].
    pub(crate) fn require_own_namespace_now(&self) -> Result<()> {
        if self.is_own_namespace() || self.is_own_namespace_again(false) {
            return Ok(());
        }
        Err(self.namespace_error())
    }

    /// Removes the mark of a process of another namespace that died while it entered. Such a process that lives is
    /// waited for if `waits`. Returns whether the region still belongs to this namespace. Allocates nothing.
    #[cold]
    fn is_own_namespace_again(&self, waits: bool) -> bool {
        let own = self.namespace.load(Ordering::Relaxed);
        if self.memory.load(state::NAMESPACE) != own | LEFT {
            return false;
        }
        let Some(file) = self.open_again() else {
            return false;
        };
        let locked = if waits {
            FileLock::wait(&file, libc::LOCK_EX).ok()
        } else {
            FileLock::try_alone(&file)
        };
        if locked.is_some() && self.memory.load(state::NAMESPACE) == own | LEFT {
            self.memory.store(state::NAMESPACE, own);
        }
        locked.is_some() && self.is_own_namespace()
    }

    /// Whether the region belongs to the namespace that this process entered. A region that is only read has entered
    /// none, and no lane is taken or settled through it.
    pub(crate) fn is_own_namespace(&self) -> bool {
        // A lane that was taken or seen before this must not be one that a process of another namespace has overlooked
        // when it entered.
        fence(Ordering::SeqCst);
        let own = self.namespace.load(Ordering::Relaxed);
        own == NO_NAMESPACE || own == self.memory.load(state::NAMESPACE)
    }

    /// The region's file, with locks of its own: those of `self.file` are shared with other threads and with children.
    /// `None` if it cannot be opened, or is another file by now. Allocates nothing.
    pub(crate) fn open_again(&self) -> Option<File> {
        let mut path = [0; 32];
        // The first thread, which `/proc/self` shows, may have ended.
        let descriptor = self.file.as_raw_fd();
        write!(&mut path[..31], "/proc/thread-self/fd/{descriptor}").ok()?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the path ends with a zero byte, because the last byte was not written to.
        let fd = unsafe { libc::open(path.as_ptr().cast(), flags) };
        // SAFETY: an open descriptor that no other code uses.
        let file = (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })?;
        // The program may have closed the descriptor, and use its number for another file.
        (identity(&file).ok()? == self.identity).then_some(file)
    }

    pub(crate) fn namespace_error(&self) -> Error {
        Error::Namespace {
            path: self.path.clone(),
        }
    }

    /// The identity of this process for other processes.
    pub(crate) fn owner(&self) -> Owner {
        Owner::from_word(self.owner.load(Ordering::Relaxed))
    }

    /// In tests: gives this region's process another identity.
    #[cfg(test)]
    pub(crate) fn set_owner(&self, owner: Owner) {
        self.owner.store(owner.as_word(), Ordering::Relaxed);
    }

    /// The region's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Must be called before this process takes a record lock of the old kind (`F_SETLK`, `lockf`) on a descriptor of
    /// the file. Closing any other descriptor of the file would release that lock. So from then on this process opens
    /// none to check the file's locks. If the file is deleted, another process's sweep frees it.
    pub fn takes_record_lock(&self, node: Node) {
        self.record_locked.add(node.generation);
    }

    /// Whether it was opened for writing as well.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The number of files and directories, with deleted ones that are still open.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.memory.load(state::INODES)
    }

    /// The number of deleted files that a process may still have open.
    #[must_use]
    pub fn orphans(&self) -> u64 {
        self.memory.load(state::ORPHANS)
    }

    /// The offsets of all tables.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether it writes cache lines back.
    #[must_use]
    pub fn flush(&self) -> Flush {
        self.memory.flush()
    }

    /// Whether its memory itself keeps its content without power. This is only checked in a region that [writes cache
    /// lines back](Self::flush).
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.memory.is_persistent()
    }

    /// Version of its format, at most [`FORMAT_VERSION`](crate::FORMAT_VERSION).
    #[must_use]
    pub fn format_version(&self) -> u32 {
        format_version(self.flush())
    }

    /// The kind of its memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Minimum free space for files, in bytes; small files may also find room beside others.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        (self.memory.load(state::POOL_PAGES) + self.empty_pages().count() as u64) * PAGE_BYTES
    }
}

pub(crate) fn backing(file: &File) -> std::io::Result<Backing> {
    const HUGETLBFS_MAGIC: i64 = 0x958458f6;
    const TMPFS_MAGIC: i64 = 0x01021994;
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut found: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a structure that lives as long as the call.
    if unsafe { libc::fstatfs64(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // The type is signed on some systems and unsigned on others; these numbers are the same in both.
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the system")]
    Ok(match found.f_type as i64 {
        HUGETLBFS_MAGIC => Backing::HugePages,
        TMPFS_MAGIC => Backing::SharedMemory,
        _ => Backing::File,
    })
}
