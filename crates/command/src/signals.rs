//! SIGINT, SIGTERM and SIGHUP as a flag that loops poll, so that every exit path cleans up; and children that end
//! with this process.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of signals received.
static STOP: AtomicU32 = AtomicU32::new(0);

/// Notes a signal. Async-signal-safe: it only adds to an atomic.
pub extern "C" fn note(_signal: libc::c_int) {
    STOP.fetch_add(1, Ordering::Relaxed);
}

/// Makes the three signals set the flag instead of ending the process. A signal that this process was made to ignore
/// stays ignored, as `nohup` does with SIGHUP.
pub fn catch_stop() {
    catch_stop_with(note);
}

/// Like [`catch_stop`] with another handler, which must be async-signal-safe.
pub fn catch_stop_with(handler: extern "C" fn(libc::c_int)) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeros are a valid `sigaction`, and the call only writes to it.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `before` is valid for the call; a null pointer changes nothing.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        if before.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: all zeros are a valid `sigaction`; its handler is then set.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // No SA_RESTART: a blocking call returns, and the loop around it polls the flag.
        // SAFETY: `action` is valid for the call, and the handler does only what is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Returns whether one of the signals was received.
#[must_use]
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed) > 0
}

/// Returns whether a second one was received: the sender does not want to wait for an orderly end.
#[must_use]
pub fn stop_insisted() -> bool {
    STOP.load(Ordering::Relaxed) > 1
}

/// Makes a child end with this process, however that ends. The main thread must start it, because the kernel sends the
/// signal when the thread ends that started the child.
pub fn end_with_this(command: &mut Command) {
    let own = std::process::id() as libc::pid_t;
    // SAFETY: between fork and exec there are only async-signal-safe system calls, and no allocation.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() != own {
                libc::_exit(0);
            }
            Ok(())
        });
    }
}
