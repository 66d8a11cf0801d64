//! The page cache: stores pages ahead of reads, and tells which pages of a file are resident.
//!
//! Storing waits in the kernel for a page that is being read, until that read is answered. So a thread that stores must
//! not be one that replies. The library reports success even if the kernel does not know the file, so the file is
//! looked up right before. For the look-up the kernel may ask the threads of this mount, which never wait. The file is
//! not held open meanwhile: `umount` would find the mount busy although no program uses it. If the kernel forgets the
//! file between the two, the pages are requested when they are read.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use fuser::{INodeNo, Notifier};
use stream::block::block_bytes;
use stream::device::Pages;
use stream::{BLOCK_BYTES, FileId};

use crate::loaders::Loaders;
use crate::processes::FileSystem;
use crate::view::{View, inode_of};

/// The maximum size of one notification, in bytes; longer ones are split. The kernel accepts any size at once.
const STORE_BYTES_MAX: usize = 256 * BLOCK_BYTES;

struct Place {
    directory: PathBuf,
    file_system: FileSystem,
}

/// The page cache behind one mount.
pub struct PageCache {
    view: Arc<View>,
    loaders: Arc<Loaders>,
    place: OnceLock<Place>,
    /// `None` before the mount and after its end. As long as it exists, the kernel waits for replies.
    notifier: RwLock<Option<Notifier>>,
}

impl PageCache {
    pub(crate) fn new(view: Arc<View>, loaders: Arc<Loaders>) -> Self {
        Self {
            view,
            loaders,
            place: OnceLock::new(),
            notifier: RwLock::new(None),
        }
    }

    pub(crate) fn start(&self, directory: &Path, file_system: FileSystem, notifier: Notifier) {
        let place = Place {
            directory: directory.to_owned(),
            file_system,
        };
        self.place.set(place).ok();
        let mut guarded = self
            .notifier
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *guarded = Some(notifier);
    }

    /// Stops storing.
    pub(crate) fn close(&self) {
        // A thread that is storing now has its own clone.
        let mut guarded = self
            .notifier
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *guarded = None;
    }

    /// Looks up a file, so that the kernel knows it. `None` if it does not exist or another mount covers it.
    fn look_up(&self, file: FileId) -> Option<()> {
        let place = self.place.get()?;
        let path = place.directory.join(self.view.path(file)?);
        (place.file_system.file_in(&path) == Some(file)).then_some(())
    }

    /// Opens a file through the mount; `None` if it does not exist, is not reachable, or another mount covers it.
    fn open(&self, file: FileId) -> Option<std::fs::File> {
        let place = self.place.get()?;
        let path = place.directory.join(self.view.path(file)?);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .ok()?;
        (place.file_system.file_of(opened.as_fd()) == Some(file)).then_some(opened)
    }
}

impl Pages for PageCache {
    fn store(&self, file: FileId, first: u32, bytes: &[u8]) -> bool {
        let Some(size_bytes) = self.view.size_of(file) else {
            return false;
        };
        let offset = u64::from(first) * BLOCK_BYTES as u64;
        let end = offset + bytes.len() as u64;
        let ends_well = end == size_bytes || bytes.len().is_multiple_of(BLOCK_BYTES);
        // Bytes behind the end would make the file longer.
        if bytes.is_empty() || end > size_bytes || !ends_well {
            return false;
        }
        let notifier = {
            let guarded = self.notifier.read().unwrap_or_else(PoisonError::into_inner);
            guarded.clone()
        };
        let (Some(notifier), Some(())) = (notifier, self.look_up(file)) else {
            return false;
        };
        if first == 0 {
            let beginning = &bytes[..bytes.len().min(BLOCK_BYTES)];
            self.loaders.look(&self.view, file, beginning);
        }
        let inode = INodeNo(inode_of(file));
        let mut at = offset;
        bytes.chunks(STORE_BYTES_MAX).all(|part| {
            let stored = notifier.store(inode, at, part);
            at += part.len() as u64;
            stored.is_ok()
        })
    }

    fn resident(&self, file: FileId, blocks: u32) -> Option<Vec<bool>> {
        // To a process that could not write to the file, the kernel reports all pages as resident.
        if base::mount::effective_ids().0 != 0 {
            return None;
        }
        let size_bytes = self.view.size_of(file)?;
        let covered = (0..blocks)
            .map(|index| block_bytes(size_bytes, index))
            .sum::<usize>();
        if covered == 0 {
            return Some(vec![false; blocks as usize]);
        }
        let opened = self.open(file)?;
        let mut found = vec![0_u8; covered.div_ceil(BLOCK_BYTES)];
        // SAFETY: a new mapping for reading, of a length that is not zero; no byte of it is touched.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                covered,
                libc::PROT_READ,
                libc::MAP_SHARED,
                opened.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping is as long as is said, and `found` has a byte for each of its pages.
        let asked = unsafe { libc::mincore(mapped, covered, found.as_mut_ptr().cast()) };
        // SAFETY: the mapping was made above and nothing refers to it.
        unsafe { libc::munmap(mapped.cast::<c_void>(), covered) };
        let mut resident: Vec<bool> = found.iter().map(|page| page & 1 != 0).collect();
        resident.resize(blocks as usize, false);
        (asked == 0).then_some(resident)
    }
}
