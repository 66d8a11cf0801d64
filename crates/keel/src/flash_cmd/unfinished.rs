//! An image that has just been created, and that goes again unless a store is made in it: when the command fails, and
//! also when somebody interrupts it while the file is being filled, which can take an hour.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The path of the file to remove, as C has it. What it leads to is never given back: a signal may come at any time.
static UNFINISHED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Removes the file and ends the process as the signal would have done.
extern "C" fn remove_and_end(signal: libc::c_int) {
    let path = UNFINISHED.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if !path.is_null() {
        // SAFETY: a string that ends with a zero and is never freed; `unlink` is async-signal-safe.
        unsafe { libc::unlink(path) };
    }
    // SAFETY: async-signal-safe. The handler is gone (SA_RESETHAND), so the signal, which is blocked until this
    // function returns, then ends the process.
    unsafe { libc::raise(signal) };
}

/// A file that was created for a store and goes again unless the store is made.
pub(super) struct Unfinished(Option<PathBuf>);

impl Unfinished {
    /// Nothing to remove.
    pub(super) fn nothing() -> Self {
        Self(None)
    }

    pub(super) fn new(image: &Path) -> Self {
        if let Ok(path) = CString::new(image.as_os_str().as_bytes()) {
            UNFINISHED.store(path.into_raw(), Ordering::Relaxed);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                remove_at(signal);
            }
        }
        Self(Some(image.to_path_buf()))
    }

    pub(super) fn keep(mut self) {
        UNFINISHED.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            UNFINISHED.store(std::ptr::null_mut(), Ordering::Relaxed);
            std::fs::remove_file(path).ok();
        }
    }
}

/// Has the file removed when this signal comes, unless the process was started to ignore it (`nohup`).
fn remove_at(signal: libc::c_int) {
    // SAFETY: all zero is a valid `sigaction`.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: asks only; `before` is valid for the call.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
    if before.sa_sigaction == libc::SIG_IGN {
        return;
    }
    let handler: extern "C" fn(libc::c_int) = remove_and_end;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESETHAND;
    // SAFETY: `action` is valid for the call, and the handler does only what is async-signal-safe.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
