//! When to read: at once while messages are few, at intervals while they are many.

use std::time::Duration;

/// Above this rate reads are paced.
const PACED_ABOVE_PER_SECOND: u64 = 2_000;
/// Below this rate reads are no longer paced.
const PROMPT_BELOW_PER_SECOND: u64 = 1_000;
/// Shortest time over which the rate is measured.
const WINDOW: Duration = Duration::from_millis(100);
/// Interval of paced reads.
pub(super) const STEP: Duration = Duration::from_millis(2);

/// The rate of messages, and whether reads are paced.
#[derive(Debug)]
pub(super) struct Pace {
    /// On the session's clock.
    since: Duration,
    messages: u64,
    paced: bool,
}

impl Pace {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            since: now,
            messages: 0,
            paced: false,
        }
    }

    pub(super) fn count(&mut self, messages: u64) {
        self.messages += messages;
    }

    /// Returns whether to pace the next read.
    pub(super) fn paced(&mut self, now: Duration) -> bool {
        let time = now.saturating_sub(self.since);
        if time >= WINDOW {
            let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
            let per_second = self.messages.saturating_mul(1_000) / milliseconds;
            self.paced = if self.paced {
                per_second >= PROMPT_BELOW_PER_SECOND
            } else {
                per_second > PACED_ABOVE_PER_SECOND
            };
            self.since = now;
            self.messages = 0;
        }
        self.paced
    }
}

/// The wait before the next connection.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    random: u64,
}

impl Backoff {
    /// Resets the wait after a good connection.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the wait after another failure: between half of the step and all of it. The step doubles up to the
    /// maximum. The random part keeps nodes that lost the same broker from reconnecting at the same moment.
    pub(crate) fn next(&mut self, ms_min: u64, ms_max: u64) -> Duration {
        let step = ms_min
            .saturating_mul(1 << self.failures.min(30))
            .clamp(1, ms_max.max(1));
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        Duration::from_millis(half + self.random() % (step - half + 1))
    }

    fn random(&mut self) -> u64 {
        use std::hash::{BuildHasher, Hasher, RandomState};
        if self.random == 0 {
            self.random = RandomState::new().build_hasher().finish() | 1;
        }
        // xorshift64 is good enough to differ from other nodes.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_messages_are_paced_and_few_are_not() {
        let mut now = Duration::ZERO;
        let mut pace = Pace::new(now);
        let mut second = |messages: u64| {
            for _ in 0..10 {
                pace.count(messages / 10);
                now += WINDOW;
                pace.paced(now);
            }
            pace.paced(now)
        };
        assert!(!second(1_500));
        assert!(second(2_500));
        assert!(second(1_500));
        assert!(!second(500));
    }

    #[test]
    fn the_wait_doubles_up_to_its_maximum_and_starts_over() {
        let mut backoff = Backoff::default();
        for step in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.next(100, 1_000).as_millis();
            assert!((step / 2..=step).contains(&wait), "{wait} of {step}");
        }
        for _ in 0..100 {
            assert!(backoff.next(100, 1_000).as_millis() <= 1_000);
        }
        backoff.reset();
        assert!(backoff.next(100, 1_000).as_millis() <= 100);
    }
}
