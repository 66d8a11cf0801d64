//! SIGINT, SIGTERM and SIGHUP as a flag that loops look at, so that every exit path cleans up.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many have come.
static STOP: AtomicU32 = AtomicU32::new(0);

/// Notes that one has come. Async-signal-safe: it only adds to an atomic.
pub(crate) extern "C" fn note(_signal: libc::c_int) {
    STOP.fetch_add(1, Ordering::Relaxed);
}

/// From now on the three signals set the flag instead of ending the process; except those that whoever started it wants
/// to be ignored, as `nohup` does with SIGHUP.
pub(crate) fn catch_stop() {
    catch_stop_with(note);
}

/// The same with another handler, which must do only what is async-signal-safe.
pub(crate) fn catch_stop_with(handler: extern "C" fn(libc::c_int)) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zero is a valid `sigaction`, and the call only writes to it.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `before` is valid for the call; a null pointer changes nothing.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        if before.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: all zero is a valid `sigaction`; its handler is then set.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // No SA_RESTART: a blocking call returns, and the loop around it looks at the flag.
        // SAFETY: `action` is valid for the call, and the handler does only what is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Whether one of the signals has come.
pub(crate) fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed) > 0
}

/// Whether a second one has come: whoever sends it does not want to wait for an orderly end.
pub(crate) fn stop_insisted() -> bool {
    STOP.load(Ordering::Relaxed) > 1
}
