//! Handles a signal in a command that takes long. The handler undoes what can be undone, reports the remaining state in
//! one line, and ends with exit status 1. It works immediately, even while the command waits for a slow disk or for its
//! input.

use crate::error::{CliError, STATUS_FAILURE};
use crate::signals;
use std::ffi::{CString, c_int};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

// Plain `off_t` has 32 bits on 32-bit systems with this C library.
#[cfg(not(target_env = "gnu"))]
use libc::{ftruncate, off_t};
#[cfg(target_env = "gnu")]
use libc::{ftruncate64 as ftruncate, off64_t as off_t};

/// Moves to the start of a terminal's line, which may show progress, and clears it.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// What must be undone.
enum Undo {
    Nothing,
    Remove(CString),
    CutBack(RawFd, off_t),
}

struct Plan {
    undo: Undo,
    text: Vec<u8>,
}

/// The plan that the next signal executes. Plans are never freed: a signal may arrive at any time, and a command makes
/// only a few.
static PLAN: AtomicPtr<Plan> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn carry_out(signal: c_int) {
    let plan = PLAN.swap(std::ptr::null_mut(), Ordering::Acquire);
    if plan.is_null() {
        // Too late, or too early: the command polls the flag, or is about to end.
        signals::note(signal);
        return;
    }
    // SAFETY: made by `Box::into_raw`, never freed and never changed.
    let plan = unsafe { &*plan };
    match &plan.undo {
        Undo::Nothing => {}
        Undo::Remove(path) => {
            // SAFETY: the path ends with a zero; `unlink` is async-signal-safe.
            unsafe { libc::unlink(path.as_ptr()) };
        }
        Undo::CutBack(file, bytes) => {
            // SAFETY: plain integers; `ftruncate` is async-signal-safe.
            unsafe { ftruncate(*file, *bytes) };
        }
    }
    // SAFETY: the text is never freed; `write` and `_exit` are async-signal-safe.
    unsafe {
        libc::write(
            libc::STDERR_FILENO,
            plan.text.as_ptr().cast(),
            plan.text.len(),
        );
        libc::_exit(STATUS_FAILURE.into());
    }
}

/// While this exists, a signal ends the command. Afterwards a signal is only noted, because the command is about to
/// end.
pub(crate) struct Interruption(());

impl Interruption {
    /// Undoes nothing, and reports the state; `left` describes the remaining state, or the remedy.
    pub(crate) fn report(thing: impl std::fmt::Display, left: &str) -> Self {
        Self::plan(Undo::Nothing, thing, left)
    }

    /// Removes the file at this path, which this command has made.
    pub(crate) fn remove(image: &Path) -> Self {
        let path = CString::new(image.as_os_str().as_bytes());
        let undo = path.map_or(Undo::Nothing, Undo::Remove);
        Self::plan(undo, image.display(), "nothing was made")
    }

    /// Cuts the file back to `bytes`. `file` stays open until the end of the process.
    pub(crate) fn cut_back(image: &Path, file: File, bytes: u64, left: &str) -> Self {
        // No file can be longer than this type's maximum.
        let undo = Undo::CutBack(file.into_raw_fd(), bytes as off_t);
        Self::plan(undo, image.display(), left)
    }

    fn plan(undo: Undo, thing: impl std::fmt::Display, left: &str) -> Self {
        let line = CliError::failure(thing, "interrupted", left);
        let mut text = Vec::new();
        if std::io::stderr().is_terminal() {
            text.extend_from_slice(CLEAR_LINE);
        }
        text.extend_from_slice(format!("keel: {line}\n").as_bytes());
        let plan = Box::into_raw(Box::new(Plan { undo, text }));
        PLAN.store(plan, Ordering::Release);
        signals::catch_stop_with(carry_out);
        Self(())
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        PLAN.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}
