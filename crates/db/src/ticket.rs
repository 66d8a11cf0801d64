//! The acknowledgement: a number that the commit thread passes, or a failure that it never passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, LogFailure};

/// The log's progress; shared by tickets, producers and the commit thread.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Readings numbered below this are on flash.
    durable_end: AtomicU64,
    failure: AtomicU8,
    changed: Changed,
}

impl Progress {
    pub(crate) fn new(durable_end: u64) -> Self {
        Self {
            durable_end: AtomicU64::new(durable_end),
            failure: AtomicU8::new(0),
            changed: Changed::default(),
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
        let before = self.durable_end.swap(durable_end, Ordering::Release);
        self.changed.tell(bits_of(before, durable_end));
    }

    /// Records a failure; the first one stays.
    pub(crate) fn fail(&self, failure: LogFailure) {
        let word = match failure {
            LogFailure::Device => 1,
            LogFailure::Full => 2,
            LogFailure::Closed => 3,
            LogFailure::Torn => 4,
        };
        let _ = self
            .failure
            .compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
        self.changed.tell(u32::MAX);
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
        let past = || {
            let end = self.durable_end();
            if end > seen {
                return Ok(Some(end));
            }
            self.failure()
                .map_or(Ok(None), |failure| Err(failure.into()))
        };
        let end = self.changed.wait(BIT_OF_ANY, timeout, past)?;
        Ok(end.unwrap_or_else(|| self.durable_end()))
    }

    /// Waits for any change, at most `timeout`.
    pub(crate) fn wait_change(&self, timeout: Duration) {
        let begin = self.changed.count.load(Ordering::Acquire);
        let changed = || {
            let now = self.changed.count.load(Ordering::Acquire);
            Ok((now != begin).then_some(()))
        };
        let _ = self.changed.wait(BIT_OF_ANY, timeout, changed);
    }
}

/// The bit that every change wakes.
const BIT_OF_ANY: u32 = 1 << 31;
/// Consecutive readings that share a bit.
const READINGS_PER_BIT: u64 = 8;
const BITS: u64 = 31;

/// Returns the bit by which waiters for a reading are woken.
fn bit_of(lsn: u64) -> u32 {
    1 << (lsn / READINGS_PER_BIT % BITS)
}

/// Returns the bits of all readings in `from..to`, and of waiters for any change.
fn bits_of(from: u64, to: u64) -> u32 {
    let (first, last) = (
        from / READINGS_PER_BIT,
        to.saturating_sub(1) / READINGS_PER_BIT,
    );
    if last.saturating_sub(first) >= BITS {
        return u32::MAX;
    }
    (first..=last).fold(BIT_OF_ANY, |bits, group| bits | 1 << (group % BITS))
}

/// Where threads wait for the log's progress: a futex, because each thread must be woken for its own reading alone.
/// With a condition variable all of them wake up at each commit, including those of the next one, and queue for its
/// mutex. So fewer of them are in time for the next commit.
#[derive(Debug, Default)]
struct Changed {
    /// Incremented with each change: the kernel compares it before it lets a thread sleep.
    count: AtomicU32,
    /// Threads that sleep or are about to.
    waiters: AtomicU32,
}

impl Changed {
    /// Call after a change: wakes the waiters for any of these bits. Without waiters it makes no system call.
    fn tell(&self, bits: u32) {
        // Either this sees the waiter, or the waiter's kernel sees the new count.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.call(
                libc::FUTEX_WAKE_BITSET,
                i32::MAX as u32,
                std::ptr::null(),
                bits,
            );
        }
    }

    /// Calls `ask` after each change that concerns the bit, until it answers; `None` after `timeout`.
    fn wait<R>(
        &self,
        bit: u32,
        timeout: Duration,
        mut ask: impl FnMut() -> Result<Option<R>, Error>,
    ) -> Result<Option<R>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let count = self.count.load(Ordering::Acquire);
            if let Some(answer) = ask()? {
                return Ok(Some(answer));
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => HOUR,
            };
            if left.is_zero() {
                return Ok(None);
            }
            let until = monotonic_after(left.min(HOUR));
            self.waiters.fetch_add(1, Ordering::SeqCst);
            self.call(libc::FUTEX_WAIT_BITSET, count, &raw const until, bit);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn call(&self, operation: i32, value: u32, until: *const libc::timespec, bits: u32) {
        let none: *const u32 = std::ptr::null();
        // SAFETY: the word is aligned and lives as long as the call; the time is null or the caller's, and only read.
        // The caller asks once more after an error, as after a wake-up.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.count.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                until,
                none,
                bits,
            )
        };
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the kernel's monotonic time after this interval, in the form that a futex needs.
fn monotonic_after(time: Duration) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for the answer, borrowed exclusively for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let nanos = now.tv_nsec as u64 + u64::from(time.subsec_nanos());
    now.tv_sec += time.as_secs() as libc::time_t + (nanos / 1_000_000_000) as libc::time_t;
    now.tv_nsec = (nanos % 1_000_000_000) as _;
    now
}

