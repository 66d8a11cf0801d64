//! Shared use of the store by the threads of a mount, and the thread for long calls.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::block::BlockDevice;
use fuser::Errno;

use crate::files::Files;
use fuse::answer::Result;

/// Maximum number of calls waiting for the thread; for each, a program waits for the reply.
const JOBS_WAITING_MAX: usize = 64;

/// A mounted store, until it is taken out to be closed.
pub(crate) struct Shared<D: BlockDevice> {
    /// Held by the thread that is next. Without it a thread that unlocks and locks again immediately could keep others
    /// out.
    turn: Mutex<()>,
    files: Mutex<Option<Files<D>>>,
}

impl<D: BlockDevice> Shared<D> {
    pub(crate) fn new(files: Files<D>) -> Arc<Self> {
        Arc::new(Self {
            turn: Mutex::new(()),
            files: Mutex::new(Some(files)),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Files<D>>> {
        // No code panics with a lock held; if it did, the store's own invariants would still hold.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Files<D>) -> Result<T>) -> Result<T> {
        self.lock().as_mut().map_or(Err(Errno::ENOTCONN), call)
    }

    /// Extends a file piece by piece, until at most one piece of zeros is missing before byte `end`, and calls `last`
    /// for the rest. Between two pieces other calls get their turn; they cannot change this file, which the kernel
    /// keeps locked for the waiting program. On failure, the file keeps its former length.
    pub(crate) fn grown<T>(
        &self,
        inode: u64,
        end: u64,
        last: impl FnOnce(&mut Files<D>) -> Result<T>,
    ) -> Result<T> {
        let before = self.with(|files| files.length(inode))?;
        let mut grown = self.with(|files| files.add_zeros(inode, end));
        while let Ok(true) = grown {
            grown = self.with(|files| files.add_zeros(inode, end));
        }
        let result = grown.and_then(|_| self.with(last));
        if result.is_err() {
            // Ignore an error here: after a device failure the store must not be written, and the caller already gets
            // that error.
            self.with(|files| files.shorten(inode, before)).ok();
        }
        result
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread for calls whose duration depends on the new length of a file.
pub(crate) struct Worker(SyncSender<Job>);

impl Worker {
    /// The thread ends when this is dropped.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, jobs): (SyncSender<Job>, Receiver<Job>) = sync_channel(JOBS_WAITING_MAX);
        std::thread::Builder::new()
            .name("flash-mount-long".to_owned())
            .spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Self(sender))
    }

    /// Runs the job on the thread, or here if too many jobs are waiting.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self.0.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job(),
        }
    }
}
