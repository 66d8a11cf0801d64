//! Counting the device operations of single calls, and comparing them with a limit.

use std::collections::BTreeMap;

use base::block::{BlockDevice, Counters};
use flash::{Bound, Store};

/// Maximum number of blocks in one write request.
pub const REQUEST_BLOCKS_MAX: u64 = 5;

/// Returns the device operations between two moments.
pub fn cost(before: Counters, now: Counters) -> Bound {
    Bound {
        reads: now.reads - before.reads,
        blocks_read: now.blocks_read - before.blocks_read,
        writes: now.writes - before.writes,
        flushes: now.flushes - before.flushes,
        blocks_written: now.blocks_written - before.blocks_written,
    }
}

pub fn is_within(cost: Bound, limit: Bound) -> bool {
    cost.reads <= limit.reads
        && cost.blocks_read <= limit.blocks_read
        && cost.writes <= limit.writes
        && cost.flushes <= limit.flushes
        && cost.blocks_written <= limit.blocks_written
}

pub fn most(left: Bound, right: Bound) -> Bound {
    Bound {
        reads: left.reads.max(right.reads),
        blocks_read: left.blocks_read.max(right.blocks_read),
        writes: left.writes.max(right.writes),
        flushes: left.flushes.max(right.flushes),
        blocks_written: left.blocks_written.max(right.blocks_written),
    }
}

/// The maximum cost of each kind of call.
#[derive(Default)]
pub struct Meter {
    worst: BTreeMap<&'static str, Bound>,
    calls: u64,
}

impl Meter {
    /// Runs `work`, which makes one call, and fails if it costs more than `limit`.
    pub fn measure<D: BlockDevice, R>(
        &mut self,
        store: &mut Store<D>,
        call: &'static str,
        limit: Bound,
        work: impl FnOnce(&mut Store<D>) -> R,
    ) -> R {
        store.device_mut().reset_write_blocks_max();
        let before = store.device().counters();
        let result = work(store);
        self.judge(call, before, store.device().counters(), limit);
        result
    }

    pub fn judge(&mut self, call: &'static str, before: Counters, now: Counters, limit: Bound) {
        let cost = cost(before, now);
        assert!(is_within(cost, limit), "{call}: {cost:?} exceeds {limit:?}");
        assert!(
            now.write_blocks_max <= REQUEST_BLOCKS_MAX,
            "{call}: a request of {} blocks",
            now.write_blocks_max
        );
        let worst = self.worst.entry(call).or_default();
        *worst = most(*worst, cost);
        self.calls += 1;
    }

    pub fn worst(&self, call: &str) -> Bound {
        self.worst.get(call).copied().unwrap_or_default()
    }

    pub fn report(&self, name: &str) {
        println!(
            "bounds, {name}: {} calls within their bounds; most reads (blocks), writes (KiB) and flushes seen:",
            self.calls
        );
        let worst: Vec<String> = self
            .worst
            .iter()
            .map(|(call, worst)| {
                format!(
                    "{call} {} ({}) {} ({}) {}",
                    worst.reads,
                    worst.blocks_read,
                    worst.writes,
                    worst.blocks_written * 4,
                    worst.flushes
                )
            })
            .collect();
        for line in worst.chunks(6) {
            println!("  {}", line.join("; "));
        }
    }
}
