//! Signal handlers are deferred while their thread is inside the region's code.
//!
//! A handler that writes to a file whose lock its own thread holds would wait forever. So a handler of ours calls the
//! program's handlers. It defers a signal that comes inside: the signal is blocked, and sent again when the thread
//! leaves the region's code.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{sigaction as Action, siginfo_t};

use crate::foreign::{fail, get, put, zeroed};
use crate::next::serve;
use crate::state::context;
use crate::thread::{self, DEFERRED_MAX, Thread};

const SIGNALS: usize = 65;

/// Handlers of the program.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Their flags.
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

type Handler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Whether the thread's own instruction caused the signal; such a signal cannot be deferred.
fn is_synchronous(signal: c_int, info: *const siginfo_t) -> bool {
    let kind = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    );
    // SAFETY: the kernel passes it.
    kind && unsafe { (*info).si_code } > 0
}

extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, interrupted: *mut c_void) {
    let thread = thread::current();
    if thread.depth.load(Ordering::Relaxed) > 0 && !is_synchronous(signal, info) {
        defer(thread, signal, info, interrupted);
        return;
    }
    let place = signal as usize % SIGNALS;
    let handler = HANDLERS[place].load(Ordering::Relaxed);
    if FLAGS[place].load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
        let mut default: Action = zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        sigaction::pass(signal, &raw const default, std::ptr::null_mut());
    }
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        return;
    }
    // SAFETY: the program's own handler; one with fewer parameters ignores the other arguments.
    let handler: Handler = unsafe { std::mem::transmute(handler) };
    handler(signal, info, interrupted);
}

/// Defers a signal: it stays blocked when this handler returns.
fn defer(thread: &Thread, signal: c_int, info: *mut siginfo_t, interrupted: *mut c_void) {
    let count = thread.deferred.load(Ordering::Relaxed) as usize;
    // SAFETY: the kernel passes the context from which it will restore the mask.
    let mask =
        unsafe { (&raw mut (*interrupted.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
    if count >= DEFERRED_MAX {
        return;
    }
    // SAFETY: this thread's own memory, and the list is not read now: that happens only after the thread has left the
    // code.
    unsafe { (*thread.queue.get())[count] = *info };
    thread.deferred.store(count as u32 + 1, Ordering::Relaxed);
    let blocked = if count + 1 == DEFERRED_MAX {
        u64::MAX
    } else {
        1 << (signal - 1)
    };
    // SAFETY: as above.
    unsafe { *mask |= blocked };
}

fn is_handler(handler: usize) -> bool {
    !matches!(handler, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR)
}

const OWN_FLAGS: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;

fn set_action(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let place = signal as usize;
    if context().is_none() || !(1..SIGNALS).contains(&place) {
        return sigaction::pass(signal, new, old);
    }
    let before = HANDLERS[place].load(Ordering::Relaxed);
    let flags_before = FLAGS[place].load(Ordering::Relaxed);
    let mut found: Action = zeroed();
    let answer = match get(new) {
        Ok(mut action) if is_handler(action.sa_sigaction) => {
            // Store these first, so that a signal between the two steps finds a handler.
            HANDLERS[place].store(action.sa_sigaction, Ordering::Relaxed);
            FLAGS[place].store(action.sa_flags & OWN_FLAGS, Ordering::Relaxed);
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
            sigaction::pass(signal, &raw const action, &raw mut found)
        }
        _ => sigaction::pass(signal, new, &raw mut found),
    };
    if answer < 0 {
        HANDLERS[place].store(before, Ordering::Relaxed);
        FLAGS[place].store(flags_before, Ordering::Relaxed);
        return answer;
    }
    if !old.is_null() {
        if found.sa_sigaction == on_signal as *const () as usize {
            found.sa_sigaction = before;
            found.sa_flags = found.sa_flags & !OWN_FLAGS | flags_before;
        }
        return crate::foreign::done(put(old, found));
    }
    answer
}

/// `signal`, with the flags of one of its historical variants.
fn set_handler(signal: c_int, handler: usize, flags: c_int) -> usize {
    if handler == libc::SIG_ERR || !(1..SIGNALS as c_int).contains(&signal) {
        crate::foreign::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let mut action: Action = zeroed();
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let mut old: Action = zeroed();
    if set_action(signal, &raw const action, &raw mut old) < 0 {
        return libc::SIG_ERR;
    }
    old.sa_sigaction
}

serve! {
    fn sigaction [__sigaction](signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        if signal == 0 {
            return fail(libc::EINVAL);
        }
        set_action(signal, new, old)
    }

    fn signal [bsd_signal, ssignal](number: c_int, handler: usize) -> usize {
        if context().is_none() {
            return signal::pass(number, handler);
        }
        set_handler(number, handler, libc::SA_RESTART)
    }

    fn sysv_signal [__sysv_signal](number: c_int, handler: usize) -> usize {
        if context().is_none() {
            return sysv_signal::pass(number, handler);
        }
        set_handler(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
    }
}
