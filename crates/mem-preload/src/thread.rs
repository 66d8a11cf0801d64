//! State of each thread, found with one load: whether it is inside the region's code, and the signals that wait.
//!
//! The C library's usual access to thread-local memory calls a function, which may allocate, for libraries that could
//! be loaded late. A preloaded library is never loaded late, so its offset is fixed when the program starts.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use mem::LastFile;

use crate::raw;

/// Thread-local words of this library. They are all zero at the start of each thread.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// Nesting depth of calls inside the region's code; calls to the C library from there are not served.
    pub(crate) depth: AtomicU32,
    /// The number of signals that came inside and wait until the thread leaves.
    pub(crate) deferred: AtomicU32,
    /// 1: the destructor that frees the lane is registered.
    pub(crate) registered: AtomicU32,
    /// Number of the thread once it is known.
    pub(crate) number: AtomicI32,
    /// The cached result of the thread's last read or write.
    pub(crate) last: LastFile,
    padding: [u8; 24],
    /// The deferred signals as the kernel reported them.
    pub(crate) queue: UnsafeCell<[libc::siginfo_t; DEFERRED_MAX]>,
}

/// Maximum number of deferred signals of a thread; when it is reached, all other signals are blocked.
pub(crate) const DEFERRED_MAX: usize = 16;

// The assembly below contains this number.
const _: () = assert!(size_of::<Thread>() == 2240);

std::arch::global_asm!(
    ".pushsection .tbss.keel_mem_thread,\"awT\",@nobits",
    ".globl keel_mem_thread",
    ".hidden keel_mem_thread",
    ".type keel_mem_thread,@object",
    ".p2align 6",
    "keel_mem_thread:",
    ".zero 2240",
    ".size keel_mem_thread, 2240",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn here() -> *const Thread {
    let place: *const Thread;
    // SAFETY: reads the thread's base and the offset of the symbol above, which the loader has filled in.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr fs:[0]",
            "add {place}, qword ptr [rip + keel_mem_thread@GOTTPOFF]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    place
}

#[cfg(target_arch = "aarch64")]
fn here() -> *const Thread {
    let place: *const Thread;
    // SAFETY: reads the thread's base and the offset of the symbol above, which the loader has filled in.
    unsafe {
        std::arch::asm!(
            "adrp {offset}, :gottprel:keel_mem_thread",
            "ldr {offset}, [{offset}, :gottprel_lo12:keel_mem_thread]",
            "mrs {place}, tpidr_el0",
            "add {place}, {place}, {offset}",
            offset = out(reg) _,
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    place
}

/// This thread's words.
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    // SAFETY: zeroed bytes, aligned, which live as long as the thread; no other thread uses them, and they are atomic
    // only because of signal handlers.
    unsafe { &*here() }
}

/// Whether this thread is inside the region's code.
pub(crate) fn is_inside() -> bool {
    current().is_inside()
}

impl Thread {
    /// Whether it is inside the region's code.
    #[inline(always)]
    pub(crate) fn is_inside(&self) -> bool {
        self.depth.load(Ordering::Relaxed) > 0
    }
}

/// Marks this thread as inside, until it is dropped.
pub(crate) struct Inside(&'static Thread);

impl Inside {
    #[inline(always)]
    pub(crate) fn enter() -> Self {
        Self::of(current())
    }

    /// As [`enter`](Self::enter), for a caller that has the thread's state.
    #[inline(always)]
    pub(crate) fn of(thread: &'static Thread) -> Self {
        thread
            .depth
            .store(thread.depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // A signal handler on this thread must see this store before the code that follows.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Self(thread)
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        let depth = self.0.depth.load(Ordering::Relaxed) - 1;
        self.0.depth.store(depth, Ordering::Relaxed);
        if depth == 0 && self.0.deferred.load(Ordering::Relaxed) > 0 {
            deliver_deferred(self.0);
        }
    }
}

/// Sends the deferred signals again, now that they can be handled.
#[cold]
fn deliver_deferred(thread: &Thread) {
    let errno = crate::foreign::errno();
    loop {
        let count = thread.deferred.load(Ordering::Relaxed) as usize;
        if count == 0 {
            break;
        }
        // SAFETY: only this thread uses the queue; further signals are blocked, or stored behind these before they are
        // counted.
        let waiting = unsafe { *thread.queue.get() };
        thread.deferred.store(0, Ordering::Relaxed);
        let mut unblocked = if count == DEFERRED_MAX {
            u64::MAX
        } else {
            0_u64
        };
        // SAFETY: no memory is passed.
        let (process, number) = unsafe {
            (
                raw::call(libc::SYS_getpid, [0; 6]),
                raw::call(libc::SYS_gettid, [0; 6]),
            )
        };
        for info in &waiting[..count] {
            let arguments = [
                process as usize,
                number as usize,
                info.si_signo as usize,
                std::ptr::from_ref(info) as usize,
                0,
                0,
            ];
            // SAFETY: a structure that lives as long as the call.
            unsafe { raw::call(libc::SYS_rt_tgsigqueueinfo, arguments) };
            unblocked |= 1 << (info.si_signo - 1);
        }
        let arguments = [
            libc::SIG_UNBLOCK as usize,
            &raw const unblocked as usize,
            0,
            size_of::<u64>(),
            0,
            0,
        ];
        // SAFETY: a mask that lives as long as the call. The handlers run before it returns.
        unsafe { raw::call(libc::SYS_rt_sigprocmask, arguments) };
    }
    crate::foreign::set_errno(errno);
}
