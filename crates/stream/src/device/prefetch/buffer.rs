//! The prefetch buffer (Allocator of SYSFLOW): verified blocks stay here until they are read, stored in the page cache,
//! or evicted by newer ones. It also knows which blocks readers wait for.
//!
//! Neighbours are kept compressed. Together with the other blocks and the pages kept for reuse, they never take more
//! than the pool's pages. A filled pool keeps no used pages: a thread allocates as many free ones ahead, as in SYSFLOW,
//! and they are counted by themselves.
//!
//! Without locks: `monitor.rs` has the lock, and the threads that wait.

use super::neighbours::Neighbours;
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::device::settings::POOL_PAGES_DEFAULT;
use crate::wire::Refusal;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of unread evicted blocks that are remembered, to count how many are requested again.
const GONE_MAX: usize = 8192;

/// Why a block is in the buffer.
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
    Buffered,
    /// It was here already.
    Repeated,
    /// It was a neighbour, and there was no room.
    Dropped,
}

/// A block that readers wait for. All its readers share one request.
#[derive(Debug, Default)]
pub(crate) struct RequestedBlock {
    waiters: u32,
    pub(super) bytes: Option<Arc<[u8]>>,
    /// The connection on which it was requested, and when.
    pub(crate) asked: Option<(u64, Instant)>,
    /// How often it was requested.
    pub(crate) tries: u32,
    /// Since when a reader has waited for a plan to bring it.
    pub(crate) expected_since: Option<Instant>,
    /// Why the server refused it.
    pub(crate) refused: Option<Refusal>,
}

/// Consecutive blocks of one file that are stored in the page cache together. They stay in the buffer meanwhile.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) file: FileId,
    pub(crate) first: u32,
    pub(crate) blocks: Vec<Arc<[u8]>>,
}

/// The verified blocks of one message.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) blocks: &'a [BlockAt],
    pub(crate) pages: &'a [Arc<[u8]>],
    /// The length of each block, in bytes.
    pub(crate) lengths: &'a [usize],
    /// The bytes from which the blocks were unpacked.
    pub(crate) packed: &'a [u8],
}

/// The counters of the buffer, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferCounts {
    pub(crate) prefetched_read: u64,
    pub(crate) neighbours_read: u64,
    pub(crate) stored: u64,
    pub(crate) not_stored: u64,
    pub(crate) gone: u64,
    pub(crate) asked_anew: u64,
    pub(crate) waits_for_room: u64,
}

struct Buffered {
    bytes: Arc<[u8]>,
    kind: Kind,
    // Identifies this block's entry in a queue: entries with another order belong to an earlier block at the same
    // place.
    order: u64,
    is_storing: bool,
    was_read: bool,
}

/// The buffer.
#[derive(Default)]
pub(super) struct PrefetchBuffer {
    buffered: HashMap<BlockAt, Buffered>,
    packed: Neighbours,
    pub(super) requested: HashMap<BlockAt, RequestedBlock>,
    neighbour_queue: VecDeque<(BlockAt, u64)>,
    prefetched_queue: VecDeque<(BlockAt, u64)>,
    store_queue: VecDeque<(BlockAt, u64)>,
    order: u64,
    // A bit for each block that was handed to the kernel and not read again.
    delivered: HashMap<FileId, Vec<u64>>,
    gone: HashSet<BlockAt>,
    pub(super) spare: VecDeque<Arc<[u8]>>,
    // A thread brings the spare pages; otherwise they are pages that were used.
    pub(super) is_filled: bool,
    pub(super) counts: BufferCounts,
    progress: Option<Instant>,
    /// The maximum number of pages that blocks take.
    pub(super) pages_max: usize,
    spare_max: usize,
}

