//! The mappings of files of the region that this process has.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use mem::Opened;

use crate::raw;
use crate::thread::Inside;

/// One mapping of a file.
pub(crate) struct Mapping {
    /// Page size of the mapping.
    pub(crate) page: usize,
    /// The mapped range.
    pub(crate) window: Range<usize>,
    /// The parts of it that the program has.
    pub(crate) parts: Vec<Range<usize>>,
    /// The offset in the file at which `window` begins.
    pub(crate) offset: u64,
    /// The mapped page of the stub.
    pub(crate) holder: Range<usize>,
    pub(crate) opened: Opened,
    /// A private mapping that the program may not write yet; it need not show changes by others.
    pub(crate) is_private: bool,
    pub(crate) protection: c_int,
}

/// All mappings of this process, under a lock.
pub(crate) struct Table {
    lock: AtomicU32,
    count: AtomicUsize,
    mappings: UnsafeCell<Vec<Mapping>>,
}

// SAFETY: only the holder of the lock uses the list.
unsafe impl Sync for Table {}

pub(crate) static MAPPINGS: Table = Table {
    lock: AtomicU32::new(0),
    count: AtomicUsize::new(0),
    mappings: UnsafeCell::new(Vec::new()),
};

impl Table {
    /// Takes the lock; also before a fork, so that the child finds the list whole.
    pub(crate) fn acquire(&self) {
        while self
            .lock
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: no memory is passed.
            unsafe { raw::call(libc::SYS_sched_yield, [0; 6]) };
        }
    }

    pub(crate) fn release(&self) {
        self.lock.store(0, Ordering::Release);
    }

    /// Runs `use_it` with the list, under the lock.
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&mut Vec<Mapping>) -> T) -> T {
        let _inside = Inside::enter();
        self.acquire();
        // SAFETY: this thread holds the lock, and no code inside calls this function again.
        let mappings = unsafe { &mut *self.mappings.get() };
        let result = use_it(mappings);
        self.count.store(mappings.len(), Ordering::Relaxed);
        self.release();
        result
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}
