//! What belongs to one process. A child made by `fork()` inherits the memory of its parent, but not the image: two that
//! write to one store would each have their own idea of what is free. So what was inherited is dead in the child. It is
//! never touched again, not even to free it: a mutex of it may be held by a thread that the child does not have, and
//! letting go of a device would give back the lock that the parent needs.

use std::sync::atomic::{AtomicPtr, Ordering};

use base::error::Code;

use crate::failure::Failure;

/// A process, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Refuses, with SQLite's `code`, the use of what was made in this process if the current one is another: a child.
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

/// A value that each process has for itself, made when it is first asked for.
pub(crate) struct PerProcess<T> {
    latest: AtomicPtr<Owned<T>>,
}

struct Owned<T> {
    process: Process,
    /// Who had the value before this process was forked.
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

    /// The process that this one has inherited from.
    pub(crate) fn parent(&self) -> Option<Process> {
        self.owned().parent
    }

    fn owned(&self) -> &Owned<T> {
        let process = Process::current();
        let known = self.latest.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw` below and never freed.
        let inherited = unsafe { known.as_ref() };
        if let Some(owned) = inherited.filter(|owned| owned.process == process) {
            return owned;
        }
        // No lock guards this: a thread that the child does not have could hold it.
        let made = Box::into_raw(Box::new(Owned {
            process,
            parent: inherited.map(|owned| owned.process),
            value: T::default(),
        }));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.latest.compare_exchange(known, made, success, failure) {
            // SAFETY: made above, and nobody frees it from now on.
            Ok(_) => unsafe { &*made },
            // SAFETY: another thread of this process was faster, and what it made is never freed; nobody else has seen
            // what was made here.
            Err(faster) => unsafe {
                drop(Box::from_raw(made));
                &*faster
            },
        }
    }
}
