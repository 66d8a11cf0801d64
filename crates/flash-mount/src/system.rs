//! The calls of the operating system that the standard library does not have.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What mounts and unmounts for users other than root, by its names in new and old distributions.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Effective user and group of this process.
#[must_use]
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call has arguments, touches memory or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Takes the mount that lies on top at `directory` out of the tree, although files in it are open.
pub(crate) fn detach(directory: &Path) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
    // SAFETY: `path` is a C string that lives until the call returns.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    // Who is not root has mounted by the helper, which also unmounts.
    for helper in HELPERS {
        let status = Command::new(helper)
            .args(["-u", "-z", "-q", "--"])
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(_) => return Err(error),
            // The next name.
            Err(_) => {}
        }
    }
    Err(error)
}
