//! The stage (Allocator of SYSFLOW): verified blocks wait here until they are read, stored in the page cache, or
//! evicted by newer ones. Readers wait here for blocks that have not arrived yet.
//!
//! One lock guards the whole stage, so that no block can arrive between a reader's check and its wait. Blocks that are
//! being stored stay here until the page cache has them: a read meanwhile is answered from here.
//!
//! Neighbours wait on the shelf, compressed. Together with the other blocks and the pages kept for reuse, they never
//! take more than the pool's pages. A filled pool keeps no used pages: a thread allocates as many free ones ahead, as
//! in SYSFLOW, and they are counted by themselves.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::device::shelf::Shelf;
use crate::wire::Refusal;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of unread evicted blocks that are remembered, to count how many are requested again.
const GONE_MAX: usize = 8192;

/// The default number of blocks on the stage.
pub(crate) const STAGED_MAX_DEFAULT: usize = 2048;

/// Why a block is on the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was prefetched for a task. `is_storable`: it may be stored in the page cache before it is read.
    Prefetched { token: Token, is_storable: bool },
    /// It is a neighbour of a requested block.
    Neighbour,
}

/// What happened to an arriving block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A reader waited for it.
    Awaited,
    /// It waits to be read.
    Staged,
    /// It was here already.
    Repeated,
    /// It was a neighbour, and there was no room.
    Dropped,
}

/// What a waiting reader does next.
pub(crate) enum Step<E> {
    /// Waits, at most this long.
    Wait(Duration),
    /// Gives up with this error.
    Fail(E),
}

/// A block that readers wait for. All its readers share one request.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    waiters: u32,
    bytes: Option<Arc<[u8]>>,
    /// The connection on which it was requested, and when.
    pub asked: Option<(u64, Instant)>,
    /// How often it was requested.
    pub tries: u32,
    /// Since when a reader has waited for a plan to bring it.
    pub expected_since: Option<Instant>,
    /// Why the server refused it.
    pub refused: Option<Refusal>,
}

/// Consecutive blocks of one file that are stored in the page cache together. They stay on the stage meanwhile.
#[derive(Debug)]
pub(crate) struct Run {
    pub file: FileId,
    pub first: u32,
    pub blocks: Vec<Arc<[u8]>>,
}

/// The counters of the stage, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageCounts {
    pub prefetched_read: u64,
    pub neighbours_read: u64,
    pub stored: u64,
    pub not_stored: u64,
    pub gone: u64,
    pub asked_anew: u64,
    pub waits_for_room: u64,
}

struct Staged {
    bytes: Arc<[u8]>,
    kind: Kind,
    // Identifies this block's entry in a queue: entries with another order belong to an earlier block at the same
    // place.
    order: u64,
    is_storing: bool,
    was_read: bool,
}

#[derive(Clone, Copy)]
struct Limits {
    spare_max: usize,
    staged_max: usize,
}

#[derive(Default)]
struct State {
    staged: HashMap<BlockAt, Staged>,
    shelf: Shelf,
    wanted: HashMap<BlockAt, Wanted>,
    neighbours: VecDeque<(BlockAt, u64)>,
    prefetched: VecDeque<(BlockAt, u64)>,
    to_store: VecDeque<(BlockAt, u64)>,
    order: u64,
    // A bit for each block that was handed to the kernel and not read again.
    delivered: HashMap<FileId, Vec<u64>>,
    gone: HashSet<BlockAt>,
    spare: VecDeque<Arc<[u8]>>,
    // A thread brings the spare pages; otherwise they are pages that were used.
    is_filled: bool,
    counts: StageCounts,
    progress: Option<Instant>,
    is_stopped: bool,
}

/// The stage.
pub(crate) struct Stage {
    state: Mutex<State>,
    // An awaited block has arrived, or waiting readers must check again.
    came: Condvar,
    // A block left the stage, or a reader waits for a block.
    room: Condvar,
    // There are blocks to store.
    work: Condvar,
    // A spare page of a filled pool was taken.
    low: Condvar,
    staged_max: usize,
    spare_max: usize,
    // How long a full stage without progress delays a thread that brings a new block.
    patience: Duration,
}

impl Stage {
    /// Returns a stage for `pool_pages` blocks. 0: the default number, and no page is reused.
    pub fn new(pool_pages: usize, patience: Duration) -> Self {
        Self::with(State::default(), pool_pages, patience)
    }

    /// Returns a stage for `pool_pages` blocks and as many free pages, which [`Stage::fill`] allocates.
    pub fn filled(pool_pages: usize, patience: Duration) -> Self {
        let state = State {
            is_filled: true,
            ..State::default()
        };
        Self::with(state, pool_pages, patience)
    }

