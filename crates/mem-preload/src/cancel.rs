//! Cancelled threads: a call that POSIX defines as a cancellation point acts on a cancellation before it enters the
//! region's code. It then holds no lock of the region. Inside the code, no cancellation takes effect.
//!
//! The C library ends a thread by unwinding its stack, so the functions of this library may be unwound.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::next::serve;
use crate::thread;

// SAFETY: a function of the C library.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Whether any thread of this process was ever cancelled; in most processes none is.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A cancellation point.
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
        // SAFETY: the thread holds nothing of this library, and no caller has anything to drop.
        unsafe { pthread_testcancel() };
    }
}

serve! {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        IS_USED.store(true, Ordering::Relaxed);
        pthread_cancel::pass(thread)
    }
}
