//! State that belongs to one process. A child made by `fork()` inherits the memory of its parent, but must not use the
//! image. Two processes that write to one store would disagree about the free space. So inherited state is dead in the
//! child. It is never touched again, not even to free it. A thread that does not exist in the child may hold one of its
//! mutexes. Releasing a device would release the lock that the parent needs.

use std::sync::atomic::{AtomicPtr, Ordering};

use base::error::Code;

use crate::failure::Failure;

/// A process, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Fails with SQLite's `code` if the current process is not this one but a child.
    pub(crate) fn refuse_child(self, code: std::ffi::c_int, file: &str) -> Result<(), Failure> {
        if self == Self::current() {
            return Ok(());
        }
        let text = format!(
            "{file}: this connection belongs to process {}, which has opened it; open databases after fork()",
            self.0
        );
        Err(Failure::new(code, Code::Invalid, text))
    }
}

/// A value that each process has for itself, created at its first use.
pub(crate) struct PerProcess<T> {
    latest: AtomicPtr<Owned<T>>,
}

struct Owned<T> {
    process: Process,
    /// The process that had the value before this process was forked.
    parent: Option<Process>,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    pub(crate) fn get(&self) -> &T {
        &self.owned().value
    }

    /// Returns the process that this one has inherited from.
    pub(crate) fn parent(&self) -> Option<Process> {
        self.owned().parent
    }

    fn owned(&self) -> &Owned<T> {
        let process = Process::current();
        let known = self.latest.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or from `Box::into_raw` below and never freed.
        let inherited = unsafe { known.as_ref() };
        if let Some(owned) = inherited.filter(|owned| owned.process == process) {
            return owned;
        }
        // No lock guards this: a thread that does not exist in the child could hold it.
        let made = Box::into_raw(Box::new(Owned {
            process,
            parent: inherited.map(|owned| owned.process),
            value: T::default(),
        }));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.latest.compare_exchange(known, made, success, failure) {
            // SAFETY: the value was created above, and is never freed from now on.
            Ok(_) => unsafe { &*made },
            // SAFETY: another thread of this process was faster, and its value is never freed; no other thread has seen
            // the value created here.
            Err(faster) => unsafe {
                drop(Box::from_raw(made));
                &*faster
            },
        }
    }
}
