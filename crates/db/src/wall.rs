//! The wall clock beside the monotonic clock: both read as of one moment, and what a put needs of them in one word.

use std::sync::atomic::{AtomicI64, Ordering};

use base::clock::Clock;

use crate::log::times::Time;

/// Tries to read both clocks at one moment.
const TRIES: u32 = 4;
/// A time between two reads of the monotonic clock that is short enough, in ns.
const SPAN_NS: u64 = 50_000;
/// Largest offset that the word holds, in ms: far beyond the times of real clocks.
const OFFSET_MS_MAX: i64 = i64::MAX >> 1;

/// Reads the monotonic clock, in ns, and the wall clock, in ms, as of one moment. A thread that loses the processor
/// between two reads would see clocks that differ by that time. So the wall clock is read between two reads of the
/// other one, and the try with the shortest time between them counts.
pub(crate) fn both(clock: &dyn Clock) -> (u64, i64) {
    let mut best = (u64::MAX, (0, 0));
    for _ in 0..TRIES {
        let before_ns = clock.monotonic_ns();
        let wall_ms = clock.wall_ms();
        let span_ns = clock.monotonic_ns().saturating_sub(before_ns);
        if span_ns < best.0 {
            best = (span_ns, (before_ns + span_ns / 2, wall_ms));
        }
        if span_ns <= SPAN_NS {
            break;
        }
    }
    best.1
}

/// A sample of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    /// Wall clock minus monotonic clock, ms.
    pub(crate) offset_ms: i64,
    /// Whether the wall clock was trusted.
    pub(crate) trusted: bool,
}

impl Wall {
    /// Takes a sample.
    pub(crate) fn sample(clock: &dyn Clock) -> Self {
        // First: a clock that is set in between gives a right time without trust, not a wrong one with trust.
        let trusted = clock.wall_is_trusted();
        let (monotonic_ns, wall_ms) = both(clock);
        let offset_ms = wall_ms.saturating_sub_unsigned(monotonic_ns / 1_000_000);
        Self {
            offset_ms: offset_ms.clamp(-OFFSET_MS_MAX, OFFSET_MS_MAX),
            trusted,
        }
    }

    /// Returns the wall clock at a time of the monotonic clock.
    pub(crate) fn at(self, monotonic_ns: u64) -> Time {
        let since_ms = monotonic_ns / 1_000_000;
        Time::from_ms(self.offset_ms.saturating_add_unsigned(since_ms))
    }

    fn word(self) -> i64 {
        self.offset_ms << 1 | i64::from(self.trusted)
    }

    fn of(word: i64) -> Self {
        Self {
            offset_ms: word >> 1,
            trusted: word & 1 != 0,
        }
    }
}

/// The latest sample. It is one word, so that no reader gets the offset of one sample and the trust of another.
#[derive(Debug)]
pub(crate) struct Latest(AtomicI64);

impl Latest {
    pub(crate) fn new(wall: Wall) -> Self {
        Self(AtomicI64::new(wall.word()))
    }

    pub(crate) fn get(&self) -> Wall {
        Wall::of(self.0.load(Ordering::Relaxed))
    }

    /// Sets another sample. Returns the one before.
    pub(crate) fn replace(&self, wall: Wall) -> Wall {
        Wall::of(self.0.swap(wall.word(), Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const MS: u64 = 1_000_000;
    /// Wall clock minus monotonic clock, ms.
    const OFFSET_MS: i64 = 1_700_000_000_000;

    /// A clock whose reader loses the processor: before its n-th read of any clock, this time passes.
    struct Interrupted(Mutex<(u64, Vec<u64>)>);

    impl Interrupted {
        fn new(pauses_ns: &[u64]) -> Self {
            Self(Mutex::new((MS, pauses_ns.iter().rev().copied().collect())))
        }

        fn now_ns(&self) -> u64 {
            let mut state = self.0.lock().unwrap();
            state.0 += state.1.pop().unwrap_or(0);
            state.0
        }
    }

    impl Clock for Interrupted {
        fn monotonic_ns(&self) -> u64 {
            self.now_ns()
        }
        fn wall_ms(&self) -> i64 {
            OFFSET_MS + (self.now_ns() / MS) as i64
        }
        fn wall_is_trusted(&self) -> bool {
            true
        }
        fn boot_id(&self) -> [u8; 16] {
            [1; 16]
        }
    }

    #[test]
    fn a_pause_between_the_clocks_does_not_shift_their_offset() {
        for pauses in [
            &[][..],
            &[0, 5000 * MS],
            &[0, 0, 5000 * MS],
            &[0, 900 * MS, 0, 0, 0, 700 * MS],
            // Where no try is free of pauses, the shortest one counts.
            &[0, 0, 90 * MS, 0, 80 * MS, 0, 0, 2 * MS, 0, 0, 0, 70 * MS],
        ] {
            let wall = Wall::sample(&Interrupted::new(pauses));
            assert!(wall.trusted);
            assert!(
                wall.offset_ms.abs_diff(OFFSET_MS) <= 2,
                "{pauses:?}: {wall:?}"
            );
        }
    }

    #[test]
    fn a_sample_and_its_word_are_the_same() {
        for offset_ms in [
            0,
            1,
            -1,
            OFFSET_MS,
            -OFFSET_MS,
            OFFSET_MS_MAX,
            -OFFSET_MS_MAX,
        ] {
            let latest = Latest::new(Wall {
                offset_ms: 7,
                trusted: true,
            });
            for trusted in [false, true] {
                let wall = Wall { offset_ms, trusted };
                let before = latest.get();
                assert_eq!(latest.replace(wall), before);
                assert_eq!(latest.get(), wall);
            }
        }
    }
}