impl PrefetchBuffer {
    /// Returns a buffer for `pool_pages` blocks. 0: the default number, and no page is reused.
    pub(super) fn new(pool_pages: usize, is_filled: bool) -> Self {
        Self {
            is_filled,
            pages_max: match pool_pages {
                0 => POOL_PAGES_DEFAULT,
                pages => pages,
            },
            spare_max: pool_pages,
            ..Self::default()
        }
    }

    /// Takes a block if it is here.
    pub(super) fn take(&mut self, at: BlockAt) -> Option<Arc<[u8]>> {
        let Some(buffered) = self.buffered.get_mut(&at) else {
            let bytes = self.packed.take(at, self.pages_max)?;
            self.counts.neighbours_read += 1;
            self.progress = Some(Instant::now());
            // The bundle may have been unpacked for this, which takes more pages.
            while self.used() > self.pages_max && self.packed.bundles() > 1 {
                self.evict_neighbour();
            }
            self.shorten_spare();
            self.keep_spare(&bytes);
            self.deliver(at);
            return Some(bytes);
        };
        let bytes = Arc::clone(&buffered.bytes);
        if !buffered.was_read {
            match buffered.kind {
                Kind::Prefetched { .. } => self.counts.prefetched_read += 1,
                Kind::Neighbour => self.counts.neighbours_read += 1,
            }
        }
        buffered.was_read = true;
        if !buffered.is_storing {
            self.remove(at);
        }
        self.deliver(at);
        Some(bytes)
    }

    /// Records that one more reader waits for a block that is not here.
    pub(super) fn request(&mut self, at: BlockAt) {
        self.forget_delivered(at);
        if self.gone.remove(&at) {
            self.counts.asked_anew += 1;
        }
        self.requested.entry(at).or_default().waiters += 1;
    }

    /// Records that a reader no longer waits for a block, and whether it got the block.
    pub(super) fn end_request(&mut self, at: BlockAt, is_there: bool) {
        if let Some(requested) = self.requested.get_mut(&at) {
            requested.waiters = requested.waiters.saturating_sub(1);
            if requested.waiters == 0 {
                self.requested.remove(&at);
            }
        }
        if is_there {
            self.deliver(at);
        }
    }

    /// Makes room for one more block without a wait. Returns whether there is room.
    pub(super) fn make_room(&mut self) -> bool {
        self.used() < self.pages_max || self.evict_neighbour()
    }

    /// Returns how much longer a full buffer without progress delays a thread that brings a block.
    pub(super) fn patience_left(&mut self, patience: Duration) -> Duration {
        match self.progress {
            Some(last) => patience.saturating_sub(last.elapsed()),
            None => {
                self.progress = Some(Instant::now());
                patience
            }
        }
    }

    /// Puts a block here.
    pub(super) fn insert(&mut self, at: BlockAt, bytes: Arc<[u8]>, kind: Kind) {
        self.order += 1;
        let order = self.order;
        let is_storable = match kind {
            Kind::Neighbour => {
                self.neighbour_queue.push_back((at, order));
                false
            }
            Kind::Prefetched { is_storable, .. } => {
                self.prefetched_queue.push_back((at, order));
                is_storable
            }
        };
        if is_storable {
            self.store_queue.push_back((at, order));
        }
        let buffered = Buffered {
            bytes,
            kind,
            order,
            is_storing: false,
            was_read: false,
        };
        self.buffered.insert(at, buffered);
        self.shorten_queues();
    }

