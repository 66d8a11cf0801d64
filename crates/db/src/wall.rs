//! The wall clock beside the monotonic clock: both read as of one moment, and what a put needs of them in one word.
//! Also the number of the boot to which times of the monotonic clock belong.
//!
//! **Invariant:** times of the wall clock run back only where that clock was set back. A difference between two samples
//! that comes from reading the clocks alone changes nothing.

use std::sync::atomic::{AtomicI64, Ordering};

use base::clock::Clock;
use base::seeded_bug::SeededBug;

use crate::time::Time;

/// Tries to read both clocks at one moment.
const TRIES: u32 = 4;
/// A time between two reads of the monotonic clock that is short enough, in ns.
const SPAN_NS: u64 = 50_000;
/// A change of the offset up to this much is none.
const STEADY_US: u64 = 100;
/// Largest offset that the word holds, in µs: far beyond the times of real clocks.
const OFFSET_US_MAX: i64 = i64::MAX >> 1;

/// First eight bytes of a boot id: tells boots apart in a slot.
#[must_use]
pub(crate) fn boot_tag(boot_id: &[u8; 16]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *boot_id;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// A sample of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    /// Wall clock minus monotonic clock, µs.
    pub(crate) offset_us: i64,
    /// Whether the wall clock was trusted.
    pub(crate) trusted: bool,
}

impl Wall {
    /// Takes a sample that knows of none before.
    pub(crate) fn sample(clock: &dyn Clock) -> Self {
        Fresh::sample(clock).wall
    }

    /// Returns the wall clock at a time of the monotonic clock, in whole µs.
    pub(crate) fn at(self, monotonic_ns: u64) -> Time {
        self.at_us(monotonic_ns / 1000)
    }

    /// As [`at`](Self::at). A reading with this arrival and this time is logged as the sample's offset, in 3 bytes.
    pub(crate) fn at_us(self, monotonic_us: u64) -> Time {
        let us = self.offset_us.saturating_add_unsigned(monotonic_us);
        // A clock may show a time that no ns can count.
        let ns = us.saturating_mul(1000);
        Time::from_ns(ns.clamp(-Time::NS_MAX, Time::NS_MAX))
    }

    fn word(self) -> i64 {
        self.offset_us << 1 | i64::from(self.trusted)
    }

    fn of(word: i64) -> Self {
        Self {
            offset_us: word >> 1,
            trusted: word & 1 != 0,
        }
    }
}

/// A sample, and by how much its offset may be wrong.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    wall: Wall,
    unsure_us: u64,
}

impl Fresh {
    /// Reads both clocks as of one moment. A thread that loses the processor between two reads would see clocks that
    /// differ by that time. So the wall clock is read between two reads of the other one, and the try with the shortest
    /// time between them counts.
    fn sample(clock: &dyn Clock) -> Self {
        // First: a clock that is set in between gives a right time without trust, not a wrong one with trust.
        let trusted = clock.wall_is_trusted();
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..TRIES {
            let before_ns = clock.monotonic_ns();
            let wall_ns = clock.wall_ns();
            let span_ns = clock.monotonic_ns().saturating_sub(before_ns);
            if span_ns < best.0 {
                best = (span_ns, before_ns + span_ns / 2, wall_ns);
            }
            if span_ns <= SPAN_NS {
                break;
            }
        }
        let (span_ns, monotonic_ns, wall_ns) = best;
        let wall_us = wall_ns.div_euclid(1000);
        let offset_us = wall_us.saturating_sub_unsigned(monotonic_ns / 1000);
        Self {
            wall: Wall {
                offset_us: offset_us.clamp(-OFFSET_US_MAX, OFFSET_US_MAX),
                trusted,
            },
            unsure_us: span_ns / 2000,
        }
    }

