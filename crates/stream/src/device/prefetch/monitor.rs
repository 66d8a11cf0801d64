//! The lock of the prefetch part, and the threads that wait for its state.
//!
//! One lock guards the buffer, the tasks and the readahead state, so that no block can arrive between a reader's check
//! and its wait. A block that is being stored stays in the buffer until the page cache has it: a read meanwhile is
//! answered from here.
//!
//! Callers may send requests from the closures that they pass here, and must not call this part from them.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::block::{BLOCK_BYTES, BlockAt, SEGMENT_BLOCKS, Token};
use crate::device::counters::Start;
use crate::device::line::Line;
use crate::device::prefetch::buffer::{
    Arrived, BufferCounts, Kind, Message, PrefetchBuffer, RequestedBlock, Run,
};
use crate::device::prefetch::readahead::{self, Readahead};
use crate::device::prefetch::tasks::{Task, Tasks, UnreportedStart};
use crate::device::settings::PLAN_BLOCKS_MAX;
use crate::wire::Refusal;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of starts that are kept until they can be reported to a server, and of their blocks together.
/// Beyond that the oldest start is dropped.
const UNREPORTED_MAX: usize = 8;
const UNREPORTED_BLOCKS_MAX: usize = PLAN_BLOCKS_MAX;

/// The maximum number of starts whose figures are kept.
const STARTS_MAX: usize = 64;

/// A read of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// The task of the program, if it has one.
    pub(crate) token: Option<Token>,
    pub(crate) at: BlockAt,
    /// The number of blocks of the file.
    pub(crate) file_blocks: u32,
    /// `None`: the server does not send blocks that no reader waits for, so there is no readahead.
    pub(crate) line: Option<Line>,
    pub(crate) now: Instant,
}

/// Blocks of aligned runs, a bit for each block of a run. They may be in flight or cached.
pub(crate) type Runs = Vec<(u32, u32)>;

/// What to request for a missing block.
pub(crate) enum RequestPlan {
    /// Nothing for the block itself, which is here or in flight; these runs ahead of its reader.
    Ahead(Runs),
    /// The block alone: it is not known yet whether a plan brings its neighbours.
    Alone,
    /// The block, and these runs in requests of their own.
    WithRuns(Runs),
    /// The block with neighbours, which the server chooses.
    WithNeighbours {
        /// The blocks of its run that are missing here, a bit for each.
        missing: u32,
        /// Nothing is prefetched for the reader.
        is_first: bool,
        /// The server knows the task, and leaves out the blocks that it has sent for the task.
        is_known: bool,
    },
}

/// What a waiting reader does next.
pub(crate) enum Step<E> {
    /// Waits, at most this long.
    Wait(Duration),
    /// Has sent a request, and waits at most this long.
    Requested(Duration),
    /// Gives up with this error.
    Fail(E),
}

/// How a block came that a reader got here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was here.
    Buffered,
    /// The reader waited, and another request or a plan brought it.
    Expected,
    /// The reader requested it.
    Requested,
}

/// Counters and sizes.
pub(crate) struct PrefetchCounts {
    pub(crate) buffer: BufferCounts,
    /// The number of pages that blocks take.
    pub(crate) used: usize,
    /// The number of pages kept for reuse.
    pub(crate) spare: usize,
    /// The number of running tasks.
    pub(crate) tasks: usize,
    /// The number of blocks in their traces and plans.
    pub(crate) traced: usize,
}

struct State {
    buffer: PrefetchBuffer,
    tasks: Tasks,
    readahead: Readahead,
    unreported: VecDeque<UnreportedStart>,
    starts: VecDeque<Start>,
    is_stopped: bool,
}

impl State {
    /// Returns the runs to request ahead of the reader of a block that is here or in flight, unless a plan brings them.
    fn runs_ahead(&mut self, fault: &Fault) -> Range<u32> {
        match fault.line {
            Some(line) if self.tasks.is_first(fault.token) == Some(true) => {
                self.readahead
                    .read(fault.at, fault.file_blocks, false, line)
            }
            _ => 0..0,
        }
    }
}

/// The prefetch part.
pub(crate) struct Prefetch {
    state: Mutex<State>,
    // An awaited block has arrived, or waiting readers must check again.
    came: Condvar,
    // A block left the buffer, or a reader waits for a block.
    room: Condvar,
    // There are blocks to store.
    work: Condvar,
    // A spare page of a filled pool was taken.
    low: Condvar,
    spare_max: usize,
    // How long a full buffer without progress delays a thread that brings a new block.
    patience: Duration,
}

