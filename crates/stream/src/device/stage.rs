//! The stage (Allocator of SYSFLOW): verified blocks wait here until they are read, stored in the page cache, or pushed
//! out by newer ones; and readers wait here for blocks that are still to come.
//!
//! One lock guards all of it, so that no block can arrive between a look at the stage and the wait for it. What is
//! being stored stays here until the page cache has it: whoever asks meanwhile is answered from here.
//!
//! Neighbours wait on the shelf, compressed. They, the other blocks and the pages that are kept for reuse never take
//! more than the pool's pages together.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::device::shelf::Shelf;
use crate::wire::Refusal;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks that were pushed out unread and are remembered, to count how many are asked for anew.
const GONE_MAX: usize = 8192;

/// Blocks that wait when nothing else is said.
pub(crate) const STAGED_MAX_DEFAULT: usize = 2048;

/// Why a block is on the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was prefetched for a task. `is_storable`: it may be stored before it was read.
    Prefetched { token: Token, is_storable: bool },
    /// It lies beside one that was asked for.
    Neighbour,
}

/// What became of a block that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Somebody waited for it.
    Awaited,
    /// It waits to be read.
    Staged,
    /// It was there already.
    Repeated,
    /// There is no room for what is not more than a neighbour.
    Dropped,
}

/// What somebody who waits for a block does next.
pub(crate) enum Step<E> {
    /// Waits, at most so long.
    Wait(Duration),
    /// Waits no longer.
    Fail(E),
}

/// A block that somebody waits for. All that wait for it share one request.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    waiters: u32,
    bytes: Option<Arc<[u8]>>,
    /// The connection on which it was asked for, and when.
    pub asked: Option<(u64, Instant)>,
    /// How often it was asked for.
    pub tries: u32,
    /// Since when somebody has waited for a plan to bring it.
    pub expected_since: Option<Instant>,
    /// The server does not give it, for this reason.
    pub refused: Option<Refusal>,
}

/// What is handed to the page cache at once: consecutive blocks of one file, which stay on the stage meanwhile.
#[derive(Debug)]
pub(crate) struct Run {
    pub file: FileId,
    pub first: u32,
    pub blocks: Vec<Arc<[u8]>>,
}

/// What has happened on the stage. Blocks.
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
    // Which of the entries of a queue means this block: others are of an earlier one at the same place.
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
    // A bit for each block that was handed to the kernel and not asked for again.
    delivered: HashMap<FileId, Vec<u64>>,
    gone: HashSet<BlockAt>,
    spare: VecDeque<Arc<[u8]>>,
    counts: StageCounts,
    progress: Option<Instant>,
    is_stopped: bool,
}

/// The stage.
pub(crate) struct Stage {
    state: Mutex<State>,
    // Somebody's block has come, or those who wait are to look again.
    came: Condvar,
    // Something left the stage, or somebody waits for a block.
    room: Condvar,
    // There is something to store.
    work: Condvar,
    staged_max: usize,
    spare_max: usize,
    // How long a full stage without any movement holds up what comes.
    patience: Duration,
}

