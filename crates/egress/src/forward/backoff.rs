//! Waits after failures: the wait doubles each time, and half of it is random. So nodes that lost the same upstream
//! together do not reconnect together.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    random: u64,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::with_seed(RandomState::new().build_hasher().finish())
    }

    fn with_seed(seed: u64) -> Self {
        Self {
            failures: 0,
            // From 0, xorshift gives nothing but 0.
            random: seed | 1,
        }
    }

    /// Starts again with the shortest wait, after progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the wait after another failure.
    pub(crate) fn next(&mut self, ms_min: u64, ms_max: u64) -> Duration {
        let step = ms_min
            .saturating_mul(1 << self.failures.min(30))
            .clamp(1, ms_max.max(1));
        self.failures = self.failures.saturating_add(1);
        // xorshift64 is good enough to differ from other nodes.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = step / 2;
        Duration::from_millis(half + self.random % (step - half + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_maximum_and_starts_over() {
        let mut backoff = Backoff::new();
        for step in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.next(100, 1_000).as_millis();
            assert!((step / 2..=step).contains(&wait), "{wait} of {step}");
        }
        backoff.reset();
        assert!(backoff.next(100, 1_000).as_millis() <= 100);
        assert!(backoff.next(u64::MAX, u64::MAX).as_millis() > 0);
    }

    #[test]
    fn the_waits_of_two_nodes_differ_and_fill_the_upper_half_of_the_step() {
        let waits = |mut backoff: Backoff| -> Vec<u64> {
            let wait = |_| backoff.next(1_000, 1_000).as_millis() as u64;
            (0..1_000).map(wait).collect()
        };
        for (one, other) in [
            (Backoff::with_seed(1), Backoff::with_seed(2)),
            (Backoff::new(), Backoff::new()),
        ] {
            let (one, other) = (waits(one), waits(other));
            assert_ne!(one, other);
            for waits in [one, other] {
                // A tenth of the upper half is missed by chance once in 10^44 runs.
                for from in (500..1_000).step_by(50) {
                    let tenth = from..from + 50;
                    assert!(waits.iter().any(|wait| tenth.contains(wait)), "{tenth:?}");
                }
            }
        }
    }
}
