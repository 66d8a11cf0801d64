//! The watchdog of the service manager: tells it that data flow.
//!
//! **Invariants:** `WATCHDOG=1` is sent by the thread that talks to the network, and only while the commit thread
//! completes rounds or is idle. So it is not sent when either thread hangs, when the device does not answer, or when
//! the log has failed.

use super::log;
use super::state::Node;
use db::Pulse;
use std::time::{Duration, Instant};

/// Messages per watchdog interval of the manager.
const MESSAGES_PER_WATCHDOG: u32 = 4;

/// Checks repeatedly whether data flow.
#[derive(Debug, Default)]
struct Flow {
    rounds: u64,
    /// Since when something has been waiting without a completed round.
    stuck_since: Option<Instant>,
}

impl Flow {
    /// Returns whether data flow. `patience`: how long something may wait without a completed round.
    fn goes_on(&mut self, pulse: &Pulse, now: Instant, patience: Duration) -> bool {
        if pulse.is_over {
            return false;
        }
        if !pulse.is_waiting || pulse.rounds != self.rounds {
            self.rounds = pulse.rounds;
            self.stuck_since = None;
            return true;
        }
        let since = *self.stuck_since.get_or_insert(now);
        now.duration_since(since) < patience
    }
}

/// Feeds the watchdog while data flow. Never returns.
pub(crate) async fn feed(node: &Node) {
    let Some(watchdog) = node.notify.watchdog else {
        return std::future::pending().await;
    };
    let period = watchdog / MESSAGES_PER_WATCHDOG;
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut flow = Flow::default();
    let mut goes_on = true;
    loop {
        ticks.tick().await;
        let commit_interval_ms = node.config.borrow().store.commit_interval_ms;
        // A reading may wait for its commit for the configured interval, and a commit may wait for a slow card.
        let patience = Duration::from_millis(u64::from(commit_interval_ms)) + watchdog / 2;
        let flows = flow.goes_on(&node.db.pulse(), Instant::now(), patience);
        if flows {
            node.notify.send("WATCHDOG=1");
        }
        if flows != goes_on {
            goes_on = flows;
            let text = if flows {
                "data flow again, and the watchdog is fed"
            } else {
                "no reading becomes durable: the watchdog is no longer fed"
            };
            log::event("watchdog", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(1);

    fn pulse(rounds: u64, is_waiting: bool) -> Pulse {
        Pulse {
            rounds,
            is_waiting,
            is_over: false,
        }
    }

    #[test]
    fn data_count_as_flowing_while_rounds_end_or_no_work_waits() {
        let mut flow = Flow::default();
        let start = Instant::now();
        let mut at = |tick: u32, pulse: &Pulse| flow.goes_on(pulse, start + TICK * tick, TICK * 3);
        // Idle, for any time.
        assert!(at(0, &pulse(0, false)) && at(100, &pulse(0, false)));
        // Always something to do, and always completed.
        assert!((101..200).all(|tick| at(tick, &pulse(u64::from(tick), true))));
        // A long flush does not count as stuck.
        assert!(at(200, &pulse(199, true)) && at(202, &pulse(199, true)));
        // A flush that does not end does.
        assert!(!at(203, &pulse(199, true)) && !at(300, &pulse(199, true)));
        // Until it ends after all.
        assert!(at(301, &pulse(200, true)));
        let over = Pulse {
            is_over: true,
            ..pulse(201, false)
        };
        assert!(!at(302, &over));
    }
}