    /// Places neighbours of one message. A waiting reader gets its block; the others wait to be read while there is
    /// room. `asked`: the requested block among them, which is no neighbour. Returns whether a reader got its block.
    pub(super) fn place(&mut self, message: &Message<'_>, asked: Option<BlockAt>) -> bool {
        let Message {
            blocks,
            pages,
            lengths,
            packed,
        } = *message;
        let (mut kept, mut was_awaited) = (Vec::new(), false);
        let mut seen = HashSet::new();
        for (at, page) in blocks.iter().zip(pages) {
            let is_new = seen.insert(*at) && !self.is_here(*at);
            let waits = if let Some(requested) = self.requested.get_mut(at) {
                was_awaited = true;
                if requested.bytes.is_none() {
                    requested.bytes = Some(Arc::clone(page));
                    self.counts.neighbours_read += u64::from(asked != Some(*at));
                }
                false
            } else {
                is_new && !self.is_delivered(*at)
            };
            kept.push(waits.then(|| Arc::clone(page)));
        }
        let pages_needed = Neighbours::pages_of(kept.iter().flatten().count(), packed.len());
        while pages_needed <= self.pages_max
            && self.used() + pages_needed > self.pages_max
            && self.evict_neighbour()
        {}
        if self.used() + pages_needed <= self.pages_max {
            let pages_max = self.pages_max;
            self.packed.put(blocks, kept, lengths, packed, pages_max);
            self.shorten_spare();
        }
        was_awaited
    }

    /// Returns the oldest storable block with its adjacent ones, at most `blocks_max`.
    pub(super) fn take_run(&mut self, blocks_max: usize) -> Option<Run> {
        let at = loop {
            let (at, order) = self.store_queue.pop_front()?;
            let is_it = self.buffered.get(&at).is_some_and(|b| b.order == order);
            if is_it && self.may_store(at) {
                break at;
            }
        };
        let file = at.file;
        let may = |buffer: &Self, index| buffer.may_store(BlockAt { file, index });
        let (mut first, mut behind) = (at.index, at.index + 1);
        while first > 0 && ((behind - first) as usize) < blocks_max && may(self, first - 1) {
            first -= 1;
        }
        while ((behind - first) as usize) < blocks_max && may(self, behind) {
            behind += 1;
        }
        let mut blocks = Vec::with_capacity((behind - first) as usize);
        for index in first..behind {
            if let Some(buffered) = self.buffered.get_mut(&BlockAt { file, index }) {
                buffered.is_storing = true;
                blocks.push(Arc::clone(&buffered.bytes));
            }
        }
        Some(Run {
            file,
            first,
            blocks,
        })
    }

    /// Records whether the page cache has taken a run. Blocks that it has not taken wait for their reader.
    pub(super) fn stored(&mut self, run: &Run, is_there: bool) {
        for index in (run.first..).take(run.blocks.len()) {
            let at = BlockAt {
                file: run.file,
                index,
            };
            let Some(buffered) = self.buffered.get_mut(&at) else {
                debug_assert!(false, "a block that is being stored stays in the buffer");
                continue;
            };
            buffered.is_storing = false;
            if is_there || buffered.was_read {
                self.counts.stored += u64::from(is_there);
                self.remove(at);
                self.deliver(at);
            } else {
                if let Kind::Prefetched { is_storable, .. } = &mut buffered.kind {
                    *is_storable = false;
                }
                self.counts.not_stored += 1;
            }
        }
    }

    /// Handles the end of a task: its unread prefetched blocks that may not be stored are evicted first from now on.
    pub(super) fn end(&mut self, token: Token) {
        let mut unread: Vec<_> = self
            .buffered
            .iter_mut()
            .filter(|(_, buffered)| {
                !buffered.was_read
                    && matches!(buffered.kind, Kind::Prefetched { token: owner, is_storable: false }
                        if owner == token)
            })
            .collect();
        unread.sort_by_key(|(_, buffered)| buffered.order);
        for (at, buffered) in &mut unread {
            buffered.kind = Kind::Neighbour;
            self.neighbour_queue.push_back((**at, buffered.order));
        }
    }

    /// Returns which blocks of an aligned run are neither here nor awaited nor handed to the kernel, a bit for each.
    pub(super) fn missing_of_run(&self, file: FileId, run: u32, file_blocks: u32) -> u32 {
        let first = run.saturating_mul(SEGMENT_BLOCKS);
        let indexes = first..first.saturating_add(SEGMENT_BLOCKS).min(file_blocks);
        let missing = indexes.filter(|&index| !self.has(BlockAt { file, index }));
        missing.fold(0, |mask, index| mask | 1 << (index % SEGMENT_BLOCKS))
    }

