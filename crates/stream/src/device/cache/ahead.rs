//! Reading ahead: blocks that will be requested soon are read in the order in which they lie.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::core::{Core, Unread};
use super::format::{LogKind, log_name, padded};
use super::index::{BlockPlace, RecordAt};
use crate::block::{BLOCK_BYTES, BlockHash};

/// The maximum number of expected blocks; further ones are read when they are requested.
const EXPECTED_MAX: usize = 16_384;

/// The number of blocks per window. The blocks of a window are read in the order in which they lie.
const WINDOW_BLOCKS: usize = 512;

/// The maximum number of bytes that are read at once, unless one record is larger.
const READ_BYTES: u64 = 256 << 10;

/// A gap of up to this many bytes is read too, rather than reading twice.
const GAP_BYTES: u64 = 32 << 10;

/// If no block is taken for this time, all expected blocks and blocks read ahead are dropped.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    /// Blocks to be read, in the order in which they will be requested.
    expected: VecDeque<BlockHash>,
    /// The turn of each of these: the number of blocks that were expected before it.
    turns: HashMap<BlockHash, u64>,
    /// The number of expected blocks whose turn has come.
    begun: u64,
    /// Blocks that are being read.
    loading: HashSet<BlockHash>,
    ready: HashMap<BlockHash, Arc<[u8]>>,
    /// The keys of `ready`, and of blocks that were taken, in the order in which they were read.
    order: VecDeque<BlockHash>,
    ready_bytes: usize,
    /// The number of blocks that were taken so far.
    taken: u64,
    is_closed: bool,
}

pub(super) struct Ahead {
    state: Mutex<State>,
    /// A block was read, taken or expected.
    changed: Condvar,
    bytes_max: usize,
}

impl State {
    fn keep(&mut self, hash: BlockHash, bytes: Arc<[u8]>) {
        self.ready_bytes += bytes.len();
        self.order.push_back(hash);
        if let Some(before) = self.ready.insert(hash, bytes) {
            self.ready_bytes -= before.len();
        }
        if self.order.len() > 2 * (self.ready.len() + WINDOW_BLOCKS) {
            let ready = &self.ready;
            self.order.retain(|hash| ready.contains_key(hash));
        }
    }

    fn take(&mut self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        let bytes = self.ready.remove(hash)?;
        self.ready_bytes -= bytes.len();
        self.taken += 1;
        if self.ready.is_empty() {
            self.order.clear();
        }
        Some(bytes)
    }

    /// Drops the oldest quarter of the read blocks: a reader that goes on without them does not want them.
    fn give_up_some(&mut self) {
        let enough = self.ready_bytes / 4 * 3;
        while self.ready_bytes > enough {
            let Some(hash) = self.order.pop_front() else {
                return;
            };
            if let Some(bytes) = self.ready.remove(&hash) {
                self.ready_bytes -= bytes.len();
            }
        }
    }

    /// Whether a block is being read, or will be in the next window.
    fn is_near(&self, hash: &BlockHash) -> bool {
        let is_next = |turn: &u64| *turn < self.begun + WINDOW_BLOCKS as u64;
        self.loading.contains(hash) || self.turns.get(hash).is_some_and(is_next)
    }

    fn give_up_all(&mut self) {
        let is_closed = self.is_closed;
        *self = Self::default();
        self.is_closed = is_closed;
    }
}

impl Ahead {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            bytes_max: bytes_max.max(WINDOW_BLOCKS * BLOCK_BYTES),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces blocks that will be requested in this order, after those expected already.
    pub(super) fn expect(&self, hashes: &[BlockHash]) {
        let mut state = self.lock();
        let room = EXPECTED_MAX.saturating_sub(state.expected.len());
        for hash in hashes.iter().take(room) {
            let turn = state.begun + state.expected.len() as u64;
            state.expected.push_back(*hash);
            state.turns.insert(*hash, turn);
        }
        self.changed.notify_all();
    }

