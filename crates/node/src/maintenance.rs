//! The maintenance thread: advances index and retention of the log step by step, and saves the figures and alarms that
//! outlive the run.

use super::database::Db;
use super::lifetime::Lifetime;
use super::log;
use super::raised::Raised;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause when there is nothing to do.
const PAUSE: Duration = Duration::from_secs(1);

/// Pause after a failure: its cause rarely goes away within a second.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// Time between two writes of the totals.
const TOTALS_PERIOD: Duration = Duration::from_secs(3600);

/// Stack of the thread; it needs little.
const STACK_BYTES: usize = 256 << 10;

/// The thread; it runs until this is dropped.
pub(crate) struct Maintenance {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: Mutex<bool>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`. Returns whether the thread must end.
    fn pause(&self, pause: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), pause, |stop| !*stop);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Maintenance {
    /// Starts the thread.
    pub(crate) fn start(
        db: Arc<Db>,
        lifetime: Arc<Lifetime>,
        raised: Option<Arc<Raised>>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: Mutex::new(false),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let work = move || {
            let mut saved = Instant::now();
            let mut failing = false;
            loop {
                let pause = match db.maintain() {
                    Ok(true) => Duration::ZERO,
                    Ok(false) => PAUSE,
                    Err(db::Error::Closed) => return,
                    Err(error) => {
                        if !failing {
                            log::event(
                                "failing",
                                format!("history cannot be kept in order: {error}"),
                            );
                        }
                        failing = true;
                        lifetime.set_history_failing(Some(error.to_string()));
                        FAILED_PAUSE
                    }
                };
                if failing && pause != FAILED_PAUSE {
                    failing = false;
                    lifetime.set_history_failing(None);
                    log::event("failing", "no more: history is kept in order again");
                }
                if saved.elapsed() >= TOTALS_PERIOD {
                    saved = Instant::now();
                    lifetime.save();
                }
                if !pause.is_zero() {
                    lifetime.look();
                }
                if let Some(raised) = &raised {
                    raised.look(false);
                }
                if theirs.pause(pause) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("maintenance".into())
            .stack_size(STACK_BYTES)
            .spawn(work)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