/// Stands for one reading on its way to flash. Cheap to clone, never allocates.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// `None`: the reading was dropped.
    lsn: Option<u64>,
    progress: Arc<Progress>,
}

impl Ticket {
    pub(crate) fn new(lsn: u64, progress: Arc<Progress>) -> Self {
        Self {
            lsn: Some(lsn),
            progress,
        }
    }

    /// Makes the ticket of a reading that is not logged.
    pub(crate) fn dropped(progress: Arc<Progress>) -> Self {
        Self {
            lsn: None,
            progress,
        }
    }

    /// Whether the reading was neither stored nor logged, because its object is configured so and the reading was not
    /// admitted. The ticket is complete.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.lsn.is_none()
    }

    /// The reading's number in the log, from 0 on. Tickets complete in the order of their numbers. `None` if the
    /// reading was dropped: no log has it.
    #[must_use]
    pub fn lsn(&self) -> Option<u64> {
        self.lsn
    }

    /// Whether the reading is on flash now, or dropped: there is nothing to wait for.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.lsn.is_none_or(|lsn| self.progress.durable_end() > lsn)
    }

    /// `Ok(true)` when durable or dropped, `Ok(false)` while waiting. Does not block.
    ///
    /// # Errors
    /// [`Error::LogFailed`] or [`Error::Full`] when the reading will not become durable.
    pub fn poll(&self) -> Result<bool, Error> {
        self.lsn.map_or(Ok(true), |lsn| self.progress.state(lsn))
    }

    /// Blocks until the reading is durable; not at all for one that was dropped.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`Error::Timeout`] when it still waits after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let Some(lsn) = self.lsn else {
            return Ok(());
        };
        let progress = &self.progress;
        if progress.state(lsn)? {
            return Ok(());
        }
        let durable = || Ok(progress.state(lsn)?.then_some(()));
        progress
            .changed
            .wait(bit_of(lsn), timeout, durable)?
            .ok_or(Error::Timeout)
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
        let dropped = Ticket::dropped(Arc::clone(&progress));
        assert!(dropped.is_dropped() && dropped.is_durable() && !ticket(4).is_dropped());
        assert_eq!((dropped.lsn(), ticket(4).lsn()), (None, Some(4)));
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

    /// Many threads put and wait, one commits: a lost wake-up is a wait that times out.
    #[test]
    fn each_waiter_is_woken_for_its_own_reading() {
        let progress = Arc::new(Progress::new(0));
        let (next, threads) = (AtomicU64::new(0), 16);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let lsn = next.fetch_add(1, Ordering::Relaxed);
                        if lsn >= 4000 {
                            break;
                        }
                        let ticket = Ticket::new(lsn, Arc::clone(&progress));
                        assert_eq!(ticket.wait(Duration::from_secs(60)), Ok(()));
                        assert!(ticket.is_durable());
                    }
                });
            }
            let any = scope.spawn(|| {
                let mut seen = 0;
                while seen < 4000 {
                    let end = progress.wait_past(seen, Duration::from_secs(60));
                    assert!(end.as_ref().is_ok_and(|end| *end > seen), "{end:?}");
                    seen = end.unwrap_or(u64::MAX);
                }
            });
            // As many as there are, or fewer: commits of all sizes, and some split in two.
            let mut done = 0;
            while done < 4000 {
                let end = next.load(Ordering::Relaxed).min(4000);
                if end > done {
                    progress.complete(done + (end - done).div_ceil(2));
                    progress.complete(end);
                    done = end;
                }
                std::thread::yield_now();
            }
            assert!(any.join().is_ok());
        });
        assert_eq!(progress.changed.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bits_cover_the_readings_and_any_change() {
        for (from, to) in [(0, 1), (7, 9), (100, 348), (5, 5), (240, 260), (3, 10_000)] {
            let bits = bits_of(from, to);
            assert!((from..to).all(|lsn| bits & bit_of(lsn) != 0), "{from} {to}");
            assert!(bits & BIT_OF_ANY != 0);
        }
        assert_eq!(bits_of(16, 24), BIT_OF_ANY | 1 << 2, "and no others");
    }
}