    /// Takes a block that was read ahead, or waits for it if it is about to be read.
    pub(super) fn take(&self, hash: &BlockHash) -> Option<Arc<[u8]>> {
        let mut state = self.lock();
        // Do not wait while there is no room: the thread that reads ahead does not read then.
        while state.loading.contains(hash)
            || state.is_near(hash) && self.has_room(&state) && !state.is_closed
        {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let taken = state.take(hash);
        let gives_up = taken.is_none() && !state.expected.is_empty() && !self.has_room(&state);
        if gives_up {
            state.give_up_some();
        }
        // Most requested blocks were not expected: then nothing changes, and no thread must be woken.
        if gives_up || taken.is_some() {
            self.changed.notify_all();
        }
        taken
    }

    fn has_room(&self, state: &State) -> bool {
        state.ready_bytes + WINDOW_BLOCKS * BLOCK_BYTES <= self.bytes_max
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Returns the approximate bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let state = self.lock();
        let hashes = state.expected.capacity()
            + state.order.capacity()
            + 2 * (state.ready.capacity() + state.turns.capacity());
        (state.ready_bytes + hashes * size_of::<BlockHash>()) as u64
    }

    /// The thread that reads ahead, until [`close`](Self::close).
    pub(super) fn run(&self, core: &Core) {
        while let Some(window) = self.next_window() {
            self.load(core, &window);
            let mut state = self.lock();
            state.loading.clear();
            self.changed.notify_all();
        }
    }

    /// Waits for the next window of blocks to read; `None` if the cache is closed.
    fn next_window(&self) -> Option<Vec<BlockHash>> {
        let mut state = self.lock();
        loop {
            let taken = state.taken;
            let waits = |state: &mut State| {
                !state.is_closed && (state.expected.is_empty() || !self.has_room(state))
            };
            let is_waited_for = |state: &mut State| waits(state) && state.taken == taken;
            let is_idle;
            if state.ready.is_empty() && state.expected.is_empty() {
                is_idle = false;
                state = self
                    .changed
                    .wait_while(state, waits)
                    .unwrap_or_else(PoisonError::into_inner);
            } else {
                let (after, timeout) = self
                    .changed
                    .wait_timeout_while(state, IDLE, is_waited_for)
                    .unwrap_or_else(PoisonError::into_inner);
                (state, is_idle) = (after, timeout.timed_out());
            }
            if state.is_closed {
                return None;
            }
            if is_idle {
                state.give_up_all();
            }
            if !waits(&mut state) {
                break;
            }
        }
        let count = state.expected.len().min(WINDOW_BLOCKS);
        let mut window: Vec<_> = state.expected.drain(..count).collect();
        state.begun += count as u64;
        for hash in &window {
            if state
                .turns
                .get(hash)
                .is_some_and(|turn| *turn < state.begun)
            {
                state.turns.remove(hash);
            }
        }
        window.retain(|hash| !state.ready.contains_key(hash));
        state.loading.extend(&window);
        Some(window)
    }

    fn load(&self, core: &Core, window: &[BlockHash]) {
        let mut places: Vec<(BlockPlace, BlockHash)> = {
            let mut index = core.index();
            let place = |hash: &BlockHash| Some((index.use_block(hash)?, *hash));
            window.iter().filter_map(place).collect()
        };
        places.sort_unstable();
        places.dedup();
        let reads = reads(&places);
        for read in &reads {
            let (log, start, bytes) = extent(read);
            core.storage
                .advise(&log_name(LogKind::Blocks, log), start, bytes);
        }
        for read in reads {
            let found = load_read(core, read);
            let mut state = self.lock();
            for (_, hash) in read {
                state.loading.remove(hash);
            }
            for (hash, bytes) in found {
                state.keep(hash, bytes);
            }
            self.changed.notify_all();
            if state.is_closed {
                return;
            }
        }
    }
}

/// Returns the log of a read, its offset and its length in bytes.
fn extent(read: &[(BlockPlace, BlockHash)]) -> (u32, u64, u64) {
    let (first, last) = match (read.first(), read.last()) {
        (Some(first), Some(last)) => (first.0.record, last.0.record),
        _ => return (0, 0, 0),
    };
    let start = u64::from(first.offset);
    (
        first.log,
        start,
        u64::from(last.offset) + u64::from(last.bytes) - start,
    )
}

/// Splits sorted places into pieces that lie so close together that each is read at once.
fn reads(places: &[(BlockPlace, BlockHash)]) -> Vec<&[(BlockPlace, BlockHash)]> {
    let mut reads = Vec::new();
    let mut from = 0;
    for at in 1..=places.len() {
        let is_end = places.get(at).is_none_or(|next| {
            let (before, next) = (places[at - 1].0.record, next.0.record);
            let (log, start, bytes) = extent(&places[from..at]);
            let end = u64::from(next.offset) + u64::from(next.bytes);
            next.log != log
                || u64::from(next.offset) > start + padded(bytes) + GAP_BYTES
                || next != before && end - start > READ_BYTES
        });
        if is_end {
            reads.push(&places[from..at]);
            from = at;
        }
    }
    reads
}

/// Reads the blocks of one piece. A later request finds out again which blocks cannot be read.
fn load_read(core: &Core, read: &[(BlockPlace, BlockHash)]) -> Vec<(BlockHash, Arc<[u8]>)> {
    let (log, start, bytes) = extent(read);
    let mut buffer = vec![0; bytes as usize];
    if core.read(log, start, &mut buffer).is_err() {
        return Vec::new();
    }
    let mut found = Vec::with_capacity(read.len());
    for blocks in read.chunk_by(|one, other| one.0.record == other.0.record) {
        let at: RecordAt = blocks[0].0.record;
        let from = (u64::from(at.offset) - start) as usize;
        let Some(record) = buffer.get(from..from + at.bytes as usize) else {
            continue;
        };
        match core.unpack(at, record) {
            Ok(unpacked) => found.extend(
                blocks
                    .iter()
                    .filter_map(|(place, hash)| Some((*hash, unpacked.block(place.block, hash)?))),
            ),
            Err(Unread::Damaged) => core.lose(at),
            Err(Unread::Gone | Unread::Failed(_)) => {}
        }
    }
    found
}
