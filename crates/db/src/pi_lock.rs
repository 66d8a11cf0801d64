//! A lock whose holder inherits the priority of its waiters.
//!
//! The queue's lock protects some hundred nanoseconds of work, but its holder can be preempted there. Any other thread
//! can preempt a commit thread of ordinary priority. A real-time producer would then wait as long as that other thread
//! runs. The kernel avoids this if it is told which thread holds the lock (`FUTEX_LOCK_PI`): the holder inherits the
//! priority, runs, and releases the lock.
//!
//! **Invariants:** the word is 0, or the holder's thread id, with a bit that only the kernel sets while a thread waits
//! in it. Taking and releasing a free lock is one compare-and-swap each, without a system call.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Polls of a held lock before the kernel is asked: most holds end sooner than a system call.
const SPINS: u32 = 100;
/// Sleep of a waiter if the kernel has no such futexes.
const NAP: Duration = Duration::from_micros(20);

thread_local! {
    /// This thread's id in the kernel; 0 before it was requested.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

#[inline]
fn this_thread() -> u32 {
    let known = THREAD.get();
    if known != 0 { known } else { ask_this_thread() }
}

#[cold]
fn ask_this_thread() -> u32 {
    // SAFETY: no memory is passed.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    THREAD.set(thread);
    thread
}

/// A value behind a lock with priority inheritance. Not reentrant, and not for a forked child of its process: threads
/// have other ids there.
#[derive(Debug, Default)]
pub(crate) struct PiLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for PiLock<T> {}

/// The held lock. Stays with the thread that took it: the kernel relies on that.
#[derive(Debug)]
pub(crate) struct PiGuard<'a, T> {
    lock: &'a PiLock<T>,
    thread: u32,
    stays: PhantomData<*const ()>,
}

impl<T> PiLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> PiGuard<'_, T> {
        let thread = this_thread();
        if self.take(thread).is_err() {
            self.wait(thread);
        }
        PiGuard {
            lock: self,
            thread,
            stays: PhantomData,
        }
    }

    #[inline]
    fn take(&self, thread: u32) -> Result<u32, u32> {
        self.word
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
    }

    #[cold]
    fn wait(&self, thread: u32) {
        for _ in 0..SPINS {
            match self.take(thread) {
                Ok(_) => return,
                // Other threads already wait in the kernel; it gives the lock to the one of the highest priority.
                Err(held) if held & libc::FUTEX_WAITERS != 0 => break,
                Err(_) => std::hint::spin_loop(),
            }
        }
        loop {
            match self.call(libc::FUTEX_LOCK_PI) {
                0 => {
                    // The kernel has set the word; the fence makes the last holder's writes visible.
                    fence(Ordering::Acquire);
                    return;
                }
                libc::EINTR | libc::EAGAIN => {}
                libc::EDEADLK => panic!("a thread takes a lock twice"),
                // If the kernel or a sandbox has no such futexes, the lock works without inheritance.
                _ => {
                    if self.take(thread).is_ok() {
                        return;
                    }
                    std::thread::sleep(NAP);
                }
            }
        }
    }

    #[cold]
    fn release_to_waiter(&self) {
        fence(Ordering::Release);
        // This can only fail if the word is not this thread's, and no other thread writes it.
        let error = self.call(libc::FUTEX_UNLOCK_PI);
        debug_assert_eq!(error, 0, "the word names the holder of the lock");
    }

    /// The error of a futex call on the word, 0 for none.
    fn call(&self, operation: i32) -> i32 {
        let no_timeout: *const libc::timespec = std::ptr::null();
        // SAFETY: the word is aligned and lives as long as the call; no other memory is passed.
        let done = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                0,
                no_timeout,
            )
        };
        if done == 0 {
            0
        } else {
            std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
        }
    }
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this thread for as long as the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.lock.word;
        let released = word.compare_exchange(self.thread, 0, Ordering::Release, Ordering::Relaxed);
        if released.is_err() {
            self.lock.release_to_waiter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::realtime;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        // Two words that must agree: a second thread inside would be seen.
        let lock = PiLock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let lock = &lock;
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let mut both = lock.lock();
                        assert_eq!(both.0, both.1);
                        both.0 += 1;
                        if turn % 512 == thread {
                            // Long enough for others to wait in the kernel.
                            std::thread::yield_now();
                        }
                        both.1 += 1;
                    }
                });
            }
        });
        let both = lock.lock();
        assert_eq!(*both, (160_000, 160_000));
        drop(both);
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_holder_that_panics_lets_go() {
        let lock = PiLock::new(1);
        let held = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = lock.lock();
                std::panic::resume_unwind(Box::new(()));
            });
            holder.join()
        });
        assert!(held.is_err());
        assert_eq!(*lock.lock(), 1);
    }

    /// The priority that the kernel gives this thread now: below 0 is real-time.
    fn priority() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("it runs");
        let behind_name = stat.rsplit(')').next().expect("a name in brackets");
        let word = behind_name.split_whitespace().nth(15);
        word.and_then(|word| word.parse().ok()).expect("a priority")
    }

    #[test]
    fn a_holder_inherits_the_priority_of_its_waiter() {
        let lock = PiLock::new(0);
        let (held, is_permitted) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let refused = realtime::set_fifo(20);
                is_permitted.store(refused.is_none(), Ordering::Relaxed);
                held.wait();
                *lock.lock() += 1;
                refused
            });
            let guard = lock.lock();
            assert!(priority() >= 0, "this thread is an ordinary one");
            held.wait();
            // Poll until the waiter waits in the kernel, for at most about a minute.
            let mut has_inherited = false;
            for _ in 0..60_000 {
                has_inherited = priority() == -21;
                if has_inherited || !is_permitted.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(guard);
            match waiter.join().expect("no panic") {
                Some(refused) => println!("skipped: {refused}"),
                None => assert!(has_inherited),
            }
            assert!(priority() >= 0, "what was inherited has been given back");
        });
        assert_eq!(*lock.lock(), 1);
    }
}