impl Prefetch {
    /// Returns the part for a pool of `pool_pages` blocks. 0: the default number, and no page is reused. `is_filled`:
    /// the pool has as many free pages, which [`Prefetch::fill`] allocates.
    pub(crate) fn new(pool_pages: usize, is_filled: bool, patience: Duration) -> Self {
        let buffer = PrefetchBuffer::new(pool_pages, is_filled);
        let state = State {
            tasks: Tasks::default(),
            readahead: Readahead::new(buffer.pages_max),
            buffer,
            unreported: VecDeque::new(),
            starts: VecDeque::new(),
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            came: Condvar::new(),
            room: Condvar::new(),
            work: Condvar::new(),
            low: Condvar::new(),
            spare_max: pool_pages,
            patience,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves no partial change: every change is made of single steps that cannot fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes into a shareable page, which is reused or new.
    pub(crate) fn page(&self, bytes: &[u8]) -> Arc<[u8]> {
        if self.spare_max > 0 && bytes.len() == BLOCK_BYTES {
            let mut state = self.lock();
            let spare = state.buffer.spare.pop_front();
            if state.buffer.is_filled {
                self.low.notify_one();
            }
            drop(state);
            if let Some(mut page) = spare
                && let Some(place) = Arc::get_mut(&mut page)
            {
                place.copy_from_slice(bytes);
                return page;
            }
        }
        Arc::from(bytes)
    }

    /// Keeps a filled pool full of free pages until the part is stopped: the Allocator's thread of SYSFLOW. A page is
    /// allocated and touched here, so that a thread that brings a block does not wait for the kernel.
    pub(crate) fn fill(&self) {
        let mut state = self.lock();
        while !state.is_stopped {
            if state.buffer.spare.len() >= self.spare_max {
                state = self.low.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let page: Arc<[u8]> = Arc::from([0; BLOCK_BYTES]);
            // This thread alone adds pages, so there is still room.
            state = self.lock();
            state.buffer.spare.push_back(page);
        }
    }

    /// Takes a block if it is here. Also returns the runs to request ahead of its reader. Records that the task has
    /// read the block, if it is here or the reader `waits` for it.
    pub(crate) fn take(&self, fault: &Fault, waits: bool) -> Option<(Arc<[u8]>, Range<u32>)> {
        let mut state = self.lock();
        let bytes = state.buffer.take(fault.at);
        if let Some(token) = &fault.token
            && (waits || bytes.is_some())
        {
            state.tasks.read(token, fault.at, fault.now);
        }
        let bytes = bytes?;
        let ahead = state.runs_ahead(fault);
        drop(state);
        self.room.notify_all();
        Some((bytes, ahead))
    }

    /// Returns which blocks of these runs are missing here. The lock is taken for each run anew, so that no other
    /// reader waits for all of them.
    pub(crate) fn missing(&self, fault: &Fault, runs: Range<u32>) -> Runs {
        let (file, file_blocks) = (fault.at.file, fault.file_blocks);
        let missing = |run| self.lock().buffer.missing_of_run(file, run, file_blocks);
        runs.map(|run| (run, missing(run))).collect()
    }

    /// Returns what to request for a block that was not here. `is_in_flight`: a request brings it.
    pub(crate) fn request_plan(&self, fault: &Fault, is_in_flight: bool) -> RequestPlan {
        let mut state = self.lock();
        let at = fault.at;
        let is_expected = is_in_flight || state.buffer.requested.contains_key(&at);
        if is_expected || state.buffer.is_here(at) {
            let ahead = state.runs_ahead(fault);
            drop(state);
            return RequestPlan::Ahead(self.missing(fault, ahead));
        }
        let Some(is_first) = state.tasks.is_first(fault.token) else {
            return RequestPlan::Alone;
        };
        let run = at.index / SEGMENT_BLOCKS;
        let missing = state.buffer.missing_of_run(at.file, run, fault.file_blocks);
        let Some(line) = fault.line.filter(|_| is_first) else {
            return RequestPlan::WithNeighbours {
                missing,
                is_first,
                is_known: state.tasks.is_known(fault.token),
            };
        };
        let (was_here, is_scattered) = (state.buffer.is_gone(at), state.buffer.is_scattered());
        let rest = readahead::rest_of_run(at, missing, was_here, is_scattered, line);
        let further = state.readahead.read(at, fault.file_blocks, true, line);
        drop(state);
        let mut runs = vec![(run, rest)];
        runs.extend(self.missing(fault, further));
        RequestPlan::WithRuns(runs)
    }

    /// Waits for a block. `next` is called under the lock before each wait and decides what to do; it may request the
    /// block. Meanwhile the task counts as waiting.
    pub(crate) fn wait<E>(
        &self,
        token: Option<Token>,
        at: BlockAt,
        mut next: impl FnMut(&mut RequestedBlock, &mut Tasks) -> Step<E>,
    ) -> Result<(Arc<[u8]>, Source), E> {
        let mut state = self.lock();
        let mut has_requested = false;
        if let Some(task) = token.and_then(|token| state.tasks.get(&token)) {
            task.read_waits();
        }
        let outcome = if let Some(bytes) = state.buffer.take(at) {
            self.room.notify_all();
            Ok((bytes, Source::Buffered))
        } else {
            state.buffer.request(at);
            // A receiver that waits for room must not delay the message that brings this block.
            self.room.notify_all();
            let outcome = loop {
                let State { buffer, tasks, .. } = &mut *state;
                let requested = buffer.requested.entry(at).or_default();
                if let Some(bytes) = requested.bytes.clone() {
                    let source = match has_requested {
                        true => Source::Requested,
                        false => Source::Expected,
                    };
                    break Ok((bytes, source));
                }
                let time = match next(requested, tasks) {
                    Step::Fail(error) => break Err(error),
                    Step::Wait(time) => time,
                    Step::Requested(time) => {
                        has_requested = true;
                        time
                    }
                };
                state = self
                    .came
                    .wait_timeout(state, time)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            };
            state.buffer.end_request(at, outcome.is_ok());
            outcome
        };
        if let Some(task) = token.and_then(|token| state.tasks.get(&token)) {
            task.read_is_over(Instant::now(), has_requested);
        }
        outcome
    }

    /// Places a verified block. The caller waits while the buffer is full of prefetched blocks and no reader waits.
    /// After the last block of a message, the caller must call [`Prefetch::store_arrived`].
    pub(crate) fn arrive(&self, at: BlockAt, bytes: Arc<[u8]>, kind: Kind) -> Arrived {
        let mut state = self.lock();
        loop {
            let is_stopped = state.is_stopped;
            let buffer = &mut state.buffer;
            if let Some(requested) = buffer.requested.get_mut(&at) {
                let is_first = requested.bytes.is_none();
                requested.bytes.get_or_insert(bytes);
                drop(state);
                self.came.notify_all();
                return match is_first {
                    true => Arrived::Awaited,
                    false => Arrived::Repeated,
                };
            }
            if buffer.is_here(at) {
                return Arrived::Repeated;
            }
            if buffer.make_room() || is_stopped {
                break;
            }
            if kind == Kind::Neighbour {
                return Arrived::Dropped;
            }
            let left = buffer.patience_left(self.patience);
            if (buffer.has_waiters() || left.is_zero()) && buffer.evict_prefetched() {
                break;
            }
            buffer.counts.waits_for_room += 1;
            // Storing makes room.
            self.work.notify_one();
            state = self
                .room
                .wait_timeout(state, left.max(Duration::from_millis(1)))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.buffer.insert(at, bytes, kind);
        Arrived::Buffered
    }

    /// Wakes the storer for the blocks that arrived. This is not done for each block: adjacent blocks are stored with
    /// one system call if all of them are here when the storer looks.
    pub(crate) fn store_arrived(&self) {
        self.work.notify_one();
    }

    /// Places verified neighbours of one message. A waiting reader gets its block; the others wait to be read while
    /// there is room. `asked`: the requested block among them, which is no neighbour.
    pub(crate) fn place(&self, message: &Message<'_>, asked: Option<BlockAt>) {
        let was_awaited = self.lock().buffer.place(message, asked);
        if was_awaited {
            self.came.notify_all();
        }
    }

    /// Waits for storable blocks and returns the oldest of them with their adjacent blocks. `None`: it is stopped.
    pub(crate) fn take_run(&self, blocks_max: usize) -> Option<Run> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(run) = state.buffer.take_run(blocks_max) {
                return Some(run);
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records whether the page cache has taken a run. Blocks that it has not taken wait for their reader.
    pub(crate) fn stored(&self, run: &Run, is_there: bool) {
        self.lock().buffer.stored(run, is_there);
        self.room.notify_all();
    }

    /// Handles the end of a task: its unread prefetched blocks that may not be stored are evicted first from now on.
    pub(crate) fn end(&self, token: Token) {
        self.lock().buffer.end(token);
        self.room.notify_all();
    }

    /// Whether a block is here, awaited, or was handed to the kernel.
    pub(crate) fn has(&self, at: BlockAt) -> bool {
        self.lock().buffer.has(at)
    }

    /// Whether a block waits here to be read.
    pub(crate) fn is_buffered(&self, at: BlockAt) -> bool {
        self.lock().buffer.is_here(at)
    }

    /// Whether a reader waits for any block.
    pub(crate) fn has_waiters(&self) -> bool {
        self.lock().buffer.has_waiters()
    }

    /// Whether a reader waits for this block.
    pub(crate) fn is_requested(&self, at: BlockAt) -> bool {
        self.lock().buffer.requested.contains_key(&at)
    }

    /// Records that a reader got a block from elsewhere.
    pub(crate) fn delivered(&self, at: BlockAt) {
        self.lock().buffer.delivered(at);
    }

    /// Handles the end of a connection: blocks that were requested on it must be requested again, and its tasks must be
    /// announced again.
    pub(crate) fn lost_connection(&self, connection: u64) {
        let mut state = self.lock();
        state.tasks.lost_connection(connection);
        for requested in state.buffer.requested.values_mut() {
            if requested.asked.is_some_and(|(on, _)| on == connection) {
                requested.asked = None;
            }
        }
        self.came.notify_all();
    }

    /// Records that a request for this block was not answered with it: its waiting readers decide again what to do.
    pub(crate) fn not_answered(&self, at: BlockAt, refused: Option<Refusal>) {
        let mut state = self.lock();
        if let Some(requested) = state.buffer.requested.get_mut(&at) {
            requested.asked = None;
            requested.refused = refused;
        }
        self.came.notify_all();
    }

    /// Makes all waiting readers decide again what to do.
    pub(crate) fn look_again(&self) {
        // Notify under the lock: otherwise the wakeup could fall between a reader's decision and its wait.
        let _state = self.lock();
        self.came.notify_all();
    }

    /// Calls `change` with the running tasks.
    pub(crate) fn tasks<R>(&self, change: impl FnOnce(&mut Tasks) -> R) -> R {
        change(&mut self.lock().tasks)
    }

    /// Calls `change` with a running task. `None`: there is no such task.
    pub(crate) fn task<R>(&self, token: &Token, change: impl FnOnce(&mut Task) -> R) -> Option<R> {
        self.lock().tasks.get(token).map(change)
    }

    /// Keeps a start until it can be reported to a server.
    pub(crate) fn keep_unreported(&self, start: UnreportedStart) {
        let mut state = self.lock();
        let all = &mut state.unreported;
        let mut blocks: usize = all.iter().map(|start| start.blocks.len()).sum();
        while all.len() >= UNREPORTED_MAX || blocks + start.blocks.len() > UNREPORTED_BLOCKS_MAX {
            match all.pop_front() {
                Some(oldest) => blocks -= oldest.blocks.len(),
                None => break,
            }
        }
        all.push_back(start);
    }

    /// Takes the oldest start that was not reported.
    pub(crate) fn take_unreported(&self) -> Option<UnreportedStart> {
        self.lock().unreported.pop_front()
    }

    /// The number of starts that were not reported.
    #[cfg(test)]
    pub(crate) fn unreported(&self) -> usize {
        self.lock().unreported.len()
    }

    /// Keeps the figures of a start.
    pub(crate) fn add_start(&self, start: Start) {
        let mut state = self.lock();
        state.starts.truncate(STARTS_MAX - 1);
        state.starts.push_front(start);
    }

    /// Returns the figures of the last starts, the newest first.
    pub(crate) fn starts(&self) -> Vec<Start> {
        let mut starts = Vec::with_capacity(STARTS_MAX);
        starts.extend(self.lock().starts.iter().copied());
        starts
    }

    /// Wakes all waiting threads; from now on no caller is blocked and nothing is stored.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        self.came.notify_all();
        self.room.notify_all();
        self.work.notify_all();
        self.low.notify_all();
    }

    /// Returns the counters.
    pub(crate) fn counts(&self) -> PrefetchCounts {
        let state = self.lock();
        PrefetchCounts {
            buffer: state.buffer.counts,
            used: state.buffer.used(),
            spare: state.buffer.spare.len(),
            tasks: state.tasks.len(),
            traced: state.tasks.blocks(),
        }
    }
}
