//! The store between the threads of a mount, and the thread for what takes long.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::block::BlockDevice;
use fuser::Errno;

use crate::files::Files;
use fuse::answer::Result;

/// Calls that may wait for the thread; each is one of a program that waits for its answer.
const JOBS_WAITING_MAX: usize = 64;

/// A store that is mounted, until it is taken out to be closed.
pub(crate) struct Shared<D: BlockDevice> {
    /// Held by who is next. Without it a thread that lets go only to come back at once could keep others out.
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
        // Nothing panics with a lock held; if it did, the store's own invariants would still hold.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Files<D>) -> Result<T>) -> Result<T> {
        self.lock().as_mut().map_or(Err(Errno::ENOTCONN), call)
    }

    /// Makes a file so long, piece by piece, that at most a piece of zeros is missing before byte `end`, and calls
    /// `last` for the rest. Between two pieces others have their turn; they cannot change this file, which the kernel
    /// keeps for the program that waits. When it fails, the file is as long as before.
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
            // A device that failed is not to be written to, and is told by the error that there is already.
            self.with(|files| files.shorten(inode, before)).ok();
        }
        result
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread for calls that take as long as a file is to become.
pub(crate) struct Worker(SyncSender<Job>);

impl Worker {
    /// It ends when this is dropped.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, jobs): (SyncSender<Job>, Receiver<Job>) = sync_channel(JOBS_WAITING_MAX);
        std::thread::Builder::new()
            .name("flash-mount-long".to_owned())
            .spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Self(sender))
    }

    /// Does the job there, or here if too many wait.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self.0.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job(),
        }
    }
}