    fn with(state: State, pool_pages: usize, patience: Duration) -> Self {
        Self {
            state: Mutex::new(state),
            came: Condvar::new(),
            room: Condvar::new(),
            work: Condvar::new(),
            low: Condvar::new(),
            staged_max: match pool_pages {
                0 => STAGED_MAX_DEFAULT,
                pages => pages,
            },
            spare_max: pool_pages,
            patience,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            spare_max: self.spare_max,
            staged_max: self.staged_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves no partial change: every change is made of single steps that cannot fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes into a shareable page, which is reused or new.
    pub fn page(&self, bytes: &[u8]) -> Arc<[u8]> {
        if self.spare_max > 0 && bytes.len() == BLOCK_BYTES {
            let mut state = self.lock();
            let spare = state.spare.pop_front();
            if state.is_filled {
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

    /// Keeps a filled pool full of free pages until the stage is stopped: the Allocator's thread of SYSFLOW. A page is
    /// allocated and touched here, so that a thread that brings a block does not wait for the kernel.
    pub fn fill(&self) {
        let mut state = self.lock();
        while !state.is_stopped {
            if state.spare.len() >= self.spare_max {
                state = self.low.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let page: Arc<[u8]> = Arc::from([0; BLOCK_BYTES]);
            // This thread alone adds pages, so there is still room.
            state = self.lock();
            state.spare.push_back(page);
        }
    }

    /// Takes a block if it is here.
    pub fn take(&self, at: BlockAt) -> Option<Arc<[u8]>> {
        let bytes = self.lock().take(at, self.limits())?;
        self.room.notify_all();
        Some(bytes)
    }

    /// Waits for a block. `next` is called under the lock before each wait and decides what to do; it may request the
    /// block. Returns the bytes, and whether the reader had to wait.
    pub fn read<E>(
        &self,
        at: BlockAt,
        mut next: impl FnMut(&mut Wanted) -> Step<E>,
    ) -> Result<(Arc<[u8]>, bool), E> {
        let mut state = self.lock();
        if let Some(bytes) = state.take(at, self.limits()) {
            drop(state);
            self.room.notify_all();
            return Ok((bytes, false));
        }
        state.forget_delivered(at);
        if state.gone.remove(&at) {
            state.counts.asked_anew += 1;
        }
        state.wanted.entry(at).or_default().waiters += 1;
        // A receiver that waits for room must not delay the message that brings this block.
        self.room.notify_all();
        loop {
            let wanted = state.wanted.entry(at).or_default();
            let outcome = match wanted.bytes.clone() {
                Some(bytes) => Ok((bytes, true)),
                None => match next(wanted) {
                    Step::Fail(error) => Err(error),
                    Step::Wait(time) => {
                        state = self
                            .came
                            .wait_timeout(state, time)
                            .unwrap_or_else(PoisonError::into_inner)
                            .0;
                        continue;
                    }
                },
            };
            wanted.waiters = wanted.waiters.saturating_sub(1);
            if wanted.waiters == 0 {
                state.wanted.remove(&at);
            }
            if outcome.is_ok() {
                state.deliver(at);
            }
            return outcome;
        }
    }

    /// Places a verified block. Makes the caller wait while the stage is full of prefetched blocks and no reader waits.
    /// After the last block of a message, the caller must call [`Stage::store_arrived`].
    pub fn arrive(&self, at: BlockAt, bytes: Arc<[u8]>, kind: Kind) -> Arrived {
        let mut state = self.lock();
        loop {
            if let Some(wanted) = state.wanted.get_mut(&at) {
                let is_first = wanted.bytes.is_none();
                wanted.bytes.get_or_insert(bytes);
                drop(state);
                self.came.notify_all();
                return match is_first {
                    true => Arrived::Awaited,
                    false => Arrived::Repeated,
                };
            }
            if state.is_here(at) {
                return Arrived::Repeated;
            }
            if state.used() < self.staged_max
                || state.push_out_neighbour(self.spare_max)
                || state.is_stopped
            {
                break;
            }
            if kind == Kind::Neighbour {
                return Arrived::Dropped;
            }
            let waits_for_others = state.wanted.values().any(|wanted| wanted.bytes.is_none());
            let left = match state.progress {
                Some(last) => self.patience.saturating_sub(last.elapsed()),
                None => {
                    state.progress = Some(Instant::now());
                    self.patience
                }
            };
            if (waits_for_others || left.is_zero()) && state.evict_prefetched(self.spare_max) {
                break;
            }
            state.counts.waits_for_room += 1;
            // Storing makes room.
            self.work.notify_one();
            state = self
                .room
                .wait_timeout(state, left.max(Duration::from_millis(1)))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.order += 1;
        let order = state.order;
        let is_storable = match kind {
            Kind::Neighbour => {
                state.neighbours.push_back((at, order));
                false
            }
            Kind::Prefetched { is_storable, .. } => {
                state.prefetched.push_back((at, order));
                is_storable
            }
        };
        if is_storable {
            state.to_store.push_back((at, order));
        }
        let staged = Staged {
            bytes,
            kind,
            order,
            is_storing: false,
            was_read: false,
        };
        state.staged.insert(at, staged);
        state.shorten_queues();
        Arrived::Staged
    }

    /// Wakes the storer for the blocks that arrived. This is not done for each block: adjacent blocks are stored with
    /// one system call if all of them are here when the storer looks.
    pub fn store_arrived(&self) {
        self.work.notify_one();
    }

    /// Places verified neighbours of one message, unpacked from `packed`. A waiting reader gets its block; the others
    /// wait to be read while there is room. `asked`: the requested block among them, which is no neighbour.
    pub fn shelve(
        &self,
        blocks: &[BlockAt],
        pages: &[Arc<[u8]>],
        lengths: &[usize],
        packed: &[u8],
        asked: Option<BlockAt>,
    ) {
        let mut state = self.lock();
        let (mut kept, mut was_awaited) = (Vec::new(), false);
        let mut seen = HashSet::new();
        for (at, page) in blocks.iter().zip(pages) {
            let is_new = seen.insert(*at) && !state.is_here(*at);
            let waits = if let Some(wanted) = state.wanted.get_mut(at) {
                was_awaited = true;
                if wanted.bytes.is_none() {
                    wanted.bytes = Some(Arc::clone(page));
                    state.counts.neighbours_read += u64::from(asked != Some(*at));
                }
                false
            } else {
                is_new && !state.is_delivered(*at)
            };
            kept.push(waits.then(|| Arc::clone(page)));
        }
        let pages_needed = Shelf::pages_of(kept.iter().flatten().count(), packed.len());
        while pages_needed <= self.staged_max
            && state.used() + pages_needed > self.staged_max
            && state.push_out_neighbour(self.spare_max)
        {}
        if state.used() + pages_needed <= self.staged_max {
            let shelf = &mut state.shelf;
            shelf.put(blocks, kept, lengths, packed, self.staged_max);
            state.shorten_spare(self.spare_max);
        }
        drop(state);
        if was_awaited {
            self.came.notify_all();
        }
    }

    /// Waits for storable blocks and returns the oldest of them with their adjacent blocks. `None`: the stage is
    /// stopped.
    pub fn take_run(&self, blocks_max: usize) -> Option<Run> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(run) = state.take_run(blocks_max) {
                return Some(run);
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records whether the page cache has taken a run. Blocks that it has not taken wait for their reader.
    pub fn stored(&self, run: &Run, is_there: bool) {
        let mut state = self.lock();
        for index in (run.first..).take(run.blocks.len()) {
            let at = BlockAt {
                file: run.file,
                index,
            };
            let Some(staged) = state.staged.get_mut(&at) else {
                debug_assert!(false, "what is being stored stays on the stage");
                continue;
            };
            staged.is_storing = false;
            if is_there || staged.was_read {
                state.counts.stored += u64::from(is_there);
                state.remove(at, self.spare_max);
                state.deliver(at);
            } else {
                if let Kind::Prefetched { is_storable, .. } = &mut staged.kind {
                    *is_storable = false;
                }
                state.counts.not_stored += 1;
            }
        }
        drop(state);
        self.room.notify_all();
    }

    /// Handles the end of a task: its unread prefetched blocks that may not be stored are evicted first from now on.
    /// Returns their number.
    pub fn end(&self, token: Token) -> u64 {
        let mut state = self.lock();
        let state = &mut *state;
        let mut unread: Vec<_> = state
            .staged
            .iter_mut()
            .filter(|(_, staged)| {
                !staged.was_read
                    && matches!(staged.kind, Kind::Prefetched { token: owner, is_storable: false }
                        if owner == token)
            })
            .collect();
        unread.sort_by_key(|(_, staged)| staged.order);
        for (at, staged) in &mut unread {
            staged.kind = Kind::Neighbour;
            state.neighbours.push_back((**at, staged.order));
        }
        let unread = unread.len() as u64;
        self.room.notify_all();
        unread
    }

    /// Whether a block is here, awaited, or was handed to the kernel.
    pub fn has(&self, at: BlockAt) -> bool {
        self.lock().has(at)
    }

    /// Returns which blocks of an aligned run are neither here nor awaited nor handed to the kernel, a bit for each.
    pub fn missing_of_run(&self, file: FileId, run: u32, file_blocks: u32) -> u32 {
        let state = self.lock();
        let first = run.saturating_mul(SEGMENT_BLOCKS);
        let indexes = first..first.saturating_add(SEGMENT_BLOCKS).min(file_blocks);
        let missing = indexes.filter(|&index| !state.has(BlockAt { file, index }));
        missing.fold(0, |mask, index| mask | 1 << (index % SEGMENT_BLOCKS))
    }

    /// Whether a block was evicted before it was read, as far as that is remembered.
    pub fn is_gone(&self, at: BlockAt) -> bool {
        self.lock().gone.contains(&at)
    }

    /// Whether most neighbours are evicted before they are read.
    pub fn is_scattered(&self) -> bool {
        self.lock().shelf.is_scattered()
    }

    /// Whether a block waits here to be read.
    pub fn is_staged(&self, at: BlockAt) -> bool {
        self.lock().is_here(at)
    }

    /// Whether a reader waits for any block.
    pub fn has_waiters(&self) -> bool {
        let state = self.lock();
        state.wanted.values().any(|wanted| wanted.bytes.is_none())
    }

    /// Whether a reader waits for this block.
    pub fn is_wanted(&self, at: BlockAt) -> bool {
        self.lock().wanted.contains_key(&at)
    }

    /// Records that a reader got a block from elsewhere.
    pub fn delivered(&self, at: BlockAt) {
        let mut state = self.lock();
        state.forget_delivered(at);
        state.deliver(at);
    }

    /// Handles the end of a connection: blocks that were requested on it must be requested again.
    pub fn lost_connection(&self, connection: u64) {
        let mut state = self.lock();
        for wanted in state.wanted.values_mut() {
            if wanted.asked.is_some_and(|(on, _)| on == connection) {
                wanted.asked = None;
            }
        }
        drop(state);
        self.look_again();
    }

    /// Records that a request for this block was not answered with it: its waiting readers decide again what to do.
    pub fn not_answered(&self, at: BlockAt, refused: Option<Refusal>) {
        if let Some(wanted) = self.lock().wanted.get_mut(&at) {
            wanted.asked = None;
            wanted.refused = refused;
        }
        self.look_again();
    }

    /// Makes all waiting readers decide again what to do.
    pub fn look_again(&self) {
        // Notify under the lock: otherwise the wakeup could fall between a reader's decision and its wait.
        let _state = self.lock();
        self.came.notify_all();
    }

    /// Wakes all waiting threads; from now on no caller is blocked and nothing is stored.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        self.came.notify_all();
        self.room.notify_all();
        self.work.notify_all();
        self.low.notify_all();
    }

    /// Returns the counters, the pages that blocks take now, and the spare pages.
    pub fn counts(&self) -> (StageCounts, usize, usize) {
        let state = self.lock();
        (state.counts, state.used(), state.spare.len())
    }
}

impl State {
    fn take(&mut self, at: BlockAt, limits: Limits) -> Option<Arc<[u8]>> {
        let Limits {
            spare_max,
            staged_max,
        } = limits;
        let Some(staged) = self.staged.get_mut(&at) else {
            let bytes = self.shelf.take(at, staged_max)?;
            self.counts.neighbours_read += 1;
            self.progress = Some(Instant::now());
            // The bundle may have been unpacked for this, which takes more pages.
            while self.used() > staged_max && self.shelf.bundles() > 1 {
                self.push_out_neighbour(spare_max);
            }
            self.shorten_spare(spare_max);
            self.keep_spare(&bytes, spare_max);
            self.deliver(at);
            return Some(bytes);
        };
        let bytes = Arc::clone(&staged.bytes);
        if !staged.was_read {
            match staged.kind {
                Kind::Prefetched { .. } => self.counts.prefetched_read += 1,
                Kind::Neighbour => self.counts.neighbours_read += 1,
            }
        }
        staged.was_read = true;
        if !staged.is_storing {
            self.remove(at, spare_max);
        }
        self.deliver(at);
        Some(bytes)
    }

    fn remove(&mut self, at: BlockAt, spare_max: usize) {
        if let Some(staged) = self.staged.remove(&at) {
            self.progress = Some(Instant::now());
            self.keep_spare(&staged.bytes, spare_max);
        }
    }

    /// The number of pages that blocks take.
    fn used(&self) -> usize {
        self.staged.len() + self.shelf.pages()
    }

    fn is_here(&self, at: BlockAt) -> bool {
        self.staged.contains_key(&at) || self.shelf.has(at)
    }

    fn keep_spare(&mut self, page: &Arc<[u8]>, spare_max: usize) {
        if !self.is_filled
            && self.spare.len() + self.used() < spare_max
            && page.len() == BLOCK_BYTES
        {
            self.spare.push_back(Arc::clone(page));
        }
    }

    fn shorten_spare(&mut self, spare_max: usize) {
        if self.is_filled {
            return;
        }
        let room = spare_max.saturating_sub(self.used());
        self.spare.truncate(room);
    }

    fn push_out(&mut self, at: BlockAt, spare_max: usize) {
        let progress = self.progress;
        self.remove(at, spare_max);
        // An eviction does not count as progress of a reader.
        self.progress = progress;
        self.note_gone(at);
    }

    fn note_gone(&mut self, at: BlockAt) {
        self.counts.gone += 1;
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(at);
    }

    fn push_out_neighbour(&mut self, spare_max: usize) -> bool {
        while let Some((at, order)) = self.neighbours.pop_front() {
            let is_it = |staged: &Staged| {
                staged.order == order && staged.kind == Kind::Neighbour && !staged.is_storing
            };
            if self.staged.get(&at).is_some_and(is_it) {
                self.push_out(at, spare_max);
                return true;
            }
        }
        let gone = self.shelf.drop_oldest();
        for at in &gone {
            self.note_gone(*at);
        }
        !gone.is_empty()
    }

    fn evict_prefetched(&mut self, spare_max: usize) -> bool {
        for place in 0..self.prefetched.len() {
            let (at, order) = self.prefetched[place];
            let Some(staged) = self.staged.get(&at).filter(|s| s.order == order) else {
                continue;
            };
            if !staged.is_storing {
                self.prefetched.remove(place);
                self.push_out(at, spare_max);
                return true;
            }
        }
        false
    }

    fn may_store(&self, at: BlockAt) -> bool {
        self.staged.get(&at).is_some_and(|staged| {
            !staged.is_storing
                && matches!(staged.kind, Kind::Prefetched { is_storable, .. } if is_storable)
        })
    }

    fn take_run(&mut self, blocks_max: usize) -> Option<Run> {
        let at = loop {
            let (at, order) = self.to_store.pop_front()?;
            if self.staged.get(&at).is_some_and(|s| s.order == order) && self.may_store(at) {
                break at;
            }
        };
        let file = at.file;
        let may = |state: &Self, index| state.may_store(BlockAt { file, index });
        let (mut first, mut behind) = (at.index, at.index + 1);
        while first > 0 && ((behind - first) as usize) < blocks_max && may(self, first - 1) {
            first -= 1;
        }
        while ((behind - first) as usize) < blocks_max && may(self, behind) {
            behind += 1;
        }
        let mut blocks = Vec::with_capacity((behind - first) as usize);
        for index in first..behind {
            if let Some(staged) = self.staged.get_mut(&BlockAt { file, index }) {
                staged.is_storing = true;
                blocks.push(Arc::clone(&staged.bytes));
            }
        }
        Some(Run {
            file,
            first,
            blocks,
        })
    }

    // The queues keep entries of blocks that have left the stage until these reach the front or become too many.
    fn shorten_queues(&mut self) {
        let staged = &self.staged;
        let limit = 2 * staged.len() + 64;
        for queue in [
            &mut self.neighbours,
            &mut self.prefetched,
            &mut self.to_store,
        ] {
            if queue.len() > limit {
                queue.retain(|(at, order)| staged.get(at).is_some_and(|s| s.order == *order));
            }
        }
    }

    fn deliver(&mut self, at: BlockAt) {
        let words = self.delivered.entry(at.file).or_default();
        let word = at.index as usize / 64;
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        words[word] |= 1 << (at.index % 64);
    }

    fn has(&self, at: BlockAt) -> bool {
        self.is_here(at) || self.wanted.contains_key(&at) || self.is_delivered(at)
    }

    fn is_delivered(&self, at: BlockAt) -> bool {
        let words = self.delivered.get(&at.file);
        let word = words.and_then(|words| words.get(at.index as usize / 64));
        word.is_some_and(|word| word & 1 << (at.index % 64) != 0)
    }

    // The kernel reads a block that it had: it has dropped pages of this file, and which ones is unknown.
    fn forget_delivered(&mut self, at: BlockAt) {
        if self.is_delivered(at) {
            self.delivered.remove(&at.file);
        }
    }
}
