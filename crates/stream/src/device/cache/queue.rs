//! The queue of blocks that were put and are not written yet.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::RECORD_BLOCKS_MAX;
use super::record::Block;
use crate::block::BlockHash;

/// How long the writer waits for more blocks, so that they are compressed together.
const GATHER: Duration = Duration::from_millis(25);

/// How long the writer waits for more blocks before it makes its writes durable.
const SETTLE: Duration = Duration::from_secs(2);

/// Memory overhead of a block, in bytes.
const BLOCK_OVERHEAD_BYTES: usize = 160;

/// What the writer must do next.
pub(super) enum Work {
    /// Write these blocks together.
    Blocks(Vec<Block>),
    /// Make all writes durable, because the flush with this number is waited for or no new block has arrived.
    Settle(u64),
    /// Nothing more will come.
    End,
}

#[derive(Default)]
struct State {
    /// Blocks that wait, and blocks that are being written.
    blocks: HashMap<BlockHash, Arc<[u8]>>,
    waiting: VecDeque<BlockHash>,
    bytes: usize,
    is_unsettled: bool,
    /// A caller has waited without result, and nothing was written since. The network's thread is one of the callers:
    /// it must not wait again for each block while the disk stands still.
    is_stalled: bool,
    /// The number of requested flushes, and the number of the last completed one.
    flushes: u64,
    flushed: u64,
    is_closed: bool,
}

pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the writer: there is work.
    work: Condvar,
    /// Wakes all others: work was done.
    done: Condvar,
    bytes_max: usize,
    put_wait: Duration,
}

impl Queue {
    pub(super) fn new(bytes_max: usize, put_wait: Duration) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            bytes_max,
            put_wait,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block. Returns false if there was no room within `put_wait`, and at once while the disk stands still.
    pub(super) fn put(&self, hash: &BlockHash, bytes: &Arc<[u8]>) -> bool {
        let is_full = |state: &mut State| {
            !state.blocks.contains_key(hash)
                && state.bytes > 0
                && state.bytes + bytes.len() > self.bytes_max
        };
        let is_worth_waiting = |state: &mut State| !state.is_stalled && is_full(state);
        let (mut state, _) = self
            .done
            .wait_timeout_while(self.lock(), self.put_wait, is_worth_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if is_full(&mut state) {
            state.is_stalled = true;
            return false;
        }
        if state.blocks.insert(*hash, Arc::clone(bytes)).is_none() {
            state.waiting.push_back(*hash);
            state.bytes += bytes.len();
            self.work.notify_one();
        }
        true
    }

    /// Returns a block that is not written yet.
    pub(super) fn get(&self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        self.lock().blocks.get(hash).map(Arc::clone)
    }

    /// Records that a write is not durable yet.
    pub(super) fn set_unsettled(&self) {
        self.lock().is_unsettled = true;
        self.work.notify_one();
    }

    /// Waits until all blocks put before are written and durable, as far as possible.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        state.flushes += 1;
        let wanted = state.flushes;
        self.work.notify_one();
        drop(
            self.done
                .wait_while(state, |state| state.flushed < wanted)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_one();
    }

    /// Waits for work for the writer and returns it.
    pub(super) fn next(&self) -> Work {
        let is_urgent = |state: &State| state.flushed < state.flushes || state.is_closed;
        let mut state = self.lock();
        if state.waiting.is_empty() && !is_urgent(&state) {
            let is_idle = |state: &mut State| state.waiting.is_empty() && !is_urgent(state);
            state = if state.is_unsettled {
                let waited = self.work.wait_timeout_while(state, SETTLE, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                let is_calm = |state: &mut State| is_idle(state) && !state.is_unsettled;
                let waited = self.work.wait_while(state, is_calm);
                waited.unwrap_or_else(PoisonError::into_inner)
            };
        }
        if !state.waiting.is_empty() {
            let is_short =
                |state: &mut State| state.waiting.len() < RECORD_BLOCKS_MAX && !is_urgent(state);
            let waited = self.work.wait_timeout_while(state, GATHER, is_short);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let count = state.waiting.len().min(RECORD_BLOCKS_MAX);
            let hashes: Vec<_> = state.waiting.drain(..count).collect();
            let block = |hash: BlockHash| Some((hash, Arc::clone(state.blocks.get(&hash)?)));
            return Work::Blocks(hashes.into_iter().filter_map(block).collect());
        }
        let is_over = state.is_closed && !state.is_unsettled && state.flushed == state.flushes;
        if is_over {
            return Work::End;
        }
        Work::Settle(state.flushes)
    }

    /// Removes blocks that were written, or cannot be written.
    pub(super) fn done(&self, blocks: &[Block]) {
        let mut state = self.lock();
        for (hash, _) in blocks {
            if let Some(bytes) = state.blocks.remove(hash) {
                state.bytes -= bytes.len();
            }
        }
        (state.is_unsettled, state.is_stalled) = (true, false);
        self.done.notify_all();
    }

    /// Records that all writes are durable, as far as possible.
    pub(super) fn settled(&self, flush: u64) {
        let mut state = self.lock();
        state.is_unsettled = false;
        state.flushed = flush;
        self.done.notify_all();
    }

    /// Returns the approximate bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let state = self.lock();
        (state.bytes + state.blocks.len() * BLOCK_OVERHEAD_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stands_still_is_waited_for_once() {
        let queue = Queue::new(4096, Duration::from_millis(50));
        let block = |number: u8| -> Block { (BlockHash([number; 32]), [number; 4096].into()) };
        let put = |number| queue.put(&block(number).0, &block(number).1);
        assert!(put(0));
        // The first waits, the others would for 50 s together.
        for _ in 0..1_000 {
            assert!(!put(1));
            assert!(queue.lock().is_stalled);
        }
        // It moves again.
        queue.done(&[block(0)]);
        assert!(!queue.lock().is_stalled);
        assert!(put(1));
    }
}
