//! The distance of two processors: the time that a cache line takes from one to the other.
//!
//! A host moves virtual processors, and this time changes by a factor of three to five from one minute to the next. The
//! speed of all that processors share, especially of a store, changes with it. A comparison of samples must take this
//! into account.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::realtime::{fifo, pin};
use crate::report::median;

/// Number of round trips of a batch, and number of batches.
const TRIPS: u64 = 100;
const BATCHES: usize = 5;

/// Timeout; reached only if one of the two processors does not run the thread.
const PATIENCE: Duration = Duration::from_millis(50);

/// A cache line of its own; the alignment also keeps adjacent-line prefetch away.
#[repr(align(256))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits for a number. Returns `None` if it does not arrive before `end`.
    fn wait(&self, number: u64, end: Instant) -> Option<()> {
        let mut looks = 0_u32;
        while self.0.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
            looks += 1;
            if looks.is_multiple_of(4096) && Instant::now() > end {
                return None;
            }
        }
        Some(())
    }
}

/// Returns the one-way time between two processors in ns, or `None` if they were not available. Occupies both, for
/// [`PATIENCE`] at most.
pub(super) fn line_ns(cores: [usize; 2], priority: i32) -> Option<f64> {
    let line = Line::default();
    let end = Instant::now() + PATIENCE;
    let count = TRIPS * BATCHES as u64;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            pin(cores[1]).and_then(|()| fifo(priority)).ok()?;
            for trip in 0..=count {
                line.wait(2 * trip + 1, end)?;
                line.0.store(2 * trip + 2, Ordering::Release);
            }
            Some(())
        });
        let asking = scope.spawn(|| {
            pin(cores[0]).and_then(|()| fifo(priority)).ok()?;
            let go = |trip: u64| {
                line.0.store(2 * trip + 1, Ordering::Release);
                line.wait(2 * trip + 2, end)
            };
            // The first thread waits until the other one has begun.
            go(0)?;
            let mut batches = Vec::with_capacity(BATCHES);
            for batch in 0..BATCHES as u64 {
                let begin = Instant::now();
                for trip in 0..TRIPS {
                    go(1 + batch * TRIPS + trip)?;
                }
                batches.push(begin.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
            }
            Some(median(&mut batches))
        });
        let found = asking.join().ok()?;
        answering.join().ok()??;
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_from_one_processor_to_the_other() {
        let cores = crate::realtime::cores();
        let [one, other, ..] = cores[..] else {
            println!("skipped: one processor");
            return;
        };
        if let Some(lacking) = crate::realtime::lacking() {
            println!("skipped: {lacking}");
            return;
        }
        // A loaded machine may delay one of the two threads for a long time; retry until both have run.
        let found = (0..200).find_map(|_| line_ns([one, other], 50));
        assert!(
            found.is_some_and(|found| found > 1.0 && found < 1e6),
            "{found:?}"
        );
    }
}
