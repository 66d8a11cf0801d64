//! A clock that stands still until it is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::random::Random;
use crate::clock::Clock;

#[derive(Clone, Debug)]
struct State {
    monotonic_ns: u64,
    /// Wall time in nanoseconds since 1970, wide enough for any `i64` of milliseconds.
    wall_ns: i128,
    trusted: bool,
    boot: u64,
    seed: u64,
}

/// The simulated clock. Clones share one time, so that a device can advance what a test reads.
#[derive(Clone, Debug)]
pub struct SimClock {
    state: Arc<Mutex<State>>,
}

impl SimClock {
    /// Monotonic time 0, wall time 1970, not trusted; boot identities follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            monotonic_ns: 0,
            wall_ns: 0,
            trusted: false,
            boot: 0,
            seed,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Lets time pass: both clocks move forward.
    pub fn advance_ns(&self, ns: u64) {
        let mut state = self.lock();
        state.monotonic_ns = state.monotonic_ns.saturating_add(ns);
        state.wall_ns += i128::from(ns);
    }

    /// Moves monotonic time forward to `ns`, and wall time by as much. Times already past are ignored:
    /// monotonic time does not run backwards.
    pub fn advance_to_ns(&self, ns: u64) {
        let mut state = self.lock();
        let step = ns.saturating_sub(state.monotonic_ns);
        state.monotonic_ns += step;
        state.wall_ns += i128::from(step);
    }

    /// Sets the wall clock, forward or back, and leaves monotonic time alone: what a time daemon, an
    /// operator or a dead battery does.
    pub fn set_wall_ms(&self, ms: i64) {
        self.lock().wall_ns = i128::from(ms) * 1_000_000;
    }

    /// Jumps the wall clock by `ms`, forward or back.
    pub fn jump_wall_ms(&self, ms: i64) {
        self.lock().wall_ns += i128::from(ms) * 1_000_000;
    }

    /// Sets what [`Clock::wall_is_trusted`] answers.
    pub fn set_wall_trusted(&self, trusted: bool) {
        self.lock().trusted = trusted;
    }

    /// A new boot: monotonic time starts at 0 again, the boot identity changes, the wall clock goes on and
    /// is no longer trusted.
    pub fn reboot(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.monotonic_ns = 0;
        state.trusted = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update leaves the state whole, so a panicking holder has done no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SimClock {
    fn monotonic_ns(&self) -> u64 {
        self.lock().monotonic_ns
    }

    fn wall_ms(&self) -> i64 {
        let ms = self.lock().wall_ns.div_euclid(1_000_000);
        i64::try_from(ms).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
    }

    fn wall_ns(&self) -> i64 {
        let ns = self.lock().wall_ns;
        i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
    }

    fn wall_is_trusted(&self) -> bool {
        self.lock().trusted
    }

    fn boot_id(&self) -> [u8; 16] {
        let state = self.lock();
        let mut id = [0; 16];
        Random::new(state.seed.wrapping_add(state.boot)).fill(&mut id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_when_told_and_for_all_clones() {
        let clock = SimClock::new(1);
        let other = clock.clone();
        assert_eq!((clock.monotonic_ns(), clock.wall_ms()), (0, 0));
        other.advance_ns(2_500_000);
        assert_eq!((clock.monotonic_ns(), clock.wall_ms()), (2_500_000, 2));
        assert_eq!(clock.wall_ns(), 2_500_000);
        clock.advance_to_ns(5_000_000);
        clock.advance_to_ns(1);
        assert_eq!((other.monotonic_ns(), other.wall_ms()), (5_000_000, 5));
    }

    #[test]
    fn the_wall_clock_jumps_and_monotonic_time_does_not() {
        let clock = SimClock::new(1);
        clock.set_wall_ms(1_700_000_000_000);
        clock.jump_wall_ms(-3_600_000);
        assert_eq!(
            (clock.monotonic_ns(), clock.wall_ms()),
            (0, 1_699_996_400_000)
        );
        clock.set_wall_ms(-1);
        assert_eq!(clock.wall_ms(), -1);
        clock.set_wall_ms(i64::MAX);
        clock.jump_wall_ms(i64::MAX);
        assert_eq!((clock.wall_ms(), clock.wall_ns()), (i64::MAX, i64::MAX));
        assert!(!clock.wall_is_trusted());
        clock.set_wall_trusted(true);
        assert!(clock.wall_is_trusted());
    }

    #[test]
    fn a_boot_has_its_own_identity_and_its_own_monotonic_time() {
        let clock = SimClock::new(1);
        clock.set_wall_trusted(true);
        clock.advance_ns(7_000_000);
        let first = clock.boot_id();
        assert_eq!(first, clock.boot_id());
        clock.reboot();
        assert_ne!(first, clock.boot_id());
        assert_eq!(
            (
                clock.monotonic_ns(),
                clock.wall_ms(),
                clock.wall_is_trusted()
            ),
            (0, 7, false)
        );
        assert_eq!(SimClock::new(1).boot_id(), first);
        assert_ne!(SimClock::new(2).boot_id(), first);
    }
}
