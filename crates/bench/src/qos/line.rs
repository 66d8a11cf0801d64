//! How near to each other two processors are: the time that a line of memory takes from one to the other.
//!
//! A host moves virtual processors, and this time changes by a factor of three to five from one minute to the next. All
//! that processors share, a store above all, changes with it. Whoever compares samples must know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::realtime::{fifo, pin};
use crate::report::median;

/// Round trips of a batch, and batches.
const TRIPS: u64 = 100;
const BATCHES: usize = 5;

/// Reached only where one of both does not run.
const PATIENCE: Duration = Duration::from_millis(50);

/// Times that differ by less than this are those of one place.
const SAME: f64 = 1.35;

/// Times at the beginning of a stretch that the others are compared with: a run of many samples is looked at after each
/// of them, by a thread that goes before the measured ones.
const COMPARED: usize = 15;

/// A line of its own, and none beside it that is fetched along.
#[repr(align(256))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits for a number; `None` when it does not come.
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

/// One way between two processors, ns; `None` where they could not be had. Takes them both for a millisecond at most.
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
            // The first one waits until the other has begun.
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

/// Whether two times are those of one place.
pub(super) fn is_same(one: f64, other: f64) -> bool {
    one.max(other) <= SAME * one.min(other)
}

/// The longest stretch of samples in which the processors stayed where they were: a sample in between that differs does
/// not end it when the next ones are as before. Samples without a time are taken as the ones before them.
pub(super) fn longest_calm(times: &[Option<f64>]) -> std::ops::Range<usize> {
    const STRAYS: usize = 2;
    let mut longest = 0..0;
    let mut begin = 0;
    while begin < times.len() {
        let mut seen: Vec<f64> = Vec::new();
        let (mut end, mut strays) = (begin, 0);
        for (place, time) in times.iter().enumerate().skip(begin) {
            let stays = time.is_none_or(|time| {
                let middle = middle_of(&seen).unwrap_or(time);
                is_same(time, middle)
            });
            if stays {
                seen.extend(time.filter(|_| seen.len() < COMPARED));
                strays = 0;
                end = place + 1;
            } else {
                strays += 1;
                if strays > STRAYS {
                    break;
                }
            }
        }
        if end - begin > longest.len() {
            longest = begin..end;
        }
        begin = end.max(begin + 1);
    }
    longest
}

fn middle_of(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    (!times.is_empty()).then(|| median(&mut times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stretch_in_one_place_is_found() {
        let near = |count| vec![Some(65.0); count];
        let far = |count| vec![Some(210.0); count];
        assert_eq!(longest_calm(&[]), 0..0);
        assert_eq!(longest_calm(&[None, None]), 0..2);
        assert_eq!(longest_calm(&[near(5), far(9), near(7)].concat()), 5..14);
        // One that strays ends nothing, three do.
        assert_eq!(
            longest_calm(&[near(5), far(1), near(5), far(2), near(1)].concat()),
            0..14
        );
        assert_eq!(longest_calm(&[near(5), far(3), near(6)].concat()), 8..14);
        assert_eq!(
            longest_calm(&[near(3), vec![None; 2], near(3)].concat()),
            0..8
        );
    }

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
        // A loaded machine may keep one of both for long; it is asked until both have run.
        let found = (0..200).find_map(|_| line_ns([one, other], 50));
        assert!(
            found.is_some_and(|found| found > 1.0 && found < 1e6),
            "{found:?}"
        );
    }
}
