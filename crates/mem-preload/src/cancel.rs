//! Cancelled threads: the calls that POSIX names as their places to end act on it before the region's code is entered,
//! with nothing of the region held, and never inside.
//!
//! The C library ends a thread by unwinding its stack; so the functions of this library may be unwound.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::next::serve;
use crate::thread;

// SAFETY: a function of the C library.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Whether any thread of this process was ever cancelled; most processes never do that.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Where a thread that was cancelled ends.
#[inline(always)]
pub(crate) fn point() {
    if IS_USED.load(Ordering::Relaxed) {
        end_if_cancelled();
    }
}

#[cold]
#[inline(never)]
fn end_if_cancelled() {
    if !thread::is_inside() {
        // SAFETY: nothing of this library's is held by the thread, and no caller has anything to be dropped.
        unsafe { pthread_testcancel() };
    }
}

serve! {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        IS_USED.store(true, Ordering::Relaxed);
        pthread_cancel::pass(thread)
    }
}