impl Stage {
    /// For so many blocks; 0: as many as by default, but no page is used twice.
    pub fn new(pool_pages: usize, patience: Duration) -> Self {
        Self {
            state: Mutex::new(State::default()),
            came: Condvar::new(),
            room: Condvar::new(),
            work: Condvar::new(),
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
        // Nothing is left half done by a panic: every change is made of single steps that cannot fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes as a page that can be shared: one that is free again, or a new one.
    pub fn page(&self, bytes: &[u8]) -> Arc<[u8]> {
        if self.spare_max > 0 && bytes.len() == BLOCK_BYTES {
            let spare = self.lock().spare.pop_front();
            if let Some(mut page) = spare
                && let Some(place) = Arc::get_mut(&mut page)
            {
                place.copy_from_slice(bytes);
                return page;
            }
        }
        Arc::from(bytes)
    }

    /// A block that is here.
    pub fn take(&self, at: BlockAt) -> Option<Arc<[u8]>> {
        let bytes = self.lock().take(at, self.limits())?;
        self.room.notify_all();
        Some(bytes)
    }

    /// Waits for a block. `next` is asked what to do, under the lock, before each wait; it may ask for the block.
    /// Gives the bytes, and whether they had to be waited for.
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
        // What waits for room must not hold up what brings this block.
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

    /// A block, verified. Holds the caller up while the stage is full of prefetched ones and nobody waits. Behind the
    /// last of a message comes [`Stage::store_arrived`].
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
            // Room is made by storing.
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

    /// Has stored what arrived. Not with each block: those that lie side by side are handed over in one call of the
    /// system if they are all here when the storer looks.
    pub fn store_arrived(&self) {
        self.work.notify_one();
    }

    /// Neighbours that came in one message, verified, unpacked from `packed`: whoever waits for one gets it, the others
    /// wait to be read while there is room. `asked`: the one among them that is no neighbour.
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

    /// The oldest blocks that may be stored, with what lies beside them; waits for some. None: it is over.
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

    /// A run was handed to the page cache, which has it or not. What it has not waits for its reader.
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

    /// A task has ended: what is prefetched for it and is here still is the first to go. How many that are.
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

    /// Whether a block is here, is waited for, or was handed to the kernel.
    pub fn has(&self, at: BlockAt) -> bool {
        self.lock().has(at)
    }

    /// Which blocks of an aligned run are neither here nor waited for nor handed to the kernel: a bit for each.
    pub fn missing_of_run(&self, file: FileId, run: u32, file_blocks: u32) -> u32 {
        let state = self.lock();
        let first = run.saturating_mul(SEGMENT_BLOCKS);
        let indexes = first..first.saturating_add(SEGMENT_BLOCKS).min(file_blocks);
        let missing = indexes.filter(|&index| !state.has(BlockAt { file, index }));
        missing.fold(0, |mask, index| mask | 1 << (index % SEGMENT_BLOCKS))
    }

    /// Whether a block was here and had to go before it was read, as far as that is remembered.
    pub fn is_gone(&self, at: BlockAt) -> bool {
        self.lock().gone.contains(&at)
    }

    /// Whether most neighbours have to go before they are read.
    pub fn is_scattered(&self) -> bool {
        self.lock().shelf.is_scattered()
    }

    /// Whether a block waits here to be read.
    pub fn is_staged(&self, at: BlockAt) -> bool {
        self.lock().is_here(at)
    }

    /// Whether anybody waits for any block.
    pub fn has_waiters(&self) -> bool {
        let state = self.lock();
        state.wanted.values().any(|wanted| wanted.bytes.is_none())
    }

    /// Whether somebody waits for a block.
    pub fn is_wanted(&self, at: BlockAt) -> bool {
        self.lock().wanted.contains_key(&at)
    }

    /// A reader was given a block from elsewhere.
    pub fn delivered(&self, at: BlockAt) {
        let mut state = self.lock();
        state.forget_delivered(at);
        state.deliver(at);
    }

    /// What was asked for on a connection that has ended is to be asked for again.
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

    /// A request for this block was not answered with it: whoever waits is to decide anew what to do.
    pub fn not_answered(&self, at: BlockAt, refused: Option<Refusal>) {
        if let Some(wanted) = self.lock().wanted.get_mut(&at) {
            wanted.asked = None;
            wanted.refused = refused;
        }
        self.look_again();
    }

    /// Lets everybody who waits decide anew what to do.
    pub fn look_again(&self) {
        // Under the lock: else it could come between somebody's decision and its wait.
        let _state = self.lock();
        self.came.notify_all();
    }

    /// Wakes everything; nothing is held up or stored any more.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        self.came.notify_all();
        self.room.notify_all();
        self.work.notify_all();
    }

    /// What has happened, pages that blocks take now, and pages that are kept for others.
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
            // It may have been unpacked for that.
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

    /// Pages that blocks take.
    fn used(&self) -> usize {
        self.staged.len() + self.shelf.pages()
    }

    fn is_here(&self, at: BlockAt) -> bool {
        self.staged.contains_key(&at) || self.shelf.has(at)
    }

    fn keep_spare(&mut self, page: &Arc<[u8]>, spare_max: usize) {
        if self.spare.len() + self.used() < spare_max && page.len() == BLOCK_BYTES {
            self.spare.push_back(Arc::clone(page));
        }
    }

    fn shorten_spare(&mut self, spare_max: usize) {
        let room = spare_max.saturating_sub(self.used());
        self.spare.truncate(room);
    }

    fn push_out(&mut self, at: BlockAt, spare_max: usize) {
        let progress = self.progress;
        self.remove(at, spare_max);
        // What is pushed out is no sign that somebody reads.
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

    // The queues hold places of blocks that have left the stage until they are at the front, or are too many.
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

    // The kernel asks for what it had: it has given up pages of this file, nobody knows which.
    fn forget_delivered(&mut self, at: BlockAt) {
        if self.is_delivered(at) {
            self.delivered.remove(&at.file);
        }
    }
}
