//! The lock (`flock`) of a region's file. It keeps processes from mapping a region while another one enters it, or
//! takes over the lane of a program that its process has replaced.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Result, system_error};
use crate::owner::CHECK_INTERVAL;

/// The number of looks, one each [`CHECK_INTERVAL`], at another process's lock until an error: 30 s. Processes hold it
/// for some microseconds, and for as long as the recovery of a region takes when the machine has started again.
const LOOKS_MAX: u32 = if cfg!(test) { 1_500 } else { 15_000 };

/// A lock of a region's file, until it is dropped.
pub(crate) struct FileLock<'f>(&'f File);

impl<'f> FileLock<'f> {
    /// Waits for a lock, `LOCK_SH` or `LOCK_EX`.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System), also if another process keeps a lock.
    pub(crate) fn take(file: &'f File, path: &Path, kind: libc::c_int) -> Result<Self> {
        Self::wait(file, kind).map_err(|error| {
            let what = if error.kind() == std::io::ErrorKind::WouldBlock {
                "is locked by another process"
            } else {
                "cannot be locked"
            };
            system_error(path, what)(error)
        })
    }

    /// As [`take`](Self::take), without an allocation.
    pub(crate) fn wait(file: &'f File, kind: libc::c_int) -> std::io::Result<Self> {
        let mut looks = 0;
        loop {
            match Self::once(file, kind | libc::LOCK_NB) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The holder may be stopped, or have left the lock to a child when it was killed.
                Err(error)
                    if error.kind() == std::io::ErrorKind::WouldBlock && looks < LOOKS_MAX =>
                {
                    looks += 1;
                    crate::nap(CHECK_INTERVAL);
                }
                taken => return taken,
            }
        }
    }

    /// The exclusive lock; `None` if another one is held at this moment.
    pub(crate) fn try_alone(file: &'f File) -> Option<Self> {
        Self::once(file, libc::LOCK_EX | libc::LOCK_NB).ok()
    }

    /// As [`try_alone`](Self::try_alone), and once more after a moment: opening processes have the lock no longer.
    pub(crate) fn try_alone_twice(file: &'f File) -> Option<Self> {
        Self::try_alone(file).or_else(|| {
            crate::nap(CHECK_INTERVAL);
            Self::try_alone(file)
        })
    }

    fn once(file: &'f File, operation: libc::c_int) -> std::io::Result<Self> {
        // SAFETY: a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), operation) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self(file))
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the file open as well, so closing it does not release the lock.
        // SAFETY: a descriptor that is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Device and inode of a file.
pub(crate) fn identity(file: &File) -> std::io::Result<(u64, u64)> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}