    /// Whether a block was evicted before it was read, as far as that is remembered.
    pub(super) fn is_gone(&self, at: BlockAt) -> bool {
        self.gone.contains(&at)
    }

    /// Whether most neighbours are evicted before they are read.
    pub(super) fn is_scattered(&self) -> bool {
        self.packed.is_scattered()
    }

    /// Whether a reader waits for any block.
    pub(super) fn has_waiters(&self) -> bool {
        self.requested.values().any(|block| block.bytes.is_none())
    }

    /// The number of pages that blocks take.
    pub(super) fn used(&self) -> usize {
        self.buffered.len() + self.packed.pages()
    }

    /// Whether a block waits here to be read.
    pub(super) fn is_here(&self, at: BlockAt) -> bool {
        self.buffered.contains_key(&at) || self.packed.has(at)
    }

    /// Whether a block is here, awaited, or was handed to the kernel.
    pub(super) fn has(&self, at: BlockAt) -> bool {
        self.is_here(at) || self.requested.contains_key(&at) || self.is_delivered(at)
    }

    /// Records that a reader got a block from elsewhere.
    pub(super) fn delivered(&mut self, at: BlockAt) {
        self.forget_delivered(at);
        self.deliver(at);
    }

    pub(super) fn evict_prefetched(&mut self) -> bool {
        for place in 0..self.prefetched_queue.len() {
            let (at, order) = self.prefetched_queue[place];
            let Some(buffered) = self.buffered.get(&at).filter(|b| b.order == order) else {
                continue;
            };
            if !buffered.is_storing {
                self.prefetched_queue.remove(place);
                self.evict(at);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, at: BlockAt) {
        if let Some(buffered) = self.buffered.remove(&at) {
            self.progress = Some(Instant::now());
            self.keep_spare(&buffered.bytes);
        }
    }

    fn keep_spare(&mut self, page: &Arc<[u8]>) {
        if !self.is_filled
            && self.spare.len() + self.used() < self.spare_max
            && page.len() == BLOCK_BYTES
        {
            self.spare.push_back(Arc::clone(page));
        }
    }

    fn shorten_spare(&mut self) {
        if self.is_filled {
            return;
        }
        let room = self.spare_max.saturating_sub(self.used());
        self.spare.truncate(room);
    }

    fn evict(&mut self, at: BlockAt) {
        let progress = self.progress;
        self.remove(at);
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

    fn evict_neighbour(&mut self) -> bool {
        while let Some((at, order)) = self.neighbour_queue.pop_front() {
            let is_it = |buffered: &Buffered| {
                buffered.order == order && buffered.kind == Kind::Neighbour && !buffered.is_storing
            };
            if self.buffered.get(&at).is_some_and(is_it) {
                self.evict(at);
                return true;
            }
        }
        let gone = self.packed.drop_oldest();
        for at in &gone {
            self.note_gone(*at);
        }
        !gone.is_empty()
    }

    fn may_store(&self, at: BlockAt) -> bool {
        self.buffered.get(&at).is_some_and(|buffered| {
            !buffered.is_storing
                && matches!(buffered.kind, Kind::Prefetched { is_storable, .. } if is_storable)
        })
    }

    // The queues keep entries of blocks that have left the buffer until these reach the front or become too many.
    fn shorten_queues(&mut self) {
        let buffered = &self.buffered;
        let limit = 2 * buffered.len() + 64;
        for queue in [
            &mut self.neighbour_queue,
            &mut self.prefetched_queue,
            &mut self.store_queue,
        ] {
            if queue.len() > limit {
                queue.retain(|(at, order)| buffered.get(at).is_some_and(|b| b.order == *order));
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
