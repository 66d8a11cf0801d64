//! The acknowledgement: a number that the commit thread passes, or a failure that it never passes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Error, LogFailure};

/// How far the log has come; shared by tickets, producers and the commit thread.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Readings numbered below this are on flash.
    durable_end: AtomicU64,
    failure: AtomicU8,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Progress {
    pub(crate) fn new(durable_end: u64) -> Self {
        Self {
            durable_end: AtomicU64::new(durable_end),
            failure: AtomicU8::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    pub(crate) fn failure(&self) -> Option<LogFailure> {
        match self.failure.load(Ordering::Acquire) {
            0 => None,
            1 => Some(LogFailure::Device),
            2 => Some(LogFailure::Full),
            4 => Some(LogFailure::Torn),
            _ => Some(LogFailure::Closed),
        }
    }

    pub(crate) fn complete(&self, durable_end: u64) {
        let _guard = self
            .lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        self.durable_end.store(durable_end, Ordering::Release);
        self.changed.notify_all();
    }

    /// The first failure stays.
    pub(crate) fn fail(&self, failure: LogFailure) {
        let word = match failure {
            LogFailure::Device => 1,
            LogFailure::Full => 2,
            LogFailure::Closed => 3,
            LogFailure::Torn => 4,
        };
        let _guard = self
            .lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        let _ = self
            .failure
            .compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// `Ok(true)` when the reading is durable, `Ok(false)` while it waits.
    fn state(&self, lsn: u64) -> Result<bool, Error> {
        if self.durable_end() > lsn {
            return Ok(true);
        }
        let Some(failure) = self.failure() else {
            return Ok(false);
        };
        // It may have become durable just before the failure.
        if self.durable_end() > lsn {
            Ok(true)
        } else {
            Err(failure.into())
        }
    }

    /// Waits until the durable end passes `seen`, at most `timeout`, and returns it.
    pub(crate) fn wait_past(&self, seen: u64, timeout: Duration) -> Result<u64, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let mut guard = self
            .lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        loop {
            let end = self.durable_end();
            if end > seen {
                return Ok(end);
            }
            if let Some(failure) = self.failure() {
                return Err(failure.into());
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                return Ok(end);
            }
            guard = self
                .changed
                .wait_timeout(guard, left)
                .unwrap_or_else(|poison| poison.into_inner())
                .0;
        }
    }

    /// Waits for any change, at most `timeout`.
    pub(crate) fn wait_change(&self, timeout: Duration) {
        let guard = self
            .lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        drop(self.changed.wait_timeout(guard, timeout));
    }
}

/// Stands for one reading on its way to flash. Cheap to clone, never allocates.
#[derive(Clone, Debug)]
pub struct Ticket {
    lsn: u64,
    is_dropped: bool,
    progress: Arc<Progress>,
}

impl Ticket {
    pub(crate) fn new(lsn: u64, progress: Arc<Progress>) -> Self {
        Self {
            lsn,
            is_dropped: false,
            progress,
        }
    }

    /// Of a reading that is not logged; `lsn` is that of the reading before it.
    pub(crate) fn dropped(lsn: u64, progress: Arc<Progress>) -> Self {
        Self {
            lsn,
            is_dropped: true,
            progress,
        }
    }

    /// Whether the reading was neither stored nor logged, because its object is configured so and the reading was not
    /// admitted. The ticket is complete.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// The reading's number in the log. Tickets complete in the order of their numbers. One that was dropped has the
    /// number of the reading before it.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Whether the reading is on flash now, or dropped: there is nothing to wait for.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.is_dropped || self.progress.durable_end() > self.lsn
    }

    /// `Ok(true)` when durable or dropped, `Ok(false)` while waiting. Does not block.
    ///
    /// # Errors
    /// [`Error::LogFailed`] or [`Error::Full`] when the reading will not become durable.
    pub fn poll(&self) -> Result<bool, Error> {
        if self.is_dropped {
            return Ok(true);
        }
        self.progress.state(self.lsn)
    }

    /// Blocks until the reading is durable; not at all for one that was dropped.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`Error::Timeout`] when it still waits after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        if self.poll()? {
            return Ok(());
        }
        let deadline = Instant::now().checked_add(timeout);
        let progress = &self.progress;
        let mut guard = progress
            .lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        while !progress.state(self.lsn)? {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            guard = progress
                .changed
                .wait_timeout(guard, left)
                .unwrap_or_else(|poison| poison.into_inner())
                .0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_completes_fails_or_times_out() {
        let progress = Arc::new(Progress::new(5));
        let ticket = |lsn| Ticket::new(lsn, Arc::clone(&progress));
        assert!(ticket(4).is_durable());
        assert_eq!(ticket(5).poll(), Ok(false));
        assert_eq!(
            ticket(5).wait(Duration::from_millis(1)),
            Err(Error::Timeout)
        );
        progress.complete(6);
        assert_eq!(ticket(5).wait(Duration::ZERO), Ok(()));
        progress.fail(LogFailure::Full);
        progress.fail(LogFailure::Device);
        assert_eq!(ticket(5).poll(), Ok(true));
        assert_eq!(ticket(6).poll(), Err(Error::Full));
        let dropped = Ticket::dropped(6, Arc::clone(&progress));
        assert!(dropped.is_dropped() && dropped.is_durable() && !ticket(4).is_dropped());
        assert_eq!(
            (dropped.poll(), dropped.wait(Duration::ZERO)),
            (Ok(true), Ok(()))
        );
        assert_eq!(ticket(6).wait(Duration::from_secs(60)), Err(Error::Full));
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let progress = Arc::new(Progress::new(0));
        let ticket = Ticket::new(0, Arc::clone(&progress));
        let waiter = std::thread::spawn(move || ticket.wait(Duration::from_secs(60)));
        progress.complete(1);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}