    /// This sample behind another one. Both clocks run at the same rate. So an offset that differs by no more than the
    /// reading of the clocks explains is the same one. If it followed each sample, times could run back. They would do
    /// so where the offset falls by more than the time between two readings.
    fn behind(self, before: Wall) -> Wall {
        let moved_us = before.offset_us.abs_diff(self.wall.offset_us);
        let is_steady = moved_us <= STEADY_US.saturating_add(self.unsure_us);
        let offset_us = if is_steady && !SeededBug::OffsetTrembles.is_on() {
            before.offset_us
        } else {
            self.wall.offset_us
        };
        Wall {
            offset_us,
            ..self.wall
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

    /// Takes another sample, which keeps the offset of the one before unless the clock was set. Returns both, the one
    /// before first.
    pub(crate) fn renew(&self, clock: &dyn Clock) -> (Wall, Wall) {
        self.follow(Fresh::sample(clock))
    }

    fn follow(&self, fresh: Fresh) -> (Wall, Wall) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let before = Wall::of(word);
            let wall = fresh.behind(before);
            let (new, order) = (wall.word(), Ordering::Relaxed);
            // Another thread may take a sample meanwhile: the offset to keep is then that one's.
            match self.0.compare_exchange_weak(word, new, order, order) {
                Ok(_) => return (before, wall),
                Err(other) => word = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::SimClock;
    use std::sync::Mutex;

    const MS: u64 = 1_000_000;
    /// Wall clock minus monotonic clock, µs.
    const OFFSET_US: i64 = 1_700_000_000_000_123;

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
            self.wall_ns().div_euclid(1_000_000)
        }
        fn wall_ns(&self) -> i64 {
            OFFSET_US * 1000 + self.now_ns() as i64
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
        for (pauses, unsure_us) in [
            (&[][..], 0),
            (&[0, 5000 * MS][..], 0),
            (&[0, 0, 5000 * MS][..], 0),
            (&[0, 900 * MS, 0, 0, 0, 700 * MS][..], 0),
            // Where no try is free of pauses, the shortest one counts.
            (
                &[0, 0, 90 * MS, 0, 80 * MS, 0, 0, 2 * MS, 0, 0, 0, 70 * MS][..],
                1000,
            ),
        ] {
            let fresh = Fresh::sample(&Interrupted::new(pauses));
            let wall = fresh.wall;
            assert!(wall.trusted);
            assert_eq!(fresh.unsure_us, unsure_us, "{pauses:?}");
            assert!(
                wall.offset_us.abs_diff(OFFSET_US) <= unsure_us,
                "{pauses:?}: {wall:?}"
            );
            // So the next sample moves no time, with any of these pauses.
            let latest = Latest::new(Wall::sample(&Interrupted::new(&[])));
            let (before, after) = latest.renew(&Interrupted::new(pauses));
            assert_eq!((before.offset_us, after.offset_us), (OFFSET_US, OFFSET_US));
        }
    }

    #[test]
    fn offsets_within_100_us_do_not_move_times() {
        let clock = SimClock::new(1);
        clock.set_wall_ms(1_700_000_000_000);
        clock.advance_ns(5_000_000);
        let latest = Latest::new(Wall::sample(&clock));
        let begun = latest.get();
        let fresh = |moved_us: i64, trusted: bool| Fresh {
            wall: Wall {
                offset_us: begun.offset_us + moved_us,
                trusted,
            },
            unsure_us: 0,
        };
        // They do not add up, either: each is compared with what is kept.
        for moved_us in [100, -100, 60, 100, -1, 0] {
            let (_, after) = latest.follow(fresh(moved_us, false));
            assert_eq!(after, begun, "{moved_us}");
        }
        // Its trust is always that of the sample.
        let (before, after) = latest.follow(fresh(99, true));
        assert_eq!((before.trusted, after.trusted), (false, true));
        assert_eq!((latest.get(), after.offset_us), (after, begun.offset_us));
        // A clock that was set moves them, in either direction.
        for moved_us in [101, -101, 1_000_000, -3_600_000_000] {
            let before = latest.get().offset_us;
            let mut set = fresh(0, true);
            set.wall.offset_us = before + moved_us;
            let found = latest.follow(set);
            assert_eq!(found.0.offset_us, before);
            assert_eq!(found.1.offset_us, before + moved_us);
        }
        // What the sample may be wrong by counts with it.
        let mut set = fresh(0, true);
        set.wall.offset_us = latest.get().offset_us - 350;
        set.unsure_us = 250;
        assert_eq!(latest.follow(set).1, latest.get());
        set.unsure_us = 249;
        assert_eq!(latest.follow(set).1, set.wall);
    }

    #[test]
    fn a_time_is_that_of_the_wall_clock_in_whole_us() {
        let clock = SimClock::new(1);
        clock.set_wall_ms(1_700_000_000_000);
        clock.advance_ns(5_000_000);
        let wall = Wall::sample(&clock);
        clock.advance_ns(7_654_999);
        let time = wall.at(clock.monotonic_ns());
        assert_eq!(time, Time::from_ns(1_700_000_000_012_654_000));
        assert_eq!(wall.at_us(clock.monotonic_ns() / 1000), time);
        // Before 1970 it is rounded down as well, and what no ns can count is the farthest time.
        clock.set_wall_ms(-1);
        let wall = Wall::sample(&clock);
        clock.advance_ns(1_500);
        assert_eq!(wall.at(clock.monotonic_ns()), Time::from_ns(-998_000));
        for (wall_ms, ns) in [(i64::MAX, Time::NS_MAX), (i64::MIN, -Time::NS_MAX)] {
            clock.set_wall_ms(wall_ms);
            let time = Wall::sample(&clock).at(clock.monotonic_ns());
            let distance_ns = time.ns().abs_diff(ns);
            assert!(
                distance_ns < 1_000_000_000
                    && time.ns().unsigned_abs() <= Time::NS_MAX.unsigned_abs()
            );
        }
    }

    #[test]
    fn a_sample_and_its_word_are_the_same() {
        for offset_us in [
            0,
            1,
            -1,
            OFFSET_US,
            -OFFSET_US,
            OFFSET_US_MAX,
            -OFFSET_US_MAX,
        ] {
            for trusted in [false, true] {
                let wall = Wall { offset_us, trusted };
                assert_eq!(Latest::new(wall).get(), wall);
            }
        }
    }

    #[test]
    fn boots_are_told_apart_by_eight_bytes() {
        assert_eq!(
            boot_tag(&[1, 2, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]),
            0x0201
        );
    }
}
