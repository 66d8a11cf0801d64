//! Tickets: the outcome of a put.

use crate::error::Error;
use base::error::Code;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The result that a ticket waits for.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    result: OnceLock<Result<u64, Error>>,
    /// Used only to wait; the result itself is read without it.
    lock: Mutex<()>,
    is_kept: Condvar,
}

impl Promise {
    pub(crate) fn is_done(&self) -> bool {
        self.result.get().is_some()
    }

    pub(crate) fn keep(&self, result: Result<u64, Error>) {
        if self.result.set(result).is_ok() {
            // A thread that has checked the result and is about to wait holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.is_kept.notify_all();
        }
    }
}

/// A put in flight. Dropping the ticket does not affect the put.
#[derive(Clone, Debug)]
pub struct Ticket {
    promise: Arc<Promise>,
    key: Arc<str>,
}

impl Ticket {
    pub(crate) fn new(key: &Arc<str>) -> Self {
        Self {
            promise: Arc::default(),
            key: Arc::clone(key),
        }
    }

    pub(crate) fn promise(&self) -> Arc<Promise> {
        Arc::clone(&self.promise)
    }

    /// Returns the outcome of the put, if it is known already: its number in the log once it is on flash. A shed
    /// reading has no number, but the error [`Code::Shed`]. Takes no lock.
    #[must_use]
    pub fn poll(&self) -> Option<Result<u64, Error>> {
        self.promise.result.get().cloned()
    }

    /// Waits until the reading is on flash; returns its number in the log.
    ///
    /// # Errors
    /// The node's error, with its code. [`Code::Shed`] if it dropped the reading, as the key's `shed = "drop"` says
    /// while fewer updates are admitted. [`Code::Gone`] if the connection was lost meanwhile, and the reading may be
    /// durable or not. [`Code::Late`] if `timeout` has passed: then the caller may wait again.
    pub fn wait(&self, timeout: Duration) -> Result<u64, Error> {
        let promise = &*self.promise;
        if promise.result.get().is_none() {
            let guard = promise.lock.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = promise.is_kept.wait_timeout_while(guard, timeout, |()| {
                // The result is set before the lock is taken for the notification.
                promise.result.get().is_none()
            });
            drop(waited);
        }
        self.poll().unwrap_or_else(|| {
            let wrong = format!("is not durable after {} s", timeout.as_secs_f64());
            Err(Error::new(Code::Late, &self.key, wrong, "wait again"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_ends_once_and_for_every_waiting_thread() {
        let ticket = Ticket::new(&"a".into());
        assert_eq!(ticket.poll(), None);
        let late = ticket.wait(Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.code(), Code::Late);
        let waiting = ticket.clone();
        let waiter = std::thread::spawn(move || waiting.wait(Duration::from_secs(60)));
        ticket.promise().keep(Ok(5));
        ticket.promise().keep(Ok(6));
        assert_eq!(waiter.join().unwrap(), Ok(5));
        assert_eq!(ticket.poll(), Some(Ok(5)));
        assert_eq!(ticket.wait(Duration::ZERO), Ok(5));
    }
}
