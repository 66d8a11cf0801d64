//! The calls of the operating system that the standard library does not have.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Effective user and group of this process.
#[must_use]
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call has arguments, touches memory or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Takes a mount out of the directory tree although files in it are open.
pub(crate) fn detach(directory: &Path) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: `path` is a C string that lives until the call returns.
    match unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
