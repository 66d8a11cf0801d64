//! How far the log is durable, for tasks that wait for it without blocking their runtime.

use crate::intake::Destination;
use base::clock::{Clock, SystemClock};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Interval at which the thread checks whether there are still listeners.
const LOOK_AROUND_MS: u64 = 100;
/// Shortest time between two announcements, so that a log on a fast device does not wake the listeners all the time.
const ANNOUNCE_MS_MIN: u64 = 1;

/// State of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// Readings numbered below this are on flash.
    pub end: u64,
    /// The log has failed for good: `end` will not move again.
    pub failed: bool,
}

/// A listener. Clones listen independently. When the last one is dropped, the thread behind them ends within about 100
/// ms and drops the destination.
#[derive(Clone, Debug)]
pub struct DurableWatch {
    receiver: watch::Receiver<Durable>,
}

impl DurableWatch {
    /// Starts the thread that blocks in [`Destination::wait_durable_past`] and announces what it returns.
    ///
    /// # Errors
    /// The system's error if no thread could be created.
    pub fn start<D: Destination>(destination: Arc<D>) -> io::Result<Self> {
        let first = Durable {
            end: destination.durable_end(),
            failed: false,
        };
        let (sender, receiver) = watch::channel(first);
        std::thread::Builder::new()
            .name("durable-watch".into())
            .stack_size(128 << 10)
            .spawn(move || announce(&*destination, &sender))?;
        Ok(Self { receiver })
    }

    /// Returns the last announcement.
    #[must_use]
    pub fn get(&self) -> Durable {
        *self.receiver.borrow()
    }

    /// Waits for an announcement that this listener has not waited for before. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The thread has ended because the log failed; that was its last announcement.
            std::future::pending::<()>().await;
        }
    }
}

fn announce<D: Destination>(destination: &D, sender: &watch::Sender<Durable>) {
    let mut seen = sender.borrow().end;
    let clock = SystemClock::new();
    let now = || Duration::from_nanos(clock.monotonic_ns());
    let mut announced = now();
    while !sender.is_closed() {
        match destination.wait_durable_past(seen, Duration::from_millis(LOOK_AROUND_MS)) {
            Ok(end) if end > seen => {
                let gap = Duration::from_millis(ANNOUNCE_MS_MIN);
                if let Some(rest) = gap.checked_sub(now().saturating_sub(announced)) {
                    // The next announcement includes everything that becomes durable meanwhile. Nothing unparks this
                    // thread.
                    std::thread::park_timeout(rest);
                }
                announced = now();
                let end = destination.durable_end().max(end);
                seen = end;
                sender.send_replace(Durable { end, failed: false });
            }
            Ok(_) => {}
            Err(_) => {
                let end = destination.durable_end();
                sender.send_replace(Durable { end, failed: true });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::{LogGone, PutError, Reason};
    use db::Time;
    use std::sync::{Condvar, Mutex};

    #[derive(Default)]
    struct Log {
        end: Mutex<(u64, bool)>,
        moved: Condvar,
    }

    impl Log {
        fn set(&self, end: u64, failed: bool) {
            *self.end.lock().unwrap() = (end, failed);
            self.moved.notify_all();
        }
    }

    impl Destination for Log {
        fn resolve(&self, _key: &str) -> Result<u32, Reason> {
            Ok(0)
        }
        fn resolve_for(
            &self,
            key: &str,
            _: crate::intake::KeyOwner<'_>,
            _: &mut String,
        ) -> Result<u32, Reason> {
            self.resolve(key)
        }
        fn put(&self, _object: u32, _value: &[u8], _time: Option<Time>) -> Result<u64, PutError> {
            Err(PutError::Failed)
        }
        fn put_retained(
            &self,
            object: u32,
            value: &[u8],
            time: Option<Time>,
        ) -> Result<u64, PutError> {
            self.put(object, value, time)
        }
        fn durable_end(&self) -> u64 {
            self.end.lock().unwrap().0
        }
        fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
            let guard = self.end.lock().unwrap();
            let still = |state: &mut (u64, bool)| state.0 <= seen && !state.1;
            let (guard, _) = self
                .moved
                .wait_timeout_while(guard, timeout, still)
                .unwrap();
            if guard.1 { Err(LogGone) } else { Ok(guard.0) }
        }
        fn wall_ms(&self) -> i64 {
            0
        }
        fn wall_trusted(&self) -> bool {
            true
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn every_clone_hears_of_progress_and_of_the_end() {
        let log = Arc::new(Log::default());
        let mut one = DurableWatch::start(log.clone()).unwrap();
        let mut two = one.clone();
        runtime().block_on(async {
            log.set(7, false);
            one.changed().await;
            two.changed().await;
            assert_eq!((one.get().end, two.get().end), (7, 7));
            log.set(9, true);
            one.changed().await;
            two.changed().await;
            let last = Durable {
                end: 9,
                failed: true,
            };
            assert_eq!((one.get(), two.get()), (last, last));
        });
    }

    #[test]
    fn the_thread_ends_after_the_last_listener() {
        let log = Arc::new(Log::default());
        let watch = DurableWatch::start(log.clone()).unwrap();
        drop(watch.clone());
        log.set(3, false);
        drop(watch);
        while Arc::strong_count(&log) > 1 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
