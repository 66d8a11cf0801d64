//! Answers that a caller waits for, not a program.

use crate::block::BlockAt;
use crate::device::settings::PLAN_BLOCKS_MAX;
use crate::sync::locked;
use crate::wire::Refusal;
use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Poll interval of a waiting caller, to check whether its connection is up.
const LOOK: Duration = Duration::from_millis(100);

/// An answer, as far as it has arrived.
#[derive(Default)]
pub(crate) struct Exchange {
    /// The requested blocks that have not arrived.
    pub missing: HashSet<BlockAt>,
    /// The blocks of the requested plan, as many as are kept.
    pub plan: Vec<BlockAt>,
    /// The plan has come to its end.
    pub has_plan: bool,
    /// The server has learned no start of the task that is whole.
    pub is_in_part: bool,
    pub refused: Option<Refusal>,
    is_over: bool,
}

impl Exchange {
    /// Returns the answer to a request of these blocks, before any of them has arrived.
    pub fn of(missing: HashSet<BlockAt>) -> Self {
        Self {
            missing,
            ..Self::default()
        }
    }

    pub fn end(&mut self) {
        self.is_over = true;
    }

    pub fn came(&mut self, blocks: &[BlockAt]) {
        for at in blocks {
            self.missing.remove(at);
        }
    }

    pub fn plan(&mut self, blocks: &[BlockAt], has_more: bool) {
        self.is_in_part |= blocks.is_empty() && has_more;
        // Bound the plan of a server that never stops sending. The rest is still received, up to the deadline: blocks
        // of a plan that is no longer requested would count as wrong.
        let room = PLAN_BLOCKS_MAX.saturating_sub(self.plan.len());
        self.plan.extend(blocks.iter().take(room));
        self.has_plan = !has_more;
        self.is_over = !has_more;
    }

    pub fn refuse(&mut self, reason: Refusal) {
        self.refused = Some(reason);
        self.is_over = true;
    }
}

/// All answers that are waited for, by the id of their request.
#[derive(Default)]
pub(crate) struct Exchanges {
    all: Mutex<HashMap<u32, Exchange>>,
    changed: Condvar,
}

impl Exchanges {
    pub(super) fn begin(&self, id: u32, answer: Exchange) {
        locked(&self.all).insert(id, answer);
    }

    /// Changes the answer to a request, if a caller waits for it, and wakes the caller.
    pub fn change(&self, id: u32, change: impl FnOnce(&mut Exchange)) {
        if let Some(exchange) = locked(&self.all).get_mut(&id) {
            change(exchange);
        }
        self.changed.notify_all();
    }

    /// Makes all waiting callers check whether their connections are up.
    pub fn look_again(&self) {
        self.changed.notify_all();
    }

    /// Waits until an answer is complete, its connection is no longer up, or no block has arrived for `deadline`.
    /// Returns the answer, and whether it is late.
    pub(super) fn wait(
        &self,
        id: u32,
        deadline: Duration,
        is_up: impl Fn() -> bool,
    ) -> (Exchange, bool) {
        let mut all = locked(&self.all);
        let mut left = all.get(&id).map_or(0, |exchange| exchange.missing.len());
        let mut progress = Instant::now();
        loop {
            let Some(exchange) = all.get(&id) else {
                return (Exchange::default(), false);
            };
            if exchange.missing.len() < left {
                left = exchange.missing.len();
                progress = Instant::now();
            }
            let is_late = progress.elapsed() >= deadline;
            if exchange.is_over || is_late || !is_up() {
                return (all.remove(&id).unwrap_or_default(), is_late);
            }
            all = self
                .changed
                .wait_timeout(all, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::FileId;

    #[test]
    fn a_plan_is_kept_up_to_its_limit_and_received_to_its_end() {
        let file = FileId(1);
        let blocks: Vec<BlockAt> = (0..1000).map(|index| BlockAt { file, index }).collect();
        let mut answer = Exchange::default();
        for _ in 0..40 {
            answer.plan(&blocks, true);
            assert!(!answer.is_over && !answer.has_plan);
        }
        answer.plan(&blocks, false);
        assert!(answer.is_over && answer.has_plan && !answer.is_in_part);
        assert_eq!(answer.plan.len(), PLAN_BLOCKS_MAX);
        let mut lost = Exchange::default();
        lost.plan(&blocks, true);
        lost.end();
        assert!(lost.is_over && !lost.has_plan);
        let mut in_part = Exchange::default();
        in_part.plan(&[], true);
        in_part.plan(&[], false);
        assert!(in_part.has_plan && in_part.is_in_part);
    }
}
